-- Rows of a model in an ONNX graph on their way from layer to layer.
--
--   near(find) -> what the graph and a formula may differ by, of the largest number
--   run(find) -> what meanings of operators get first, of gen/onnx/values.lua
--   drawn(run, number, count, width, sizes) -> an array of so many drawn rows of several sizes, or of these
--   origin(find, value)      the first value with the same numbers in the same order
--   is_output(find, value)   whether the graph returns such a first value, under any of its names
--   readers(find, value) -> { node, .. } that compute with these numbers, under any of its names
--   vector(find, value, width) -> the numbers of a constant row, or nil
--   sums(find, value) -> { other = value, out = value, row = numbers or nil } of each Add of a value and another that
--                        is no constant row; row: one that is added to both
--   scaled(find, value) -> the product of a value and a constant row, and the row, if nothing else reads the value;
--                          else the value
--   scaled_before(find, value) -> of such a product the value, and the row; else the value
--   projections(find, value) -> { product, out = value behind the bias, bias = numbers or nil } of each product of
--                          these rows by a constant
--   projection(find, value, scaled) -> that which makes a value, or nil; scaled: of gen/onnx/products.lua
--   norm_of(find, value) -> the only norm of a value, of gen/onnx/norms.lua, with out = its result behind gains and
--                          biases; or nil, and true if there are several
-- find.row_norms: of gen/onnx/norms.lua, with biases

local constants = require "onnx.constants"
local indices = require "onnx.indices"
local products = require "onnx.products"
local values = require "onnx.values"

local M = {}

local HOPS, SIZES = 16, { 1, 0.1, 4 } -- of drawn rows
local same = { Cast = true, Dropout = true, Flatten = true, Identity = true, Reshape = true, Squeeze = true,
               Unsqueeze = true }
local of_shapes = { Shape = true, Size = true }

-- Constants are float32, or shorter.
local NEAR, NEAR_OF_HALVES = 4e-6, 2e-4
local halves = { F16 = true, BF16 = true }

function M.near(find)
  if not find.near then
    find.near = NEAR
    for _, tensor in pairs(find.graph.tensors) do
      if halves[tensor.type] then find.near = NEAR_OF_HALVES end
    end
  end
  return find.near
end

function M.run(find)
  return setmetatable({ arrays = find.graph.tools.arrays, shapes = find.elements.shapes, number = constants.of },
    values.Run)
end

-- Values that are known as integers; casts to these types, as ONNX numbers them, take the fractions of others.
local integers = { I8 = true, I16 = true, I32 = true, I64 = true, U8 = true, U16 = true, U32 = true, U64 = true,
                   bool = true }
local to_integers = { [2] = true, [3] = true, [4] = true, [5] = true, [6] = true, [7] = true, [9] = true, [12] = true,
                      [13] = true }

local function is_cast_to_integers(node) return node and node.op == "Cast" and to_integers[node.attributes.to] end

local function keeps(find, node)
  if not node or node.domain ~= "" or not same[node.op] then return false end
  local value, graph = node.inputs[1], find.graph
  return not is_cast_to_integers(node) or integers[(graph.values[value] or {}).type] or
    is_cast_to_integers(graph.makers[value]) or false
end

function M.drawn(run, number, count, width, sizes)
  return run.arrays.drawn(number, count, width, 1, sizes or SIZES)
end

function M.origin(find, value)
  for _ = 1, HOPS do
    local node = find.graph.makers[value]
    if not keeps(find, node) or node.outputs[1] ~= value then break end
    value = node.inputs[1]
  end
  return value
end

function M.is_output(find, value)
  for name in pairs(find.graph.outputs) do
    if M.origin(find, name) == value then return true end
  end
  return false
end

