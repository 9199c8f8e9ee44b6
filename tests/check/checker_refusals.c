/* checker_refusals.c of mhagen: promises about errors: a wrong argument has its status and words, and nothing is
 * written. */
#define _DEFAULT_SOURCE /* mmap's MAP_ANONYMOUS */
#include "checker_rooms.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

void expect(checker *c, const mhagen_args *args, mhagen_status status, const char *what) {
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
  require_untouched(c, TABLES, SCORES, -1, what);
}

/* The same of filling the cache, whose arguments are placed. */
static void expect_of_fill(checker *c, const mhagen_args *args, mhagen_status status, const char *what) {
  const mhagen_status got[] = {c->kernel->fill(args), mhagen_check_fill(c->kernel, args)};
  for (int i = 0; i < 2; i++) {
    if (got[i] != status)
      fail(c, "%s: fill says \"%s\", not \"%s\"", what, mhagen_status_text(got[i]), mhagen_status_text(status));
  }
  require_untouched(c, Q, WQ - 1, -1, what);
  require_untouched(c, TABLES, SCORES, -1, what);
}

/* The same of packing the weights, PACKED, or tables, TABLES. */
static void expect_of_pack(checker *c, int id, const mhagen_weights *weights, void *at,
                           mhagen_status status, const char *what) {
  const mhagen_status got = id == TABLES ? c->kernel->pack_tables(weights, at) : c->kernel->pack(weights, at);
  if (got != status)
    fail(c, "%s: pack says \"%s\", not \"%s\"", what, mhagen_status_text(got),
         mhagen_status_text(status));
  require_untouched(c, WQ, id, id, what);
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

/* Packed weights or tables that begin with zeros, or with a fingerprint that differs in a bit. */
static void check_other_packs(checker *c, int id) {
  const mhagen_kernel *kernel = c->kernel;
  void *const packed = c->buffers[id].master;
  uint64_t own;
  memcpy(&own, packed, sizeof own);
  const uint64_t others[] = {0, own ^ 1, own ^ UINT64_C(1) << 63};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    memcpy(packed, &others[i], sizeof own);
    place_input(c, id, AFTER_GUARD);
    const mhagen_args args = args_of(c, kernel->needs, kernel->need_count);
    const char *const word = i ? "of this kernel" : "has not filled it";
    expect(c, &args, MHAGEN_ERR_PACKED, "those of another kernel");
    require_words(c, mhagen_args_error(kernel, &args), names[id], word);
    if (!kernel->fill) continue;
    const mhagen_args filling = args_of(c, kernel->fill_needs, kernel->fill_need_count);
    expect_of_fill(c, &filling, MHAGEN_ERR_PACKED, "those of another kernel");
    require_words(c, mhagen_fill_error(kernel, &filling), names[id], word);
  }
  memcpy(packed, &own, sizeof own);
  place_input(c, id, AFTER_GUARD);
}

/* What either way of packing refuses; the weights are placed. */
static void check_bad_packing(checker *c, int id) {
  place(c, id, BEFORE_GUARD, 0xFF);
  char *const at = c->buffers[id].at;
  const mhagen_weights weights = placed_weights(c, MHAGEN_IN_OUT, 1);
  mhagen_weights unknown = weights;
  unknown.layout = (mhagen_layout)2;
  expect_of_pack(c, id, NULL, at, MHAGEN_ERR_NULL, "no weights");
  if (c->buffers[id].bytes) expect_of_pack(c, id, &weights, NULL, MHAGEN_ERR_NULL, "nowhere");
  expect_of_pack(c, id, &weights, at + 4, MHAGEN_ERR_ALIGN, "4 bytes behind");
  expect_of_pack(c, id, &weights, at + MHAGEN_ALIGN / 2, MHAGEN_ERR_ALIGN, "32 bytes behind");
  expect_of_pack(c, id, &unknown, at, MHAGEN_ERR_LAYOUT, "layout = 2");
}

