-- The kinds of models: how their configs name the sizes of attention, and where in their files its tensors are.
-- A row is
--
--   types    what its config calls it
--   stacks   its kinds of layers, or of (fields) to them:
--     at       the module, or with GGUF the block; %d is the number of a layer; or a list of what versions call it
--     layers   the field that counts them; without one there is one layer
--     h, h_kv, d_model, dk   fields of the sizes where they are not those below, or the sizes
--     maps     the linear maps of q, k, v and o; or a joint one of q, k and v, then that of o
--     heads    the joint map has a block for each head of keys: its queries, the key, the value
--     in_out   matrices lie as y = x W has them
--     more     other tensors, by the names of mhagen_weights; plus: what is added to their numbers
--     keys     of (fields, number of the layer, sizes) to further keys of mhagen; `scaling` is of (rope_theta,
--              pairs) to what model.rope makes of them
--     frequencies   tensors that angles may be divided by: those for all texts, for short ones, for long ones
--     within   the field whose object has the fields of this stack
--   harmless   fields that nobody reads, whose names speak of attention, and that do not change it, or not with this
--              value: "name name=value"
--   beside     patterns of tensors under the names of its layers that do not either
--   own        the pattern of tensors under these names that are of attention, if not all are
--   shared     the pattern of tensors for all layers that are
--
-- The rows of GGUF files are in gen/model/gguf_families.lua. docs/models.md has the table of the keys;
-- tests/test_import.py compares each type with transformers.

local angles = require "model.rope"
local fields = require "model.fields"

local M = {}

local STANDARD = { h = "num_attention_heads", h_kv = "num_key_value_heads", d_model = "hidden_size", dk = "head_dim" }

