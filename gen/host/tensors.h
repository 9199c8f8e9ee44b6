/* tensors.h: memory of the generator. tensors.c, narrowing.c, packing.c, evaluate.c and threads.c say what each
 * function does. */
#ifndef TENSORS_H
#define TENSORS_H

#include <lua.h>

/* A piece of memory as a userdata of the generator, freed with it. */
typedef struct Memory {
  void *at;
  size_t bytes;
} Memory;

#define MEMORY "mhagen.memory" /* the name of its metatable, for luaL_checkudata */

#define NUMBER_MOST ((lua_Integer)1 << 48) /* of what a caller says: sums and products of two small ones fit */

/* Pushes so many bytes, aligned for packed weights. They are not cleared: that took a tenth of the time. */
Memory *push_memory(lua_State *L, size_t bytes);

/* Each adds its functions to the table on top. */
void add_tensors(lua_State *L);
void add_narrowing(lua_State *L);
void add_packing(lua_State *L);
void add_evaluate(lua_State *L);
void add_threads(lua_State *L);

#endif
