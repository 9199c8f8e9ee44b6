/* Ranks images by how near they are to the first one, with a model that `mhagen model --whole` has
 * written. Reads a file with the pixels of one image after another, as float32 numbers of this
 * machine in the order of args.pixels, which the model's processor has made. Prints the cosine of
 * each image's vector and the first one's: the row of the class token, or without tokens the mean
 * of all rows.
 *
 *   build/mhagen model MODEL --whole isa=x86 -o out
 *   cc -O2 -I out examples/look/look.c out/[!.]*.c -lm -lpthread -o look
 *   ./look out/model.packed pixels.bin
 */
#include "model.h"

#include "../mapped.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PIXELS = MODEL_CHANNELS * MODEL_IMAGE_HEIGHT * MODEL_IMAGE_WIDTH };

static _Alignas(MHAGEN_ALIGN) unsigned char workspace[MODEL_WORKSPACE_BYTES];
static float pixels[PIXELS], rows[MODEL_ROWS * MODEL_WIDTH];

static double dot(const float *a, const float *b) {
  double sum = 0;
  for (int i = 0; i < MODEL_WIDTH; i++) sum += (double)a[i] * b[i];
  return sum;
}

int main(int count, char **words) {
  static float first[MODEL_WIDTH], mean[MODEL_WIDTH];
  const float *vector = MODEL_TOKENS > 0 ? rows : mean;
  const void *packed = count == 3 ? mapped(words[1], MODEL_PACKED_BYTES) : NULL;
  if (!packed) return fprintf(stderr, "usage: look MODEL.packed PIXELS, files of this model\n"), 2;
  FILE *const images = fopen(words[2], "rb");
  if (!images) return perror(words[2]), 2;
  size_t got;
  for (int number = 0; (got = fread(pixels, sizeof *pixels, PIXELS, images)) == PIXELS; number++) {
    const model_args args = {
      .pixels = pixels, .packed = packed, .workspace = workspace, .rows = rows, .mean = mean};
    const mhagen_status status = model_run(&args);
    if (status != MHAGEN_OK) return fprintf(stderr, "image %d: status %d\n", number + 1, status), 1;
    if (number == 0) memcpy(first, vector, sizeof first);
    printf("%.6f\n", dot(first, vector) / sqrt(dot(first, first) * dot(vector, vector)));
    fflush(stdout);
  }
  if (got) return fprintf(stderr, "the last image has %zu of %d numbers\n", got, PIXELS), 1;
  return 0;
}