function M.readers(find, value)
  local all, waiting = {}, { value }
  while #waiting > 0 do
    local name = table.remove(waiting)
    for _, node in ipairs(find.graph.users[name] or {}) do
      if keeps(find, node) and node.inputs[1] == name then waiting[#waiting + 1] = node.outputs[1]
      elseif not of_shapes[node.op] then all[#all + 1] = node end
    end
  end
  return all
end

function M.vector(find, value, width)
  local shape, list = find.elements.shapes[value], {}
  if not shape or indices.count(shape) ~= width or shape[#shape] ~= width then return nil end
  for i = 0, width - 1 do
    local x = find.elements:at(value, i)
    if type(x) ~= "number" then return nil end
    list[i + 1] = x
  end
  return list
end

-- ---- sums ----

local function width_of(find, value)
  local shape = find.elements.shapes[value] or {}
  return shape[#shape]
end

-- The constant row that a node of this operator adds or multiplies by, and its other operand; or nil.
local function row_of(find, node, op, width)
  for k = 1, node and node.op == op and node.domain == "" and 2 or 0 do
    local list = M.vector(find, node.inputs[k], width)
    if list then return list, node.inputs[3 - k] end
  end
end

-- A sum with a constant row that is added to it, and to which nothing else is.
local function with_row(find, sum)
  local readers = M.readers(find, sum.out)
  local list = #readers == 1 and row_of(find, readers[1], "Add", width_of(find, sum.out))
  if list then sum.row, sum.out = list, readers[1].outputs[1] end
  return sum
end

function M.sums(find, value)
  local all, first = {}, M.origin(find, value)
  for _, node in ipairs(M.readers(find, value)) do
    local k = node.op == "Add" and node.domain == "" and M.origin(find, node.inputs[1]) == first and 2 or 1
    local other = node.op == "Add" and node.inputs[k]
    if other and not M.vector(find, other, width_of(find, other) or 0) then
      all[#all + 1] = with_row(find, { other = other, out = node.outputs[1] })
    end
  end
  return all
end

-- ---- gains ----

function M.scaled(find, value)
  local all = M.readers(find, value)
  local list = #all == 1 and row_of(find, all[1], "Mul", width_of(find, value))
  if list then return all[1].outputs[1], list end
  return value
end

function M.scaled_before(find, value)
  value = M.origin(find, value)
  local list, before = row_of(find, find.graph.makers[value], "Mul", width_of(find, value))
  if list then return before, list end
  return value
end

-- ---- products ----

-- A product with what is added to it: its own bias, and that of an Add behind it.
local function with_bias(find, product)
  local made = { product = product, out = product.out }
  local readers = M.readers(find, product.out)
  local list = #readers == 1 and row_of(find, readers[1], "Add", product.columns)
  if product.bias then
    made.bias = M.vector(find, product.bias, product.columns)
    if not made.bias or list then return made end
  end
  if list then made.bias, made.out = list, readers[1].outputs[1] end
  return made
end

function M.projections(find, value)
  local all = {}
  local function add(node)
    local product = products.by_constant(find.elements, node)
    if product then all[#all + 1] = with_bias(find, product) end
  end
  for _, node in ipairs(M.readers(find, value)) do
    local integers = node.op == "DynamicQuantizeLinear" and find.graph.users[node.outputs[1]] or {}
    for _, user in ipairs(integers) do add(products.last_of_integers(find.graph, user)) end
    add(node)
  end
  return all
end

-- Where a product's result is read twice, a bias that is added to it elsewhere is none of this value.
function M.projection(find, value, scaled)
  value = M.origin(find, value)
  local node = find.graph.makers[value]
  local list, before = row_of(find, node, "Add", width_of(find, value))
  if list then node = find.graph.makers[M.origin(find, before)] end
  local product = products.by_constant(find.elements, node, scaled)
  if not product then return nil end
  local made = with_bias(find, product)
  if M.origin(find, made.out) == value then return made end
  local own = product.bias and M.vector(find, product.bias, product.columns)
  return { product = product, out = value, bias = list or own }
end

-- ---- norms ----

function M.norm_of(find, value)
  local found, twice
  for out, norm in pairs(find.row_norms) do
    if M.origin(find, norm.x) == M.origin(find, value) and (not found or norm.gains) then
      twice = found and found.gains ~= nil
      found = { kind = norm.kind, x = norm.x, eps = norm.eps, gains = norm.gains, bias = norm.bias, out = out }
    end
  end
  return not twice and found or nil, twice
end

return M
