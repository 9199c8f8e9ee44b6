/* LIBXSMM: batch-reduce GEMMs, JIT-compiled ahead, on weights packed ahead in blocks, head by head.
 *
 * A GEMM here is C[n][m] = B[n][k] A[k][m], m in vectors. A form is FLOW-MB-NB-KB: blocks of MB by NB, which
 * one call sums over K in blocks of KB (0: K whole). The flow is what attention has in vectors:
 *   queries   scores[key][query], MB queries at a time
 *   keys      scores[query][key], NB queries at a time
 */
#include <libxsmm.h>
#include <stdio.h>
#include "compose.h"

typedef libxsmm_smmfunction_reducebatch_strd kernel;

typedef struct gemm {
  int m, n, k, mb, nb, kb;      /* extents and blocks */
  int lda, ldb, ldc, b_transposed;
  ptrdiff_t a_m, c_m, a_k, b_k; /* from one block to the next, along m and k */
  kernel kernels[2][2][2][2];   /* [m's last, short block?][n's?][k's?][add to C?] */
} gemm;

typedef struct state {
  problem p;
  folded w;
  int queries, mb, nb, group;        /* the flow; blocks; heads that are projected together */
  gemm project, scores, context, out;
  float *wqkv, *wo;                  /* packed; a group's columns of wq, wk and wv side by side */
  float *qkv, *t;                    /* of a group: [n][3][width], and the one in vectors transposed */
  float *s, *ot, *inverse, *o;       /* of a block of queries; o[n][h*dk] */
} state;

static int prepare(gemm *g) {
  g->mb = min(g->mb, g->m), g->nb = min(g->nb, g->n), g->kb = min(g->kb, g->k);
  const int tail[3] = {g->m % g->mb, g->n % g->nb, g->k % g->kb};
  const int flags = g->b_transposed ? LIBXSMM_GEMM_FLAG_TRANS_B : LIBXSMM_GEMM_FLAG_NONE;
  const int prefetch = LIBXSMM_GEMM_PREFETCH_NONE;
  const float one = 1;
  for (int i = 0; i < 16; i++) {
    const int m = i & 1 ? tail[0] : g->mb, n = i & 2 ? tail[1] : g->nb, k = i & 4 ? tail[2] : g->kb;
    const float beta = i & 8 ? 1 : 0;
    kernel *f = &g->kernels[i & 1][i >> 1 & 1][i >> 2 & 1][i >> 3];
    if (m && n && k &&
        !(*f = libxsmm_smmdispatch_reducebatch_strd(m, n, k, (int)(4 * g->a_k), (int)(4 * g->b_k), &g->lda,
                                                    &g->ldb, &g->ldc, &one, &beta, &flags, &prefetch)))
      return 0;
  }
  return 1;
}

/* The first m, n, k of the extents: whole blocks, or up to their ends. */
static inline void run(const gemm *g, int m, int n, int k, int add, const float *a, const float *b,
                       float *c) {
  const unsigned long long batch = (unsigned)(k / g->kb), once = 1;
  const int rest = k % g->kb != 0;
  for (int i = 0; i < m; i += g->mb, a += g->a_m, c += g->c_m)
    for (int j = 0; j < n; j += g->nb) {
      const kernel(*f)[2] = g->kernels[m - i < g->mb][n - j < g->nb];
      const float *bj = b + (ptrdiff_t)j * (g->b_transposed ? 1 : g->ldb);
      float *cj = c + (ptrdiff_t)j * g->ldc;
      if (batch) f[0][add](a, bj, cj, &batch);
      if (rest)
        f[1][add || batch](a + (ptrdiff_t)batch * g->a_k, bj + (ptrdiff_t)batch * g->b_k, cj, &once);
    }
}

#define BLOCKS(flow, blocks) flow "-16-" blocks, flow "-32-" blocks, flow "-48-" blocks, flow "-64-" blocks
#define FLOW(flow) BLOCKS(flow, "24-0"), BLOCKS(flow, "64-0"), BLOCKS(flow, "64-64")
const char *const peer_forms[] = {FLOW("queries"), FLOW("keys"), NULL};

const char *peer_version(void) { return LIBXSMM_VERSION; }

/* to[blocks of columns][rows][block] = from[rows][columns] */
static void pack(const float *from, int rows, int columns, int block, float *to) {
  for (int j = 0; j < columns; j += block)
    for (int i = 0; i < rows; i++, to += block)
      memcpy(to, from + (ptrdiff_t)i * columns + j, 4 * (size_t)min(block, columns - j));
}

