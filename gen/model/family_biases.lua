-- Which of the linear maps of q, k, v and o have a bias, by the first type of a row of gen/model/families*.lua: true,
-- false, or { the flag that says so, its default }. All maps of other types have one; GGUF files have what they have.
-- transformers leaves a bias out that a file has beside these.

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
  glm = of({ "attention_bias", true }, false), stablelm = of({ "use_qkv_bias", false }, false),
  seed_oss = of({ "attention_bias", true }, { "attention_out_bias", false }), gpt_neo = of(false, true),
  ernie4_5 = of { "use_bias", false }, ernie4_5_moe = of { "use_bias", false },
  jais2 = of { "attention_bias", true },
  big_bird = of({ "use_bias", true }, true), vit_mae = of({ "qkv_bias", true }, true),
  codegen = of(false), gpt_neox_japanese = of(false), recurrent_gemma = of({ "attention_bias", false }, true),
  mimo_v2_flash = of({ "attention_bias", false }, false), openai_privacy_filter = of { "attention_bias", true },
  ernie4_5_vl_moe_text = of { "use_bias", false }, paddleocr_vl_text = of { "use_bias", false },
  glm4v_text = of(true, false), glm_ocr_text = of(false), glm4v_moe_text = of({ "attention_bias", true }, false),
  glm_image_text = of({ "attention_bias", true }, false), bigbird_pegasus = of { "use_bias", false },
  whisper = { q = true, k = false, v = true, o = true },
}

for name in ("modernbert moonshine llama llama4_text smollm3 granite gemma gemma2 gemma3_text gemma3n_text " ..
             "gemma4_text qwen3 qwen3_moe qwen3_vl_text cohere olmo2 olmo3 cohere2 vaultgemma arcee mellum dots1 " ..
             "hyperclovax granitemoeshared nemotron olmo olmoe flex_olmo hy_v3 apertus phimoe granitemoehybrid " ..
             "bamba falcon_h1 eurobert csm_depth_decoder_model csm cohere2_moe flint granite_swa granitemoe_swa " ..
             "lara_mini olmo_hybrid modernbert-decoder ultrabert esmc t5_gemma_module t5gemma2_text " ..
             "aria_text qwen3_vl_moe_text emu3_text_model granite_docling_text " ..
             "cosmos3_edge_text"):gmatch "%S+" do
  M[name] = of { "attention_bias", false }
end

for name in ("glm4_moe helium solar_open"):gmatch "%S+" do M[name] = of({ "attention_bias", false }, false) end

for name in ("nomic_bert t5 gptj mpt mistral mixtral ministral3 phi3 exaone4 kolibri1 ministral cwm minimax_m2 lfm2 " ..
             "lfm2_moe jamba mt5 minimax nemotron_h pegasus_x longt5 udop musicgen_decoder " ..
             "musicgen_melody_decoder zamba zamba2 mllama_text_model phi4_multimodal"):gmatch "%S+" do
  M[name] = of(false)
end

return M
