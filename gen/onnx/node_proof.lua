-- Whether an operator of attention computes what its layer's config says. It is evaluated with its projections, as
-- layers of simple operators are (gen/onnx/proof.lua).
--
--   prove(find, layer) -> why not, or nil
--     find     of gen/onnx/layers.lua
--     layer    of gen/onnx/operators.lua
--
-- Masks and lengths that the command line replaces are left out, and keys of earlier runs where it has no cache.
-- Numbers of rows are those of the graph, if it states them and they are not too large.

local indices = require "onnx.indices"
local proof = require "onnx.proof"

local M = {}

local BATCH, ROWS, PAST = 2, 8, 5 -- where the graph leaves them open
local FEW = 24 -- rows of one sequence, where all are too many

-- ---- the node ----

local LENGTHS, TOTAL = "mhagen: lengths", "mhagen: total" -- values that a run of the kernel has as `past`

-- What the inputs of a node are for the proof: names that stay; others are left out.
local function inputs_of(layer, past)
  local list, args, keys = {}, layer.args, layer.keys
  local kept = { [args.mask or ""] = keys.mask ~= nil, [args.kv_len or ""] = keys.kv_len ~= nil }
  for i, name in ipairs(layer.operator.inputs) do
    local value = layer.node.inputs[i] or ""
    local of_past = name:find "^past"
    if of_past and (past == 0 or name:find "length$") then value = "" end
    if layer.operator.masks[name] and not kept[value] then value = "" end
    list[i] = value
  end
  local at = layer.at
  if at.seqlens_k then list[at.seqlens_k], list[at.total_sequence_length] = LENGTHS, TOTAL end
  while list[#list] == "" do list[#list] = nil end
  return list
end

-- The graph with this node in the place of its own.
local function around(layer, past)
  local node, makers = {}, {}
  for key, value in pairs(layer.node) do node[key] = value end
  node.inputs = inputs_of(layer, past)
  for _, output in ipairs(node.outputs) do makers[output] = node end
  setmetatable(makers, { __index = layer.graph.makers })
  return setmetatable({ makers = makers }, { __index = layer.graph })
end

-- ---- sizes ----

-- Sequences and rows of a value by its axes, if they are known.
local function rows_of(shape)
  if not shape or #shape < 3 then return nil end
  return shape[1], shape[#shape == 4 and 3 or 2]
end

local function extents_of(layer, shapes, few)
  local names, keys = layer.operator.inputs, layer.keys
  local function told(letter, name)
    local b, rows = rows_of(layer:input(name) and shapes[layer:input(name)])
    if not b then b, rows = rows_of(shapes[layer.args[letter] or layer.args.q]) end
    return b, rows
  end
  local b, q = told("q", names[1])
  local k = keys.attention == "cross" and select(2, told("k", layer.operator.keys or names[1])) or q
  b, q, k = b or BATCH, q or ROWS, k or q or ROWS
  if few then b, q, k = 1, math.min(q, FEW), math.min(k, k == q and FEW or FEW + 1) end
  return { b = b, h = keys.h, q = q, k = k }
end

-- Rows of earlier runs: as many as tables of rope leave, if there is a cache.
local function past_of(layer, rows)
  local cache, cos = layer.from_user.cache, layer.more.rope_cos
  if not cache or cache == "none" or not layer:input(layer.operator.past or "") then return 0 end
  return math.max(0, math.min(PAST, cos and cos.shape[1] - rows or PAST))
end

-- The axes of the values that the part begins with.
local function add_shapes(layer, record, shapes, past)
  local keys, extents = record.keys, record.extents
  local h_kv = keys.h_kv or keys.h
  local sides = { q = { extents.q, keys.h, keys.dk }, k = { extents.k - past, h_kv, keys.dk },
                  v = { extents.k - past, h_kv, keys.dv } }
  for letter, side in pairs(sides) do
    local made, value = layer.projections[letter], layer.args[letter]
    if made and made.flat then shapes[made.x] = { extents.b * side[1], made.width }
    elseif made then shapes[made.x] = { extents.b, side[1], made.width }
    elseif layer.by_head and value then shapes[value] = { extents.b, side[2], side[1], side[3] }
    elseif value then shapes[value] = { extents.b, side[1], side[2] * side[3] } end
  end
  if record.inputs.past_k == record.inputs.past_v and past > 0 then
    shapes[record.inputs.past_k] = { 2, extents.b, h_kv, past, keys.dk }
  elseif past > 0 then
    shapes[record.inputs.past_k] = { extents.b, h_kv, past, keys.dk }
    shapes[record.inputs.past_v] = { extents.b, h_kv, past, keys.dv }
  end
  for _, mask in ipairs(record.inputs.masks) do
    local shape, dims = {}, layer:axes(mask.value) or {}
    for i = 1, #layer.mask_axes do
      shape[i] = dims[i] == 1 and 1 or extents[layer.mask_axes:sub(i, i)]
    end
    shapes[mask.value] = layer.graph.tensors[mask.value] and layer.graph.tensors[mask.value].shape or shape
  end
  if layer.args.kv_len then shapes[layer.args.kv_len] = { extents.b } end
  shapes[LENGTHS], shapes[TOTAL] = { extents.b }, {}
end

-- ---- the layer ----

-- Multiplications of projections and scores; and the numbers that there are at a time, of weights and scores.
local function costs_of(layer, keys, extents)
  local scores, products, numbers = extents.b * extents.h * extents.q * extents.k, 0, 0
  for _, made in pairs(layer.projections) do
    products = products + extents.b * math.max(extents.q, extents.k) * made.width * made.count
    numbers = numbers + made.width * made.all
  end
  return products + scores * (keys.dk + keys.dv), numbers + 4 * scores
end

-- What gen/onnx/proof.lua takes for a layer; `shapes` gets the axes of what it begins with.
local function record_of(find, layer, shapes, few)
  local keys, mask_keys, args = {}, {}, layer.args
  for key, value in pairs(layer.keys) do
    local own = key == "mask" or key == "mask_dims"
    if own then mask_keys[key] = value else keys[key] = value end
  end
  keys.dk = keys.dk or tonumber(layer.from_user.dk)
  keys.dv = keys.dv or tonumber(layer.from_user.dv) or keys.dk
  if not keys.dk then return nil end
  local extents = extents_of(layer, find.elements.shapes, few)
  local past = past_of(layer, extents.k)
  extents.k = extents.k + past
  local inputs = { q = args.q, k = args.k, v = args.v, kv_len = keys.kv_len and args.kv_len, masks = {} }
  if past > 0 then
    local at = layer.at[layer.operator.past]
    inputs.past_k = layer.node.inputs[at]
    inputs.past_v = layer.node.inputs[layer.at.past_value or at]
  end
  local given = { [LENGTHS] = extents.k - 1, [TOTAL] = extents.k }
  if mask_keys.mask then
    inputs.masks[1] = { value = args.mask, kind = mask_keys.mask, hidden = false, axes = mask_keys.mask_dims }
  end
  local made = {}
  for i = 2, #layer.node.outputs do
    local what = layer.operator.outputs[i]
    if what == "scores" and keys.probs then what = "probs" end
    if layer.node.outputs[i] ~= "" then made[#made + 1] = { value = layer.node.outputs[i], what = what } end
  end
  if inputs.kv_len then given[inputs.kv_len] = false end
  local h_kv = layer.by_head and (keys.h_kv or keys.h) or 1
  local projected = layer.projections
  local record = { name = layer.name, node = layer.node, inputs = inputs, output = args.y, keys = keys,
                   mask_keys = mask_keys, weights = {}, swapped = {}, beside = made, extents = extents, past = past,
                   given_values = given, scale = layer.scale or keys.dk ^ -0.5,
                   by_head = { k = projected.k and 1 or h_kv, v = projected.v and 1 or h_kv },
                   part = setmetatable({ in_out = true }, { __index = layer }) }
  record.products, record.numbers = costs_of(layer, keys, extents)
  add_shapes(layer, record, shapes, past)
  return record
end

local function tried(find, layer, few)
  local tensors, shapes = layer.graph.tensors, {}
  setmetatable(shapes, { __index = function(_, name) return tensors[name] and tensors[name].shape end })
  local record = record_of(find, layer, shapes, few)
  if not record then return nil end -- the width of a head is not known, and the config is refused
  local own = { graph = around(layer, record.past), elements = { shapes = shapes } }
  own.graph.tools = find.graph.tools
  local good, why, large = pcall(proof.prove, own, record, few)
  if good then return why, large end
  if type(why) ~= "string" or why:find("not enough memory", 1, true) then error(why, 0) end
  return "it is not evaluated: " .. why:gsub("^gen/[^:]+:%d+: ", "")
end

function M.prove(find, layer)
  local why, large = tried(find, layer)
  if not large then return why end
  return (tried(find, layer, true))
end

return M
