/* bench.c: the fixed part of every benchmark of mhagen. It measures the peak of the number types that the
 * kernel multiplies before and after each sample of it, so that a slower clock or a busy neighbour shows in
 * both. */
#define _GNU_SOURCE
#include "bench.h"
#include "bounds.h"
#include "rounded.h"

#include <link.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static const double WARM_UP = 0.02, SAMPLE = 0.5e-3, PEAK = 30e-6, SAMPLING = 1.0; /* seconds */
enum { MOST_PAST = 100, /* rows before those whose error is measured */
       LEAST_SAMPLES = 5, MOST_SAMPLES = 400, COLD_CALLS = 15, TICKS = 8192, AREAS = 36, STACK = 16384,
       PAGE = 4096, PROBES = 4 };

/* A number type, and the flops of a run in it. */
typedef struct probe {
  mhagen_work work;
  const mhagen_peak *peak; /* the fastest on this CPU */
  ptrdiff_t rounds;        /* that it takes for PEAK */
  _Alignas(64) float data[MHAGEN_PEAK_FLOATS]; /* rows of tiles that share lines take three times as long */
} probe;

typedef struct area {
  void *at;
  size_t bytes;
  double deviation; /* of the numbers that are drawn into it; 0: none are */
  const char *type; /* to which these are rounded; null: float32 */
  int small;        /* whether the type is that in memory too, of 16 bits */
} area;

typedef struct bench {
  const mhagen_kernel *kernel;
  const char *name; /* among several */
  double flops; /* of one run */
  int threads, cores;
  mhagen_weights weights;
  void *packed, *tables;
  mhagen_args args;
  const float *q, *k, *v; /* the inputs in float32; args has them as the kernel wants them */
  const float *q_rows, *k_rows, *v_rows; /* with cache = append, all rows that there ever are of the inputs that keys
                                            are made of: [batch][seq_kv][width]; else null */
  const float *cosine_rows, *sine_rows;  /* of angles likewise */
  mhagen_pool *pool; /* null: one thread */
  area areas[AREAS]; /* all memory that a run touches, and the weights */
  int area_count;
  probe *probes; /* float32's first, whether a run has such products or not */
  int probe_count;
  uint64_t random;
} bench;

/* Ends the program as the step that failed. */
static void fail(const char *step, const char *format, ...) {
  va_list list;
  va_start(list, format);
  printf("message ");
  vprintf(format, list);
  printf("\nstatus %s\n", step);
  va_end(list);
  exit(1);
}

static double clock_seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return clock_seconds(CLOCK_MONOTONIC); }

/* ---- statistics ---- */

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The smallest of sorted values that at least this fraction of them does not exceed. For one half it is
 * the lower median. */
static double quantile(const double *sorted, int count, double fraction) {
  const int rank = (int)ceil(fraction * count);
  return sorted[rank > 0 ? rank - 1 : 0];
}

/* ---- data ---- */

static void *allocate(bench *b, size_t bytes, double deviation) {
  void *at = aligned_alloc(PAGE, (bytes / PAGE + 1) * PAGE); /* what shares cache sets does not depend on luck */
  if (!at) fail("time", "out of memory");
  memset(at, 0, bytes);
  if (b->area_count == AREAS) fail("time", "more than %d arrays", AREAS);
  b->areas[b->area_count++] = (area){at, bytes, deviation, NULL, 0};
  return at;
}

static const float *numbers(bench *b, size_t count, double deviation) {
  return allocate(b, count * sizeof(float), deviation);
}

/* Of an input. */
static const float *input(bench *b, size_t count, double deviation) {
  const float *at = numbers(b, count, deviation);
  b->areas[b->area_count - 1].type = b->kernel->io_dtype;
  return at;
}

/* Memory for an input as the kernel wants it, which put_input fills. */
static const void *as_given(bench *b, const float *from, size_t count) {
  return b->kernel->io_dtype && from ? allocate(b, count * sizeof(uint16_t), 0) : (const void *)from;
}

static void put_input(const bench *b, const float *from, const float *to, size_t count) {
  uint16_t *bits = (uint16_t *)(uintptr_t)to;
  for (size_t i = 0; from != to && i < count; i++) bits[i] = mhagen_to_bits(b->kernel->io_dtype, (double)from[i]);
}

/* Of a mask of bytes each eighth key is hidden. */
static const void *make_mask(bench *b) {
  const mhagen_kernel *k = b->kernel;
  const int extents[] = {k->batch, k->h, k->seq, k->seq_kv};
  size_t count = 1;
  for (int i = 0; i < 4; i++) count *= strchr(k->mask_dims, "bhqk"[i]) ? (size_t)extents[i] : 1;
  if (k->options & MHAGEN_MASK_ADD) return numbers(b, count, 1);
  unsigned char *mask = allocate(b, count, 0);
  for (size_t i = 0; i < count; i++) mask[i] = i % (size_t)k->seq_kv % 8 != 7;
  return mask;
}

