/* packing.c: weights of the generator's memory, packed by the runtime. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mhagen.h"
#include "tensors.h"

/* A field of the table on top as an integer, and as a matrix; zero where it is missing. */
static ptrdiff_t integer_in(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  const ptrdiff_t value = (ptrdiff_t)luaL_optinteger(L, -1, 0);
  lua_pop(L, 1);
  return value;
}

/* The number of a matrix in a list, which the stack has at an index; MHAGEN_NONE without the field. */
static int matrix_in(lua_State *L, int list, const char *field) {
  int value = MHAGEN_NONE;
  if (lua_getfield(L, -1, field) != LUA_TNIL) {
    const int count = (int)lua_rawlen(L, list);
    for (int i = 0; i < count && value == MHAGEN_NONE; ++i) {
      lua_rawgeti(L, list, i + 1), lua_getfield(L, -1, "name");
      if (lua_rawequal(L, -1, -3)) value = i;
      lua_pop(L, 2);
    }
    if (value == MHAGEN_NONE) luaL_error(L, "no matrix %s", luaL_checkstring(L, -1));
  }
  lua_pop(L, 1);
  return value;
}

static bool flag_in(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  const bool value = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return value;
}

/* Pushes the field, a list, of the table at the index; returns its length. */
static size_t push_list(lua_State *L, int index, const char *name) {
  lua_getfield(L, index, name);
  luaL_checktype(L, -1, LUA_TTABLE);
  return (size_t)lua_rawlen(L, -1);
}

