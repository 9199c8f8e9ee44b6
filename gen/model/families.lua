-- The kinds of models: how their configs name the sizes of attention, and where in their files its tensors are.
-- A row is
--
--   types    what its config calls it
--   stacks   its kinds of layers, or of (fields) to them:
--     at       the module, or with GGUF the block; %d is the number of a layer
--     layers   the field that counts them; without one there is one layer
--     h, h_kv, d_model, dk   fields of the sizes where they are not those below, or the sizes
--     maps     the linear maps of q, k, v and o; or a joint one of q, k and v, then that of o
--     heads    the joint map has a block for each head of keys: its queries, the key, the value
--     in_out   matrices lie as y = x W has them
--     more     other tensors, by the names of mhagen_weights; plus: what is added to their numbers
--     keys     of (fields, number of the layer, sizes) to further keys of mhagen; `scaling` has the fields of
--              rope_scaling
--     within   the field whose object has the fields of this stack
--
-- docs/models.md has the table of the keys; tests/test_import.py compares each type with transformers.

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
local function joined(...)
  local functions = { ... }
  return function(c, i, sizes)
    local all = {}
    for _, of in ipairs(functions) do
      for key, value in pairs(of(c, i, sizes)) do all[key] = value end
    end
    return all
  end
end

local CAUSAL, PADDED, CROSS = always { causal = true }, always { kv_len = true }, always { attention = "cross" }

-- theta: its field, where it is not rope_theta.
local function rope(kind, theta)
  return function(c)
    local new = c:object "rope_parameters" -- as transformers 5 has it
    local named = theta or "rope_theta"
    return { rope = kind, rope_theta = c:positive(named, new and new:positive(named, 10000) or 10000),
             scaling = new or c:object "rope_scaling" }
  end
end

-- Of the columns of a head.
local function partial(field, default)
  return function(c, _, sizes)
    local part = c:positive(field, default)
    if part > 1 then c:fail(field, "must be at most 1") end
    return { rope_dims = math.floor(part * sizes.dk) }
  end
end

-- A window where the list layer_types says so, or without a list where slides(i) does.
local function window(slides)
  return function(c, i)
    local types = c:list "layer_types"
    local kind = types and types[i + 1] or slides(i, c) and "sliding_attention" or "full_attention"
    if types and types[i + 1] == nil then c:fail("layer_types", "has no element %d", i + 1) end
    if kind ~= "sliding_attention" and kind ~= "full_attention" then
      c:fail("layer_types", "%s is not known", tostring(kind))
    end
    if kind == "full_attention" or not c:has "sliding_window" then return {} end
    return { window_left = c:int "sliding_window" - 1 }
  end
end

local function every() return true end
local function even(i) return i % 2 == 0 end
local function qwen(i, c)
  return c:flag("use_sliding_window", false) and i >= c:number("max_window_layers", 28)
end

local function rms(c) return { qk_norm = "rms", norm_eps = c:positive("rms_norm_eps", 1e-6) } end

local function scalar(c) return { scale = c:positive("query_pre_attn_scalar", 256) ^ -0.5 } end

local function modernbert(c, i)
  if i % c:int("global_attn_every_n_layers", 3) == 0 then
    return { kv_len = true, rope = "half", rope_theta = c:positive("global_rope_theta", 160000) }
  end
  local half = c:int("local_attention", 128) // 2
  return { kv_len = true, rope = "half", window_left = half, window_right = half,
           rope_theta = c:positive("local_rope_theta", c:positive("global_rope_theta", 160000)) }
end

local function gpt2(c, i, sizes)
  local scale = c:flag("scale_attn_weights", true) and sizes.dk ^ -0.5 or 1
  if c:flag("scale_attn_by_inverse_layer_idx", false) then scale = scale / (i + 1) end
  return { causal = true, scale = scale ~= sizes.dk ^ -0.5 and scale or nil }
end

local function gptj(c, _, sizes)
  return { causal = true, rope = "interleaved", rope_dims = c:int("rotary_dim", sizes.dk) }
end

-- Its fields have had two names each.
local function gpt_neox(c, _, sizes)
  local part = c:positive("partial_rotary_factor", c:positive("rotary_pct", 0.25))
  if part > 1 then c:fail("rotary_pct", "must be at most 1") end
  return { causal = true, rope = "half", rope_theta = c:positive("rope_theta", c:positive("rotary_emb_base", 10000)),
           rope_dims = math.floor(part * sizes.dk), scaling = c:object "rope_scaling" }
end

local function mpt(c)
  local attention = c:object "attn_config"
  if attention then
    attention:only("alibi", true)
    attention:only("alibi_bias_max", 8)
    attention:only("clip_qkv")
    attention:only("qk_ln", false)
    attention:only("attn_type", "multihead_attention")
  end
  return { causal = true, alibi = true, scale = attention and attention:positive("softmax_scale", false) or nil }