/* Either end of a range is wrong, in a row that is asked for and in one that is not. */
static void check_bad_ranges(checker *c, const mhagen_args *good) {
  const mhagen_kernel *kernel = c->kernel;
  const int wrong[] = {-1, kernel->seq_kv + 1, INT_MIN, INT_MAX};
  for (int i = 0; i < 4 && has(c, MHAGEN_ROW_KEYS); i++) {
    const int b = below(c, kernel->batch), asked = rows_of(c, b), rows[] = {below(c, asked ? asked : 1), asked};
    for (int j = asked ? 0 : 1; j < 2 && rows[j] < kernel->seq; j++) {
      int *end = (int *)c->buffers[ROW_KEYS].master + (b * kernel->seq + rows[j]) * 2 + i % 2, before = *end;
      *end = wrong[i];
      place_input(c, ROW_KEYS, AFTER_GUARD);
      if (j == 0) {
        expect(c, good, MHAGEN_ERR_LENGTH, "a range out of range");
        require_words(c, mhagen_args_error(kernel, good), "row_keys", "is outside 0..seq_kv");
      } else if (mhagen_check_args(kernel, good) != MHAGEN_OK) {
        fail(c, "the range of a row that is not asked for matters");
      }
      *end = before;
      place_input(c, ROW_KEYS, AFTER_GUARD);
    }
  }
}

void check_bad_args(checker *c) {
  const mhagen_kernel *kernel = c->kernel;
  c->part = "bad arguments";
  draw_and_pack(c, &sets[NORMAL]);
  const mhagen_args good = place_args(c, AFTER_GUARD, 0xFF);
  check_pointers(c, kernel->needs, kernel->need_count, expect, mhagen_args_error);
  if (kernel->fill) {
    check_pointers(c, kernel->fill_needs, kernel->fill_need_count, expect_of_fill, mhagen_fill_error);
  }
  for (int j = 0; j < INT_BUFFERS; j++) {
    const mhagen_need *need = need_of(c, int_buffers[j]);
    const int wrong[] = {-1, need ? need->most + 1 : 0, INT_MIN, INT_MAX};
    for (int i = 0; i < 4 && need; i++) {
      int *valid = (int *)c->buffers[int_buffers[j]].master + below(c, c->kernel->batch), before = *valid;
      *valid = wrong[i];
      place_input(c, int_buffers[j], AFTER_GUARD); /* where it was */
      expect(c, &good, MHAGEN_ERR_LENGTH, "a length out of range");
      require_words(c, mhagen_args_error(kernel, &good), names[int_buffers[j]], "is outside 0..seq");
      *valid = before;
      place_input(c, int_buffers[j], AFTER_GUARD);
    }
  }

  check_bad_ranges(c, &good);
  for (int i = TABLES; i <= PACKED; i++) {
    if (c->buffers[i].bytes) check_other_packs(c, i);
  }
  for (int i = WQ; i <= LAST_WEIGHTS; i++) place_input(c, i, AFTER_GUARD);
  check_bad_packing(c, PACKED);
  const mhagen_weights weights = placed_weights(c, MHAGEN_IN_OUT, 1);
  mhagen_weights lacking = weights;
#define LACKS(field) \
  lacking.field = NULL, \
  expect_of_pack(c, PACKED, &lacking, c->buffers[PACKED].at, MHAGEN_ERR_NULL, #field " = NULL"), lacking = weights
  if (projects(c, Q)) LACKS(wq);
  if (projects(c, K)) LACKS(wk);
  if (projects(c, V)) LACKS(wv);
  if (projects(c, Y)) LACKS(wo);
  if (has(c, MHAGEN_FFN)) LACKS(w1), LACKS(w2);
  if (has(c, MHAGEN_FFN_GATE)) LACKS(w3);
#undef LACKS
  if (kernel->pack_tables) check_bad_packing(c, TABLES);
  note(c, "give their status, and nothing is written");
}
