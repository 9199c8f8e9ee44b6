/* Cycles for the start of a run, for each thread that waits at the end of a phase, and for a task
 * whose operands other cores have written. Measured on Emerald Rapids: a phase of empty tasks takes
 * .06 us on 2 threads, .12 on 8, 1.5 on 16 of 8 cores. */
static const double BEGIN = 3000, WAIT = 100, TAKE = 1500;

/* The ratio of cycles, by the model, below which twice as many threads are taken, and several
 * instead of one. */
static const double WORTH_DOUBLING = 0.9, WORTH_FORKING = 0.8;

/* Takes a list of phases on so many threads if `price` times its cycles are fewer. With more
 * threads, a slow one more likely holds the last task: up to half a task more than the mean. */
static void consider(mhagen_choice *best, mhagen_choice other, double price) {
  other.cycles = BEGIN;
  for (int p = 0; p < other.phase_count; p++) {
    const int tasks = other.phases[p].tasks, whole = tasks / other.threads;
    const double most = whole + (tasks % other.threads > 0);
    const double mean = (tasks - 1.0) / (whole ? other.threads : tasks) + 0.5;
    other.cycles += (most > mean ? most : mean) * (other.phases[p].cycles / tasks + TAKE);
    other.cycles += WAIT * other.threads;
  }
  if (other.phase_count > 0 && price * other.cycles < best->cycles) *best = other;
}

mhagen_choice mhagen_choose(const mhagen_kernel *kernel, int threads) {
  mhagen_choice best = {NULL, 0, 1, 1e300};
  double alone = 0;
  for (int p = 0; p < kernel->phase_count; p++) alone += kernel->phases[p].cycles;
  for (int t = threads; t > 1; t /= 2) {
    const mhagen_choice finest = {kernel->phases, kernel->phase_count, t, 0};
    mhagen_choice coarse = {NULL, 0, t, 0};
    if (kernel->size >= sizeof *kernel) { /* else it was compiled before there was such a list */
      coarse.phases = kernel->coarse;
      coarse.phase_count = kernel->coarse_count;
    }
    consider(&best, finest, best.threads > t ? WORTH_DOUBLING : 1);
    consider(&best, coarse, best.threads > t ? WORTH_DOUBLING : 1);
  }
  if (WORTH_FORKING * alone < best.cycles) best = (mhagen_choice){NULL, 0, 1, alone};
  return best;
}

/* POSIX threads are on these systems; on others, such as a bare Cortex-M, there is no pool. */
#if !defined(__unix__) && !defined(__APPLE__) && !defined(__MINGW32__) && !defined(MHAGEN_NO_POOL)
#define MHAGEN_NO_POOL
#endif

#ifdef MHAGEN_NO_POOL

mhagen_pool *mhagen_pool_create(int threads) {
  (void)threads;
  return NULL;
}

void mhagen_pool_destroy(mhagen_pool *pool) { (void)pool; }

int mhagen_pool_threads(const mhagen_pool *pool) {
  (void)pool;
  return 1;
}

mhagen_status mhagen_run_parallel(const mhagen_kernel *kernel, const mhagen_args *args,
                                  mhagen_pool *pool) {
  (void)pool;
  return kernel->run(args);
}

#else

#include <pthread.h>
#include <stdlib.h>

#ifdef __MINGW32__
static int usable_cpus(void) { return pthread_num_processors_np(); }
static long process(void) { return 0; } /* Windows has no fork */
#else
#include <unistd.h>
static long process(void) { return (long)getpid(); }
#ifdef __linux__
#include <stdio.h>
#ifndef MHAGEN_CGROUPS
#define MHAGEN_CGROUPS "/sys/fs/cgroup"
#endif

/* CPUs that the thread may be scheduled on, a bit each; 0 if the system does not say. Workers will
 * inherit them. */
static int allowed_cpus(void) {
  FILE *const file = fopen("/proc/thread-self/status", "r");
  char line[1200] = ""; /* room for 4,096 bits */
  int count = 0;
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, "Cpus_allowed:", 13) != 0) continue;
    for (const char *at = line + 13; *at; ++at) {
      const char *const digits = "0123456789abcdef", *const digit = strchr(digits, *at);
      for (ptrdiff_t bits = digit ? digit - digits : 0; bits > 0; bits &= bits - 1) ++count;
    }
  }
  if (file) fclose(file);
  return count;
}

