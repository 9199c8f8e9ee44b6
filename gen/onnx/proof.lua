-- Whether a layer that was found in an ONNX graph computes what its config says: the nodes between its inputs and its
-- result are evaluated on drawn numbers, and so is the formula.
--
--   prove(find, layer, whole) -> why not, or nil where both agree; and whether it is too large
--     whole    though it takes seconds
--     find     { graph, elements }; graph.tools = { arrays, list, floats = function of a part, of the host; most: the
--              numbers that there may be at a time, or nil }
--     layer    of gen/onnx/layers.lua, with all its keys but for the scale, which it has as it was before rounding; or
--              of gen/onnx/node_proof.lua
--
-- Numbers are drawn several times (gen/onnx/drawn.lua). What both compute must be equal but for roundings of weights to
-- float32. Other values that the layer makes are compared too (gen/onnx/beside.lua).

local arguments = require "onnx.arguments"
local beside = require "onnx.beside"
local config = require "options.config"
local constants = require "onnx.constants"
local drawn_numbers = require "onnx.drawn"
local evaluate = require "onnx.evaluate"
local graph_parts = require "onnx.parts"
local model_layers = require "model.layers"
local unseen = require "onnx.unseen"
local wording = require "base.wording"

local M = {}

-- ---- limits ----

local MUCH, MOST_PRODUCTS = 1 << 32, 1 << 36 -- multiplications: with fewer rows if there may be; at all
local ENOUGH = 1 << 29 -- multiplications behind which no more is drawn
local NEARBY = 512 -- nodes that masks may be made of

-- ---- where the part begins ----

local LETTERS = { "q", "k", "v", "past_k", "past_v" }

local function inputs_of(layer)
  local leaves = {}
  for _, letter in ipairs(LETTERS) do
    if layer.inputs[letter] then leaves[layer.inputs[letter]] = letter end
  end
  return leaves
end

