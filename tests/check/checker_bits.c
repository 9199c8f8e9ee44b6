/* checker_bits.c of mhagen: promises about bits: they are the same at other addresses, on threads and in a batch. */
#include "checker_rooms.h"

#include <stdlib.h>
#include <string.h>

void keep_as_base(checker *c) {
  memcpy(c->base_y, c->buffers[Y].master, master_bytes(c, Y));
  memcpy(c->base_probs, c->buffers[PROBS].master, c->buffers[PROBS].bytes);
  memcpy(c->base_scores, c->buffers[SCORES].master, c->buffers[SCORES].bytes);
}

void require_row_bits(const checker *c, int b, int base_b, size_t r, const char *what) {
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

void require_same_bits(const checker *c, const char *what) {
  for (int b = 0; b < c->kernel->batch; b++) require_bits(c, b, b, what);
}

void check_repeats(checker *c) {
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
    /* Of all rows that there ever are. */
    const size_t bytes = i <= LAST_GROWING ? count(c, i) * sizeof(float) : c->buffers[i].bytes;
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

void check_alone(checker *c, const mhagen_kernel *alone) {
  const mhagen_kernel *kernel = c->kernel;
  c->part = "alone";
  draw_and_pack(c, &sets[NORMAL]);
  run(c, AFTER_GUARD, 0xFF, RUN, NULL);
  keep_as_base(c);

  const size_t rooms[] = {alone->packed_bytes, alone->workspace_bytes + MHAGEN_ALIGN, alone->tables_bytes};
  void *packed = aligned_alloc(MHAGEN_ALIGN, (rooms[0] / MHAGEN_ALIGN + 1) * MHAGEN_ALIGN),
       *workspace = aligned_alloc(MHAGEN_ALIGN, (rooms[1] / MHAGEN_ALIGN + 1) * MHAGEN_ALIGN),
       *tables = aligned_alloc(MHAGEN_ALIGN, (rooms[2] / MHAGEN_ALIGN + 1) * MHAGEN_ALIGN);
  if (!packed || !workspace || !tables) fail(c, "out of memory");
  const mhagen_weights weights = masters_of_weights(c, 1);
  mhagen_status status = alone->pack(&weights, packed);
  if (status == MHAGEN_OK && alone->pack_tables) status = alone->pack_tables(&weights, tables);
  for (int b = 0; b < kernel->batch && status == MHAGEN_OK; b++) {
    void *at[BUFFERS];
    for (int i = 0; i < BUFFERS; i++)
      at[i] = !c->buffers[i].bytes ? NULL
              : (is_small(c, i) ? c->buffers[i].at : (char *)c->buffers[i].master) + (size_t)b * entry_bytes(c, i);
    const mhagen_args args = {.q = at[Q], .k = at[K], .v = at[V], .y = at[Y], .packed = packed,
                              .workspace = workspace, .kv_len = at[KV_LEN], .probs = at[PROBS],
                              .kv_start = at[KV_START], .q_len = at[Q_LEN], .mask = at[MASK],
                              .scores = at[SCORES], .tables = tables, .row_keys = at[ROW_KEYS],
                              .rope_cos = at[COSINES], .rope_sin = at[SINES],
                              .k_rope_cos = at[K_COSINES], .k_rope_sin = at[K_SINES],
                              .past = at[PAST], /* what is in the cache before is the same for both */
                              .cache = c->buffers[CACHE].at + (size_t)b * kernel->cache_bytes};
    status = alone->run(&args);
  }
  free(packed), free(workspace), free(tables);
  if (is_small(c, Y)) decode(c, Y, c->buffers[Y].at, c->buffers[Y].master, c->buffers[Y].bytes);
  if (status != MHAGEN_OK) fail(c, "%s", mhagen_status_text(status));
  require_same_bits(c, "in a batch");
  note(c, "each batch entry has the same bits");
}
