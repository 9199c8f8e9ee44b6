/* schedulers_test.c: a kernel under another scheduler, which runs the finest and the coarse list of
 * phases in turn, the tasks of each phase in a random order; y must have the bits of the kernel's own run. Compile with
 * -DHEADER='"<name>.h"' -DKERNEL=<name>_kernel, and link with scheduler_openmp.c or scheduler_tbb.cpp. */
#include HEADER
#include "scheduler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *numbers(size_t n) {
  float *x = malloc(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = (float)(rand() % 2001 - 1000) / 1000;
  return x;
}

static void run_phases(const mhagen_phase *phases, int count, const mhagen_args *args) {
  for (int p = 0; p < count; p++) {
    const mhagen_phase *phase = &phases[p];
    int *order = malloc((size_t)phase->tasks * sizeof *order);
    for (int i = 0; i < phase->tasks; i++) { /* Fisher and Yates */
      const int j = rand() % (i + 1);
      order[i] = order[j];
      order[j] = phase->first + i;
    }
    run_tasks(phase, args, order);
    free(order);
  }
}

int main(void) {
  const mhagen_kernel *kernel = &KERNEL;
  if (!kernel->supported()) return puts("skipped: this CPU lacks the ISA"), 0;
  const size_t d = (size_t)kernel->d_model, dk = (size_t)(kernel->h * kernel->dk);
  const size_t dv = (size_t)(kernel->h * kernel->dv), batch = (size_t)kernel->batch;
  const size_t rows = batch * (size_t)kernel->seq, keys = batch * (size_t)kernel->seq_kv;
  const size_t probs = rows * (size_t)(kernel->h * kernel->seq_kv);
  const mhagen_weights weights = {.wq = numbers(d * dk), .wk = numbers(d * dk),
                                  .wv = numbers(d * dv), .wo = numbers(dv * d)};
  void *packed = aligned_alloc(MHAGEN_ALIGN, (kernel->packed_bytes + 63) / 64 * 64);
  int *lengths = malloc(batch * sizeof *lengths);
  for (size_t b = 0; b < batch; b++) lengths[b] = rand() % (kernel->seq_kv + 1);
  mhagen_args args = {.q = numbers(rows * d), .k = numbers(keys * d), .v = numbers(keys * d),
                      .packed = packed, .kv_len = lengths, .probs = malloc(probs * sizeof(float))};
  args.workspace = aligned_alloc(MHAGEN_ALIGN, (kernel->workspace_bytes + 63) / 64 * 64);
  float *expected = malloc(rows * d * sizeof *expected), *y = malloc(rows * d * sizeof *y);

  args.y = expected;
  if (kernel->pack(&weights, packed) != MHAGEN_OK || kernel->run(&args) != MHAGEN_OK) return 1;
  args.y = y;
  for (int i = 0; i < 50; i++) {
    memset(y, 0xFF, rows * d * sizeof *y);
    memset(args.workspace, 0xFF, kernel->workspace_bytes);
    if (mhagen_check_args(kernel, &args) != MHAGEN_OK) return 2;
    if (i % 2 && kernel->coarse_count > 0) run_phases(kernel->coarse, kernel->coarse_count, &args);
    else run_phases(kernel->phases, kernel->phase_count, &args);
    if (memcmp(y, expected, rows * d * sizeof *y) != 0) return printf("run %d differs\n", i), 3;
  }
  return puts("same bits"), 0;
}
