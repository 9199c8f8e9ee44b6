-- Rows of further decoders and encoders of texts, as gen/model/families.lua describes them.

local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local shapes = require "model.family_shapes"
local t = require "model.family_text_keys"

local stack = family_rows.stack
local always, joined, rope, window = k.always, k.joined, k.rope, k.window
local CAUSAL, CAUSAL_ALWAYS, PADDED = k.CAUSAL, k.CAUSAL_ALWAYS, k.PADDED
local BERT, BUFFERS, GAINS, O_PROJ, decoder = shapes.BERT, shapes.BUFFERS, shapes.GAINS, shapes.O_PROJ, shapes.decoder
local sizes = shapes.sizes

local AT_BERT = "encoder.layer.%d.attention"
local OWN_NORM = { "^output%.LayerNorm%." }
local SINK = always { sink = true }
local EXPERTS = "norm_topk_prob routed_scaling_factor "
local GRANITE = "embedding_multiplier logits_scaling residual_multiplier "

local GRANITE_SWA = decoder(O_PROJ, joined(t.granite_swa, window(function(i) return i % 4 ~= 0 end), k.granite, SINK), {
  more = { sink = "sinks" } })

-- Attention that only some of the layers have.
local function some(at, maps, keys, has, more)
  local made = stack(at, maps, joined(CAUSAL_ALWAYS, keys), more)
  made.has = has
  return { made }
end

