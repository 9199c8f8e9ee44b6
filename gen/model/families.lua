-- The kinds of models: how their configs name the sizes of attention, and where in their files its tensors are.
-- A row is
--
--   types    what its config calls it
--   stacks   its kinds of layers, or a function of the fields that returns them:
--     at       the module, or with GGUF the block; %d is the number of a layer; or a list of what versions call it
--     layers   the field that counts them, or their number; without one there is one layer
--     h, h_kv, d_model, dk   fields of the sizes where they are not those below, or the sizes
--     maps     the linear maps of q, k, v and o; or a joint one of q, k and v, then that of o. in_proj is called as
--              PyTorch's MultiheadAttention calls it; with apart, as a module of its own
--     heads    the joint map has a block for each head of keys, with its queries, then the key, then the value
--     blocks, order   the joint map has so many such blocks, and in each q, k and v in this order
--     factor   of (config) to a factor of the values, which goes into the map of o
--     biases_at   by letters, the biases that are not called as their map with .bias
--     in_out   matrices lie as y = x W has them
--     more     other tensors, by the names of mhagen_weights: a name, or { name, of (list, config) to another list,
--              count = of (config) to how many numbers the tensor has, optional = true: not all layers have it }
--     has      of (fields, number of the layer): whether it is one of these
--     by_layer true: heads and heads of keys may be lists with an element for each layer
--     keys     of (fields, number of the layer, sizes) to further keys of mhagen, as gen/model/family_keys.lua has them
--     frequencies   tensors by which angles may be divided: one for all texts, or one for short and one for long texts
--     divided  of (fields, number of the layer): whether they are in this layer, else they are in all
--   parts    of a model with several, for each:
--     within       fields; the first of them that is there has the config of the part
--     of, before   its type, where its config does not say it; the text before the names of its layers, or a list
--     row          the row of a part without a type of its own
--     flat         true: older configs have its fields beside the others
--     optional     true: one of a type that is not known is left out, and a summary names its attention
--   inner    true: models have it as a part only
--   defaults what fields have that are missing
--   older    the names that fields had before
--   harmless   unread fields with names about attention that do not change it: "name", or "name=value" for one value
--   beside     patterns of tensors that do not change it, under the names of its layers
--   own        the pattern of the tensors of attention under these names, if not all are
--   shared     the pattern of tensors of attention that all layers share
--
-- More rows are in gen/model/families_*.lua. gen/model/family_biases.lua has which maps have biases. The rows
-- of GGUF files are in gen/model/gguf_families.lua.
-- docs/models.md has the table of the keys; tests/models/test_import.py compares each type with transformers.

local biases = require "model.family_biases"
local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local shapes = require "model.family_shapes"

local M = {}

local stack = family_rows.stack
local always, joined, rope, window = k.always, k.joined, k.rope, k.window
local PADDED, CROSS, CAUSAL, CAUSAL_ALWAYS = k.PADDED, k.CROSS, k.CAUSAL, k.CAUSAL_ALWAYS
local BERT, VIT, OUT_PROJ, O_PROJ, GAINS = shapes.BERT, shapes.VIT, shapes.OUT_PROJ, shapes.O_PROJ, shapes.GAINS
local BUFFERS, GPT, MULTIMODAL = shapes.BUFFERS, shapes.GPT, shapes.MULTIMODAL
local decoder, seq2seq, sizes, tower = shapes.decoder, shapes.seq2seq, shapes.sizes, shapes.tower

-- Groups of layers that a model runs several times each.
local function albert(c)
  local stacks, groups, inner = {}, c:int("num_hidden_groups", 1), c:int("inner_group_num", 1)
  if groups * inner > 1024 then c:fail("num_hidden_groups", "%d layers in %d groups", inner, groups) end
  for group = 0, groups - 1 do
    for layer = 0, inner - 1 do
      stacks[#stacks + 1] = stack(("encoder.albert_layer_groups.%d.albert_layers.%d.attention"):format(group, layer),
        { "query", "key", "value", "dense" }, PADDED, { layers = false })
    end
  end
  return stacks
end

local MOONSHINE = rope("interleaved", { part = 0.9 })

local function moonshine(side, kind, keys)
  return stack(("%s.layers.%%d.%s"):format(side, kind), O_PROJ, keys, { layers = side .. "_num_hidden_layers",
    h = side .. "_num_attention_heads", h_kv = side .. "_num_key_value_heads" })
end

