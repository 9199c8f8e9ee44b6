/* Packs, runs and tests a kernel where exceptions trap, and in other modes of rounding. */
#include "kernel.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(what) \
  if (!(what)) { \
    printf("line %d: %s\n", __LINE__, #what); \
    exit(1); \
  }

enum { TRAPS = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW, FLOATS = 1 << 12 };
static float numbers[FLOATS], y[FLOATS];
static _Alignas(MHAGEN_ALIGN) char packed[KERNEL_PACKED_BYTES], before[KERNEL_PACKED_BYTES],
    workspace[KERNEL_WORKSPACE_BYTES], cache[KERNEL_CACHE_BYTES];

static const mhagen_weights weights = {.wq = numbers, .wk = numbers + 5, .wv = numbers + 9, .wo = numbers + 2};
static const mhagen_args args = {.q = numbers + 1, .k = numbers + 3, .v = numbers + 4, .y = y,
                                 .packed = packed, .workspace = workspace, .cache = cache};

/* Numbers that raise everything, alone and by a pool. */
static void require_runs(void) {
  const float were[] = {numbers[1], numbers[3], numbers[5]};
  mhagen_pool *const pool = mhagen_pool_create(2);
  numbers[1] = NAN, numbers[3] = INFINITY, numbers[5] = 3e38f;
  const int flags = fetestexcept(TRAPS);
  REQUIRE(mhagen_call_quietly(kernel_fill, &args) == MHAGEN_OK);
  REQUIRE(mhagen_call_quietly(kernel_run, &args) == MHAGEN_OK && fetestexcept(TRAPS) == flags);
  mhagen_kernel large = kernel_kernel;
  mhagen_phase phases[16];
  REQUIRE(large.phase_count <= 16);
  for (int p = 0; p < large.phase_count; p++) phases[p] = large.phases[p], phases[p].cycles = 1e9;
  large.phases = phases;
  large.coarse_count = 0;
  if (mhagen_choose(&large, 2).phases) { /* else it is a run by the caller, which traps as its own do */
    REQUIRE(mhagen_run_parallel(&large, &args, pool) == MHAGEN_OK && fetestexcept(TRAPS) == flags);
  }
  numbers[1] = were[0], numbers[3] = were[1], numbers[5] = were[2];
  mhagen_pool_destroy(pool);
}

/* All but the test itself, whose numbers are inexact, leave flags as they are. */
static void require_no_trap(void) {
#ifdef __GLIBC__
  feenableexcept(TRAPS); /* -1 where a CPU has no traps */
#endif
  for (int raised = 0; raised < 2; raised++) {
    feclearexcept(FE_ALL_EXCEPT);
#ifdef __GLIBC__
    const int traps = fegetexcept();
    if (raised) fedisableexcept(TRAPS), feraiseexcept(FE_DIVBYZERO);
#endif
    const int flags = fetestexcept(TRAPS);
    REQUIRE(kernel_self_test() == MHAGEN_OK && fetestexcept(TRAPS) == flags);
    REQUIRE(kernel_pack(&weights, packed) == MHAGEN_OK && fetestexcept(TRAPS) == flags);
    require_runs();
#ifdef __GLIBC__
    REQUIRE(raised || fegetexcept() == traps);
#endif
  }
}

static void require_nearest(int mode) {
  memcpy(before, packed, sizeof packed);
  memset(y, 0, sizeof y);
  REQUIRE(fesetround(mode) == 0);
  REQUIRE(kernel_self_test() == MHAGEN_ERR_ROUNDING && kernel_pack(&weights, packed) == MHAGEN_ERR_ROUNDING);
  REQUIRE(kernel_run(&args) == MHAGEN_ERR_ROUNDING && kernel_fill(&args) == MHAGEN_ERR_ROUNDING);
  REQUIRE(!mhagen_pool_create(2) && fegetround() == mode);
  REQUIRE(strcmp(mhagen_args_error(&kernel_kernel, &args), mhagen_status_text(MHAGEN_ERR_ROUNDING)) == 0);
  REQUIRE(memcmp(before, packed, sizeof packed) == 0);
  for (int i = 0; i < FLOATS; i++) REQUIRE(y[i] == 0);
  fesetround(FE_TONEAREST);
}

int main(void) {
  const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  for (int i = 0; i < FLOATS; i++) numbers[i] = (float)(i * 31 % 67) / 67 - 0.5f;
  if (!kernel_supported()) return puts("skipped: this CPU lacks the ISA"), 0;
  require_no_trap();
  for (int i = 0; i < 3; i++) require_nearest(modes[i]);
  REQUIRE(kernel_fill(&args) == MHAGEN_OK && kernel_run(&args) == MHAGEN_OK);
  return 0;
}
