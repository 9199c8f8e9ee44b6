-- What an ONNX graph rounds within a layer, and a kernel does not.
--
--   of(find, layer) -> a list of { node, to = "integers", "f16" or "bf16" }, in the order of the graph; names of the
--                      inputs that the graph reads within it, beside those of the layer
--     find, layer    of gen/onnx/layers.lua
--   note(list) -> a sentence for the summary, or nil
--   type_of(graph, value) -> "F32", "F16", .. that the file says of a value, or of one that it is made of; or nil
--   half(graph, value) -> "f16" or "bf16" where it is such a type

local evaluate = require "onnx.evaluate"
local wording = require "base.wording"

local M = {}

local halves = { F16 = "f16", BF16 = "bf16" }
local casts = { [1] = "F32", [10] = "F16", [11] = "F64", [16] = "BF16" } -- numbers of TensorProto.DataType
local integers = { QuantizeLinear = true, DynamicQuantizeLinear = true }

local HOPS = 256

-- The value that the type of a value is by: an input of the node that makes it.
local by_input = { Where = 2, DequantizeLinear = 2 }

function M.type_of(graph, value)
  for _ = 1, HOPS do
    local told, node = graph.values[value] or graph.tensors[value], graph.makers[value]
    if told and told.type then return told.type end
    if not node then return nil end
    if node.op == "Cast" and node.domain == "" then return casts[node.attributes.to] end
    value = node.inputs[by_input[node.op] or 1]
  end
end

function M.half(graph, value) return halves[M.type_of(graph, value) or ""] end

-- Whether a layer is of a type of half precision as a whole, where a Cast to it is for what is computed in float32.
local function is_half(graph, layer)
  for _, letter in ipairs { "q", "k", "v", "o" } do
    local matrix = layer.weights["w" .. letter]
    if matrix and halves[matrix.tensor.type] then return true end
  end
  return M.half(graph, layer.inputs.q) ~= nil
end

function M.of(find, layer)
  local graph, leaves, list = find.graph, {}, {}
  for _, key in ipairs { "q", "k", "v", "past_k", "past_v" } do
    if layer.inputs[key] then leaves[layer.inputs[key]] = true end
  end
  for _, mask in ipairs(layer.inputs.masks) do leaves[mask.value] = true end
  local plan, half = evaluate.plan(graph, find.elements.shapes, { layer.output }, leaves), is_half(graph, layer)
  for _, node in ipairs(plan and plan.nodes or {}) do
    local to = node.domain == "" and (integers[node.op] and "integers"
      or node.op == "Cast" and not half and halves[casts[node.attributes.to]])
    if to then list[#list + 1] = { node = node, to = to } end
  end
  return list, plan and plan.inputs or {}
end

function M.note(list)
  local count, words = {}, {}
  for _, each in ipairs(list) do count[each.to] = (count[each.to] or 0) + 1 end
  for _, to in ipairs { "integers", "f16", "bf16" } do
    words[#words + 1] = count[to] and ("%s to %s"):format(wording.counted(count[to], "value"), to)
  end
  return words[1] and ("the graph rounds %s here, and a kernel does not"):format(table.concat(words, ", ")) or nil
end

return M
