/* What a run does of what depends on numbers: `test SPREAD SIZE` runs the kernel on normal data, whose scores have that
 * standard deviation and whose inputs that size, and prints what tests/kernels/test_numbers.py looks at:
 *
 *   invalid, zero, overflow   whether these exceptions were raised
 *   tiny                      whether a subnormal operand was read or made (x86 alone)
 *   safe, rising, rescale     calls of the functions whose names begin so, which the test counts by COUNT
 *   finite                    whether all of y is
 */
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernel.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
enum { TINY = 1 << 1 | 1 << 4 }; /* a subnormal operand, and a result that lost digits below the normal ones */
#endif

extern long safe_calls, rising_calls, rescale_calls;

static double uniform(void) {
  static unsigned long long state = 1;
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return (double)(state >> 11) * 0x1p-53;
}

static float normal(void) { /* never below 1e-6 in size: as ordinary numbers are */
  double sum = 0;
  for (int i = 0; i < 12; i++) sum += uniform();
  sum -= 6;
  return (float)(sum < 0 ? sum - 1e-6 : sum + 1e-6);
}

static float *numbers(size_t count, double size) {
  float *x = malloc(count * sizeof *x);
  for (size_t i = 0; x && i < count; i++) x[i] = (float)(size * (double)normal());
  return x;
}

int main(int argc, char **argv) {
  const mhagen_kernel *k = &kernel_kernel;
  const double spread = atof(argv[argc - 2]), size = atof(argv[argc - 1]);
  const size_t d = (size_t)k->d_model, h = (size_t)k->h, dk = (size_t)k->dk, rows = (size_t)k->seq;
  const double part = 1 / sqrt((double)d);
  const mhagen_weights weights = {
      .wq = numbers(d * h * dk, part * (size < 1 ? 1 : spread)), .wk = numbers(d * h * dk, part),
      .wv = numbers(d * h * dk, part), .wo = numbers(d * h * dk, 1 / sqrt((double)(h * dk)))};
  void *packed = aligned_alloc(64, (k->packed_bytes / 64 + 1) * 64);
  void *workspace = aligned_alloc(64, (k->workspace_bytes / 64 + 1) * 64);
  unsigned char *mask = malloc(rows * rows);
  for (size_t i = 0; i < rows * rows; i++) mask[i] = i % 3 != 0;
  float *y = numbers(rows * d, 1);
  const int length = (int)rows - 3;
  mhagen_args args = {.q = numbers(rows * d, size), .y = y, .packed = packed, .workspace = workspace,
                      .probs = numbers(h * rows * rows, 1)};
  args.kv_len = &length, args.mask = mask;
  if (kernel_pack(&weights, packed) != MHAGEN_OK) return 2;

  feclearexcept(FE_ALL_EXCEPT);
  const mhagen_status status = kernel_run(&args);
  const int raised = fetestexcept(FE_ALL_EXCEPT);
  int tiny = 0, finite = 1;
#if defined(__x86_64__)
  tiny = (_mm_getcsr() & TINY) != 0;
#endif
  for (size_t i = 0; i < rows * d; i++) finite &= isfinite(y[i]) != 0;
  printf("invalid %d zero %d overflow %d tiny %d safe %ld rising %ld rescale %ld finite %d\n",
         (raised & FE_INVALID) != 0, (raised & FE_DIVBYZERO) != 0, (raised & FE_OVERFLOW) != 0, tiny, safe_calls,
         rising_calls, rescale_calls, finite);
  return status != MHAGEN_OK;
}
