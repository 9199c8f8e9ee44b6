/* fetch_test.c: counts what a kernel fetches ahead, compiled with its hints as calls of note().
 * Prints the hints that lie outside the packed weights or the cache, and the lines within that no hint names.
 * Argument: the number of rows and keys of the run, if not the most. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

#define LINE 64
#ifdef KERNEL_CACHE_BYTES
enum { CACHE = KERNEL_CACHE_BYTES, BYTES = CACHE };
#else
enum { CACHE = 0, BYTES = KERNEL_PACKED_BYTES };
#endif

void note(const void *at);

static char *fetched, *seen;
static long outside;

void note(const void *at) {
  ptrdiff_t to = (const char *)at - fetched;
  if (to < 0 || to >= BYTES) {
    ++outside;
  } else {
    seen[to / LINE] = 1;
  }
}

int main(int argc, char **argv) {
  const int rows = argc > 1 ? atoi(argv[1]) : KERNEL_SEQ, keys = argc > 1 ? rows : KERNEL_SEQ_KV;
  const size_t lines = (BYTES + LINE - 1) / LINE;
  float *x = calloc(KERNEL_SEQ_KV * KERNEL_D_MODEL, sizeof *x), *y = calloc(KERNEL_SEQ * KERNEL_Y_WIDTH, sizeof *y);
  void *workspace = aligned_alloc(MHAGEN_ALIGN, (KERNEL_WORKSPACE_BYTES + 4095) / 4096 * 4096);
  char *packed = aligned_alloc(MHAGEN_ALIGN, (KERNEL_PACKED_BYTES + 4095) / 4096 * 4096);
  char *cache = aligned_alloc(MHAGEN_ALIGN, (CACHE + 4095) / 4096 * 4096);
  fetched = CACHE ? cache : packed;
  seen = calloc(lines, 1);
  memset(packed, 0, KERNEL_PACKED_BYTES);
  memset(cache, 0, CACHE);
  memcpy(packed, &kernel_kernel.fingerprint, sizeof kernel_kernel.fingerprint);
  const mhagen_args args = {
    .q = x, .k = x, .v = x, .y = y, .packed = packed, .workspace = workspace, .kv_len = (int[]){keys},
    .q_len = (int[]){rows},
    .past = (int[]){KERNEL_SEQ_KV - KERNEL_SEQ}, .cache = cache};
  mhagen_status status = kernel_run(&args);
  if (status != MHAGEN_OK) {
    fprintf(stderr, "status %d\n", (int)status);
    return 1;
  }
  long missed = 0;
  for (size_t i = 0; i < lines; ++i) missed += !seen[i];
  printf("%ld %ld\n", outside, missed);
  return 0;
}
