/* mhagen_onnxruntime.h: generated kernels as operators of ONNX Runtime.
 *
 * This file may be used, changed and shipped without conditions; it comes without warranty
 * (SPDX-License-Identifier: 0BSD).
 *
 * mhagen_onnxruntime.c makes a library of operators of the kernels of a model, for the option
 * register_custom_ops_library of a session. `mhagen model --onnxruntime` writes the three things
 * that are declared here, and the graph whose nodes ask for them.
 */
#ifndef MHAGEN_ONNXRUNTIME_H
#define MHAGEN_ONNXRUNTIME_H

#include "mhagen.h"

typedef struct mhagen_ort_layer {
  const char *name;            /* as the attribute `layer` of its node */
  const mhagen_kernel *kernel; /* the one that this CPU runs */
  const void *packed;          /* the weights of the layer */
  int batched;                 /* whether an axis of batch entries is before the others */
  const char *mask_axes;       /* of the mask that the node gets: letters of "bhqk"; null: the last
                                  of these, as many as it has */
} mhagen_ort_layer;

/* Of which file the model was read, as the attribute `source` of each node. */
extern const char mhagen_ort_source[];

extern const int mhagen_ort_layers;
mhagen_ort_layer mhagen_ort_layer_at(int index);

#endif
