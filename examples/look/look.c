/* Ranks images by how near they are to the first one, with a model that `mhagen model --whole` has
 * written. Reads a file with the pixels of one image after another, as float32 numbers of this
 * machine in the order of args.pixels, which the model's processor has made. A file.rgb has bytes
 * of images of the right size instead, line by line, with the channels of a pixel beside each other;
 * the header must say how they are normalized. Prints the cosine of each image's vector and the
 * first one's: the row of the class token, or without tokens the mean of all rows.
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

/* The next image of a file; returns how many of its numbers there are. */
static size_t next_image(FILE *images, int is_bytes) {
  if (!is_bytes) return fread(pixels, sizeof *pixels, PIXELS, images);
#ifdef MODEL_MEAN
  static const float mean[] = MODEL_MEAN, std[] = MODEL_STD;
  static unsigned char bytes[PIXELS];
  const size_t got = fread(bytes, 1, PIXELS, images);
  for (int i = 0; i < PIXELS; i++) {
    const int c = i % MODEL_CHANNELS, at = i / MODEL_CHANNELS;
    pixels[c * (PIXELS / MODEL_CHANNELS) + at] = (float)((bytes[i] * MODEL_SCALE - mean[c]) / std[c]);
  }
  return got;
#else
  return 0;
#endif
}

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
  const char *const end = strrchr(words[2], '.');
  const int is_bytes = end && strcmp(end, ".rgb") == 0;
#ifndef MODEL_MEAN
  if (is_bytes) return fprintf(stderr, "model.h does not say how bytes are normalized\n"), 2;
#endif
  FILE *const images = fopen(words[2], "rb");
  if (!images) return perror(words[2]), 2;
  size_t got;
  for (int number = 0; (got = next_image(images, is_bytes)) == PIXELS; number++) {
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