/* The same or fewer, if cgroups (version 2) grant the thread less CPU time. */
static int granted_cpus(int cpus) {
  char path[1020 + sizeof MHAGEN_CGROUPS] = MHAGEN_CGROUPS, line[1000];
  char *const own = path + strlen(path);
  FILE *file = fopen("/proc/thread-self/cgroup", "r");
  while (file && fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    if (strncmp(line, "0::", 3) == 0) strcpy(own, line + 3);
  }
  if (file) fclose(file);
  for (char *end = path + strlen(path); end; end = strrchr(own, '/')) { /* and those above */
    double time, period;
    strcpy(end, "/cpu.max");
    file = fopen(path, "r");
    if (file && fscanf(file, "%lf %lf", &time, &period) == 2 && time < period * cpus) {
      cpus = time < period ? 1 : (int)(time / period);
    }
    if (file) fclose(file);
    *end = 0;
  }
  return cpus;
}

static int usable_cpus(void) {
  const int allowed = allowed_cpus();
  return granted_cpus(allowed > 0 ? allowed : (int)sysconf(_SC_NPROCESSORS_ONLN));
}
#else
static int usable_cpus(void) { return (int)sysconf(_SC_NPROCESSORS_ONLN); }
#endif
#endif

/* A number that threads share, with 128 bytes to itself, because a core may fetch two neighbouring
 * lines of 64. */
typedef struct shared {
  size_t number;
  char apart[128 - sizeof(size_t)];
} shared;

/* A thread of a pool, and its share of the tasks of each phase. A share is contiguous, so that a
 * thread works on the same heads in each phase and each run. A thread without tasks takes those of
 * others. */
typedef struct seat {
  shared taken; /* how many of its tasks have been, in all phases so far */
  mhagen_pool *pool;
  pthread_t thread; /* of all but the first: that is the caller */
} seat;

/* A run is a list of phases. A thread leaves a phase when all of its tasks have been taken by some
 * thread. The first task of the next phase waits until they have ended. No lock is held in a run
 * unless a thread sleeps or is woken.
 *
 * The caller describes a run, opens it, works, closes it, and waits until every worker that went in
 * has left. A worker goes in before it looks whether the run is open, so that nothing changes while
 * it reads what describes the run. */
struct mhagen_pool {
  shared done;           /* tasks that are reported as ended */
  shared posted;         /* the number of the latest run, which idle workers wait for */
  shared open;           /* the number of the run that is open; 0: none is */
  shared entered, left;  /* workers that went in, since the pool was made, and those that left */
  shared idle, sleepers; /* threads that sleep until a run is posted, and until others have ended */
  const mhagen_args *args; /* these three describe the run */
  mhagen_choice choice;
  int stop;
  pthread_mutex_t lock;    /* held to sleep and to wake */
  pthread_mutex_t numbers; /* held to read and to write one, where there are no builtins */
  pthread_cond_t work, ended;
  int looks;    /* constant from here on: before sleeping; none with more threads than CPUs */
  long process; /* that the workers are in: a fork leaves them there */
  int threads;  /* that there are, with the caller */
  seat seats[];
};

/* Numbers are read and written by atomic builtins, which need no C11. With a compiler that has
 * none, or -DMHAGEN_NO_ATOMICS, a lock of the pool guards them, and threads that wait sleep at
 * once. */
