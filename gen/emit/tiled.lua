-- Blocks of a matrix product in tile registers: two by two tiles of sums at most, K steps of as many words as a row of a
-- tile has. Operand A lies in rows of words, B in rows of vectors; what is behind the last K step is zeros in both, and
-- rows of A that nobody asks for may be anything. The sums are left in a small buffer, whose vectors an epilogue reads.

local choices = require "choices"
local expr = require "expr"
local tiles = require "tiles"

-- tile: as gemm.tile has it. Returns acc[r][c], vectors that are read as they are asked for.
return function(t, tile)
  choices.add(t.why, "tiles")
  local size, product, a, b = t.isa.tile, tile.product, tile.a, tile.b
  local full, width = t.isa.full, #tile.vecs * size
  local down, across = tiles.ceil_div(tile.rows, size), #tile.vecs
  local function each(visit)
    for i = 0, down - 1 do
      for j = 0, across - 1 do visit(i, j, ("C%d%d"):format(i, j)) end
    end
  end
  local function step(s)
    for i = 0, down - 1 do
      t:op("tile_load", full, nil, "A" .. i, a.p:at(s * size + i * (size * a.row)), a.row)
    end
    for j = 0, across - 1 do
      t:op("tile_load", full, nil, "B" .. j, b.p:at(s * (size * b.step) + j * size), b.step)
    end
    each(function(i, j, sum) t:op(product.tiled, full, nil, sum, "A" .. i, "B" .. j) end)
  end

  local sums = t:buffer("sums", down * size * width)
  t:note(("%d rows and %d columns of sums, %d K steps at a time"):format(tile.rows, width, size))
  each(function(_, _, sum) t:op("tile_zero", full, nil, sum) end)
  local count = tile.blocks and expr.share(tile.blocks * tile.unroll, size) or tiles.ceil_div(tile.steps, size)
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
      local sum = t:op(does.load, w, (tile.init and "sum_" or "acc_") .. name, sums:at(r * width + (c - 1) * size))
      row[c] = tile.init and t:op(does.add, w, "acc_" .. name, tile.init(r, c, w, "start_" .. name), sum) or sum
      return row[c]
    end })
  end
  return acc
end
