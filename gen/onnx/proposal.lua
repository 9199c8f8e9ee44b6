-- What a Softmax between two products looks like in an ONNX graph: a layer, which is believed only once
-- gen/onnx/proof.lua has evaluated it.
--
--   propose(find, softmax, given, left, why) -> layer of gen/onnx/layers.lua, with `scale` beside its keys, and
--                                               mask_keys; raises a text that says why a Softmax is no layer
--     find     { graph, elements, norms, masks }
--     left     letters of what is taken as it is: inputs q, k and v, the context o, masks m
--     why      it is, or nil
--   mask_keys(masks) -> mask and mask_dims of such masks of a layer
--   matrix_of(product, columns, by) -> the columns of a product by a constant (all without a list), as the weights of a
--                                      layer have them; by: their factors, or nil

local beside = require "onnx.beside"
local graph_inputs = require "onnx.inputs"
local graph_masks = require "onnx.masks"
local graph_nodes = require "onnx.nodes"
local graph_operand = require "onnx.operand"
local graph_output = require "onnx.output"
local graph_scores = require "onnx.scores"
local graph_weights = require "onnx.weights"
local wording = require "base.wording"

local M = {}

-- Raises why a Softmax is no layer, as a text like Lua's own errors, which say that a node is malformed.
local function refuse(...) error(string.format(...), 0) end

-- ---- the sides of the products ----

