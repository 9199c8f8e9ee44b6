-- The keys of attention in models of transformers: functions of (fields, number of the layer, sizes) to a table, for
-- the rows of gen/model/families.lua.
--
--   scaling   of (rope_theta, pairs) to what model.rope makes of them
--   limit     { places, field, why }: longer texts are refused, for the model computes them otherwise

local angles = require "model.rope"
local fields = require "model.fields"
local wording = require "base.wording"

local M = {}

function M.always(keys) return function() return keys end end

local always = M.always

-- The keys with those of further functions.
function M.joined(...)
  local functions = { ... }
  return function(c, i, sizes)
    local all = {}
    for _, of in ipairs(functions) do
      for key, value in pairs(of(c, i, sizes)) do all[key] = value end
    end
    return all
  end
end

M.PADDED, M.CROSS = always { kv_len = true }, always { attention = "cross" }
M.CAUSAL_ALWAYS = always { causal = true }

-- Decoders see all keys, as encoders of texts do, if their configs say so.
local function is_causal(c) return c:flag("is_causal", true) end
function M.CAUSAL_ONLY(c)
  c:only("is_causal", true)
  return { causal = true }
end
function M.CAUSAL(c) return is_causal(c) and { causal = true } or { kv_len = true } end

-- Rope, whose fields transformers 5 has in rope_parameters, perhaps by kinds of layers, and older versions elsewhere.
--
--   kind          of rope
--   theta         the default; none if versions differ
--   theta_of      older names of rope_theta
--   layers        the kind of layers whose parameters these are, where there are two
--   scaled        false where rope_scaling is not for these layers
--   part          the default of the part of the columns of a head that is turned, which is all without it
--   part_of       older names of partial_rotary_factor
local function turned(c, sizes, r)
  local all = c:object "rope_parameters"
  local new = all
  if all and r.layers then new = all:object(r.layers) end
  local function number(name, older, default)
    local places = new and { { new, name } } or {}
    for _, old in ipairs(older) do places[#places + 1] = { c, old } end
    return fields.agreed(places, default)
  end
  local keys = { rope = r.kind, rope_theta = number("rope_theta", r.theta_of or { "rope_theta" }, r.theta) }
  if r.part then
    local names = r.part_of or { "partial_rotary_factor" }
    local part = number("partial_rotary_factor", names, r.part)
    if part > 1 then c:fail(names[1], "must be at most 1") end
    keys.rope_dims = math.floor(part * sizes.dk)
  end
  local scaling = new or not all and r.scaled ~= false and c:object "rope_scaling"
  keys.scaling = scaling and function(theta, pairs) return angles.of(scaling, c, theta, pairs) end or nil
  return keys
end
M.turned = turned

-- more: what else turned takes.
function M.rope(kind, more)
  local r = { kind = kind, theta = 10000 }
  for key, value in pairs(more or {}) do r[key] = value end
  return function(c, _, sizes) return turned(c, sizes, r) end
end

-- The kind of a layer, by the list layer_types, or without a list by `whole`.
local function kind_of(c, i, whole)
  local types = c:list "layer_types"
  local kind = types and types[i + 1] or whole and "full_attention" or "sliding_attention"
  if types and types[i + 1] == nil then c:fail("layer_types", "has no element %d", i + 1) end
  if kind ~= "sliding_attention" and kind ~= "full_attention" then
    c:fail("layer_types", "%s is not known", wording.short(kind))
  end
  return kind
end
M.kind_of = kind_of

-- The window of a layer that has one.
local function slid(c)
  if not c:has "sliding_window" then return {} end
  local rows = c:int "sliding_window" -- with the row itself, but not where rows behind it are seen too
  return is_causal(c) and { window_left = rows - 1 } or { window_left = rows, window_right = rows }
end

-- A window where the layer has one, by layer_types or slides(number, fields).
function M.window(slides)
  return function(c, i)
    local kind, has = kind_of(c, i, not slides(i, c)), c:has "sliding_window" -- known in layers without one, too
    return has and kind == "sliding_attention" and slid(c) or {}
  end
end

-- A window in all layers, whatever layer_types says: models of some types never read it.
M.windows = slid

-- The same if it is switched on.
function M.switched(c)
  local has, on = c:has "sliding_window", c:flag("use_sliding_window", false)
  return has and on and slid(c) or {}
end

-- transformers takes a mistral with layer_types for a ministral, which reads them, but not one that is a part.
function M.mistral(c, i)
  if c.within ~= "" then return slid(c) end
  return M.window(function() return true end)(c, i)
end

-- Windows in all layers but each so many-th.
function M.whole_each(n)
  return function(i) return (i + 1) % n ~= 0 end
end
function M.even(i) return i % 2 == 0 end
function M.qwen(i, c)
  return c:flag("use_sliding_window", false) and i >= c:number("max_window_layers", 28)
end

-- Where every other of the first layers has a window.
function M.qwen_moe(i, c)
  return c:flag("use_sliding_window", false) and i % 2 == 0 and i < c:number("max_window_layers", 28)
end

function M.rms(c) return { qk_norm = "rms", norm_eps = c:positive("rms_norm_eps", 1e-6) } end

function M.scalar(c) return { scale = c:positive("query_pre_attn_scalar", 256) ^ -0.5 } end

function M.modernbert(c, i, sizes)
  local kind = kind_of(c, i, i % c:int("global_attn_every_n_layers", 3) == 0)
  local whole = kind == "full_attention"
  local keys = turned(c, sizes, { kind = "half", layers = kind, scaled = false, theta = whole and 160000 or nil,
                                  theta_of = { whole and "global_rope_theta" or "local_rope_theta" } })
  local half = c:int("local_attention", 128) // 2
  keys.kv_len, keys.window_left, keys.window_right = true, not whole and half or nil, not whole and half or nil
  return keys
end

-- Whether a layer has rope: by a list, or but for every fourth layer.
local function has_rope(c, i)
  local list, every = c:list "no_rope_layers", c:int("no_rope_layer_interval", 4)
  if not list or #list == 0 then return (i + 1) % every ~= 0 end
  local value = list[i + 1]
  if value ~= 0 and value ~= 1 then c:fail("no_rope_layers", "element %d must be 0 or 1", i + 1) end
  return value == 1
end

-- Rope where a layer has it. more: what else turned takes.
function M.some_rope(kind, more)
  local rope = M.rope(kind, more)
  return function(c, i, sizes)
    local keys = rope(c, i, sizes)
    return has_rope(c, i) and keys or {}
  end
end

-- The same of Llama 4. A factor of its tables is nothing where norms follow.
function M.llama4_rope(c, i, sizes)
  local keys = M.some_rope("interleaved", { theta = 5e5 })(c, i, sizes)
  if c:flag("use_qk_norm", true) then keys.scaling = angles.without_factor(keys.scaling) end
  return keys
end

-- A window where a layer has no rope.
function M.without_rope(i, c) return c:flag("use_sliding_window", false) and not has_rope(c, i) end

-- Queries without rope grow from the place floor_scale on, and others see their chunk of keys only: up to these lengths
-- they are those of any decoder. Norms have no gains, so rope may be behind them or before.
function M.llama4(c, i)
  local with_rope, norms = has_rope(c, i), c:flag("use_qk_norm", true)
  local chunk, grows = c:int("attention_chunk_size", false), c:switch("attn_temperature_tuning", true)
  local floor, kind = c:int("floor_scale", 8192), c:list "layer_types"
  kind = kind and kind[i + 1] or with_rope and "chunked_attention" or "full_attention"
  if kind ~= "chunked_attention" and kind ~= "full_attention" then
    c:fail("layer_types", "%s is not known", wording.short(kind))
  end
  local keys = with_rope and norms and M.rms(c) or {}
  if kind == "chunked_attention" then c:only("is_causal", true) end -- which masks of chunks do not read
  if kind == "chunked_attention" and chunk then
    keys.limit = { chunk, "attention_chunk_size", "layers see chunks of so many keys" }
  end
  if not with_rope and grows and (not keys.limit or floor - 1 < keys.limit[1]) then
    keys.limit = { floor - 1, "floor_scale", "the scale of this layer changes from there on" }
  end
  return keys
end

-- The scale grows with the place behind the length of the training.
function M.ministral3(c, i, sizes)
  local keys = turned(c, sizes, { kind = "half", theta = 1e6 })
  local rope = c:object "rope_parameters"
  if rope and rope:number("llama_4_scaling_beta", 0) ~= 0 then
    local most = rope:int "original_max_position_embeddings"
    keys.limit = { most, "original_max_position_embeddings", "the scale changes behind it" }
  end
  return keys
end

function M.granite(c) return { scale = c:positive("attention_multiplier", 1) } end

-- Both kinds of layers have the same base, and one has the scaling.
function M.olmo3(c, i, sizes)
  local whole = kind_of(c, i, (i + 1) % 4 == 0) == "full_attention"
  return turned(c, sizes, { kind = "half", theta = 5e5, layers = whole and "full_attention" or "sliding_attention",
                            scaled = whole })
end

-- Scores are cosines, and each head has a scale, which is made of logit_scale (gen/model/families.lua).
function M.swinv2() return { scale = 1, qk_norm = "l2", norm_span = "each", norm_eps = 1e-12 } end

function M.gpt2(c, i, sizes)
  local scale = c:flag("scale_attn_weights", true) and sizes.dk ^ -0.5 or 1
  if c:flag("scale_attn_by_inverse_layer_idx", false) then scale = scale / (i + 1) end
  return { scale = scale ~= sizes.dk ^ -0.5 and scale or nil }
end

function M.gptj(c, _, sizes)
  return { rope = "interleaved", rope_dims = c:int("rotary_dim", sizes.dk) }
end

function M.mpt(c)
  local attention = c:object "attn_config"
  return { alibi = true, scale = attention and attention:positive("softmax_scale", false) or nil }
end

function M.falcon(c, _, sizes)
  local new = c:flag("new_decoder_architecture", false)
  return { h_kv = new and c:int("num_kv_heads", sizes.h) or c:flag("multi_query", true) and 1 or sizes.h }
end

-- With use_bidirectional_attention half of the window is before a row, and half behind it.
function M.gemma3(c, i, sizes)
  local pattern = c:int("sliding_window_pattern", 6)
  local kind = kind_of(c, i, (i + 1) % pattern == 0)
  local slides = kind == "sliding_attention"
  local keys = turned(c, sizes, { kind = "half", layers = kind, scaled = not slides, theta = slides and 10000 or 1e6,
                                  theta_of = { slides and "rope_local_base_freq" or "rope_theta" } })
  local both = c:flag("use_bidirectional_attention", false)
  local rows = c:has "sliding_window" and slides and c:int "sliding_window"
  keys[both and "kv_len" or "causal"] = true
  keys.window_left = rows and (both and rows // 2 or rows - 1) or nil
  keys.window_right = rows and both and rows // 2 or nil
  return keys
end

-- Values have a norm, so they are the caller's: projected by v_proj, each head divided by its root mean square. The
-- last layers take keys and values of others.
local function own_values(c, i)
  c:only("is_causal", true)
  local keys = { attention = "cross", causal = true, project = "qko", scale = 1 }
  if i >= c:int "num_hidden_layers" - c:number("num_kv_shared_layers", 0) then
    keys.limit = { 0, "num_kv_shared_layers", "this layer takes keys and values of another" }
  end
  return keys
end

function M.gemma3n(c, i, sizes)
  local kind = kind_of(c, i, (i + 1) % 5 == 0)
  local whole = kind == "full_attention"
  return M.joined(own_values, function()
    return turned(c, sizes, { kind = "half", layers = kind, scaled = whole, theta = whole and 1e6 or 10000,
                              theta_of = { whole and "rope_theta" or "rope_local_base_freq" } })
  end)(c, i)
end

-- The width of a head and how many there are of keys, in a layer that sees all keys: of per_layer_config, or of the
-- fields of older configs. h_kv: how many these are without a field, or nil where attention_k_eq_v decides.
function M.whole_sizes(c, i, sizes, h_kv)
  local all = c:object "per_layer_config"
  local own
  for digits = 1, 3 do own = own or all and all:object(("%0" .. digits .. "d"):format(i)) end
  if own then return own:int("head_dim", sizes.dk), own:int("num_key_value_heads", sizes.h_kv) end
  if all then return sizes.dk, sizes.h_kv end
  local own_h_kv = h_kv or c:flag("attention_k_eq_v", false)
  return c:int("global_head_dim", 512),
    own_h_kv and c:int("num_global_key_value_heads", h_kv or sizes.h_kv) or sizes.h_kv
end

local function is_last(i, c) return i == c:int "num_hidden_layers" - 1 end

function M.gemma4_slides(i, c) return (i + 1) % 6 ~= 0 and not is_last(i, c) end

function M.gemma4(c, i, sizes)
  local kind = kind_of(c, i, not M.gemma4_slides(i, c))
  if is_last(i, c) and kind ~= "full_attention" then c:fail("layer_types", "the last must be full_attention") end
  local whole, dk, h_kv = kind == "full_attention", sizes.dk, sizes.h_kv
  if whole then dk, h_kv = M.whole_sizes(c, i, sizes) end
  if c:word("use_bidirectional_attention", "vision") ~= "vision" then
    c:fail("use_bidirectional_attention", "is not supported")
  end
  return M.joined(own_values, function()
    return turned(c, { dk = dk }, { kind = "half", layers = kind, theta = whole and 1e6 or 10000, theta_of = {} })
  end, always { dk = dk, h_kv = h_kv })(c, i)
end

function M.softcapped(c) return { softcap = c:positive("attn_logit_softcapping", false) or nil } end

function M.cohere(c)
  if not c:flag("use_qk_norm", false) then return {} end
  return { qk_norm = "layer", norm_span = "each", norm_eps = c:positive("layer_norm_eps", 1e-5) }
end

M.BIAS = always { mask = "add", mask_dims = "hqk" } -- which depends on the distance, and is the caller's

-- Heads of the channels of Perceiver's config, or of so many.
local function channels(c, sizes, default)
  local all = c:int("qk_channels", default)
  return { dk = all // sizes.h, dv = c:int("v_channels", all) // sizes.h }
end

function M.perceiver(c, _, sizes) return channels(c, sizes, sizes.d_model) end

function M.perceiver_inputs(c, _, sizes)
  local width = c:int "d_model"
  local as_keys = c:word("cross_attention_shape_for_attention", "kv") == "kv"
  local keys = channels(c, sizes, as_keys and width or sizes.d_model)
  keys.attention, keys.kv_len, keys.k_width, keys.v_width = "cross", true, width, width
  return keys
end

return M
