/* Results of ordinary and of subnormal inputs, whatever flags the program is linked with: a line for each, with whether
 * all are zeros, and a hash of their bits. */
#include "kernel.h"

#include <stdio.h>
#include <string.h>

static _Alignas(MHAGEN_ALIGN) unsigned char packed[KERNEL_PACKED_BYTES], workspace[KERNEL_WORKSPACE_BYTES];
static float w[KERNEL_D_MODEL * KERNEL_HEADS * KERNEL_DK];
static float x[KERNEL_SEQ * KERNEL_D_MODEL], y[KERNEL_SEQ * KERNEL_D_MODEL];

int main(void) {
  const mhagen_weights weights = {.wq = w, .wk = w, .wv = w, .wo = w};
  for (size_t i = 0; i < sizeof w / sizeof *w; i++) w[i] = (float)((int)i % 7 - 3) / 8;
  if (kernel_self_test() || kernel_pack(&weights, packed)) return 1;
  for (int tiny = 0; tiny < 2; tiny++) {
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)((int)i % 11 - 5) * (tiny ? 1e-39f : 1);
    const mhagen_args args = {.q = x, .y = y, .packed = packed, .workspace = workspace};
    if (kernel_run(&args)) return 1;
    unsigned hash = 0, all = 0;
    for (size_t i = 0; i < sizeof y / sizeof *y; i++) {
      unsigned bits;
      memcpy(&bits, &y[i], sizeof bits);
      hash = hash * 31 + bits, all |= bits << 1;
    }
    printf("%s %08x\n", all ? "numbers" : "zeros", hash);
  }
  return 0;
}
