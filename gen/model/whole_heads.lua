-- What classes of transformers have behind the last rows of an encoder: logits of classes or of ids, or a projected
-- vector.
--
--   of(kind, class, fields) -> head or nil
--     kind, class   the model's, and the first name that `architectures` has
--     head          name     as the argument of a run is called: logits, or embedding
--                   rows     what is taken of the rows: first, last, mean, all; first_two or first_and_mean, as one
--                            row; largest or ended, the row of the largest id or of the first one that is `id`;
--                            asked, each row that a run asks for
--                   steps    the linear maps behind it, in turn: { module, or the list of those whose mean is taken of
--                            as many rows; bias = false where it has none; act = what becomes of its result; norm =
--                            that behind it, with the epsilon of the layers, { module, biased }, or nil
--                   probe    in place of rows and steps: attention of one query over all rows, { query = its tensor,
--                            attention, norm, maps = modules, where both maps are those of a feed-forward }
--                   words    behind the steps of rows that are asked for: the table of all ids, { its own module,
--                            tied = whether it is that of the embeddings instead, biases = names or nil }. The first
--                            of these that is there counts.
--                   said     words about the result, or nil: scores of classes, or a vector }
--
-- tests/models/test_whole_heads.py compares each class with transformers.

local activation = require "model.activation"
local family_keys = require "model.family_keys"

local M = {}

local always, joined = family_keys.always, family_keys.joined

local function logits(rows, ...) return { name = "logits", rows = rows, steps = { ... } } end

local function embedding(rows, module)
  return { name = "embedding", rows = rows, steps = { { module, bias = false } } }
end

local CLASSIFIER = { "classifier" }

local ANSWERS = "whether an answer begins there, and whether it ends"

-- Of the first row: a dense map whose result is activated, and then that of the classes.
local function pooled(dense, act, classifier) return logits("first", { dense, act = act }, { classifier }) end

-- Of each id how likely it is in a row: a dense map whose result is activated and normalized, and the table of words.
-- The biases are also those of the head, and where the table is tied, these count.
-- of: { dense, norm, module, head = modules, act = the field of the activation or nil }
local function masked(of)
  return function(c)
    local tied = c:flag("tie_word_embeddings", true)
    local biases = { (tied and of.head or of.module) .. ".bias", (tied and of.module or of.head) .. ".bias" }
    return { name = "logits", rows = "asked",
             steps = { { of.dense, act = of.act and activation(c, of.act, "gelu") or "gelu",
                         norm = { of.norm, biased = true } } },
             words = { of.module, tied = tied, biases = biases } }
  end
end

local LM_HEAD = masked { dense = "lm_head.dense", norm = "lm_head.layer_norm", module = "lm_head.decoder",
                         head = "lm_head" }

local IN_TWO = pooled("classifier.dense", "tanh", "classifier.out_proj")

-- Adds what all these types have: a map of each row. of: what its classes' names begin with.
local function of_texts(of, of_sequences, of_words)
  return { [of .. "ForMaskedLM"] = of_words or LM_HEAD,
           [of .. "ForSequenceClassification"] = of_sequences,
           [of .. "ForTokenClassification"] = logits("all", CLASSIFIER),
           [of .. "ForQuestionAnswering"] = { name = "logits", rows = "all", said = ANSWERS,
                                              steps = { { "qa_outputs" } } } }
end

local POOLINGS = { cls = "first", mean = "mean" }

-- ModernBERT's dense map, whose result is activated and normalized, and then that of the classes.
local function step_of_modernbert(c)
  return { "head.dense", bias = c:flag("classifier_bias", false), act = activation(c, "classifier_activation", "gelu"),
           norm = { "head.norm", biased = c:flag("norm_bias", false) } }
end

local function modernbert(rows)
  return function(c)
    local pooling = rows or POOLINGS[c:word("classifier_pooling", "cls")]
      or c:fail("classifier_pooling", "must be cls or mean")
    return logits(pooling, step_of_modernbert(c), CLASSIFIER)
  end
end

local function masked_of_modernbert(c)
  return { name = "logits", rows = "asked", steps = { step_of_modernbert(c) },
           words = { "decoder", tied = c:flag("tie_word_embeddings", true),
                     biases = c:flag("decoder_bias", true) and { "decoder.bias" } or nil } }
end

-- CLIP's row of a text is that of its end. Configs of 2022 and 2023 say 2, whatever the id is, and mean the largest.
local function clip_text(c)
  local id = c:int("eos_token_id", 49407)
  local head = embedding(id == 2 and "largest" or "ended", "text_projection")
  head.id = id
  return head
end

local clip_image, siglip_text = embedding("first", "visual_projection"), logits("last", { "head" })
siglip_text.name = "embedding"

local function siglip_image(c)
  return c:flag("vision_use_head", true) and { name = "embedding", probe = {
    query = "head.probe", attention = "head.attention", norm = "head.layernorm",
    maps = { "head.mlp.fc1", "head.mlp.fc2" } } } or nil
end

local DINOV2 = logits("first_and_mean", CLASSIFIER)

-- type -> class -> head, or a function of the fields that returns it.
local heads = {
  bert = of_texts("Bert", pooled("pooler.dense", "tanh", "classifier"), masked {
    dense = "cls.predictions.transform.dense", act = "hidden_act", norm = "cls.predictions.transform.LayerNorm",
    module = "cls.predictions.decoder", head = "cls.predictions" }),
  roberta = of_texts("Roberta", IN_TWO),
  ["xlm-roberta"] = of_texts("XLMRoberta", IN_TWO),
  camembert = of_texts("Camembert", IN_TWO),
  mpnet = of_texts("MPNet", IN_TWO),
  distilbert = of_texts("DistilBert", pooled("pre_classifier", "relu", "classifier"), masked {
    dense = "vocab_transform", act = "activation", norm = "vocab_layer_norm",
    module = "vocab_projector", head = "vocab_projector" }),
  modernbert = { ModernBertForMaskedLM = masked_of_modernbert,
                 ModernBertForSequenceClassification = modernbert(),
                 ModernBertForTokenClassification = modernbert "all",
                 ModernBertForQuestionAnswering = joined(modernbert "all", always { said = ANSWERS }) },
  clip_text_model = { CLIPTextModelWithProjection = clip_text, CLIPModel = clip_text },
  clip_vision_model = { CLIPVisionModelWithProjection = clip_image, CLIPModel = clip_image },
  siglip_text_model = { SiglipTextModel = siglip_text, SiglipModel = siglip_text },
  siglip_vision_model = { SiglipVisionModel = siglip_image, SiglipModel = siglip_image },
  vit = { ViTForImageClassification = logits("first", CLASSIFIER) },
  deit = { DeiTForImageClassification = logits("first", CLASSIFIER),
           DeiTForImageClassificationWithTeacher = logits("first_two", {
             { "cls_classifier", "distillation_classifier" } }) },
  dinov2 = { Dinov2ForImageClassification = DINOV2 },
  dinov2_with_registers = { Dinov2WithRegistersForImageClassification = DINOV2 },
}

function M.of(kind, class, fields)
  local head = (heads[kind] or {})[class]
  if type(head) == "function" then return head(fields) end
  return head
end

return M
