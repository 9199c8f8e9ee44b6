-- AArch64 Advanced SIMD: 4 lanes, 32 registers, FMA by a lane.

local arm = require "isa.arm"

local bytes = [[
/* Floats of the first n bytes at p, zeros behind. */
static inline float32x4_t bytes4(const unsigned char *p, size_t n) {
  uint32_t bits = 0;
  memcpy(&bits, p, n);
  const uint16x8_t wide = vmovl_u8(vcreate_u8(bits));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}
]]

local bf16 = [[
/* The nearest bfloat16, ties to even; NaN stays NaN. */
static inline float32x4_t to_bf16(float32x4_t a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t sum = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
  const uint32x4_t high = vshlq_n_u32(vshrq_n_u32(sum, 16), 16);
  return vbslq_f32(vceqq_f32(a, a), vreinterpretq_f32_u32(high), a);
}
]]

local words = [[
/* Rounds a, b, c, d to signed bytes; a word holds four that follow each other. */
static inline int32x4_t words_4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
  const int16x8_t low = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a)), vmovn_s32(vcvtnq_s32_f32(b)));
  const int16x8_t high = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(c)), vmovn_s32(vcvtnq_s32_f32(d)));
  return vreinterpretq_s32_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
]]

local lane_words = [[
/* Rounds to signed bytes; the word in a lane holds those of a, b, c and d. */
static inline int32x4_t lane_words_4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
  const int32x4_t byte = vdupq_n_s32(0xFF);
  const int32x4_t first = vandq_s32(vcvtnq_s32_f32(a), byte);
  const int32x4_t second = vshlq_n_s32(vandq_s32(vcvtnq_s32_f32(b), byte), 8);
  const int32x4_t third = vshlq_n_s32(vandq_s32(vcvtnq_s32_f32(c), byte), 16);
  const int32x4_t fourth = vshlq_n_s32(vcvtnq_s32_f32(d), 24);
  return vorrq_s32(vorrq_s32(first, second), vorrq_s32(third, fourth));
}
]]

local dot_bytes = [[
/* c + the products of the signed bytes of a and b, each of 16 bits. gcc would add all that a tile
 * has in another order, and keep it on the stack until then. */
static inline int32x4_t dot_bytes_4(int32x4_t a, int32x4_t b, int32x4_t c) {
  const int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)));
  const int32x4_t high = vpaddlq_s16(vmull_high_s8(x, y));
  int32x4_t sum = vaddq_s32(c, vpaddq_s32(low, high));
  __asm__("" : "+w"(sum));
  return sum;
}
]]

local high_halves = [[
/* The high half of each byte, signed. */
static inline int32x4_t high_halves_4(int32x4_t a) {
  return vreinterpretq_s32_s8(vshrq_n_s8(vreinterpretq_s8_s32(a), 4));
}
]]

-- Part n of `bits` bits of each word: shifted to the upper end, and down again.
local function part(bits)
  local rows = {}
  for n = 0, 32 // bits - 1 do
    local shift = 32 - bits * (n + 1)
    local up = shift > 0 and ("vshlq_n_s32($1, %d)"):format(shift) or "$1"
    rows[n] = ("vcvtq_f32_s32(vshrq_n_s32(%s, %d))"):format(up, 32 - bits)
  end
  return rows
end

local some_bf16 = [[
/* Floats of the first n bfloat16 at p, zeros behind. */
static inline float32x4_t some_bf16(const uint16_t *p, size_t n) {
  uint16_t words[4] = { 0 };
  memcpy(words, p, 2 * n);
  return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(words)), 16));
}
]]

local some_f16 = [[
/* The same of half precision. */
static inline float32x4_t some_f16(const uint16_t *p, size_t n) {
  uint16_t words[4] = { 0 };
  memcpy(words, p, 2 * n);
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(words)));
}
]]

