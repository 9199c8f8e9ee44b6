-- Plain C: one lane, any machine; also the version to read first. Two roundings in fma, because
-- fmaf without hardware is a library call of a hundred instructions.

return {
  name = "scalar",
  title = "plain C11, any machine",
  cpu = "MHAGEN_CPU_ANY",
  guard = "1",
  headers = "",
  registers = 16,
  products = {
    ["f32 f32"] = { way = "outer", rows = { columns = { 10, 5, 3, 2 }, rows = { 10, 5, 3, 2 } } },
  },
  fused = false,
  saturates = true,
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
    div = "$1 / $2",
    fma = "$1 * $2 + $3",
    max = "$1 > $2 ? $1 : $2",
    min = "$1 < $2 ? $1 : $2",
    round = "nearest($1)",
    scale2 = "scale2($1, $2)",
    lt = "$1 < $2",
    sel = "$1 ? $2 : $3",
    zero_if = "$1 ? 0.0f : $2",
    all = "$1",
    trn_lo = "$1",
    trn_hi = "$2",
  },
}
