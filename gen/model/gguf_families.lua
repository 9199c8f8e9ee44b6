-- The kinds of models that GGUF files have: rows as in gen/model/families.lua. Fields are named without the model's
-- type before them, tensors of a layer without its block. Their meaning is that of llama.cpp: a missing key has the
-- default that it has there, or is required as it is there. Each row was checked against llama.cpp at commit 0c1e57098,
-- that of llama-cpp-python 0.3.36: src/llama-model.cpp, llama-context.cpp, llama-graph.cpp and models.
--
-- gen/model/unsupported.lua has llama.cpp's other models, and what a kernel does not have of them.

local family_rows = require "model.family_rows"
local family_keys = require "model.family_keys"
local k = require "model.gguf_keys"
local angles = require "model.gguf_rope"

local always, joined = family_keys.always, family_keys.joined
local rope, sliding = angles.rope, angles.sliding

local SIZES = { layers = "block_count", h = "attention.head_count", h_kv = "attention.head_count_kv",
                d_model = "embedding_length", dk = "attention.key_length" }
local MAPS = { { "attn_q", "attn_k", "attn_v", "attn_output" }, { "attn_qkv", "attn_output" } }
local GAINS = { q_norm = "attn_q_norm.weight", k_norm = "attn_k_norm.weight" }
local SINK = { sink = "attn_sinks.weight" }

-- Layers whose matrices of Q, K and V are three, or one.
local function block(keys, more)
  local made = {}
  for i, maps in ipairs(MAPS) do
    made[i] = family_rows.stack("blk.%d", maps, joined(k.values, keys), SIZES)
    for key, value in pairs(more or {}) do made[i][key] = value end
    local of = made[i].has
    made[i].has = function(c, layer) return k.trunk(c, layer) and (not of or of(c, layer)) end
  end
  return made
end

local function decoder(keys, more) return block(joined(k.causal, keys), more) end

-- Decoders with a norm of each head of Q and K.
local function normed(keys, more)
  local all = { more = GAINS }
  for key, value in pairs(more or {}) do all[key] = value end
  return decoder(joined(keys, k.norm), all)
end

local FACTORS = { frequencies = { "rope_freqs.weight" } }
local LONG = { frequencies = { "rope_factors_short.weight", "rope_factors_long.weight" } }

-- Decoders whose files may have divisors of angles: of all texts, or of short and long ones.
local function tuned(keys, more)
  return function(c)
    local all = { frequencies = (c:word("rope.scaling.type", "linear") == "longrope" and LONG or FACTORS).frequencies }
    for key, value in pairs(more or {}) do all[key] = value end
    return decoder(keys, all)
  end
end

local EXPERTS = " expert_weights_scale expert_weights_norm expert_group_scale"
local OF_GRANITE = "logit_scale embedding_scale residual_scale"
local HALF, TURNS = rope "half", rope "interleaved"
local IN_WINDOWS = { period = 4, only = true, turned = angles.in_windows }
local NO_BIAS_OF_O = { o = false } -- llama.cpp reads one and does not add it

