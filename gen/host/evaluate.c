/* evaluate.c: runs a tape without a compiler. gen/tape/program.lua makes the program of a tape. gen/isa/ops.lua has the
 * meaning of an op, and gen/tape/meaning.lua makes its program.
 *
 * A program is lists of integers. A function has registers of 16 words, pointers, integers, and bytes for its buffers;
 * its code are statements. A meaning is computed lane by lane into cells: words of floats, doubles, or integers.
 */
#define _DEFAULT_SOURCE

#include <float.h>
#include <lauxlib.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "host.h"
#include "mhagen.h"
#include "tensors.h"

enum { LANES = 16, TILE = 256, TILES = 8, CELLS = 256, OPERANDS = 4, DEEP = 200 };

typedef union Cell {
  double d;
  int64_t i; /* an integer, a condition, or the bits of a float */
} Cell;

typedef struct Pointer {
  unsigned char *at, *first, *end; /* what may be touched */
} Pointer;

typedef struct Meaning {
  const int64_t *code;
  size_t count; /* of integers, six for each instruction */
  int64_t result, kind;
} Meaning;

typedef struct Function {
  const int64_t *code;
  size_t count;
  int64_t ints, pointers, registers, bytes;
} Function;

typedef struct Frame {
  int64_t *ints;
  Pointer *pointers;
  uint32_t (*registers)[LANES];
  unsigned char *bytes;
  uint32_t result[LANES];
} Frame;

typedef struct Machine {
  lua_State *L;
  const Function *functions;
  const Meaning *meanings;
  const double *constants;
  Pointer *globals;
  int64_t function_count, meaning_count, global_count;
  uint32_t tiles[TILES][TILE];
  int depth;
} Machine;

/* What an op works on. */
typedef struct Operands {
  const uint32_t *word[OPERANDS]; /* of registers */
  int64_t number[OPERANDS];       /* integers and literals */
  Pointer memory;
  const uint32_t *tile[OPERANDS];
  int lanes, first, step;
  uint32_t (*state)[LANES]; /* low and high of a tile */
} Operands;

/* ---- numbers ---- */

static float float_of(int64_t bits) {
  const uint32_t word = (uint32_t)bits;
  float x;
  memcpy(&x, &word, sizeof x);
  return x;
}

static int64_t bits_of(float x) {
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  return word;
}

static int64_t signed_of(int64_t bits) { return (int32_t)(uint32_t)bits; }

/* To so many bits of the significand, the last of which is at least that of numbers from 2^least on. */
static double nearest(double x, int bits, int least, double most) {
  if (!isfinite(x) || x == 0) return x;
  const int exponent = ilogb(x) > least ? ilogb(x) : least;
  const double step = ldexp(1, exponent - bits + 1), rounded = rint(x / step) * step;
  return fabs(rounded) > most ? copysign(INFINITY, x) : rounded;
}

static double flushed(double x) { return fabs(x) < (double)FLT_MIN ? copysign(0, x) : x; }

/* x + y rounded to odd as float32, and flushed (Boldo & Melquiond 2008). */
static double odd_sum(double x, double y) {
  double sum = x + y;
  const double part = sum - x, lost = (x - (sum - part)) + (y - part);
  if (isfinite(sum)) {
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (lost != 0 && bits % 2 == 0) bits = (lost > 0) == (sum > 0) ? bits + 1 : bits - 1;
    if (bits % (1u << 29) > 0) bits = bits >> 29 << 29 | 1u << 29;
    memcpy(&sum, &bits, sizeof sum);
  }
  return fabs(sum) >= 0x1p128 ? copysign(INFINITY, sum) : flushed(sum);
}

static double of_half(int64_t word) {
  const int exponent = (int)(word >> 10 & 31), fraction = (int)(word & 1023);
  const double size = exponent == 31 ? (fraction > 0 ? NAN : INFINITY)
                      : exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
  return word & 0x8000 ? -size : size;
}

