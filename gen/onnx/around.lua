-- Projections around an operator of attention in an ONNX graph, as methods that a graph gets.
--
-- Q, K and V are projected from a layer's input if these nodes lie between, in this order:
--   MatMul             of a constant matrix, MatMulNBits, or Gemm with alpha = beta = 1
--   Add                of a constant vector, or none
--   Split              of the columns, or none: Q, K and V in one
--   Reshape, Transpose(0, 2, 1, 3)   to heads, of an operator whose Q has four axes
--
-- The projection of Y has the reverse order: Transpose, Reshape, a product, Add. Nothing else may use Y. Gemm may stand
-- between two Reshapes, and Identity before a constant. Any other operand is an input of the kernel.
--
--   :projection(value, by_head)           { x, weight, in_out, all, width, bias, first, count, flat, stride, block } of
--                                         the columns that make a value, or nil; by_head: heads are an axis of it
--   :output_projection(value, by_head)    that which reads a value, with y, or nil
--   :constant, :integers, :to_heads       constants, and the Reshape to heads behind a projection

local graph_blocks = require "onnx.blocks"

local HOPS = 4 -- of Identity before a constant

local Graph = {}
Graph.__index = Graph

-- ---- nodes and constants ----

local others = { MatMulNBits = "com.microsoft" } -- operators that are not ONNX's own

local function is(node, op) return node and node.op == op and node.domain == (others[op] or "") and node or nil end

-- The node of this kind that makes a value.
function Graph:maker(value, op) return is(self.makers[value], op) end

