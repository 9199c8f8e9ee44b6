/* embedded.c: the files inside the program. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <string.h>

#include "host.h"

const EmbeddedFile *find_embedded(const char *name) {
  for (size_t i = 0; i < embedded_count; ++i) {
    if (strcmp(embedded_files[i].name, name) == 0) return &embedded_files[i];
  }
  return NULL;
}

/* embedded(name) -> text, or nil */
static int host_embedded(lua_State *L) {
  const EmbeddedFile *file = find_embedded(luaL_checkstring(L, 1));
  if (file == NULL) return 0;
  lua_pushlstring(L, (const char *)file->data, file->size);
  return 1;
}

void load_embedded(lua_State *L, const EmbeddedFile *file) {
  if (luaL_loadbufferx(L, (const char *)file->data, file->size, file->name, "b") != LUA_OK) lua_error(L);
}

/* load(name, env) -> the embedded Lua file as a function with these globals, or nil */
static int host_load(lua_State *L) {
  const EmbeddedFile *file = find_embedded(luaL_checkstring(L, 1));
  if (file == NULL) return 0;
  load_embedded(L, file);
  lua_pushvalue(L, 2);
  if (lua_setupvalue(L, -2, 1) == NULL) lua_pop(L, 1); /* a chunk without globals has no _ENV */
  return 1;
}

/* Adds what reads embedded files. */
void add_embedded(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"embedded", host_embedded},
      {"load", host_load},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
