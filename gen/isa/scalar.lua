-- Plain C: one lane, any machine; also the version to read first. fma rounds twice, because
-- fmaf without hardware is a library call of a hundred instructions.

local arm = require "isa.arm"
local x86 = require "isa.x86"

-- Floats would not keep all words: there are machines that make one NaN of another as they load it.
local word_at = [[
/* The word at p. */
static inline int32_t word_at(const float *p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return word;
}
]]

local word_of = [[
/* The nearest integers as signed bytes, ties to even; 1.5 * 2^23 leaves no bits for a fraction. */
static inline int32_t word_of(float a, float b, float c, float d) {
  const float shifted[4] = { a + 12582912.0f, b + 12582912.0f, c + 12582912.0f, d + 12582912.0f };
  uint32_t bits[4];
  int32_t word;
  memcpy(bits, shifted, sizeof bits);
  const uint32_t low = (bits[0] & 255u) | (bits[1] & 255u) << 8;
  const uint32_t all = low | (bits[2] & 255u) << 16 | (bits[3] & 255u) << 24;
  memcpy(&word, &all, sizeof word);
  return word;
}
]]

-- Part n of `bits` bits of a word, whose sign is the highest one.
local function part(bits)
  local rows, all, sign = {}, (1 << bits) - 1, 1 << bits - 1
  for n = 0, 32 // bits - 1 do
    local low = ("%s & %du"):format(n > 0 and ("(uint32_t)$1 >> %d"):format(bits * n) or "(uint32_t)$1", all)
    rows[n] = ("(float)((%s) ^ %du) - %d.0f"):format(low, sign, sign)
  end
  return rows
end

local of_bf16 = [[
/* A bfloat16 as a float. */
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
/* A half precision number as a float. */
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
/* The nearest integer, ties to even; any integer if that is not within -127 .. 127. */
static inline int8_t as_int8(float a) {
  return a > -127.5f && a < 127.5f ? (int8_t)nearest(a) : 0;
}
]]

-- The number in half n of a word.
local function halves(of)
  return { [0] = of .. "((uint16_t)((uint32_t)$1 & 0xFFFFu))", [1] = of .. "((uint16_t)((uint32_t)$1 >> 16))" }
end

return {
  name = "scalar",
  title = "plain C, any machine",
  cpu = "MHAGEN_CPU_ANY",
  guard = "1",
  beyond = ("(%s) || \\\n    (%s)"):format(x86.beyond, arm.beyond),
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
    ["int8 int8"] = { way = "outer", op = "dot_bytes", group = 4, widens = true,
                      rows = { columns = { 10, 4, 2 }, rows = { 10, 4, 2 } } },
    ["int8 groups"] = { way = "outer", op = "dot_bytes", group = 4, widens = true,
                        rows = { columns = { 10, 4, 2 }, rows = { 10, 4, 2 } } },
    ["int8 int4"] = { way = "outer", op = "dot_bytes", group = 4, part = "byte_nibbles", widens = true,
                      rows = { columns = { 10, 4, 2 }, rows = { 10, 4, 2 } } },
  },
  fused = false,
  saturates = true,
  helpers = {
    bf16_half = of_bf16, f16_halves = of_f16,
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
    load_words = word_at,
    dup_word = word_at,
    store_words = [[
/* Stores a word at p. */
static inline void put_word(float *p, int32_t word) { memcpy(p, &word, sizeof word); }
]],
    words = word_of,
    lane_words = word_of,
    dot_bytes = [[
/* Byte i of a word. */
static inline int32_t byte_of(int32_t a, int i) {
  return (int32_t)((((uint32_t)a >> 8 * i) & 255u) ^ 128u) - 128;
}

/* c + the products of the signed bytes of a and b. */
static inline int32_t dot_bytes(int32_t a, int32_t b, int32_t c) {
  const int32_t low = byte_of(a, 0) * byte_of(b, 0) + byte_of(a, 1) * byte_of(b, 1);
  const int32_t high = byte_of(a, 2) * byte_of(b, 2) + byte_of(a, 3) * byte_of(b, 3);
  return (int32_t)((uint32_t)c + (uint32_t)(low + high));
}
]],
    byte_nibbles = [[
/* The low half of each byte, signed: the upper bits become those of the sign. */
static inline int32_t low_halves(uint32_t a) {
  a &= 0x0F0F0F0Fu;
  return (int32_t)(a | (a & 0x08080808u) * 30u);
}
]],
    larger_size = [[
/* The larger of |a| and b >= 0; NaN where either is. */
static inline float larger_size(float a, float b) {
  const float size = a < 0.0f ? -a : a;
  return size <= b || b != b ? b : size;
}
]],
    as_f = [[
/* The float with these bits. */
static inline float with_bits(int32_t bits) {
  float a;
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

/* a * 2^b for integer b >= -126, by the exponent bits; infinite for b > 127; NaN stays NaN. */
static inline float scale2(float a, float b) {
  if (!(b >= -126.0f)) return b < -126.0f ? 0.0f : b;
  uint32_t bits;
  memcpy(&bits, &a, sizeof bits);
  bits = b <= 127.0f ? bits + ((uint32_t)(int32_t)b << 23) : 0x7F800000u;
  memcpy(&a, &bits, sizeof a);
  return a;
}
]],
  widths = { { lanes = 1, t = "float", m = "int", i = "int32_t" } },
  rows = {
    load = "$e1",
    load_n = "$e1",
    load_words = "word_at($1)",
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
    store_words = "put_word($1, $2)",
    dup_word = "word_at(&$1)",
    zero_words = "0",
    words = "word_of($1, $2, $3, $4)",
    lane_words = "word_of($1, $2, $3, $4)",
    dot_bytes = "dot_bytes($1, $2, $3)",
    byte_nibbles = { [0] = "low_halves((uint32_t)$1)", [1] = "low_halves((uint32_t)$1 >> 4)" },
    iadd = "(int32_t)((uint32_t)$1 + (uint32_t)$2)",
    to_f = "(float)$1",
    larger_size = "larger_size($1, $2)",
    as_f = "with_bits($1)",
    byte = part(8),
    nibble = part(4),
    bf16_half = halves "of_bf16",
    f16_halves = halves "of_f16",
    lt = "$1 < $2",
    sel = "$1 ? $2 : $3",
    zero_if = "$1 ? 0.0f : $2",
    all = "$1",
    trn_lo = "$1",
    trn_hi = "$2",
  },
}
