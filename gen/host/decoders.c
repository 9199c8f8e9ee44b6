/* decoders.c: numbers of tensors as floats, a function for each type. Files are little-endian. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "decoders.h"

static uint32_t u16(const unsigned char *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static uint32_t u32(const unsigned char *p) { return u16(p) | u16(p + 2) << 16; }

static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static float half(const unsigned char *p) {
  const uint32_t bits = u16(p), sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, rest = bits & 0x3ff;
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * (float)rest * 0x1p-24f;
  return of_bits(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | rest << 13);
}

static void read_f64(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) {
    const uint64_t bits = (uint64_t)u32(from + 8 * i) | (uint64_t)u32(from + 8 * i + 4) << 32;
    double x;
    memcpy(&x, &bits, sizeof x);
    to[i] = (float)x;
  }
}

static void read_f32(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) to[i] = of_bits(u32(from + 4 * i));
}

static void read_f16(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) to[i] = half(from + 2 * i);
}

static void read_bf16(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) to[i] = of_bits(u16(from + 2 * i) << 16);
}

/* Blocks of 32 numbers, as ggml has them: a scale, with _1 the least number too, with Q5 32 bits that stand above
 * the others, then the quants. Of a byte with two quants the low one is number i, the high one number i + 16. */

static void read_q8_0(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 34, to += 32) {
    const float scale = half(from);
    for (int i = 0; i < 32; ++i) to[i] = scale * (float)(int8_t)from[2 + i];
  }
}

/* A quant is of four bits and one of `high`; the number is scale * (quant - zero) + least. */
static void read_nibbles(const unsigned char *from, float *to, uint32_t high, const float of[3]) {
  for (int i = 0; i < 16; ++i) {
    const uint32_t low = (from[i] & 15u) | (high >> i & 1) << 4, up = from[i] >> 4 | (high >> (i + 16) & 1) << 4;
    to[i] = of[0] * ((float)low - of[1]) + of[2];
    to[i + 16] = of[0] * ((float)up - of[1]) + of[2];
  }
}

static void read_q4_0(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 18, to += 32) {
    read_nibbles(from + 2, to, 0, (const float[]){half(from), 8.0f, 0.0f});
  }
}

static void read_q4_1(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 20, to += 32) {
    read_nibbles(from + 4, to, 0, (const float[]){half(from), 0.0f, half(from + 2)});
  }
}

static void read_q5_0(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 22, to += 32) {
    read_nibbles(from + 6, to, u32(from + 2), (const float[]){half(from), 16.0f, 0.0f});
  }
}

static void read_q5_1(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 24, to += 32) {
    read_nibbles(from + 8, to, u32(from + 4), (const float[]){half(from), 0.0f, half(from + 2)});
  }
}

/* Quant i of those that lie as ggml has them: in rows of so many bytes, of which each has quants of `width` bits,
 * those of numbers that are a row apart; the low bits come first. */
static int quant(const unsigned char *from, int width, int row, int i) {
  const int in_byte = 8 / width;
  return from[i / (row * in_byte) * row + i % row] >> width * (i / row % in_byte) & ((1 << width) - 1);
}

enum { SUPER = 256 }; /* numbers of a block of K-quants: scales of 16 or 32 numbers are integers, times one of all */

static void read_q2_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 84, to += SUPER) {
    const float scale = half(from + 80), least = half(from + 82);
    for (int i = 0; i < SUPER; ++i) {
      const int of = from[i / 16];
      to[i] = scale * (float)(of & 15) * (float)quant(from + 16, 2, 32, i) - least * (float)(of >> 4);
    }
  }
}

static void read_q3_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 110, to += SUPER) {
    const float scale = half(from + 108);
    for (int i = 0; i < SUPER; ++i) {
      const int of = quant(from + 96, 4, 8, i / 16) | quant(from + 104, 2, 4, i / 16) << 4;
      const int q = quant(from + 32, 2, 32, i) | quant(from, 1, 32, i) << 2;
      to[i] = scale * (float)(of - 32) * (float)(q - 4);
    }
  }
}

/* The scale (which = 0) or the least number (1) of 32 numbers of Q4_K and Q5_K: 6 bits in 12 bytes. */
static float six_bits(const unsigned char *from, int which, int i) {
  if (i < 4) return (float)(from[4 * which + i] & 63);
  return (float)(quant(from + 8, 4, 4, 4 * which + i - 4) | from[4 * which + i - 4] >> 6 << 4);
}

/* Q4_K, and Q5_K where there is a fifth bit. */
static void read_least_k(const unsigned char *from, const unsigned char *fifth, const unsigned char *low, float *to) {
  const float scale = half(from), least = half(from + 2);
  for (int i = 0; i < SUPER; ++i) {
    const int q = quant(low, 4, 32, i) | (fifth != NULL ? quant(fifth, 1, 32, i) << 4 : 0);
    to[i] = scale * six_bits(from + 4, 0, i / 32) * (float)q - least * six_bits(from + 4, 1, i / 32);
  }
}

