/* The tile intrinsics in plain C, for kernels of amx on CPUs without tiles: compile them with -include
 * tests/ops/tiles.h,
 * and mhagen.h on the path. It is stricter than the instructions: what they leave alone, or fault at, ends the program.
 * Of the CPU it asks for AVX-512 with BF16 alone. tests/ops/tiles_test.c compares it with the instructions. */
#ifndef TILES_H_INCLUDED
#define TILES_H_INCLUDED

#define _DEFAULT_SOURCE /* as files have it that this one stands before */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mhagen.h"

#undef _DEFAULT_SOURCE
#define MHAGEN_CPU_AMX MHAGEN_CPU_AVX512_BF16

typedef struct tile_of_c {
  int rows, row_bytes;
  union { uint32_t words[16]; float floats[16]; } row[16];
} tile_of_c;

typedef struct tiles_of_c {
  int configured;
  tile_of_c tile[8];
} tiles_of_c;

static __thread tiles_of_c tiles_of_c_now;

__attribute__((unused)) static void tiles_of_c_must(int good, const char *rule) {
  if (good) return;
  fprintf(stderr, "tiles: %s\n", rule);
  abort();
}

/* The registers of a configuration that there is. */
__attribute__((unused)) static tile_of_c *tile_of_c_at(int number) {
  tiles_of_c_must(tiles_of_c_now.configured, "an instruction without a configuration");
  tiles_of_c_must(number >= 0 && number < 8 && tiles_of_c_now.tile[number].rows > 0, "no such tile");
  return &tiles_of_c_now.tile[number];
}

__attribute__((unused)) static void tiles_of_c_configure(const void *config) {
  const unsigned char *const bytes = config;
  tiles_of_c_must(!tiles_of_c_now.configured, "configured twice");
  tiles_of_c_must(bytes[0] == 1 && bytes[1] == 0, "another palette, or a load that goes on");
  memset(&tiles_of_c_now, 0, sizeof tiles_of_c_now);
  for (int i = 2; i < 16; ++i) tiles_of_c_must(bytes[i] == 0, "reserved bytes");
  for (int i = 0; i < 16; ++i) {
    uint16_t row_bytes;
    memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
    const int rows = bytes[48 + i];
    tiles_of_c_must(rows <= 16 && row_bytes <= 64 && row_bytes % 4 == 0 && !rows == !row_bytes,
                    "a shape that no tile has");
    tiles_of_c_must(i < 8 || rows == 0, "a tile that is not there");
    if (i < 8) tiles_of_c_now.tile[i].rows = rows, tiles_of_c_now.tile[i].row_bytes = row_bytes;
  }
  tiles_of_c_now.configured = 1;
}

__attribute__((unused)) static void tiles_of_c_release(void) {
  tiles_of_c_must(tiles_of_c_now.configured, "released twice");
  tiles_of_c_now.configured = 0;
}

__attribute__((unused)) static void tile_of_c_zero(int number) {
  tile_of_c *const tile = tile_of_c_at(number);
  memset(tile->row, 0, sizeof tile->row);
}

__attribute__((unused)) static void tile_of_c_load(int number, const void *from, ptrdiff_t step) {
  tile_of_c_zero(number);
  tile_of_c *const tile = tile_of_c_at(number);
  for (int r = 0; r < tile->rows; ++r) memcpy(&tile->row[r], (const char *)from + r * step, (size_t)tile->row_bytes);
}

__attribute__((unused)) static void tile_of_c_store(int number, void *to, ptrdiff_t step) {
  const tile_of_c *const tile = tile_of_c_at(number);
  for (int r = 0; r < tile->rows; ++r) memcpy((char *)to + r * step, &tile->row[r], (size_t)tile->row_bytes);
}

/* The tiles of a product C += A B, whose shapes fit. */
__attribute__((unused)) static void tiles_of_c_product(int c, int a, int b) {
  const tile_of_c *const sums = tile_of_c_at(c), *const left = tile_of_c_at(a), *const right = tile_of_c_at(b);
  tiles_of_c_must(c != a && c != b && a != b, "a product of a tile with itself");
  tiles_of_c_must(sums->rows == left->rows && sums->row_bytes == right->row_bytes &&
                  left->row_bytes == 4 * right->rows, "shapes that do not fit");
}

/* Numbers below 2^-126 are zeros. */
static inline float tile_of_c_flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static inline float tile_of_c_half(uint32_t word, int high) {
  const uint32_t bits = high ? word & 0xFFFF0000u : word << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return tile_of_c_flushed(x);
}

/* As Intel's manual has TDPBF16PS: low and high halves have sums of their own, which begin with zero. */
__attribute__((unused, target("fma"))) static void tile_of_c_bf16(int c, int a, int b) {
  tiles_of_c_product(c, a, b);
  const tile_of_c *const left = tile_of_c_at(a), *const right = tile_of_c_at(b);
  tile_of_c *const sums = tile_of_c_at(c);
  for (int m = 0; m < sums->rows; ++m) {
    float low[16] = {0}, high[16] = {0};
    for (int k = 0; k < right->rows; ++k) {
      const float a_low = tile_of_c_half(left->row[m].words[k], 0), a_high = tile_of_c_half(left->row[m].words[k], 1);
      for (int n = 0; n < 16; ++n) {
        const uint32_t word = right->row[k].words[n];
        low[n] = tile_of_c_flushed(fmaf(a_low, tile_of_c_half(word, 0), low[n]));
        high[n] = tile_of_c_flushed(fmaf(a_high, tile_of_c_half(word, 1), high[n]));
      }
    }
    for (int n = 0; n < sums->row_bytes / 4; ++n) {
      float *const sum = &sums->row[m].floats[n];
      *sum = tile_of_c_flushed(tile_of_c_flushed(*sum) + tile_of_c_flushed(low[n] + high[n]));
    }
  }
}

/* TDPBSSD: signed bytes, sums modulo 2^32. */
__attribute__((unused)) static void tile_of_c_bytes(int c, int a, int b) {
  tiles_of_c_product(c, a, b);
  const tile_of_c *const left = tile_of_c_at(a), *const right = tile_of_c_at(b);
  tile_of_c *const sums = tile_of_c_at(c);
  for (int m = 0; m < sums->rows; ++m) {
    for (int k = 0; k < right->rows; ++k) {
      int8_t x[4], y[4];
      memcpy(x, &left->row[m].words[k], sizeof x);
      for (int n = 0; n < sums->row_bytes / 4; ++n) {
        memcpy(y, &right->row[k].words[n], sizeof y);
        sums->row[m].words[n] += (uint32_t)(x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3]);
      }
    }
  }
}

/* What a thread has left configured when it ends is found by the next one to configure, or here. */
__attribute__((destructor, unused)) static void tiles_of_c_end(void) {
  tiles_of_c_must(!tiles_of_c_now.configured, "not released");
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig tiles_of_c_configure
#define _tile_release tiles_of_c_release
#define _tile_zero tile_of_c_zero
#define _tile_loadd(tile, from, step) tile_of_c_load(tile, from, (ptrdiff_t)(step))
#define _tile_stream_loadd _tile_loadd
#define _tile_stored(tile, to, step) tile_of_c_store(tile, to, (ptrdiff_t)(step))
#define _tile_dpbf16ps tile_of_c_bf16
#define _tile_dpbssd tile_of_c_bytes

#endif
