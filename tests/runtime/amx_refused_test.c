/* With a runtime whose CPU has all, and whose answer for tiles is `granted`: a refusal is asked again, but not once a
 * bundle has chosen a member without tiles. The argument says which of both. */
#include "mhagen.h"

#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(what) \
  if (!(what)) { \
    printf("line %d: %s\n", __LINE__, #what); \
    exit(1); \
  }

extern int granted, asked; /* of the changed mhagen.c */

static int has_amx(void) { return mhagen_cpu_has(MHAGEN_CPU_AMX); }
static int has_avx512(void) { return mhagen_cpu_has(MHAGEN_CPU_AVX512); }
static const mhagen_kernel with_tiles = {.supported = has_amx}, without = {.supported = has_avx512};
static const mhagen_kernel *const members[] = {&with_tiles, &without, NULL};
static const mhagen_kernel bundle = {.members = members};

int main(int argc, char **argv) {
  REQUIRE(argc == 2);
  REQUIRE(has_avx512() && asked == 0);
  REQUIRE(!has_amx() && asked == 1);
  REQUIRE(!has_amx() && asked == 2);
  if (*argv[1] == 'b') { /* a bundle has chosen */
    REQUIRE(mhagen_kernel_of(&bundle) == &without && asked == 3);
    granted = 1;
    for (int i = 0; i < 3; i++) REQUIRE(mhagen_kernel_of(&bundle) == &without && !has_amx() && asked == 3);
    return 0;
  }
  granted = 1;
  REQUIRE(mhagen_kernel_of(&bundle) == &with_tiles && asked == 3);
  granted = 0;
  for (int i = 0; i < 3; i++) REQUIRE(has_amx() && mhagen_kernel_of(&bundle) == &with_tiles && asked == 3);
  return 0;
}
