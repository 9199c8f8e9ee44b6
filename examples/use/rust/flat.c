/* Functions of plain pointers around a kernel, for languages that cannot read C's headers: no
 * layout of a struct has to be repeated there, and the C compiler checks this file. */
#include "layer.h"

const size_t layer_sizes[] = {LAYER_PACKED_BYTES, LAYER_WORKSPACE_BYTES, LAYER_D_MODEL, LAYER_SEQ};

int layer_flat_pack(const float *wq, const float *wk, const float *wv, const float *wo, void *packed) {
  return layer_pack(&(mhagen_weights){.wq = wq, .wk = wk, .wv = wv, .wo = wo}, packed);
}

int layer_flat_run(const float *x, float *y, const void *packed, void *workspace) {
  return layer_run(&(mhagen_args){.q = x, .y = y, .packed = packed, .workspace = workspace});
}

const char *layer_flat_text(int status) { return mhagen_status_text((mhagen_status)status); }