/* The bits of a number of half precision. */
static int64_t to_half(double x) {
  const double size = fabs(x);
  const int64_t sign = signbit(x) ? 0x8000 : 0;
  if (isnan(x)) return 0x7E00;
  if (isinf(x)) return sign | 0x7C00;
  if (size < 0x1p-14) return sign | (int64_t)ldexp(size, 24);
  return sign | (int64_t)(ilogb(size) + 15) << 10 | ((int64_t)ldexp(size, 10 - ilogb(size)) & 1023);
}

/* The bits of a power of two as bfloat16. */
static int64_t power_of(double x) {
  const int64_t twice = x < 65280 ? (int64_t)rint(fmax(x, 0)) : 65280;
  const double part = fmod((double)(twice / 4 % 64 * 4 + 25) / 256.0, 1);
  return (twice + (int64_t)floor(23.5 + 256 * (exp2(part) - 1 - part)) + 1) >> 1;
}

static int64_t part_of(int64_t word, int64_t bits, int64_t n, bool with_sign) {
  const int64_t low = word >> bits * n & ((1 << bits) - 1);
  return with_sign && low >= 1 << (bits - 1) ? low - (1 << bits) : low;
}

static int64_t integer_of(double x) { return isfinite(x) ? (int64_t)rint(x) : 0; }

/* ---- meanings ---- */

/* In the order of `instructions` in gen/tape/meaning.lua. */
enum {
  LANE, AT, NUMBER, LOAD, LOAD_BYTE, LOAD_SIGNED, LOAD_BF16, LOAD_HALF, INDEX, STEP, GIVEN, BITS_GIVEN, CONSTANT,
  INTEGER, TILE_AT, STATE,
  FLOAT_TO_DOUBLE, DOUBLE_TO_FLOAT, INT_TO_DOUBLE, DOUBLE_TO_INT, WORD_TO_INT,
  ADD, SUB, MUL, DIV, LESS, EQUAL, INT_ADD, INT_SUB, INT_MUL, INT_DIV, INT_MOD, INT_LESS, INT_EQUAL, NOT, AND,
  PICK, FMAF, SQRT, EXP2, FLOOR, RINT, FABS, IS_NAN, BF16, F16, FLUSHED, ODD, LOW, HIGH, PAIR, LOW_F16, HIGH_F16,
  PAIR_F16, BYTE, UNSIGNED_BYTE, NIBBLE, SHORT, SHORTS, QUAD, POWER, SHIFT, AND_BITS, XOR_BITS, ADD_BITS, ALL
};

static int fails(const Machine *m, const char *what) { return luaL_error(m->L, "evaluate: %s", what); }

/* Reads `size` bytes at number `index` of the memory. */
static int64_t load(const Machine *m, const Operands *o, int64_t index, int64_t size) {
  const unsigned char *const at = o->memory.at + index * size;
  uint64_t word = 0;
  if (at < o->memory.first || at + size > o->memory.end) fails(m, "reads outside of a buffer");
  memcpy(&word, at, (size_t)size); /* little-endian, as gen/host is */
  return (int64_t)word;
}

#define EACH for (int i = 0; i < count; ++i)
#define CASE(name, value) case name: EACH { c[i] = (Cell)value; } break

