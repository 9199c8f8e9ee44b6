-- The kinds of models that GGUF files have: rows as in gen/model/families.lua. Fields are named without the model's
-- type before them, tensors of a layer without its block. What they mean is what llama.cpp does with them: a key that
-- is missing has its default there, or is required as it is there (src/llama-model.cpp and src/models, 2026).

local angles = require "model.rope"
local family_rows = require "model.family_rows"
local family_keys = require "model.family_keys"
local fields = require "model.fields"
local wording = require "base.wording"

local always, joined = family_keys.always, family_keys.joined

-- A decoder, unless it is said otherwise.
local function causal(c) return c:flag("attention.causal", true) and { causal = true } or { kv_len = true } end

-- Without the key llama.cpp takes it for a decoder, and its converter always writes it.
local function bert(c) return { kv_len = true, causal = c:flag "attention.causal" or nil } end

-- ---- rope ----

-- Each kind of scaling: of (fields, factor of the angles, that of cosines and sines) to a function of (rope_theta,
-- pairs) to what model.rope makes of them.
local scalings = {}

function scalings.none(_, _, factor)
  return function() return angles.linear(1, factor) end
end

function scalings.linear(_, by, factor)
  return function() return angles.linear(by, factor) end
end

function scalings.yarn(c, by, factor)
  local beta_fast = c:positive("rope.scaling.yarn_beta_fast", 32)
  local beta_slow = c:positive("rope.scaling.yarn_beta_slow", 1)
  local trained = c:int("rope.scaling.original_context_length", c:int "context_length")
  return function(theta, pairs)
    if theta <= 1 then c:fail("rope.freq_base", "must be larger than 1 with yarn") end
    return angles.yarn({ by = by, trained = trained, beta_fast = beta_fast, beta_slow = beta_slow, truncate = true,
                         factor = factor * (by > 1 and 0.1 * math.log(by) + 1 or 1) }, theta, pairs)
  end
end

local function scaling(c)
  local kind = c:word("rope.scaling.type", "linear")
  local of = scalings[kind] or c:fail("rope.scaling.type", "%s is not supported", wording.short(kind))
  local by = fields.agreed({ { c, "rope.scaling.factor" }, { c, "rope.scale_linear" } }, 1)
  return of(c, by, c:positive("rope.scaling.attn_factor", 1))
end

-- Rows of Q and K of Llama's family are permuted in these files, so that rope turns neighbours.
local function rope(kind)
  return function(c, _, sizes)
    return { rope = kind, rope_theta = c:positive("rope.freq_base", 10000), scaling = scaling(c),
             rope_dims = c:int("rope.dimension_count", sizes.dk) }
  end
end

-- Rope, and a window in all layers but each so many-th.
--
--   period    the default of sliding_window_pattern; 0 says all layers
--   window    that of sliding_window; without one it is required, and 0 says that no layer has a window
--   base      that of rope in them, else the same base
--   scaled    of (fields) to what scales it in them, else the same scaling
local function sliding(s)
  return function(c, i, sizes)
    local keys = rope "half"(c, i, sizes)
    local base, name = c:positive("rope.freq_base_swa", s.base or keys.rope_theta), "attention.sliding_window_pattern"
    local period = c:number(name, s.period) ~= 0 and c:int(name, s.period) or 0
    if s.window == 0 and c:number("attention.sliding_window", 0) == 0 then return keys end
    local rows = c:int("attention.sliding_window", s.window)
    if period > 0 and i % period == period - 1 then return keys end
    keys.window_left, keys.rope_theta = rows - 1, base
    if s.scaled then keys.scaling = s.scaled(c) end
    return keys
  end
end

-- Layers of Gemma 3 with a window have the factor of cosines and sines alone.
local function factor_alone(c)
  local factor = c:positive("rope.scaling.attn_factor", 1)
  return function() return angles.linear(1, factor) end
end

local function plain() return nil end

-- Every fourth layer has no rope.
local function some_rope(kind)
  local of = rope(kind)
  return function(c, i, sizes)
    local keys = of(c, i, sizes)
    return (i + 1) % 4 ~= 0 and keys or {}
  end
end

-- ---- further keys ----

local function norm(c)
  return { qk_norm = "rms", norm_eps = c:positive "attention.layer_norm_rms_epsilon" }
end

-- Layer norms, which only the large ones of these models have.
local LARGE = 64
local function command_r(c)
  if c:int "block_count" < LARGE then return {} end
  return { qk_norm = "layer", norm_span = "each", norm_eps = c:positive "attention.layer_norm_epsilon" }