static int appends(const bench *b) { return (b->kernel->options & MHAGEN_CACHE_APPEND) != 0; }

/* An input that keys are made of, of seq or seq_kv rows, which `all` are drawn for. */
static const float *key_input(bench *b, size_t width, const float **all) {
  const size_t batch = (size_t)b->kernel->batch;
  const float *rows = input(b, batch * (size_t)b->kernel->seq_kv * width, 1);
  if (!appends(b)) return rows;
  *all = rows;
  return numbers(b, batch * (size_t)b->kernel->seq * width, 0);
}

static void gather(const bench *b, const float *all, size_t width, const float *to) {
  const size_t entry = (size_t)b->kernel->seq * width;
  for (int i = 0; i < b->kernel->batch && all; i++) {
    const size_t row = (size_t)i * (size_t)b->kernel->seq_kv + (size_t)b->args.past[i];
    memcpy((float *)(uintptr_t)to + (size_t)i * entry, all + row * width, entry * sizeof *to);
  }
}

/* Numbers in a row of q, and rows of k and v. */
static size_t q_width(const mhagen_kernel *k) {
  const int projects = !(k->options & MHAGEN_UNPROJECTED) || k->project & MHAGEN_PROJECT_Q;
  return (size_t)(projects ? k->d_model : k->h * k->dk);
}

static size_t key_rows(const bench *b) { return (size_t)(appends(b) ? b->kernel->seq : b->kernel->seq_kv); }

static void put_inputs(const bench *b) {
  const mhagen_kernel *k = b->kernel;
  const size_t batch = (size_t)k->batch;
  put_input(b, b->q, b->args.q, batch * (size_t)k->seq * q_width(k));
  put_input(b, b->k, b->args.k, batch * key_rows(b) * (size_t)k->k_width);
  put_input(b, b->v, b->args.v, batch * key_rows(b) * (size_t)k->v_width);
}

/* Puts `past` rows before those of a run, whose inputs become those that follow. */
static void set_past(const bench *b, int past) {
  const mhagen_kernel *k = b->kernel;
  for (int i = 0; i < k->batch; i++) ((int *)(uintptr_t)b->args.past)[i] = past;
  gather(b, b->q_rows, (size_t)k->d_model, b->q);
  gather(b, b->k_rows, (size_t)k->k_width, b->k);
  gather(b, b->v_rows, (size_t)k->v_width, b->v);
  gather(b, b->cosine_rows, (size_t)k->rope_dims / 2, b->args.rope_cos);
  gather(b, b->sine_rows, (size_t)k->rope_dims / 2, b->args.rope_sin);
  put_inputs(b);
}

/* The same length for each batch entry. */
static const int *lengths(bench *b, int length) {
  const size_t batch = (size_t)b->kernel->batch;
  int *list = allocate(b, batch * sizeof *list, 0);
  for (size_t i = 0; i < batch; i++) list[i] = length;
  return list;
}

/* Rows see all keys. */
static const int *ranges(bench *b) {
  const size_t rows = (size_t)b->kernel->batch * (size_t)b->kernel->seq;
  int *list = allocate(b, rows * 2 * sizeof *list, 0);
  for (size_t i = 0; i < rows; i++) list[2 * i + 1] = b->kernel->seq_kv;
  return list;
}

/* Any factors will do. */
static void make_angles(bench *b) {
  const mhagen_kernel *k = b->kernel;
  const size_t pairs = (size_t)k->rope_dims / 2, batch = (size_t)k->batch, count = batch * (size_t)k->seq * pairs;
  mhagen_args *const args = &b->args;
  if (!(k->options & MHAGEN_ROPE_AT_RUN)) return;
  args->rope_cos = appends(b) ? key_input(b, pairs, &b->cosine_rows) : numbers(b, count, 0.7);
  args->rope_sin = appends(b) ? key_input(b, pairs, &b->sine_rows) : numbers(b, count, 0.7);
  if (!(k->options & MHAGEN_CROSS) || appends(b)) return;
  args->k_rope_cos = numbers(b, batch * (size_t)k->seq_kv * pairs, 0.7);
  args->k_rope_sin = numbers(b, batch * (size_t)k->seq_kv * pairs, 0.7);
}

/* Rows of ordinary size; as floats, bytes with scales are such too. */
static void *make_cache(bench *b) {
  const mhagen_kernel *k = b->kernel;
  const char *attend = k->attend_dtype ? k->attend_dtype : k->dtype, *type = k->cache_dtype ? k->cache_dtype : attend;
  void *cache = allocate(b, (size_t)k->batch * k->cache_bytes, 0.3);
  area *own = &b->areas[b->area_count - 1];
  if (type && (!strcmp(type, "bf16") || !strcmp(type, "f16"))) own->type = type, own->small = 1;
  return cache;
}

