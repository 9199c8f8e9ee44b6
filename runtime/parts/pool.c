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

mhagen_status mhagen_run_parallel(const mhagen_kernel *kernel, const mhagen_args *args,
                                  mhagen_pool *pool) {
  (void)pool;
  return kernel->run(args);
}

#else

#include <pthread.h>
#include <stdlib.h>

#ifdef __MINGW32__
static long cpus(void) { return pthread_num_processors_np(); }
static long process(void) { return 0; } /* Windows has no fork */
#else
#include <unistd.h>
static long cpus(void) { return sysconf(_SC_NPROCESSORS_ONLN); }
static long process(void) { return (long)getpid(); }
#endif

/* Before a thread sleeps it looks this often whether something has happened, which takes a tenth of
 * a millisecond on Zen 4: the phases of a run follow each other sooner than a thread can be woken.
 * Two threads on minilm are 1.98 times as fast as one, and 1.73 times with a quarter of the looks.
 * A look takes no lock, so the number is read and written atomically, by builtins that need no C11.
 * With a compiler that has no such builtins threads sleep at once. */
#ifdef __GNUC__
enum { LOOKS = 200, PAUSES = 25 };
static unsigned get(const unsigned *number) { return __atomic_load_n(number, __ATOMIC_RELAXED); }
static void set(unsigned *number, unsigned to) { __atomic_store_n(number, to, __ATOMIC_RELAXED); }
#else
enum { LOOKS = 0, PAUSES = 0 };
static unsigned get(const unsigned *number) { return *number; }
static void set(unsigned *number, unsigned to) { *number = to; }
#endif

/* One mutex guards everything but the constant part. Tasks are handed out under it too: a task is
 * far longer than a lock, and so next, end and unfinished can be understood without a memory model.
 * The current phase is over when unfinished is 0; only then does the caller post another one. */
struct mhagen_pool {
  pthread_mutex_t lock;
  pthread_cond_t work; /* there are tasks to hand out, or stop */
  pthread_cond_t done; /* unfinished has become 0 */
  void (*task)(const mhagen_args *args, int index);
  const mhagen_args *args;
  int next, end;  /* indices of the tasks not handed out yet */
  unsigned unfinished; /* tasks that have not ended yet; read without the lock as well */
  unsigned posted;     /* counts what the workers must see, phases and stop; the same */
  int stop;
  int looks;    /* constant from here on: before sleeping; none with more threads than CPUs */
  long process; /* that the workers are in: a fork leaves them there */
  int workers;  /* the caller is no worker */
  pthread_t worker[];
};

/* Called with the lock held. Waits, unlocked, as long as a number that changes under the lock has
 * this value. */
static void look(mhagen_pool *pool, const unsigned *number, unsigned is) {
  pthread_mutex_unlock(&pool->lock);
  for (int i = 0; i < pool->looks && get(number) == is; i++) {
    for (int j = 0; j < PAUSES; j++) {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
      __builtin_ia32_pause();
#elif defined(__GNUC__) && defined(__aarch64__)
      __asm__ volatile("isb"); /* yield does nothing on most */
#endif
    }
  }
  pthread_mutex_lock(&pool->lock);
}

/* Called with the lock held. Runs tasks, unlocked, until all are handed out. */
static void take_tasks(mhagen_pool *pool) {
  while (pool->next < pool->end) {
    int index = pool->next++;
    pthread_mutex_unlock(&pool->lock);
    pool->task(pool->args, index); /* stays as it is while a task is unfinished */
    pthread_mutex_lock(&pool->lock);
    set(&pool->unfinished, pool->unfinished - 1);
    if (pool->unfinished == 0) pthread_cond_signal(&pool->done);
  }
}

