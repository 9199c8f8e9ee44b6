/* pool_test.c: the runtime's pool under a toy kernel of four phases. Its tasks give right results only if
 * each phase has ended before the next one begins. It runs under ThreadSanitizer too. Link with
 * -Wl,--wrap=pthread_create. Built with MHAGEN_NO_POOL it tests what is left. The argument is the number
 * of forks; then no child makes threads, and none is made while workers start: ThreadSanitizer and QEMU do
 * not survive that, and a child of AddressSanitizer's has its allocator locked if a worker was within. */
#define _DEFAULT_SOURCE /* usleep */
#include "mhagen.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUIRE(condition) \
  ((condition) ? (void)0 : (printf("line %d: not true: %s\n", __LINE__, #condition), exit(1)))

/* ---- a toy kernel: task i of a phase stores i + the sum of the phase before ----------------- */

enum { PHASES = 4, MOST_TASKS = 64 };
static const int tasks_of[PHASES] = {7, 1, MOST_TASKS, 3};
static long values[PHASES][MOST_TASKS]; /* not atomic: ordered by the pool alone */
static pthread_t caller;

static unsigned delayed; /* of 64 tasks, how many take 10 ms longer */

static void task(const mhagen_args *args, int index) {
  int p = index / 100, i = index % 100;
  if ((unsigned)(index * 37 + (int)args->y[0] * 11) % 64 < delayed) usleep(10000);
  long sum = i + (long)args->y[0];
  for (int j = 0; p > 0 && j < tasks_of[p - 1]; j++) sum += values[p - 1][j];
  values[p][i] = sum;
}

static int supported(void) { return 1; }

static mhagen_status run_alone(const mhagen_args *args);

static const mhagen_phase phases[PHASES] = {
    {"a", task, 0, 7, 1e6}, {"b", task, 100, 1, 1e6}, {"c", task, 200, MOST_TASKS, 1e6},
    {"d", task, 300, 3, 1e6}};
static const mhagen_need needs[] = {{offsetof(mhagen_args, y), 1, -1}};
static const mhagen_kernel kernel = {
    .name = "toy", .supported = supported, .run = run_alone, .phases = phases, .phase_count = PHASES,
    .needs = needs, .need_count = 1};

static int alone_runs; /* by one thread, in the kernel's own order */

static mhagen_status run_alone(const mhagen_args *args) {
  alone_runs++;
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

/* A kernel that reads and writes all that a run may, and every argument that it must refuse. */
enum { BATCH = 2, KEYS = 5, FLOATS = 16 };
static struct {
  _Alignas(MHAGEN_ALIGN) float packed[FLOATS], workspace[FLOATS];
  float q[FLOATS], k[FLOATS], v[FLOATS], y[FLOATS], probs[FLOATS];
  int kv_len[BATCH];
} memory, memory_before;

static void write_all(const mhagen_args *args, int index) {
  ((float *)args->workspace)[index] = 1;
  args->y[index] = args->probs[index] = 1;
}

static const mhagen_phase writing[] = {{"large", write_all, 0, FLOATS, 1e6},
                                       {"small", write_all, 0, FLOATS, 1}};
static mhagen_status run_writer(const mhagen_args *args);
static int cpu_is_right = 1;
static int right_cpu(void) { return cpu_is_right; }
static const mhagen_need everything[] = {
    {offsetof(mhagen_args, kv_len), sizeof(int), KEYS}, /* first: its status comes last */
    {offsetof(mhagen_args, packed), MHAGEN_ALIGN, -1},
    {offsetof(mhagen_args, workspace), MHAGEN_ALIGN, -1},
    {offsetof(mhagen_args, q), 1, -1}, {offsetof(mhagen_args, k), 1, -1},
    {offsetof(mhagen_args, v), 1, -1}, {offsetof(mhagen_args, y), 1, -1},
    {offsetof(mhagen_args, probs), 1, -1}};
static const mhagen_kernel writer = {
    .batch = BATCH, .supported = right_cpu, .run = run_writer, .phases = writing, .phase_count = 2,
    .needs = everything, .need_count = sizeof everything / sizeof everything[0]};

static mhagen_status run_writer(const mhagen_args *args) {
  const mhagen_status status = mhagen_check_args(&writer, args);
  for (int i = 0; status == MHAGEN_OK && i < FLOATS; i++) write_all(args, i);
  return status;
}

static void refuse(const mhagen_args *args, mhagen_status expected, mhagen_pool *pool) {
  memcpy(&memory_before, &memory, sizeof memory);
  REQUIRE(mhagen_run_parallel(&writer, args, pool) == expected);
  REQUIRE(memcmp(&memory_before, &memory, sizeof memory) == 0); /* after an error nothing is written */
}

static void test_bad_args(mhagen_pool *pool) {
  memset(&memory, 0xA5, sizeof memory);
  memory.kv_len[0] = 0, memory.kv_len[1] = KEYS;
  const mhagen_args good = {.q = memory.q, .k = memory.k, .v = memory.v, .y = memory.y,
                            .packed = memory.packed, .workspace = memory.workspace,
                            .kv_len = memory.kv_len, .probs = memory.probs};
  mhagen_args bad = good;
  refuse(NULL, MHAGEN_ERR_NULL, pool);
#define WITHOUT(field) (bad = good, bad.field = NULL, refuse(&bad, MHAGEN_ERR_NULL, pool))
  WITHOUT(q), WITHOUT(k), WITHOUT(v), WITHOUT(y), WITHOUT(packed), WITHOUT(workspace);
  WITHOUT(kv_len), WITHOUT(probs);
  bad = good, bad.packed = memory.packed + 1;
  refuse(&bad, MHAGEN_ERR_ALIGN, pool);
  bad = good, bad.workspace = memory.workspace + 1;
  refuse(&bad, MHAGEN_ERR_ALIGN, pool);
  for (int b = 0; b < BATCH; b++) {
    for (int wrong = -1; wrong <= KEYS + 1; wrong += KEYS + 2) {
      int kv_len[BATCH] = {0};
      kv_len[b] = wrong;
      bad = good, bad.kv_len = kv_len;
      refuse(&bad, MHAGEN_ERR_LENGTH, pool);
    }
  }
  cpu_is_right = 0;
  refuse(&good, MHAGEN_ERR_CPU, pool);
  const int too_long[BATCH] = {0, KEYS + 1}; /* of several mistakes the first status is told */
  bad = good, bad.kv_len = too_long;
  refuse(&bad, MHAGEN_ERR_LENGTH, pool);
  bad.workspace = memory.workspace + 1;
  refuse(&bad, MHAGEN_ERR_ALIGN, pool);
  bad.probs = NULL;
  refuse(&bad, MHAGEN_ERR_NULL, pool);
  cpu_is_right = 1;
  REQUIRE(mhagen_run_parallel(&writer, &good, pool) == MHAGEN_OK);
  REQUIRE(memory.y[FLOATS - 1] == 1 && memory.probs[0] == 1 && memory.workspace[0] == 1);
}

static void test_null_pool(void) {
  run(NULL, 5);
  test_bad_args(NULL);
  mhagen_pool_destroy(NULL);
  REQUIRE(mhagen_pool_threads(NULL) == 1);
  REQUIRE(!mhagen_pool_create(-3) && !mhagen_pool_create(INT_MIN));
}

#ifdef MHAGEN_NO_POOL

int main(void) {
  caller = pthread_self();
  test_null_pool();
  REQUIRE(!mhagen_pool_create(2) && !mhagen_pool_create(0));
  return 0;
}

#else

/* Lets the creation of threads fail after `creations_left` more; negative: never. */
static int creations_left = -1, creations_tried;
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *argument) {
  creations_tried++;
  if (creations_left == 0) return 11; /* EAGAIN */
  creations_left--;
  return __real_pthread_create(thread, attributes, start, argument);
}

static void test_cycles(void) {
  for (int i = 0; i < 300; i++) {
    mhagen_pool *pool = mhagen_pool_create(1 + i % 8);
    REQUIRE(pool && mhagen_pool_threads(pool) == 1 + i % 8);
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

/* Threads that are late, in any task of a run: the others take what is left, sleep, and are woken. */
static void test_late_threads(void) {
  mhagen_pool *pool = mhagen_pool_create(2);
  delayed = 2;
  for (int i = 0; i < 10; i++) run(pool, i);
  delayed = 0;
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

static void test_too_many_threads(void) {
  static const int numbers[] = {MHAGEN_MAX_THREADS + 1, 0x40000001, INT_MAX};
  creations_left = 3;
  REQUIRE(!mhagen_pool_create(MHAGEN_MAX_THREADS) && creations_left == 0);
  creations_tried = 0;
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    REQUIRE(!mhagen_pool_create(numbers[i]) && creations_tried == 0);
  }
  creations_left = -1;
}

/* As many tasks as threads, each waiting for all others: ends only if every thread takes one. */
static pthread_barrier_t barrier;
static void meet(const mhagen_args *args, int index) {
  (void)args, (void)index;
  pthread_barrier_wait(&barrier);
}

static void meet_twice(mhagen_pool *pool, unsigned threads) {
  const mhagen_phase all[] = {{"meet", meet, 0, (int)threads, 1e6}, {"meet again", meet, 0, (int)threads, 1e6}};
  const mhagen_kernel meeting = {.supported = supported, .phases = all, .phase_count = 2};
  float y = 0;
  mhagen_args args = args_with(&y);
  REQUIRE(!pthread_barrier_init(&barrier, NULL, threads));
  REQUIRE(mhagen_run_parallel(&meeting, &args, pool) == MHAGEN_OK);
  pthread_barrier_destroy(&barrier);
}

/* A child has none of the workers, whatever they did when it was made, and may have its own. */
static void test_fork(int forks, int threads_in_child) {
  mhagen_pool *pool = mhagen_pool_create(4);
  if (!threads_in_child) meet_twice(pool, 4); /* from here on no worker is within the sanitizer's allocator */
  for (int i = 0; i < forks; i++) {
    run(pool, i);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      alarm(10); /* ends a child that hangs */
      const int before = alone_runs;
      run(pool, i + 1);
      REQUIRE(alone_runs == before + 1); /* no worker is asked for, and no lock taken */
      test_bad_args(pool);
      mhagen_pool_destroy(pool);
      mhagen_pool *own = threads_in_child ? mhagen_pool_create(2) : NULL;
      REQUIRE(own || !threads_in_child);
      run(own, i + 2);
      mhagen_pool_destroy(own);
      _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
  }
  run(pool, 1);
  mhagen_pool_destroy(pool);
}

/* A kernel that is not worth a waking stays with the caller; a phase of few cycles in a large one does not. */
static int small_runs;
static mhagen_status run_small(const mhagen_args *args) {
  (void)args;
  small_runs++;
  return MHAGEN_OK;
}

static void never(const mhagen_args *args, int index) {
  (void)args, (void)index;
  REQUIRE(0);
}

static void test_small_kernels_do_not_fork(void) {
  static const mhagen_phase little[] = {{"small", never, 0, 50, 1e3}, {"smaller", never, 0, 2, 1e3}};
  const mhagen_kernel small = {.supported = supported, .run = run_small, .phases = little, .phase_count = 2};
  float y = 0;
  mhagen_args args = args_with(&y);
  mhagen_pool *pool = mhagen_pool_create(2);
  for (int i = 0; i < 50; i++) REQUIRE(mhagen_run_parallel(&small, &args, pool) == MHAGEN_OK);
  REQUIRE(small_runs == 50);
  mhagen_pool_destroy(pool);
}

/* Of the two lists of phases that one is run which takes less time: the coarse one where its tasks can be shared out
 * evenly, since nobody waits for others within, else the finest. */
static int coarse_tasks, fine_tasks;
static void coarse(const mhagen_args *args, int index) {
  (void)args, (void)index;
  __atomic_fetch_add(&coarse_tasks, 1, __ATOMIC_RELAXED);
}

static void fine(const mhagen_args *args, int index) {
  (void)args, (void)index;
  __atomic_fetch_add(&fine_tasks, 1, __ATOMIC_RELAXED);
}

static void test_list_of_phases(void) {
  static const mhagen_phase finest[] = {{"a", fine, 0, 24, 1e6}, {"b", fine, 0, 24, 1e6}};
  static const mhagen_phase fewer[] = {{"both", coarse, 0, 4, 2e6}};
  const mhagen_kernel two = {.size = sizeof two, .supported = supported, .phases = finest, .phase_count = 2,
                             .coarse = fewer, .coarse_count = 1};
  float y = 0;
  mhagen_args args = args_with(&y);
  for (int threads = 2; threads <= 3; threads++) {
    mhagen_pool *pool = mhagen_pool_create(threads);
    coarse_tasks = fine_tasks = 0;
    REQUIRE(mhagen_run_parallel(&two, &args, pool) == MHAGEN_OK);
    mhagen_kernel old = two; /* compiled when the struct ended before the second list */
    old.size = offsetof(mhagen_kernel, coarse), old.coarse = NULL, old.coarse_count = 1;
    REQUIRE(mhagen_choose(&old, threads).phases == finest);
    REQUIRE(threads == 2 ? coarse_tasks == 4 && fine_tasks == 0 : coarse_tasks == 0 && fine_tasks == 48);
    mhagen_pool_destroy(pool);
  }
}

static void test_all_threads_work(void) {
  mhagen_pool *pool = mhagen_pool_create(6);
  for (int i = 0; i < 50; i++) meet_twice(pool, 6);
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

int main(int argc, char **argv) {
  caller = pthread_self();
  test_null_pool();
  test_cycles();
  test_reuse();
  test_late_threads();
  test_no_threads_left();
  test_too_many_threads();
  test_fork(argc > 1 ? atoi(argv[1]) : 300, argc == 1);
  test_all_threads_work();
  test_small_kernels_do_not_fork();
  test_list_of_phases();
  test_idle();
  return 0;
}

#endif
