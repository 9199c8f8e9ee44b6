/* checker_hidden.c of mhagen: promises about what a row does not see: NaN and Inf do not leak, whatever hides them. */
#include "checker_rooms.h"

#include <math.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* NaN, Inf or a huge number in one element of what packing reads for each head; then also beside an entry that sees no
 * key, which none of these reaches. */
static void check_poisoned_heads(checker *c) {
  const float poisons[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f};
  const int rounds = has(c, MHAGEN_KV_LEN) ? 10 : 5;
  for (int i = SLOPES; i <= SINKS; i++) {
    float *x = c->buffers[i].master;
    for (int round = 0; c->buffers[i].bytes && round < rounds; round++) {
      norms y = {0}, probs = {0};
      draw(c, &sets[NORMAL]);
      if (round >= 5) ((int *)c->buffers[KV_LEN].master)[below(c, c->kernel->batch)] = 0;
      x[below(c, c->kernel->h)] = poisons[round % 5];
      pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, 1);
      run(c, AFTER_GUARD, 0xFF, RUN, NULL);
      compare(c, 1, &y, &probs);
    }
  }
}

void check_poison(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const int small = c->flops <= 3e5;
  const float poisons[] = {NAN, INFINITY, -INFINITY, 1e25f};
  /* The last one has a square that overflows. Sums that a feed-forward makes of it would be at the end of the range. */
  const int all = has(c, MHAGEN_QK_NORM) && !has(c, MHAGEN_FFN) ? 4 : 3;
  const int inputs = has(c, MHAGEN_CROSS) ? 3 : 1;
  if (c->flops > 1e8) return;
  c->part = "NaN and Inf";
  for (int i = Q; i < Q + inputs; i++) {
    const int n = all_rows(c, i), d = (int)width_of(c, i);
    float *x = data(c, i);
    for (int poison = 0; poison < (small ? all : 2); poison++) {
      draw_and_pack(c, &sets[below(c, 2) ? NORMAL : LARGE_SCORES]); /* attention weights may be 0 */
      for (int where = 0; where < (small ? 3 : 1); where++) {
        int row = small && where < 2 ? where * (n - 1) : below(c, n);
        size_t b = (size_t)below(c, kernel->batch), at = place_in(c, i, b, (size_t)row, (size_t)below(c, d));
        float healthy = x[at];
        norms y = {0}, probs = {0};
        x[at] = poisons[poison];
        run(c, AFTER_GUARD, 0xFF, RUN, NULL);
        compare(c, 1, &y, &probs);
        x[at] = healthy;
      }
    }
  }
  const float adds[] = {NAN, INFINITY, 3e38f, -3e38f};
  for (int i = 0; i < 4 && has(c, MHAGEN_MASK_ADD); i++) {
    draw_and_pack(c, &sets[NORMAL]);
    norms y = {0}, probs = {0};
    for (int j = 0; j < 2; j++) set_mask(c, (size_t)below(c, (int)count(c, MASK)), 1, adds[i]);
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    compare(c, 1, &y, &probs);
  }
  check_poisoned_heads(c);
  note(c, "reach exactly the rows that depend on them");
}

static void set_row(checker *c, int i, int b, int row, float value) {
  float *x = data(c, i);
  for (size_t j = 0; j < width_of(c, i); j++) x[place_in(c, i, (size_t)b, (size_t)row, j)] = value;
}

/* Sets the keys first .. end - 1 of one batch entry to one value. */
static void set_keys(checker *c, int b, int first, int end, float value) {
  for (int i = has(c, MHAGEN_CROSS) ? K : Q; i <= (has(c, MHAGEN_CROSS) ? V : Q); i++) {
    for (int row = first; row < end; row++) set_row(c, i, b, row, value);
  }
  /* The angles of keys, unless queries of another input have the same ones. */
  const int own = c->buffers[K_COSINES].bytes > 0, shared = has(c, MHAGEN_ROPE_AT_RUN) && !has(c, MHAGEN_CROSS);
  for (int i = own ? K_COSINES : COSINES; (own || shared) && i <= (own ? K_SINES : SINES); i++) {
    for (int row = first; row < end; row++) set_row(c, i, b, row, value);
  }
}

/* The mask hides the keys first .. end - 1 of a half of its rows, or of its only one. */
static void hide_keys(checker *c, int first, int end) {
  const int m = c->kernel->seq_kv, rows = (int)(c->buffers[MASK].bytes / element(c, MASK)) / m;
  for (int r = 0; r < rows; r++) {
    for (int j = first; j < end && (rows == 1 || r % 2); j++) set_mask(c, (size_t)(r * m + j), 0, 0);
  }
}

