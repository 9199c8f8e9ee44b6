-- What a layer of attention in an ONNX graph reads and writes: its inputs, the projection of its output, and the
-- nodes that nothing else needs.
--
--   read(work)
--     work: { find, layer, scores, operands, heads, leads, weights, fail }, as gen/model/graph_layers.lua has them
--     gives the layer of gen/model/graph_layers.lua its inputs, output, node, nodes, weights and turns, and the keys
--     project, layout, attention, d_model, y_width, k_width and v_width; returns by what the scores are multiplied
--     between inputs that are not projected and the product

local products = require "model.graph_products"

local M = {}

local HOPS = 24

-- ---- values that lie as a kernel has them ----

-- Indices of some elements in a value, each beside the place that it must have: { at =, .. }. Moved back, value by
-- value, until `good` says that they lie right; returns what it says and the value.
local function walked_back(elements, value, list, good)
  local factor = 1
  for _ = 1, HOPS do
    local found = good(value, list)
    if found then return found, value, factor end
    local source, node = elements:source(value), elements.graph.makers[value]
    local by = not source and node and (node.op == "Mul" or node.op == "Div") and elements:scalar(node.inputs[2] or "")
    if source then
      for _, entry in ipairs(list) do entry.at = source.at(entry.at) end
      value = source.from
    elseif by and by ~= 0 then
      value, factor = node.inputs[1], node.op == "Mul" and factor * by or factor / by
    else
      return nil
    end
  end
end

local function edges(count) return { 0, math.min(1, count - 1), count - 1 } end

