-- Rows of further decoders, as gen/model/families.lua describes them.

local d = require "model.family_decoder_keys"
local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local shapes = require "model.family_shapes"

local stack = family_rows.stack
local always, joined, rope, window = k.always, k.joined, k.rope, k.window
local BUFFERS, GAINS, O_PROJ, OUT_PROJ, decoder = shapes.BUFFERS, shapes.GAINS, shapes.O_PROJ, shapes.OUT_PROJ,
  shapes.decoder

local WITH_GAINS = { more = GAINS }
local LFM2_GAINS = { more = { q_norm = "q_layernorm.weight", k_norm = "k_layernorm.weight" } }
local SPAN = always { norm_span = "all" }

-- Fields of experts, of layers that are no attention, and of what is behind the last layer.
local EXPERTS = "norm_topk_prob routed_scaling_factor router_scaling_factor "
local MAMBA = "mamba_n_heads mamba_d_head mamba_norm_before_gate mamba_rms_norm num_ln_in_parallel_attn "
local GRANITE = "embedding_multiplier logits_scaling residual_multiplier "

-- Attention that only some of the layers have.
local function some(at, maps, keys, has, more)
  local made = stack(at, maps, joined(k.CAUSAL, keys), more)
  made.has = has
  return { made }
end

local function llama3(factor)
  return { rope_type = "llama3", factor = factor, low_freq_factor = 1, high_freq_factor = 4,
           original_max_position_embeddings = 8192 }
end

