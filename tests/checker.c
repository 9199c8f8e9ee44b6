/* checker.c: the checks that checker.h describes. Every buffer of a kernel lies between two inaccessible
 * pages, all memory around and behind the results is NaN, and everything that may only be read is
 * compared afterwards. So prepared, the parts below run the kernel on one set of data after another. */
#define _DEFAULT_SOURCE /* mmap's MAP_ANONYMOUS */
#include "checker.h"
#include "reference.h"

#include <math.h>
#include <float.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the state of one check ---------------------------------------------------------------- */

enum {
  Q, K, V, KV_LEN, KV_START, Q_LEN, MASK, PAST, WQ, WK, WV, WO, BQ, BK, BV, BO, SLOPES, SINKS, Q_NORM, K_NORM,
  ROPE_COS, ROPE_SIN, PACKED, WORKSPACE, CACHE, Y, PROBS, SCORES, BUFFERS, LAST_WEIGHTS = ROPE_SIN
};

static const char *const names[BUFFERS] = {
    "q",  "k",  "v",  "kv_len", "kv_start", "q_len", "mask", "past", "wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo",
    "alibi", "sink", "q_norm", "k_norm", "rope_cos", "rope_sin", "packed", "workspace", "cache", "y", "probs",
    "scores"};

typedef struct buffer {
  const char *name;
  size_t bytes; /* 0: this kernel does not use it */
  size_t align;
  void *master; /* what a run should find (inputs, weights, packed), or the last result; of q, k, v and y as float32,
                   whatever they are in the kernel's memory */
  char *room;   /* room_bytes between the two inaccessible pages */
  size_t room_bytes;
  char *at; /* where the kernel finds it now, within room */
} buffer;

#define ROW_BOUNDS 1e7 /* flops of a run up to which its rows are checked one by one */

enum place { BEFORE_GUARD, AFTER_GUARD, BETWEEN, PLACES };
enum scheduler { RUN, POOL, BY_HAND };

typedef struct checker {
  const mhagen_kernel *kernel;
  mhagen_check_options options;
  const char *part; /* what is being checked, for messages */
  uint64_t random;
  double flops; /* of one run, roughly, with those that make what it finds in the cache */
  size_t page;
  buffer buffers[BUFFERS];
  float *all[V + 1]; /* with cache = append, of the inputs that keys are made of: [batch][seq_kv][width], all rows
                        that there ever are; else null */
  float *base_y, *base_probs, *base_scores; /* a result to compare others with */
  double *want_y, *want_probs;  /* the reference's result, */
  mhagen_results rounded;       /* where operands are rounded, the same of these; else null, */
  double score;                 /* its largest score */
  double error, bound, score_of_error; /* the worst so far, by error / bound */
  double *y_bounds, *probs_bounds;     /* of the rows, or null where that takes too long, */
  double row, rounded_part;            /* and the worst so far, error / bound; the same of `rounded` */
  int runs;
  mhagen_phase *phases;  /* the kernel's, each declared large: */
  mhagen_kernel forking; /* what a pool takes to be worth all its threads */
} checker;

/* For the signal handler, which cannot be given anything. */
static checker *current;

/* Ends the child process. */
static void fail(const checker *c, const char *format, ...) {
  va_list list;
  va_start(list, format);
  printf("FAIL %s (%s) ", c->kernel->name, c->part);
  vprintf(format, list);
  printf("\n");
  va_end(list);
  fflush(stdout);
  _exit(1);
}

static void note(const checker *c, const char *format, ...) {
  if (c->options.terse) return;
  va_list list;
  va_start(list, format);
  printf("  %-22s ", c->part);
  vprintf(format, list);
  printf("\n");
  va_end(list);
}

/* A fault: says which buffer the address is next to. */
static void on_fault(int number, siginfo_t *info, void *context) {
  (void)context;
  const checker *c = current;
  uintptr_t at = (uintptr_t)info->si_addr;
  for (int i = 0; i < BUFFERS; i++) {
    const buffer *b = &c->buffers[i];
    uintptr_t start = (uintptr_t)b->at, end = start + b->bytes;
    if (!b->at || at < (uintptr_t)b->room - c->page || at >= end + 2 * c->page) continue;
    if (at < start) fail(c, "touches %s %zu bytes before its start", b->name, (size_t)(start - at));
    fail(c, "touches %s %zu bytes past its end", b->name, (size_t)(at - end));
  }
  fail(c, "signal %d at address %p", number, info->si_addr);
}

static int has(const checker *c, unsigned option) { return (c->kernel->options & option) != 0; }

/* Whether the kernel projects with the matrix of an input or a result: Q, K, V, or Y, or with a matrix WQ .. WO. */
static int projects(const checker *c, int i) {
  const int bits[BUFFERS] = {
      [Q] = MHAGEN_PROJECT_Q, [K] = MHAGEN_PROJECT_K, [V] = MHAGEN_PROJECT_V, [Y] = MHAGEN_PROJECT_O,
      [WQ] = MHAGEN_PROJECT_Q, [WK] = MHAGEN_PROJECT_K, [WV] = MHAGEN_PROJECT_V, [WO] = MHAGEN_PROJECT_O};
  return !has(c, MHAGEN_UNPROJECTED) || (c->kernel->project & bits[i]) != 0;
}

/* Where mhagen_args has the pointers to buffers. */
static const struct argument {
  int id;
  size_t at;
} arguments[] = {
    {Q, offsetof(mhagen_args, q)}, {K, offsetof(mhagen_args, k)}, {V, offsetof(mhagen_args, v)},
    {Y, offsetof(mhagen_args, y)}, {PACKED, offsetof(mhagen_args, packed)},
    {WORKSPACE, offsetof(mhagen_args, workspace)}, {KV_LEN, offsetof(mhagen_args, kv_len)},
    {PROBS, offsetof(mhagen_args, probs)}, {KV_START, offsetof(mhagen_args, kv_start)},
    {Q_LEN, offsetof(mhagen_args, q_len)}, {MASK, offsetof(mhagen_args, mask)},
    {SCORES, offsetof(mhagen_args, scores)}, {PAST, offsetof(mhagen_args, past)},
    {CACHE, offsetof(mhagen_args, cache)},
};
enum { ARGUMENTS = sizeof arguments / sizeof *arguments };

static const char *name_at(size_t at) {
  int i = 0;
  while (arguments[i].at != at) i++;
  return names[arguments[i].id];
}

/* What a table says of the pointer to a buffer, or null. */
static const mhagen_need *need_in(const mhagen_need *needs, int count, int id) {
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < ARGUMENTS; j++) {
      if (arguments[j].id == id && arguments[j].at == needs[i].at) return &needs[i];
    }
  }
  return NULL;
}

/* The same of what runs need, and of what filling the cache needs. */
static const mhagen_need *need_of(const checker *c, int id) {
  return need_in(c->kernel->needs, c->kernel->need_count, id);
}

static const mhagen_need *fill_need_of(const checker *c, int id) {
  return need_in(c->kernel->fill_needs, c->kernel->fill_need_count, id);
}

/* The most of an int that any run takes: a ladder's kernels for few rows have room for more before them. */
static int most_of(const checker *c, int id) {
  return id == PAST ? c->kernel->seq_kv - c->kernel->seq : need_of(c, id)->most;
}

/* A cache that lies as others have it is aligned as they like. */
static int cache_align(const checker *c) { return has(c, MHAGEN_CACHE_BHSD) ? 1 : MHAGEN_ALIGN; }

/* Rows of an input of one batch entry, as a run gets it. */
static int rows_given(const checker *c, int i) {
  return i == Q || has(c, MHAGEN_CACHE_APPEND) ? c->kernel->seq : c->kernel->seq_kv;
}

/* Whether a buffer has numbers of a smaller type than its master. */
static int is_small(const checker *c, int i) { return has(c, MHAGEN_IO_DTYPE) && (i <= V || i == Y); }

/* Bytes of an element of a buffer. */
static size_t element(const checker *c, int i) {
  return i == MASK && has(c, MHAGEN_MASK_BOOL) ? 1 : is_small(c, i) ? sizeof(uint16_t) : sizeof(float);
}

static size_t master_bytes(const checker *c, int i) {
  return is_small(c, i) ? c->buffers[i].bytes * 2 : c->buffers[i].bytes;
}

/* Floats as a buffer has them, and back. */
static void encode(const checker *c, int i, const void *from, void *to, size_t bytes) {
  if (!is_small(c, i)) memcpy(to, from, bytes);
  for (size_t j = 0; is_small(c, i) && j < bytes / 2; j++)
    ((uint16_t *)to)[j] = mhagen_to_bits(c->kernel->io_dtype, (double)((const float *)from)[j]);
}

static void decode(const checker *c, int i, const void *from, void *to, size_t bytes) {
  if (!is_small(c, i)) memcpy(to, from, bytes);
  for (size_t j = 0; is_small(c, i) && j < bytes / 2; j++)
    ((float *)to)[j] = (float)mhagen_of_bits(c->kernel->io_dtype, ((const uint16_t *)from)[j]);
}

/* Bytes of a number in a row of the cache. */
static size_t kept_bytes(const checker *c) {
  const mhagen_kernel *k = c->kernel;
  const char *attend = k->attend_dtype ? k->attend_dtype : k->dtype, *type = k->cache_dtype ? k->cache_dtype : attend;
  return type && !strcmp(type, "int8") ? 1 : type && strcmp(type, "f32") ? 2 : sizeof(float);
}

/* ---- random numbers ------------------------------------------------------------------------ */

