-- Constant matrices of an ONNX graph whose blocks of rows have scales of their own: those of com.microsoft's
-- MatMulNBits, and those behind DequantizeLinear with block_size.
--
--   of_bits(graph, node) -> matrix, width, columns; nil and why not
--   of_node(elements, node, tensor, in_out, features) -> block; nil and why not
--     matrix    as gen/onnx/products.lua has it, with
--     stride    numbers of a row of the file
--     block     { size, scales = tensor, zeros = tensor or the number of all }; zeros that are integers have the field
--               integers, and stride as the matrix

local tensors = require "model.tensors"

local M = {}

local KINDS = { [4] = "U4", [8] = "U8" }
M.BITS = { U4 = 4, I4 = 4, U8 = 8, I8 = 8 } -- of types of integers

local BITS = M.BITS

-- A tensor of integers as one with rows of so many, which are whole bytes; nil if it has others.
local function integers(tensor, kind, rows, stride)
  if stride * BITS[kind] % 8 ~= 0 or tensor.bytes ~= rows * stride * BITS[kind] // 8 then return nil end
  return { name = tensor.name, path = tensor.path, file = tensor.file, at = tensor.at, bytes = tensor.bytes,
           type = kind, shape = { rows, stride }, integers = true }
end

function M.of_bits(graph, node)
  local t = node.attributes
  local kind, size, width, columns = KINDS[t.bits or 4], t.block_size or 0, t.K or 0, t.N or 0
  if not kind or size < 1 or width < 1 or columns < 1 then return nil, ("has %s bits"):format(tostring(t.bits)) end
  if (node.inputs[5] or "") ~= "" then return nil, "has g_idx" end
  local tensor, scales = graph.tensors[node.inputs[2]], graph.tensors[node.inputs[3]]
  if not tensor or not scales then return nil, "has weights that are no constants" end
  local groups = (width - 1) // size + 1
  local stride, padded = groups * size, (groups * BITS[kind] + 7) // 8 * 8 // BITS[kind]
  local whole = tensor.type == "U8" and integers(tensor, kind, columns, stride)
  local zeros, other = 1 << BITS[kind] - 1, (node.inputs[4] or "") ~= ""
  if other then
    local own = graph.tensors[node.inputs[4]]
    zeros = own and (own.type == "U8" and integers(own, kind, columns, padded)
      or own.type == scales.type and tensors.count(own) == columns * groups and own)
  end
  if type(zeros) == "table" and zeros.integers then zeros.stride = padded end
  if not whole or not zeros or tensors.count(scales) ~= columns * groups then
    return nil, "has weights, scales or zeros of another size"
  end
  return { tensor = whole, in_out = false, features = columns, stride = stride, of = function(c) return c end,
           block = { size = size, scales = scales, zeros = zeros } }, width, columns
end

function M.of_node(elements, node, tensor, in_out, features)
  local graph, size, count = elements.graph, node.attributes.block_size, tensors.count(tensor)
  local scales, width, axis = graph.tensors[node.inputs[2]], count // features, node.attributes.axis or 1
  local shape = elements.shapes[node.outputs[1]]
  if axis < 0 then axis = axis + #shape end
  if not scales or #shape ~= 2 or axis ~= (in_out and 0 or 1) then return nil, "has blocks along other axes" end
  if not BITS[tensor.type] then return nil, ("has numbers of type %s"):format(tensor.type) end
  local groups = (width - 1) // size + 1
  local function whole(of, inputs)
    return of.type == tensor.type and integers(of, tensor.type, in_out and inputs or features,
                                               in_out and features or inputs)
  end
  local zeros = 0
  if (node.inputs[3] or "") ~= "" then
    local own = graph.tensors[node.inputs[3]]
    zeros = own and whole(own, groups)
  end
  if not whole(tensor, width) or not zeros or tensors.count(scales) ~= groups * features then
    return nil, "has weights, scales or zeros of another size"
  end
  return { size = size, scales = scales, zeros = zeros }
end

return M
