-- Rows of GGUF files, as gen/model/whole_families.lua describes them. Their meaning is that of llama.cpp at commit
-- 0c1e57098, as in gen/model/gguf_families.lua: src/models has the tensors, the norms and the activation of each.
--
-- One thing is the models' own: BERT and ModernBERT have the exact GELU, for which llama.cpp takes its tanh form.

local activation = require "model.activation"
local family_keys = require "model.family_keys"
local whole_keys = require "model.whole_keys"

local M = {}

local always, joined = family_keys.always, family_keys.joined

local RMS_EPS, LAYER_EPS, FFN = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
  "feed_forward_length"

-- ---- lines of the summary ----

-- What represents a whole text, by the number that `pooling_type` is.
local POOLINGS = { [0] = false, "the mean of the rows", "the first row", "the last row",
                   "what a classifier makes of the rows, which is left out" }

local function pooling(c)
  local number = c:number("pooling_type", 0)
  local said = POOLINGS[number]
  if said == nil then c:fail("pooling_type", "%s must be a number from 0 to %d", number, #POOLINGS) end
  return said and ("pooling_type: a text is represented by %s"):format(said) or nil
end

-- A window that llama.cpp switches off.
local function no_window(c)
  local rows = c:number("attention.sliding_window", 0)
  return rows > 0 and rows < c:int "context_length" and
    ("attention.sliding_window: %s is not taken, as in llama.cpp: rows see all keys before them"):format(rows) or nil
end

-- ---- parts of rows ----

local BY_GATE = { ["1"] = "ffn_gate", ["2"] = "ffn_down", ["3"] = "ffn_up" }
local BY_HALVES = { ["1"] = { "ffn_up", 0, 2 }, ["2"] = "ffn_down", ["3"] = { "ffn_up", 1, 2 } }
local PLAIN = { ["1"] = "ffn_up", ["2"] = "ffn_down" }
local PRE = { ["1"] = "attn_norm", ["2"] = "ffn_norm" }
local POST = { "attn_output_norm", "layer_output_norm" }
local SANDWICH = { ["1"] = "attn_norm", ["1b"] = "post_attention_norm", ["2"] = "ffn_norm", ["2b"] = "post_ffw_norm" }

-- Of a function of gen/model/whole_keys.lua, the field of its epsilon and its activation: the keys.
local function keys(of, eps, act)
  return function(c) return of(c:positive(eps), c:int(FFN), act) end
end

-- The embeddings: words, and `more` of (fields), or nil.
local function embeddings(more)
  return function(c)
    local made = more and more(c) or {}
    made.words, made.said = { "token_embd", c:int("vocab_size", false) or nil }, made.said or {}
    table.insert(made.said, pooling(c))
    return made
  end
end

local function places(c) return { "position_embd", c:int "context_length" } end

-- Fields of `row` are in front of those of `of`.
local function like(of, row)
  for key, value in pairs(of) do
    if row[key] == nil then row[key] = value end
  end
  return row
end

-- ---- decoders ----

local GATED = { module = "", maps = BY_GATE, norms = PRE, biases = false, last = "output_norm", left_out = {},
                keys = keys(whole_keys.pre_norm, RMS_EPS, "silu"), embeddings = embeddings() }

local function decoder(row)
  row.head = "output"
  return like(GATED, row)
end

-- Gains are stored as they are, unlike those of the model's folder.
local function gemma3(c)
  local cap = c:number("final_logit_softcapping", 0)
  if cap ~= 0 then
    c:fail("final_logit_softcapping", "%s: a cap of logits is not made; mhagen model takes the layers without --whole",
      cap)
  end
  return keys(whole_keys.sandwich, RMS_EPS, "gelu_tanh")(c)
end

local function scaled_words(c) return { factor = c:int "embedding_length" ^ 0.5 } end

local decoders = {
  decoder { types = { "llama", "mistral3", "qwen2", "qwen3" }, left_out = { "^rope_freqs%." } },
  decoder { types = { "phi3" }, maps = BY_HALVES, embeddings = embeddings(function(c)
    return { said = { no_window(c) } }
  end) },
  decoder { types = { "gemma3" }, norms = SANDWICH, keys = gemma3, embeddings = embeddings(scaled_words) },
  decoder { types = { "gpt2" }, maps = PLAIN, biases = true, keys = keys(whole_keys.plain_pre_norm, LAYER_EPS,
    "gelu_tanh"), embeddings = embeddings(function(c) return { places = places(c) } end) },
}

-- ---- encoders ----

-- Heads are left out. Tables of types may be missing, and their rows are those of the file.
local ENCODER = { module = "", left_out = { "^cls%." }, harmless = "classifier.pooling_type" }

local function typed(c)
  return { types = c.tensors["token_types.weight"] and { "token_types" }, norm = "token_embd_norm" }
end

local function bert(c)
  local made = typed(c)
  made.places = places(c)
  return made
end

local SHORTER = always { q_len = true } -- for a run of fewer rows than the kernel has

-- The first layer has no norm for attention, unless the file has one.
local function modernbert(c, i)
  local first = i == 0 and not c.tensors["blk.0.attn_norm.weight"]
  return whole_keys.modernbert(first, c:positive(LAYER_EPS), c:int(FFN), activation(c, "hidden_activation", "gelu"))
end

local encoders = {
  { types = { "bert" }, maps = PLAIN, norms = POST, keys = keys(whole_keys.post_norm, LAYER_EPS, "gelu"),
    embeddings = embeddings(bert) },
  { types = { "nomic-bert" }, maps = BY_GATE, norms = POST, biases = false,
    keys = joined(keys(whole_keys.post_norm, LAYER_EPS, "silu"), always { ffn_gate = true }),
    embeddings = embeddings(typed) },
  { types = { "modern-bert" }, maps = BY_HALVES, norms = PRE, biases = false, norm_biases = false,
    last = "output_norm", keys = modernbert,
    embeddings = embeddings(function() return { norm = "token_embd_norm" } end) },
  { types = { "eurobert" }, maps = BY_GATE, norms = PRE, biases = false, last = "output_norm",
    keys = joined(GATED.keys, SHORTER), embeddings = embeddings() },
  -- There may be two maps behind the mean.
  { types = { "gemma-embedding" }, maps = BY_GATE, norms = SANDWICH, biases = false, last = "output_norm",
    keys = joined(keys(whole_keys.sandwich, RMS_EPS, "gelu_tanh"), SHORTER), embeddings = embeddings(scaled_words),
    left_out = { "^dense_%d%.", "^output%." },
    harmless = "dense_2_feat_in dense_2_feat_out dense_3_feat_in dense_3_feat_out" },
}
for _, row in ipairs(encoders) do like(ENCODER, row) end

M.rows = table.move(encoders, 1, #encoders, #decoders + 1, decoders)

return M
