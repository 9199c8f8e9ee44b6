/* checker_runs.c of mhagen: packs weights and runs the kernel; what must not change by that has not. */
#define _DEFAULT_SOURCE /* mmap's MAP_ANONYMOUS */
#include "checker_rooms.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void transpose(const float *from, int rows, int columns, float *to) {
  for (int r = 0; r < rows; r++) {
    for (int o = 0; o < columns; o++) to[(ptrdiff_t)o * rows + r] = *from++;
  }
}

static mhagen_weights weights_at(const float *const *at, mhagen_layout layout, int biases) {
  return (mhagen_weights){.wq = at[WQ], .wk = at[WK], .wv = at[WV], .wo = at[WO],
                          .bq = biases ? at[BQ] : NULL, .bk = biases ? at[BK] : NULL,
                          .bv = biases ? at[BV] : NULL, .bo = biases ? at[BO] : NULL,
                          .layout = layout, .alibi = biases ? at[SLOPES] : NULL,
                          .sink = biases ? at[SINKS] : NULL,
                          .q_norm = biases ? at[Q_NORM] : NULL, .k_norm = biases ? at[K_NORM] : NULL,
                          .norm1 = biases ? at[NORM1] : NULL, .norm1_bias = biases ? at[NORM1_BIAS] : NULL,
                          .w1 = at[W1], .w2 = at[W2], .w3 = at[W3],
                          .b1 = biases ? at[B1] : NULL, .b2 = biases ? at[B2] : NULL, .b3 = biases ? at[B3] : NULL,
                          .norm2 = biases ? at[NORM2] : NULL, .norm2_bias = biases ? at[NORM2_BIAS] : NULL,
                          .norm1b = biases ? at[NORM1B] : NULL, .norm2b = biases ? at[NORM2B] : NULL,
                          .gain1 = biases ? at[GAIN1] : NULL, .gain2 = biases ? at[GAIN2] : NULL,
                          .rope_cos = biases ? at[ROPE_COS] : NULL,
                          .rope_sin = biases ? at[ROPE_SIN] : NULL};
}

mhagen_weights masters_of_weights(const checker *c, int biases) {
  const float *at[BUFFERS];
  for (int i = WQ; i <= LAST_WEIGHTS; i++) at[i] = c->buffers[i].bytes ? c->buffers[i].master : NULL;
  return weights_at(at, MHAGEN_IN_OUT, biases);
}

mhagen_weights placed_weights(const checker *c, mhagen_layout layout, int biases) {
  const float *at[BUFFERS];
  for (int i = WQ; i <= LAST_WEIGHTS; i++)
    at[i] = c->buffers[i].bytes ? (const float *)(const void *)c->buffers[i].at : NULL;
  return weights_at(at, layout, biases);
}

void pack(checker *c, enum place where, int fill, mhagen_layout layout, int biases) {
  const mhagen_kernel *kernel = c->kernel;
  buffer *b = c->buffers;
  for (int i = WQ; i <= LAST_WEIGHTS; i++) {
    place_input(c, i, where);
    if (i > LAST_MATRIX || layout == MHAGEN_IN_OUT || !b[i].bytes) continue;
    const int in = (int)inputs_of(c, i), out = (int)(b[i].bytes / sizeof(float)) / in;
    transpose(b[i].master, in, out, (float *)(void *)b[i].at);
  }
  place(c, PACKED, where, fill);
  place(c, TABLES, where, fill);
  const mhagen_weights weights = placed_weights(c, layout, biases);
  mhagen_status status = kernel->pack(&weights, b[PACKED].bytes ? b[PACKED].at : NULL);
  if (status == MHAGEN_OK && b[TABLES].bytes) status = kernel->pack_tables(&weights, b[TABLES].at);
  if (status != MHAGEN_OK) fail(c, "pack: %s", mhagen_status_text(status));
  for (int i = WQ; i <= LAST_WEIGHTS; i++) {
    if (layout == MHAGEN_IN_OUT || i > LAST_MATRIX) require_unchanged(c, i);
    else require_surroundings(c, i, 0xFF);
  }
  for (int i = TABLES; i <= PACKED; i++) {
    require_surroundings(c, i, fill);
    memcpy(b[i].master, b[i].at, b[i].bytes);
  }
}

void set_arg(mhagen_args *args, size_t at, const void *pointer) {
  memcpy((char *)args + at, &pointer, sizeof pointer);
}

mhagen_args args_of(const checker *c, const mhagen_need *needs, int need_count) {
  mhagen_args args = {.q = NULL};
  for (int i = 0; i < need_count; i++) {
    for (int j = 0; j < ARGUMENTS; j++) {
      if (arguments[j].at == needs[i].at) set_arg(&args, needs[i].at, c->buffers[arguments[j].id].at);
    }
  }
  return args;
}

