-- What an element of a value of an ONNX graph is: a number where it depends on no input, else a sum of multiples of
-- elements of other values. So the axes of any chain of Reshape, Transpose, Slice, ... need no rules of their own:
-- an element is followed back to where it comes from.
--
--   new(graph, shapes)    graph: of gen/onnx/file.lua; shapes: { value = its axes }, which may grow
--   :at(value, i)         element i in row-major order: a number, or a form { constant =, { value, i, factor }, .. }
--   :list(value)          all elements of a value that are numbers, at most 64; or nil
--   :source(value)        { from = value, at = function of i } where the elements of a value are some of another one
--   .leaves               { value = true }: elements that are not followed further back
--
-- An element that depends on inputs in another way, such as a product of two, is a leaf: a form of itself alone.

local constants = require "onnx.constants"
local functions = require "onnx.functions"
local indices = require "onnx.indices"
local moves = require "onnx.moves"

local axis_of, broadcast, steps_of = indices.axis_of, indices.broadcast, indices.steps_of

local Elements = {}
Elements.__index = Elements

local MOST_LIST, MOST_SUM = 64, 4096
local STEPS = 1 << 26 -- of a file: what a graph asks for may be more than anyone waits for

function Elements:source(value)
  local found = self.found[value]
  if found == nil then
    local node = self.graph.makers[value]
    local rule = node and node.domain == "" and moves[node.op]
    local from, shape = rule and self.shapes[node.inputs[1]], self.shapes[value]
    local output = 1
    while rule and node.outputs[output] ~= value do output = output + 1 end
    local at, other
    if from and shape then at, other = rule(self, node, from, shape, output) end
    found = at and { from = other or node.inputs[1], at = at } or false
    self.found[value] = found
  end
  return found
end

