-- Plain C: one lane, any machine; also the version to read first. Two roundings in fma, because
-- fmaf without hardware is a library call of a hundred instructions.

local of_bf16 = [[
/* The number that is so in bfloat16. */
static inline float of_bf16(uint16_t a) {
  const uint32_t bits = (uint32_t)a << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
]]

local as_bf16 = [[
/* The nearest bfloat16, ties to even; NaN stays NaN. */
static inline uint16_t as_bf16(float a) {
  uint32_t bits;
  memcpy(&bits, &a, sizeof bits);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0u;
  return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}
]]

local of_f16 = [[
/* The number that is so in half precision. */
static inline float of_f16(uint16_t a) {
  const uint32_t size = a & 0x7FFFu, sign = (uint32_t)(a ^ size) << 16;
  uint32_t bits = (size << 13) + (size < 0x7C00u ? 0x38000000u : 0x70000000u);
  float x = (float)size * 5.9604644775390625e-8f;
  if (size < 0x400u) memcpy(&bits, &x, sizeof bits);
  bits |= sign;
  memcpy(&x, &bits, sizeof x);
  return x;
}
]]

local as_f16 = [[
/* The nearest number of half precision, ties to even; NaN stays NaN. */
static inline uint16_t as_f16(float a) {
  uint32_t bits;
  memcpy(&bits, &a, sizeof bits);
  const uint32_t size = bits & 0x7FFFFFFFu, sign = (bits ^ size) >> 16;
  memcpy(&a, &size, sizeof a);
  if (size > 0x7F800000u) return 0x7E00u;
  if (size < 0x38800000u) return (uint16_t)(sign | (uint32_t)nearest(a * 16777216.0f));
  bits = (size - 0x38000000u + 0xFFFu + ((size >> 13) & 1u)) >> 13;
  return (uint16_t)(sign | (bits < 0x7C00u ? bits : 0x7C00u));
}
]]

local as_int8 = [[
/* The nearest integer, ties to even; of what is none from -127 to 127, any. */
static inline int8_t as_int8(float a) {
  return a > -127.5f && a < 127.5f ? (int8_t)nearest(a) : 0;
}
]]

return {
  name = "scalar",
  title = "plain C11, any machine",
  cpu = "MHAGEN_CPU_ANY",
  guard = "1",
  headers = "",
  -- Elements of arrays have no names for gcc, which would join all of a tile to expressions, and spill.
  begin = table.concat({
    "#if defined(__GNUC__) && !defined(__clang__)",
    "#pragma GCC push_options",
    '#pragma GCC optimize("no-tree-ter")',
    "#endif",
  }, "\n"),
  finish = table.concat({
    "#if defined(__GNUC__) && !defined(__clang__)",
    "#pragma GCC pop_options",
    "#endif",
  }, "\n"),
  registers = 16,
  products = {
    ["f32 f32"] = { way = "outer", rows = { columns = { 10, 5, 3, 2 }, rows = { 10, 5, 3, 2 } } },
  },
  fused = false,
  saturates = true,
  helpers = {
    load_bf16 = of_bf16, load_bf16_n = of_bf16, store_bf16 = as_bf16, store_bf16_n = as_bf16,
    load_f16 = of_f16, load_f16_n = of_f16, store_f16 = as_f16, store_f16_n = as_f16,
    store_int8 = as_int8, store_int8_n = as_int8,
    round_bf16 = [[
/* The nearest bfloat16, ties to even; NaN stays NaN. */
static inline float to_bf16(float a) {
  uint32_t bits;
  memcpy(&bits, &a, sizeof bits);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return a;
  bits = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
  memcpy(&a, &bits, sizeof a);
  return a;
}
]],
    round_f16 = [[
/* The nearest number of half precision, ties to even; NaN stays NaN. Below 2^-14 these are the
 * multiples of 2^-24. */
static inline float to_f16(float a) {
  uint32_t bits;
  memcpy(&bits, &a, sizeof bits);
  const uint32_t size = bits & 0x7FFFFFFFu, sign = bits ^ size;
  if (size > 0x7F800000u) return a;
  if (size < 0x38800000u) return nearest(a * 16777216.0f) * 5.9604644775390625e-8f;
  bits = (size + 0xFFFu + ((size >> 13) & 1u)) & 0xFFFFE000u;
  if (bits >= 0x47800000u) bits = 0x7F800000u;
  bits |= sign;
  memcpy(&a, &bits, sizeof a);
  return a;
}
]],
    sqrt = [[
/* The square root, correctly rounded: the library's may set errno. Heron's method in double. */
static inline float square_root(float a) {
  if (!(a <= FLT_MAX)) return a;
  uint32_t bits;
  float near; /* to 6 %, by half of the exponent */
  memcpy(&bits, &a, sizeof bits);
  bits = (bits >> 1) + 0x1FC00000u;
  memcpy(&near, &bits, sizeof near);
  double root = (double)near;
  for (int i = 0; i < 4; ++i) root = 0.5 * (root + (double)a / root);
  return (float)root;
}
]],
  },
  prelude = [[
/* To the nearest integer, ties to even; NaN stays NaN. 1.5 * 2^23 leaves no bits for a fraction. It
 * is taken away as an integer: floats in another order or of more precision would lose the sum. */
static inline float nearest(float a) {
  const float shifted = a + 12582912.0f;
  uint32_t bits;
  memcpy(&bits, &shifted, sizeof bits);
  return a == a ? (float)(int32_t)(bits - 0x4B400000u) : a;
}

/* a * 2^b for integer b >= -126, by the exponent bits; huge for b > 127; NaN stays NaN. */
static inline float scale2(float a, float b) {
  if (!(b <= 127.0f)) return b > 127.0f ? 1.7e38f : b;
  if (!(b >= -126.0f)) return 0.0f;
  uint32_t bits;
  memcpy(&bits, &a, sizeof bits);
  bits += (uint32_t)(int32_t)b << 23;
  memcpy(&a, &bits, sizeof a);
  return a;
}
]],
  widths = { { lanes = 1, t = "float", m = "int", cost = 1 } },
  rows = {
    load = "$e1",
    load_n = "$e1",
    load_bytes = "(float)$e1",
    load_bytes_n = "(float)$e1",
    load_bf16 = "of_bf16($e1)",
    load_bf16_n = "of_bf16($e1)",
    store_bf16 = "$e1 = as_bf16($2)",
    store_bf16_n = "$e1 = as_bf16($2)",
    load_f16 = "of_f16($e1)",
    load_f16_n = "of_f16($e1)",
    store_f16 = "$e1 = as_f16($2)",
    store_f16_n = "$e1 = as_f16($2)",
    load_int8 = "(float)$e1",
    load_int8_n = "(float)$e1",
    store_int8 = "$e1 = as_int8($2)",
    store_int8_n = "$e1 = as_int8($2)",
    store = "$e1 = $2",
    store_n = "$e1 = $2",
    dup = "$1",
    zero = "0.0f",
    set = "$1",
    index = "(float)($1)",
    iota = "0.0f",
    add = "$1 + $2",
    sub = "$1 - $2",
    mul = "$1 * $2",
    sqrt = "square_root($1)",
    div = "$1 / $2",
    fma = "$1 * $2 + $3",
    max = "$1 > $2 ? $1 : $2",
    min = "$1 < $2 ? $1 : $2",
    round = "nearest($1)",
    round_bf16 = "to_bf16($1)",
    round_f16 = "to_f16($1)",
    scale2 = "scale2($1, $2)",
    lt = "$1 < $2",
    sel = "$1 ? $2 : $3",
    zero_if = "$1 ? 0.0f : $2",
    all = "$1",
    trn_lo = "$1",
    trn_hi = "$2",
  },
}
