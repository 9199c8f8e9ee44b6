/* Writes a file of packed weights of two kernels' layers, and checks that it is refused wherever it is not as it
 * was written. Arguments: a file to write, then one to read that must be right; or the first alone. */
#define _POSIX_C_SOURCE 200809L
#include "one.h"
#include "two.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LAYERS = 2, FILE_BYTES = sizeof(mhagen_packed_head) + LAYERS * ONE_PACKED_BYTES };

static float numbers[4 * ONE_D_MODEL * ONE_HEADS * ONE_DK + ONE_SEQ * ONE_D_MODEL];
static _Alignas(MHAGEN_ALIGN) char file[FILE_BYTES + MHAGEN_ALIGN], workspace[ONE_WORKSPACE_BYTES];

#define REQUIRE(what) \
  if (!(what)) { \
    printf("line %d: %s\n", __LINE__, #what); \
    exit(1); \
  }

static mhagen_weights weights_of(int layer) {
  const float *w = numbers + layer;
  return (mhagen_weights){.wq = w, .wk = w + 7, .wv = w + 3, .wo = w + 5};
}

static void write_file(const char *path) {
  mhagen_packed_head head = mhagen_packed_begin(&one_kernel);
  for (int i = 0; i < LAYERS; i++) {
    char *const packed = file + sizeof head + i * ONE_PACKED_BYTES;
    const mhagen_weights weights = weights_of(i);
    REQUIRE(one_pack(&weights, packed) == MHAGEN_OK);
    mhagen_packed_add(&head, packed);
  }
  memcpy(file, &head, sizeof head);
  FILE *const out = fopen(path, "wb");
  REQUIRE(out && fwrite(file, FILE_BYTES, 1, out) == 1 && fclose(out) == 0);
}

/* A run with packed weights from a mapped file gives what it gives with those of this program. */
static void run_from(const char *path) {
  struct stat facts;
  const int in = open(path, O_RDONLY);
  REQUIRE(in >= 0 && fstat(in, &facts) == 0 && facts.st_size == FILE_BYTES);
  const void *const mapped = mmap(NULL, FILE_BYTES, PROT_READ, MAP_PRIVATE, in, 0);
  REQUIRE(mapped != MAP_FAILED && one_packed_check(mapped, FILE_BYTES) == MHAGEN_OK);
  REQUIRE(!mhagen_packed_layer(mapped, LAYERS));
  for (size_t i = 0; i < LAYERS; i++) {
    float y[2][ONE_SEQ * ONE_D_MODEL];
    const void *const packed[] = {file + sizeof(mhagen_packed_head) + i * ONE_PACKED_BYTES,
                                  mhagen_packed_layer(mapped, i)};
    for (int j = 0; j < 2; j++) {
      const mhagen_args args = {.q = numbers + 11, .y = y[j], .packed = packed[j], .workspace = workspace};
      REQUIRE(one_run(&args) == MHAGEN_OK);
    }
    REQUIRE(memcmp(y[0], y[1], sizeof y[0]) == 0);
  }
}

/* A layer that another kernel has packed, with the right checksum, and as the weights of a run. */
static void refuse_another_layer(void) {
  static _Alignas(MHAGEN_ALIGN) char other[FILE_BYTES];
  mhagen_packed_head head = mhagen_packed_begin(&one_kernel);
  const mhagen_weights weights = weights_of(0);
  float y[ONE_SEQ * ONE_D_MODEL];
  memcpy(other, file, sizeof other);
  char *const packed = other + sizeof head + ONE_PACKED_BYTES;
  REQUIRE(two_pack(&weights, packed) == MHAGEN_OK);
  for (size_t i = 0; i < LAYERS; i++) mhagen_packed_add(&head, other + sizeof head + i * ONE_PACKED_BYTES);
  memcpy(other, &head, sizeof head);
  REQUIRE(one_packed_check(other, FILE_BYTES) == MHAGEN_ERR_PACKED);
  REQUIRE(mhagen_packed_check_head(&one_kernel, other, FILE_BYTES) == MHAGEN_OK);
  const mhagen_args args = {.q = numbers, .y = y, .packed = packed, .workspace = workspace};
  REQUIRE(two_run(&args) == MHAGEN_OK && one_run(&args) == MHAGEN_ERR_PACKED);
}

/* Each bit counts but for those of the name. */
static void refuse_changes(void) {
  const size_t name = offsetof(mhagen_packed_head, name);
  for (size_t i = 0; i < FILE_BYTES; i += i < sizeof(mhagen_packed_head) ? 1 : 61) {
    const char bit = (char)(1 << i % 8);
    const int counts = i < name || i >= sizeof(mhagen_packed_head);
    file[i] = (char)(file[i] ^ bit);
    REQUIRE((one_packed_check(file, FILE_BYTES) == MHAGEN_ERR_PACKED) == counts);
    file[i] = (char)(file[i] ^ bit);
  }
  for (size_t size = 0; size <= FILE_BYTES + 64; size += size < 160 ? 1 : 32) {
    REQUIRE((one_packed_check(file, size) == MHAGEN_OK) == (size == FILE_BYTES));
    REQUIRE(one_packed_check(file, size) == MHAGEN_OK || one_packed_check(file, size) == MHAGEN_ERR_PACKED);
  }
}

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) numbers[i] = (float)(i * 31 % 67) / 67 - 0.5f;
  write_file(argv[1]);
  run_from(argv[argc - 1]);
  refuse_changes();
  REQUIRE(one_packed_check(NULL, FILE_BYTES) == MHAGEN_ERR_NULL);
  REQUIRE(one_packed_check(file + 16, FILE_BYTES) == MHAGEN_ERR_ALIGN);
  REQUIRE(TWO_PACKED_BYTES == ONE_PACKED_BYTES); /* another kernel's weights, of the same size */
  REQUIRE(two_packed_check(file, FILE_BYTES) == MHAGEN_ERR_PACKED);
  refuse_another_layer();
  REQUIRE(mhagen_packed_check_head(&one_kernel, file, FILE_BYTES) == MHAGEN_OK);
  file[FILE_BYTES - 1] ^= 1;
  REQUIRE(mhagen_packed_check_head(&one_kernel, file, FILE_BYTES) == MHAGEN_OK);
  return 0;
}