/* Weights keep the variance, so that scores are as large as they are in models. */
static void make_data(bench *b) {
  const mhagen_kernel *k = b->kernel;
  const size_t d = (size_t)k->d_model, dk = (size_t)k->k_width, dv = (size_t)k->v_width,
               dy = (size_t)k->y_width, h = (size_t)k->h, h_kv = (size_t)k->h_kv,
               hq = h * (size_t)k->dk, hk = h_kv * (size_t)k->dk, hv = h_kv * (size_t)k->dv,
               ho = h * (size_t)k->dv, batch = (size_t)k->batch, n = batch * (size_t)k->seq, ffn = (size_t)k->ffn;
  const int all = MHAGEN_PROJECT_Q | MHAGEN_PROJECT_K | MHAGEN_PROJECT_V | MHAGEN_PROJECT_O,
            project = k->options & MHAGEN_UNPROJECTED ? k->project : all,
            gated = (k->options & MHAGEN_FFN_GATE) != 0;
  const struct {
    int there;
    size_t in, out;
    const float **weights, **bias;
  } products[] = {{project & MHAGEN_PROJECT_Q, d, hq, &b->weights.wq, &b->weights.bq},
                  {project & MHAGEN_PROJECT_K, dk, hk, &b->weights.wk, &b->weights.bk},
                  {project & MHAGEN_PROJECT_V, dv, hv, &b->weights.wv, &b->weights.bv},
                  {project & MHAGEN_PROJECT_O, ho, dy, &b->weights.wo, &b->weights.bo},
                  {ffn > 0, dy, ffn, &b->weights.w1, &b->weights.b1},
                  {ffn > 0, ffn, dy, &b->weights.w2, &b->weights.b2},
                  {gated, dy, ffn, &b->weights.w3, &b->weights.b3}};
  for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
    if (!products[i].there) continue;
    *products[i].weights = numbers(b, products[i].in * products[i].out, 1 / sqrt((double)products[i].in));
    *products[i].bias = numbers(b, products[i].out, 0.1);
  }
  b->packed = allocate(b, k->packed_bytes, 0), b->tables = allocate(b, k->tables_bytes, 0);
  const int cross = (k->options & MHAGEN_CROSS) != 0;
  b->args = (mhagen_args){.y = allocate(b, n * dy * sizeof(float), 0),
                          .packed = b->packed, .workspace = allocate(b, k->workspace_bytes, 0), .tables = b->tables};
  b->q = cross ? input(b, n * q_width(k), 1) : key_input(b, d, &b->q_rows);
  if (cross) b->k = key_input(b, dk, &b->k_rows), b->v = key_input(b, dv, &b->v_rows);
  b->args.q = as_given(b, b->q, n * q_width(k));
  b->args.k = as_given(b, b->k, batch * key_rows(b) * dk), b->args.v = as_given(b, b->v, batch * key_rows(b) * dv);
  if (k->options & MHAGEN_PROBS)
    b->args.probs = allocate(b, h * n * (size_t)k->seq_kv * sizeof(float), 0);
  if (k->options & MHAGEN_SCORES) b->args.scores = allocate(b, h * n * (size_t)k->seq_kv * sizeof(float), 0);
  if (k->options & MHAGEN_KV_LEN) b->args.kv_len = lengths(b, k->seq_kv);
  if (k->options & MHAGEN_Q_LEN) b->args.q_len = lengths(b, k->seq);
  if (k->options & MHAGEN_KV_START) b->args.kv_start = allocate(b, batch * sizeof(int), 0);
  if (k->options & MHAGEN_ROW_KEYS) b->args.row_keys = ranges(b);
  if (k->options & (MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD)) b->args.mask = make_mask(b);
  if (k->cache_bytes) b->args.cache = make_cache(b);
  if (appends(b)) b->args.past = lengths(b, 0);
  make_angles(b);
}

static void pack(const bench *b) {
  mhagen_status status = b->kernel->pack(&b->weights, b->packed);
  if (status == MHAGEN_OK && b->kernel->pack_tables) status = b->kernel->pack_tables(&b->weights, b->tables);
  if (status != MHAGEN_OK) fail("check", "pack: %s", mhagen_status_text(status));
}

/* From 0 to 1, the same on every machine. */
static double uniform(bench *b) {
  b->random = b->random * 6364136223846793005u + 1442695040888963407u;
  return (double)(b->random >> 40) / 0x1p24;
}

