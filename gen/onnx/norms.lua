-- Norms over the last axis in an ONNX graph, as one operator or written out.
--
--   of(elements) -> { value = { kind = "rms", "layer" or "l2", x = value, eps =, width =, gains = value or nil } }
--
-- A value is there behind its gains, and the one before them too. A norm whose bias is not zero is none.

local indices = require "onnx.indices"

local M = {}

local HOPS = 4

-- ---- a small language of patterns ----

local Find = {}
Find.__index = Find

-- The node that makes a value, behind what only changes its type or its axes of one.
function Find:maker(value)
  for _ = 1, HOPS do
    local node = self.graph.makers[value]
    if not node or node.op ~= "Cast" and node.op ~= "Identity" and node.op ~= "Expand" then return node end
    value = node.inputs[1]
  end
end

-- A value without what changes its type.
function Find:plain(value)
  for _ = 1, HOPS do
    local node = self.graph.makers[value]
    if not node or node.op ~= "Cast" and node.op ~= "Identity" then return value end
    value = node.inputs[1]
  end
  return value
end

-- The inputs of the node of this kind that makes a value.
function Find:inputs(value, op)
  local node = self:maker(value)
  if node and node.op == op and node.domain == "" then return node.inputs[1], node.inputs[2], node end
end

-- x of x², as Pow or as Mul.
function Find:square(value)
  local a, b = self:inputs(value, "Pow")
  if a then return self.elements:scalar(b) == 2 and self:plain(a) or nil end
  a, b = self:inputs(value, "Mul")
  return a and self:plain(a) == self:plain(b) and self:plain(a) or nil
end

-- The input of a reduction over the last axis.
function Find:reduced(value, op)
  local x, axes, node = self:inputs(value, op)
  if not x then return nil end
  local list = node.attributes.axes or axes and self.elements:list(axes)
  local shape = self.elements.shapes[x]
  return shape and list and #list == 1 and (list[1] == -1 or list[1] == #shape - 1) and x or nil
end

-- A value and a number that are added, or of which the larger one is taken.
function Find:with_number(value, op)
  local a, b = self:inputs(value, op)
  if not a then return nil end
  local x, y = self.elements:scalar(a), self.elements:scalar(b or "")
  if y then return a, y end
  if x then return b, x end
end

-- What a root is taken of.
function Find:root(value)
  local x = self:inputs(value, "Sqrt")
  if x then return x end
  local a, b = self:inputs(value, "Pow")
  return a and self.elements:scalar(b) == 0.5 and a or nil
end