/* Computes `count` lanes from o->first on. */
static void compute(const Machine *m, const Meaning *meaning, const Operands *o, int count, Cell *cells) {
  for (const int64_t *at = meaning->code, *const end = at + meaning->count; at < end; at += 6) {
    Cell *const c = cells + at[1] * LANES;
    const Cell *const x = cells + at[2] * LANES, *const y = cells + at[3] * LANES, *const z = cells + at[4] * LANES,
               *const w = cells + at[5] * LANES;
    const int64_t k = at[2];
    switch (at[0]) {
      CASE(LANE, {.i = o->word[k][i]});
      CASE(AT, {.i = o->word[k][y[i].i & (LANES - 1)]});
      CASE(NUMBER, {.i = o->word[x[i].i / o->lanes & (OPERANDS - 1)][x[i].i % o->lanes]});
      CASE(LOAD, {.i = z[i].i ? load(m, o, y[i].i, 4) : 0});
      CASE(LOAD_BYTE, {.i = z[i].i ? load(m, o, y[i].i, 1) : 0});
      CASE(LOAD_SIGNED, {.i = z[i].i ? (int8_t)load(m, o, y[i].i, 1) : 0});
      CASE(LOAD_BF16, {.i = z[i].i ? load(m, o, y[i].i, 2) << 16 : 0});
      CASE(LOAD_HALF, {.d = z[i].i ? of_half(load(m, o, y[i].i, 2)) : 0});
      CASE(INDEX, {.i = o->first + i});
      CASE(STEP, {.i = o->step});
      CASE(GIVEN, {.i = o->number[k]});
      CASE(BITS_GIVEN, {.i = o->number[k]});
      CASE(CONSTANT, {.d = m->constants[k]});
      CASE(INTEGER, {.i = k});
      CASE(TILE_AT, {.i = o->tile[k][y[i].i & (TILE - 1)]});
      CASE(STATE, {.i = o->state[k][i]});
      CASE(FLOAT_TO_DOUBLE, {.d = (double)float_of(x[i].i)});
      CASE(DOUBLE_TO_FLOAT, {.i = bits_of((float)x[i].d)});
      CASE(INT_TO_DOUBLE, {.d = (double)x[i].i});
      CASE(DOUBLE_TO_INT, {.i = integer_of(x[i].d)});
      CASE(WORD_TO_INT, {.i = signed_of(x[i].i)});
      CASE(ADD, {.d = x[i].d + y[i].d});
      CASE(SUB, {.d = x[i].d - y[i].d});
      CASE(MUL, {.d = x[i].d * y[i].d});
      CASE(DIV, {.d = x[i].d / y[i].d});
      CASE(LESS, {.i = x[i].d < y[i].d});
      CASE(EQUAL, {.i = !(x[i].d < y[i].d) && !(x[i].d > y[i].d)});
      CASE(INT_ADD, {.i = x[i].i + y[i].i});
      CASE(INT_SUB, {.i = x[i].i - y[i].i});
      CASE(INT_MUL, {.i = x[i].i * y[i].i});
      CASE(INT_DIV, {.i = x[i].i / y[i].i});
      CASE(INT_MOD, {.i = x[i].i % y[i].i});
      CASE(INT_LESS, {.i = x[i].i < y[i].i});
      CASE(INT_EQUAL, {.i = x[i].i == y[i].i});
      CASE(NOT, {.i = !x[i].i});
      CASE(AND, {.i = x[i].i && y[i].i});
      case PICK: EACH { c[i] = x[i].i ? y[i] : z[i]; } break;
      CASE(FMAF, {.i = bits_of(fmaf(float_of(x[i].i), float_of(y[i].i), float_of(z[i].i)))});
      CASE(SQRT, {.d = sqrt(x[i].d)});
      CASE(EXP2, {.d = exp2(x[i].d)});
      CASE(FLOOR, {.d = floor(x[i].d)});
      CASE(RINT, {.d = rint(x[i].d)});
      CASE(FABS, {.d = fabs(x[i].d)});
      CASE(IS_NAN, {.i = isnan(x[i].d)});
      CASE(BF16, {.d = nearest(x[i].d, 8, -126, 0x1.FEp127)});
      CASE(F16, {.d = nearest(x[i].d, 11, -14, 65504)});
      CASE(FLUSHED, {.d = flushed(x[i].d)});
      CASE(ODD, {.d = odd_sum(x[i].d, y[i].d)});
      CASE(LOW, {.d = flushed((double)float_of(x[i].i << 16))});
      CASE(HIGH, {.d = flushed((double)float_of(x[i].i & 0xFFFF0000))});
      CASE(PAIR, {.i = (x[i].i >> 16 & 0xFFFF) | (y[i].i & 0xFFFF0000)});
      CASE(LOW_F16, {.d = of_half(x[i].i & 0xFFFF)});
      CASE(HIGH_F16, {.d = of_half(x[i].i >> 16 & 0xFFFF)});
      CASE(PAIR_F16, {.i = to_half(x[i].d) | to_half(y[i].d) << 16});
      CASE(BYTE, {.i = part_of(x[i].i, 8, y[i].i, true)});
      CASE(UNSIGNED_BYTE, {.i = part_of(x[i].i, 8, y[i].i, false)});
      CASE(NIBBLE, {.i = part_of(x[i].i, 4, y[i].i, true)});
      CASE(SHORT, {.i = part_of(x[i].i, 16, y[i].i, true)});
      CASE(SHORTS, {.i = (integer_of(x[i].d) & 0xFFFF) | (integer_of(y[i].d) & 0xFFFF) << 16});
      CASE(QUAD, {.i = (integer_of(x[i].d) & 255) | (integer_of(y[i].d) & 255) << 8 |
                       (integer_of(z[i].d) & 255) << 16 | (integer_of(w[i].d) & 255) << 24});
      CASE(POWER, {.i = power_of(x[i].d)});
      CASE(SHIFT, {.i = signed_of(x[i].i << y[i].i)});
      CASE(AND_BITS, {.i = signed_of(x[i].i & y[i].i)});
      CASE(XOR_BITS, {.i = signed_of(x[i].i ^ y[i].i)});
      CASE(ADD_BITS, {.i = signed_of(x[i].i + y[i].i)});
      case ALL: {
        int64_t all = 1;
        for (int i = 0; i < o->lanes; ++i) all = all && o->word[k][i];
        EACH { c[i].i = all; }
        break;
      }
      default: fails(m, "no such instruction");
    }
  }
}

