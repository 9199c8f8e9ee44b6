/* configs.c: a state of Lua for one CONFIG.lua or GRID.lua, without a library, bounded in size and time. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include <lualib.h>

#include "host.h"

enum {
  CONFIG_BYTES = 1 << 20, /* the longest file */
  WATCH_EVERY = 100,      /* instructions: each may compare strings of all the memory there is */
  ENTRY_BYTES = 256       /* what an entry takes in the generator, besides long texts */
};

typedef struct Limits {
  size_t memory;    /* all bytes ever allocated */
  size_t copies;    /* bytes that the generator gets of the result */
  int instructions; /* of Lua's machine */
  int seconds;      /* of CPU time */
} Limits;

static const Limits config_limits = {8 << 20, 8 << 20, 100000, 2},
                    grid_limits = {256 << 20, 512 << 20, 100000000, 10};

/* The state of a config, and what is left of its limits. A userdata of the generator, which closes
 * the state whatever happens. */
typedef struct Sandbox {
  lua_State *state;
  const Limits *limits;
  size_t memory, copies;
  int instructions;
  double end;     /* not before this time, in seconds, */
  clock_t used;   /* and with so much on the clock of the CPU, which takes longer to ask */
  bool exhausted; /* an allocation failed for the limit, not for want of memory */
} Sandbox;

static void *bounded_alloc(void *sandbox, void *block, size_t old_size, size_t new_size) {
  Sandbox *box = sandbox;
  if (new_size == 0) {
    free(block);
    return NULL;
  }
  if (block == NULL) old_size = 0; /* Lua passes the kind of the object instead */
  size_t growth = new_size > old_size ? new_size - old_size : 0;
  if (growth > box->memory) {
    box->exhausted = true;
    return NULL;
  }
  box->memory -= growth;
  return realloc(block, new_size);
}

static void watch(lua_State *config, lua_Debug *event) {
  (void)event;
  Sandbox *box = *(Sandbox **)lua_getextraspace(config);
  box->instructions -= WATCH_EVERY;
  bool late = seconds() > box->end && clock() > box->used;
  if (box->instructions > 0 && !late && !caught) return;
  luaL_where(config, 0);
  if (caught) {
    lua_pushliteral(config, "interrupted");
  } else if (late) {
    lua_pushfstring(config, "runs for more than %d seconds", box->limits->seconds);
  } else {
    lua_pushfstring(config, "runs for more than %d instructions", box->limits->instructions);
  }
  lua_concat(config, 2);
  lua_error(config);
}

static void close_sandbox(Sandbox *box) {
  if (box->state != NULL) lua_close(box->state);
  box->state = NULL;
}

static int collect_sandbox(lua_State *L) {
  close_sandbox(lua_touserdata(L, 1));
  return 0;
}

/* Pushes a new sandbox. */
static Sandbox *push_sandbox(lua_State *L, const Limits *limits) {
  Sandbox *box = lua_newuserdatauv(L, sizeof *box, 0);
  *box = (Sandbox){.limits = limits, .memory = limits->memory, .copies = limits->copies,
                   .instructions = limits->instructions,
                   .end = seconds() + limits->seconds,
                   .used = clock() + (clock_t)limits->seconds * CLOCKS_PER_SEC};
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, collect_sandbox);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  box->state = lua_newstate(bounded_alloc, box);
  if (box->state == NULL) no_memory(L);
  *(Sandbox **)lua_getextraspace(box->state) = box;
  lua_sethook(box->state, watch, LUA_MASKCOUNT, WATCH_EVERY);
  return box;
}

/* Takes so many bytes from what may be copied; false if there are not so many left. */
static bool charge(Sandbox *box, size_t bytes) {
  if (bytes > box->copies) return false;
  box->copies -= bytes;
  return true;
}

/* Copies a string, number or boolean into field `name` of the table on top of `to`, and the name of
 * its type into field `type_name`; of any other value the type alone. False if the copies are too
 * many. */
static bool copy_value(Sandbox *box, int index, lua_State *to, const char *name,
                       const char *type_name) {
  lua_State *from = box->state;
  int type = lua_type(from, index);
  if (type == LUA_TSTRING) {
    size_t size;
    const char *text = lua_tolstring(from, index, &size);
    if (!charge(box, size)) return false;
    lua_pushlstring(to, text, size);
  } else if (type == LUA_TBOOLEAN) {
    lua_pushboolean(to, lua_toboolean(from, index));
  } else if (lua_isinteger(from, index)) {
    lua_pushinteger(to, lua_tointeger(from, index));
  } else if (type == LUA_TNUMBER) {
    lua_pushnumber(to, lua_tonumber(from, index));
  } else {
    lua_pushnil(to);
  }
  lua_setfield(to, -2, name);
  lua_pushstring(to, lua_typename(from, type));
  lua_setfield(to, -2, type_name);
  return true;
}

/* Pushes nil and a message of the error on top of the state. Those of Lua code begin ":<line>:". */
static int fail_config(lua_State *L, Sandbox *box, int status, const char *path) {
  if (status == LUA_ERRMEM && !box->exhausted) return no_memory(L);
  if (status == LUA_ERRMEM) {
    return fail(L, path, lua_pushfstring(L, "needs more than %d MiB of memory",
                                         (int)(box->limits->memory >> 20)));
  }
  bool text = lua_type(box->state, -1) == LUA_TSTRING;
  const char *why = text ? lua_tostring(box->state, -1) : "raises an error that is no text";
  if (why[0] != ':') return fail(L, path, why);
  lua_pushnil(L);
  lua_pushfstring(L, "%s%s", path, why);
  return 2;
}

