/* reference.c: the reference of reference.h, with which every kernel is compared. */
#include "reference.h"

#include <float.h>
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

/* Of h a power of two 2^(-8/h), 2^(-16/h), ..; behind the largest power of two in h every second one
 * of twice as many. */
double mhagen_alibi_slope(int h, int head) {
  int power = 1;
  while (power * 2 <= h) power *= 2;
  if (head < power) return exp2(-8.0 * (head + 1) / power);
  return exp2(-8.0 * (2 * (head - power) + 1) / (2 * power));
}

static double sink_of(const mhagen_kernel *shape, const mhagen_weights *weights, size_t head) {
  if (!(shape->options & MHAGEN_SINK)) return -INFINITY;
  return weights->sink ? (double)weights->sink[head] : 0;
}

/* The size of the largest score of a row: of the sink as far as the weights that it leaves, or its own, are
 * not zero in any case. */
static double beside_sink(double size, double sink) {
  return isfinite(sink) ? fmax(size, fmin(fabs(sink), size + 128)) : size;
}

typedef struct spot { /* of a score; x: the queries of its batch entry */
  const mhagen_kernel *shape;
  const float *x;
  size_t key;
  ptrdiff_t place; /* of the query among the keys */
  double slope, mask;
} spot;

static double alibi(const spot *at) {
  return at->slope * (double)((ptrdiff_t)at->key - at->place);
}

static double capped(const mhagen_kernel *shape, double s) {
  return shape->options & MHAGEN_SOFTCAP ? shape->softcap * tanh(s / shape->softcap) : s;
}

static double changed(const spot *at, double s) {
  const mhagen_kernel *shape = at->shape;
  const float *x = at->x;
  const size_t key = at->key;
  (void)shape, (void)x, (void)key;
  s = capped(shape, s);
  if (shape->options & MHAGEN_ALIBI) s += alibi(at);
  return MHAGEN_SCORE(s + at->mask);
}

static double changed_size(const spot *at, double s) {
  const mhagen_kernel *shape = at->shape;
  const float *x = at->x;
  const size_t key = at->key;
  (void)shape, (void)x, (void)key;
  if (shape->options & MHAGEN_ALIBI) s += fabs(alibi(at));
  return MHAGEN_SCORE_SIZE(s + fabs(at->mask));
}

/* By how much a changed score may be off, if s is. */
static double changed_off(const spot *at, double s) {
  const mhagen_kernel *shape = at->shape;
  const float *x = at->x;
  const size_t key = at->key;
  (void)shape, (void)x, (void)key;
  return isfinite(s) ? MHAGEN_SCORE_SIZE(s) - MHAGEN_SCORE_SIZE(0.0) : s;
}

static ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }
static ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* Where a query stands among the keys. */
static ptrdiff_t place_of(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row) {
  const ptrdiff_t r = (ptrdiff_t)row;
  if (shape->options & MHAGEN_CACHE_APPEND) return args->past[entry] + r;
  return shape->options & MHAGEN_BOTTOM_RIGHT ? r + shape->seq_kv - shape->seq : r;
}

static size_t rows_asked(const mhagen_kernel *shape, const mhagen_args *args, size_t entry) {
  return shape->options & MHAGEN_Q_LEN ? (size_t)args->q_len[entry] : (size_t)shape->seq;
}

/* Rows in a cache that grows, with those that a run adds. */
static size_t rows_made(const mhagen_kernel *shape, const mhagen_args *args, size_t entry) {
  return (size_t)args->past[entry] + rows_asked(shape, args, entry);
}

void mhagen_keys_seen(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row,
                      size_t *first, size_t *end) {
  const unsigned options = shape->options;
  const ptrdiff_t place = place_of(shape, args, entry, row);
  ptrdiff_t from = MHAGEN_FIRST_KEY, to = shape->seq_kv;
  if (options & MHAGEN_CACHE_APPEND) to = (ptrdiff_t)rows_made(shape, args, entry);
  if (options & MHAGEN_KV_LEN) to = smaller(to, args->kv_len[entry]);
  if (options & MHAGEN_KV_START) from = larger(from, args->kv_start[entry]);
  if (options & MHAGEN_CAUSAL) to = smaller(to, place + 1);
  if (options & MHAGEN_WINDOW_LEFT) from = larger(from, place - shape->window_left);
  if (options & MHAGEN_WINDOW_RIGHT) to = smaller(to, place + shape->window_right + 1);
  to = larger(to, 0), from = smaller(from, to);
  *first = (size_t)from, *end = (size_t)to;
}

static void fill(double *x, size_t count, double with) {
  for (size_t i = 0; i < count; i++) x[i] = with;
}

double mhagen_mask(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t head, size_t row,
                   size_t key) {
  const size_t places[] = {entry, head, row, key},
               extents[] = {(size_t)shape->batch, (size_t)shape->h, (size_t)shape->seq, (size_t)shape->seq_kv};
  size_t at = 0;
  if (!(shape->options & (MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD))) return 0;
  for (int i = 0; i < 4; i++) {
    if (strchr(shape->mask_dims, "bhqk"[i])) at = at * extents[i] + places[i];
  }
  if (shape->options & MHAGEN_MASK_ADD) return (double)((const float *)args->mask)[at];
  return ((const unsigned char *)args->mask)[at] ? 0 : -INFINITY;
}

/* p[0..keys) = softmax of p over the keys with sees[j], beside a score that no key has */
static void softmax(double *p, const char *sees, size_t keys, double sink) {
  double max = sink, sum = 0;
  for (size_t j = 0; j < keys; j++) {
    if (sees[j] && p[j] > max) max = p[j];
  }
  for (size_t j = 0; j < keys; j++) sum += p[j] = sees[j] ? exp(p[j] - max) : 0;
  if (sink != -INFINITY) sum += exp(sink - max);
  for (size_t j = 0; j < keys; j++) p[j] = sees[j] ? p[j] / sum : 0;
}

/* The projections that a kernel has. */
static int projections(const mhagen_kernel *shape) {
  const int all = MHAGEN_PROJECT_Q | MHAGEN_PROJECT_K | MHAGEN_PROJECT_V | MHAGEN_PROJECT_O;
  return shape->options & MHAGEN_UNPROJECTED ? shape->project : all;
}

/* The numbers that the formulas are of, or their magnitudes, and what comes out on the way. */
typedef struct numbers {
  mhagen_weights weights;
  const float *qx, *kx, *vx;       /* the inputs */
  double *q, *k, *v, *context, *y; /* of one batch entry */
} numbers;

typedef struct extents {
  size_t h, h_kv, d, n, m, dk, dv, k_width, v_width, y_width;
  size_t first, end; /* the keys that a row sees, */
  char *sees;        /* but for those that a mask hides */
  int project;       /* MHAGEN_PROJECT_Q | ... */
  size_t q_width;    /* numbers in a row of q */
  size_t made;       /* rows of keys and values that there are, */
  ptrdiff_t place;   /* and the place of the first query among them */
  int apart;         /* heads that are not projected lie apart: [heads][rows][width] */
} extents;

static int projects(const extents *e, int which) { return (e->project & which) != 0; }

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

/* Of `heads` heads of `rows` rows that are not projected, the number of row r of a head where they lie. */
static size_t lies(const extents *e, size_t rows, size_t heads, size_t r, size_t head) {
  return e->apart ? head * rows + r : r * heads + head;
}

/* The heads of the first rows of an input of `all` rows as they are, those of a row side by side. */
static void take(const extents *e, const float *x, size_t all, size_t rows, size_t heads, size_t width, double *to) {
  for (size_t i = 0; i < rows * heads; i++) {
    const float *from = x + lies(e, all, heads, i / heads, i % heads) * width;
    for (size_t c = 0; c < width; c++) *to++ = (double)from[c];
  }
}

static void project_inputs(const numbers *x, const extents *e, size_t entry) {
  const mhagen_weights *w = &x->weights;
  const float *q = x->qx + entry * e->n * e->q_width, *k = x->kx + entry * e->m * e->k_width,
              *v = x->vx + entry * e->m * e->v_width;
  const size_t hq = e->h * e->dk, hk = e->h_kv * e->dk, hv = e->h_kv * e->dv;
  if (projects(e, MHAGEN_PROJECT_Q)) project(q, NULL, e->n, e->d, w->wq, w->bq, hq, w->layout, x->q);
  else take(e, q, e->n, e->n, e->h, e->dk, x->q);
  if (projects(e, MHAGEN_PROJECT_K)) project(k, NULL, e->made, e->k_width, w->wk, w->bk, hk, w->layout, x->k);
  else take(e, k, e->m, e->made, e->h_kv, e->dk, x->k);
  if (projects(e, MHAGEN_PROJECT_V)) project(v, NULL, e->made, e->v_width, w->wv, w->bv, hv, w->layout, x->v);
  else take(e, v, e->m, e->made, e->h_kv, e->dv, x->v);
}

/* Of the tables of rope: that of the first query where it stands before all keys. */
static ptrdiff_t first_place(const mhagen_kernel *shape) {
  return shape->options & MHAGEN_BOTTOM_RIGHT ? smaller(0, shape->seq_kv - shape->seq) : 0;
}

/* Turns `heads` heads of dk columns of a row at a place; of magnitudes none is taken from another. */
static void turn_row(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, size_t heads,
                     int of_magnitudes, double *row) {
  const ptrdiff_t pairs = shape->rope_dims / 2, in_table = place - first_place(shape);
  const int interleaved = shape->rope == MHAGEN_ROPE_INTERLEAVED;
  for (ptrdiff_t i = 0; i < pairs; i++) {
    const double angle = (double)place * pow(shape->rope_theta, -(double)i / (double)pairs);
    double c = w->rope_cos ? (double)w->rope_cos[in_table * pairs + i] : cos(angle);
    double s = w->rope_sin ? (double)w->rope_sin[in_table * pairs + i] : sin(angle);
    if (of_magnitudes) c = fabs(c), s = fabs(s);
    for (size_t head = 0; head < heads; head++) {
      double *x = row + head * (size_t)shape->dk + (interleaved ? 2 * i : i), *y = x + (interleaved ? 1 : pairs);
      const double first = of_magnitudes ? *x * c + *y * s : *x * c - *y * s;
      *y = *y * c + *x * s;
      *x = first;
    }
  }
}

