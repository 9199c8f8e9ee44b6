-- Rows of encoders of texts whose layers are of several kinds, and of models with an encoder and a decoder of texts, as
-- gen/model/families.lua describes them.

local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local shapes = require "model.family_shapes"
local t = require "model.family_text_keys"

local stack = family_rows.stack
local always, joined, rope = k.always, k.joined, k.rope
local PADDED, CROSS, CAUSAL_ALWAYS = k.PADDED, k.CROSS, k.CAUSAL_ALWAYS
local BERT, GAINS, O_PROJ, OUT_PROJ, seq2seq = shapes.BERT, shapes.GAINS, shapes.O_PROJ, shapes.OUT_PROJ, shapes.seq2seq

local AT_BERT = "encoder.layer.%d.attention"
local OWN_NORM = { "^output%.LayerNorm%." }

-- ---- encoders ----

local function xlm(c) return c:flag("causal", false) and { causal = true } or { kv_len = true } end

-- Characters see those of their chunk first.
local function chunk(c)
  return { kv_len = true, limit = { c:int("local_transformer_stride", 128), "local_transformer_stride",
                                    "longer texts see chunks of so many characters" } }
end

local function canine(at, keys, layers) return stack(at .. ".attention", BERT, keys, { layers = layers }) end

local LXMERT = { layers = "x_layers" }

-- Queries and keys are of another width than values, and of another input.
local function mobilebert(c)
  local narrow = c:flag("use_bottleneck", true) and c:int("intra_bottleneck_size", 128)
  local width = narrow or c:int "hidden_size"
  local values = c:flag("use_bottleneck_attention", false) and width or c:int "hidden_size"
  return { stack(AT_BERT, BERT, always { attention = "cross", kv_len = true, k_width = width, v_width = values }, {
    d_model = width }) }
end

local function ibert(c)
  c:only("quant_mode", false)
  return { kv_len = true }
end

-- Without maps of queries for words and for entities.
local function luke(c)
  local keys = { kv_len = true }
  if c:flag("use_entity_aware_attention", true) then
    keys.limit = { 0, "use_entity_aware_attention", "words and entities have other queries for each other" }
  end
  return keys
end

-- ---- of an encoder and a decoder ----

local function mvp(c)
  c:only("use_prompt", false)
  return seq2seq(PADDED)
end

-- The decoder alone: encoders of these types see blocks of keys, or have sums of several scores.
local function decoder_alone(of) return { of[2], of[3] } end

local PROPHET = { "query_proj", "key_proj", "value_proj", "out_proj" }
local function prophet(side, kind, keys)
  return stack(("%s.layers.%%d.%s"):format(side, kind), PROPHET, keys, {
    layers = ("num_%s_layers"):format(side), h = ("num_%s_attention_heads"):format(side) })
end

-- Their encoder is BigBird's, whatever is_decoder says.
local function bigbird_pegasus()
  local stacks = seq2seq(PADDED)
  stacks[1].maps = { "self.query", "self.key", "self.value", "output" }
  stacks[1].keys = function(c)
    local keys = shapes.big_bird(c)
    keys.causal = nil
    return keys
  end
  return stacks
end

local UDOP = shapes.t5()
UDOP[1].keys = joined(UDOP[1].keys, always { mask_dims = "bhqk" }) -- which depends on where the words stand

-- Encoders see both sides.
local function t5gemma(c)
  local decodes = c.within:find "decoder%.$"
  local capped = joined(k.scalar, k.softcapped)
  local own = joined(rope "half", decodes and joined(k.CAUSAL_ONLY, k.window(k.even)) or t.even_both_sides, capped)
  local stacks = { stack("layers.%d.self_attn", O_PROJ, own) }
  stacks[2] = decodes and stack("layers.%d.cross_attn", O_PROJ, joined(
    PADDED, shapes.of_encoder "cross_attention_hidden_size", capped)) or nil
  return stacks
end

