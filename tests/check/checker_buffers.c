/* checker_buffers.c of mhagen: buffers between inaccessible pages, and random numbers in them. */
#define _DEFAULT_SOURCE /* mmap's MAP_ANONYMOUS */
#include "checker_rooms.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t bits(checker *c) { /* splitmix64 */
  uint64_t z = c->random += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

int below(checker *c, int n) { return (int)(bits(c) % (uint64_t)n); }

double normal(checker *c) {
  uint64_t r = bits(c);
  double sum = 0;
  for (int i = 0; i < 4; i++, r >>= 16) sum += (double)(r & 0xFFFF);
  return (sum / 65535 - 2) * 1.7320508075688772;
}

size_t width_of(const checker *c, int i) {
  const mhagen_kernel *k = c->kernel;
  if (i >= COSINES && i <= K_SINES) return (size_t)k->rope_dims / 2;
  if (i == Q) return (size_t)(projects(c, Q) ? k->d_model : k->h * k->dk);
  return (size_t)(i == K ? k->k_width : i == V ? k->v_width : k->y_width);
}

size_t inputs_of(const checker *c, int i) {
  const mhagen_kernel *k = c->kernel;
  if (i <= WV) return width_of(c, Q + i - WQ);
  return (size_t)(i == WO ? k->h * k->dv : i == W2 ? k->ffn : k->y_width);
}

static float *grown(const checker *c, int i) { return i <= LAST_GROWING ? c->all[i] : NULL; }

float *data(const checker *c, int i) { return grown(c, i) ? c->all[i] : c->buffers[i].master; }

int all_rows(const checker *c, int i) { return grown(c, i) ? c->kernel->seq_kv : rows_given(c, i); }

size_t count(const checker *c, int i) {
  const size_t rows = grown(c, i) ? (size_t)c->kernel->batch * (size_t)c->kernel->seq_kv : 0;
  return rows ? rows * width_of(c, i) : c->buffers[i].bytes / element(c, i);
}

void fill_normal(checker *c, int i, double scale) {
  float *x = data(c, i);
  for (size_t j = 0; j < count(c, i); j++) x[j] = (float)(scale * normal(c));
}

/* ---- buffers between inaccessible pages ---------------------------------------------------- */

void *allocate(const checker *c, size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  if (!memory) fail(c, "out of memory");
  return memory;
}

int apart(const checker *c, int i) { return has(c, MHAGEN_BHSD) && (i <= V || i == Y) && !projects(c, i); }

size_t piece_of(const checker *c, int i) {
  const mhagen_kernel *k = c->kernel;
  if (!apart(c, i)) return width_of(c, i);
  return (size_t)(i == Q || i == K ? k->dk : k->dv);
}

size_t place_in(const checker *c, int i, size_t b, size_t row, size_t j) {
  const size_t rows = (size_t)all_rows(c, i), piece = piece_of(c, i);
  return ((b * (width_of(c, i) / piece) + j / piece) * rows + row) * piece + j % piece;
}

size_t entry_bytes(const checker *c, int i) {
  const size_t batch = (size_t)c->kernel->batch;
  if (i == MASK && !(c->kernel->mask_dims && strchr(c->kernel->mask_dims, 'b'))) return 0;
  return c->buffers[i].bytes / batch;
}

static size_t mask_count(const mhagen_kernel *k) {
  const char *dims = k->mask_dims ? k->mask_dims : "";
  return (size_t)(strchr(dims, 'b') ? k->batch : 1) * (size_t)(strchr(dims, 'h') ? k->h : 1) *
         (size_t)(strchr(dims, 'q') ? k->seq : 1) * (size_t)k->seq_kv;
}

size_t y_row(const checker *c) { return projects(c, Y) ? width_of(c, Y) : (size_t)c->kernel->dv; }
size_t y_rows(const checker *c) { return (size_t)c->kernel->seq * width_of(c, Y) / y_row(c); }

