-- Which of the linear maps of q, k, v and o have a bias, by the first type of a row of gen/model/families*.lua, or the
-- name of a row without types: true, false, or { the flag that says so, its default }. All maps of other types have
-- one; GGUF files have what they have. transformers leaves a bias out that a file has beside these.

local function of(qkv, o)
  if o == nil then o = qkv end
  return { q = qkv, k = qkv, v = qkv, o = o }
end

local M = {
  starcoder2 = of { "use_bias", true }, falcon = of { "bias", false }, opt = of { "enable_bias", true },
  gpt_neox = of { "attention_bias", true }, gpt_oss = of { "attention_bias", true },
  qwen2 = of(true, false), qwen2_vl_text = of(true, false), qwen2_moe = of({ "qkv_bias", true }, false),
  vit = of({ "qkv_bias", true }, true), swin = of({ "qkv_bias", true }, true),
  swinv2 = { q = { "qkv_bias", true }, k = false, v = { "qkv_bias", true }, o = true },
  beit = { q = true, k = false, v = true, o = true }, dpt = of({ "qkv_bias", true }, true),
  pixio = of({ "qkv_bias", true }, true), vilt = of({ "qkv_bias", true }, true),
  tipsv2_vision_model = of({ "qkv_bias", true }, true),
  videomae = { q = { "qv_bias", true }, k = false, v = { "qv_bias", true }, o = true },
  timesformer = of({ "qkv_bias", true }, true), ["mgp-str"] = of({ "qkv_bias", true }, true),
  radio = of({ "qkv_bias", true }, true), mobilevit = of({ "qkv_bias", true }, true),
  flava_image_model = of({ "qkv_bias", true }, true), flava_text_model = of({ "qkv_bias", true }, true),
  flava_multimodal_model = of({ "qkv_bias", true }, true), aimv2_vision_model = of { "qkv_bias", false },
  aimv2_text_model = of { "qkv_bias", false }, ovis2_vision = of { "qkv_bias", false },
  xclip_prompts = of(false, true), blip_2_vision_model = of({ "qkv_bias", true }, true),
  internvl_vision = of({ "attention_bias", false }, true),
  qianfan_ocr_vision = of({ "attention_bias", true }, true), janus_vision_model = of({ "attention_bias", true }, true),
  molmo2_vision = of { "attention_bias", true }, mllama_vision_model = of(false),
  glm = of({ "attention_bias", true }, false), stablelm = of({ "use_qkv_bias", false }, false),
  seed_oss = of({ "attention_bias", true }, { "attention_out_bias", false }), gpt_neo = of(false, true),
  ernie4_5 = of { "use_bias", false }, ernie4_5_moe = of { "use_bias", false },
  jais2 = of { "attention_bias", true },
  big_bird = of({ "use_bias", true }, true), vit_mae = of({ "qkv_bias", true }, true),
  bark = of { "bias", true },
  codegen = of(false), gpt_neox_japanese = of(false), recurrent_gemma = of({ "attention_bias", false }, true),
  mimo_v2_flash = of({ "attention_bias", false }, false), openai_privacy_filter = of { "attention_bias", true },
  ernie4_5_vl_moe_text = of { "use_bias", false }, paddleocr_vl_text = of { "use_bias", false },
  glm4v_text = of(true, false), glm_ocr_text = of(false), glm4v_moe_text = of({ "attention_bias", true }, false),
  glm_image_text = of({ "attention_bias", true }, false), bigbird_pegasus = of { "use_bias", false },
  glmasr_encoder = { q = true, k = false, v = true, o = true },
  nemotron3_diarization_audio = of(false, true),
  pp_ocrv5_mobile_rec = of({ "qkv_bias", true }, true), florence_vision = of({ "qkv_bias", true }, true),
  clap_audio_model = of({ "qkv_bias", true }, true),
  swin2sr = { q = { "qkv_bias", true }, k = false, v = { "qkv_bias", true }, o = true },
  pix2struct_vision_model = of(false), pix2struct_text_model = of(false),
  videoprism_vision_model = of({ "qkv_bias", true }, true), videoprism_text_model = of({ "qkv_bias", true }, true),
  dinov3_vit = { q = { "query_bias", true }, k = { "key_bias", false }, v = { "value_bias", true },
                 o = { "proj_bias", true } },
  sapiens2 = { q = { "query_bias", true }, k = { "key_bias", true }, v = { "value_bias", true },
               o = { "proj_bias", true } },
  pixtral = of(false),
  whisper = { q = true, k = false, v = true, o = true },
}

for name in ("modernbert moonshine llama llama4_text smollm3 granite gemma gemma2 gemma3_text gemma3n_text " ..
             "gemma4_text qwen3 qwen3_moe qwen3_vl_text cohere olmo2 olmo3 cohere2 vaultgemma arcee mellum dots1 " ..
             "hyperclovax granitemoeshared nemotron olmo olmoe flex_olmo hy_v3 apertus phimoe granitemoehybrid " ..
             "bamba falcon_h1 eurobert csm_depth_decoder_model csm cohere2_moe flint granite_swa granitemoe_swa " ..
             "lara_mini olmo_hybrid modernbert-decoder ultrabert esmc t5_gemma_module t5gemma2_text " ..
             "aria_text qwen3_vl_moe_text emu3_text_model granite_docling_text " ..
             "cosmos3_edge_text nanochat embedding_gemma2_text gemma4_unified_text"):gmatch "%S+" do
  M[name] = of { "attention_bias", false }
end

for name in ("glm4_moe helium solar_open"):gmatch "%S+" do M[name] = of({ "attention_bias", false }, false) end

for name in ("nomic_bert t5 gptj mpt mistral mixtral ministral3 phi3 exaone4 kolibri1 ministral cwm minimax_m2 lfm2 " ..
             "lfm2_moe jamba mt5 minimax nemotron_h pegasus_x longt5 udop " ..
             "zamba zamba2 mllama_text_model phi4_multimodal voxtral_realtime_text gradium_phonon_tts " ..
             "blt cpmant"):gmatch "%S+" do
  M[name] = of(false)
end

for name in ("lasr_encoder pe_audio_encoder moonshine_streaming_encoder mimi pocket_tts " ..
             "csm_depth_decoder_model higgs_audio_v2 pocket_tts_audio_tokenizer neucodec " ..
             "granite4_vision_text"):gmatch "%S+" do
  M[name] = of { "attention_bias", false }
end

M.canary_decoder = of { "attention_bias", true }

for name in ("qwen2_audio_encoder voxtral_realtime_encoder voxtral_encoder audioflamingo3_encoder " ..
             "moss_transcribe_diarize_audio"):gmatch "%S+" do
  M[name] = M.whisper
end

for name in ("dia_encoder dia_decoder musicgen_decoder musicgen_melody_decoder"):gmatch "%S+" do
  M[name] = of(false)
end

return M
