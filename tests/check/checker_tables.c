/* checker_tables.c of mhagen: promises about what a kernel says of itself: its needs, sizes, phases and self-test. */
#include "checker_rooms.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A copy of what packing has made, of both buffers. */
typedef struct packs { float *of[2]; } packs;

static packs keep_packs(const checker *c) {
  packs kept;
  for (int i = TABLES; i <= PACKED; i++) {
    const buffer *b = &c->buffers[i];
    memcpy(kept.of[i - TABLES] = allocate(c, b->bytes), b->master, b->bytes);
  }
  return kept;
}

/* Packing has made the same, but for so much of a number; of what `why` says otherwise. */
static void require_packs(const checker *c, packs kept, double apart, const char *why) {
  for (int i = TABLES; i <= PACKED; i++) {
    const float *x = kept.of[i - TABLES], *y = c->buffers[i].master;
    if (apart == 0 && memcmp(x, y, c->buffers[i].bytes)) fail(c, "%s: %s", names[i], why);
    for (size_t j = 0; apart > 0 && j < c->buffers[i].bytes / sizeof *x; j++) {
      if (fabs((double)x[j] - (double)y[j]) > apart) fail(c, "%s: %s", names[i], why);
    }
  }
}

static void free_packs(packs kept) { free(kept.of[0]), free(kept.of[1]); }

void check_pack(checker *c) {
  c->part = "pack";
  draw(c, &sets[NORMAL]);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, 1);
  packs first = keep_packs(c);
  pack(c, BEFORE_GUARD, 0x00, MHAGEN_IN_OUT, 1);
  require_packs(c, first, 0, "leaves bytes as they were");
  pack(c, BETWEEN, 0xFF, MHAGEN_OUT_IN, 1);
  require_packs(c, first, 0, "the layouts give other bytes");
  free_packs(first);
  for (int i = BQ; i <= SINKS; i++) memset(c->buffers[i].master, 0, c->buffers[i].bytes);
  for (int i = 0; c->buffers[SLOPES].bytes && i < c->kernel->h; i++)
    ((float *)c->buffers[SLOPES].master)[i] = (float)mhagen_alibi_slope(c->kernel->h, i);
  fill_tables(c);
  pack(c, AFTER_GUARD, 0xFF, MHAGEN_IN_OUT, 1);
  first = keep_packs(c);
  pack(c, BEFORE_GUARD, 0xFF, MHAGEN_OUT_IN, 0);
  /* Tables of rope may be rounded otherwise. */
  require_packs(c, first, has(c, MHAGEN_ROPE) ? 0x1p-24 : 0,
                "null pointers are not zero biases or sinks, the slopes of the paper, or the tables of rope");
  free_packs(first);
  note(c, "both layouts, null for zero biases and any prefill give the same bytes");
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
  if (!projected || !kernel->dtype || !strcmp(kernel->dtype, "int8")) return 0;
  const char *const of_floats[] = {"scalar", "avx2", "avx_vnni", "avx512", "neon"};
  for (size_t i = 0; i < sizeof of_floats / sizeof *of_floats; i++) {
    if (!strcmp(kernel->isa, of_floats[i])) return 1;
  }
  return fill_need_of(c, WORKSPACE) != NULL;
}

