-- A toy ISA: two lanes in plain C, a struct by value. It shows what a new ISA takes.

return {
  name = "toy",
  title = "two lanes in plain C, for tests",
  cpu = "MHAGEN_CPU_ANY",
  guard = "1",
  headers = "",
  registers = 12,
  products = { ["f32 f32"] = { way = "outer", rows = { columns = { 8, 4, 2 }, rows = { 8, 4, 2 } } } },
  fused = false,
  helpers = {
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
typedef struct toy { float at[2]; } toy;
typedef struct toy_mask { int at[2]; } toy_mask;
typedef struct toy_words { uint32_t at[2]; } toy_words;

#define TOY static inline __attribute__((unused))
#define TOY_LANES(lane) \
  toy r; \
  for (int i = 0; i < 2; ++i) r.at[i] = (lane); \
  return r;

TOY toy toy_load(const float *p) { TOY_LANES(p[i]) }
TOY toy_words toy_load_words(const float *p) {
  toy_words r;
  memcpy(&r, p, sizeof r);
  return r;
}
TOY toy toy_floats(toy_words a) {
  toy r;
  memcpy(&r, &a, sizeof r);
  return r;
}
TOY toy toy_part(toy_words a, int n, int bits) {
  const uint32_t all = (1u << bits) - 1u, sign = 1u << (bits - 1);
  TOY_LANES((float)((int)(((a.at[i] >> (n * bits)) & all) ^ sign) - (int)sign))
}
TOY toy toy_set(float x) { TOY_LANES(x) }
TOY void toy_store(float *p, toy a) { p[0] = a.at[0], p[1] = a.at[1]; }
TOY toy toy_add(toy a, toy b) { TOY_LANES(a.at[i] + b.at[i]) }
TOY toy toy_sub(toy a, toy b) { TOY_LANES(a.at[i] - b.at[i]) }
TOY toy toy_mul(toy a, toy b) { TOY_LANES(a.at[i] * b.at[i]) }
TOY toy toy_div(toy a, toy b) { TOY_LANES(a.at[i] / b.at[i]) }
TOY toy toy_max(toy a, toy b) { TOY_LANES(a.at[i] > b.at[i] ? a.at[i] : b.at[i]) }
TOY toy toy_min(toy a, toy b) { TOY_LANES(a.at[i] < b.at[i] ? a.at[i] : b.at[i]) }
TOY toy toy_round(toy a) { TOY_LANES((a.at[i] + 12582912.0f) - 12582912.0f) }
TOY float toy_power(float b) { /* 2^b */
  const uint32_t bits = (uint32_t)((int)b + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return power;
}
TOY toy toy_scale2(toy a, toy b) { TOY_LANES(b.at[i] >= -126.0f ? a.at[i] * toy_power(b.at[i]) : a.at[i]) }
TOY toy_mask toy_lt(toy a, toy b) {
  return (toy_mask){ { a.at[0] < b.at[0], a.at[1] < b.at[1] } };
}
TOY toy toy_sel(toy_mask m, toy a, toy b) { TOY_LANES(m.at[i] ? a.at[i] : b.at[i]) }
]],
  widths = { { lanes = 2, t = "toy", m = "toy_mask", i = "toy_words" } },
  rows = {
    load = "toy_load($1)",
    load_n = "(toy){ { $e1, 0.0f } }",
    load_words = "toy_load_words($1)",
    load_bytes = "(toy){ { (float)($1)[0], (float)($1)[1] } }",
    load_bytes_n = "(toy){ { (float)$e1, 0.0f } }",
    store = "toy_store($1, $2)",
    store_n = "$e1 = $2.at[0]",
    dup = "toy_set($1)",
    zero = "toy_set(0.0f)",
    set = "toy_set($1)",
    index = "toy_set((float)($1))",
    iota = "(toy){ { $iota } }",
    add = "toy_add($1, $2)",
    sub = "toy_sub($1, $2)",
    mul = "toy_mul($1, $2)",
    sqrt = "(toy){ { square_root($1.at[0]), square_root($1.at[1]) } }",
    div = "toy_div($1, $2)",
    fma = "toy_add(toy_mul($1, $2), $3)",
    max = "toy_max($1, $2)",
    min = "toy_min($1, $2)",
    byte = "toy_part($1, $2, 8)",
    nibble = "toy_part($1, $2, 4)",
    as_f = "toy_floats($1)",
    round = "toy_round($1)",
    scale2 = "toy_scale2($1, $2)",
    lt = "toy_lt($1, $2)",
    sel = "toy_sel($1, $2, $3)",
    zero_if = "toy_sel($1, toy_set(0.0f), $2)",
    all = "$1.at[0] && $1.at[1]",
    trn_lo = "(toy){ { $1.at[0], $2.at[0] } }",
    trn_hi = "(toy){ { $1.at[1], $2.at[1] } }",
  },
}
