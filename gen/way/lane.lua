-- Vectors of B times a lane of a vector of A, where A is contiguous from row to row or from step to step. What is
-- left over of a vector's lanes goes the way of every ISA.

local outer = require "way.outer"

local function nothing() end

return function(t, tile, block)
  local lanes, full, a, rest = t.isa.lanes, t.isa.full, tile.a, outer(t, tile, block)
  local held -- vectors of A
  local function read(r, step)
    local at = a.p:at(step.k * a.step + r * a.row)
    return t:operand(tile.product.a, tile.product.does.load, full, ("a_r%d%s"):format(r, step.tag), at)
  end
  local function fma(b, acc, vector, lane)
    for c = 1, #tile.vecs do t:update(acc[c], tile.product.lane, b[c], vector, acc[c], lane) end
  end

  if a.row == 1 then
    local whole = tile.rows - tile.rows % lanes
    return { begin = nothing, multiply = function(r, step, b, acc)
      if r >= whole then return rest.multiply(r, step, b, acc) end
      if r % lanes == 0 then held = read(r, step) end
      fma(b, acc, held, r % lanes)
    end }
  elseif a.step == 1 then
    local whole = block.count - block.count % lanes
    local function begin(step)
      if step.i >= whole or step.i % lanes > 0 then return end
      held = {}
      for r = 0, tile.rows - 1 do held[r] = read(r, step) end
    end
    return { begin = begin, multiply = function(r, step, b, acc)
      if step.i >= whole then return rest.multiply(r, step, b, acc) end
      fma(b, acc, held[r], step.i % lanes)
    end }
  end
  return rest
end