/* Of an option that is new here, only the kernel's table knows. */
static void check_needs(checker *c) {
  const uint64_t known =
      MHAGEN_CROSS | MHAGEN_CAUSAL | MHAGEN_KV_LEN | MHAGEN_PROBS |
      MHAGEN_WINDOW_LEFT | MHAGEN_WINDOW_RIGHT | MHAGEN_BOTTOM_RIGHT | MHAGEN_SCALE |
      MHAGEN_ALIBI | MHAGEN_KV_START | MHAGEN_Q_LEN | MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD | MHAGEN_QK_NORM |
      MHAGEN_ROPE | MHAGEN_UNPROJECTED | MHAGEN_SCORES | MHAGEN_CACHE_APPEND | MHAGEN_CACHE_FIXED | MHAGEN_BHSD |
      MHAGEN_CACHE_BHSD | MHAGEN_DTYPE | MHAGEN_ATTEND_DTYPE | MHAGEN_IO_DTYPE |
      MHAGEN_CACHE_DTYPE | MHAGEN_RESIDUAL | MHAGEN_PRE_NORM | MHAGEN_POST_NORM | MHAGEN_FFN |
      MHAGEN_FFN_GATE | MHAGEN_BRANCH_NORM | MHAGEN_PARALLEL | MHAGEN_NO_ATTENTION | MHAGEN_OUT_ACT |
      MHAGEN_FFN_NORM | MHAGEN_ROW_KEYS | MHAGEN_ROPE_AT_RUN | MHAGEN_FFN_DTYPE;
  const mhagen_kernel *kernel = c->kernel;
  const int fixed = has(c, MHAGEN_CACHE_FIXED), append = has(c, MHAGEN_CACHE_APPEND),
            cross = has(c, MHAGEN_CROSS) && !fixed;
  require_need(c, Q, 1, 1, -1);
  require_need(c, Y, 1, 1, -1);
  require_need(c, PACKED, c->kernel->packed_bytes > 0, MHAGEN_ALIGN, -1);
  require_need(c, TABLES, kernel->tables_bytes > 0, MHAGEN_ALIGN, -1);
  if ((kernel->tables_bytes > 0) != (kernel->pack_tables != NULL)) fail(c, "tables without what packs them");
  require_need(c, WORKSPACE, 1, MHAGEN_ALIGN, -1);
  if (c->kernel->options & ~known) return;
  require_need(c, K, cross, 1, -1);
  require_need(c, V, cross, 1, -1);
  require_need(c, KV_LEN, has(c, MHAGEN_KV_LEN), 1, kernel->seq_kv);
  require_need(c, PROBS, has(c, MHAGEN_PROBS), 1, -1);
  require_need(c, KV_START, has(c, MHAGEN_KV_START), 1, c->kernel->seq_kv);
  require_need(c, ROW_KEYS, has(c, MHAGEN_ROW_KEYS), 1, -1);
  if ((kernel->of_rows.ints == 2) != (has(c, MHAGEN_ROW_KEYS) != 0)) fail(c, "of_rows is not as the options say");
  const int turns = has(c, MHAGEN_ROPE_AT_RUN), own_angles = turns && cross && !append;
  for (int i = COSINES; i <= K_SINES; i++) require_need(c, i, i <= SINES ? turns : own_angles, 1, -1);
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
            beside = turns && kernel->rope == MHAGEN_ROPE_INTERLEAVED && strcmp(kernel->isa, "scalar"),
            scratch = beside || has(c, MHAGEN_QK_NORM) || integers || wide || (small && made) ||
                      rounds_ahead(c, projected);
  const int fills = fixed * (3 + 2 * turns + (kernel->packed_bytes > 0) + (kernel->tables_bytes > 0) + scratch);
  if (!kernel->fill != !fixed || kernel->fill_need_count != fills) fail(c, "fill is not as the options say");
  const int filling[] = {K, V, K_COSINES, K_SINES, PACKED, CACHE, TABLES};
  for (int i = turns ? 0 : 4; i < 7 && fixed; i++) {
    if ((filling[i] == PACKED && !kernel->packed_bytes) || (filling[i] == TABLES && !kernel->tables_bytes)) continue;
    const mhagen_need *need = fill_need_of(c, filling[i]);
    if (!need || need->most != -1 || need->align != (i < 4 ? 1 : filling[i] == CACHE ? cache_align(c) : MHAGEN_ALIGN))
      fail(c, "fill does not need %s as mhagen.h says", names[filling[i]]);
  }
}

void check_table(checker *c) {
  const mhagen_kernel *kernel = first_member(c);
  c->part = "table";
  if (!kernel->name || !kernel->isa || kernel->phase_count < 0 || !kernel->phases || kernel->coarse_count < 0 ||
      !kernel->coarse || !kernel->self_test)
    fail(c, "incomplete");
  for (int p = 0; p < kernel->phase_count + kernel->coarse_count; p++) {
    const int fine = p < kernel->phase_count;
    const mhagen_phase *phase = fine ? &kernel->phases[p] : &kernel->coarse[p - kernel->phase_count];
    if (!phase->name || !phase->task || phase->tasks < 1 || !(phase->cycles > 0)) fail(c, "phase %d is incomplete", p);
  }
  check_needs(c);
}

void check_self_test(checker *c) {
  const mhagen_status status = c->kernel->self_test();
  c->part = "self-test";
  if (status != MHAGEN_OK) fail(c, "%s", mhagen_status_text(status));
}
