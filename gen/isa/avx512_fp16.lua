-- AVX-512 with FP16, BF16 and VNNI, as Sapphire Rapids has them: products and sums of pairs of half precision.
--
-- It has no product of pairs of bfloat16: on these cores that takes twice the time of float32's.

local avx512 = require "isa.avx512"
local avx512_bf16 = require "isa.avx512_bf16"
local extend = require "isa.extend"
local x86 = require "isa.x86"

local features = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vnni,avx512fp16,avx2,fma"

return extend(avx512_bf16, {
  name = "avx512_fp16",
  title = "x86-64 with AVX-512 F, DQ, BW, VL, BF16, VNNI and FP16",
  cpu = "MHAGEN_CPU_AVX512_FP16",
  since = "(defined(__clang__) || __GNUC__ >= 12)",
  begin = x86.begin(features),
  cpuinfo = x86.cpuinfo(features),
  products = { ["bf16 bf16"] = false,
               ["f16 f16"] = { way = "outer", op = "fma_halves", group = 2, f16_sums = true,
                               rows = avx512.products["f32 f32"].rows } },
  prelude = avx512.prelude .. [[

/* Two numbers of half precision, or two such sums; the first one is the low half. */
typedef float f16_pair;
]],
  helpers = {
    fma_halves = [[
/* a * b + c, of halves. Clang declares it from version 16 on. */
static inline $t fma_halves_$lanes($t a, $t b, $t c) {
#if defined(__clang__) && __clang_major__ < 16
  __asm__("vfmadd231ph %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else
  return ($t)$p_fmadd_ph(($h)a, ($h)b, ($h)c);
#endif
}
]],
    add_halves = [[
/* a + b, of halves. */
static inline $t add_halves_$lanes($t a, $t b) {
#if defined(__clang__) && __clang_major__ < 16
  $t sum;
  __asm__("vaddph %2, %1, %0" : "=v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return ($t)$p_add_ph(($h)a, ($h)b);
#endif
}
]],
    pair_f16 = [[
/* The nearest numbers of half precision of a and b in pairs. */
static inline $t pair_f16_$lanes($t a, $t b) {
  const $i low = $p_cvtepu16_epi32($narrow(a), _MM_FROUND_TO_NEAREST_INT));
  const $i high = $p_cvtepu16_epi32($narrow(b), _MM_FROUND_TO_NEAREST_INT));
  return $p_cast$si_ps($p_or_$si(low, $p_slli_epi32(high, 16)));
}
]],
    load_halves = [[
/* Floats of the halves of words at p. */
static inline $t halves_$lanes(const float *p) {
  return $widen$halves(const $hi *)(const void *)p));
}
]],
    add_pairs = [[
/* The sum of every two neighbouring lanes. */
static inline $t add_pairs_$lanes($t a, $t b) {
  const $i even = $p_setr_epi32(
      $evens);
  const $i odd = $p_add_epi32(even, $p_set1_epi32(1));
  return $p_add_ps($p_permutex2var_ps(a, even, b), $p_permutex2var_ps(a, odd, b));
}
]],
    dot_halves = [[
/* c + the products of the low halves + those of the high halves, in float32. */
static inline $t dot_halves_$lanes($t a, $t b, $t c) {
  const $i x = $p_castps_$si(a), y = $p_castps_$si(b);
  const $t x_low = $widen$p_cvtepi32_epi16(x));
  const $t y_low = $widen$p_cvtepi32_epi16(y));
  const $i x_rest = $p_srli_epi32(x, 16), y_rest = $p_srli_epi32(y, 16);
  const $t x_high = $widen$p_cvtepi32_epi16(x_rest));
  const $t y_high = $widen$p_cvtepi32_epi16(y_rest));
  return $p_fmadd_ps(x_high, y_high, $p_fmadd_ps(x_low, y_low, c));
}
]],
  },
  widths = { { h = "__m512h", evens = "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30" },
             { h = "__m256h", evens = "0, 2, 4, 6, 8, 10, 12, 14" } },
  rows = {
    pair_f16 = "pair_f16_$lanes($1, $2)",
    store_pairs_f16 = "$halfp_storeu_ps($1, ($half)$narrow$2, _MM_FROUND_TO_NEAREST_INT))",
    fma_halves = "fma_halves_$lanes($1, $2, $3)",
    add_halves = "add_halves_$lanes($1, $2)",
    load_halves = "halves_$lanes($1)",
    add_pairs = "add_pairs_$lanes($1, $2)",
    dot_halves = "dot_halves_$lanes($1, $2, $3)",
  },
})
