/* arrays.c: arrays of doubles, for gen/onnx/evaluate.lua, which computes a part of a graph and what a config says.
 *
 * An array is memory of the generator. Its axes are the caller's: lists of extents, and of steps in numbers, from an
 * index of each axis to the next one. Each access is compared with the sizes of the memory, whatever the caller says.
 */
#define _DEFAULT_SOURCE

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <lauxlib.h>

#include "arrays.h"
#include "decoders.h"
#include "host.h"
#include "mhagen.h"

enum { AXES = 16, OPERANDS = 3, COLLECTED = 1 << 29 };

const double *numbers_at(lua_State *L, int index, size_t *count) {
  const Memory *memory = luaL_checkudata(L, index, MEMORY);
  *count = memory->bytes / sizeof(double);
  return memory->at;
}

/* Lua does not see how much memory its arrays have: so it collects what is left over when they are many. */
static double *push_numbers(lua_State *L, int64_t count) {
  static size_t since;
  if (count < 0 || count > NUMBER_MOST) luaL_error(L, "an array of %I numbers", (LUAI_UACINT)count);
  const size_t bytes = (size_t)count * sizeof(double);
  since += bytes;
  if (since > COLLECTED) lua_gc(L, LUA_GCCOLLECT), since = bytes;
  return push_memory(L, bytes)->at;
}

/* ---- axes ---- */

/* Extents, outermost first, and the steps of several arrays. */
typedef struct Axes {
  int count;
  int64_t size[AXES], step[OPERANDS + 1][AXES], numbers;
} Axes;

static void read_extents(lua_State *L, int index, Axes *axes) {
  luaL_checktype(L, index, LUA_TTABLE);
  const lua_Integer count = (lua_Integer)lua_rawlen(L, index);
  luaL_argcheck(L, count <= AXES, index, "too many axes");
  *axes = (Axes){.count = (int)count, .numbers = 1};
  for (int a = 0; a < axes->count; ++a) {
    lua_rawgeti(L, index, a + 1);
    axes->size[a] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
    luaL_argcheck(L, axes->size[a] >= 0 && axes->size[a] <= NUMBER_MOST, index, "an extent is out of its range");
    luaL_argcheck(L, axes->size[a] == 0 || axes->numbers <= NUMBER_MOST / axes->size[a], index, "too many numbers");
    axes->numbers *= axes->size[a];
  }
}

/* The steps of an array that has `count` numbers, from `base` on. */
static void read_steps(lua_State *L, int index, Axes *axes, int which, int64_t base, size_t count) {
  int64_t low = base, high = base;
  luaL_checktype(L, index, LUA_TTABLE);
  for (int a = 0; a < axes->count; ++a) {
    lua_rawgeti(L, index, a + 1);
    const int64_t step = luaL_checkinteger(L, -1), size = axes->size[a];
    lua_pop(L, 1);
    if (step > NUMBER_MOST || step < -NUMBER_MOST ||
        (size > 1 && (step > 0 ? step : -step) > NUMBER_MOST / size)) {
      luaL_error(L, "a step is out of its range");
    }
    axes->step[which][a] = step;
    if (size > 0) *(step > 0 ? &high : &low) += (size - 1) * step;
  }
  if (axes->numbers > 0 && (low < 0 || high >= (int64_t)count)) luaL_error(L, "out of an array");
}

/* Calls row(at, from, ..) for each index of the outer axes, with where its numbers along the last axis begin. */
typedef struct Walk {
  int64_t index[AXES], at[OPERANDS + 1];
} Walk;

static bool next_row(const Axes *axes, Walk *walk) {
  for (int a = axes->count - 2; a >= 0; --a) {
    const bool more = ++walk->index[a] < axes->size[a];
    for (int k = 0; k <= OPERANDS; ++k) walk->at[k] += axes->step[k][a] * (more ? 1 : 1 - axes->size[a]);
    if (more) return true;
    walk->index[a] = 0;
  }
  return false;
}

