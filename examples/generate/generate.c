/* Continues a text, with a decoder that `mhagen model --whole` has written. Reads the text as numbers
 * of tokens, which a tokenizer has made; prints the number of each token that follows, the likeliest,
 * as it is made. It stops behind COUNT tokens, behind the token END, or where the cache is full.
 *
 *   build/mhagen model MODEL --whole isa=x86 seq=1,64 seq_kv=2048 -o out
 *   cc -O2 -I out examples/generate/generate.c out/[!.]*.c -lpthread -o generate
 *   ./generate out/model.packed COUNT END < ids.txt
 */
#define _POSIX_C_SOURCE 200809L
#include "model.h"

#include "../mapped.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static _Alignas(MHAGEN_ALIGN) unsigned char workspace[MODEL_WORKSPACE_BYTES], cache[MODEL_CACHE_BYTES];
static float logits[MODEL_VOCABULARY];

static double seconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int32_t likeliest(void) {
  int32_t best = 0;
  for (int32_t id = 1; id < MODEL_VOCABULARY; id++) {
    if (logits[id] > logits[best]) best = id;
  }
  return best;
}

int main(int words, char **word) {
  static int32_t ids[MODEL_PLACES];
  const void *packed = words == 4 ? mapped(word[1], MODEL_PACKED_BYTES) : NULL;
  if (!packed) return fprintf(stderr, "usage: generate MODEL.packed COUNT END < IDS\n"), 2;
  const long count = strtol(word[2], NULL, 10), end = strtol(word[3], NULL, 10);
  model_args args = {.ids = ids, .packed = packed, .cache = cache, .workspace = workspace,
                     .logits = logits};
  while (args.length < MODEL_PLACES && scanf("%d", &ids[args.length]) == 1) args.length++;
  const int length = args.length;
  double start = seconds();
  long made = 0;
  do {
    const mhagen_status status = model_run(&args);
    if (status == MHAGEN_ERR_LENGTH) {
      return fprintf(stderr, "the text is not 1 to %d ids of the model\n", MODEL_PLACES), 1;
    }
    if (status != MHAGEN_OK) return fprintf(stderr, "%s\n", mhagen_status_text(status)), 1;
    if (made == 0) {
      fprintf(stderr, "%d tokens read in %.1f ms\n", length, 1e3 * (seconds() - start));
      start = seconds();
    }
    args.past += args.length, args.length = 1, ids[0] = likeliest();
    printf("%d\n", ids[0]);
    fflush(stdout);
  } while (++made < count && ids[0] != end && args.past < MODEL_PLACES);
  if (made > 1) fprintf(stderr, "%.1f tokens a second\n", (double)(made - 1) / (seconds() - start));
  return 0;
}