-- h, h_kv, d_model and dk of a stack.
function M.sizes(c, stack)
  local function size(key, default)
    local field = stack[key] or STANDARD[key]
    return type(field) == "number" and field or c:int(field, default)
  end
  local sizes = { h = size "h", d_model = size "d_model" }
  sizes.h_kv = size("h_kv", sizes.h)
  sizes.dk = size("dk", math.max(1, sizes.d_model // sizes.h))
  return sizes
end

-- ---- keys ----

local function always(keys) return function() return keys end end

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

local joined = M.joined
local PADDED, CROSS = always { kv_len = true }, always { attention = "cross" }

-- Decoders see all keys, as encoders of texts do, if their configs say so.
local function is_causal(c) return c:flag("is_causal", true) end
local function CAUSAL(c) return is_causal(c) and { causal = true } or { kv_len = true } end
local ALWAYS_CAUSAL = always { causal = true }

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

-- more: what else turned takes.
local function rope(kind, more)
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
    c:fail("layer_types", "%s is not known", tostring(kind))
  end
  return kind
end

-- A window where the layer has one, by layer_types or slides(number, fields).
local function window(slides)
  return function(c, i)
    local kind = kind_of(c, i, not slides(i, c))
    if not c:has "sliding_window" or kind == "full_attention" then return {} end
    local rows = c:int "sliding_window" -- with the row itself, but not where rows behind it are seen too
    return is_causal(c) and { window_left = rows - 1 } or { window_left = rows, window_right = rows }
  end
end

local function every() return true end
local function even(i) return i % 2 == 0 end
local function qwen(i, c)
  return c:flag("use_sliding_window", false) and i >= c:number("max_window_layers", 28)
end

local function rms(c) return { qk_norm = "rms", norm_eps = c:positive("rms_norm_eps", 1e-6) } end

local function scalar(c) return { scale = c:positive("query_pre_attn_scalar", 256) ^ -0.5 } end

local function modernbert(c, i, sizes)
  local kind = kind_of(c, i, i % c:int("global_attn_every_n_layers", 3) == 0)
  local whole = kind == "full_attention"
  local keys = turned(c, sizes, { kind = "half", layers = kind, scaled = false, theta = whole and 160000 or nil,
                                  theta_of = { whole and "global_rope_theta" or "local_rope_theta" } })
  local half = c:int("local_attention", 128) // 2
  keys.kv_len, keys.window_left, keys.window_right = true, not whole and half or nil, not whole and half or nil
  return keys
end

local function gpt2(c, i, sizes)
  local scale = c:flag("scale_attn_weights", true) and sizes.dk ^ -0.5 or 1
  if c:flag("scale_attn_by_inverse_layer_idx", false) then scale = scale / (i + 1) end
  return { scale = scale ~= sizes.dk ^ -0.5 and scale or nil }
end

local function gptj(c, _, sizes)
  return { rope = "interleaved", rope_dims = c:int("rotary_dim", sizes.dk) }
end

local function mpt(c)
  local attention = c:object "attn_config"
  return { alibi = true, scale = attention and attention:positive("softmax_scale", false) or nil }
end

local function falcon(c, _, sizes)
  local new = c:flag("new_decoder_architecture", false)
  return { h_kv = new and c:int("num_kv_heads", sizes.h) or c:flag("multi_query", true) and 1 or sizes.h }
end

-- With use_bidirectional_attention half of the window is before a row, and half behind it.
local function gemma3(c, i, sizes)
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

local function softcapped(c) return { softcap = c:positive("attn_logit_softcapping", false) or nil } end

local function cohere(c)
  if not c:flag("use_qk_norm", false) then return {} end
  return { qk_norm = "layer", norm_span = "each", norm_eps = c:positive("layer_norm_eps", 1e-5) }
end

local function t5(c) return { scale = 1, mask = "add", mask_dims = "hqk" } end

local function perceiver(c, _, sizes)
  local width = c:int "d_model"
  local as_keys = c:word("cross_attention_shape_for_attention", "kv") == "kv"
  local dk = c:int("qk_channels", as_keys and width or c:int "d_latents") // sizes.h
  return { attention = "cross", kv_len = true, k_width = width, v_width = width, dk = dk,
           dv = c:int("v_channels", dk * sizes.h) // sizes.h }
end

-- ---- stacks ----

local BERT = { "self.query", "self.key", "self.value", "output.dense" }
local VIT = { "attention.query", "attention.key", "attention.value", "output.dense" }
local OUT_PROJ = { "q_proj", "k_proj", "v_proj", "out_proj" }
local O_PROJ = { "q_proj", "k_proj", "v_proj", "o_proj" }
local GAINS = { q_norm = "q_norm.weight", k_norm = "k_norm.weight" }

-- The layers of most models, with more of what a stack has.
function M.stack(at, maps, keys, more)
  local made = { at = at, maps = maps, keys = keys, layers = "num_hidden_layers" }
  for key, value in pairs(more or {}) do made[key] = value end
  return made
end

local stack = M.stack

local function decoder(maps, keys, more) return { stack("layers.%d.self_attn", maps, joined(CAUSAL, keys), more) } end

local function bert(c) return { kv_len = true, causal = c:flag("is_decoder", false) or nil } end

-- Those of an encoder and a decoder. padded: keys that the encoder has for texts.
local function seq2seq(padded)
  local function of(side, kind, keys)
    return stack(("%s.layers.%%d.%s"):format(side, kind), OUT_PROJ, keys, {
      layers = side .. "_layers", h = side .. "_attention_heads", d_model = "d_model" })
  end
  return { of("encoder", "self_attn", padded), of("decoder", "self_attn", ALWAYS_CAUSAL),
           of("decoder", "encoder_attn", joined(CROSS, padded)) }
end

local function t5_stack(at, layers, keys)
  return stack(at, { "q", "k", "v", "o" }, keys, { layers = layers, h = "num_heads", d_model = "d_model", dk = "d_kv" })
end

local function clip(side, keys, within)
  local at = side .. "_model.encoder.layers.%d.self_attn"
  return stack(within and at or { at, "encoder.layers.%d.self_attn" }, OUT_PROJ, keys, { within = within })
end

-- Stages of blocks, each of half the resolution of the one before and twice its width. Where there is more than one
-- window, those of every other block are shifted, and its mask is of the windows in a batch.
local function swin(c)
  local depths, heads = c:counts "depths", c:counts "num_heads"
  local rows = c:int("image_size", 224) // c:int("patch_size", 4)
  local windows, stacks = c:int("window_size", 7), {}
  if #depths ~= #heads then c:fail("num_heads", "has %d numbers, and depths %d", #heads, #depths) end
  for i, depth in ipairs(depths) do
    for block = 0, depth - 1 do
      local shifted = block % 2 == 1 and rows >> (i - 1) > windows
      stacks[#stacks + 1] = stack(("encoder.layers.%d.blocks.%d.attention"):format(i - 1, block), BERT,
        always { mask = "add", mask_dims = shifted and "bhqk" or "hqk" }, {
          layers = false, h = heads[i], d_model = c:int("embed_dim", 96) << (i - 1) })
    end
  end
  return stacks
end

local GPT = { layers = "n_layer", h = "n_head", d_model = "n_embd" }

-- Fields that several types know to be harmless: of both halves of a model, of masks in training; and their buffers.
local HALVES = "scale_embedding encoder_attention_heads decoder_attention_heads"
local SPEC = "mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length " ..
  "mask_feature_min_masks mask_channel_length mask_channel_prob mask_channel_selection mask_channel_other " ..
  "mask_channel_min_space mask_time_selection mask_time_other mask_time_min_space no_mask_channel_overlap " ..
  "no_mask_time_overlap"
local BUFFERS = { "^bias$", "^masked_bias$", "rotary_emb%.inv_freq$" }

M.rows = {
  { types = { "bert", "roberta", "xlm-roberta", "camembert", "electra" },
    stacks = { stack("encoder.layer.%d.attention", BERT, bert) }, beside = { "^output%.LayerNorm%." },
    harmless = "directionality pooler_num_attention_heads pooler_size_per_head" },
  { types = { "distilbert" }, stacks = { stack("transformer.layer.%d.attention",
    { "q_lin", "k_lin", "v_lin", "out_lin" }, PADDED, { layers = "n_layers", h = "n_heads", d_model = "dim" }) },
    harmless = "sinusoidal_pos_embds" },
  { types = { "modernbert" }, stacks = { stack("layers.%d.attn", { "Wqkv", "Wo" }, modernbert) },
    harmless = "global_rope_theta local_rope_theta rope_parameters.full_attention " ..
      "rope_parameters.sliding_attention global_attn_every_n_layers norm_bias" },
  { types = { "vit", "deit" }, stacks = { stack("encoder.layer.%d.attention", VIT, always {}) } },
  { types = { "swin" }, stacks = swin, harmless = "path_norm",
    beside = { "^self%.relative_position_bias_table$", "^self%.relative_position_index$" } },
  { types = { "clip_text_model" }, stacks = { clip("text", ALWAYS_CAUSAL) } },
  { types = { "clip_vision_model" }, stacks = { clip("vision", always {}) } },
  { types = { "clip" }, stacks = { clip("text", ALWAYS_CAUSAL, "text_config"),
                                   clip("vision", always {}, "vision_config") },
    harmless = "logit_scale_init_value" },
  { types = { "whisper" }, stacks = seq2seq(always {}), harmless = HALVES .. " " .. SPEC },
  { types = { "wav2vec2", "hubert" }, stacks = { stack("encoder.layers.%d.attention", OUT_PROJ, always {}) },
    harmless = SPEC .. " adapter_attn_dim num_conv_pos_embeddings num_conv_pos_embedding_groups " ..
      "do_stable_layer_norm feat_extract_norm feat_proj_layer_norm conv_pos_batch_norm" },
  { types = { "bart" }, stacks = seq2seq(PADDED),
    harmless = HALVES .. " normalize_before normalize_embedding add_final_layer_norm" },
  { types = { "t5" }, stacks = {
    t5_stack("encoder.block.%d.layer.0.SelfAttention", "num_layers", joined(t5, PADDED)),
    t5_stack("decoder.block.%d.layer.0.SelfAttention", "num_decoder_layers", joined(t5, ALWAYS_CAUSAL)),
    t5_stack("decoder.block.%d.layer.1.EncDecAttention", "num_decoder_layers",
             joined(CROSS, PADDED, always { scale = 1 })) }, beside = { "^relative_attention_bias%.weight$" },
    harmless = "relative_attention_num_buckets relative_attention_max_distance scale_decoder_outputs" },
  { types = { "perceiver" }, stacks = { stack("encoder.cross_attention.attention", BERT, perceiver, {
    layers = false, h = "num_cross_attention_heads", d_model = "d_latents" }) },
    beside = { "^self%.layernorm[12]%." },
    harmless = "num_attention_heads num_self_attention_heads cross_attention_widening_factor " ..
      "self_attention_widening_factor" },
  { types = { "gpt2" }, stacks = { stack("h.%d.attn", { "c_attn", "c_proj" }, joined(CAUSAL, gpt2), {
    layers = "n_layer", h = "n_head", d_model = "n_embd", in_out = true }) }, beside = BUFFERS,
    harmless = "reorder_and_upcast_attn" },
  { types = { "gptj" }, stacks = { stack("h.%d.attn", OUT_PROJ, joined(CAUSAL, gptj), GPT) }, beside = BUFFERS,
    harmless = "rotary=true scale_attn_weights=true" },
  { types = { "gpt_neox" }, stacks = { stack("layers.%d.attention", { "query_key_value", "dense" },
    joined(CAUSAL, rope("half", { theta_of = { "rope_theta", "rotary_emb_base" }, part = 0.25,
                                  part_of = { "rotary_pct", "partial_rotary_factor" } })), { heads = true }) },
    beside = BUFFERS },
  { types = { "opt" }, stacks = { stack("decoder.layers.%d.self_attn", OUT_PROJ, CAUSAL) },
    harmless = "do_layer_norm_before layer_norm_elementwise_affine _remove_final_layer_norm" },
  { types = { "bloom" }, stacks = { stack("h.%d.self_attention", { "query_key_value", "dense" },
    joined(CAUSAL, always { alibi = true }), { heads = true, layers = "n_layer", h = "n_head" }) },
    harmless = "apply_residual_connection_post_layernorm attention_softmax_in_fp32 masked_softmax_fusion " ..
      "offset_alibi num_attention_heads skip_bias_add_qkv" },
  { types = { "mpt" }, stacks = { stack("blocks.%d.attn", { "Wqkv", "out_proj" }, joined(CAUSAL, mpt), {
    layers = "n_layers", h = "n_heads", d_model = "d_model" }) },
    harmless = "learned_pos_emb logit_scale norm_type attn_config.alibi=true attn_config.alibi_bias_max=8 " ..
      "attn_config.attn_type=multihead_attention" },
  { types = { "falcon" }, stacks = { stack("h.%d.self_attention", { "query_key_value", "dense" },
                                           joined(CAUSAL, rope "half", falcon), { heads = true }) },
    beside = BUFFERS, harmless = "num_kv_heads num_ln_in_parallel_attn parallel_attn " ..
      "apply_residual_connection_post_layernorm" },
  { types = { "llama", "gemma" }, stacks = decoder(O_PROJ, rope "half"), beside = BUFFERS,
    harmless = "rope_interleaved=false" },
  { types = { "mistral", "starcoder2" }, stacks = decoder(O_PROJ, joined(rope "half", window(every))),
    beside = BUFFERS, harmless = "norm_type" },
  { types = { "qwen2" }, stacks = decoder(O_PROJ, joined(rope "half", window(qwen))),
    beside = BUFFERS, harmless = "max_window_layers use_sliding_window use_mrope=false" },
  { types = { "qwen3" }, stacks = decoder(O_PROJ, joined(rope "half", window(qwen), rms), { more = GAINS }),
    harmless = "max_window_layers use_sliding_window use_mrope=false" },
  { types = { "gemma2" }, stacks = decoder(O_PROJ, joined(rope "half", window(even), scalar, softcapped)),
    harmless = "final_logit_softcapping sliding_window_size" },
  { types = { "gemma3_text" }, stacks = { stack("layers.%d.self_attn", O_PROJ,
    joined(gemma3, scalar, softcapped, rms), { more = GAINS, plus = 1 }) },
    harmless = "final_logit_softcapping rope_theta rope_local_base_freq rope_scaling _sliding_window_pattern " ..
      "rope_parameters.full_attention rope_parameters.sliding_attention" },
  { types = { "phi" }, stacks = decoder({ "q_proj", "k_proj", "v_proj", "dense" },
                                        rope("half", { part = 0.5 })), beside = BUFFERS },
  { types = { "phi3" }, stacks = decoder({ "qkv_proj", "o_proj" },
    joined(rope("half", { part = 1 }), window(every))), harmless = "original_max_position_embeddings" },
  { types = { "cohere" }, stacks = decoder(O_PROJ, joined(rope("interleaved", { theta = false }), cohere),
                                           { more = GAINS }), harmless = "logit_scale" },
  { types = { "olmo2" }, stacks = decoder(O_PROJ, joined(rope "half", rms, always { norm_span = "all" }),
                                          { more = GAINS }) },
  { types = { "gpt_oss" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 150000 }), window(even),
                                                           always { sink = true }),
                                            { more = { sink_logits = "sinks" } }) },
}

-- The row of a type; nil and the types that are known.
function M.find(rows, kind)
  local known = {}
  for _, row in ipairs(rows) do
    for _, name in ipairs(row.types) do
      if name == kind then return row end
      known[#known + 1] = name
    end
  end
  table.sort(known)
  return nil, table.concat(known, ", ")
end

return M
