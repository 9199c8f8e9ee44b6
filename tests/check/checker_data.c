/* checker_data.c of mhagen: the sets of data. */
#include "checker_rooms.h"

#include <math.h>
#include <float.h>
#include <stdio.h>
#include <string.h>

const data_set sets[SETS] = {
    {"normal", 1, 1, 1, .5, 0, 0, 0, INFINITY},
    {"large scores", 1, 2500, 1, .5, 0, 0, 0, 2e8},
    {"huge scores", 1, 1e10, 1, .5, 0, 0, 0, 3e6}, /* behind their roundings, no weight may be left of a row */
    {"no biases", 1, 1, 1, 0, 0, 0, 0, 3e6},
    {"rising keys", 1, 1, 1, .5, 150, 0, 0, 2e8}, /* far above the first tile's maximum */
    {"equal rows", 1, 1, 1, .5, 0, 1, 0, 2e8}, /* equal roundings add up: shows long chains of sums */
    {"low masks", 1, 1, 1, .5, 0, 0, .2, 2e8}, /* whose rows may have no other keys */
    {"zeros", 0, 1, 1, .5, 0, 0, 0, 3e6},
    {"subnormal inputs", 1e-40, 1, 1, .5, 0, 0, 0, 3e6},
    {"huge values", 1, 1, 1e30, .5, 0, 0, 0, 1e8},
    {"rising, huge values", 1, 1, 1e30, .5, 10, 0, 0, 1e8}, /* unnormalized sums may overflow */
};

/* All or some of the keys are valid; the first one is mostly one of these, and there are many. All or some of the
 * rows are asked for. */
static void draw_lengths(checker *c) {
  const mhagen_need *need = need_of(c, KV_LEN), *start = need_of(c, KV_START), *asked = need_of(c, Q_LEN),
                    *past = need_of(c, PAST);
  int *lengths = c->buffers[KV_LEN].master, *starts = c->buffers[KV_START].master,
      *rows = c->buffers[Q_LEN].master, *before = c->buffers[PAST].master;
  for (int b = 0; b < c->kernel->batch; b++) {
    if (asked) rows[b] = below(c, 3) ? below(c, asked->most + 1) : asked->most;
    if (need) lengths[b] = below(c, 3) ? below(c, need->most + 1) : need->most;
    const int most = start && below(c, 4) ? (has(c, MHAGEN_KV_LEN) ? lengths[b] : start->most) / 2 : c->kernel->seq_kv;
    if (start) starts[b] = below(c, most + 1);
    if (past) before[b] = below(c, 3) ? below(c, most_of(c, PAST) + 1) : most_of(c, PAST);
  }
}

/* A range of keys for each row: documents in a row, ranges of any rows, or prefixes; some are empty. */
static void draw_ranges(checker *c) {
  const int n = c->kernel->seq, m = c->kernel->seq_kv;
  int *range = c->buffers[ROW_KEYS].master;
  for (int b = 0; b < c->kernel->batch && has(c, MHAGEN_ROW_KEYS); b++) {
    const int kind = below(c, 3);
    int first = 0, stop = m;
    for (int row = 0; row < n; row++, range += 2) {
      if (kind == 1 || !below(c, 7)) { /* another document, or any range */
        first = kind == 0 ? stop % m : kind == 1 ? below(c, m + 1) : 0;
        stop = first + below(c, m - first + 1);
      }
      const int is_empty = !below(c, 9);
      range[0] = is_empty ? stop : first;
      range[1] = is_empty ? below(c, stop + 1) : stop;
    }
  }
}

static int below_one(checker *c, double of) { return (double)(bits(c) >> 11) * 0x1p-53 < of; }

void set_mask(checker *c, size_t at, int seen, float add) {
  void *mask = c->buffers[MASK].master;
  if (has(c, MHAGEN_MASK_BOOL)) ((unsigned char *)mask)[at] = seen ? (unsigned char)(1 + below(c, 255)) : 0;
  else ((float *)mask)[at] = seen ? add : -INFINITY;
}

/* Keys hidden by chance, the first ones, few or no rows; numbers of the size of scores, and such as others use to hide
 * keys, which are far below all. */
static void draw_mask(checker *c, double low) {
  static const float lows[] = {-100, -1e4f, -1e9f, -FLT_MAX};
  const size_t m = (size_t)c->kernel->seq_kv, rows = c->buffers[MASK].bytes / element(c, MASK) / m;
  const double hidden = (double)below(c, 3) / 2.2;
  const int cut = below(c, 2) ? 0 : below(c, (int)m + 1);
  for (size_t r = 0; r < rows; r++) {
    const int none = !below(c, 8);
    for (size_t j = 0; j < m; j++) {
      const int seen = !none && (int)j >= cut && !below_one(c, hidden);
      set_mask(c, r * m + j, seen, below_one(c, low) ? lows[below(c, 4)] : (float)normal(c));
    }
  }
}

