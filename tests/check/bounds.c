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
int ref_score_steps(const mhagen_kernel *shape, int least) {
  const int project = ref_projections(shape);
  int widest = least;
  if (project & MHAGEN_PROJECT_Q && shape->d_model > widest) widest = shape->d_model;
  if (project & MHAGEN_PROJECT_K && shape->k_width > widest) widest = shape->k_width;
  int steps = 16 + widest + shape->dk;
  if (shape->options & MHAGEN_ROPE) steps += 6; /* of Q and of K: a cosine or sine, its product, their sum */
  if (shape->options & MHAGEN_QK_NORM) /* of Q and of K: mean, sum of squares, and what is made of it */
    steps += 2 * (shape->dk * (shape->norm_span == MHAGEN_SPAN_ALL ? shape->h : 1) + 8);
  return steps;
}

/* ---- sizes of queries and keys ---- */

/* The size of the norm of n columns x. An error of x reaches the result by x and by the length that x is divided by, in
 * the first order; size becomes what both are, and all that is not below the length itself leaves no digit. Returns the
 * length. */
static double norm_sizes(const mhagen_kernel *shape, size_t n, const double *x, double *size) {
  const double count = shape->qk_norm == MHAGEN_NORM_L2 ? 1 : (double)n, mean = ref_mean(shape, n, x),
               size_mean = size ? ref_mean(shape, n, size) : 0;
  double squares = 0, size_squares = 0;
  for (size_t i = 0; i < n; i++) {
    squares += (x[i] - mean) * (x[i] - mean);
    if (size) size[i] += size_mean, size_squares += size[i] * size[i];
  }
  const double length = ref_length(shape, n, squares), part = sqrt(size_squares / count) / length,
               lost = ref_score_steps(shape, 0) * shape->unit * part;
  for (size_t i = 0; i < n && size; i++)
    size[i] = lost < 1 ? (size[i] + fabs(x[i] - mean) * part) / length / (1 - lost) : 1e300;
  return length;
}

/* All rows of Q or K, before the norms; size may be null. Returns by how much the shortest one is below the root mean
 * square of all. */
static double norms_sizes(const mhagen_kernel *shape, const float *gains, size_t rows, size_t heads, const double *x,
                          double *size) {
  const size_t all = shape->norm_span == MHAGEN_SPAN_ALL, dk = (size_t)shape->dk, n = all ? heads * dk : dk;
  double least = INFINITY, sum = 0;
  for (size_t at = 0; at < rows * heads * dk; at += n) {
    const double length = norm_sizes(shape, n, x + at, size ? size + at : NULL);
    least = fmin(least, length);
    if (isfinite(length)) sum += ref_dot(x + at, x + at, n);
    const float *own = gains && shape->norm_span == MHAGEN_SPAN_EACH ? gains + at % (heads * dk) : gains;
    for (size_t i = 0; gains && size && i < n; i++) size[at + i] *= fabs((double)own[i]);
  }
  return sqrt(sum / (double)(rows * heads * dk) * (shape->qk_norm == MHAGEN_NORM_L2 ? (double)n : 1)) / least;
}

