/* Times kernel_run, a kernel without projections, on normal data whose scores have the standard deviations of the
 * arguments: prints each with the least time of a run in us. bench/spread.py compiles and reads it. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "kernel.h"

static float normal(void) {
  double sum = -6;
  for (int i = 0; i < 12; i++) sum += rand() / (double)RAND_MAX;
  return (float)sum;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static float *numbers(size_t count) {
  float *x = malloc(count * sizeof *x);
  for (size_t i = 0; x && i < count; i++) x[i] = normal();
  return x;
}

int main(int argc, char **argv) {
  const mhagen_kernel *k = &kernel_kernel;
  const size_t width = (size_t)k->h * (size_t)k->dk, queries = width * (size_t)k->seq, keys = width * (size_t)k->seq_kv;
  float *given = numbers(queries), *q = numbers(queries);
  const mhagen_weights none = {0};
  void *packed = aligned_alloc(64, (k->packed_bytes / 64 + 1) * 64);
  const mhagen_args args = {.q = q, .k = numbers(keys), .v = numbers(keys), .y = numbers(queries), .packed = packed,
                            .workspace = aligned_alloc(64, (k->workspace_bytes / 64 + 1) * 64)};
  if (kernel_pack(&none, packed) != MHAGEN_OK) return 1;
  for (int i = 1; i < argc; i++) {
    const double spread = atof(argv[i]), end = now() + 5e5;
    for (size_t j = 0; j < queries; j++) q[j] = (float)(spread * (double)given[j]);
    double least = 1e30;
    for (int run = 0; run < 5 || now() < end; run++) {
      const double begin = now();
      if (kernel_run(&args) != MHAGEN_OK) return 1;
      if (now() - begin < least) least = now() - begin;
    }
    printf("%s %.1f\n", argv[i], least);
  }
}
