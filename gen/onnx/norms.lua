-- Norms over the last axis in an ONNX graph, as one operator or written out.
--
--   of(elements, biased) -> { value = { kind = "rms", "layer" or "l2", x = value, eps =, width =, gains = value or nil,
--                                       bias = value or nil } }
--
-- Both the value after the gains and the one before them are listed. A norm whose bias is not zero does not count, but
-- for `biased`. What looks like a norm is proposed as one.

local indices = require "onnx.indices"

local M = {}

local HOPS = 4

-- ---- what a value is divided by ----

-- A value without what changes its type.
local function plain(graph, value)
  for _ = 1, HOPS do
    local node = graph.makers[value]
    if not node or node.op ~= "Cast" and node.op ~= "Identity" then return value end
    value = node.inputs[1]
  end
  return value
end

local one = { Sqrt = true, Reciprocal = true, Cast = true, Identity = true, Expand = true }
local two = { Add = true, Max = false, Clip = false } -- eps, below the root of a mean or above that of a sum
local kinds = { ReduceMean = "rms", ReduceL2 = "l2", ReduceSum = "l2" }

-- Whether a node takes a root, perhaps one below 1; nil of a power that is none of both.
local function root_of(elements, node)
  if node.op ~= "Pow" then return node.op == "Sqrt" end
  local power = elements:scalar(node.inputs[2] or "")
  if power == -1 then return false end
  return power and math.abs(power) == 0.5 or nil
end

-- The norm that a length is of, and the number that is added to it or is its least one; nil where it is none.
local function length_of(elements, value)
  local eps, op, rooted = 0, nil, false
  for _ = 1, 2 * HOPS do
    local node = elements.graph.makers[value]
    local kind = node and kinds[node.op]
    if not node or kind then return (not op or (op == "Add") == (kind == "rms")) and kind, eps end
    local root = root_of(elements, node)
    local behind = (one[node.op] or node.op == "Pow" and root ~= nil) and node.inputs[1]
    for k = 1, (two[node.op] == rooted or node.op == "Div") and 2 or 0 do
      local number = not behind and elements:scalar(node.inputs[k] or "")
      if number then behind = node.inputs[3 - k] end
      if number and op and node.op ~= "Div" then return nil end
      if number and node.op ~= "Div" then eps, op = number, node.op end
    end
    if not behind then return nil end
    value, rooted = behind, rooted or root
  end
end

-- x / length, or x * (1 / length). The proof of a layer says whether it is the length of x, over its last axis.
local function written_out(elements, node)
  local graph = elements.graph
  for k = 1, 2 do
    local x = plain(graph, node.inputs[k] or "")
    local kind, eps = length_of(elements, node.inputs[3 - k])
    if kind and (k == 1 or node.op == "Mul") then
      local centered = graph.makers[x]
      local mean = kind == "rms" and centered and centered.op == "Sub" and graph.makers[centered.inputs[2]]
      if mean and mean.op == "ReduceMean" then kind, x = "layer", plain(graph, centered.inputs[1]) end
      return { kind = kind, x = x, eps = eps }
    end
  end
end

local operators = { LayerNormalization = "layer", RMSNormalization = "rms", SimplifiedLayerNormalization = "rms",
                    LpNormalization = "l2" }

local function of_node(elements, node)
  local shape = elements.shapes[node.outputs[1]]
  local kind, t = operators[node.op], node.attributes
  if not shape or #shape == 0 then return nil end
  if kind then
    return { kind = kind, x = node.inputs[1], eps = kind == "l2" and 0 or t.epsilon or 1e-5, gains = node.inputs[2],
             bias = node.inputs[3] ~= "" and node.inputs[3] or nil }
  end
  return (node.op == "Div" or node.op == "Mul") and written_out(elements, node) or nil
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
local function with_vector(elements, value, op, width)
  for _ = 1, HOPS do
    local users = elements.graph.users[value] or {}
    local node = #users == 1 and users[1]
    if not node then return nil end
    if node.op == op then
      for k = 1, 2 do
        if node.inputs[3 - k] == value and is_vector(elements, node.inputs[k], width) then
          return node.outputs[1], node.inputs[k]
        end
      end
      return nil
    end
    if node.op ~= "Cast" then return nil end
    value = node.outputs[1]
  end
end

local function add(elements, all, value, norm, biased)
  local shape = elements.shapes[value]
  norm.width = shape[#shape]
  if norm.gains and not is_vector(elements, norm.gains, norm.width) then return end
  if norm.bias and not is_vector(elements, norm.bias, norm.width, not biased) then return end
  all[value] = norm
  if norm.gains then return end
  local behind, gains = with_vector(elements, value, "Mul", norm.width)
  if not behind then return end
  local shifted, bias = with_vector(elements, behind, "Add", norm.width)
  local with = { kind = norm.kind, x = norm.x, eps = norm.eps, width = norm.width, gains = gains }
  if not shifted then
    all[behind] = with
  elseif biased or is_vector(elements, bias, norm.width, true) then
    with.bias = biased and bias or nil
    all[shifted] = with
  end
end

function M.of(elements, biased)
  local all = {}
  for _, node in ipairs(elements.graph.nodes) do
    local norm = indices.attempt(of_node, elements, node)
    if norm then add(elements, all, node.outputs[1], norm, biased) end
  end
  return all
end

return M
