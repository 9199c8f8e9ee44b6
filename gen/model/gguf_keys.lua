-- The keys of attention in GGUF files: functions of (fields, number of the block, sizes) to a table, for the rows of
-- gen/model/gguf_families.lua. gen/model/gguf_rope.lua has those of rope.

local family_keys = require "model.family_keys"
local angles = require "model.gguf_rope"
local rope_scaling = require "model.rope"

local M = {}

local always, joined = family_keys.always, family_keys.joined
local rope, slides, sliding = angles.rope, angles.slides, angles.sliding

-- A decoder, unless it is said otherwise.
function M.causal(c) return c:flag("attention.causal", true) and { causal = true } or { kv_len = true } end

-- Without the key llama.cpp takes it for a decoder, and its converter always writes it.
function M.bert(c) return { kv_len = true, causal = c:flag "attention.causal" or nil } end

-- Rows see all others, whatever the file says.
M.both_ways = always { kv_len = true }

-- Keys of blocks that have a tensor.
function M.with(name, of)
  return function(c, i, sizes)
    return c.tensors[("blk.%d.%s"):format(i, name)] and of(c, i, sizes) or {}
  end
end

-- ---- heads ----

-- The width of a head where no key says it: that of the first block.
local function head_width(c, sizes)
  local name = "attention.head_count"
  return sizes.d_model // (c:is_list(name) and math.max(1, c:of_layer(name, 0)) or sizes.h)
end

function M.values(c, _, sizes) return { dv = c:int("attention.value_length", head_width(c, sizes)) } end

-- How many heads of keys a block has; 0 says that it has no attention.
local function heads_of_keys(c, i)
  local queries = c:of_layer("attention.head_count", i)
  return queries > 0 and c:of_layer("attention.head_count_kv", i, queries) or 0
end

function M.has_keys(c, i) return heads_of_keys(c, i) > 0 end

-- Blocks of Nemotron H have attention, a recurrence, or a feed-forward.
function M.has_keys_alone(c, i) return M.has_keys(c, i) and c:of_layer("feed_forward_length", i, 0) == 0 end

-- Blocks of MiniMax 01 that have no recurrence: by a list, or each so many-th.
function M.has_softmax(c, i)
  local name = "attention.recurrent_layers"
  if c:is_list(name) then return c:of_layer(name, i) == 0 end
  return (i + 1) % c:int("full_attention_interval", 8) == 0
end

-- Blocks behind these predict further tokens.
function M.trunk(c, i) return i < c:int "block_count" - c:number("nextn_predict_layers", 0) end

-- ---- norms ----

function M.norm(c) return { qk_norm = "rms", norm_eps = c:positive "attention.layer_norm_rms_epsilon" } end

-- Of all heads at once, and of each with its own gains.
M.whole_norm = joined(M.norm, always { norm_span = "all" })
M.each_norm = joined(M.norm, always { norm_span = "each" })

function M.layer_norm(c)
  return { qk_norm = "layer", norm_span = "each", norm_eps = c:positive "attention.layer_norm_epsilon" }
end

M.fixed_norm = always { qk_norm = "layer", norm_span = "each", norm_eps = 1e-5 }

-- Layer norms, which only the large ones of these models have.
local LARGE = 64
function M.command_r(c) return c:int "block_count" < LARGE and {} or M.layer_norm(c) end

