-- AVX-512 with BF16 and VNNI, as Zen 4 has both: sums of products of pairs of bfloat16, and of four bytes.
--
-- The product of bfloat16 treats numbers below 2^-126 as zeros. It rounds twice: after the second product of a
-- pair, and after the first one.

local avx512 = require "isa.avx512"
local extend = require "isa.extend"
local powers = require "isa.powers"
local x86 = require "isa.x86"

local features = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vnni,avx2,fma"

-- Bytes of a quarter that has four halves of a, then four of b.
local quarter = "0x09080100, 0x0B0A0302, 0x0D0C0504, 0x0F0E0706"
local two_quarters = quarter .. ",\n      " .. quarter

local rows = avx512.products["f32 f32"].rows

return extend(avx512, {
  name = "avx512_bf16",
  title = "x86-64 with AVX-512 F, DQ, BW, VL, BF16 and VNNI",
  cpu = "MHAGEN_CPU_AVX512_BF16",
  begin = x86.begin(features),
  cpuinfo = x86.cpuinfo(features),
  products = { ["bf16 bf16"] = { way = "outer", op = "dot", group = 2, powers = "powers", rows = rows },
               ["int8 int8"] = { way = "outer", op = "dot_unsigned", group = 4, unsigned = true,
                                rows = { columns = { 16, 8, 6, 4, 3 }, rows = { 16, 8, 6, 4, 3 } } },
               ["int8 groups"] = { way = "outer", op = "dot_by_unsigned", group = 4, part = "unsigned_bytes",
                                  less = "minus_128s",
                                  rows = { columns = { 16, 8, 6, 4, 3 }, rows = { 16, 8, 6, 4, 3 } } },
               ["int8 int4"] = { way = "outer", op = "dot_by_unsigned", group = 4, part = "unsigned_nibbles",
                                less = "minus_eights", bytes = "dot_bytes",
                                rows = { columns = { 16, 8, 6, 4, 3 }, rows = { 16, 8, 6, 4, 3 } } } },
  prelude = avx512.prelude .. [[

/* Two bfloat16, as a dot product takes them; the first one is the low half. */
typedef float bf16_pair;
]],
  helpers = {
    dot_shorts = false,
    dot_bytes = [[
/* c + the products of the signed bytes of a and b, as |b| times a with the sign of b. */
static inline $i dot_bytes_$lanes($i a, $i b, $i c) {
  const $i with_sign = $p_mask_sub_epi8(a, $p_movepi8_mask(b), $p_setzero_$si(), a);
  return $p_dpbusd_epi32(c, $p_abs_epi8(b), with_sign);
}
]],
    unsigned_nibbles = [[
/* The signed low nibble of each byte, plus 8. */
static inline $i eight_more_$lanes($i a) {
  return $p_ternarylogic_epi32(a, $p_set1_epi8(15), $p_set1_epi8(8), 0x6A);
}
]],
    pair = [[
/* The nearest bfloat16 of a and b in pairs. */
static inline $t pair_$lanes($t a, $t b) {
  const $i halves = ($i)$p_cvtne2ps_pbh(b, a);
  const $i order = $p_set_epi16(
      $pairs);
  return $p_cast$si_ps($p_permutexvar_epi16(order, halves));
}
]],
    powers = powers.helper({ type = "uint16_t", columns = 22 },
      "_mm512_permutex2var_epi16(\n      _mm512_load_si512(parts), $places, _mm512_load_si512(parts + 32))"),
  },
  widths = {
    { bh = "__m512bh", half = "__m256", quarters = two_quarters .. ",\n      " .. two_quarters,
      shifted = "_mm512_srli_epi16(words, 2)", places = "places", found = "found",
      pairs = "31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,\n" ..
        "      23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0" },
    { bh = "__m256bh", half = "__m128", quarters = two_quarters,
      shifted = "_mm256_srli_epi16(words, 2)", places = "_mm512_castsi256_si512(places)",
      found = "_mm512_castsi512_si256(found)",
      pairs = "15, 7, 14, 6, 13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0" },
  },
  rows = {
    pair = "pair_$lanes($1, $2)",
    powers = "powers_$lanes($1, $2)",
    dot = "$p_dpbf16_ps($3, ($bh)$1, ($bh)$2)",
    dot_shorts = "$p_dpwssd_epi32($3, $1, $2)",
    dot_unsigned = "$p_dpbusd_epi32($3, $1, $2)",
    dot_by_unsigned = "$p_dpbusd_epi32($3, $2, $1)",
    dot_bytes = "dot_bytes_$lanes($1, $2, $3)",
    minus_eights = "$p_sub_epi32($1, $p_dpbusd_epi32($p_setzero_$si(), $p_set1_epi8(8), $2))",
    minus_128s = "$p_sub_epi32($1, $p_dpbusd_epi32($p_setzero_$si(), $p_set1_epi8((char)0x80), $2))",
    unsigned_bytes = { [0] = "$p_xor_$si($1, $p_set1_epi32((int)0x80808080))" },
    unsigned_nibbles = { [0] = "eight_more_$lanes($1)", [1] = "eight_more_$lanes($p_srli_epi32($1, 4))" },
    store_pairs = "$halfp_storeu_ps($1, ($half)$p_cvtneps_pbh($2))",
    low_half = "$p_cast$si_ps($p_slli_epi32($p_castps_$si($1), 16))",
    high_half = "$p_cast$si_ps($p_and_$si($p_castps_$si($1), $p_set1_epi32((int)0xFFFF0000)))",
    zero_low_if = "$p_mask_and_ps($2, $1, $2, $p_cast$si_ps($p_set1_epi32((int)0xFFFF0000)))",
    zero_high_if = "$p_mask_and_ps($2, $1, $2, $p_cast$si_ps($p_set1_epi32(0xFFFF)))",
  },
})