/* ---- statements ---- */

/* In the order of `statements` in gen/tape/program.lua. */
enum { OP, LOOP, WHEN, UNLESS, CALL, APPLY, RESULT, INT, INT_AT, FLOAT_AT, BUMP, MOVE, BUFFER };
enum { VARIABLE, QUOTIENT, REMAINDER, LEAST, MOST };              /* atoms of an integer expression */
enum { NO_FMA, FUSED, UNFUSED };
enum { REGISTER, MEMORY_AT, WHOLE, TILE_OF };                     /* operands */
enum { TO_REGISTER, TO_MEMORY, TO_TILE, FROM_TILE, NOTHING };     /* what an op does with its result */

static int64_t evaluate(const Frame *f, const int64_t **code) {
  const int64_t *at = *code;
  int64_t sum = *at++;
  for (int64_t left = *at++; left > 0; --left) {
    const int64_t coefficient = *at++, kind = *at++;
    int64_t value;
    if (kind == VARIABLE) {
      value = f->ints[*at++];
    } else {
      value = evaluate(f, &at);
      const int64_t other = evaluate(f, &at);
      if (kind == QUOTIENT) value = value / other;
      if (kind == REMAINDER) value = value % other;
      if (kind == LEAST && other < value) value = other;
      if (kind == MOST && other > value) value = other;
    }
    sum += coefficient * value;
  }
  *code = at;
  return sum;
}

static Pointer *slot(const Machine *m, const Frame *f, int64_t at) {
  return at < 0 ? &m->globals[-1 - at] : &f->pointers[at];
}

/* A pointer with an offset in numbers of some bytes. */
static Pointer pointer(const Machine *m, const Frame *f, const int64_t **code) {
  const Pointer *const from = slot(m, f, (*code)[0]);
  const int64_t size = (*code)[1];
  *code += 2;
  Pointer to = *from;
  to.at += evaluate(f, code) * size;
  return to;
}

static void store(const Machine *m, const Pointer *to, int64_t index, int64_t size, int64_t word) {
  unsigned char *const at = to->at + index * size;
  const uint64_t bits = (uint64_t)word;
  if (at < to->first || at + size > to->end) fails(m, "writes outside of a buffer");
  memcpy(at, &bits, (size_t)size);
}

