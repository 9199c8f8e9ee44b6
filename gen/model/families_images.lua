-- Rows of further models of images, and of texts and images, as gen/model/families.lua describes them.

local biases = require "model.family_biases"
local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local s = require "model.family_image_keys"
local shapes = require "model.family_shapes"

local stack = family_rows.stack
local always, joined = k.always, k.joined
local PADDED, CAUSAL_ALWAYS, SOME_KEYS, SOME = k.PADDED, k.CAUSAL_ALWAYS, s.SOME_KEYS, s.SOME
local BERT, VIT, OUT_PROJ, O_PROJ, sizes, tower = shapes.BERT, shapes.VIT, shapes.OUT_PROJ, shapes.O_PROJ, shapes.sizes,
  shapes.tower

local AT_BERT, AT_TOWER = "encoder.layer.%d.attention", "encoder.layers.%d.self_attn"
local PROJECTION = { "q_proj", "k_proj", "v_proj", "projection_layer" }
local PLACES = "use_mask_token use_absolute_position_embeddings layer_scale_init_value "
local HEADS = "pool_scales use_auxiliary_head head_in_index use_batch_norm_in_fusion_residual "
local LOGITS = "logit_scale_init_value max_logit_scale "

-- Of a text and an image.
local function of_two(text, vision, before_text, before_vision)
  return {
    { within = { "text_config_dict", "text_config" }, of = text, before = before_text or "text_model." },
    { within = { "vision_config_dict", "vision_config" }, of = vision, before = before_vision or "vision_model." } }
end

