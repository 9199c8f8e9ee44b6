-- Vectors of B times a lane of a vector of A. A is contiguous from row to row or from step to step. Rows or steps that
-- do not fill a vector are broadcast, as in outer.lua. With `deinterleave` (isa/init.lua) a vector of B has the first
-- or the second numbers of its words. It is multiplied by that half of a lane, and the last vector of A is read with
-- fewer numbers.

local outer = require "way.outer"

local M = { by_lane = true, columns = "products by halves of words have weights as columns" }

local function nothing() end

function M.together(t, tile) return tile.a.k_stride == 1 and tile.a.row ~= 1 and t.isa.lanes or 1 end

function M.steps(t, tile, block)
  local lanes, full, a, rest = t.isa.lanes, t.isa.full, tile.a, outer.steps(t, tile, block)
  local deinterleave = tile.scheme.deinterleave
  local held -- vectors of A
  local function read(r, step, left)
    local at, name = a.p:at(step.k * a.k_stride + r * a.row), ("a_r%d%s"):format(r, step.tag)
    if left < lanes then return t:op("load_n", full, name, at, left) end
    return t:operand(tile.scheme.a, tile.scheme.does.load, full, name, at)
  end
  local function fma(r, b, acc, vector, lane)
    for c, v in ipairs(tile.vecs) do
      local n = deinterleave and lane * deinterleave + (c - 1) % deinterleave or lane
      if acc[c] then
        t:update(acc[c], tile.scheme.lane, b[c], vector, acc[c], n)
      else
        acc[c] = t:start(tile.scheme.starts, v.w, ("acc_r%d_c%d"):format(r, c - 1), b[c], vector, n)
      end
    end
  end
  local function by_lane(count) return deinterleave and count or count - count % lanes end

  if a.row == 1 then
    local whole = by_lane(tile.rows)
    return { begin = nothing, multiply = function(r, step, b, acc)
      if r >= whole then return rest.multiply(r, step, b, acc) end
      if r % lanes == 0 then held = read(r, step, whole - r) end
      fma(r, b, acc, held, r % lanes)
    end }
  elseif a.k_stride == 1 then
    local whole = by_lane(block.count)
    local function begin(step)
      if step.i >= whole or step.i % lanes > 0 then return end
      held = {}
      for r = 0, tile.rows - 1 do held[r] = read(r, step, whole - step.i) end
    end
    return { begin = begin, multiply = function(r, step, b, acc)
      if step.i >= whole then return rest.multiply(r, step, b, acc) end
      fma(r, b, acc, held[r], step.i % lanes)
    end }
  end
  return rest
end

return M
