-- The keys that name number types, rows as options/rows.lua has them.

local isas = require "isa.init"
local types = require "machine.types"
local ways = require "way.init"

-- The kinds of quantized weights, and why dtype = int8 excludes some of them.
local quants, beside_int8 = {}, {}
for _, kind in ipairs(types.quants) do
  quants[#quants + 1] = kind.name
  if kind.type or kind.columns then
    for _, key in ipairs { "dtype", "ffn_dtype" } do
      beside_int8[#beside_int8 + 1] = { key = key, is = "int8", of = kind.name, without = kind.columns and "group",
                                        why = kind.type and "which multiplies integers"
                                          or "which has a scale for each column anyway; group = 32 makes smaller ones" }
    end
  end
end

-- Rows that share a scale, if the config does not say it: in int8 all rows of a column do.
local GROUP = 32
local function group_of(values) return values.weight_dtype ~= "int8" and GROUP or nil end

-- The type of attention if projections have a type that attention cannot have: the one in which the ISA is fastest.
local function attention_beside_int8(values)
  local own, isa = types.by_name[values.dtype], isas.list[values.isa]
  if not (own and own.quantized) then return nil end
  local in_groups = values.weight_dtype == "int4" or values.weight_dtype == "int8" and values.group
  if in_groups then return "f32" end -- sums of groups are added in float32
  return isa and isas.paired(isa, types.by_name.bf16) and "bf16" or "f32"
end

-- The type of a cache if attention has a type that a cache cannot have.
local function cache_of_float32(values)
  local cached = (values.cache or "none") ~= "none" and values.attend_dtype
  return cached and not types.of_cache[cached] and types.f32.name or nil
end

-- Names of number types in other tools.
local called = { f32 = { "float32", "fp32", "float" }, f16 = { "float16", "half" }, bf16 = { "bfloat16" } }

local NO_SCALES, FINER = "which has no scales", "which is more precise"
local IN_Y = "since the sums of groups are added up in y, in float32"

return {
  { key = "dtype", kind = "choice", choices = types.names, called = called,
    default = "f32", akin = { "torch_dtype", "precision" },
    word = "%s", bit = "MHAGEN_DTYPE", number = true,
    excludes = { { key = "project", is = "none", of = "int8", why = "whose only products are those of attention" } },
    doc = "number type of the operands of the projections; sums are float32, those of int8 are int32",
    draw = { chance = 0.2, of = { "int8", "bf16", "f16", "f32" } } }, -- all pairs of options take the first two
  { key = "attend_dtype", kind = "choice", choices = types.of_attention, called = called, same_as = "dtype",
    implied = attention_beside_int8,
    name = "_attend_",
    word = "attention in %s", bit = "MHAGEN_ATTEND_DTYPE", number = true, akin = { "softmax_dtype" },
    doc = "number type of the operands of attention; with dtype = int8, the default is bf16 if the ISA multiplies " ..
      "it, else f32",
    draw = { chance = 0.2, of = types.of_attention } },
  { key = "ffn_dtype", kind = "choice", choices = types.names, called = called, same_as = "dtype", beside = { "ffn" },
    name = "_ffn_", word = "feed-forward in %s", bit = "MHAGEN_FFN_DTYPE", number = true, akin = { "mlp_dtype" },
    doc = "number type of the operands of the feed-forward's products",
    draw = { chance = 0.3, of = { "int8", "bf16", "f16", "f32" } } },
  { key = "sum_dtype", kind = "choice", choices = { "f32", "f16" }, called = called,
    default = "f32", beside = { "dtype" },
    name = "_sums_", akin = { "accumulator", "accumulation", "acc_dtype", "compute_type" },
    excludes = { { key = "dtype", is = "bf16", why = "whose sums are float32" },
                 { key = "dtype", is = "int8", why = "whose sums are int32" } },
    idle = function(plan)
      if ways.of(plan.scheme).own_sums then return nil end
      local own = isas.paired(plan.isa, types.by_name.f16)
      return own and ways.of(own).own_sums and "not here: projections have no pairs" or
        ("not here: %s does not add it"):format(plan.isa.name)
    end,
    doc = "number type of the projections' partial sums; f16 is for dtype = f16: fewer instructions if the ISA " ..
      "adds f16, and twice the error",
    draw = { chance = 0.5 } },
  { key = "weight_dtype", kind = "choice", choices = { "dtype", table.unpack(quants) }, called = called,
    default = "dtype", name = "_weights_", word = "weights in %s", bit = "MHAGEN_WEIGHT_DTYPE", number = true,
    akin = { "load_in_8bit", "load_in_4bit", "weight_quant", "quant_method" },
    excludes = { { key = "project", is = "none", why = "which leaves no weights" },
                 { key = "io_dtype", of = "int4", why = IN_Y },
                 table.unpack(beside_int8) },
    doc = "number type of packed weights, which are multiplied as dtype; int8: a scale for each column, or for each " ..
      "`group` rows of it; int4: likewise; with dtype = int8 it may be int4, or int8 with a group",
    draw = { chance = 0.25 } },
  { key = "group", kind = "integer", min = 8, max = 16384, step = 8, implied = group_of, beside = { "weight_dtype" },
    name = "_gr", word = "groups of %s rows", number = true, also = { "group_size", "q_group_size" },
    akin = { "block_size" },
    excludes = { { key = "weight_dtype", is = "bf16", why = NO_SCALES },
                 { key = "weight_dtype", is = "f16", why = NO_SCALES },
                 { key = "io_dtype", why = IN_Y } },
    doc = "rows of a column that share a scale with weight_dtype = int4 (default: 32) or int8 (default: all), a " ..
      "multiple of 8",
    draw = { chance = 0.4, of = { 8, 16, 24, 64 } } },
  { key = "io_dtype", kind = "choice", choices = types.stored_names, called = called, default = "f32", name = "_io_",
    word = "inputs and y in %s", bit = "MHAGEN_IO_DTYPE", number = true, akin = { "input_dtype", "output_dtype" },
    doc = "number type of q, k, v and y in memory: bf16 and f16 are uint16_t; other arrays are float32",
    draw = { chance = 0.2 } },
  { key = "cache_dtype", kind = "choice", choices = types.cache_names, called = called,
    same_as = "attend_dtype", beside = { "cache" },
    implied = cache_of_float32, name = "_cached_", word = "cache in %s", bit = "MHAGEN_CACHE_DTYPE", number = true,
    akin = { "kv_cache_dtype", "cache_type_k", "cache_type_v" },
    doc = "number type of the rows in a cache; int8 has a scale for each row and head",
    draw = { chance = 0.3, of = { table.unpack(types.cache_names, 2) } } },
  { key = "value_weight_dtype", kind = "choice", choices = { "weight_dtype", "int8" }, default = "weight_dtype",
    beside = { "weight_dtype" }, name = "_wv_", word = "Wv in %s", bit = "MHAGEN_VALUE_WEIGHT_DTYPE", number = true,
    akin = { "attn_v" },
    excludes = { { key = "weight_dtype", is = "int8", why = "which makes all weights int8" },
                 { key = "weight_dtype", is = "bf16", why = FINER },
                 { key = "weight_dtype", is = "f16", why = FINER },
                 { key = "project", lacks = "v", why = "which does not project V" } },
    doc = "number type of packed Wv with weight_dtype = int4; int8 has a scale for each column; it helps most " ..
      "here, because errors in V matter most",
    draw = { chance = 0.4 } },
}
