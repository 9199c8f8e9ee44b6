-- Rows of decoders in folders, as gen/model/whole_families.lua describes them.

local activation = require "model.activation"
local whole_keys = require "model.whole_keys"

local M = {}

-- ---- Llama and its like: norms in front, gates, no biases ----

local GATED = { ["1"] = "mlp.gate_proj", ["2"] = "mlp.down_proj", ["3"] = "mlp.up_proj" }
local PRE = { ["1"] = "input_layernorm", ["2"] = "post_attention_layernorm" }
local BUFFERS = { "rotary_emb%.inv_freq$" }

-- Defaults of the width of the feed-forward, of the vocabulary and of eps; and fields of the row that are others.
local function like_llama(types, ffn, vocabulary, eps, more)
  local row = { types = types, module = "self_attn", maps = GATED, norms = PRE, biases = false, last = "norm",
                head = "lm_head", tied = false, left_out = BUFFERS }
  function row.keys(c)
    return whole_keys.pre_norm(c:positive("rms_norm_eps", eps), c:int("intermediate_size", ffn),
      activation(c, "hidden_act", "silu"))
  end
  function row.embeddings(c) return { words = { "embed_tokens", c:int("vocab_size", vocabulary) } } end
  for key, value in pairs(more or {}) do row[key] = value end
  return row
end

local FUSED = { ["1"] = { "mlp.gate_up_proj", 0, 2 }, ["2"] = "mlp.down_proj", ["3"] = { "mlp.gate_up_proj", 1, 2 } }

-- ---- Gemma 3: a norm before and behind each branch, gains less 1, words times the root of their width ----

local SANDWICH = { ["1"] = "input_layernorm", ["1b"] = "post_attention_layernorm", ["2"] = "pre_feedforward_layernorm",
                   ["2b"] = "post_feedforward_layernorm" }

local function plus_one(list)
  local gains = {}
  for i, value in ipairs(list) do gains[i] = value + 1 end
  return gains
end

local gemma3 = like_llama({ "gemma3_text" }, 9216, 262208, 1e-6, { norms = SANDWICH, change = plus_one, tied = true })

function gemma3.keys(c)
  if c:has "final_logit_softcapping" then c:fail("final_logit_softcapping", "is not made") end
  return whole_keys.sandwich(c:positive("rms_norm_eps", 1e-6), c:int("intermediate_size", 9216),
    activation(c, "hidden_activation", "gelu_pytorch_tanh"))
end

function gemma3.embeddings(c)
  return { words = { "embed_tokens", c:int("vocab_size", 262208) }, factor = c:int("hidden_size", 2304) ^ 0.5 }
end

-- ---- GPT-2: layer norms in front, places ----

local gpt2 = { types = { "gpt2" }, module = "attn", maps = { ["1"] = "mlp.c_fc", ["2"] = "mlp.c_proj" },
               norms = { ["1"] = "ln_1", ["2"] = "ln_2" }, last = "ln_f", head = "lm_head", tied = true,
               left_out = { "attn%.bias$", "attn%.masked_bias$" }, harmless = "n_ctx" }

function gpt2.keys(c)
  local ffn = c:int("n_inner", false) or 4 * c:int("n_embd", 768)
  return whole_keys.plain_pre_norm(c:positive("layer_norm_epsilon", 1e-5), ffn,
    activation(c, "activation_function", "gelu_new"))
end

function gpt2.embeddings(c)
  return { words = { "wte", c:int("vocab_size", 50257) }, places = { "wpe", c:int("n_positions", 1024) } }
end

M.rows = {
  like_llama({ "llama" }, 11008, 32000, 1e-6, { biases = { "mlp_bias", false },
    harmless = "pretraining_tp=1 is_llama_config transformers.js_config" }),
  like_llama({ "mistral" }, 14336, 32000, 1e-6),
  like_llama({ "qwen2", "qwen3" }, 22016, 151936, 1e-6),
  like_llama({ "phi3" }, 8192, 32064, 1e-5, { maps = FUSED }),
  gemma3, gpt2,
}

return M