/* The ranges of half of the rows end before these keys, or begin behind them. */
static void pass_keys(checker *c, int first, int end) {
  int *range = c->buffers[ROW_KEYS].master;
  for (int row = 0; has(c, MHAGEN_ROW_KEYS) && row < c->kernel->batch * c->kernel->seq; row++, range += 2) {
    if (row % c->kernel->seq >= rows_of(c, row / c->kernel->seq)) continue;
    if (row % 4 == 0) range[0] = 0, range[1] = first;
    if (row % 4 == 2) range[0] = end, range[1] = c->kernel->seq_kv;
  }
}

/* What it adds to those that it does not hide. */
static void fill_mask(checker *c, int first, int end, float value) {
  const int m = c->kernel->seq_kv, rows = has(c, MHAGEN_MASK_ADD) ? (int)count(c, MASK) / m : 0;
  for (int r = 0; r < rows; r++) {
    float *row = (float *)c->buffers[MASK].master + r * (ptrdiff_t)m;
    for (int j = first; j < end; j++) row[j] = row[j] == -INFINITY ? row[j] : value;
  }
}

enum { BEHIND = -1, BEFORE = -2 }; /* the keys beyond kv_len, those before kv_start */

/* Rows have the same bits whether keys that they do not see are zeros, NaN or Inf: those from `first` on, up to
 * `end`, or those that `first` names. */
static void check_mask(checker *c, int first, int end) {
  const mhagen_kernel *kernel = c->kernel;
  const int *lengths = c->buffers[KV_LEN].master, *starts = c->buffers[KV_START].master,
            *past = c->buffers[PAST].master;
  const int cross = has(c, MHAGEN_CROSS);
  const float fills[] = {0, NAN, INFINITY};
  draw_and_pack(c, &sets[NORMAL]);
  if (first >= 0) hide_keys(c, first, end), pass_keys(c, first, end);
  for (int i = 0; i < 3; i++) {
    if (first >= 0) fill_mask(c, first, end, fills[i]);
    for (int b = 0; b < kernel->batch; b++) {
      const int from = first == BEHIND ? lengths[b] : first == BEFORE ? 0 : first;
      const int to = first == BEFORE ? starts[b] : end;
      set_keys(c, b, from, to, fills[i]);
    }
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    if (i == 0) keep_as_base(c);
    for (int row = 0; row < kernel->batch * kernel->seq; row++) {
      const int b = row / kernel->seq, r = row % kernel->seq;
      const int from = first == BEHIND ? lengths[b] : first == BEFORE ? 0 : first;
      const int to = first == BEFORE ? starts[b] : end;
      const int sees = row_sees(c, (size_t)b, (size_t)r, (size_t)from, (size_t)to);
      const int own = r + (has(c, MHAGEN_CACHE_APPEND) ? past[b] : 0); /* its row of all */
      const int is = !cross && own >= from && own < to; /* in self-attention such a row is itself set */
      if (!sees && !is) require_row_bits(c, b, b, (size_t)r, "masked keys matter");
    }
  }
}

void check_masks(checker *c) {
  const int m = c->kernel->seq_kv, cuts[] = {1, m / 2, m - 1, 1 + below(c, m)};
  const size_t count = c->flops <= 3e5 ? 4 : c->flops <= 1e8 ? 1 : 0;
  const int window = has(c, MHAGEN_WINDOW_LEFT | MHAGEN_WINDOW_RIGHT | MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD |
                            MHAGEN_ROW_KEYS),
            behind = has(c, MHAGEN_CAUSAL);
  c->part = "masked keys";
  for (size_t i = 0; i < count; i++) {
    const int cut = cuts[3 - i], end = cut < m ? cut + 1 + below(c, m - cut) : m;
    if (behind && cut > 0 && cut < m) check_mask(c, cut, m);
    if (window) check_mask(c, cut < m ? cut : 0, end);
    if (has(c, MHAGEN_KV_LEN)) check_mask(c, BEHIND, m);
    if (has(c, MHAGEN_KV_START)) check_mask(c, BEFORE, m);
  }
  if (count && (behind || window || has(c, MHAGEN_KV_LEN | MHAGEN_KV_START))) note(c, "have no influence");
}

const int int_buffers[INT_BUFFERS] = {KV_LEN, KV_START, Q_LEN, PAST};

/* NaN, Inf or a huge number in one query changes no bit of the others, which are done with it. */
static void check_one_query(checker *c, int set) {
  const float fills[] = {NAN, INFINITY, 1e30f};
  draw_and_pack(c, &sets[set]);
  const int b = below(c, c->kernel->batch), rows = rows_of(c, b);
  if (rows < 2) return;
  const int other = below(c, rows);
  run(c, AFTER_GUARD, 0xFF, RUN, NULL);
  keep_as_base(c);
  for (int i = 0; i < 3; i++) {
    set_row(c, Q, b, other, fills[i]);
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    for (int r = 0; r < rows; r++) {
      if (r != other) require_row_bits(c, b, b, (size_t)r, "another query matters");
    }
  }
}