-- Stages of blocks, each of half the resolution of the one before and twice its width. Where there is more than one
-- window, those of every other block are shifted, and its mask is of the windows in a batch.
local function swin_stacks(c, keys, more)
  local depths, heads = c:counts "depths", c:counts "num_heads"
  local size = c:is_list "image_size" and math.min(table.unpack(c:counts("image_size", 1 << 20)))
    or c:int("image_size", 224)
  local rows = size // c:int("patch_size", 4)
  local windows, stacks = c:int("window_size", 7), {}
  if #depths ~= #heads then c:fail("num_heads", "has %d numbers, and depths %d", #heads, #depths) end
  for i, depth in ipairs(depths) do
    for block = 0, depth - 1 do
      local shifted = block % 2 == 1 and rows >> (i - 1) > windows
      stacks[#stacks + 1] = stack(("encoder.layers.%d.blocks.%d.attention"):format(i - 1, block), BERT,
        joined(keys, always { mask = "add", mask_dims = shifted and "bhqk" or "hqk" }), {
          layers = false, h = heads[i], d_model = c:int("embed_dim", 96) << (i - 1), more = more })
    end
  end
  return stacks
end

local function swin(c) return swin_stacks(c, always {}) end

local function swinv2(c) return swin_stacks(c, k.swinv2, shapes.SCALES) end

local GEMMA_4 = { stack("layers.%d.self_attn", O_PROJ, joined(k.gemma4, window(k.gemma4_slides), k.rms), {
  more = GAINS }) }
local OF_CALLER = { "^v_proj%.weight$" }
local OF_GEMMA_4 = "final_logit_softcapping full_attention sliding_attention attention_k_eq_v " ..
  "num_global_key_value_heads global_head_dim partial_rotary_factor"

local function gemma4(rows)
  return sizes(2304, 8, 30, { num_key_value_heads = 4, head_dim = 256, sliding_window = rows, rope_parameters = {
    full_attention = { rope_type = "proportional", partial_rotary_factor = 0.25, rope_theta = 1e6 },
    sliding_attention = { rope_theta = 1e4 } } })
end

-- Of positions in two dimensions, which are plain ones in texts.
local MROPE = "mrope_section mrope_interleaved "

