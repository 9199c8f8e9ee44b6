/* Packs the weights once and runs the kernel ten times; the argument, if there is one, is the number
 * of threads. To build it:
 *
 *   build/mhagen gen h=12 d_model=384 dk=32 seq=128 kv_len=true isa=native name=minilm -o out
 *   cc -O2 -Iout examples/quickstart.c out/minilm.c out/mhagen.c -pthread -o quickstart
 */
#include <stdio.h>
#include <stdlib.h>
#include "minilm.h"

enum { D = MINILM_D_MODEL, SEQ = MINILM_SEQ };

/* Aligned, because they are static; memory from malloc has to be aligned by the caller. Two runs at
 * the same time need two workspaces. */
static _Alignas(MHAGEN_ALIGN) char packed[MINILM_PACKED_BYTES], workspace[MINILM_WORKSPACE_BYTES];

static float *numbers(size_t n, float scale) { /* stands in for your weights and inputs */
  float *x = malloc(n * sizeof *x);
  for (size_t i = 0; x && i < n; i++) x[i] = scale * ((float)(rand() % 2001) - 1000) / 1000;
  return x;
}

int main(int argc, char **argv) {
  float *w = numbers(4 * D * D, 0.1f), *x = numbers(SEQ * D, 1), *y = numbers(SEQ * D, 0);
  const mhagen_weights weights = {.wq = w, .wk = w + D * D, .wv = w + 2 * D * D, .wo = w + 3 * D * D,
                                  .layout = MHAGEN_OUT_IN}; /* as torch.nn.Linear; no biases */
  mhagen_status status = minilm_pack(&weights, packed);

  const int valid = 100; /* the rows 100..127 of x are padding */
  const mhagen_args args = {.q = x, .y = y, .packed = packed, .workspace = workspace, .kv_len = &valid};
  mhagen_pool *pool = argc > 1 ? mhagen_pool_create(atoi(argv[1])) : NULL;
  for (int i = 0; i < 10 && status == MHAGEN_OK; i++)
    status = mhagen_run_parallel(&minilm_kernel, &args, pool); /* no pool: the same as minilm_run(&args) */

  printf("%s: %s, y = %f %f %f ...\n", minilm_kernel.name, mhagen_status_text(status), y[0], y[1], y[2]);
  mhagen_pool_destroy(pool);
  free(w), free(x), free(y);
  return status;
}
