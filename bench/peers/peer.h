/* The functions that bench/peers/worker.c calls. A contestant is one C file that defines them. */
#ifndef PEER_H
#define PEER_H

#include <stdlib.h>
#include <string.h>

typedef struct problem { /* self-attention; weights are [in][out], all arrays dense */
  int d_model, h, dk, n, causal;
  const float *x, *wq, *wk, *wv, *wo, *bq, *bk, *bv, *bo;
  int ffn; /* its width in a whole layer, or 0: then what follows is null */
  const float *norm1, *norm1_bias, *norm2, *norm2_bias, *w1, *b1, *w2, *b2;
  float *y;
} problem;

extern const char *const peer_forms[]; /* ways to do it, of which the fastest counts; ends with NULL */
const char *peer_version(void);
void *peer_setup(const problem *p, const char *form); /* all that is not timed; NULL: cannot */
void peer_run(void *state);                           /* x -> y, timed */

static inline float *floats(size_t count) { /* zeros, aligned to a cache line */
  size_t bytes = (count * sizeof(float) + 63) / 64 * 64;
  float *p = aligned_alloc(64, bytes);
  if (!p) abort();
  return memset(p, 0, bytes);
}

#endif
