-- AVX2 with FMA: 8 lanes, 16 registers; masks are vectors.

local x86 = require "isa.x86"

local features = "avx2,fma"
local with_f16c = features .. ",f16c"

local bytes = [[
/* Floats of the first n bytes at p, zeros behind. */
static inline __m256 bytes8(const unsigned char *p, size_t n) {
  uint64_t bits = 0;
  memcpy(&bits, p, n);
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bits)));
}
]]

local bf16 = [[
/* The nearest bfloat16, ties to even; NaN stays NaN. */
static inline __m256 to_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i high = _mm256_slli_epi32(_mm256_srli_epi32(sum, 16), 16);
  return _mm256_blendv_ps(_mm256_castsi256_ps(high), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
]]

local some_bf16 = [[
/* Floats of the first n bfloat16 at p, zeros behind. */
static inline __m256 some_bf16(const uint16_t *p, size_t n) {
  uint16_t words[8] = { 0 };
  memcpy(words, p, 2 * n);
  const __m128i all = _mm_loadu_si128((const __m128i *)(const void *)words);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(all), 16));
}
]]

local some_f16 = [[
/* The same of half precision. */
static inline __m256 some_f16(const uint16_t *p, size_t n) {
  uint16_t words[8] = { 0 };
  memcpy(words, p, 2 * n);
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)words));
}
]]

local put_bf16 = [[
/* The nearest bfloat16 of the first n lanes to p, ties to even; NaN stays NaN. */
static inline void put_bf16(uint16_t *p, __m256 a, size_t n) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i none = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i all = _mm256_srli_epi32(_mm256_or_si256(sum, none), 16);
  const __m128i high = _mm256_extracti128_si256(all, 1);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(all), high);
  memcpy(p, &words, 2 * n);
}
]]

local put_f16 = [[
/* The same in half precision. */
static inline void put_f16(uint16_t *p, __m256 a, size_t n) {
  const __m128i words = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
  memcpy(p, &words, 2 * n);
}
]]

local some_int8 = [[
/* Floats of the first n signed bytes at p, zeros behind. */
static inline __m256 some_int8(const int8_t *p, size_t n) {
  uint64_t bits = 0;
  memcpy(&bits, p, n);
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bits)));
}
]]

local put_int8 = [[
/* The nearest integers of the first n lanes to p, ties to even. */
static inline void put_int8(int8_t *p, __m256 a, size_t n) {
  const __m256i all = _mm256_cvtps_epi32(a);
  const __m128i high = _mm256_extracti128_si256(all, 1);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), high);
  const __m128i bytes = _mm_packs_epi16(words, words);
  memcpy(p, &bytes, n);
}
]]