static void read_q4_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 144, to += SUPER) read_least_k(from, NULL, from + 16, to);
}

static void read_q5_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 176, to += SUPER) read_least_k(from, from + 16, from + 48, to);
}

static void read_q6_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 210, to += SUPER) {
    const float scale = half(from + 208);
    for (int i = 0; i < SUPER; ++i) {
      const int q = quant(from, 4, 64, i) | quant(from + 128, 2, 32, i) << 4;
      to[i] = scale * (float)(int8_t)from[192 + i / 16] * (float)(q - 32);
    }
  }
}

/* What a quant of IQ4 stands for. */
static const int8_t uneven[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void read_iq4_nl(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 18, to += 32) {
    const float scale = half(from);
    for (int i = 0; i < 32; ++i) to[i] = scale * (float)uneven[quant(from + 2, 4, 16, i)];
  }
}

static void read_iq4_xs(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 136, to += SUPER) {
    const float scale = half(from);
    for (int i = 0; i < SUPER; ++i) {
      const int of = quant(from + 4, 4, 1, i / 32) | quant(from + 2, 2, 1, i / 32) << 4;
      to[i] = scale * (float)(of - 32) * (float)uneven[quant(from + 8, 4, 16, i)];
    }
  }
}

static void read_i8(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) to[i] = (float)from[i] - (from[i] < 128 ? 0.0f : 256.0f);
}

static void read_u8(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) to[i] = (float)from[i];
}

/* The number in the low half of a byte is the first. */
static void read_u4(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < 2 * blocks; ++i) to[i] = (float)(from[i / 2] >> (i % 2 * 4) & 15);
}

static void read_i4(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < 2 * blocks; ++i) to[i] = (float)((from[i / 2] >> (i % 2 * 4) & 15) ^ 8) - 8.0f;
}

/* Eight of them in a word: AWQ has numbers 0, 2, 4, 6, 1, 3, 5, 7, from the low bits on. */
static void read_u4_awq(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 4, to += 8) {
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = (float)(from[i / 2] >> 4 * (i % 2) & 15);
      to[2 * i + 1] = (float)(from[2 + i / 2] >> 4 * (i % 2) & 15);
    }
  }
}

/* A sign, 4 bits of an exponent with bias 7, 3 bits behind the 1. There is no infinity, and one NaN of each sign. */
static void read_f8_e4m3(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) {
    const uint32_t sign = (from[i] & 0x80u) << 24, exponent = from[i] >> 3 & 15, rest = from[i] & 7;
    if ((from[i] & 0x7f) == 0x7f) to[i] = of_bits(sign | 0x7fc00000u);
    else if (exponent == 0) to[i] = (sign != 0 ? -1.0f : 1.0f) * (float)rest * 0x1p-9f;
    else to[i] = of_bits(sign | (exponent + 120) << 23 | rest << 20);
  }
}

static const Type types[] = {
    {"F64", 1, 8, read_f64},           {"F32", 1, 4, read_f32},           {"F16", 1, 2, read_f16},
    {"BF16", 1, 2, read_bf16},         {"Q8_0", 32, 34, read_q8_0},       {"Q4_0", 32, 18, read_q4_0},
    {"Q4_1", 32, 20, read_q4_1},       {"Q5_0", 32, 22, read_q5_0},       {"Q5_1", 32, 24, read_q5_1},
    {"Q2_K", SUPER, 84, read_q2_k},    {"Q3_K", SUPER, 110, read_q3_k},   {"Q4_K", SUPER, 144, read_q4_k},
    {"Q5_K", SUPER, 176, read_q5_k},   {"Q6_K", SUPER, 210, read_q6_k},   {"IQ4_NL", 32, 18, read_iq4_nl},
    {"IQ4_XS", SUPER, 136, read_iq4_xs},
};

static const Type integers[] = {
    {"I8", 1, 1, read_i8}, {"U8", 1, 1, read_u8},         {"U4", 2, 1, read_u4},
    {"I4", 2, 1, read_i4}, {"U4_AWQ", 8, 4, read_u4_awq}, {"F8_E4M3", 1, 1, read_f8_e4m3},
};

static const Type *find(const Type *list, size_t count, const char *name) {
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(list[i].name, name) == 0) return &list[i];
  }
  return NULL;
}

const Type *find_type(const char *name) { return find(types, sizeof types / sizeof *types, name); }

const Type *find_integers(const char *name) { return find(integers, sizeof integers / sizeof *integers, name); }

