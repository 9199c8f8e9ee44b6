/* reference.c of mhagen: the formula on top of mhagen.h in double, to be read beside it and beside Vaswani et al.,
 * Attention is all you need, 2017. There is a function for each step, in the order of the formula. */
#include "formula.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a kernel's shape ---- */

static ptrdiff_t larger(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }
static ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

int ref_projections(const mhagen_kernel *shape) {
  const int all = MHAGEN_PROJECT_Q | MHAGEN_PROJECT_K | MHAGEN_PROJECT_V | MHAGEN_PROJECT_O;
  return shape->options & MHAGEN_UNPROJECTED ? shape->project : all;
}

extents ref_extents(const mhagen_kernel *shape) {
  extents e = {(size_t)shape->h,      (size_t)shape->h_kv, (size_t)shape->d_model, (size_t)shape->seq,
               (size_t)shape->seq_kv, (size_t)shape->dk,   (size_t)shape->dv,
               (size_t)shape->k_width, (size_t)shape->v_width, (size_t)shape->y_width, 0, 0,
               NULL, ref_projections(shape), 0, 0, 0, (shape->options & MHAGEN_BHSD) != 0};
  e.q_width = ref_projects(&e, MHAGEN_PROJECT_Q) ? e.d : e.h * e.dk;
  return e;
}

numbers ref_numbers(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args, double *y) {
  const int apart = (shape->options & (MHAGEN_CROSS | MHAGEN_CACHE_APPEND)) != 0;
  return (numbers){.weights = *weights, .qx = args->q, .kx = apart ? args->k : args->q,
                   .vx = apart ? args->v : args->q, .y = y};
}

int ref_projects(const extents *e, int which) { return (e->project & which) != 0; }

size_t ref_room(const extents *e) {
  return (e->h * e->n + e->h_kv * e->m) * (e->dk + e->dv);
}

void ref_divide(numbers *x, const extents *e, double *room) {
  x->q = room;
  x->k = x->q + e->n * e->h * e->dk;
  x->v = x->k + e->m * e->h_kv * e->dk;
  x->context = x->v + e->m * e->h_kv * e->dv;
}

ptrdiff_t ref_place(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row) {
  const ptrdiff_t r = (ptrdiff_t)row;
  if (shape->options & MHAGEN_CACHE_APPEND) return args->past[entry] + r;
  return shape->options & MHAGEN_BOTTOM_RIGHT ? r + shape->seq_kv - shape->seq : r;
}

size_t ref_rows_asked(const mhagen_kernel *shape, const mhagen_args *args, size_t entry) {
  return shape->options & MHAGEN_Q_LEN ? (size_t)args->q_len[entry] : (size_t)shape->seq;
}

/* Rows in a cache that grows, with those that a run adds. */
size_t ref_rows_made(const mhagen_kernel *shape, const mhagen_args *args, size_t entry) {
  return (size_t)args->past[entry] + ref_rows_asked(shape, args, entry);
}

void ref_start_entry(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, extents *e) {
  e->place = ref_place(shape, args, entry, 0);
  e->made = shape->options & MHAGEN_CACHE_APPEND ? (size_t)e->place + e->n : e->m;
}

/* ---- Q_i = Q Wq_i + bq_i, K_i = K Wk_i + bk_i, V_i = V Wv_i + bv_i ---- */

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

size_t ref_lies(const extents *e, size_t rows, size_t heads, size_t r, size_t head) {
  return e->apart ? head * rows + r : r * heads + head;
}

void ref_take(const extents *e, const float *x, size_t all, size_t rows, size_t heads, size_t width, double *to) {
  for (size_t i = 0; i < rows * heads; i++) {
    const float *from = x + ref_lies(e, all, heads, i / heads, i % heads) * width;
    for (size_t c = 0; c < width; c++) *to++ = (double)from[c];
  }
}

void ref_project_inputs(const numbers *x, const extents *e, size_t entry) {
  const mhagen_weights *w = &x->weights;
  const float *q = x->qx + entry * e->n * e->q_width, *k = x->kx + entry * e->m * e->k_width,
              *v = x->vx + entry * e->m * e->v_width;
  const size_t hq = e->h * e->dk, hk = e->h_kv * e->dk, hv = e->h_kv * e->dv;
  if (ref_projects(e, MHAGEN_PROJECT_Q)) project(q, NULL, e->n, e->d, w->wq, w->bq, hq, w->layout, x->q);
  else ref_take(e, q, e->n, e->n, e->h, e->dk, x->q);
  if (ref_projects(e, MHAGEN_PROJECT_K)) project(k, NULL, e->made, e->k_width, w->wk, w->bk, hk, w->layout, x->k);
  else ref_take(e, k, e->m, e->made, e->h_kv, e->dk, x->k);
  if (ref_projects(e, MHAGEN_PROJECT_V)) project(v, NULL, e->made, e->v_width, w->wv, w->bv, hv, w->layout, x->v);
  else ref_take(e, v, e->m, e->made, e->h_kv, e->dv, x->v);
}

