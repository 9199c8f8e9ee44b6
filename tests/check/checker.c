/* checker.c of mhagen: the checks of checker.h, one after another in a child process. Every buffer of a kernel lies
 * between two inaccessible pages. All memory around and behind the results is NaN. Everything that may only be read
 * is compared afterwards. So prepared, the files checker_*.c run the kernel on one set of data after another. */
#define _DEFAULT_SOURCE /* mmap's MAP_ANONYMOUS */
#include "checker_rooms.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* For the signal handler, which cannot be given anything. */
static checker *current;

void fail(const checker *c, const char *format, ...) {
  va_list list;
  va_start(list, format);
  printf("FAIL %s (%s) ", c->kernel->name, c->part);
  vprintf(format, list);
  printf("\n");
  va_end(list);
  fflush(stdout);
  _exit(1);
}

void note(const checker *c, const char *format, ...) {
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

static int supported_elsewhere(checker *c) {
  const int stub = first_member(c)->phase_count == 0;
  const mhagen_status lack = stub ? MHAGEN_ERR_TARGET : MHAGEN_ERR_CPU;
  if (c->kernel->supported()) return 0;
  c->part = "unsupported CPU";
  if (c->kernel->self_test() != lack) fail(c, "the self-test does not say so");
  draw(c, &sets[NORMAL]);
  for (int i = TABLES; i <= PACKED; i++) memset(c->buffers[i].master, 0, c->buffers[i].bytes);
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
  products += n * k->y_width * k->ffn * (k->options & MHAGEN_FFN_GATE ? 3 : 2);
  if (k->options & MHAGEN_NO_ATTENTION) return k->batch * 2 * products;
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
  if (options->climb) {
    check_climb(c);
    return;
  }
  check_self_test(c);
  check_pack(c);
  check_numbers(c);
  check_lengths(c);
  check_ranges(c);
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
  mhagen_check_options options = {1, "1,2,5", 0, 0, 0};
  int first = argc, failed = 0;
  for (int i = 1; i < argc && first == argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(argv[i], "--terse")) options.terse = 1;
    else if (!strcmp(argv[i], "--seed")) options.seed = strtoull(value, NULL, 0), i++;
    else if (!strcmp(argv[i], "--draws")) options.draws = atoi(value), i++;
    else if (!strcmp(argv[i], "--climb")) options.climb = atoi(value), i++;
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