-- The bounds of a Slice, by axis: { first, step, count }; nil if they are not known.
function Elements:bounds(node, from)
  local a, lists = node.attributes, {}
  for k, name in ipairs { "starts", "ends", "axes", "steps" } do
    local input = node.inputs[k + 1]
    lists[k] = input and input ~= "" and self:list(input) or a[name] or false
    if input and input ~= "" and not lists[k] then return nil end
  end
  local starts, ends, bounds = lists[1], lists[2], {}
  if not starts or not ends or #starts ~= #ends then return nil end
  for k = 1, #starts do
    local axis, step = lists[3] and lists[3][k] or k - 1, lists[4] and lists[4][k] or 1
    if axis < 0 then axis = axis + #from end
    local size = from[axis + 1]
    if not size or step == 0 then return nil end
    local low, high = step > 0 and 0 or -1, step > 0 and size or size - 1
    local function bound(x)
      if x < 0 then x = x + size end
      return math.max(low, math.min(high, x))
    end
    local first, last = bound(starts[k]), bound(ends[k])
    local count = math.max(0, (last - first + step - (step > 0 and 1 or -1)) // step)
    bounds[axis + 1] = { first = first, step = step, count = count }
  end
  return bounds
end

-- ---- other elements ----

local function leaf(value, i) return { constant = 0, { value, i, 1 } } end

-- Each: of (self, node, value, i) -> the element; nil if it is none of its inputs'.
local others = {}

function others.Concat(self, node, value, i)
  local shape = self.shapes[value]
  local axis = axis_of(node, 0, #shape)
  local inner = steps_of(shape)[axis]
  local at = i // inner % shape[axis]
  for _, name in ipairs(node.inputs) do
    local from = self.shapes[name]
    if not from then return nil end
    if at < from[axis] then
      return self:at(name, (i // (inner * shape[axis]) * from[axis] + at) * inner + i % inner)
    end
    at = at - from[axis]
  end
end

function others.Gather(self, node, value, i)
  local from, indices = self.shapes[node.inputs[1]], self.shapes[node.inputs[2]]
  local axis = from and indices and axis_of(node, 0, #from)
  if not axis then return nil end
  local inner, count = steps_of(from)[axis], 1
  for _, size in ipairs(indices) do count = count * size end
  local index = self:at(node.inputs[2], i // inner % count)
  if type(index) ~= "number" then return nil end
  if index < 0 then index = index + from[axis] end
  if index < 0 or index >= from[axis] then return nil end
  return self:at(node.inputs[1], (i // (inner * count) * from[axis] + index) * inner + i % inner)
end

function others.Where(self, node, value, i)
  local condition = self:operand(node, 1, value, i)
  if type(condition) ~= "number" then
    local x = self:operand(node, 2, value, i)
    return type(x) == "number" and x == self:operand(node, 3, value, i) and x or nil
  end
  return self:operand(node, condition ~= 0 and 2 or 3, value, i)
end

-- The bounds are inputs, which may be left out; before opset 11 attributes.
function others.Clip(self, node, value, i)
  local x = self:operand(node, 1, value, i)
  local function bound(k, name, none)
    local input = node.inputs[k]
    if input and input ~= "" then return self:at(input, 0) end
    return node.attributes[name] or none
  end
  local low, high = bound(2, "min", -math.huge), bound(3, "max", math.huge)
  if type(x) ~= "number" or type(low) ~= "number" or type(high) ~= "number" then return nil end
  return math.min(math.max(x, low), high)
end

function others.Shape(self, node, _, i)
  local from = self.shapes[node.inputs[1]]
  local first = node.attributes.start or 0
  return from and from[(first < 0 and first + #from or first) + i + 1]
end

function others.Size(self, node)
  local count = 1
  for _, size in ipairs(self.shapes[node.inputs[1]] or {}) do count = count * size end
  return self.shapes[node.inputs[1]] and count
end

function others.Range(self, node, _, i)
  local first, step = self:at(node.inputs[1], 0), self:at(node.inputs[3], 0)
  return type(first) == "number" and type(step) == "number" and first + i * step or nil
end

function others.Constant(_, node, _, i)
  local a = node.attributes
  if a.value_ints then return a.value_ints[i + 1] end
  return a.value_int or a.value_float
end

function others.ConstantOfShape(_, node)
  return node.value and constants.of(node.value, 0) or not node.value and 0.0 or nil
end

function others.Trilu(self, node, value, i)
  local shape = self.shapes[value]
  local rows, columns = shape[#shape - 1], shape[#shape]
  local by = node.inputs[2] and node.inputs[2] ~= "" and self:at(node.inputs[2], 0) or 0
  if type(by) ~= "number" then return nil end
  local above = i % columns - i // columns % rows - by
  if (node.attributes.upper or 1) ~= 0 then above = -above end
  return above <= 0 and self:at(node.inputs[1], i) or 0
end

-- Of a DequantizeLinear: the number of its scale as a function of an index in its output; nil if it is not known.
function Elements:scale_index(node)
  local shape, scales = self.shapes[node.outputs[1]], self.shapes[node.inputs[2]]
  if not shape or not scales or (node.attributes.block_size or 0) ~= 0 or #scales > 1 then return nil end
  if #scales == 0 or scales[1] == 1 then return function() return 0 end end
  local axis = axis_of(node, 1, #shape)
  if not axis or scales[1] ~= shape[axis] then return nil end
  local step, size = steps_of(shape)[axis], shape[axis]
  return function(i) return i // step % size end
end

-- A scale and its zero, or nil.
function Elements:scale_at(node, k)
  local scale, zero = self:at(node.inputs[2], k), node.inputs[3] and node.inputs[3] ~= "" and
    self:at(node.inputs[3], k) or 0
  if type(scale) ~= "number" or type(zero) ~= "number" then return nil end
  return scale, zero
end

-- By numbers of its own for each channel, which is the second axis.
function others.BatchNormalization(self, node, value, i)
  local shape, own = self.shapes[value], {}
  if (node.attributes.training_mode or 0) ~= 0 or #shape < 2 then return nil end
  for k = 2, 5 do own[k] = self:at(node.inputs[k], i // steps_of(shape)[2] % shape[2]) end
  for k = 2, 5 do if type(own[k]) ~= "number" then return nil end end
  local by = own[2] / math.sqrt(own[5] + (node.attributes.epsilon or 1e-5))
  return functions.linear.Add(functions.linear.Mul(self:at(node.inputs[1], i), by), own[3] - own[4] * by)
end

-- A number of a constant that is quantized.
function others.DequantizeLinear(self, node, _, i)
  local index = self:scale_index(node)
  local x = index and self:at(node.inputs[1], i)
  if type(x) ~= "number" then return nil end
  local scale, zero = self:scale_at(node, index(i))
  return scale and (x - zero) * scale
end

-- Sums of products of numbers, such as those of places and frequencies.
function others.MatMul(self, node, value, i)
  local a, b, shape = self.shapes[node.inputs[1]], self.shapes[node.inputs[2]], self.shapes[value]
  if not a or not b or #a < 2 or #b < 2 or a[#a] > MOST_LIST then return nil end
  local rows, columns, inner = shape[#shape - 1], shape[#shape], a[#a]
  local row, column, outer, lead = i // columns % rows, i % columns, i // (rows * columns), {}
  table.move(shape, 1, #shape - 2, 1, lead)
  local function place(of)
    local own = broadcast({ table.unpack(of, 1, #of - 2) }, lead)
    return own and own(outer) * of[#of - 1] * of[#of]
  end
  local from_a, from_b, sum = place(a), place(b), 0
  for k = 0, from_a and from_b and inner - 1 or -1 do
    local x, y = self:at(node.inputs[1], from_a + row * inner + k), nil
    y = type(x) == "number" and self:at(node.inputs[2], from_b + k * columns + column)
    if type(y) ~= "number" then return nil end
    sum = sum + x * y
  end
  return from_a and from_b and sum
end

-- Outer products of numbers, as places and frequencies often are.
function others.Einsum(self, node, value, i)
  local left, right, out = (node.attributes.equation or ""):gsub("%s", ""):match "^(%a+),(%a+)%->(%a+)$"
  local own, inner = self.shapes[node.inputs[2]], 1
  if not left or left .. right ~= out or not own or #own ~= #right then return nil end
  for a = 2, #out do if out:find(out:sub(a - 1, a - 1), a, true) then return nil end end
  for _, size in ipairs(own) do inner = inner * size end
  local x, y = self:at(node.inputs[1], i // inner), self:at(node.inputs[2], i % inner)
  return type(x) == "number" and type(y) == "number" and x * y or nil
end

-- Along the axis up to an element, or before it. Of a number that is repeated it takes no steps.
function others.CumSum(self, node, value, i)
  local axis, shape, source = self:at(node.inputs[2], 0), self.shapes[value], self:source(node.inputs[1])
  if type(axis) ~= "number" or (node.attributes.reverse or 0) ~= 0 then return nil end
  local at = (axis < 0 and axis + #shape or axis) + 1
  local step, exclusive = steps_of(shape)[at], node.attributes.exclusive or 0
  local place = i // step % shape[at]
  local all_same = source and self:scalar(source.from)
  if all_same then return all_same * (place + 1 - exclusive) end
  if exclusive ~= 0 then i, place = i - step, place - 1 end
  if place < 0 then return 0 end
  local before = place + exclusive > 0 and self:at(value, exclusive ~= 0 and i or i - step) or 0
  local x = type(before) == "number" and self:at(node.inputs[1], i)
  return type(x) == "number" and before + x or nil
end

-- Of all elements of a small value.
for name, fold in pairs(functions.folds) do
  others[name] = function(self, node)
    local shape, count = self.shapes[node.inputs[1]], 1
    for _, size in ipairs(shape or {}) do count = count * size end
    local axes = node.inputs[2] and self:list(node.inputs[2]) or node.attributes.axes
    if not shape or count > MOST_SUM or count < 1 or axes and #axes ~= #shape then return nil end
    local result
    for i = 0, count - 1 do
      local x = self:at(node.inputs[1], i)
      if type(x) ~= "number" then return nil end
      result = result and fold(result, x) or x
    end
    return result
  end
end

-- ---- all ----

-- An element of an operand that is broadcast.
function Elements:operand(node, k, value, i)
  local name = node.inputs[k]
  local maps = self.maps[value]
  if not maps then
    maps = {}
    self.maps[value] = maps
  end
  if maps[k] == nil then
    local from, shape = self.shapes[name], self.shapes[value]
    maps[k] = from and shape and broadcast(from, shape) or false
  end
  if not maps[k] then return nil end
  return self:at(name, maps[k](i))
end

-- That of an operation with the function of its name on numbers, and on forms where it is linear.
local function applied(self, node, value, i)
  local apply, linear = functions.numbers[node.op], functions.linear[node.op]
  local first = self:operand(node, 1, value, i)
  local short = functions.short[node.op]
  if short and first == short then return first end
  local second, third
  if node.inputs[2] then second = self:operand(node, 2, value, i) end
  if short and second == short then return second end
  if node.inputs[3] and node.inputs[3] ~= "" then third = self:operand(node, 3, value, i) end
  if first == nil or node.inputs[2] and second == nil then return nil end
  if type(first) == "number" and (second == nil or type(second) == "number") and type(third) ~= "table" then
    return apply and apply(first, second, third, node.attributes)
  end
  return linear and linear(first, second, node.attributes)
end

function Elements:compute(node, value, i)
  local known = self.known[value]
  if not known then
    known = {}
    self.known[value] = known
  end
  local result = known[i]
  if result then return result end
  self.depth = self.depth + 1
  if self.shapes[value] and node.domain == "" and self.depth < MOST_LIST * 4 then
    local other = others[node.op]
    if other then result = other(self, node, value, i)
    elseif functions.numbers[node.op] or functions.linear[node.op] then result = applied(self, node, value, i) end
  end
  self.depth = self.depth - 1
  result = result or leaf(value, i)
  known[i] = result
  return result
end

function Elements:at(value, i)
  local graph = self.graph
  while true do
    self.steps = self.steps + 1
    if self.steps > STEPS then error({ message = graph.path .. ": its shapes take too long to follow" }, 0) end
    local tensor = graph.tensors[value]
    if tensor then return constants.of(tensor, i) or leaf(value, i) end
    local node = graph.makers[value]
    if self.leaves[value] then return leaf(value, i) end
    if not node then return self.given and self.given(value, i) or leaf(value, i) end
    local source = self.found[value]
    if source == nil then source = self:source(value) end
    if not source then return self:compute(node, value, i) end
    value, i = source.from, source.at(i)
  end
end

-- The only number of a value, or that all its elements are as far as they are the same of one; nil if it has none.
function Elements:scalar(value)
  local shape, count = self.shapes[value], 1
  for _, size in ipairs(shape or {}) do count = count * size end
  if not shape or count ~= 1 then return nil end
  local x = self:at(value, 0)
  return type(x) == "number" and x or nil
end

function Elements:list(value)
  local shape, list, count = self.shapes[value], {}, 1
  for _, size in ipairs(shape or {}) do count = count * size end
  if not shape or count > MOST_LIST then return nil end
  for i = 0, count - 1 do
    local x = self:at(value, i)
    if type(x) ~= "number" then return nil end
    list[i + 1] = math.type(x) == "float" and math.tointeger(x) or x
  end
  return list
end

-- What was computed is forgotten, for it may be much.
function Elements:forget() self.known = {} end

local function new(graph, shapes)
  return setmetatable({ graph = graph, shapes = shapes, leaves = {}, known = {}, found = {}, maps = {}, steps = 0,
                        depth = 0 }, Elements)
end

return { new = new }
