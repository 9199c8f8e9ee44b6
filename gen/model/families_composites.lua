-- Rows of models of texts and of images or sounds, whose parts are of other types, and of the texts that such models
-- alone have, as gen/model/families.lua describes them.

local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local shapes = require "model.family_shapes"
local t = require "model.family_text_keys"

local stack = family_rows.stack
local always, joined, rope = k.always, k.joined, k.rope
local BERT, GAINS, O_PROJ, OUT_PROJ, decoder = shapes.BERT, shapes.GAINS, shapes.O_PROJ, shapes.OUT_PROJ,
  shapes.decoder
local sizes = shapes.sizes

local SECTIONS = "mrope_section mrope_interleaved "
local EXPERTS = "norm_topk_prob routed_scaling_factor moe_norm_min "
local GRANITE = "embedding_multiplier logits_scaling residual_multiplier "
local SCORES = "logit_scale_init_value "

-- Where the towers of images stand; some models of sounds have one at the same place.
local VISION = { "vision_tower.vision_model.", "vision_tower.", "vision_model." }
local QWEN = { "visual." }
local TEXT_MODEL = { "text_model." }
local PLAIN = { "language_model.model.", "language_model.", "" }

-- A text as a part of its model has other maps than one of its own.
local function cosmos(maps) return decoder(maps, rope("half", { theta = 1e8 }))[1] end

local function text(of, before) return { within = { "text_config" }, of = of, before = before or shapes.MULTIMODAL } end

-- A part that is left out where its type has no row.
local function tower(of, before, within)
  return { within = { within or "vision_config" }, of = of, optional = true, before = before or VISION }
end

local function sounds(of) return tower(of, "audio_tower.", "audio_config") end

local function both(of, tower_of) return { text(of), tower_of } end

local function qformer(of) return tower(of, "qformer.", "qformer_config") end

local function blip_2(kind)
  return { text "opt", tower(kind .. "_vision_model", "vision_model."), qformer(kind .. "_qformer") }
end

-- Layers of a list take keys and values of images.
local function mllama(c)
  local function is_cross(of, i) return t.is_in(of:list "cross_attention_layers" or t.MLLAMA_CROSS, i) end
  local own = stack("layers.%d.self_attn", O_PROJ, joined(k.CAUSAL_ALWAYS, rope("half", { theta = 5e5 })))
  local masked = always { mask = "add", mask_dims = "bqk" }
  local cross = stack("layers.%d.cross_attn", O_PROJ, joined(k.CROSS, k.rms, masked), { more = GAINS })
  own.has = function(of, i) return not is_cross(of, i) end
  cross.has = is_cross
  return t.is_in(c:list "cross_attention_layers" or t.MLLAMA_CROSS) and { own, cross } or { own }
end

