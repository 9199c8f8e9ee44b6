// The attention of a decoder in C, from a GGUF file or a folder of transformers. To build and run it:
//
//   mhagen model MODEL isa=native cache=append seq=1,64 seq_kv=512 q_len=true --embed -o out
//   cc -O2 -Iout main.c out/*.c out/*.S -lm -pthread -o decoder && ./decoder
//
// Each layer takes a prompt at once, then a row a step; its cache keeps keys and values. Embeddings, norms and
// feed-forward layers are yours: in their place stand numbers in -1..1.
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PROMPT = 40, ROWS = 48 };

static void *room(size_t bytes) {
  void *const at = aligned_alloc(MHAGEN_ALIGN, (bytes / MHAGEN_ALIGN + 1) * MHAGEN_ALIGN);
  if (!at) exit(EXIT_FAILURE);
  return at;
}

// Rows past .. past + rows - 1 of a layer, which join those in its cache.
static void run(const model_layer *layer, void *cache, int past, int rows, const float *x, float *y) {
  const model_kernel_row *const row = model_row(layer->kernel);
  const mhagen_kernel *const kernel = row->kernel;
  void *const workspace = room(kernel->workspace_bytes); // a product keeps one
  const mhagen_args args = {
    .q = x + past * kernel->d_model, .y = y + past * kernel->y_width, .past = &past, .q_len = &rows,
    .packed = mhagen_packed_layer(row->packed, (size_t)layer->index), .workspace = workspace, .cache = cache,
#ifdef MODEL_TABLES // cosines and sines that layers share
    .tables = row->tables ? mhagen_packed_layer(row->tables, (size_t)layer->tables) : NULL,
#endif
  };
  if (kernel->run(&args) != MHAGEN_OK) {
    fprintf(stderr, "%s: %s\n", layer->name, mhagen_args_error(kernel, &args));
    exit(EXIT_FAILURE);
  }
  free(workspace);
}

int main(void) {
  double prompt = 0, step = 0, most = 0; // times, and the largest difference of the largest number
  for (int i = 0; i < MODEL_LAYERS; i++) {
    const mhagen_kernel *const kernel = model_row(model_layers[i].kernel)->kernel;
    const size_t width = (size_t)kernel->d_model, rows = (size_t)(ROWS + kernel->seq); // a run may read seq rows of x
    float *const x = room(rows * width * sizeof *x), *const y = room(rows * width * sizeof *y),
                *const whole = room(rows * width * sizeof *whole);
    void *const caches[] = {room(kernel->cache_bytes), room(kernel->cache_bytes)};
    for (size_t j = 0; j < rows * width; j++) x[j] = (float)(j * 7919 % 2003) / 1001.5f - 1;

    clock_t at = clock();
    run(&model_layers[i], caches[0], 0, PROMPT, x, y);
    prompt += (double)(clock() - at), at = clock();
    for (int past = PROMPT; past < ROWS; past++) run(&model_layers[i], caches[0], past, 1, x, y);
    step += (double)(clock() - at) / (ROWS - PROMPT);
    run(&model_layers[i], caches[1], 0, ROWS, x, whole); // the same rows at once

    const float *const last = y + (ROWS - 1) * width;
    printf("%s, %s: %9.6f %9.6f %9.6f ...\n", model_layers[i].name, kernel->isa, last[0], last[1], last[2]);
    double apart = 0, size = 0;
    for (size_t j = 0; j < ROWS * width; j++) {
      apart = fmax(apart, fabs((double)y[j] - (double)whole[j])), size = fmax(size, fabs((double)whole[j]));
    }
    most = fmax(most, apart / size);
    free(x), free(y), free(whole), free(caches[0]), free(caches[1]);
  }
  printf("all layers: %.2f ms for %d rows at once, %.3f ms for a row with its past; steps differ by %.1g\n",
         prompt / CLOCKS_PER_SEC * 1e3, PROMPT, step / CLOCKS_PER_SEC * 1e3, most);
  return most > 1e-5;
}