/* The roundings on the way from an input to a score, and from an input to y, one for each step of a sum and some
 * more, each of at most a unit of the sizes; those of a score reach its weight times the score's size. */
static int score_steps(const mhagen_kernel *shape, int least) {
  const int project = projections(shape);
  int widest = least;
  if (project & MHAGEN_PROJECT_Q && shape->d_model > widest) widest = shape->d_model;
  if (project & MHAGEN_PROJECT_K && shape->k_width > widest) widest = shape->k_width;
  int steps = 16 + widest + shape->dk;
  if (shape->options & MHAGEN_ROPE) steps += 6; /* of Q and of K: a cosine or sine, its product, their sum */
  if (shape->options & MHAGEN_QK_NORM) /* of Q and of K: mean, sum of squares, and what is made of it */
    steps += 2 * (shape->dk * (shape->norm_span == MHAGEN_SPAN_ALL ? shape->h : 1) + 8);
  return steps;
}

/* Which NaN is, unlike fmax. */
static double at_least(double least, double x) { return x < least ? least : x; }

/* The norm of n columns x. An error of x reaches the result by x and by the length that x is divided by, in the first
 * order; size, if it is not null, becomes what both are, and all that is not below the length itself leaves no digit.
 * A length whose square is beyond float32 is infinite. Returns the length. */
static double norm(const mhagen_kernel *shape, size_t n, double *x, double *size) {
  const double count = shape->qk_norm == MHAGEN_NORM_L2 ? 1 : (double)n;
  double mean = 0, size_mean = 0, squares = 0, size_squares = 0;
  for (size_t i = 0; i < n && shape->qk_norm == MHAGEN_NORM_LAYER; i++) {
    mean += x[i] / (double)n;
    if (size) size_mean += size[i] / (double)n;
  }
  for (size_t i = 0; i < n; i++) {
    x[i] -= mean;
    squares += x[i] * x[i];
    if (size) size[i] += size_mean, size_squares += size[i] * size[i];
  }
  double length = shape->qk_norm == MHAGEN_NORM_L2 ? at_least(shape->norm_eps, sqrt(squares))
                                                   : sqrt(squares / count + shape->norm_eps);
  if (squares > FLT_MAX) length = INFINITY;
  const double part = sqrt(size_squares / count) / length, lost = score_steps(shape, 0) * shape->unit * part;
  for (size_t i = 0; i < n; i++) {
    if (size) size[i] = lost < 1 ? (size[i] + fabs(x[i]) * part) / length / (1 - lost) : 1e300;
    x[i] /= length;
  }
  return length;
}

/* All rows of Q or K. Returns by how much the shortest one is below the root mean square of all. */
static double norms(const mhagen_kernel *shape, const float *gains, size_t rows, size_t heads, double *x,
                    double *size) {
  const size_t all = shape->norm_span == MHAGEN_SPAN_ALL, dk = (size_t)shape->dk, n = all ? heads * dk : dk;
  double least = INFINITY, sum = 0;
  for (size_t at = 0; at < rows * heads * dk; at += n) {
    const double squares = dot(x + at, x + at, n), length = norm(shape, n, x + at, size ? size + at : NULL);
    least = fmin(least, length);
    if (isfinite(length)) sum += squares;
    const float *own = gains && shape->norm_span == MHAGEN_SPAN_EACH ? gains + at % (heads * dk) : gains;
    for (size_t i = 0; gains && i < n; i++) {
      x[at + i] *= (double)own[i];
      if (size) size[at + i] *= fabs((double)own[i]);
    }
  }
  return sqrt(sum / (double)(rows * heads * dk) * (shape->qk_norm == MHAGEN_NORM_L2 ? (double)n : 1)) / least;
}

/* Of one batch entry, before the scores. */
static void turn(const mhagen_kernel *shape, const mhagen_weights *w, const extents *e, int of_magnitudes, numbers *x) {
  if (!(shape->options & MHAGEN_ROPE)) return;
  for (size_t r = 0; r < e->n; r++)
    turn_row(shape, w, e->place + (ptrdiff_t)r, e->h, of_magnitudes, x->q + r * e->h * e->dk);
  for (size_t j = 0; j < e->made; j++)
    turn_row(shape, w, (ptrdiff_t)j, e->h_kv, of_magnitudes, x->k + j * e->h_kv * e->dk);
}

/* Of a row and head that a cache keeps as integers, the largest element stands for all. */
static void size_kept(const mhagen_kernel *shape, const extents *e, double *x, size_t width) {
  const char *type = shape->options & MHAGEN_CACHE_DTYPE ? shape->cache_dtype : NULL;
  for (size_t at = 0; type && !strcmp(type, "int8") && at < e->made * e->h_kv * width; at += width) {
    double most = 0;
    for (size_t i = 0; i < width; i++) most = fmax(most, x[at + i]);
    for (size_t i = 0; i < width; i++) x[at + i] = most;
  }
}

/* Queries, keys and values of a batch entry, and their magnitudes, if size is not null. Returns by how much rows that
 * are short make roundings larger. */
static double make_rows(const mhagen_kernel *shape, const extents *e, size_t entry, numbers *x, numbers *size) {
  const mhagen_weights *w = &x->weights;
  double small = 1;
  project_inputs(x, e, entry);
  if (size) project_inputs(size, e, entry);
  if (shape->options & MHAGEN_QK_NORM) {
    small = fmax(small, norms(shape, w->q_norm, e->n, e->h, x->q, size ? size->q : NULL));
    small = fmax(small, norms(shape, w->k_norm, e->made, e->h_kv, x->k, size ? size->k : NULL));
  }
  turn(shape, w, e, 0, x);
  if (size) {
    turn(shape, w, e, 1, size);
    size_kept(shape, e, size->k, e->dk), size_kept(shape, e, size->v, e->dv);
  }
  return small;
}

static void add_context(const numbers *x, const extents *e, size_t row, size_t head,
                        const double *p) {
  double *sum = x->context + (row * e->h + head) * e->dv;
  const size_t shared = head / (e->h / e->h_kv);
  memset(sum, 0, e->dv * sizeof *sum);
  for (size_t j = e->first; j < e->end; j++) {
    for (size_t c = 0; e->sees[j] && c < e->dv; c++) sum[c] += p[j] * x->v[(j * e->h_kv + shared) * e->dv + c];
  }
}

static void project_output(const numbers *x, const extents *e, size_t entry) {
  double *y = x->y + entry * e->n * e->y_width;
  if (projects(e, MHAGEN_PROJECT_O)) {
    project(NULL, x->context, e->n, e->h * e->dv, x->weights.wo, x->weights.bo, e->y_width, x->weights.layout, y);
    return;
  }
  for (size_t i = 0; i < e->n * e->h; i++)
    memcpy(y + lies(e, e->n, e->h, i / e->h, i % e->h) * e->dv, x->context + i * e->dv, e->dv * sizeof *y);
}

/* |from|, or the largest of |from| everywhere; of nothing, nothing. */
static const float *magnitudes(const float *from, size_t count, int largest, float **room) {
  float *to = *room, most = 0;
  if (!from) return NULL;
  for (size_t i = 0; i < count; i++) most = fmaxf(most, to[i] = fabsf(from[i]));
  for (size_t i = 0; largest && i < count; i++) to[i] = most;
  *room += count;
  return to;
}

/* Whether rows of activations are integers times a scale of theirs. */
static int has_integers(const mhagen_kernel *shape) { return shape->dtype && !strcmp(shape->dtype, "int8"); }

/* The integers that weights are, times scales; or null. */
static const char *quants_of(const mhagen_kernel *shape) {
  return has_integers(shape) ? "int8" : shape->options & MHAGEN_WEIGHT_DTYPE ? shape->weight_dtype : NULL;
}

/* Those of Wv. */
static const char *quants_of_values(const mhagen_kernel *shape) {
  return shape->options & MHAGEN_VALUE_WEIGHT_DTYPE ? shape->value_weight_dtype : quants_of(shape);
}

/* Rows of a column of such weights that share a scale. */
static size_t rows_of_scale(const mhagen_kernel *shape, const char *quants, size_t in) {
  return strcmp(quants, "int4") ? in : (size_t)shape->group;
}

/* Each magnitude of a matrix becomes the largest that shares its scale; NaN stays. */
static void largest_of_scales(size_t group, mhagen_layout layout, size_t in, size_t out, float *w) {
  const size_t row = layout == MHAGEN_OUT_IN ? 1 : out,
               column = layout == MHAGEN_OUT_IN ? in : 1;
  for (size_t first = 0; first < in; first += group) {
    const size_t end = first + group < in ? first + group : in;
    for (size_t o = 0; o < out; o++) {
      float most = 0;
      for (size_t i = first; i < end; i++) {
        const float x = w[i * row + o * column];
        if (!(x <= most) && most == most) most = x;
      }
      for (size_t i = first; i < end; i++) w[i * row + o * column] = most;
    }
  }
}

static const float *weight_magnitudes(const mhagen_kernel *shape, const char *quants, mhagen_layout layout,
                                      const float *w, size_t in, size_t out, int largest, float **room) {
  float *const to = *room;
  const float *const made = magnitudes(w, in * out, largest, room);
  if (made && quants) largest_of_scales(rows_of_scale(shape, quants, in), layout, in, out, to);
  return made;
}

