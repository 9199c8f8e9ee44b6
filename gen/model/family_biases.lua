-- Which of the linear maps of q, k, v and o have a bias, by the first type of a row of gen/model/families.lua: true,
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
  whisper = { q = true, k = false, v = true, o = true },
}

for name in ("modernbert moonshine llama llama4_text smollm3 granite gemma gemma2 gemma3_text gemma3n_text " ..
             "gemma4_text qwen3 qwen3_moe qwen3_vl_text cohere olmo2 olmo3"):gmatch "%S+" do
  M[name] = of { "attention_bias", false }
end

for name in ("nomic_bert t5 gptj mpt mistral mixtral ministral3 phi3"):gmatch "%S+" do M[name] = of(false) end

return M
