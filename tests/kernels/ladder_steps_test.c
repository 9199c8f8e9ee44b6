/* A ladder with a cache, kernel, for one row and for four: each `past` has the status that its rows ask for. */
#include "kernel.h"

#include <stdio.h>

enum { NUMBERS = 4 * KERNEL_D_MODEL * KERNEL_D_MODEL };
static float numbers[NUMBERS], y[KERNEL_SEQ * KERNEL_D_MODEL];
static _Alignas(MHAGEN_ALIGN) char packed[KERNEL_PACKED_BYTES], workspace[KERNEL_WORKSPACE_BYTES],
    cache[KERNEL_CACHE_BYTES];

int main(void) {
  const mhagen_weights weights = {.wq = numbers, .wk = numbers, .wv = numbers, .wo = numbers};
  int wrong = kernel_pack(&weights, packed) != MHAGEN_OK;
  for (int i = 0; i < kernel_kernel.need_count; i++) {
    const mhagen_need *need = &kernel_kernel.needs[i];
    if (need->at == offsetof(mhagen_args, past)) wrong += need->most != KERNEL_SEQ_KV - 1;
  }
  for (int rows = 0; rows <= KERNEL_SEQ; rows++) {
    for (int past = -1; past <= KERNEL_SEQ_KV; past++) {
      const int room = KERNEL_SEQ_KV - (rows > 1 ? KERNEL_SEQ : 1), good = past >= 0 && past <= room;
      const mhagen_args args = {.q = numbers, .y = y, .packed = packed, .workspace = workspace, .q_len = &rows,
                                .past = &past, .cache = cache};
      const mhagen_status got = kernel_run(&args), expected = good ? MHAGEN_OK : MHAGEN_ERR_LENGTH;
      if (got != expected) printf("%d rows behind %d: %s\n", rows, past, mhagen_status_text(got));
      wrong += got != expected;
    }
  }
  return wrong > 0;
}
