-- Number types: how numbers lie in memory, and to which type the operands of a product are rounded.
--
-- Softmax and all other arithmetic are float32. So are sums, except with sum_dtype = f16 (way/f16sum.lua).

local M = {}

-- name, doc; bytes of a number in memory, c = its type in C; unit = its largest rounding, as a part of a number;
-- error = the most that ||y - ref|| / ||ref|| is where operands are of this type and scores at most M.scores(unit);
-- error_of_sums = that where sums of projections are of it as well;
-- round(t, w, dst, x), but for float32: records the nearest numbers of the type, as float32; or quantized, where rows
-- of A and columns of B are integers times a scale of theirs, and projects alone; ops, those that an ISA has to have
-- for it; packs, whether packing rounds to it (mhagen.h); least and most, between which sums of rounded weights have to
-- be where the type has not the range of float32; pair and store_pairs, the ops that make words of two numbers; stored,
-- the same type as it lies in callers' arrays, where it can: load and store are the ops for it, if not those of
-- float32.
M.MOST_SCORES = 16

-- Where the largest rounding is `unit`, errors grow with scores from these on.
function M.scores(unit) return unit <= 2.0 ^ -24 and M.MOST_SCORES or 8 end

M.names, M.by_name = {}, {}
M.of_attention = {} -- the names of those that attention may have

function M.add(row)
  M.names[#M.names + 1] = row.name
  M.by_name[row.name] = row
  if not row.quantized then M.of_attention[#M.of_attention + 1] = row.name end
end

M.add { name = "f32", doc = "IEEE 754 single precision", bytes = 4, c = "float", unit = 2.0 ^ -24,
        error = 1e-6 }

M.f32 = M.by_name.f32
M.f32.stored = M.f32

-- How callers' arrays may have numbers: the types of the list that have a form in memory, `stored`, with the ops that
-- load and store it.
M.stored_names = { "f32" }

-- A type that ISAs round to by an op of its name.
local function add_rounded(row)
  local op, load, store = "round_" .. row.name, "load_" .. row.name, "store_" .. row.name
  row.ops, row.packs = { op }, true
  row.stored = { name = row.name .. " in memory", bytes = 2, c = "uint16_t", load = load, store = store,
                 ops = { load, load .. "_n", store, store .. "_n" } }
  M.stored_names[#M.stored_names + 1] = row.name
  function row.round(t, w, dst, x) return t:op(op, w, dst, x) end
  M.add(row)
end

add_rounded { name = "bf16", doc = "bfloat16: 8 bits of the significand, the range of float32", bytes = 4, c = "float",
              unit = 2.0 ^ -8, error = 1.2e-2, pair = "pair",
              store_pairs = "store_pairs" }
add_rounded { name = "f16", doc = "IEEE 754 half precision: 11 bits of the significand, up to 65504", bytes = 4,
              c = "float", unit = 2.0 ^ -11, error = 1.5e-3, error_of_sums = 3e-3, least = 2.0 ^ -8, most = 2.0 ^ 14,
              pair = "pair_f16", store_pairs = "store_pairs_f16" }

-- What rows of a cache may be: those types, and integers with a scale for each row and head. `unit` is then a part of
-- the largest number of a row.
M.cache_names, M.of_cache = {}, {}
for _, name in ipairs(M.stored_names) do M.cache_names[#M.cache_names + 1], M.of_cache[name] = name, M.by_name[name] end
M.cache_names[#M.cache_names + 1] = "int8"
M.of_cache.int8 = {
  name = "int8", unit = 1 / 254, error = 3e-2, scaled = true,
  stored = { name = "int8 in memory", bytes = 1, c = "int8_t", load = "load_int8", store = "store_int8",
             ops = { "load_int8", "load_int8_n", "store_int8", "store_int8_n" } },
}

-- unit: half a step, as a part of the largest number of a row or column.
M.add { name = "int8", doc = "integers up to 127 times a scale for each row of activations and column of weights",
        bytes = 4, c = "float", unit = 1 / 254, error = 3e-2, quantized = true,
        ops = { "load_words", "store_words", "dup_word", "zero_words", "words", "lane_words", "to_f", "larger_size" } }

-- A type as float32 in memory, whose numbers are rounded already.
local held = {}

function M.held(type)
  if not type.round then return type end
  held[type.name] = held[type.name] or { name = type.name .. " in " .. M.f32.name, bytes = M.f32.bytes, c = M.f32.c,
                                         rounded = type }
  return held[type.name]
end

-- Two numbers of a type in a word: what products of pairs read.
local in_pairs = {}

function M.pairs(type)
  in_pairs[type.name] = in_pairs[type.name] or { name = "pairs of " .. type.name, bytes = 4, c = type.name .. "_pair",
                                                 rounded = type }
  return in_pairs[type.name]
end

-- Four numbers of int8 in a word, and two of them, as signed halves.
M.words = { name = "words of int8", bytes = 4, c = "int8_word" }
M.short_words = { name = "pairs of int8", bytes = 4, c = "int8_pair" }

-- Weights of fewer bits than operands, in words of memory:
--
--   name, bits   bits of a number, of which so many are in_word
--   op, ops      the op that makes floats of a word's numbers, and those that an ISA may lack
--   unit, error  as above; of integers unit is a part of the largest number that shares a scale
--   scores       up to which the error is so, if not M.scores(unit)
--   type         numbers of this type, which have no scale; else integers times a scale
--   columns      a scale is that of a column, unless the key `group` makes groups of its rows
--   in_groups    the name of its products with integers in groups (`products` of an ISA)
--   deinterleave  a vector of words has the first numbers of as many columns as it has lanes, then the second ones
M.quants = {}

function M.add_quant(row)
  row.in_word = 32 // row.bits
  M.quants[#M.quants + 1], M.quants[row.name] = row, row
end

local function add_short(name, op, deinterleave)
  local type = M.by_name[name]
  M.add_quant { name = name, bits = 16, op = op, ops = { op }, type = type, deinterleave = deinterleave,
                unit = type.unit,
                error = type.error }
end

add_short("bf16", "bf16_half")
add_short("f16", "f16_halves", true)

M.add_quant { name = "int8", bits = 8, op = "byte", columns = true, in_groups = "groups", unit = 0.5 / 127,
              error = 3e-2 }
M.add_quant { name = "int4", bits = 4, op = "nibble", in_groups = "int4", unit = 1.0 / 8, error = 2.4e-1, scores = 4 }

M.LOWEST = -(2.0 ^ 128 - 2.0 ^ 104) -- of float32, below which is -inf alone
M.LOG2E = 1.4426950408889634 -- scores are in base 2

-- Of truths and of integers alone; no product is of them.
M.byte = { name = "byte", bytes = 1, c = "unsigned char" }
M.int = { name = "int", bytes = 4, c = "int" }

return M
