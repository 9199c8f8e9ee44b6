-- The keys of attention in the decoders and encoders of texts of gen/model/families_texts.lua, as
-- gen/model/family_keys.lua has them for others.

local k = require "model.family_keys"
local wording = require "base.wording"

local M = {}

local always, joined = k.always, k.joined

-- An element of a list of layers, or `default` without one.
local function element(c, name, i, default)
  local list = c:list(name)
  if not list then return default end
  if list[i + 1] == nil then c:fail(name, "has no element %d", i + 1) end
  return list[i + 1]
end

local function first_dense(c) return c:number("first_k_dense_replace", 0) end

-- The first layers have windows by a pattern of their own.
function M.cohere2_moe_slides(i, c)
  local first = first_dense(c)
  if i < first then return (i + 1) % c:int("prefix_dense_sliding_window_pattern", 1) ~= 0 end
  return (i - first + 1) % c:int("sliding_window_pattern", 4) ~= 0
end

-- Rope is where a layer has a window, and in those without experts if all of these see all keys.
function M.cohere2_moe(c, i, sizes)
  local rope, window = k.rope "interleaved"(c, i, sizes), k.window(M.cohere2_moe_slides)(c, i)
  local dense = element(c, "mlp_layer_types", i, i < first_dense(c) and "dense" or "sparse") == "dense"
  local turns = window.window_left or dense and c:int("prefix_dense_sliding_window_pattern", 1) == 1
  return joined(always(turns and rope or {}), always(window))(c, i, sizes)
end

function M.flint_slides(i, c) return not (i < 2 or i % 4 == 1 or i == c:int "num_hidden_layers" - 1) end

-- Rope in the layers with a window.
function M.flint(c, i, sizes)
  local window = k.window(M.flint_slides)(c, i)
  local rope = k.rope "half"(c, i, sizes)
  return joined(always(window.window_left and rope or {}), always(window))(c, i, sizes)
end

-- A list says the base of each layer, and 0 that it has no rope.
function M.granite_swa(c, i, sizes)
  local keys = k.rope "half"(c, i, sizes)
  local theta = element(c, "layer_rope_theta", i, keys.rope_theta)
  if theta == 0 or type(theta) == "userdata" then return {} end
  if type(theta) ~= "number" or theta < 0 then c:fail("layer_rope_theta", "element %d is no base", i + 1) end
  keys.rope_theta = theta
  return keys
end

-- Layers with a window have twice the heads of keys, and a sink.
function M.mimo_v2_flash(c, i, sizes)
  local kind = k.kind_of(c, i, i == 0 or (i + 1) % 6 == 0)
  local slides = kind == "sliding_attention"
  local keys = k.turned(c, sizes, { kind = "half", layers = kind, theta = slides and 1e4 or 5e6, theta_of = {},
                                    part = 0.334, part_of = {} })
  keys.dv, keys.sink = c:int("v_head_dim", 128), slides or nil
  keys.h_kv = slides and 2 * sizes.h_kv or sizes.h_kv
  return keys
end

function M.mimo_v2_factor(c) return c:positive("attention_value_scale", false) end

-- Both directions, with as many keys before a row as behind it.
function M.both_sides(c)
  local rows = c:int "sliding_window"
  return { kv_len = true, window_left = rows, window_right = rows }
end

function M.ultrabert_slides(i) return (i + 1) % 3 ~= 0 end

function M.ultrabert(c, i, sizes)
  local kind = k.kind_of(c, i, not M.ultrabert_slides(i))
  local whole = kind == "full_attention"
  local keys = k.turned(c, sizes, { kind = "half", layers = kind, theta = whole and 2560000 or 10000, theta_of = {} })
  return joined(always(keys), whole and k.PADDED or M.both_sides)(c, i, sizes)
end

-- Files have half of local_attention in a second field, which transformers 5 reads and version 4 does not.
function M.modernbert_decoder(c, i, sizes)
  local keys = k.modernbert(c, i, sizes)
  local half = keys.window_left
  if half and c:has "sliding_window" and c:int "sliding_window" ~= half then
    c:fail("sliding_window", "must be half of local_attention, which is %d", half)
  end
  keys.kv_len, keys.causal, keys.window_left, keys.window_right = nil, true, half and half - 1, nil
  return keys
end

-- ---- kinds of layers among others ----

