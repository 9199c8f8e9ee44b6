/* tensors.h: what gen/tensors.c gives the generator; the comments there say what each function does. */
#ifndef TENSORS_H
#define TENSORS_H

#include <lua.h>

/* A piece of memory as a userdata of the generator, freed with it. */
typedef struct Memory {
  void *at;
  size_t bytes;
} Memory;

#define MEMORY "mhagen.memory" /* the name of its metatable, for luaL_checkudata */

/* Adds the functions to the table on top. */
void add_tensors(lua_State *L);

#endif