void *peer_setup(const problem *p, const char *form) {
  char flow[16];
  int mb, nb, kb;
  if (sscanf(form, "%15[a-z]-%d-%d-%d", flow, &mb, &nb, &kb) != 4) return NULL;
  const int n = p->n, d = p->d_model, dk = p->dk, e = p->h * dk, queries = !strcmp(flow, "queries");
  if (p->causal && !queries && max(mb, 64) % min(mb, 64)) return NULL; /* blocks must end where others do */
  state *s = calloc(1, sizeof *s);
  s->p = *p, s->w = fold(p), s->queries = queries, s->mb = mb, s->nb = nb;
  s->group = dk % 16 ? p->h : 1; /* narrow heads would leave lanes idle */
  const int w = s->group * dk, ld = 3 * w, all = up(n, mb), pb = min(mb, ld), ob = min(mb, d);
  const int dkb = kb ? kb : d, ekb = kb ? kb : e;
  const int nkb = p->causal ? (queries ? mb : max(mb, 64)) : kb ? kb : n;

  s->project = (gemm){.m = ld, .n = n, .k = d, .mb = pb, .nb = nb, .kb = dkb, .lda = pb, .ldb = d, .ldc = ld,
                      .a_m = (ptrdiff_t)d * pb, .c_m = pb, .a_k = (ptrdiff_t)dkb * pb, .b_k = dkb};
  s->out = (gemm){.m = d, .n = n, .k = e, .mb = ob, .nb = nb, .kb = ekb, .lda = ob, .ldb = e, .ldc = d,
                  .a_m = (ptrdiff_t)e * ob, .c_m = ob, .a_k = (ptrdiff_t)ekb * ob, .b_k = ekb};
  if (queries) {
    s->scores = (gemm){.m = n, .n = n, .k = dk, .mb = mb, .nb = p->causal ? mb : nb, .kb = dk,
                       .lda = mb, .ldb = ld, .ldc = mb};
    s->context = (gemm){.m = n, .n = dk, .k = n, .mb = mb, .nb = nb, .kb = nkb,
                        .lda = mb, .ldb = ld, .ldc = mb, .b_transposed = 1,
                        .a_k = (ptrdiff_t)nkb * mb, .b_k = (ptrdiff_t)nkb * ld};
  } else {
    s->scores = (gemm){.m = n, .n = n, .k = dk, .mb = mb, .nb = nb, .kb = dk,
                       .lda = mb, .ldb = ld, .ldc = all, .a_m = (ptrdiff_t)w * mb, .c_m = mb};
    s->context = (gemm){.m = dk, .n = n, .k = n, .mb = mb, .nb = nb, .kb = nkb,
                        .lda = ld, .ldb = all, .ldc = e, .a_m = mb, .c_m = mb, .a_k = (ptrdiff_t)nkb * ld, .b_k = nkb};
  }
  if (!(prepare(&s->project) && prepare(&s->scores) && prepare(&s->context) && prepare(&s->out))) return NULL;

  float *side = floats((size_t)d * ld), *to = s->wqkv = floats((size_t)(e / w) * up(ld, pb) * d);
  for (int first = 0; first < e; first += w, to += (ptrdiff_t)up(ld, pb) * d) {
    side_by_side(p, &s->w, first, w, side);
    pack(side, d, ld, pb, to);
  }
  free(side);
  s->wo = floats((size_t)up(d, ob) * e);
  pack(p->wo, e, d, ob, s->wo);
  s->qkv = floats((size_t)n * ld), s->t = floats((size_t)all * w), s->o = floats((size_t)n * e);
  s->s = floats((size_t)all * max(mb, nb)), s->ot = floats((size_t)dk * mb), s->inverse = floats(max(mb, nb));
  return s;
}

static void attend_queries(const state *s, int head, int first) {
  const problem *p = &s->p;
  const int n = p->n, dk = p->dk, e = p->h * dk, w = s->group * dk, mb = s->mb;
  const int rows = min(mb, n - first), keys = p->causal ? min(n, first + mb) : n;
  const ptrdiff_t at = (ptrdiff_t)(head % s->group) * dk;
  run(&s->scores, rows, keys, dk, 0, s->t + (ptrdiff_t)first * w + at * mb, s->qkv + w + at, s->s);
  softmax_columns(s->s, rows, mb, keys, p->causal, first, s->inverse);
  run(&s->context, rows, dk, keys, 0, s->s, s->qkv + 2 * w + at, s->ot);
  transpose(s->ot, mb, dk, rows, s->o + (ptrdiff_t)first * e + head * dk, e, s->inverse, NULL);
}

static void attend_keys(const state *s, int head, int first) {
  const problem *p = &s->p;
  const int n = p->n, dk = p->dk, e = p->h * dk, w = s->group * dk;
  const int rows = min(s->nb, n - first);
  const int keys = p->causal ? min(n, up(first + rows, max(s->mb, 64))) : n;
  const ptrdiff_t at = (ptrdiff_t)(head % s->group) * dk;
  float *q = s->qkv + (ptrdiff_t)first * 3 * w + at, *o = s->o + (ptrdiff_t)first * e + head * dk;
  scale_and_add(q, rows, dk, 3 * w, NULL, s->w.bq + head * dk);
  run(&s->scores, keys, rows, dk, 0, s->t + at * s->mb, q, s->s);
  softmax_rows(s->s, rows, up(n, s->mb), p->causal ? first + 1 : n, keys, p->causal, s->inverse);
  run(&s->context, dk, rows, keys, 0, s->qkv + 2 * w + at, s->s, o);
  scale_and_add(o, rows, dk, e, s->inverse, NULL);
}

void peer_run(void *pointer) {
  const state *s = pointer;
  const problem *p = &s->p;
  const int n = p->n, d = p->d_model, w = s->group * p->dk, mb = s->mb, e = p->h * p->dk;
  const float *weights = s->wqkv;
  for (int head = 0; head < p->h; weights += (ptrdiff_t)up(3 * w, s->project.mb) * d) {
    run(&s->project, 3 * w, n, d, 0, weights, p->x, s->qkv);
    for (int i = 0; i < n; i += mb)
      transpose(s->qkv + (s->queries ? 0 : w) + (ptrdiff_t)i * 3 * w, 3 * w, min(mb, n - i), w,
                s->t + (ptrdiff_t)i * w, mb, NULL, s->queries ? s->w.bq + head * p->dk : NULL);
    for (const int end = head + s->group; head < end; head++)
      for (int i = 0; i < n; i += s->queries ? mb : s->nb)
        (s->queries ? attend_queries : attend_keys)(s, head, i);
  }
  for (int i = 0; i < n; i++) memcpy(p->y + (ptrdiff_t)i * d, s->w.bo, 4 * (size_t)d);
  run(&s->out, d, n, e, 1, s->wo, s->o, p->y);
}
