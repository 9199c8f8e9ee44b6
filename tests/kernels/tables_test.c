/* Tables of rope that two kernels share: results are those of a kernel with its own, other tables are refused, and a
 * kernel without them does not look for any. */
#include "one.h"   /* a chunk of a decoder */
#include "other.h" /* other angles */
#include "own.h"   /* as one, its tables packed */
#include "step.h"  /* one row */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(what) \
  if (!(what)) { \
    printf("line %d: %s\n", __LINE__, #what); \
    exit(1); \
  }

enum { FILE_BYTES = sizeof(mhagen_packed_head) + ONE_TABLES_BYTES };

static float numbers[4 * ONE_D_MODEL * ONE_HEADS * ONE_DK + ONE_SEQ * ONE_D_MODEL];
static _Alignas(MHAGEN_ALIGN) char packed[OWN_PACKED_BYTES], workspace[OWN_WORKSPACE_BYTES + ONE_WORKSPACE_BYTES],
    cache[OWN_CACHE_BYTES], file[FILE_BYTES], others[OTHER_TABLES_BYTES], none[ONE_TABLES_BYTES];

static mhagen_weights weights(void) {
  return (mhagen_weights){.wq = numbers, .wk = numbers + 7, .wv = numbers + 3, .wo = numbers + 5};
}

/* The rows of a run of a kernel with these tables, at the end of what the cache has room for. */
static mhagen_status rows_of(const mhagen_kernel *kernel, const void *tables, float *y) {
  const int past = kernel->seq_kv - kernel->seq;
  const mhagen_args args = {.q = numbers + 11, .y = y, .packed = packed, .workspace = workspace, .past = &past,
                            .cache = cache, .tables = tables};
  const mhagen_weights given = weights();
  memset(cache, 0, sizeof cache);
  REQUIRE(kernel->pack(&given, packed) == MHAGEN_OK);
  const mhagen_status status = kernel->run(&args);
  if (status == MHAGEN_ERR_PACKED) REQUIRE(strncmp(mhagen_args_error(kernel, &args), "tables is ", 10) == 0);
  return status;
}

/* What was compiled with a mhagen_args that ends before `tables` still runs. */
static void run_of_an_older_caller(void) {
  float y[ONE_SEQ * ONE_D_MODEL];
  const int past = 0;
  const mhagen_weights given = weights();
  const mhagen_args now = {.q = numbers, .y = y, .packed = packed, .workspace = workspace, .past = &past,
                           .cache = cache};
  void *const before = malloc(offsetof(mhagen_args, tables));
  REQUIRE(before && own_pack(&given, packed) == MHAGEN_OK);
  memcpy(before, &now, offsetof(mhagen_args, tables));
  REQUIRE(own_run(before) == MHAGEN_OK && mhagen_check_args(&own_kernel, before) == MHAGEN_OK);
  REQUIRE(strcmp(mhagen_args_error(&own_kernel, before), mhagen_status_text(MHAGEN_OK)) == 0);
  free(before);
}

int main(void) {
  float wanted[ONE_SEQ * ONE_D_MODEL], found[ONE_SEQ * ONE_D_MODEL], last[ONE_D_MODEL];
  void *const tables = file + sizeof(mhagen_packed_head);
  const mhagen_weights given = weights();
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) numbers[i] = (float)(i % 23) / 23 - 0.5f;

  REQUIRE(one_pack_tables(&given, tables) == MHAGEN_OK && other_pack_tables(&given, others) == MHAGEN_OK);
  REQUIRE(one_kernel.tables_fingerprint == step_kernel.tables_fingerprint);
  REQUIRE(one_kernel.fingerprint == other_kernel.fingerprint); /* weights do not depend on angles */
  REQUIRE(own_kernel.tables_bytes == 0 && !own_kernel.pack_tables);
  REQUIRE(ONE_PACKED_BYTES + ONE_TABLES_BYTES == OWN_PACKED_BYTES + MHAGEN_ALIGN);
  REQUIRE(rows_of(&own_kernel, NULL, wanted) == MHAGEN_OK && rows_of(&one_kernel, tables, found) == MHAGEN_OK);
  REQUIRE(memcmp(wanted, found, sizeof wanted) == 0);
  REQUIRE(rows_of(&step_kernel, tables, last) == MHAGEN_OK);
  REQUIRE(rows_of(&one_kernel, others, found) == MHAGEN_ERR_PACKED);
  REQUIRE(rows_of(&one_kernel, none, found) == MHAGEN_ERR_PACKED);
  REQUIRE(rows_of(&one_kernel, packed, found) == MHAGEN_ERR_PACKED);
  REQUIRE(rows_of(&one_kernel, NULL, found) == MHAGEN_ERR_NULL);

  mhagen_packed_head head = mhagen_packed_begin(&one_kernel);
  head.fingerprint = one_kernel.tables_fingerprint, head.packed_bytes = ONE_TABLES_BYTES;
  mhagen_packed_add(&head, tables);
  memcpy(file, &head, sizeof head);
  REQUIRE(one_packed_check(file, FILE_BYTES) == MHAGEN_OK && step_packed_check(file, FILE_BYTES) == MHAGEN_OK);
  REQUIRE(mhagen_packed_layer(file, 0) == tables && !mhagen_packed_layer(file, 1));
  REQUIRE(other_packed_check(file, FILE_BYTES) == MHAGEN_ERR_PACKED);
  REQUIRE(own_packed_check(file, FILE_BYTES) == MHAGEN_ERR_PACKED);
  file[FILE_BYTES - 1] ^= 1;
  REQUIRE(one_packed_check(file, FILE_BYTES) == MHAGEN_ERR_PACKED);

  run_of_an_older_caller();
  puts("ok");
  return 0;
}
