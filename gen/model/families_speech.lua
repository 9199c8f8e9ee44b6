-- Rows of models that listen and speak, whose layers are those of decoders, as gen/model/families.lua describes them.

local biases = require "model.family_biases"
local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local s = require "model.family_sound_keys"
local shapes = require "model.family_shapes"

local stack = family_rows.stack
local joined, rope = k.joined, k.rope
local PADDED, CROSS, CAUSAL_ALWAYS = k.PADDED, k.CROSS, k.CAUSAL_ALWAYS
local O_PROJ, OUT_PROJ, sizes, decoder = shapes.O_PROJ, shapes.OUT_PROJ, shapes.sizes, shapes.decoder

local LAYER = "layers.%d.self_attn"
local LINEAR = { "q_proj.linear", "k_proj.linear", "v_proj.linear", "o_proj.linear" }

-- A decoder of texts and codes, and the model of the codes.
local function of_codes(codes, before, defaults)
  return {
    { within = {}, flat = true, before = { "decoder.model.", "model.", "" }, row = {
      biases = biases.mistral, stacks = { stack(LAYER, LINEAR, joined(CAUSAL_ALWAYS, rope "half", s.kept)) },
      defaults = defaults } },
    { within = { codes }, of = "mimi", before = before, optional = true } }
end

-- The decoder of a text, whose encoder has sums of several scores.
local function written(at, maps, own, cross)
  return { stack(at .. own, maps, CAUSAL_ALWAYS), stack(at .. cross, maps, joined(CROSS, PADDED)) }
end
local PARAKEET = { within = { "encoder_config" }, of = "parakeet_encoder", before = "encoder.", optional = true }

local function half(side)
  return stack(("%s.%s_transformer.layers.%%d.self_attn"):format(side, side), O_PROJ, joined(
    k.CAUSAL_ONLY, rope "half", k.windows))
end

local LLAMA_3 = { factor = 32, rope_theta = 5e5, high_freq_factor = 0.5, low_freq_factor = 0.125,
                  original_max_position_embeddings = 1024, rope_type = "llama3" }

-- Texts and what is written of them; sounds have sums of several scores.
local function texts_alone()
  local function of(side, kind, keys)
    return stack(("text_%s.layers.%%d.%s"):format(side, kind), OUT_PROJ, keys, {
      layers = side .. "_layers", h = side .. "_attention_heads" })
  end
  return { of("encoder", "self_attn", PADDED), of("decoder", "self_attn", CAUSAL_ALWAYS),
           of("decoder", "cross_attention", joined(CROSS, PADDED)) }
end

-- One of the three models of Bark. They run in turn, and each reads what the one before has written.
local function bark(name, keys)
  return { within = { name .. "_config" }, before = name .. ".", row = { biases = biases.bark, beside = { "^bias$" },
    stacks = { stack("layers.%d.attn", { "att_proj", "out_proj" }, keys, { layers = "num_layers", h = "num_heads" }) },
    defaults = { num_layers = 12, num_heads = 12, hidden_size = 768 } } }
end

local VOXTRAL = decoder(O_PROJ, joined(rope "half", k.windows))

return {
  { types = { "seamless_m4t", "seamless_m4t_v2" }, stacks = texts_alone,
    harmless = shapes.HALVES .. " speech_encoder_attention_heads t2u_encoder_attention_heads " ..
      "position_embeddings_type t2u_decoder_attention_heads left_max_position_embeddings " ..
      "right_max_position_embeddings rotary_embedding_base t2u_max_position_embeddings " ..
      "num_conv_pos_embedding_groups num_conv_pos_embeddings" },
  { types = { "moshi" }, parts = of_codes("audio_encoder_config", "audio_encoder.", sizes(4096, 32, 32, {
    sliding_window = 3000 })) },
  { types = { "kyutai_speech_to_text" }, parts = of_codes("codec_config", "codec_model.", sizes(2048, 32, 48, {
    sliding_window = 375 })) },
  { types = { "gradium_phonon_tts" }, stacks = decoder({ "in_proj", "o_proj" },
    joined(rope "interleaved", s.unbiased, s.thirds), { apart = true }), defaults = sizes(768, 12, 6),
    harmless = "flow_head_config lsd_time_logit_mean duration_delta_scale loss_weighting_num_layers" },
  { types = { "higgs_audio_v2" }, stacks = decoder(O_PROJ, rope "half"),
    defaults = sizes(3072, 24, 28, { num_key_value_heads = 8, head_dim = 128, rope_parameters = LLAMA_3 }) },
  { types = { "voxtral_realtime_text" }, stacks = VOXTRAL,
    defaults = sizes(4096, 32, 32, { num_key_value_heads = 8, head_dim = 128, sliding_window = 4096 }) },
  { types = { "voxtral_realtime_encoder" }, stacks = { stack(LAYER, O_PROJ, joined(k.CAUSAL_ONLY, rope "half",
    k.windows)) }, defaults = sizes(1280, 32, 32, { head_dim = 64, sliding_window = 750 }),
    older = s.WHISPER },
  { types = { "voxtral_realtime" }, parts = {
    { within = { "text_config" }, row = { stacks = VOXTRAL, defaults = sizes(3072, 32, 26, { num_key_value_heads = 8,
      head_dim = 128, sliding_window = 8192, rope_parameters = { rope_theta = 1e6 } }) },
      before = shapes.MULTIMODAL },
    { within = { "audio_config" }, of = "voxtral_realtime_encoder", before = "audio_tower." } } },
  { types = { "pocket_tts_audio_tokenizer" }, stacks = { half "encoder", half "decoder" },
    defaults = sizes(512, 8, 2, { num_key_value_heads = 8, sliding_window = 250 }),
    harmless = "norm_eps layer_scale_initial_scale use_causal_conv" },
  { types = { "bark" }, parts = {
    bark("semantic", CAUSAL_ALWAYS), bark("coarse_acoustics", CAUSAL_ALWAYS), bark("fine_acoustics", PADDED) } },
  { types = { "canary_decoder" }, stacks = written("layers.%d.", O_PROJ, "self_attn", "encoder_attn"),
    defaults = sizes(1024, 8, 8, {
    num_key_value_heads = 8, head_dim = 128 }) },
  { types = { "canary" }, parts = { { within = { "decoder_config" }, of = "canary_decoder", before = "decoder." },
                                    PARAKEET } },
  { types = { "cohere_asr" }, parts = { { within = {}, flat = true, row = {
    biases = biases.canary_decoder, defaults = sizes(1024, 8, 8), stacks = written("transf_decoder._decoder.layers.%d.",
      { "query_net", "key_net", "value_net", "out_projection" }, "first_sub_layer", "second_sub_layer") } },
    PARAKEET } },
  { types = { "neucodec", "xcodec2" }, stacks = { stack("acoustic_decoder.layers.%d.self_attn", O_PROJ, s.by_heads) },
    defaults = sizes(1024, 16, 12, { num_key_value_heads = 16, head_dim = 64 }), harmless = "semantic_model_config" },
}
