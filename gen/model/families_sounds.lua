-- Rows of further models of sounds, and of series of numbers, as gen/model/families.lua describes them.

local biases = require "model.family_biases"
local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local s = require "model.family_sound_keys"
local shapes = require "model.family_shapes"

local stack = family_rows.stack
local always, joined, rope = k.always, k.joined, k.rope
local PADDED, CROSS, CAUSAL_ALWAYS = k.PADDED, k.CROSS, k.CAUSAL_ALWAYS
local OUT_PROJ, O_PROJ, GAINS, sizes, decoder = shapes.OUT_PROJ, shapes.O_PROJ, shapes.GAINS, shapes.sizes,
  shapes.decoder

local LAYER = "layers.%d.self_attn"
local HALVED = rope("half", { part = 0.5 })

-- Of sounds and a text, whose types are these where the config does not say them.
local function of_sound_and_text(sound, text)
  return {
    { within = { "text_config" }, of = text, before = shapes.MULTIMODAL },
    { within = { "audio_config" }, of = sound, before = "audio_tower." } }
end

local MUSICGEN = { stack("layers.%d.self_attn", OUT_PROJ, CAUSAL_ALWAYS),
                   stack("layers.%d.encoder_attn", OUT_PROJ, joined(CROSS, PADDED)) }

-- Of a text, and of what is written by its words.
local function musicgen(of)
  return {
    { within = { "text_encoder" }, of = "t5", before = "text_encoder." },
    { within = { "audio_encoder" }, of = "encodec", before = "audio_encoder.", optional = true },
    { within = { "decoder" }, of = of, before = "decoder.model.decoder." } }
end

local function dia(of, keys, more) return stack("layers.%d." .. of, O_PROJ, joined(keys, s.unscaled), more) end

-- Two halves around codes.
local function mimi(side)
  return stack(side .. "_transformer.layers.%d.self_attn", O_PROJ, joined(k.CAUSAL_ONLY, rope "half", k.windows))
end

local SERIES = "scaling"

