-- The kinds of models that GGUF files have: rows as in gen/model/families.lua. Fields are named without the model's
-- type before them, tensors of a layer without its block. Their meaning is that of llama.cpp: a missing key has the
-- default that it has there, or is required as it is there. Each row was checked against llama.cpp at commit 0c1e57098,
-- that of llama-cpp-python 0.3.36: src/llama-model.cpp, llama-context.cpp, llama-graph.cpp and models.

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

-- Its betas are these two, whatever the file says: llama.cpp reads them for other types of models only.
local BETAS = "rope.scaling.yarn_beta_fast=32 rope.scaling.yarn_beta_slow=1 rope.scaling.yarn_ext_factor=1"

function scalings.yarn(c, by, factor)
  if by < 1 then c:fail("rope.scaling.factor", "%s must be at least 1 with yarn", by) end
  local trained = c:int("rope.scaling.original_context_length", c:int "context_length")
  return function(theta, pairs)
    if theta <= 1 then c:fail("rope.freq_base", "must be larger than 1 with yarn") end
    return angles.yarn({ by = by, trained = trained, beta_fast = 32, beta_slow = 1, truncate = true, step = true,
                         factor = factor * (0.1 * math.log(by) + 1) }, theta, pairs)
  end
end

local function factor_of(c) return fields.agreed({ { c, "rope.scaling.factor" }, { c, "rope.scale_linear" } }, 1) end

local function scaling(c)
  local kind = c:word("rope.scaling.type", "linear")
  local of = scalings[kind] or c:fail("rope.scaling.type", "%s is not supported", wording.short(kind))
  return of(c, factor_of(c), c:positive("rope.scaling.attn_factor", 1))
end

-- Rows of Q and K of Llama's family are permuted in these files, so that rope turns neighbours.
local function rope(kind)
  return function(c, _, sizes)
    return { rope = kind, rope_theta = c:positive("rope.freq_base", 10000), scaling = scaling(c),
             rope_dims = c:int("rope.dimension_count", sizes.dk) }
  end
end

-- Whether a layer has a window: by a list, or all have but each so many-th, by default `period`; 0 says all.
local function slides(c, i, period)
  local name = "attention.sliding_window_pattern"
  if not c:is_list(name) then
    period = c:number(name, period) ~= 0 and c:int(name, period) or 0
    return period == 0 or i % period < period - 1
  end
  local list, count = c:list(name), c:int "block_count"
  if #list ~= count then c:fail(name, "has %d elements, and there are %d blocks", #list, count) end
  return list[i + 1] ~= 0
end

-- Rope, and a window in some layers.
--
--   period    the default of sliding_window_pattern
--   window    that of sliding_window; without one it is required, and 0 says that no layer has a window
--   base      that of rope in them, else the same base
--   only      true where there is no other base
--   scaled    of (fields) to what scales it in them, else the same scaling
local function sliding(s)
  return function(c, i, sizes)
    local keys = rope "half"(c, i, sizes)
    local base = c:positive("rope.freq_base_swa", s.base or keys.rope_theta)
    if s.only and base ~= keys.rope_theta then
      c:fail("rope.freq_base_swa", "%s must be rope.freq_base, %s, which llama.cpp takes in all layers of this model",
             base, keys.rope_theta)
    end
    local has = slides(c, i, s.period)
    if s.window == 0 and c:number("attention.sliding_window", 0) == 0 then return keys end
    local rows = c:int("attention.sliding_window", s.window)
    if not has then return keys end
    if not s.scaled and c:word("rope.scaling.type", "linear") == "none" and factor_of(c) ~= 1 then
      c:fail("rope.scaling.factor", "%s must be 1 with rope.scaling.type none: llama.cpp takes it in layers with a " ..
        "window alone", factor_of(c))
    end
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

-- Rope whose pairs have places of three kinds, which are the same in texts; the fourth is always 0 there.
local function sections(c, i, sizes)
  local name = "rope.dimension_sections"
  local list = c:list(name) or c:fail(name, "is missing")
  if #list ~= 4 or list[4] ~= 0 then c:fail(name, "must be 4 numbers, of which the last is 0") end
  return rope "half"(c, i, sizes)
end

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
  { types = { "qwen2vl" }, stacks = decoder(sections) },
  { types = { "qwen3", "qwen3moe" }, stacks = decoder(joined(rope "half", norm), { more = GAINS }) },
  { types = { "gemma2" }, stacks = decoder(joined(sliding { period = 2, window = 4096 }, gemma(46), softcap)),
    harmless = "final_logit_softcapping" },
  { types = { "gemma3" }, stacks = decoder(joined(
    sliding { period = 6, window = 0, base = 10000, scaled = factor_alone }, norm, gemma(62)), { more = GAINS }),
    harmless = "final_logit_softcapping" },
  { types = { "olmo2" }, stacks = decoder(joined(sliding { period = 4, window = 0, only = true, scaled = plain }, norm,
                                                 always { norm_span = "all" }), { more = GAINS }) },
  { types = { "command-r" }, stacks = decoder(joined(rope "interleaved", command_r), { more = GAINS }),
    harmless = "logit_scale" },
  { types = { "granite" }, stacks = decoder(granite, FACTORS),
    harmless = "logit_scale embedding_scale residual_scale" },
  { types = { "smollm3" }, stacks = decoder(some_rope "interleaved") },
  { types = { "gpt-oss" }, stacks = decoder(joined(sliding { period = 2 }, always { sink = true }),
                                            { more = { sink = "attn_sinks.weight" } }) },
  -- llama.cpp switches its window off, for converters write a wrong one.
  { types = { "phi3" }, harmless = "attention.sliding_window", stacks = decoder(rope "half", {
    frequencies = { "rope_factors_short.weight", "rope_factors_long.weight" } }) },
  { types = { "bert" }, stacks = block(bert) },
  { types = { "nomic-bert" }, stacks = block(joined(bert, rope "half")) },
  { types = { "gpt2" }, stacks = decoder(always {}) },
  { types = { "bloom" }, stacks = decoder(alibi(8)) },
  { types = { "mpt" }, stacks = decoder(alibi(0)) },
}

for _, row in ipairs(rows) do
  row.own, row.shared, row.beside = "^attn_", "^rope_", { "^attn_norm", "^attn_output_norm" }
  row.harmless = ("%s rope.scaling.original_context_length rope.scaling.finetuned %s"):format(row.harmless or "", BETAS)
end

return rows
