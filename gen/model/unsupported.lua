-- Kinds of models whose attention no kernel computes, and what it has that a kernel has not.
--
--   why(list, kind) -> what it has, or nil; list: M.transformers, by model_type, or M.gguf, by general.architecture
--
-- As of transformers 5.24.0, and llama.cpp at commit 0c1e57098. scripts/support.py makes a table of it.

local M = {}

M.transformers = {
  { "keys and values that are made of one vector (MLA)",
    "axk1 bailing_hybrid deepseek_v2 deepseek_v3 glm4_moe_lite kimi_linear longcat_flash minicpm3 mistral4 " ..
    "sarvam_mla youtu" },
  { "keys and values that are made of one vector (MLA), and an indexer that chooses keys",
    "axk2 deepseek_v32 dots3_note dots3_note_text glm5_next glm5_next_text glm_moe_dsa hy_v4 hy_v4_vl hy_v4_vl_text " ..
    "mistral_large4 mistral_large4_text" },
  { "a gate of the context",
    "afmoe beam esmfold2 hrm_text laguna lfm3 muse_glimmer muse_glimmer_text muse_spark muse_spark_text neomme " ..
    "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next step3p5 step3p7" },
  { "a second product of queries and relative positions, shifted (Transformer-XL)",
    "fastspeech2_conformer funnel nemotron_asr_streaming nemotron_asr_streaming_encoder parakeet_ctc " ..
    "parakeet_encoder parakeet_rnnt parakeet_tdt xlnet" },
  { "a product of queries and vectors of distances (Shaw)",
    "bros granite_speech5_ctc granite_speech5_encoder granite_speech_encoder granite_speech_plus_encoder " ..
    "speecht5 vits" },
  { "products of contents and positions, gathered by distance (DeBERTa)", "deberta deberta-v2 sew-d" },
  { "a bias by distance that queries gate", "wavlm" },
  { "scores of a text and of its layout, summed", "lilt" },
  { "batch norms of Q, K and V", "levit" },
  { "relative positions in two dimensions that are products of queries", "seggpt vitdet" },
  { "convolutions or pooling around Q, K and V",
    "convbert cvt glpn hiera pvt pvt_v2 segformer squeezebert zaya" },
  { "norms of Q and K behind rope",
    "hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl hunyuan_vl_text timesfm2_5" },
  { "a norm of the context", "bitnet kosmos-2 kosmos_2_text_model" },
  { "a scale by the position of a query",
    "inkling2 inkling2_loop inkling2_loop_text inkling2_text inkling_mm_model inkling_text" },
  { "deformable sampling",
    "d_fine deformable_detr deimv2 grounding-dino lw_detr mask2former mm-grounding-dino omdet-turbo oneformer " ..
    "pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 rf_detr rt_detr rt_detr_v2" },
  { "keys that are chosen, hashed or near in two dimensions, or an approximation of softmax",
    "autoformer deepseek_v4 dinat doge longformer minimax_m3_vl minimax_m3_vl_text mra nystromformer qwen4_exp " ..
    "qwen4_exp_text reformer yoso" },
  { "rope of values", "clvp clvp_decoder clvp_encoder" },
  { "the difference of two softmaxes", "diffllama" },
  { "Q, K and V that are clamped", "dbrx" },
  { "keys and values of other layers", "dory" },
  { "queries and outputs of experts", "jetmoe" },
  { "no softmax of products of queries and keys", "mobilevitv2 slanet swiftformer" },
  { "no attention",
    "bit convnext convnextv2 dac efficientnet encodec falcon_mamba fnet focalnet hgnet_v2 mamba mamba2 mobilenet_v1 " ..
    "mobilenet_v2 poolformer regnet resnet rwkv textnet univnet xlstm" },
}

M.gguf = {
  { "keys and values that are made of one vector (MLA)",
    "bailingmoe3 deepseek2 deepseek32 deepseek4 dots3note glm-dsa glm5-next hy_v4 kimi-k3 kimi-linear minicpm3 " ..
    "mistral4 plm" },
  { "blocks of keys that an indexer chooses", "minimax-m3" },
  { "a gate of the context",
    "afmoe hrm_text laguna muse-glimmer qwen35 qwen35moe qwen3next qwen4exp spark2_5 step35" },
  { "a norm of the context", "bitnet" },
  { "norms of Q and K behind rope, with a gain for each column", "hunyuan-dense hunyuan-moe hunyuan_vl maincoder" },
  { "Q, K and V that are clamped", "dbrx" },
  { "adapters that tokens switch", "graniteswitch" },
  { "keys, values or rows of another model", "dflash eagle3 gemma4-assistant" },
  { "two attentions in one block", "t5" },
  { "no attention", "arwkv7 mamba mamba2 rwkv6 rwkv6qwen2 rwkv7" },
  { "no graph of texts in llama.cpp", "clip gptj wavtokenizer-dec" },
}

function M.why(list, kind)
  for _, row in ipairs(list) do
    for name in row[2]:gmatch "%S+" do
      if name == kind then return row[1] end
    end
  end
end

return M
