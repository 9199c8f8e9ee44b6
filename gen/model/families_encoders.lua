-- Rows of further encoders, of models with an encoder and a decoder, and of images and sounds, as
-- gen/model/families.lua describes them.

local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local shapes = require "model.family_shapes"

local stack = family_rows.stack
local always, joined, rope = k.always, k.joined, k.rope
local PADDED, CROSS, CAUSAL_ALWAYS = k.PADDED, k.CROSS, k.CAUSAL_ALWAYS
local BERT, VIT, OUT_PROJ, O_PROJ, sizes, tower = shapes.BERT, shapes.VIT, shapes.OUT_PROJ, shapes.O_PROJ, shapes.sizes,
  shapes.tower

local AT_BERT = "encoder.layer.%d.attention"
local OWN_NORM = { "^output%.LayerNorm%.", "^LayerNorm%.", "^ln%.", "^self_attn_layer_norm%." }

-- The model reads no scaling of its rope.
local function esm(c)
  local kind, theta = c:word("position_embedding_type", "absolute"), c:positive("rope_theta", 10000)
  local keys = shapes.bert(c)
  for _, name in ipairs { "rope_scaling", "rope_parameters" } do c:only(name) end
  if kind == "rotary" then
    keys.rope, keys.rope_theta = "half", theta
  elseif kind ~= "absolute" then
    c:fail("position_embedding_type", "is not supported")
  end
  return keys
end

-- BLIP says in its code, not in its config, which of its texts are written: those of the decoder.
local BLIP = { always { kv_len = true }, always { kv_len = true, causal = true } }

local function trocr(kind, keys)
  return stack("decoder.layers.%d." .. kind, OUT_PROJ, keys, {
    layers = "decoder_layers", h = "decoder_attention_heads", d_model = "d_model" })
end

local XGLM = { layers = "num_layers", h = "attention_heads", d_model = "d_model" }
local GPT = { layers = "n_layer", h = "n_head", d_model = "n_embd", in_out = true }

-- Of a text and an image.
local function of_two(text, vision)
  return {
    { within = { "text_config_dict", "text_config" }, of = text, before = "text_model." },
    { within = { "vision_config_dict", "vision_config" }, of = vision, before = "vision_model." } }
end

-- Of a text and a tower of images, whose types are these where the config does not say them.
local function of_text_and_tower(text, tower_of)
  return {
    { within = { "text_config" }, of = text, before = shapes.MULTIMODAL },
    { within = { "vision_config" }, of = tower_of, optional = true,
      before = { "vision_tower.vision_model.", "vision_tower." } } }
end

local BART = shapes.BART .. " extra_layer_norm do_blenderbot_90_layernorm"
local T5 = "num_attention_heads relative_attention_num_buckets relative_attention_max_distance scale_decoder_outputs"
local T5_BIAS = { "^relative_attention_bias%.weight$" }
local CONVOLUTIONS = shapes.CONVOLUTIONS .. " conv_pos_kernel_size"

-- Attention of the decoder to the encoder has another name.
local function nllb_moe()
  local stacks = shapes.seq2seq(PADDED)
  stacks[3].at = "decoder.layers.%d.cross_attention"
  return stacks
end

