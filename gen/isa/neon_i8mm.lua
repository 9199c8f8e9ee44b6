-- Advanced SIMD with Armv8.6's instructions for small numbers: dot products of bfloat16 and of bytes, by a lane,
-- and conversions to bfloat16.
--
-- They are inline assembly, because clang reads a lane of bfloat16 by an extra instruction each time. Up to version 15
-- it declares such intrinsics for a whole file or not at all. Volatile statements stay in order: clang would load
-- operands ahead until registers are short.
--
-- Products of bfloat16 treat numbers below 2^-126 as zeros. The sum of two is rounded to odd, and so is that plus
-- the accumulator. This holds without FEAT_EBF16, and with it unless a program sets FPCR.EBF.

local arm = require "isa.arm"
local extend = require "isa.extend"
local neon = require "isa.neon"

local features = { "bf16", "dotprod", "i8mm" }
local rows = neon.products["f32 f32"].rows
local of_mmla = { columns = { 24, 12, 8, 4 }, rows = { 24, 12, 8, 4 } }

-- A function of assembler for each lane of its second operand; -O0 has the switch, all other levels one case.
local function by_lane(name, doc, type, instruction)
  local cases = {}
  for lane = 0, 3 do
    cases[lane + 1] = ('    case %d: __asm__ volatile("%s" : "+w"(c) : "w"(a), "w"(b)); break;\n'):format(lane,
      instruction:format(lane))
  end
  return ([[
/* %s */
__attribute__((always_inline))
static inline %s %s(%s a, %s b, %s c, int lane) {
  switch (lane) {
%s  }
  return c;
}
]]):format(doc, type, name, type, type, type, table.concat(cases))
end

-- One without lanes.
local function whole(name, doc, type, instruction)
  return ([[
/* %s */
static inline %s %s(%s a, %s b, %s c) {
  __asm__ volatile("%s" : "+w"(c) : "w"(a), "w"(b));
  return c;
}
]]):format(doc, type, name, type, type, type, instruction)
end

local round_bf16 = [[
/* The nearest bfloat16, ties to even; NaN stays NaN. */
static inline float32x4_t to_bf16(float32x4_t a) {
  uint16x8_t half;
  __asm__("bfcvtn %0.4h, %1.4s" : "=w"(half) : "w"(a));
  return vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(half), 16));
}
]]

local pair = [[
/* The nearest bfloat16 of a and b in pairs. */
static inline float32x4_t pair_4(float32x4_t a, float32x4_t b) {
  uint16x8_t low, high;
  __asm__("bfcvtn %0.4h, %1.4s" : "=w"(low) : "w"(a));
  __asm__("bfcvtn %0.4h, %1.4s" : "=w"(high) : "w"(b));
  return vreinterpretq_f32_u16(vzip1q_u16(low, high));
}
]]

local store_pairs = [[
/* The nearest bfloat16 of a to p, in pairs. */
static inline void store_pairs_4(float *p, float32x4_t a) {
  uint16x8_t half;
  __asm__("bfcvtn %0.4h, %1.4s" : "=w"(half) : "w"(a));
  vst1_f32(p, vreinterpret_f32_u16(vget_low_u16(half)));
}
]]

local put_bf16 = [[
/* The nearest bfloat16 of the first n lanes to p, ties to even; NaN stays NaN. */
static inline void put_bf16(uint16_t *p, float32x4_t a, size_t n) {
  uint16x8_t half;
  uint16_t words[4];
  __asm__("bfcvtn %0.4h, %1.4s" : "=w"(half) : "w"(a));
  vst1_u16(words, vget_low_u16(half));
  memcpy(p, words, 2 * n);
}
]]

return extend(neon, {
  name = "neon_i8mm",
  title = "AArch64 with Advanced SIMD, DotProd, BF16 and I8MM",
  cpu = "MHAGEN_CPU_NEON_I8MM",
  begin = arm.begin(features),
  beyond = false,
  finish = arm.finish(features),
  cpuinfo = arm.cpuinfo(features),
  products = {
    ["bf16 bf16"] = { way = "lane", op = "dot_odd", lane = "dot_odd_lane", group = 2, rows = rows,
                      mmla = { op = "mmla_odd", rows = of_mmla } },
    ["int8 int8"] = { way = "lane", op = "dot_bytes", lane = "dot_bytes_lane", group = 4, rows = rows,
                      mmla = { op = "mmla_bytes", rows = of_mmla } },
    ["int8 groups"] = { way = "lane", op = "dot_bytes", lane = "dot_bytes_lane", group = 4, rows = rows },
    ["int8 int4"] = { way = "lane", op = "dot_bytes", lane = "dot_bytes_lane", group = 4, part = "byte_nibbles",
                      rows = rows },
  },
  prelude = [[
/* Two bfloat16, as a dot product takes them; the first one is the low half. */
typedef float bf16_pair;
]],
  helpers = {
    round_bf16 = round_bf16, pair = pair, store_pairs = store_pairs,
    store_bf16 = put_bf16, store_bf16_n = put_bf16,
    dot_odd = whole("dot_odd_4", "c + the products of the pairs of a and b.", "float32x4_t",
      "bfdot %0.4s, %1.8h, %2.8h"),
    dot_odd_lane = by_lane("dot_odd_lane_4", "c + the products of the pairs of a and one of b.", "float32x4_t",
      "bfdot %%0.4s, %%1.8h, %%2.2h[%d]"),
    mmla_odd = whole("mmla_odd_4", "c + the products of two rows of pairs and two columns.", "float32x4_t",
      "bfmmla %0.4s, %1.8h, %2.8h"),
    mmla_bytes = whole("mmla_bytes_4", "c + the products of two rows of bytes and two columns.", "int32x4_t",
      "smmla %0.4s, %1.16b, %2.16b"),
    dot_bytes = whole("dot_bytes_4", "c + the products of the signed bytes of a and b.", "int32x4_t",
      "sdot %0.4s, %1.16b, %2.16b"),
    dot_bytes_lane = by_lane("dot_bytes_lane_4", "c + the products of the signed bytes of a and of a word of b.",
      "int32x4_t", "sdot %%0.4s, %%1.16b, %%2.4b[%d]"),
  },
  widths = { {} },
  rows = {
    pair = "pair_4($1, $2)",
    store_pairs = "store_pairs_4($1, $2)",
    dot_odd = "dot_odd_4($1, $2, $3)",
    dot_odd_lane = "dot_odd_lane_4($1, $2, $3, $4)",
    dot_bytes_lane = "dot_bytes_lane_4($1, $2, $3, $4)",
    mmla_odd = "mmla_odd_4($1, $2, $3)",
    mmla_bytes = "mmla_bytes_4($1, $2, $3)",
    low_half = "vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32($1), 16))",
    high_half = "vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32($1), vdupq_n_u32(0xFFFF0000)))",
    zero_low_if = "vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32($2), " ..
      "vandq_u32($1, vdupq_n_u32(0xFFFF))))",
    zero_high_if = "vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32($2), " ..
      "vandq_u32($1, vdupq_n_u32(0xFFFF0000))))",
  },
})
