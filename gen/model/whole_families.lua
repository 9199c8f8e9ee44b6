-- What surrounds attention in the kinds of models that `mhagen model --whole` writes as C. A row is
--
--   types       as gen/model/families.lua has them.
--   module      The module of attention in a layer, as the name of the layer's stack ends.
--   keys        A function of the fields and the number of a layer: keys of a layer besides those of its attention.
--   maps        The linear maps of the feed-forward by the numbers of their matrices, as modules of a layer:
--               a name, or { name, number, count } for one of several that are one map in the file. Or a function of
--               the fields that returns them.
--   biases      Whether these have biases: true (the default), false, or the flag that says so and its default.
--   norms       The norms of a layer by their numbers. A layer may lack some of them.
--   norm_biases   Whether layer norms have biases, as biases of maps.
--   gains       Tensors of a layer that scale the outputs of attention and of the feed-forward, by their matrices.
--   change      What a list of gains becomes, if the file has others.
--   embeddings  A function of the fields: what turns ids into rows. `words`, `types` and `places` (positions) are
--               tables, { module, rows, the row of the first position or nil }; `types` may be missing. `norm` is of
--               their sum, or nil, and rows of words are multiplied by `factor`. `bias` is added to the scores of all
--               layers: { module, rows of its tensor, of (its numbers, heads, rows of a run) to one for each head, row
--               and key }, or nil. `said` has lines of the summary, or is nil.
--   resized     Whether the user may give the size of images, as { height, width } to inputs.
--   inputs      In place of embeddings, of models that have no ids: a function of the fields. It returns
--     of, input          The words for an input, and the argument that has it.
--     template           Of the C text, templates/whole_<this>.c.in; with `values` for it.
--     rows               How many rows the layers have.
--     products           What makes them, { module, bias = whether it has one, act = what becomes of the result or
--                        nil, rows, axes = of a row of weights } each.
--     first              How many rows are in front of the last product's.
--     resize             What makes the positions of another number of patches than the file has, as
--                        gen/model/resized.lua takes it, or nil.
--     tokens, places     Tensors of rows in front of these, and of the positions of all.
--     registers          Rows without positions behind those of tokens, { name, rows }, or nil.
--     norm               The norm after that, or nil.
--   stacks      How many kinds of layers of the family are taken, from the first on, if not all are.
--   last        The norm after the last layer, where the embeddings have none. Its epsilon is that of the layers.
--   head        Of decoders, which read their own output: the module whose rows are multiplied by the last row.
--   tied        The default of the flag by which the embeddings of words are also the head.
--   left_out    Patterns of tensors that come after the last layer, or belong to none. The summary names them.
--   harmless    Fields that are not read and change nothing, as gen/model/families.lua has them.
--
-- More rows are in gen/model/whole_decoders.lua and gen/model/whole_images.lua, those of GGUF files in
-- gen/model/whole_gguf.lua.
-- tests/models/test_whole.py compares each type with transformers.

local activation = require "model.activation"
local decoders = require "model.whole_decoders"
local gguf = require "model.whole_gguf"
local images = require "model.whole_images"
local whole_keys = require "model.whole_keys"

local M = {}

local HEADS = { "^pooler%.", "^cls%.", "^classifier%.", "^qa_outputs%.", "^lm_head%.", "^pre_classifier%.", "^vocab_" }

local function bert_keys(c)
  return whole_keys.post_norm(c:positive("layer_norm_eps", 1e-12), c:int("intermediate_size", 3072),
    activation(c, "hidden_act", "gelu"))
end

-- first: of (fields) to the row of the first place, or nil.
local function bert_embeddings(first)
  return function(c)
    c:only("is_decoder", false)
    return { words = { "embeddings.word_embeddings", c:int "vocab_size" },
             types = { "embeddings.token_type_embeddings", c:int("type_vocab_size", 2) },
             places = { "embeddings.position_embeddings", c:int "max_position_embeddings", first and first(c) },
             norm = "embeddings.LayerNorm" }
  end
end

-- RoBERTa's places begin behind that of padding.
local function behind_padding(c)
  local padding = c:number("pad_token_id", 1)
  if math.type(padding) ~= "integer" or padding < 0 or padding > 1 << 20 then
    c:fail("pad_token_id", "must be the number of a token")
  end
  return padding + 1
end

local BERT = { module = "attention", keys = bert_keys,
               maps = { ["1"] = "intermediate.dense", ["2"] = "output.dense" },
               norms = { "attention.output.LayerNorm", "output.LayerNorm" }, left_out = HEADS }

local function like_bert(types, first)
  local row = { types = types, embeddings = bert_embeddings(first) }
  for key, value in pairs(BERT) do row[key] = value end
  return row
end

-- MPNet: positions as RoBERTa's, whatever the padding is called, and a bias of scores by the distance of row and key.
local BUCKETS = 32 -- half of them for keys behind the row; the class takes so many whatever the config says