/* ---- norms and rotations of Q_i and K_i ---- */

double ref_dot(const double *a, const double *b, size_t count) {
  double sum[4] = {0}; /* so that an addition need not wait for the one before */
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (size_t k = 0; k < 4; k++) sum[k] += a[i + k] * b[i + k];
  }
  for (; i < count; i++) sum[0] += a[i] * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Which NaN is, unlike fmax. */
static double at_least(double least, double x) { return x < least ? least : x; }

double ref_mean(const mhagen_kernel *shape, size_t n, const double *x) {
  double mean = 0;
  for (size_t i = 0; i < n && shape->qk_norm == MHAGEN_NORM_LAYER; i++) mean += x[i] / (double)n;
  return mean;
}

double ref_length(const mhagen_kernel *shape, size_t n, double squares) {
  if (squares > FLT_MAX) return INFINITY;
  if (shape->qk_norm == MHAGEN_NORM_L2) return at_least(shape->norm_eps, sqrt(squares));
  return sqrt(squares / (double)n + shape->norm_eps);
}

/* n columns x, less their mean in a layer norm, over their length. */
static void norm(const mhagen_kernel *shape, size_t n, double *x) {
  const double mean = ref_mean(shape, n, x);
  for (size_t i = 0; i < n; i++) x[i] -= mean;
  const double length = ref_length(shape, n, ref_dot(x, x, n));
  for (size_t i = 0; i < n; i++) x[i] /= length;
}

/* All rows of Q or K. */
static void norms(const mhagen_kernel *shape, const float *gains, size_t rows, size_t heads, double *x) {
  const size_t all = shape->norm_span == MHAGEN_SPAN_ALL, dk = (size_t)shape->dk, n = all ? heads * dk : dk;
  for (size_t at = 0; at < rows * heads * dk; at += n) {
    norm(shape, n, x + at);
    const float *own = gains && shape->norm_span == MHAGEN_SPAN_EACH ? gains + at % (heads * dk) : gains;
    for (size_t i = 0; gains && i < n; i++) x[at + i] *= (double)own[i];
  }
}

/* Of the tables of rope: that of the first query where it stands before all keys. */
static ptrdiff_t first_place(const mhagen_kernel *shape) {
  return shape->options & MHAGEN_BOTTOM_RIGHT ? smaller(0, shape->seq_kv - shape->seq) : 0;
}

void ref_rotation(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, ptrdiff_t pair, double *c,
                  double *s) {
  const ptrdiff_t pairs = shape->rope_dims / 2, at = (place - first_place(shape)) * pairs + pair;
  const double angle = (double)place * pow(shape->rope_theta, -(double)pair / (double)pairs);
  *c = w->rope_cos ? (double)w->rope_cos[at] : cos(angle);
  *s = w->rope_sin ? (double)w->rope_sin[at] : sin(angle);
}

/* Turns `heads` heads of dk columns of a row at a place. */
void ref_turn_row(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, size_t heads, double *row) {
  const ptrdiff_t pairs = shape->rope_dims / 2;
  const int interleaved = shape->rope == MHAGEN_ROPE_INTERLEAVED;
  for (ptrdiff_t i = 0; i < pairs; i++) {
    double c, s;
    ref_rotation(shape, w, place, i, &c, &s);
    for (size_t head = 0; head < heads; head++) {
      double *x = row + head * (size_t)shape->dk + (interleaved ? 2 * i : i), *y = x + (interleaved ? 1 : pairs);
      const double first = *x * c - *y * s;
      *y = *y * c + *x * s;
      *x = first;
    }
  }
}

void ref_normalize_and_turn(const mhagen_kernel *shape, const extents *e, const numbers *x) {
  const mhagen_weights *w = &x->weights;
  if (shape->options & MHAGEN_QK_NORM) {
    norms(shape, w->q_norm, e->n, e->h, x->q);
    norms(shape, w->k_norm, e->made, e->h_kv, x->k);
  }
  if (!(shape->options & MHAGEN_ROPE)) return;
  for (size_t r = 0; r < e->n; r++)
    ref_turn_row(shape, w, e->place + (ptrdiff_t)r, e->h, x->q + r * e->h * e->dk);
  for (size_t j = 0; j < e->made; j++)
    ref_turn_row(shape, w, (ptrdiff_t)j, e->h_kv, x->k + j * e->h_kv * e->dk);
}

