/* toy_stage_test.c: whether y of kernel `with` is that of kernel `without` plus x, on one thread and in tasks. */
#include <stdio.h>
#include <stdlib.h>

#include "with.h"
#include "without.h"

enum { NUMBERS = WITH_SEQ * WITH_D_MODEL, WEIGHTS = 4 * WITH_D_MODEL * WITH_HEADS * WITH_DK };

static void *buffer(size_t bytes) { return aligned_alloc(MHAGEN_ALIGN, (bytes + 4095) / 4096 * 4096); }

int main(void) {
  static float w[WEIGHTS], x[NUMBERS], y[2][NUMBERS], plain[NUMBERS];
  unsigned state = 1;
  for (int i = 0; i < WEIGHTS; ++i) w[i] = (float)((state = state * 1664525u + 1013904223u) >> 16) / 65536 - 0.5f;
  for (int i = 0; i < NUMBERS; ++i) x[i] = (float)((state = state * 1664525u + 1013904223u) >> 16) / 65536 - 0.5f;
  const mhagen_weights weights = {.wq = w, .wk = w + WEIGHTS / 4, .wv = w + WEIGHTS / 2, .wo = w + WEIGHTS / 4 * 3};
  void *packed[2] = {buffer(WITH_PACKED_BYTES), buffer(WITHOUT_PACKED_BYTES)};
  mhagen_args args = {.q = x, .y = plain, .packed = packed[1], .workspace = buffer(WITHOUT_WORKSPACE_BYTES)};
  mhagen_pool *pool = mhagen_pool_create(2);
  int bad = with_pack(&weights, packed[0]) || without_pack(&weights, packed[1]) || without_run(&args);
  args.packed = packed[0], args.workspace = buffer(WITH_WORKSPACE_BYTES);
  args.y = y[0], bad |= with_run(&args) != MHAGEN_OK;
  args.y = y[1], bad |= mhagen_run_parallel(&with_kernel, &args, pool) != MHAGEN_OK;
  for (int i = 0; i < NUMBERS; ++i) bad |= y[0][i] != plain[i] + x[i] || y[1][i] != y[0][i];
  puts(bad ? "wrong" : "ok");
  return bad;
}
