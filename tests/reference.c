/* reference.c: the reference of reference.h, with which every kernel is compared. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* y[rows][out] = x[rows][in] W + b; x is float (the inputs) or double (the contexts). */
static void project(const float *xf, const double *xd, size_t rows, size_t in, const float *w,
                    const float *b, size_t out, mhagen_layout layout, double *y) {
  size_t step_i = layout == MHAGEN_OUT_IN ? 1 : out, step_o = layout == MHAGEN_OUT_IN ? in : 1;
  for (size_t r = 0; r < rows; r++) {
    for (size_t o = 0; o < out; o++) y[r * out + o] = b ? (double)b[o] : 0;
    for (size_t i = 0; i < in; i++) {
      double x = xf ? (double)xf[r * in + i] : xd[r * in + i];
      for (size_t o = 0; o < out; o++) y[r * out + o] += x * (double)w[i * step_i + o * step_o];
    }
  }
}

static double dot(const double *a, const double *b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += a[i] * b[i];
  return sum;
}

/* Rows of gen/score that only a test has: it defines these, of shape, place, key and x, the entry's queries. */
#ifndef MHAGEN_SCORE
#define MHAGEN_FIRST_KEY 0
#define MHAGEN_SCORE(s) (s)
#define MHAGEN_SCORE_SIZE(s) (s) /* the same with magnitudes, and what errors of s are multiplied with */
#endif

static double changed(const mhagen_kernel *shape, const float *x, size_t key, double s) {
  (void)shape, (void)x, (void)key;
  return MHAGEN_SCORE(s);
}

static double changed_size(const mhagen_kernel *shape, const float *x, size_t key, double s) {
  (void)shape, (void)x, (void)key;
  return MHAGEN_SCORE_SIZE(s);
}

static ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }
static ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

void mhagen_keys_seen(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row,
                      size_t *first, size_t *end) {
  const unsigned options = shape->options;
  const ptrdiff_t place = (ptrdiff_t)row + (options & MHAGEN_BOTTOM_RIGHT ? shape->seq_kv - shape->seq : 0);
  ptrdiff_t from = MHAGEN_FIRST_KEY, to = shape->seq_kv;
  if (options & MHAGEN_KV_LEN) to = args->kv_len[entry];
  if (options & MHAGEN_CAUSAL) to = smaller(to, place + 1);
  if (options & MHAGEN_WINDOW_LEFT) from = larger(from, place - shape->window_left);
  if (options & MHAGEN_WINDOW_RIGHT) to = smaller(to, place + shape->window_right + 1);
  to = larger(to, 0), from = smaller(from, to);
  *first = (size_t)from, *end = (size_t)to;
}

/* p[0..keys) = softmax of p */
static void softmax(double *p, size_t keys) {
  double max = -INFINITY, sum = 0;
  for (size_t j = 0; j < keys; j++) {
    if (p[j] > max) max = p[j];
  }
  for (size_t j = 0; j < keys; j++) sum += p[j] = exp(p[j] - max);
  for (size_t j = 0; j < keys; j++) p[j] /= sum;
}

/* The numbers that the formulas are of, or their magnitudes, and what comes out on the way. */
typedef struct numbers {
  mhagen_weights weights;
  const float *qx, *kx, *vx;       /* the inputs */
  double *q, *k, *v, *context, *y; /* of one batch entry */
} numbers;

typedef struct extents {
  size_t h, h_kv, d, n, m, dk, dv, k_width, v_width, y_width;
  size_t first, end; /* the keys that a row sees */
} extents;

static size_t room_of(const extents *e) {
  return (e->h * e->n + e->h_kv * e->m) * (e->dk + e->dv);
}

/* Where the intermediate results lie. */
static void divide(numbers *x, const extents *e, double *room) {
  x->q = room;
  x->k = x->q + e->n * e->h * e->dk;
  x->v = x->k + e->m * e->h_kv * e->dk;
  x->context = x->v + e->m * e->h_kv * e->dv;
}