/* Numbers around 0. */
static void draw(bench *b) {
  for (int i = 0; i < b->area_count; i++) {
    const area *to = &b->areas[i];
    const double width = to->deviation * sqrt(12);
    const size_t count = to->bytes / (to->small ? sizeof(uint16_t) : sizeof(float));
    for (size_t j = 0; width > 0 && j < count; j++) {
      const double x = mhagen_nearest(to->type, width * (uniform(b) - 0.5));
      if (to->small) ((uint16_t *)to->at)[j] = mhagen_to_bits(to->type, x);
      else ((float *)to->at)[j] = (float)x;
    }
  }
  put_inputs(b);
}

static mhagen_status run(const bench *b) {
  return b->pool ? mhagen_run_parallel(b->kernel, &b->args, b->pool) : b->kernel->run(&b->args);
}

/* A time is that of a run behind which the cache is full. */
static void fill_up(const bench *b) {
  if (appends(b)) set_past(b, b->kernel->seq_kv - b->kernel->seq);
}

/* Brings the cache to where a run finds it, with so many rows in it. */
static mhagen_status prepare_cache(const bench *b, int past) {
  const int n = b->kernel->seq;
  mhagen_status status = b->kernel->fill ? b->kernel->fill(&b->args) : MHAGEN_OK;
  for (int done = 0; appends(b) && done < past && status == MHAGEN_OK; done += n) {
    set_past(b, done < past - n || past < n ? done : past - n);
    status = run(b);
  }
  if (appends(b)) set_past(b, past);
  return status;
}

/* Measures the errors of kernels that compute the same, and packs their weights. Returns the error that
 * is promised of every kernel. Where there are few numbers they may cancel, so narrow shapes are drawn
 * several times, until the norms are over 64 independent columns, or 8 in expensive shapes. */
static double measure_errors(bench *all, int count, double *error) {
  const mhagen_kernel *k = all->kernel;
  const int context = k->h * k->dv, width = context < k->y_width ? context : k->y_width,
            columns = all->flops < 1e7 ? 64 : 8;
  const size_t numbers = (size_t)k->batch * (size_t)k->seq * (size_t)k->y_width;
  const int room = k->seq_kv - k->seq, past = room < MOST_PAST ? room : MOST_PAST;
  double *want = malloc(numbers * sizeof *want), norm = 0, largest = 0;
  for (int i = 0; i < count; i++) error[i] = 0;
  for (int drawn = 0; drawn < columns; drawn += width) {
    double score = 0;
    draw(all);
    if (appends(all)) set_past(all, past);
    mhagen_args rows = all->args;
    rows.q = all->q, rows.k = all->k, rows.v = all->v;
    if (!rows.k_rope_cos) rows.k_rope_cos = rows.rope_cos, rows.k_rope_sin = rows.rope_sin;
    if (appends(all)) {
      rows.k = all->k_rows ? all->k_rows : all->q_rows;
      rows.v = all->v_rows ? all->v_rows : all->q_rows;
      rows.k_rope_cos = all->cosine_rows, rows.k_rope_sin = all->sine_rows;
    }
    if (!want || mhagen_reference_and_bounds(k, &all->weights, &rows, want, NULL, &score, NULL, NULL))
      fail("check", "out of memory");
    largest = fmax(largest, score);
    for (size_t j = 0; j < numbers; j++) norm += want[j] * want[j];
    for (int i = 0; i < count; i++) {
      pack(&all[i]);
      /* NaN, so that no result is right only because another kernel has left it there. */
      memset(all[i].args.y, 0xFF, numbers * (k->io_dtype ? sizeof(uint16_t) : sizeof(float)));
      memset(all[i].args.workspace, 0xFF, all[i].kernel->workspace_bytes);
      mhagen_status status = prepare_cache(&all[i], past);
      if (status == MHAGEN_OK) status = run(&all[i]);
      if (status != MHAGEN_OK) fail("check", "run: %s", mhagen_status_text(status));
      for (size_t j = 0; j < numbers; j++) {
        const char *io = k->io_dtype;
        const float *y = all[i].args.y;
        const double got = io ? mhagen_of_bits(io, ((const uint16_t *)y)[j]) : (double)y[j], difference = got - want[j];
        error[i] += difference * difference;
      }
    }
  }
  free(want);
  for (int i = 0; i < count; i++) error[i] = sqrt(error[i] / norm);
  return mhagen_promised_error(all->kernel, largest);
}

static void check(bench *b) {
  double error;
  const double bound = measure_errors(b, 1, &error);
  printf("error %.3g\n", error);
  if (!(error <= bound)) fail("check", "the error is %.3g, more than %.3g", error, bound);
}

/* ---- the machine ---- */

/* Pins the process to the CPU on which the scheduler has put it, which is idle, and for more threads to
 * the next CPUs that it may use. Returns how many CPUs there are. */
