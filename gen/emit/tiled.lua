-- Blocks of a matrix product in tile registers: two by two tiles of sums at most, K steps of as many words as a row of
-- a tile has. Operand A lies in rows of words, or in blocks of them (tiles.lua), B in rows of vectors; what is behind
-- the last K step is zeros in both, and rows of A that nobody asks for may be anything. The sums are left in a small
-- buffer, whose vectors an epilogue reads.

local choices = require "choices"
local expr = require "expr"
local tiles = require "tiles"

-- K steps of tiles: a literal number, or one that a run decides.
local function steps_of(tile, size)
  return tile.blocks and expr.share(tile.blocks * tile.unroll, size) or tiles.ceil_div(tile.steps, size)
end

-- tile: as gemm.tile has it. Returns acc[r][c], vectors that are read as they are asked for.
local function by_tiles(t, tile)
  choices.add(t.why, "tiles")
  local size, product, a, b = t.isa.tile, tile.product, tile.a, tile.b
  local full, width = t.isa.full, #tile.vecs * size
  local down, across = tiles.ceil_div(tile.rows, size), #tile.vecs
  local function each(visit)
    for i = 0, down - 1 do
      for j = 0, across - 1 do visit(i, j, ("C%d%d"):format(i, j)) end
    end
  end
  local load_a = a.passing and "tile_stream" or "tile_load"
  local function step(s)
    for i = 0, down - 1 do
      t:op(load_a, full, nil, "A" .. i, a.p:at(s * (size * a.step) + i * (size * a.row)), a.row)
    end
    for j = 0, across - 1 do
      t:op("tile_load", full, nil, "B" .. j, b.p:at(s * (size * b.step) + j * size), b.step)
    end
    each(function(i, j, sum) t:op(product.tiled, full, nil, sum, "A" .. i, "B" .. j) end)
  end

  local sums, count = t:buffer("sums", down * size * width), steps_of(tile, size)
  t:note(("%d rows and %d columns of sums, %d K steps at a time"):format(tile.rows, width, size))
  each(function(_, _, sum) t:op("tile_zero", full, nil, sum) end)
  if not tile.blocks and (count == 1 or tile.steps <= tile.unroll) then
    for s = 0, count - 1 do step(s) end
  else
    t:loop("step", count, step)
  end
  each(function(i, j, sum)
    t:op("tile_store", full, nil, sum, sums:at(i * (size * width) + j * size), width)
  end)

  local acc, does = {}, product.does
  for r = 0, tile.rows - 1 do
    acc[r] = setmetatable({}, { __index = function(row, c)
      local w, name = tile.vecs[c].w, ("r%d_c%d"):format(r, c - 1)
      local sum = t:op(does.load, w, (tile.init and "tile_" or "acc_") .. name, sums:at(r * width + (c - 1) * size))
      row[c] = tile.init and t:op(does.add, w, "acc_" .. name, tile.init(r, c, w, "from_" .. name), sum) or sum
      return row[c]
    end })
  end
  return acc
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
        columns[c] = t:op("load", v.w, "b_c" .. c - 1, b.p:at(word * b.step + (c - 1) * t.isa.lanes))
      end
      each(function(r, c, w, name)
        n = n + 1
        local at = a.p:at(s * (size * a.step) + k + r * a.row)
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

return function(t, tile) return (tile.filter and by_vectors or by_tiles)(t, tile) end
