/* toy_behind_test.c: whether y of kernel `with` is that of kernel `without` plus x, rounded once, on one thread and in
 * tasks, in the rows that are asked for. The arrays of `without` are float32, those of `with` may be bfloat16. Arrays
 * have their size on the heap, where a sanitizer sees what is beyond. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "with.h"
#include "without.h"

enum { WIDTH = WITH_D_MODEL, NUMBERS = WITH_BATCH * WITH_SEQ * WIDTH,
       ACROSS = WITH_HEADS * WITH_DK, /* of rows that are not projected */
       INPUTS = WITH_BATCH * WITH_SEQ * (WITH_D_MODEL > ACROSS ? WITH_D_MODEL : ACROSS),
       KEYS = WIDTH * WITH_HEADS * WITH_DK, VALUES = WIDTH * WITH_HEADS * WITH_DV, OTHER = WITH_BATCH * WITH_SEQ_KV };

static void *buffer(size_t bytes) { return aligned_alloc(MHAGEN_ALIGN, (bytes + 63) / 64 * 64); }

static int is_small(void) { return with_kernel.io_dtype != NULL; }

/* A bfloat16 has the upper half of a float. */
static float widened(uint16_t half) {
  const uint32_t bits = (uint32_t)half << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* Numbers that both types have. */
static float *drawn(size_t count) {
  static unsigned state = 1;
  float *x = malloc(count * sizeof *x);
  for (size_t i = 0; i < count; ++i) x[i] = (float)((state = state * 1664525u + 1013904223u) >> 24) / 256 - 0.5f;
  return x;
}

/* The same numbers as kernel `with` reads them, in an array of its own. */
static void *as_given(const float *x, size_t count) {
  if (!is_small()) return memcpy(malloc(count * sizeof *x), x, count * sizeof *x);
  uint16_t *halves = malloc(count * sizeof *halves);
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    halves[i] = (uint16_t)(bits >> 16);
  }
  return halves;
}

static float result(const void *y, size_t i) {
  return is_small() ? widened(((const uint16_t *)y)[i]) : ((const float *)y)[i];
}

/* Whether it is what is expected as a number of its type: of bfloat16 one of the nearest, but for plain's error. */
static int is_near(float got, float expected) {
  if (!is_small()) return got == expected;
  return fabs((double)got - (double)expected) <= ldexp(1.001, ilogb((double)expected) - 8) + 1e-5;
}

int main(void) {
  const mhagen_weights weights = {.wq = drawn(KEYS), .wk = drawn(KEYS), .wv = drawn(VALUES),
                                  .wo = drawn(WITH_HEADS * WITH_DV * WIDTH)};
  float *x = drawn(INPUTS), *plain = drawn(NUMBERS), *before = drawn(NUMBERS);
  float *k = drawn((size_t)OTHER * WITH_K_WIDTH), *v = drawn((size_t)OTHER * WITH_V_WIDTH);
  void *y[2] = {as_given(before, NUMBERS), as_given(before, NUMBERS)};
  void *packed[2] = {buffer(WITH_PACKED_BYTES), buffer(WITHOUT_PACKED_BYTES)};
  const int crosses = (with_kernel.options & MHAGEN_CROSS) != 0, some = (with_kernel.options & MHAGEN_Q_LEN) != 0;
  int asked[WITH_BATCH];
  for (int b = 0; b < WITH_BATCH; ++b) asked[b] = some ? WITH_SEQ * 2 / 3 - b % 2 : WITH_SEQ;
  mhagen_args args = {.q = x, .y = plain, .packed = packed[1], .q_len = asked};
  args.workspace = buffer(WITHOUT_WORKSPACE_BYTES);
  if (crosses) args.k = k, args.v = v;
  mhagen_pool *pool = mhagen_pool_create(2);
  int bad = with_pack(&weights, packed[0]) || without_pack(&weights, packed[1]) || without_run(&args);
  args.packed = packed[0], args.workspace = buffer(WITH_WORKSPACE_BYTES);
  args.q = as_given(x, INPUTS);
  if (crosses) args.k = as_given(k, (size_t)OTHER * WITH_K_WIDTH), args.v = as_given(v, (size_t)OTHER * WITH_V_WIDTH);
  args.y = y[0], bad |= with_run(&args) != MHAGEN_OK;
  args.y = y[1], bad |= mhagen_run_parallel(&with_kernel, &args, pool) != MHAGEN_OK;
  for (size_t i = 0; i < NUMBERS; ++i) {
    const size_t row = i / WIDTH;
    const int is_asked = (int)(row % WITH_SEQ) < asked[row / WITH_SEQ];
    const float got = result(y[0], i);
    bad |= is_asked ? !is_near(got, plain[i] + x[i]) : got != before[i];
    bad |= result(y[1], i) != got;
  }
  puts(bad ? "wrong" : "ok");
  return bad;
}