static int64_t row_size(const Axes *axes) { return axes->count > 0 ? axes->size[axes->count - 1] : 1; }
static int64_t row_step(const Axes *axes, int k) { return axes->count > 0 ? axes->step[k][axes->count - 1] : 0; }

/* ---- numbers of files ---- */

/* numbers(list) -> an array of these; numbers(count, x): of so many x */
static int host_numbers(lua_State *L) {
  const bool list = lua_istable(L, 1);
  const int64_t count = list ? (int64_t)lua_rawlen(L, 1) : luaL_checkinteger(L, 1);
  const double x = list ? 0 : luaL_checknumber(L, 2);
  double *to = push_numbers(L, count);
  for (int64_t i = 0; i < count; ++i) {
    to[i] = x;
    if (!list) continue;
    lua_rawgeti(L, 1, i + 1);
    to[i] = luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  return 1;
}

/* widened(memory) -> an array of the floats in it */
static int host_widened(lua_State *L) {
  const Memory *memory = luaL_checkudata(L, 1, MEMORY);
  const int64_t count = (int64_t)(memory->bytes / sizeof(float));
  double *to = push_numbers(L, count);
  const float *from = memory->at;
  for (int64_t i = 0; i < count; ++i) to[i] = (double)from[i];
  return 1;
}

/* list(array, first, count) -> a list of its numbers, integers where they are such */
static int host_list(lua_State *L) {
  size_t count;
  const double *at = numbers_at(L, 1, &count);
  const lua_Integer first = luaL_checkinteger(L, 2), wanted = luaL_checkinteger(L, 3);
  luaL_argcheck(L, first >= 0 && wanted >= 0 && first <= (lua_Integer)count - wanted, 2, "out of range");
  lua_createtable(L, (int)(wanted < 1 << 20 ? wanted : 0), 0);
  for (lua_Integer i = 0; i < wanted; ++i) {
    const double x = at[first + i];
    if (x == floor(x) && fabs(x) < 0x1p53) lua_pushinteger(L, (lua_Integer)x);
    else lua_pushnumber(L, x);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* A little-endian integer, or the bits of a double. */
static uint64_t word_at(const unsigned char *p, size_t bytes) {
  uint64_t bits = 0;
  for (size_t i = bytes; i > 0; --i) bits = bits << 8 | p[i - 1];
  return bits;
}

static double double_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static double signed_of(uint64_t bits, size_t bytes) {
  const uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
  return (double)(int64_t)((bits ^ sign) - sign);
}

/* decoded(bytes, type, count) -> an array of the numbers that a string has, or nil for another type */
static int host_decoded(lua_State *L) {
  enum { DOUBLE, SIGNED, UNSIGNED, FLAG };
  static const struct {
    const char *name;
    size_t bytes;
    int kind;
  } wide[] = {{"F64", 8, DOUBLE},   {"I64", 8, SIGNED}, {"U64", 8, UNSIGNED}, {"I32", 4, SIGNED},
              {"U32", 4, UNSIGNED}, {"I16", 2, SIGNED}, {"U16", 2, UNSIGNED}, {"bool", 1, FLAG}};
  size_t size;
  const unsigned char *from = (const unsigned char *)luaL_checklstring(L, 1, &size);
  const char *name = luaL_checkstring(L, 2);
  const lua_Integer wanted = luaL_checkinteger(L, 3);
  luaL_argcheck(L, wanted >= 0 && wanted <= NUMBER_MOST, 3, "out of range");
  const size_t count = (size_t)wanted;
  for (size_t t = 0; t < sizeof wide / sizeof *wide; ++t) { /* floats would round them */
    if (strcmp(wide[t].name, name) != 0) continue;
    const size_t bytes = wide[t].bytes;
    luaL_argcheck(L, count <= size / bytes, 3, "more than there are");
    double *to = push_numbers(L, wanted);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bits = word_at(from + i * bytes, bytes);
      to[i] = wide[t].kind == DOUBLE   ? double_of(bits)
              : wide[t].kind == SIGNED ? signed_of(bits, bytes)
              : wide[t].kind == FLAG   ? bits != 0
                                       : (double)bits;
    }
    return 1;
  }
  const Type *type = find_type(name);
  if (type == NULL) type = find_integers(name);
  if (type == NULL) return 0;
  const size_t elements = (size_t)type->elements, blocks = (count + elements - 1) / elements;
  luaL_argcheck(L, blocks <= size / (size_t)type->bytes, 3, "more than there are");
  float *floats = push_memory(L, blocks * elements * sizeof *floats)->at;
  type->read(from, floats, blocks);
  double *to = push_numbers(L, wanted);
  for (size_t i = 0; i < count; ++i) to[i] = (double)floats[i];
  return 1;
}

/* ---- numbers for numbers ---- */

static double op_copy(const double *x) { return x[0]; }
static double op_abs(const double *x) { return fabs(x[0]); }
static double op_acos(const double *x) { return acos(x[0]); }
static double op_asin(const double *x) { return asin(x[0]); }
static double op_atan(const double *x) { return atan(x[0]); }
static double op_ceil(const double *x) { return ceil(x[0]); }
static double op_cos(const double *x) { return cos(x[0]); }
static double op_cosh(const double *x) { return cosh(x[0]); }
static double op_erf(const double *x) { return erf(x[0]); }
static double op_exp(const double *x) { return exp(x[0]); }
static double op_floor(const double *x) { return floor(x[0]); }
static double op_isinf(const double *x) { return isinf(x[0]) != 0; }
static double op_isnan(const double *x) { return x[0] != x[0]; }
static double op_log(const double *x) { return log(x[0]); }
static double op_neg(const double *x) { return -x[0]; }
static double op_not(const double *x) { return x[0] == 0; }
static double op_nonzero(const double *x) { return x[0] != 0; }
static double op_round(const double *x) { return rint(x[0]); }
static double op_sign(const double *x) { return (x[0] > 0) - (x[0] < 0); }
static double op_sin(const double *x) { return sin(x[0]); }
static double op_sinh(const double *x) { return sinh(x[0]); }
static double op_sqrt(const double *x) { return sqrt(x[0]); }
static double op_tan(const double *x) { return tan(x[0]); }
static double op_tanh(const double *x) { return tanh(x[0]); }
static double op_trunc(const double *x) { return trunc(x[0]); }
static double op_add(const double *x) { return x[0] + x[1]; }
static double op_sub(const double *x) { return x[0] - x[1]; }
static double op_mul(const double *x) { return x[0] * x[1]; }
static double op_div(const double *x) { return x[0] / x[1]; }
static double op_quotient(const double *x) { return x[1] == 0 ? NAN : trunc(x[0] / x[1]); }
static double op_pow(const double *x) { return pow(x[0], x[1]); }
static double op_fmod(const double *x) { return fmod(x[0], x[1]); }
static double op_mod(const double *x) { return x[0] - x[1] * floor(x[0] / x[1]); }
static double op_max(const double *x) { return x[0] > x[1] || x[0] != x[0] ? x[0] : x[1]; }
static double op_min(const double *x) { return x[0] < x[1] || x[0] != x[0] ? x[0] : x[1]; }
static double op_equal(const double *x) { return x[0] == x[1]; }
static double op_less(const double *x) { return x[0] < x[1]; }
static double op_less_equal(const double *x) { return x[0] <= x[1]; }
static double op_and(const double *x) { return x[0] != 0 && x[1] != 0; }
static double op_or(const double *x) { return x[0] != 0 || x[1] != 0; }
static double op_xor(const double *x) { return (x[0] != 0) != (x[1] != 0); }
static double op_where(const double *x) { return x[0] != 0 ? x[1] : x[2]; }

typedef struct Op {
  const char *name;
  int operands;
  double (*of)(const double *x);
} Op;

#define OP(name, operands) {#name, operands, op_##name}
static const Op ops[] = {
    OP(copy, 1), OP(abs, 1), OP(acos, 1), OP(asin, 1), OP(atan, 1), OP(ceil, 1), OP(cos, 1), OP(cosh, 1), OP(erf, 1),
    OP(exp, 1), OP(floor, 1), OP(isinf, 1), OP(isnan, 1), OP(log, 1), OP(neg, 1), OP(not, 1), OP(nonzero, 1),
    OP(round, 1), OP(sign, 1), OP(sin, 1), OP(sinh, 1), OP(sqrt, 1), OP(tan, 1), OP(tanh, 1), OP(trunc, 1), OP(add, 2),
    OP(sub, 2), OP(mul, 2), OP(div, 2), OP(quotient, 2), OP(pow, 2), OP(fmod, 2), OP(mod, 2), OP(max, 2), OP(min, 2),
    OP(equal, 2), OP(less, 2), OP(less_equal, 2), OP(and, 2), OP(or, 2), OP(xor, 2), OP(where, 3)};
#undef OP

static const Op *find_op(lua_State *L, int index) {
  const char *name = luaL_checkstring(L, index);
  for (size_t i = 0; i < sizeof ops / sizeof *ops; ++i) {
    if (strcmp(ops[i].name, name) == 0) return &ops[i];
  }
  luaL_error(L, "no operation %s", name);
  return NULL;
}

/* Most numbers pass these, without a call for each; returns false for others. */
static bool fast_row(const Op *op, double *to, int64_t count, const double *x, int64_t s, const double *y, int64_t t) {
#define EACH(expression) \
  for (int64_t i = 0; i < count; ++i) to[i] = x[i * s] expression y[i * t]
  if (op->of == op_add) EACH(+);
  else if (op->of == op_sub) EACH(-);
  else if (op->of == op_mul) EACH(*);
  else if (op->of == op_div) EACH(/);
  else return false;
#undef EACH
  return true;
}

/* applied(op, shape, x, steps, ..) -> an array of this shape; each operand has its own steps, 0 where it is the same
 * for all indices of an axis */
static int host_applied(lua_State *L) {
  const Op *op = find_op(L, 1);
  Axes axes;
  read_extents(L, 2, &axes);
  const double *x[OPERANDS] = {NULL};
  for (int k = 0; k < op->operands; ++k) {
    size_t count;
    x[k] = numbers_at(L, 3 + 2 * k, &count);
    read_steps(L, 4 + 2 * k, &axes, k, 0, count);
  }
  double *to = push_numbers(L, axes.numbers);
  const int64_t count = row_size(&axes);
  Walk walk = {{0}, {0}};
  if (axes.numbers == 0) return 1;
  do {
    if (op->operands != 2 || !fast_row(op, to, count, x[0] + walk.at[0], row_step(&axes, 0), x[1] + walk.at[1],
                                       row_step(&axes, 1))) {
      for (int64_t i = 0; i < count; ++i) {
        double of[OPERANDS];
        for (int k = 0; k < op->operands; ++k) of[k] = x[k][walk.at[k] + i * row_step(&axes, k)];
        to[i] = op->of(of);
      }
    }
    to += count;
  } while (next_row(&axes, &walk));
  return 1;
}

/* ---- other places ---- */

/* copy(shape, to, base, steps, from, base, steps): numbers from one array into another */
static int host_copy(lua_State *L) {
  Axes axes;
  read_extents(L, 1, &axes);
  size_t room, count;
  double *to = (double *)(uintptr_t)numbers_at(L, 2, &room);
  const double *from = numbers_at(L, 5, &count);
  const lua_Integer first = luaL_checkinteger(L, 3), base = luaL_checkinteger(L, 6);
  luaL_argcheck(L, first >= 0 && first <= NUMBER_MOST && base >= 0 && base <= NUMBER_MOST, 3, "out of range");
  read_steps(L, 4, &axes, 0, first, room);
  read_steps(L, 7, &axes, 1, base, count);
  if (axes.numbers == 0) return 0;
  Walk walk = {{0}, {first, base}};
  do {
    double *p = to + walk.at[0];
    const double *q = from + walk.at[1];
    const int64_t s = row_step(&axes, 0), t = row_step(&axes, 1);
    for (int64_t i = 0, size = row_size(&axes); i < size; ++i, p += s, q += t) *p = *q;
  } while (next_row(&axes, &walk));
  return 0;
}

/* The places that an array says, of blocks of so many numbers; a negative one is counted from the end. */
static int64_t place_of(lua_State *L, double index, int64_t places) {
  if (index < 0) index += (double)places;
  if (!(index >= 0 && index < (double)places)) luaL_error(L, "an index is out of its range");
  return (int64_t)index;
}

/* taken(from, outer, places, inner, index) -> [outer][indices][inner] of [outer][places][inner] */
static int host_taken(lua_State *L) {
  size_t count, wanted;
  const double *from = numbers_at(L, 1, &count), *index = numbers_at(L, 5, &wanted);
  const lua_Integer outer = luaL_checkinteger(L, 2), places = luaL_checkinteger(L, 3), inner = luaL_checkinteger(L, 4);
  luaL_argcheck(L, outer >= 0 && places >= 0 && inner >= 0 && outer <= NUMBER_MOST && places <= NUMBER_MOST &&
                inner <= NUMBER_MOST, 2, "out of range");
  const double all = (double)outer * (double)places * (double)inner;
  luaL_argcheck(L, all <= (double)count, 1, "too short");
  if ((double)outer * (double)wanted * (double)inner > (double)NUMBER_MOST) return luaL_error(L, "too many numbers");
  double *to = push_numbers(L, outer * (lua_Integer)wanted * inner);
  for (int64_t o = 0; o < outer; ++o) {
    for (size_t k = 0; k < wanted; ++k, to += inner) {
      const int64_t at = o * places + place_of(L, index[k], places);
      memcpy(to, from + at * inner, (size_t)inner * sizeof *to);
    }
  }
  return 1;
}

/* put(to, index, inner, from): blocks of so many numbers to the places that an array says */
static int host_put(lua_State *L) {
  size_t room, wanted, count;
  double *to = (double *)(uintptr_t)numbers_at(L, 1, &room);
  const double *index = numbers_at(L, 2, &wanted), *from = numbers_at(L, 4, &count);
  const lua_Integer inner = luaL_checkinteger(L, 3);
  luaL_argcheck(L, inner >= 0 && inner <= NUMBER_MOST, 3, "out of range");
  luaL_argcheck(L, (double)wanted * (double)inner <= (double)count, 4, "too short");
  for (size_t k = 0; k < wanted && inner > 0; ++k) {
    memcpy(to + place_of(L, index[k], (int64_t)room / inner) * inner, from + k * (size_t)inner,
           (size_t)inner * sizeof *to);
  }
  return 0;
}

/* ---- sums ---- */

#if defined(__GNUC__)
#define INLINE inline __attribute__((always_inline))
#else
#define INLINE inline
#endif

/* Four rows at a time, so that b is read once for them; a row of a is passed over where it is zero. */
static INLINE void multiply_rows(const double *a, const double *b, double *c, size_t rows, size_t inner,
                                 size_t columns) {
  size_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    double *restrict c0 = c + r * columns, *restrict c1 = c0 + columns, *restrict c2 = c1 + columns,
                     *restrict c3 = c2 + columns;
    for (size_t i = 0; i < inner; ++i) {
      const double *restrict of = b + i * columns;
      const double *x = a + r * inner + i;
      const double x0 = x[0], x1 = x[inner], x2 = x[2 * inner], x3 = x[3 * inner];
      const int used = (x0 != 0) + (x1 != 0) + (x2 != 0) + (x3 != 0);
      if (used == 0) continue;
      if (used == 1) {
        double *restrict to = x0 != 0 ? c0 : x1 != 0 ? c1 : x2 != 0 ? c2 : c3;
        const double by = x0 + x1 + x2 + x3;
        for (size_t j = 0; j < columns; ++j) to[j] += by * of[j];
        continue;
      }
      for (size_t j = 0; j < columns; ++j) {
        c0[j] += x0 * of[j];
        c1[j] += x1 * of[j];
        c2[j] += x2 * of[j];
        c3[j] += x3 * of[j];
      }
    }
  }
  for (; r < rows; ++r) {
    double *restrict to = c + r * columns;
    for (size_t i = 0; i < inner; ++i) {
      const double x = a[r * inner + i];
      const double *restrict of = b + i * columns;
      if (x == 0) continue;
      for (size_t j = 0; j < columns; ++j) to[j] += x * of[j];
    }
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"))) static void multiply_avx2(const double *a, const double *b, double *c, size_t rows,
                                                              size_t inner, size_t columns) {
  multiply_rows(a, b, c, rows, inner, columns);
}
#endif

void multiply(const double *a, const double *b, double *c, size_t rows, size_t inner, size_t columns) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (mhagen_cpu_has(MHAGEN_CPU_AVX2)) {
    multiply_avx2(a, b, c, rows, inner, columns);
    return;
  }
#endif
  multiply_rows(a, b, c, rows, inner, columns);
}

/* product(a, b, shape, steps of a, steps of b, rows, inner, columns) -> [shape][rows][columns]: of the matrices
 * [rows][inner] of a and [inner][columns] of b that lie at these places */
static int host_product(lua_State *L) {
  size_t in_a, in_b;
  const double *a = numbers_at(L, 1, &in_a), *b = numbers_at(L, 2, &in_b);
  Axes axes;
  read_extents(L, 3, &axes);
  read_steps(L, 4, &axes, 0, 0, in_a);
  read_steps(L, 5, &axes, 1, 0, in_b);
  size_t of[3];
  for (int k = 0; k < 3; ++k) {
    luaL_argcheck(L, luaL_checkinteger(L, 6 + k) >= 0 && luaL_checkinteger(L, 6 + k) <= INT32_MAX, 6 + k,
                  "out of range");
    of[k] = (size_t)luaL_checkinteger(L, 6 + k);
  }
  const size_t rows = of[0], inner = of[1], columns = of[2], size = rows * columns;
  if (size > 0 && axes.numbers > NUMBER_MOST / (int64_t)size) return luaL_error(L, "too many numbers");
  double *to = push_numbers(L, axes.numbers * (int64_t)size);
  memset(to, 0, (size_t)axes.numbers * size * sizeof *to);
  Walk walk = {{0}, {0}};
  if (axes.numbers == 0) return 1;
  do {
    for (int64_t i = 0; i < row_size(&axes); ++i, to += size) {
      const size_t at_a = (size_t)(walk.at[0] + i * row_step(&axes, 0)),
                   at_b = (size_t)(walk.at[1] + i * row_step(&axes, 1));
      if (at_a + rows * inner > in_a || at_b + inner * columns > in_b) return luaL_error(L, "out of an array");
      multiply(a + at_a, b + at_b, to, rows, inner, columns);
    }
  } while (next_row(&axes, &walk));
  return 1;
}

/* reduced(how, x, outer, size, inner) -> [outer][inner]: the sum, product, maximum or minimum of [outer][size][inner];
 * cumulative: [outer][size][inner], the sums up to each */
static int host_reduced(lua_State *L) {
  static const char *const names[] = {"sum", "prod", "max", "min", "cumulative", NULL};
  enum { SUM, PROD, MAX, MIN, CUMULATIVE };
  const int how = luaL_checkoption(L, 1, NULL, names);
  size_t count;
  const double *from = numbers_at(L, 2, &count);
  const lua_Integer outer = luaL_checkinteger(L, 3), size = luaL_checkinteger(L, 4), inner = luaL_checkinteger(L, 5);
  luaL_argcheck(L, outer >= 0 && size >= 0 && inner >= 0 && outer <= NUMBER_MOST && size <= NUMBER_MOST &&
                inner <= NUMBER_MOST, 3, "out of range");
  luaL_argcheck(L, (double)outer * (double)size * (double)inner <= (double)count, 2, "too short");
  luaL_argcheck(L, (double)outer * (double)inner <= (double)NUMBER_MOST, 3, "out of range");
  double *to = push_numbers(L, outer * inner * (how == CUMULATIVE ? size : 1));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      const double *x = from + o * size * inner + i;
      double sum = how == PROD ? 1 : how == MAX ? -INFINITY : how == MIN ? INFINITY : 0;
      for (int64_t k = 0; k < size; ++k, x += inner) {
        const double pair[] = {*x, sum};
        if (how == PROD) sum *= *x;
        else if (how == MAX) sum = op_max(pair);
        else if (how == MIN) sum = op_min(pair);
        else sum += *x;
        if (how == CUMULATIVE) to[(o * size + k) * inner + i] = sum;
      }
      if (how != CUMULATIVE) to[o * inner + i] = sum;
    }
  }
  return 1;
}

