-- Matrix products of an ONNX graph.
--
--   of(elements, node)         a product of two values, by the steps of its axes:
--     { node, a, b, out, factor, leads, rows, columns, inner,
--       lead_a[l], lead_b[l], lead_out[l]    where matrix l lies, l from 1
--       row_a, row_out, column_b, column_out, inner_a, inner_b    steps }
--   turned(product)            the same with a and b exchanged: rows of one are columns of the other
--   of_integers(graph, node), last_of_integers(graph, node)    the node that ends a product of integers, by the one
--                                                             that quantizes its rows, and by the product itself
--   by_constant(elements, node, scaled)    a product by a constant matrix, which is a projection; or nil and why it is
--                                          none. scaled: also one that is multiplied by its own `factor`
--     { node, x, out, matrix, rows, width, columns, bias = value or nil,
--       x_at(row, i), cell(i) -> row, column of an element of the output }
--     matrix = { tensor, in_out, features = all that the tensor has, of(column) = the feature that a column is,
--                scale(row, column) -> scale, zero of integers, or nil; by_row: whether these differ by row;
--                stride, block of gen/onnx/blocks.lua, or nil }

local blocks = require "onnx.blocks"
local indices = require "onnx.indices"
local tensors = require "model.tensors"

local M = {}

local all_are = indices.all_are

-- Types of weights.
local READABLE = { F64 = true, F32 = true, F16 = true, BF16 = true, I8 = true, U8 = true, I4 = true, U4 = true }

local MOST_LEADS = 1 << 16

-- ---- two values ----