/* In each row the largest number stands for all. */
static void largest_of_rows(const float *x, size_t rows, size_t columns) {
  float *to = (float *)x;
  for (size_t i = 0; i < rows; i++, to += columns) {
    float most = 0;
    for (size_t j = 0; j < columns; j++) most = fmaxf(most, to[j]);
    for (size_t j = 0; j < columns; j++) to[j] = most;
  }
}

/* Null when memory is short. */
static float *make_magnitudes(const mhagen_kernel *shape, numbers *to, const numbers *from, const extents *e,
                              size_t batch, int largest) {
  const size_t qx = batch * e->n * e->q_width, kx = batch * e->m * e->k_width,
               vx = batch * e->m * e->v_width, hq = e->h * e->dk,
               hk = e->h_kv * e->dk, hv = e->h_kv * e->dv, ho = e->h * e->dv;
  const mhagen_weights *w = &from->weights;
  const char *quants = quants_of(shape);
  const size_t of_weights = (e->d + 1) * hq + (e->k_width + 1) * hk + (e->v_width + 1) * hv +
                            (ho + 1) * e->y_width;
  float *room = malloc((qx + kx + vx + of_weights) * sizeof *room), *at = room;
  if (!room) return NULL;
  to->qx = magnitudes(from->qx, qx, largest, &at);
  to->kx = magnitudes(from->kx, kx, largest, &at);
  to->vx = magnitudes(from->vx, vx, largest, &at);
  to->weights = (mhagen_weights){.layout = w->layout};
  if (projects(e, MHAGEN_PROJECT_Q)) {
    to->weights.wq = weight_magnitudes(shape, quants, w->layout, w->wq, e->d, hq, largest, &at);
    to->weights.bq = magnitudes(w->bq, hq, 0, &at);
  }
  if (projects(e, MHAGEN_PROJECT_K)) {
    to->weights.wk = weight_magnitudes(shape, quants, w->layout, w->wk, e->k_width, hk, largest, &at);
    to->weights.bk = magnitudes(w->bk, hk, 0, &at);
  }
  if (projects(e, MHAGEN_PROJECT_V)) {
    to->weights.wv =
        weight_magnitudes(shape, quants_of_values(shape), w->layout, w->wv, e->v_width, hv, largest, &at);
    to->weights.bv = magnitudes(w->bv, hv, 0, &at);
  }
  if (projects(e, MHAGEN_PROJECT_O)) {
    to->weights.wo = weight_magnitudes(shape, quants, w->layout, w->wo, ho, e->y_width, 0, &at);
    to->weights.bo = magnitudes(w->bo, e->y_width, 0, &at);
  }
  if (has_integers(shape)) {
    if (projects(e, MHAGEN_PROJECT_Q)) largest_of_rows(to->qx, batch * e->n, e->d);
    if (projects(e, MHAGEN_PROJECT_K)) largest_of_rows(to->kx, batch * e->m, e->k_width);
    if (projects(e, MHAGEN_PROJECT_V)) largest_of_rows(to->vx, batch * e->m, e->v_width);
  }
  return room;
}

#define TINY 0x1p-60 /* a weight that roundings of a mask do not make count */

double mhagen_promised_error(const mhagen_kernel *shape, double max_score) {
  /* Scores of int4 err by a tenth of themselves. */
  const char *quants = quants_of(shape);
  const int nibbles = quants && !strcmp(quants, "int4");
  return shape->error * fmax(1, max_score / (nibbles ? 4 : 16));
}

#define LEAST_WEIGHT 0x1p-68 /* a weight of attention below it may be 0: 2^-100 of a sum of 2^-32 */

static double row_error(const mhagen_kernel *shape, double score_size) {
  const int project = projections(shape);
  int steps = score_steps(shape, project & MHAGEN_PROJECT_V ? shape->v_width : 0) + shape->seq_kv;
  if (project & MHAGEN_PROJECT_O) steps += shape->h * shape->dv;
  const double error = steps * shape->unit * (1 + score_size);
  /* Weights far below a sink grow or shrink by the power of what their scores err by, and any of roundings that are
   * as large as those of quantized weights; other rows sum to one. */
  return shape->options & MHAGEN_SINK || shape->options & MHAGEN_WEIGHT_DTYPE ? fmin(expm1(error), 1e30) : error;
}

static extents extents_of(const mhagen_kernel *shape) {
  extents e = {(size_t)shape->h,      (size_t)shape->h_kv, (size_t)shape->d_model, (size_t)shape->seq,
               (size_t)shape->seq_kv, (size_t)shape->dk,   (size_t)shape->dv,
               (size_t)shape->k_width, (size_t)shape->v_width, (size_t)shape->y_width, 0, 0,
               NULL, projections(shape), 0, 0, 0, (shape->options & MHAGEN_BHSD) != 0};
  e.q_width = projects(&e, MHAGEN_PROJECT_Q) ? e.d : e.h * e.dk;
  return e;
}

static numbers numbers_of(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                          double *y) {
  const int apart = (shape->options & (MHAGEN_CROSS | MHAGEN_CACHE_APPEND)) != 0;
  return (numbers){.weights = *weights, .qx = args->q, .kx = apart ? args->k : args->q,
                   .vx = apart ? args->v : args->q, .y = y};
}

/* Of a batch entry the place of its first query, and the rows of keys that there are. */
static void start_entry(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, extents *e) {
  e->place = place_of(shape, args, entry, 0);
  e->made = shape->options & MHAGEN_CACHE_APPEND ? (size_t)e->place + e->n : e->m;
}

static double slope_of(const mhagen_kernel *shape, const mhagen_weights *weights, size_t head) {
  if (!(shape->options & MHAGEN_ALIBI)) return 0;
  return weights->alibi ? (double)weights->alibi[head] : mhagen_alibi_slope(shape->h, (int)head);
}

/* scale times the product of a query and a key of a head. */
static double score_of(const mhagen_kernel *shape, const numbers *x, size_t head, size_t row, size_t key) {
  const size_t h = (size_t)shape->h, h_kv = (size_t)shape->h_kv, dk = (size_t)shape->dk;
  return dot(x->q + (row * h + head) * dk, x->k + (key * h_kv + head / (h / h_kv)) * dk, dk) * shape->scale;
}

int mhagen_reference_and_bounds(const mhagen_kernel *shape, const mhagen_weights *weights,
                                const mhagen_args *args, double *y, double *probs,
                                double *max_score, double *y_bounds, double *probs_bounds) {
  extents e = extents_of(shape);
  const size_t batch = (size_t)shape->batch;
  const int bounds = y_bounds != NULL;
  const size_t sides = bounds ? 2 : 1, rows = batch * e.n,
               pieces = projects(&e, MHAGEN_PROJECT_O) ? 1 : e.h, /* of a row of y that have their own bound */
               width = e.y_width / pieces;
  numbers x = numbers_of(shape, weights, args, y), size = x;
  double *room = malloc((sides * room_of(&e) + 3 * e.m + (sides - 1) * rows * e.y_width) * sizeof *room);
  float *sizes = bounds ? make_magnitudes(shape, &size, &x, &e, batch, shape->options & MHAGEN_STRASSEN) : NULL;
  char *sees = malloc(e.m);
  if (!room || !sees || (bounds && !sizes)) {
    free(room), free(sizes), free(sees);
    return -1;
  }
  double *p = room + room_of(&e), *mask = p + e.m, *more = mask + e.m, largest = 0, small = 1;
  divide(&x, &e, room);
  if (bounds) divide(&size, &e, more + e.m), size.y = more + e.m + room_of(&e);
  e.sees = sees;

  for (size_t b = 0; b < batch; b++) {
    start_entry(shape, args, b, &e);
    small = fmax(small, make_rows(shape, &e, b, &x, bounds ? &size : NULL));
    const float *queries = args->q + b * e.n * e.q_width;
    const size_t asked = rows_asked(shape, args, b);
    for (size_t r = 0; r < asked; r++) {
      double score_size = 0;
      mhagen_keys_seen(shape, args, b, r, &e.first, &e.end);
      for (size_t i = 0; i < e.h; i++) {
        const size_t row = (b * e.h + i) * e.n + r, seen = e.end - e.first;
        double most = 0, of_head = 0, *seen_p = p + e.first;
        spot at = {shape, queries, 0, e.place + (ptrdiff_t)r, slope_of(shape, weights, i), 0};
        for (size_t j = e.first; j < e.end; j++) {
          const double s = score_of(shape, &x, i, r, j);
          at.key = j, at.mask = mask[j] = mhagen_mask(shape, args, b, i, r, j);
          sees[j] = mask[j] == -INFINITY ? 0 : 1;
          p[j] = changed(&at, s);
          more[j] = fabs(s);
        }
        const double sink = sink_of(shape, weights, i);
        softmax(seen_p, sees + e.first, seen, sink);
        add_context(&x, &e, r, i, p);
        int some = 0;
        for (size_t j = e.first; j < e.end; j++) {
          mask[j] = p[j] > TINY && isfinite(mask[j]) ? mask[j] : 0; /* of what counts */
          if (!sees[j]) continue;
          at.key = j, at.mask = mask[j], some = 1;
          if (isfinite(more[j])) most = fmax(most, changed_size(&at, more[j]));
        }
        if (some) largest = fmax(largest, beside_sink(most, sink));
        if (probs) {
          memset(probs + row * e.m, 0, e.m * sizeof *p);
          memcpy(probs + row * e.m + e.first, seen_p, seen * sizeof *p);
        }
        if (bounds) {
          if (shape->options & MHAGEN_SINK) /* which leaves less than a float to the keys of some rows */
            for (size_t j = 0; j < seen; j++) seen_p[j] += LEAST_WEIGHT / shape->unit;
          for (size_t j = e.first; j < e.end; j++) {
            at.key = j, at.mask = mask[j];
            if (sees[j]) of_head = fmax(of_head, changed_size(&at, score_of(shape, &size, i, r, j)));
          }
          of_head = beside_sink(of_head, sink);
          add_context(&size, &e, r, i, p);
          score_size = fmax(score_size, of_head);
          if (pieces > 1) y_bounds[b * e.n * pieces + lies(&e, e.n, pieces, r, i)] = row_error(shape, of_head);
          if (probs_bounds) probs_bounds[row] = row_error(shape, of_head) * sqrt(dot(seen_p, seen_p, seen));
        }
      }
      if (bounds && pieces == 1) y_bounds[b * e.n + r] = row_error(shape, score_size);
      if (bounds && pieces == 1 && has_integers(shape)) {
        double *row = size.context + r * e.h * e.dv, most = 0;
        for (size_t i = 0; i < e.h * e.dv; i++) most = fmax(most, row[i]);
        fill(row, e.h * e.dv, most);
      }
    }
    project_output(&x, &e, b);
    if (bounds) project_output(&size, &e, b);
    for (size_t r = asked; r < e.n; r++) {
      for (size_t i = 0; i < pieces; i++)
        fill(y + (b * e.n * pieces + lies(&e, e.n, pieces, r, i)) * width, width, NAN);
      for (size_t i = 0; i < e.h && probs; i++) fill(probs + ((b * e.h + i) * e.n + r) * e.m, e.m, NAN);
    }
  }
  for (size_t r = 0; r < rows * pieces && bounds; r++)
    y_bounds[r] *= sqrt(dot(size.y + r * width, size.y + r * width, width));
  free(room), free(sizes), free(sees);
  if (max_score) *max_score = largest * small;
  return 0;
}