static int pin(int threads) {
  cpu_set_t all, chosen;
  int count = 0;
  const int here = sched_getcpu();
  CPU_ZERO(&chosen);
  if (sched_getaffinity(0, sizeof all, &all) || here < 0) fail("time", "cannot pin to a core");
  for (size_t i = 0; i < CPU_SETSIZE && count < threads; i++) {
    const size_t cpu = ((size_t)here + i) % CPU_SETSIZE;
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &chosen);
    count++;
  }
  if (sched_setaffinity(0, sizeof chosen, &chosen)) fail("time", "cannot pin to a core");
  return count;
}

static void print_machine(void) {
  struct utsname system;
  uname(&system);
  char line[256], model[256] = "";
  FILE *info = fopen("/proc/cpuinfo", "r");
  while (info && !model[0] && fgets(line, sizeof line, info))
    sscanf(line, "model name : %255[^\n]", model);
  if (info) fclose(info);
  printf("cpu %s\n", model[0] ? model : system.machine);
  printf("cores %ld\n", sysconf(_SC_NPROCESSORS_ONLN));
  printf("system %s %s\n", system.sysname, system.release);
}

/* ---- time ---- */

/* Words of ordinary numbers of a type, below 1 or of any four bytes. */
static void draw_words(bench *b, const char *type, float *words) {
  for (int i = 0; i < MHAGEN_PEAK_FLOATS; i++) {
    if (!strcmp(type, "f32")) {
      words[i] = (float)(2 * uniform(b) - 1);
    } else {
      uint32_t word = (uint32_t)(uniform(b) * 0x1p16) << 16 | (uint32_t)(uniform(b) * 0x1p16);
      if (strcmp(type, "int8"))
        word = (uint32_t)mhagen_to_bits(type, 2 * uniform(b) - 1) << 16 | mhagen_to_bits(type, 2 * uniform(b) - 1);
      memcpy(&words[i], &word, sizeof word);
    }
  }
}

/* GFLOP/s of one core. */
static double measure_peak(const mhagen_peak *peak, const probe *of, ptrdiff_t rounds) {
  static float out[MHAGEN_PEAK_FLOATS];
  const double start = now();
  peak->run(out, of->data, rounds);
  return (double)peak->flops * (double)rounds / (now() - start) * 1e-9;
}

static void choose_peak(bench *b, const char *type, double flops) {
  probe *to = &b->probes[b->probe_count++];
  to->work = (mhagen_work){type, flops};
  draw_words(b, type, to->data);
  double best = 0;
  for (const mhagen_peak *const *peak = mhagen_peaks; *peak; peak++) {
    if (strcmp((*peak)->type, type) || !(*peak)->run || !mhagen_cpu_has((*peak)->cpu)) continue;
    double rate = 0;
    for (int i = 0; i < 20; i++) rate = fmax(rate, measure_peak(*peak, to, 250));
    if (rate <= best) continue;
    best = rate;
    to->peak = *peak;
    to->rounds = (ptrdiff_t)(PEAK * best * 1e9 / (*peak)->flops) + 1;
  }
  if (!to->peak) fail("time", "no loop has the peak of %s", type);
}

static void choose_peaks(bench *b, const mhagen_work *work) {
  static probe probes[PROBES];
  double floats = 0;
  for (const mhagen_work *w = work; w->type; w++)
    if (!strcmp(w->type, "f32")) floats = w->flops;
  b->probes = probes;
  choose_peak(b, "f32", floats);
  for (const mhagen_work *w = work; w->type; w++)
    if (strcmp(w->type, "f32")) choose_peak(b, w->type, w->flops);
}

/* The greater of two rates of each type, because a disturbance can only make so short a loop slower. */
static void probe_peaks(const bench *b, double *rates) {
  for (int i = 0; i < b->probe_count; i++) {
    const probe *of = &b->probes[i];
    rates[i] = fmax(rates[i], measure_peak(of->peak, of, of->rounds));
  }
}

/* Seconds that a run takes at least on one core, at such rates. */
static double least_seconds(const bench *b, const double *rates) {
  double seconds = 0;
  for (int i = 0; i < b->probe_count; i++) seconds += b->probes[i].work.flops * 1e-9 / rates[i];
  return seconds;
}

/* FMA loops as the tasks of a kernel, each with its own part of the workspace. */
static struct { const probe *of; ptrdiff_t rounds; } loops;

static void fma_task(const mhagen_args *args, int index) {
  loops.of->peak->run((float *)args->workspace + index * MHAGEN_PEAK_FLOATS, loops.of->data, loops.rounds);
}

static int always(void) { return 1; }

/* How many times as much FMA loops of some milliseconds do on all threads as on one: the median of some
 * rounds. */
