/* Ranks texts as one types, with a model that `mhagen model --whole` has written. Reads a text a line,
 * as numbers of tokens, which a tokenizer has made. The first COUNT of them are kept as vectors; it
 * then prints how many microseconds that took. Each further line is a query: it prints the
 * microseconds until it had the cosines, and the numbers and cosines of the nearest texts.
 *
 *   build/mhagen model MODEL --whole isa=x86 seq=16,128 -o out
 *   cc -O2 -I out examples/embed/rank.c out/[!.]*.c -lm -lpthread -o rank
 *   ./rank out/model.packed COUNT < ids.txt
 */
#define _POSIX_C_SOURCE 200809L
#include "model.h"

#include "../mapped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 4096, NEAREST = 5 };

static _Alignas(MHAGEN_ALIGN) unsigned char workspace[MODEL_WORKSPACE_BYTES];
static float vectors[MOST][MODEL_WIDTH];

static double microseconds(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

/* Reads a line, and makes the vector of its text, of length one; ends the program behind the last. */
static double embed(const void *packed, float *vector) {
  static char line[1 << 16];
  static int32_t ids[MODEL_ROWS];
  if (!fgets(line, sizeof line, stdin)) exit(0);
  model_args args = {.ids = ids, .packed = packed, .workspace = workspace, .mean = vector};
  char *at = line, *end;
  for (long id; id = strtol(at, &end, 10), end != at && args.length < MODEL_ROWS; at = end) {
    ids[args.length++] = (int32_t)id;
  }
  const double start = microseconds();
  const mhagen_status status = model_run(&args);
  if (status != MHAGEN_OK) fprintf(stderr, "rank: %s\n", mhagen_status_text(status)), exit(1);
  double squares = 0;
  for (int i = 0; i < MODEL_WIDTH; i++) squares += (double)vector[i] * vector[i];
  for (int i = 0; i < MODEL_WIDTH; i++) vector[i] /= (float)sqrt(squares);
  return start;
}

/* The texts in the order of their cosines: numbers of the nearest ones, and these cosines. */
static int rank(const float *query, int count, int *numbers, double *cosines) {
  int found = 0;
  for (int n = 0; n < count; n++) {
    double cosine = 0;
    for (int i = 0; i < MODEL_WIDTH; i++) cosine += (double)query[i] * vectors[n][i];
    int at = found < NEAREST ? found++ : NEAREST;
    for (; at > 0 && cosines[at - 1] < cosine; at--) {
      if (at < NEAREST) cosines[at] = cosines[at - 1], numbers[at] = numbers[at - 1];
    }
    if (at < NEAREST) cosines[at] = cosine, numbers[at] = n;
  }
  return found;
}

int main(int words, char **word) {
  const void *packed = words == 3 ? mapped(word[1], MODEL_PACKED_BYTES) : NULL;
  const int count = packed ? atoi(word[2]) : 0;
  if (count < 1 || count > MOST) return fprintf(stderr, "usage: rank MODEL.packed COUNT, to %d\n", MOST), 2;
  double took = 0;
  for (int n = 0; n < count; n++) {
    const double start = embed(packed, vectors[n]);
    took += microseconds() - start;
  }
  printf("%.1f\n", took);
  for (fflush(stdout);; fflush(stdout)) {
    static float query[MODEL_WIDTH];
    int numbers[NEAREST];
    double cosines[NEAREST];
    const double start = embed(packed, query);
    const int found = rank(query, count, numbers, cosines);
    printf("%.1f", microseconds() - start);
    for (int i = 0; i < found; i++) printf(" %d %.4f", numbers[i], cosines[i]);
    puts("");
  }
}