/* An op of tiles: rows of 16 words. */
static void run_tile(const Machine *m, const Meaning *meaning, Operands *o, uint32_t *tile, int64_t fold) {
  Cell cells[CELLS * LANES];
  uint32_t out[TILE], state[2][LANES];
  o->state = state;
  const Meaning *const low = fold >= 0 ? &m->meanings[fold] : NULL, *const high = low ? low + 1 : NULL;
  for (o->first = 0; o->first < TILE; o->first += LANES) {
    memset(state, 0, sizeof state);
    for (o->step = 0; low && o->step < LANES; ++o->step) {
      uint32_t next[2][LANES];
      compute(m, low, o, LANES, cells);
      for (int i = 0; i < LANES; ++i) next[0][i] = (uint32_t)cells[low->result * LANES + i].i;
      compute(m, high, o, LANES, cells);
      for (int i = 0; i < LANES; ++i) next[1][i] = (uint32_t)cells[high->result * LANES + i].i;
      memcpy(state, next, sizeof next);
    }
    compute(m, meaning, o, LANES, cells);
    for (int i = 0; i < LANES; ++i) {
      const uint32_t word = (uint32_t)cells[meaning->result * LANES + i].i;
      if (tile) out[o->first + i] = word;
      else store(m, &o->memory, o->first / LANES * o->number[2] + i, 4, word);
    }
  }
  if (tile) memcpy(tile, out, sizeof out);
}

/* meaning; lanes; results, or -1: as many as the third operand says; which fma; the register of the result, or the
 * bytes of a number in memory; the first of two meanings for the states of a tile, or -1; how many operands; these */
static const int64_t *run_op(Machine *m, Frame *f, const int64_t *at) {
  static const uint32_t none[LANES];
  const Meaning *const meaning = &m->meanings[at[0]];
  const int64_t target = at[4], fold = at[5];
  int count = (int)at[2];
  const int64_t how = at[3];
  Operands o = {.word = {none, none, none, none}, .lanes = (int)at[1]};
  uint32_t *tile = NULL;
  const int64_t operands = at[6];
  at += 7;
  for (int64_t k = 0; k < operands; ++k) {
    const int64_t kind = *at++;
    if (kind == REGISTER) o.word[k] = f->registers[*at++];
    if (kind == MEMORY_AT) o.memory = pointer(m, f, &at);
    if (kind == WHOLE) o.number[k] = evaluate(f, &at);
    if (kind == TILE_OF) {
      if (k == 0) tile = m->tiles[*at];
      o.tile[k] = m->tiles[*at++];
    }
  }
  if (meaning->kind == NOTHING) return at;
  if (meaning->kind == TO_TILE || meaning->kind == FROM_TILE) {
    run_tile(m, meaning, &o, meaning->kind == TO_TILE ? tile : NULL, fold);
    return at;
  }
  if (how != NO_FMA) { /* the same without cells, for most of a kernel are these */
    uint32_t *const out = f->registers[target];
    for (int i = 0; i < count; ++i) {
      const float a = float_of(o.word[0][i]), b = float_of(o.word[1][i]), c = float_of(o.word[2][i]);
      const float product = (float)((double)a * (double)b);
      out[i] = (uint32_t)bits_of(how == FUSED ? fmaf(a, b, c) : (float)((double)product + (double)c));
    }
    return at;
  }
  Cell cells[CELLS * LANES];
  if (count < 0) count = (int)o.number[2];
  compute(m, meaning, &o, count, cells);
  const Cell *const result = cells + meaning->result * LANES;
  if (meaning->kind == TO_REGISTER) {
    for (int i = 0; i < count; ++i) f->registers[target][i] = (uint32_t)result[i].i;
  } else {
    for (int i = 0; i < count; ++i) store(m, &o.memory, i, target, result[i].i);
  }
  return at;
}

