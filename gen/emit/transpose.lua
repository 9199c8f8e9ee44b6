-- Transposition, L being the lanes of the full width:
--   square      L rows by L columns in registers, in log2(L) steps, which exchange blocks of 1, 2, 4, .. lanes
--   sums        horizontal sums of L vectors, in log2(L) steps
--   matrices    of a group, square by square, from rows to lanes and back

local layouts = require "graph.layout"
local tiles = require "schedule.tiles"

local M = {}

-- rows[i], i from 0, are vectors of the full width; the result's vector j holds column j.
function M.square(t, rows, prefix) return M.blocks(t, rows, prefix, 1) end

-- The same for L / size vectors, as a square of blocks of `size` lanes.
function M.blocks(t, rows, prefix, size)
  local isa, distance = t.isa, 1
  while distance * size < isa.lanes do
    local out = {}
    for i = 0, isa.lanes // size - 1 do
      if i // distance % 2 == 0 then
        local a, b, block = rows[i], rows[i + distance], distance * size
        out[i] = t:op("trn_lo", isa.full, ("%s%d_%d"):format(prefix, block * 2, i), a, b, block)
        out[i + distance] = t:op("trn_hi", isa.full, ("%s%d_%d"):format(prefix, block * 2, i + distance), a, b, block)
      end
    end
    rows, distance = out, 2 * distance
  end
  return rows
end

