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

enum { Q, K, V, KV_LEN, WQ, WK, WV, WO, BQ, BK, BV, BO, PACKED, WORKSPACE, Y, PROBS, BUFFERS };

static const char *const names[BUFFERS] = {
    "q",  "k",  "v",  "kv_len", "wq",     "wk",        "wv", "wo",
    "bq", "bk", "bv", "bo",     "packed", "workspace", "y",  "probs"};

typedef struct buffer {
  const char *name;
  size_t bytes; /* 0: this kernel does not use it */
  size_t align;
  void *master; /* what a run should find (inputs, weights, packed), or the last result */
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
  double flops; /* of one run, roughly */
  size_t page;
  buffer buffers[BUFFERS];
  float *base_y, *base_probs;   /* a result to compare others with */
  double *want_y, *want_probs;  /* the reference's result, */
  double score;                 /* its largest score */
  double error, bound, score_of_error; /* the worst so far, by error / bound */
  double *y_bounds, *probs_bounds;     /* of the rows, or null where that takes too long, */
  double row;                          /* and the worst so far, error / bound */
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

/* Where mhagen_args has the pointers to buffers. */
static const struct argument {
  int id;
  size_t at;
} arguments[] = {
    {Q, offsetof(mhagen_args, q)}, {K, offsetof(mhagen_args, k)}, {V, offsetof(mhagen_args, v)},
    {Y, offsetof(mhagen_args, y)}, {PACKED, offsetof(mhagen_args, packed)},
    {WORKSPACE, offsetof(mhagen_args, workspace)}, {KV_LEN, offsetof(mhagen_args, kv_len)},
    {PROBS, offsetof(mhagen_args, probs)},
};
enum { ARGUMENTS = sizeof arguments / sizeof *arguments };

/* What the kernel's table says of the pointer to a buffer, or null. */
static const mhagen_need *need_of(const checker *c, int id) {
  for (int i = 0; i < c->kernel->need_count; i++) {
    for (int j = 0; j < ARGUMENTS; j++) {
      if (arguments[j].id == id && arguments[j].at == c->kernel->needs[i].at)
        return &c->kernel->needs[i];
    }
  }
  return NULL;
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

static void fill_normal(checker *c, int i, double scale) {
  float *x = c->buffers[i].master;
  for (size_t j = 0; j < c->buffers[i].bytes / sizeof *x; j++) x[j] = (float)(scale * normal(c));
}

/* ---- buffers between inaccessible pages ---------------------------------------------------- */

static void *allocate(const checker *c, size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  if (!memory) fail(c, "out of memory");
  return memory;
}

/* The width of the rows of Q, K, V or Y. */
static size_t width_of(const checker *c, int i) {
  const mhagen_kernel *k = c->kernel;
  return (size_t)(i == K ? k->k_width : i == V ? k->v_width : i == Y ? k->y_width : k->d_model);
}

static void make_buffers(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const size_t d = width_of(c, Q), kd = width_of(c, K), vd = width_of(c, V), yd = width_of(c, Y),
               n = (size_t)kernel->seq, m = (size_t)kernel->seq_kv, batch = (size_t)kernel->batch,
               h = (size_t)kernel->h, hq = h * (size_t)kernel->dk, ho = h * (size_t)kernel->dv,
               h_kv = (size_t)kernel->h_kv,
               hk = h_kv * (size_t)kernel->dk, hv = h_kv * (size_t)kernel->dv, f = sizeof(float);
  const size_t bytes[BUFFERS] = {
      [Q] = batch * n * d * f,
      [K] = need_of(c, K) ? batch * m * kd * f : 0,
      [V] = need_of(c, V) ? batch * m * vd * f : 0,
      [KV_LEN] = need_of(c, KV_LEN) ? batch * sizeof(int) : 0,
      [WQ] = d * hq * f, [WK] = kd * hk * f, [WV] = vd * hv * f, [WO] = ho * yd * f,
      [BQ] = hq * f, [BK] = hk * f, [BV] = hv * f, [BO] = yd * f,
      [PACKED] = kernel->packed_bytes, [WORKSPACE] = kernel->workspace_bytes,
      [Y] = batch * n * yd * f,
      [PROBS] = need_of(c, PROBS) ? batch * h * n * m * f : 0,
  };
  c->page = (size_t)sysconf(_SC_PAGESIZE);
  for (int i = 0; i < BUFFERS; i++) {
    buffer *b = &c->buffers[i];
    b->name = names[i];
    b->bytes = bytes[i];
    b->align = i == PACKED || i == WORKSPACE ? MHAGEN_ALIGN : sizeof(float);
    b->master = allocate(c, b->bytes);
    b->room_bytes = (b->bytes + MHAGEN_ALIGN + c->page - 1) / c->page * c->page;
    char *map = mmap(NULL, b->room_bytes + 2 * c->page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);
    if (map == MAP_FAILED) fail(c, "out of memory");
    b->room = map + c->page;
    if (mprotect(b->room, b->room_bytes, PROT_READ | PROT_WRITE)) fail(c, "mprotect failed");
  }
  c->base_y = allocate(c, bytes[Y]);
  c->base_probs = allocate(c, bytes[PROBS]);
  c->want_y = allocate(c, 2 * bytes[Y]); /* double */
  c->want_probs = allocate(c, 2 * bytes[PROBS]);
  if (c->flops > ROW_BOUNDS) return;
  c->y_bounds = allocate(c, batch * n * sizeof(double));
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

/* The same with contents. */
static void place_input(checker *c, int i, enum place where) {
  place(c, i, where, 0xFF);
  memcpy(c->buffers[i].at, c->buffers[i].master, c->buffers[i].bytes);
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
  if (memcmp(b->at, b->master, b->bytes)) fail(c, "changes %s", b->name);
}

/* After an error: of the buffers from..to those up to PACKED, but for `except`, hold their masters,
 * and the others what they were filled with. */
static void require_untouched(const checker *c, int from, int to, int except, const char *what) {
  for (int i = from; i <= to; i++) {
    const buffer *b = &c->buffers[i];
    if (i == except || i > PACKED) {
      if (!is_filled(b->room, b->room + b->room_bytes, 0xFF))
        fail(c, "%s: writes %s", what, b->name);
    } else if (!is_filled(b->room, b->at, 0xFF) || memcmp(b->at, b->master, b->bytes) ||
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
                          .layout = layout};
}

static mhagen_weights masters_of_weights(const checker *c, int biases) {
  const float *at[BUFFERS];
  for (int i = WQ; i <= BO; i++) at[i] = c->buffers[i].master;
  return weights_at(at, MHAGEN_IN_OUT, biases);
}

static mhagen_weights placed_weights(const checker *c, mhagen_layout layout, int biases) {
  const float *at[BUFFERS];
  for (int i = WQ; i <= BO; i++) at[i] = (const float *)(const void *)c->buffers[i].at;
  return weights_at(at, layout, biases);
}

/* Packs the weights; the result becomes the master of PACKED. */
static void pack(checker *c, enum place where, int fill, mhagen_layout layout, int biases) {
  const mhagen_kernel *kernel = c->kernel;
  buffer *b = c->buffers;
  for (int i = WQ; i <= BO; i++) {
    place_input(c, i, where);
    if (i > WO || layout == MHAGEN_IN_OUT) continue;
    const int in = i == WO ? kernel->h * kernel->dv : (int)width_of(c, Q + i - WQ);
    const int out = (int)(b[i].bytes / sizeof(float)) / in;
    transpose(b[i].master, in, out, (float *)(void *)b[i].at);
  }
  place(c, PACKED, where, fill);
  const mhagen_weights weights = placed_weights(c, layout, biases);
  mhagen_status status = kernel->pack(&weights, b[PACKED].at);
  if (status != MHAGEN_OK) fail(c, "pack: %s", mhagen_status_text(status));
  for (int i = WQ; i <= BO; i++) {
    if (layout == MHAGEN_IN_OUT || i > WO) require_unchanged(c, i);
    else require_surroundings(c, i, 0xFF);
  }
  require_surroundings(c, PACKED, fill);
  memcpy(b[PACKED].master, b[PACKED].at, b[PACKED].bytes);
}

static void set_arg(mhagen_args *args, size_t at, const void *pointer) {
  memcpy((char *)args + at, &pointer, sizeof pointer);
}

/* Places everything a run needs. What the kernel must not look at is null. */
static mhagen_args place_args(checker *c, enum place where, int fill) {
  buffer *b = c->buffers;
  for (int i = Q; i <= KV_LEN; i++) place_input(c, i, where);
  place_input(c, PACKED, where);
  place(c, WORKSPACE, where, fill);
  place(c, Y, where, 0xFF);
  place(c, PROBS, where, 0xFF);
  mhagen_args args = {.q = NULL};
  for (int i = 0; i < ARGUMENTS; i++) {
    if (need_of(c, arguments[i].id)) set_arg(&args, arguments[i].at, b[arguments[i].id].at);
  }
  return args;
}

/* Runs the table of tasks as a foreign scheduler might: each phase in a random order. */
static mhagen_status run_by_hand(checker *c, const mhagen_args *args) {
  const mhagen_kernel *kernel = c->kernel;
  mhagen_status status = mhagen_check_args(kernel, args);
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

/* Runs the kernel on the masters; the results become the masters of Y and PROBS. */
static void run(checker *c, enum place where, int fill, enum scheduler scheduler,
                mhagen_pool *pool) {
  buffer *b = c->buffers;
  mhagen_args args = place_args(c, where, fill);
  mhagen_status status = scheduler == RUN    ? c->kernel->run(&args)
                         : scheduler == POOL ? mhagen_run_parallel(pool ? &c->forking : c->kernel, &args, pool)
                                             : run_by_hand(c, &args);
  if (status != MHAGEN_OK) fail(c, "run: %s", mhagen_status_text(status));
  c->runs++;
  for (int i = Q; i <= KV_LEN; i++) require_unchanged(c, i);
  require_unchanged(c, PACKED);
  require_surroundings(c, WORKSPACE, fill);
  require_surroundings(c, Y, 0xFF);
  require_surroundings(c, PROBS, 0xFF);
  memcpy(b[Y].master, b[Y].at, b[Y].bytes);
  memcpy(b[PROBS].master, b[PROBS].at, b[PROBS].bytes);
}

/* ---- comparing results --------------------------------------------------------------------- */

static void keep_as_base(checker *c) {
  memcpy(c->base_y, c->buffers[Y].master, c->buffers[Y].bytes);
  memcpy(c->base_probs, c->buffers[PROBS].master, c->buffers[PROBS].bytes);
}

/* Row r of batch entry b has the bits of the base's entry base_b. */
static void require_row_bits(const checker *c, int b, int base_b, size_t r, const char *what) {
  const size_t n = (size_t)c->kernel->seq, d = width_of(c, Y), h = (size_t)c->kernel->h,
               m = (size_t)c->kernel->seq_kv, mine = (size_t)b, other = (size_t)base_b;
  const float *y = c->buffers[Y].master, *probs = c->buffers[PROBS].master;
  if (memcmp(y + (mine * n + r) * d, c->base_y + (other * n + r) * d, d * sizeof *y))
    fail(c, "%s: other bits in row %zu of y, batch %d", what, r, b);
  for (size_t i = 0; i < h && has(c, MHAGEN_PROBS); i++) {
    size_t row = (mine * h + i) * n + r, other_row = (other * h + i) * n + r;
    if (memcmp(probs + row * m, c->base_probs + other_row * m, m * sizeof *probs))
      fail(c, "%s: other bits in row %zu of probs, head %zu, batch %d", what, r, i, b);
  }
}

/* The same of all rows. */
static void require_bits(const checker *c, int b, int base_b, const char *what) {
  for (int r = 0; r < c->kernel->seq; r++) require_row_bits(c, b, base_b, (size_t)r, what);
}

static void require_same_bits(const checker *c, const char *what) {
  for (int b = 0; b < c->kernel->batch; b++) require_bits(c, b, b, what);
}

/* Squared norms, over the rows that are finite in the reference. */
typedef struct norms { double error, size; } norms;

static int row_is_finite(const float *got, const double *want, size_t width) {
  int finite = 1;
  for (size_t i = 0; i < width; i++) finite &= got ? isfinite(got[i]) != 0 : isfinite(want[i]) != 0;
  return finite;
}

/* NaN and Inf are in exactly the rows where the reference has them. Each of the others keeps its own
 * bound, if there are any. */
static void add_errors(checker *c, const char *what, const float *got, const double *want,
                       const double *bounds, size_t rows, size_t width, norms *sum) {
  for (size_t r = 0; r < rows; r++, got += width, want += width) {
    int finite = row_is_finite(got, NULL, width), expected = row_is_finite(NULL, want, width);
    if (finite != expected)
      fail(c, "row %zu of %s is %sfinite, the reference's is %sfinite", r, what,
           finite ? "" : "not ", expected ? "" : "not ");
    double of_row = 0;
    for (size_t i = 0; i < width && finite; i++) {
      double error = (double)got[i] - want[i];
      of_row += error * error;
      sum->size += want[i] * want[i];
    }
    sum->error += of_row;
    if (!bounds || of_row == 0) continue;
    if (sqrt(of_row) > bounds[r])
      fail(c, "error %.2e of row %zu of %s above %.2e", sqrt(of_row), r, what, bounds[r]);
    c->row = fmax(c->row, sqrt(of_row) / bounds[r]);
  }
}

/* What the reference reads. */
static mhagen_args masters_of_args(const checker *c) {
  const buffer *b = c->buffers;
  return (mhagen_args){.q = b[Q].master, .k = b[K].master, .v = b[V].master, .kv_len = b[KV_LEN].master};
}

/* Without any key y is bo, exactly. */
static void check_blind_rows(const checker *c, int biases) {
  const mhagen_kernel *kernel = c->kernel;
  const mhagen_args args = masters_of_args(c);
  const float *y = c->buffers[Y].master, *bo = c->buffers[BO].master;
  for (int row = 0; row < kernel->batch * kernel->seq; row++) {
    size_t first, end;
    mhagen_keys_seen(kernel, &args, (size_t)(row / kernel->seq), (size_t)(row % kernel->seq), &first, &end);
    for (int j = 0; j < kernel->y_width; j++, y++) {
      if (first == end && *y != (biases ? bo[j] : 0)) fail(c, "row %d sees no key, and y[%d] is not bo", row, j);
    }
  }
}

/* What holds for each row of weights, whatever the scores. */
static void check_probs(const checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const int m = kernel->seq_kv;
  const mhagen_args args = masters_of_args(c);
  const float *p = c->buffers[PROBS].master;
  for (int b = 0; b < kernel->batch; b++) {
    for (int row = 0; row < kernel->h * kernel->seq; row++, p += m) {
      size_t first, end;
      mhagen_keys_seen(kernel, &args, (size_t)b, (size_t)(row % kernel->seq), &first, &end);
      if (!row_is_finite(p, NULL, (size_t)m)) continue;
      double sum = 0;
      for (int j = 0; j < m; j++) {
        sum += (double)p[j];
        if (((size_t)j < first || (size_t)j >= end) && p[j] != 0)
          fail(c, "probs: row %d, masked key %d: %g", row, j, (double)p[j]);
        if (p[j] != 0 && !(p[j] >= FLT_MIN))
          fail(c, "probs: row %d, key %d: %g is negative or subnormal", row, j, (double)p[j]);
      }
      if (first < end && !(fabs(sum - 1) <= 4e-6)) fail(c, "probs: row %d sums to %.9g", row, sum);
    }
  }
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
  add_errors(c, "y", b[Y].master, c->want_y, c->y_bounds, rows, width_of(c, Y), y);
  check_blind_rows(c, biases);
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

static void require_bound(checker *c, double score, norms y, norms probs) {
  double bound = mhagen_promised_error(c->kernel, score), error = fmax(relative(y), relative(probs));
  if (c->bound == 0 || error / bound > c->error / c->bound) {
    c->error = error, c->bound = bound, c->score_of_error = score;
  }
  if (!(relative(y) <= bound))
    fail(c, "error %.2e of y above %.2e, largest score %.3g", relative(y), bound, score);
  if (!(relative(probs) <= bound))
    fail(c, "error %.2e of probs above %.2e, largest score %.3g", relative(probs), bound, score);
  char of_probs[40] = "";
  if (has(c, MHAGEN_PROBS)) snprintf(of_probs, sizeof of_probs, ", of probs %.1e", relative(probs));
  note(c, "error %.1e%s, bound %.1e, largest score %.3g", relative(y), of_probs, bound, score);
}

/* ---- sets of data -------------------------------------------------------------------------- */

typedef struct data_set {
  const char *name;
  double input;  /* size of the elements of the inputs, */
  double score;  /* of the scores, */
  double value;  /* of the values and so of the results, */
  double bias;   /* and of the biases; 0: null pointers */
  double rise;   /* keys grow along the sequence, up to this factor */
  int same_rows; /* all rows of an input are equal */
  double limit;  /* left out where a run has more flops: keeps the check of a large shape short */
} data_set;

enum { NORMAL, LARGE_SCORES }; /* the first two of */
static const data_set sets[] = {
    {"normal", 1, 1, 1, .5, 0, 0, INFINITY},
    {"large scores", 1, 2500, 1, .5, 0, 0, 2e8},
    {"huge scores", 1, 1e10, 1, .5, 0, 0, 3e6}, /* behind their roundings, no weight may be left of a row */
    {"no biases", 1, 1, 1, 0, 0, 0, 3e6},
    {"rising keys", 1, 1, 1, .5, 150, 0, 2e8}, /* far above the first tile's maximum */
    {"equal rows", 1, 1, 1, .5, 0, 1, 2e8}, /* equal roundings add up: shows long chains of sums */
    {"zeros", 0, 1, 1, .5, 0, 0, 3e6},
    {"subnormal inputs", 1e-40, 1, 1, .5, 0, 0, 3e6},
    {"huge values", 1, 1, 1e30, .5, 0, 0, 1e8},
    {"rising, huge values", 1, 1, 1e30, .5, 10, 0, 1e8}, /* unnormalized sums may overflow */
};

/* Fresh weights, inputs and lengths. */
static void draw(checker *c, const data_set *set) {
  const mhagen_kernel *kernel = c->kernel;
  const int cross = has(c, MHAGEN_CROSS);
  const double in_q = 1 / sqrt(kernel->d_model), in_k = 1 / sqrt(kernel->k_width),
               in_v = 1 / sqrt(kernel->v_width), out = 1 / sqrt(kernel->h * kernel->dv);
  const double scales[] = {[WQ] = in_q * set->score, [WK] = in_k, [WV] = in_v * set->value, [WO] = out,
                           [BQ] = set->bias * set->score, [BK] = set->bias,
                           [BV] = set->bias * set->value, [BO] = set->bias * set->value};
  for (int i = WQ; i <= BO; i++) fill_normal(c, i, scales[i]);
  for (int i = Q; i <= V; i++) {
    fill_normal(c, i, set->input);
    float *x = c->buffers[i].master;
    const int n = i == Q ? kernel->seq : kernel->seq_kv, d = (int)width_of(c, i);
    int rows = c->buffers[i].bytes ? kernel->batch * n : 0;
    /* In self-attention queries grow with the keys. */
    double rise = cross ? (i == K ? set->rise : 0) : sqrt(set->rise);
    for (int r = 0; r < rows; r++) {
      float *row = x + r * (ptrdiff_t)d;
      if (set->same_rows && r > 0) memcpy(row, x, (size_t)d * sizeof *x);
      for (int j = 0; j < d && rise > 0; j++) row[j] *= (float)(rise * (r % n + 1) / n);
    }
  }
  const mhagen_need *need = need_of(c, KV_LEN);
  int *lengths = c->buffers[KV_LEN].master;
  for (int b = 0; b < kernel->batch && need; b++)
    lengths[b] = below(c, 3) ? below(c, need->most + 1) : need->most;
}

static void draw_and_pack(checker *c, const data_set *set) {
  draw(c, set);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, set->bias > 0);
}

/* ---- the parts of the check ---------------------------------------------------------------- */

static void check_pack(checker *c) {
  c->part = "pack";
  buffer *packed = &c->buffers[PACKED];
  draw(c, &sets[NORMAL]);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, 1);
  void *first = allocate(c, packed->bytes);
  memcpy(first, packed->master, packed->bytes);
  pack(c, BEFORE_GUARD, 0x00, MHAGEN_IN_OUT, 1);
  if (memcmp(first, packed->master, packed->bytes)) fail(c, "leaves bytes of packed as they were");
  pack(c, BETWEEN, 0xFF, MHAGEN_OUT_IN, 1);
  if (memcmp(first, packed->master, packed->bytes)) fail(c, "the layouts give other bytes");
  for (int i = BQ; i <= BO; i++) memset(c->buffers[i].master, 0, c->buffers[i].bytes);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, 1);
  memcpy(first, packed->master, packed->bytes);
  pack(c, BEFORE_GUARD, 0xFF, MHAGEN_OUT_IN, 0);
  if (memcmp(first, packed->master, packed->bytes)) fail(c, "null biases are not zero biases");
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
    if (c->flops > set->limit) continue;
    c->part = set->name;
    double score = 0;
    norms y = {0, 0}, probs = {0, 0};
    for (int j = 0; j < draws; j++) {
      draw_and_pack(c, set);
      run(c, (enum place)((i + (size_t)j) % PLACES), 0xFF, RUN, NULL);
      compare(c, set->bias > 0, &y, &probs);
      score = fmax(score, c->score);
    }
    require_bound(c, score, y, probs);
  }
}

/* ---- rows of any data ---------------------------------------------------------------------- */

static double uniform(checker *c, double from, double to) {
  return from + (to - from) * (double)(bits(c) >> 11) * 0x1p-53;
}

static int chance(checker *c, double of) { return uniform(c, 0, 1) < of; }

static size_t count(const checker *c, int i) { return c->buffers[i].bytes / sizeof(float); }

/* In each row of a buffer all elements become equal: their roundings add up. */
static void make_constant(checker *c, int i, size_t width) {
  float *x = c->buffers[i].master;
  for (size_t j = 0; j < count(c, i); j++) x[j] = x[j / width * width];
}

/* Rows become nearly the first one. */
static void make_alike(checker *c, int i, size_t columns, double apart) {
  const size_t d = width_of(c, i);
  float *x = c->buffers[i].master;
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
  const float *w = c->buffers[weights].master, *x = c->buffers[input].master;
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
  set.value = pow(10, uniform(c, -3, 3));
  if (chance(c, .6)) set.bias = uniform(c, 0, 2);
  if (chance(c, .3)) set.rise = uniform(c, 0, 150);
  const int alike = chance(c, .4), blind = alike && chance(c, .7);
  draw(c, &set);
  for (int i = Q; i <= V; i++) {
    const size_t d = width_of(c, i);
    if (chance(c, .1)) make_constant(c, i, d);
    if (alike) make_alike(c, i, blind ? (d + 1) / 2 : d, apart);
  }
  if (blind) make_blind(c);
  for (int i = WQ; i <= BO; i++) {
    if (chance(c, .1)) make_constant(c, i, count(c, i));
  }
  if (chance(c, .2)) make_cancel(c, WQ, BQ, Q);
  if (chance(c, .1)) make_cancel(c, WK, BK, has(c, MHAGEN_CROSS) ? K : Q);
  if (chance(c, .1)) make_cancel(c, WV, BV, has(c, MHAGEN_CROSS) ? V : Q);
  return set.bias > 0;
}

/* Instead of all else: rows of many draws, fewer where one takes long. */
static void check_draws(checker *c) {
  int draws = 0, worst = 0;
  c->part = "draws";
  while (draws < c->options.draws && draws * c->flops <= 2e8) {
    norms y = {0, 0}, probs = {0, 0};
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

  const int inputs[] = {Q, K, V, KV_LEN};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs && kernel->batch > 1; i++) {
    buffer *b = &c->buffers[inputs[i]];
    size_t entry = b->bytes / (size_t)kernel->batch;
    char *master = b->master, *first = allocate(c, entry);
    memcpy(first, master, entry);
    memmove(master, master + entry, b->bytes - entry);
    memcpy(master + b->bytes - entry, first, entry);
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
  const size_t n = (size_t)kernel->seq, m = (size_t)kernel->seq_kv,
               probs = (size_t)kernel->h * (size_t)kernel->seq * (size_t)kernel->seq_kv;
  const size_t steps[BUFFERS] = {
      [Q] = n * width_of(c, Q), [K] = m * width_of(c, K), [V] = m * width_of(c, V),
      [KV_LEN] = 1, [Y] = n * width_of(c, Y), [PROBS] = probs};
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
    void *at[BUFFERS]; /* floats and ints have the same size */
    for (int i = 0; i < BUFFERS; i++)
      at[i] = c->buffers[i].bytes ? (float *)c->buffers[i].master + (size_t)b * steps[i] : NULL;
    const mhagen_args args = {.q = at[Q], .k = at[K], .v = at[V], .y = at[Y], .packed = packed,
                              .workspace = workspace, .kv_len = at[KV_LEN], .probs = at[PROBS]};
    status = alone->run(&args);
  }
  free(packed), free(workspace);
  if (status != MHAGEN_OK) fail(c, "%s", mhagen_status_text(status));
  require_same_bits(c, "in a batch");
  note(c, "each batch entry has the same bits");
}

/* One NaN or Inf in one element of one row of one input. */
static void check_poison(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const int small = c->flops <= 3e5;
  const float poisons[] = {NAN, INFINITY, -INFINITY};
  const int inputs = has(c, MHAGEN_CROSS) ? 3 : 1;
  if (c->flops > 1e8) return;
  c->part = "NaN and Inf";
  for (int i = Q; i < Q + inputs; i++) {
    const int n = i == Q ? kernel->seq : kernel->seq_kv, d = (int)width_of(c, i);
    float *x = c->buffers[i].master;
    for (int poison = 0; poison < (small ? 3 : 2); poison++) {
      draw_and_pack(c, &sets[below(c, 2) ? NORMAL : LARGE_SCORES]); /* attention weights may be 0 */
      for (int where = 0; where < (small ? 3 : 1); where++) {
        int row = small && where < 2 ? where * (n - 1) : below(c, n);
        ptrdiff_t at = ((ptrdiff_t)below(c, kernel->batch) * n + row) * d + below(c, d);
        float healthy = x[at];
        norms y = {0, 0}, probs = {0, 0};
        x[at] = poisons[poison];
        run(c, AFTER_GUARD, 0xFF, RUN, NULL);
        compare(c, 1, &y, &probs);
        x[at] = healthy;
      }
    }
  }
  note(c, "reach exactly the rows that depend on them");
}

/* Sets the keys first .. end - 1 of one batch entry to one value. */
static void set_keys(checker *c, int b, int first, int end, float value) {
  const ptrdiff_t m = c->kernel->seq_kv;
  for (int i = has(c, MHAGEN_CROSS) ? K : Q; i <= (has(c, MHAGEN_CROSS) ? V : Q); i++) {
    const ptrdiff_t d = (ptrdiff_t)width_of(c, i);
    float *x = c->buffers[i].master;
    for (ptrdiff_t j = (b * m + first) * d; j < (b * m + end) * d; j++) x[j] = value;
  }
}

/* Rows have the same bits whether keys that they do not see are zeros, NaN or Inf: the keys from `first` on, or
 * (first < 0) those beyond kv_len, up to `end`. */
static void check_mask(checker *c, int first, int end) {
  const mhagen_kernel *kernel = c->kernel;
  const int *lengths = c->buffers[KV_LEN].master, cross = has(c, MHAGEN_CROSS);
  const mhagen_args args = masters_of_args(c);
  const float fills[] = {0, NAN, INFINITY};
  draw_and_pack(c, &sets[NORMAL]);
  for (int i = 0; i < 3; i++) {
    for (int b = 0; b < kernel->batch; b++) set_keys(c, b, first < 0 ? lengths[b] : first, end, fills[i]);
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    if (i == 0) keep_as_base(c);
    for (int row = 0; row < kernel->batch * kernel->seq; row++) {
      const int b = row / kernel->seq, r = row % kernel->seq, from = first < 0 ? lengths[b] : first;
      size_t seen, seen_end;
      mhagen_keys_seen(kernel, &args, (size_t)b, (size_t)r, &seen, &seen_end);
      const int sees = seen < seen_end && (int)seen < end && (int)seen_end > from;
      const int is = !cross && r >= from && r < end; /* in self-attention such a row is itself set */
      if (!sees && !is) require_row_bits(c, b, b, (size_t)r, "masked keys matter");
    }
  }
}

static void check_masks(checker *c) {
  const int m = c->kernel->seq_kv, cuts[] = {1, m / 2, m - 1, 1 + below(c, m)};
  const size_t count = c->flops <= 3e5 ? 4 : c->flops <= 1e8 ? 1 : 0;
  const int window = has(c, MHAGEN_WINDOW_LEFT | MHAGEN_WINDOW_RIGHT), behind = has(c, MHAGEN_CAUSAL);
  c->part = "masked keys";
  for (size_t i = 0; i < count; i++) {
    const int cut = cuts[3 - i], end = cut < m ? cut + 1 + below(c, m - cut) : m;
    if (behind && cut > 0 && cut < m) check_mask(c, cut, m);
    if (window) check_mask(c, cut < m ? cut : 0, end);
    if (has(c, MHAGEN_KV_LEN)) check_mask(c, -1, m);
  }
  if (count && (behind || window || has(c, MHAGEN_KV_LEN))) note(c, "have no influence");
}

/* The extreme lengths. */
static void check_lengths(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  const int lengths[] = {0, 1, kernel->seq_kv};
  if (!has(c, MHAGEN_KV_LEN)) return;
  c->part = "lengths";
  norms y = {0, 0}, probs = {0, 0};
  double score = 0;
  for (int i = 0; i < (c->flops <= 3e6 ? 3 : 1); i++) {
    draw_and_pack(c, &sets[NORMAL]);
    for (int b = 0; b < kernel->batch; b++) ((int *)c->buffers[KV_LEN].master)[b] = lengths[i];
    run(c, AFTER_GUARD, 0xFF, RUN, NULL);
    compare(c, 1, &y, &probs);
    score = fmax(score, c->score);
  }
  require_bound(c, score, y, probs);
}

/* Every way of running gives this status and touches nothing. */
static void expect(checker *c, const mhagen_args *args, mhagen_status status, const char *what) {
  static const char *const callers[] = {"check", "run", "mhagen_run_parallel", "a pool"};
  mhagen_pool *pool = mhagen_pool_create(2);
  const mhagen_status got[] = {mhagen_check_args(c->kernel, args), c->kernel->run(args),
                               mhagen_run_parallel(c->kernel, args, NULL),
                               mhagen_run_parallel(&c->forking, args, pool)};
  mhagen_pool_destroy(pool);
  for (int i = 0; i < 4; i++) {
    if (got[i] != status)
      fail(c, "%s: %s says \"%s\", not \"%s\"", what, callers[i], mhagen_status_text(got[i]),
           mhagen_status_text(status));
  }
  require_untouched(c, Q, KV_LEN, -1, what);
  require_untouched(c, PACKED, PROBS, -1, what);
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

static void check_bad_args(checker *c) {
  c->part = "bad arguments";
  draw_and_pack(c, &sets[NORMAL]);
  const mhagen_args good = place_args(c, AFTER_GUARD, 0xFF);
  mhagen_args bad = good;
  expect(c, NULL, MHAGEN_ERR_NULL, "no arguments");
  for (int i = 0; i < c->kernel->need_count; i++) {
    const mhagen_need *need = &c->kernel->needs[i];
    const char *at;
    memcpy(&at, (const char *)&good + need->at, sizeof at);
    set_arg(&bad, need->at, NULL);
    expect(c, &bad, MHAGEN_ERR_NULL, "a null pointer");
    for (int off = 4; need->align > 1 && off < need->align; off *= 2) {
      set_arg(&bad, need->at, at + off);
      expect(c, &bad, MHAGEN_ERR_ALIGN, "a misaligned pointer");
    }
    bad = good;
  }
  if (need_of(c, KV_LEN)) {
    const int m = need_of(c, KV_LEN)->most, lengths[] = {-1, m + 1, INT_MIN, INT_MAX};
    for (int i = 0; i < 4; i++) {
      int *valid = (int *)c->buffers[KV_LEN].master + below(c, c->kernel->batch), before = *valid;
      *valid = lengths[i];
      place_input(c, KV_LEN, AFTER_GUARD); /* where it was */
      expect(c, &good, MHAGEN_ERR_LENGTH, "a length out of range");
      *valid = before;
      place_input(c, KV_LEN, AFTER_GUARD);
    }
  }

  for (int i = WQ; i <= BO; i++) place_input(c, i, AFTER_GUARD);
  place(c, PACKED, BEFORE_GUARD, 0xFF);
  char *packed = c->buffers[PACKED].at;
  const mhagen_weights weights = placed_weights(c, MHAGEN_IN_OUT, 1);
  mhagen_weights lacking = weights;
  expect_of_pack(c, NULL, packed, MHAGEN_ERR_NULL, "no weights");
  expect_of_pack(c, &weights, NULL, MHAGEN_ERR_NULL, "packed = NULL");
  expect_of_pack(c, &weights, packed + 4, MHAGEN_ERR_ALIGN, "packed + 4");
  expect_of_pack(c, &weights, packed + MHAGEN_ALIGN / 2, MHAGEN_ERR_ALIGN, "packed + 32");
#define EXPECT(field, value, status) \
  lacking.field = (value), \
  expect_of_pack(c, &lacking, packed, MHAGEN_ERR_##status, #field " = " #value), lacking = weights
  EXPECT(wq, NULL, NULL);
  EXPECT(wk, NULL, NULL);
  EXPECT(wv, NULL, NULL);
  EXPECT(wo, NULL, NULL);
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

/* Of an option that is new here, only the kernel's table knows. */
static void check_needs(checker *c) {
  const unsigned known =
      MHAGEN_CROSS | MHAGEN_CAUSAL | MHAGEN_KV_LEN | MHAGEN_PROBS | MHAGEN_STRASSEN |
      MHAGEN_WINDOW_LEFT | MHAGEN_WINDOW_RIGHT | MHAGEN_BOTTOM_RIGHT;
  const int cross = has(c, MHAGEN_CROSS);
  require_need(c, Q, 1, 1, -1);
  require_need(c, Y, 1, 1, -1);
  require_need(c, PACKED, 1, MHAGEN_ALIGN, -1);
  require_need(c, WORKSPACE, 1, MHAGEN_ALIGN, -1);
  if (c->kernel->options & ~known) return;
  require_need(c, K, cross, 1, -1);
  require_need(c, V, cross, 1, -1);
  require_need(c, KV_LEN, has(c, MHAGEN_KV_LEN), 1, c->kernel->seq_kv);
  require_need(c, PROBS, has(c, MHAGEN_PROBS), 1, -1);
}

/* The table of phases, and the numbers in it. */
static void check_table(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
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

static void make_forking(checker *c) {
  const size_t count = (size_t)c->kernel->phase_count;
  c->phases = allocate(c, count * sizeof *c->phases);
  memcpy(c->phases, c->kernel->phases, count * sizeof *c->phases);
  for (size_t p = 0; p < count; p++) c->phases[p].cycles = 1e12;
  c->forking = *c->kernel;
  c->forking.phases = c->phases;
}

static int supported_elsewhere(checker *c) {
  const int stub = c->kernel->phase_count == 0;
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
  const double queries = h * n * (k->d_model * dk + k->y_width * dv),
               keys = k->h_kv * m * (k->k_width * dk + k->v_width * dv);
  return k->batch * (2 * (queries + keys) + h * n * m * (2 * dk + 2 * dv + 20));
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
  make_forking(c);
  make_buffers(c);
  if (alone) {
    if (kernel->supported()) check_alone(c, alone);
    return;
  }
  if (supported_elsewhere(c)) return;
  if (!options->terse)
    printf("%s: %s, %d heads, y[%d][%d][%d]\n", kernel->name, kernel->isa, kernel->h, kernel->batch,
           kernel->seq, kernel->y_width);
  if (options->draws) {
    check_draws(c);
    return;
  }
  check_self_test(c);
  check_pack(c);
  check_numbers(c);
  check_lengths(c);
  check_masks(c);
  check_poison(c);
  check_repeats(c);
  check_bad_args(c);
  if (options->terse)
    printf("ok %s err=%.2g bound=%.2g s=%.3g\n", kernel->name, c->error, c->bound,
           c->score_of_error);
  else
    printf("  %-22s each below its bound, at most %.2g of it\n", "rows", c->row),
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
