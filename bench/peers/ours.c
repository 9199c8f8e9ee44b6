/* Our own kernel: the driver generates mha.c for the shape and links it. */
#include "mha.h"
#include "peer.h"

const char *const peer_forms[] = {"as generated", NULL};

const char *peer_version(void) { return mha_kernel.isa; }

void *peer_setup(const problem *p, const char *form) {
  (void)form;
  mhagen_weights weights = {
      .wq = p->wq, .wk = p->wk, .wv = p->wv, .wo = p->wo, .bq = p->bq, .bk = p->bk, .bv = p->bv, .bo = p->bo,
      .norm1 = p->norm1, .norm1_bias = p->norm1_bias, .norm2 = p->norm2, .norm2_bias = p->norm2_bias,
      .w1 = p->w1, .b1 = p->b1, .w2 = p->w2, .b2 = p->b2, .layout = MHAGEN_IN_OUT};
  mhagen_args *args = calloc(1, sizeof *args);
  void *packed = aligned_alloc(MHAGEN_ALIGN, (MHA_PACKED_BYTES + 63) / 64 * 64);
  args->q = p->x, args->y = p->y, args->packed = packed;
  args->workspace = aligned_alloc(MHAGEN_ALIGN, (MHA_WORKSPACE_BYTES + 63) / 64 * 64);
  return mha_pack(&weights, packed) == MHAGEN_OK && mha_run(args) == MHAGEN_OK ? args : NULL;
}

void peer_run(void *state) { mha_run(state); }