end

-- The largest of Gemma's models have a scale by the width of their rows.
local function gemma(largest)
  return function(c, _, sizes)
    local large = c:int "block_count" == largest
    return { scale = large and (sizes.d_model // sizes.h) ^ -0.5 or nil }
  end
end

local function softcap(c) return { softcap = c:positive("attn_logit_softcapping", 50) } end

-- A scale of 0 is the usual one; and a switch with another name says whether there is rope.
local function granite(c, i, sizes)
  local keys = rope "interleaved"(c, i, sizes)
  if not c:flag("rope.scaling.finetuned", true) then keys = {} end
  keys.scale = c:number("attention.scale", 0) ~= 0 and c:positive "attention.scale" or nil
  return keys
end

-- default: of the largest slope.
local function alibi(default)
  return function(c)
    local bias = c:number("attention.max_alibi_bias", default)
    if bias ~= 8 and bias ~= default then c:fail("attention.max_alibi_bias", "%s; must be 8", bias) end
    return bias == 8 and { alibi = true } or {}
  end
end

local function values(c, _, sizes) return { dv = c:int("attention.value_length", sizes.d_model // sizes.h) } end

-- ---- rows ----

local MAPS = { { "attn_q", "attn_k", "attn_v", "attn_output" }, { "attn_qkv", "attn_output" } }
local GAINS = { q_norm = "attn_q_norm.weight", k_norm = "attn_k_norm.weight" }

-- Layers whose matrices of Q, K and V are three, or one.
local function block(keys, more)
  local made = {}
  for i, maps in ipairs(MAPS) do
    made[i] = family_rows.stack("blk.%d", maps, joined(values, keys), {
      layers = "block_count", h = "attention.head_count", h_kv = "attention.head_count_kv",
      d_model = "embedding_length", dk = "attention.key_length" })
    for key, value in pairs(more or {}) do made[i][key] = value end
  end
  return made
end

local function decoder(keys, more) return block(joined(causal, keys), more) end

local FACTORS = { frequencies = { "rope_freqs.weight" } }

local rows = {
  { types = { "llama" }, stacks = decoder(rope "interleaved", FACTORS) },
  { types = { "qwen2", "qwen2moe", "gemma", "starcoder2", "falcon" }, stacks = decoder(rope "half") },
  { types = { "qwen2vl" }, stacks = decoder(rope "half"), harmless = "rope.dimension_sections" }, -- of images
  { types = { "qwen3", "qwen3moe" }, stacks = decoder(joined(rope "half", norm), { more = GAINS }) },
  { types = { "gemma2" }, stacks = decoder(joined(sliding { period = 2, window = 4096 }, gemma(46), softcap)),
    harmless = "final_logit_softcapping" },
  { types = { "gemma3" }, stacks = decoder(joined(
    sliding { period = 6, window = 0, base = 10000, scaled = factor_alone }, norm, gemma(62)), { more = GAINS }),
    harmless = "final_logit_softcapping" },
  { types = { "olmo2" }, stacks = decoder(joined(sliding { period = 4, window = 0, scaled = plain }, norm,
                                                 always { norm_span = "all" }), { more = GAINS }) },
  { types = { "command-r" }, stacks = decoder(joined(rope "interleaved", command_r), { more = GAINS }),
    harmless = "logit_scale" },
  { types = { "granite" }, stacks = decoder(granite, FACTORS),
    harmless = "logit_scale embedding_scale residual_scale" },
  { types = { "smollm3" }, stacks = decoder(some_rope "interleaved") },
  { types = { "gpt-oss" }, stacks = decoder(joined(sliding { period = 2 }, always { sink = true }),
                                            { more = { sink_logits = "attn_sinks.weight" } }) },
  -- llama.cpp switches its window off, for converters write a wrong one.
  { types = { "phi3" }, harmless = "attention.sliding_window", stacks = decoder(rope "half", {
    frequencies = { "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight" } }) },
  { types = { "bert" }, stacks = block(bert) },
  { types = { "nomic-bert" }, stacks = block(joined(bert, rope "half")) },
  { types = { "gpt2" }, stacks = decoder(always {}) },
  { types = { "bloom" }, stacks = decoder(alibi(8)) },
  { types = { "mpt" }, stacks = decoder(alibi(0)) },
}

for _, row in ipairs(rows) do
  row.own, row.shared, row.beside = "^attn_", "^rope_", { "^attn_norm", "^attn_output_norm" }
  row.harmless = (row.harmless or "") .. " rope.scaling.original_context_length rope.scaling.finetuned"
end

return rows