return {
  { types = { "qwen2_audio_encoder" }, stacks = { stack(LAYER, OUT_PROJ, PADDED, {
    layers = "encoder_layers", h = "encoder_attention_heads", d_model = "d_model" }) },
    older = { encoder_layers = "num_hidden_layers", encoder_attention_heads = "num_attention_heads" },
    defaults = { encoder_layers = 32, encoder_attention_heads = 20, d_model = 1280 }, harmless = "scale_embedding" },
  { types = { "voxtral_encoder" }, stacks = { stack(LAYER, OUT_PROJ, always {}) }, older = s.WHISPER,
    defaults = sizes(1280, 20, 32), harmless = "scale_embedding" },
  { types = { "audioflamingo3_encoder" }, stacks = { stack(LAYER, OUT_PROJ, PADDED) }, older = s.WHISPER,
    defaults = sizes(1280, 20, 32), harmless = "scale_embedding" },
  { types = { "moss_transcribe_diarize_audio" }, stacks = { stack(LAYER, OUT_PROJ, always {}) }, older = s.WHISPER,
    defaults = sizes(1024, 16, 24), harmless = "scale_embedding" },
  { types = { "omniasr_audio" }, stacks = { stack("layers.%d.attention", OUT_PROJ, PADDED) },
    defaults = sizes(1024, 16, 24), harmless = "num_conv_pos_embeddings num_conv_pos_embedding_groups" },
  { types = { "glmasr_encoder" }, stacks = { stack(LAYER, O_PROJ, HALVED) }, defaults = sizes(1280, 20, 32) },
  { types = { "qwen2_audio" }, parts = of_sound_and_text("qwen2_audio_encoder", "qwen2") },
  { types = { "voxtral" }, parts = of_sound_and_text("voxtral_encoder", "llama") },
  { types = { "audioflamingo3" }, parts = of_sound_and_text("audioflamingo3_encoder", "qwen2") },
  { types = { "moss_transcribe_diarize" }, parts = of_sound_and_text("moss_transcribe_diarize_audio", "qwen3") },
  { types = { "omniasr" }, parts = of_sound_and_text("omniasr_audio", "llama") },
  { types = { "glmasr" }, parts = of_sound_and_text("glmasr_encoder", "llama") },
  { types = { "lasr_encoder" }, stacks = { stack(LAYER, O_PROJ, joined(PADDED, rope "half")) },
    defaults = sizes(512, 8, 17), harmless = s.CONFORMER },
  { types = { "lasr_ctc" }, parts = { { within = { "encoder_config" }, of = "lasr_encoder", before = "encoder." } } },
  { types = { "nemotron3_diarization_audio" }, stacks = { stack(LAYER, O_PROJ, joined(PADDED, rope "half")) },
    defaults = sizes(512, 8, 31) },
  { types = { "nemotron3_diarization" }, harmless = "head_config", parts = {
    { within = { "audio_config" }, of = "nemotron3_diarization_audio", before = "audio_tower." } } },
  { types = { "pe_audio_encoder" }, defaults = sizes(1792, 14, 6, { head_dim = 128,
    rms_norm_eps = 1e-5 }), stacks = { stack(LAYER, O_PROJ, joined(PADDED, rope("interleaved", { theta = 20000 }),
                                                                   k.rms), { more = GAINS }) } },
  { types = { "moonshine_streaming_encoder" }, stacks = { stack(LAYER, O_PROJ, joined(PADDED, s.sliding)) },
    defaults = sizes(320, 8, 6) },
  { types = { "mimi" }, stacks = { mimi "encoder", mimi "decoder" }, defaults = sizes(512, 8, 8, {
    num_key_value_heads = 8, sliding_window = 250 }), harmless = "norm_eps layer_scale_initial_scale use_causal_conv" },
  { types = { "pocket_tts" }, stacks = decoder(O_PROJ, rope "half"), defaults = sizes(1024, 16, 6),
    harmless = "flow_head_config" },
  { types = { "csm_depth_decoder_model" }, stacks = decoder(O_PROJ, rope("half", { theta = 5e5 })),
    defaults = sizes(1024, 8, 4, { num_key_value_heads = 2 }) },
  { types = { "csm" }, parts = {
    { within = {}, flat = true, row = { biases = biases.llama, stacks = decoder(O_PROJ, rope("half", { theta = 5e5 })),
      defaults = sizes(2048, 32, 16, { num_key_value_heads = 8 }) }, before = { "backbone_model.", "" } },
    { within = { "depth_decoder_config" }, of = "csm_depth_decoder_model", before = "depth_decoder.model." },
    { within = { "codec_config" }, of = "mimi", before = "codec_model.", optional = true } } },
  { types = { "dia_encoder" }, stacks = { dia("self_attention", joined(PADDED, rope "half")) },
    defaults = sizes(1024, 16, 12, { num_key_value_heads = 16, head_dim = 128 }), harmless = "norm_eps" },
  { types = { "dia_decoder" }, stacks = { dia("self_attention", joined(CAUSAL_ALWAYS, rope "half")),
    dia("cross_attention", joined(CROSS, PADDED, s.cross_width), {
      h = "cross_num_attention_heads", h_kv = "cross_num_key_value_heads", dk = "cross_head_dim" }) },
    defaults = sizes(2048, 16, 18, { num_key_value_heads = 4, head_dim = 128, cross_num_attention_heads = 16,
      cross_head_dim = 128, cross_num_key_value_heads = 16, cross_hidden_size = 1024 }), harmless = "norm_eps" },
  { types = { "dia" }, harmless = "norm_eps delay_pattern", parts = {
    { within = { "encoder_config" }, of = "dia_encoder", before = "encoder." },
    { within = { "decoder_config" }, of = "dia_decoder", before = "decoder." } } },
  { types = { "musicgen_decoder" }, stacks = MUSICGEN, defaults = sizes(1024, 16, 24), harmless = "scale_embedding" },
  { types = { "musicgen_melody_decoder" }, stacks = { MUSICGEN[1] }, defaults = sizes(1024, 16, 24),
    harmless = "scale_embedding" },
  { types = { "musicgen" }, parts = musicgen "musicgen_decoder" },
  { types = { "musicgen_melody" }, parts = musicgen "musicgen_melody_decoder" },
  { types = { "patchtst" }, stacks = { stack("encoder.layers.%d.self_attn", OUT_PROJ, always {}, {
    d_model = "d_model" }) }, defaults = { d_model = 128, num_attention_heads = 4, num_hidden_layers = 3 },
    harmless = SERIES .. " channel_attention norm_type norm_eps pre_norm positional_encoding_type do_mask_input " ..
      "mask_type random_mask_ratio num_forecast_mask_patches channel_consistent_masking mask_value " ..
      "unmasked_channel_indices" },
  { types = { "time_series_transformer" }, stacks = shapes.seq2seq(always {}), harmless = SERIES .. " " ..
    shapes.HALVES },
  { types = { "informer" }, stacks = s.informer(shapes.seq2seq(always {})), harmless = SERIES .. " " ..
    shapes.HALVES },
}