/* The rows of an input that follow `past` of each batch entry. */
static void gather(const checker *c, int i, const int *past, float *to) {
  const size_t width = width_of(c, i), piece = piece_of(c, i), rows = (size_t)c->kernel->seq;
  for (int b = 0; b < c->kernel->batch && c->all[i]; b++) {
    for (size_t j = 0; j < width; j += piece, to += rows * piece)
      memcpy(to, c->all[i] + place_in(c, i, (size_t)b, (size_t)past[b], j), rows * piece * sizeof *to);
  }
}

/* Rows that are not asked for have what no range may be. */
static void spoil_ranges(checker *c) {
  int *range = c->buffers[ROW_KEYS].master;
  for (int row = 0; has(c, MHAGEN_ROW_KEYS) && row < c->kernel->batch * c->kernel->seq; row++, range += 2) {
    if (row % c->kernel->seq >= rows_of(c, row / c->kernel->seq)) range[0] = INT_MIN, range[1] = INT_MAX;
  }
}

mhagen_args place_args(checker *c, enum place where, int fill) {
  spoil_ranges(c);
  for (int i = Q; i <= LAST_GROWING; i++) {
    round_input(c, i);
    gather(c, i, c->buffers[PAST].master, c->buffers[i].master);
  }
  for (int i = Q; i < WQ; i++) place_input(c, i, where);
  for (int i = TABLES; i <= PACKED; i++) place_input(c, i, where);
  place(c, WORKSPACE, where, fill);
  place(c, CACHE, where, 0xFF);
  for (int i = Y; i <= SCORES; i++) place(c, i, where, 0xFF);
  return args_of(c, c->kernel->needs, c->kernel->need_count);
}

/* Brings the cache to where a run finds it, `past` rows of each batch entry in chunks of seq. */
static void make_past(checker *c, const mhagen_args *args) {
  buffer *b = c->buffers;
  const int *past = b[PAST].master, n = c->kernel->seq, batch = c->kernel->batch;
  int most = 0;
  for (int i = 0; i < batch; i++) most = past[i] > most ? past[i] : most;
  for (int done = 0; done < most; done += n) {
    for (int i = 0; i < batch; i++) {
      const int last = past[i] > n ? past[i] - n : 0; /* behind past there are NaN as far as that is possible */
      ((int *)(void *)b[PAST].at)[i] = done < last ? done : last;
      if (b[Q_LEN].bytes) ((int *)(void *)b[Q_LEN].at)[i] = n;
    }
    if (b[ROW_KEYS].bytes) memset(b[ROW_KEYS].at, 0, b[ROW_KEYS].bytes); /* what rows see does not change the cache */
    for (int i = Q; i <= LAST_GROWING; i++) {
      float *rows = allocate(c, master_bytes(c, i));
      gather(c, i, (int *)(void *)b[PAST].at, rows);
      if (c->all[i]) encode(c, i, rows, b[i].at, b[i].bytes);
      free(rows);
    }
    const mhagen_status status = c->kernel->run(args);
    if (status != MHAGEN_OK) fail(c, "run before: %s", mhagen_status_text(status));
  }
  for (int i = Q; i < WQ && most; i++) put(c, i);
  for (int i = Y; i <= SCORES; i++) memset(b[i].room, 0xFF, b[i].room_bytes);
}

/* What a run finds in the cache, behind NaN everywhere. */
static void prepare_cache(checker *c, const mhagen_args *args) {
  if (has(c, MHAGEN_CACHE_APPEND)) make_past(c, args);
  if (!c->kernel->fill) return;
  const mhagen_args filling = args_of(c, c->kernel->fill_needs, c->kernel->fill_need_count);
  const mhagen_status status = c->kernel->fill(&filling);
  if (status != MHAGEN_OK) fail(c, "fill: %s", mhagen_status_text(status));
  for (int i = Q; i < WQ; i++) require_unchanged(c, i);
}

const mhagen_kernel *first_member(const checker *c) {
  const mhagen_args none = {0};
  return mhagen_kernel_at(c->kernel, &none);
}

/* One of the kernel's lists of phases, at random: the finest or the coarse one. Returns its length. */
static int pick_phases(checker *c, const mhagen_kernel *kernel, const mhagen_phase **phases) {
  const int coarse = kernel->coarse_count > 0 && below(c, 2);
  *phases = coarse ? kernel->coarse : kernel->phases;
  return coarse ? kernel->coarse_count : kernel->phase_count;
}

const mhagen_kernel *forking(checker *c, const mhagen_args *args) {
  const mhagen_kernel *kernel = mhagen_kernel_at(c->kernel, args);
  const mhagen_phase *phases;
  const int count = pick_phases(c, kernel, &phases);
  free(c->phases);
  c->phases = allocate(c, (size_t)count * sizeof *c->phases);
  memcpy(c->phases, phases, (size_t)count * sizeof *c->phases);
  for (int p = 0; p < count; p++) c->phases[p].cycles = 1e12;
  c->forking = *kernel;
  c->forking.phases = c->phases;
  c->forking.phase_count = count;
  c->forking.coarse_count = 0;
  return &c->forking;
}