static void measure_speedup(bench *b) {
  enum { TURNS = 15, LONGER = 100 };
  const int threads = b->threads;
  const size_t bytes = (size_t)threads * MHAGEN_PEAK_FLOATS * sizeof(float);
  loops.of = b->probes, loops.rounds = LONGER * b->probes->rounds;
  mhagen_phase phase = {"fma", fma_task, 0, threads, 1e9};
  const mhagen_kernel kernel = {.supported = always, .phases = &phase, .phase_count = 1};
  mhagen_args args = b->args;
  args.workspace = allocate(b, bytes, 0);
  double ratios[TURNS];
  for (int i = 0; i < TURNS; i++) {
    const double start = now();
    fma_task(&args, 0);
    const double middle = now();
    mhagen_run_parallel(&kernel, &args, b->pool);
    ratios[i] = threads * (middle - start) / (now() - middle);
  }
  qsort(ratios, TURNS, sizeof *ratios, by_value);
  printf("fma_speedup %.3f\n", quantile(ratios, TURNS, 0.5));
}

/* Seconds of one run. */
static double warm_up(const bench *b) {
  const double start = now();
  long runs = 0;
  do run(b), runs++;
  while (now() < start + WARM_UP || runs < 2);
  return (now() - start) / (double)runs;
}

/* The clock for a timing of about so many seconds. On one thread it stands still while another process
 * has the core, which makes times repeatable on a shared machine; but reading it takes half a
 * microsecond. */
static clockid_t clock_for(const bench *b, double seconds) {
  return b->pool || seconds < SAMPLE ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
}

/* Returns the median. */
static double measure(const bench *b, int samples) {
  const double once = warm_up(b), work = b->flops * 1e-9;
  const long runs = once < SAMPLE ? (long)(SAMPLE / once) + 1 : 1;
  const clockid_t clock = clock_for(b, once * (double)runs);
  if (samples == 0) {
    const double fit = SAMPLING / (once * (double)runs + 2 * PEAK * b->probe_count);
    samples = (int)fmin(fmax(fit, LEAST_SAMPLES), MOST_SAMPLES);
  }
  double *seconds = malloc(4 * (size_t)samples * sizeof *seconds);
  if (!seconds) fail("time", "out of memory");
  double *peaks = seconds + samples, *fmas = peaks + samples, *fractions = fmas + samples;
  double passed = 0, used = 0;
  for (int i = 0; i < samples; i++) {
    double rates[PROBES] = {0};
    probe_peaks(b, rates);
    const double wall = clock_seconds(CLOCK_MONOTONIC), start = clock_seconds(clock);
    for (long j = 0; j < runs; j++) run(b);
    const double time = clock_seconds(clock) - start;
    passed += clock_seconds(CLOCK_MONOTONIC) - wall;
    used += time;
    seconds[i] = time / (double)runs;
    probe_peaks(b, rates);
    const double least = least_seconds(b, rates);
    peaks[i] = work / least;
    fmas[i] = rates[0];
    fractions[i] = least / (seconds[i] * b->cores);
  }
  qsort(seconds, (size_t)samples, sizeof *seconds, by_value);
  qsort(peaks, (size_t)samples, sizeof *peaks, by_value);
  qsort(fmas, (size_t)samples, sizeof *fmas, by_value);
  qsort(fractions, (size_t)samples, sizeof *fractions, by_value);
  const double median = quantile(seconds, samples, 0.5);
  const double low = quantile(peaks, samples, 0.1);
  printf("repetitions %d\n", samples);
  printf("us_min %.6g\n", seconds[0] * 1e6);
  printf("us_median %.6g\n", median * 1e6);
  printf("us_p99 %.6g\n", quantile(seconds, samples, 0.99) * 1e6);
  printf("gflops %.6g\n", work / median);
  printf("peak_gflops %.6g\n", quantile(peaks, samples, 0.5));
  printf("peak_low %.6g\n", low);
  printf("fma_gflops %.6g\n", quantile(fmas, samples, 0.5));
  printf("fraction %.4f\n", quantile(fractions, samples, 0.5));
  printf("disturbed %s\n", low < 0.95 * peaks[samples - 1] || passed > 1.05 * used ? "true" : "false");
  free(seconds);
  return median;
}

/* ---- several kernels in turn ---- */

/* Times kernels that compute the same in turn, A B C C B A and so on, and takes the medians of the ratios
 * to the first kernel in the same round. The least time of each stands in a line of its own. */