-- What a value is multiplied by in x / s, x * (1 / s) or x * s^-0.5: pairs of x and, as a root, what is below it.
function Find:divisions(node)
  local a, b = node.inputs[1], node.inputs[2]
  local all = {}
  if node.op == "Div" then all[1] = { x = a, by = b, below = self:root(b) } end
  for k = 1, node.op == "Mul" and 2 or 0 do
    local x, y = node.inputs[3 - k], node.inputs[k]
    local by = self:inputs(y, "Reciprocal")
    local one, other = self:inputs(y, "Div")
    if not by and one and self.elements:scalar(one) == 1 then by = other end
    local power, exponent = self:inputs(y, "Pow")
    if by then all[#all + 1] = { x = x, by = by, below = self:root(by) }
    elseif power and self.elements:scalar(exponent) == -0.5 then all[#all + 1] = { x = x, below = power } end
  end
  return all
end

-- ---- kinds ----

-- x / sqrt(mean(x²) + eps), where x of a layer norm is less its mean.
local function of_mean(find, division)
  local below, eps = division.below, 0
  if not below then return nil end
  local inner, number = find:with_number(below, "Add")
  if inner then below, eps = inner, number end
  local x = find:plain(division.x)
  local of = find:reduced(below, "ReduceMean")
  if not of or find:square(of) ~= x then return nil end
  local a, b = find:inputs(x, "Sub")
  local mean = a and find:reduced(b, "ReduceMean")
  if mean and find:plain(mean) == find:plain(a) then return { kind = "layer", x = find:plain(a), eps = eps } end
  return { kind = "rms", x = x, eps = eps }
end

-- x / max(length, eps)
local function of_length(find, division)
  local by = division.by
  if not by then return nil end
  local x, eps = find:plain(division.x), 0
  local inner, number = find:with_number(by, "Max")
  if not inner then
    inner, number = find:inputs(by, "Clip")
    number = inner and find.elements:scalar(number or "")
  end
  if inner and number then by, eps = inner, number end
  local length = find:reduced(by, "ReduceL2")
  local below = find:root(by)
  local sum = below and find:reduced(below, "ReduceSum")
  if length and find:plain(length) == x or sum and find:square(sum) == x then
    return { kind = "l2", x = x, eps = eps }
  end
end

local operators = { LayerNormalization = "layer", RMSNormalization = "rms", SimplifiedLayerNormalization = "rms" }

local function of_node(find, node)
  local shape = find.elements.shapes[node.outputs[1]]
  local kind, t = operators[node.op], node.attributes
  if not shape or #shape == 0 then return nil end
  if kind or node.op == "LpNormalization" then
    local axis = t.axis or -1
    if axis ~= -1 and axis ~= #shape - 1 then return nil end
    if not kind then return (t.p or 2) == 2 and { kind = "l2", x = node.inputs[1], eps = 0 } or nil end
    return { kind = kind, x = node.inputs[1], eps = t.epsilon or 1e-5, gains = node.inputs[2],
             bias = node.inputs[3] ~= "" and node.inputs[3] or nil }
  end
  if node.op ~= "Div" and node.op ~= "Mul" then return nil end
  for _, division in ipairs(find:divisions(node)) do
    local norm = of_mean(find, division) or of_length(find, division)
    if norm then return norm end
  end
end

-- ---- gains ----

-- Whether all of a vector are numbers, and zeros if they must be.
local function is_vector(elements, value, width, zeros)
  local shape, count = elements.shapes[value], 1
  for _, size in ipairs(shape or {}) do count = count * size end
  if not shape or count ~= width or shape[#shape] ~= width then return false end
  for i = 0, width - 1 do
    local x = elements:at(value, i)
    if type(x) ~= "number" or zeros and x ~= 0 then return false end
  end
  return true
end

-- The only node behind a value that multiplies it by a vector, or adds one; and the vector.
local function with_vector(find, value, op, width)
  for _ = 1, HOPS do
    local users = find.graph.users[value] or {}
    local node = #users == 1 and users[1]
    if not node then return nil end
    if node.op == op then
      for k = 1, 2 do
        if node.inputs[3 - k] == value and is_vector(find.elements, node.inputs[k], width) then
          return node.outputs[1], node.inputs[k]
        end
      end
      return nil
    end
    if node.op ~= "Cast" then return nil end
    value = node.outputs[1]
  end
end

local function add(find, all, value, norm)
  local shape = find.elements.shapes[value]
  norm.width = shape[#shape]
  if norm.gains and not is_vector(find.elements, norm.gains, norm.width) then return end
  if norm.bias and not is_vector(find.elements, norm.bias, norm.width, true) then return end
  all[value] = norm
  if norm.gains then return end
  local behind, gains = with_vector(find, value, "Mul", norm.width)
  if not behind then return end
  local shifted, bias = with_vector(find, behind, "Add", norm.width)
  local with = { kind = norm.kind, x = norm.x, eps = norm.eps, width = norm.width, gains = gains }
  if not shifted then
    all[behind] = with
  elseif is_vector(find.elements, bias, norm.width, true) then
    all[shifted] = with
  end
end

function M.of(elements)
  local find = setmetatable({ elements = elements, graph = elements.graph }, Find)
  local all = {}
  for _, node in ipairs(elements.graph.nodes) do
    local norm = indices.attempt(of_node, find, node)
    if norm then add(find, all, node.outputs[1], norm) end
  end
  return all
end

return M