/* ---- drawn numbers ---- */

static uint64_t next_word(uint64_t *state) { /* Steele, Lea and Flood 2014, SplitMix */
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static double uniform(uint64_t *state) { return (double)(next_word(state) >> 11) * 0x1p-53; }

/* About normal, of deviation 1, and a float. */
static double drawn(uint64_t *state) {
  double sum = 0;
  for (int i = 0; i < 6; ++i) sum += uniform(state) - 0.5;
  return (double)(float)(sum * 1.4142135623730951);
}

/* drawn(seed, rows, width, every, by) -> rows of normal numbers. In a row one number of `every` is drawn, the others
 * are 0; of row r all are times by[r % #by]. */
static int host_drawn(lua_State *L) {
  uint64_t state = (uint64_t)luaL_checkinteger(L, 1);
  const lua_Integer rows = luaL_checkinteger(L, 2), width = luaL_checkinteger(L, 3), every = luaL_checkinteger(L, 4);
  luaL_argcheck(L, rows >= 0 && width >= 0 && rows <= INT32_MAX && width <= INT32_MAX, 2, "out of range");
  luaL_argcheck(L, every > 0, 4, "out of range");
  luaL_checktype(L, 5, LUA_TTABLE);
  const lua_Integer factors = (lua_Integer)lua_rawlen(L, 5);
  luaL_argcheck(L, factors > 0, 5, "has no number");
  double *to = push_numbers(L, rows * width);
  for (lua_Integer r = 0; r < rows; ++r) {
    lua_rawgeti(L, 5, r % factors + 1);
    const double by = luaL_checknumber(L, -1);
    lua_pop(L, 1);
    const uint64_t place = next_word(&state) % (uint64_t)every;
    for (lua_Integer i = 0; i < width; ++i) {
      const bool take = every == 1 || ((uint64_t)i + place + (uint64_t)(i / every * 7)) % (uint64_t)every == 0;
      *to++ = take ? (double)(float)(drawn(&state) * by) : 0;
    }
  }
  return 1;
}

/* chosen(seed, count, list) -> so many numbers of a list, drawn; of nil a normal one */
static int host_chosen(lua_State *L) {
  uint64_t state = (uint64_t)luaL_checkinteger(L, 1);
  const lua_Integer count = luaL_checkinteger(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  lua_getfield(L, 3, "n");
  const lua_Integer choices = luaL_checkinteger(L, -1);
  luaL_argcheck(L, choices > 0, 3, "is empty");
  double *to = push_numbers(L, count);
  for (lua_Integer i = 0; i < count; ++i) {
    lua_rawgeti(L, 3, (lua_Integer)(next_word(&state) % (uint64_t)choices) + 1);
    to[i] = lua_isnil(L, -1) ? drawn(&state) : luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  return 1;
}

/* Adds what computes with arrays. */
void add_arrays(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"numbers", host_numbers}, {"list", host_list},       {"decoded", host_decoded}, {"applied", host_applied},
      {"copy", host_copy},       {"taken", host_taken},     {"put", host_put},         {"product", host_product},
      {"reduced", host_reduced}, {"drawn", host_drawn},     {"chosen", host_chosen},   {"widened", host_widened},
      {NULL, NULL},
  };
  luaL_newlib(L, functions);
  add_formula(L);
  lua_setfield(L, -2, "arrays");
}
