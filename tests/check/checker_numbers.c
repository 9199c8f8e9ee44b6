/* checker_numbers.c of mhagen: promises about numbers: results are near the reference, as a whole and row by row. */
#include "checker_rooms.h"

#include <math.h>
#include <float.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
  const char *io = c->kernel->io_dtype, *kept = c->kernel->cache_dtype, *weights = c->kernel->weight_dtype;
  const char *types[] = {own, attend, io, kept, weights, c->kernel->ffn_dtype};
  for (int i = 0; i < 6; i++) {
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
      const int vanishes = !of_y && has(c, MHAGEN_SINK) && got[i] == 0 && want[i] < 0x1p-94; /* as bounds.h allows */
      const double error = vanishes ? 0 : (double)got[i] - want[i],
                   exact = rounded ? rounded[r * width + i] - want[i] : 0;
      of_row += error * error, of_type += exact * exact;
      size += want[i] * want[i];
    }
    /* What the type has no numbers for no bound is for. */
    if (small_range(c) && (sqrt(of_type) > 4 * c->kernel->error * sqrt(size) || (bounds && sqrt(of_type) > bounds[r])))
      continue;
    sum->error += of_row, sum->size += size, sum->of_type += isfinite(of_type) ? of_type : of_row;
    sum->most = fmax(sum->most, of_row);
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
                       .mask = b[MASK].master, .past = b[PAST].master, .row_keys = b[ROW_KEYS].master,
                       .rope_cos = b[COSINES].master, .rope_sin = b[SINES].master,
                       .k_rope_cos = data(c, b[K_COSINES].bytes ? K_COSINES : COSINES),
                       .k_rope_sin = data(c, b[K_SINES].bytes ? K_SINES : SINES)};
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

int row_sees(const checker *c, size_t b, size_t r, size_t from, size_t to) {
  for (size_t i = 0; i < (size_t)c->kernel->h; i++) {
    if (head_sees(c, b, i, r, from, to)) return 1;
  }
  return 0;
}

/* Without any key y is bo, exactly, or zero where it is not projected. What is around attention comes behind that. */
static void check_blind_rows(const checker *c, int biases) {
  const mhagen_kernel *kernel = c->kernel;
  if (has(c, MHAGEN_RESIDUAL | MHAGEN_POST_NORM | MHAGEN_BRANCH_NORM | MHAGEN_FFN)) return;
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

/* Whether a cache may have rows of members of a ladder that round weights, and of others. */
static int mixes_rows(const checker *c) {
  const mhagen_kernel *own = mhagen_kernel_of(c->kernel);
  unsigned all = ~0u, any = 0;
  for (int i = 0; own->by_length && has(c, MHAGEN_CACHE_APPEND) && own->members[i]; i++) {
    all &= own->members[i]->folds, any |= own->members[i]->folds;
  }
  return (any & ~all & MHAGEN_FOLD_WIDENED) != 0;
}

void compare(checker *c, int biases, norms *y, norms *probs) {
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
    mhagen_kernel shape = *kernel; /* of members its last one's, but another one may have run */
    shape.folds = c->ran->folds, shape.sum_dtype = c->ran->sum_dtype;
    if (mhagen_reference_rounded(&shape, &weights, &args, &c->rounded)) fail(c, "out of memory");
    const int mixed = mixes_rows(c);
    for (size_t i = 0; i < (size_t)kernel->batch * y_rows(c) && !mixed; i++) {
      if (query_of(c, i % y_rows(c)) >= (size_t)rows_of(c, (int)(i / y_rows(c)))) continue;
      const size_t at = i * y_row(c);
      check_rounded(c, "y", (const float *)b[Y].master + at, c->rounded.y + at, c->rounded.y_off + at, 1, y_row(c));
    }
    for (size_t i = 0; i < rows * h && c->rounded.probs && !mixed; i++) {
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

/* Squares of errors that float32 has no numbers for: a result of 1e-48, where a sink takes all weight, is 0. */
static const double UNDERFLOW_OF_SQUARES = 1e-70;

static double relative(norms sum) {
  return sum.error > UNDERFLOW_OF_SQUARES ? sqrt(sum.error / sum.size) : 0;
}

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

/* Returns the largest error as a part of its bound. The terms of a few columns may cancel by chance, which the bound
 * is not for: of many rows that are so narrow, that of the largest error is left out. */
static double require_bound(checker *c, double score, norms y, norms probs) {
  if (width(c) < 8 && y.rows >= 16) y.error -= y.most;
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
  return error / bound;
}

void require_bound_of_many(checker *c, double score, norms y, norms probs) {
  if (c->kernel->h * y.rows >= 32 && width(c) * y.runs >= 64) require_bound(c, score, y, probs);
}

/* The largest error of a set of data as a part of its bound. */
static double check_set(checker *c, const data_set *set, size_t at) {
  const int columns = c->flops * 64 / width(c) <= 3e7 ? 64 : 8, rows = c->kernel->h * c->kernel->seq;
  int draws = (columns - 1 + width(c)) / width(c);
  while (draws * rows < 32 && c->flops * draws <= 3e6) draws++;
  double score = 0;
  norms y = {0}, probs = {0};
  for (int j = 0; j < draws; j++) {
    draw_and_pack(c, set);
    run(c, (enum place)((at + (size_t)j) % PLACES), 0xFF, RUN, NULL);
    compare(c, set->bias > 0, &y, &probs);
    score = fmax(score, c->score);
  }
  if (set->same_rows && c->kernel->h * draws < 32) probs = (norms){0}; /* one row of weights for each head */
  return require_bound(c, score, y, probs);
}

void check_numbers(checker *c) {
  for (size_t i = 0; i < SETS; i++) {
    if (c->flops > sets[i].limit || (sets[i].low > 0 && !has(c, MHAGEN_MASK_ADD))) continue;
    c->part = sets[i].name;
    check_set(c, &sets[i], i);
  }
}

/* Errors are far below the bound of norms nearly everywhere. So each set is near the worst so far. */
void check_climb(checker *c) {
  data_set best = {.input = 1, .score = 3, .value = 1};
  double most = 0;
  char part[80];
  c->part = part;
  for (int i = 0; i < c->options.climb; i++) {
    const data_set set = near(c, &best);
    snprintf(part, sizeof part, "score %.3g, bias %.3g, rise %.3g", set.score, set.bias, set.rise);
    const double of_bound = check_set(c, &set, (size_t)i);
    if (of_bound > most) most = of_bound, best = set;
  }
  printf("ok %s err=%.3g bound=%.3g s=%.3g (score %.3g, bias %.3g, rise %.3g)\n", c->kernel->name, c->error, c->bound,
         c->score_of_error, best.score, best.bias, best.rise);
}

void check_draws(checker *c) {
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
