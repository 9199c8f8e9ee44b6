-- What a layer of attention in an ONNX graph writes: the context, or its projection.
--
--   read(work) -> the projection, with the output and weights.bo of the layer; nil where there is none, and why if
--                 something looks like one
--   as(work, layout) -> the context as it is, in a layout: the first value that lies so, or nil
--     work    { find, layer, scores, heads, leads, .. }, as gen/onnx/layers.lua has them
--   places          by the layout: of a sequence, head, row and column the index in a value

local edges = require "onnx.indices".edges
local products = require "onnx.products"

local M = {}

local HOPS = 24 -- of nodes behind the context

M.places = {
  bhsd = function(e, rows, count, width) return ((e.batch * count + e.head) * rows + e.row) * width + e.i end,
  bshd = function(e, rows, count, width) return ((e.batch * rows + e.row) * count + e.head) * width + e.i end,
}

local unseen = { Shape = true, Size = true } -- which read no numbers

local function readers(graph, value)
  local list = {}
  for _, node in ipairs(graph.users[value] or {}) do
    if not unseen[node.op] then list[#list + 1] = node end
  end
  return list
end

local function only_reader(graph, value)
  local list = readers(graph, value)
  return #list == 1 and not graph.outputs[value] and list[1] or nil
end

local moves = { Cast = true, QuantizeLinear = true }

-- The values behind one that have its elements, each the only reader's of the one before; and the projection.
local function followed(elements, value)
  local graph, list = elements.graph, {}
  for _ = 1, HOPS do
    local node = only_reader(graph, value)
    if node and node.op == "DynamicQuantizeLinear" then node = products.of_integers(graph, node) end
    local product, why = products.by_constant(elements, node)
    if why or product and product.x == value then return list, product, why end
    local out = node and node.outputs[1]
    local source = out and elements:source(out)
    local back = source and (source.from == value or node.op == "DequantizeLinear")
    if not (back or node and moves[node.op]) then return list end
    list[#list + 1], value = out, out
  end
  return list
end

-- Where an element of a value behind the context comes from there.
local function context_index(elements, value, i, context)
  local form = elements:at(value, i)
  if type(form) == "number" or #form ~= 1 or form[1][1] ~= context or form[1][3] ~= 1 then return nil end
  return form[1][2]
end

-- Whether a projection reads the context head by head, by its second row; and whether its rows are [rows][batch].
local function output_rows(work, product)
  local scores, heads = work.scores, work.heads
  local v = scores.values
  if product.width ~= heads.count * v.columns then return false end
  local row = v.rows > 1 and 1 or 0
  for _, at in ipairs { row, row * heads.batches } do
    local index = context_index(work.find.elements, product.x, product.x_at(at, 0), v.out)
    if index == v.lead_out[work.leads[1]] + row * v.row_out then return true, at ~= row end
  end
  return false
end

-- The constant vector that is added to the output of a projection, and the sum.
local function added(find, product, value)
  local node = only_reader(find.graph, value)
  if not node or node.op ~= "Add" then return nil end
  local other = node.inputs[1] == value and node.inputs[2] or node.inputs[1]
  local shape, bias = find.elements.shapes[node.outputs[1]], {}
  local count = 1
  for _, size in ipairs(find.elements.shapes[other] or { 0 }) do count = count * size end
  if not shape or count ~= product.columns and count ~= 1 then return nil end
  local i, left = 0, product.columns * math.min(2, product.rows) -- of the first two rows
  while left > 0 do
    local row, own = product.cell(i)
    if row < 2 then
      local x = find.elements:operand(node, node.inputs[1] == value and 2 or 1, node.outputs[1], i)
      if type(x) ~= "number" or bias[own + 1] and bias[own + 1] ~= x then return nil end
      bias[own + 1], left = x, left - 1
    end
    i = i + 1
  end
  return bias, node.outputs[1]
end

-- The first value from this one on whose rows are [batch][rows][width], rather one with these axes, and rather one
-- outside of bodies. Without one this value if its rows are [rows][batch], and true.
local function plain_output(find, value, product, heads, transposed)
  local graph, elements = find.graph, find.elements
  local rows = product.rows // heads.batches
  local own, first = value, nil
  for _ = 1, HOPS do
    local good = elements.shapes[value] ~= nil
    for b = 0, heads.batches - 1 do
      for _, row in ipairs(edges(rows)) do
        for _, column in ipairs(edges(product.columns)) do
          local at, wanted = (b * rows + row) * product.columns + column, transposed and row * heads.batches + b or
            b * rows + row
          local index = value == own and at or context_index(elements, value, at, own)
          local from_row, from_column
          if index then from_row, from_column = product.cell(index) end
          good = good and from_row == wanted and from_column == column
        end
      end
    end
    if good and (not first or graph.inner[first]) then first = value end
    if good and #elements.shapes[value] == 3 and not graph.inner[value] then return value end
    local node = only_reader(graph, value)
    local out = node and node.outputs[1]
    local source = out and elements:source(out)
    if not source or source.from ~= value then break end
    elements.leaves[own] = true
    value = out
  end
  if first then return first end
  return transposed and own or nil, transposed
end

function M.read(work)
  local find, layer, scores, heads = work.find, work.layer, work.scores, work.heads
  local context = scores.values.out
  local list, product, why = followed(find.elements, context)
  local good, transposed = false, false
  if work.left:find "o" then product = nil end
  if product then good, transposed = output_rows(work, product) end
  if good then
    local bias, behind
    if product.bias then
      bias = {}
      for i = 0, product.columns - 1 do
        local x = find.elements:at(product.bias, i % (find.elements.shapes[product.bias][1] or 1))
        bias[i + 1] = type(x) == "number" and x or 0
      end
    else
      bias, behind = added(find, product, product.out)
    end
    local y, swapped = plain_output(find, behind or product.out, product, heads, transposed)
    if y then
      layer.output, layer.weights.bo, layer.swapped.y = y, bias, swapped
      return product
    end
  end
  layer.contexts = { context, table.unpack(list) }
  return nil, why
end

-- A context that is not projected, in a layout: the first value that lies so, rather one outside of bodies.
function M.as(work, layout)
  local v, heads, leads = work.scores.values, work.heads, work.leads
  local inner
  for _, value in ipairs(work.layer.contexts) do
    local good = true
    for l = 1, v.leads do
      for _, row in ipairs(edges(v.rows)) do
        for _, i in ipairs(edges(v.columns)) do
          local at = M.places[layout]({ batch = heads.batch[l], head = heads.head[l], row = row, i = i }, v.rows,
            heads.count, v.columns)
          local index = at
          if value ~= v.out then index = context_index(work.find.elements, value, at, v.out) end
          good = good and index == v.lead_out[leads[l]] + row * v.row_out + i * v.column_out
        end
      end
    end
    if good and not work.find.graph.inner[value] then return value end
    inner = inner or good and value or nil
  end
  return inner
end

return M