void check_queries(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const float fills[] = {0, NAN, INFINITY};
  const int *past = c->buffers[PAST].master;
  c->part = "another query";
  for (int set = NORMAL; set <= LARGE_SCORES && has(c, MHAGEN_CROSS) && kernel->seq > 1 && c->flops <= 3e6; set++) {
    check_one_query(c, set);
  }
  if (!has(c, MHAGEN_Q_LEN) || !has(c, MHAGEN_CROSS | MHAGEN_CACHE_APPEND) || c->flops > 1e8) return;
  c->part = "other queries";
  draw_and_pack(c, &sets[NORMAL]);
  for (int i = 0; i < 3; i++) {
    for (int b = 0; b < kernel->batch; b++) {
      const int first = c->all[Q] ? past[b] : 0;
      for (int row = rows_of(c, b); row < kernel->seq; row++) {
        set_row(c, Q, b, first + row, fills[i]);
        for (int angle = COSINES; has(c, MHAGEN_ROPE_AT_RUN) && angle <= SINES; angle++)
          set_row(c, angle, b, (c->all[angle] ? past[b] : 0) + row, fills[i]);
      }
    }
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    if (i == 0) keep_as_base(c);
    require_same_bits(c, "queries that nobody asks for matter");
  }
  note(c, "have no influence");
}

void check_lengths(checker *c) {
  c->part = "lengths";
  for (int j = 0; j < INT_BUFFERS; j++) {
    const mhagen_need *need = need_of(c, int_buffers[j]);
    norms y = {0}, probs = {0};
    double score = 0;
    if (!need || need->most < 0) continue;
    const int most = most_of(c, int_buffers[j]), extremes[] = {0, 1, most, most - 1};
    for (int i = 0; i < (c->flops <= 3e6 ? 4 : 1); i++) {
      if (extremes[i] < 0 || extremes[i] > most) continue;
      draw_and_pack(c, &sets[NORMAL]);
      for (int b = 0; b < c->kernel->batch; b++) ((int *)c->buffers[int_buffers[j]].master)[b] = extremes[i];
      run(c, AFTER_GUARD, 0xFF, RUN, NULL);
      compare(c, 1, &y, &probs);
      score = fmax(score, c->score);
    }
    require_bound_of_many(c, score, y, probs);
  }
}

void check_ranges(checker *c) {
  const int m = c->kernel->seq_kv,
            ranges[][2] = {{0, m}, {0, 0}, {m, m}, {m, 0}, {0, 1}, {m - 1, m}, {m / 2, m / 2 + 1}};
  norms y = {0}, probs = {0};
  double score = 0;
  if (!has(c, MHAGEN_ROW_KEYS)) return;
  c->part = "ranges";
  for (int i = 0; i < (c->flops <= 3e6 ? 7 : 2); i++) {
    draw_and_pack(c, &sets[NORMAL]);
    int *range = c->buffers[ROW_KEYS].master;
    for (int row = 0; row < c->kernel->batch * c->kernel->seq; row++, range += 2)
      range[0] = ranges[i][0], range[1] = ranges[i][1];
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    compare(c, 1, &y, &probs);
    score = fmax(score, c->score);
  }
  require_bound_of_many(c, score, y, probs);
}

void check_cache(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  if (!kernel->cache_bytes) return;
  c->part = "cache";
  norms y = {0}, probs = {0};
  double score = 0;
  const mhagen_need *past = need_of(c, PAST);
  const int pasts[] = {past ? most_of(c, PAST) : 0, 0};
  for (int i = 0; i < (past && c->flops <= 3e6 ? 2 : 1); i++) {
    draw_and_pack(c, &sets[NORMAL]);
    for (int b = 0; b < kernel->batch && past; b++) ((int *)c->buffers[PAST].master)[b] = pasts[i];
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    compare(c, 1, &y, &probs);
    score = fmax(score, c->score);
  }
  const buffer *cache = &c->buffers[CACHE];
  void *before = allocate(c, cache->bytes);
  draw_and_pack(c, &sets[NORMAL]);
  /* Rows of the cache behind q_len rows may hold anything, so all are asked for. */
  for (int b = 0; b < kernel->batch && has(c, MHAGEN_Q_LEN); b++)
    ((int *)c->buffers[Q_LEN].master)[b] = most_of(c, Q_LEN);
  run(c, AFTER_GUARD, 0xFF, RUN, NULL);
  keep_as_base(c);
  memcpy(before, cache->at, cache->bytes);
  const mhagen_args again = args_of(c, kernel->needs, kernel->need_count);
  const mhagen_status status = kernel->run(&again);
  if (status != MHAGEN_OK) fail(c, "run again: %s", mhagen_status_text(status));
  for (int i = Y; i <= SCORES; i++) decode(c, i, c->buffers[i].at, c->buffers[i].master, c->buffers[i].bytes);
  require_same_bits(c, "a run that is done again");
  if (memcmp(before, cache->at, cache->bytes)) fail(c, "a run that is done again leaves other bytes in the cache");
  free(before);
  require_bound_of_many(c, score, y, probs);
}