static void call(Machine *m, int64_t number, Frame *from, const int64_t **code, uint32_t *result);

static void run(Machine *m, Frame *f, const int64_t *at, const int64_t *const end) {
  while (at < end) {
    switch (*at++) {
      case OP: at = run_op(m, f, at); break;
      case LOOP: {
        const int64_t var = *at++, count = evaluate(f, &at), length = *at++;
        for (int64_t i = 0; i < count; ++i) {
          f->ints[var] = i;
          run(m, f, at, at + length);
        }
        at += length;
        break;
      }
      case WHEN: {
        const int64_t left = evaluate(f, &at), right = evaluate(f, &at), yes = *at++, no = *at++;
        if (left < right) run(m, f, at, at + yes);
        else run(m, f, at + yes, at + yes + no);
        at += yes + no;
        break;
      }
      case UNLESS: {
        bool good = true;
        for (int64_t left = *at++; left > 0; --left) good = f->registers[*at++][0] != 0 && good;
        const int64_t length = *at++;
        if (!good) run(m, f, at, at + length);
        at += length;
        break;
      }
      case CALL: {
        const int64_t number = *at++;
        call(m, number, f, &at, NULL);
        break;
      }
      case APPLY: {
        const int64_t number = *at++, target = *at++;
        call(m, number, f, &at, f->registers[target]);
        break;
      }
      case RESULT: memcpy(f->result, f->registers[*at++], sizeof f->result); break;
      case INT: {
        const int64_t var = *at++;
        f->ints[var] = evaluate(f, &at);
        break;
      }
      case INT_AT: {
        const int64_t var = *at++;
        Operands o = {.memory = pointer(m, f, &at)};
        f->ints[var] = signed_of(load(m, &o, 0, 4));
        break;
      }
      case FLOAT_AT: {
        const int64_t var = *at++;
        Operands o = {.memory = pointer(m, f, &at)};
        f->ints[var] = (int64_t)float_of(load(m, &o, 0, 4));
        break;
      }
      case BUMP: {
        Pointer *const moved = slot(m, f, at[0]);
        *moved = pointer(m, f, &at);
        break;
      }
      case MOVE: {
        const int64_t to = *at++;
        f->pointers[to] = pointer(m, f, &at);
        break;
      }
      case BUFFER: {
        unsigned char *const first = f->bytes + at[1];
        memset(first, 0xFF, (size_t)at[2]); /* NaN */
        f->pointers[at[0]] = (Pointer){first, first, first + at[2]};
        at += 3;
        break;
      }
      default: fails(m, "no such statement");
    }
  }
}

/* The arguments go to the first registers, pointers and integers of the function. */
static void call(Machine *m, int64_t number, Frame *from, const int64_t **code, uint32_t *result) {
  if (number < 0 || number >= m->function_count || ++m->depth > DEEP || caught) fails(m, "cannot call");
  const Function *const fn = &m->functions[number];
  const size_t ints = (size_t)fn->ints * sizeof(int64_t), pointers = (size_t)fn->pointers * sizeof(Pointer),
               registers = (size_t)fn->registers * sizeof(uint32_t[LANES]);
  Memory *const memory = push_memory(m->L, ints + pointers + registers + (size_t)fn->bytes);
  unsigned char *const at = memory->at; /* the largest first, so that all are aligned */
  Frame frame = {.bytes = at, .registers = (void *)(at + fn->bytes)};
  frame.pointers = (void *)(at + (size_t)fn->bytes + registers);
  frame.ints = (void *)(at + (size_t)fn->bytes + registers + pointers);
  int64_t next_int = 0, next_pointer = 0, next_register = 0;
  for (int64_t left = *(*code)++; left > 0; --left) {
    const int64_t kind = *(*code)++;
    if (kind == REGISTER) {
      memcpy(frame.registers[next_register++], from->registers[*(*code)++], sizeof *frame.registers);
    }
    if (kind == MEMORY_AT) frame.pointers[next_pointer++] = pointer(m, from, code);
    if (kind == WHOLE) frame.ints[next_int++] = evaluate(from, code);
  }
  run(m, &frame, fn->code, fn->code + fn->count);
  if (result) memcpy(result, frame.result, sizeof frame.result);
  free(memory->at);
  memory->at = NULL;
  lua_pop(m->L, 1);
  --m->depth;
}

