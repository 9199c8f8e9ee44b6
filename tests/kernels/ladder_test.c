/* Runs a ladder, kernel, with every pair of lengths on one packed buffer, and compares with its members. */
#include "kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(what) \
  if (!(what)) { \
    printf("line %d: %s\n", __LINE__, #what); \
    exit(1); \
  }

enum { NUMBERS = KERNEL_SEQ * KERNEL_D_MODEL };
static float numbers[4 * KERNEL_D_MODEL * KERNEL_D_MODEL];
static _Alignas(MHAGEN_ALIGN) char packed[KERNEL_PACKED_BYTES], other[KERNEL_PACKED_BYTES],
    workspace[KERNEL_WORKSPACE_BYTES];

static const mhagen_kernel *member_for(int rows, int keys) {
  for (const mhagen_kernel *const *member = kernel_kernel.members; *member; member++) {
    if ((*member)->seq >= rows && (*member)->seq_kv >= keys) return *member;
  }
  return NULL;
}

int main(void) {
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) numbers[i] = (float)(i * 31 % 67) / 67 - 0.5f;
  const mhagen_weights weights = {.wq = numbers, .wk = numbers + 5, .wv = numbers + 9, .wo = numbers + 2};
  mhagen_pool *const pool = mhagen_pool_create(2);
  if (!kernel_supported()) return puts("skipped: this CPU lacks the ISA"), 0;
  REQUIRE(kernel_pack(&weights, packed) == MHAGEN_OK);
  for (const mhagen_kernel *const *member = kernel_kernel.members; *member; member++) {
    memset(other, 1, sizeof other);
    REQUIRE((*member)->fingerprint == kernel_kernel.fingerprint && (*member)->packed_bytes == sizeof other);
    REQUIRE((*member)->pack(&weights, other) == MHAGEN_OK && memcmp(packed, other, sizeof other) == 0);
  }
  for (int rows = -1; rows <= KERNEL_SEQ + 1; rows++) {
    for (int keys = -1; keys <= KERNEL_SEQ_KV + 1; keys++) {
      const int good = rows >= 0 && rows <= KERNEL_SEQ && keys >= 0 && keys <= KERNEL_SEQ_KV;
      float y[3][NUMBERS];
      memset(y, 0x7F, sizeof y);
      mhagen_args args = {.q = numbers + 1, .packed = packed, .workspace = workspace, .y = y[0], .q_len = &rows,
                          .kv_len = &keys};
      REQUIRE(kernel_run(&args) == (good ? MHAGEN_OK : MHAGEN_ERR_LENGTH));
      args.y = y[1];
      REQUIRE(mhagen_run_parallel(&kernel_kernel, &args, pool) == (good ? MHAGEN_OK : MHAGEN_ERR_LENGTH));
      const mhagen_kernel *const chosen = mhagen_kernel_at(&kernel_kernel, &args);
      args.y = y[2];
      REQUIRE(!good || chosen == member_for(rows, keys));
      REQUIRE(chosen->run(&args) == (good ? MHAGEN_OK : MHAGEN_ERR_LENGTH));
      REQUIRE(memcmp(y[0], y[2], sizeof y[0]) == 0 && memcmp(y[1], y[2], sizeof y[0]) == 0);
    }
  }
  REQUIRE(mhagen_kernel_of(&kernel_kernel) == &kernel_kernel);
  REQUIRE(mhagen_kernel_for(&kernel_kernel, kernel_kernel.isa) == &kernel_kernel);
  mhagen_pool_destroy(pool);
  return 0;
}
