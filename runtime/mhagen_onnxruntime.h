/* mhagen_onnxruntime.h: generated kernels as operators of ONNX Runtime.
 *
 * This file may be used, changed and shipped without conditions; it comes without warranty
 * (SPDX-License-Identifier: 0BSD).
 *
 * mhagen_onnxruntime.c makes a library of operators of the kernels of a model, for the option
 * register_custom_ops_library of a session. `mhagen model --onnxruntime` writes the three things
 * that are declared here, and the graph whose nodes ask for them.
 *
 * Letters of axes: b batch, of two the outer one first; s rows; h heads; d the width of a head; w
 * that of all heads; g batch and heads in one; f batch and rows in one, of y alone; 1 none. Of a
 * mask b, h, q, k, g and 1; an axis of a mask may have the size 1 for all.
 */
#ifndef MHAGEN_ONNXRUNTIME_H
#define MHAGEN_ONNXRUNTIME_H

#include "mhagen.h"

typedef struct mhagen_ort_layer {
  const char *name;            /* as the attribute `layer` of its node */
  const mhagen_kernel *kernel; /* the one that this CPU runs */
  const void *packed;          /* the weights of the layer */
  const void *tables;          /* its tables of rope, or null */
  const char *axes[4]; /* of q, k, v and the mask, a letter for each; null: not given, or for a mask
                          the last of "bhqk", as many as it has */
  const char *y_axes;
  int mask_hides; /* whether a flag says that a key is not seen */
} mhagen_ort_layer;

/* Of which file the model was read, as the attribute `source` of each node. */
extern const char mhagen_ort_source[];

extern const int mhagen_ort_layers;
mhagen_ort_layer mhagen_ort_layer_at(int index);

#endif