local put_bf16 = [[
/* The nearest bfloat16 of the first n lanes to p, ties to even; NaN stays NaN. */
static inline void put_bf16(uint16_t *p, float32x4_t a, size_t n) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t sum = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
  const uint32x4_t all = vbslq_u32(vceqq_f32(a, a), sum, vdupq_n_u32(0x7FC00000));
  uint16_t words[4];
  vst1_u16(words, vshrn_n_u32(all, 16));
  memcpy(p, words, 2 * n);
}
]]

local put_f16 = [[
/* The same in half precision. */
static inline void put_f16(uint16_t *p, float32x4_t a, size_t n) {
  uint16_t words[4];
  vst1_u16(words, vreinterpret_u16_f16(vcvt_f16_f32(a)));
  memcpy(p, words, 2 * n);
}
]]

local some_int8 = [[
/* Floats of the first n signed bytes at p, zeros behind. */
static inline float32x4_t some_int8(const int8_t *p, size_t n) {
  uint32_t bits = 0;
  memcpy(&bits, p, n);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(bits)))));
}
]]

local put_int8 = [[
/* The nearest integers of the first n lanes to p, ties to even. */
static inline void put_int8(int8_t *p, float32x4_t a, size_t n) {
  const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(a));
  int8_t bytes[8];
  vst1_s8(bytes, vqmovn_s16(vcombine_s16(words, words)));
  memcpy(p, bytes, n);
}
]]

