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

void *counted_alloc(void *data, void *block, size_t old_size, size_t new_size) {
  (void)data;
  if (block == NULL) old_size = 0; /* Lua passes the kind of the object instead */
  if (new_size == 0) {
    free(block);
    heap.used -= old_size;
    return NULL;
  }
  if (new_size > old_size && (heap.used > heap.most || new_size - old_size > heap.most - heap.used)) {
    heap.exhausted = true; /* so far: Lua collects its garbage, and asks again */
    return NULL;
  }
  void *const grown = realloc(block, new_size);
  if (grown != NULL) heap.used = heap.used - old_size + new_size;
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