-- Stages of a transformer each, behind convolutions.
local LAYERS_OF_MOBILEVIT = { 2, 4, 3 }
local function mobilevit(c)
  local stacks = {}
  for i, width in ipairs(c:counts "hidden_sizes") do
    local at = ("encoder.layer.%d.transformer.layer."):format(i + 1)
    for layer = 0, (LAYERS_OF_MOBILEVIT[i] or 0) - 1 do
      stacks[#stacks + 1] = stack(at .. layer .. ".attention", VIT, always {}, { layers = false, d_model = width })
    end
  end
  return stacks
end

-- Stages of layers; rows of groups ask rows of the image at the end of a stage that has them.
local function groupvit(c)
  local stacks = {}
  for i, depth in ipairs(c:counts "depths") do
    local at = ("encoder.stages.%d."):format(i - 1)
    for layer = 0, depth - 1 do
      stacks[#stacks + 1] = stack(("%slayers.%d.self_attn"):format(at, layer), OUT_PROJ, always {}, { layers = false })
    end
    stacks[#stacks + 1] = stack(at .. "downsample.pre_assign_attn.attn", OUT_PROJ, k.CROSS, { layers = false })
  end
  return stacks
end

-- Layers, and those that ask an encoder.
local function qformer()
  local cross = stack("encoder.layer.%d.crossattention", VIT, s.of_encoder(1408))
  cross.has = function(c, i) return i % c:int("cross_attention_frequency", 2) == 0 end
  return { stack(AT_BERT, VIT, PADDED), cross }
end

local FRAMES = { mit_hidden_size = 512, mit_num_attention_heads = 8, mit_num_hidden_layers = 1 }

-- Attention of each frame, of its messages, and of the frames among each other.
local function xclip_vision()
  return { stack(AT_TOWER, OUT_PROJ, always {}), stack("encoder.layers.%d.message_attn", OUT_PROJ, always {}) }
end
local MIT = { stacks = { stack(AT_TOWER, OUT_PROJ, always {}, {
  layers = "mit_num_hidden_layers", h = "mit_num_attention_heads", d_model = "mit_hidden_size" }) },
  defaults = sizes(768, 12, 12, FRAMES) }
local PROMPTS = { biases = biases.xclip_prompts, stacks = { stack("prompts_generator.decoder.%d.cross_attn",
  { "q_proj", "k_proj", "v_proj", "proj" }, k.CROSS, {
    layers = "prompt_layers", h = "prompt_num_attention_heads", d_model = "projection_dim" }) },
  defaults = { projection_dim = 512, prompt_layers = 2, prompt_num_attention_heads = 8 } }

local GIT_TEXT = { stacks = { stack(AT_BERT, BERT, SOME) }, beside = { "^output%.LayerNorm%." } }

return {
  { types = { "beit", "data2vec-vision" }, stacks = { stack(AT_BERT, VIT, s.relative) },
    beside = { "relative_position_bias%." }, harmless = PLACES .. HEADS },
  { types = { "pixio", "vitpose_backbone" }, stacks = { stack(AT_BERT, VIT, always {}) },
    harmless = "apply_layernorm" },
  { types = { "tipsv2_vision_model" }, stacks = { stack("blocks.%d.attn", { "qkv", "proj" }, always {}) },
    harmless = "layerscale_value apply_layernorm", defaults = sizes(768, 12, 12) },
  { types = { "dpt" }, stacks = { stack(AT_BERT, VIT, s.dpt) }, harmless = HEADS },
  { types = { "videomae" }, stacks = { stack(AT_BERT, VIT, always {}, {
    biases_at = { q = "attention.q_bias", v = "attention.v_bias" } }) },
    harmless = "decoder_num_attention_heads norm_pix_loss", older = { qv_bias = "qkv_bias" } },
  { types = { "vilt" }, stacks = { stack(AT_BERT, VIT, SOME_KEYS) } },
  { types = { "timesformer" }, stacks = { stack(AT_BERT, { "attention.qkv", "output.dense" }, always {}),
    stack("encoder.layer.%d.temporal_attention", { "attention.qkv", "output.dense" }, always {}) },
    harmless = "attention_type" },
  { types = { "mgp-str" }, stacks = { stack("encoder.blocks.%d.attn", { "qkv", "proj" }, always {}) } },
  { types = { "radio" }, stacks = { stack("model.blocks.%d.attn", { "qkv", "proj" }, always {}) },
    harmless = "layerscale_value norm_mean norm_std" },
  { types = { "mobilevit" }, stacks = mobilevit },
  { types = { "flava_image_model" }, stacks = { stack(AT_BERT, VIT, always {}) }, defaults = sizes(768, 12, 12),
    harmless = "mask_token" },
  { types = { "flava_text_model" }, stacks = { stack(AT_BERT, VIT, PADDED) }, defaults = sizes(768, 12, 12) },
  { types = { "flava_multimodal_model" }, stacks = { stack(AT_BERT, VIT, PADDED) }, defaults = sizes(768, 12, 6) },
  { types = { "flava" }, harmless = LOGITS .. "skip_unmasked_multimodal_encoder", parts = {
    { within = { "text_config" }, of = "flava_text_model", before = "text_model." },
    { within = { "image_config" }, of = "flava_image_model", before = "image_model." },
    { within = { "multimodal_config" }, of = "flava_multimodal_model", before = "multimodal_model." } } },
  { types = { "aimv2_vision_model" }, stacks = { stack("encoder.layers.%d.attention", OUT_PROJ, always {}) },
    defaults = sizes(1024, 8, 24), harmless = "use_head" },
  { types = { "aimv2_text_model" }, stacks = { stack("encoder.layers.%d.attention", OUT_PROJ, joined(CAUSAL_ALWAYS,
    PADDED)) }, defaults = sizes(768, 6, 12) },
  { types = { "aimv2" }, parts = of_two("aimv2_text_model", "aimv2_vision_model"), harmless = LOGITS },
  { types = { "altclip_text_model" }, stacks = { stack({ AT_BERT, "encoder.layers.%d.attention" }, BERT, PADDED) },
    defaults = sizes(1024, 16, 24), beside = { "^output%.LayerNorm%." } },
  { types = { "altclip_vision_model" }, defaults = sizes(768, 12, 12),
    stacks = { stack({ AT_TOWER, "encoder.layer.%d.self_attn" }, OUT_PROJ, always {}) } },
  { types = { "altclip" }, parts = of_two("altclip_text_model", "altclip_vision_model", "text_model.roberta."),
    harmless = LOGITS },
  { types = { "groupvit_text_model" }, stacks = tower(CAUSAL_ALWAYS), defaults = sizes(256, 4, 12) },
  { types = { "groupvit_vision_model" }, stacks = groupvit,
    defaults = sizes(384, 6, 12, { depths = { 6, 3, 3 } }) },
  { types = { "groupvit" }, parts = of_two("groupvit_text_model", "groupvit_vision_model"), harmless = LOGITS },
  { types = { "xclip_text_model" }, stacks = tower(CAUSAL_ALWAYS), defaults = sizes(512, 8, 12) },
  { types = { "xclip_vision_model" }, stacks = xclip_vision, harmless = "mit_num_attention_heads", -- another module's
    defaults = sizes(768, 12, 12, FRAMES) },
  { types = { "xclip" }, harmless = LOGITS, parts = {
    { within = { "text_config" }, of = "xclip_text_model", before = "text_model." },
    { within = { "vision_config" }, of = "xclip_vision_model", before = "vision_model." },
    { within = { "vision_config" }, row = MIT, before = "mit." },
    { within = {}, flat = true, row = PROMPTS } } },
  { types = { "git_vision_model" }, stacks = tower(always {}), defaults = sizes(768, 12, 12) },
  { types = { "kosmos_2_vision_model" }, stacks = tower(always {}), defaults = sizes(1024, 16, 24) },
  { types = { "git" }, parts = { { within = {}, flat = true, row = GIT_TEXT },
    { within = { "vision_config" }, of = "git_vision_model", before = "image_encoder.vision_model." } } },
  { types = { "tipsv2_text_model" }, defaults = sizes(768, 12, 12), harmless = "scale_sqrt_depth",
    stacks = { stack("transformer.resblocks.%d.attn", { "in_proj", "out_proj" }, PADDED) } },
  { types = { "tipsv2" }, parts = of_two("tipsv2_text_model", "tipsv2_vision_model", "text_encoder.",
                                         "vision_encoder.") },
  { types = { "blip_2_vision_model", "instructblip_vision_model", "instructblipvideo_vision_model" },
    stacks = { stack(AT_TOWER, { "qkv", "projection" }, always {}) }, defaults = sizes(1408, 16, 39) },
  { types = { "blip_2_qformer", "instructblip_qformer", "instructblipvideo_qformer" }, stacks = qformer,
    beside = { "^output%.LayerNorm%." }, defaults = sizes(768, 12, 12), harmless = "use_qformer_text_input" },
  { types = { "internvl_vision" }, stacks = { stack(AT_BERT, PROJECTION, s.internvl, { more = shapes.GAINS }) },
    harmless = PLACES .. "norm_type", defaults = sizes(1024, 16, 24) },
  { types = { "qianfan_ocr_vision" }, harmless = PLACES .. "norm_type", defaults = sizes(1024, 16, 24),
    stacks = { stack("layers.%d.attention", PROJECTION, s.internvl, { more = shapes.GAINS }) } },
  { types = { "janus_vision_model" }, stacks = {
    stack(AT_TOWER, PROJECTION, s.janus) },
    defaults = sizes(1024, 16, 24) },
  { types = { "idefics2_vision" }, stacks = tower(SOME_KEYS), defaults = sizes(768, 12, 12) },
  { types = { "idefics3_vision", "smolvlm_vision" }, stacks = tower(SOME_KEYS), defaults = sizes(1152, 16, 12) },
  { types = { "granite_docling_vision" }, stacks = tower(always {}), harmless = "scale_factor",
    defaults = sizes(768, 12, 12) },
  { types = { "phi4_multimodal_vision" }, stacks = tower(SOME_KEYS), defaults = sizes(1152, 16, 27) },
  { types = { "ovis2_vision" }, stacks = { stack("encoder.layers.%d.attention", OUT_PROJ, always {}) },
    defaults = sizes(1024, 8, 24) },
  { types = { "molmo2_vision" }, stacks = { stack("layers.%d.self_attn", O_PROJ, always {}) },
    defaults = sizes(1152, 16, 25, { num_key_value_heads = 16, head_dim = 72 }),
    harmless = "num_position_embeddings" },
  { types = { "mllama_vision_model" }, defaults = { attention_heads = 16, hidden_size = 1280, num_hidden_layers = 32,
                                                    num_global_layers = 8 },
    stacks = { stack("transformer.layers.%d.self_attn", O_PROJ, SOME, { h = "attention_heads" }),
               stack("global_transformer.layers.%d.self_attn", O_PROJ, SOME, {
                 h = "attention_heads", layers = "num_global_layers" }) } },
}