return {
  { types = { "aria_text" }, stacks = decoder(O_PROJ, rope "half"),
    defaults = sizes(4096, 32, 32, { num_key_value_heads = 32, head_dim = 128 }) },
  { types = { "ernie4_5_vl_moe_text" }, stacks = decoder(O_PROJ, rope("interleaved", { theta = 5e5 })),
    defaults = sizes(2560, 20, 28, { num_key_value_heads = 4 }), harmless = SECTIONS .. EXPERTS },
  { types = { "glm4v_text" }, stacks = decoder(O_PROJ, rope("interleaved", { part = 1 })), harmless = SECTIONS,
    defaults = sizes(4096, 32, 40, { num_key_value_heads = 2 }) },
  { types = { "glm_ocr_text" }, stacks = decoder(O_PROJ, rope("interleaved", { part = 1 })), harmless = SECTIONS,
    defaults = sizes(1024, 16, 16, { num_key_value_heads = 8 }) },
  { types = { "glm4v_moe_text" }, stacks = decoder(O_PROJ, rope("half", { part = 0.5 })),
    defaults = sizes(4096, 96, 46, { num_key_value_heads = 8 }), harmless = SECTIONS .. EXPERTS },
  { types = { "glm_image_text" }, stacks = decoder(O_PROJ, rope("half", { part = 1 })), harmless = SECTIONS,
    defaults = sizes(4096, 32, 40, { num_key_value_heads = 2 }) },
  { types = { "paddleocr_vl_text" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 5e5 }),
    k.window(function() return false end))), harmless = SECTIONS .. "max_window_layers use_sliding_window",
    defaults = sizes(1024, 16, 18, { num_key_value_heads = 2, head_dim = 128 }) },
  { types = { "qwen3_vl_moe_text" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 5e5 }), k.rms),
                                                      { more = GAINS }), harmless = SECTIONS .. EXPERTS,
    defaults = sizes(2048, 16, 24, { num_key_value_heads = 16, head_dim = 128 }) },
  { types = { "emu3_text_model" }, stacks = decoder(O_PROJ, rope("half", { theta = 1e6 })),
    defaults = sizes(4096, 32, 32, { num_key_value_heads = 8 }) },
  { types = { "granite_docling_text" }, stacks = decoder(O_PROJ, joined(rope "half", k.granite)),
    defaults = sizes(1024, 16, 28, { num_key_value_heads = 4, attention_multiplier = 0.015625 }), harmless = GRANITE },
  { types = { "granite4_vision_text" }, stacks = decoder(O_PROJ, joined(rope "half", k.granite)), harmless = GRANITE,
    defaults = sizes(4096, 32, 32) },
  { types = { "cosmos3_edge_text" }, stacks = { cosmos { "to_q", "to_k", "to_v", "to_out" }, cosmos(O_PROJ) },
    harmless = SECTIONS,
    defaults = sizes(2048, 16, 28, { num_key_value_heads = 8, head_dim = 128 }) },
  { types = { "mllama_text_model" }, stacks = mllama, defaults = sizes(4096, 32, 40, { num_key_value_heads = 8,
                                                                                    rms_norm_eps = 1e-5 }) },
  { types = { "kosmos_2_5_text_model" }, stacks = { stack("layers.%d.self_attn", OUT_PROJ, k.CAUSAL_ALWAYS, {
    layers = "layers", h = "attention_heads", d_model = "embed_dim" }) }, harmless = "scale_embedding",
    defaults = { layers = 24, attention_heads = 16, embed_dim = 1536 } },
  { types = { "phi4_multimodal" }, stacks = decoder({ "qkv_proj", "o_proj" }, joined(rope("half", { part = 1 }),
    k.windows)), defaults = { num_key_value_heads = 8 }, harmless = "original_max_position_embeddings" },
  { types = { "aria" }, parts = both("aria_text", tower "idefics3_vision") },
  { types = { "exaone4_5" }, parts = both("exaone4", tower("exaone4_5_vision", QWEN)) },
  { types = { "glm4v" }, parts = both("glm4v_text", tower("glm4v_vision", QWEN)) },
  { types = { "glm4v_moe" }, parts = both("glm4v_moe_text", tower("glm4v_moe_vision", QWEN)) },
  { types = { "glm_ocr" }, parts = both("glm_ocr_text", tower("glm_ocr_vision", QWEN)) },
  { types = { "glm_image" }, parts = both("glm_image_text", tower("glm_image_vision", QWEN)) },
  { types = { "granite4_vision" }, parts = both("granite4_vision_text", tower "clip_vision_model") },
  { types = { "got_ocr2" }, parts = both("qwen2", tower "got_ocr2_vision") },
  { types = { "internvl" }, parts = both("qwen2", tower "internvl_vision") },
  { types = { "qianfan_ocr" }, parts = {
    text("qwen3", { "language_model.model.", "language_model.encoder.", "language_model." }),
    tower "qianfan_ocr_vision" } },
  { types = { "ovis2" }, parts = both("qwen2", tower("ovis2_vision", {
    "vision_tower.transformer.", "vision_tower." })) },
  { types = { "paddleocr_vl" }, parts = { text("paddleocr_vl_text", PLAIN), tower("paddleocr_vl_vision", QWEN) } },
  { types = { "qwen3_vl_moe" }, parts = both("qwen3_vl_moe_text", tower("qwen3_vl_moe_vision", QWEN)) },
  { types = { "ernie4_5_vl_moe" }, parts = { text("ernie4_5_vl_moe_text", PLAIN), tower "ernie4_5_vl_moe_vision" } },
  { types = { "video_llama_3" }, parts = both("qwen2", tower("video_llama_3_vision", VISION)) },
  { types = { "cosmos3_edge" }, parts = both("cosmos3_edge_text", tower("cosmos3_edge_vision", QWEN)) },
  { types = { "mllama" }, parts = both("mllama_text_model", tower("mllama_vision_model", "vision_model.")) },
  { types = { "qwen3_asr" }, parts = both("qwen3", sounds "qwen3_asr_encoder") },
  { types = { "fun_asr_nano" }, parts = both("qwen3", sounds "fun_asr_nano_encoder") },
  { types = { "lighton_ocr" }, parts = both("qwen3", tower("pixtral", { "vision_encoder.", "vision_tower." })) },
  { types = { "cohere2_vision" }, parts = both("cohere2", tower "siglip_vision_model") },
  { types = { "lfm2_vl" }, parts = both("lfm2", tower "siglip2_vision_model"), harmless = "projector_use_layernorm" },
  { types = { "paligemma" }, parts = both("gemma", tower "siglip_vision_model"),
    harmless = "text_config.use_bidirectional_attention=true" }, -- in the prefix alone, whose rows see each other
  { types = { "modernvbert" }, parts = { text("modernbert", TEXT_MODEL),
                                         tower("siglip_vision_model", "vision_model.") } },
  { types = { "deepseek_vl" }, parts = both("llama", tower "siglip_vision_model") },
  { types = { "janus" }, parts = both("llama", tower "janus_vision_model") },
  { types = { "granite_speech", "granite_speech_plus" }, parts = {
    text "granite", tower("granite_speech_encoder", "encoder.", "encoder_config"),
    tower("blip_2_qformer", "projector.qformer.", "projector_config") }, harmless = "window_size has_lora_adapter" },
  { types = { "emu3" }, parts = { text("emu3_text_model", { "text_model.model.", "text_model." }) } },
  { types = { "kosmos-2.5" }, parts = { text("kosmos_2_5_text_model", { "text_model.model.", "text_model." }),
                                        tower "kosmos_2_5_vision_model" } },
  { types = { "idefics2" }, parts = { text("mistral", TEXT_MODEL), tower("idefics2_vision", "vision_model."),
                                      tower("idefics2_perceiver", "connector.", "perceiver_config") } },
  { types = { "idefics3" }, parts = { text("llama", TEXT_MODEL), tower("idefics3_vision", "vision_model.") },
    harmless = "scale_factor" },
  { types = { "smolvlm" }, parts = { text("llama", TEXT_MODEL), tower("smolvlm_vision", "vision_model.") },
    harmless = "scale_factor" },
  { types = { "granite_docling" }, parts = { text("granite_docling_text", TEXT_MODEL),
                                             tower("granite_docling_vision", "vision_model.") },
    harmless = "scale_factor" },
  { types = { "blip-2" }, parts = blip_2 "blip_2", harmless = "num_query_tokens" },
  { types = { "instructblip" }, parts = blip_2 "instructblip", harmless = "num_query_tokens" },
  { types = { "instructblipvideo" }, parts = blip_2 "instructblipvideo", harmless = "num_query_tokens" },
}