/* ---- the keys that a query sees ---- */

void mhagen_keys_seen(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row,
                      size_t *first, size_t *end) {
  const uint64_t options = shape->options;
  const ptrdiff_t place = ref_place(shape, args, entry, row);
  ptrdiff_t from = MHAGEN_FIRST_KEY, to = shape->seq_kv;
  if (options & MHAGEN_CACHE_APPEND) to = (ptrdiff_t)ref_rows_made(shape, args, entry);
  if (options & MHAGEN_KV_LEN) to = smaller(to, args->kv_len[entry]);
  if (options & MHAGEN_KV_START) from = larger(from, args->kv_start[entry]);
  if (options & MHAGEN_CAUSAL) to = smaller(to, place + 1);
  if (options & MHAGEN_WINDOW_LEFT) from = larger(from, place - shape->window_left);
  if (options & MHAGEN_WINDOW_RIGHT) to = smaller(to, place + shape->window_right + 1);
  to = larger(to, 0), from = smaller(from, to);
  *first = (size_t)from, *end = (size_t)to;
}

double mhagen_mask(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t head, size_t row,
                   size_t key) {
  const size_t places[] = {entry, head, row, key},
               counts[] = {(size_t)shape->batch, (size_t)shape->h, (size_t)shape->seq, (size_t)shape->seq_kv};
  size_t at = 0;
  if (!(shape->options & (MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD))) return 0;
  for (int i = 0; i < 4; i++) {
    if (strchr(shape->mask_dims, "bhqk"[i])) at = at * counts[i] + places[i];
  }
  if (shape->options & MHAGEN_MASK_ADD) return (double)((const float *)args->mask)[at];
  return ((const unsigned char *)args->mask)[at] ? 0 : -INFINITY;
}

/* ---- scores: scale Q_i K_i^T, and what is added to them ---- */

double ref_score(const mhagen_kernel *shape, const numbers *x, size_t head, size_t row, size_t key) {
  const size_t h = (size_t)shape->h, h_kv = (size_t)shape->h_kv, dk = (size_t)shape->dk;
  return ref_dot(x->q + (row * h + head) * dk, x->k + (key * h_kv + head / (h / h_kv)) * dk, dk) * shape->scale;
}

/* Of h a power of two 2^(-8/h), 2^(-16/h), ..; behind the largest power of two in h every second one
 * of twice as many. */
double mhagen_alibi_slope(int h, int head) {
  int power = 1;
  while (power * 2 <= h) power *= 2;
  if (head < power) return exp2(-8.0 * (head + 1) / power);
  return exp2(-8.0 * (2 * (head - power) + 1) / (2 * power));
}

static double slope_of(const mhagen_kernel *shape, const mhagen_weights *weights, size_t head) {
  if (!(shape->options & MHAGEN_ALIBI)) return 0;
  return weights->alibi ? (double)weights->alibi[head] : mhagen_alibi_slope(shape->h, (int)head);
}

static double sink_of(const mhagen_kernel *shape, const mhagen_weights *weights, size_t head) {
  if (!(shape->options & MHAGEN_SINK)) return -INFINITY;
  return weights->sink ? (double)weights->sink[head] : 0;
}

spot ref_spot(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args, size_t entry,
              size_t head, size_t row) {
  const extents e = ref_extents(shape);
  return (spot){.shape = shape, .args = args, .x = args->q + entry * e.n * e.q_width, .entry = entry, .head = head,
                .row = row, .place = ref_place(shape, args, entry, row), .slope = slope_of(shape, weights, head),
                .sink = sink_of(shape, weights, head)};
}

double ref_mask(const spot *at, size_t key) {
  return mhagen_mask(at->shape, at->args, at->entry, at->head, at->row, key);
}

double ref_alibi(const spot *at) {
  return at->slope * (double)((ptrdiff_t)at->key - at->place);
}

double ref_capped(const mhagen_kernel *shape, double s) {
  return shape->options & MHAGEN_SOFTCAP ? shape->softcap * tanh(s / shape->softcap) : s;
}

double ref_changed(const spot *at, double s) {
  const mhagen_kernel *shape = at->shape;
  const float *x = at->x;
  const size_t key = at->key;
  (void)shape, (void)x, (void)key;
  s = ref_capped(shape, s);
  if (shape->options & MHAGEN_ALIBI) s += ref_alibi(at);
  return MHAGEN_SCORE(s + at->mask);
}