-- A gain of each head, which its norm has for all columns.
M.GAIN_OF_HEADS = { "attn_q_norm.weight", function(list, cfg)
  local all = {}
  for i = 0, cfg.h * cfg.dk - 1 do all[i + 1] = list[i // cfg.dk + 1] end
  return all
end, count = function(cfg) return cfg.h end }

-- ---- further keys ----

-- A scale, but nothing where it is the usual one.
local function scale(value, sizes) return { scale = value ~= sizes.dk ^ -0.5 and value or nil } end

-- The largest of Gemma's models have a scale by the width of their rows.
function M.gemma(largest)
  return function(c, _, sizes)
    local large = c:int "block_count" == largest
    return { scale = large and (sizes.d_model // sizes.h) ^ -0.5 or nil }
  end
end

-- default: of the cap.
function M.softcap(default)
  return function(c) return { softcap = c:positive("attn_logit_softcapping", default) } end
end

-- A scale of 0 is the usual one.
function M.own_scale(c)
  return { scale = c:number("attention.scale", 0) ~= 0 and c:positive "attention.scale" or nil }
end

-- Scores of Grok have a factor, which older files do not say.
function M.grok(c)
  if c:word("rope.scaling.type", "linear") ~= "yarn" and c:has "rope.scaling.yarn_ext_factor" then
    c:fail("rope.scaling.yarn_ext_factor", "makes llama.cpp scale as yarn, whatever rope.scaling.type is")
  end
  return { scale = c:positive("attention.output_scale", 0.08838834764831845) }
end

-- Scales by the width of a head, by the columns that rope turns, and by the width of values.
function M.by_width(_, _, sizes) return scale(1 / sizes.dk, sizes) end
function M.by_columns(c, _, sizes) return scale(c:int("rope.dimension_count", sizes.dk) ^ -0.5, sizes) end
function M.by_values(c, i, sizes) return scale(M.values(c, i, sizes).dv ^ -0.5, sizes) end

-- Rope before norms.
function M.unscaled_half(c, i, sizes)
  local keys = rope "half"(c, i, sizes)
  keys.scaling = rope_scaling.without_factor(keys.scaling)
  return keys
end

-- A switch with another name says whether there is rope.
function M.switched(c, i, sizes)
  local keys = rope "interleaved"(c, i, sizes)
  return c:flag("rope.scaling.finetuned", true) and keys or {}
end

-- A list says which layers have rope.
function M.listed(kind)
  return function(c, i, sizes)
    local keys = rope(kind)(c, i, sizes)
    return (not c:is_list "attention.rope_pattern" or c:of_layer("attention.rope_pattern", i) ~= 0) and keys or {}
  end
end

-- A window without another base of rope: of layers in a list, or of all if there is one.
function M.listed_window(c, i)
  return slides(c, i, {}) and { window_left = c:int "attention.sliding_window" - 1 } or {}
end
function M.window(c)
  local rows = c:number("attention.sliding_window", 0)
  return rows > 0 and { window_left = c:int "attention.sliding_window" - 1 } or {}
end

-- default: of the largest slope.
function M.alibi(default)
  return function(c)
    local bias = c:number("attention.max_alibi_bias", default)
    if bias ~= 8 and bias ~= default then c:fail("attention.max_alibi_bias", "%s; must be 8", bias) end
    return bias == 8 and { alibi = true } or {}
  end
end

-- The smaller Baichuan has rope, the larger one ALiBi, and llama.cpp tells them by their blocks.
function M.baichuan(c, i, sizes)
  local keys, blocks = rope "interleaved"(c, i, sizes), c:int "block_count"
  return blocks == 32 and keys or { alibi = blocks == 40 or nil }
end

-- Windows and layers without rope are those of the largest EXAONE 4.
function M.exaone4(c, i, sizes)
  if c:int "block_count" - c:number("nextn_predict_layers", 0) ~= 64 then return rope "half"(c, i, sizes) end
  return sliding { period = 4, window = 4096, only = true, turned = angles.in_windows }(c, i, sizes)
end

-- A window of this many rows where the file has one of any.
function M.smallthinker(c, i, sizes)
  if c:number("attention.sliding_window", 0) == 0 then return rope "half"(c, i, sizes) end
  return sliding { period = 4, first = true, fixed = 4096, turned = angles.not_first }(c, i, sizes)
end

-- The factor of what attention returns; 0 says that there is none.
function M.value_scale(c)
  local value = c:number("attention.value_scale", 1)
  return value ~= 0 and value or 1
end

-- ---- limits ----

-- Layers with rope see chunks of keys, and scores of the others grow with the place: up to these lengths they are those
-- of any decoder. Norms have no gains, so rope may be behind them or before.
local CHUNK, GROWS = 8192, 8191
function M.llama4(c, i, sizes)
  c:int("attention.sliding_window", CHUNK) -- which llama.cpp does not take
  local has, turned, keys = slides(c, i, { period = 4 }), (i + 1) % 4 ~= 0, rope "interleaved"(c, i, sizes)
  local base, norms = c:positive("rope.freq_base_swa", keys.rope_theta), M.norm(c)
  if has then keys.rope_theta = base end
  if not turned then keys = {} end
  if has and c:word("rope.scaling.type", "linear") == "none" and c:number("rope.scaling.factor", 1) ~= 1 then
    c:fail("rope.scaling.factor", "must be 1 with rope.scaling.type none: llama.cpp takes it in layers with chunks")
  end
  if turned and c:number("expert_count", 0) ~= 128 then
    keys.scaling = rope_scaling.without_factor(keys.scaling)
    for key, value in pairs(norms) do keys[key] = value end
  end
  if has then keys.limit = { CHUNK, "attention.sliding_window", "layers see chunks of so many keys" } end
  if not turned then keys.limit = { GROWS, "attention.scale", "the scale of this layer changes from there on" } end
  return keys
end

-- The scale grows with the place behind the length of the training.
function M.mistral3(c, i, sizes)
  local keys = rope("interleaved", { fast = 32, weight = true })(c, i, sizes)
  if c:number("attention.temperature_scale", 0) ~= 0 then
    keys.limit = { c:int("rope.scaling.original_context_length", c:int "context_length"),
                   "attention.temperature_scale", "the scale changes behind the length of the training" }
  end
  return keys
end

-- Values have a norm, so they are the caller's, as in gen/model/family_keys.lua. Layers from `own` on take keys and
-- values of others.
local function own_values(i, own, name)
  local keys = { attention = "cross", causal = true, project = "qko", scale = 1 }
  if i >= own then keys.limit = { 0, name, "this layer takes keys and values of another" } end
  return keys
end

function M.gemma3n(_, i) return own_values(i, 20, "attention.shared_kv_layers") end

local WINDOWS = { base = 10000, scaled = angles.factor_alone }

function M.gemma4_whole(c, i) return not slides(c, i, WINDOWS) end

-- Heads of layers with a window have other widths.
function M.gemma4(c, i, sizes)
  local own = c:int "block_count" - c:number("attention.shared_kv_layers", 0)
  local narrow, narrow_values = c:int "attention.key_length_swa", c:int "attention.value_length_swa"
  local narrow_columns = c:int("rope.dimension_count_swa", c:int("rope.dimension_count", sizes.dk))
  local keys = joined(sliding(WINDOWS), M.norm, function()
    return own_values(i, own, "attention.shared_kv_layers")
  end)(c, i, sizes)
  if slides(c, i, WINDOWS) then
    keys.dk, keys.dv, keys.rope_dims = narrow, narrow_values, narrow_columns
  end
  return keys
end

return M
