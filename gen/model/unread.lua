-- Parts of a model that no reader uses: fields with names about attention, and tensors of its layers. Harmless ones are
-- listed below, and in the rows of gen/model/families.lua.
--
--   model                                the result of weights.open_model
--   all                                  the layers to write, with the parts of their weights
--   ignored                              names of fields and tensors that the user ignores
--   M.refuse(model, all, ignored)        an error that names all others

local quantized = require "model.quantized"
local wording = require "base.wording"

local M = {}

-- Names speak of attention by these.
local SPEAKS = {
  "attention", "attn", "head", "rope", "rotary", "position", "pos_emb", "alibi", "theta", "freq_base",
  "causal", "directional", "mask", "window", "norm", "scal", "softcap", "capping", "%f[%a]caps?%f[%A]",
  "clamp", "clip", "qk", "kq", "kv", "sink", "prefix_lm",
  "^transform_config$", "^linear_class$", "^pseudoquantization$", -- what quantized models do to plain weights, too
}

-- Names of what changes no attention, or not in a way that tensors do not tell; and values that do not.
local HARMLESS = {
  "drop", "^output_", "attn_impl", "flash_att", "eps$", "epsilon$", "^attention_bias$", "^qkv_bias$",
  "^max_.*position", "^n_positions$", "_token_id$",
}
local HARMLESS_VALUES = "position_embedding_type=absolute partial_rotary_factor=1"

-- The same of a whole model, where any field may matter: what is of training, of other programs, or of what is made of
-- the last rows.
local HARMLESS_TO_WHOLE = {
  "^architectures$", "dtype$", "^transformers_version$", "^initializer_", "^id2label$", "^label2id$", "^problem_type$",
  "^model_type$", "^use_cache$", "^_", "^classifier_", "^tokenizer_class$", "^return_dict$", "^finetuning_task$",
  "^task_specific_params$", "^chunk_size_feed_forward$", "^gradient_checkpointing$", "^tie_", "^summary_",
  "^num_labels$", "^torchscript$", "^model_max_length$", "^pooler_", "^name$", "^language$", "^sentence_transformers$",
  "^sbert_ce_",
  "^projection_", "^max_length$", "^min_length$", "^num_beam", "^num_return_sequences$", "_penalty$", "_ngram_size$",
  "^temperature$", "^top_[kp]$", "^typical_p$",
}

-- false says that there is nothing of its name, but for these, which models have by default.
local BY_DEFAULT = { "causal", "rope", "rotary", "position", "scale", "mask", "window" }

local function finds(patterns, name)
  for _, pattern in ipairs(patterns) do
    if name:find(pattern) then return true end
  end
  return false
end

local function is_off(name, value)
  if type(value) == "table" then return next(value) == nil end
  return value == false and not finds(BY_DEFAULT, name)
end

-- "name name=value" -> { name: true or the text of the value }
local function known_of(text)
  local known = {}
  for word in text:gmatch "%S+" do
    local name, value = word:match "^(.-)=(.*)$"
    known[name or word] = value or true
  end
  return known
end

local OF_QUANTIZED = known_of(quantized.harmless)

-- Whether a field may matter that nobody reads. A field with a known value matters with any other. integers: some
-- weights of attention are quantized. whole: whether names speak of more than attention.
local function matters(known, integers, whole)
  return function(name, value, fields)
    local of_quantized = fields.within:find "^quantization_config%." ~= nil
    local meant = of_quantized and OF_QUANTIZED[name] or known[name] or known[fields:full(name)]
    if meant == true then return false end
    if meant then return tostring(value) ~= meant and tonumber(meant) ~= value end
    if is_off(name, value) then return false end
    return fields.within:find "rope" ~= nil or of_quantized and integers
      or (whole and not finds(HARMLESS_TO_WHOLE, name) or finds(SPEAKS, name)) and not finds(HARMLESS, name)
  end
end

-- What stands behind the name of a layer's attention in the name of a tensor; nil if it is of no layer.
local function behind(layers, full)
  for dot in full:gmatch "()%." do
    if layers[full:sub(1, dot)] then return full:sub(dot + 1) end
  end
end

-- The names of tensors that are read.
local function read_of(model, all)
  local read = {}
  for name in pairs(model.read or {}) do read[name] = true end
  for _, layer in ipairs(all) do
    for _, part in pairs(layer.weights) do read[part.name] = true end
    for _, name in ipairs(layer.stack.frequencies or {}) do read[name] = true end
  end
  return read
