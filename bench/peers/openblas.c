/* OpenBLAS: one sgemm for the projections of all heads, or one a head; then, by blocks of queries,
 * scores, softmax, context.
 *
 * A form is FLOW-HEADS-ROWS: scores[query][key] (keys) or [key][query] (queries); heads that are projected
 * together (0: all); queries in a block (0: all).
 */
#include <cblas.h>
#include <stdio.h>
#include "compose.h"

typedef struct state {
  problem p;
  folded w;
  int queries, group, rows;
  float *wqkv; /* a group's columns of wq, wk and wv side by side */
  float *qkv, *s, *inverse, *o;
} state;

const char *const peer_forms[] = {
    "keys-0-0",    "keys-0-64",    "keys-0-128",    "keys-1-0",    "keys-1-64",    "keys-1-128",
    "queries-0-0", "queries-0-64", "queries-0-128", "queries-1-0", "queries-1-64", "queries-1-128", NULL};

const char *peer_version(void) {
  static char text[128];
  const char *config = openblas_get_config();
  snprintf(text, sizeof text, "%.*s %s", (int)strcspn(config + 9, " "), config + 9, openblas_get_corename());
  return text;
}

void *peer_setup(const problem *p, const char *form) {
  char flow[16];
  int group, rows;
  if (sscanf(form, "%15[a-z]-%d-%d", flow, &group, &rows) != 3) return NULL;
  const int n = p->n, d = p->d_model, e = p->h * p->dk;
  state *s = calloc(1, sizeof *s);
  s->p = *p, s->w = fold(p), s->queries = !strcmp(flow, "queries");
  s->group = group ? group : p->h, s->rows = min(rows ? rows : n, n);
  const int w = s->group * p->dk;
  s->wqkv = floats((size_t)3 * d * e);
  for (int first = 0; first < e; first += w)
    side_by_side(p, &s->w, first, w, s->wqkv + (ptrdiff_t)3 * d * first);
  s->qkv = floats((size_t)n * 3 * w), s->o = floats((size_t)n * e);
  s->s = floats((size_t)up(n, 16) * (size_t)up(s->rows, 16)), s->inverse = floats((size_t)up(s->rows, 16));
  return s;
}

static void gemm(int ta, int tb, int m, int n, int k, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc) {
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, 1, a,
              lda, b, ldb, beta, c, ldc);
}

static void attend(const state *s, int head, int first) {
  const problem *p = &s->p;
  const int dk = p->dk, e = p->h * dk, w = s->group * dk, ld = 3 * w;
  const int rows = min(s->rows, p->n - first), keys = p->causal ? first + rows : p->n;
  float *at = s->qkv + head % s->group * dk, *q = at + (ptrdiff_t)first * ld;
  const float *k = at + w, *v = k + w;
  float *o = s->o + (ptrdiff_t)first * e + head * dk;
  scale_and_add(q, rows, dk, ld, NULL, s->w.bq + head * dk);
  if (s->queries) {
    const int stride = up(rows, 16);
    gemm(0, 1, keys, rows, dk, k, ld, q, ld, 0, s->s, stride);
    softmax_columns(s->s, rows, stride, keys, p->causal, first, s->inverse);
    gemm(1, 0, rows, dk, keys, s->s, stride, v, ld, 0, o, e);
  } else {
    const int stride = up(keys, 16);
    gemm(0, 1, rows, keys, dk, q, ld, k, ld, 0, s->s, stride);
    softmax_rows(s->s, rows, stride, p->causal ? first + 1 : keys, keys, p->causal, s->inverse);
    gemm(0, 0, rows, dk, keys, s->s, stride, v, ld, 0, o, e);
  }
  scale_and_add(o, rows, dk, e, s->inverse, NULL);
}

void peer_run(void *pointer) {
  const state *s = pointer;
  const problem *p = &s->p;
  const int n = p->n, d = p->d_model, w = s->group * p->dk, e = p->h * p->dk;
  for (int head = 0; head < p->h;) {
    gemm(0, 0, n, 3 * w, d, p->x, d, s->wqkv + (ptrdiff_t)3 * d * head * p->dk, 3 * w, 0, s->qkv, 3 * w);
    for (const int end = head + s->group; head < end; head++)
      for (int i = 0; i < n; i += s->rows) attend(s, head, i);
  }
  for (int i = 0; i < n; i++) memcpy(p->y + (ptrdiff_t)i * d, s->w.bo, 4 * (size_t)d);
  gemm(0, 0, n, d, e, s->o, e, p->wo, d, 1, p->y, d);
}