-- Bytes see a window of bytes, patches of them see all patches, and bytes and patches each other; the norms ahead of
-- these are the caller's. What finds the patches is a decoder, too.
local function blt(c)
  local most, stacks = c:int("local_attention_window_len", false), {}
  local window = always { window_left = most and most - 1 or nil }
  local turned = joined(CAUSAL_ALWAYS, rope("interleaved", { theta = 5e5 }))
  local function add(within, at, keys, layers)
    local own = c:object(within)
    if not own then c:fail(within, "is missing") end
    local made = stack(at, O_PROJ, keys, { layers = layers and layers(own) })
    made.fields = own
    stacks[#stacks + 1] = made
  end
  local function crossing(all)
    return function(own) return own:flag("cross_attn_all_layers", all) and own:int "num_hidden_layers" end
  end
  local asks = joined(CROSS, always { mask = "add", mask_dims = "bqk" })
  add("encoder_config", "local_encoder.layers.%d.self_attn", joined(turned, window))
  add("encoder_config", "local_encoder.cross_attn_layers.%d", asks, crossing(false))
  add("global_config", "global_transformer.layers.%d.self_attn", turned)
  add("decoder_config", "local_decoder.layers.%d.self_attn", joined(turned, window))
  add("decoder_config", "local_decoder.cross_attn_layers.%d", asks, crossing(true))
  add("patcher_config", "patcher.layers.%d.self_attn", joined(turned, k.windows))
  return stacks
end

local T5 = "num_attention_heads relative_attention_num_buckets relative_attention_max_distance scale_decoder_outputs"
local T5_BIAS = { "^relative_attention_bias%.weight$" }
local GEMMA = { num_key_value_heads = 4, head_dim = 256, sliding_window = 4096 }

return {
  { types = { "xlm", "flaubert" }, stacks = { stack("attentions.%d", { "q_lin", "k_lin", "v_lin", "out_lin" }, xlm, {
    layers = "n_layers", h = "n_heads", d_model = "emb_dim" }) },
    harmless = "sinusoidal_embeddings pre_norm mask_index mask_token_id" },
  { types = { "canine" }, stacks = {
    canine("initial_char_encoder.layer.0", chunk, false), canine("encoder.layer.%d", PADDED, "num_hidden_layers"),
    canine("final_char_encoder.layer.0", PADDED, false) }, beside = OWN_NORM, harmless = "num_hash_buckets" },
  { types = { "lxmert" }, stacks = {
    stack("encoder.layer.%d.attention", BERT, PADDED, { layers = "l_layers" }),
    stack("encoder.r_layers.%d.attention", BERT, PADDED, { layers = "r_layers" }),
    stack("encoder.x_layers.%d.lang_self_att", BERT, PADDED, LXMERT),
    stack("encoder.x_layers.%d.visn_self_att", BERT, PADDED, LXMERT),
    stack("encoder.x_layers.%d.visual_attention", { "att.query", "att.key", "att.value", "output.dense" },
          joined(CROSS, PADDED), LXMERT) }, beside = OWN_NORM,
    harmless = "visual_loss_normalizer visual_pos_dim task_mask_lm" },
  { types = { "mobilebert" }, stacks = mobilebert, beside = OWN_NORM,
    harmless = "normalization_type key_query_shared_bottleneck true_hidden_size" },
  { types = { "esmc" }, stacks = { stack("layers.%d.self_attn", O_PROJ, joined(PADDED, rope "half", always {
    qk_norm = "layer", norm_span = "all", norm_eps = 1e-5 }), { more = GAINS }) } },
  { types = { "ibert" }, stacks = { stack(AT_BERT, BERT, ibert) },
    beside = { "^output%.LayerNorm%.", "_integer$", "scaling_factor$", "^self%.[a-z]*_activation%.",
               "^output%.output_activation%.", "^output%.ln_input_act%.", "^self%.softmax%." } },
  { types = { "luke" }, stacks = { stack(AT_BERT, BERT, luke) },
    beside = { OWN_NORM[1], "^self%.[we]2[we]_query%." } },
  { types = { "layoutlmv3" }, stacks = { stack(AT_BERT, BERT, t.layoutlmv3) }, beside = OWN_NORM,
    harmless = "rel_pos_bins max_rel_pos rel_2d_pos_bins max_rel_2d_pos" },
  { types = { "mvp" }, stacks = mvp, harmless = shapes.BART },
  { types = { "fsmt" }, stacks = seq2seq(PADDED), harmless = shapes.BART },
  { types = { "bigbird_pegasus" }, stacks = bigbird_pegasus, harmless = shapes.BART .. " rescale_embeddings" },
  { types = { "led", "pegasus_x" }, stacks = decoder_alone(seq2seq(PADDED)),
    harmless = shapes.BART .. " attention_window max_encoder_position_embeddings max_decoder_position_embeddings " ..
      "num_global_tokens stagger_local_blocks global_sliding_window" },
  { types = { "prophetnet" }, stacks = {
    prophet("encoder", "self_attn", PADDED), prophet("decoder", "cross_attn", joined(CROSS, PADDED)) },
    own = "^[kqvo][a-z]*_proj%.", harmless = "num_encoder_attention_heads num_decoder_attention_heads " ..
      "num_attention_heads relative_max_distance add_cross_attention=true" },
  { types = { "longt5" }, stacks = decoder_alone(shapes.t5()), beside = T5_BIAS, harmless = T5 ..
    " encoder_attention_type encoder_global_block_size", defaults = { d_kv = 64 } },
  { types = { "udop" }, stacks = UDOP, beside = T5_BIAS,
    harmless = T5 .. " relative_bias_args max_2d_position_embeddings", defaults = { d_kv = 64 } },
  { types = { "t5_gemma_module" }, inner = true, stacks = t5gemma, harmless = "final_logit_softcapping is_decoder",
    defaults = shapes.sizes(2304, 8, 26, { num_key_value_heads = 4, head_dim = 256, sliding_window = 4096,
                                           attn_logit_softcapping = 50 }) },
  { types = { "t5gemma" }, parts = {
    { within = { "encoder" }, of = "t5_gemma_module", before = "encoder." },
    { within = { "decoder" }, of = "t5_gemma_module", before = "decoder." } } },
  { types = { "embedding_gemma2_text" }, stacks = { stack("layers.%d.self_attn", O_PROJ, t.embedding_gemma2, {
    more = GAINS }) }, beside = { "^v_proj%." }, harmless = "full_attention sliding_attention",
    defaults = shapes.sizes(512, 4, 24, { num_key_value_heads = 2, head_dim = 256, sliding_window = 512 }) },
  { types = { "t5gemma2_text" }, inner = true, stacks = { stack("layers.%d.self_attn", O_PROJ,
    joined(t.t5gemma2, k.scalar, k.rms), { more = shapes.GAINS_LESS_1 }) },
    harmless = "attn_logit_softcapping final_logit_softcapping rope_theta rope_local_base_freq rope_scaling " ..
      "_sliding_window_pattern sliding_window_pattern full_attention sliding_attention",
    defaults = shapes.sizes(2304, 8, 26, GEMMA) },
  { types = { "zamba" }, stacks = function(c)
    return { stack("layers.%d.shared_transf.self_attn", O_PROJ, joined(CAUSAL_ALWAYS, t.zamba), {
      has = t.first_hybrids(t.zamba_layers, 1), d_model = t.zamba_width(c), dk = "attention_head_dim" }) }
  end, harmless = "attention_hidden_size attn_layer_period attn_layer_offset n_mamba_heads",
    defaults = { num_key_value_heads = 16 } },
  { types = { "zamba2" }, stacks = function(c)
    return { stack("layers.%d.shared_transformer.self_attn", O_PROJ, joined(CAUSAL_ALWAYS, t.zamba2), {
      has = t.first_hybrids(t.zamba2_layers, c:int("num_mem_blocks", 1)), d_model = 2 * c:int "hidden_size",
      dk = 2 * c:int "hidden_size" // c:int "num_attention_heads" }) }
  end, harmless = "attention_hidden_size attention_head_dim n_mamba_heads mamba_headdim kv_channels " ..
      "num_query_groups hybrid_layer_ids rope_theta use_conv_bias attn_layer_period attn_layer_offset" },
  { types = { "cpmant" }, stacks = { stack("encoder.layers.%d.self_att.self_attention",
    { "project_q", "project_k", "project_v", "attention_out" }, t.cpmant, { dk = "dim_head" }) },
    harmless = "position_bias_num_buckets position_bias_max_distance" },
  { types = { "blt" }, stacks = blt, defaults = { local_attention_window_len = 512 },
    beside = { "^[qk]_norm%.weight$" },
    harmless = "cross_attn_k encoder_config.sliding_window rope_parameters" },
}
