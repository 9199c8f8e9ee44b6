-- Advanced SIMD with the half precision arithmetic of Armv8.2: products and sums of its pairs.
--
-- They are inline assembly: up to version 15, clang declares such intrinsics for a whole file or not at all.

local arm = require "isa.arm"
local extend = require "isa.extend"
local neon = require "isa.neon"

local features = { "fp16" }
-- A word in all lanes takes the time of an FMA, so such a tile is wide.
local rows = { 24, 12, 8, 6, 4, 3 }
-- Halves are taken from the first sixteen registers alone. Where K steps follow each other each row holds one.
local of_halves = { columns = { 12, 12, 6, 6, 4, 4 }, rows = { 8, 8, 5, 5, 3, 3 } }

-- An instruction for each half of b, of which -O0 has the switch, all other levels one case. What is volatile stays in
-- order: clang would load operands ahead, and spill.
local function by_half(instruction, result)
  local cases = {}
  for n = 0, 7 do
    cases[n + 1] = ('    case %d:\n      __asm__ volatile("%s %%0.8h, %%1.8h, %%2.h[%d]" : "%s"(c) : "w"(a), "x"(b));\n'
      .. "      break;\n"):format(n, instruction, n, result)
  end
  return "  switch (half) {\n" .. table.concat(cases) .. "  }\n  return c;\n}\n"
end

return extend(neon, {
  name = "neon_fp16",
  title = "AArch64 with Advanced SIMD and half precision",
  cpu = "MHAGEN_CPU_NEON_FP16",
  begin = arm.begin(features),
  beyond = false,
  finish = arm.finish(features),
  cpuinfo = arm.cpuinfo(features),
  products = { ["f16 f16"] = { way = "outer", op = "fma_halves", group = 2, f16_sums = true, dup = 1,
                               rows = { columns = rows, rows = rows },
                               halves = { lane = "fma_halves_lane", starts = "mul_halves_lane", rows = of_halves } } },
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
    fma_halves_lane = [[
/* The same with a half of b for all halves. */
__attribute__((always_inline))
static inline float32x4_t fma_halves_lane_4(float32x4_t a, float32x4_t b, float32x4_t c, int half) {
]] .. by_half("fmla", "+w"),
    mul_halves_lane = [[
/* a * b, of halves of a and a half of b. */
__attribute__((always_inline))
static inline float32x4_t mul_halves_lane_4(float32x4_t a, float32x4_t b, int half) {
  float32x4_t c = vdupq_n_f32(0.0f);
]] .. by_half("fmul", "=w"),
    zip_halves = [[
/* Words of four halves of a, from the first or the middle one on, and of those of b. */
static inline float32x4_t zip_halves_4(float32x4_t a, float32x4_t b, int from) {
  const uint16x8_t low = vreinterpretq_u16_f32(a), high = vreinterpretq_u16_f32(b);
  return vreinterpretq_f32_u16(from == 0 ? vzip1q_u16(low, high) : vzip2q_u16(low, high));
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
    fma_halves_lane = "fma_halves_lane_4($1, $2, $3, $4)",
    mul_halves_lane = "mul_halves_lane_4($1, $2, $3)",
    zip_halves = "zip_halves_4($1, $2, $3)",
    add_halves = "add_halves_4($1, $2)",
    load_halves = "vcvt_f32_f16(vreinterpret_f16_f32(vld1_f32($1)))",
    add_pairs = "vpaddq_f32($1, $2)",
    dot_halves = "dot_halves_4($1, $2, $3)",
  },
})
