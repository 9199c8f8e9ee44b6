/* Runs two bundles in one program, and each member of the first. Prints what the bundles chose, whether they can run,
 * and for each ISA that is asked for the status of its member's run. */
#include "one.h"
#include "two.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(what) \
  if (!(what)) { \
    printf("line %d: %s\n", __LINE__, #what); \
    exit(1); \
  }

enum { NUMBERS = ONE_SEQ * ONE_D_MODEL };
static float numbers[4 * ONE_D_MODEL * ONE_D_MODEL];
static _Alignas(MHAGEN_ALIGN) char packed[ONE_PACKED_BYTES + TWO_PACKED_BYTES],
    workspace[ONE_WORKSPACE_BYTES + TWO_WORKSPACE_BYTES], cache[TWO_CACHE_BYTES];

static const mhagen_weights weights = {.wq = numbers, .wk = numbers + 5, .wv = numbers + 9, .wo = numbers + 2};

static mhagen_status run(const mhagen_kernel *kernel, mhagen_pool *pool, float *y) {
  const mhagen_args args = {.q = numbers + 1, .k = numbers + 3, .v = numbers + 4, .y = y,
                            .packed = packed, .workspace = workspace, .cache = cache};
  mhagen_status status = kernel->pack(&weights, packed);
  if (status != MHAGEN_OK) return status;
  if (kernel->fill) status = kernel->fill(&args);
  if (status != MHAGEN_OK) return status;
  return pool ? mhagen_run_parallel(kernel, &args, pool) : kernel->run(&args);
}

/* The bundle does what the member does that it names, with a pool as well. */
static void require_same(const mhagen_kernel *bundle) {
  const mhagen_kernel *const chosen = mhagen_kernel_of(bundle);
  mhagen_pool *const pool = mhagen_pool_create(2);
  float y[3][NUMBERS];
  memset(y, 0, sizeof y);
  const mhagen_status status = run(chosen, NULL, y[0]);
  REQUIRE(chosen != bundle && mhagen_kernel_of(chosen) == chosen);
  REQUIRE(mhagen_kernel_for(bundle, chosen->isa) == chosen && mhagen_kernel_for(chosen, chosen->isa) == chosen);
  REQUIRE(!mhagen_kernel_for(bundle, "none") && !mhagen_kernel_for(chosen, "none"));
  REQUIRE(run(bundle, NULL, y[1]) == status && run(bundle, pool, y[2]) == status);
  REQUIRE(memcmp(y[0], y[1], sizeof y[0]) == 0 && memcmp(y[0], y[2], sizeof y[0]) == 0);
  REQUIRE(bundle->supported() == (status == MHAGEN_OK) && bundle->self_test() == status);
  REQUIRE(bundle->packed_bytes >= chosen->packed_bytes && bundle->workspace_bytes >= chosen->workspace_bytes);
  const mhagen_packed_head head = mhagen_packed_begin(bundle);
  REQUIRE(head.fingerprint == chosen->fingerprint && head.packed_bytes == chosen->packed_bytes);
  mhagen_pool_destroy(pool);
  printf("%s %d", chosen->isa, bundle->supported());
}

/* Packed weights of one member are refused by another, and by the bundle where it has chosen another. */
static void refuse_others(const mhagen_kernel *bundle) {
  for (const mhagen_kernel *const *from = bundle->members; *from; from++) {
    float y[NUMBERS];
    const mhagen_args args = {.q = numbers + 1, .y = y, .packed = packed, .workspace = workspace};
    REQUIRE((*from)->pack(&weights, packed) == MHAGEN_OK); /* any CPU can pack */
    for (const mhagen_kernel *const *member = bundle->members; *member; member++) {
      if (!(*member)->supported()) continue;
      const int same = (*member)->fingerprint == (*from)->fingerprint;
      REQUIRE((*member)->run(&args) == (same ? MHAGEN_OK : MHAGEN_ERR_PACKED));
      if (*member == mhagen_kernel_of(bundle)) REQUIRE(bundle->run(&args) == (*member)->run(&args));
    }
  }
}

int main(int argc, char **argv) {
  float y[2][NUMBERS];
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) numbers[i] = (float)(i * 31 % 67) / 67 - 0.5f;
  require_same(&one_kernel);
  printf(", ");
  require_same(&two_kernel);
  refuse_others(&one_kernel);
  REQUIRE(run(&one_kernel, NULL, y[0]) == MHAGEN_OK);
  for (int i = 1; i < argc; i++) {
    const mhagen_kernel *const member = mhagen_kernel_for(&one_kernel, argv[i]);
    const mhagen_status status = run(member, NULL, y[1]);
    for (int j = 0; j < NUMBERS && status == MHAGEN_OK; j++) REQUIRE(fabsf(y[0][j] - y[1][j]) < 1e-5f);
    printf(", %s %d", member->isa, (int)status);
  }
  printf("\n");
  return 0;
}