static void compare(const bench *all, int count, int samples) {
  double once = warm_up(all);
  const long runs = once < SAMPLE ? (long)(SAMPLE / once) + 1 : 1;
  const clockid_t clock = clock_for(all, once * (double)runs);
  double *seconds = malloc((size_t)count * (size_t)samples * sizeof *seconds),
         *ratios = malloc((size_t)samples * sizeof *ratios);
  if (!seconds || !ratios) fail("time", "out of memory");
  for (int s = 0; s < samples; s++) {
    for (int j = 0; j < count; j++) {
      const int i = s % 2 ? count - 1 - j : j;
      run(&all[i]); /* its data are in the caches now, as far as they fit */
      const double start = clock_seconds(clock);
      for (long n = 0; n < runs; n++) run(&all[i]);
      seconds[i * samples + s] = (clock_seconds(clock) - start) / (double)runs;
    }
  }
  for (int i = count - 1; i >= 0; i--) { /* the first, which all need, is sorted last */
    double *own = &seconds[i * samples];
    for (int s = 0; s < samples; s++) ratios[s] = own[s] / seconds[s];
    qsort(ratios, (size_t)samples, sizeof *ratios, by_value);
    qsort(own, (size_t)samples, sizeof *own, by_value);
    printf("time %s %.6g %.5f\n", all[i].name, quantile(own, samples, 0.5) * 1e6,
           quantile(ratios, samples, 0.5));
    printf("least %s %.6g\n", all[i].name, own[0] * 1e6);
  }
  free(seconds);
  free(ratios);
}

/* ---- cold ---- */

#if defined(__x86_64__)

static void flush(const void *at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_ia32_clflush((const char *)at + i);
}

/* The code and constants that the linker has put into this program. */
static int flush_program(struct dl_phdr_info *object, size_t size, void *unused) {
  (void)size, (void)unused;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &object->dlpi_phdr[i];
    if (part->p_type == PT_LOAD) flush((const void *)(object->dlpi_addr + part->p_vaddr), part->p_memsz);
  }
  return 1; /* the first is the program, others are libraries */
}

static void make_cold(const bench *b) {
  for (int i = 0; i < b->area_count; i++) flush(b->areas[i].at, b->areas[i].bytes);
  flush((const char *)__builtin_frame_address(0) - STACK, STACK);
  dl_iterate_phdr(flush_program, NULL);
  __builtin_ia32_mfence();
}

#else

/* Empties the caches: reads memory that is larger than they are. */
static void make_cold(const bench *b) {
  static volatile char *other;
  const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const size_t bytes = last_level > 32 << 20 ? 2 * (size_t)last_level : 64 << 20;
  (void)b;
  if (!other) other = malloc(bytes);
  if (!other) fail("time", "out of memory");
  for (size_t i = 0; i < bytes; i += 64) other[i]++;
}

#endif

static void measure_cold(const bench *b, double warm) {
  const clockid_t clock = clock_for(b, warm);
  double seconds[COLD_CALLS], total = 0;
  int count = 0;
  while (count < COLD_CALLS && (count < 3 || total < SAMPLING / 2)) {
    make_cold(b);
    const double start = clock_seconds(clock);
    run(b);
    seconds[count] = clock_seconds(clock) - start;
    total += seconds[count++];
  }
  qsort(seconds, (size_t)count, sizeof *seconds, by_value);
  printf("us_cold %.6g\n", quantile(seconds, count, 0.5) * 1e6);
}

/* ---- phases ---- */

static volatile sig_atomic_t ticks;
static uintptr_t tick_at[TICKS];

static void on_tick(int number, siginfo_t *info, void *context) {
  const ucontext_t *interrupted = context;
  (void)number, (void)info;
#if defined(__x86_64__)
  const uintptr_t pc = (uintptr_t)interrupted->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  const uintptr_t pc = (uintptr_t)interrupted->uc_mcontext.pc;
#else
  const uintptr_t pc = 0;
  (void)interrupted;
#endif
  if (ticks < TICKS) tick_at[ticks++] = pc;
}

static int load_address(struct dl_phdr_info *object, size_t size, void *address) {
  (void)size;
  *(uintptr_t *)address = object->dlpi_addr;
  return 1;
}

/* A profile by a timer that interrupts about TICKS / 2 times in half a second, or in one run if that is
 * longer. */
static void profile(const bench *b) {
  const double once = warm_up(b), total = fmax(once, SAMPLING / 2);
  const long period = (long)(total * 1e6 / (TICKS / 2)) | 1; /* odd: out of step with what it sees */
  struct sigaction action = {.sa_sigaction = on_tick, .sa_flags = SA_SIGINFO | SA_RESTART};
  const struct timeval interval = {.tv_sec = period / 1000000, .tv_usec = period % 1000000};
  const struct itimerval on = {interval, interval}, off = {{0, 0}, {0, 0}};
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &on, NULL);
  for (const double end = now() + total; now() < end;) b->kernel->run(&b->args);
  setitimer(ITIMER_REAL, &off, NULL);

  uintptr_t start = 0;
  dl_iterate_phdr(load_address, &start);
  for (int i = 0; i < ticks; i++) printf("pc %jx\n", (uintmax_t)(tick_at[i] - start));
}