static void project_inputs(const numbers *x, const extents *e, size_t entry) {
  const mhagen_weights *w = &x->weights;
  const size_t of_q = entry * e->n * e->d, of_keys = entry * e->m;
  project(x->qx + of_q, NULL, e->n, e->d, w->wq, w->bq, e->h * e->dk, w->layout, x->q);
  project(x->kx + of_keys * e->k_width, NULL, e->m, e->k_width, w->wk, w->bk, e->h_kv * e->dk, w->layout, x->k);
  project(x->vx + of_keys * e->v_width, NULL, e->m, e->v_width, w->wv, w->bv, e->h_kv * e->dv, w->layout, x->v);
}

static void add_context(const numbers *x, const extents *e, size_t row, size_t head,
                        const double *p) {
  double *sum = x->context + (row * e->h + head) * e->dv;
  const size_t shared = head / (e->h / e->h_kv);
  memset(sum, 0, e->dv * sizeof *sum);
  for (size_t j = e->first; j < e->end; j++) {
    for (size_t c = 0; c < e->dv; c++) sum[c] += p[j] * x->v[(j * e->h_kv + shared) * e->dv + c];
  }
}

static void project_output(const numbers *x, const extents *e, size_t entry) {
  project(NULL, x->context, e->n, e->h * e->dv, x->weights.wo, x->weights.bo, e->y_width,
          x->weights.layout, x->y + entry * e->n * e->y_width);
}

/* |from|, or the largest of |from| everywhere. */
static const float *magnitudes(const float *from, size_t count, int largest, float **room) {
  float *to = *room, most = 0;
  if (!from) return NULL;
  for (size_t i = 0; i < count; i++) most = fmaxf(most, to[i] = fabsf(from[i]));
  for (size_t i = 0; largest && i < count; i++) to[i] = most;
  *room += count;
  return to;
}

/* Null when memory is short. */
static float *make_magnitudes(numbers *to, const numbers *from, const extents *e, size_t batch,
                              int largest) {
  const size_t qx = batch * e->n * e->d, kx = batch * e->m * e->k_width,
               vx = batch * e->m * e->v_width, hq = e->h * e->dk,
               hk = e->h_kv * e->dk, hv = e->h_kv * e->dv, ho = e->h * e->dv;
  const mhagen_weights *w = &from->weights;
  const size_t of_weights = (e->d + 1) * hq + (e->k_width + 1) * hk + (e->v_width + 1) * hv +
                            (ho + 1) * e->y_width;
  float *room = malloc((qx + kx + vx + of_weights) * sizeof *room), *at = room;
  if (!room) return NULL;
  to->qx = magnitudes(from->qx, qx, largest, &at);
  to->kx = magnitudes(from->kx, kx, largest, &at);
  to->vx = magnitudes(from->vx, vx, largest, &at);
  to->weights = (mhagen_weights){
      .wq = magnitudes(w->wq, e->d * hq, largest, &at), .bq = magnitudes(w->bq, hq, 0, &at),
      .wk = magnitudes(w->wk, e->k_width * hk, largest, &at), .bk = magnitudes(w->bk, hk, 0, &at),
      .wv = magnitudes(w->wv, e->v_width * hv, largest, &at), .bv = magnitudes(w->bv, hv, 0, &at),
      .wo = magnitudes(w->wo, ho * e->y_width, 0, &at),       .bo = magnitudes(w->bo, e->y_width, 0, &at),
      .layout = w->layout};
  return room;
}

double mhagen_promised_error(const mhagen_kernel *shape, double max_score) {
  return shape->error * fmax(1, max_score / 16);
}

/* The roundings on the way from an input to y, one for each step of a sum and some more, each of at
 * most a unit of the sizes; those of a score reach its weight times the score's size. */
static double row_error(const mhagen_kernel *shape, double score_size) {
  int widest = shape->d_model;
  if (shape->k_width > widest) widest = shape->k_width;
  if (shape->v_width > widest) widest = shape->v_width;
  const int steps = widest + shape->dk + shape->seq_kv + shape->h * shape->dv;
  return (16 + steps) * shape->unit * (1 + score_size);
}

