-- Operators of ONNX that only move the elements of their first input.
--
--   op -> function(elements, node, from, shape, output) -> at, value
--     from, shape   axes of the input and of the output, which has the number `output`
--     at            the index in the input of an index in the output; nil where it is not so
--     value         another value than the first input, or nil

local indices = require "onnx.indices"

local axis_of, broadcast, same = indices.axis_of, indices.broadcast, indices.same
local steps_of, strided = indices.steps_of, indices.strided

local M = {}

for name in ("Identity Reshape Squeeze Unsqueeze Flatten Dropout"):gmatch "%S+" do
  M[name] = function(_, _, _, _, output) return output == 1 and same or nil end
end

function M.Transpose(_, node, from, shape)
  local perm, steps, all = node.attributes.perm, steps_of(from), {}
  for a = 1, #shape do
    local axis = perm and perm[a] + 1 or #shape - a + 1
    all[a] = steps[axis]
  end
  return strided(shape, all, 0)
end

function M.Slice(self, node, from, shape)
  local bounds = self:bounds(node, from)
  if not bounds then return nil end
  local steps, base = steps_of(from), 0
  for a, bound in pairs(bounds) do
    base = base + bound.first * steps[a]
    steps[a] = steps[a] * bound.step
  end
  return strided(shape, steps, base)
end

function M.Split(self, node, from, shape, output)
  local axis = axis_of(node, 0, #from)
  local first = 0
  for k = 1, output - 1 do
    local before = self.shapes[node.outputs[k]]
    if not before then return nil end
    first = first + before[axis]
  end
  local steps = steps_of(from)
  return strided(shape, steps, first * steps[axis])
end

-- With one index.
function M.Gather(self, node, from, shape)
  local axis, index = axis_of(node, 0, #from), self:list(node.inputs[2])
  if not axis or not index or #index ~= 1 then return nil end
  local at, steps, all = index[1] < 0 and index[1] + from[axis] or index[1], steps_of(from), {}
  local more = #shape - #from -- axes of the indices, but for one
  for a = 1, #shape do
    if a < axis then all[a] = steps[a] elseif a <= axis + more then all[a] = 0 else all[a] = steps[a - more] end
  end
  return at >= 0 and at < from[axis] and strided(shape, all, at * steps[axis]) or nil
end

function M.Expand(_, _, from, shape) return broadcast(from, shape) end

function M.Tile(_, _, from, shape)
  local steps = steps_of(from)
  return function(i)
    local to = 0
    for a = #shape, 1, -1 do
      to = to + i % shape[a] % from[a] * steps[a]
      i = i // shape[a]
    end
    return to
  end
end

-- Quantized and back, as others compute it, is what it was; by another scale or zero it is not.
function M.DequantizeLinear(self, node)
  local maker = self.graph.makers[node.inputs[1]]
  if not maker or maker.op ~= "QuantizeLinear" or maker.attributes.axis ~= node.attributes.axis then return nil end
  local function number(name) return name == "" and 0 or self:scalar(name) end -- a zero may be left out
  for k = 2, 3 do
    local one, other = maker.inputs[k] or "", node.inputs[k] or ""
    if one ~= other and (not number(one) or number(one) ~= number(other)) then return nil end
  end
  return same, maker.inputs[1]
end

return M