-- The value whose rows [batch][rows][width] a projection has: its input, or one whose axes were moved; rather one
-- with these three axes. Without one its input with rows [rows][batch], and true.
local function projected_input(find, operand, heads)
  local product, list, first, swapped = operand.product, {}, nil, true
  for l = 1, operand.side.leads do
    for _, row in ipairs(edges(operand.rows)) do
      local cells = operand.cell(l, row, 0)
      for _, i in ipairs(edges(product.width)) do
        local batch, at = heads.batch[l], product.x_at(cells[1].row, i)
        list[#list + 1] = { at = at, wanted = (batch * operand.rows + row) * product.width + i }
        swapped = swapped and at == (row * heads.batches + batch) * product.width + i
      end
    end
  end
  local _, value = walked_back(find.elements, product.x, list, function(value, all)
    for _, entry in ipairs(all) do
      if entry.at ~= entry.wanted then return nil end
    end
    first = first or value
    return #find.elements.shapes[value] == 3
  end)
  value = value or first
  if not value and swapped then return product.x, true end
  return value
end

local places = {
  bhsd = function(e, rows, count, width) return ((e.batch * count + e.head) * rows + e.row) * width + e.i end,
  bshd = function(e, rows, count, width) return ((e.batch * rows + e.row) * count + e.head) * width + e.i end,
}

-- The value that an operand is as a kernel takes it, in a layout: value, number of its heads, factor; or nil.
local function input_as(find, operand, heads, layout)
  local side, list = operand.side, {}
  for l = 1, side.leads do
    for _, row in ipairs(edges(side.rows)) do
      for _, i in ipairs(edges(side.width)) do
        list[#list + 1] = { at = side.at(l, row, i), batch = heads.batch[l], head = heads.head[l], row = row, i = i }
      end
    end
  end
  local place, each = places[layout], heads.count
  local count, value, factor = walked_back(find.elements, side.value, list, function(value, all)
    local shape, numbers = find.elements.shapes[value], 1
    for _, size in ipairs(shape or {}) do numbers = numbers * size end
    local own = numbers // (heads.batches * side.rows * side.width)
    if not shape or own < 1 or each % own ~= 0 or own * heads.batches * side.rows * side.width ~= numbers then
      return nil
    end
    for _, entry in ipairs(all) do
      local e = { batch = entry.batch, head = entry.head // (each // own), row = entry.row, i = entry.i }
      if entry.at ~= place(e, side.rows, own, side.width) then return nil end
    end
    return own
  end)
  return value, count, factor
end

-- ---- the output ----

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

local moves = { Cast = true, QuantizeLinear = true, DequantizeLinear = true }

-- The values behind one that have its elements, each the only reader's of the one before; and the projection.
local function followed(elements, value)
  local graph, list = elements.graph, {}
  for _ = 1, HOPS do
    local node = only_reader(graph, value)
    local product = node and node.inputs[1] == value and products.by_constant(elements, node)
    if product then return list, product end
    local out = node and node.outputs[1]
    local source = out and elements:source(out)
    if not (source and source.from == value or node and moves[node.op]) then return list end
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

-- Whether a projection reads the context head by head; and whether its rows are [rows][batch].
local function output_rows(work, product)
  local scores, heads, leads = work.scores, work.heads, work.leads
  local v, width = scores.values, scores.values.columns
  if product.width ~= heads.count * width then return false end
  local taken = {}
  for l = 1, scores.product.leads do
    for _, row in ipairs(edges(v.rows)) do
      local at = heads.batch[l] * v.rows + row
      for i = 0, width - 1 do
        taken[#taken + 1] = { row = at, column = heads.head[l] * width + i,
                              wanted = v.lead_out[leads[l]] + row * v.row_out + i * v.column_out }
      end
    end
  end
  for _, rows_first in ipairs { false, true } do
    local good = true
    for _, entry in ipairs(taken) do
      local batch, row = entry.row // v.rows, entry.row % v.rows
      local at = rows_first and row * heads.batches + batch or entry.row
      if good and context_index(work.find.elements, product.x, product.x_at(at, entry.column), v.out) ~= entry.wanted then
        good = false
      end
    end
    if good then return true, rows_first end
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
  for i = 0, product.rows * product.columns - 1, math.max(1, (product.rows - 1) * product.columns) do
    for column = 0, product.columns - 1 do
      local _, own = product.cell(i + column)
      local x = find.elements:operand(node, node.inputs[1] == value and 2 or 1, node.outputs[1], i + column)
      if type(x) ~= "number" or bias[own + 1] and bias[own + 1] ~= x then return nil end
      bias[own + 1] = x
    end
  end
  return #bias == product.columns and bias or nil, node.outputs[1]
end

-- The first value from this one on whose rows are [batch][rows][width], rather one with these axes. Without one this
-- value if its rows are [rows][batch], and true.
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
    first = first or good and value
    if good and #elements.shapes[value] == 3 then return value end
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

local function read_output(work)
  local find, layer, scores, heads = work.find, work.layer, work.scores, work.heads
  local context = scores.values.out
  local list, product = followed(find.elements, context)
  local good, transposed = false, false
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
end

-- A context that is not projected, in a layout: the first value that lies so.
local function output_as(work, layout)
  local v, heads, leads = work.scores.values, work.heads, work.leads
  for _, value in ipairs(work.layer.contexts) do
    local good = true
    for l = 1, v.leads do
      for _, row in ipairs(edges(v.rows)) do
        for _, i in ipairs(edges(v.columns)) do
          local at = places[layout]({ batch = heads.batch[l], head = heads.head[l], row = row, i = i }, v.rows,
            heads.count, v.columns)
          local index = at
          if value ~= v.out then index = context_index(work.find.elements, value, at, v.out) end
          good = good and index == v.lead_out[leads[l]] + row * v.row_out + i * v.column_out
        end
      end
    end
    if good then return value end
  end
end

-- ---- what is not projected ----

-- Q, K, V and the context, as far as they are not projected, in a layout: { layout, values, heads by letter, scale, y };
-- nil if one of them does not lie so.
local function unprojected(work, layout, projects_o)
  local made = { layout = layout, values = {}, heads = {}, scale = 1 }
  made.y = projects_o or output_as(work, layout)
  if not made.y then return nil end
  for _, letter in ipairs { "q", "k", "v" } do
    if not work.operands[letter].product then
      local value, count, factor = input_as(work.find, work.operands[letter], work.heads, layout)
      if not value or letter == "v" and factor ~= 1 then return nil end
      made.values[letter], made.heads[letter] = value, count
      if letter ~= "v" then made.scale = made.scale * factor end
    end
  end
  return made
end

local function read_inputs(work, projects_o)
  local layer, inputs, fail = work.layer, work.layer.inputs, work.fail
  for _, letter in ipairs { "q", "k", "v" } do
    if work.operands[letter].product then
      inputs[letter], layer.swapped[letter] = projected_input(work.find, work.operands[letter], work.heads)
      if not inputs[letter] then
        fail("rows of the input of the projection of %s do not follow each other", letter:upper())
      end
    end
  end
  local chosen = unprojected(work, "bshd", projects_o) or unprojected(work, "bhsd", projects_o)
  if not chosen then fail("Q, K, V and the context that are not projected lie in different orders of their axes") end
  for letter, value in pairs(chosen.values) do inputs[letter] = value end
  local h_kv = layer.keys.h_kv or chosen.heads.k or chosen.heads.v
  for _, letter in ipairs { "k", "v" } do
    if chosen.heads[letter] and chosen.heads[letter] ~= h_kv then fail("K and V have different numbers of heads") end
  end
  if chosen.heads.q and chosen.heads.q ~= work.heads.count then fail("heads share queries") end
  layer.keys.h_kv = h_kv
  if not projects_o then layer.output = chosen.y end
  return chosen.layout, chosen.scale
end

-- ---- nodes ----

-- The nodes that nothing but the output needs, up to the inputs.
local function own_nodes(graph, layer)
  local stop, own, list = {}, {}, {}
  for _, key in ipairs { "q", "k", "v", "past_k", "past_v" } do
    if layer.inputs[key] then stop[layer.inputs[key]] = true end
  end
  for _, mask in ipairs(layer.inputs.masks) do stop[mask.value] = true end
  local function needed(node)
    for _, output in ipairs(node.outputs) do
      if graph.outputs[output] or stop[output] then return true end
      for _, user in ipairs(graph.users[output] or {}) do
        if not own[user] then return true end
      end
    end
    return false
  end
  own[layer.node], list[1] = true, layer.node
  local waiting = { layer.node }
  while #waiting > 0 do
    local node = table.remove(waiting)
    for _, input in ipairs(node.inputs) do
      local maker = graph.makers[input]
      if maker and not own[maker] and not stop[input] and not needed(maker) then
        own[maker] = true
        list[#list + 1], waiting[#waiting + 1] = maker, maker
      end
    end
  end
  return own
end

local function in_order(graph, own)
  local list = {}
  for _, node in ipairs(graph.nodes) do
    if own[node] then list[#list + 1] = node end
  end
  return list
end

-- ---- all ----

-- The columns of a projection as features of its matrix.
local function matrix_of(product, columns)
  local matrix, list = product.matrix, {}
  for i = 1, columns and #columns or product.columns do list[i] = matrix.of(columns and columns[i] or i - 1) end
  local made = { tensor = matrix.tensor, in_out = matrix.in_out, width = product.width, features = matrix.features,
                 columns = list, by_row = matrix.by_row }
  if matrix.scale then
    made.scales, made.zeros = {}, {}
    for k = 1, matrix.by_row and product.width or #list do
      local row, column = matrix.by_row and k - 1 or 0, columns and columns[k] or k - 1
      made.scales[k], made.zeros[k] = matrix.scale(row, matrix.by_row and 0 or column)
    end
  end
  return made
end

-- The keys of what is projected, and of the widths.
local function add_keys(work, output, layout)
  local layer, made, inputs = work.layer, work.weights, work.layer.inputs
  local keys, own, letters = layer.keys, layer.weights, ""
  for _, letter in ipairs { "q", "k", "v" } do
    if made[letter] then
      letters = letters .. letter
      own["w" .. letter], own["b" .. letter] = matrix_of(made[letter].product, made[letter].columns), made[letter].bias
    end
  end
  if output then
    letters, own.wo = letters .. "o", matrix_of(output)
    keys.y_width = output.columns
  end
  keys.project = letters ~= "" and letters or "none"
  if letters ~= "qkvo" then keys.layout = layout end
  if letters:find "qkv" and inputs.q == inputs.k and inputs.q == inputs.v then
    inputs.k, inputs.v = nil, nil
  else
    keys.attention = "cross"
    keys.k_width, keys.v_width = made.k and made.k.product.width, made.v and made.v.product.width
  end
  keys.d_model = made.q and made.q.product.width or nil
end

function M.read(work)
  local layer, made = work.layer, work.weights
  layer.weights, layer.swapped = {}, {}
  local output = read_output(work)
  for key, value in pairs(made.keys) do layer.keys[key] = value end
  local layout, scale = read_inputs(work, output ~= nil)
  add_keys(work, output, layout)
  local own = layer.weights
  own.q_norm, own.k_norm = made.gains.q, made.gains.k
  if made.tables then own.rope_cos, own.rope_sin = made.tables.cos, made.tables.sin end
  layer.tables, layer.turns = made.tables, made.turns
  if next(layer.swapped) and layer.given.batch and layer.given.batch ~= "1" then
    work.fail("its rows lie as [rows][batch], and batch = %s", layer.given.batch)
  end
  layer.node = work.find.graph.makers[layer.output]
  layer.nodes = in_order(work.find.graph, own_nodes(work.find.graph, layer))
  return scale
end

return M
