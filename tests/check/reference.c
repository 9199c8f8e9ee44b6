/* reference.c of mhagen: the steps of the formula on top of mhagen.h in double, in its order, to be read beside it and
 * beside Vaswani et al., Attention is all you need, 2017. composition.c makes a layer of them. */
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

size_t ref_lies(const extents *e, size_t rows, size_t heads, size_t r, size_t head) {
  return e->apart ? head * rows + r : r * heads + head;
}

/* ---- Q_i = Q Wq_i + bq_i, K_i = K Wk_i + bk_i, V_i = V Wv_i + bv_i ---- */

void ref_take(const formula *f, int which, size_t r, values to) {
  const product *p = &f->of[which];
  const size_t pieces = p->multiplies ? 1 : p->heads, width = p->inner / pieces;
  const float *input = p->input + f->entry * p->all * p->inner;
  for (size_t i = 0; i < pieces; i++) {
    const float *from = input + ref_lies(&f->e, p->all, pieces, r, i) * width;
    for (size_t c = 0; c < width; c++) to.x[i * width + c] = (double)from[c];
  }
  ref_exact(to, p->inner);
}

const float *ref_matrix(const formula *f, int i) {
  const mhagen_weights *w = f->weights;
  const float *const matrices[] = {w->wq, w->wk, w->wv, w->wo, w->w1, w->w3, w->w2};
  return matrices[i];
}

void ref_multiply(const formula *f, int i, const float *w, size_t rows, const double *x, double *y) {
  const size_t in = f->of[i].inner, out = f->of[i].heads * f->of[i].width;
  const int flipped = f->weights->layout == MHAGEN_OUT_IN;
  const size_t step_k = flipped ? 1 : out, step_o = flipped ? in : 1;
  for (; rows > 0; rows--, x += in, y += out) {
    for (size_t k = 0; k < in; k++) {
      const double of = x[k];
      for (size_t o = 0; o < out; o++) y[o] += of * (double)w[k * step_k + o * step_o];
    }
  }
}

static void multiply(const formula *f, int i, size_t rows, values x, values y) {
  ref_multiply(f, i, ref_matrix(f, i), rows, x.x, y.x);
}

/* ---- norms, of Q_i and K_i and of rows of the layer; rotations of Q_i and K_i ---- */

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

double ref_mean(const norming *by, const double *x) {
  double mean = 0;
  for (size_t i = 0; i < by->n && by->kind == MHAGEN_NORM_LAYER; i++) mean += x[i] / (double)by->n;
  return mean;
}

double ref_length(const norming *by, double squares) {
  if (squares > FLT_MAX) return INFINITY;
  if (by->kind == MHAGEN_NORM_L2) return at_least(by->eps, sqrt(squares));
  return sqrt(squares / (double)by->n + by->eps);
}

/* Columns, less their mean in a layer norm, over their length. */
void ref_norm(const formula *f, int i, const norming *by, values of) {
  double *const x = of.x;
  (void)f, (void)i;
  const double mean = ref_mean(by, x);
  for (size_t c = 0; c < by->n; c++) x[c] -= mean;
  const double length = ref_length(by, ref_dot(x, x, by->n));
  for (size_t c = 0; c < by->n; c++) x[c] /= length;
  for (size_t c = 0; c < by->n && by->gains; c++) x[c] *= (double)by->gains[c];
  for (size_t c = 0; c < by->n && by->biases; c++) x[c] += (double)by->biases[c];
}

/* ---- act(X W1 + b1) * (X W3 + b3) of the feed-forward ---- */

/* Each but tanh is zero where x goes to -infinity; x P(x) is so by erfc, in which nothing cancels. */
double ref_act(int act, double x) {
  const double tanh_of = sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
  if (act == MHAGEN_ACT_TANH) return tanh(x);
  if (x == -INFINITY) return 0;
  switch (act) {
    case MHAGEN_ACT_GELU: return x * 0.5 * erfc(-x / sqrt(2));
    case MHAGEN_ACT_GELU_TANH: return x / (1 + exp(-2 * tanh_of));
    case MHAGEN_ACT_QUICK_GELU: return x / (1 + exp(-1.702 * x));
    case MHAGEN_ACT_SILU: return x / (1 + exp(-x));
    case MHAGEN_ACT_RELU: return x < 0 ? 0 : x;
    default: return x < 0 ? 0 : x * x;
  }
}