/* ---- for Lua ---- */

static int64_t integer_in(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  const int64_t value = luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return value;
}

/* The list `code` of the table on top, in memory that stays below it. */
static const int64_t *code_in(lua_State *L, size_t *count) {
  lua_getfield(L, -1, "code");
  *count = (size_t)lua_rawlen(L, -1);
  int64_t *const code = push_memory(L, (*count + 6) * sizeof *code)->at;
  for (size_t i = 0; i < *count; ++i) {
    lua_rawgeti(L, -2, (lua_Integer)i + 1);
    code[i] = luaL_checkinteger(L, -1);
    lua_pop(L, 1);
  }
  lua_setfield(L, -3, "kept"); /* as long as the table */
  lua_pop(L, 1);
  return code;
}

/* evaluate(program, number, buffers): calls function `number` of what gen/tape/program.lua makes, with its integers.
 * buffers: memory by the numbers of global pointers, or false. */
static int host_evaluate(lua_State *L) {
  lua_settop(L, 4);
  luaL_checkstack(L, DEEP + 40, NULL);
  Machine *const m = push_memory(L, sizeof *m)->at;
  memset(m, 0, sizeof *m);
  m->L = L;
  lua_getfield(L, 1, "functions");
  m->function_count = (int64_t)lua_rawlen(L, -1);
  Function *const functions = push_memory(L, (size_t)m->function_count * sizeof *functions + 1)->at;
  for (int64_t i = 0; i < m->function_count; ++i) {
    lua_rawgeti(L, -2, i + 1);
    functions[i].code = code_in(L, &functions[i].count);
    functions[i].ints = integer_in(L, "ints"), functions[i].pointers = integer_in(L, "pointers");
    functions[i].registers = integer_in(L, "registers"), functions[i].bytes = integer_in(L, "bytes");
    lua_pop(L, 1);
  }
  lua_getfield(L, 1, "meanings");
  m->meaning_count = (int64_t)lua_rawlen(L, -1);
  Meaning *const meanings = push_memory(L, (size_t)m->meaning_count * sizeof *meanings + 1)->at;
  for (int64_t i = 0; i < m->meaning_count; ++i) {
    lua_rawgeti(L, -2, i + 1);
    meanings[i].code = code_in(L, &meanings[i].count);
    meanings[i].result = integer_in(L, "result"), meanings[i].kind = integer_in(L, "kind");
    lua_pop(L, 1);
  }
  lua_getfield(L, 1, "constants");
  const size_t constants = (size_t)lua_rawlen(L, -1);
  double *const doubles = push_memory(L, (constants + 1) * sizeof *doubles)->at;
  for (size_t i = 0; i < constants; ++i) {
    lua_rawgeti(L, -2, (lua_Integer)i + 1);
    doubles[i] = luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  m->global_count = (int64_t)lua_rawlen(L, 3);
  m->globals = push_memory(L, (size_t)m->global_count * sizeof *m->globals + 1)->at;
  for (int64_t i = 0; i < m->global_count; ++i) {
    lua_rawgeti(L, 3, i + 1);
    m->globals[i] = (Pointer){NULL, NULL, NULL};
    if (lua_toboolean(L, -1)) {
      const Memory *const memory = luaL_checkudata(L, -1, MEMORY);
      unsigned char *const at = memory->at;
      m->globals[i] = (Pointer){at, at, at + memory->bytes};
    }
    lua_pop(L, 1);
  }
  m->functions = functions, m->meanings = meanings, m->constants = doubles;
  const int64_t arguments[] = {0}, *code = arguments;
  call(m, luaL_checkinteger(L, 2), NULL, &code, NULL);
  return 0;
}

/* ---- known numbers, as templates/known_answer.c.in has them ---- */

static uint32_t known_bits(lua_Integer i) {
  uint32_t bits = ((uint32_t)i + 1) * 0x9E3779B1u;
  bits = (bits ^ bits >> 15) * 0x85EBCA77u;
  return bits ^ bits >> 13;
}

static size_t count_at(lua_State *L, int index) {
  const lua_Integer count = luaL_checkinteger(L, index);
  luaL_argcheck(L, count >= 0 && count <= NUMBER_MOST, index, "out of range");
  return (size_t)count;
}

/* known_numbers(first, count, scale) -> memory of floats */
static int host_known_numbers(lua_State *L) {
  const lua_Integer first = luaL_checkinteger(L, 1);
  const float scale = (float)luaL_checknumber(L, 3);
  const size_t count = count_at(L, 2);
  float *const to = push_memory(L, count * sizeof *to)->at;
  for (size_t i = 0; i < count; ++i) {
    to[i] = (float)((int32_t)(known_bits(first + (lua_Integer)i) >> 16) - 32768) * scale;
  }
  return 1;
}

/* known_words(first, count, keep, set) -> memory of words of 16 bits */
static int host_known_words(lua_State *L) {
  const lua_Integer first = luaL_checkinteger(L, 1);
  const uint32_t keep = (uint32_t)luaL_checkinteger(L, 3), set = (uint32_t)luaL_checkinteger(L, 4);
  const size_t count = count_at(L, 2);
  uint16_t *const to = push_memory(L, count * sizeof *to)->at;
  for (size_t i = 0; i < count; ++i) {
    to[i] = (uint16_t)((known_bits(first + (lua_Integer)i) >> 16 & keep) | set);
  }
  return 1;
}

/* known_lengths(count, value) -> memory of ints */
static int host_known_lengths(lua_State *L) {
  const size_t count = count_at(L, 1);
  const int32_t value = (int32_t)luaL_checkinteger(L, 2);
  int32_t *const to = push_memory(L, count * sizeof *to)->at;
  for (size_t i = 0; i < count; ++i) to[i] = value;
  return 1;
}

/* known_ranges(rows, keys) -> memory of two ints for each row, as templates/known_ranges.c.in has them */
static int host_known_ranges(lua_State *L) {
  const size_t rows = count_at(L, 1);
  const int32_t keys = (int32_t)luaL_checkinteger(L, 2);
  int32_t *const to = push_memory(L, 2 * rows * sizeof *to)->at;
  for (size_t i = 0; i < rows; ++i) {
    to[2 * i] = 5 * (int32_t)i % keys / 2;
    to[2 * i + 1] = keys - 3 * (int32_t)i % keys / 2;
  }
  return 1;
}

/* known_sum(sum, memory) -> the checksum with all words of the memory; up to a line's end these are zeros */
static int host_known_sum(lua_State *L) {
  uint64_t sum = (uint64_t)luaL_checkinteger(L, 1);
  const Memory *const memory = luaL_checkudata(L, 2, MEMORY);
  for (size_t i = 0; i < (memory->bytes + MHAGEN_ALIGN - 1) / MHAGEN_ALIGN * MHAGEN_ALIGN; i += 4) {
    uint32_t word = 0;
    if (i < memory->bytes) memcpy(&word, (const char *)memory->at + i, sizeof word);
    if (word == 0x80000000u) word = 0;
    sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
    sum ^= sum >> 32;
  }
  return lua_pushinteger(L, (lua_Integer)sum), 1;
}

/* Adds `evaluate`, and what known answers take. */
void add_evaluate(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"evaluate", host_evaluate},
      {"known_numbers", host_known_numbers},
      {"known_words", host_known_words},
      {"known_lengths", host_known_lengths},
      {"known_ranges", host_known_ranges},
      {"known_sum", host_known_sum},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
