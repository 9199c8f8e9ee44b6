-- AVX2 with AVX-VNNI, as Intel's cores have it from Alder Lake on, and Zen 5: sums of products of four bytes.

local avx2 = require "isa.avx2"
local extend = require "isa.extend"
local x86 = require "isa.x86"

local features = "avx2,fma,f16c,avxvnni"

return extend(avx2, {
  name = "avx_vnni",
  title = "x86-64 with AVX2, FMA, F16C and AVX-VNNI",
  cpu = "MHAGEN_CPU_AVX_VNNI",
  begin = x86.begin(features),
  cpuinfo = x86.cpuinfo(features),
  asks = {},
  products = { ["int8 int8"] = { way = "outer", op = "dot_unsigned", group = 4, unsigned = true,
                                 rows = { columns = { 8, 5, 3 }, rows = { 8, 5, 3 } } },
               ["int8 groups"] = { way = "outer", op = "dot_by_unsigned", group = 4, part = "unsigned_bytes",
                                   less = "minus_128s",
                                   rows = { columns = { 8, 4, 2 }, rows = { 8, 4, 2 } } },
               ["int8 int4"] = { way = "outer", op = "dot_by_unsigned", group = 4, part = "unsigned_nibbles",
                                 less = "minus_eights", bytes = "dot_bytes",
                                 rows = { columns = { 8, 4, 2 }, rows = { 8, 4, 2 } } } },
  helpers = {
    dot_shorts = false,
    minus_eights = [[
/* a minus 8 times the sum of the signed bytes of b. */
static inline __m256i minus_eights_8(__m256i a, __m256i b) {
  const __m256i eights = _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(8), b);
  return _mm256_sub_epi32(a, eights);
}
]],
    minus_128s = [[
/* a minus 128 times the sum of the signed bytes of b. */
static inline __m256i minus_128s_8(__m256i a, __m256i b) {
  const __m256i factors = _mm256_set1_epi8((char)0x80);
  return _mm256_sub_epi32(a, _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), factors, b));
}
]],
    unsigned_nibbles = [[
/* The signed low nibble of each byte, plus 8. */
static inline __m256i eight_more_8(__m256i a) {
  return _mm256_xor_si256(_mm256_and_si256(a, _mm256_set1_epi8(15)), _mm256_set1_epi8(8));
}
]],
  },
  widths = { {} },
  rows = {
    dot_shorts = "_mm256_dpwssd_avx_epi32($3, $1, $2)",
    dot_unsigned = "_mm256_dpbusd_avx_epi32($3, $1, $2)",
    dot_by_unsigned = "_mm256_dpbusd_avx_epi32($3, $2, $1)",
    dot_bytes = "_mm256_dpbusd_avx_epi32($3, _mm256_abs_epi8($2), _mm256_sign_epi8($1, $2))", -- of b that is 0 as well
    minus_eights = "minus_eights_8($1, $2)",
    minus_128s = "minus_128s_8($1, $2)",
    unsigned_bytes = { [0] = "_mm256_xor_si256($1, _mm256_set1_epi32((int)0x80808080))" },
    unsigned_nibbles = { [0] = "eight_more_8($1)", [1] = "eight_more_8(_mm256_srli_epi32($1, 4))" },
  },
})
