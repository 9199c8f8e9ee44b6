/* Runs one contestant on one problem. bench/peers.py writes commands to its standard input:
 *
 *   form NAME   sets the form up (the first time), runs it once, writes y to its file   -> ok, or why not
 *   run MS      runs that form for about so many ms         -> us per run, lower median of the samples
 *   peak MS     the same of a loop of independent FMAs, the widest there are        -> GFLOP/s
 *
 *   worker X_AND_WEIGHTS Y d_model h dk n causal ffn [..]; the first line that it writes: version, and the forms,
 * with a TAB before each.
 */
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include "peer.h"

enum { MAX_FORMS = 64, MAX_SAMPLES = 4096 };
static const double BATCH_US = 200; /* a sample lasts at least this long: the clock costs nothing then */

static double now_us(void) { /* of all threads, which share a core: waiting for it does not count */
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median_us(void (*run)(void *), void *state, double ms) {
  static double sample[MAX_SAMPLES];
  int samples = 0;
  run(state); /* the others have used the caches */
  const double start = now_us();
  run(state);
  double end = now_us();
  const int batch = 1 + (int)(BATCH_US / (end - start + 0.01));
  while (samples < MAX_SAMPLES && (samples < 3 || end - start < ms * 1e3)) {
    const double before = now_us();
    for (int i = 0; i < batch; i++) run(state);
    end = now_us();
    sample[samples++] = (end - before) / batch;
  }
  qsort(sample, (size_t)samples, sizeof *sample, ascending);
  return sample[(samples - 1) / 2];
}

#if defined __AVX512F__
enum { LANES = 16 };
#elif defined __AVX__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

enum { CHAINS = 12, STEPS = 1000 }; /* as many as hide the latency of an FMA, and fit the registers */

static void multiply_and_add(void *state) {
  vector sum[CHAINS] = {{0}}, a = {0}, b = {0};
  (void)state;
  __asm__ volatile("" : "+x"(a), "+x"(b)); /* their values are nobody's business */
  for (int i = 0; i < STEPS; i++) {
#define STEP(c) sum[c] = a * b + sum[c]; __asm__ volatile("" : "+x"(sum[c]))
    STEP(0); STEP(1); STEP(2); STEP(3); STEP(4); STEP(5);
    STEP(6); STEP(7); STEP(8); STEP(9); STEP(10); STEP(11);
#undef STEP
  }
}

static const float *take(const float **from, size_t count) {
  const float *array = *from;
  *from += count;
  return array;
}

int main(int argc, char **argv) {
  if (argc < 9) return 2;
  problem p = {.d_model = atoi(argv[3]), .h = atoi(argv[4]), .dk = atoi(argv[5]), .n = atoi(argv[6]),
               .causal = atoi(argv[7]), .ffn = atoi(argv[8])};
  const size_t d = (size_t)p.d_model, e = (size_t)p.h * (size_t)p.dk, n = (size_t)p.n;
  const size_t ffn = (size_t)p.ffn, around = ffn ? 5 * d + 2 * d * ffn + ffn : 0;
  const size_t count = n * d + 4 * d * e + 3 * e + d + around;
  float *data = floats(count);
  const float *from = data;
  FILE *file = fopen(argv[1], "rb");
  if (!file || fread(data, sizeof *data, count, file) != count) return 2;
  fclose(file);
  p.x = take(&from, n * d);
  p.wq = take(&from, d * e), p.wk = take(&from, d * e), p.wv = take(&from, d * e);
  p.wo = take(&from, e * d);
  p.bq = take(&from, e), p.bk = take(&from, e), p.bv = take(&from, e), p.bo = take(&from, d);
  if (ffn) {
    p.norm1 = take(&from, d), p.norm1_bias = take(&from, d), p.norm2 = take(&from, d), p.norm2_bias = take(&from, d);
    p.w1 = take(&from, d * ffn), p.b1 = take(&from, ffn), p.w2 = take(&from, ffn * d), p.b2 = take(&from, d);
  }
  p.y = floats(n * d);

  FILE *out = fdopen(dup(1), "w"); /* what a library prints must not be taken for an answer */
  dup2(2, 1);
  fprintf(out, "%s", peer_version());
  for (int i = 0; peer_forms[i]; i++) fprintf(out, "\t%s", peer_forms[i]);
  fprintf(out, "\n"), fflush(out);

  void *states[MAX_FORMS] = {0}, *state = NULL;
  char line[256];
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    char *argument = strchr(line, ' ');
    if (!argument) return 2;
    *argument++ = 0;
    if (!strcmp(line, "run")) {
      fprintf(out, "%.6f\n", median_us(peer_run, state, atof(argument)));
    } else if (!strcmp(line, "peak")) {
      fprintf(out, "%.6f\n",
              2e-3 * LANES * CHAINS * STEPS / median_us(multiply_and_add, NULL, atof(argument)));
    } else {
      int i = 0;
      while (peer_forms[i] && strcmp(peer_forms[i], argument)) i++;
      if (!peer_forms[i]) return 2;
      if (!states[i]) states[i] = peer_setup(&p, argument);
      if ((state = states[i])) {
        memset(p.y, 0xff, n * d * sizeof(float)); /* NaN, until it is written */
        peer_run(state);
        file = fopen(argv[2], "wb");
        if (!file || fwrite(p.y, sizeof(float), n * d, file) != n * d || fclose(file)) return 2;
      }
      fprintf(out, state ? "ok\n" : "not for this shape\n");
    }
    fflush(out);
  }
  return 0;
}
