-- Tile registers: at most 2 x 2 accumulator tiles, and K steps of as many words as a row of a tile has. Operand A lies
-- in rows of words, or in blocks of them (schedule/tiles.lua), B in rows of vectors. Both have zeros behind the last K
-- step. Rows of A behind the last one may hold anything. Sums go to a small buffer, from which an epilogue reads
-- vectors.
--
-- The tile unit and the vector units overlap within the core's reorder window. So the products of one block may be
-- interleaved with the epilogue of the one before: a tile, then a few rows (`buffered`):
--
--   size(isa, rows, vecs)                numbers of the buffer of a block's sums
--   products(t, tile, sums, among)       records the products of a block; its sums go to that buffer
--   sums(t, tile, sums)                  the sums in it, as an epilogue takes them
--   interleaved(t, tile, sums, rows)     the products of a block, interleaved with the epilogue of another one

local choices = require "base.choices"
local expr = require "base.expr"

-- Products round their operands anyway, and store their sums after each block of keys.
local M = { whole = true, rows_of_a = true, key_block = 256, twice = true, chained = false, fetched = "shares",
            words = true, buffered = {} }

function M.tile_words(scheme) return scheme.pad end

-- A K step of tiles in the context takes the weights of two tiles of keys.
function M.key_rows(isa) return 2 * isa.tile end

function M.facts(cpu) return cpu.tiling end

function M.op(scheme) return scheme.tiled end

function M.enter(t) t:op("tiles_on", t.isa.full) end
function M.leave(t) t:op("tiles_off", t.isa.full) end