static void *work(void *argument) {
  mhagen_pool *pool = argument;
  set_environment(without_traps(get_environment()));
  pthread_mutex_lock(&pool->lock);
  while (!pool->stop) {
    if (pool->next >= pool->end) look(pool, &pool->posted, pool->posted);
    if (pool->next < pool->end)
      take_tasks(pool);
    else if (!pool->stop)
      pthread_cond_wait(&pool->work, &pool->lock);
  }
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

mhagen_pool *mhagen_pool_create(int threads) {
  if (threads < 1 || threads > MHAGEN_MAX_THREADS || !rounds_to_nearest()) return NULL;
  int wanted = threads - 1;
  mhagen_pool *pool = calloc(1, sizeof *pool + (size_t)wanted * sizeof pool->worker[0]);
  if (!pool) return NULL;
  pool->looks = threads <= cpus() ? LOOKS : 0;
  pool->process = process();
  if (pthread_mutex_init(&pool->lock, NULL)) goto no_lock;
  if (pthread_cond_init(&pool->work, NULL)) goto no_work;
  if (pthread_cond_init(&pool->done, NULL)) goto no_done;
  while (pool->workers < wanted) {
    if (pthread_create(&pool->worker[pool->workers], NULL, work, pool)) {
      mhagen_pool_destroy(pool); /* joins those that did start */
      return NULL;
    }
    pool->workers++;
  }
  return pool;

no_done:
  pthread_cond_destroy(&pool->work);
no_work:
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
  pthread_mutex_lock(&pool->lock);
  pool->stop = 1;
  set(&pool->posted, pool->posted + 1);
  pthread_cond_broadcast(&pool->work);
  pthread_mutex_unlock(&pool->lock);
  for (int i = 0; i < pool->workers; i++) pthread_join(pool->worker[i], NULL);
  pthread_cond_destroy(&pool->done);
  pthread_cond_destroy(&pool->work);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

/* Waking a sleeping thread takes some 20000 cycles, and its caches are cold. */
static const double worth_waking = 100000;

static int worth_forking(const mhagen_pool *pool, const mhagen_phase *phase) {
  return pool && pool->workers > 0 && phase->tasks > 1 && phase->cycles >= worth_waking;
}

static void fork_phase(mhagen_pool *pool, const mhagen_phase *phase, const mhagen_args *args) {
  pthread_mutex_lock(&pool->lock);
  pool->task = phase->task;
  pool->args = args;
  pool->next = phase->first;
  pool->end = phase->first + phase->tasks;
  set(&pool->unfinished, (unsigned)phase->tasks);
  set(&pool->posted, pool->posted + 1);
  /* The caller takes a task itself: wake no more workers than there are others. */
  for (int i = 0; i < pool->workers && i < phase->tasks - 1; i++) pthread_cond_signal(&pool->work);
  take_tasks(pool);
  for (unsigned left = pool->unfinished; left > 0; left = pool->unfinished) {
    look(pool, &pool->unfinished, left);
    if (pool->unfinished == left) break;
  }
  while (pool->unfinished > 0) pthread_cond_wait(&pool->done, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
}

mhagen_status mhagen_run_parallel(const mhagen_kernel *any, const mhagen_args *args,
                                  mhagen_pool *pool) {
  const mhagen_kernel *const kernel = mhagen_kernel_at(any, args);
  int forks = 0;
  for (int p = 0; p < kernel->phase_count; p++) forks += worth_forking(pool, &kernel->phases[p]);
  if (forks == 0 || pool->process != process()) {
    return kernel->run(args); /* in the order that keeps one core's caches warm */
  }
  const mhagen_status status = mhagen_check_args(kernel, args);
  if (status != MHAGEN_OK) return status;
  const environment before = get_environment();
  set_environment(without_traps(before));
  for (int p = 0; p < kernel->phase_count; p++) {
    const mhagen_phase *phase = &kernel->phases[p];
    if (worth_forking(pool, phase)) {
      fork_phase(pool, phase, args);
    } else {
      for (int i = 0; i < phase->tasks; i++) phase->task(args, phase->first + i);
    }
  }
  set_environment(before);
  return MHAGEN_OK;
}

#endif