-- The bucket of a distance: 8 are of one distance each, then two for each power of two, up to 128.
local function bucket_of(distance)
  local n, bucket = math.abs(distance), 8
  if n < 8 then bucket = n end
  while bucket >= 8 and bucket < BUCKETS // 2 - 1 and n * n >= 64 << bucket - 7 do bucket = bucket + 1 end
  return distance > 0 and bucket + BUCKETS // 2 or bucket
end

-- Those of all heads, rows and keys, of a list of those of all buckets and heads.
local function biases_of(list, heads, rows)
  local of_distance, made = {}, {}
  for distance = 1 - rows, rows - 1 do of_distance[distance] = bucket_of(distance) * heads end
  for head = 1, heads do
    for row = 0, rows - 1 do
      for key = 0, rows - 1 do made[#made + 1] = list[of_distance[key - row] + head] end
    end
  end
  return made
end

local mpnet = like_bert({ "mpnet" }, function() return 2 end)
mpnet.module, mpnet.norms = "attention.attn", { "attention.LayerNorm", "output.LayerNorm" }
local embeddings_of_bert = mpnet.embeddings
function mpnet.embeddings(c)
  local made = embeddings_of_bert(c)
  made.types = nil
  local buckets = c:int("relative_attention_num_buckets", BUCKETS)
  if buckets < BUCKETS then c:fail("relative_attention_num_buckets", "%d is less than %d", buckets, BUCKETS) end
  made.bias = { "encoder.relative_attention_bias", buckets, biases_of }
  return made
end

local EPS_OF_DISTILBERT = 1e-12 -- its class has no field for it

-- The text towers of CLIP and SigLIP: norms in front.
local function text_tower(types, eps, act, ffn)
  return { types = types, module = "self_attn", left_out = { "^head%." }, last = "final_layer_norm",
    maps = { ["1"] = "mlp.fc1", ["2"] = "mlp.fc2" }, norms = { "layer_norm1", "layer_norm2" },
    keys = function(c)
      return { norm = "pre", residual = true, layer_eps = c:positive("layer_norm_eps", eps),
               ffn = c:int("intermediate_size", ffn), ffn_act = activation(c, "hidden_act", act), q_len = true,
               kv_len = true }
    end,
    embeddings = function(c)
      return { words = { "embeddings.token_embedding", c:int "vocab_size" },
               places = { "embeddings.position_embedding", c:int "max_position_embeddings" } }
    end }
end

-- ModernBERT: the first layer reads rows that the embeddings have normalized, and has no norm of its own for attention.
local modernbert = {
  types = { "modernbert" }, module = "attn", left_out = { "^head%.", "^decoder%.", "^classifier%." },
  maps = { ["1"] = { "mlp.Wi", 0, 2 }, ["2"] = "mlp.Wo", ["3"] = { "mlp.Wi", 1, 2 } }, biases = { "mlp_bias", false },
  norms = { "attn_norm", "mlp_norm" }, norm_biases = { "norm_bias", false }, last = "final_norm",
  harmless = "decoder_bias sparse_prediction sparse_pred_ignore_index deterministic_flash_attn reference_compile " ..
    "repad_logits_with_grad",
  keys = function(c, i)
    return whole_keys.modernbert(i == 0, c:positive("norm_eps", 1e-5), c:int("intermediate_size", 1152),
      activation(c, "hidden_activation", "gelu"))
  end,
  embeddings = function(c)
    return { words = { "embeddings.tok_embeddings", c:int("vocab_size", 50368) }, norm = "embeddings.norm" }
  end }

M.rows = {
  like_bert { "bert" },
  like_bert({ "roberta", "xlm-roberta", "camembert" }, behind_padding),
  { types = { "distilbert" }, module = "attention", left_out = HEADS,
    maps = { ["1"] = "ffn.lin1", ["2"] = "ffn.lin2" }, norms = { "sa_layer_norm", "output_layer_norm" },
    keys = function(c)
      return whole_keys.post_norm(EPS_OF_DISTILBERT, c:int("hidden_dim", 3072), activation(c, "activation", "gelu"))
    end,
    embeddings = function(c)
      return { words = { "embeddings.word_embeddings", c:int "vocab_size" },
               places = { "embeddings.position_embeddings", c:int("max_position_embeddings", 512) },
               norm = "embeddings.LayerNorm" }
    end },
  mpnet, modernbert,
  text_tower({ "clip_text_model" }, 1e-5, "quick_gelu", 2048),
  text_tower({ "siglip_text_model" }, 1e-6, "gelu_pytorch_tanh", 3072),
}
for _, others in ipairs { decoders, images } do table.move(others.rows, 1, #others.rows, #M.rows + 1, M.rows) end

-- The same of GGUF files.
M.gguf = gguf.rows

return M