/* ---- the interface ---- */

static int usage(const char *program) {
  fprintf(stderr, "usage: %s [--threads N] [--samples N] [--quick] [--phases]\n", program);
  return 2;
}

int mhagen_bench_main(const mhagen_kernel *kernel, const mhagen_work *work, int argc, char **argv) {
  bench state = {.kernel = kernel, .threads = 1, .random = 1}, *b = &state;
  for (const mhagen_work *w = work; w->type; w++) b->flops += w->flops;
  int samples = 0, quick = 0, phases = 0;
  for (int i = 1; i < argc; i++) {
    const int number = i + 1 < argc ? atoi(argv[i + 1]) : 0;
    if (!strcmp(argv[i], "--quick")) quick = 1;
    else if (!strcmp(argv[i], "--phases")) phases = 1;
    else if (!strcmp(argv[i], "--threads") && number > 0) b->threads = number, i++;
    else if (!strcmp(argv[i], "--samples") && number > 0) samples = number, i++;
    else return usage(argv[0]);
  }
  print_machine();
  printf("threads %d\n", b->threads);
  printf("packed_bytes %zu\n", kernel->packed_bytes);
  printf("workspace_bytes %zu\n", kernel->workspace_bytes);

  b->cores = pin(b->threads); /* the workers inherit it */
  if (b->cores < b->threads) fail("time", "%d threads need as many cores, and this process may use %d", b->threads, b->cores);
  if (b->threads > 1) {
    b->pool = mhagen_pool_create(b->threads);
    if (!b->pool) fail("time", "no pool of %d threads", b->threads);
  }
  make_data(b);
  if (quick) draw(b), pack(b);
  else check(b);
  fill_up(b);
  choose_peaks(b, work);
  if (b->pool) measure_speedup(b);
  const double warm = measure(b, samples);
  if (!quick) measure_cold(b, warm);
  if (phases) profile(b);
  mhagen_pool_destroy(b->pool);
  printf("status ok\n");
  return 0;
}

static size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

/* The kernels that an argument names, or all; the first one always. */
static int select_named(bench *all, const mhagen_entry *entries, char **names) {
  int count = 0;
  for (const mhagen_entry *entry = entries; entry->kernel; entry++) {
    int wanted = entry == entries || !*names;
    for (char **name = names; *name; name++) wanted |= !strcmp(*name, entry->name);
    if (!wanted) continue;
    if (count == MHAGEN_MOST_COMPARED) fail("time", "more than %d kernels", count);
    all[count] = all[0]; /* the same inputs and weights */
    all[count].kernel = entry->kernel;
    all[count++].name = entry->name;
  }
  return count;
}

int mhagen_compare_main(const mhagen_entry *entries, double flops, int argc, char **argv) {
  static bench all[MHAGEN_MOST_COMPARED];
  double error[MHAGEN_MOST_COMPARED];
  int samples = 0, i = 1;
  if (argc > 2 && !strcmp(argv[1], "--samples")) samples = atoi(argv[2]), i = 3;
  if (samples < 0 || (i < argc && argv[i][0] == '-')) {
    fprintf(stderr, "usage: %s [--samples N] [NAME...]\n", argv[0]);
    return 2;
  }
  all[0] = (bench){.kernel = entries->kernel, .flops = flops, .threads = 1, .random = 1};
  all[0].cores = pin(1);
  print_machine();
  make_data(&all[0]);
  const int count = select_named(all, entries, argv + i);
  size_t workspace = 0;
  for (int j = 0; j < count; j++) workspace = max_size(workspace, all[j].kernel->workspace_bytes);
  void *shared = allocate(&all[0], workspace, 0);
  for (int j = 0; j < count; j++) {
    all[j].packed = allocate(&all[j], all[j].kernel->packed_bytes, 0);
    all[j].tables = allocate(&all[j], all[j].kernel->tables_bytes, 0);
    all[j].args.packed = all[j].packed, all[j].args.tables = all[j].tables;
    all[j].args.workspace = shared;
  }
  if (samples > 0) {
    draw(&all[0]);
    for (int j = 0; j < count; j++) pack(&all[j]);
    fill_up(&all[0]);
    compare(all, count, samples);
  } else {
    const double bound = measure_errors(all, count, error);
    for (int j = 0; j < count; j++)
      printf("%s %s %.3g %.3g\n", error[j] <= bound ? "right" : "wrong", all[j].name, error[j], bound);
  }
  printf("status ok\n");
  return 0;
}
