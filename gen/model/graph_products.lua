-- Matrix products of an ONNX graph.
--
--   of(elements, node)         a product of two values, by the steps of its axes:
--     { node, a, b, out, factor, leads, rows, columns, inner,
--       lead_a[l], lead_b[l], lead_out[l]    where matrix l lies, l from 1
--       row_a, row_out, column_b, column_out, inner_a, inner_b    steps }
--   by_constant(elements, node)    a product by a constant matrix, which is a projection:
--     { node, x, out, weight = tensor, in_out, scales, rows, width, all = columns, bias = value,
--       x_at(row, i), cell(i) -> row, column of an element of the output }
--   weight(elements, value)    the tensor behind what keeps it a matrix, and whether it is transposed

local graph_elements = require "model.graph_elements"

local M = {}

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
  if not row or not column or not inner then return nil end
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
  local step_a, step_b, step_out = graph_elements.steps_of(a), graph_elements.steps_of(b), graph_elements.steps_of(out)
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
    local steps = graph_elements.steps_of(shape)
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

local kinds = { MatMul = of_matmul, FusedMatMul = of_matmul, Einsum = of_einsum }

-- Whether a value is made of constants alone, as far as is seen at once.
local function is_constant(elements, value) return M.weight(elements, value) ~= nil end

function M.of(elements, node)
  local read = kinds[node.op]
  if not read or is_constant(elements, node.inputs[1]) or is_constant(elements, node.inputs[2]) then return nil end
  return read(elements, node)
end

-- ---- one constant ----

local HOPS = 8 -- of nodes before a constant

function M.weight(elements, value)
  local graph, turned = elements.graph, false
  for _ = 1, HOPS do
    local tensor = graph.tensors[value or ""]
    if tensor then return tensor, turned end
    local node = graph.makers[value]
    if not node then return nil end
    local perm = node.attributes.perm
    if node.op == "Transpose" and perm and #perm == 2 then
      turned = turned ~= (perm[1] == 1)
    elseif node.op == "Transpose" and not perm and #(elements.shapes[value] or {}) == 2 then
      turned = not turned
    elseif node.op ~= "Identity" and node.op ~= "Cast" then
      return nil
    end
    value = node.inputs[1]
  end
end

local function matrix(elements, value)
  local tensor, turned = M.weight(elements, value)
  if not tensor or #tensor.shape ~= 2 or tensor.shape[1] * tensor.shape[2] == 0 then return nil end
  return tensor, turned
end

-- Of rows side by side in both values.
local function plain(node, tensor, in_out, rows)
  local width, all = tensor.shape[in_out and 1 or 2], tensor.shape[in_out and 2 or 1]
  return { node = node, x = node.inputs[1], out = node.outputs[1], weight = tensor, in_out = in_out, width = width,
           all = all, rows = rows, x_at = function(row, i) return row * width + i end,
           cell = function(i) return i // all, i % all end }
end

local function rows_of(shape)
  local rows = 1
  for k = 1, #shape - 1 do rows = rows * shape[k] end
  return rows
end

local constant = {}

function constant.MatMul(elements, node)
  local tensor, turned = matrix(elements, node.inputs[2])
  local x = elements.shapes[node.inputs[1]]
  if not tensor or not x or #x < 2 or x[#x] ~= tensor.shape[turned and 2 or 1] then return nil end
  return plain(node, tensor, not turned, rows_of(x))
end

function constant.FusedMatMul(elements, node)
  local t = node.attributes
  if (t.alpha or 1) ~= 1 or (t.transA or 0) + (t.transB or 0) + (t.transBatchA or 0) + (t.transBatchB or 0) > 0 then
    return nil
  end
  return constant.MatMul(elements, node)
end

function constant.Gemm(elements, node)
  local tensor, turned = matrix(elements, node.inputs[2])
  local x, t = elements.shapes[node.inputs[1]], node.attributes
  if not tensor or not x or #x ~= 2 or (t.alpha or 1) ~= 1 or (t.beta or 1) ~= 1 or (t.transA or 0) ~= 0 then
    return nil
  end
  local in_out = turned == ((t.transB or 0) ~= 0)
  if x[2] ~= tensor.shape[in_out and 1 or 2] then return nil end
  local made = plain(node, tensor, in_out, x[1])
  made.bias = node.inputs[3] ~= "" and node.inputs[3] or nil
  return made
end

local function all_are(list, x)
  for _, value in ipairs(list or {}) do
    if value ~= x then return false end
  end
  return true
end

-- Of one place to itself: its rows are places, and its columns channels, which lie outside of them.
function constant.Conv(elements, node)
  local tensor, turned = M.weight(elements, node.inputs[2])
  local x, t = elements.shapes[node.inputs[1]], node.attributes
  if not tensor or turned or not x or #x < 3 or #tensor.shape ~= #x or x[2] ~= tensor.shape[2]
      or not all_are({ table.unpack(tensor.shape, 3) }, 1) or (t.group or 1) ~= 1 or not all_are(t.strides, 1)
      or not all_are(t.pads, 0) then
    return nil
  end
  local all, width, places = tensor.shape[1], x[2], 1
  for k = 3, #x do places = places * x[k] end
  return { node = node, x = node.inputs[1], out = node.outputs[1], weight = tensor, in_out = false, width = width,
           all = all, rows = x[1] * places, bias = node.inputs[3] ~= "" and node.inputs[3] or nil,
           x_at = function(row, i) return (row // places * width + i) * places + row % places end,
           cell = function(i) return i // (all * places) * places + i % places, i // places % all end }
end

function M.by_constant(elements, node)
  local read = node and constant[node.op]
  return read and read(elements, node) or nil
end

return M