int mhagen_reference(const mhagen_kernel *shape, const mhagen_weights *weights,
                     const mhagen_args *args, double *y, double *probs, double *max_score) {
  return mhagen_reference_and_bounds(shape, weights, args, y, probs, max_score, NULL, NULL);
}

/* The keys of a batch entry that are valid. */
static int is_valid(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t key) {
  if (shape->options & MHAGEN_CACHE_APPEND && key >= rows_made(shape, args, entry)) return 0;
  if (shape->options & MHAGEN_KV_LEN && (ptrdiff_t)key >= args->kv_len[entry]) return 0;
  return !(shape->options & MHAGEN_KV_START) || (ptrdiff_t)key >= args->kv_start[entry];
}

int mhagen_reference_scores(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                            double *scores, double *bounds) {
  extents e = extents_of(shape);
  const size_t batch = (size_t)shape->batch;
  const int masked = shape->scores == MHAGEN_SCORES_MASKED;
  numbers x = numbers_of(shape, weights, args, NULL), size = x;
  double *room = malloc(2 * room_of(&e) * sizeof *room);
  float *sizes = make_magnitudes(shape, &size, &x, &e, batch, shape->options & MHAGEN_STRASSEN);
  if (!room || !sizes) {
    free(room), free(sizes);
    return -1;
  }
  divide(&x, &e, room), divide(&size, &e, room + room_of(&e));
  for (size_t b = 0; b < batch; b++) {
    start_entry(shape, args, b, &e);
    make_rows(shape, &e, b, &x, &size);
    for (size_t row = 0; row < e.h * e.n; row++) {
      const size_t i = row / e.n, r = row % e.n;
      spot at = {shape, args->q + b * e.n * e.q_width, 0, place_of(shape, args, b, r), slope_of(shape, weights, i),
                 0};
      mhagen_keys_seen(shape, args, b, r, &e.first, &e.end);
      for (size_t j = 0; j < e.m; j++, scores++, bounds++) {
        const double s = score_of(shape, &x, i, r, j), s_size = score_of(shape, &size, i, r, j);
        at.key = j, at.mask = mhagen_mask(shape, args, b, i, r, j);
        const int sees = masked ? j >= e.first && j < e.end && at.mask != -INFINITY : is_valid(shape, args, b, j);
        *bounds = score_steps(shape, 0) * shape->unit * (masked ? changed_size(&at, s_size) : s_size);
        if (isnan(*bounds)) *bounds = INFINITY; /* sizes that overflow say nothing */
        if (r >= rows_asked(shape, args, b)) *scores = NAN;
        else if (!sees) *scores = -INFINITY, *bounds = 0;
        else if (masked) *scores = changed(&at, s);
        else *scores = shape->scores == MHAGEN_SCORES_CAPPED ? capped(shape, s) : s;
      }
    }
  }
  free(room), free(sizes);
  return 0;
}

/* ---- operands that are rounded ---- */

#define LOG2E 1.4426950408889634
#define FLOAT_UNIT 0x1p-24

typedef struct format {
  const char *name;
  double (*nearest)(const struct format *, double);
  int digits, least; /* of the significand; the exponent from which on there are so many */
  double most;
} format;

/* Ties to even. */
static double to_digits(const format *f, double x) {
  const int exponent = ilogb(x) > f->least ? ilogb(x) : f->least;
  const double step = ldexp(1, exponent - f->digits + 1), rounded = rint(x / step) * step;
  return fabs(rounded) > f->most ? copysign(INFINITY, x) : rounded;
}

/* Ties as they come of tests/toy_type.lua, which leaves large numbers as they are. */
static double split(const format *f, double x) {
  if (fabs(x) >= 0x1p115) return fabs(x) > f->most ? copysign(INFINITY, x) : x;
  const float exact = (float)x, scaled = exact * 4097.0f, rest = scaled - exact;
  return (double)(scaled - rest);
}

/* Null: float32, or a type that is not known here. */
static const format *format_of(const char *type) {
  static const format formats[] = {{"bf16", to_digits, 8, -126, 0x1.FEp127}, {"f16", to_digits, 11, -14, 65504},
                                   {"f32r12", split, 12, -126, FLT_MAX}};
  for (size_t i = 0; type && i < sizeof formats / sizeof *formats; i++) {
    if (!strcmp(type, formats[i].name)) return &formats[i];
  }
  return NULL;
}

static const char *attend_type(const mhagen_kernel *shape) {
  return shape->attend_dtype ? shape->attend_dtype : shape->dtype;
}

/* Of the rows of a cache: a type that has a format, "int8", or null. */
static const char *cache_type(const mhagen_kernel *shape) {
  if (!(shape->options & (MHAGEN_CACHE_APPEND | MHAGEN_CACHE_FIXED))) return NULL;
  return shape->cache_dtype ? shape->cache_dtype : attend_type(shape);
}

static int is_int8(const char *type) { return type && !strcmp(type, "int8"); }

static int is_known(const char *type) { return !type || !strcmp(type, "f32") || format_of(type); }

int mhagen_is_rounded(const mhagen_kernel *shape) {
  const char *attend = attend_type(shape);
  const char *quants = quants_of(shape);
  if (quants && strcmp(quants, "int8") && strcmp(quants, "int4")) return 0;
  if ((!is_known(shape->dtype) && !has_integers(shape)) || !is_known(attend)) return 0;
  return quants || format_of(shape->dtype) || format_of(attend) || format_of(shape->io_dtype) ||
         format_of(cache_type(shape)) || is_int8(cache_type(shape));
}

static double nearest(const format *f, double x) {
  return f && isfinite(x) && x != 0 ? f->nearest(f, x) : x;
}

double mhagen_nearest(const char *type, double x) { return nearest(format_of(type), x); }

uint16_t mhagen_to_bits(const char *type, double x) {
  const format *f = format_of(type);
  const double size = fabs(nearest(f, x));
  const unsigned hidden = 1u << (f->digits - 1), sign = signbit(x) ? 0x8000u : 0, ends = 0x7FFFu & ~(hidden - 1);
  if (isnan(x)) return (uint16_t)(ends | hidden >> 1);
  if (isinf(size)) return (uint16_t)(sign | ends);
  if (size == 0) return (uint16_t)sign;
  const int exponent = ilogb(size) > f->least ? ilogb(size) : f->least;
  const unsigned digits = (unsigned)ldexp(size, f->digits - 1 - exponent);
  const unsigned biased = digits & hidden ? (unsigned)(exponent - f->least + 1) : 0;
  return (uint16_t)(sign | biased << (f->digits - 1) | (digits & (hidden - 1)));
}

double mhagen_of_bits(const char *type, uint16_t bits) {
  const format *f = format_of(type);
  const unsigned hidden = 1u << (f->digits - 1), ends = 0x7FFFu & ~(hidden - 1), size = bits & 0x7FFFu;
  const int biased = (int)(size / hidden);
  if (size > ends) return NAN;
  const double digits = (double)(size % hidden + (biased ? hidden : 0));
  const double x = size == ends ? INFINITY : ldexp(digits, (biased ? biased - 1 : 0) + f->least - (f->digits - 1));
  return bits & 0x8000u ? -x : x;
}

static double distance(double a, double b) { return a == b ? 0 : fabs(a - b); }

/* By how much a product may be off whose one factor is of this size and whose other one may be off. What may be
 * infinite may be NaN times anything; what is infinite is so, or NaN, times anything. */
static double times(double size, double off) {
  return off == INFINITY ? off : size == 0 || off == 0 || size == INFINITY ? 0 : size * off;
}

/* Numbers, and by how much those of a kernel may be off: without limit where they may be infinite, or NaN, or not, for
 * an operand is as near as float32's errors to where its type ends. */
typedef struct inexact {
  double *x, *off;
} inexact;

static inexact from(inexact a, size_t at) { return (inexact){a.x + at, a.off + at}; }

