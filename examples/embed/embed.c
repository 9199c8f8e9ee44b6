/* Ranks texts by how near they are to the first one, with a model that `mhagen model --whole` has
 * written. Reads a text a line, as numbers of tokens, which a tokenizer has made; prints the cosine
 * of each line's vector and the first one's.
 *
 *   build/mhagen model MODEL --whole isa=x86 seq=128 -o out
 *   cc -O2 -I out examples/embed/embed.c out/[!.]*.c -lm -lpthread -o embed
 *   ./embed out/model.packed < ids.txt
 */
#include "model.h"

#include "../mapped.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(MHAGEN_ALIGN) unsigned char workspace[MODEL_WORKSPACE_BYTES];

/* The numbers of a line; returns how many, or -1 if it has anything else, or too many. */
static int read_ids(const char *line, int32_t *ids) {
  int count = 0;
  for (;; count++) {
    char *end;
    const long id = strtol(line, &end, 10);
    if (end == line) break;
    if (count == MODEL_ROWS || id < 0 || id >= MODEL_VOCABULARY) return -1;
    ids[count] = (int32_t)id, line = end;
  }
  return line[strspn(line, " \t\r")] == '\n' ? count : -1;
}

static double dot(const float *a, const float *b) {
  double sum = 0;
  for (int i = 0; i < MODEL_WIDTH; i++) sum += (double)a[i] * b[i];
  return sum;
}

int main(int count, char **words) {
  static char line[1 << 16];
  static int32_t ids[MODEL_ROWS];
  static float first[MODEL_WIDTH], mean[MODEL_WIDTH];
  const void *packed = count == 2 ? mapped(words[1], MODEL_PACKED_BYTES) : NULL;
  if (!packed) return fprintf(stderr, "usage: embed MODEL.packed, a file of this model\n"), 2;
  for (int number = 0; fgets(line, sizeof line, stdin); number++) {
    const model_args args = {.ids = ids, .length = read_ids(line, ids), .packed = packed,
                             .workspace = workspace, .mean = mean};
    const mhagen_status status = model_run(&args);
    if (status == MHAGEN_ERR_LENGTH) {
      fprintf(stderr, "line %d: is not 1 to %d ids of the model\n", number + 1, MODEL_ROWS);
      return 1;
    }
    if (status != MHAGEN_OK) return fprintf(stderr, "line %d: status %d\n", number + 1, status), 1;
    if (number == 0) memcpy(first, mean, sizeof first);
    printf("%.6f\n", dot(first, mean) / sqrt(dot(first, first) * dot(mean, mean)));
    fflush(stdout);
  }
  return 0;
}