return {
  { types = { "glm", "glm4" }, stacks = decoder(O_PROJ, rope("interleaved", { part = 0.5 })),
    defaults = { num_key_value_heads = 2, head_dim = 128 } },
  { types = { "glm4_moe" }, stacks = decoder(O_PROJ, joined(rope("half", { part = 0.5 }), d.glm4_moe), WITH_GAINS),
    harmless = EXPERTS, defaults = { num_key_value_heads = 8 } },
  { types = { "cohere2" }, stacks = decoder(O_PROJ, d.cohere2()), defaults = { sliding_window = 4096 },
    harmless = "logit_scale sliding_window_pattern position_embedding_type=rope_gptj rotary_pct=1 " ..
      "order_of_interleaved_layers=local_attn_first _sliding_window_pattern" },
  { types = { "exaone4", "exaone_moe" }, stacks = decoder(O_PROJ, d.exaone4(d.pattern(4)), WITH_GAINS),
    harmless = EXPERTS .. "sliding_window_pattern",
    defaults = { num_key_value_heads = 32, sliding_window = 4096, rms_norm_eps = 1e-5 } },
  { types = { "kolibri1" }, stacks = decoder(O_PROJ, d.exaone4(k.whole_each(5)), WITH_GAINS), harmless = EXPERTS,
    defaults = { num_key_value_heads = 4, head_dim = 128, sliding_window = 513 } },
  { types = { "ministral" }, stacks = decoder(O_PROJ, joined(rope "half", window(function() return true end))),
    defaults = { num_key_value_heads = 8, sliding_window = 4096 } },
  { types = { "vaultgemma" }, stacks = decoder(O_PROJ, joined(rope "half", window(k.even), k.scalar, k.softcapped)),
    harmless = "final_logit_softcapping",
    defaults = { num_key_value_heads = 4, head_dim = 256, sliding_window = 4096, attn_logit_softcapping = 50 } },
  { types = { "nanochat" }, stacks = decoder(O_PROJ, d.turned_back), harmless = "final_logit_softcapping" },
  { types = { "arcee" }, stacks = decoder(O_PROJ, rope "half"), beside = BUFFERS },
  { types = { "jais2" }, stacks = decoder(O_PROJ, rope "half"), beside = BUFFERS },
  { types = { "seed_oss" }, stacks = decoder(O_PROJ, rope "half"), beside = BUFFERS,
    defaults = { num_key_value_heads = 8, head_dim = 128 } },
  { types = { "cwm" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 1e6 }), window(d.all_but_each(4)))),
    defaults = { num_key_value_heads = 8, head_dim = 128, sliding_window = 8192, rope_scaling = llama3(16) } },
  { types = { "mellum" }, stacks = decoder(O_PROJ, joined(d.mellum, window(function() return false end), k.rms),
                                           WITH_GAINS), harmless = EXPERTS .. "full_attention sliding_attention",
    defaults = { num_key_value_heads = 4, head_dim = 128, sliding_window = 1024 } },
  { types = { "dots1" }, stacks = decoder(O_PROJ, joined(rope "half", window(d.late), k.rms), WITH_GAINS),
    harmless = EXPERTS .. "max_window_layers", defaults = { num_key_value_heads = 32, sliding_window = 4096 } },
  { types = { "ernie4_5" }, stacks = decoder(O_PROJ, rope("interleaved", { theta = 5e5 })),
    defaults = { num_key_value_heads = 2, head_dim = 128 } },
  { types = { "ernie4_5_moe" }, stacks = decoder(O_PROJ, rope("interleaved", { theta = 5e5 })),
    defaults = { num_key_value_heads = 4 }, harmless = "moe_norm_min" },
  { types = { "helium" }, stacks = decoder(O_PROJ, rope("interleaved", { theta = 1e5 })),
    defaults = { num_key_value_heads = 20, head_dim = 128 } },
  { types = { "hyperclovax" }, stacks = decoder(O_PROJ, joined(rope "half", d.multiplier)),
    harmless = GRANITE .. "use_post_norm" },
  { types = { "granitemoeshared" }, stacks = decoder(O_PROJ, joined(rope "half", k.granite)),
    harmless = GRANITE .. "position_embedding_type=rope" },
  { types = { "solar_open" }, stacks = decoder(O_PROJ, rope("half", { theta = 1e6, part = 1 })), harmless = EXPERTS,
    defaults = { num_key_value_heads = 8, head_dim = 128 } },
  { types = { "nemotron" }, stacks = decoder(O_PROJ, rope("half", { part = 0.5 })) },
  { types = { "stablelm" }, stacks = decoder(O_PROJ, rope("half", { part = 0.25 })),
    defaults = { num_key_value_heads = 32 }, harmless = "use_qkv_bias" },
  { types = { "olmo" }, stacks = decoder(O_PROJ, rope "half"), beside = BUFFERS },
  { types = { "olmoe" }, stacks = decoder(O_PROJ, joined(rope "half", k.rms, SPAN), WITH_GAINS), harmless = EXPERTS,
    defaults = { num_key_value_heads = 16, rms_norm_eps = 1e-5 } },
  { types = { "flex_olmo" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 5e5 }), k.rms, SPAN), WITH_GAINS),
    harmless = EXPERTS },
  { types = { "minimax_m2" }, stacks = decoder(O_PROJ, joined(d.minimax_m2, k.rms, SPAN), WITH_GAINS),
    harmless = EXPERTS .. "use_qk_norm=true qk_norm_type=per_layer",
    defaults = { num_key_value_heads = 8, head_dim = 128 } },
  { types = { "hy_v3" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 11158840 }), k.rms), WITH_GAINS),
    harmless = EXPERTS, defaults = { num_key_value_heads = 8, head_dim = 128, rms_norm_eps = 1e-5 } },
  { types = { "apertus" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 12e6 }), k.rms), WITH_GAINS),
    harmless = "qk_norm=true", defaults = { rms_norm_eps = 1e-5, rope_scaling = llama3(8) } },
  { types = { "phimoe" }, stacks = decoder(O_PROJ, joined(rope("half", { theta = 1e6 }), k.windows)),
    defaults = { num_key_value_heads = 8 } },
  { types = { "lfm2" }, stacks = some("layers.%d.self_attn", OUT_PROJ,
    joined(rope("half", { theta = 1e6 }), d.norm_eps), d.listed(d.numbered("full_attn_idxs", true)),
    LFM2_GAINS),
    defaults = { num_key_value_heads = 8 }, harmless = "full_attn_idxs block_norm_eps" },
  { types = { "lfm2_moe" }, stacks = some("layers.%d.self_attn", OUT_PROJ,
    joined(rope("half", { theta = 1e6 }), d.norm_eps), d.listed(function() return false end),
    LFM2_GAINS),
    defaults = { num_key_value_heads = 8 }, harmless = EXPERTS },
  { types = { "granitemoehybrid" }, stacks = some("layers.%d.self_attn", O_PROJ, joined(d.granite_hybrid, k.granite),
    d.listed(function() return false end)), harmless = GRANITE .. MAMBA },
  { types = { "bamba" }, stacks = some("layers.%d.self_attn", O_PROJ, d.bamba, d.numbered "attn_layer_indices"),
    defaults = { num_key_value_heads = 8 }, harmless = MAMBA .. "attn_rotary_emb" },
  { types = { "jamba" }, stacks = some("layers.%d.self_attn", O_PROJ, always {}, d.periodic), harmless = MAMBA,
    defaults = { num_key_value_heads = 8 } },
  { types = { "falcon_h1" }, stacks = decoder(O_PROJ, joined(rope "half", d.falcon_h1)),
    defaults = { num_key_value_heads = 8 },
    harmless = MAMBA .. "attention_in_multiplier attention_out_multiplier lm_head_multiplier" },
  { types = { "gpt_neo" }, stacks = { stack("h.%d.attn.attention", OUT_PROJ, d.gpt_neo, {
    layers = "num_layers", h = "num_heads" }) }, beside = BUFFERS, harmless = "attention_types attention_layers" },
  { types = { "gpt_bigcode" }, stacks = function(c)
    return { stack("h.%d.attn", { "c_attn", "c_proj" }, joined(k.CAUSAL, d.bigcode), {
      layers = "n_layer", h = "n_head", d_model = "n_embd", heads = not c:flag("multi_query", true) }) }
  end, beside = BUFFERS, harmless = "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 num_key_value_heads" },
}
