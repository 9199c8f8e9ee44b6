-- The kinds of models that GGUF files have: rows as in gen/model/families.lua. Fields are named without the model's
-- type before them, tensors of a layer without its block.

local angles = require "model.rope"
local families = require "model.families"
local fields = require "model.fields"
local words = require "base.words"

local joined = families.joined

local ATTN = { "attn_q", "attn_k", "attn_v", "attn_output" }
local QKV = { "attn_qkv", "attn_output" }

-- A decoder, unless it is said otherwise.
local function causal(c) return c:flag("attention.causal", true) and { causal = true } or { kv_len = true } end

-- How llama.cpp, whose files these are, changes angles: by a factor, which is of the kind linear by default. Cosines
-- and sines are multiplied by attn_factor.
local function scaling(c)
  local kind = c:word("rope.scaling.type", "linear")
  if kind ~= "linear" and kind ~= "none" then c:fail("rope.scaling.type", "%s is not supported", words.short(kind)) end
  local by = fields.agreed({ { c, "rope.scaling.factor" }, { c, "rope.scale_linear" } }, 1)
  local factor = c:positive("rope.scaling.attn_factor", 1)
  return function() return angles.linear(kind == "linear" and by or 1, factor) end
end

-- Rows of Q and K of Llama's family are permuted in these files, so that rope turns neighbours.
local function rope(kind)
  return function(c, _, sizes)
    return { rope = kind, rope_theta = c:positive("rope.freq_base", 10000), scaling = scaling(c),
             rope_dims = c:int("rope.dimension_count", sizes.dk) }
  end
end

local function norm(c)
  return { qk_norm = "rms", norm_eps = c:positive("attention.layer_norm_rms_epsilon", 1e-6) }
end

local function window(c)
  if c:number("attention.sliding_window", 0) == 0 then return {} end
  return { window_left = c:int "attention.sliding_window" - 1 }
end

local function bert(c) return { kv_len = true, causal = c:flag("attention.causal", false) or nil } end

local function values(c, _, sizes) return { dv = c:int("attention.value_length", sizes.dk) } end

local function block(maps, keys, more)
  local made = families.stack("blk.%d", maps, joined(values, keys), {
    layers = "block_count", h = "attention.head_count", h_kv = "attention.head_count_kv",
    d_model = "embedding_length", dk = "attention.key_length", frequencies = { "rope_freqs.weight" } })
  for key, value in pairs(more or {}) do made[key] = value end
  return { made }
end

local function decoder(maps, keys, more) return block(maps, joined(causal, keys), more) end

local rows = {
  { types = { "llama" }, stacks = decoder(ATTN, rope "interleaved") },
  { types = { "qwen2", "gemma", "starcoder2" }, stacks = decoder(ATTN, rope "half") },
  { types = { "qwen3" }, stacks = decoder(ATTN, joined(rope "half", norm), {
    more = { q_norm = "attn_q_norm.weight", k_norm = "attn_k_norm.weight" } }) },
  { types = { "phi3" }, stacks = decoder(QKV, joined(rope "half", window), {
    frequencies = { "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight" } }) },
  { types = { "bert" }, stacks = block(ATTN, bert) },
  { types = { "gpt2" }, stacks = block(QKV, causal) },
}

for _, row in ipairs(rows) do
  row.own, row.shared, row.beside = "^attn_", "^rope_", { "^attn_norm", "^attn_output_norm" }
  row.harmless = "rope.scaling.original_context_length rope.scaling.finetuned"
end

return rows