/* Calls the function under `count` arguments on top of the state. Where it does not return one
 * table: pushes nil and a message on L, and returns 2; else 0. */
static int call_config(lua_State *L, Sandbox *box, int count, const char *path) {
  lua_State *config = box->state;
  int base = lua_gettop(config) - count - 1, status = lua_pcall(config, count, LUA_MULTRET, 0);
  if (status != LUA_OK) return fail_config(L, box, status, path);
  if (lua_gettop(config) != base + 1 || !lua_istable(config, -1)) {
    return fail(L, path, "must return one table");
  }
  return 0;
}

/* Reads the file and runs it in the state, whose top then is its table; errors as call_config. */
static int run_config(lua_State *L, Sandbox *box, const char *path) {
  if (push_text(L, path, CONFIG_BYTES) != 1) return 2;
  size_t size;
  const char *text = lua_tolstring(L, -1, &size);
  int status = luaL_loadbufferx(box->state, text, size, "=", "t");
  if (status != LUA_OK) return fail_config(L, box, status, path);
  return call_config(L, box, 0, path);
}

/* Pushes the table on top of the state as a list { {key=, key_type=, value=, value_type=}, ... }
 * in any order; a value that is a table has its own list, `entries`, to this depth. False if the
 * copies are too many. */
static bool push_entries(lua_State *L, Sandbox *box, int depth) {
  lua_State *config = box->state;
  lua_newtable(L);
  lua_pushnil(config);
  for (lua_Integer i = 1; lua_next(config, -2) != 0; ++i) {
    if (!charge(box, ENTRY_BYTES)) return false;
    lua_newtable(L);
    if (!copy_value(box, -2, L, "key", "key_type")) return false;
    if (!copy_value(box, -1, L, "value", "value_type")) return false;
    if (depth > 0 && lua_istable(config, -1)) {
      if (!push_entries(L, box, depth - 1)) return false;
      lua_setfield(L, -2, "entries");
    }
    lua_rawseti(L, -2, i);
    lua_pop(config, 1);
  }
  return true;
}

static int fail_copies(lua_State *L, Sandbox *box, const char *path) {
  return fail(L, path, lua_pushfstring(L, "returns more than %d MiB of keys and values",
                                       (int)(box->limits->copies >> 20)));
}

/* eval_config(path [, depth]) -> the entries of its table */
static int host_eval_config(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  int depth = (int)luaL_optinteger(L, 2, 0);
  Sandbox *box = push_sandbox(L, &config_limits);
  int results = run_config(L, box, path);
  if (results != 0) return results;
  if (!push_entries(L, box, depth)) return fail_copies(L, box, path);
  close_sandbox(box);
  return 1;
}

/* Returns gen/lab/grid.lua, the only code in the state that sees Lua's base library: what is loaded
 * later gets globals that are empty. */
static int load_grid(lua_State *config) {
  luaL_requiref(config, LUA_GNAME, luaopen_base, 0);
  lua_pop(config, 1);
  load_embedded(config, find_embedded("gen/lab/grid.lua"));
  lua_newtable(config);
  lua_rawseti(config, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
  return 1;
}

/* The list of names on top of the generator's state -> the same list in a config's. */
static int copy_names(lua_State *config) {
  lua_State *L = lua_touserdata(config, 1);
  lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
  lua_createtable(config, (int)count, 0);
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(L, -1, i);
    lua_pushstring(config, lua_tostring(L, -1));
    lua_rawseti(config, -2, i);
    lua_pop(L, 1);
  }
  return 1;
}

/* eval_grid(path, axes_of, limit) -> a list, for each config its entries. axes_of gets the entries
 * of the file's table and returns the names of the axes, in order; its errors are raised. */
static int host_eval_grid(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_Integer limit = luaL_checkinteger(L, 3);
  Sandbox *box = push_sandbox(L, &grid_limits);
  lua_State *config = box->state;
  lua_pushcfunction(config, load_grid);
  int status = lua_pcall(config, 0, 1, 0);
  if (status != LUA_OK) return fail_config(L, box, status, path);
  int results = run_config(L, box, path);
  if (results != 0) return results;

  lua_pushvalue(L, 2);
  if (!push_entries(L, box, 0)) return fail_copies(L, box, path);
  lua_call(L, 1, 1);
  box->memory = box->limits->memory; /* again as much for the product */
  lua_pushcfunction(config, copy_names);
  lua_pushlightuserdata(config, L);
  status = lua_pcall(config, 1, 1, 0);
  if (status != LUA_OK) return fail_config(L, box, status, path);
  lua_pushinteger(config, limit);
  results = call_config(L, box, 3, path);
  if (results != 0) return results;

  lua_Integer count = (lua_Integer)lua_rawlen(config, -1);
  lua_createtable(L, (int)count, 0);
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(config, -1, i);
    if (!push_entries(L, box, 0)) return fail_copies(L, box, path);
    lua_rawseti(L, -2, i);
    lua_pop(config, 1);
  }
  close_sandbox(box);
  return 1;
}

/* Adds what reads configs and grids. */
void add_configs(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"eval_config", host_eval_config},
      {"eval_grid", host_eval_grid},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