#if defined(__GNUC__) && !defined(MHAGEN_NO_ATOMICS)
enum { LOOKS = 4000 };
static size_t add(mhagen_pool *pool, shared *of, size_t more) { /* returns what it was */
  (void)pool;
  return __atomic_fetch_add(&of->number, more, __ATOMIC_SEQ_CST);
}
static int swap(mhagen_pool *pool, shared *of, size_t *is, size_t to) { /* or 0, and what it is */
  (void)pool;
  return __atomic_compare_exchange_n(&of->number, is, to, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
static size_t get(mhagen_pool *pool, shared *of) {
  (void)pool;
  return __atomic_load_n(&of->number, __ATOMIC_SEQ_CST);
}
#else
enum { LOOKS = 0 };
static size_t add(mhagen_pool *pool, shared *of, size_t more) {
  pthread_mutex_lock(&pool->numbers);
  const size_t before = of->number;
  of->number = before + more;
  pthread_mutex_unlock(&pool->numbers);
  return before;
}
static int swap(mhagen_pool *pool, shared *of, size_t *is, size_t to) {
  pthread_mutex_lock(&pool->numbers);
  const size_t before = *is;
  *is = of->number;
  if (*is == before) of->number = to;
  pthread_mutex_unlock(&pool->numbers);
  return *is == before;
}
static size_t get(mhagen_pool *pool, shared *of) { return add(pool, of, 0); }
#endif

/* Numbers that one thread sets. */
static void set(mhagen_pool *pool, shared *of, size_t to) { add(pool, of, to - get(pool, of)); }

/* Numbers are compared modulo their range. */
static int reaches(mhagen_pool *pool, shared *of, size_t least) {
  return get(pool, of) - least <= (size_t)-1 / 2;
}

/* Waits until a number reaches `least`: polls so often, then sleeps as one of `asleep`. Whoever
 * changes the number wakes these. On Intel 4,000 looks take a fifth of a millisecond. */
static void wait_for(mhagen_pool *pool, shared *of, size_t least, shared *asleep,
                     pthread_cond_t *changed, int looks) {
  for (int i = 0; i < looks && !reaches(pool, of, least); i++) {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __builtin_ia32_pause();
#elif defined(__GNUC__) && defined(__aarch64__)
    __asm__ volatile("isb"); /* yield does nothing on most */
#endif
  }
  if (reaches(pool, of, least)) return;
  pthread_mutex_lock(&pool->lock);
  add(pool, asleep, 1);
  while (!reaches(pool, of, least)) pthread_cond_wait(changed, &pool->lock);
  add(pool, asleep, (size_t)-1);
  pthread_mutex_unlock(&pool->lock);
}

/* Wakes those that sleep until a number changes, after it has. */
static void wake(mhagen_pool *pool, shared *asleep, pthread_cond_t *changed) {
  if (get(pool, asleep) == 0) return;
  pthread_mutex_lock(&pool->lock);
  pthread_cond_broadcast(changed);
  pthread_mutex_unlock(&pool->lock);
}

/* Within a run a thread polls longer, because waking one takes longer than most phases. */
static void wait_within(mhagen_pool *pool, shared *of, size_t least) {
  wait_for(pool, of, least, &pool->sleepers, &pool->ended, 8 * pool->looks);
}

static void tell_within(mhagen_pool *pool, shared *of, size_t more) {
  add(pool, of, more);
  wake(pool, &pool->sleepers, &pool->ended);
}

/* The next of `count` tasks of a seat, `before` of whose tasks were of earlier phases; or -1. */
static int take(seat *of, size_t before, int count) {
  size_t taken = get(of->pool, &of->taken);
  while (taken - before < (size_t)count) {
    if (swap(of->pool, &of->taken, &taken, taken + 1)) return (int)(taken - before);
  }
  return -1;
}

/* Takes tasks until none is left, first those of the thread's own seat. When it leaves a phase, it
 * reports those that have ended. Returns the number of all tasks. */
static size_t take_tasks(mhagen_pool *pool, int own) {
  const int threads = pool->choice.threads;
  size_t first = 0, before[MHAGEN_MAX_THREADS]; /* tasks of earlier phases: of all, of each seat */
  memset(before, 0, (size_t)threads * sizeof *before);
  for (int p = 0; p < pool->choice.phase_count; p++) {
    const mhagen_phase *const phase = &pool->choice.phases[p];
    const int whole = phase->tasks / threads, rest = phase->tasks % threads;
    size_t ended = 0;
    for (int i = 0, at = own; i < threads; i++, at = at + 1 < threads ? at + 1 : 0) {
      const int count = whole + (at < rest), start = at * whole + (at < rest ? at : rest);
      for (int task; (task = take(&pool->seats[at], before[at], count)) >= 0; ++ended) {
        if (first > 0 && ended == 0) wait_within(pool, &pool->done, first);
        phase->task(pool->args, phase->first + start + task);
      }
      before[at] += (size_t)count;
    }
    if (ended > 0) tell_within(pool, &pool->done, ended);
    first += (size_t)phase->tasks;
  }
  return first;
}

static void *work(void *argument) {
  seat *const own = argument;
  mhagen_pool *const pool = own->pool;
  const int number = (int)(own - pool->seats);
  set_environment(without_traps(get_environment()));
  for (size_t seen = 0;;) {
    wait_for(pool, &pool->posted, seen + 1, &pool->idle, &pool->work, pool->looks);
    seen = get(pool, &pool->posted);
    add(pool, &pool->entered, 1);
    const int open = get(pool, &pool->open) == seen, stop = open && pool->stop;
    if (open && !stop && number < pool->choice.threads) take_tasks(pool, number);
    tell_within(pool, &pool->left, 1);
    if (stop) return NULL;
  }
}

int mhagen_pool_threads(const mhagen_pool *pool) { return pool ? pool->threads : 1; }

/* Opens what the pool describes. */
static void open_run(mhagen_pool *pool) {
  size_t number = get(pool, &pool->posted) + 1;
  if (number == 0) number = 1; /* which 0 is not */
  set(pool, &pool->open, number);
  set(pool, &pool->posted, number);
  wake(pool, &pool->idle, &pool->work);
}

mhagen_pool *mhagen_pool_create(int threads) {
  if (threads < 0 || threads > MHAGEN_MAX_THREADS || !rounds_to_nearest()) return NULL;
  const int usable = usable_cpus(), cpus = usable > 0 ? usable : 1; /* sysconf may fail */
  const int all = threads > 0 ? threads : cpus;
  const int wanted = all < MHAGEN_MAX_THREADS ? all : MHAGEN_MAX_THREADS;
  mhagen_pool *pool = calloc(1, sizeof *pool + (size_t)wanted * sizeof pool->seats[0]);
  if (!pool) return NULL;
  pool->looks = wanted <= cpus ? LOOKS : 0;
  pool->process = process();
  if (pthread_mutex_init(&pool->lock, NULL)) goto no_lock;
  if (pthread_mutex_init(&pool->numbers, NULL)) goto no_numbers;
  if (pthread_cond_init(&pool->work, NULL)) goto no_work;
  if (pthread_cond_init(&pool->ended, NULL)) goto no_ended;
  for (int i = 0; i < wanted; i++) pool->seats[i].pool = pool;
  for (pool->threads = 1; pool->threads < wanted; pool->threads++) {
    seat *const next = &pool->seats[pool->threads];
    if (pthread_create(&next->thread, NULL, work, next)) {
      mhagen_pool_destroy(pool); /* joins those that did start */
      return NULL;
    }
  }
  return pool;

no_ended:
  pthread_cond_destroy(&pool->work);
no_work:
  pthread_mutex_destroy(&pool->numbers);
no_numbers:
  pthread_mutex_destroy(&pool->lock);
no_lock:
  free(pool);
  return NULL;
}

void mhagen_pool_destroy(mhagen_pool *pool) {
  if (!pool) return;
  if (pool->process != process()) { /* nobody to join, and a worker may have held the lock */
    free(pool);
    return;
  }
  pool->stop = 1;
  open_run(pool);
  for (int i = 1; i < pool->threads; i++) pthread_join(pool->seats[i].thread, NULL);
  pthread_cond_destroy(&pool->ended);
  pthread_cond_destroy(&pool->work);
  pthread_mutex_destroy(&pool->numbers);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

mhagen_status mhagen_run_parallel(const mhagen_kernel *any, const mhagen_args *args,
                                  mhagen_pool *pool) {
  const mhagen_kernel *const kernel = mhagen_kernel_at(any, args);
  if (!pool || pool->process != process()) return kernel->run(args);
  const mhagen_choice best = mhagen_choose(kernel, pool->threads);
  if (!best.phases) return kernel->run(args); /* in the order that keeps one core's caches warm */
  const mhagen_status status = mhagen_check_args(kernel, args);
  if (status != MHAGEN_OK) return status;
  const environment before = get_environment();
  set_environment(without_traps(before));
  pool->args = args;
  pool->choice = best;
  set(pool, &pool->done, 0);
  for (int i = 0; i < best.threads; i++) set(pool, &pool->seats[i].taken, 0);
  open_run(pool);
  wait_within(pool, &pool->done, take_tasks(pool, 0));
  set(pool, &pool->open, 0);
  size_t left; /* read before `entered`: when both are equal, nobody is in */
  while ((left = get(pool, &pool->left)) != get(pool, &pool->entered)) {
    wait_within(pool, &pool->left, left + 1);
  }
  set_environment(before);
  return MHAGEN_OK;
}

#endif