return {
  { types = { "ernie", "bert-generation", "data2vec-text", "roc_bert", "roberta-prelayernorm", "xlm-roberta-xl",
              "megatron-bert", "rembert" }, stacks = { stack(AT_BERT, BERT, shapes.bert) }, beside = OWN_NORM },
  { types = { "layoutlm", "splinter", "markuplm", "visual_bert", "tapas" },
    stacks = { stack(AT_BERT, BERT, shapes.texts) },
    beside = OWN_NORM,
    harmless = "use_normalized_answer_loss special_visual_initialize reset_position_index_per_cell" },
  { types = { "big_bird" }, stacks = { stack(AT_BERT, BERT, shapes.big_bird) }, beside = OWN_NORM,
    harmless = "rescale_embeddings norm_type" },
  { types = { "esm" }, stacks = { stack(AT_BERT, BERT, esm) },
    beside = { "^LayerNorm%.", "^self%.rotary_embeddings%.inv_freq$" },
    harmless = "emb_layer_norm_before" },
  { types = { "gte" }, stacks = { stack(AT_BERT, { "qkv_proj", "o_proj" }, joined(PADDED, rope("half", {
    theta = 160000 }))) }, harmless = "position_embedding_type=rope pack_qkv=true layer_norm_type" },
  { types = { "eurobert" }, stacks = { stack("layers.%d.self_attn", O_PROJ, joined(PADDED, rope "half")) } },
  { types = { "vit_mae", "vit_msn", "ijepa", "vivit", "yolos", "audio-spectrogram-transformer" },
    stacks = { stack(AT_BERT, VIT, always {}) }, harmless = "decoder_num_attention_heads mask_ratio norm_pix_loss " ..
      "use_mid_position_embeddings" },
  { types = { "data2vec-audio", "unispeech", "unispeech-sat", "sew" },
    stacks = { stack("encoder.layers.%d.attention", OUT_PROJ, always {}) }, harmless = CONVOLUTIONS },
  { types = { "blenderbot", "blenderbot-small", "plbart" }, stacks = shapes.seq2seq(PADDED), harmless = BART },
  { types = { "nllb-moe" }, stacks = nllb_moe, harmless = BART ..
    " moe_eval_capacity_token_fraction normalize_router_prob_before_dropping" },
  { types = { "speech_to_text" }, stacks = shapes.seq2seq(PADDED), harmless = BART },
  { types = { "biogpt" }, stacks = { stack("layers.%d.self_attn", OUT_PROJ, CAUSAL_ALWAYS) },
    harmless = "scale_embedding" },
  { types = { "xglm" }, stacks = { stack("layers.%d.self_attn", OUT_PROJ, CAUSAL_ALWAYS, XGLM) },
    harmless = "scale_embedding attention_heads" },
  { types = { "mt5", "umt5", "pop2piano", "switch_transformers" }, stacks = shapes.t5(), beside = T5_BIAS,
    harmless = T5, defaults = { d_kv = 64 } },
  { types = { "imagegpt" }, stacks = { stack("h.%d.attn", { "c_attn", "c_proj" }, joined(CAUSAL_ALWAYS, k.gpt2), GPT) },
    beside = shapes.BUFFERS, harmless = "reorder_and_upcast_attn" },
  { types = { "openai-gpt" }, stacks = { stack("h.%d.attn", { "c_attn", "c_proj" }, CAUSAL_ALWAYS, GPT) },
    beside = shapes.BUFFERS },
  { types = { "ctrl" }, stacks = { stack("h.%d.multi_head_attention", { "Wq", "Wk", "Wv", "dense" }, CAUSAL_ALWAYS,
    shapes.GPT) } },
  { types = { "siglip2_text_model" }, stacks = tower(always {}), defaults = sizes(768, 12, 12) },
  { types = { "siglip2_vision_model" }, stacks = tower(PADDED), defaults = sizes(768, 12, 12),
    harmless = "vision_use_head" },
  { types = { "siglip2" }, parts = of_two("siglip2_text_model", "siglip2_vision_model") },
  { types = { "owlvit_text_model", "owlv2_text_model", "metaclip_2_text_model", "clipseg_text_model" },
    stacks = tower(CAUSAL_ALWAYS), defaults = sizes(512, 8, 12) },
  { types = { "owlvit_vision_model", "owlv2_vision_model", "metaclip_2_vision_model", "clipseg_vision_model",
              "chinese_clip_vision_model" }, stacks = tower(always {}), defaults = sizes(768, 12, 12) },
  { types = { "chinese_clip_text_model" }, stacks = { stack(AT_BERT, BERT, shapes.texts) }, beside = OWN_NORM,
    defaults = sizes(768, 12, 12) },
  { types = { "owlvit" }, parts = of_two("owlvit_text_model", "owlvit_vision_model"),
    harmless = "logit_scale_init_value" },
  { types = { "owlv2" }, parts = of_two("owlv2_text_model", "owlv2_vision_model"),
    harmless = "logit_scale_init_value" },
  { types = { "metaclip_2" }, parts = of_two("metaclip_2_text_model", "metaclip_2_vision_model"),
    harmless = "logit_scale_init_value" },
  { types = { "clipseg" }, parts = of_two("clipseg_text_model", "clipseg_vision_model"),
    harmless = "logit_scale_init_value decoder_num_attention_heads" },
  { types = { "chinese_clip" }, parts = of_two("chinese_clip_text_model", "chinese_clip_vision_model"),
    harmless = "logit_scale_init_value" },
  { types = { "blip_text_model" }, inner = true, stacks = {
    stack(AT_BERT, BERT, BLIP[1]), stack("bert." .. AT_BERT, BERT, BLIP[2]),
    stack("encoder.layer.%d.crossattention", BERT, shapes.of_encoder "encoder_hidden_size"),
    stack("bert.encoder.layer.%d.crossattention", BERT, shapes.of_encoder "encoder_hidden_size") },
    beside = OWN_NORM, defaults = sizes(768, 8, 12) },
  { types = { "blip_vision_model" }, stacks = { stack("encoder.layers.%d.self_attn", { "qkv", "projection" },
    always {}) }, defaults = sizes(768, 12, 12) },
  { types = { "blip" }, harmless = "logit_scale_init_value", parts = {
    { within = { "text_config" }, of = "blip_text_model",
      before = { "text_model.", "text_encoder.", "text_decoder." } },
    { within = { "vision_config" }, of = "blip_vision_model", before = "vision_model." } } },
  { types = { "llava", "llava_next", "llava_next_video", "vipllava" },
    parts = of_text_and_tower("llama", "clip_vision_model") },
  { types = { "llava_onevision" }, parts = of_text_and_tower("qwen2", "siglip_vision_model") },
  { types = { "aya_vision" }, parts = of_text_and_tower("cohere2", "siglip_vision_model") },
  { types = { "trocr" }, stacks = { trocr("self_attn", CAUSAL_ALWAYS),
    trocr("encoder_attn", shapes.of_encoder "cross_attention_hidden_size") },
    harmless = "scale_embedding use_learned_position_embeddings layernorm_embedding decoder_attention_heads" },
  { types = { "vision-encoder-decoder" }, harmless = "decoder.add_cross_attention", parts = {
    { within = { "encoder" }, before = "encoder." },
    { within = { "decoder" }, before = { "decoder.model.", "decoder.bert.", "decoder.roberta.", "decoder.transformer.",
                                         "decoder." } } } },
}