static uint64_t bits(checker *c) { /* splitmix64 */
  uint64_t z = c->random += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

static int below(checker *c, int n) { return (int)(bits(c) % (uint64_t)n); }

/* Close to normal(0, 1): the sum of four uniform numbers, the same on every machine. */
static double normal(checker *c) {
  uint64_t r = bits(c);
  double sum = 0;
  for (int i = 0; i < 4; i++, r >>= 16) sum += (double)(r & 0xFFFF);
  return (sum / 65535 - 2) * 1.7320508075688772;
}

/* The width of the rows of Q, K, V or Y. */
static size_t width_of(const checker *c, int i) {
  const mhagen_kernel *k = c->kernel;
  if (i == Q) return (size_t)(projects(c, Q) ? k->d_model : k->h * k->dk);
  return (size_t)(i == K ? k->k_width : i == V ? k->v_width : k->y_width);
}

/* The numbers that a buffer's contents are drawn from, of an input all rows that there ever are; how many; and rows of
 * a batch entry. */
static float *data(const checker *c, int i) {
  return i <= V && c->all[i] ? c->all[i] : c->buffers[i].master;
}

static int all_rows(const checker *c, int i) { return c->all[i] ? c->kernel->seq_kv : rows_given(c, i); }

static size_t count(const checker *c, int i) {
  const size_t rows = i <= V && c->all[i] ? (size_t)c->kernel->batch * (size_t)c->kernel->seq_kv : 0;
  return rows ? rows * width_of(c, i) : c->buffers[i].bytes / element(c, i);
}

static void fill_normal(checker *c, int i, double scale) {
  float *x = data(c, i);
  for (size_t j = 0; j < count(c, i); j++) x[j] = (float)(scale * normal(c));
}

/* ---- buffers between inaccessible pages ---------------------------------------------------- */

static void *allocate(const checker *c, size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  if (!memory) fail(c, "out of memory");
  return memory;
}

/* Whether Q, K, V or Y has the rows of each head together. */
static int apart(const checker *c, int i) { return has(c, MHAGEN_BHSD) && !projects(c, i); }

/* How many numbers of its rows lie side by side: all of them, or those of a head. */
static size_t piece_of(const checker *c, int i) {
  const mhagen_kernel *k = c->kernel;
  if (!apart(c, i)) return width_of(c, i);
  return (size_t)(i == Q || i == K ? k->dk : k->dv);
}

/* Where column j of a row of a batch entry is in Q, K or V, of all rows that there ever are. */
static size_t place_in(const checker *c, int i, size_t b, size_t row, size_t j) {
  const size_t rows = (size_t)all_rows(c, i), piece = piece_of(c, i);
  return ((b * (width_of(c, i) / piece) + j / piece) * rows + row) * piece + j % piece;
}

/* From one batch entry to the next; 0 where all entries have the same. */
static size_t entry_bytes(const checker *c, int i) {
  const size_t batch = (size_t)c->kernel->batch;
  if (i == MASK && !(c->kernel->mask_dims && strchr(c->kernel->mask_dims, 'b'))) return 0;
  return c->buffers[i].bytes / batch;
}

static size_t mask_count(const mhagen_kernel *k) {
  const char *dims = k->mask_dims ? k->mask_dims : "";
  return (size_t)(strchr(dims, 'b') ? k->batch : 1) * (size_t)(strchr(dims, 'h') ? k->h : 1) *
         (size_t)(strchr(dims, 'q') ? k->seq : 1) * (size_t)k->seq_kv;
}

/* Rows of y that NaN and Inf reach together, and that have a bound: whole ones, or of each head where heads are not
 * projected together; and how many of them a batch entry has. */
static size_t y_row(const checker *c) { return projects(c, Y) ? width_of(c, Y) : (size_t)c->kernel->dv; }
static size_t y_rows(const checker *c) { return (size_t)c->kernel->seq * width_of(c, Y) / y_row(c); }

/* The query of number i of them, and its head, where it is of one. */
static size_t query_of(const checker *c, size_t i) {
  return apart(c, Y) ? i % (size_t)c->kernel->seq : i / (width_of(c, Y) / y_row(c));
}
static size_t head_of(const checker *c, size_t i) {
  return apart(c, Y) ? i / (size_t)c->kernel->seq : i % (width_of(c, Y) / y_row(c));
}

/* The places that tables of rope have, from *first on. */
static int places_of(const mhagen_kernel *kernel, int *first) {
  const int query = kernel->options & MHAGEN_BOTTOM_RIGHT ? kernel->seq_kv - kernel->seq : 0, end = query + kernel->seq;
  *first = query < 0 ? query : 0;
  return (end > kernel->seq_kv ? end : kernel->seq_kv) - *first;
}

static void make_buffers(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  int first;
  const size_t d = width_of(c, Q), kd = width_of(c, K), vd = width_of(c, V), yd = width_of(c, Y),
               n = (size_t)kernel->seq, m = (size_t)kernel->seq_kv, batch = (size_t)kernel->batch,
               h = (size_t)kernel->h, hq = h * (size_t)kernel->dk, ho = h * (size_t)kernel->dv,
               h_kv = (size_t)kernel->h_kv,
               hk = h_kv * (size_t)kernel->dk, hv = h_kv * (size_t)kernel->dv, f = sizeof(float), io = element(c, Q);
  const size_t table = has(c, MHAGEN_ROPE) ? (size_t)(places_of(kernel, &first) * kernel->rope_dims / 2) * f : 0;
  const int own = kernel->norm_span != MHAGEN_SPAN_HEAD; /* gains for each head */
  const size_t normed = has(c, MHAGEN_QK_NORM) ? 1 : 0;
  const size_t bytes[BUFFERS] = {
      [Q] = batch * n * d * io,
      [K] = has(c, MHAGEN_CROSS) ? batch * (size_t)rows_given(c, K) * kd * io : 0,
      [V] = has(c, MHAGEN_CROSS) ? batch * (size_t)rows_given(c, V) * vd * io : 0,
      [KV_LEN] = need_of(c, KV_LEN) ? batch * sizeof(int) : 0,
      [KV_START] = need_of(c, KV_START) ? batch * sizeof(int) : 0,
      [Q_LEN] = need_of(c, Q_LEN) ? batch * sizeof(int) : 0,
      [PAST] = need_of(c, PAST) ? batch * sizeof(int) : 0,
      [MASK] = need_of(c, MASK) ? mask_count(kernel) * element(c, MASK) : 0,
      [WQ] = projects(c, Q) ? d * hq * f : 0, [BQ] = projects(c, Q) ? hq * f : 0,
      [WK] = projects(c, K) ? kd * hk * f : 0, [BK] = projects(c, K) ? hk * f : 0,
      [WV] = projects(c, V) ? vd * hv * f : 0, [BV] = projects(c, V) ? hv * f : 0,
      [WO] = projects(c, Y) ? ho * yd * f : 0, [BO] = projects(c, Y) ? yd * f : 0,
      [Q_NORM] = normed * (own ? hq : (size_t)kernel->dk) * f,
      [K_NORM] = normed * (own ? hk : (size_t)kernel->dk) * f,
      [ROPE_COS] = table, [ROPE_SIN] = table,
      [SLOPES] = has(c, MHAGEN_ALIBI) ? h * f : 0, [SINKS] = has(c, MHAGEN_SINK) ? h * f : 0,
      [PACKED] = kernel->packed_bytes, [WORKSPACE] = kernel->workspace_bytes,
      [CACHE] = batch * kernel->cache_bytes,
      [Y] = batch * n * yd * io,
      [PROBS] = need_of(c, PROBS) ? batch * h * n * m * f : 0,
      [SCORES] = need_of(c, SCORES) ? batch * h * n * m * f : 0,
  };
  c->page = (size_t)sysconf(_SC_PAGESIZE);
  for (int i = 0; i < BUFFERS; i++) {
    buffer *b = &c->buffers[i];
    b->name = names[i];
    b->bytes = bytes[i];
    const int wide = i == PACKED || i == WORKSPACE || (i == CACHE && cache_align(c) > 1);
    b->align = wide ? MHAGEN_ALIGN : i == CACHE && kept_bytes(c) == 2 ? 2 : element(c, i);
    b->master = allocate(c, master_bytes(c, i));
    b->room_bytes = (b->bytes + MHAGEN_ALIGN + c->page - 1) / c->page * c->page;
    char *map = mmap(NULL, b->room_bytes + 2 * c->page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);
    if (map == MAP_FAILED) fail(c, "out of memory");
    b->room = map + c->page;
    if (mprotect(b->room, b->room_bytes, PROT_READ | PROT_WRITE)) fail(c, "mprotect failed");
    const int grows = has(c, MHAGEN_CROSS) ? i == K || i == V : i == Q;
    if (grows && has(c, MHAGEN_CACHE_APPEND)) c->all[i] = allocate(c, batch * m * width_of(c, i) * f);
  }
  const size_t of_y = batch * n * yd * sizeof(double);
  c->base_y = allocate(c, of_y);
  c->base_probs = allocate(c, bytes[PROBS]);
  c->base_scores = allocate(c, bytes[SCORES]);
  c->want_y = allocate(c, of_y);
  c->want_probs = allocate(c, 2 * bytes[PROBS]);
  if (mhagen_is_rounded(kernel)) {
    mhagen_results *r = &c->rounded;
    r->y = allocate(c, of_y), r->y_off = allocate(c, of_y);
    if (bytes[PROBS]) r->probs = allocate(c, 2 * bytes[PROBS]), r->probs_off = allocate(c, 2 * bytes[PROBS]);
  }
  if (c->flops > ROW_BOUNDS) return;
  c->y_bounds = allocate(c, batch * y_rows(c) * sizeof(double));
  c->probs_bounds = allocate(c, batch * h * n * sizeof(double));
}

/* Gives the buffer a place: flush to one of the inaccessible pages, as far as its alignment allows,
 * or a random distance from it. The room is filled with `fill`; 0xFF makes every float a NaN. */
static void place(checker *c, int i, enum place where, int fill) {
  buffer *b = &c->buffers[i];
  size_t step = (b->room_bytes - b->bytes) / b->align; /* the last possible one */
  if (where == BEFORE_GUARD) step = 0;
  if (where == BETWEEN) step -= (size_t)below(c, (int)(step < 16 ? step : 16) + 1);
  b->at = b->room + step * b->align;
  memset(b->room, fill, b->room_bytes);
}

/* What is drawn becomes what the kernel's inputs can be. */
static void round_input(checker *c, int i) {
  float *x = data(c, i);
  for (size_t j = 0; is_small(c, i) && j < count(c, i); j++)
    x[j] = (float)mhagen_nearest(c->kernel->io_dtype, (double)x[j]);
}

static void put(const checker *c, int i) {
  const buffer *b = &c->buffers[i];
  encode(c, i, b->master, b->at, b->bytes);
}

/* The same with contents. */
static void place_input(checker *c, int i, enum place where) {
  place(c, i, where, 0xFF);
  put(c, i);
}

static int is_master(const checker *c, int i) {
  const buffer *b = &c->buffers[i];
  if (!is_small(c, i)) return !memcmp(b->at, b->master, b->bytes);
  void *wanted = allocate(c, b->bytes);
  encode(c, i, b->master, wanted, b->bytes);
  const int same = !memcmp(b->at, wanted, b->bytes);
  free(wanted);
  return same;
}

static int is_filled(const char *from, const char *to, int fill) {
  return from == to || (*(const unsigned char *)from == fill &&
                        !memcmp(from, from + 1, (size_t)(to - from) - 1));
}

static void require_fill(const checker *c, int i, const char *from, const char *to, int fill) {
  if (!is_filled(from, to, fill)) fail(c, "writes outside %s", c->buffers[i].name);
}

/* Nothing around the buffer has been written. */
static void require_surroundings(const checker *c, int i, int fill) {
  const buffer *b = &c->buffers[i];
  require_fill(c, i, b->room, b->at, fill);
  require_fill(c, i, b->at + b->bytes, b->room + b->room_bytes, fill);
}

static void require_unchanged(const checker *c, int i) {
  const buffer *b = &c->buffers[i];
  require_surroundings(c, i, 0xFF);
  if (!is_master(c, i)) fail(c, "changes %s", b->name);
}

/* After an error: of the buffers from..to those up to PACKED, but for `except`, hold their masters,
 * and the others what they were filled with. */
static void require_untouched(const checker *c, int from, int to, int except, const char *what) {
  for (int i = from; i <= to; i++) {
    const buffer *b = &c->buffers[i];
    if (i == except || i > PACKED) {
      if (!is_filled(b->room, b->room + b->room_bytes, 0xFF))
        fail(c, "%s: writes %s", what, b->name);
    } else if (!is_filled(b->room, b->at, 0xFF) || !is_master(c, i) ||
               !is_filled(b->at + b->bytes, b->room + b->room_bytes, 0xFF)) {
      fail(c, "%s: changes %s", what, b->name);
    }
  }
}

/* ---- pack and run -------------------------------------------------------------------------- */

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
                          .rope_cos = biases ? at[ROPE_COS] : NULL,
                          .rope_sin = biases ? at[ROPE_SIN] : NULL};
}