/* By how much what x is rounded to may be off, if x is. */
static double off_rounded(const format *f, double x, double off) {
  if (!f || !isfinite(x)) return off;
  return fmax(distance(nearest(f, x - off), nearest(f, x)), distance(nearest(f, x + off), nearest(f, x)));
}

static void round_all(const format *f, double scale, inexact a, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const double x = a.x[i] * scale;
    a.off[i] = off_rounded(f, x, a.off[i] * scale + (scale == 1 ? 0 : 2 * FLOAT_UNIT * fabs(x)));
    a.x[i] = nearest(f, x);
  }
}

/* One head of a row, as integers times a scale: each may be the one beside it, and the scale is off as the largest
 * magnitude is. */
static void quantize_kept(inexact a, size_t count) {
  double most = 0, off_most = 0;
  int finite = 1, any = 0;
  for (size_t i = 0; i < count; i++) {
    finite &= isfinite(a.x[i]) != 0, any |= a.off[i] == INFINITY;
    most = fmax(most, fabs(a.x[i])), off_most = fmax(off_most, a.off[i]);
  }
  const double off_part = 8 * FLOAT_UNIT, scale = most / 127, off_scale = off_most / 127,
               least = fmax(0, scale - off_scale) * (1 - off_part), top = (scale + off_scale) * (1 + off_part);
  for (size_t i = 0; i < count; i++) {
    if (!finite || any) {
      a.x[i] = NAN, a.off[i] = finite || any ? INFINITY : 0;
      continue;
    }
    const double steps = scale > 0 ? rint(a.x[i] / scale) : 0, x = steps * scale;
    /* Steps from those of the smallest number over the largest scale to those of the opposite. */
    const double low = fabs(a.x[i]) - a.off[i], high = fabs(a.x[i]) + a.off[i],
                 down = top > 0 ? rint(low * (1 - off_part) / top) * least : 0,
                 up = least > 0 ? fmin(rint(high * (1 + off_part) / least), 127) * top : high;
    a.off[i] = scale == 0 && off_most == 0 ? 0 : fmax(fabs(x) - down, up - fabs(x)) + 0x1p-100;
    a.x[i] = x;
  }
}

/* Rows of so many heads as a cache has them. */
static void round_kept(const mhagen_kernel *shape, inexact a, size_t heads, size_t width) {
  const char *type = cache_type(shape);
  const format *f = format_of(type);
  round_all(f, 1, a, heads * width);
  for (size_t i = 0; i < heads && is_int8(type); i++) quantize_kept(from(a, i * width), width);
}

/* What a kernel makes of a sum of so many products, whose magnitudes sum to size. */
static double off_sum(double sum, size_t steps, double size, double off) {
  return isfinite(sum) ? off + ((double)steps + 16) * FLOAT_UNIT * size : off;
}

#define STEPS 127        /* of integers, to either side */
#define LEAST_LARGEST 0x1p-100 /* of a row: of smaller numbers no scale has an inverse */

/* A row of an input as integers times its scale, which is NaN where a number is not finite. */
static void quantize(const float *x, size_t count, inexact to) {
  float most = (float)LEAST_LARGEST;
  int finite = 1;
  for (size_t i = 0; i < count; i++) most = fmaxf(most, fabsf(x[i])), finite &= isfinite(x[i]) != 0;
  const float inverse = STEPS / most, scale = most / STEPS;
  for (size_t i = 0; i < count; i++) {
    const float scaled = x[i] * inverse;
    to.x[i] = finite ? (double)rintf(scaled) * (double)scale : NAN, to.off[i] = 0;
  }
}

/* The integer of a number where the largest is as given. */
static double integer_of(double x, double largest) { return rint(fmin(fmax(x * STEPS / largest, -STEPS), STEPS)); }

/* By how much an integer times the scale of a row may be off from `value`, where the number is from first to last and
 * the largest from low to high: no integer is half a step from its number, and one alone is off by the scale only. */
static double off_quantized(double first, double last, double low, double high, double value) {
  const double least = integer_of(first, first > 0 ? high : low), most = integer_of(last, last > 0 ? low : high);
  double bottom = least * (least > 0 ? low : high) / STEPS, top = most * (most > 0 ? high : low) / STEPS;
  if (least < most) bottom = fmax(bottom, first - high / (2 * STEPS)), top = fmin(top, last + high / (2 * STEPS));
  return fmax(top - value, value - bottom) * (1 + 4 * FLOAT_UNIT) + 4 * FLOAT_UNIT * fabs(value);
}

/* The same of a row that may be off, as may its largest number then. */
static void quantize_inexact(inexact a, size_t count) {
  double most = LEAST_LARGEST, low = most, high = most;
  int finite = 1, sure = 1;
  for (size_t i = 0; i < count; i++) {
    const double x = fabs(a.x[i]), off = a.off[i];
    if (off == INFINITY) sure = 0;
    else if (!isfinite(x)) finite = 0;
    else most = fmax(most, x), low = fmax(low, x - off), high = fmax(high, x + off);
  }
  for (size_t i = 0; i < count; i++) {
    const double x = a.x[i], value = rint(x * STEPS / most) * most / STEPS;
    const double more = a.off[i] + 4 * FLOAT_UNIT * fabs(x), off = off_quantized(x - more, x + more, low, high, value);
    a.x[i] = finite ? value : NAN, a.off[i] = finite && !sure ? INFINITY : finite ? off : 0;
  }
}

typedef struct matrix {
  const double *at;
  size_t row, column; /* steps */
} matrix;

/* The nearest half precision, as `nearest` has it, but in less time. */
static double half_of(double x) {
  uint64_t bits;
  if (!(fabs(x) >= 0x1p-14)) return rint(x * 0x1p24) * 0x1p-24;
  if (!(fabs(x) < 65520)) return isnan(x) ? x : copysign(INFINITY, x);
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + ((UINT64_C(1) << 41) - 1) + (bits >> 42 & 1)) >> 42 << 42;
  memcpy(&x, &bits, sizeof x);
  return x;
}

enum { BLOCK_NUMBERS = 16, SPAN_NUMBERS = 64 }; /* that sums of half precision are of */

/* A sum of products in half precision: those of even and of odd numbers by themselves, of blocks, of spans of these;
 * and of spans as float32. The products and a sum with one are exact in double, or nearly so. */
static double coarse_sum(const double *a, size_t steps, matrix w, size_t o) {
  double totals[2] = {0, 0};
  for (size_t span = 0; span < steps; span += SPAN_NUMBERS) {
    const size_t span_end = span + SPAN_NUMBERS < steps ? span + SPAN_NUMBERS : steps;
    double sums[2] = {0, 0};
    for (size_t block = span; block < span_end; block += BLOCK_NUMBERS) {
      const size_t end = block + BLOCK_NUMBERS < span_end ? block + BLOCK_NUMBERS : span_end;
      double own[2] = {0, 0};
      for (size_t i = block; i < end; i++) own[i % 2] = half_of(own[i % 2] + a[i] * w.at[i * w.row + o * w.column]);
      for (int half = 0; half < 2; half++) sums[half] = half_of(sums[half] + own[half]);
    }
    totals[0] += sums[0], totals[1] += sums[1];
  }
  return totals[0] + totals[1];
}

/* y[r * ld + o] of so many columns from a row a of the matrix w; coarse: sums are of half precision. What is not finite
 * then is made again in float32. */
static void multiply(inexact a, size_t steps, matrix w, const double *bias, inexact y, size_t columns, int coarse) {
  int exact = 1;
  for (size_t i = 0; i < steps; i++) exact &= a.off[i] == 0;
  for (size_t o = 0; o < columns; o++) {
    double sum = bias ? bias[o] : 0, size = fabs(sum), off = 0;
    for (size_t i = 0; i < steps; i++) {
      const double weight = w.at[i * w.row + o * w.column];
      sum += a.x[i] * weight;
      size += fabs(a.x[i] * weight);
      off += times(fabs(weight), a.off[i]);
    }
    const double own = coarse ? coarse_sum(a.x, steps, w, o) + (bias ? bias[o] : 0) : sum;
    if (isfinite(own)) sum = own;
    /* Of operands that may be others each rounding may be another one; and so may be whether it is finite. */
    if (coarse && !exact) off += 2 * (BLOCK_NUMBERS / 2 + SPAN_NUMBERS / BLOCK_NUMBERS) * 0x1p-11 * size;
    if (coarse && !exact) off += 2 * (double)steps * 0x1p-24;
    y.x[o] = sum, y.off[o] = off_sum(sum, steps, size, off);
  }
}

/* A norm of n columns; see norm. */
static void norm_inexact(const mhagen_kernel *shape, size_t n, inexact a) {
  const double count = shape->qk_norm == MHAGEN_NORM_L2 ? 1 : (double)n, steps = (double)n + 16;
  double mean = 0, mean_size = 0, off = 0, squares = 0, off_squares = 0;
  for (size_t i = 0; i < n && shape->qk_norm == MHAGEN_NORM_LAYER; i++) {
    mean += a.x[i] / (double)n, mean_size += fabs(a.x[i]) / (double)n, off += a.off[i] / (double)n;
  }
  if (isfinite(mean)) off += steps * FLOAT_UNIT * mean_size;
  for (size_t i = 0; i < n; i++) {
    a.x[i] -= mean, a.off[i] += off;
    squares += a.x[i] * a.x[i], off_squares += a.off[i] * a.off[i];
  }
  double length = shape->qk_norm == MHAGEN_NORM_L2 ? at_least(shape->norm_eps, sqrt(squares))
                                                   : sqrt(squares / count + shape->norm_eps);
  if (squares > FLT_MAX * .999) length = INFINITY;
  const int unsure = squares > FLT_MAX * .999 && squares < FLT_MAX * 1.001;
  const double off_length = sqrt(off_squares / count) + (isfinite(length) ? steps * FLOAT_UNIT * length : 0);
  for (size_t i = 0; i < n; i++) {
    const double x = a.x[i] / length, least = length - off_length;
    const int any = unsure || (isfinite(length) && !(least > 0));
    if (any && off_length < INFINITY) a.off[i] = 2 * sqrt(count); /* no norm makes more */
    else if (any) a.off[i] = INFINITY;
    else if (isfinite(length)) a.off[i] = (a.off[i] + times(fabs(x), off_length)) / least + 8 * FLOAT_UNIT * fabs(x);
    a.x[i] = x;
  }
}

