/* basics.c: errors and time, for all rooms. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <time.h>

#include "host.h"

/* Raises what Lua itself raises then: without the place, by which errors.lua knows it. */
int no_memory(lua_State *L) {
  lua_pushliteral(L, "not enough memory");
  return lua_error(L);
}

int fail(lua_State *L, const char *what, const char *why) {
  lua_pushnil(L);
  lua_pushfstring(L, "%s: %s", what, why);
  return 2;
}

/* Since some moment. */
double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
