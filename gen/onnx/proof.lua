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
-- Numbers are drawn several times. First the rows have about the same size. Then some are tiny, and some so large that
-- scores are in the thousands; few keys are hidden, or many. What both compute must be equal but for roundings of
-- weights to float32. A query that sees no key is not compared, for graphs have many results for it: but where the
-- masks are constants of the graph, which hide all keys in each run.

local config = require "options.config"
local constants = require "onnx.constants"
local evaluate = require "onnx.evaluate"
local graph_parts = require "onnx.parts"
local indices = require "onnx.indices"
local model_layers = require "model.layers"
local wording = require "base.wording"

local M = {}

local count_of = indices.count

-- ---- limits ----

local MOST_NUMBERS = 1 << 28 -- at a time
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
  for value in pairs(leaves) do without[value] = true end
  for _, mask in ipairs(layer.inputs.masks) do outputs[#outputs + 1], without[mask.value] = mask.value, true end
  for _, name in ipairs { "q", "k", "v", "past_k", "past_v", "kv_len" } do -- where they are constants
    outputs[#outputs + 1] = graph.tensors[layer.inputs[name] or ""] and layer.inputs[name]
  end
  for value in pairs(layer.given_values or {}) do without[value] = true end
  local drawn, why = evaluate.plan(graph, shapes, outputs, without)
  if not layer.inputs.masks[1] or layer.given_values then return drawn, why, leaves end
  local whole = evaluate.plan(graph, shapes, outputs, leaves)
  local near = whole and whole.numbers <= MOST_NUMBERS and (not drawn or
    #whole.nodes <= #drawn.nodes + NEARBY and whole.products <= drawn.products)
  if near then
    return whole, nil, leaves
  end
  return drawn, why, leaves
end

-- ---- drawn numbers ----

-- Sizes of rows, beside that of the others; whether few keys are hidden.
local draws = {
  { by = { 1 }, few = true },
  { by = { 1, 0.03, 20, 1, 1e-3, 1, 3 }, few = false },
  { by = { 20, 1e-3, 1, 1, 3, 0.03 }, few = true },
  { by = { 30 }, few = false },
}

local function choice(...) return { n = select("#", ...), ... } end

local HIDDEN = -math.huge
local flags = { [true] = choice(0, 1, 1, 1), [false] = choice(0, 0, 1) }
local added = { [true] = choice(0, 0, nil, HIDDEN, nil, 0), [false] = choice(HIDDEN, HIDDEN, nil) }
local parts = { [true] = choice(0, 1, 1, 1, nil), [false] = choice(0, 0, 1) }
local function scaled(list, by)
  local all = {}
  for i, x in ipairs(list) do all[i] = x * by end
  return all
end

local SPARSE = 8 -- one of so many numbers of a wide row is drawn, for products by zeros cost nothing

local function kind_of(graph, name)
  local of = graph.values[name]
  return of and of.type or "F32"
end

local function feed_of(self, name, draw, size, seed)
  local arrays, shape, keys = self.arrays, self.shapes[name], self.layer.extents.k
  local count, letter = count_of(shape), self.leaves[name]
  if name == self.layer.inputs.kv_len then return arrays.chosen(seed, count, choice(keys, 1, keys // 2 + 1)) end
  if letter then
    local width = math.max(1, shape[#shape] or 1)
    local every = width >= 64 and SPARSE or 1
    return arrays.drawn(seed, count // width, width, every, scaled(draw.by, size * every ^ 0.5))
  end
  for _, mask in ipairs(self.layer.inputs.masks) do
    if mask.value == name then return arrays.chosen(seed, count, (mask.kind == "bool" and flags or added)[draw.few]) end
  end
  local fed = (self.layer.given_values or {})[name]
  if fed then return arrays.numbers(count, fed) end
  local given, list = self.find.elements.given, {}
  for i = 1, given and given(name, 0) and count or 0 do list[i] = given(name, i - 1) end
  if list[1] then return arrays.numbers(list) end
  if kind_of(self.find.graph, name):find "F%d" then return arrays.chosen(seed, count, parts[draw.few]) end
  if #shape > 1 or kind_of(self.find.graph, name):find "^bool" then
    return arrays.chosen(seed, count, flags[draw.few])
  end
  return arrays.chosen(seed, count, choice(keys, 1, keys // 2 + 1))
end

-- The name and the drawn numbers of each input.
local function feeds_of(self, draw, size, number)
  local feeds = {}
  for i, name in ipairs(self.plan.inputs) do
    if not self.shapes[name] then error(("the axes of %s are not known"):format(wording.short(name)), 0) end
    local integer = name == self.layer.inputs.kv_len
      or not self.leaves[name] and not kind_of(self.find.graph, name):find "F%d"
    feeds[name] = { at = feed_of(self, name, draw, size, number * 64 + i), integer = integer }
  end
  return feeds
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
                         "norm_eps", "rope", "rope_dims", "sink", "kv_len" } do
    shape[key] = keys[key]
  end
  for key, value in pairs(layer.mask_keys) do shape[key] = value end
  shape.seq, shape.seq_kv, shape.batch, shape.scale = layer.extents.q, layer.extents.k, layer.extents.b, layer.scale
  shape.cross = keys.attention == "cross" or nil
  shape.past = past > 0 and past or nil
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

-- Rows that lie as [rows][batch] in the order of a kernel, or the other way round.
local function turned(self, at, rows)
  local arrays, batch = self.arrays, self.layer.extents.b
  local width = #at // 8 // (rows * batch)
  local to = arrays.numbers(rows * batch * width, 0)
  arrays.copy({ batch, rows, width }, to, 0, { rows * width, width, 1 }, at, 0, { width, batch * width, 1 })
  return to
end

-- Numbers of a mask for each place of some axes. Its own axes lie in the order of their letters; where the graph has
-- them otherwise, each is looked up.
local function spread(self, mask, at, dims, shape)
  local extents, arrays, steps, step = self.layer.extents, self.arrays, {}, 1
  local count, whole, own = #at // 8, 1, {}
  for letter in mask.axes:gmatch "." do whole = whole * extents[letter] end
  for i = #mask.axes, 1, -1 do
    local letter = mask.axes:sub(i, i)
    local size = letter == "k" and count < whole and 1 or extents[letter] -- which may be the same for all keys
    steps[letter], step = size > 1 and step or 0, step * size
  end
  for i = 1, #dims do own[i] = steps[dims:sub(i, i)] or 0 end
  if step == count then
    local to = arrays.numbers(count_of(shape), 0)
    arrays.copy(shape, to, 0, indices.steps_of(shape), at, 0, own)
    return to
  end
  local list, all = {}, indices.steps_of(shape)
  for i = 0, count_of(shape) - 1 do
    local place = { b = 0, h = 0, q = 0, k = 0 }
    for a = 1, #dims do place[dims:sub(a, a)] = i // all[a] % shape[a] end
    list[i + 1] = mask.at(place.b, place.h, place.q, place.k)
  end
  return arrays.taken(at, 1, count, 1, arrays.numbers(list))
end

-- The masks as one, with the axes of the config's.
local function mask_of(self, values)
  local layer, arrays = self.layer, self.arrays
  local dims, total, shape, none = layer.mask_keys.mask_dims, nil, {}, {}
  for i = 1, #dims do shape[i], none[i] = layer.extents[dims:sub(i, i)], 0 end
  local steps = indices.steps_of(shape)
  for _, mask in ipairs(layer.inputs.masks) do
    local flat = spread(self, mask, values[mask.value].at, dims, shape)
    if mask.kind == "bool" then
      flat = arrays.applied(mask.hidden and "not" or "nonzero", shape, flat, steps)
      if layer.mask_keys.mask == "add" then
        local seen, unseen = arrays.numbers(1, 0.0), arrays.numbers(1, HIDDEN)
        flat = arrays.applied("where", shape, flat, steps, seen, none, unseen, none)
      end
    end
    total = total and arrays.applied("add", shape, total, steps, flat, steps) or flat
  end
  return total
end

-- Keys and values that are one value.
local function halves(arrays, at)
  local count = #at // 16
  local function half(first)
    local to = arrays.numbers(count, 0)
    arrays.copy({ count }, to, 0, { 1 }, at, first, { 1 })
    return to
  end
  return half(0), half(count)
end

local function arguments_of(self, feeds, values)
  local layer, arrays, args = self.layer, self.arrays, {}
  local inputs, extents = layer.inputs, layer.extents
  local function array(letter)
    local name = inputs[letter]
    local at = name and (feeds[name] and feeds[name].at or values[name] and values[name].at)
    if at and layer.swapped[letter] then at = turned(self, at, letter == "q" and extents.q or self.rows) end
    return at
  end
  args.q, args.k, args.v, args.kv_len = array "q", array "k", array "v", array "kv_len"
  if self.past > 0 then -- rows of this run, behind those of earlier ones
    for _, letter in ipairs { "k", "v" } do
      local from = args[letter] or args.q
      local entries = extents.b * (layer.by_head and layer.by_head[letter] or 1) -- that rows follow each other in
      local width = #from // 8 // (entries * self.rows)
      local to = arrays.numbers(entries * extents.k * width, 0)
      arrays.copy({ entries, self.rows, width }, to, self.past * width, { extents.k * width, width, 1 }, from, 0,
                  { self.rows * width, width, 1 })
      args[letter] = to
    end
    args.past_k, args.past_v = array "past_k", array "past_v"
    if inputs.past_k == inputs.past_v then args.past_k, args.past_v = halves(arrays, args.past_k) end
  end
  if layer.mask_keys.mask then args.mask = mask_of(self, values) end
  return args
end

-- ---- both ----

local ROUNDING = 2e-7 -- of weights in float32, and of a score of 1

-- What results may differ by: scores are rounded with weights, and with tables of rope in float32.
local function tolerance(self, scores)
  local places = self.layer.turns and self.layer.extents.k or 0
  return ROUNDING * (4 + scores * (1 + places))
end

-- Whether the same keys are hidden in each run, by masks that depend on no input.
local function hides_always(find, layer)
  for _, mask in ipairs(layer.inputs.masks) do
    local plan = evaluate.plan(find.graph, find.elements.shapes, { mask.value }, {})
    if not plan or plan.inputs[1] then return false end
  end
  return layer.inputs.masks[1] ~= nil and not layer.inputs.kv_len
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
  local feeds = feeds_of(self, draws[number], size, number)
  local values, why = evaluate.run(self.plan, self.arrays, feeds, constants.of, true)
  if not values then return why end
  for _, condition in ipairs(self.asked) do
    local at = values[condition.value].at
    local function not_all(x) return self.arrays.difference(at, self.arrays.numbers(#at // 8, x)) > 0 end
    condition.met, condition.missed = condition.met or not_all(0), condition.missed or not_all(1)
  end
  local y = values[self.layer.output].at
  if self.layer.swapped.y then y = turned(self, y, self.layer.extents.q) end
  local args = arguments_of(self, feeds, values)
  local formula, hidden, scores, largest = self.arrays.formula(self.shape, self.weights, args)
  local off = self.arrays.difference(y, formula, not self.hides_always and hidden or nil)
  if off > tolerance(self, scores) * largest then
    return ("%s is not what the config says: drawn numbers differ by %.1e of the largest"):format(
      wording.short(self.layer.output), off / largest), scores
  end
  return nil, scores
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
  local most = find.graph.tools.most or MOST_NUMBERS
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
                 hides_always = hides_always(find, layer), asked = asked_conditions(find, layer, leaves) }
  self.shape = shape_of(layer, cfg, past)
  local size, scores, spent = find.size or 1.0, nil, 0 -- as the layer before had it
  local cost = products + 2 * scores_of * (cfg.dk + cfg.dv)
  for number = 1, #draws do
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