static void norms_inexact(const mhagen_kernel *shape, const float *gains, size_t rows, size_t heads, inexact a) {
  const size_t all = shape->norm_span == MHAGEN_SPAN_ALL, dk = (size_t)shape->dk, n = all ? heads * dk : dk;
  if (!(shape->options & MHAGEN_QK_NORM)) return;
  for (size_t at = 0; at < rows * heads * dk; at += n) {
    norm_inexact(shape, n, from(a, at));
    const float *own = gains && shape->norm_span == MHAGEN_SPAN_EACH ? gains + at % (heads * dk) : gains;
    for (size_t i = 0; gains && i < n; i++) {
      a.x[at + i] *= (double)own[i];
      a.off[at + i] = times(fabs((double)own[i]), a.off[at + i]);
    }
  }
}

/* Turns a row; each of a pair takes its part of the other's error, and of float32's roundings of both. */
static void turn_inexact(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, size_t heads,
                         inexact a) {
  const size_t width = heads * (size_t)shape->dk;
  if (!(shape->options & MHAGEN_ROPE)) return;
  for (size_t i = 0; i < width; i++) {
    if (isfinite(a.x[i])) a.off[i] += 8 * FLOAT_UNIT * fabs(a.x[i]);
  }
  turn_row(shape, w, place, heads, 0, a.x);
  turn_row(shape, w, place, heads, 1, a.off);
  for (size_t i = 0; i < width; i++) {
    if (isnan(a.off[i])) a.off[i] = INFINITY; /* times zero */
  }
}

/* Rows of an input that are multiplied. */
static void take_inexact(const float *x, size_t rows, const format *f, int quantized, size_t columns, inexact to) {
  for (size_t i = 0; i < rows && quantized; i++) quantize(x + i * columns, columns, from(to, i * columns));
  if (quantized) return;
  for (size_t i = 0; i < rows * columns; i++) to.x[i] = nearest(f, (double)x[i]), to.off[i] = 0;
}

/* See take. */
static void take_heads(const extents *e, const float *x, size_t all, size_t rows, size_t heads, size_t width,
                       inexact to) {
  take(e, x, all, rows, heads, width, to.x);
  for (size_t i = 0; i < rows * heads * width; i++) to.off[i] = 0;
}

/* What is there for all batch entries. */
typedef struct rounding {
  const mhagen_kernel *shape;
  extents e;
  const format *own, *attend;
  int quantized; /* operands of projections */
  int coarse; /* their sums */
  mhagen_weights given;
  numbers x;
  double *w[4], *b[4]; /* wq, wk, wv, wo as [in][out], rounded, and not; biases */
  double *exact[4], *merged, *masks;
  void *rooms[64];
  int used, short_of_memory;
} rounding;

static double *room_for(rounding *r, size_t count) {
  double *room = calloc(count + 1, sizeof *room);
  if (!room || r->used == 64) r->short_of_memory = 1;
  else r->rooms[r->used++] = room;
  return room;
}

static inexact inexact_room(rounding *r, size_t count) {
  const inexact room = {room_for(r, count), room_for(r, count)};
  return room;
}

/* The scale of least squares for the numbers of a column that share it, of int4, whose largest one over -8 is `own`;
 * docs/quantized.md has the rule. */
static float searched_scale(const double *w, size_t count, size_t apart, float own) {
  double best = 0, scale = 1;
  for (double below = 7; below < 10; below += .25) {
    double products = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
      const double x = floor(fmax(-8, fmin(8, w[i * apart] / (double)own)) * 1024 + .5) / 1024;
      const double integer = fmax(-8, fmin(7, floor(x * below / 8 + .5)));
      products += integer * x, squares += integer * integer;
    }
    if (squares > 0 && products * products / squares > best) {
      best = products * products / squares, scale = products / squares;
    }
  }
  return (float)(scale * (double)own);
}

/* Weights as integers times a scale, [in][out]. */
static void quantize_weights(const char *quants, size_t group, size_t in, size_t out, double *w) {
  const int nibbles = !strcmp(quants, "int4");
  const double most = nibbles ? 7 : 127, least = nibbles ? -8 : -127;
  for (size_t first = 0; first < in; first += group) {
    const size_t end = first + group < in ? first + group : in;
    for (size_t o = 0; o < out; o++) {
      float scale = 0;
      for (size_t i = first; i < end; i++) {
        const float own = (float)(w[i * out + o] / least);
        if (!isnan(scale) && !(fabsf(own) <= fabsf(scale))) scale = nibbles ? own : fabsf(own);
      }
      if (nibbles && isfinite(scale) && scale != 0)
        scale = searched_scale(w + first * out + o, end - first, out, scale);
      for (size_t i = first; i < end; i++) {
        double *const at = w + i * out + o;
        if (!isfinite(scale)) *at = NAN;
        else if (scale == 0) *at = 0;
        else *at = fmax(least, fmin(most, rint(*at / (double)scale))) * (double)scale;
      }
    }
  }
}

static void take_weights(rounding *r, int i, const float *w, const float *b, size_t in, size_t out) {
  const int flipped = r->given.layout == MHAGEN_OUT_IN;
  const char *quants = i == 2 ? quants_of_values(r->shape) : quants_of(r->shape);
  r->w[i] = room_for(r, in * out), r->exact[i] = room_for(r, in * out), r->b[i] = room_for(r, out);
  for (size_t j = 0; j < in * out && w && !r->short_of_memory; j++) {
    r->exact[i][j] = (double)(flipped ? w[j % out * in + j / out] : w[j]);
    r->w[i][j] = quants ? r->exact[i][j] : nearest(r->own, r->exact[i][j]);
  }
  if (quants && w && !r->short_of_memory) {
    quantize_weights(quants, rows_of_scale(r->shape, quants, in), in, out, r->w[i]);
  }
  for (size_t j = 0; j < out && b && !r->short_of_memory; j++) r->b[i][j] = (double)b[j];
}

/* As a kernel reads what packing made of a sum in double, and float32 at first. */
static double nearest_packed(const format *f, double x) { return nearest(f, (double)(float)x); }

/* a[rows][cols] times columns of b, transposed or not, of a head. */
static void product_of_weights(const double *a, size_t rows, size_t lda, size_t inner, matrix b, size_t columns,
                               double *to) {
  for (size_t r = 0; r < rows; r++) {
    for (size_t o = 0; o < columns; o++) {
      double sum = 0;
      for (size_t i = 0; i < inner; i++) sum += a[r * lda + i] * b.at[i * b.row + o * b.column];
      to[r * columns + o] = sum;
    }
  }
}

static double largest_of(const double *x, size_t count) {
  double most = 0;
  for (size_t i = 0; i < count; i++) {
    if (isfinite(x[i])) most = fmax(most, fabs(x[i]));
  }
  return most;
}

/* Rows of an input by one of the matrices for q, k, v. The errors of products of quadrants are those of the largest
 * elements: Higham, Accuracy and stability of numerical algorithms, 2002, chapter 23. */
static void project_inexact(const rounding *r, int i, size_t rows, const double *bias, inexact x, inexact y) {
  const extents *e = &r->e;
  const size_t widths[] = {e->d, e->k_width, e->v_width}, heads[] = {e->h * e->dk, e->h_kv * e->dk, e->h_kv * e->dv},
               in = widths[i], out = heads[i];
  for (size_t row = 0; row < rows; row++)
    multiply(from(x, row * in), in, (matrix){r->w[i], out, 1}, bias, from(y, row * out), out, r->coarse);
  if (!(r->shape->options & MHAGEN_STRASSEN)) return;
  const double size = (double)in * largest_of(x.x, rows * in) * largest_of(r->w[i], in * out);
  for (size_t j = 0; j < rows * out; j++) {
    if (isfinite(y.x[j])) y.off[j] += 4 * ((double)in + 16) * FLOAT_UNIT * size;
  }
}

typedef struct operands {
  inexact q, k, v;
  size_t depth, breadth, k_heads, v_heads; /* columns of a head; those that rows of k and v have */
} operands;