return {
  { types = { "codegen" }, stacks = { stack("h.%d.attn", { "qkv_proj", "out_proj" }, joined(CAUSAL, t.codegen), {
    layers = "n_layer", h = "n_head", d_model = "n_embd", blocks = 4, order = "qvk" }) },
    beside = { "^causal_mask$", "^bias$", "^masked_bias$" }, defaults = { rotary_dim = 64 },
    harmless = "rotary=true scale_attn_weights=true" },
  { types = { "cohere2_moe" }, stacks = decoder(O_PROJ, t.cohere2_moe),
    defaults = { head_dim = 128, sliding_window = 4096 },
    harmless = EXPERTS .. "rope_scaling logit_scale sliding_window_pattern prefix_dense_sliding_window_pattern " ..
      "position_embedding_type=rope_gptj rotary_pct=1 order_of_interleaved_layers=local_attn_first" },
  { types = { "gpt_neox_japanese" }, stacks = { stack("layers.%d.attention", { "query_key_value", "dense" },
    joined(CAUSAL_ALWAYS, rope("half", { theta_of = { "rope_theta", "rotary_emb_base" }, part = 1,
                                         part_of = { "rotary_pct", "partial_rotary_factor" } })),
    { heads = true, more = { bo = { "dense_bias", optional = true } } }) }, beside = BUFFERS },
  { types = { "flint" }, stacks = decoder(O_PROJ, joined(t.flint, k.rms, SINK),
                                          { more = joined(always(GAINS), always { sink = "softmax_offset" })() }),
    harmless = EXPERTS, defaults = { head_dim = 128, sliding_window = 513, num_key_value_heads = 4 } },
  { types = { "granite_swa" }, stacks = GRANITE_SWA, harmless = GRANITE .. "position_embedding_type=rope",
    defaults = { sliding_window = 128, num_key_value_heads = 4 } },
  { types = { "granitemoe_swa" }, stacks = GRANITE_SWA, harmless = GRANITE .. "position_embedding_type=rope",
    defaults = { sliding_window = 128 } },
  { types = { "mimo_v2_flash" }, stacks = decoder(O_PROJ, joined(t.mimo_v2_flash, window(function(i)
      return i ~= 0 and (i + 1) % 6 ~= 0
    end)), { more = { sink = "attention_sink_bias" }, factor = t.mimo_v2_factor }),
    harmless = EXPERTS .. "full_attention sliding_attention",
    defaults = { num_key_value_heads = 4, head_dim = 192, sliding_window = 129, attention_value_scale = 0.707 } },
  { types = { "openai_privacy_filter" }, stacks = { stack("layers.%d.self_attn", O_PROJ,
    joined(rope("interleaved", { theta = 150000 }), t.both_sides, SINK), { more = { sink = "sinks" } }) },
    defaults = { num_key_value_heads = 2, head_dim = 64, sliding_window = 128, rope_scaling = {
      rope_type = "yarn", factor = 32, truncate = false, original_max_position_embeddings = 4096 } } },
  { types = { "minimax" }, stacks = some("layers.%d.self_attn", O_PROJ, joined(rope("half", { theta = 1e6 }),
    k.windows), t.repeated { "full_attention", "linear_attention" }), defaults = { num_key_value_heads = 8 },
    harmless = "attn_type_list full_attn_alpha_factor full_attn_beta_factor linear_attn_alpha_factor " ..
      "linear_attn_beta_factor" },
  { types = { "lara_mini" }, stacks = some("layers.%d.self_attn", O_PROJ, joined(t.lara_mini, k.rms),
    t.repeated(t.LARA_MINI), { more = GAINS }), defaults = { num_key_value_heads = 4, head_dim = 128,
                                                             sliding_window = 512 },
    harmless = EXPERTS .. "linear_key_head_dim linear_value_head_dim linear_num_key_heads linear_num_value_heads" },
  { types = { "olmo_hybrid" }, stacks = some("layers.%d.self_attn", O_PROJ, joined(t.olmo_hybrid_rope, k.rms,
    always { norm_span = "all" }), t.olmo_hybrid, { more = GAINS }),
    harmless = "linear_key_head_dim linear_value_head_dim linear_num_key_heads linear_num_value_heads " ..
      "rope_theta rope_scaling" },
  { types = { "nemotron_h" }, stacks = function(c)
    return some("layers.%d.mixer", O_PROJ, always {}, t.nemotron_h, { layers = t.nemotron_h_layers(c) })
  end,
    defaults = { num_key_value_heads = 8, head_dim = 128 },
    harmless = EXPERTS .. "mamba_num_heads mamba_head_dim mtp_layers_block_type mtp_hybrid_override_pattern " ..
      "rescale_prenorm_residual rope_theta partial_rotary_factor sliding_window" },
  { types = { "recurrent_gemma" }, stacks = some("layers.%d.temporal_block", O_PROJ,
    joined(rope("half", { part = 0.5 }), t.recurrent_gemma_window), t.recurrent_gemma), beside = BUFFERS,
    harmless = "logits_soft_cap block_types _block_types final_w_init_variance_scale w_init_variance_scale" },
  { types = { "decision_transformer" }, stacks = { stack("h.%d.attn", { "c_attn", "c_proj" }, joined(CAUSAL_ALWAYS,
    k.gpt2), { layers = "n_layer", h = "n_head", in_out = true }) }, beside = BUFFERS,
    harmless = "reorder_and_upcast_attn", defaults = { hidden_size = 128, n_head = 1, n_layer = 3 } },
  { types = { "modernbert-decoder" }, stacks = { stack("layers.%d.attn", { "q_proj", "k_proj", "v_proj", "Wo" },
    t.modernbert_decoder) }, harmless = "global_rope_theta local_rope_theta full_attention sliding_attention " ..
      "global_attn_every_n_layers norm_bias sliding_window" },
  { types = { "ultrabert" }, stacks = { stack("layers.%d.self_attn", O_PROJ, t.ultrabert) },
    defaults = { sliding_window = 128 }, harmless = "full_attention sliding_attention prediction_head_size" },
  { types = { "roformer" }, stacks = { stack(AT_BERT, BERT, joined(shapes.bert, t.roformer)) }, beside = OWN_NORM },
  { types = { "xmod" }, stacks = { stack(AT_BERT, BERT, shapes.bert) }, beside = OWN_NORM,
    harmless = "pre_norm adapter_layer_norm adapter_reuse_layer_norm ln_before_adapter" },
}
