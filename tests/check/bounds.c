/* bounds.c of mhagen: the bounds of bounds.h. They are of sizes, which the steps of reference.c make of the magnitudes
 * of inputs and weights: no sum of these cancels, and each rounding is at most a unit of them. */
#include "bounds.h"
#include "formula.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The size of the largest score of a row: of the sink as far as the weights that it leaves, or its own, are
 * not zero in any case. */
static double beside_sink(double size, double sink) {
  return isfinite(sink) ? fmax(size, fmin(fabs(sink), size + 128)) : size;
}

double ref_changed_size(const spot *at, double s) {
  const mhagen_kernel *shape = at->shape;
  const float *x = at->x;
  const size_t key = at->key;
  (void)shape, (void)x, (void)key;
  if (shape->options & MHAGEN_ALIBI) s += fabs(ref_alibi(at));
  return MHAGEN_SCORE_SIZE(s + fabs(at->mask));
}

double ref_changed_off(const spot *at, double s) {
  const mhagen_kernel *shape = at->shape;
  const float *x = at->x;
  const size_t key = at->key;
  (void)shape, (void)x, (void)key;
  return isfinite(s) ? MHAGEN_SCORE_SIZE(s) - MHAGEN_SCORE_SIZE(0.0) : s;
}

/* The roundings on the way from an input to a score, and from an input to y: one for each step of a sum, and some
 * more. Each is at most a unit of the sizes. Those of a score reach its weight times the score's size. */
static int score_steps(const mhagen_kernel *shape, int least) {
  const int project = ref_projections(shape);
  int widest = least;
  if (project & MHAGEN_PROJECT_Q && shape->d_model > widest) widest = shape->d_model;
  if (project & MHAGEN_PROJECT_K && shape->k_width > widest) widest = shape->k_width;
  int steps = 16 + widest + shape->dk;
  if (shape->options & MHAGEN_ROPE) steps += 6; /* of Q and of K: a cosine or sine, its product, their sum */
  if (shape->options & MHAGEN_QK_NORM) /* of Q and of K: mean, sum of squares, and what is made of it */
    steps += 2 * (shape->dk * (shape->norm_span == MHAGEN_SPAN_ALL ? shape->h : 1) + 8);
  if (shape->options & MHAGEN_PRE_NORM) steps += shape->d_model + 8;
  return steps;
}

/* The same of a row of y. */
static int row_steps(const mhagen_kernel *shape) {
  const int project = ref_projections(shape),
            norm = shape->options & (MHAGEN_POST_NORM | MHAGEN_BRANCH_NORM) ? shape->y_width + 8 : 0;
  int steps = score_steps(shape, project & MHAGEN_PROJECT_V ? shape->v_width : 0) + shape->seq_kv + norm;
  if (shape->options & MHAGEN_NO_ATTENTION) steps = 32 + norm; /* 16 as everywhere, 16 of an activation function */
  if (shape->options & MHAGEN_NO_ATTENTION && shape->options & MHAGEN_PRE_NORM) steps += shape->d_model + 8;
  if (project & MHAGEN_PROJECT_O) steps += shape->h * shape->dv;
  if (!(shape->options & MHAGEN_FFN)) return steps;
  steps += shape->y_width + shape->ffn + 16 + norm; /* 16: of the activation function, and of what it is times */
  const int of_input = (shape->options & (MHAGEN_PRE_NORM | MHAGEN_FFN_NORM)) && !(shape->options & MHAGEN_PARALLEL);
  return of_input ? steps + shape->y_width + 8 : steps;
}

/* ---- what types of integers make of sizes ---- */

int ref_is_apart(const mhagen_kernel *shape, int i) { return i >= REF_W1 && shape->options & MHAGEN_FFN_DTYPE; }

const char *ref_dtype(const mhagen_kernel *shape, int i) {
  return ref_is_apart(shape, i) ? shape->ffn_dtype : shape->dtype;
}

int ref_has_integers(const mhagen_kernel *shape, int i) {
  const char *type = ref_dtype(shape, i);
  return type && !strcmp(type, "int8");
}

