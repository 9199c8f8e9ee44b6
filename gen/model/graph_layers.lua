-- The layers of attention in an ONNX graph whose products are written out: each Softmax between two products.
--
--   of(graph, given) -> layers, left
--     graph     of gen/model/onnx.lua
--     given     { key = text } of the command line
--     left      the Softmax nodes that are no layers: { name =, why = }, in their order
--
-- A layer, which another node may stand for in the graph:
--
--   name        of its Softmax
--   inputs      { q =, k =, v = values; masks = { { value, kind, hidden, axes, node }, .. }; past_k, past_v }
--               k and v are nil in self-attention. Several masks are added up, each by its node; `hidden`: a bool
--               says what is not seen.
--   output      the value that is Y
--   node        the node that makes it
--   nodes       those that nothing else needs, in the order of the file, `node` among them
--   keys        { key = value } of its config
--   weights     { wq = { tensor, in_out, width, features, columns }, .., bq = numbers, .., q_norm = numbers, .. };
--               columns: features of the matrix from 0, in the order that the kernel has them; of integers also
--               scales and zeros, a number of each for a column, or with by_row for a row
--   swapped     { q, k, v, y = true } of values whose rows lie as [rows][batch]: the kernel is for one sequence
--   turns       of the pairs of rope: the part of a turn from place to place, or nil
--   softmax     the node that is its heart
--   shapes      { value = axes } of all values, with numbers for what is open
--   extents     { b, h, q, k } of its scores in these

local graph_elements = require "model.graph_elements"
local graph_masks = require "model.graph_masks"
local graph_norms = require "model.graph_norms"
local graph_open = require "model.graph_open"
local graph_operand = require "model.graph_operand"
local graph_output = require "model.graph_output"
local graph_scores = require "model.graph_scores"
local graph_shapes = require "model.graph_shapes"
local graph_weights = require "model.graph_weights"

local M = {}

-- ---- the sides of the products ----

-- Which lead of the product of values each lead of the scores is; the axes of weights must be those of the scores.
local function value_leads(scores, fail)
  local p, v = scores.product, scores.values
  local leads = {}
  local function place(l, row, key)
    return scores.weight_at(v.lead_a[l] + row * v.row_a + key * v.inner_a)
  end
  if p.leads ~= v.leads or p.rows ~= v.rows or p.columns ~= v.inner or p.column_out ~= 1 or p.row_out ~= p.columns then
    fail "the product with values has other axes than the scores"
  end
  for l = 1, v.leads do
    local at = place(l, 0, 0)
    local row, key = p.rows - 1, p.columns - 1
    if scores.at(at) ~= at or place(l, row, key) ~= at + row * p.columns + key then
      fail "the axes of scores are transposed before values are weighted"
    end
    leads[at // (p.rows * p.columns) + 1] = l
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

-- ---- layers ----

local Layer = {}
Layer.__index = Layer

function Layer:fail(...) error({ left = string.format(...) }, 0) end

-- Keys of earlier runs need a cache, or are taken as they are.
function Layer:check_past(operands)
  local past = operands.k.past or operands.v.past
  if not past then return end
  if self.given.cache == nil then
    self:fail("%s has keys of earlier runs: give cache=append and seq_kv, the rows that it has room for; " ..
      "or cache=none, and K and V are inputs", past.value)
  end
  if self.given.cache == "none" then
    operands.k.product, operands.v.product = nil, nil
    return
  end
  if not operands.k.product or not operands.v.product or not operands.k.past or not operands.v.past then
    self:fail("%s: K and V that are cached are not both projected", past.value)
  end
  self.inputs.past_k, self.inputs.past_v = operands.k.past.value, operands.v.past.value
end

-- 1 / sqrt(dk) is the default, also as float32 or float16 has it.
local NEAR = 1e-3

function M.add_scale(keys, scale)
  if keys.dk and math.abs(scale * keys.dk ^ 0.5 - 1) < NEAR then return end
  keys.scale = scale
end

function Layer:read_keys(scores, operands, heads)
  local keys, given = self.keys, self.given
  local own, masks = graph_masks.read(self.find, scores, heads)
  for key, value in pairs(own) do keys[key] = value end
  if self.inputs.past_k then
    keys.causal_align = nil
    if scores.product.rows == 1 then keys.causal = true end
  end
  keys.h, keys.dk, keys.dv = heads.count, scores.product.inner, scores.values.columns
  keys.softcap = scores.softcap
  if #masks > 0 and not given.mask and not given.kv_len then
    local letters, kind = {}, "bool"
    for _, mask in ipairs(masks) do
      for letter in mask.axes:gmatch "." do letters[letter] = true end
      if mask.kind == "add" then kind = "add" end
    end
    local axes = {}
    for letter in ("bhqk"):gmatch "." do if letters[letter] then axes[#axes + 1] = letter end end
    keys.mask, keys.mask_dims = #masks > 1 and "add" or kind, table.concat(axes)
  end
  self.inputs.masks = masks
end

-- The shortest decimal that is the same float32: constants of a graph are such.
local function short(x)
  for digits = 1, 9 do
    local near = tonumber(("%%.%dg"):format(digits):format(x))
    if string.pack("<f", near) == string.pack("<f", x) then return near end
  end
  return x
end

local function read(find, softmax, given)
  local layer = setmetatable({ name = softmax.name, find = find, given = given, keys = {}, inputs = {} }, Layer)
  local function fail(...) layer:fail(...) end
  local scores = graph_scores.of(find.elements, softmax, fail)
  local leads = value_leads(scores, fail)
  local operands, sides = {}, sides_of(scores, leads)
  for letter, side in pairs(sides) do operands[letter] = graph_operand.read(find, side) end
  layer:check_past(operands)
  local heads = heads_of(find.elements, operands, scores.product, fail)
  local weights = graph_weights.of(find, operands, heads)
  layer:read_keys(scores, operands, heads)
  layer.softmax, layer.shapes = softmax, find.elements.shapes
  layer.extents = { b = heads.batches, h = heads.count, q = scores.product.rows, k = scores.product.columns }
  local factor = graph_output.read { find = find, layer = layer, scores = scores, operands = operands, heads = heads,
    leads = leads, weights = weights, fail = fail }
  M.add_scale(layer.keys, scores.scale * weights.factor * factor)
  for key, value in pairs(layer.keys) do
    if math.type(value) == "float" then layer.keys[key] = short(value) end
  end
  return layer
end

-- The axes of all values, and their elements.
local function shapes_of(graph, given, longer)
  local shapes = {}
  local elements = graph_elements.new(graph, shapes)
  elements.unknown = graph_shapes.of(graph, shapes, elements, graph_open.new(given, longer))
  elements.given = graph_open.places(graph, shapes)
  return shapes, elements
end

-- The axes of all values in runs of other lengths than those that layers have been read with.
function M.longer(graph, given) return (shapes_of(graph, given, true)) end

function M.of(graph, given)
  local shapes, elements = shapes_of(graph, given)
  local find = { graph = graph, elements = elements, norms = graph_norms.of(elements), masks = {} }
  for value in pairs(find.norms) do elements.leaves[value] = true end
  elements:forget()
  local layers, left = {}, {}
  for _, node in ipairs(graph.nodes) do
    if node.op == "Softmax" and node.domain == "" then
      local good, found = pcall(read, find, node, given)
      if good then
        layers[#layers + 1] = found
      elseif type(found) == "table" and found.left then
        left[#left + 1] = { name = node.name, why = found.left }
      else
        error(found, 0)
      end
      elements:forget()
    end
  end
  return layers, left
end

return M