static mhagen_weights masters_of_weights(const checker *c, int biases) {
  const float *at[BUFFERS];
  for (int i = WQ; i <= LAST_WEIGHTS; i++) at[i] = c->buffers[i].bytes ? c->buffers[i].master : NULL;
  return weights_at(at, MHAGEN_IN_OUT, biases);
}

static mhagen_weights placed_weights(const checker *c, mhagen_layout layout, int biases) {
  const float *at[BUFFERS];
  for (int i = WQ; i <= LAST_WEIGHTS; i++)
    at[i] = c->buffers[i].bytes ? (const float *)(const void *)c->buffers[i].at : NULL;
  return weights_at(at, layout, biases);
}

/* Packs the weights; the result becomes the master of PACKED. */
static void pack(checker *c, enum place where, int fill, mhagen_layout layout, int biases) {
  const mhagen_kernel *kernel = c->kernel;
  buffer *b = c->buffers;
  for (int i = WQ; i <= LAST_WEIGHTS; i++) {
    place_input(c, i, where);
    if (i > WO || layout == MHAGEN_IN_OUT || !projects(c, i)) continue;
    const int in = i == WO ? kernel->h * kernel->dv : (int)width_of(c, Q + i - WQ);
    const int out = (int)(b[i].bytes / sizeof(float)) / in;
    transpose(b[i].master, in, out, (float *)(void *)b[i].at);
  }
  place(c, PACKED, where, fill);
  const mhagen_weights weights = placed_weights(c, layout, biases);
  mhagen_status status = kernel->pack(&weights, b[PACKED].bytes ? b[PACKED].at : NULL);
  if (status != MHAGEN_OK) fail(c, "pack: %s", mhagen_status_text(status));
  for (int i = WQ; i <= LAST_WEIGHTS; i++) {
    if (layout == MHAGEN_IN_OUT || i > WO) require_unchanged(c, i);
    else require_surroundings(c, i, 0xFF);
  }
  require_surroundings(c, PACKED, fill);
  memcpy(b[PACKED].master, b[PACKED].at, b[PACKED].bytes);
}

static void set_arg(mhagen_args *args, size_t at, const void *pointer) {
  memcpy((char *)args + at, &pointer, sizeof pointer);
}

