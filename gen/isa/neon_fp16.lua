-- Advanced SIMD with the arithmetic of half precision of Armv8.2: products and sums of its pairs. They are written as
-- assembler: up to version 15 clang declares such intrinsics for a whole file or not at all.

local arm = require "isa.arm"
local extend = require "isa.extend"
local neon = require "isa.neon"

local features = { "fp16" }
-- A word in all lanes takes the time of an FMA, so a tile is wide. By llvm-mca (kwt3, gcc) products reach .68 of the
-- rate of neoverse-n1, .81 of v1, .78 of v2 and .74 of apple-m1; tiles of 4x24 .75, .81, .81 and .71, but clang spills;
-- of 2x40 .65, .83, .74 and .76. An FMA by a lane would take columns in pairs, not numbers of a sum.
local rows = { 24, 12, 8, 6, 4, 3 }

return extend(neon, {
  name = "neon_fp16",
  title = "AArch64 with Advanced SIMD and half precision",
  cpu = "MHAGEN_CPU_NEON_FP16",
  begin = arm.begin(features),
  finish = arm.finish(features),
  products = { ["f16 f16"] = { way = "outer", op = "fma_halves", group = 2, coarse = true, dup = 1,
                               rows = { columns = rows, rows = rows } } },
  prelude = [[
/* Two numbers of half precision, or two such sums; the first one is the low half. */
typedef float f16_pair;
]],
  helpers = {
    pair_f16 = [[
/* The nearest numbers of half precision of a and b in pairs. */
static inline float32x4_t pair_f16_4(float32x4_t a, float32x4_t b) {
  const uint16x4_t low = vreinterpret_u16_f16(vcvt_f16_f32(a));
  const uint16x4_t high = vreinterpret_u16_f16(vcvt_f16_f32(b));
  return vreinterpretq_f32_u16(vcombine_u16(vzip1_u16(low, high), vzip2_u16(low, high)));
}
]],
    fma_halves = [[
/* a * b + c, of halves. */
static inline float32x4_t fma_halves_4(float32x4_t a, float32x4_t b, float32x4_t c) {
  __asm__("fmla %0.8h, %1.8h, %2.8h" : "+w"(c) : "w"(a), "w"(b));
  return c;
}
]],
    add_halves = [[
/* a + b, of halves. */
static inline float32x4_t add_halves_4(float32x4_t a, float32x4_t b) {
  float32x4_t sum;
  __asm__("fadd %0.8h, %1.8h, %2.8h" : "=w"(sum) : "w"(a), "w"(b));
  return sum;
}
]],
    dot_halves = [[
/* c + the products of the low halves, + those of the high ones, in float32. */
static inline float32x4_t dot_halves_4(float32x4_t a, float32x4_t b, float32x4_t c) {
  const uint32x4_t x = vreinterpretq_u32_f32(a), y = vreinterpretq_u32_f32(b);
  const float32x4_t x_low = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(x)));
  const float32x4_t y_low = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(y)));
  const float32x4_t x_high = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(x, 16)));
  const float32x4_t y_high = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(y, 16)));
  return vfmaq_f32(vfmaq_f32(c, x_low, y_low), x_high, y_high);
}
]],
  },
  widths = {},
  rows = {
    pair_f16 = "pair_f16_4($1, $2)",
    store_pairs_f16 = "vst1_f32($1, vreinterpret_f32_f16(vcvt_f16_f32($2)))",
    fma_halves = "fma_halves_4($1, $2, $3)",
    add_halves = "add_halves_4($1, $2)",
    load_halves = "vcvt_f32_f16(vreinterpret_f16_f32(vld1_f32($1)))",
    add_pairs = "vpaddq_f32($1, $2)",
    dot_halves = "dot_halves_4($1, $2, $3)",
  },
})
