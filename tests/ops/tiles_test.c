/* The tiles in plain C of tests/ops/tiles.h beside the instructions, in the same words: compile it with optimization,
 * mhagen.h on the path, and mhagen.c. Exit status 77: this CPU has no tiles. */
#include <immintrin.h>

#include "mhagen.h"

#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16,amx-int8")
#define WITH_TILES
#else
#define WITH_TILES __attribute__((target("amx-tile,amx-bf16,amx-int8")))
#endif

enum { WORDS = 16 * 16, STEP = 80 }; /* STEP: bytes from row to row */

/* Shapes: A is 16 x 16 words, or what is said. */
typedef struct shape {
  unsigned char palette, start_row, reserved[14];
  unsigned short row_bytes[16];
  unsigned char rows[16];
} shape;

#define BARRIER __asm__ volatile("" ::: "memory")

/* C += A B by the instructions; `bytes` says of what. */
WITH_TILES static void by_instructions(const shape *config, int bytes, const void *a, const void *b, void *c) {
  volatile shape kept = *config; /* compilers take 8 bytes of it for what is read */
  BARRIER;
  _tile_loadconfig((const void *)&kept);
  _tile_loadd(0, c, STEP);
  _tile_loadd(1, a, STEP);
  _tile_loadd(2, b, STEP);
  if (bytes) {
    _tile_dpbssd(0, 1, 2);
  } else {
    _tile_dpbf16ps(0, 1, 2);
  }
  _tile_stored(0, c, STEP);
  _tile_release();
  BARRIER;
}

#if !defined(__clang__)
#pragma GCC pop_options
#endif

static int has_tiles(void) { return mhagen_cpu_has(MHAGEN_CPU_AMX); }

#include "tiles.h"

static void by_plain_c(const shape *config, int bytes, const void *a, const void *b, void *c) {
  _tile_loadconfig(config);
  _tile_loadd(0, c, STEP);
  _tile_loadd(1, a, STEP);
  _tile_loadd(2, b, STEP);
  if (bytes) {
    _tile_dpbssd(0, 1, 2);
  } else {
    _tile_dpbf16ps(0, 1, 2);
  }
  _tile_stored(0, c, STEP);
  _tile_release();
}

static uint32_t random_bits(void) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 32);
}

/* Anything, or halves of one size, whose sums cancel and round; some of them below 2^-126. */
static void draw(uint32_t *words, int sample) {
  const uint32_t exponent = sample % 4 == 1 ? 0x3F80u : sample % 4 == 2 ? 0x0080u : 0x2000u;
  for (int i = 0; i < 16 * STEP / 4; ++i) {
    const uint32_t bits = random_bits();
    words[i] = sample % 4 == 0 ? bits : (bits & 0x80FF80FFu) ^ (exponent << 16 | exponent);
  }
}

static int same(uint32_t got, uint32_t want, int bytes) {
  const int nan = (got & 0x7FFFFFFFu) > 0x7F800000u && (want & 0x7FFFFFFFu) > 0x7F800000u;
  return got == want || (nan && !bytes);
}

int main(void) {
  if (!has_tiles()) {
    printf("skipped: this CPU has no tiles\n");
    return 77;
  }
  static uint32_t a[16 * STEP / 4], b[16 * STEP / 4], c[16 * STEP / 4], d[16 * STEP / 4];
  for (int sample = 0; sample < 4000; ++sample) {
    const int bytes = sample / 4 % 2, m = sample % 3 ? 16 : 1 + sample % 16, k = sample % 5 ? 16 : 1 + sample / 7 % 16,
              n = sample % 7 ? 16 : 1 + sample / 11 % 16;
    shape config = {.palette = 1};
    config.rows[0] = config.rows[1] = (unsigned char)m;
    config.rows[2] = (unsigned char)k;
    config.row_bytes[0] = config.row_bytes[2] = (unsigned short)(4 * n);
    config.row_bytes[1] = (unsigned short)(4 * k);
    draw(a, sample);
    draw(b, sample);
    draw(c, sample);
    memcpy(d, c, sizeof c);
    by_instructions(&config, bytes, a, b, c);
    by_plain_c(&config, bytes, a, b, d);
    for (int i = 0; i < 16 * STEP / 4; ++i) {
      if (same(d[i], c[i], bytes)) continue;
      printf("FAIL sample %d, row %d, column %d of %d x %d x %d %s: %08x instead of %08x\n", sample, i / (STEP / 4),
             i % (STEP / 4), m, k, n, bytes ? "bytes" : "pairs", (unsigned)d[i], (unsigned)c[i]);
      return 1;
    }
  }
  printf("ok: 4000 products\n");
  return 0;
}