-- K steps of a panel of two tiles that stay in L1, beside all else that a tile touches.
function M.chunk(target)
  local pad = target.scheme.pad
  local near = math.max(1, 3 * target.cpu.near // 2 // (4 * 2 * pad * pad)) * pad
  return target.cfg.k_block or near, pad
end

-- Products or loads of tiles, whichever are more, and the sums on their way to vectors.
function M.cost(target, rows, vecs, steps)
  local size, cpu, across = target.isa.tile, target.cpu, #vecs
  local down, rates = expr.ceil_div(rows, size), cpu.tiling
  local step = math.max(down * across * rates.dot, (down + across) * rates.load)
  local cycles = expr.ceil_div(steps, size) * step + down * across * rates.store
  return cycles * cpu.fmas + 20 + 2 * rows * across
end

-- K steps of tiles: a literal number, or one that a run decides.
local function steps_of(tile, size)
  return tile.blocks and expr.share(tile.blocks * tile.unroll, size) or expr.ceil_div(tile.steps, size)
end

-- Ops of the tiles of a block, C<i><j> += A<i> B<j>.
local function ops(t, tile)
  local size, scheme, a, b = t.isa.tile, tile.scheme, tile.a, tile.b
  local full, width = t.isa.full, #tile.vecs * size
  local load_a = a.streamed and "tile_stream" or "tile_load"
  local function sum(i, j) return ("C%d%d"):format(i, j) end
  return {
    down = expr.ceil_div(tile.rows, size), across = #tile.vecs, count = steps_of(tile, size),
    zero = function(i, j) t:op("tile_zero", full, nil, sum(i, j)) end,
    load_sum = function(sums, i, j)
      t:op("tile_load", full, nil, sum(i, j), sums:at(i * (size * width) + j * size), width)
    end,
    load_a = function(s, i)
      t:op(load_a, full, nil, "A" .. i, a.p:at(s * (size * a.k_stride) + i * (size * a.row)), a.row)
    end,
    load_b = function(s, j, as)
      t:op("tile_load", full, nil, "B" .. (as or j), b.p:at(s * (size * b.k_stride) + j * size), b.k_stride)
    end,
    multiply = function(i, j) t:op(scheme.tiled, full, nil, sum(i, j), "A" .. i, "B" .. j) end,
    store = function(sums, i, j, as)
      t:op("tile_store", full, nil, sum(i, as or j), sums:at(i * (size * width) + j * size), width)
    end,
  }
end

function M.buffered.size(isa, rows, vecs) return expr.ceil_div(rows, isa.tile) * isa.tile * #vecs * isa.tile end

-- build(s) for `count` K steps from number `from` on: a loop, or straight if there is one.
local function repeated(t, from, count, build)
  if count > 1 then return t:loop("step", count, function(s) build(s + from) end) end
  for s = from, from + count - 1 do build(s) end
end

-- tile: as gemm.tile has it; continues: they are
-- added to those that are there. among: { rows, record }, work on so many rows that record(base, rows) does from row
-- `base` on, a few after each K step.
function M.buffered.products(t, tile, sums, among)
  choices.add(t.why, "tiles")
  local of = ops(t, tile)
  local function each(visit, ...)
    for i = 0, of.down - 1 do
      for j = 0, of.across - 1 do visit(..., i, j) end
    end
  end
  local function step(s)
    if tile.b.fetch then tile.b.fetch(s * t.isa.tile) end
    for i = 0, of.down - 1 do of.load_a(s, i) end
    for j = 0, of.across - 1 do of.load_b(s, j) end
    each(function(_, i, j) of.multiply(i, j) end)
  end
  t:note(("%d rows and %d columns of sums, %d K steps at a time"):format(tile.rows, of.across * t.isa.tile, t.isa.tile))
  each(tile.continues and of.load_sum or function(_, i, j) of.zero(i, j) end, sums)
  if among then
    local some = 2 * expr.ceil_div(among.rows, 2 * of.count) -- pairs of rows stay together
    local full = among.rows // some
    local function record(from, rows) t:scope(function() among.record(from, rows) end) end
    repeated(t, 0, full, function(s)
      step(s)
      record(s * some, some)
    end)
    repeated(t, full, of.count - full, step)
    if among.rows % some > 0 then record(full * some, among.rows % some) end
  elseif not tile.blocks and (of.count == 1 or tile.steps <= tile.unroll) then
    for s = 0, of.count - 1 do step(s) end
  else
    t:loop("step", of.count, step)
  end
  each(of.store, sums)
end

-- The sums of a block in a buffer: acc[r][c], vectors that are read as they are asked for.
function M.buffered.sums(t, tile, sums)
  local size, does, acc = t.isa.tile, tile.scheme.does, {}
  for r = 0, tile.rows - 1 do
    acc[r] = setmetatable({}, { __index = function(row, c)
      local w, name = tile.vecs[c].w, ("r%d_c%d"):format(r, c - 1)
      local at = sums:at(r * (#tile.vecs * size) + (c - 1) * size)
      local sum = t:op(does.load, w, (tile.init and "tile_" or "acc_") .. name, at)
      row[c] = tile.init and t:op(does.add, w, "acc_" .. name, tile.init(r, c, w, "from_" .. name), sum) or sum
      return row[c]
    end })
  end
  return acc
end

-- The products of a block, interleaved with the epilogue of another one of `rows` rows, column by column of vectors:
-- row(r, c) records what comes before row r of column c, done(c) what follows the column. The sums take the place of
-- those that the epilogue has read.
function M.buffered.interleaved(t, tile, sums, rows)
  choices.add(t.why, "interleaved")
  local of = ops(t, tile)
  local parts = of.down * of.count
  local function part(n, j)
    local s, i = n // of.down, n % of.down
    if i == 0 then of.load_b(s, j, 0) end
    of.load_a(s, i)
    of.multiply(i, 0)
  end
  return {
    row = function(r, c)
      for i = 0, r == 0 and of.down - 1 or -1 do of.zero(i, 0) end
      for n = 0, parts - 1 do
        if n * rows // parts == r then part(n, c - 1) end
      end
    end,
    done = function(c)
      for i = 0, of.down - 1 do of.store(sums, i, c - 1, 0) end
    end,
  }
end

-- The same sums of pairs of bfloat16, in the same roundings, by vectors: for elements of A that a filter changes.
local function by_vectors(t, tile)
  local size, a, b, acc = t.isa.tile, tile.a, tile.b, {}
  local function each(visit)
    for r = 0, tile.rows - 1 do
      for c, v in ipairs(tile.vecs) do visit(r, c, v.w, ("r%d_c%d"):format(r, c - 1)) end
    end
  end
  -- Numbers below 2^-126 become zeros.
  local function flush(value, w, name)
    local minus = t:op("sub", w, "minus_" .. name, t:op("zero", w, "zero_" .. name), value)
    local below = t:op("lt", w, "below_" .. name, t:op("max", w, "size_" .. name, minus, value),
      t:op("set", w, "least_" .. name, 2.0 ^ -126))
    t:update(value, "zero_if", below, value)
  end
  for r = 0, tile.rows - 1 do acc[r] = {} end
  each(function(r, c, w, name) acc[r][c] = t:start("zero", w, "acc_" .. name) end)
  t:loop("step", steps_of(tile, size), function(s)
    local halves = { low = {}, high = {} }
    for half, sums in pairs(halves) do
      each(function(_, c, w, name)
        sums[#sums + 1] = t:start("zero", w, half .. "_" .. name)
      end)
    end
    t:loop("word", size, function(k)
      local word, columns, n = s * size + k, {}, 0
      for c, v in ipairs(tile.vecs) do
        columns[c] = t:op("load", v.w, "b_c" .. c - 1, b.p:at(word * b.k_stride + (c - 1) * t.isa.lanes))
      end
      each(function(r, c, w, name)
        n = n + 1
        local at = a.p:at(s * (size * a.k_stride) + k + r * a.row)
        local factor = tile.filter(c, w, word, t:op("dup", w, "a_" .. name, at), name)
        for half, sums in pairs(halves) do
          local op = half .. "_half"
          t:update(sums[n], "fma", t:op(op, w, half .. "_a_" .. name, factor),
            t:op(op, w, half .. "_b_" .. name, columns[c]), sums[n])
          flush(sums[n], w, half .. "_" .. name)
        end
      end)
    end)
    local n = 0
    each(function(r, c, w, name)
      n = n + 1
      t:update(halves.low[n], "add", halves.low[n], halves.high[n])
      flush(halves.low[n], w, "sum_" .. name)
      t:update(acc[r][c], "add", acc[r][c], halves.low[n])
      flush(acc[r][c], w, "acc_" .. name)
    end)
  end)
  return acc
end

function M.tile(t, tile)
  if tile.filter then return by_vectors(t, tile) end
  local sums = t:buffer("sums", M.buffered.size(t.isa, tile.rows, tile.vecs))
  M.buffered.products(t, tile, sums)
  return M.buffered.sums(t, tile, sums)
end

-- The flops of a round of emit/peak.lua: two by two tiles of sums, whose operands are loaded while they are multiplied.
function M.peak(t, scheme, own)
  local size, w, at = t.isa.tile, t.isa.full, own.at
  local sums = { "C00", "C01", "C10", "C11" }
  local function sum(op, base)
    for i, tile in ipairs(sums) do t:op(op, w, nil, tile, at(base, (i - 1) * size * size), size) end
  end
  own.define(function()
    M.enter(t)
    sum("tile_load", "data")
    own.rounds(function(odd)
      for _ = 1, own.steps do
        for i, tile in ipairs { "A0", "A1", "B0", "B1" } do
          t:op("tile_load", w, nil, tile, at("data", (2 * odd + (i - 1)) * (size * size // 2)), size)
        end
        for _, tile in ipairs(sums) do t:op(scheme.tiled, w, nil, tile, "A" .. tile:sub(2, 2), "B" .. tile:sub(3)) end
      end
    end)
    sum("tile_store", "out")
    M.leave(t)
  end)
  return 2 * own.steps * #sums * size * size * size * scheme.group
end

return M