/* ---- head_i = softmax(scores) V_i ---- */

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

void ref_add_context(const numbers *x, const extents *e, size_t row, size_t head, const double *p) {
  double *sum = x->context + (row * e->h + head) * e->dv;
  const size_t shared = head / (e->h / e->h_kv);
  memset(sum, 0, e->dv * sizeof *sum);
  for (size_t j = e->first; j < e->end; j++) {
    const double *v = x->v + (j * e->h_kv + shared) * e->dv, weight = p[j];
    if (!e->sees[j]) continue;
    for (size_t c = 0; c < e->dv; c++) sum[c] += weight * v[c];
  }
}

void ref_attend(const spot *of, const numbers *x, extents *e, const scored *to) {
  spot at = *of;
  mhagen_keys_seen(at.shape, at.args, at.entry, at.row, &e->first, &e->end);
  for (size_t j = e->first; j < e->end; j++) {
    at.key = j, at.mask = to->mask[j] = ref_mask(&at, j);
    e->sees[j] = at.mask == -INFINITY ? 0 : 1;
    to->score[j] = ref_score(at.shape, x, at.head, at.row, j);
    to->p[j] = ref_changed(&at, to->score[j]);
  }
  softmax(to->p + e->first, e->sees + e->first, e->end - e->first, at.sink);
  ref_add_context(x, e, at.row, at.head, to->p);
}

void ref_store_probs(const spot *of, const extents *e, const double *p, double *probs) {
  double *const to = probs + ((of->entry * e->h + of->head) * e->n + of->row) * e->m;
  memset(to, 0, e->m * sizeof *to);
  memcpy(to + e->first, p + e->first, (e->end - e->first) * sizeof *to);
}

/* ---- Y = concat(head_1 .. head_h) Wo + bo ---- */

void ref_project_output(const numbers *x, const extents *e, size_t entry) {
  double *y = x->y + entry * e->n * e->y_width;
  if (ref_projects(e, MHAGEN_PROJECT_O)) {
    project(NULL, x->context, e->n, e->h * e->dv, x->weights.wo, x->weights.bo, e->y_width, x->weights.layout, y);
    return;
  }
  for (size_t i = 0; i < e->n * e->h; i++)
    memcpy(y + ref_lies(e, e->n, e->h, i / e->h, i % e->h) * e->dv, x->context + i * e->dv, e->dv * sizeof *y);
}

static void fill(double *x, size_t count, double with) {
  for (size_t i = 0; i < count; i++) x[i] = with;
}

void ref_hide_rows(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, double *y, double *probs) {
  const extents e = ref_extents(shape);
  const size_t pieces = ref_projects(&e, MHAGEN_PROJECT_O) ? 1 : e.h, width = e.y_width / pieces;
  for (size_t r = ref_rows_asked(shape, args, entry); r < e.n; r++) {
    for (size_t i = 0; i < pieces; i++)
      fill(y + (entry * e.n * pieces + ref_lies(&e, e.n, pieces, r, i)) * width, width, NAN);
    for (size_t i = 0; i < e.h && probs; i++) fill(probs + ((entry * e.h + i) * e.n + r) * e.m, e.m, NAN);
  }
}

/* ---- the whole ---- */

int mhagen_reference(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args, double *y,
                     double *probs) {
  extents e = ref_extents(shape);
  numbers x = ref_numbers(shape, weights, args, y);
  double *room = malloc((ref_room(&e) + 3 * e.m) * sizeof *room);
  e.sees = malloc(e.m);
  if (!room || !e.sees) {
    free(room), free(e.sees);
    return -1;
  }
  double *const keys = room + ref_room(&e);
  const scored of_keys = {keys, keys + e.m, keys + 2 * e.m};
  ref_divide(&x, &e, room);
  for (size_t b = 0; b < (size_t)shape->batch; b++) {
    ref_start_entry(shape, args, b, &e);
    ref_project_inputs(&x, &e, b);
    ref_normalize_and_turn(shape, &e, &x);
    const size_t asked = ref_rows_asked(shape, args, b);
    for (size_t i = 0; i < asked * e.h; i++) {
      const spot at = ref_spot(shape, weights, args, b, i % e.h, i / e.h);
      ref_attend(&at, &x, &e, &of_keys);
      if (probs) ref_store_probs(&at, &e, of_keys.p, probs);
    }
    ref_project_output(&x, &e, b);
    ref_hide_rows(shape, args, b, y, probs);
  }
  free(room), free(e.sees);
  return 0;
}