double ref_act_slope(int act, double x, double off) {
  if (act == MHAGEN_ACT_TANH) return 1;
  if (act != MHAGEN_ACT_RELU && act != MHAGEN_ACT_RELU2) return 1.13; /* the steepest, near x = sqrt(2) */
  if (x + off < 0) return 0;
  return act == MHAGEN_ACT_RELU ? 1 : 2 * at_least(0, x) + off;
}

double ref_float(double x) { return fabs(x) > (double)FLT_MAX ? copysign(INFINITY, x) : x; }

int ref_act_of(const mhagen_kernel *shape, int which) { return which == REF_Y ? shape->out_act : shape->ffn_act; }

void ref_activate(const formula *f, int which, size_t count, values x, values gate) {
  const int act = ref_act_of(f->shape, which);
  for (size_t c = 0; c < count; c++) {
    x.x[c] = ref_float(ref_act(act, x.x[c]));
    if (gate.x) x.x[c] = ref_float(x.x[c] * ref_float(gate.x[c]));
  }
}

/* Of the tables of rope: that of the first query where it stands before all keys. */
static ptrdiff_t first_place(const mhagen_kernel *shape) {
  return shape->options & MHAGEN_BOTTOM_RIGHT ? smaller(0, shape->seq_kv - shape->seq) : 0;
}

/* What a run gives for a pair of a row. */
static double given_angle(const formula *f, int i, const float *of_queries, const float *of_keys, ptrdiff_t place,
                          ptrdiff_t pair) {
  const mhagen_kernel *shape = f->shape;
  const ptrdiff_t rows = i == REF_Q ? shape->seq : shape->seq_kv, row = i == REF_Q ? place - f->e.place : place;
  const ptrdiff_t at = ((ptrdiff_t)f->entry * rows + row) * (shape->rope_dims / 2) + pair;
  return (double)(i == REF_Q ? of_queries : of_keys)[at];
}

/* The cosine and the sine of a pair of a row of Q or K at a place. */
static void rotation(const formula *f, int i, ptrdiff_t place, ptrdiff_t pair, double *c, double *s) {
  const mhagen_kernel *shape = f->shape;
  if (shape->options & MHAGEN_ROPE_AT_RUN) {
    *c = given_angle(f, i, f->args->rope_cos, f->args->k_rope_cos, place, pair);
    *s = given_angle(f, i, f->args->rope_sin, f->args->k_rope_sin, place, pair);
    return;
  }
  const float *cosines = f->weights->rope_cos, *sines = f->weights->rope_sin;
  const ptrdiff_t pairs = shape->rope_dims / 2, at = (place - first_place(shape)) * pairs + pair;
  const double angle = (double)place * pow(shape->rope_theta, -(double)pair / (double)pairs);
  *c = cosines ? (double)cosines[at] : cos(angle);
  *s = sines ? (double)sines[at] : sin(angle);
}

static void turn_pair(double *x, double *y, double c, double s, double opposite) {
  const double first = *x * c + *y * opposite;
  *y = *y * c + *x * s;
  *x = first;
}

