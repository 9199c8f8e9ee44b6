-- From a Softmax of an ONNX graph back to the product of queries and keys, and on to that with values.
--
--   of(elements, softmax, fail) -> {
--     product, values           products of gen/onnx/products.lua: Q K^T, and weights V
--     scale, softcap            of the scores
--     factors                   numbers by which scores are multiplied too, one for each lead; or nil
--     masks                     a list of { value, kind, hidden, at }
--       kind, hidden            "add" or "bool"; whether true hides a key
--       at(i)                   the index in the mask of element i of the softmax, or nil
--     conditions                values that say which weights are set to zero
--     weight_at(i)              the index in the softmax of element i of the weights in `values` }
--   fail(format, ...)           raises why it is no attention that is known

local bodies = require "onnx.bodies"
local graph_nodes = require "onnx.nodes"
local indices = require "onnx.indices"
local products = require "onnx.products"

local M = {}

M.HIDDEN = -1e4 -- scores that are set to so little, whatever they were, are of keys that are not seen
M.ADDED = -65504 -- the same of what is added, the lowest of f16: scores may differ by 1e4

local DEPTH = 48 -- of nodes between the products

-- Which inputs of an operator scores may come through.
local through = { Mul = { 1, 2 }, Div = { 1 }, Add = { 1, 2 }, Sub = { 1 }, Where = { 2, 3 }, Tanh = { 1 },
                  Max = { 1, 2 }, Cast = { 1 }, Clip = { 1 } }