/* Pushes memory with the doubles of the list on top, which stays below. */
static double *push_doubles(lua_State *L) {
  const size_t count = (size_t)lua_rawlen(L, -1);
  double *doubles = push_memory(L, (count + 1) * sizeof *doubles)->at;
  for (size_t i = 0; i < count; ++i) {
    lua_rawgeti(L, -2, (lua_Integer)i + 1);
    doubles[i] = luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  return doubles;
}

/* The fill on top of the stack; its terms are written behind the first `count`. Returns their number. list: where the
 * stack has the matrices. */
static int read_fill(lua_State *L, int list, mhagen_pack_fill *fill, mhagen_pack_term *terms, int count) {
  lua_getfield(L, -1, "scale");
  *fill = (mhagen_pack_fill){.scale = luaL_checknumber(L, -1), .term = count};
  lua_pop(L, 1);
  fill->to = integer_in(L, "to"), fill->steps = integer_in(L, "steps");
  fill->used = integer_in(L, "used"), fill->width = integer_in(L, "width");
  const size_t rounds = push_list(L, -1, "rounds");
  for (size_t i = 0; i < rounds && i < MHAGEN_PACK_ROUNDS; ++i) {
    lua_rawgeti(L, -1, (lua_Integer)i + 1);
    fill->rounds[i] = (mhagen_pack_round){integer_in(L, "count"), integer_in(L, "to"), integer_in(L, "row"),
                                          integer_in(L, "column"), integer_in(L, "first")};
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  fill->terms = (int)push_list(L, -1, "terms");
  if (fill->terms > MHAGEN_PACK_TERMS) luaL_error(L, "too many terms");
  for (int i = 0; i < fill->terms; ++i) {
    lua_rawgeti(L, -1, i + 1);
    terms[count + i] = (mhagen_pack_term){
        matrix_in(L, list, "a"), flag_in(L, "a_flipped"), matrix_in(L, list, "b"), flag_in(L, "b_flipped"),
        integer_in(L, "row"), integer_in(L, "column"), integer_in(L, "first"), integer_in(L, "inner")};
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return fill->terms;
}

/* That of gen/base/fingerprint.lua. */
static uint64_t fingerprint_of(const char *text) { return strtoull(text, NULL, 16); }

/* What a null pointer stands for, and of a table of rope the function that makes its numbers. */
static const char *const nulls[] = {
    [MHAGEN_ZEROS] = "zeros", [MHAGEN_ONES] = "ones", [MHAGEN_COSINES] = "cosines", [MHAGEN_SINES] = "sines", NULL};
static double (*const waves[sizeof nulls / sizeof *nulls])(double) = {[MHAGEN_COSINES] = cos, [MHAGEN_SINES] = sin};

/* Pushes a table of rope, times a factor: the cosines of its angles, or the sines. */
static const float *push_waves(lua_State *L, const mhagen_packing *packing, const mhagen_matrix *m, double factor) {
  double (*const wave)(double) = waves[m->null];
  float *const at = push_memory(L, ((size_t)m->rows * (size_t)m->columns + 1) * sizeof *at)->at, *to = at;
  for (ptrdiff_t place = packing->rope_first; place < m->rows + packing->rope_first; ++place) {
    for (ptrdiff_t pair = 0; pair < m->columns; ++pair) {
      const double turns = (double)place * packing->rope_turns[pair];
      *to++ = (float)(factor * wave(6.283185307179586 * (turns - floor(turns))));
    }
  }
  return at;
}

/* Pushes memory with the floats of the list on top, which stays below. */
static const float *push_floats(lua_State *L) {
  const size_t count = (size_t)lua_rawlen(L, -1);
  float *floats = push_memory(L, (count + 1) * sizeof *floats)->at;
  for (size_t i = 0; i < count; ++i) {
    lua_rawgeti(L, -2, (lua_Integer)i + 1);
    floats[i] = (float)luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  return floats;
}

enum { MATRICES_MOST = 64 };

/* What mhagen_pack is given: weights whose pointers lie in the order of the matrices, behind the public ones. */
typedef struct Given {
  mhagen_weights weights;
  const float *at[];
} Given;

/* The matrix on top, number i; its numbers are those of its name in the table at `weights`. Numbers that take the place
 * of a null pointer stay on the stack as long as they are used. */
static mhagen_matrix read_matrix(lua_State *L, int weights, int i, Given *given) {
  mhagen_matrix m = {.at = offsetof(Given, at) + (size_t)i * sizeof *given->at,
                     .rows = integer_in(L, "rows"), .columns = integer_in(L, "columns")};
  lua_getfield(L, -1, "null");
  m.null = luaL_checkoption(L, -1, NULL, nulls);
  lua_pop(L, 1);
  lua_getfield(L, -1, "name");
  const char *name = luaL_checkstring(L, -1);
  if (lua_getfield(L, weights, name) != LUA_TNIL) {
    const Memory *memory = luaL_checkudata(L, -1, MEMORY);
    if (memory->bytes / sizeof(float) != (size_t)m.rows * (size_t)m.columns) luaL_error(L, "%s has another size", name);
    given->at[i] = memory->at;
  }
  lua_pop(L, 2);
  if (lua_getfield(L, -1, "instead") == LUA_TTABLE) m.instead = push_floats(L);
  return m;
}

/* The fills of the packing on top of the stack and how they are made, which stay on the stack as long as they are used.
 * matrices: where the list is that terms name. */
static void read_form(lua_State *L, int matrices, mhagen_packing *packing) {
  const int of = lua_gettop(L);
  enum { KINDS = 5 };
  static const char *const kinds[KINDS] = {"fills", "rounded", "pairs", "quants", "value_quants"};
  lua_getfield(L, of, "lists");
  const int of_kinds = lua_gettop(L);
  luaL_checktype(L, of_kinds, LUA_TTABLE);
  size_t counts[KINDS], count = 0;
  for (int kind = 0; kind < KINDS; ++kind) count += counts[kind] = push_list(L, of_kinds, kinds[kind]);
  const int lists = lua_gettop(L) - KINDS + 1;
  mhagen_pack_fill *const list = push_memory(L, (count + 1) * sizeof *list)->at, *fill = list;
  mhagen_pack_term *terms = push_memory(L, (count + 1) * MHAGEN_PACK_TERMS * sizeof *terms)->at;
  mhagen_pack_gain *const gains = push_memory(L, (count + 1) * sizeof *gains)->at, *gain = gains;
  int term = 0;
  for (int kind = 0; kind < KINDS; ++kind) {
    for (size_t i = 0; i < counts[kind]; ++i, ++fill) {
      lua_rawgeti(L, lists + kind, (lua_Integer)i + 1);
      gain->term = term, gain->matrix = matrix_in(L, matrices, "gain");
      if (gain->matrix != MHAGEN_NONE) ++gain;
      term += read_fill(L, matrices, fill, terms, term);
      lua_pop(L, 1);
    }
  }
  packing->terms = terms, packing->gains = gains, packing->gain_count = (int)(gain - gains);
  packing->fills = list, packing->fill_count = (int)counts[0];
  packing->rounded = packing->fills + counts[0], packing->rounded_count = (int)counts[1];
  packing->pairs = packing->rounded + counts[1], packing->pair_count = (int)counts[2];
  packing->quants = packing->pairs + counts[2], packing->quant_count = (int)counts[3];
  packing->value_quants = packing->quants + counts[3], packing->value_quant_count = (int)counts[4];
  lua_pushvalue(L, of);
  packing->f16 = flag_in(L, "f16");
  lua_pop(L, 1);
  lua_getfield(L, of, "interleave");
  packing->deep = luaL_optinteger(L, -1, 1);
  lua_getfield(L, of, "deinterleave");
  packing->apart = luaL_optinteger(L, -1, 0);
  if (lua_getfield(L, of, "quant") == LUA_TTABLE) {
    packing->quant_bits = (int)integer_in(L, "bits"), packing->quant_group = integer_in(L, "group");
    packing->quant_sums = flag_in(L, "sums"), packing->quant_beside = flag_in(L, "beside");
    packing->quant_bytes = flag_in(L, "bytes");
  }
}

/* pack(packing, weights) -> memory with the packed weights. packing: what gen/plan/pack.lua's M.packing returns.
 * weights: memory by the names of matrices, and in_out = true where they lie so. */
static int host_pack(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  luaL_checkstack(L, 60 + 4 * MATRICES_MOST, NULL);
  lua_getfield(L, 1, "bytes");
  const lua_Integer bytes = luaL_checkinteger(L, -1);
  luaL_argcheck(L, bytes >= 0 && bytes <= NUMBER_MOST, 1, "bytes are out of their range");
  lua_getfield(L, 1, "fingerprint");
  mhagen_packing packing = {.bytes = (size_t)bytes, .fingerprint = fingerprint_of(luaL_optstring(L, -1, "0"))};
  lua_pop(L, 2);

  enum { WEIGHTS = 2, MATRICES }; /* on the stack */
  const size_t matrix_count = push_list(L, 1, "matrices");
  luaL_argcheck(L, matrix_count <= MATRICES_MOST, 1, "has too many matrices");
  Given *given = push_memory(L, sizeof *given + matrix_count * sizeof *given->at)->at;
  mhagen_matrix *matrices = push_memory(L, (matrix_count + 1) * sizeof *matrices)->at;
  memset(given, 0, sizeof *given + matrix_count * sizeof *given->at);
  for (size_t i = 0; i < matrix_count; ++i) {
    lua_rawgeti(L, MATRICES, (lua_Integer)i + 1);
    matrices[i] = read_matrix(L, WEIGHTS, (int)i, given);
  }
  packing.matrices = matrices;
  lua_getfield(L, WEIGHTS, "in_out");
  given->weights.layout = lua_toboolean(L, -1) ? MHAGEN_IN_OUT : MHAGEN_OUT_IN;

  lua_getfield(L, 1, "first");
  packing.rope_first = (int)luaL_optinteger(L, -1, 0);
  if (lua_getfield(L, 1, "turns") == LUA_TTABLE) {
    packing.rope_turns = push_doubles(L);
    if (lua_getfield(L, -2, "factor") == LUA_TNUMBER) {
      const double factor = lua_tonumber(L, -1);
      for (size_t i = 0; i < matrix_count; ++i) {
        if (waves[matrices[i].null]) given->at[i] = push_waves(L, &packing, &matrices[i], factor);
      }
    }
  }

  lua_pushvalue(L, 1);
  read_form(L, MATRICES, &packing);
  mhagen_packing beside = {.matrices = matrices};
  if (lua_getfield(L, 1, "beside") == LUA_TTABLE) {
    read_form(L, MATRICES, &beside);
    packing.beside = &beside;
  }
  mhagen_pack(&packing, &given->weights, push_memory(L, packing.bytes)->at);
  return 1;
}

/* packed_head(name, fingerprint, bytes) -> what a file of packed weights of this kernel begins with, without layers */
static int host_packed_head(lua_State *L) {
  const lua_Integer bytes = luaL_checkinteger(L, 3);
  luaL_argcheck(L, bytes >= 0 && bytes <= NUMBER_MOST, 3, "out of range");
  const mhagen_kernel kernel = {.name = luaL_checkstring(L, 1), .packed_bytes = (size_t)bytes,
                                .fingerprint = fingerprint_of(luaL_checkstring(L, 2))};
  const mhagen_packed_head head = mhagen_packed_begin(&kernel);
  lua_pushlstring(L, (const char *)&head, sizeof head);
  return 1;
}

/* add_packed(head, memory) -> the head with one layer more; add_packed(head, memory, true): with a part of the first
 * layer, whose parts are added in their order */
static int host_add_packed(lua_State *L) {
  mhagen_packed_head head;
  size_t size;
  const char *text = luaL_checklstring(L, 1, &size);
  const Memory *memory = luaL_checkudata(L, 2, MEMORY);
  luaL_argcheck(L, size == sizeof head, 1, "is no head");
  memcpy(&head, text, sizeof head);
  const uint64_t of_layer = head.packed_bytes;
  if (lua_toboolean(L, 3)) head.layers = 0, head.packed_bytes = memory->bytes;
  luaL_argcheck(L, memory->bytes == head.packed_bytes, 2, "has another size");
  mhagen_packed_add(&head, memory->at);
  head.packed_bytes = of_layer;
  lua_pushlstring(L, (const char *)&head, sizeof head);
  return 1;
}

/* Adds what packs. */
void add_packing(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"pack", host_pack},
      {"packed_head", host_packed_head},
      {"add_packed", host_add_packed},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