int mhagen_reference_and_bounds(const mhagen_kernel *shape, const mhagen_weights *weights,
                                const mhagen_args *args, double *y, double *probs,
                                double *max_score, double *y_bounds, double *probs_bounds) {
  extents e = {(size_t)shape->h,      (size_t)shape->h_kv, (size_t)shape->d_model, (size_t)shape->seq,
               (size_t)shape->seq_kv, (size_t)shape->dk,   (size_t)shape->dv,
               (size_t)shape->k_width, (size_t)shape->v_width, (size_t)shape->y_width, 0, 0};
  const size_t batch = (size_t)shape->batch;
  const int cross = (shape->options & MHAGEN_CROSS) != 0, bounds = y_bounds != NULL;
  const size_t sides = bounds ? 2 : 1, rows = batch * e.n;
  numbers x = {.weights = *weights, .qx = args->q, .kx = cross ? args->k : args->q,
               .vx = cross ? args->v : args->q, .y = y}, size = x;
  double *room = malloc((sides * room_of(&e) + e.m + (sides - 1) * rows * e.y_width) * sizeof *room);
  float *sizes = bounds ? make_magnitudes(&size, &x, &e, batch, shape->options & MHAGEN_STRASSEN) : NULL;
  if (!room || (bounds && !sizes)) {
    free(room), free(sizes);
    return -1;
  }
  double *p = room + room_of(&e), largest = 0;
  divide(&x, &e, room);
  if (bounds) divide(&size, &e, p + e.m), size.y = p + e.m + room_of(&e);

  for (size_t b = 0; b < batch; b++) {
    project_inputs(&x, &e, b);
    if (bounds) project_inputs(&size, &e, b);
    const float *queries = args->q + b * e.n * e.d;
    const double root = sqrt((double)e.dk);
    for (size_t r = 0; r < e.n; r++) {
      double score_size = 0;
      mhagen_keys_seen(shape, args, b, r, &e.first, &e.end);
      for (size_t i = 0; i < e.h; i++) {
        const size_t stride = e.h_kv * e.dk, q_at = (r * e.h + i) * e.dk,
                     k_at = i / (e.h / e.h_kv) * e.dk;
        const size_t row = (b * e.h + i) * e.n + r, seen = e.end - e.first;
        double of_head = 0, *seen_p = p + e.first;
        for (size_t j = e.first; j < e.end; j++) {
          const double s = dot(x.q + q_at, x.k + k_at + j * stride, e.dk) / root;
          p[j] = changed(shape, queries, j, s);
          if (isfinite(s)) largest = fmax(largest, changed_size(shape, queries, j, fabs(s)));
        }
        softmax(seen_p, seen);
        add_context(&x, &e, r, i, p);
        if (bounds) {
          for (size_t j = e.first; j < e.end; j++) {
            const double s = dot(size.q + q_at, size.k + k_at + j * stride, e.dk) / root;
            of_head = fmax(of_head, changed_size(shape, queries, j, s));
          }
          add_context(&size, &e, r, i, p);
          score_size = fmax(score_size, of_head);
          if (probs_bounds) probs_bounds[row] = row_error(shape, of_head) * sqrt(dot(seen_p, seen_p, seen));
        }
        if (!probs) continue;
        memset(probs + row * e.m, 0, e.m * sizeof *p);
        memcpy(probs + row * e.m + e.first, seen_p, seen * sizeof *p);
      }
      if (bounds) y_bounds[b * e.n + r] = row_error(shape, score_size);
    }
    project_output(&x, &e, b);
    if (bounds) project_output(&size, &e, b);
  }
  for (size_t r = 0; r < rows && bounds; r++)
    y_bounds[r] *= sqrt(dot(size.y + r * e.y_width, size.y + r * e.y_width, e.y_width));
  free(room), free(sizes);
  if (max_score) *max_score = largest;
  return 0;
}

int mhagen_reference(const mhagen_kernel *shape, const mhagen_weights *weights,
                     const mhagen_args *args, double *y, double *probs, double *max_score) {
  return mhagen_reference_and_bounds(shape, weights, args, y, probs, max_score, NULL, NULL);
}