-- The products of two values that lie behind a value: { product, .. }
local function behind(self, value, depth)
  local known = self.products[value]
  if known then return known end
  known = {}
  self.products[value] = known
  local node = self.graph.makers[value]
  if not node or depth == 0 then return known end
  local product = products.of(self.elements, node)
  if product then
    known[1] = product
    return known
  end
  local source = self.elements:source(value)
  local inputs = {}
  if source then inputs[1] = source.from end
  for _, k in ipairs(not source and through[node.op] or {}) do inputs[#inputs + 1] = node.inputs[k] end
  for _, input in ipairs(inputs) do
    for _, found in ipairs(behind(self, input, depth - 1)) do known[#known + 1] = found end
  end
  return known
end

-- How many of the products behind a value have two factors that depend on inputs: those of places by a constant do not.
local function count_scores(self, value)
  local count = 0
  for _, product in ipairs(behind(self, value, DEPTH)) do
    if graph_nodes.is_made_of(self.graph, product.a) and graph_nodes.is_made_of(self.graph, product.b) then
      count = count + 1
    end
  end
  return count
end

-- The input that scores come through, and the other one.
local function side(self, node)
  local found, other, both
  for _, k in ipairs(through[node.op]) do
    local input = node.inputs[k]
    if not input or #behind(self, input, DEPTH) == 0 then
      other = other or input
    elseif not found then
      found = k
    else
      both = k
    end
  end
  if both then
    local first, second = count_scores(self, node.inputs[found]), count_scores(self, node.inputs[both])
    if (first > 0) == (second > 0) then
      self.fail("%s adds up two products, such as scores by distance", node.op)
    end
    if second > 0 then found, both = both, found end
    other = node.inputs[both]
  end
  return found or self.fail("%s has no product of queries and keys before it", node.op), other
end

-- An index of the softmax where so many steps back. Steps are functions of an index.
local function composed(list)
  local steps = table.move(list, 1, #list, 1, {})
  return function(i)
    for _, step in ipairs(steps) do i = step(i) end
    return i
  end
end

-- ---- steps back ----

-- Each: of (self, node, value) -> the value before it.
local back = {}

local function number_of(self, name)
  return self.elements:scalar(name or "")
end

-- Of several numbers by which scores are multiplied: one for each head, or others, which are refused later.
local function add_factor(self, value, name, power)
  local shape, from = self.elements.shapes[value], self.elements.shapes[name]
  local index = shape and from and indices.broadcast(from, shape)
  if not index then self.fail("scores are multiplied by %s, which is no number", name) end
  local before = composed(self.steps)
  table.insert(self.factors, { value = name, power = power, at = function(i) return index(before(i)) end })
end

-- What inputs say may clear scores that are hidden anyhow, as tf2onnx's Select does: the proof of a layer tells.
function back.Mul(self, node, value)
  local k, other = side(self, node)
  local by = number_of(self, other)
  if by then self.scale = self.scale * by
  elseif type(self.elements:at(other, 0)) == "number" then add_factor(self, value, other, 1) end
  return node.inputs[k]
end

function back.Div(self, node, value)
  side(self, node)
  local by = number_of(self, node.inputs[2])
  if by == 0 then self.fail("scores are divided by 0") end
  if by then self.scale = self.scale / by else add_factor(self, value, node.inputs[2], -1) end
  return node.inputs[1]
end

-- A value before it is quantized and back, which a kernel does not do; a mask of -inf does not survive it.
local function unrounded(self, name)
  local maker, source = self.graph.makers[name], self.elements:source(name)
  return maker and maker.op == "DequantizeLinear" and source and source.from or name
end

local function add_mask(self, node, value, name, mask)
  name = unrounded(self, name)
  if self.scale ~= 1 then self.fail("a mask is multiplied by %g", self.scale) end
  if #self.factors > 0 then self.fail("a mask is multiplied by %s", self.factors[1].value) end
  if self.softcap then self.fail("a mask is added before tanh") end
  local shape = self.elements.shapes[value] or self.fail("the axes of %s are not known", value)
  local from = self.elements.shapes[name] or self.fail("the axes of the mask %s are not known", name)
  local index = indices.broadcast(from, shape) or self.fail("the mask %s has other axes", name)
  local before = composed(self.steps)
  mask.value, mask.node, mask.at = name, node, function(i) return index(before(i)) end
  table.insert(self.masks, 1, mask)
end

function back.Add(self, node, value)
  local k, other = side(self, node)
  add_mask(self, node, value, other, { kind = "add" })
  return node.inputs[k]
end

function back.Where(self, node, value)
  local k = side(self, node)
  local low = self.elements:at(node.inputs[5 - k], 0)
  if type(low) ~= "number" or low > M.HIDDEN then self.fail("Where sets scores to what is not as low as -10000") end
  add_mask(self, node, value, node.inputs[1], { kind = "bool", hidden = k == 3 })
  return node.inputs[k]
end

function back.Tanh(self, node)
  self.softcap, self.scale = self.scale, 1
  return node.inputs[1]
end

-- Bounds for scores that are hidden anyhow.
function back.Max(self, node)
  local k, other = side(self, node)
  local bound = number_of(self, other)
  if not bound or bound > M.HIDDEN then self.fail("Max bounds the scores") end
  return node.inputs[k]
end

function back.Clip(self, node)
  local bound = number_of(self, node.inputs[2])
  if not bound or bound > M.HIDDEN or (node.inputs[3] or "") ~= "" then self.fail("Clip bounds the scores") end
  return node.inputs[1]
end

function back.Cast(_, node) return node.inputs[1] end

local function same_count(a, b)
  local function count(shape)
    local all = 1
    for _, size in ipairs(shape) do all = all * size end
    return all
  end
  return a and b and count(a) == count(b)
end

-- From the softmax to the product.
local function read_scores(self)
  local value = self.softmax.inputs[1]
  for _ = 1, DEPTH do
    local node = self.graph.makers[value] or self.fail("its input %s is of no product", value)
    local product = products.of(self.elements, node)
    if product then return product end
    local source = self.elements:source(value)
    if source then
      table.insert(self.steps, source.at)
      value = source.from
    else
      local step = back[node.op] or self.fail("%s before it is not known", node.op)
      local before = step(self, node, value)
      if not same_count(self.elements.shapes[before], self.elements.shapes[value]) then
        self.fail("%s has more axes than the scores", node.op)
      end
      value = before
    end
  end
  self.fail("its product is too far away")
end

-- ---- forward ----

-- Whether a node may leave weights as they are, or will where they come back from integers. A Where clears those that
-- are hidden anyhow, or no numbers.
local function keeps(self, node, value)
  if node.op == "Where" then
    local condition = node.inputs[1]
    local maker = self.graph.makers[condition]
    if not maker or maker.op ~= "IsNaN" then table.insert(self.conditions, condition) end
    return condition ~= value
  end
  return node.op == "Cast" or node.op == "QuantizeLinear"
    or node.op == "DequantizeLinear" and self.elements:source(node.outputs[1])
end

-- The product with values that reads the weights, by the steps to it.
local function read_values(self, value, steps, depth)
  for _, node in ipairs(depth > 0 and self.graph.users[value] or {}) do
    local product = products.of(self.elements, node)
    if product and (product.a == value or product.b == value) then
      return product.a == value and product or products.turned(product), steps
    elseif not product and node.outputs[1] then
      local out = node.outputs[1]
      local source = self.elements:source(out)
      local more
      if source and source.from == value then more = source.at
      elseif keeps(self, node, value) then
        more = function(i) return i end
      end
      if more then
        local found, all = read_values(self, out, { more, table.unpack(steps) }, depth - 1)
        if found then return found, all end
      end
    end
  end
end

local function factors_of(self, product)
  local all, size = {}, product.rows * product.columns
  for l = 1, #self.factors > 0 and product.leads or 0 do
    all[l] = 1
    for _, factor in ipairs(self.factors) do
      local index = factor.at((l - 1) * size)
      local x = self.elements:at(factor.value, index)
      if type(x) ~= "number" or x == 0 then
        self.fail("scores are multiplied by %s, which is no constant", factor.value)
      end
      all[l] = all[l] * x ^ factor.power
    end
  end
  return all[1] and all
end

local function is_last_axis(elements, node)
  local shape = elements.shapes[node.inputs[1]]
  local axis = node.attributes.axis or (elements.graph.opset < 13 and 1 or -1)
  return axis == -1 or shape ~= nil and axis == #shape - 1
end

local function behind(why) return why and (", %s,"):format(why) or "" end

function M.of(elements, softmax, fail)
  local self = { elements = elements, graph = elements.graph, softmax = softmax, fail = fail, scale = 1, masks = {},
                 steps = {}, factors = {}, products = {}, conditions = {} }
  local unknown = elements.unknown
  if not elements.shapes[softmax.inputs[1]] then
    fail("the axes of its input are not known%s", unknown and (", for node %s (%s)%s does not say its own"):format(
      unknown.name, unknown.op, behind(bodies.why(elements.graph, unknown))) or "")
  end
  if not is_last_axis(elements, softmax) then fail("its axis is not the last one") end
  local product = read_scores(self)
  local values, steps = read_values(self, softmax.outputs[1], {}, DEPTH)
  if not values then fail "no product with values reads it" end
  local scale = self.scale * product.factor
  if self.softcap then scale = scale * self.softcap end
  return { product = product, values = values, scale = scale, softcap = self.softcap, masks = self.masks,
           factors = factors_of(self, product), conditions = self.conditions, weight_at = composed(steps) }
end

return M