/* Of one batch entry. */
static void make_operands(rounding *r, size_t entry, operands *o) {
  const mhagen_kernel *shape = r->shape;
  const extents *e = &r->e;
  const unsigned folds = shape->folds;
  const int absorbs = (folds & MHAGEN_FOLD_ABSORB_K) != 0, merges = (folds & MHAGEN_FOLD_MERGE_K) != 0;
  const size_t hq = e->h * e->dk, hk = e->h_kv * e->dk, share = e->h / e->h_kv;
  const float *qx = r->x.qx + entry * e->n * e->q_width, *kx = r->x.kx + entry * e->m * e->k_width,
              *vx = r->x.vx + entry * e->m * e->v_width;
  const size_t widest = e->q_width + e->k_width + e->v_width + hq;
  const inexact x = inexact_room(r, (e->n + e->m) * widest);
  o->depth = absorbs || merges ? e->k_width : e->dk, o->k_heads = absorbs || merges ? 1 : e->h_kv;
  o->breadth = folds & (MHAGEN_FOLD_ABSORB_V | MHAGEN_FOLD_MERGE_V) ? e->v_width : e->dv;
  o->v_heads = o->breadth == e->v_width && folds & (MHAGEN_FOLD_ABSORB_V | MHAGEN_FOLD_MERGE_V) ? 1 : e->h_kv;
  const inexact q = inexact_room(r, e->n * hq);
  o->q = merges || absorbs ? inexact_room(r, e->n * e->h * o->depth) : q;
  o->k = inexact_room(r, e->m * o->k_heads * o->depth), o->v = inexact_room(r, e->m * o->v_heads * o->breadth);
  double *merged = room_for(r, merges ? e->d * e->k_width : 0), *bias = room_for(r, e->k_width);
  if (r->short_of_memory) return;

  if (projects(e, MHAGEN_PROJECT_Q)) {
    take_inexact(qx, e->n, r->own, r->quantized, e->d, x);
    project_inexact(r, 0, e->n, r->b[0], x, q);
  } else {
    take_heads(e, qx, e->n, e->n, e->h, e->dk, q);
  }
  norms_inexact(shape, r->given.q_norm, e->n, e->h, q);
  for (size_t i = 0; i < e->n; i++) turn_inexact(shape, &r->given, e->place + (ptrdiff_t)i, e->h, from(q, i * hq));
  if (absorbs) round_all(r->own, 1, q, e->n * hq);
  for (size_t head = 0; head < e->h && (absorbs || merges); head++) {
    const size_t first = head / share * e->dk;
    const matrix flipped = {r->w[1] + first, 1, hk}, exact = {r->exact[1] + first, 1, hk};
    if (merges) {
      product_of_weights(r->exact[0] + head * e->dk, e->d, hq, e->dk, exact, e->k_width, merged);
      for (size_t i = 0; i < e->d * e->k_width; i++) merged[i] = nearest_packed(r->own, merged[i]);
      product_of_weights(r->b[0] + head * e->dk, 1, hq, e->dk, exact, e->k_width, bias);
    }
    for (size_t i = 0; i < e->n; i++) {
      const inexact to = from(o->q, (i * e->h + head) * o->depth);
      if (merges) multiply(from(x, i * e->d), e->d, (matrix){merged, e->k_width, 1}, bias, to, o->depth, r->coarse);
      else multiply(from(q, i * hq + head * e->dk), e->dk, flipped, NULL, to, o->depth, r->coarse);
    }
  }
  round_all(r->attend, shape->scale * LOG2E, o->q, e->n * e->h * o->depth);

  if (absorbs || merges) {
    take_inexact(kx, e->made, NULL, 0, e->k_width, o->k);
  } else if (projects(e, MHAGEN_PROJECT_K)) {
    take_inexact(kx, e->made, r->own, r->quantized, e->k_width, x);
    project_inexact(r, 1, e->made, folds & MHAGEN_FOLD_BK ? NULL : r->b[1], x, o->k);
  } else {
    take_heads(e, kx, e->m, e->made, e->h_kv, e->dk, o->k);
  }
  norms_inexact(shape, r->given.k_norm, e->made, e->h_kv, o->k);
  for (size_t i = 0; i < e->made; i++) turn_inexact(shape, &r->given, (ptrdiff_t)i, e->h_kv, from(o->k, i * hk));
  round_kept(shape, o->k, e->made * o->k_heads, o->depth);
  round_all(r->attend, 1, o->k, e->made * o->k_heads * o->depth);

  if (o->v_heads == 1 && folds & (MHAGEN_FOLD_ABSORB_V | MHAGEN_FOLD_MERGE_V)) {
    take_inexact(vx, e->made, NULL, 0, e->v_width, o->v);
  } else if (projects(e, MHAGEN_PROJECT_V)) {
    take_inexact(vx, e->made, r->own, r->quantized, e->v_width, x);
    project_inexact(r, 2, e->made, folds & MHAGEN_FOLD_BV ? NULL : r->b[2], x, o->v);
  } else {
    take_heads(e, vx, e->m, e->made, e->h_kv, e->dv, o->v);
  }
  round_kept(shape, o->v, e->made * o->v_heads, o->breadth);
  round_all(r->attend, 1, o->v, e->made * o->v_heads * o->breadth);
}

/* 2^x as kernels with MHAGEN_FOLD_POWERS make it, which never falls with x: twice the bits of a bfloat16, in which the
 * fraction of x stands for 2^fraction - 1, and of which a table corrects each four. Below 2^-126 it counts as zero. */
static double power_of_two(double x) {
  const double most = 2 * 0x7F80, fixed = rint(256 * (x + 127) - 23.5);
  const int twice = (int)(fixed < most ? fmax(fixed, 0) : most), place = twice / 4 % 64;
  const double part = fmod((4 * place + 25) / 256.0, 1), looked_up = floor(23.5 + 256 * (exp2(part) - 1 - part));
  const double power = mhagen_of_bits("bf16", (uint16_t)((twice + (int)looked_up + 1) / 2));
  return power < 0x1p-126 ? 0 : power;
}

/* The weights of a row and head, times a power of two, of the scores in `s` less `apart`. Returns their sum. What is
 * far below the largest has fewer digits where the type has no small numbers, still fewer where the largest is
 * guessed. */
static double weights_inexact(const rounding *r, inexact s, double apart, double sink, double *sum_off) {
  const extents *e = &r->e;
  const int guessed = (r->shape->options & (MHAGEN_ALIBI | MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD)) != 0;
  const int least = r->attend ? r->attend->least : -126;
  const double lost = ldexp(1, least - (r->attend ? r->attend->digits : 24)), far = ldexp(1, least + 1);
  /* Keys that are inputs: where one is infinite, so would be numbers of a projected key, of either sign. */
  const int tested = r->shape->folds & (MHAGEN_FOLD_ABSORB_K | MHAGEN_FOLD_MERGE_K) &&
                     r->shape->options & MHAGEN_CROSS;
  double most = sink, sum = 0, off = 0;
  for (size_t j = e->first; j < e->end; j++) {
    if (tested && isinf(s.x[j])) s.x[j] = NAN;
    if (e->sees[j] && s.x[j] > most) most = s.x[j];
  }
  /* Scores less the largest one, and what that is beyond an integer, so that huge scores that are equal differ by
   * nothing, with fused products too. */
  const double top = (most - apart) * LOG2E, rest = isfinite(top) ? remainder(top, 1) : 0;
  for (size_t j = e->first; j < e->end; j++) {
    if (!e->sees[j]) {
      s.x[j] = s.off[j] = 0;
      continue;
    }
    const double log2_p = (s.x[j] - most) * LOG2E + rest, p = exp2(log2_p),
                 part = s.off[j] == INFINITY ? INFINITY : fmin(expm1(s.off[j]), 1e30) + 8 * FLOAT_UNIT;
    const int powers = (r->shape->folds & MHAGEN_FOLD_POWERS) != 0 && isfinite(p);
    const double off_log2 = s.off[j] * LOG2E + 0x1p-15; /* of numbers in fixed point as float32 */
    s.x[j] = powers ? power_of_two(log2_p) : nearest(r->attend, p);
    const double least_p = p / (1 + part), most_p = p + times(p, part);
    if (part == INFINITY) {
      s.off[j] = INFINITY;
    } else if (powers) {
      s.off[j] = fmax(s.x[j] - power_of_two(log2_p - off_log2), power_of_two(log2_p + off_log2) - s.x[j]);
      if (p < LEAST_WEIGHT) s.off[j] += p;
    } else if (isfinite(p)) {
      const double down = distance(nearest(r->attend, least_p), s.x[j]),
                   up = distance(nearest(r->attend, most_p), s.x[j]);
      s.off[j] = r->attend ? fmax(down, up) : times(p, part);
      if (p < LEAST_WEIGHT) s.off[j] += p; /* the largest score may be far below a kernel's maximum */
    } else {
      s.off[j] = 0;
    }
    sum += s.x[j], off += s.off[j];
  }
  if (sink != -INFINITY) {
    const double p = exp2((sink - most) * LOG2E + rest);
    sum += p, off += p * 16 * FLOAT_UNIT * (1 + fabs(sink));
  }
  /* A maximum that is guessed may be so far above that a sum is that small. */
  const double smaller = guessed ? 256 * fmax(sum, 1) : 1;
  for (size_t j = e->first; j < e->end; j++) {
    if (!e->sees[j] || !(s.x[j] < far * smaller)) continue;
    s.off[j] += 2 * lost * smaller, off += 2 * lost * smaller;
  }
  *sum_off = off_sum(sum, e->end - e->first, sum, off);
  return sum;
}

/* The scores that a row sees in a head. Sums start at the maximum or less, whose size is a part of each error. */
static void scores_inexact(const rounding *r, const operands *o, spot at, size_t row, inexact s) {
  const extents *e = &r->e;
  const size_t head = row % e->h, steps = o->depth + 16, of_head = o->k_heads == 1 ? 0 : head / (e->h / e->h_kv);
  const inexact q = from(o->q, row * o->depth);
  double largest = 0, sink = sink_of(r->shape, &r->given, head);
  for (size_t j = e->first; j < e->end; j++) {
    const inexact k = from(o->k, (j * o->k_heads + of_head) * o->depth);
    double sum = 0, size = 0, off = 0;
    for (size_t i = 0; i < o->depth; i++) {
      sum += q.x[i] * k.x[i], size += fabs(q.x[i] * k.x[i]);
      off += times(fabs(q.x[i]), k.off[i]) + times(fabs(k.x[i]), q.off[i]) + times(q.off[i], k.off[i]);
    }
    at.key = j, at.mask = r->masks[j];
    s.x[j] = changed(&at, sum / LOG2E);
    size = changed_size(&at, size / LOG2E);
    s.off[j] = off_sum(s.x[j], steps, size, changed_off(&at, off / LOG2E));
    if (e->sees[j] && isfinite(size) && s.x[j] > -1e6) largest = fmax(largest, size);
  }
  if (isfinite(sink)) largest = fmax(largest, fabs(sink));
  for (size_t j = e->first; j < e->end; j++) s.off[j] += (double)steps * FLOAT_UNIT * largest;
}