M.rows = {
  { types = { "bert", "roberta", "xlm-roberta", "camembert", "electra" },
    stacks = { stack("encoder.layer.%d.attention", BERT, shapes.bert) }, beside = { "^output%.LayerNorm%." },
    harmless = "directionality pooler_num_attention_heads pooler_size_per_head" },
  { types = { "distilbert" }, stacks = { stack("transformer.layer.%d.attention",
    { "q_lin", "k_lin", "v_lin", "out_lin" }, PADDED, { layers = "n_layers", h = "n_heads", d_model = "dim" }) },
    harmless = "sinusoidal_pos_embds" },
  { types = { "modernbert" }, stacks = { stack("layers.%d.attn", { "Wqkv", "Wo" }, k.modernbert) },
    harmless = "global_rope_theta local_rope_theta full_attention sliding_attention " ..
      "global_attn_every_n_layers norm_bias" },
  { types = { "vit", "deit", "dinov2", "dinov2_with_registers" },
    stacks = { stack("encoder.layer.%d.attention", VIT, always {}) },
    harmless = "layerscale_value apply_layernorm use_mask_token" },
  { types = { "albert" }, stacks = albert, beside = { "^LayerNorm%." } },
  { types = { "mpnet" }, stacks = { stack("encoder.layer.%d.attention.attn", { "q", "k", "v", "o" },
    joined(PADDED, k.BIAS)) }, harmless = "relative_attention_num_buckets" },
  { types = { "nomic_bert" }, stacks = { stack("encoder.layers.%d.attn", { "Wqkv", "out_proj" }, joined(PADDED,
    rope("half", { theta = 1000, theta_of = { "rope_theta", "rotary_emb_base" } }))) },
    older = { hidden_size = "n_embd", num_attention_heads = "n_head", num_hidden_layers = "n_layer" },
    harmless = "rotary_emb_fraction=1 rotary_emb_interleaved=false rotary_emb_scale_base rotary_scaling_factor " ..
      "causal=false use_rms_norm scale_attn_weights=true max_trained_positions parallel_block_tied_norm prenorm" },
  { types = { "jina_embeddings_v3" }, stacks = { stack("encoder.layers.%d.mixer", { "Wqkv", "out_proj" },
    joined(PADDED, rope("half", { theta = 20000 }))) } },
  { types = { "swinv2" }, stacks = swinv2, harmless = "path_norm pretrained_window_sizes",
    beside = { "^self%.continuous_position_bias_mlp%.", "^self%.relative_coords_table$",
               "^self%.relative_position_index$" } },
  { types = { "swin", "donut-swin", "maskformer-swin" }, stacks = swin, harmless = "path_norm",
    beside = { "^self%.relative_position_bias_table$", "^self%.relative_position_index$" } },
  { types = { "clip_text_model" }, stacks = tower(CAUSAL_ALWAYS), defaults = sizes(512, 8, 12) },
  { types = { "clip_vision_model", "siglip_vision_model", "siglip_text_model" }, stacks = tower(always {}),
    defaults = sizes(768, 12, 12), harmless = "vision_use_head" },
  { types = { "clip" }, harmless = "logit_scale_init_value", parts = {
    { within = { "text_config_dict", "text_config" }, of = "clip_text_model", before = "text_model." },
    { within = { "vision_config_dict", "vision_config" }, of = "clip_vision_model", before = "vision_model." } } },
  { types = { "siglip" }, parts = {
    { within = { "text_config" }, of = "siglip_text_model", before = "text_model." },
    { within = { "vision_config" }, of = "siglip_vision_model", before = "vision_model." } } },
  { types = { "whisper" }, stacks = seq2seq(always {}), harmless = shapes.HALVES .. " " .. shapes.SPEC },
  { types = { "wav2vec2", "hubert" }, stacks = { stack("encoder.layers.%d.attention", OUT_PROJ, always {}) },
    harmless = shapes.CONVOLUTIONS },
  { types = { "bart", "marian", "mbart", "m2m_100", "pegasus" }, stacks = seq2seq(PADDED),
    harmless = shapes.BART },
  { types = { "moonshine" }, stacks = {
    moonshine("encoder", "self_attn", MOONSHINE),
    moonshine("decoder", "self_attn", joined(CAUSAL_ALWAYS, MOONSHINE)),
    moonshine("decoder", "encoder_attn", CROSS) },
    harmless = "pad_head_dim_to_multiple_of encoder_num_attention_heads decoder_num_attention_heads " ..
      "encoder_num_key_value_heads decoder_num_key_value_heads" },
  { types = { "t5" }, stacks = shapes.t5(), beside = { "^relative_attention_bias%.weight$" },
    harmless = "relative_attention_num_buckets relative_attention_max_distance scale_decoder_outputs" },
  { types = { "perceiver" }, stacks = {
    stack("encoder.cross_attention.attention", BERT, k.perceiver_inputs, {
      layers = false, h = "num_cross_attention_heads", d_model = "d_latents" }),
    stack("encoder.self_attends.%d.attention", BERT, k.perceiver, {
      layers = "num_self_attends_per_block", h = "num_self_attention_heads", d_model = "d_latents" }) },
    beside = { "^self%.layernorm[12]%." },
    harmless = "num_attention_heads cross_attention_widening_factor self_attention_widening_factor" },
  { types = { "gpt2" }, stacks = { stack("h.%d.attn", { "c_attn", "c_proj" }, joined(CAUSAL, k.gpt2), {
    layers = "n_layer", h = "n_head", d_model = "n_embd", in_out = true }) }, beside = BUFFERS,
    harmless = "reorder_and_upcast_attn" },
  { types = { "gptj" }, stacks = { stack("h.%d.attn", OUT_PROJ, joined(CAUSAL, k.gptj), GPT) }, beside = BUFFERS,
    defaults = { rotary_dim = 64 },
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
  { types = { "mpt" }, stacks = { stack("blocks.%d.attn", { "Wqkv", "out_proj" }, joined(CAUSAL, k.mpt), {
    layers = "n_layers", h = "n_heads", d_model = "d_model" }) },
    harmless = "learned_pos_emb logit_scale norm_type attn_config.alibi=true attn_config.alibi_bias_max=8 " ..
      "attn_config.attn_type=multihead_attention" },
  { types = { "falcon" }, stacks = { stack("h.%d.self_attention", { "query_key_value", "dense" },
                                           joined(CAUSAL, rope "half", k.falcon), { heads = true }) },
    beside = BUFFERS, harmless = "num_kv_heads num_ln_in_parallel_attn parallel_attn " ..
      "apply_residual_connection_post_layernorm" },
  { types = { "llama4_text" }, stacks = decoder(O_PROJ, joined(k.llama4_rope, k.llama4)),
    harmless = "attn_scale", defaults = sizes(5120, 40, 48, {
      num_key_value_heads = 8, head_dim = 128, rms_norm_eps = 1e-5, attention_chunk_size = 8192 }) },
  { types = { "llama4" }, parts = { { within = { "text_config" }, of = "llama4_text", before = "language_model." } } },
  { types = { "smollm3" }, stacks = decoder(O_PROJ, joined(k.some_rope("half", { theta = 2e6 }),
                                                           window(k.without_rope))),
    defaults = { num_key_value_heads = 4 } },
  { types = { "granite", "granitemoe" }, stacks = decoder(O_PROJ, joined(rope "half", k.granite)),
    harmless = "position_embedding_type=rope embedding_multiplier logits_scaling residual_multiplier" },
  { types = { "mixtral" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 1e6 }), k.windows)),
    defaults = { num_key_value_heads = 8 } },
  { types = { "ministral3" }, stacks = decoder(O_PROJ, joined(k.ministral3, k.windows)),
    harmless = "max_position_embeddings", defaults = sizes(4096, 32, 34, { num_key_value_heads = 8, head_dim = 128,
      rope_parameters = { rope_type = "yarn", rope_theta = 1e6, factor = 16, mscale = 1, mscale_all_dim = 1,
                          original_max_position_embeddings = 16384, llama_4_scaling_beta = 0.1 } }) },
  { types = { "mistral3" }, parts = { { within = { "text_config" }, of = "mistral", before = MULTIMODAL } } },
  { types = { "llama" }, stacks = decoder(O_PROJ, rope "half"), beside = BUFFERS,
    harmless = "rope_interleaved=false", defaults = sizes(4096, 32, 32) },
  { types = { "gemma" }, stacks = decoder(O_PROJ, rope "half"), beside = BUFFERS, defaults = { head_dim = 256 } },
  { types = { "mistral" }, stacks = decoder(O_PROJ, joined(rope "half", k.mistral)), beside = BUFFERS,
    defaults = sizes(4096, 32, 32, { num_key_value_heads = 8, sliding_window = 4096 }) },
  { types = { "starcoder2" }, stacks = decoder(O_PROJ, joined(rope "half", k.windows)), beside = BUFFERS,
    defaults = { num_key_value_heads = 2 }, harmless = "norm_type" },
  { types = { "qwen2" }, stacks = decoder(O_PROJ, joined(rope "half", window(k.qwen))),
    beside = BUFFERS, harmless = "max_window_layers use_sliding_window use_mrope=false",
    defaults = { num_key_value_heads = 32, sliding_window = 4096 } },
  { types = { "qwen3" }, stacks = decoder(O_PROJ, joined(rope "half", window(k.qwen), k.rms), { more = GAINS }),
    harmless = "max_window_layers use_sliding_window use_mrope=false",
    defaults = { num_key_value_heads = 32, head_dim = 128, sliding_window = 4096 } },
  { types = { "qwen2_moe" }, stacks = decoder(O_PROJ, joined(rope "half", window(k.qwen_moe))),
    harmless = "max_window_layers use_sliding_window", defaults = { num_key_value_heads = 16, sliding_window = 4096 } },
  { types = { "qwen3_moe" }, stacks = decoder(O_PROJ, joined(rope "half", k.switched, k.rms),
                                              { more = GAINS }), harmless = "max_window_layers",
    defaults = { num_key_value_heads = 4, sliding_window = 4096 } },
  { types = { "qwen2_vl_text", "qwen2_5_vl_text" }, harmless = MROPE .. "max_window_layers use_sliding_window",
    stacks = decoder(O_PROJ, joined(rope("half", { theta = 1e6 }), window(k.qwen))),
    defaults = sizes(8192, 64, 80, { num_key_value_heads = 8, sliding_window = 4096, max_window_layers = 80 }) },
  { types = { "qwen3_vl_text" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 5e5 }), k.rms),
                                                  { more = GAINS }), harmless = MROPE,
    defaults = sizes(4096, 32, 32, { num_key_value_heads = 32, head_dim = 128 }) },
  { types = { "qwen2_vl" }, parts = { { within = { "text_config" }, of = "qwen2_vl_text", flat = true } } },
  { types = { "qwen2_5_vl" }, parts = { { within = { "text_config" }, of = "qwen2_5_vl_text", flat = true } } },
  { types = { "qwen3_vl" }, parts = { { within = { "text_config" }, of = "qwen3_vl_text" } } },
  { types = { "gemma3" }, parts = {
    { within = { "text_config" }, of = "gemma3_text", before = MULTIMODAL },
    { within = { "vision_config" }, of = "siglip_vision_model",
      before = { "vision_tower.vision_model.", "vision_tower." } } } },
  { types = { "gemma3n_text" }, stacks = { stack("layers.%d.self_attn", O_PROJ,
    joined(k.gemma3n, window(k.whole_each(5)), k.rms), { more = GAINS }) }, beside = OF_CALLER,
    harmless = "final_logit_softcapping rope_theta rope_local_base_freq rope_scaling altup_coef_clip " ..
      "altup_correct_scale full_attention sliding_attention",
    defaults = sizes(2048, 8, 35, { num_key_value_heads = 2, head_dim = 256, sliding_window = 512,
                                    num_kv_shared_layers = 15 }) },
  { types = { "gemma3n" }, parts = { { within = { "text_config" }, of = "gemma3n_text", before = MULTIMODAL } } },
  { types = { "gemma4_text" }, stacks = GEMMA_4, beside = OF_CALLER, harmless = OF_GEMMA_4, defaults = gemma4(512) },
  { types = { "gemma4_unified_text" }, stacks = GEMMA_4, beside = OF_CALLER, harmless = OF_GEMMA_4,
    defaults = gemma4(1024) },
  { types = { "gemma4" }, parts = { { within = { "text_config" }, of = "gemma4_text", before = MULTIMODAL } } },
  { types = { "gemma2" }, stacks = decoder(O_PROJ, joined(rope "half", window(k.even), k.scalar, k.softcapped)),
    harmless = "final_logit_softcapping sliding_window_size",
    defaults = { num_key_value_heads = 4, head_dim = 256, sliding_window = 4096, attn_logit_softcapping = 50 } },
  { types = { "gemma3_text" }, stacks = { stack("layers.%d.self_attn", O_PROJ,
    joined(k.gemma3, k.scalar, k.rms), { more = shapes.GAINS_LESS_1 }) },
    harmless = "attn_logit_softcapping final_logit_softcapping rope_theta rope_local_base_freq rope_scaling " ..
      "_sliding_window_pattern full_attention sliding_attention",
    defaults = sizes(2304, 8, 26, { num_key_value_heads = 4, head_dim = 256, sliding_window = 4096 }) },
  { types = { "phi" }, stacks = decoder({ "q_proj", "k_proj", "v_proj", "dense" },
                                        rope("half", { part = 0.5 })), beside = BUFFERS },
  { types = { "phi3" }, stacks = decoder({ "qkv_proj", "o_proj" },
    joined(rope("half", { part = 1 }), k.windows)), harmless = "original_max_position_embeddings" },
  { types = { "cohere" }, stacks = decoder(O_PROJ, joined(rope("interleaved", { theta = false }), k.cohere),
                                           { more = GAINS }), harmless = "logit_scale" },
  { types = { "olmo2" }, stacks = decoder(O_PROJ, joined(rope "half", k.rms, always { norm_span = "all" }),
                                          { more = GAINS }), defaults = { rms_norm_eps = 1e-5 } },
  { types = { "olmo3" }, stacks = decoder(O_PROJ, joined(k.olmo3, window(k.whole_each(4)), k.rms,
    always { norm_span = "all" }), { more = GAINS }), harmless = "rope_theta rope_scaling " ..
      "full_attention sliding_attention", defaults = { rms_norm_eps = 1e-5, sliding_window = 4096 } },
  { types = { "gpt_oss" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 150000 }), window(k.even),
                                                           always { sink = true }),
                                            { more = { sink = "sinks" } }),
    defaults = { num_key_value_heads = 8, head_dim = 64, sliding_window = 128, rope_scaling = {
      rope_type = "yarn", factor = 32, truncate = false, original_max_position_embeddings = 4096 } } },
}

for _, name in ipairs { "decoders", "encoders", "texts", "texts_more", "composites", "images", "scenes",
                      "sounds", "speech", "axial", "masks" } do
  local more = require("model.families_" .. name)
  table.move(more, 1, #more, #M.rows + 1, M.rows)
end
for _, row in ipairs(M.rows) do row.biases = biases[row.types[1]] end

return M
