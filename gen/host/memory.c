/* memory.c: the memory of the generator, and a limit of it while files of others are read. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "host.h"

/* What the generator has, and may have while it reads what others wrote. */
static struct {
  size_t used, most;
  bool exhausted; /* an allocation failed for the limit, not for want of memory */
} heap = {.most = SIZE_MAX};

/* What a block takes of memory, as malloc of glibc rounds it. Most blocks of Lua are small: their sizes alone are four
 * fifths of what they take. */
static size_t taken(size_t size) {
  const size_t word = sizeof(size_t), least = 4 * word;
  const size_t rounded = (size + 3 * word - 1) / (2 * word) * (2 * word);
  return size == 0 ? 0 : rounded < least ? least : rounded;
}

void *counted_alloc(void *data, void *block, size_t old_size, size_t new_size) {
  (void)data;
  const size_t before = block == NULL ? 0 : taken(old_size), after = taken(new_size); /* without one it is a kind */
  if (new_size == 0) {
    free(block);
    heap.used -= before;
    return NULL;
  }
  if (after > before && (heap.used > heap.most || after - before > heap.most - heap.used)) {
    heap.exhausted = true; /* so far: Lua collects its garbage, and asks again */
    return NULL;
  }
  void *const grown = realloc(block, new_size);
  if (grown != NULL) heap.used = heap.used - before + after;
  return grown;
}

/* limit_memory([bytes]): from now on the generator may take so much more, or again all there is. Returns whether it
 * wanted more than the limit before. */
static int host_limit_memory(lua_State *L) {
  const size_t more = (size_t)luaL_optinteger(L, 1, 0);
  lua_pushboolean(L, heap.exhausted);
  heap.exhausted = false;
  heap.most = more > 0 ? heap.used + more : SIZE_MAX;
  return 1;
}

/* Adds `limit_memory`. */
void add_memory_limit(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"limit_memory", host_limit_memory},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