/* So that rows between the products of the feed-forward are of moderate size, whose square float32 has too. */
static void scale_feed_forward(const checker *c, const data_set *set, double *scales) {
  const mhagen_kernel *kernel = c->kernel;
  const int normed = has(c, MHAGEN_PRE_NORM | MHAGEN_POST_NORM | MHAGEN_FFN_NORM);
  const double of_y = hypot(set->value, has(c, MHAGEN_RESIDUAL) ? set->input : 0),
               result = has(c, MHAGEN_POST_NORM) ? 1 : set->value;
  scales[W1] = scales[W3] = 1 / ((normed ? 1 : of_y) * sqrt(kernel->y_width));
  scales[W2] = result / sqrt(kernel->ffn);
  scales[B1] = scales[B3] = set->bias, scales[B2] = set->bias * result;
  scales[NORM2] = scales[NORM2B] = scales[GAIN2] = 1, scales[NORM2_BIAS] = set->bias;
}

void draw(checker *c, const data_set *set) {
  const mhagen_kernel *kernel = c->kernel;
  const int cross = has(c, MHAGEN_CROSS);
  const double in_q = 1 / sqrt(kernel->d_model), in_k = 1 / sqrt(kernel->k_width),
               in_v = 1 / sqrt(kernel->v_width), out = 1 / sqrt(kernel->h * kernel->dv);
  const double score = has(c, MHAGEN_NO_ATTENTION) ? 1 /* whatever the scale */
                                                   : set->score / (kernel->scale * sqrt(kernel->dk));
  /* Without attention no values have been scaled. An activation function may square what Wo makes. */
  const double of_wo = has(c, MHAGEN_NO_ATTENTION) && !has(c, MHAGEN_OUT_ACT) ? set->value : 1;
  /* Norms drop the size of queries; squares of large ones would be at the end of float's range. */
  const double query = has(c, MHAGEN_QK_NORM) ? 1 : score;
  const double of_input[] = {[Q] = projects(c, Q) ? 1 : query, [K] = 1, [V] = projects(c, V) ? 1 : set->value};
  double scales[LAST_WEIGHTS + 1] = {
      [WQ] = in_q * query, [WK] = in_k, [WV] = in_v * set->value, [WO] = out * of_wo, [BQ] = set->bias * query,
      [BK] = set->bias, [BV] = set->bias * set->value, [BO] = set->bias * set->value, [SLOPES] = .3, [SINKS] = 2,
      [Q_NORM] = score, [K_NORM] = 1, [NORM1] = 1, [NORM1_BIAS] = set->bias, [NORM1B] = 1, [GAIN1] = 1,
      [ROPE_COS] = .7, [ROPE_SIN] = .7}; /* any tables will do */
  if (has(c, MHAGEN_FFN)) scale_feed_forward(c, set, scales);
  for (int i = WQ; i <= LAST_WEIGHTS; i++) fill_normal(c, i, scales[i]);
  for (int i = COSINES; i <= K_SINES; i++) fill_normal(c, i, .7);
  for (int i = Q; i <= V; i++) {
    double size = set->input * of_input[i];
    /* What is only weighed would give subnormal results, which no bound holds for. */
    if (i == V && !projects(c, V) && !projects(c, Y) && size > 0 && size < FLT_MIN) size = 1;
    fill_normal(c, i, size);
    float *x = data(c, i);
    const int n = all_rows(c, i), d = (int)piece_of(c, i);
    const int rows = (int)(count(c, i) / (size_t)d);
    /* In self-attention queries grow with the keys. */
    double rise = cross ? (i == K ? set->rise : 0) : sqrt(set->rise);
    for (int r = 0; r < rows; r++) {
      float *row = x + r * (ptrdiff_t)d;
      if (set->same_rows && r > 0) memcpy(row, x, (size_t)d * sizeof *x);
      for (int j = 0; j < d && rise > 0; j++) row[j] *= (float)(rise * (r % n + 1) / n);
    }
  }
  draw_lengths(c);
  draw_ranges(c);
  draw_mask(c, set->low);
}

void draw_and_pack(checker *c, const data_set *set) {
  draw(c, set);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, set->bias > 0);
}