-- The only node that uses a value, if it is of this kind.
function Graph:user(value, op)
  local all = self.users[value]
  return is(all and #all == 1 and not self.outputs[value] and all[1], op)
end

function Graph:constant(value, axes)
  for _ = 1, HOPS do
    local node = value and self:maker(value, "Identity")
    if not node then break end
    value = node.inputs[1]
  end
  local tensor = value and value ~= "" and self.tensors[value]
  return tensor and (not axes or #tensor.shape == axes) and tensor or nil
end

-- The numbers of a constant list of few integers, or nil.
function Graph:integers(value)
  local tensor = self:constant(value, 1)
  local count = tensor and tensor.type == "I64" and tensor.shape[1]
  if not count or count > 16 or tensor.bytes ~= 8 * count then return nil end
  local bytes, list = tensor.file:bytes(tensor.at, tensor.bytes), {}
  for i = 1, bytes and count or 0 do list[i] = string.unpack("<i8", bytes, 8 * i - 7) end
  return list
end

-- Whether a node keeps rows of this width: a Reshape to a constant shape that ends with it.
function Graph:keeps(node, width)
  local shape = self:integers(node.inputs[2])
  return shape and shape[#shape] == width
end

local function transposes(node)
  local perm = node.attributes.perm
  return type(perm) == "table" and table.concat(perm, " ") == "0 2 1 3"
end

-- The Reshape to heads that made a value [batch][heads][rows][width], or nil.
function Graph:to_heads(value)
  local transpose = self:maker(value, "Transpose")
  return transpose and transposes(transpose) and self:maker(transpose.inputs[1], "Reshape") or nil
end

-- That to rows behind such a value, backwards.
function Graph:from_heads(value)
  local transpose = self:user(value, "Transpose")
  return transpose and transposes(transpose) and self:user(transpose.outputs[1], "Reshape") or nil
end

-- ---- projections ----

-- The matrix of a MatMul, a MatMulNBits or a Gemm that has x as its first input: { x, weight, in_out, all = its
-- columns, width = its rows, bias, stride and block of gen/onnx/blocks.lua or nil }.
function Graph:product(node)
  if node.op == "MatMulNBits" then
    local matrix, width, columns = graph_blocks.of_bits(self, node)
    local bias = self:constant(node.inputs[6], 1)
    if not matrix or (node.inputs[6] or "") ~= "" and not bias then return nil end
    return { x = node.inputs[1], weight = matrix.tensor, in_out = false, all = columns, width = width, bias = bias,
             stride = matrix.stride, block = matrix.block }
  end
  local weight = self:constant(node.inputs[2], 2)
  if not weight then return nil end
  local rows, columns = weight.shape[1], weight.shape[2]
  if rows * columns == 0 then return nil end
  if node.op == "MatMul" then
    return { x = node.inputs[1], weight = weight, in_out = true, all = columns, width = rows }
  end
  local a = node.attributes
  if (a.alpha or 1) ~= 1 or (a.beta or 1) ~= 1 or (a.transA or 0) ~= 0 then return nil end
  local turned = (a.transB or 0) ~= 0
  if turned then rows, columns = columns, rows end
  local made = { x = node.inputs[1], weight = weight, in_out = not turned, all = columns, width = rows }
  if node.inputs[3] and node.inputs[3] ~= "" then
    made.bias = self:constant(node.inputs[3], 1)
    if not made.bias or made.bias.shape[1] ~= columns then return nil end
  end
  return made
end

-- The constant vector that an Add adds, and the other input.
function Graph:added(node)
  for i = 1, 2 do
    local vector = self:constant(node.inputs[i], 1)
    if vector and vector.shape[1] > 1 then return vector, node.inputs[3 - i] end
  end
end

-- Some columns of a Split, as { from = value, first, count }, or nil.
function Graph:split(value)
  local node = self:maker(value, "Split")
  if not node then return nil end
  local axis = node.attributes.axis or 0
  local sizes, first = self:integers(node.inputs[2]), 0
  if (axis ~= -1 and axis ~= 2) or not sizes or #sizes ~= #node.outputs then return nil end
  for i, output in ipairs(node.outputs) do
    if sizes[i] < 1 or sizes[i] > 1 << 31 then return nil end
    if output == value then return { from = node.inputs[1], first = first, count = sizes[i] } end
    first = first + sizes[i]
  end
end

-- The projection that made a value, or nil. by_head: the value is [batch][heads][rows][width].
function Graph:projection(value, by_head)
  if by_head then
    local reshape = self:to_heads(value)
    if not reshape then return nil end
    value = reshape.inputs[1]
  end
  local split = self:split(value)
  if split then value = split.from end
  local bias, node = nil, self:maker(value, "Add")
  if node then
    bias, value = self:added(node)
    if not bias then return nil end
  end
  node = self:maker(value, "MatMul") or self:maker(value, "MatMulNBits")
  local reshape = not node and self:maker(value, "Reshape")
  node = node or self:maker(reshape and reshape.inputs[1] or value, "Gemm")
  local made = node and self:product(node)
  if not made or reshape and not self:keeps(reshape, made.all) or bias and made.bias then return nil end
  made.bias = made.bias or bias
  if bias and bias.shape[1] ~= made.all then return nil end
  if split and split.first + split.count > made.all then return nil end
  made.first, made.count = split and split.first or 0, split and split.count or made.all
  reshape = node.op == "Gemm" and self:maker(made.x, "Reshape")
  made.flat = node.op == "Gemm"
  if reshape and self:keeps(reshape, made.width) then made.x, made.flat = reshape.inputs[1], false end
  return made
end

-- That of Y, or nil.
function Graph:output_projection(value, by_head)
  if by_head then
    local reshape = self:from_heads(value)
    if not reshape then return nil end
    value = reshape.outputs[1]
  end
  local node = self:user(value, "MatMul") or self:user(value, "MatMulNBits")
  local reshape = not node and self:user(value, "Reshape")
  if reshape then value = reshape.outputs[1] end
  node = node or self:user(value, "Gemm")
  local made = node and node.inputs[1] == value and self:product(node)
  if not made or reshape and not self:keeps(reshape, made.width) then return nil end
  made.first, made.count = 0, made.all
  value = node.outputs[1]
  reshape = node.op == "Gemm" and self:user(value, "Reshape")
  made.flat = node.op == "Gemm"
  if reshape and self:keeps(reshape, made.all) then value, made.flat = reshape.outputs[1], false end
  local add = not made.bias and self:user(value, "Add")
  local bias = add and self:added(add)
  if bias and bias.shape[1] == made.all then made.bias, value = bias, add.outputs[1] end
  made.y = value
  return made
end

return Graph
