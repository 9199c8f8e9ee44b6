-- What several rows of kinds of models share: the names of their maps, their stacks, and what they know to be harmless.

local family_rows = require "model.family_rows"
local k = require "model.family_keys"

local M = {}

local stack, always, joined = family_rows.stack, k.always, k.joined

M.BERT = { "self.query", "self.key", "self.value", "output.dense" }
M.VIT = { "attention.query", "attention.key", "attention.value", "output.dense" }
M.OUT_PROJ = { "q_proj", "k_proj", "v_proj", "out_proj" }
M.O_PROJ = { "q_proj", "k_proj", "v_proj", "o_proj" }
M.GAINS = { q_norm = "q_norm.weight", k_norm = "k_norm.weight" }

-- Those of which a file has the gains less 1.
local function plus_one(list)
  local gains = {}
  for i, value in ipairs(list) do gains[i] = value + 1 end
  return gains
end
M.GAINS_LESS_1 = { q_norm = { M.GAINS.q_norm, plus_one }, k_norm = { M.GAINS.k_norm, plus_one } }
-- The scale of a head, which is bounded, is the gain of its columns of queries.
local MOST_SCALE = math.log(100)
M.SCALES = { q_norm = { "self.logit_scale", function(list, cfg)
  local gains = {}
  for i = 1, cfg.h * cfg.dk do gains[i] = math.exp(math.min(list[(i - 1) // cfg.dk + 1], MOST_SCALE)) end
  return gains
end, count = function(cfg) return cfg.h end } }

function M.decoder(maps, keys, more) return { stack("layers.%d.self_attn", maps, joined(k.CAUSAL, keys), more) } end

function M.bert(c) return { kv_len = true, causal = c:flag("is_decoder", false) or nil } end

-- Decoders that a config may make encoders.
function M.decodes(c)
  c:only("is_decoder", true)
  return { causal = true }
end

-- Short texts have all of attention; longer ones some blocks of it, unless the config says otherwise.
function M.big_bird(c)
  local keys, kind = M.bert(c), c:word("attention_type", "block_sparse")
  if kind ~= "original_full" and kind ~= "block_sparse" then c:fail("attention_type", "is not known") end
  local most = (5 + 2 * c:int("num_random_blocks", 3)) * c:int("block_size", 64)
  if kind == "block_sparse" and not (keys.causal and c:flag("add_cross_attention", false)) then
    keys.limit = { most, "attention_type", "longer texts see some blocks of keys only" }
  end
  return keys
end

-- Keys and values of another width, that of an encoder.
function M.of_encoder(field)
  return function(c, _, all)
    local width = c:int(field, all.d_model)
    return { attention = "cross", k_width = width, v_width = width }
  end
end

-- Types whose decoders are causal in some versions of transformers only.
function M.texts(c)
  c:only("is_decoder", false)
  return { kv_len = true }
end

-- Those of an encoder and a decoder. padded: keys that the encoder has for texts.
function M.seq2seq(padded)
  local function of(side, kind, keys)
    return stack(("%s.layers.%%d.%s"):format(side, kind), M.OUT_PROJ, keys, {
      layers = side .. "_layers", h = side .. "_attention_heads", d_model = "d_model" })
  end
  return { of("encoder", "self_attn", padded), of("decoder", "self_attn", k.CAUSAL_ALWAYS),
           of("decoder", "encoder_attn", joined(k.CROSS, padded)) }
end

local T5 = joined(always { scale = 1 }, k.BIAS)

local function t5_stack(at, layers, keys)
  return stack(at, { "q", "k", "v", "o" }, keys, { layers = layers, h = "num_heads", d_model = "d_model", dk = "d_kv" })
end

function M.t5()
  return {
    t5_stack("encoder.block.%d.layer.0.SelfAttention", "num_layers", joined(T5, k.PADDED)),
    t5_stack("decoder.block.%d.layer.0.SelfAttention", "num_decoder_layers", joined(T5, k.CAUSAL_ALWAYS)),
    t5_stack("decoder.block.%d.layer.1.EncDecAttention", "num_decoder_layers",
             joined(k.CROSS, k.PADDED, always { scale = 1 })) }
end

function M.tower(keys) return { stack("encoder.layers.%d.self_attn", M.OUT_PROJ, keys) } end

M.GPT = { layers = "n_layer", h = "n_head", d_model = "n_embd" }

-- What the config of a part may lack; others always have their sizes.
function M.sizes(d_model, h, layers, more)
  local defaults = { hidden_size = d_model, num_attention_heads = h, num_hidden_layers = layers }
  for name, value in pairs(more or {}) do defaults[name] = value end
  return defaults
end

-- Fields that several types know to be harmless: of both halves of a model, of masks in training; and their buffers.
M.HALVES = "scale_embedding encoder_attention_heads decoder_attention_heads"
M.SPEC = "mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length " ..
  "mask_feature_min_masks mask_channel_length mask_channel_prob mask_channel_selection mask_channel_other " ..
  "mask_channel_min_space mask_time_selection mask_time_other mask_time_min_space no_mask_channel_overlap " ..
  "no_mask_time_overlap"
M.BART = M.HALVES .. " normalize_before normalize_embedding add_final_layer_norm static_position_embeddings " ..
  "normalize_decoder_before extra_pos_embeddings"
M.CONVOLUTIONS = M.SPEC .. " adapter_attn_dim num_conv_pos_embeddings num_conv_pos_embedding_groups " ..
  "do_stable_layer_norm feat_extract_norm feat_proj_layer_norm conv_pos_batch_norm"
M.BUFFERS = { "^bias$", "^masked_bias$", "rotary_emb%.inv_freq$" }

-- What stands before the layers of a text, as versions of transformers write models of texts and images.
M.MULTIMODAL = { "language_model.model.", "language_model." }

return M
