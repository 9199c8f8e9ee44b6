-- What classes of transformers have behind the last rows of an encoder: logits of classes, or a projected vector.
--
--   of(kind, class, fields) -> head or nil
--     kind, class   the model's, and the first name that `architectures` has
--     head          name     as the argument of a run is called: logits, or embedding
--                   rows     what is taken of the rows: first, last, mean, all; first_two or first_and_mean, as one
--                            row; largest or ended, the row of the largest id or of the first one that is `id`
--                   steps    the linear maps behind it, in turn: { module, or the list of those whose mean is taken of
--                            as many rows; bias = false where it has none; act = what becomes of its result; norm =
--                            that behind it, { module, eps, biased }, or nil
--                   probe    in place of rows and steps: attention of one query over all rows, { query = its tensor,
--                            attention, norm, maps = modules, where both maps are those of a feed-forward }
--                   said     words about the result, or nil: scores of classes, or a vector }
--
-- tests/models/test_whole_heads.py compares each class with transformers.

local activation = require "model.activation"

local M = {}

local function logits(rows, ...) return { name = "logits", rows = rows, steps = { ... } } end

local function embedding(rows, module)
  return { name = "embedding", rows = rows, steps = { { module, bias = false } } }
end

local CLASSIFIER = { "classifier" }

local ANSWERS = "whether an answer begins there, and whether it ends"

-- Of the first row: a dense map whose result is activated, and then that of the classes.
local function pooled(dense, act, classifier) return logits("first", { dense, act = act }, { classifier }) end

local IN_TWO = pooled("classifier.dense", "tanh", "classifier.out_proj")

-- Adds what all these types have: a map of each row. of: what its classes' names begin with.
local function of_texts(of, of_sequences)
  return { [of .. "ForSequenceClassification"] = of_sequences,
           [of .. "ForTokenClassification"] = logits("all", CLASSIFIER),
           [of .. "ForQuestionAnswering"] = { name = "logits", rows = "all", said = ANSWERS,
                                              steps = { { "qa_outputs" } } } }
end

local POOLINGS = { cls = "first", mean = "mean" }

-- ModernBERT's dense map, whose result is activated and normalized, and then that of the classes.
local function modernbert(rows)
  return function(c)
    local pooling = rows or POOLINGS[c:word("classifier_pooling", "cls")]
      or c:fail("classifier_pooling", "must be cls or mean")
    return logits(pooling, {
      "head.dense", bias = c:flag("classifier_bias", false), act = activation(c, "classifier_activation", "gelu"),
      norm = { "head.norm", eps = c:positive("norm_eps", 1e-5), biased = c:flag("norm_bias", false) } }, CLASSIFIER)
  end
end

-- The same head with what is said of answers.
local function answering(of)
  return function(c)
    local head = of(c)
    head.said = ANSWERS
    return head
  end
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
  bert = of_texts("Bert", pooled("pooler.dense", "tanh", "classifier")),
  roberta = of_texts("Roberta", IN_TWO),
  ["xlm-roberta"] = of_texts("XLMRoberta", IN_TWO),
  camembert = of_texts("Camembert", IN_TWO),
  mpnet = of_texts("MPNet", IN_TWO),
  distilbert = of_texts("DistilBert", pooled("pre_classifier", "relu", "classifier")),
  modernbert = { ModernBertForSequenceClassification = modernbert(),
                 ModernBertForTokenClassification = modernbert "all",
                 ModernBertForQuestionAnswering = answering(modernbert "all") },
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