-- The kind of a layer by a list of layers, whose older names are here too, or by what `pattern` says: a list that is
-- repeated.
local KINDS = { attention = "full_attention" }
local function kind_in(c, i, pattern)
  local kind = element(c, "layer_types", i, pattern[i % #pattern + 1])
  return KINDS[kind] or kind
end

-- Whether a layer is attention, by such a pattern.
function M.repeated(pattern)
  return function(c, i)
    local kind = kind_in(c, i, pattern)
    return kind == "full_attention" or kind == "sliding_attention"
  end
end

M.LARA_MINI = { "linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention" }

-- Rope in layers with a window.
function M.lara_mini(c, i, sizes)
  local rope = k.rope "half"(c, i, sizes)
  if kind_in(c, i, M.LARA_MINI) ~= "sliding_attention" then return {} end
  return joined(always(rope), k.windows)(c, i, sizes)
end

-- Each fourth layer, or the last where there are fewer.
function M.olmo_hybrid(c, i)
  local layers = c:int "num_hidden_layers"
  return kind_in(c, i, { "", "", "", "full_attention" }) == "full_attention"
    or not c:list "layer_types" and layers < 4 and i == layers - 1
end

-- A model whose base of rope is null has none.
function M.olmo_hybrid_rope(c, i, sizes)
  local rope = c:object "rope_parameters"
  if not rope or rope.values.rope_theta == nil or rope:has "rope_theta" then return k.rope "half"(c, i, sizes) end
  rope:only("rope_type", "default")
  return {}
end

-- A letter or a name for each layer, of which there are four by default.
local function letters(c)
  return c:has "hybrid_override_pattern" and c:word "hybrid_override_pattern" or "ME*-"
end
local function listed(c) return c:list "layers_block_type" or c:list "layer_types" end

function M.nemotron_h_layers(c)
  local list = listed(c)
  return list and #list or #letters(c)
end

function M.nemotron_h(c, i)
  local list = listed(c)
  if not list then return letters(c):sub(i + 1, i + 1) == "*" end
  return (KINDS[list[i + 1]] or list[i + 1]) == "full_attention"
end

-- A list of kinds that is repeated.
function M.recurrent_gemma(c, i)
  local kinds = c:list "block_types" or { "recurrent", "recurrent", "attention" }
  return kinds[i % #kinds + 1] == "attention"
end

function M.recurrent_gemma_window(c) return { window_left = c:int("attention_window_size", 2048) - 1 } end

-- ---- others ----

function M.roformer(c)
  c:only("rotary_value", false)
  return { rope = "interleaved", rope_theta = 10000 }
end

-- The biases of distances, which the caller adds, are divided by the root of dk, too.
function M.layoutlmv3(c)
  local on = c:flag("has_relative_attention_bias", true) or c:flag("has_spatial_attention_bias", true)
  c:flag("has_spatial_attention_bias", true)
  return { kv_len = true, mask = on and "add" or nil, mask_dims = on and "bhqk" or nil }
end

-- Every other layer of an encoder has a window, which is on both sides.
function M.even_both_sides(c, i)
  local slides = k.kind_of(c, i, i % 2 ~= 0) == "sliding_attention" and c:has "sliding_window"
  return slides and M.both_sides(c) or { kv_len = true }
end

-- Gemma 3's layers, whose windows are on both sides.
function M.t5gemma2(c, i, sizes)
  local keys = k.gemma3(c, i, sizes)
  local rows = keys.window_left and c:int "sliding_window"
  keys.causal, keys.kv_len = nil, true
  keys.window_left, keys.window_right = rows and (rows + 1) // 2 - 1, rows and rows // 2
  return keys
end

-- Gemma 4's layers, in both directions: values have a norm, so they are the caller's. Windows are a radius.
function M.embedding_gemma2_slides(i, c) return (i + 1) % 6 ~= 0 and i < c:int "num_hidden_layers" - 1 end

function M.embedding_gemma2(c, i, sizes)
  local whole = k.kind_of(c, i, not M.embedding_gemma2_slides(i, c)) == "full_attention"
  local keys = { attention = "cross", project = "qko", scale = 1, kv_len = true }
  if whole then keys.dk, keys.h_kv = k.whole_sizes(c, i, sizes, 1) end
  local turned = k.turned(c, { dk = keys.dk or sizes.dk }, {
    kind = "half", layers = whole and "full_attention" or "sliding_attention", theta = whole and 1e6 or 1e4,
    theta_of = {} })
  return joined(always(keys), always(turned), k.rms, whole and always {} or M.both_sides)(c, i, sizes)
end

-- Whether a list has a number; without one, whether it has any.
function M.is_in(list, number)
  for _, value in ipairs(list) do
    if not number or value == number then return true end
  end
  return false
end
M.MLLAMA_CROSS = { 3, 8, 13, 18, 23, 28, 33, 38 }

-- ---- layers that several places of a model share: the file has them where they are first ----

-- Whether a layer is one of the first `count` of these.
function M.first_hybrids(is_hybrid, count)
  return function(c, i)
    local seen = 0
    for number = 0, i do
      if is_hybrid(c, number) then seen = seen + 1 end
    end
    return is_hybrid(c, i) and seen <= count
  end
end

local function hybrid(default)
  return function(c, i)
    local list = c:list "layers_block_type"
    if list then return list[i + 1] == "hybrid" end
    return default(c, i)
  end
end

M.zamba_layers = hybrid(function(c, i)
  return i == 2 or i > 2 and (i - 3) % c:int("attn_layer_period", 6) == c:number("attn_layer_offset", 4)
end)

M.zamba2_layers = hybrid(function(_, i) return i > 0 and i <= 42 and i % 6 == 0 or i == 47 or i == 51 end)

-- Queries, keys and values are of the rows of the model beside those of its first layer.
function M.zamba_width(c) return c:int("attention_hidden_size", 2 * c:int "hidden_size") end

function M.zamba(c, _, sizes) return { y_width = c:int "hidden_size", scale = (sizes.dk / 2) ^ -0.5 } end

function M.zamba2(c, i, sizes)
  c:only("use_shared_attention_adapter", false)
  local keys = k.rope "half"(c, i, sizes)
  if not c:flag("use_mem_rope", false) then
    if keys.scaling then keys.scaling(keys.rope_theta, sizes.dk // 2) end -- its fields are known
    keys = {}
  end
  return joined(always(keys), M.zamba)(c, i, sizes)
end

function M.codegen(c, _, sizes) return { rope = "interleaved", rope_dims = c:int("rotary_dim", sizes.dk) } end

-- A bias of places and which rows see each other; both are the caller's.
M.cpmant = always { mask = "add", mask_dims = "bhqk" }

return M
