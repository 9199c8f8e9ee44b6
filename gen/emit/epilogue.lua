-- How a tile ends: what happens to its sums. An epilogue is a list of steps that each vector of sums goes through in
-- turn.
--
-- A step is { start, apply, finish }. apply(value, at) returns the value for the next step. at = { r, c, v, name }
-- tells which vector of sums it is: its row, its number in the row, the vector, and a suffix for names. start(c, v) and
-- finish(c, v) are optional: they come before and after column c of the vectors.

local M = {}

-- Where vector c of row r goes.
function M.place(target, lanes, at) return target.p:at(at.r * target.row + (at.c - 1) * lanes) end

-- How many floats of a vector may be touched: only those that it uses, if the target is exact.
local function touched(target, v) return target.exact and v.used or v.w.lanes end

-- target: p; row, numbers from row to row (vectors lie `lanes` apart); exact, if something else lies between the rows;
-- pairs; and scheme, that of the product which reads them.

-- The value in memory: the partial sum of earlier K steps.
local function old_value(t, target, at, name)
  return t:read("load", at.v.w, (name or "old_") .. at.name, M.place(target, t.isa.lanes, at), touched(target, at.v))
end

-- Adds that, or another tensor. `sum` and `old` replace the names of the sum and of what is added.
function M.add(t, target, sum, old)
  return { apply = function(value, at)
    return t:op("add", at.v.w, (sum or "sum_") .. at.name, old_value(t, target, at, old), value)
  end }
end

-- Multiplies by what is in memory at `target`, another tensor.
function M.times(t, target, name)
  return { apply = function(value, at)
    return t:op("mul", at.v.w, "product_" .. at.name, value, old_value(t, target, at, name))
  end }
end

-- Multiplies by the scales of columns, and adds what is in memory at `target`, if given.
function M.scaled(t, scales, target)
  local factors = {}
  return {
    start = function(c, v)
      factors[c] = t:op("load", v.w, ("scale_c%d"):format(c - 1), scales:at((c - 1) * t.isa.lanes))
    end,
    apply = function(value, at)
      local w = at.v.w
      if not target then return t:op("mul", w, "scaled_" .. at.name, value, factors[at.c]) end
      return t:op("fma", w, "sum_" .. at.name, value, factors[at.c], old_value(t, target, at))
    end,
  }
end

function M.store(t, target)
  return { apply = function(value, at)
    t:write(at.v.w, M.place(target, t.isa.lanes, at), value, touched(target, at.v))
    return value
  end }
end

