/* toy_stage_test.c: whether y of kernel `with` is that of kernel `without` plus x, on one thread and in tasks. Arrays
 * have their size on the heap, where a sanitizer sees what is beyond. */
#include <stdio.h>
#include <stdlib.h>

#include "with.h"
#include "without.h"

enum { NUMBERS = WITH_BATCH * WITH_SEQ * WITH_D_MODEL, KEYS = WITH_D_MODEL * WITH_HEADS * WITH_DK,
       VALUES = WITH_D_MODEL * WITH_HEADS * WITH_DV, OTHER = WITH_BATCH * WITH_SEQ_KV };

static void *buffer(size_t bytes) { return aligned_alloc(MHAGEN_ALIGN, (bytes + 63) / 64 * 64); }

static float *drawn(int count) {
  static unsigned state = 1;
  float *x = malloc((size_t)count * sizeof *x);
  for (int i = 0; i < count; ++i) x[i] = (float)((state = state * 1664525u + 1013904223u) >> 16) / 65536 - 0.5f;
  return x;
}

int main(void) {
  const mhagen_weights weights = {.wq = drawn(KEYS), .wk = drawn(KEYS), .wv = drawn(VALUES), .wo = drawn(VALUES)};
  float *x = drawn(NUMBERS), *plain = drawn(NUMBERS), *y[2] = {drawn(NUMBERS), drawn(NUMBERS)};
  void *packed[2] = {buffer(WITH_PACKED_BYTES), buffer(WITHOUT_PACKED_BYTES)};
  mhagen_args args = {.q = x, .y = plain, .packed = packed[1], .workspace = buffer(WITHOUT_WORKSPACE_BYTES)};
  if (with_kernel.options & MHAGEN_CROSS) args.k = drawn(OTHER * WITH_K_WIDTH), args.v = drawn(OTHER * WITH_V_WIDTH);
  mhagen_pool *pool = mhagen_pool_create(2);
  int bad = with_pack(&weights, packed[0]) || without_pack(&weights, packed[1]) || without_run(&args);
  args.packed = packed[0], args.workspace = buffer(WITH_WORKSPACE_BYTES);
  args.y = y[0], bad |= with_run(&args) != MHAGEN_OK;
  args.y = y[1], bad |= mhagen_run_parallel(&with_kernel, &args, pool) != MHAGEN_OK;
  for (int i = 0; i < NUMBERS; ++i) bad |= y[0][i] != plain[i] + x[i] || y[1][i] != y[0][i];
  puts(bad ? "wrong" : "ok");
  return bad;
}
