/* narrowing.c: floats in memory of the generator, as numbers of fewer bits. */

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <lauxlib.h>

#include "tensors.h"

/* Each writes a row of numbers, and says whether none of them is lost: a finite one that would become infinite, and
 * with int8 any that is not finite. */
typedef bool narrow_row(const float *from, size_t count, void *to);

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* The nearest number, ties to even; NaNs keep their upper bits, and stay NaNs. */
static uint32_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if (x != x) return bits >> 16 | ((bits & 0x7F0000) == 0 ? 0x40 : 0);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

static uint32_t to_f16(float x) {
  const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
  if (x != x) return sign | 0x7C00 | (bits >> 13 & 0x3FF) | ((bits & 0x7FE000) == 0 ? 0x200 : 0);
  if (fabsf(x) >= 65520.0f) return sign | 0x7C00;
  if (fabsf(x) < 0x1p-14f) return sign | (uint32_t)lrintf(fabsf(x) * 0x1p24f); /* so many times 2^-24 */
  return sign | (((size + 0xFFF + (size >> 13 & 1)) >> 13) - (112u << 10));
}

static bool narrow_short(const float *from, size_t count, uint16_t *to, uint32_t (*short_of)(float)) {
  const uint32_t infinity = short_of(INFINITY);
  bool good = true;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = short_of(from[i]);
    to[i] = (uint16_t)bits;
    good = good && (isinf(from[i]) || (bits & 0x7FFF) != infinity);
  }
  return good;
}

static bool narrow_bf16(const float *from, size_t count, void *to) { return narrow_short(from, count, to, to_bf16); }

static bool narrow_f16(const float *from, size_t count, void *to) { return narrow_short(from, count, to, to_f16); }

/* A scale in front of the numbers, which are from -127 to 127 times that. It has 16 binary digits, so that these
 * products are exact in float, and is rounded down, so that none of them overflows. */
static bool narrow_int8(const float *from, size_t count, void *to) {
  float most = 0.0f;
  for (size_t i = 0; i < count; ++i) {
    if (!isfinite(from[i])) return false;
    most = fmaxf(most, fabsf(from[i]));
  }
  int exponent;
  const double part = frexp(most / 127.0, &exponent);
  const float scale = (float)ldexp(floor(ldexp(part, 16)), exponent - 16);
  memcpy(to, &scale, sizeof scale);
  int8_t *const steps = (int8_t *)to + sizeof scale;
  for (size_t i = 0; i < count; ++i) {
    const double step = scale > 0.0f ? rint(from[i] / (double)scale) : 0.0;
    steps[i] = (int8_t)fmax(-127.0, fmin(step, 127.0));
  }
  return true;
}

static const char *const names[] = {"bf16", "f16", "int8", NULL};
static narrow_row *const rows_of[] = {narrow_bf16, narrow_f16, narrow_int8};

/* narrowed(memory, type, columns) -> memory of its rows of so many floats, with numbers of this type: rows lie behind
 * each other, with int8 each behind a scale as float, and up to a multiple of its size; nil if a number is lost */
static int host_narrowed(lua_State *L) {
  const Memory *memory = luaL_checkudata(L, 1, MEMORY);
  const int type = luaL_checkoption(L, 2, NULL, names);
  const lua_Integer columns = luaL_checkinteger(L, 3);
  const size_t count = memory->bytes / sizeof(float);
  luaL_argcheck(L, columns > 0 && count % (size_t)columns == 0, 3, "does not divide the memory");
  const size_t width = (size_t)columns, scaled = sizeof(float) + (width + 3) / 4 * 4;
  const size_t bytes = rows_of[type] == narrow_int8 ? scaled : width * sizeof(uint16_t);
  char *to = push_memory(L, count / width * bytes)->at;
  memset(to, 0, count / width * bytes);
  bool good = true;
  for (size_t r = 0; r < count / width; ++r) {
    good = rows_of[type]((const float *)memory->at + r * width, width, to + r * bytes) && good;
  }
  return good ? 1 : 0;
}

/* Adds what makes numbers of fewer bits. */
void add_narrowing(lua_State *L) {
  static const luaL_Reg functions[] = {{"narrowed", host_narrowed}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