end

-- Tensors that nobody reads: { name =, full =, why = }, of layers the first with each name. row: of
-- gen/model/families.lua. why: what leaves them out, or nil.
local function tensors_of(model, all, row)
  local layers, read, found, seen, why = {}, read_of(model, all), {}, {}, {}
  for _, layer in ipairs(all) do
    layers[layer.at] = true
    for name, reason in pairs(layer.without) do why[name] = reason end
  end
  for full in pairs(model.tensors) do
    local name = not read[full] and behind(layers, full)
    local own = name and name:find(row.own or "") or row.shared and full:find(row.shared)
    name = name or full
    if own and not read[full] and not seen[name] and not finds(row.beside or {}, name) then
      found[#found + 1], seen[name] = { name = name, full = full, why = why[full] }, true
    end
  end
  return found
end

local BUFFERS_OF_WHOLE = { "position_ids$", "token_type_ids$" } -- numbers that count from 0, and zeros

-- Tensors of a whole model that nobody reads. A second list has the modules that are left out, and tensors of others.
local function tensors_of_whole(model, all)
  local read, found, without, seen, in_use = read_of(model, all), {}, {}, {}, {}
  for module in pairs(model.apart or {}) do without[#without + 1] = module end
  local prefix = all[1].prefix
  local function name_of(full) return full:sub(1, #prefix) == prefix and full:sub(#prefix + 1) or full end
  for full in pairs(read) do in_use[name_of(full):match "^[^.]*"] = true end
  for full in pairs(model.tensors) do
    local name = name_of(full)
    local module = name:match "^[^.]*"
    if in_use[module] then module = name end
    if read[full] or finds(BUFFERS_OF_WHOLE, name) then -- nothing to say
    elseif not finds(model.whole.left_out, name) then
      found[#found + 1] = { name = name, full = full }
    elseif not seen[module] then
      without[#without + 1], seen[module] = module, true
    end
  end
  table.sort(found, function(a, b) return a.name < b.name end)
  table.sort(without)
  return found, without
end

-- Whether some weights of the layers are of a quantization_config.
local function has_integers(model, all)
  if not model.fields:object "quantization_config" then return false end
  for _, layer in ipairs(all) do
    for _, part in pairs(layer.weights) do
      if part.integers then return true end
    end
  end
  return false
end

local MOST = 6 -- names in a message

function M.refuse(model, all, ignored)
  local left, names, row = {}, {}, model.row or {}
  local known = known_of(("%s %s %s"):format(HARMLESS_VALUES, row.harmless or "",
    model.whole and model.whole.harmless or ""))
  for _, name in ipairs(ignored) do left[name] = true end
  local function add(name, full, text)
    if left[name] ~= nil or left[full] ~= nil then
      left[left[name] ~= nil and name or full] = false
    else
      names[#names + 1] = text
    end
  end
  local may_matter = model.fields and matters(known, has_integers(model, all), model.whole)
  for _, field in ipairs(model.fields and model.fields:unread(may_matter) or {}) do
    add(field.name, field.name, type(field.value) == "table" and field.name
      or ("%s = %s"):format(wording.short(field.name), wording.short(field.value)))
  end
  local tensors = {}
  if model.whole and model.fields then tensors, model.without = tensors_of_whole(model, all)
  elseif model.fields then tensors = tensors_of(model, all, row) end
  for _, tensor in ipairs(tensors) do
    add(tensor.name, tensor.full, "tensor " .. wording.short(tensor.name) ..
      (tensor.why and (" (%s)"):format(tensor.why) or ""))
  end
  for name, unused in pairs(left) do
    if unused then
      error({ message = ("--ignore %s: nothing of this name is refused"):format(wording.short(name)) }, 0)
    end
  end
  if #names == 0 then return end
  local more = #names > MOST and (" and %d more"):format(#names - MOST) or ""
  error({ message = ("%s: %s%s: may change %s, and is not read; --ignore NAME takes %s without it"):format(
    model.path, table.concat(names, ", ", 1, math.min(#names, MOST)), more,
    model.whole and "the model" or "attention", model.whole and "it" or "the layers") }, 0)
end

return M