local rows = {
  { types = { "llama", "llama-embed" }, stacks = tuned(TURNS) },
  { types = { "qwen2", "qwen2moe", "gemma", "starcoder2", "falcon", "gptneox", "phi2", "qwen", "orion", "codeshell",
              "plamo", "nemotron", "seed_oss", "jais2", "pangu-embedded" }, stacks = decoder(HALF) },
  { types = { "internlm2", "xverse", "olmo", "arctic", "deepseek", "chatglm", "pockettts" }, stacks = decoder(TURNS),
    harmless = "attention.clamp_kqv=0" },
  { types = { "exaone" }, stacks = decoder(HALF, FACTORS) },
  { types = { "arcee", "nanbeige" }, stacks = decoder(TURNS, FACTORS), harmless = "skip_loop_final_norm" },
  { types = { "deci" }, stacks = tuned(TURNS, { by_layer = true, has = k.has_keys }) },
  { types = { "minicpm" }, stacks = tuned(TURNS), harmless = OF_GRANITE },
  { types = { "ernie4_5", "ernie4_5-moe" }, stacks = decoder(TURNS), biases = NO_BIAS_OF_O,
    harmless = "rope.dimension_sections" },
  { types = { "qwen2vl", "paddleocr" }, stacks = decoder(angles.sections) },
  { types = { "glm4" }, stacks = decoder(angles.some_sections "interleaved") },
  { types = { "glm4moe" }, stacks = decoder(joined(angles.some_sections "half", k.with("attn_q_norm.weight", k.norm)),
                                            { more = GAINS }) },
  { types = { "qwen3", "qwen3moe", "dots1", "bailingmoe2", "grovemoe", "hy_v3" }, stacks = normed(HALF) },
  { types = { "qwen3vl", "qwen3vlmoe", "qwen3tts" }, stacks = normed(angles.turns_of_sections) },
  { types = { "apertus" }, stacks = tuned(joined(HALF, k.norm), { more = GAINS }) },
  { types = { "openelm" }, stacks = normed(HALF, { by_layer = true }) },
  { types = { "lfm2", "lfm2moe" }, stacks = normed(joined(HALF, k.window), { by_layer = true, has = k.has_keys }) },
  { types = { "olmoe", "minimax-m2" }, stacks = decoder(joined(HALF, k.whole_norm), { more = GAINS }) },
  { types = { "plamo2" }, stacks = decoder(joined(HALF, k.each_norm, k.by_values),
                                           { more = GAINS, by_layer = true, has = k.has_keys }) },
  { types = { "stablelm" }, stacks = decoder(joined(HALF, k.with("attn_q_norm.weight", k.layer_norm)),
                                             { more = GAINS }) },
  { types = { "chameleon" }, stacks = decoder(joined(TURNS, k.fixed_norm), { more = GAINS }), harmless = "swin_norm" },
  { types = { "talkie" },
    stacks = decoder(joined(k.unscaled_half, k.each_norm), { more = { q_norm = k.GAIN_OF_HEADS } }),
    harmless = "logit_scale" },
  { types = { "bailingmoe" }, stacks = decoder(joined(TURNS, k.by_columns)) },
  { types = { "deepseek2-ocr" }, stacks = decoder(function(c)
    return { rope = "half", rope_theta = c:positive("rope.freq_base", 10000) }
  end), harmless = "rope.dimension_count" },
  { types = { "cogvlm" }, stacks = decoder(always { rope = "half", rope_theta = 10000 }),
    harmless = "rope.freq_base rope.dimension_count rope.scaling.type rope.scaling.factor" },
  { types = { "grok" }, stacks = decoder(joined(rope("half", { fast = 8 }), k.grok, k.softcap(30))),
    harmless = "logit_scale embedding_scale router_logit_softcapping final_logit_softcapping " ..
      "attention.temperature_length rope.scaling.yarn_attn_factor=1" },
  { types = { "gemma2" }, stacks = decoder(joined(sliding { period = 2, window = 4096 }, k.gemma(46), k.softcap(50))),
    harmless = "final_logit_softcapping" },
  { types = { "gemma3" }, stacks = normed(joined(
    sliding { period = 6, window = 0, base = 10000, scaled = angles.factor_alone }, k.gemma(62))),
    harmless = "final_logit_softcapping" },
  { types = { "gemma3n" }, stacks = normed(joined(
    sliding { period = 5, base = 10000, scaled = angles.factor_alone }, k.gemma3n)), apart = true,
    harmless = "final_logit_softcapping activation_sparsity_scale attention.shared_kv_layers" },
  { types = { "gemma4" }, apart = true, harmless = "final_logit_softcapping", stacks = normed(k.gemma4, {
    by_layer = true, frequencies = FACTORS.frequencies, divided = k.gemma4_whole }) },
  { types = { "gemma-embedding" }, harmless = "attention.causal final_logit_softcapping", stacks = block(joined(
    k.both_ways, sliding { period = 6, base = 10000, scaled = angles.factor_alone, both = true }, k.norm),
    { more = GAINS }) },
  { types = { "olmo2" }, stacks = decoder(joined(sliding { period = 4, window = 0, only = true, scaled = angles.plain },
                                                 k.whole_norm), { more = GAINS }) },
  { types = { "mellum" }, stacks = normed(sliding { period = 4, window = 0, only = true, scaled = angles.plain }) },
  { types = { "plamo3" }, stacks = normed(
    sliding { period = 8, window = 0, base = 10000, scaled = angles.factor_alone }, { by_layer = true }) },
  { types = { "maple" }, stacks = normed(sliding { turned = angles.in_windows }), harmless = "swiglu_clamp_exp" },
  { types = { "mimo2" }, stacks = decoder(joined(
    sliding { base = 10000, scaled = angles.factor_alone }, k.with("attn_sinks.weight", always { sink = true })),
    { more = SINK, by_layer = true, factor = k.value_scale }) },
  { types = { "command-r" }, stacks = decoder(joined(TURNS, k.command_r), { more = GAINS }), harmless = "logit_scale" },
  { types = { "cohere2" }, harmless = "logit_scale", stacks = decoder(
    sliding { kind = "interleaved", period = 4, only = true, turned = angles.in_windows }) },
  { types = { "cohere2moe" }, harmless = "logit_scale", stacks = decoder(
    sliding { kind = "interleaved", period = 4, first = true, only = true, turned = angles.in_first }) },
  { types = { "exaone-moe" }, stacks = normed(sliding(IN_WINDOWS), FACTORS) },
  { types = { "exaone4" }, stacks = normed(k.exaone4, { frequencies = FACTORS.frequencies }),
    harmless = "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa" },
  { types = { "smallthinker" }, stacks = decoder(k.smallthinker),
    harmless = "attention.sliding_window_pattern rope.freq_base_swa" },
  { types = { "granite" }, stacks = tuned(joined(k.switched, k.own_scale)), harmless = OF_GRANITE },
  { types = { "granitemoe" }, stacks = tuned(joined(TURNS, k.own_scale)), harmless = OF_GRANITE },
  { types = { "granitehybrid" }, harmless = OF_GRANITE, stacks = decoder(joined(k.switched, k.own_scale), {
    frequencies = FACTORS.frequencies, by_layer = true, has = k.has_keys }) },
  { types = { "granite_swa" }, harmless = OF_GRANITE, stacks = tuned(joined(
    k.listed "interleaved", k.own_scale, k.listed_window, always { sink = true }), { more = SINK }) },
  { types = { "smollm3" }, stacks = decoder(angles.some_rope "interleaved") },
  { types = { "gpt-oss" }, stacks = decoder(joined(sliding { period = 2 }, always { sink = true }), { more = SINK }) },
  { types = { "llama4" }, stacks = decoder(k.llama4, FACTORS) },
  { types = { "mistral3" }, stacks = tuned(k.mistral3) },
  -- llama.cpp switches its window off, for converters write a wrong one.
  { types = { "phi3", "phimoe" }, harmless = "attention.sliding_window", stacks = decoder(HALF, LONG) },
  { types = { "bert" }, stacks = block(k.bert) },
  { types = { "nomic-bert", "nomic-bert-moe", "jina-bert-v3", "eurobert" }, stacks = block(joined(k.bert, HALF)) },
  { types = { "neo-bert" }, stacks = block(joined(k.bert, TURNS)) },
  { types = { "modern-bert" }, stacks = block(joined(k.bert, sliding {
    period = 3, first = true, window = 0, base = 10000, scaled = angles.factor_alone, both = true })) },
  -- A bias by the distance in both directions, which the caller has.
  { types = { "jina-bert-v2" }, stacks = block(joined(k.bert, family_keys.BIAS)) },
  { types = { "t5encoder" }, stacks = { family_rows.stack("enc.blk.%d", { "attn_q", "attn_k", "attn_v", "attn_o" },
    joined(k.values, k.both_ways, family_keys.BIAS, always { scale = 1 }), SIZES) },
    harmless = "attention.causal attention.relative_buckets_count" },
  { types = { "llada" }, stacks = block(joined(k.both_ways, TURNS), FACTORS), biases = NO_BIAS_OF_O,
    harmless = "attention.causal" },
  { types = { "dream" }, stacks = block(joined(k.both_ways, HALF)), harmless = "attention.causal" },
  { types = { "llada-moe", "rnd1" }, stacks = block(joined(k.both_ways, HALF, k.norm), { more = GAINS }),
    harmless = "attention.causal" },
  { types = { "falcon-h1" }, stacks = decoder(HALF), biases = NO_BIAS_OF_O },
  { types = { "minimax-01" }, stacks = decoder(HALF, { has = k.has_softmax }), harmless = "residual_scale" },
  { types = { "jamba" }, stacks = decoder(always {}, { by_layer = true, has = k.has_keys }) },
  { types = { "nemotron_h", "nemotron_h_moe" }, stacks = decoder(always {}, {
    by_layer = true, has = k.has_keys_alone }), harmless = "rope.dimension_count rope.freq_base" },
  { types = { "gpt2", "starcoder" }, stacks = decoder(always {}) },
  { types = { "bloom" }, stacks = decoder(k.alibi(8)) },
  { types = { "refact" }, stacks = decoder(always { alibi = true }), biases = NO_BIAS_OF_O },
  { types = { "baichuan" }, stacks = decoder(k.baichuan) },
  { types = { "mpt" }, stacks = decoder(k.alibi(0)) },
  { types = { "jais" }, stacks = decoder(joined(k.alibi(0), k.by_width)) },
}

for _, row in ipairs(rows) do
  row.own, row.shared = "^attn_", "^rope_"
  row.beside = { "^attn_norm", "^attn_output_norm", "^attn_rel_b" }
  if row.apart then row.beside[#row.beside + 1] = "^attn_v%.weight$" end
  row.harmless = ("%s rope.scaling.original_context_length rope.scaling.finetuned %s%s"):format(row.harmless or "",
    angles.BETAS, EXPERTS)
end

return rows
