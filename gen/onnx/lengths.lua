-- Whether a layer that was found in an ONNX graph is the same one in runs of other lengths.
--
--   changes(find, layer, left) -> why it is not, or nil; where the graph leaves axes open, runs have more or fewer
--     find, layer    of gen/onnx/layers.lua; left: of gen/onnx/proposal.lua
--   differs(layer, other) -> the same of two layers

local graph_indices = require "onnx.indices"
local proposal = require "onnx.proposal"

local M = {}

local NEAR = 1e-5
local OTHER = "%s is another one in runs of other lengths"

local function near(x, y)
  if type(x) ~= "number" or type(y) ~= "number" then return x == y end
  return x == y or math.abs(x - y) <= NEAR * math.max(math.abs(x), math.abs(y))
end

-- Whether two lists of numbers are the same, as far as both have some.
local function same_numbers(a, b)
  for i = 1, math.min(#a, #b) do
    if not near(a[i], b[i]) then return false end
  end
  return true
end

local function farthest(layer) return math.max(layer.extents.q, layer.extents.k) - 1 end

-- The keys of the formula, without windows as wide as the shorter one of two runs.
local function keys_of(layer, least)
  local keys = { scale = layer.scale }
  for _, list in ipairs { layer.keys, layer.mask_keys } do
    for key, value in pairs(list) do
      if not (key:find "^window_" and value >= least) then keys[key] = value end
    end
  end
  if not (keys.causal or keys.window_left or keys.window_right) then keys.causal_align = nil end
  return keys
end

-- Lists of numbers of a matrix, which are compared beside its columns.
local lists = { "columns", "by", "scales", "zeros" }

local function same_weights(a, b)
  if not a.tensor then return not b.tensor and same_numbers(a, b) end
  for _, name in ipairs(lists) do
    local own, other = a[name], b[name]
    if (own == nil) ~= (other == nil) or own and (#own ~= #other or not same_numbers(own, other)) then return false end
  end
  local x, y = a.tensor, b.tensor -- perhaps views of one tensor
  return x.name == y.name and x.at == y.at
end

-- Angles of rope from row to row; the more rows there are, the more of their digits are known.
local function same_turns(a, b, rows)
  if not a or not b then return a == b end
  for k, turn in ipairs(a) do
    if math.abs(turn - (b[k] or 0)) * rows > 1e-3 then return false end
  end
  return #a == #b
end

function M.differs(layer, other)
  local least = math.min(farthest(layer), farthest(other))
  local own, beside = keys_of(layer, least), keys_of(other, least)
  for _, keys in ipairs { own, beside } do
    for key in pairs(keys) do
      if not near(own[key], beside[key]) then return OTHER:format(key) end
    end
  end
  for _, pair in ipairs { { layer, other }, { other, layer } } do
    for matrix, of in pairs(pair[1].weights) do
      local with = pair[2].weights[matrix]
      if not with or not same_weights(of, with) then return OTHER:format(matrix) end
    end
  end
  if not same_turns(layer.turns, other.turns, least) then return OTHER:format "rope" end
end

function M.changes(find, layer, left)
  local function axes_of(other)
    return table.concat(other.elements.shapes[layer.softmax.inputs[1]] or {}, " ")
  end
  for _, made in ipairs { find.longer, find.shorter, layer.given.q_len == "true" and find.least or nil } do
    local other = made()
    local node = other.graph.makers[layer.softmax.outputs[1]]
    if node and axes_of(find) ~= axes_of(other) then
      local beside, why = graph_indices.attempt(proposal.propose, other, node, layer.given, left, "")
      other.elements:forget()
      why = why or M.differs(layer, beside)
      if why then return why end
    end
  end
end

return M
