/* Plain C by somebody who knows what compilers vectorize: the innermost loops run along rows, and only the
 * softmax has reductions. It is built with -O3 -march=native, and again with -ffast-math, with which exp is
 * vectorized. */
#include <math.h>
#include "peer.h"

typedef struct state {
  problem p;
  float *q, *k, *v, *kt, *s, *o; /* of all heads; k transposed; one row of scores */
} state;

const char *const peer_forms[] = {"rows", NULL};

#ifdef __FAST_MATH__
const char *peer_version(void) { return "gcc " __VERSION__ " -O3 -ffast-math"; }
#else
const char *peer_version(void) { return "gcc " __VERSION__ " -O3"; }
#endif

void *peer_setup(const problem *p, const char *form) {
  (void)form;
  const size_t n = (size_t)p->n, e = (size_t)p->h * (size_t)p->dk;
  state *s = malloc(sizeof *s);
  *s = (state){*p, floats(n * e), floats(n * e), floats(n * e), floats(n * e), floats(n), floats(n * e)};
  return s;
}

/* c[n] += a[k] b[k][stride], four rows of b at a time: fewer passes over c */
static void add(int n, int k, const float *restrict a, const float *restrict b, int stride,
                float *restrict c) {
  for (; k >= 4; k -= 4, a += 4, b += 4 * (size_t)stride) {
    const float *restrict b1 = b + stride, *restrict b2 = b1 + stride, *restrict b3 = b2 + stride;
    for (int j = 0; j < n; j++) c[j] += a[0] * b[j] + a[1] * b1[j] + a[2] * b2[j] + a[3] * b3[j];
  }
  for (; k > 0; k--, a++, b += stride)
    for (int j = 0; j < n; j++) c[j] += a[0] * b[j];
}

/* c[m][n] = a[m][k] b[k][n] + bias[n] */
static void linear(int m, int n, int k, const float *a, const float *b, const float *bias, float *c) {
  for (; m > 0; m--, a += k, c += n) {
    memcpy(c, bias, (size_t)n * sizeof *c);
    add(n, k, a, b, n, c);
  }
}

void peer_run(void *pointer) {
  const state *st = pointer;
  const problem *p = &st->p;
  const int n = p->n, d = p->d_model, dk = p->dk, e = p->h * dk;
  float *restrict s = st->s;
  const float scale = 1 / sqrtf((float)dk);
  linear(n, e, d, p->x, p->wq, p->bq, st->q);
  linear(n, e, d, p->x, p->wk, p->bk, st->k);
  linear(n, e, d, p->x, p->wv, p->bv, st->v);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < e; j++) st->kt[(size_t)j * n + i] = scale * st->k[(size_t)i * e + j];
  for (int head = 0; head < p->h; head++)
    for (int i = 0; i < n; i++) {
      const int keys = p->causal ? i + 1 : n;
      float *restrict o = st->o + (size_t)i * e + head * dk;
      float max = -INFINITY, sum = 0;
      memset(s, 0, (size_t)keys * sizeof *s);
      add(keys, dk, st->q + (size_t)i * e + head * dk, st->kt + (size_t)head * dk * n, n, s);
      for (int j = 0; j < keys; j++) max = s[j] > max ? s[j] : max;
      for (int j = 0; j < keys; j++) sum += s[j] = expf(s[j] - max);
      memset(o, 0, (size_t)dk * sizeof *o);
      add(dk, keys, s, st->v + head * dk, e, o);
      for (int c = 0; c < dk; c++) o[c] *= 1 / sum;
    }
  linear(n, d, e, st->o, p->wo, p->bo, p->y);
}
