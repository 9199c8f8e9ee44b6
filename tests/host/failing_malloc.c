/* failing_malloc.c: memory that runs out. Link with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc. The
 * allocation with the number MHAGEN_FAIL fails; with MHAGEN_FAIL_ON all later ones fail too. Without
 * MHAGEN_FAIL the program prints at its end how many allocations there were. */
#include <stdio.h>
#include <stdlib.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);

static long calls, failing;
static int on;

static void tell(void) { fprintf(stderr, "%ld allocations\n", calls); }

static int fails(void) {
  if (calls++ == 0) {
    const char *number = getenv("MHAGEN_FAIL");
    failing = number ? atol(number) : 0;
    on = getenv("MHAGEN_FAIL_ON") != NULL;
    if (!number) atexit(tell);
  }
  return failing > 0 && (calls == failing || (on && calls > failing));
}

void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *block, size_t size) { return fails() ? NULL : __real_realloc(block, size); }
