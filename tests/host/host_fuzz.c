/* host_fuzz.c: the host (gen/host) under libFuzzer. The embedded program is tests/host/host_fuzz.lua; it is loaded
 * once, and then given one input after the other. The lines of Lua that an input reaches count as
 * coverage, as the branches of the host do.
 *
 *   MHAGEN_FUZZ=config build/host-fuzz -max_total_time=60 DIRECTORY...
 */
#define _GNU_SOURCE /* memfd_create */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <lauxlib.h>

#include "host.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { COUNTERS = 1 << 16, STEP = 1 << 16, STEPS = 64 };

/* libFuzzer reads them after each input, and sets them to zero. */
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t lines[COUNTERS];

static lua_State *generator;
static int file; /* the input as a file, without a disk */
static int steps;

/* A large kernel takes long to generate, which is no fault: ends what takes more instructions. */
static void on_event(lua_State *L, lua_Debug *event) {
  if (event->event == LUA_HOOKCOUNT) {
    if (++steps > STEPS) luaL_error(L, "fuzz: enough");
    return;
  }
  lua_getinfo(L, "S", event);
  uintptr_t line = (uintptr_t)event->source / 16 * 31 + (uintptr_t)event->currentline;
  uint8_t *counter = &lines[line % COUNTERS];
  if (*counter < UINT8_MAX) ++*counter;
}

static void must(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "host_fuzz: %s\n", what);
  abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  char path[64], *arguments[] = {"mhagen", getenv("MHAGEN_FUZZ"), path};
  must(arguments[1] != NULL, "MHAGEN_FUZZ names no target");
  file = memfd_create("input", MFD_CLOEXEC);
  must(file >= 0, "no file in memory");
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  generator = luaL_newstate();
  lua_gc(generator, LUA_GCGEN, 0, 0);
  lua_pushcfunction(generator, run_program);
  lua_pushinteger(generator, 3);
  lua_pushlightuserdata(generator, arguments);
  must(lua_pcall(generator, 2, 2, 0) == LUA_OK, lua_tostring(generator, -1));
  must(lua_isfunction(generator, -2), "MHAGEN_FUZZ names no target");
  lua_pop(generator, 1);
  lua_sethook(generator, on_event, LUA_MASKLINE | LUA_MASKCOUNT, STEP);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  must(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size, "no place for the input");
  steps = 0;
  lua_pushvalue(generator, -1);
  lua_pushlstring(generator, (const char *)data, size);
  if (lua_pcall(generator, 1, 0, 0) != LUA_OK) {
    must(steps > STEPS, lua_tostring(generator, -1));
    lua_pop(generator, 1);
  }
  return 0;
}