return {
  name = "neon",
  title = "AArch64 with Advanced SIMD",
  cpu = "MHAGEN_CPU_NEON",
  arch = "aarch64",
  guard = arm.guard,
  beyond = arm.beyond,
  headers = "#include <arm_neon.h>",
  begin = arm.begin(),
  finish = arm.finish(),
  cpuinfo = arm.cpuinfo {},
  helpers = {
    load_bytes = bytes, load_bytes_n = bytes, round_bf16 = bf16, load_bf16_n = some_bf16, load_f16_n = some_f16,
    store_bf16 = put_bf16, store_bf16_n = put_bf16, store_f16 = put_f16, store_f16_n = put_f16,
    words = words, lane_words = lane_words, dot_bytes = dot_bytes, byte_nibbles = high_halves,
    load_int8 = some_int8, load_int8_n = some_int8, store_int8 = put_int8, store_int8_n = put_int8,
  },
  registers = 32,
  products = {
    ["f32 f32"] = { way = "lane", rows = { columns = { 24, 12, 8, 6 }, rows = { 12, 8, 5, 4, 4 } } },
    ["int8 int8"] = { way = "outer", op = "dot_bytes", group = 4, widens = true,
                      rows = { columns = { 12, 8, 6, 4 }, rows = { 12, 8, 6, 4 } } },
    ["int8 groups"] = { way = "outer", op = "dot_bytes", group = 4, widens = true,
                        rows = { columns = { 12, 8, 6, 4 }, rows = { 12, 8, 6, 4 } } },
    ["int8 int4"] = { way = "outer", op = "dot_bytes", group = 4, part = "byte_nibbles", widens = true,
                      rows = { columns = { 12, 8, 6, 4 }, rows = { 12, 8, 6, 4 } } },
  },
  fused = true,
  widths = {
    { lanes = 4, t = "float32x4_t", m = "uint32x4_t", i = "int32x4_t" },
  },
  rows = {
    load = "vld1q_f32($1)",
    load_n = {
      [1] = "vld1q_lane_f32($1, vdupq_n_f32(0.0f), 0)",
      [2] = "vcombine_f32(vld1_f32($1), vdup_n_f32(0.0f))",
      [3] = "vld1q_lane_f32($1 + 2, vcombine_f32(vld1_f32($1), vdup_n_f32(0.0f)), 2)",
    },
    load_words = "vreinterpretq_s32_f32(vld1q_f32($1))",
    load_bytes = "bytes4($1, 4)",
    load_bytes_n = "bytes4($1, $2)",
    load_bf16 = "vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16($1)), 16))",
    load_bf16_n = "some_bf16($1, $2)",
    load_f16 = "vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16($1)))",
    load_f16_n = "some_f16($1, $2)",
    store_bf16 = "put_bf16($1, $2, 4)",
    store_bf16_n = "put_bf16($1, $2, $3)",
    store_f16 = "put_f16($1, $2, 4)",
    store_f16_n = "put_f16($1, $2, $3)",
    load_int8 = "some_int8($1, 4)",
    load_int8_n = "some_int8($1, $2)",
    store_int8 = "put_int8($1, $2, 4)",
    store_int8_n = "put_int8($1, $2, $3)",
    store = "vst1q_f32($1, $2)",
    store_n = {
      [1] = "vst1q_lane_f32($1, $2, 0)",
      [2] = "vst1_f32($1, vget_low_f32($2))",
      [3] = "vst1_f32($1, vget_low_f32($2));\nvst1q_lane_f32($1 + 2, $2, 2)",
    },
    prefetch = "__builtin_prefetch($1)",
    prefetch_far = "__builtin_prefetch($1, 0, 2)",
    dup = "vdupq_n_f32($1)",
    zero = "vdupq_n_f32(0.0f)",
    set = "vdupq_n_f32($1)",
    index = "vdupq_n_f32((float)($1))",
    iota = "vld1q_f32(((const float[]){ $iota }))",
    add = "vaddq_f32($1, $2)",
    sub = "vsubq_f32($1, $2)",
    mul = "vmulq_f32($1, $2)",
    sqrt = "vsqrtq_f32($1)",
    div = "vdivq_f32($1, $2)",
    fma = "vfmaq_f32($3, $1, $2)",
    fma_lane = "vfmaq_n_f32($3, $1, $2[$4])",
    max = "vmaxq_f32($1, $2)",
    min = "vminq_f32($1, $2)",
    round = "vrndnq_f32($1)",
    round_bf16 = "to_bf16($1)",
    round_f16 = "vcvt_f32_f16(vcvt_f16_f32($1))",
    to_i = "vcvtq_s32_f32($1)",
    ishl = "vshlq_n_s32($1, $2)",
    iadd = "vaddq_s32($1, $2)",
    store_words = "vst1q_f32($1, vreinterpretq_f32_s32($2))",
    dup_word = "vreinterpretq_s32_f32(vdupq_n_f32($1))",
    zero_words = "vdupq_n_s32(0)",
    words = "words_4($1, $2, $3, $4)",
    lane_words = "lane_words_4($1, $2, $3, $4)",
    dot_bytes = "dot_bytes_4($1, $2, $3)",
    byte_nibbles = { [0] = "high_halves_4(vshlq_n_s32($1, 4))", [1] = "high_halves_4($1)" },
    to_f = "vcvtq_f32_s32($1)",
    larger_size = "vmaxq_f32(vabsq_f32($1), $2)", -- NaN where either is
    as_i = "vreinterpretq_s32_f32($1)",
    as_f = "vreinterpretq_f32_s32($1)",
    byte = part(8),
    nibble = part(4),
    bf16_half = { [0] = "vreinterpretq_f32_s32(vshlq_n_s32($1, 16))",
                  [1] = "vreinterpretq_f32_s32(vandq_s32($1, vdupq_n_s32((int32_t)0xFFFF0000)))" },
    f16_halves = { [0] = "vcvt_f32_f16(vreinterpret_f16_s32(vget_low_s32($1)))",
                   [4] = "vcvt_f32_f16(vreinterpret_f16_s32(vget_high_s32($1)))" },
    lt = "vcltq_f32($1, $2)",
    sel = "vbslq_f32($1, $2, $3)",
    zero_if = "vbslq_f32($1, vdupq_n_f32(0.0f), $2)",
    all = "vminvq_u32($1) != 0",
    trn_lo = {
      [1] = "vtrn1q_f32($1, $2)",
      [2] = "vreinterpretq_f32_f64(vtrn1q_f64(vreinterpretq_f64_f32($1), vreinterpretq_f64_f32($2)))",
    },
    trn_hi = {
      [1] = "vtrn2q_f32($1, $2)",
      [2] = "vreinterpretq_f32_f64(vtrn2q_f64(vreinterpretq_f64_f32($1), vreinterpretq_f64_f32($2)))",
    },
  },
}