void fill_tables(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  for (int i = Q_NORM; i <= LAST_GAINS; i++) {
    for (size_t j = 0; j < count(c, i); j++) ((float *)c->buffers[i].master)[j] = 1;
  }
  const size_t pairs = (size_t)kernel->rope_dims / 2;
  int first;
  places_of(kernel, &first);
  for (size_t i = 0; i < count(c, ROPE_COS); i++) {
    const double place = first + (double)(i / pairs),
                 angle = place * pow(kernel->rope_theta, -(double)(i % pairs) / (double)pairs);
    ((float *)c->buffers[ROPE_COS].master)[i] = (float)cos(angle);
    ((float *)c->buffers[ROPE_SIN].master)[i] = (float)sin(angle);
  }
}

static double uniform(checker *c, double from, double to) {
  return from + (to - from) * (double)(bits(c) >> 11) * 0x1p-53;
}

static int chance(checker *c, double of) { return uniform(c, 0, 1) < of; }

/* In each row of a buffer all elements become equal: their roundings add up. */
static void make_constant(checker *c, int i, size_t width) {
  float *x = data(c, i);
  for (size_t j = 0; j < count(c, i); j++) x[j] = x[j / width * width];
}

/* Rows become nearly the first one. */
static void make_alike(checker *c, int i, size_t columns, double apart) {
  const size_t d = piece_of(c, i);
  float *x = data(c, i);
  for (size_t j = d; j < count(c, i); j++) {
    if (j % d < columns) x[j] = x[j % d] * (float)(1 + apart * normal(c));
  }
}

/* Queries and keys depend on the first columns of the inputs alone: where those are alike, all scores are
 * nearly tied, and the values are not. */
static void make_blind(checker *c) {
  for (int i = WQ; i <= WK; i++) {
    float *w = c->buffers[i].master;
    const size_t from = (width_of(c, Q + i - WQ) + 1) / 2 * count(c, i + BQ - WQ);
    memset(w + from, 0, (count(c, i) - from) * sizeof *w);
  }
}

/* Biases that leave nothing of the first row's queries, keys or values. */
static void make_cancel(checker *c, int weights, int bias, int input) {
  const size_t width = count(c, bias), d = width_of(c, input);
  const float *w = c->buffers[weights].master, *x = data(c, input);
  float *b = c->buffers[bias].master;
  for (size_t o = 0; o < width; o++) {
    double sum = 0;
    for (size_t j = 0; j < d; j++) sum += (double)x[j] * (double)w[j * width + o];
    b[o] = (float)-sum;
  }
}

data_set near(checker *c, const data_set *set) {
  data_set other = *set;
  other.score *= pow(2, normal(c));
  if (chance(c, .3)) other.bias = fabs(other.bias + .3 * normal(c));
  if (chance(c, .3)) other.rise = chance(c, .5) ? uniform(c, 0, 10) : 0;
  return other;
}

int draw_nasty(checker *c) {
  const double apart = pow(10, uniform(c, -8, 0));
  data_set set = {.same_rows = chance(c, .05)}; /* one call a statement: their order is fixed */
  set.input = pow(10, uniform(c, -3, 1));
  set.score = pow(10, uniform(c, -1, 3));
  if (has(c, MHAGEN_MASK_ADD)) set.low = chance(c, .2) ? .2 : 0;
  set.value = pow(10, uniform(c, -3, 3));
  if (chance(c, .6)) set.bias = uniform(c, 0, 2);
  if (chance(c, .3)) set.rise = uniform(c, 0, 150);
  const int alike = chance(c, .4), blind = alike && chance(c, .7) && projects(c, Q) && projects(c, K);
  draw(c, &set);
  fill_normal(c, SLOPES, pow(10, uniform(c, -2, 3)));
  fill_normal(c, SINKS, pow(10, uniform(c, -2, 3)));
  for (int i = Q; i <= V; i++) {
    const size_t d = piece_of(c, i);
    if (chance(c, .1)) make_constant(c, i, d);
    if (alike) make_alike(c, i, blind ? (d + 1) / 2 : d, apart);
  }
  if (blind) make_blind(c);
  for (int i = WQ; i <= SINKS; i++) {
    if (chance(c, .1)) make_constant(c, i, count(c, i));
  }
  if (chance(c, .2) && projects(c, Q)) make_cancel(c, WQ, BQ, Q);
  if (chance(c, .1) && projects(c, K)) make_cancel(c, WK, BK, has(c, MHAGEN_CROSS) ? K : Q);
  if (chance(c, .1) && projects(c, V)) make_cancel(c, WV, BV, has(c, MHAGEN_CROSS) ? V : Q);
  return set.bias > 0;
}