-- Stores the numbers of a row in pairs, so that rows and vectors take half as many words.
function M.store_columns(t, target)
  return { apply = function(value, at)
    local p = target.p:at(at.r * target.row + (at.c - 1) * (t.isa.lanes // 2))
    t:op(target.scheme.store_pairs, at.v.w, nil, p, value)
    return value
  end }
end

-- Returns a function of (at, value, last) to call for the rows of a tile in turn. At every second row, and at the last
-- one, it returns a vector of words as a product reads them (each has the numbers of two rows), its row number and its
-- name. A last row without a partner is paired with zeros. make(at, name, { low =, high = }), if given, makes a word of
-- two rows, or of the last one alone.
function M.pairs_of_rows(t, scheme, make)
  local even = {}
  return function(at, value, last)
    if at.r % 2 == 0 then even[at.c] = value end
    if at.r % 2 == 0 and not last then return end
    local row, high = at.r // 2, at.r % 2 > 0 and value or nil
    local name = ("r%d_c%d"):format(row, at.c - 1)
    if make then return make(at, name, { low = even[at.c], high = high }), row, name end
    high = high or t:op("zero", at.v.w, "none_" .. at.name)
    return t:op(scheme.pair, at.v.w, "pair_" .. name, even[at.c], high), row, name
  end
end

-- Stores two rows as one row of pairs; target.rows is the number of rows.
function M.store_rows(t, target)
  local pair_up = M.pairs_of_rows(t, target.scheme)
  return { apply = function(value, at)
    local pair, row = pair_up(at, value, at.r + 1 == target.rows)
    if not pair then return value end
    t:op("store", at.v.w, nil, target.p:at(row * target.row + (at.c - 1) * t.isa.lanes), pair)
    return value
  end }
end

local stores = { columns = M.store_columns, rows = M.store_rows }

-- Stores as target.pairs says: the numbers of a row in pairs, two rows in pairs, or as they are. Before that it
-- multiplies by target.scale and rounds to target.round, if given.
function M.store_as(t, target)
  local store, scale, round = (stores[target.pairs] or M.store)(t, target), target.scale, target.round
  if not (scale or round) then return store end
  return { apply = function(value, at)
    local w, name = at.v.w, at.name
    if scale then value = t:op("mul", w, "scaled_" .. name, value, t:op("set", w, "factor_" .. name, scale)) end
    return store.apply(round and round.round(t, w, "rounded_" .. name, value) or value, at)
  end }
end

-- Converts integer sums to floats: times the scales of their row and column, plus a bias or what is in memory at
-- `target`, if given. columns[c]: scale and bias. The two scales are multiplied first, because their product is close
-- to the magnitude of the result.
function M.from_words(t, row_scales, columns, target)
  local of_row = {}
  return { apply = function(value, at)
    local w, column = at.v.w, columns[at.c]
    if at.c == 1 then of_row = {} end
    of_row[w] = of_row[w] or t:op("dup", w, ("row_scale_%s"):format(at.name), row_scales:at(at.r))
    local scale = t:op("mul", w, "scale_" .. at.name, of_row[w], column.scale)
    local sum = t:op("to_f", w, "sum_" .. at.name, value)
    local added = target and old_value(t, target, at) or column.bias
    if not added then return t:op("mul", w, "value_" .. at.name, sum, scale) end
    return t:op("fma", w, "value_" .. at.name, sum, scale, added)
  end }
end

-- Multiplies by a factor of each lane, which read(c, v) loads.
function M.scale(t, name, read)
  local factors = {}
  return {
    start = function(c, v) factors[c] = read(c, v) end,
    apply = function(value, at) return t:op("mul", at.v.w, name .. "_" .. at.name, value, factors[at.c]) end,
  }
end

-- Accumulates, in memory at place_of(c), a test that stays 0 as long as all values are finite.
function M.finite(t, place_of)
  local tests, zeros = {}, {}
  return {
    start = function(c, v)
      tests[c] = t:start("load", v.w, ("test_c%d"):format(c - 1), place_of(c))
      zeros[c] = t:op("zero", v.w, ("zero_c%d"):format(c - 1))
    end,
    apply = function(value, at)
      t:update(tests[at.c], "fma", value, zeros[at.c], tests[at.c])
      return value
    end,
    finish = function(c, v) t:op("store", v.w, nil, place_of(c), tests[c]) end,
  }
end

-- Records the steps for the sums acc[r][c] of a tile. It goes column by column if a step has a start or finish; else
-- row by row, which is the order of memory. interleaved: other work to record between the rows of columns
-- (way/tile.lua).
function M.run(tile, acc, steps, interleaved)
  local function apply(r, c, v)
    local value, at = acc[r][c], { r = r, c = c, v = v, name = ("r%d_c%d"):format(r, c - 1) }
    for _, step in ipairs(steps) do value = step.apply(value, at) end
  end
  local by_columns = interleaved
  for _, step in ipairs(steps) do by_columns = by_columns or step.start or step.finish end
  if not by_columns then
    for r = 0, tile.rows - 1 do
      for c, v in ipairs(tile.vecs) do apply(r, c, v) end
    end
    return
  end
  for c, v in ipairs(tile.vecs) do
    for _, step in ipairs(steps) do
      if step.start then step.start(c, v) end
    end
    for r = 0, tile.rows - 1 do
      if interleaved then interleaved.row(r, c) end
      apply(r, c, v)
    end
    for _, step in ipairs(steps) do
      if step.finish then step.finish(c, v) end
    end
    if interleaved then interleaved.done(c) end
  end
end

return M