return {
  name = "avx2",
  title = "x86-64 with AVX2 and FMA",
  cpu = "MHAGEN_CPU_AVX2",
  arch = x86.arch,
  guard = x86.guard,
  beyond = "defined(__AVX512F__)",
  headers = x86.headers,
  begin = x86.begin(features),
  cpuinfo = x86.cpuinfo(features),
  finish = x86.finish,
  asks = { f16 = { cpu = "MHAGEN_CPU_AVX2_F16C", begin = x86.begin(with_f16c), cpuinfo = x86.cpuinfo(with_f16c) } },
  registers = 16,
  products = {
    ["f32 f32"] = { way = "outer", rows = { columns = { 8, 5, 3, 2 }, rows = { 8, 5, 3, 2 } } },
    ["int8 int8"] = { way = "outer", op = "dot_shorts", group = 2, part = "shorts",
                      rows = { columns = { 8, 4, 2 }, rows = { 8, 4, 2 } } },
    ["int16 int8"] = { way = "outer", op = "dot_shorts", group = 2, part = "shorts",
                       rows = { columns = { 8, 4, 2 }, rows = { 8, 4, 2, 2 } } },
    ["int8 groups"] = { way = "outer", op = "dot_shorts", group = 2, part = "shorts",
                        rows = { columns = { 8, 4, 2 }, rows = { 8, 4, 2 } } },
    ["int8 int4"] = { way = "outer", op = "dot_shorts", group = 2, part = "short_nibbles",
                      rows = { columns = { 8, 4, 2 }, rows = { 8, 4, 2 } } },
  },
  fused = true,
  helpers = {
    load_pinned = x86.helpers.load_pinned, load_bytes = bytes, load_bytes_n = bytes, round_bf16 = bf16,
    words = x86.words.words, lane_words = x86.words.lane_words, short_words = x86.words.short_words,
    lane_short_words = x86.words.lane_short_words, dot_shorts = x86.words.dot_shorts,
    larger_size = x86.words.larger_size,
    load_bf16 = some_bf16, load_bf16_n = some_bf16, load_f16 = some_f16, load_f16_n = some_f16,
    store_bf16 = put_bf16, store_bf16_n = put_bf16, store_f16 = put_f16, store_f16_n = put_f16,
    load_int8 = some_int8, load_int8_n = some_int8, store_int8 = put_int8, store_int8_n = put_int8,
  },
  widths = {
    { lanes = 8, t = "__m256", m = "__m256", i = "__m256i", p = "_mm256", si = "si256", register = "x",
      words = x86.words_256, bytes = x86.bytes_256, shorts = x86.shorts_256,
      permute = "_mm256_permutevar8x32_epi32(", order = ", order)" },
  },
  rows = {
    load = "_mm256_loadu_ps($1)",
    load_pinned = "pinned$lanes(_mm256_loadu_ps($1))",
    load_n = "_mm256_maskload_ps($1, _mm256_setr_epi32($on))",
    load_words = "_mm256_castps_si256(_mm256_loadu_ps($1))",
    load_bytes = "bytes8($1, 8)",
    load_bytes_n = "bytes8($1, $2)",
    load_bf16 = "some_bf16($1, 8)",
    load_bf16_n = "some_bf16($1, $2)",
    load_f16 = "some_f16($1, 8)",
    load_f16_n = "some_f16($1, $2)",
    store_bf16 = "put_bf16($1, $2, 8)",
    store_bf16_n = "put_bf16($1, $2, $3)",
    store_f16 = "put_f16($1, $2, 8)",
    store_f16_n = "put_f16($1, $2, $3)",
    load_int8 = "some_int8($1, 8)",
    load_int8_n = "some_int8($1, $2)",
    store_int8 = "put_int8($1, $2, 8)",
    store_int8_n = "put_int8($1, $2, $3)",
    store = "_mm256_storeu_ps($1, $2)",
    store_n = "_mm256_maskstore_ps($1, _mm256_setr_epi32($on), $2)",
    prefetch = "_mm_prefetch((const char *)($1), _MM_HINT_T0)",
    prefetch_far = "_mm_prefetch((const char *)($1), _MM_HINT_T1)",
    dup = "_mm256_set1_ps($1)",
    zero = "_mm256_setzero_ps()",
    set = "_mm256_set1_ps($1)",
    index = "_mm256_set1_ps((float)($1))",
    iota = "_mm256_setr_ps($iota)",
    add = "_mm256_add_ps($1, $2)",
    sub = "_mm256_sub_ps($1, $2)",
    mul = "_mm256_mul_ps($1, $2)",
    sqrt = "_mm256_sqrt_ps($1)",
    div = "_mm256_div_ps($1, $2)",
    fma = "_mm256_fmadd_ps($1, $2, $3)",
    max = "_mm256_max_ps($1, $2)",
    min = "_mm256_min_ps($1, $2)",
    round = "_mm256_round_ps($1, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)",
    round_bf16 = "to_bf16($1)",
    round_f16 = "_mm256_cvtph_ps(_mm256_cvtps_ph($1, _MM_FROUND_TO_NEAREST_INT))",
    to_i = "_mm256_cvtps_epi32($1)",
    ishl = "_mm256_slli_epi32($1, $2)",
    iadd = "_mm256_add_epi32($1, $2)",
    store_words = "_mm256_storeu_ps($1, _mm256_castsi256_ps($2))",
    dup_word = "_mm256_castps_si256(_mm256_set1_ps($1))",
    zero_words = "_mm256_setzero_si256()",
    words = "words_8($1, $2, $3, $4)",
    lane_words = "lane_words_8($1, $2, $3, $4)",
    short_words = "short_words_8($1, $2)",
    lane_short_words = "lane_short_words_8($1, $2)",
    shorts = x86.shorts,
    load_byte_words = "_mm256_loadu_si256((const __m256i *)(const void *)($1))",
    zip_bytes = x86.zip_bytes,
    zip_shorts = x86.zip_shorts,
    short_nibbles = x86.short_nibbles,
    dot_shorts = "dot_shorts_8($1, $2, $3)",
    to_f = "_mm256_cvtepi32_ps($1)",
    larger_size = "larger_size_8($1, $2)",
    as_i = "_mm256_castps_si256($1)",
    as_f = "_mm256_castsi256_ps($1)",
    byte = x86.part(8, "_mm256_slli_epi32(%s, %d)", "_mm256_srai_epi32(%s, %d)", "_mm256_cvtepi32_ps(%s)"),
    nibble = x86.part(4, "_mm256_slli_epi32(%s, %d)", "_mm256_srai_epi32(%s, %d)", "_mm256_cvtepi32_ps(%s)"),
    bf16_half = { [0] = "_mm256_castsi256_ps(_mm256_slli_epi32($1, 16))",
                  [1] = "_mm256_castsi256_ps(_mm256_and_si256($1, _mm256_set1_epi32((int)0xFFFF0000)))" },
    f16_halves = { [0] = "_mm256_cvtph_ps(_mm256_castsi256_si128($1))",
                   [8] = "_mm256_cvtph_ps(_mm256_extracti128_si256($1, 1))" },
    lt = "_mm256_cmp_ps($1, $2, _CMP_LT_OQ)",
    sel = "_mm256_blendv_ps($3, $2, $1)",
    zero_if = "_mm256_andnot_ps($1, $2)",
    all = "_mm256_movemask_ps($1) == 0xFF",
    trn_lo = {
      [1] = "_mm256_blend_ps($1, _mm256_moveldup_ps($2), 0xAA)",
      [2] = "_mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd($1), _mm256_castps_pd($2)))",
      [4] = "_mm256_permute2f128_ps($1, $2, 0x20)",
    },
    trn_hi = {
      [1] = "_mm256_blend_ps($2, _mm256_movehdup_ps($1), 0x55)",
      [2] = "_mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd($1), _mm256_castps_pd($2)))",
      [4] = "_mm256_permute2f128_ps($1, $2, 0x31)",
    },
  },
}