-- The horizontal sums of the vectors list[i], i from 0 to L-1, as the lanes of one vector. Another op may take the
-- place of addition, with its word for names. of: a part of further names, where a function has several such sums.
function M.sums(t, list, op, word, of)
  local w, block = t.isa.full, 1
  of = of or ""
  while block < t.isa.lanes do
    local joined = {}
    for i = 0, #list, 2 do
      local name, a, b = ("_%d_%d"):format(2 * block, i // 2), list[i], list[i + 1]
      local even = t:op("trn_lo", w, "even" .. of .. name, a, b, block)
      local odd = t:op("trn_hi", w, "odd" .. of .. name, a, b, block)
      joined[i // 2] = t:op(op or "add", w, (word or "sums") .. name, even, odd)
    end
    list, block = joined, 2 * block
  end
  return list[0]
end

-- Reduces all lanes by an op; the result is in every lane.
function M.of_lanes(t, op, value, name)
  local w, block = t.isa.full, t.isa.lanes // 2
  while block >= 1 do
    local of = ("%s_%d"):format(name, block)
    value = t:op(op, w, of, t:op("trn_lo", w, "even_" .. of, value, value, block),
      t:op("trn_hi", w, "odd_" .. of, value, value, block))
    block = block // 2
  end
  return value
end

-- The offset of a column. words: the tensor of rows of words that has the columns, which may lie in blocks.
local function word_at(x, column) return x.words and layouts.word_at(x.words, column) or column end

-- Records build(at, firsts, seconds) for the vectors of n words: from word `at` on, `firsts` words have a first number,
-- and `seconds` of them also a second one, since the last word has none.
function M.words_apart(K, n, build)
  local lanes = K.plan.isa.lanes
  local whole = (n - 1) // lanes
  K:each("block", whole, function(i) build(i * lanes, lanes, lanes) end)
  build(whole * lanes, n - whole * lanes, n - 1 - whole * lanes)
end

-- Returns a function (name, at, firsts, seconds) that reads a vector from a row of X: so many numbers, and for words so
-- many second numbers. from: as in M.panel.
local function reading(t, w, from)
  local scale = from.scale and t:op("set", w, "scale", from.scale)
  local function numbers(name, at, count)
    local value = t:read(from.load or "load", w, "x_" .. name, at, count)
    return scale and t:op("mul", w, "scaled_" .. name, value, scale) or value
  end
  return function(name, at, firsts, seconds)
    local first = numbers(name, at, firsts)
    if not from.distance then return first end
    local second = seconds > 0 and numbers("second_" .. name, at:at(from.distance), seconds)
      or t:op("zero", w, "none_" .. name)
    return t:op(from.pair, w, "word_" .. name, first, second)
  end
end

-- X[q][d] of one group -> XT[d][width], with zeros in the lanes without a query. from:
--   p, row         the first row of X, and floats from row to row
--   columns        d; range: those to read, if not all
--   words          the tensor of rows of words, if X is one
--   scale          optional factor
--   letter         the name of X in comments, if it is another
--   load           the op that reads X
--   none           the value of lanes without a query
--   change(w, name, x)   maps a vector of XT
--   distance       columns are words, which `pair` makes of a number and the one so far after it; the last has a zero
function M.panel(K, label, group, from, xt)
  local t, isa = K.t, K.plan.isa
  local lanes, d, ld, letter = isa.lanes, from.columns, from.row, from.letter or "X"
  local params = { { "x", "in", from.p }, { "xt", "out", xt } }
  local own = K:add_range(params, from.range)
  K:part(label .. "_" .. group.name,
    ("%s%sT[%d][%d] from %d rows of %s[..][%d]%s."):format(from.range and "Some rows of " or "", letter, d, group.width,
      group.used, letter, ld, from.scale and ", scaled" or ""), params, function(p)
    -- One of `columns` columns of `used` rows, those of vector c.
    local function square(column, columns, c, used, seconds)
      local rows, read = {}, reading(t, isa.full, from)
      for r = 0, lanes - 1 do
        local name = "x_r" .. r
        if r < used then
          local at = p.x:at(c * (lanes * ld) + word_at(from, column) + r * ld)
          rows[r] = read("r" .. r, at, columns, seconds)
        else
          rows[r] = from.none and t:op("set", isa.full, name, from.none) or t:op("zero", isa.full, name)
        end
      end
      local out = M.square(t, rows, "t")
      for j = 0, columns - 1 do
        local vector = from.change and from.change(isa.full, "r" .. j, out[j]) or out[j]
        t:op("store", isa.full, nil, p.xt:at(column * group.width + c * lanes + j * group.width), vector)
      end
    end
    local function squares(column, columns, seconds)
      local whole = group.used // lanes
      K:each("c", whole, function(c) t:scope(function() square(column, columns, c, lanes, seconds) end) end)
      if group.used % lanes > 0 then
        t:scope(function() square(column, columns, whole, group.used % lanes, seconds) end)
      end
    end
    if from.distance then M.words_apart(K, d, squares) else K:vectors("block", d, squares, own(p)) end
  end)
end

-- Stores columns for the queries in vector c of a group; rows[i] is the i-th column. to:
--   at        of the first query and column
--   row       floats from query to query
--   columns   number of columns
--   asked     how many queries a run asks for, if it may ask for fewer
function M.store_columns(t, group, c, rows, to)
  local isa, lanes = t.isa, t.isa.lanes
  local out = M.square(t, rows, ("t_c%d_"):format(c - 1))
  for j = 0, group.vecs[c].used - 1 do
    local query = (c - 1) * lanes + j
    local at = to.at:at(query * to.row)
    local function store() t:write(isa.full, at, out[j], to.columns) end
    if to.asked then t:when(query, to.asked, store) else store() end
  end
end

-- XT[d][width] of one group -> X[q][d], as in M.panel. to: p, row, columns, words, asked; filled: zeros follow the
-- columns up to a whole vector.
function M.rows(K, label, group, xt, to)
  local t, isa, d = K.t, K.plan.isa, to.columns
  local lanes, params = isa.lanes, { { "xt", "in", xt }, { "x", "out", to.p }, { "asked", "int", to.asked } }
  K:part(label .. "_" .. group.name,
    ("%d rows of X[..][%d] from XT[%d][%d]."):format(group.used, to.row, d, group.width), params, function(p)
    local function squares(column, columns)
      for c in ipairs(group.vecs) do
        t:scope(function()
          local rows = {}
          for r = 0, lanes - 1 do
            local name, at = ("x_r%d_c%d"):format(r, c - 1), p.xt:at((column + r) * group.width + (c - 1) * lanes)
            rows[r] = r < columns and t:op("load", isa.full, name, at) or t:op("zero", isa.full, name)
          end
          M.store_columns(t, group, c, rows, { at = p.x:at(word_at(to, column)), row = to.row,
                                               columns = to.filled and lanes or columns, asked = p.asked })
        end)
      end
    end
    K:vectors("block", d, squares)
  end)
end

-- Interleaves the lanes of a and b, vectors of four lanes: first their lower halves, then the upper ones.
function M.side_by_side(t, w, name, a, b)
  local even, odd = t:op("trn_lo", w, "even" .. name, a, b, 1), t:op("trn_hi", w, "odd" .. name, a, b, 1)
  return t:op("trn_lo", w, "lower" .. name, even, odd, 2), t:op("trn_hi", w, "upper" .. name, even, odd, 2)
end

return M