/* The arguments of a table. What the kernel must not look at is null. */
static mhagen_args args_of(const checker *c, const mhagen_need *needs, int need_count) {
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

/* Places everything a run needs. */
static mhagen_args place_args(checker *c, enum place where, int fill) {
  for (int i = Q; i <= V; i++) {
    round_input(c, i);
    gather(c, i, c->buffers[PAST].master, c->buffers[i].master);
  }
  for (int i = Q; i < WQ; i++) place_input(c, i, where);
  place_input(c, PACKED, where);
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
    for (int i = Q; i <= V; i++) {
      float *rows = allocate(c, master_bytes(c, i));
      gather(c, i, (int *)(void *)b[PAST].at, rows);
      if (c->all[i]) encode(c, i, rows, b[i].at, b[i].bytes);
      free(rows);
    }
    const mhagen_status status = c->kernel->run(args);
    if (status != MHAGEN_OK) fail(c, "run before: %s", mhagen_status_text(status));
  }
  for (int i = Q; i <= PAST && most; i++) put(c, i);
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

/* A kernel that runs: this one, or of several the first that can. */
static const mhagen_kernel *first_member(const checker *c) {
  const mhagen_args none = {0};
  return mhagen_kernel_at(c->kernel, &none);
}

/* The kernel that a run with these arguments calls, with phases that are each declared large. */
static const mhagen_kernel *forking(checker *c, const mhagen_args *args) {
  const mhagen_kernel *kernel = mhagen_kernel_at(c->kernel, args);
  const size_t count = (size_t)kernel->phase_count;
  free(c->phases);
  c->phases = allocate(c, count * sizeof *c->phases);
  memcpy(c->phases, kernel->phases, count * sizeof *c->phases);
  for (size_t p = 0; p < count; p++) c->phases[p].cycles = 1e12;
  c->forking = *kernel;
  c->forking.phases = c->phases;
  return &c->forking;
}

/* Runs the table of tasks as a foreign scheduler might: each phase in a random order. */
static mhagen_status run_by_hand(checker *c, const mhagen_args *args) {
  const mhagen_kernel *kernel = mhagen_kernel_at(c->kernel, args);
  mhagen_status status = mhagen_check_args(c->kernel, args);
  for (int p = 0; status == MHAGEN_OK && p < kernel->phase_count; p++) {
    const mhagen_phase *phase = &kernel->phases[p];
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

/* How many rows of a batch entry are asked for. */
static int rows_of(const checker *c, int b) {
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

/* Runs the kernel on the masters; the results become the masters of Y, PROBS and SCORES. */
static void run(checker *c, enum place where, int fill, enum scheduler scheduler,
                mhagen_pool *pool) {
  buffer *b = c->buffers;
  mhagen_args args = place_args(c, where, fill);
  prepare_cache(c, &args);
  mhagen_status status = scheduler == RUN    ? c->kernel->run(&args)
                         : scheduler == POOL ? mhagen_run_parallel(pool ? forking(c, &args) : c->kernel, &args, pool)
                                             : run_by_hand(c, &args);
  if (status != MHAGEN_OK) fail(c, "run: %s", mhagen_status_text(status));
  c->runs++;
  for (int i = Q; i < WQ; i++) require_unchanged(c, i);
  require_unchanged(c, PACKED);
  require_surroundings(c, WORKSPACE, fill);
  require_surroundings(c, CACHE, 0xFF);
  require_cache_left(c);
  for (int i = Y; i <= SCORES; i++) {
    require_surroundings(c, i, 0xFF);
    require_rows_left(c, i, i > Y || apart(c, Y) ? c->kernel->h : 1, i == Y ? (int)piece_of(c, Y) : c->kernel->seq_kv);
    decode(c, i, b[i].at, b[i].master, b[i].bytes);
  }
}

/* ---- comparing results --------------------------------------------------------------------- */

static void keep_as_base(checker *c) {
  memcpy(c->base_y, c->buffers[Y].master, master_bytes(c, Y));
  memcpy(c->base_probs, c->buffers[PROBS].master, c->buffers[PROBS].bytes);
  memcpy(c->base_scores, c->buffers[SCORES].master, c->buffers[SCORES].bytes);
}

/* Row r of batch entry b has the bits of the base's entry base_b. */
static void require_row_bits(const checker *c, int b, int base_b, size_t r, const char *what) {
  const size_t n = (size_t)c->kernel->seq, d = y_row(c), rows = y_rows(c), h = (size_t)c->kernel->h,
               m = (size_t)c->kernel->seq_kv, mine = (size_t)b, other = (size_t)base_b;
  const float *y = c->buffers[Y].master, *probs = c->buffers[PROBS].master;
  for (size_t i = 0; i < rows; i++) {
    if (query_of(c, i) == r && memcmp(y + (mine * rows + i) * d, c->base_y + (other * rows + i) * d, d * sizeof *y))
      fail(c, "%s: other bits in row %zu of y, batch %d", what, r, b);
  }
  for (size_t i = 0; i < h && has(c, MHAGEN_PROBS); i++) {
    size_t row = (mine * h + i) * n + r, other_row = (other * h + i) * n + r;
    if (memcmp(probs + row * m, c->base_probs + other_row * m, m * sizeof *probs))
      fail(c, "%s: other bits in row %zu of probs, head %zu, batch %d", what, r, i, b);
  }
}

/* The same of all rows, and of their scores, which may be of keys that rows do not see. */
static void require_bits(const checker *c, int b, int base_b, const char *what) {
  const size_t entry = c->buffers[SCORES].bytes / (size_t)c->kernel->batch;
  const char *scores = c->buffers[SCORES].master, *base = (const char *)c->base_scores;
  if (entry > 0 && memcmp(scores + (size_t)b * entry, base + (size_t)base_b * entry, entry))
    fail(c, "%s: other bits in scores, batch %d", what, b);
  for (int r = 0; r < c->kernel->seq; r++) require_row_bits(c, b, base_b, (size_t)r, what);
}

static void require_same_bits(const checker *c, const char *what) {
  for (int b = 0; b < c->kernel->batch; b++) require_bits(c, b, b, what);
}

/* Squared norms, over the rows that are finite in the reference, and how many there are, of how many runs; of_type:
 * what rounded operands alone make. */
typedef struct norms { double error, size, of_type; int rows, runs; } norms;

static int row_is_finite(const float *got, const double *want, size_t width) {
  int finite = 1;
  for (size_t i = 0; i < width; i++) finite &= got ? isfinite(got[i]) != 0 : isfinite(want[i]) != 0;
  return finite;
}

#define FAR 2e38   /* what a mask adds may become this in base 2 */
#define NEAR 1e-30 /* and what underflows is below this */

static int may_be_infinite(const double *off, size_t width) {
  for (size_t i = 0; i < width; i++) {
    if (off[i] == INFINITY) return 1;
  }
  return 0;
}

/* Each number keeps its own bound, where operands are rounded as the kernel says. NaN and Inf are in exactly the rows
 * where that result has them, but where it may be so or not. */
static void check_rounded(checker *c, const char *what, const float *got, const double *want, const double *off,
                          size_t rows, size_t width) {
  for (size_t r = 0; r < rows; r++, got += width, want += width, off += width) {
    int finite = row_is_finite(got, NULL, width), expected = row_is_finite(NULL, want, width);
    if (may_be_infinite(off, width)) continue;
    if (finite != expected)
      fail(c, "row %zu of %s is %sfinite, that of rounded operands is %sfinite", r, what, finite ? "" : "not ",
           expected ? "" : "not ");
    for (size_t i = 0; i < width && finite; i++) {
      const double error = fabs((double)got[i] - want[i]);
      if (!(error <= off[i] + NEAR))
        fail(c, "row %zu of %s: %.9g is not %.9g, that of rounded operands, within %.2e", r, what, (double)got[i],
             want[i], off[i]);
      if (error > NEAR) c->rounded_part = fmax(c->rounded_part, error / off[i]);
    }
  }
}

/* Whether operands may be beyond the type that they are rounded to. */
static int small_range(const checker *c) {
  const char *own = c->kernel->dtype, *attend = c->kernel->attend_dtype;
  const char *io = c->kernel->io_dtype, *kept = c->kernel->cache_dtype;
  const char *types[] = {own, attend, io, kept};
  for (int i = 0; i < 4; i++) {
    if (types[i] && !strcmp(types[i], "f16")) return 1;
  }
  return 0;
}

/* NaN and Inf are in exactly the rows where the reference has them, but for those that operands which are beyond their
 * type make. Each of the others keeps its own bound, if there are any. */
static void add_errors(checker *c, const char *what, const float *got, const double *want,
                       const double *bounds, size_t rows, size_t width, norms *sum) {
  sum->runs++;
  const mhagen_results *own = &c->rounded;
  const int of_y = want == c->want_y;
  const double *rounded = of_y ? own->y : own->probs, *off = of_y ? own->y_off : own->probs_off;
  for (size_t r = 0; r < rows; r++, got += width, want += width) {
    int finite = row_is_finite(got, NULL, width), expected = row_is_finite(NULL, want, width);
    if (rounded && finite != expected && (finite == row_is_finite(NULL, rounded + r * width, width) ||
                                          may_be_infinite(off + r * width, width))) continue;
    if (finite != expected)
      fail(c, "row %zu of %s is %sfinite, the reference's is %sfinite", r, what,
           finite ? "" : "not ", expected ? "" : "not ");
    double of_row = 0, of_type = 0, size = 0;
    for (size_t i = 0; i < width && finite; i++) {
      const double error = (double)got[i] - want[i], exact = rounded ? rounded[r * width + i] - want[i] : 0;
      of_row += error * error, of_type += exact * exact;
      size += want[i] * want[i];
    }
    /* What the type has no numbers for no bound is for. */
    if (small_range(c) && (sqrt(of_type) > 4 * c->kernel->error * sqrt(size) || (bounds && sqrt(of_type) > bounds[r])))
      continue;
    sum->error += of_row, sum->size += size, sum->of_type += isfinite(of_type) ? of_type : of_row;
    sum->rows += size > 0;
    if (!bounds || of_row == 0) continue;
    if (sqrt(of_row) > bounds[r])
      fail(c, "error %.2e of row %zu of %s above %.2e", sqrt(of_row), r, what, bounds[r]);
    c->row = fmax(c->row, sqrt(of_row) / bounds[r]);
  }
}

/* What the reference reads. */
static mhagen_args masters_of_args(const checker *c) {
  const buffer *b = c->buffers;
  const int cross = has(c, MHAGEN_CROSS);
  return (mhagen_args){.q = b[Q].master, .k = data(c, cross ? K : Q), .v = data(c, cross ? V : Q),
                       .kv_len = b[KV_LEN].master, .kv_start = b[KV_START].master, .q_len = b[Q_LEN].master,
                       .mask = b[MASK].master, .past = b[PAST].master};
}

/* Whether a row of a batch entry sees one of the keys from .. to - 1 in a head. */
static int head_sees(const checker *c, size_t b, size_t head, size_t r, size_t from, size_t to) {
  const mhagen_args args = masters_of_args(c);
  size_t first, end;
  mhagen_keys_seen(c->kernel, &args, b, r, &first, &end);
  if (first < from) first = from;
  if (end > to) end = to;
  for (; first < end; first++) {
    if (mhagen_mask(c->kernel, &args, b, head, r, first) != -INFINITY) return 1;
  }
  return 0;
}

/* The same in any head. */
static int row_sees(const checker *c, size_t b, size_t r, size_t from, size_t to) {
  for (size_t i = 0; i < (size_t)c->kernel->h; i++) {
    if (head_sees(c, b, i, r, from, to)) return 1;
  }
  return 0;
}

/* Without any key y is bo, exactly, or zero where it is not projected. */
static void check_blind_rows(const checker *c, int biases) {
  const mhagen_kernel *kernel = c->kernel;
  const float *y = c->buffers[Y].master, *bo = projects(c, Y) && biases ? c->buffers[BO].master : NULL;
  for (size_t row = 0; row < (size_t)kernel->batch * y_rows(c); row++) {
    const size_t b = row / y_rows(c), query = query_of(c, row % y_rows(c));
    /* Where heads are not projected together, a row is that of one of them. */
    const size_t m = (size_t)kernel->seq_kv, head = head_of(c, row % y_rows(c));
    const int sees = projects(c, Y) ? row_sees(c, b, query, 0, m) : head_sees(c, b, head, query, 0, m);
    for (size_t j = 0; j < y_row(c); j++, y++) {
      if (query >= (size_t)rows_of(c, (int)b)) continue;
      const double want = bo ? mhagen_nearest(kernel->io_dtype, (double)bo[j]) : 0;
      if (!sees && (double)*y != want) fail(c, "row %zu sees no key, and y[%zu] is not bo", row, j);
    }
  }
}

/* What holds for each row of weights, whatever the scores. */
static void check_probs(const checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const int m = kernel->seq_kv;
  const float *p = c->buffers[PROBS].master;
  for (int b = 0; b < kernel->batch; b++) {
    for (int row = 0; row < kernel->h * kernel->seq; row++, p += m) {
      const size_t entry = (size_t)b, head = (size_t)(row / kernel->seq), r = (size_t)(row % kernel->seq);
      if (!row_is_finite(p, NULL, (size_t)m)) continue;
      double sum = 0;
      for (int j = 0; j < m; j++) {
        sum += (double)p[j];
        if (p[j] != 0 && !head_sees(c, entry, head, r, (size_t)j, (size_t)j + 1))
          fail(c, "probs: row %d, masked key %d: %g", row, j, (double)p[j]);
        if (p[j] != 0 && !(p[j] >= FLT_MIN))
          fail(c, "probs: row %d, key %d: %g is negative or subnormal", row, j, (double)p[j]);
      }
      const double least = has(c, MHAGEN_SINK) ? 0 : 1;
      if (head_sees(c, entry, head, r, 0, (size_t)m) && !(sum >= least - 4e-6 && sum <= 1 + 4e-6))
        fail(c, "probs: row %d sums to %.9g", row, sum);
    }
  }
}

/* Each score of the last run. */
static void check_scores(const checker *c, const mhagen_weights *weights, const mhagen_args *args) {
  const float *got = c->buffers[SCORES].master;
  const size_t count = c->buffers[SCORES].bytes / sizeof *got, n = (size_t)c->kernel->seq,
               m = (size_t)c->kernel->seq_kv;
  if (count == 0) return;
  /* What such factors make of operands may be beyond the type's numbers, and so may small scores be made of these. */
  const int far = c->kernel->scale < 0x1p-10 || c->kernel->scale > 0x1p10;
  /* A row with an infinity is NaN then. */
  const int quantized = c->kernel->dtype && !strcmp(c->kernel->dtype, "int8");
  double *want = allocate(c, 2 * count * sizeof *want), *bounds = want + count;
  if (mhagen_reference_scores(c->kernel, weights, args, want, bounds)) fail(c, "out of memory");
  for (size_t i = 0; i < count; i++) {
    const size_t row = i / m, key = i % m;
    const double s = (double)got[i];
    if (row % n >= (size_t)rows_of(c, (int)(row / (n * (size_t)c->kernel->h)))) continue;
    if (small_range(c) && (!isfinite(s) || fabs(want[i]) < 0x1p-6 || far)) continue;
    /* A small weight may be quantized to zero, which makes NaN of an infinite input; and a small
     * factor may have another sign then, as may an infinite score, which softcap makes finite: itself,
     * but for roundings. */
    const int any = !isfinite(s) || fabs(s) <= (double)c->kernel->softcap * (1 + 0x1p-20);
    if (has(c, MHAGEN_WEIGHT_DTYPE) && bounds[i] == INFINITY && any) continue;
    const int poisoned = kept_bytes(c) == 1 && has(c, MHAGEN_CACHE_APPEND | MHAGEN_CACHE_FIXED) && isnan(s);
    /* Rows of integers with an infinity are NaN, of which softcap makes nothing finite. */
    if ((quantized || poisoned) && bounds[i] == INFINITY && isnan(s)) continue;
    /* What an infinity is multiplied by may be a zero for one of the two, or have another sign. */
    const int hidden = want[i] == -INFINITY && bounds[i] != INFINITY;
    const int good = hidden               ? s == -INFINITY
                     : !isfinite(want[i]) ? !isfinite(s)
                     : fabs(want[i]) > FAR ? fabs(s) >= FAR && signbit(s) == signbit(want[i])
                                           : fabs(s - want[i]) <= bounds[i] + NEAR;
    if (!good)
      fail(c, "score of row %zu, key %zu: %g, not %g within %.2e", row, key, s, want[i], bounds[i]);
  }
  free(want);
}

/* Adds the errors of the last run to the norms. */
static void compare(checker *c, int biases, norms *y, norms *probs) {
  const mhagen_kernel *kernel = c->kernel;
  buffer *b = c->buffers;
  mhagen_weights weights = masters_of_weights(c, biases);
  const mhagen_args args = masters_of_args(c);
  double *want_probs = has(c, MHAGEN_PROBS) ? c->want_probs : NULL;
  if (mhagen_reference_and_bounds(kernel, &weights, &args, c->want_y, want_probs, &c->score,
                                  c->y_bounds, c->probs_bounds))
    fail(c, "out of memory");
  size_t rows = (size_t)kernel->batch * (size_t)kernel->seq, h = (size_t)kernel->h;
  if (c->rounded.y) {
    mhagen_kernel shape = *kernel; /* of a bundle its last member's, but another one runs */
    shape.folds = mhagen_kernel_of(kernel)->folds, shape.sum_dtype = mhagen_kernel_of(kernel)->sum_dtype;
    if (mhagen_reference_rounded(&shape, &weights, &args, &c->rounded)) fail(c, "out of memory");
    for (size_t i = 0; i < (size_t)kernel->batch * y_rows(c); i++) {
      if (query_of(c, i % y_rows(c)) >= (size_t)rows_of(c, (int)(i / y_rows(c)))) continue;
      const size_t at = i * y_row(c);
      check_rounded(c, "y", (const float *)b[Y].master + at, c->rounded.y + at, c->rounded.y_off + at, 1, y_row(c));
    }
    for (size_t i = 0; i < rows * h && c->rounded.probs; i++) {
      if (i % (size_t)kernel->seq >= (size_t)rows_of(c, (int)(i / (h * (size_t)kernel->seq)))) continue;
      const size_t m = (size_t)kernel->seq_kv;
      check_rounded(c, "probs", (const float *)b[PROBS].master + i * m, c->rounded.probs + i * m,
                    c->rounded.probs_off + i * m, 1, m);
    }
  }
  add_errors(c, "y", b[Y].master, c->want_y, c->y_bounds, (size_t)kernel->batch * y_rows(c), y_row(c), y);
  check_blind_rows(c, biases);
  check_scores(c, &weights, &args);
  if (!want_probs) return;
  add_errors(c, "probs", b[PROBS].master, want_probs, c->probs_bounds, rows * h,
             (size_t)kernel->seq_kv, probs);
  check_probs(c);
}

static double relative(norms sum) { return sum.error > 0 ? sqrt(sum.error / sum.size) : 0; }

/* How many columns of y, or of the contexts, round independently of each other. */
static int width(const checker *c) {
  const int y = c->kernel->y_width, context = c->kernel->h * c->kernel->dv;
  return y < context ? y : context;
}

/* What the error of norms may be. The roundings of a type are not far below its bound: where few of them are
 * independent, what they alone make may be above it, and then each number is held to these. */
static double allowed(const checker *c, norms sum, double bound) {
  const int few = width(c) < 64 || c->kernel->dk < 8;
  return few && c->rounded.y ? fmax(bound, 2 * sqrt(sum.of_type / sum.size)) : bound;
}

static void require_bound(checker *c, double score, norms y, norms probs) {
  const double promised = mhagen_promised_error(c->kernel, score), of_y = allowed(c, y, promised),
               of_probs = allowed(c, probs, promised);
  const int worse = relative(probs) / of_probs > relative(y) / of_y;
  const double error = relative(worse ? probs : y), bound = worse ? of_probs : of_y;
  if (c->bound == 0 || error / bound > c->error / c->bound) {
    c->error = error, c->bound = bound, c->score_of_error = score;
  }
  if (!(relative(y) <= of_y))
    fail(c, "error %.2e of y above %.2e, largest score %.3g", relative(y), of_y, score);
  if (!(relative(probs) <= of_probs))
    fail(c, "error %.2e of probs above %.2e, largest score %.3g", relative(probs), of_probs, score);
  char beside[40] = "";
  if (has(c, MHAGEN_PROBS)) snprintf(beside, sizeof beside, ", of probs %.1e", relative(probs));
  note(c, "error %.1e%s, bound %.1e, largest score %.3g", relative(y), beside, bound, score);
}

/* The same where there are as many rows of weights and columns as the bound of norms is stated for; each row has kept
 * its own. */
static void require_bound_of_many(checker *c, double score, norms y, norms probs) {
  if (c->kernel->h * y.rows >= 32 && width(c) * y.runs >= 64) require_bound(c, score, y, probs);
}

/* ---- sets of data -------------------------------------------------------------------------- */

typedef struct data_set {
  const char *name;
  double input;  /* size of the elements of the inputs, */
  double score;  /* of the scores, */
  double value;  /* of the values and so of the results, */
  double bias;   /* and of the biases; 0: null pointers, of alibi and rope too */
  double rise;   /* keys grow along the sequence, up to this factor */
  int same_rows; /* all rows of an input are equal */
  double low;    /* of what a mask adds, the part that is far below */
  double limit;  /* left out where a run has more flops: keeps the check of a large shape short */
} data_set;

enum { NORMAL, LARGE_SCORES }; /* the first two of */
static const data_set sets[] = {
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

static int below_one(checker *c, double of) { return (double)(bits(c) >> 11) * 0x1p-53 < of; }

static void set_mask(checker *c, size_t at, int seen, float add) {
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

/* Fresh weights, inputs, lengths and masks. */
static void draw(checker *c, const data_set *set) {
  const mhagen_kernel *kernel = c->kernel;
  const int cross = has(c, MHAGEN_CROSS);
  const double in_q = 1 / sqrt(kernel->d_model), in_k = 1 / sqrt(kernel->k_width),
               in_v = 1 / sqrt(kernel->v_width), out = 1 / sqrt(kernel->h * kernel->dv);
  const double score = set->score / (kernel->scale * sqrt(kernel->dk)); /* whatever the scale */
  /* Norms drop the size of queries; squares of large ones would be at the end of float's range. */
  const double query = has(c, MHAGEN_QK_NORM) ? 1 : score;
  const double of_input[] = {[Q] = projects(c, Q) ? 1 : query, [K] = 1, [V] = projects(c, V) ? 1 : set->value};
  const double scales[] = {[WQ] = in_q * query, [WK] = in_k, [WV] = in_v * set->value, [WO] = out,
                           [BQ] = set->bias * query, [BK] = set->bias,
                           [BV] = set->bias * set->value, [BO] = set->bias * set->value,
                           [SLOPES] = .3, [SINKS] = 2, [Q_NORM] = score, [K_NORM] = 1,
                           [ROPE_COS] = .7, [ROPE_SIN] = .7}; /* any tables will do */
  for (int i = WQ; i <= LAST_WEIGHTS; i++) fill_normal(c, i, scales[i]);
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
  draw_mask(c, set->low);
}

static void draw_and_pack(checker *c, const data_set *set) {
  draw(c, set);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, set->bias > 0);
}

/* ---- the parts of the check ---------------------------------------------------------------- */

/* The tables that null stands for. */
static void fill_tables(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  for (int i = Q_NORM; i <= K_NORM; i++) {
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

static void check_pack(checker *c) {
  c->part = "pack";
  buffer *packed = &c->buffers[PACKED];
  draw(c, &sets[NORMAL]);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, 1);
  float *first = allocate(c, packed->bytes);
  memcpy(first, packed->master, packed->bytes);
  pack(c, BEFORE_GUARD, 0x00, MHAGEN_IN_OUT, 1);
  if (memcmp(first, packed->master, packed->bytes)) fail(c, "leaves bytes of packed as they were");
  pack(c, BETWEEN, 0xFF, MHAGEN_OUT_IN, 1);
  if (memcmp(first, packed->master, packed->bytes)) fail(c, "the layouts give other bytes");
  for (int i = BQ; i <= SINKS; i++) memset(c->buffers[i].master, 0, c->buffers[i].bytes);
  for (int i = 0; c->buffers[SLOPES].bytes && i < c->kernel->h; i++)
    ((float *)c->buffers[SLOPES].master)[i] = (float)mhagen_alibi_slope(c->kernel->h, i);
  fill_tables(c);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, 1);
  memcpy(first, packed->master, packed->bytes);
  pack(c, BEFORE_GUARD, 0xFF, MHAGEN_OUT_IN, 0);
  /* Tables of rope may be rounded otherwise. */
  for (size_t i = 0; i < packed->bytes / sizeof(float); i++) {
    if (fabs((double)first[i] - (double)((float *)packed->master)[i]) > (has(c, MHAGEN_ROPE) ? 0x1p-24 : 0))
      fail(c, "null pointers are not zero biases or sinks, the slopes of the paper, or the tables of rope");
  }
  free(first);
  note(c, "both layouts, null for zero biases and any prefill give the same bytes");
}

/* A few numbers may cancel, and a relative error then says nothing: where y or the contexts are
 * narrow, the norms are taken over so many draws that 64 (in expensive shapes 8) independent
 * columns are in them. Rows do not count: similar attention weights make the rows of y similar. But of
 * few rows one may have large scores that are nearly equal, which alone are sensitive to rounding, so
 * there are 32 rows of weights at least, as far as that is cheap. */
static void check_numbers(checker *c) {
  const int columns = c->flops * 64 / width(c) <= 3e7 ? 64 : 8, rows = c->kernel->h * c->kernel->seq;
  int draws = (columns - 1 + width(c)) / width(c);
  while (draws * rows < 32 && c->flops * draws <= 3e6) draws++;
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
    const data_set *set = &sets[i];
    if (c->flops > set->limit || (set->low > 0 && !has(c, MHAGEN_MASK_ADD))) continue;
    c->part = set->name;
    double score = 0;
    norms y = {0}, probs = {0};
    for (int j = 0; j < draws; j++) {
      draw_and_pack(c, set);
      run(c, (enum place)((i + (size_t)j) % PLACES), 0xFF, RUN, NULL);
      compare(c, set->bias > 0, &y, &probs);
      score = fmax(score, c->score);
    }
    if (set->same_rows && c->kernel->h * draws < 32) probs = (norms){0}; /* one row of weights for each head */
    require_bound(c, score, y, probs);
  }
}

/* ---- rows of any data ---------------------------------------------------------------------- */

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

/* Scores of any size, ties of large ones, cancellation, constants, rows that rise or are alike. Returns
 * whether there are biases. */
static int draw_nasty(checker *c) {
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

/* Instead of all else: rows of many draws, fewer where one takes long. */
static void check_draws(checker *c) {
  int draws = 0, worst = 0;
  c->part = "draws";
  while (draws < c->options.draws && draws * c->flops <= 2e8) {
    norms y = {0}, probs = {0};
    const double before = c->row;
    const int biases = draw_nasty(c);
    pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, biases);
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    compare(c, biases, &y, &probs);
    draws++;
    if (c->row > before) worst = draws;
  }
  printf("ok %s err=%.3g bound=1 worst=%d draws=%d\n", c->kernel->name, c->row, worst, draws);
}

/* Nothing but the data has an influence on the bits. */
static void check_repeats(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  c->part = "same bits";
  draw_and_pack(c, &sets[NORMAL]);
  run(c, AFTER_GUARD, 0xFF, RUN, NULL);
  keep_as_base(c);
  run(c, BEFORE_GUARD, 0x00, RUN, NULL);
  require_same_bits(c, "at another address, with another workspace");
  run(c, BETWEEN, 0x41, BY_HAND, NULL);
  require_same_bits(c, "tasks in another order");

  for (const char *list = c->options.threads; *list;) {
    char *end;
    long threads = strtol(list, &end, 10);
    if (end == list || threads < 1 || threads > 1024) fail(c, "--threads %s: not a list", list);
    list = *end == ',' ? end + 1 : end;
    mhagen_pool *pool = mhagen_pool_create((int)threads);
    if (!pool) fail(c, "no pool of %ld threads", threads);
    run(c, AFTER_GUARD, 0xFF, POOL, pool);
    require_same_bits(c, "on a pool of threads");
    mhagen_pool_destroy(pool);
  }
  run(c, AFTER_GUARD, 0xFF, POOL, NULL);
  require_same_bits(c, "without a pool");

  for (int i = Q; i < WQ && kernel->batch > 1; i++) {
    const size_t bytes = i <= V ? count(c, i) * sizeof(float) : c->buffers[i].bytes; /* all rows that there ever are */
    const size_t entry = entry_bytes(c, i) ? bytes / (size_t)kernel->batch : 0;
    if (entry == 0) continue;
    char *all = (char *)data(c, i), *first = allocate(c, entry);
    memcpy(first, all, entry);
    memmove(all, all + entry, bytes - entry);
    memcpy(all + bytes - entry, first, entry);
    free(first);
  }
  if (kernel->batch > 1) run(c, AFTER_GUARD, 0xFF, RUN, NULL);
  for (int b = 0; b < kernel->batch; b++)
    require_bits(c, b, (b + 1) % kernel->batch, "at another index of the batch");
  note(c, "with pools of %s threads and none, tasks in any order, any address, any workspace",
       c->options.threads);
}

/* The kernel of the same config without a batch gives each entry the same bits. */
static void check_alone(checker *c, const mhagen_kernel *alone) {
  const mhagen_kernel *kernel = c->kernel;
  c->part = "alone";
  draw_and_pack(c, &sets[NORMAL]);
  run(c, AFTER_GUARD, 0xFF, RUN, NULL);
  keep_as_base(c);

  const size_t rooms[] = {alone->packed_bytes, alone->workspace_bytes + MHAGEN_ALIGN};
  void *packed = aligned_alloc(MHAGEN_ALIGN, (rooms[0] / MHAGEN_ALIGN + 1) * MHAGEN_ALIGN),
       *workspace = aligned_alloc(MHAGEN_ALIGN, (rooms[1] / MHAGEN_ALIGN + 1) * MHAGEN_ALIGN);
  if (!packed || !workspace) fail(c, "out of memory");
  const mhagen_weights weights = masters_of_weights(c, 1);
  mhagen_status status = alone->pack(&weights, packed);
  for (int b = 0; b < kernel->batch && status == MHAGEN_OK; b++) {
    void *at[BUFFERS];
    for (int i = 0; i < BUFFERS; i++)
      at[i] = !c->buffers[i].bytes ? NULL
              : (is_small(c, i) ? c->buffers[i].at : (char *)c->buffers[i].master) + (size_t)b * entry_bytes(c, i);
    const mhagen_args args = {.q = at[Q], .k = at[K], .v = at[V], .y = at[Y], .packed = packed,
                              .workspace = workspace, .kv_len = at[KV_LEN], .probs = at[PROBS],
                              .kv_start = at[KV_START], .q_len = at[Q_LEN], .mask = at[MASK],
                              .scores = at[SCORES],
                              .past = at[PAST], /* what is in the cache before is the same for both */
                              .cache = c->buffers[CACHE].at + (size_t)b * kernel->cache_bytes};
    status = alone->run(&args);
  }
  free(packed), free(workspace);
  if (is_small(c, Y)) decode(c, Y, c->buffers[Y].at, c->buffers[Y].master, c->buffers[Y].bytes);
  if (status != MHAGEN_OK) fail(c, "%s", mhagen_status_text(status));
  require_same_bits(c, "in a batch");
  note(c, "each batch entry has the same bits");
}

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

/* One NaN or Inf in one element of one row of one input. */
static void check_poison(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const int small = c->flops <= 3e5;
  const float poisons[] = {NAN, INFINITY, -INFINITY, 1e25f};
  const int all = has(c, MHAGEN_QK_NORM) ? 4 : 3; /* the last one has a square that overflows */
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
}

/* The mask hides the keys first .. end - 1 of a half of its rows, or of its only one. */
static void hide_keys(checker *c, int first, int end) {
  const int m = c->kernel->seq_kv, rows = (int)(c->buffers[MASK].bytes / element(c, MASK)) / m;
  for (int r = 0; r < rows; r++) {
    for (int j = first; j < end && (rows == 1 || r % 2); j++) set_mask(c, (size_t)(r * m + j), 0, 0);
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
  if (first >= 0) hide_keys(c, first, end);
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

static void check_masks(checker *c) {
  const int m = c->kernel->seq_kv, cuts[] = {1, m / 2, m - 1, 1 + below(c, m)};
  const size_t count = c->flops <= 3e5 ? 4 : c->flops <= 1e8 ? 1 : 0;
  const int window = has(c, MHAGEN_WINDOW_LEFT | MHAGEN_WINDOW_RIGHT | MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD),
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

static const int lengths[] = {KV_LEN, KV_START, Q_LEN, PAST}; /* the buffers with integers */
enum { LENGTHS = sizeof lengths / sizeof *lengths };

/* Rows have the same bits whatever the queries are that nobody asks for. In self-attention these are keys, but not
 * where they join a cache. */
static void check_queries(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const float fills[] = {0, NAN, INFINITY};
  const int *past = c->buffers[PAST].master;
  if (!has(c, MHAGEN_Q_LEN) || !has(c, MHAGEN_CROSS | MHAGEN_CACHE_APPEND) || c->flops > 1e8) return;
  c->part = "other queries";
  draw_and_pack(c, &sets[NORMAL]);
  for (int i = 0; i < 3; i++) {
    for (int b = 0; b < kernel->batch; b++) {
      const int first = c->all[Q] ? past[b] : 0;
      for (int row = rows_of(c, b); row < kernel->seq; row++) set_row(c, Q, b, first + row, fills[i]);
    }
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    if (i == 0) keep_as_base(c);
    require_same_bits(c, "queries that nobody asks for matter");
  }
  note(c, "have no influence");
}

/* The extreme lengths. */
static void check_lengths(checker *c) {
  c->part = "lengths";
  for (int j = 0; j < LENGTHS; j++) {
    const mhagen_need *need = need_of(c, lengths[j]);
    norms y = {0}, probs = {0};
    double score = 0;
    if (!need || need->most < 0) continue;
    const int most = most_of(c, lengths[j]), extremes[] = {0, 1, most, most - 1};
    for (int i = 0; i < (c->flops <= 3e6 ? 4 : 1); i++) {
      if (extremes[i] < 0 || extremes[i] > most) continue;
      draw_and_pack(c, &sets[NORMAL]);
      for (int b = 0; b < c->kernel->batch; b++) ((int *)c->buffers[lengths[j]].master)[b] = extremes[i];
      run(c, AFTER_GUARD, 0xFF, RUN, NULL);
      compare(c, 1, &y, &probs);
      score = fmax(score, c->score);
    }
    require_bound_of_many(c, score, y, probs);
  }
}

/* No rows before, and as many as there is room for. What a run finds in the cache stays: it can be done again. */
static void check_cache(checker *c) {
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

/* Every way of running gives this status and touches nothing. */
static void expect(checker *c, const mhagen_args *args, mhagen_status status, const char *what) {
  static const char *const callers[] = {"check", "run", "mhagen_run_parallel", "a pool"};
  mhagen_pool *pool = mhagen_pool_create(2);
  const mhagen_status got[] = {mhagen_check_args(c->kernel, args), c->kernel->run(args),
                               mhagen_run_parallel(c->kernel, args, NULL),
                               mhagen_run_parallel(forking(c, args), args, pool)};
  mhagen_pool_destroy(pool);
  for (int i = 0; i < 4; i++) {
    if (got[i] != status)
      fail(c, "%s: %s says \"%s\", not \"%s\"", what, callers[i], mhagen_status_text(got[i]),
           mhagen_status_text(status));
  }
  require_untouched(c, Q, WQ - 1, -1, what);
  require_untouched(c, PACKED, SCORES, -1, what);
}

/* The same of filling the cache, whose arguments are placed. */
static void expect_of_fill(checker *c, const mhagen_args *args, mhagen_status status, const char *what) {
  const mhagen_status got[] = {c->kernel->fill(args), mhagen_check_fill(c->kernel, args)};
  for (int i = 0; i < 2; i++) {
    if (got[i] != status)
      fail(c, "%s: fill says \"%s\", not \"%s\"", what, mhagen_status_text(got[i]), mhagen_status_text(status));
  }
  require_untouched(c, Q, WQ - 1, -1, what);
  require_untouched(c, PACKED, SCORES, -1, what);
}

/* The same of packing. */
static void expect_of_pack(checker *c, const mhagen_weights *weights, void *packed,
                           mhagen_status status, const char *what) {
  const mhagen_status got = c->kernel->pack(weights, packed);
  if (got != status)
    fail(c, "%s: pack says \"%s\", not \"%s\"", what, mhagen_status_text(got),
         mhagen_status_text(status));
  require_untouched(c, WQ, PACKED, PACKED, what);
}

/* What is said of arguments begins with a name, and goes on with a word of the reason. */
static void require_words(const checker *c, const char *text, const char *name, const char *word) {
  const size_t length = strlen(name);
  if (strncmp(text, name, length) || text[length] != ' ' || !strstr(text, word))
    fail(c, "\"%s\" is said of %s, not \"%s\"", text, name, word);
}

/* Each pointer of a table is null, and is not aligned. */
static void check_pointers(checker *c, const mhagen_need *needs, int need_count,
                           void (*told)(checker *, const mhagen_args *, mhagen_status, const char *),
                           const char *(*words)(const mhagen_kernel *, const mhagen_args *)) {
  const mhagen_args good = args_of(c, needs, need_count);
  mhagen_args bad = good;
  told(c, NULL, MHAGEN_ERR_NULL, "no arguments");
  require_words(c, words(c->kernel, NULL), "args", "is null");
  if (strcmp(words(c->kernel, &good), mhagen_status_text(MHAGEN_OK))) fail(c, "good arguments are called wrong");
  for (int i = 0; i < need_count; i++) {
    const char *at, *const name = name_at(needs[i].at);
    memcpy(&at, (const char *)&good + needs[i].at, sizeof at);
    set_arg(&bad, needs[i].at, NULL);
    told(c, &bad, MHAGEN_ERR_NULL, "a null pointer");
    require_words(c, words(c->kernel, &bad), name, "is null");
    for (int off = 4; needs[i].align > 1 && off < needs[i].align; off *= 2) {
      set_arg(&bad, needs[i].at, at + off);
      told(c, &bad, MHAGEN_ERR_ALIGN, "a misaligned pointer");
      if (needs[i].align == MHAGEN_ALIGN) require_words(c, words(c->kernel, &bad), name, "is not aligned");
    }
    bad = good;
  }
}

/* Packed weights that begin with zeros, or with a fingerprint that differs in a bit. */
static void check_other_weights(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  void *const packed = c->buffers[PACKED].master;
  uint64_t own;
  memcpy(&own, packed, sizeof own);
  const uint64_t others[] = {0, own ^ 1, own ^ UINT64_C(1) << 63};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    memcpy(packed, &others[i], sizeof own);
    place_input(c, PACKED, AFTER_GUARD);
    const mhagen_args args = args_of(c, kernel->needs, kernel->need_count);
    expect(c, &args, MHAGEN_ERR_PACKED, "weights of another kernel");
    require_words(c, mhagen_args_error(kernel, &args), "packed", i ? "of this kernel" : "no weights");
    if (!kernel->fill) continue;
    const mhagen_args filling = args_of(c, kernel->fill_needs, kernel->fill_need_count);
    expect_of_fill(c, &filling, MHAGEN_ERR_PACKED, "weights of another kernel");
    require_words(c, mhagen_fill_error(kernel, &filling), "packed", i ? "of this kernel" : "no weights");
  }
  memcpy(packed, &own, sizeof own);
}

static void check_bad_args(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  c->part = "bad arguments";
  draw_and_pack(c, &sets[NORMAL]);
  const mhagen_args good = place_args(c, AFTER_GUARD, 0xFF);
  check_pointers(c, kernel->needs, kernel->need_count, expect, mhagen_args_error);
  if (kernel->fill) {
    check_pointers(c, kernel->fill_needs, kernel->fill_need_count, expect_of_fill, mhagen_fill_error);
  }
  for (int j = 0; j < LENGTHS; j++) {
    const mhagen_need *need = need_of(c, lengths[j]);
    const int wrong[] = {-1, need ? need->most + 1 : 0, INT_MIN, INT_MAX};
    for (int i = 0; i < 4 && need; i++) {
      int *valid = (int *)c->buffers[lengths[j]].master + below(c, c->kernel->batch), before = *valid;
      *valid = wrong[i];
      place_input(c, lengths[j], AFTER_GUARD); /* where it was */
      expect(c, &good, MHAGEN_ERR_LENGTH, "a length out of range");
      require_words(c, mhagen_args_error(kernel, &good), names[lengths[j]], "is outside 0..seq");
      *valid = before;
      place_input(c, lengths[j], AFTER_GUARD);
    }
  }

  if (kernel->packed_bytes) check_other_weights(c);
  for (int i = WQ; i <= LAST_WEIGHTS; i++) place_input(c, i, AFTER_GUARD);
  place(c, PACKED, BEFORE_GUARD, 0xFF);
  char *packed = c->buffers[PACKED].at;
  const mhagen_weights weights = placed_weights(c, MHAGEN_IN_OUT, 1);
  mhagen_weights lacking = weights;
  expect_of_pack(c, NULL, packed, MHAGEN_ERR_NULL, "no weights");
  if (c->kernel->packed_bytes) expect_of_pack(c, &weights, NULL, MHAGEN_ERR_NULL, "packed = NULL");
  expect_of_pack(c, &weights, packed + 4, MHAGEN_ERR_ALIGN, "packed + 4");
  expect_of_pack(c, &weights, packed + MHAGEN_ALIGN / 2, MHAGEN_ERR_ALIGN, "packed + 32");
#define EXPECT(field, value, status) \
  lacking.field = (value), \
  expect_of_pack(c, &lacking, packed, MHAGEN_ERR_##status, #field " = " #value), lacking = weights
  if (projects(c, Q)) EXPECT(wq, NULL, NULL);
  if (projects(c, K)) EXPECT(wk, NULL, NULL);
  if (projects(c, V)) EXPECT(wv, NULL, NULL);
  if (projects(c, Y)) EXPECT(wo, NULL, NULL);
  EXPECT(layout, (mhagen_layout)2, LAYOUT);
#undef EXPECT
  note(c, "give their status, and nothing is written");
}

/* The kernel's table has a pointer, so aligned and to ints up to `most`, just where mhagen.h says so. */
static void require_need(checker *c, int id, int needed, int align, int most) {
  const mhagen_need *need = need_of(c, id);
  const int as_said = need ? needed && need->align == align && need->most == most : !needed;
  if (!as_said) fail(c, "%s is not needed as the options say", names[id]);
}

/* Whether inputs are rounded ahead, to the workspace: where products are those of float32. ISAs that have some of 16
 * bits do not have all, and what they lack only the kernel's table knows. */
static int rounds_ahead(const checker *c, int projected) {
  const mhagen_kernel *kernel = c->kernel;
  if (!projected || !kernel->dtype || !strcmp(kernel->dtype, "int8") || has(c, MHAGEN_STRASSEN)) return 0;
  const char *const of_floats[] = {"scalar", "avx2", "avx_vnni", "avx512", "neon"};
  for (size_t i = 0; i < sizeof of_floats / sizeof *of_floats; i++) {
    if (!strcmp(kernel->isa, of_floats[i])) return 1;
  }
  return fill_need_of(c, WORKSPACE) != NULL;
}

/* Of an option that is new here, only the kernel's table knows. */
static void check_needs(checker *c) {
  const unsigned known =
      MHAGEN_CROSS | MHAGEN_CAUSAL | MHAGEN_KV_LEN | MHAGEN_PROBS | MHAGEN_STRASSEN |
      MHAGEN_WINDOW_LEFT | MHAGEN_WINDOW_RIGHT | MHAGEN_BOTTOM_RIGHT | MHAGEN_SCALE |
      MHAGEN_ALIBI | MHAGEN_KV_START | MHAGEN_Q_LEN | MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD | MHAGEN_QK_NORM |
      MHAGEN_ROPE | MHAGEN_UNPROJECTED | MHAGEN_SCORES | MHAGEN_CACHE_APPEND | MHAGEN_CACHE_FIXED | MHAGEN_BHSD |
      MHAGEN_CACHE_BHSD | MHAGEN_DTYPE | MHAGEN_ATTEND_DTYPE | MHAGEN_IO_DTYPE |
      MHAGEN_CACHE_DTYPE;
  const mhagen_kernel *kernel = c->kernel;
  const int fixed = has(c, MHAGEN_CACHE_FIXED), append = has(c, MHAGEN_CACHE_APPEND),
            cross = has(c, MHAGEN_CROSS) && !fixed;
  require_need(c, Q, 1, 1, -1);
  require_need(c, Y, 1, 1, -1);
  require_need(c, PACKED, c->kernel->packed_bytes > 0, MHAGEN_ALIGN, -1);
  require_need(c, WORKSPACE, 1, MHAGEN_ALIGN, -1);
  if (c->kernel->options & ~known) return;
  require_need(c, K, cross, 1, -1);
  require_need(c, V, cross, 1, -1);
  require_need(c, KV_LEN, has(c, MHAGEN_KV_LEN), 1, kernel->seq_kv);
  require_need(c, PROBS, has(c, MHAGEN_PROBS), 1, -1);
  require_need(c, KV_START, has(c, MHAGEN_KV_START), 1, c->kernel->seq_kv);
  require_need(c, Q_LEN, has(c, MHAGEN_Q_LEN), 1, c->kernel->seq);
  require_need(c, SCORES, has(c, MHAGEN_SCORES), 1, -1);
  require_need(c, MASK, has(c, MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD), 1, -1);
  require_need(c, PAST, append, 1, kernel->seq_kv - (kernel->by_length ? kernel->members[0] : kernel)->seq);
  require_need(c, CACHE, append || fixed, cache_align(c), -1);
  if ((kernel->cache_bytes > 0) != (append || fixed)) fail(c, "cache_bytes is %zu", kernel->cache_bytes);
  /* The workspace is for rows that are not kept as they are read: made ones, and inputs in float32. */
  const int projected = projects(c, K) || projects(c, V), made = projected || has(c, MHAGEN_ROPE),
            integers = kernel->dtype && !strcmp(kernel->dtype, "int8") && projected,
            small = kept_bytes(c) < sizeof(float), wide = has(c, MHAGEN_IO_DTYPE) && (made || !small),
            scratch = has(c, MHAGEN_QK_NORM) || integers || wide || (small && made) || rounds_ahead(c, projected);
  const int fills = fixed * (3 + (kernel->packed_bytes > 0) + scratch);
  if (!kernel->fill != !fixed || kernel->fill_need_count != fills) fail(c, "fill is not as the options say");
  const int filling[] = {K, V, PACKED, CACHE};
  for (int i = 0; i < 4 && fixed; i++) {
    if (filling[i] == PACKED && !kernel->packed_bytes) continue;
    const mhagen_need *need = fill_need_of(c, filling[i]);
    if (!need || need->most != -1 || need->align != (i < 2 ? 1 : i == 2 ? MHAGEN_ALIGN : cache_align(c)))
      fail(c, "fill does not need %s as mhagen.h says", names[filling[i]]);
  }
}

/* The table of phases, and the numbers in it. */
static void check_table(checker *c) {
  const mhagen_kernel *kernel = first_member(c);
  c->part = "table";
  if (!kernel->name || !kernel->isa || kernel->phase_count < 0 || !kernel->phases || !kernel->self_test)
    fail(c, "incomplete");
  for (int p = 0; p < kernel->phase_count; p++) {
    const mhagen_phase *phase = &kernel->phases[p];
    if (!phase->name || !phase->task || phase->tasks < 1 || !(phase->cycles > 0)) fail(c, "phase %d is incomplete", p);
  }
  check_needs(c);
}

static void check_self_test(checker *c) {
  const mhagen_status status = c->kernel->self_test();
  c->part = "self-test";
  if (status != MHAGEN_OK) fail(c, "%s", mhagen_status_text(status));
}

static int supported_elsewhere(checker *c) {
  const int stub = first_member(c)->phase_count == 0;
  const mhagen_status lack = stub ? MHAGEN_ERR_TARGET : MHAGEN_ERR_CPU;
  if (c->kernel->supported()) return 0;
  c->part = "unsupported CPU";
  if (c->kernel->self_test() != lack) fail(c, "the self-test does not say so");
  draw(c, &sets[NORMAL]);
  memset(c->buffers[PACKED].master, 0, c->buffers[PACKED].bytes);
  const mhagen_args args = place_args(c, AFTER_GUARD, 0xFF);
  expect(c, &args, lack, "valid arguments");
  printf("skip %s this %s has no %s\n", c->kernel->name, stub ? "target" : "CPU", c->kernel->isa);
  return 1;
}

static double flops_of(const mhagen_kernel *k) {
  double h = k->h, n = k->seq, m = k->seq_kv, dk = k->dk, dv = k->dv;
  const int all = MHAGEN_PROJECT_Q | MHAGEN_PROJECT_K | MHAGEN_PROJECT_V | MHAGEN_PROJECT_O,
            project = k->options & MHAGEN_UNPROJECTED ? k->project : all;
  const int append = (k->options & MHAGEN_CACHE_APPEND) != 0;
  const double added = append ? n : m;
  double products = 0;
  if (project & MHAGEN_PROJECT_Q) products += h * n * k->d_model * dk;
  if (project & MHAGEN_PROJECT_K) products += k->h_kv * added * k->k_width * dk;
  if (project & MHAGEN_PROJECT_V) products += k->h_kv * added * k->v_width * dv;
  if (project & MHAGEN_PROJECT_O) products += h * n * k->y_width * dv;
  return (append ? 1 + m / n : 1) * k->batch * (2 * products + h * n * m * (2 * dk + 2 * dv + 20));
}

/* The child process: the whole check or, with a kernel without a batch, what takes both. */
static void check(const mhagen_kernel *kernel, const mhagen_kernel *alone,
                  const mhagen_check_options *options) {
  checker state = {.kernel = kernel, .options = *options, .part = "start"}, *c = &state;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  for (int i = 0; i < 4; i++) sigaction(signals[i], &action, NULL);
  current = c;
  c->random = options->seed;
  c->flops = flops_of(kernel);

  check_table(c);
  make_buffers(c);
  if (alone) {
    if (kernel->supported()) check_alone(c, alone);
    return;
  }
  if (supported_elsewhere(c)) return;
  if (!options->terse)
    printf("%s: %s, %d heads, batch %d, %d rows of %d\n", kernel->name, kernel->isa, kernel->h, kernel->batch,
           kernel->seq, kernel->y_width);
  if (options->draws) {
    check_draws(c);
    return;
  }
  check_self_test(c);
  check_pack(c);
  check_numbers(c);
  check_lengths(c);
  check_cache(c);
  check_masks(c);
  check_queries(c);
  check_poison(c);
  check_repeats(c);
  check_bad_args(c);
  if (options->terse)
    printf("ok %s err=%.2g bound=%.2g s=%.3g\n", kernel->name, c->error, c->bound,
           c->score_of_error);
  else
    printf("  %-22s each below its bound, at most %.2g of it\n", "rows", c->row),
    c->rounded.y ? printf("  %-22s each number below its bound, at most %.2g of it\n", "rounded operands",
                          c->rounded_part) : 0,
    printf("ok: %d runs, worst error %.2g of an allowed %.2g\n", c->runs, c->error, c->bound);
}

/* ---- the interface ------------------------------------------------------------------------- */

static int check_in_child(const mhagen_kernel *kernel, const mhagen_kernel *alone,
                          const mhagen_check_options *options) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    check(kernel, alone, options);
    fflush(stdout);
    _exit(0); /* no clean-up: what the sanitizers would call a leak ends here on purpose */
  }
  int status = 1;
  if (child > 0) waitpid(child, &status, 0);
  if (child < 0 || WIFSIGNALED(status)) {
    printf("FAIL %s (process) signal %d\n", kernel->name, child < 0 ? 0 : WTERMSIG(status));
    return 1;
  }
  return WEXITSTATUS(status) != 0;
}

int mhagen_check(const mhagen_kernel *kernel, const mhagen_check_options *options) {
  return check_in_child(kernel, NULL, options);
}

int mhagen_check_alone(const mhagen_kernel *kernel, const mhagen_kernel *alone,
                       unsigned long long seed) {
  const mhagen_check_options options = {.seed = seed, .threads = "", .terse = 1};
  return check_in_child(kernel, alone, &options);
}

int mhagen_check_main(const mhagen_kernel *const *kernels, int count, int argc, char **argv) {
  mhagen_check_options options = {1, "1,2,5", 0, 0};
  int first = argc, failed = 0;
  for (int i = 1; i < argc && first == argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(argv[i], "--terse")) options.terse = 1;
    else if (!strcmp(argv[i], "--seed")) options.seed = strtoull(value, NULL, 0), i++;
    else if (!strcmp(argv[i], "--draws")) options.draws = atoi(value), i++;
    else if (!strcmp(argv[i], "--threads")) options.threads = value, i++;
    else first = i;
  }
  for (int k = 0; k < count; k++) {
    int wanted = first == argc;
    for (int i = first; i < argc; i++) wanted |= !strcmp(argv[i], kernels[k]->name);
    if (wanted) failed |= mhagen_check(kernels[k], &options);
  }
  return failed;
}