void ref_turn_sizes(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, size_t heads, double *size) {
  const ptrdiff_t pairs = shape->rope_dims / 2;
  const int interleaved = shape->rope == MHAGEN_ROPE_INTERLEAVED;
  for (ptrdiff_t i = 0; i < pairs; i++) {
    double c, s;
    ref_rotation(shape, w, place, i, &c, &s);
    for (size_t head = 0; head < heads; head++) {
      double *x = size + head * (size_t)shape->dk + (interleaved ? 2 * i : i), *y = x + (interleaved ? 1 : pairs);
      const double first = *x * fabs(c) + *y * fabs(s);
      *y = *y * fabs(c) + *x * fabs(s);
      *x = first;
    }
  }
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
static double make_rows(const mhagen_kernel *shape, const extents *e, size_t entry, const numbers *x,
                        const numbers *size) {
  const mhagen_weights *w = &x->weights;
  double small = 1;
  ref_project_inputs(x, e, entry);
  if (size) ref_project_inputs(size, e, entry);
  if (shape->options & MHAGEN_QK_NORM) {
    small = fmax(small, norms_sizes(shape, w->q_norm, e->n, e->h, x->q, size ? size->q : NULL));
    small = fmax(small, norms_sizes(shape, w->k_norm, e->made, e->h_kv, x->k, size ? size->k : NULL));
  }
  ref_normalize_and_turn(shape, e, x);
  if (!size) return small;
  const int turns = (shape->options & MHAGEN_ROPE) != 0;
  for (size_t r = 0; r < e->n && turns; r++)
    ref_turn_sizes(shape, w, e->place + (ptrdiff_t)r, e->h, size->q + r * e->h * e->dk);
  for (size_t j = 0; j < e->made && turns; j++)
    ref_turn_sizes(shape, w, (ptrdiff_t)j, e->h_kv, size->k + j * e->h_kv * e->dk);
  size_kept(shape, e, size->k, e->dk), size_kept(shape, e, size->v, e->dv);
  return small;
}

/* ---- magnitudes of inputs and weights ---- */

/* |from|; of nothing, nothing. */
static const float *magnitudes(const float *from, size_t count, float **room) {
  float *to = *room;
  if (!from) return NULL;
  for (size_t i = 0; i < count; i++) to[i] = fabsf(from[i]);
  *room += count;
  return to;
}

int ref_has_integers(const mhagen_kernel *shape) { return shape->dtype && !strcmp(shape->dtype, "int8"); }

static const char *small_weights(const mhagen_kernel *shape) {
  return shape->options & MHAGEN_WEIGHT_DTYPE ? shape->weight_dtype : NULL;
}

static int is_integer(const char *type) { return type && !strncmp(type, "int", 3); }

const char *ref_quants(const mhagen_kernel *shape) {
  const char *own = small_weights(shape);
  return is_integer(own) ? own : ref_has_integers(shape) ? "int8" : NULL;
}

const char *ref_weight_type(const mhagen_kernel *shape) {
  const char *own = small_weights(shape);
  return own && !is_integer(own) ? own : shape->dtype;
}

const char *ref_quants_of_values(const mhagen_kernel *shape) {
  return shape->options & MHAGEN_VALUE_WEIGHT_DTYPE ? shape->value_weight_dtype : ref_quants(shape);
}

size_t ref_rows_of_scale(const mhagen_kernel *shape, const char *quants, size_t in) {
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
                                      const float *w, size_t in, size_t out, float **room) {
  float *const to = *room;
  const float *const made = magnitudes(w, in * out, room);
  if (made && quants) largest_of_scales(ref_rows_of_scale(shape, quants, in), layout, in, out, to);
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
                              size_t batch) {
  const size_t qx = batch * e->n * e->q_width, kx = batch * e->m * e->k_width,
               vx = batch * e->m * e->v_width, hq = e->h * e->dk,
               hk = e->h_kv * e->dk, hv = e->h_kv * e->dv, ho = e->h * e->dv;
  const mhagen_weights *w = &from->weights;
  const char *quants = ref_quants(shape);
  const size_t of_weights = (e->d + 1) * hq + (e->k_width + 1) * hk + (e->v_width + 1) * hv +
                            (ho + 1) * e->y_width;
  float *room = malloc((qx + kx + vx + of_weights) * sizeof *room), *at = room;
  if (!room) return NULL;
  to->qx = magnitudes(from->qx, qx, &at);
  to->kx = magnitudes(from->kx, kx, &at);
  to->vx = magnitudes(from->vx, vx, &at);
  to->weights = (mhagen_weights){.layout = w->layout};
  if (ref_projects(e, MHAGEN_PROJECT_Q)) {
    to->weights.wq = weight_magnitudes(shape, quants, w->layout, w->wq, e->d, hq, &at);
    to->weights.bq = magnitudes(w->bq, hq, &at);
  }
  if (ref_projects(e, MHAGEN_PROJECT_K)) {
    to->weights.wk = weight_magnitudes(shape, quants, w->layout, w->wk, e->k_width, hk, &at);
    to->weights.bk = magnitudes(w->bk, hk, &at);
  }
  if (ref_projects(e, MHAGEN_PROJECT_V)) {
    to->weights.wv =
        weight_magnitudes(shape, ref_quants_of_values(shape), w->layout, w->wv, e->v_width, hv, &at);
    to->weights.bv = magnitudes(w->bv, hv, &at);
  }
  if (ref_projects(e, MHAGEN_PROJECT_O)) {
    to->weights.wo = weight_magnitudes(shape, quants, w->layout, w->wo, ho, e->y_width, &at);
    to->weights.bo = magnitudes(w->bo, e->y_width, &at);
  }
  if (ref_has_integers(shape)) {
    if (ref_projects(e, MHAGEN_PROJECT_Q)) largest_of_rows(to->qx, batch * e->n, e->d);
    if (ref_projects(e, MHAGEN_PROJECT_K)) largest_of_rows(to->kx, batch * e->m, e->k_width);
    if (ref_projects(e, MHAGEN_PROJECT_V)) largest_of_rows(to->vx, batch * e->m, e->v_width);
  }
  return room;
}

/* ---- bounds ---- */

#define LEAST_WEIGHT 0x1p-68 /* a weight of attention below it may be 0: 2^-100 of a sum of 2^-32 */
#define TINY 0x1p-60 /* a weight that roundings of a mask do not make count */

double mhagen_promised_error(const mhagen_kernel *shape, double max_score) {
  /* Scores of int4 err by a tenth of themselves. */
  const char *quants = ref_quants(shape);
  const int nibbles = quants && !strcmp(quants, "int4");
  const double from = nibbles ? 4 : shape->unit <= 0x1p-24 ? 16 : 8;
  return shape->error * fmax(1, max_score / from);
}

static double row_error(const mhagen_kernel *shape, double score_size) {
  const int project = ref_projections(shape);
  int steps = ref_score_steps(shape, project & MHAGEN_PROJECT_V ? shape->v_width : 0) + shape->seq_kv;
  if (project & MHAGEN_PROJECT_O) steps += shape->h * shape->dv;
  const double error = steps * shape->unit * (1 + score_size);
  /* Weights far below a sink grow or shrink by the power of their scores' error. So do all where weights are
   * quantized. Other rows sum to one. */
  return shape->options & MHAGEN_SINK || is_integer(small_weights(shape)) ? fmin(expm1(error), 1e30) : error;
}

/* What is there for all batch entries. The bounds may be null; without those of y there are no sizes. */
typedef struct bounding {
  const mhagen_kernel *shape;
  extents e;
  numbers x, size;
  scored keys;
  double *y_bounds, *probs_bounds;
  size_t pieces; /* of a row of y that have their own bound */
  double largest, small;
} bounding;

/* Counts the largest score of a query and head. Of a mask that is what counts for a key's weight. */
static void add_largest(bounding *b, spot at) {
  const extents *e = &b->e;
  double most = 0;
  int some = 0;
  for (size_t j = e->first; j < e->end; j++) {
    double *const mask = &b->keys.mask[j];
    *mask = b->keys.p[j] > TINY && isfinite(*mask) ? *mask : 0;
    if (!e->sees[j]) continue;
    const double s = fabs(b->keys.score[j]);
    at.key = j, at.mask = *mask, some = 1;
    if (isfinite(s)) most = fmax(most, ref_changed_size(&at, s));
  }
  if (some) b->largest = fmax(b->largest, beside_sink(most, at.sink));
}

/* The size of the context of a query and head, and the bound of its weights. Returns the size of its largest score. */
static double add_size(bounding *b, spot at) {
  const extents *e = &b->e;
  double *const p = b->keys.p, most = 0;
  for (size_t j = e->first; j < e->end; j++) {
    if (b->shape->options & MHAGEN_SINK) /* which leaves less than a float to the keys of some rows */
      p[j] += LEAST_WEIGHT / b->shape->unit;
    at.key = j, at.mask = b->keys.mask[j];
    if (e->sees[j]) most = fmax(most, ref_changed_size(&at, ref_score(b->shape, &b->size, at.head, at.row, j)));
  }
  most = beside_sink(most, at.sink);
  ref_add_context(&b->size, e, at.row, at.head, p);
  const double error = row_error(b->shape, most);
  if (b->pieces > 1) b->y_bounds[at.entry * e->n * e->h + ref_lies(e, e->n, e->h, at.row, at.head)] = error;
  if (b->probs_bounds) {
    const size_t seen = e->end - e->first;
    b->probs_bounds[(at.entry * e->h + at.head) * e->n + at.row] =
        error * sqrt(ref_dot(p + e->first, p + e->first, seen));
  }
  return most;
}

/* The bound of a row of y, times the size of the row, which comes later. */
static void end_row(bounding *b, size_t entry, size_t r, double score_size) {
  const extents *e = &b->e;
  if (b->pieces > 1) return;
  b->y_bounds[entry * e->n + r] = row_error(b->shape, score_size);
  double *const context = b->size.context + r * e->h * e->dv, most = 0;
  if (!ref_has_integers(b->shape)) return;
  for (size_t i = 0; i < e->h * e->dv; i++) most = fmax(most, context[i]);
  for (size_t i = 0; i < e->h * e->dv; i++) context[i] = most;
}

static void bound_entry(bounding *b, const mhagen_args *args, size_t entry, double *probs) {
  extents *const e = &b->e;
  const mhagen_kernel *shape = b->shape;
  ref_start_entry(shape, args, entry, e);
  b->small = fmax(b->small, make_rows(shape, e, entry, &b->x, b->y_bounds ? &b->size : NULL));
  const size_t asked = ref_rows_asked(shape, args, entry);
  for (size_t r = 0; r < asked; r++) {
    double score_size = 0;
    for (size_t head = 0; head < e->h; head++) {
      const spot at = ref_spot(shape, &b->x.weights, args, entry, head, r);
      ref_attend(&at, &b->x, e, &b->keys);
      add_largest(b, at);
      if (probs) ref_store_probs(&at, e, b->keys.p, probs);
      if (b->y_bounds) score_size = fmax(score_size, add_size(b, at));
    }
    if (b->y_bounds) end_row(b, entry, r, score_size);
  }
  ref_project_output(&b->x, e, entry);
  if (b->y_bounds) ref_project_output(&b->size, e, entry);
  ref_hide_rows(shape, args, entry, b->x.y, probs);
}

int mhagen_reference_and_bounds(const mhagen_kernel *shape, const mhagen_weights *weights,
                                const mhagen_args *args, double *y, double *probs,
                                double *max_score, double *y_bounds, double *probs_bounds) {
  bounding b = {.shape = shape, .e = ref_extents(shape), .x = ref_numbers(shape, weights, args, y),
                .y_bounds = y_bounds, .probs_bounds = probs_bounds, .small = 1};
  extents *const e = &b.e;
  const size_t sides = y_bounds ? 2 : 1, batch = (size_t)shape->batch, rows = batch * e->n;
  b.size = b.x, b.pieces = ref_projects(e, MHAGEN_PROJECT_O) ? 1 : e->h;
  double *room = malloc((sides * ref_room(e) + 3 * e->m + (sides - 1) * rows * e->y_width) * sizeof *room);
  float *sizes = y_bounds ? make_magnitudes(shape, &b.size, &b.x, e, batch) : NULL;
  e->sees = malloc(e->m);
  if (!room || !e->sees || (y_bounds && !sizes)) {
    free(room), free(sizes), free(e->sees);
    return -1;
  }
  double *const keys = room + sides * ref_room(e);
  b.keys = (scored){keys, keys + e->m, keys + 2 * e->m};
  ref_divide(&b.x, e, room);
  if (y_bounds) ref_divide(&b.size, e, room + ref_room(e)), b.size.y = keys + 3 * e->m;
  for (size_t entry = 0; entry < batch; entry++) bound_entry(&b, args, entry, probs);
  const size_t width = e->y_width / b.pieces;
  for (size_t r = 0; r < rows * b.pieces && y_bounds; r++)
    y_bounds[r] *= sqrt(ref_dot(b.size.y + r * width, b.size.y + r * width, width));
  free(room), free(sizes), free(e->sees);
  if (max_score) *max_score = b.largest * b.small;
  return 0;
}

/* ---- scores ---- */

/* The keys of a batch entry that are valid. */
static int is_valid(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t key) {
  if (shape->options & MHAGEN_CACHE_APPEND && key >= ref_rows_made(shape, args, entry)) return 0;
  if (shape->options & MHAGEN_KV_LEN && (ptrdiff_t)key >= args->kv_len[entry]) return 0;
  return !(shape->options & MHAGEN_KV_START) || (ptrdiff_t)key >= args->kv_start[entry];
}

int mhagen_reference_scores(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                            double *scores, double *bounds) {
  extents e = ref_extents(shape);
  const size_t batch = (size_t)shape->batch;
  const int masked = shape->scores == MHAGEN_SCORES_MASKED;
  numbers x = ref_numbers(shape, weights, args, NULL), size = x;
  double *room = malloc(2 * ref_room(&e) * sizeof *room);
  float *sizes = make_magnitudes(shape, &size, &x, &e, batch);
  if (!room || !sizes) {
    free(room), free(sizes);
    return -1;
  }
  ref_divide(&x, &e, room), ref_divide(&size, &e, room + ref_room(&e));
  for (size_t b = 0; b < batch; b++) {
    ref_start_entry(shape, args, b, &e);
    make_rows(shape, &e, b, &x, &size);
    for (size_t row = 0; row < e.h * e.n; row++) {
      const size_t i = row / e.n, r = row % e.n;
      spot at = ref_spot(shape, weights, args, b, i, r);
      mhagen_keys_seen(shape, args, b, r, &e.first, &e.end);
      for (size_t j = 0; j < e.m; j++, scores++, bounds++) {
        const double s = ref_score(shape, &x, i, r, j), s_size = ref_score(shape, &size, i, r, j);
        at.key = j, at.mask = ref_mask(&at, j);
        const int sees = masked ? j >= e.first && j < e.end && at.mask != -INFINITY : is_valid(shape, args, b, j);
        *bounds = ref_score_steps(shape, 0) * shape->unit * (masked ? ref_changed_size(&at, s_size) : s_size);
        if (isnan(*bounds)) *bounds = INFINITY; /* sizes that overflow say nothing */
        if (r >= ref_rows_asked(shape, args, b)) *scores = NAN;
        else if (!sees) *scores = -INFINITY, *bounds = 0;
        else if (masked) *scores = ref_changed(&at, s);
        else *scores = shape->scores == MHAGEN_SCORES_CAPPED ? ref_capped(shape, s) : s;
      }
    }
  }
  free(room), free(sizes);
  return 0;
}