-- The plan of the part. Masks are computed of inputs of the graph, so that they are such as it has; they are drawn
-- themselves where they come from afar.
local function plan_of(find, layer)
  local graph, shapes, leaves = find.graph, find.elements.shapes, inputs_of(layer)
  local outputs, without = { layer.output, table.unpack(layer.conditions or {}) }, {}
  for _, each in ipairs(layer.beside) do outputs[#outputs + 1] = each.value end
  for value in pairs(leaves) do without[value] = true end
  for _, mask in ipairs(layer.inputs.masks) do outputs[#outputs + 1], without[mask.value] = mask.value, true end
  for _, name in ipairs { "q", "k", "v", "past_k", "past_v", "kv_len" } do -- where they are constants
    outputs[#outputs + 1] = graph.tensors[layer.inputs[name] or ""] and layer.inputs[name]
  end
  for value in pairs(layer.given_values or {}) do without[value] = true end
  local drawn, why = evaluate.plan(graph, shapes, outputs, without)
  if not layer.inputs.masks[1] or layer.given_values then return drawn, why, leaves end
  local whole = evaluate.plan(graph, shapes, outputs, leaves)
  local near = whole and whole.numbers <= evaluate.MOST_NUMBERS and (not drawn or
    #whole.nodes <= #drawn.nodes + NEARBY and whole.products <= drawn.products)
  if near then
    return whole, nil, leaves
  end
  return drawn, why, leaves
end

-- ---- the formula ----

-- The keys of a layer with numbers of rows and sequences, as a config.
local function config_of(layer)
  local keys, extents = {}, layer.extents
  for key, value in pairs(layer.keys) do keys[key] = value end
  for key, value in pairs(layer.mask_keys) do keys[key] = value end
  keys.seq, keys.seq_kv, keys.batch, keys.isa, keys.scale = extents.q, extents.k, extents.b, "scalar", layer.scale
  if layer.inputs.past_k then keys.cache = "append" elseif keys.attention ~= "cross" then keys.seq_kv = nil end
  return config.load(nil, model_layers.key_list(keys))
end

-- The shape as the host's formula takes it.
local function shape_of(layer, cfg, past)
  local keys, shape = layer.keys, {}
  for _, key in ipairs { "h", "h_kv", "d_model", "dk", "dv", "k_width", "v_width", "y_width", "project", "layout" } do
    shape[key] = cfg[key]
  end
  for _, key in ipairs { "causal", "causal_align", "window_left", "window_right", "softcap", "qk_norm", "norm_span",
                         "norm_eps", "rope", "rope_dims", "sink", "kv_len", "scores", "probs" } do
    shape[key] = keys[key]
  end
  for key, value in pairs(layer.mask_keys) do shape[key] = value end
  shape.seq, shape.seq_kv, shape.batch, shape.scale = layer.extents.q, layer.extents.k, layer.extents.b, layer.scale
  shape.cross = keys.attention == "cross" or nil
  shape.past, shape.more = past > 0 and past or nil, layer.beside[1] ~= nil
  return shape
end

-- The weights as they will be packed, in memory of the host.
local function weights_of(find, layer, cfg)
  local part = layer.part or graph_parts.layer(find.graph, layer)
  part.in_out = true
  local tools, all = find.graph.tools, { in_out = true }
  local needed = find.graph.type_size
  for matrix, of in pairs(part:features(cfg)) do
    if of.tensor and not needed(of.tensor.type, of.integers) then
      error({ message = ("constant %s: numbers of type %s are not read"):format(wording.short(of.tensor.name),
        of.tensor.type) }, 0)
    end
    if of.tensor or not matrix:find "^rope" then all[matrix] = tools.floats(of) end
  end
  local rope = layer.keys.rope and layer.weights.rope_cos == nil and layer.turns
  if rope then
    local cos, sin = {}, {}
    local first = layer.keys.causal_align == "bottom_right" and math.min(0, layer.extents.k - layer.extents.q) or 0
    for place = first, math.max(layer.extents.q, layer.extents.k) - 1 do
      for _, turn in ipairs(layer.turns) do
        local angle = 2 * math.pi * turn * place
        cos[#cos + 1], sin[#sin + 1] = math.cos(angle), math.sin(angle)
      end
    end
    all.rope_cos, all.rope_sin = tools.list(cos), tools.list(sin)
  elseif layer.weights.rope_cos then
    all.rope_cos, all.rope_sin = tools.list(layer.weights.rope_cos), tools.list(layer.weights.rope_sin)
  end
  return all
end

-- ---- both ----

local ROUNDING = 2e-7 -- of weights in float32, and of a score of 1

-- What results may differ by: scores are rounded with weights, and with tables of rope in float32.
local function tolerance(self, scores)
  local places = self.layer.turns and self.layer.extents.k or 0
  return ROUNDING * (4 + scores * (1 + places))
end

-- Those of a layer's conditions that depend on inputs which are no rows and no masks, such as ids: { value, met =,
-- missed = whether it was true or false in a draw }.
local function asked_conditions(find, layer, leaves)
  local known, asked = {}, {}
  for value in pairs(leaves) do known[value] = true end
  for _, mask in ipairs(layer.inputs.masks) do known[mask.value] = true end
  for _, value in ipairs(layer.conditions or {}) do
    local plan, other = evaluate.plan(find.graph, find.elements.shapes, { value }, known), false
    for _, name in ipairs(plan and plan.inputs or {}) do other = other or not known[name] end
    if other then asked[#asked + 1] = { value = value } end
  end
  return asked
end

-- Draws, and compares; returns why they differ, and the largest score.
local function compare(self, number, size)
  local feeds = drawn_numbers.feeds(self, number, size)
  local values, why = evaluate.run(self.plan, self.arrays, feeds, constants.of, true)
  if not values then return why end
  for _, condition in ipairs(self.asked) do
    local at = values[condition.value].at
    local function not_all(x) return self.arrays.difference(at, self.arrays.numbers(#at // 8, x)) > 0 end
    condition.met, condition.missed = condition.met or not_all(0), condition.missed or not_all(1)
  end
  local y = values[self.layer.output].at
  if self.layer.swapped.y then y = arguments.turned(self, y, self.layer.extents.q) end
  local args = arguments.of(self, feeds, values)
  local formula, hidden, scores, largest, more = self.arrays.formula(self.shape, self.weights, args)
  local off = self.arrays.difference(y, formula, unseen.flags(self, hidden, args, values))
  if off > tolerance(self, scores) * largest then
    return ("%s is not what the config says: drawn numbers differ by %.1e of the largest"):format(
      wording.short(self.layer.output), off / largest), scores
  end
  return beside.differs(self, values, more, tolerance(self, scores)), scores
end

local CALM, LOW, HIGH, FARTHEST = 8, 0.5, 60, 1e3

local TOO_LARGE = "it is too large to be evaluated"
local BLUNT = 0.05 -- tolerance with which nothing is told

-- What make returns, or nil and why a config or its weights are refused.
local function tried(make, ...)
  local good, made = pcall(make, ...)
  if good then return made end
  if type(made) ~= "table" then error(made, 0) end
  return nil, made.message or ("%s = %s: %s"):format(made.key, tostring(made.value), made.rule)
end

local function prove(find, layer, whole)
  local plan, why, leaves = plan_of(find, layer)
  if not plan then return why end
  local extents, shapes = layer.extents, find.elements.shapes
  local scores_of = extents.b * extents.h * extents.q * extents.k
  local most = find.graph.tools.most or evaluate.MOST_NUMBERS
  local numbers, products = plan.numbers + (layer.numbers or 0), plan.products + (layer.products or 0)
  local large = numbers > most or products > MOST_PRODUCTS or plan.work > most << 4
  if large or not whole and products > MUCH then return TOO_LARGE, true end
  local past = layer.inputs.past_k and layer.past or 0
  local cfg, weights
  cfg, why = tried(config_of, layer)
  if cfg then weights, why = tried(weights_of, find, layer, cfg) end
  if not weights then return why end
  local self = { find = find, layer = layer, plan = plan, leaves = leaves, shapes = shapes, past = past,
                 arrays = find.graph.tools.arrays, rows = extents.k - past, weights = weights,
                 fixed = unseen.fixed(find, layer), asked = asked_conditions(find, layer, leaves) }
  self.shape = shape_of(layer, cfg, past)
  local size, scores, spent = find.size or 1.0, nil, 0 -- as the layer before had it
  local cost = products + 2 * scores_of * (cfg.dk + cfg.dv)
  for number = 1, drawn_numbers.count do
    why, scores = compare(self, number, size)
    spent = spent + cost
    if number == 1 and not why and (scores < LOW or scores > HIGH) then
      size = math.max(1 / FARTHEST, math.min(FARTHEST, size * (CALM / math.max(scores, 1e-9)) ^ 0.5))
      find.size = size
      why, scores = compare(self, number, size)
    end
    if number == 1 and not why and tolerance(self, scores) > BLUNT then
      why = ("its scores are as large as %.1e, so that roundings hide what it computes"):format(scores)
    end
    if why or spent > ENOUGH and not (layer.conditions and layer.conditions[1]) then break end
  end
  for _, condition in ipairs(self.asked) do
    if not why and not (condition.met and condition.missed) then
      why = ("%s clears weights, and drawn inputs do not change it"):format(wording.short(condition.value))
    end
  end
  for name, memory in pairs(self.weights) do
    if name ~= "in_out" then memory:free() end
  end
  return why
end

M.prove = prove

return M
