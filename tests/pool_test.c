/* pool_test.c: the runtime's pool under a toy kernel of four phases, whose tasks only do their work
 * right when each phase has ended before the next begins. Meant to run under ThreadSanitizer too.
 * Link with -Wl,--wrap=pthread_create. Built with MHAGEN_NO_POOL it runs what is left. */
#define _DEFAULT_SOURCE /* usleep */
#include "mhagen.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define REQUIRE(condition) \
  ((condition) ? (void)0 : (printf("line %d: not true: %s\n", __LINE__, #condition), exit(1)))

/* ---- a toy kernel: task i of a phase stores i + the sum of the phase before ----------------- */

enum { PHASES = 4, MOST_TASKS = 64 };
static const int tasks_of[PHASES] = {7, 1, MOST_TASKS, 3};
static long values[PHASES][MOST_TASKS]; /* not atomic: ordered by the pool alone */
static pthread_t caller;

static void task(const mhagen_args *args, int index) {
  int p = index / 100, i = index % 100;
  long sum = i + (long)args->y[0];
  for (int j = 0; p > 0 && j < tasks_of[p - 1]; j++) sum += values[p - 1][j];
  values[p][i] = sum;
  if (tasks_of[p] == 1) REQUIRE(pthread_equal(pthread_self(), caller)); /* nobody else was woken */
}

static int supported(void) { return 1; }

static mhagen_status run_alone(const mhagen_args *args);

static const mhagen_phase phases[PHASES] = {
    {"a", task, 0, 7, 1e6}, {"b", task, 100, 1, 1e6}, {"c", task, 200, MOST_TASKS, 1e6},
    {"d", task, 300, 3, 1e6}};
static const mhagen_kernel kernel = {
    .name = "toy", .supported = supported, .run = run_alone, .phases = phases, .phase_count = PHASES};

static mhagen_status run_alone(const mhagen_args *args) {
  const mhagen_status status = mhagen_check_args(&kernel, args);
  if (status != MHAGEN_OK) return status;
  for (int p = 0; p < PHASES; p++) {
    for (int i = 0; i < phases[p].tasks; i++) phases[p].task(args, phases[p].first + i);
  }
  return MHAGEN_OK;
}

static mhagen_args args_with(float *y) {
  static _Alignas(MHAGEN_ALIGN) char aligned[1]; /* nobody looks into it */
  return (mhagen_args){.q = y, .y = y, .packed = aligned, .workspace = aligned};
}

static void run(mhagen_pool *pool, int start) {
  float y = (float)start;
  mhagen_args args = args_with(&y);
  for (int p = 0; p < PHASES; p++) {
    for (int i = 0; i < MOST_TASKS; i++) values[p][i] = -1;
  }
  REQUIRE(mhagen_run_parallel(&kernel, &args, pool) == MHAGEN_OK);
  long sum = 0;
  for (int p = 0; p < PHASES; p++) {
    long next = 0;
    for (int i = 0; i < tasks_of[p]; i++) {
      REQUIRE(values[p][i] == i + start + sum);
      next += values[p][i];
    }
    sum = next;
  }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_bad_args(mhagen_pool *pool) {
  values[0][0] = -1;
  mhagen_args args = args_with(NULL);
  REQUIRE(mhagen_run_parallel(&kernel, &args, pool) == MHAGEN_ERR_NULL);
  REQUIRE(values[0][0] == -1);
}

static void test_null_pool(void) {
  run(NULL, 5);
  test_bad_args(NULL);
  mhagen_pool_destroy(NULL);
  REQUIRE(!mhagen_pool_create(0) && !mhagen_pool_create(-3));
}

#ifdef MHAGEN_NO_POOL

int main(void) {
  caller = pthread_self();
  test_null_pool();
  REQUIRE(!mhagen_pool_create(2));
  return 0;
}

#else

/* Lets the creation of threads fail after `creations_left` more; negative: never. */
static int creations_left = -1;
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument) {
  if (creations_left == 0) return 11; /* EAGAIN */
  creations_left--;
  return __real_pthread_create(thread, attributes, start, argument);
}

static void test_cycles(void) {
  for (int i = 0; i < 300; i++) {
    mhagen_pool *pool = mhagen_pool_create(1 + i % 8);
    REQUIRE(pool);
    for (int j = 0; j < i % 4; j++) run(pool, i + j); /* also none: destroyed while waking up */
    mhagen_pool_destroy(pool);
  }
}

static void test_reuse(void) {
  mhagen_pool *pool = mhagen_pool_create(4);
  for (int i = 0; i < 1000; i++) run(pool, i);
  test_bad_args(pool);
  mhagen_pool_destroy(pool);
}

static void test_no_threads_left(void) {
  for (int left = 0; left < 4; left++) {
    creations_left = left;
    REQUIRE(!mhagen_pool_create(5));
    REQUIRE(creations_left == 0);
  }
  creations_left = -1;
}

/* As many tasks as threads, each waiting for all others: ends only if every thread takes one. */
static pthread_barrier_t barrier;
static void meet(const mhagen_args *args, int index) {
  (void)args, (void)index;
  pthread_barrier_wait(&barrier);
}

/* Phases that are not worth a waking stay with the caller. */
static void alone(const mhagen_args *args, int index) {
  (void)args, (void)index;
  REQUIRE(pthread_equal(pthread_self(), caller));
}

static void test_small_phases_do_not_fork(void) {
  static const mhagen_phase mixed[] = {{"small", alone, 0, 50, 1e3}, {"meet", meet, 0, 2, 1e6}};
  const mhagen_kernel one_small = {.supported = supported, .phases = mixed, .phase_count = 2};
  float y = 0;
  mhagen_args args = args_with(&y);
  mhagen_pool *pool = mhagen_pool_create(2);
  caller = pthread_self();
  REQUIRE(!pthread_barrier_init(&barrier, NULL, 2));
  for (int i = 0; i < 50; i++) REQUIRE(mhagen_run_parallel(&one_small, &args, pool) == MHAGEN_OK);
  pthread_barrier_destroy(&barrier);
  mhagen_pool_destroy(pool);
}

static void test_all_threads_work(void) {
  static const mhagen_phase all[] = {{"meet", meet, 0, 6, 1e6}, {"meet again", meet, 0, 6, 1e6}};
  const mhagen_kernel meeting = {.supported = supported, .phases = all, .phase_count = 2};
  float y = 0;
  mhagen_args args = args_with(&y);
  mhagen_pool *pool = mhagen_pool_create(6);
  REQUIRE(!pthread_barrier_init(&barrier, NULL, 6));
  for (int i = 0; i < 50; i++) REQUIRE(mhagen_run_parallel(&meeting, &args, pool) == MHAGEN_OK);
  pthread_barrier_destroy(&barrier);
  mhagen_pool_destroy(pool);
}

static double cpu_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void test_idle(void) {
  mhagen_pool *pool = mhagen_pool_create(8);
  run(pool, 1);
  usleep(50000); /* until everybody sleeps */
  double before = cpu_seconds();
  usleep(200000);
  double used = cpu_seconds() - before;
  printf("8 idle threads used %.1f ms of CPU time in 200 ms\n", used * 1e3);
  REQUIRE(used < 0.02); /* one spinning thread would use ten times that */
  mhagen_pool_destroy(pool);
}

int main(void) {
  caller = pthread_self();
  test_null_pool();
  test_cycles();
  test_reuse();
  test_no_threads_left();
  test_all_threads_work();
  test_small_phases_do_not_fork();
  test_idle();
  return 0;
}

#endif