/* Runs a list of phases as a foreign scheduler might: the tasks of each in a random order. */
static mhagen_status run_by_hand(checker *c, const mhagen_args *args) {
  const mhagen_kernel *kernel = mhagen_kernel_at(c->kernel, args);
  const mhagen_phase *phases;
  const int count = pick_phases(c, kernel, &phases);
  mhagen_status status = mhagen_check_args(c->kernel, args);
  for (int p = 0; status == MHAGEN_OK && p < count; p++) {
    const mhagen_phase *phase = &phases[p];
    int *order = allocate(c, (size_t)phase->tasks * sizeof *order);
    for (int i = 0; i < phase->tasks; i++) {
      int j = below(c, i + 1);
      order[i] = order[j];
      order[j] = i;
    }
    for (int i = 0; i < phase->tasks; i++) phase->task(args, phase->first + order[i]);
    free(order);
  }
  return status;
}

int rows_of(const checker *c, int b) {
  return has(c, MHAGEN_Q_LEN) ? ((const int *)c->buffers[Q_LEN].master)[b] : c->kernel->seq;
}

/* The other rows of a result, in each of an entry's `sheets`, are what they were. */
static void require_rows_left(const checker *c, int i, int sheets, int columns) {
  const size_t n = (size_t)c->kernel->seq, row = (size_t)columns * element(c, i);
  for (int b = 0; b < c->kernel->batch && c->buffers[i].bytes; b++) {
    for (int s = 0; s < sheets; s++) {
      const char *sheet = c->buffers[i].at + (size_t)(b * sheets + s) * n * row;
      if (!is_filled(sheet + (size_t)rows_of(c, b) * row, sheet + n * row, 0xFF))
        fail(c, "writes rows of %s that nobody asks for, batch %d", c->buffers[i].name, b);
    }
  }
}

/* The rows of a cache behind those that there are now are what they were, where others may have them. */
static void require_cache_left(const checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  if (!has(c, MHAGEN_CACHE_BHSD) || !has(c, MHAGEN_CACHE_APPEND)) return;
  const size_t m = (size_t)kernel->seq_kv, number = kept_bytes(c), wide = sizeof(float),
               rows[] = {(size_t)kernel->dk * number, (size_t)kernel->dv * number, wide, wide}; /* and scales */
  const char *at = c->buffers[CACHE].at;
  const int kinds = number == 1 ? 4 : 2;
  for (int b = 0; b < kernel->batch; b++) {
    const size_t made = (size_t)(((const int *)c->buffers[PAST].master)[b] + kernel->seq);
    for (int i = 0; i < kinds * kernel->h_kv; i++) {
      const size_t row = rows[i / kernel->h_kv];
      if (i == 2 * kernel->h_kv) at += (size_t)(c->buffers[CACHE].at - at) % wide; /* scales are aligned */
      if (!is_filled(at + made * row, at + m * row, 0xFF)) fail(c, "writes rows of the cache that are not its own");
      at += m * row;
    }
  }
  const buffer *cache = &c->buffers[CACHE];
  if (at != cache->at + cache->bytes) fail(c, "cache_bytes is %zu", kernel->cache_bytes);
}

void run(checker *c, enum place where, int fill, enum scheduler scheduler, mhagen_pool *pool) {
  buffer *b = c->buffers;
  mhagen_args args = place_args(c, where, fill);
  prepare_cache(c, &args);
  c->ran = mhagen_kernel_at(c->kernel, &args);
  mhagen_status status = scheduler == RUN    ? c->kernel->run(&args)
                         : scheduler == POOL ? mhagen_run_parallel(pool ? forking(c, &args) : c->kernel, &args, pool)
                                             : run_by_hand(c, &args);
  if (status != MHAGEN_OK) fail(c, "run: %s", mhagen_status_text(status));
  c->runs++;
  for (int i = Q; i < WQ; i++) require_unchanged(c, i);
  for (int i = TABLES; i <= PACKED; i++) require_unchanged(c, i);
  require_surroundings(c, WORKSPACE, fill);
  require_surroundings(c, CACHE, 0xFF);
  require_cache_left(c);
  for (int i = Y; i <= SCORES; i++) {
    require_surroundings(c, i, 0xFF);
    require_rows_left(c, i, i > Y || apart(c, Y) ? c->kernel->h : 1, i == Y ? (int)piece_of(c, Y) : c->kernel->seq_kv);
    decode(c, i, b[i].at, b[i].master, b[i].bytes);
  }
}