size_t query_of(const checker *c, size_t i) {
  return apart(c, Y) ? i % (size_t)c->kernel->seq : i / (width_of(c, Y) / y_row(c));
}
size_t head_of(const checker *c, size_t i) {
  return apart(c, Y) ? i / (size_t)c->kernel->seq : i % (width_of(c, Y) / y_row(c));
}

int places_of(const mhagen_kernel *kernel, int *first) {
  const int query = kernel->options & MHAGEN_BOTTOM_RIGHT ? kernel->seq_kv - kernel->seq : 0, end = query + kernel->seq;
  *first = query < 0 ? query : 0;
  return (end > kernel->seq_kv ? end : kernel->seq_kv) - *first;
}

void make_buffers(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  int first;
  const size_t d = width_of(c, Q), kd = width_of(c, K), vd = width_of(c, V), yd = width_of(c, Y),
               n = (size_t)kernel->seq, m = (size_t)kernel->seq_kv, batch = (size_t)kernel->batch,
               h = (size_t)kernel->h, hq = h * (size_t)kernel->dk, ho = h * (size_t)kernel->dv,
               h_kv = (size_t)kernel->h_kv,
               hk = h_kv * (size_t)kernel->dk, hv = h_kv * (size_t)kernel->dv, f = sizeof(float), io = element(c, Q);
  const int turns = has(c, MHAGEN_ROPE_AT_RUN),
            own_angles = turns && has(c, MHAGEN_CROSS) && !has(c, MHAGEN_CACHE_APPEND);
  const size_t pairs = (size_t)kernel->rope_dims / 2 * f,
               table = has(c, MHAGEN_ROPE) && !turns ? (size_t)places_of(kernel, &first) * pairs : 0;
  const int own = kernel->norm_span != MHAGEN_SPAN_HEAD; /* gains for each head */
  const size_t normed = has(c, MHAGEN_QK_NORM) ? 1 : 0;
  const size_t norm1 = has(c, MHAGEN_PRE_NORM) ? d * f : has(c, MHAGEN_POST_NORM) ? yd * f : 0,
               of_ffn = (norm1 && has(c, MHAGEN_FFN)) || has(c, MHAGEN_FFN_NORM) ? yd * f : 0,
               norm2 = has(c, MHAGEN_PARALLEL) ? 0 : of_ffn, biased = kernel->norm_kind == MHAGEN_NORM_LAYER,
               branch = has(c, MHAGEN_BRANCH_NORM) ? yd * f : 0;
  const size_t ffn = (size_t)kernel->ffn * f, gate = has(c, MHAGEN_FFN_GATE) ? ffn : 0;
  const size_t bytes[BUFFERS] = {
      [Q] = batch * n * d * io,
      [K] = has(c, MHAGEN_CROSS) ? batch * (size_t)rows_given(c, K) * kd * io : 0,
      [V] = has(c, MHAGEN_CROSS) ? batch * (size_t)rows_given(c, V) * vd * io : 0,
      [COSINES] = turns ? batch * n * pairs : 0, [SINES] = turns ? batch * n * pairs : 0,
      [K_COSINES] = own_angles ? batch * m * pairs : 0, [K_SINES] = own_angles ? batch * m * pairs : 0,
      [KV_LEN] = need_of(c, KV_LEN) ? batch * sizeof(int) : 0,
      [KV_START] = need_of(c, KV_START) ? batch * sizeof(int) : 0,
      [Q_LEN] = need_of(c, Q_LEN) ? batch * sizeof(int) : 0,
      [PAST] = need_of(c, PAST) ? batch * sizeof(int) : 0,
      [ROW_KEYS] = need_of(c, ROW_KEYS) ? batch * n * 2 * sizeof(int) : 0,
      [MASK] = need_of(c, MASK) ? mask_count(kernel) * element(c, MASK) : 0,
      [WQ] = projects(c, Q) ? d * hq * f : 0, [BQ] = projects(c, Q) ? hq * f : 0,
      [WK] = projects(c, K) ? kd * hk * f : 0, [BK] = projects(c, K) ? hk * f : 0,
      [WV] = projects(c, V) ? vd * hv * f : 0, [BV] = projects(c, V) ? hv * f : 0,
      [WO] = projects(c, Y) ? ho * yd * f : 0, [BO] = projects(c, Y) ? yd * f : 0,
      [Q_NORM] = normed * (own ? hq : (size_t)kernel->dk) * f,
      [K_NORM] = normed * (own ? hk : (size_t)kernel->dk) * f,
      [NORM1] = norm1, [NORM1_BIAS] = biased * norm1, [NORM2] = norm2, [NORM2_BIAS] = biased * norm2,
      [NORM1B] = branch, [NORM2B] = of_ffn ? branch : 0,
      [GAIN1] = has(c, MHAGEN_RESIDUAL) && !has(c, MHAGEN_OUT_ACT) ? yd * f : 0, [GAIN2] = ffn ? yd * f : 0,
      [W1] = yd * ffn, [W3] = yd * gate, [W2] = yd * ffn, [B1] = ffn, [B3] = gate, [B2] = ffn ? yd * f : 0,
      [ROPE_COS] = table, [ROPE_SIN] = table,
      [SLOPES] = has(c, MHAGEN_ALIBI) ? h * f : 0, [SINKS] = has(c, MHAGEN_SINK) ? h * f : 0,
      [TABLES] = kernel->tables_bytes, [PACKED] = kernel->packed_bytes, [WORKSPACE] = kernel->workspace_bytes,
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
    const int wide = i == TABLES || i == PACKED || i == WORKSPACE || (i == CACHE && cache_align(c) > 1);
    b->align = wide ? MHAGEN_ALIGN : i == CACHE && kept_bytes(c) == 2 ? 2 : element(c, i);
    b->master = allocate(c, master_bytes(c, i));
    b->room_bytes = (b->bytes + MHAGEN_ALIGN + c->page - 1) / c->page * c->page;
    char *map = mmap(NULL, b->room_bytes + 2 * c->page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);
    if (map == MAP_FAILED) fail(c, "out of memory");
    b->room = map + c->page;
    if (mprotect(b->room, b->room_bytes, PROT_READ | PROT_WRITE)) fail(c, "mprotect failed");
    const int grows = (turns && (i == COSINES || i == SINES)) || (has(c, MHAGEN_CROSS) ? i == K || i == V : i == Q);
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

void place(checker *c, int i, enum place where, int fill) {
  buffer *b = &c->buffers[i];
  size_t step = (b->room_bytes - b->bytes) / b->align; /* the last possible one */
  if (where == BEFORE_GUARD) step = 0;
  if (where == BETWEEN) step -= (size_t)below(c, (int)(step < 16 ? step : 16) + 1);
  b->at = b->room + step * b->align;
  memset(b->room, fill, b->room_bytes);
}

void round_input(checker *c, int i) {
  float *x = data(c, i);
  for (size_t j = 0; is_small(c, i) && j < count(c, i); j++)
    x[j] = (float)mhagen_nearest(c->kernel->io_dtype, (double)x[j]);
}

void put(const checker *c, int i) {
  const buffer *b = &c->buffers[i];
  encode(c, i, b->master, b->at, b->bytes);
}

void place_input(checker *c, int i, enum place where) {
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

int is_filled(const char *from, const char *to, int fill) {
  return from == to || (*(const unsigned char *)from == fill &&
                        !memcmp(from, from + 1, (size_t)(to - from) - 1));
}

static void require_fill(const checker *c, int i, const char *from, const char *to, int fill) {
  if (!is_filled(from, to, fill)) fail(c, "writes outside %s", c->buffers[i].name);
}

void require_surroundings(const checker *c, int i, int fill) {
  const buffer *b = &c->buffers[i];
  require_fill(c, i, b->room, b->at, fill);
  require_fill(c, i, b->at + b->bytes, b->room + b->room_bytes, fill);
}

void require_unchanged(const checker *c, int i) {
  const buffer *b = &c->buffers[i];
  require_surroundings(c, i, 0xFF);
  if (!is_master(c, i)) fail(c, "changes %s", b->name);
}

void require_untouched(const checker *c, int from, int to, int except, const char *what) {
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