-- Axes as rows { size, step in a, step in b, step in the output }, outermost first.
local function build(node, factor, axes)
  local made = { node = node, a = node.inputs[1], b = node.inputs[2], out = node.outputs[1], factor = factor,
                 lead_a = { 0 }, lead_b = { 0 }, lead_out = { 0 } }
  local row, column, inner
  for k = #axes, 1, -1 do
    local axis = axes[k]
    if axis.out and axis.a and not axis.b and not row then row = axis
    elseif axis.out and axis.b and not axis.a then
      if column then return nil end
      column = axis
    elseif not axis.out then
      if inner or not axis.a or not axis.b then return nil end
      inner = axis
    end
  end
  if not row or not column or not inner or row.size * column.size * inner.size == 0 then return nil end
  for _, axis in ipairs(axes) do
    if axis ~= row and axis ~= column and axis ~= inner then
      if #made.lead_a * axis.size > MOST_LEADS then return nil end
      for _, name in ipairs { "a", "b", "out" } do
        local old, all = made["lead_" .. name], {}
        for _, at in ipairs(old) do
          for i = 0, axis.size - 1 do all[#all + 1] = at + i * (axis[name] or 0) end
        end
        made["lead_" .. name] = all
      end
    end
  end
  made.leads, made.rows, made.columns, made.inner = #made.lead_a, row.size, column.size, inner.size
  made.row_a, made.row_out, made.column_b, made.column_out = row.a, row.out, column.b, column.out
  made.inner_a, made.inner_b = inner.a, inner.b
  return made
end

local function of_matmul(elements, node)
  local shapes, t = elements.shapes, node.attributes
  local a, b, out = shapes[node.inputs[1]], shapes[node.inputs[2]], shapes[node.outputs[1]]
  if not a or not b or not out or #a < 2 or #b < 2 or (t.transBatchA or 0) + (t.transBatchB or 0) > 0 then
    return nil
  end
  local step_a, step_b, step_out = indices.steps_of(a), indices.steps_of(b), indices.steps_of(out)
  local axes = {}
  for k = 1, #out - 2 do
    local in_a, in_b = k + #a - #out, k + #b - #out
    axes[k] = { size = out[k], out = step_out[k], a = in_a > 0 and a[in_a] > 1 and step_a[in_a] or 0,
                b = in_b > 0 and b[in_b] > 1 and step_b[in_b] or 0 }
  end
  local row_a, inner_a, inner_b, column_b = #a - 1, #a, #b - 1, #b
  if (t.transA or 0) ~= 0 then row_a, inner_a = inner_a, row_a end
  if (t.transB or 0) ~= 0 then inner_b, column_b = column_b, inner_b end
  axes[#out - 1] = { size = out[#out - 1], a = step_a[row_a], out = step_out[#out - 1] }
  axes[#out] = { size = out[#out], b = step_b[column_b], out = step_out[#out] }
  axes[#out + 1] = { size = a[inner_a], a = step_a[inner_a], b = step_b[inner_b] }
  return build(node, t.alpha or 1, axes)
end

local function of_einsum(elements, node)
  local left, second, right = (node.attributes.equation or ""):gsub("%s", ""):match "^(%a+),(%a+)%->(%a+)$"
  if not left or #node.inputs ~= 2 then return nil end
  local axes, by = {}, {}
  for _, part in ipairs { { "out", right, node.outputs[1] }, { "a", left, node.inputs[1] },
                          { "b", second, node.inputs[2] } } do
    local shape = elements.shapes[part[3]]
    if not shape or #shape ~= #part[2] then return nil end
    local steps = indices.steps_of(shape)
    for k = 1, #shape do
      local letter = part[2]:sub(k, k)
      local axis = by[letter]
      if not axis then
        axis = { size = shape[k] }
        axes[#axes + 1], by[letter] = axis, axis
      end
      if axis[part[1]] then return nil end
      axis[part[1]], axis.size = steps[k], math.max(axis.size, shape[k])
    end
  end
  return build(node, 1, axes)
end

function M.turned(p)
  return { node = p.node, a = p.b, b = p.a, out = p.out, factor = p.factor, leads = p.leads, rows = p.columns,
           columns = p.rows, inner = p.inner, lead_a = p.lead_b, lead_b = p.lead_a, lead_out = p.lead_out,
           row_a = p.column_b, row_out = p.column_out, column_b = p.row_a, column_out = p.row_out,
           inner_a = p.inner_b, inner_b = p.inner_a }
end

local kinds = { MatMul = of_matmul, FusedMatMul = of_matmul, Einsum = of_einsum }


-- ---- one constant ----

local HOPS = 8 -- of nodes before a constant

local function composed(steps)
  steps = table.move(steps, 1, #steps, 1, {})
  return function(i)
    for _, step in ipairs(steps) do i = step(i) end
    return i
  end
end

local function scales_of_node(elements, node)
  return { node = node, index = elements:scale_index(node), at = function(k) return elements:scale_at(node, k) end }
end

-- Constants that are multiplied by fewer constants, as some write weights of integers; and the other input of the Mul.
local function scales_of_mul(elements, node)
  for k = 1, 2 do
    local value, own, all = node.inputs[k], elements.shapes[node.inputs[k]], elements.shapes[node.outputs[1]]
    local index = own and all and indices.broadcast(own, all)
    if index and index(indices.count(all) - 1) < indices.count(all) - 1 and type(elements:at(value, 0)) == "number" then
      return { index = index, at = function(i)
        local x = elements:at(value, i)
        if type(x) == "number" then return x, 0 end
      end }, node.inputs[3 - k]
    end
  end
end

-- The tensor that a value is, as it lies or in another order, and the function of an index in the value. Behind these
-- its scales { node, index, at, zero }, and the function of an index in the output of their node.
--   node        DequantizeLinear, or nil
--   index(i)    the number of the scale of element i of the node's output
--   at(number)  that scale
local function tensor_of(elements, value)
  local steps, scales, before = {}, nil, nil
  for _ = 1, HOPS do
    local tensor, node = elements.graph.tensors[value or ""], elements.graph.makers[value]
    if tensor then return tensor, composed(steps), scales, before end
    local source = node and elements:source(value)
    if source then
      steps[#steps + 1], value = source.at, source.from
    elseif node and node.op == "Cast" then
      value = node.inputs[1]
    elseif node and not scales and (node.op == "DequantizeLinear" or node.op == "Mul") then
      before = composed(steps)
      if node.op == "Mul" then scales, value = scales_of_mul(elements, node)
      else scales, value = scales_of_node(elements, node), node.inputs[1] end
    else
      return nil
    end
  end
end

-- A constant as a matrix with so many rows, each `row` behind the one before in the value, and columns.
local function matrix_of(elements, value, rows, row, columns, column)
  local tensor, at, scales, before = tensor_of(elements, value)
  if not tensor then return nil end
  if not READABLE[tensor.type] then return nil, ("has numbers of type %s"):format(tensor.type) end
  local node, count = scales and scales.node, tensors.count(tensor)
  local function place(i, c) return at(i * row + c * column) end
  local first = place(0, 0)
  local step = rows > 1 and place(1, 0) - first or count
  local in_out = step ~= 1 or rows == 1
  local features = in_out and step or count // rows
  if features < columns or features * rows ~= count then return nil end
  local function of(c) return in_out and place(0, c) or place(0, c) // rows end
  for _, c in ipairs(indices.edges(columns)) do
    if of(c) >= features then return nil end
  end
  local made = { tensor = tensor, in_out = in_out, features = features, of = of }
  if node and (node.attributes.block_size or 0) ~= 0 then
    local block, why = blocks.of_node(elements, node, tensor, in_out, features)
    if not block then return nil, why end
    made.block = block
  elseif blocks.BITS[tensor.type] == 4 and (in_out and features or rows) % 2 ~= 0 then
    return nil, "has numbers of 4 bits in rows that end within a byte"
  elseif scales then
    if not scales.index then return nil, "has scales along other axes" end
    if blocks.BITS[tensor.type] == 4 then return nil, "has numbers of 4 bits without blocks" end
    local function of_scale(i, c) return scales.index(before(i * row + c * column)) end
    made.by_row = rows > 1 and of_scale(1, 0) ~= of_scale(0, 0)
    if made.by_row and columns > 1 and of_scale(0, 1) ~= of_scale(0, 0) then return nil end
    made.scale = function(i, c) return scales.at(of_scale(i, c)) end
    if not made.scale(0, 0) then return nil end
  end
  return made
end

-- A product of rows side by side, in x as in the output.
local function rows_of(node, x, matrix, width, columns)
  local rows = 1
  for k = 1, #x - 1 do rows = rows * x[k] end
  return { node = node, x = node.inputs[1], out = node.outputs[1], matrix = matrix, width = width,
    columns = columns, rows = rows, x_at = function(row, i) return row * width + i end,
    cell = function(i) return i // columns, i % columns end }
end

local function plain(elements, node, turned)
  local x, shape = elements.shapes[node.inputs[1]], elements.shapes[node.inputs[2]]
  if not x or not shape or #x < 2 or #shape ~= 2 or shape[1] * shape[2] == 0 then return nil end
  local width, columns = shape[turned and 2 or 1], shape[turned and 1 or 2]
  if x[#x] ~= width then return nil end
  local matrix, why = matrix_of(elements, node.inputs[2], width, turned and 1 or columns, columns,
                                turned and width or 1)
  return matrix and rows_of(node, x, matrix, width, columns), why
end

local constant = {}

function constant.MatMulNBits(elements, node)
  local matrix, width, columns = blocks.of_bits(elements.graph, node)
  local x, bias = elements.shapes[node.inputs[1]], node.inputs[6]
  if not matrix then return nil, width end
  if not x or x[#x] ~= width then return nil end
  local made = rows_of(node, x, matrix, width, columns)
  made.bias = bias ~= "" and bias or nil
  return made
end

function constant.MatMul(elements, node) return plain(elements, node, false) end

function constant.FusedMatMul(elements, node, scaled)
  local t = node.attributes
  local factor = t.alpha or 1
  if factor ~= 1 and not scaled or (t.transA or 0) + (t.transBatchA or 0) + (t.transBatchB or 0) > 0 then return nil end
  local made, why = plain(elements, node, (t.transB or 0) ~= 0)
  if made then made.factor = factor end
  return made, why
end

function constant.Gemm(elements, node)
  local t, bias = node.attributes, node.inputs[3] ~= "" and node.inputs[3] or nil
  if (t.alpha or 1) ~= 1 or bias and (t.beta or 1) ~= 1 or (t.transA or 0) ~= 0 then return nil end
  local made, why = plain(elements, node, (t.transB or 0) ~= 0)
  if made then made.bias = bias end
  return made, why
end

-- Of one place to itself: its rows are places, and its columns channels, which lie outside of them.
function constant.Conv(elements, node)
  local x, shape, t = elements.shapes[node.inputs[1]], elements.shapes[node.inputs[2]], node.attributes
  if not x or not shape or #x < 3 or #shape ~= #x or x[2] ~= shape[2] or shape[1] * shape[2] == 0
      or not all_are({ table.unpack(shape, 3) }, 1) or (t.group or 1) ~= 1 or not all_are(t.strides, 1)
      or not all_are(t.pads, 0) then
    return nil
  end
  local columns, width, places = shape[1], x[2], 1
  for k = 3, #x do places = places * x[k] end
  local matrix = matrix_of(elements, node.inputs[2], width, 1, columns, width)
  return matrix and { node = node, x = node.inputs[1], out = node.outputs[1], matrix = matrix, width = width,
    columns = columns, rows = x[1] * places, bias = node.inputs[3] ~= "" and node.inputs[3] or nil,
    x_at = function(row, i) return (row // places * width + i) * places + row % places end,
    cell = function(i) return i // (columns * places) * places + i % places, i // places % columns end }
end

-- Integers of a run by those of a constant, as ONNX Runtime's dynamic quantization writes it. The Mul by both scales
-- ends it; x is what was quantized.
function constant.Mul(elements, node)
  local graph = elements.graph
  local function maker(value, op)
    local found = graph.makers[value or ""]
    return found and found.op == op and found or nil
  end
  for k = 1, 2 do
    local cast, scales = maker(node.inputs[k], "Cast"), maker(node.inputs[3 - k], "Mul")
    local product = cast and maker(cast.inputs[1], "MatMulInteger")
    local quantize = product and scales and maker(product.inputs[1], "DynamicQuantizeLinear")
    local made = quantize and plain(elements, product, false)
    if made then
      local scale = scales.inputs[scales.inputs[1] == quantize.outputs[2] and 2 or 1]
      local columns = elements.shapes[scale] and #elements.shapes[scale] > 0 and elements.shapes[scale][1] or 1
      if made.matrix.scale or columns ~= 1 and columns ~= made.columns then return nil end
      local weights = { op = "DequantizeLinear", inputs = { product.inputs[2], scale, product.inputs[4] } }
      made.node, made.x, made.out = node, quantize.inputs[1], node.outputs[1]
      made.matrix.scale = function(_, c) return elements:scale_at(weights, columns == 1 and 0 or c) end
      return made.matrix.scale(0, 0) and made or nil
    end
  end
end

-- The only reader of a node's output, if it is of this kind.
local function only_user(graph, node, op)
  local users = node and graph.users[node.outputs[1]] or {}
  return #users == 1 and users[1].op == op and users[1] or nil
end

-- The Mul that ends a product of integers, of its MatMulInteger; or nil.
function M.last_of_integers(graph, node)
  return node.op == "MatMulInteger" and only_user(graph, only_user(graph, node, "Cast"), "Mul") or nil
end

-- The same of one that a DynamicQuantizeLinear begins, if that is all it is for.
function M.of_integers(graph, node)
  local product = only_user(graph, node, "MatMulInteger")
  return product and M.last_of_integers(graph, product)
end

function M.of(elements, node)
  local read = kinds[node.op]
  if not read or tensor_of(elements, node.inputs[1]) or tensor_of(elements, node.inputs[2]) then return nil end
  return read(elements, node)
end

function M.by_constant(elements, node, scaled)
  local read = node and constant[node.op]
  if not read then return nil end
  local product, why = read(elements, node, scaled)
  return product, why and ("%s (%s) %s"):format(node.name, node.op, why)
end

return M
