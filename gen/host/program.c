/* program.c: the table `host`, and the start of the generator. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lualib.h>

#include "arrays.h"
#include "host.h"
#include "mhagen.h"
#include "tensors.h"

/* cpu_has("MHAGEN_CPU_AVX2") -> boolean */
static int host_cpu_has(lua_State *L) {
#define ROW(cpu) {#cpu, cpu}
  static const struct {
    const char *name;
    mhagen_cpu cpu;
  } rows[] = {ROW(MHAGEN_CPU_ANY),         ROW(MHAGEN_CPU_AVX2),      ROW(MHAGEN_CPU_AVX512),
              ROW(MHAGEN_CPU_NEON),        ROW(MHAGEN_CPU_AVX2_F16C), ROW(MHAGEN_CPU_AVX512_BF16),
              ROW(MHAGEN_CPU_AVX_VNNI),    ROW(MHAGEN_CPU_AMX),       ROW(MHAGEN_CPU_NEON_I8MM),
              ROW(MHAGEN_CPU_AVX512_FP16), ROW(MHAGEN_CPU_NEON_FP16)};
#undef ROW
  const char *name = luaL_checkstring(L, 1);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (strcmp(rows[i].name, name) == 0) {
      lua_pushboolean(L, mhagen_cpu_has(rows[i].cpu));
      return 1;
    }
  }
  return luaL_argerror(L, 1, "no mhagen_cpu");
}

/* traceback(message) -> message with the calls that led here, for errors of the generator itself */
static int host_traceback(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

#if defined(__x86_64__)
#define ARCH "x86_64"
#elif defined(__aarch64__)
#define ARCH "aarch64"
#else
#define ARCH "other"
#endif

static void push_host(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"cpu_has", host_cpu_has},
      {"traceback", host_traceback},
      {NULL, NULL},
  };
  luaL_newlib(L, functions);
  static void (*const rooms[])(lua_State *) = {add_embedded, add_memory_limit, add_configs, add_reading,
                                               add_writing,  add_locks,        add_processes, add_printing,
                                               add_tensors,  add_narrowing,    add_packing,   add_evaluate,
                                               add_arrays,   add_threads};
  for (size_t i = 0; i < sizeof rooms / sizeof *rooms; ++i) rooms[i](L);
  push_json(L);
  lua_setfield(L, -2, "json");
  const char *cc = getenv("CC"); /* the only environment variable the generator sees */
  lua_pushstring(L, cc != NULL && cc[0] != '\0' ? cc : "cc");
  lua_setfield(L, -2, "cc");
  lua_pushstring(L, ARCH);
  lua_setfield(L, -2, "arch");
  char program[PATH_MAX]; /* this one */
  ssize_t size = readlink("/proc/self/exe", program, sizeof program);
  lua_pushlstring(L, program, size > 0 ? (size_t)size : 0);
  lua_setfield(L, -2, "program");
}

/* run_program(argc, argv): the prelude gets the libraries as globals, and the table host; it
 * returns the main function of the first embedded file, which gets the arguments and returns the
 * exit status and, if something failed, a message. */
int run_program(lua_State *L) {
  int argc = (int)lua_tointeger(L, 1);
  char **argv = lua_touserdata(L, 2);
  lua_gc(L, LUA_GCGEN, 0, 0); /* a short life with many small tables: a third less time */
  luaL_requiref(L, LUA_GNAME, luaopen_base, 1);
  luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
  luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
  luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
  luaL_requiref(L, LUA_UTF8LIBNAME, luaopen_utf8, 1);
  load_embedded(L, find_embedded("gen/prelude.lua"));
  push_host(L);
  lua_pushstring(L, embedded_files[0].name);
  lua_call(L, 2, 1);
  lua_createtable(L, argc, 0);
  for (int i = 1; i < argc; ++i) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i);
  }
  lua_call(L, 1, 2);
  return 2;
}