/* By how much a quotient with a sum may be off, which is a mean or a part of one: at most so much. */
static double shared(double off, double sum, double sum_off, double most) {
  if (off == INFINITY || sum_off == INFINITY) return INFINITY;
  return off == 0 ? 0 : sum_off < sum ? fmin(off / (sum - sum_off), most) : most;
}

/* The context of a row and head. */
static void context_inexact(const rounding *r, const operands *o, size_t head, inexact p, double sum, double sum_off,
                            inexact to) {
  const extents *e = &r->e;
  const size_t of_head = o->v_heads == 1 ? 0 : head / (e->h / e->h_kv), keys = e->end - e->first;
  int none = 1; /* whatever a sink is */
  for (size_t j = e->first; j < e->end; j++) none &= !e->sees[j];
  for (size_t c = 0; c < o->breadth; c++) {
    double x = 0, size = 0, off = 0, most = 0;
    for (size_t j = e->first; j < e->end; j++) {
      const size_t at = (j * o->v_heads + of_head) * o->breadth + c;
      const double v = fabs(o->v.x[at]), v_off = o->v.off[at];
      if (!e->sees[j]) continue;
      x += p.x[j] * o->v.x[at], size += p.x[j] * v;
      off += times(v, p.off[j]) + times(p.x[j], v_off) + times(p.off[j], v_off);
      if (isfinite(v + v_off)) most = fmax(most, v + v_off);
    }
    to.x[c] = none || sum == 0 ? 0 : x / sum;
    off = off_sum(x, keys, size, off) + times(fabs(to.x[c]), sum_off);
    to.off[c] = none || sum == 0 ? 0 : shared(off, sum, sum_off, 4 * most);
  }
}

/* The matrices that contexts are multiplied by, and the biases of y. */
static void make_output(rounding *r) {
  const extents *e = &r->e;
  const size_t hv = e->h_kv * e->dv, share = e->h / e->h_kv;
  const int merges = (r->shape->folds & MHAGEN_FOLD_MERGE_V) != 0;
  r->merged = room_for(r, merges ? e->h * e->v_width * e->y_width : 0);
  double *bias = room_for(r, e->y_width);
  if (r->short_of_memory) return;
  for (size_t head = 0; head < e->h; head++) {
    const matrix wo = {r->exact[3] + head * e->dv * e->y_width, e->y_width, 1};
    const size_t first = head / share * e->dv;
    double *of_head = r->merged + head * e->v_width * e->y_width;
    if (merges) product_of_weights(r->exact[2] + first, e->v_width, hv, e->dv, wo, e->y_width, of_head);
    if (!(r->shape->folds & MHAGEN_FOLD_BV)) continue;
    product_of_weights(r->b[2] + first, 1, hv, e->dv, wo, e->y_width, bias);
    for (size_t i = 0; i < e->y_width; i++) r->b[3][i] += bias[i];
  }
  const size_t count = merges ? e->h * e->v_width * e->y_width : 0;
  for (size_t i = 0; i < count; i++) r->merged[i] = nearest_packed(r->own, r->merged[i]);
}

/* A row of y, or its heads, from the contexts. */
static void output_inexact(const rounding *r, const operands *o, inexact context, inexact applied, inexact y) {
  const extents *e = &r->e;
  const unsigned folds = r->shape->folds;
  const size_t hv = e->h_kv * e->dv;
  if (folds & (MHAGEN_FOLD_ABSORB_V | MHAGEN_FOLD_MERGE_V)) round_all(r->own, 1, context, e->h * o->breadth);
  if (folds & MHAGEN_FOLD_MERGE_V) {
    multiply(context, e->h * o->breadth, (matrix){r->merged, e->y_width, 1}, r->b[3], y, e->y_width, r->coarse);
    return;
  }
  for (size_t head = 0; head < e->h && folds & MHAGEN_FOLD_ABSORB_V; head++) {
    const size_t first = head / (e->h / e->h_kv) * e->dv;
    multiply(from(context, head * o->breadth), o->breadth, (matrix){r->w[2] + first, hv, 1},
             folds & MHAGEN_FOLD_BV ? NULL : r->b[2] + first, from(applied, head * e->dv), e->dv, r->coarse);
  }
  if (folds & MHAGEN_FOLD_ABSORB_V) context = applied;
  if (projects(e, MHAGEN_PROJECT_O)) {
    if (r->quantized) quantize_inexact(context, e->h * e->dv);
    else round_all(r->own, 1, context, e->h * e->dv);
    multiply(context, e->h * e->dv, (matrix){r->w[3], e->y_width, 1}, r->b[3], y, e->y_width, r->coarse);
    return;
  }
  memcpy(y.x, context.x, e->h * e->dv * sizeof *y.x), memcpy(y.off, context.off, e->h * e->dv * sizeof *y.off);
}

static void write_row(const rounding *r, const mhagen_results *to, size_t entry, size_t row, inexact y) {
  const extents *e = &r->e;
  round_all(format_of(r->shape->io_dtype), 1, y, e->y_width);
  for (size_t i = 0; i < e->y_width; i++) {
    size_t at = row * e->y_width + i;
    if (!projects(e, MHAGEN_PROJECT_O)) at = lies(e, e->n, e->h, row, i / e->dv) * e->dv + i % e->dv;
    to->y[entry * e->n * e->y_width + at] = y.x[i];
    to->y_off[entry * e->n * e->y_width + at] = y.off[i];
  }
}

static void entry_rounded(rounding *r, const mhagen_args *args, const mhagen_results *to, size_t entry) {
  const mhagen_kernel *shape = r->shape;
  extents *e = &r->e;
  operands o;
  start_entry(shape, args, entry, e);
  make_operands(r, entry, &o);
  const inexact p = inexact_room(r, e->m), y = inexact_room(r, e->y_width), applied = inexact_room(r, e->h * e->dv),
                context = inexact_room(r, e->h * o.breadth);
  for (size_t i = 0; i < e->n && !r->short_of_memory; i++) {
    const int asked = i < rows_asked(shape, args, entry);
    mhagen_keys_seen(shape, args, entry, i, &e->first, &e->end);
    for (size_t head = 0; head < e->h; head++) {
      double sum_off, *probs = to->probs ? to->probs + ((entry * e->h + head) * e->n + i) * e->m : NULL,
                      *probs_off = to->probs ? to->probs_off + (probs - to->probs) : NULL;
      const double sink = sink_of(shape, &r->given, head);
      const spot at = {shape, args->q + entry * e->n * e->q_width, 0, e->place + (ptrdiff_t)i,
                       slope_of(shape, &r->given, head), 0};
      for (size_t j = e->first; j < e->end; j++) {
        r->masks[j] = mhagen_mask(shape, args, entry, head, i, j);
        e->sees[j] = r->masks[j] == -INFINITY ? 0 : 1;
      }
      scores_inexact(r, &o, at, i * e->h + head, p);
      /* Distances of alibi are to the last key, which is the same for all keys: but not for a sink, nor where
         scores are shown whole. */
      const int whole = (shape->options & MHAGEN_SINK) || shape->scores == MHAGEN_SCORES_MASKED;
      const double to_last = (double)((ptrdiff_t)e->end - 1 - at.place),
                   apart = whole ? 0 : at.slope * to_last;
      const double sum = weights_inexact(r, p, isfinite(apart) ? apart : 0, sink, &sum_off);
      context_inexact(r, &o, head, p, sum, sum_off, from(context, head * o.breadth));
      for (size_t j = 0; j < e->m && probs; j++) {
        const int sees = j >= e->first && j < e->end && e->sees[j] && sum != 0;
        probs[j] = !asked ? NAN : sees ? p.x[j] / sum : 0;
        const double off = sees ? p.off[j] + times(probs[j], sum_off) + 8 * FLOAT_UNIT * p.x[j] : 0;
        probs_off[j] = sees ? shared(off, sum, sum_off, 2) + FLT_MIN : 0;
      }
    }
    output_inexact(r, &o, context, applied, y);
    for (size_t j = 0; j < e->y_width && !asked; j++) y.x[j] = NAN;
    write_row(r, to, entry, i, y);
  }
}

int mhagen_reference_rounded(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                             const mhagen_results *results) {
  rounding r = {.shape = shape, .e = extents_of(shape), .own = format_of(shape->dtype),
                .attend = format_of(attend_type(shape)), .quantized = has_integers(shape), .given = *weights,
                .coarse = shape->sum_dtype != NULL,
                .x = numbers_of(shape, weights, args, NULL)};
  extents *e = &r.e;
  const size_t hq = e->h * e->dk, hk = e->h_kv * e->dk, hv = e->h_kv * e->dv;
  take_weights(&r, 0, weights->wq, weights->bq, e->d, hq);
  take_weights(&r, 1, weights->wk, weights->bk, e->k_width, hk);
  take_weights(&r, 2, weights->wv, weights->bv, e->v_width, hv);
  take_weights(&r, 3, weights->wo, weights->bo, e->h * e->dv, e->y_width);
  r.masks = room_for(&r, e->m);
  e->sees = malloc(e->m);
  if (!e->sees) r.short_of_memory = 1;
  if (!r.short_of_memory) make_output(&r);
  const int common = r.used;
  for (size_t b = 0; b < (size_t)shape->batch && !r.short_of_memory; b++) {
    entry_rounded(&r, args, results, b);
    while (r.used > common) free(r.rooms[--r.used]);
  }
  while (r.used > 0) free(r.rooms[--r.used]);
  free(e->sees);
  return r.short_of_memory ? -1 : 0;
}