end

local function falcon(c, _, sizes)
  c:only("alibi", false)
  local new = c:flag("new_decoder_architecture", false)
  return { h_kv = new and c:int("num_kv_heads", sizes.h) or c:flag("multi_query", true) and 1 or sizes.h }
end

local function gemma3(c, i)
  local pattern = c:int("sliding_window_pattern", 6)
  local keys = window(function() return (i + 1) % pattern ~= 0 end)(c, i)
  local of = rope("half", keys.window_left and "rope_local_base_freq" or nil)(c)
  if keys.window_left then of.scaling = nil end
  for key, value in pairs(of) do keys[key] = value end
  return keys
end

local function softcapped(c) return { softcap = c:positive("attn_logit_softcapping", false) or nil } end

local function phi(c)
  c:only("qk_layernorm", false)
  return {}
end

local function cohere(c)
  if not c:flag("use_qk_norm", false) then return {} end
  return { qk_norm = "layer", norm_span = "each", norm_eps = c:positive("layer_norm_eps", 1e-5) }
end

local function t5(c) return { scale = 1, mask = "add", mask_dims = "hqk" } end

local function perceiver(c, _, sizes)
  local width = c:int "d_model"
  local dk = c:int("qk_channels", c:int "d_latents") // sizes.h
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
local function stack(at, maps, keys, more)
  local made = { at = at, maps = maps, keys = keys, layers = "num_hidden_layers" }
  for key, value in pairs(more or {}) do made[key] = value end
  return made
end

local function decoder(maps, keys, more) return { stack("layers.%d.self_attn", maps, joined(CAUSAL, keys), more) } end

-- Those of an encoder and a decoder. padded: keys that the encoder has for texts.
local function seq2seq(padded)
  local function of(side, kind, keys)
    return stack(("%s.layers.%%d.%s"):format(side, kind), OUT_PROJ, keys, {
      layers = side .. "_layers", h = side .. "_attention_heads", d_model = "d_model" })
  end
  return { of("encoder", "self_attn", padded), of("decoder", "self_attn", CAUSAL),
           of("decoder", "encoder_attn", joined(CROSS, padded)) }
end

local function t5_stack(at, layers, keys)
  return stack(at, { "q", "k", "v", "o" }, keys, { layers = layers, h = "num_heads", d_model = "d_model", dk = "d_kv" })
end

local function clip(side, keys, within)
  return stack(side .. "_model.encoder.layers.%d.self_attn", OUT_PROJ, keys, { within = within })
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

