/* threads.c: how the runtime would run lists of phases on several threads. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <stdlib.h>

#include "mhagen.h"
#include "tensors.h"

/* The phases { tasks =, cycles = } of the list that the stack has at an index, as memory of the generator. */
static const mhagen_phase *phases_at(lua_State *L, int list, int count) {
  mhagen_phase *const phases = push_memory(L, (size_t)count * sizeof *phases + 1)->at;
  for (int i = 0; i < count; ++i) {
    lua_rawgeti(L, list, i + 1), lua_getfield(L, -1, "tasks"), lua_getfield(L, -2, "cycles");
    phases[i] = (mhagen_phase){.tasks = (int)luaL_checkinteger(L, -2), .cycles = luaL_checknumber(L, -1)};
    luaL_argcheck(L, phases[i].tasks > 0, list, "has a phase without tasks");
    lua_pop(L, 3);
  }
  return phases;
}

/* choose(phases, coarse, threads) -> "phases", "coarse", or nil where one thread runs everything; the threads that take
 * part; the cycles of a run */
static int host_choose(lua_State *L) {
  mhagen_kernel kernel = {.size = sizeof kernel, .phase_count = (int)lua_rawlen(L, 1),
                          .coarse_count = (int)lua_rawlen(L, 2)};
  const int threads = (int)luaL_checkinteger(L, 3);
  kernel.phases = phases_at(L, 1, kernel.phase_count);
  kernel.coarse = phases_at(L, 2, kernel.coarse_count);
  const mhagen_choice best = mhagen_choose(&kernel, threads);
  lua_pushstring(L, !best.phases ? NULL : best.phases == kernel.phases ? "phases" : "coarse");
  lua_pushinteger(L, best.threads);
  lua_pushnumber(L, best.cycles);
  return 3;
}

void add_threads(lua_State *L) {
  static const luaL_Reg functions[] = {{"choose", host_choose}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