static const char *small_weights(const mhagen_kernel *shape) {
  return shape->options & MHAGEN_WEIGHT_DTYPE ? shape->weight_dtype : NULL;
}

static int is_integer(const char *type) { return type && !strncmp(type, "int", 3); }

const char *ref_quants(const mhagen_kernel *shape, int i) {
  const char *own = small_weights(shape);
  if (i == REF_V && shape->options & MHAGEN_VALUE_WEIGHT_DTYPE) return shape->value_weight_dtype;
  return is_integer(own) ? own : ref_has_integers(shape, i) ? "int8" : NULL;
}

const char *ref_weight_type(const mhagen_kernel *shape, int i) {
  const char *own = small_weights(shape);
  return own && !is_integer(own) ? own : ref_dtype(shape, i);
}

size_t ref_rows_of_scale(const mhagen_kernel *shape, const char *quants, size_t in) {
  const char *own = small_weights(shape);
  return own && !strcmp(quants, own) && shape->group > 0 ? (size_t)shape->group : in;
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

/* In a row of numbers that share a scale the largest stands for all. */
static void spread(double *x, size_t count) {
  double most = 0;
  for (size_t i = 0; i < count; i++) most = fmax(most, x[i]);
  for (size_t i = 0; i < count; i++) x[i] = most;
}

/* ---- a kind of numbers with sizes ---- */

enum { NORMS = 4 }; /* of rows, around attention and the feed-forward */

/* What is there beside the formula. The bounds may be null; without those of y there are no sizes. */
typedef struct bounding {
  float *magnitudes[REF_PRODUCTS]; /* of the weights */
  double *y_bounds, *probs_bounds;
  size_t pieces;                   /* of a row of y that have their own bound */
  double largest, of_row;          /* the largest score, and its size in a row of y */
  double least, squares;           /* the shortest length of a row of Q, or of K, before its norm; the sum of squares */
  double small;                    /* by how much short rows make roundings larger */
  struct { double least, squares, rows; } norms[NORMS]; /* of rows: the shortest one, mean squares, how many */
} bounding;

static void round_sizes(const formula *f, int i, values x) {
  if (x.size && ref_has_integers(f->shape, i)) spread(x.size, f->of[i].inner);
}

static void multiply_sizes(const formula *f, int i, size_t rows, values x, values y) {
  const bounding *b = f->own;
  ref_multiply(f, i, ref_matrix(f, i), rows, x.x, y.x);
  if (y.size) ref_multiply(f, i, b->magnitudes[i], rows, x.size, y.size);
}

/* An error of x reaches the result by x and by the length that x is divided by, in the first order; size becomes what
 * both are, and all that is not below the length itself leaves no digit. */
static void norm_sizes(const formula *f, int i, const norming *by, values x) {
  const mhagen_kernel *shape = f->shape;
  bounding *b = f->own;
  double *const size = x.size;
  const double count = by->kind == MHAGEN_NORM_L2 ? 1 : (double)by->n, mean = ref_mean(by, x.x),
               size_mean = size ? ref_mean(by, size) : 0;
  double squares = 0, size_squares = 0;
  for (size_t c = 0; c < by->n; c++) {
    squares += (x.x[c] - mean) * (x.x[c] - mean);
    if (size) size[c] += size_mean, size_squares += size[c] * size[c];
  }
  const double length = ref_length(by, squares), part = sqrt(size_squares / count) / length,
               steps = (i < REF_PRODUCTS ? score_steps(shape, 0) : row_steps(shape)) + (double)by->n,
               lost = steps * shape->unit * part;
  for (size_t c = 0; c < by->n && size; c++) {
    size[c] = lost < 1 ? (size[c] + fabs(x.x[c] - mean) * part) / length / (1 - lost) : 1e300;
    if (by->gains) size[c] *= fabs((double)by->gains[c]);
    if (by->biases) size[c] += fabs((double)by->biases[c]);
  }
  const double own = ref_dot(x.x, x.x, by->n);
  if (i >= REF_PRODUCTS && isfinite(length) && isfinite(own)) {
    b->norms[i - REF_PRODUCTS].least = fmin(b->norms[i - REF_PRODUCTS].least, length);
    b->norms[i - REF_PRODUCTS].squares += own / (double)by->n, b->norms[i - REF_PRODUCTS].rows++;
  }
  if (i < REF_PRODUCTS) {
    b->least = fmin(b->least, length);
    if (isfinite(length)) b->squares += own;
  }
  ref_norm(f, i, by, x);
}

/* An error of x reaches the result by the slope there, and that of each factor by the other one. */
static void activate_sizes(const formula *f, int which, size_t count, values x, values gate) {
  const mhagen_kernel *shape = f->shape;
  const int act = ref_act_of(shape, which);
  const double part = row_steps(shape) * shape->unit;
  for (size_t c = 0; c < count && x.size; c++) {
    const double size = x.size[c] * ref_act_slope(act, x.x[c], part * x.size[c]);
    x.size[c] = size;
    if (gate.x)
      x.size[c] = fabs(ref_act(act, x.x[c])) * gate.size[c] + (fabs(gate.x[c]) + part * gate.size[c]) * size;
  }
  ref_activate(f, which, count, x, gate);
}

/* By how much the shortest row of Q or K was below the root mean square of all: roundings are larger by so much. */
static void end_norms(formula *f, int i) {
  const mhagen_kernel *shape = f->shape;
  const product *p = &f->of[i];
  bounding *b = f->own;
  const size_t columns = p->heads * p->width, n = shape->norm_span == MHAGEN_SPAN_ALL ? columns : p->width;
  const double mean = b->squares / (double)(p->rows * columns);
  if (shape->options & MHAGEN_QK_NORM && i != REF_V)
    b->small = fmax(b->small, sqrt(mean * (shape->qk_norm == MHAGEN_NORM_L2 ? (double)n : 1)) / b->least);
  b->least = INFINITY, b->squares = 0;
}

/* Of a row and head that a cache keeps as integers, the largest element stands for all. */
static void keep_sizes(formula *f, int i) {
  const product *p = &f->of[i];
  const char *type = f->shape->options & MHAGEN_CACHE_DTYPE ? f->shape->cache_dtype : NULL;
  if (i >= REF_Y) return;
  end_norms(f, i);
  if (i == REF_Q || !p->to.size || !type || strcmp(type, "int8") != 0) return;
  for (size_t head = 0; head < p->rows * p->heads; head++) spread(p->to.size + head * p->width, p->width);
}

/* ---- bounds ---- */

#define LEAST_WEIGHT 0x1p-68 /* a weight of attention below it may be 0: 2^-100 of a sum of 2^-32 */
#define TINY 0x1p-60 /* a weight that roundings of a mask do not make count */

double mhagen_promised_error(const mhagen_kernel *shape, double max_score) {
  /* Scores of int4 err by a tenth of themselves. */
  const char *quants = ref_quants(shape, REF_Q);
  const int nibbles = quants && !strcmp(quants, "int4");
  const int wide = shape->unit <= 0x1p-24;
  const double from = nibbles ? 4 : wide ? 16 : 8;
  /* Each norm of rows adds float32's roundings, which are nothing beside those of another type. */
  const int around = (shape->options & (MHAGEN_PRE_NORM | MHAGEN_POST_NORM)) != 0,
            of_branch = (shape->options & MHAGEN_BRANCH_NORM) != 0,
            of_ffn = (shape->options & MHAGEN_FFN_NORM) != 0;
  const int second = shape->ffn > 0, of_y = second && !(shape->options & MHAGEN_PARALLEL);
  const int norms = wide ? around * (1 + of_y) + of_branch * (1 + second) + of_ffn : 0;
  return shape->error * (1 + norms) * fmax(1, max_score / from);
}

static double row_error(const mhagen_kernel *shape, double score_size) {
  const double error = row_steps(shape) * shape->unit * (1 + score_size);
  /* Weights far below a sink grow or shrink by the power of their scores' error. So do all where weights are
   * quantized. Other rows sum to one. */
  return shape->options & MHAGEN_SINK || is_integer(small_weights(shape)) ? fmin(expm1(error), 1e30) : error;
}

/* Counts the largest score of a query and head. Of a mask that is what counts for a key's weight. */
static void add_largest(formula *f, spot at) {
  const extents *e = &f->e;
  bounding *b = f->own;
  double most = 0;
  int some = 0;
  for (size_t j = e->first; j < e->end; j++) {
    f->mask[j] = f->p.x[j] > TINY && isfinite(f->mask[j]) ? f->mask[j] : 0;
    if (!e->sees[j]) continue;
    double s = fabs(f->score[j]);
    if (isinf(s) && f->shape->options & MHAGEN_SOFTCAP) s = f->shape->softcap;
    at.key = j, at.mask = f->mask[j], some = 1;
    if (isfinite(s)) most = fmax(most, ref_changed_size(&at, s));
  }
  if (some) b->largest = fmax(b->largest, beside_sink(most, at.sink));
}

/* The bounds of the weights of a query and head, and of its row of y, but for the size of the row: that comes later. */
static void bound_row(const formula *f, spot at) {
  const extents *e = &f->e;
  bounding *b = f->own;
  double most = 0, *const p = f->p.size;
  for (size_t j = e->first; j < e->end; j++) {
    p[j] = f->p.x[j];
    if (f->shape->options & MHAGEN_SINK) /* which leaves less than a float to the keys of some rows */
      p[j] += LEAST_WEIGHT / f->shape->unit;
    at.key = j, at.mask = f->mask[j];
    if (e->sees[j]) most = fmax(most, ref_changed_size(&at, ref_score(f, &at, f->q.size, f->k.size)));
  }
  most = beside_sink(most, at.sink);
  b->of_row = fmax(at.head == 0 ? 0 : b->of_row, most);
  const double error = row_error(f->shape, most);
  if (b->pieces > 1) b->y_bounds[at.entry * e->n * e->h + ref_lies(e, e->n, e->h, at.row, at.head)] = error;
  else b->y_bounds[at.entry * e->n + at.row] = row_error(f->shape, b->of_row);
  if (b->probs_bounds)
    b->probs_bounds[(at.entry * e->h + at.head) * e->n + at.row] =
        error * sqrt(ref_dot(p + e->first, p + e->first, e->end - e->first));
}

static void softmax_sizes(formula *f, const spot *at) {
  const bounding *b = f->own;
  ref_softmax(f, at);
  add_largest(f, *at);
  if (b->y_bounds) bound_row(f, *at);
}

static const number numbers_with_sizes = {
    .take = ref_take, .round = round_sizes, .multiply = multiply_sizes, .norm = norm_sizes,
    .activate = activate_sizes, .turn = ref_turn, .keep = keep_sizes, .score = ref_scores, .softmax = softmax_sizes,
    .context = ref_context};

/* Magnitudes of the weights of a product. */
static void make_magnitudes(const formula *f, int i, float *to) {
  const size_t in = f->of[i].inner, out = f->of[i].heads * f->of[i].width;
  const char *quants = ref_quants(f->shape, i);
  const float *from = ref_matrix(f, i);
  for (size_t k = 0; k < in * out; k++) to[k] = fabsf(from[k]);
  if (quants) largest_of_scales(ref_rows_of_scale(f->shape, quants, in), f->weights->layout, in, out, to);
}

static formula begin_with_sizes(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                                bounding *b, int sizes) {
  formula f = ref_begin(shape, weights, args, &numbers_with_sizes, sizes ? REF_SIZES : 0);
  for (int i = 0; i < REF_PRODUCTS && sizes; i++) {
    const product *p = &f.of[i];
    if (!p->multiplies) continue;
    b->magnitudes[i] = (float *)ref_room(&f, p->inner * p->heads * p->width / 2 + 1);
    if (!f.short_of_memory) make_magnitudes(&f, i, b->magnitudes[i]);
  }
  ref_make_room(&f);
  f.own = b, b->least = INFINITY, b->small = 1;
  for (int i = 0; i < NORMS; i++) b->norms[i].least = INFINITY;
  return f;
}

int mhagen_reference_and_bounds(const mhagen_kernel *shape, const mhagen_weights *weights,
                                const mhagen_args *args, double *y, double *probs,
                                double *max_score, double *y_bounds, double *probs_bounds) {
  bounding b = {.y_bounds = y_bounds, .probs_bounds = probs_bounds};
  formula f = begin_with_sizes(shape, weights, args, &b, y_bounds != NULL);
  const product *of_y = &f.of[REF_Y];
  const size_t rows = (size_t)shape->batch * f.e.n * of_y->heads, width = of_y->width;
  b.pieces = of_y->heads;
  f.y.x = y, f.probs.x = probs;
  if (y_bounds) f.y.size = ref_room(&f, rows * width);
  for (size_t r = 0; r < rows && y_bounds; r++) y_bounds[r] = row_error(shape, 0); /* attention replaces it */
  ref_run(&f);
  for (size_t r = 0; r < rows && y_bounds && !f.short_of_memory; r++)
    y_bounds[r] *= sqrt(ref_dot(f.y.size + r * width, f.y.size + r * width, width));
  for (int i = 0; i < NORMS; i++) {
    if (b.norms[i].rows > 0) b.small = fmax(b.small, sqrt(b.norms[i].squares / b.norms[i].rows) / b.norms[i].least);
  }
  if (max_score) *max_score = b.largest * b.small;
  return ref_end(&f);
}

/* ---- scores ---- */

/* The keys of a batch entry that are valid. */
static int is_valid(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t key) {
  if (shape->options & MHAGEN_CACHE_APPEND && key >= ref_rows_made(shape, args, entry)) return 0;
  if (shape->options & MHAGEN_KV_LEN && (ptrdiff_t)key >= args->kv_len[entry]) return 0;
  return !(shape->options & MHAGEN_KV_START) || (ptrdiff_t)key >= args->kv_start[entry];
}

/* The score of a key that a run has, and its bound. */
static void store_score(const formula *f, const spot *at, double *score, double *bound) {
  const mhagen_kernel *shape = f->shape;
  const int masked = shape->scores == MHAGEN_SCORES_MASKED;
  const double s = ref_score(f, at, f->q.x, f->k.x), size = ref_score(f, at, f->q.size, f->k.size);
  const int sees = masked ? at->key >= f->e.first && at->key < f->e.end && at->mask != -INFINITY
                          : is_valid(shape, f->args, at->entry, at->key);
  *bound = score_steps(shape, 0) * shape->unit * (masked ? ref_changed_size(at, size) : size);
  if (isnan(*bound)) *bound = INFINITY; /* sizes that overflow say nothing */
  if (at->row >= ref_rows_asked(shape, f->args, at->entry)) *score = NAN;
  else if (!sees) *score = -INFINITY, *bound = 0;
  else if (masked) *score = ref_changed(at, s);
  else *score = shape->scores == MHAGEN_SCORES_CAPPED ? ref_capped(shape, s) : s;
}

int mhagen_reference_scores(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                            double *scores, double *bounds) {
  bounding b = {.pieces = 1};
  formula f = begin_with_sizes(shape, weights, args, &b, 1);
  for (size_t entry = 0; entry < (size_t)shape->batch && !f.short_of_memory; entry++) {
    ref_make_rows(&f, entry);
    for (size_t i = 0; i < f.e.h * f.e.n; i++) {
      spot at = ref_spot(&f, i / f.e.n, i % f.e.n);
      mhagen_keys_seen(shape, args, entry, at.row, &f.e.first, &f.e.end);
      for (at.key = 0; at.key < f.e.m; at.key++, scores++, bounds++) {
        at.mask = ref_mask(&at, at.key);
        store_score(&f, &at, scores, bounds);
      }
    }
  }
  return ref_end(&f);
}