M.rows = {
  { types = { "bert", "roberta", "xlm-roberta", "camembert", "electra" },
    stacks = { stack("encoder.layer.%d.attention", BERT, PADDED) } },
  { types = { "distilbert" }, stacks = { stack("transformer.layer.%d.attention",
    { "q_lin", "k_lin", "v_lin", "out_lin" }, PADDED, { layers = "n_layers", h = "n_heads", d_model = "dim" }) } },
  { types = { "modernbert" }, stacks = { stack("layers.%d.attn", { "Wqkv", "Wo" }, modernbert) } },
  { types = { "vit", "deit" }, stacks = { stack("encoder.layer.%d.attention", VIT, always {}) } },
  { types = { "swin" }, stacks = swin },
  { types = { "clip_text_model" }, stacks = { clip("text", CAUSAL) } },
  { types = { "clip_vision_model" }, stacks = { clip("vision", always {}) } },
  { types = { "clip" },
    stacks = { clip("text", CAUSAL, "text_config"), clip("vision", always {}, "vision_config") } },
  { types = { "whisper" }, stacks = seq2seq(always {}) },
  { types = { "wav2vec2", "hubert" }, stacks = { stack("encoder.layers.%d.attention", OUT_PROJ, always {}) } },
  { types = { "bart" }, stacks = seq2seq(PADDED) },
  { types = { "t5" }, stacks = {
    t5_stack("encoder.block.%d.layer.0.SelfAttention", "num_layers", joined(t5, PADDED)),
    t5_stack("decoder.block.%d.layer.0.SelfAttention", "num_decoder_layers", joined(t5, CAUSAL)),
    t5_stack("decoder.block.%d.layer.1.EncDecAttention", "num_decoder_layers",
             joined(CROSS, PADDED, always { scale = 1 })) } },
  { types = { "perceiver" }, stacks = { stack("encoder.cross_attention.attention", BERT, perceiver, {
    layers = false, h = "num_cross_attention_heads", d_model = "d_latents" }) } },
  { types = { "gpt2" }, stacks = { stack("h.%d.attn", { "c_attn", "c_proj" }, gpt2, {
    layers = "n_layer", h = "n_head", d_model = "n_embd", in_out = true }) } },
  { types = { "gptj" }, stacks = { stack("h.%d.attn", OUT_PROJ, gptj, GPT) } },
  { types = { "gpt_neox" }, stacks = { stack("layers.%d.attention", { "query_key_value", "dense" }, gpt_neox,
                                             { heads = true }) } },
  { types = { "opt" }, stacks = { stack("decoder.layers.%d.self_attn", OUT_PROJ, CAUSAL) } },
  { types = { "bloom" }, stacks = { stack("h.%d.self_attention", { "query_key_value", "dense" },
    always { causal = true, alibi = true }, { heads = true, layers = "n_layer", h = "n_head" }) } },
  { types = { "mpt" }, stacks = { stack("blocks.%d.attn", { "Wqkv", "out_proj" }, mpt, {
    layers = "n_layers", h = "n_heads", d_model = "d_model" }) } },
  { types = { "falcon" }, stacks = { stack("h.%d.self_attention", { "query_key_value", "dense" },
                                           joined(CAUSAL, rope "half", falcon), { heads = true }) } },
  { types = { "llama", "gemma" }, stacks = decoder(O_PROJ, rope "half") },
  { types = { "mistral", "starcoder2" }, stacks = decoder(O_PROJ, joined(rope "half", window(every))) },
  { types = { "qwen2" }, stacks = decoder(O_PROJ, joined(rope "half", window(qwen))) },
  { types = { "qwen3" }, stacks = decoder(O_PROJ, joined(rope "half", window(qwen), rms), { more = GAINS }) },
  { types = { "gemma2" }, stacks = decoder(O_PROJ, joined(rope "half", window(even), scalar, softcapped)) },
  { types = { "gemma3_text" }, stacks = decoder(O_PROJ, joined(gemma3, scalar, softcapped, rms),
                                                { more = GAINS, plus = 1 }) },
  { types = { "phi" }, stacks = decoder({ "q_proj", "k_proj", "v_proj", "dense" },
                                        joined(rope "half", partial("partial_rotary_factor", 0.5), phi)) },
  { types = { "phi3" }, stacks = decoder({ "qkv_proj", "o_proj" },
    joined(rope "half", partial("partial_rotary_factor", 1), window(every))) },
  { types = { "cohere" }, stacks = decoder(O_PROJ, joined(rope "interleaved", cohere), { more = GAINS }) },
  { types = { "olmo2" }, stacks = decoder(O_PROJ, joined(rope "half", rms, always { norm_span = "all" }),
                                          { more = GAINS }) },
  { types = { "gpt_oss" }, stacks = decoder(O_PROJ, joined(rope "half", window(even), always { sink = true }),
                                            { more = { sink_logits = "sinks" } }) },
}

-- ---- GGUF ----

local ATTN = { "attn_q", "attn_k", "attn_v", "attn_output" }
local QKV = { "attn_qkv", "attn_output" }

-- Rows of Q and K of Llama's family are permuted in these files, so that rope turns neighbours.
local function gguf_rope(kind)
  return function(c, _, sizes)
    c:only("rope.scaling.type", "none")
    return { causal = true, rope = kind, rope_theta = c:positive("rope.freq_base", 10000),
             rope_dims = c:int("rope.dimension_count", sizes.dk) }
  end
end

local function gguf_norm(c)
  return { qk_norm = "rms", norm_eps = c:positive("attention.layer_norm_rms_epsilon", 1e-6) }
end

local function gguf_window(c)
  return { window_left = c:has "attention.sliding_window" and c:int "attention.sliding_window" - 1 or nil }
end

local function block(maps, keys, more)
  local made = stack("blk.%d", maps, keys, {
    layers = "block_count", h = "attention.head_count", h_kv = "attention.head_count_kv",
    d_model = "embedding_length", dk = "attention.key_length", frequencies = "rope_freqs.weight" })
  for key, value in pairs(more or {}) do made[key] = value end
  return { made }
end

M.gguf = {
  { types = { "llama" }, stacks = block(ATTN, gguf_rope "interleaved") },
  { types = { "qwen2", "gemma", "starcoder2" }, stacks = block(ATTN, gguf_rope "half") },
  { types = { "qwen3" }, stacks = block(ATTN, joined(gguf_rope "half", gguf_norm), {
    more = { q_norm = "attn_q_norm.weight", k_norm = "attn_k_norm.weight" } }) },
  { types = { "phi3" }, stacks = block(QKV, joined(gguf_rope "half", gguf_window)) },
  { types = { "bert" }, stacks = block(ATTN, PADDED) },
  { types = { "gpt2" }, stacks = block(QKV, CAUSAL) },
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