void ref_turn(const formula *f, int i, ptrdiff_t place, values row) {
  const ptrdiff_t pairs = f->shape->rope_dims / 2;
  const int interleaved = f->shape->rope == MHAGEN_ROPE_INTERLEAVED;
  for (ptrdiff_t pair = 0; pair < pairs; pair++) {
    double c, s;
    rotation(f, i, place, pair, &c, &s);
    for (size_t head = 0; head < f->of[i].heads; head++) {
      const size_t x = head * (size_t)f->shape->dk + (size_t)(interleaved ? 2 * pair : pair),
                   y = x + (size_t)(interleaved ? 1 : pairs);
      turn_pair(row.x + x, row.x + y, c, s, -s);
      if (row.size) turn_pair(row.size + x, row.size + y, fabs(c), fabs(s), fabs(s));
      if (row.off) turn_pair(row.off + x, row.off + y, fabs(c), fabs(s), fabs(s));
    }
  }
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
  if (options & MHAGEN_ROW_KEYS) {
    const int *range = args->row_keys + (entry * (size_t)shape->seq + row) * 2;
    from = larger(from, range[0]), to = smaller(to, range[1]);
  }
  if (options & MHAGEN_NO_ATTENTION) from = (ptrdiff_t)row, to = from + 1; /* no row depends on another */
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

double ref_score(const formula *f, const spot *at, const double *q, const double *k) {
  const size_t heads = f->of[REF_K].heads, depth = f->of[REF_K].width, of_key = at->head / (f->e.h / heads);
  return ref_dot(q + (at->row * f->e.h + at->head) * depth, k + (at->key * heads + of_key) * depth, depth) *
         f->shape->scale;
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

spot ref_spot(const formula *f, size_t head, size_t row) {
  const product *q = &f->of[REF_Q];
  return (spot){.shape = f->shape, .args = f->args, .x = q->input ? q->input + f->entry * q->all * q->inner : NULL,
                .entry = f->entry, .head = head, .row = row, .place = ref_place(f->shape, f->args, f->entry, row),
                .slope = slope_of(f->shape, f->weights, head), .sink = sink_of(f->shape, f->weights, head)};
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

void ref_scores(const formula *f, const spot *of) {
  spot at = *of;
  for (size_t j = f->e.first; j < f->e.end; j++) {
    at.key = j, at.mask = f->mask[j];
    f->score[j] = ref_score(f, &at, f->q.x, f->k.x);
    f->p.x[j] = ref_changed(&at, f->score[j]);
  }
}

/* ---- head_i = softmax(scores) V_i ---- */

/* Over the keys that are seen, beside a score that no key has. */
void ref_softmax(formula *f, const spot *at) {
  const size_t first = f->e.first, end = f->e.end;
  const char *sees = f->e.sees;
  double *const p = f->p.x, max = at->sink, sum = 0;
  for (size_t j = first; j < end; j++) {
    if (sees[j] && p[j] > max) max = p[j];
  }
  for (size_t j = first; j < end; j++) sum += p[j] = sees[j] ? exp(p[j] - max) : 0;
  if (at->sink != -INFINITY) sum += exp(at->sink - max);
  for (size_t j = first; j < end; j++) p[j] = sees[j] ? p[j] / sum : 0;
}

/* With weights p of the keys. */
static void sum_values(const formula *f, const spot *at, const double *p, const double *v, double *sum) {
  const size_t heads = f->of[REF_V].heads, width = f->of[REF_V].width, of_key = at->head / (f->e.h / heads);
  memset(sum, 0, width * sizeof *sum);
  for (size_t j = f->e.first; j < f->e.end; j++) {
    const double *of = v + (j * heads + of_key) * width, weight = p[j];
    if (!f->e.sees[j]) continue;
    for (size_t c = 0; c < width; c++) sum[c] += weight * of[c];
  }
}

void ref_context(const formula *f, const spot *at, values context) {
  sum_values(f, at, f->p.x, f->v.x, context.x);
  if (context.size) sum_values(f, at, f->p.size, f->v.size, context.size);
}

/* ---- numbers with nothing beside them ---- */

int mhagen_reference(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args, double *y,
                     double *probs) {
  static const number kind = {.take = ref_take, .multiply = multiply, .norm = ref_norm,
                              .activate = ref_activate, .turn = ref_turn, .score = ref_scores,
                              .softmax = ref_softmax, .context = ref_context};
  formula f = ref_begin(shape, weights, args, &kind, 0);
  ref_make_room(&f);
  f.y.x = y, f.probs.x = probs;
  ref_run(&f);
  return ref_end(&f);
}
