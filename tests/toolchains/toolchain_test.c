/* toolchain_test.c: a program that needs only C99 and libc. It compares the result of a kernel called
 * "kernel" with the reference in double, and that of the pool with the kernel's own. It prints whether
 * there is a pool. */
#include "kernel.h"
#include "bounds.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *get(size_t bytes) { /* aligned, by C99 alone; the operating system frees it */
  char *p = malloc(bytes + MHAGEN_ALIGN);
  if (!p) puts("memory is short"), exit(1);
  return p + (MHAGEN_ALIGN - (uintptr_t)p % MHAGEN_ALIGN) % MHAGEN_ALIGN;
}

static float *numbers(size_t n) {
  static uint32_t state = 1;
  float *x = get(n * sizeof *x);
  for (size_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(int)(state >> 8 & 0xFFFF) / 65536.0f - 0.5f;
  }
  return x;
}

static double error(const float *x, const double *expected, size_t n) {
  double sum = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    const double difference = (double)x[i] - expected[i];
    sum += difference * difference;
    norm += expected[i] * expected[i];
  }
  return sqrt(sum / norm);
}

int main(void) {
  enum { D = KERNEL_D_MODEL, K = KERNEL_HEADS * KERNEL_DK, V = KERNEL_HEADS * KERNEL_DV, B = KERNEL_BATCH };
  const size_t rows = B * KERNEL_SEQ, keys = B * KERNEL_SEQ_KV;
  const size_t floats = rows * D, weighed = rows * KERNEL_HEADS * KERNEL_SEQ_KV;
  const mhagen_kernel *kernel = &kernel_kernel;
  if (!kernel_supported()) return puts("skipped: this CPU lacks the ISA"), 0;

  int kv_len[B];
  for (int b = 0; b < B; b++) kv_len[b] = KERNEL_SEQ_KV - b;
  const mhagen_weights weights = {.wq = numbers(D * K), .wk = numbers(D * K), .wv = numbers(D * V),
                                  .wo = numbers(V * D), .bq = numbers(K), .bv = numbers(V)};
  void *packed = get(KERNEL_PACKED_BYTES);
  mhagen_args args = {.q = numbers(floats), .k = numbers(keys * D), .v = numbers(keys * D),
                      .packed = packed, .workspace = get(KERNEL_WORKSPACE_BYTES), .kv_len = kv_len};
  float *y = get(floats * sizeof *y), *probs = get(weighed * sizeof *probs);
  args.y = y, args.probs = probs;
  mhagen_status status = kernel_pack(&weights, packed);
  if (status == MHAGEN_OK) status = kernel_run(&args);
  if (status != MHAGEN_OK) return puts(mhagen_status_text(status)), 1;

  double *expected = get(floats * sizeof *expected), *expected_probs = get(weighed * sizeof *expected_probs);
  double max_score;
  if (mhagen_reference_and_bounds(kernel, &weights, &args, expected, expected_probs, &max_score, NULL, NULL)) return 1;
  const double promised = mhagen_promised_error(kernel, max_score);
  const double errors[] = {error(y, expected, floats), error(probs, expected_probs, weighed)};
  printf("errors %.2g and %.2g of %.2g, ", errors[0], errors[1], promised);
  if (!(errors[0] <= promised && errors[1] <= promised)) return puts("too large"), 1;

  mhagen_pool *pool = mhagen_pool_create(2);
  args.y = get(floats * sizeof *y);
  status = mhagen_run_parallel(kernel, &args, pool);
  if (status != MHAGEN_OK || memcmp(y, args.y, floats * sizeof *y) != 0) return puts("other bits"), 1;
  puts(pool ? "with a pool" : "without a pool");
  mhagen_pool_destroy(pool);
  return 0;
}
