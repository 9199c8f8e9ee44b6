-- AVX-512 (F, DQ, BW, VL): 16 lanes, 32 registers, mask registers; ymm for lane tails.

local x86 = require "isa.x86"

local features = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"

-- Of the highest byte the sign is where it has to be.
local byte = { [0] = "bytes_$lanes($1)", [3] = "$p_cvtepi32_ps($p_srai_epi32($1, 24))" }
for n = 1, 2 do byte[n] = ("bytes_$lanes($p_srli_epi32($1, %d))"):format(8 * n) end

-- They are looked up in a register.
local nibble = { [0] = "nibbles_$lanes($1)" }
for n = 1, 7 do nibble[n] = ("nibbles_$lanes($p_srli_epi32($1, %d))"):format(4 * n) end

return {
  name = "avx512",
  title = "x86-64 with AVX-512 F, DQ, BW, VL",
  cpu = "MHAGEN_CPU_AVX512",
  arch = x86.arch,
  guard = x86.guard,
  headers = x86.headers,
  begin = x86.begin(features),
  cpuinfo = x86.cpuinfo(features),
  finish = x86.finish,
  registers = 32,
  products = {
    ["f32 f32"] = { way = "outer", rows = { columns = { 24, 10, 7, 5, 4, 3 }, rows = { 24, 10, 7, 5, 4, 3 } } },
    ["int8 int8"] = { way = "outer", op = "dot_shorts", group = 2, part = "shorts",
                      rows = { columns = { 24, 10, 6, 4, 3 }, rows = { 24, 10, 6, 4, 3 } } },
    ["int16 int8"] = { way = "outer", op = "dot_shorts", group = 2, part = "shorts",
                       rows = { columns = { 24, 10, 6, 4, 3 }, rows = { 24, 10, 6, 4, 3 } } },
    ["int8 groups"] = { way = "outer", op = "dot_shorts", group = 2, part = "shorts",
                        rows = { columns = { 24, 10, 6, 4, 3 }, rows = { 24, 10, 6, 4, 3 } } },
    ["int8 int4"] = { way = "outer", op = "dot_shorts", group = 2, part = "short_nibbles",
                      rows = { columns = { 24, 10, 6, 4, 3 }, rows = { 24, 10, 6, 4, 3 } } },
  },
  fused = true,
  saturates = true,
  helpers = {
    load_pinned = x86.helpers.load_pinned, round_bf16 = x86.to_bf16, words = x86.words.words,
    lane_words = x86.words.lane_words, short_words = x86.words.short_words,
    lane_short_words = x86.words.lane_short_words, dot_shorts = x86.words.dot_shorts,
    larger_size = x86.words.larger_size,
    nibble = [[
/* The low 4 bits of each word, signed. */
static inline $t nibbles_$lanes($i a) {
  const __m512 of = _mm512_setr_ps(
      0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, -8.0f, -7.0f, -6.0f, -5.0f, -4.0f, -3.0f,
      -2.0f, -1.0f);
  return $low_mm512_permutexvar_ps($wider, of));
}
]],
    byte = [[
/* The lowest byte of each word, signed. Beside 2^23 its bits make the float 2^23 + 128 + x. */
static inline $t bytes_$lanes($i a) {
  const $i low = $p_set1_epi32(0xFF), large = $p_set1_epi32(0x4B000080);
  const $i bits = $p_ternarylogic_epi32(a, low, large, 0x6A);
  return $p_sub_ps($p_cast$si_ps(bits), $p_set1_ps(8388736.0f));
}
]],
    store_bf16 = x86.as_bf16, store_bf16_n = x86.as_bf16,
    load_bf16 = [[
/* Floats of the bfloat16 at p. */
static inline $t bf16_$lanes(const uint16_t *p) {
  const $hi words = $halves(const $hi *)(const void *)p);
  return $p_cast$si_ps($p_slli_epi32($p_cvtepu16_epi32(words), 16));
}
]],
    load_bf16_n = [[
/* Floats of so many bfloat16. */
static inline $t of_bf16_$lanes($hi words) {
  return $p_cast$si_ps($p_slli_epi32($p_cvtepu16_epi32(words), 16));
}
]],
    load_f16 = [[
/* Floats of the half precision at p. */
static inline $t f16_$lanes(const uint16_t *p) {
  return $widen$halves(const $hi *)(const void *)p));
}
]],
    load_int8 = [[
/* Floats of the signed bytes at p. */
static inline $t int8_$lanes(const int8_t *p) {
  return $p_cvtepi32_ps($p_cvtepi8_epi32($signed((const __m128i *)(const void *)p)));
}
]],
  },
  prelude = [[
/* 2^(k/16), k being the low 4 bits of each lane. */
static inline __m512 root16(__m512 a) {
  const __m512 roots = _mm512_setr_ps(
      1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f,
      1.35425556f, 1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f, 1.75625217f,
      1.8340081f, 1.91520655f);
  return _mm512_permutexvar_ps(_mm512_castps_si512(a), roots);
}
]],
  widths = {
    { lanes = 16, t = "__m512", m = "__mmask16", i = "__m512i", p = "_mm512", si = "si512",
      full = "0xFFFF", low = "(", wider = "(a)",
      words = x86.words_512, bytes = x86.bytes_512, shorts = x86.shorts_512,
      halfp = "_mm256", hi = "__m256i", signed = "_mm_loadu_si128", halves = "_mm256_loadu_si256(",
      permute = "_mm512_permutexvar_epi32(order, ", order = ")",
      register = "v", scalef = "_mm512_maskz_scalef_round_ps",
      quiet = ", _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC", -- which narrower vectors cannot be
      root = "root16(", roots = ")", widen = "_mm512_cvtph_ps(", narrow = "_mm512_cvtps_ph(",
      load = "", first = "_mm512_castsi512_si256(", second = "_mm512_extracti64x4_epi64(" },
    { lanes = 8, t = "__m256", m = "__mmask8", i = "__m256i", p = "_mm256", si = "si256",
      full = "0xFF", low = "_mm512_castps512_ps256(", wider = "_mm512_castsi256_si512(a)",
      words = x86.words_256, bytes = x86.bytes_256, shorts = x86.shorts_256,
      halfp = "_mm", hi = "__m128i", signed = "_mm_loadl_epi64", halves = "_mm_loadu_si128(",
      permute = "_mm256_permutexvar_epi32(order, ", order = ")",
      register = "v", scalef = "_mm256_maskz_scalef_ps", quiet = "",
      root = "_mm512_castps512_ps256(root16(_mm512_castps256_ps512(", roots = ")))",
      -- Without a mask they are of F16C.
      widen = "_mm256_maskz_cvtph_ps(0xFF, ", narrow = "_mm256_maskz_cvtps_ph(0xFF, ",
      load = "(const __m256i *)(const void *)",
      first = "_mm256_castsi256_si128(", second = "_mm256_extracti128_si256(" },
  },
  rows = {
    load = "$p_loadu_ps($1)",
    load_pinned = "pinned$lanes($p_loadu_ps($1))",
    load_n = "$p_maskz_loadu_ps($hex, $1)",
    load_words = "$p_castps_$si($p_loadu_ps($1))",
    load_bytes = "$p_cvtepi32_ps($p_cvtepu8_epi32(_mm_maskz_loadu_epi8($full, $1)))",
    load_bytes_n = "$p_cvtepi32_ps($p_cvtepu8_epi32(_mm_maskz_loadu_epi8($hex, $1)))",
    load_bf16 = "bf16_$lanes($1)",
    load_bf16_n = "of_bf16_$lanes($halfp_maskz_loadu_epi16($hex, $1))",
    load_f16 = "f16_$lanes($1)",
    load_f16_n = "$widen$halfp_maskz_loadu_epi16($hex, $1))",
    store_bf16 = "$halfp_mask_storeu_epi16($1, ($m)$full, as_bf16_$lanes($2))",
    store_bf16_n = "$halfp_mask_storeu_epi16($1, $hex, as_bf16_$lanes($2))",
    store_f16 = "$halfp_mask_storeu_epi16($1, ($m)$full, $narrow$2, _MM_FROUND_TO_NEAREST_INT))",
    store_f16_n = "$halfp_mask_storeu_epi16($1, $hex, $narrow$2, _MM_FROUND_TO_NEAREST_INT))",
    load_int8 = "int8_$lanes($1)",
    load_int8_n = "$p_cvtepi32_ps($p_cvtepi8_epi32(_mm_maskz_loadu_epi8($hex, $1)))",
    store_int8 = "_mm_mask_storeu_epi8($1, $full, $p_cvtsepi32_epi8($p_cvtps_epi32($2)))",
    store_int8_n = "_mm_mask_storeu_epi8($1, $hex, $p_cvtsepi32_epi8($p_cvtps_epi32($2)))",
    store = "$p_storeu_ps($1, $2)",
    store_n = "$p_mask_storeu_ps($1, $hex, $2)",
    prefetch = "_mm_prefetch((const char *)($1), _MM_HINT_T0)",
    prefetch_far = "_mm_prefetch((const char *)($1), _MM_HINT_T1)",
    dup = "$p_set1_ps($1)",
    zero = "$p_setzero_ps()",
    set = "$p_set1_ps($1)",
    index = "$p_set1_ps((float)($1))",
    iota = "$p_setr_ps($iota)",
    add = "$p_add_ps($1, $2)",
    sub = "$p_sub_ps($1, $2)",
    mul = "$p_mul_ps($1, $2)",
    sqrt = "$p_sqrt_ps($1)",
    div = "$p_div_ps($1, $2)",
    fma = "$p_fmadd_ps($1, $2, $3)",
    max = "$p_max_ps($1, $2)",
    min = "$p_min_ps($1, $2)",
    round = "$p_roundscale_ps($1, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)",
    round_bf16 = "to_bf16_$lanes($1)",
    round_f16 = "$widen$narrow$1, _MM_FROUND_TO_NEAREST_INT))",
    scale2 = "$p_scalef_ps($1, $2)",
    store_words = "$p_storeu_ps($1, $p_cast$si_ps($2))",
    dup_word = "$p_castps_$si($p_set1_ps($1))",
    zero_words = "$p_setzero_$si()",
    words = "words_$lanes($1, $2, $3, $4)",
    lane_words = "lane_words_$lanes($1, $2, $3, $4)",
    short_words = "short_words_$lanes($1, $2)",
    lane_short_words = "lane_short_words_$lanes($1, $2)",
    shorts = x86.shorts,
    load_byte_words = "$p_loadu_$si($load$1)",
    zip_bytes = x86.zip_bytes,
    zip_shorts = x86.zip_shorts,
    short_nibbles = x86.short_nibbles,
    dot_shorts = "dot_shorts_$lanes($1, $2, $3)",
    iadd = "$p_add_epi32($1, $2)",
    to_f = "$p_cvtepi32_ps($1)",
    larger_size = "larger_size_$lanes($1, $2)",
    as_f = "$p_cast$si_ps($1)",
    byte = byte,
    nibble = nibble,
    bf16_half = { [0] = "$p_cast$si_ps($p_slli_epi32($1, 16))",
                  [1] = "$p_cast$si_ps($p_and_$si($1, $p_set1_epi32((int)0xFFFF0000)))" },
    f16_halves = { [0] = "$widen$first$1))", [8] = "$widen$second$1, 1))", [16] = "$widen$second$1, 1))" },
    lt = "$p_cmp_ps_mask($1, $2, _CMP_LT_OQ)",
    sel = "$p_mask_blend_ps($1, $3, $2)",
    low = "$low$1)",
    root = "$root$1$roots",
    scale2_floor = "$scalef(($m)~$1, $2, $3$quiet)",
    zero_if = "$p_maskz_mov_ps(($m)~$1, $2)",
    all = "$1 == $full",
    trn_lo = {
      [1] = "_mm512_mask_moveldup_ps($1, 0xAAAA, $2)",
      [2] = "_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd($1), _mm512_castps_pd($2)))",
      [4] = "_mm512_mask_shuffle_f32x4($1, 0xF0F0, $2, $2, 0xA0)",
      [8] = "_mm512_shuffle_f32x4($1, $2, 0x44)",
    },
    trn_hi = {
      [1] = "_mm512_mask_movehdup_ps($2, 0x5555, $1)",
      [2] = "_mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd($1), _mm512_castps_pd($2)))",
      [4] = "_mm512_mask_shuffle_f32x4($2, 0x0F0F, $1, $1, 0xF5)",
      [8] = "_mm512_shuffle_f32x4($1, $2, 0xEE)",
    },
  },
}