-- Which lead of the product of values each lead of the scores is; the axes of weights must be those of the scores.
local function value_leads(scores, fail)
  local p, v = scores.product, scores.values
  local leads = {}
  if p.leads ~= v.leads or p.rows ~= v.rows or p.columns ~= v.inner or p.column_out ~= 1 or p.row_out ~= p.columns then
    fail "the product with values has other axes than the scores"
  end
  for l = 1, v.leads do leads[scores.weight_at(v.lead_a[l]) // (p.rows * p.columns) + 1] = l end
  for l = 1, v.leads do
    if not leads[l] then fail "the axes of scores are transposed before values are weighted" end
  end
  return leads
end

local function sides_of(scores, leads)
  local p, v = scores.product, scores.values
  return {
    q = { value = p.a, leads = p.leads, rows = p.rows, width = p.inner,
          at = function(l, row, i) return p.lead_a[l] + row * p.row_a + i * p.inner_a end },
    k = { value = p.b, leads = p.leads, rows = p.columns, width = p.inner,
          at = function(l, row, i) return p.lead_b[l] + row * p.column_b + i * p.inner_b end },
    v = { value = v.b, leads = v.leads, rows = v.inner, width = v.columns,
          at = function(l, row, i) return v.lead_b[leads[l]] + row * v.inner_b + i * v.column_b end },
  }
end

-- ---- heads ----

-- Of lead l the number of its sequence and of its head, from 0, by the rows that a projection has; of none by the axes.
local function heads_of(elements, operands, product, fail)
  local heads = { batch = {}, head = {}, batches = 0, count = 0 }
  local by
  for _, letter in ipairs { "q", "k", "v" } do
    if not by and operands[letter].product then by = operands[letter] end
  end
  local shape, numbers, counts = elements.shapes[product.out], {}, {}
  local axis = #shape > 3 and shape[#shape - 2] or 1
  for l = 1, product.leads do
    local cells = by and by.cell(l, 0, 0)
    if by and not cells then fail "the heads of a projection are not told" end
    local key = by and cells[1].row or (l - 1) // axis
    if not numbers[key] then numbers[key], heads.batches = heads.batches, heads.batches + 1 end
    local batch = numbers[key]
    heads.batch[l], heads.head[l] = batch, counts[batch] or 0
    counts[batch] = heads.head[l] + 1
    heads.count = math.max(heads.count, counts[batch])
  end
  if heads.count * heads.batches ~= product.leads then fail "sequences have different numbers of heads" end
  return heads
end

-- By head, from 0, what its scores are multiplied by.
local function factors_by_head(factors, heads)
  local by = {}
  for l, factor in ipairs(factors) do by[heads.head[l]] = factor end
  return by
end

-- ---- weights ----

-- The columns of a projection as features of its matrix.
local function matrix_of(product, columns, by)
  local matrix, list = product.matrix, {}
  for i = 1, columns and #columns or product.columns do list[i] = matrix.of(columns and columns[i] or i - 1) end
  local made = { tensor = matrix.tensor, in_out = matrix.in_out, width = product.width, features = matrix.features,
                 columns = list, by_row = matrix.by_row, by = by, stride = matrix.stride, block = matrix.block }
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
      own["w" .. letter] = matrix_of(made[letter].product, made[letter].columns, made[letter].by)
      own["b" .. letter] = made[letter].bias
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

-- What is no projection though it looks like one; and masks that are scores of their own, such as those by distance.
local function add_notes(work, why)
  local layer, made, notes = work.layer, work.weights, {}
  for _, letter in ipairs { "q", "k", "v" } do
    local reason = not made[letter] and (work.operands[letter].why or letter ~= "v" and made.why)
    if reason then notes[#notes + 1] = ("%s is an input: %s"):format(letter:upper(), reason) end
  end
  if why then notes[#notes + 1] = "Y is not projected: " .. why end
  for _, mask in ipairs(layer.inputs.masks) do
    local of = {}
    for _, letter in ipairs { "q", "k" } do
      local own = made[letter] and graph_nodes.is_made_of(work.find.graph, mask.value, made[letter].product.out, layer)
      if own then of[#of + 1] = letter:upper() end
    end
    if #of > 0 then
      notes[#notes + 1] = ("mask %s is made of %s, as scores by distance are; the graph computes it"):format(
        wording.short(mask.value), table.concat(of, " and "))
    end
  end
  layer.notes = notes
end

-- Gives a layer its ends, weights and nodes; returns by what its scores are multiplied there.
local function add_ends(work)
  local layer, made = work.layer, work.weights
  layer.weights, layer.swapped = {}, {}
  local output, why = graph_output.read(work)
  for key, value in pairs(made.keys) do layer.keys[key] = value end
  local layout, scale = graph_inputs.read(work, output ~= nil)
  add_keys(work, output, layout)
  add_notes(work, why)
  local own = layer.weights
  own.q_norm, own.k_norm = made.gains.q, made.gains.k
  if made.tables then own.rope_cos, own.rope_sin = made.tables.cos, made.tables.sin end
  layer.tables, layer.turns = made.tables, made.turns
  if next(layer.swapped) and layer.given.batch and layer.given.batch ~= "1" then
    work.fail("its rows lie as [rows][batch], and batch = %s", layer.given.batch)
  end
  local maker = work.find.graph.makers[layer.output]
  layer.node, layer.nodes = maker.within or maker, graph_nodes.own(work.find.graph, layer, maker)
  return scale
end

-- ---- layers ----

-- The keys of masks that are added up.
function M.mask_keys(masks)
  local letters, kind, axes = {}, "bool", {}
  for _, mask in ipairs(masks) do
    for letter in mask.axes:gmatch "." do letters[letter] = true end
    if mask.kind == "add" then kind = "add" end
  end
  for letter in ("bhqk"):gmatch "." do if letters[letter] then axes[#axes + 1] = letter end end
  return #masks > 0 and { mask = #masks > 1 and "add" or kind, mask_dims = table.concat(axes) } or {}
end

local Layer = {}
Layer.__index = Layer

-- Keys of earlier runs need a cache, or are taken as they are.
function Layer:check_past(operands)
  local past = operands.k.past or operands.v.past
  if not past then return end
  if self.given.cache == nil then
    refuse("%s has keys of earlier runs: give cache=append and seq_kv, the rows that it has room for; " ..
      "or cache=none, and K and V are inputs", past.value)
  end
  if self.given.cache == "none" then
    operands.k.product, operands.v.product = nil, nil
    return
  end
  if not operands.k.product or not operands.v.product or not operands.k.past or not operands.v.past then
    refuse("%s: K and V that are cached are not both projected", past.value)
  end
  self.inputs.past_k, self.inputs.past_v = operands.k.past.value, operands.v.past.value
  self.past = operands.k.past.rows
end

function Layer:read_keys(scores, operands, heads, as_they_are)
  local keys, given = self.keys, self.given
  local own, masks = graph_masks.read(self.find, scores, heads, as_they_are)
  for key, value in pairs(own) do keys[key] = value end
  if self.inputs.past_k then
    keys.causal_align = nil
    if scores.product.rows == 1 then keys.causal = true end
  end
  keys.h, keys.dk, keys.dv = heads.count, scores.product.inner, scores.values.columns
  keys.softcap = scores.softcap
  self.mask_keys = M.mask_keys(masks)
  self.inputs.masks = masks
end

function M.propose(find, softmax, given, left, why)
  local layer = setmetatable({ name = softmax.name, find = find, given = given, keys = {}, inputs = {} }, Layer)
  local scores = graph_scores.of(find.elements, softmax, refuse)
  local leads = value_leads(scores, refuse)
  local operands, sides = {}, sides_of(scores, leads)
  for letter, side in pairs(sides) do operands[letter] = graph_operand.read(find, side) end
  for letter, operand in pairs(operands) do
    if left:find(letter) then
      operand.why = operand.product and "with its projection " .. why or operand.why
      operand.product, operand.norm = nil, nil
    end
  end
  layer:check_past(operands)
  local heads = heads_of(find.elements, operands, scores.product, refuse)
  heads.factors = scores.factors and factors_by_head(scores.factors, heads)
  local weights = graph_weights.of(find, operands, heads, refuse)
  if layer.inputs.past_k and not (weights.k and weights.v) then
    refuse("%s: K and V that are cached are not both projected: %s", layer.inputs.past_k,
      weights.why or operands.k.why or operands.v.why)
  end
  layer:read_keys(scores, operands, heads, left:find "m" ~= nil)
  layer.softmax, layer.shapes, layer.conditions = softmax, find.elements.shapes, scores.conditions
  layer.extents = { b = heads.batches, h = heads.count, q = scores.product.rows, k = scores.product.columns }
  local factor = add_ends { find = find, layer = layer, scores = scores, operands = operands, heads = heads,
    leads = leads, weights = weights, fail = refuse, left = left }
  layer.scale = scores.scale * weights.factor * factor
  layer.multiplied = { scores.product.out, scores.values.out }
  layer.beside = beside.of_past(find.graph, layer)
  return layer
end

M.refuse, M.matrix_of = refuse, matrix_of

return M
