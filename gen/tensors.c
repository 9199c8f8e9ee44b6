/* tensors.c: files of tensors, their numbers as floats, and the packing of weights, for the generator.
 *
 * What a file says of itself is read in Lua (gen/model/), of strings that file:bytes returns. Here each
 * access is compared with the sizes of the file and of the memory, whatever the caller says, and no file is
 * mapped: one that becomes shorter while it is read is an error, not a signal.
 *
 * A function that fails returns nil and a message of one line.
 */
#define _DEFAULT_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>

#include "mhagen.h"
#include "tensors.h"

enum {
  BYTES_MOST = 1 << 27,  /* that Lua gets at once */
  CHUNK_BYTES = 1 << 20, /* that are read at once */
};
#define NUMBER_MOST ((lua_Integer)1 << 48) /* of what a caller says: sums and products of two small ones fit */

static int fail(lua_State *L, const char *what, const char *why) {
  lua_pushnil(L);
  lua_pushfstring(L, "%s: %s", what, why);
  return 2;
}

/* The field of the table at index 2, from least to NUMBER_MOST; a missing one is `missing`. */
static int64_t field(lua_State *L, const char *name, int64_t least, int64_t missing) {
  int64_t value = missing;
  if (lua_getfield(L, 2, name) != LUA_TNIL) value = luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  if (value < least || value > NUMBER_MOST) luaL_error(L, "%s is out of its range", name);
  return value;
}

/* ---- memory ---- */

/* Pushes so many bytes, aligned for packed weights. They are not cleared: that took a tenth of the time. */
static Memory *push_memory(lua_State *L, size_t bytes) {
  Memory *memory = lua_newuserdatauv(L, sizeof *memory, 0);
  *memory = (Memory){NULL, bytes};
  luaL_setmetatable(L, MEMORY);
  if (bytes > SIZE_MAX - MHAGEN_ALIGN ||
      posix_memalign(&memory->at, MHAGEN_ALIGN, bytes + MHAGEN_ALIGN - bytes % MHAGEN_ALIGN) != 0) {
    memory->at = NULL;
    lua_pushliteral(L, "not enough memory"); /* as Lua itself raises it */
    lua_error(L);
  }
  return memory;
}

static void release(Memory *memory) {
  free(memory->at);
  *memory = (Memory){NULL, 0};
}

/* memory:free(): now, for the collector does not know how much it is */
static int memory_free(lua_State *L) { return release(luaL_checkudata(L, 1, MEMORY)), 0; }

/* #memory -> bytes */
static int memory_size(lua_State *L) {
  lua_pushinteger(L, (lua_Integer)((Memory *)luaL_checkudata(L, 1, MEMORY))->bytes);
  return 1;
}

/* memory:floats(first, count) -> a list of its floats */
static int memory_floats(lua_State *L) {
  const Memory *memory = luaL_checkudata(L, 1, MEMORY);
  const lua_Integer first = luaL_checkinteger(L, 2), count = luaL_checkinteger(L, 3);
  const lua_Integer size = (lua_Integer)(memory->bytes / sizeof(float));
  luaL_argcheck(L, first >= 0 && first <= size, 2, "out of range");
  luaL_argcheck(L, count >= 0 && count <= size - first, 3, "out of range");
  lua_newtable(L);
  for (lua_Integer i = 0; i < count; ++i) {
    lua_pushnumber(L, (double)((const float *)memory->at)[first + i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* floats(count) -> memory of so many floats, zeros */
static int host_floats(lua_State *L) {
  const lua_Integer count = luaL_checkinteger(L, 1);
  luaL_argcheck(L, count >= 0 && count <= NUMBER_MOST, 1, "out of range");
  const size_t bytes = (size_t)count * sizeof(float);
  memset(push_memory(L, bytes)->at, 0, bytes);
  return 1;
}

/* ---- files ---- */

#define FILE_TYPE "mhagen.file"

typedef struct File {
  int fd; /* -1: closed */
  int64_t size;
} File;

static File *check_file(lua_State *L, int index) { return luaL_checkudata(L, index, FILE_TYPE); }

static int file_close(lua_State *L) {
  File *file = check_file(L, 1);
  if (file->fd >= 0) close(file->fd);
  file->fd = -1;
  return 0;
}

/* open_file(path) -> a regular file */
static int host_open_file(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  File *file = lua_newuserdatauv(L, sizeof *file, 0);
  *file = (File){-1, 0};
  luaL_setmetatable(L, FILE_TYPE);
  file->fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* a FIFO must not block */
  if (file->fd < 0) return fail(L, path, strerror(errno));
  struct stat status;
  if (fstat(file->fd, &status) != 0) return fail(L, path, strerror(errno));
  if (S_ISDIR(status.st_mode)) return fail(L, path, "is a directory");
  if (!S_ISREG(status.st_mode)) return fail(L, path, "is not a regular file");
  file->size = (int64_t)status.st_size;
  return 1;
}

static int file_size(lua_State *L) {
  lua_pushinteger(L, check_file(L, 1)->size);
  return 1;
}

static bool inside(const File *file, int64_t at, int64_t count) {
  return at >= 0 && count >= 0 && at <= file->size && count <= file->size - at;
}

/* Reads bytes that are inside; NULL, or what went wrong. */
static const char *read_at(const File *file, int64_t at, void *to, size_t count) {
  for (size_t done = 0; done < count;) {
    const ssize_t got = pread(file->fd, (char *)to + done, count - done, (off_t)(at + (int64_t)done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return strerror(errno);
    if (got == 0) return "has become shorter while it was read";
    done += (size_t)got;
  }
  return NULL;
}

/* file:bytes(at, count) -> a string; nil and a message without the path */
static int file_bytes(lua_State *L) {
  const File *file = check_file(L, 1);
  const lua_Integer at = luaL_checkinteger(L, 2), count = luaL_checkinteger(L, 3);
  const char *why = NULL;
  if (!inside(file, at, count)) why = "ends before";
  else if (count > BYTES_MOST) why = "is too long";
  if (why == NULL) {
    luaL_Buffer buffer;
    why = read_at(file, at, luaL_buffinitsize(L, &buffer, (size_t)count), (size_t)count);
    if (why == NULL) return luaL_pushresultsize(&buffer, (size_t)count), 1;
  }
  lua_pushnil(L);
  lua_pushstring(L, why);
  return 2;
}

/* file:crc32(at, count) -> the CRC-32 of bytes that are inside; nil and a message without the path */
static int file_crc32(lua_State *L) {
  const File *file = check_file(L, 1);
  const lua_Integer at = luaL_checkinteger(L, 2), count = luaL_checkinteger(L, 3);
  luaL_argcheck(L, inside(file, at, count), 2, "out of the file");
  uint32_t of_byte[256], sum = 0xFFFFFFFFu;
  for (uint32_t i = 0; i < 256; ++i) {
    of_byte[i] = i;
    for (int bit = 0; bit < 8; ++bit) of_byte[i] = of_byte[i] >> 1 ^ (of_byte[i] & 1 ? 0xEDB88320u : 0);
  }
  Memory *chunk = push_memory(L, count < CHUNK_BYTES ? (size_t)count : CHUNK_BYTES);
  const char *why = NULL;
  for (int64_t done = 0; done < count && why == NULL; done += CHUNK_BYTES) {
    const size_t bytes = count - done < CHUNK_BYTES ? (size_t)(count - done) : CHUNK_BYTES;
    const unsigned char *byte = chunk->at;
    why = read_at(file, at + done, chunk->at, bytes);
    for (const unsigned char *const end = byte + (why == NULL ? bytes : 0); byte < end; ++byte) {
      sum = sum >> 8 ^ of_byte[(sum ^ *byte) & 255];
    }
  }
  release(chunk);
  if (why == NULL) return lua_pushinteger(L, (lua_Integer)(sum ^ 0xFFFFFFFFu)), 1;
  lua_pushnil(L);
  lua_pushstring(L, why);
  return 2;
}

/* ---- types of numbers ---- */

/* All files are little-endian. */
static uint32_t u16(const unsigned char *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static uint32_t u32(const unsigned char *p) { return u16(p) | u16(p + 2) << 16; }

static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static float half(const unsigned char *p) {
  const uint32_t bits = u16(p), sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, rest = bits & 0x3ff;
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * (float)rest * 0x1p-24f;
  return of_bits(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | rest << 13);
}

static void read_f64(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) {
    const uint64_t bits = (uint64_t)u32(from + 8 * i) | (uint64_t)u32(from + 8 * i + 4) << 32;
    double x;
    memcpy(&x, &bits, sizeof x);
    to[i] = (float)x;
  }
}

static void read_f32(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) to[i] = of_bits(u32(from + 4 * i));
}

static void read_f16(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) to[i] = half(from + 2 * i);
}

static void read_bf16(const unsigned char *from, float *to, size_t blocks) {
  for (size_t i = 0; i < blocks; ++i) to[i] = of_bits(u16(from + 2 * i) << 16);
}

/* Blocks of 32 numbers, as ggml has them: a scale, with _1 the least number too, with Q5 32 bits that stand above
 * the others, then the quants. Of a byte with two quants the low one is number i, the high one number i + 16. */

static void read_q8_0(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 34, to += 32) {
    const float scale = half(from);
    for (int i = 0; i < 32; ++i) to[i] = scale * (float)(int8_t)from[2 + i];
  }
}

/* A quant is of four bits and one of `high`; the number is scale * (quant - zero) + least. */
static void read_nibbles(const unsigned char *from, float *to, uint32_t high, const float of[3]) {
  for (int i = 0; i < 16; ++i) {
    const uint32_t low = (from[i] & 15u) | (high >> i & 1) << 4, up = from[i] >> 4 | (high >> (i + 16) & 1) << 4;
    to[i] = of[0] * ((float)low - of[1]) + of[2];
    to[i + 16] = of[0] * ((float)up - of[1]) + of[2];
  }
}

static void read_q4_0(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 18, to += 32) {
    read_nibbles(from + 2, to, 0, (const float[]){half(from), 8.0f, 0.0f});
  }
}

static void read_q4_1(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 20, to += 32) {
    read_nibbles(from + 4, to, 0, (const float[]){half(from), 0.0f, half(from + 2)});
  }
}

static void read_q5_0(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 22, to += 32) {
    read_nibbles(from + 6, to, u32(from + 2), (const float[]){half(from), 16.0f, 0.0f});
  }
}

static void read_q5_1(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 24, to += 32) {
    read_nibbles(from + 8, to, u32(from + 4), (const float[]){half(from), 0.0f, half(from + 2)});
  }
}

/* Quant i of those that lie as ggml has them: in rows of so many bytes, of which each has quants of `width` bits,
 * those of numbers that are a row apart; the low bits come first. */
static int quant(const unsigned char *from, int width, int row, int i) {
  const int in_byte = 8 / width;
  return from[i / (row * in_byte) * row + i % row] >> width * (i / row % in_byte) & ((1 << width) - 1);
}

enum { SUPER = 256 }; /* numbers of a block of K-quants: scales of 16 or 32 numbers are integers, times one of all */

static void read_q2_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 84, to += SUPER) {
    const float scale = half(from + 80), least = half(from + 82);
    for (int i = 0; i < SUPER; ++i) {
      const int of = from[i / 16];
      to[i] = scale * (float)(of & 15) * (float)quant(from + 16, 2, 32, i) - least * (float)(of >> 4);
    }
  }
}

static void read_q3_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 110, to += SUPER) {
    const float scale = half(from + 108);
    for (int i = 0; i < SUPER; ++i) {
      const int of = quant(from + 96, 4, 8, i / 16) | quant(from + 104, 2, 4, i / 16) << 4;
      const int q = quant(from + 32, 2, 32, i) | quant(from, 1, 32, i) << 2;
      to[i] = scale * (float)(of - 32) * (float)(q - 4);
    }
  }
}

/* The scale (which = 0) or the least number (1) of 32 numbers of Q4_K and Q5_K: 6 bits in 12 bytes. */
static float six_bits(const unsigned char *from, int which, int i) {
  if (i < 4) return (float)(from[4 * which + i] & 63);
  return (float)(quant(from + 8, 4, 4, 4 * which + i - 4) | from[4 * which + i - 4] >> 6 << 4);
}

/* Q4_K, and Q5_K where there is a fifth bit. */
static void read_least_k(const unsigned char *from, const unsigned char *fifth, const unsigned char *low, float *to) {
  const float scale = half(from), least = half(from + 2);
  for (int i = 0; i < SUPER; ++i) {
    const int q = quant(low, 4, 32, i) | (fifth != NULL ? quant(fifth, 1, 32, i) << 4 : 0);
    to[i] = scale * six_bits(from + 4, 0, i / 32) * (float)q - least * six_bits(from + 4, 1, i / 32);
  }
}

static void read_q4_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 144, to += SUPER) read_least_k(from, NULL, from + 16, to);
}

static void read_q5_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 176, to += SUPER) read_least_k(from, from + 16, from + 48, to);
}

static void read_q6_k(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 210, to += SUPER) {
    const float scale = half(from + 208);
    for (int i = 0; i < SUPER; ++i) {
      const int q = quant(from, 4, 64, i) | quant(from + 128, 2, 32, i) << 4;
      to[i] = scale * (float)(int8_t)from[192 + i / 16] * (float)(q - 32);
    }
  }
}

/* What a quant of IQ4 stands for. */
static const int8_t uneven[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void read_iq4_nl(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 18, to += 32) {
    const float scale = half(from);
    for (int i = 0; i < 32; ++i) to[i] = scale * (float)uneven[quant(from + 2, 4, 16, i)];
  }
}

static void read_iq4_xs(const unsigned char *from, float *to, size_t blocks) {
  for (; blocks > 0; --blocks, from += 136, to += SUPER) {
    const float scale = half(from);
    for (int i = 0; i < SUPER; ++i) {
      const int of = quant(from + 4, 4, 1, i / 32) | quant(from + 2, 2, 1, i / 32) << 4;
      to[i] = scale * (float)(of - 32) * (float)uneven[quant(from + 8, 4, 16, i)];
    }
  }
}

typedef struct Type {
  const char *name;
  int elements, bytes; /* of a block, which has neighbours in a row */
  void (*read)(const unsigned char *from, float *to, size_t blocks);
} Type;

static const Type types[] = {
    {"F64", 1, 8, read_f64},           {"F32", 1, 4, read_f32},           {"F16", 1, 2, read_f16},
    {"BF16", 1, 2, read_bf16},         {"Q8_0", 32, 34, read_q8_0},       {"Q4_0", 32, 18, read_q4_0},
    {"Q4_1", 32, 20, read_q4_1},       {"Q5_0", 32, 22, read_q5_0},       {"Q5_1", 32, 24, read_q5_1},
    {"Q2_K", SUPER, 84, read_q2_k},    {"Q3_K", SUPER, 110, read_q3_k},   {"Q4_K", SUPER, 144, read_q4_k},
    {"Q5_K", SUPER, 176, read_q5_k},   {"Q6_K", SUPER, 210, read_q6_k},   {"IQ4_NL", 32, 18, read_iq4_nl},
    {"IQ4_XS", SUPER, 136, read_iq4_xs},
};

static const Type *find_type(const char *name) {
  for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
    if (strcmp(types[i].name, name) == 0) return &types[i];
  }
  return NULL;
}

/* type_size(name) -> elements and bytes of a block, or nil for a type that is not read */
static int host_type_size(lua_State *L) {
  const Type *type = find_type(luaL_checkstring(L, 1));
  if (type == NULL) return 0;
  lua_pushinteger(L, type->elements);
  lua_pushinteger(L, type->bytes);
  return 2;
}

/* Some columns of some rows of a tensor, and their places in memory. */
typedef struct Part {
  const Type *type;
  int64_t row_bytes, rows, columns, column, used;
  int64_t to, row_step, column_step;
} Part;

/* Rows from the file's bytes to memory; `row` has room for one. */
static void place_rows(const Part *part, const unsigned char *from, size_t rows, float *to, float *row) {
  const size_t blocks = (size_t)(part->columns / part->type->elements);
  for (size_t r = 0; r < rows; ++r, from += part->row_bytes, to += part->row_step) {
    if (part->column_step == 1 && part->used == part->columns) {
      part->type->read(from, to, blocks);
      continue;
    }
    part->type->read(from, row, blocks);
    for (int64_t c = 0; c < part->used; ++c) to[c * part->column_step] = row[part->column + c];
  }
}

/* memory:read(part, file) -> true: copies columns column .. column + used - 1 (all) of `rows` rows of a tensor from
 * the byte `at` of the file on, which have `columns` numbers each, to floats to + r * row_step + c * column_step (1) */
static int memory_read(lua_State *L) {
  const Memory *memory = luaL_checkudata(L, 1, MEMORY);
  const File *file = check_file(L, 3);
  lua_getfield(L, 2, "type");
  Part part = {.type = find_type(luaL_checkstring(L, -1))};
  if (part.type == NULL) return luaL_error(L, "unknown type");
  const int64_t at = field(L, "at", 0, -1);
  part.rows = field(L, "rows", 1, -1);
  part.columns = field(L, "columns", 1, -1);
  part.column = field(L, "column", 0, 0);
  part.used = field(L, "used", 1, part.columns);
  part.to = field(L, "to", 0, 0);
  part.row_step = field(L, "row_step", 1, part.columns);
  part.column_step = field(L, "column_step", 1, 1);

  part.row_bytes = part.columns / part.type->elements * part.type->bytes;
  const int64_t floats = (int64_t)(memory->bytes / sizeof(float));
  if (part.columns % part.type->elements != 0 || part.column > part.columns - part.used) {
    return luaL_error(L, "columns are out of their range");
  }
  if (!inside(file, at, 0) || part.rows > (file->size - at) / part.row_bytes) {
    return luaL_error(L, "rows are out of the file");
  }
  /* The last float of the last row; divisions, for products may be too large. */
  int64_t left = floats - 1 - part.to;
  if (left < 0 || part.used - 1 > left / part.column_step) return luaL_error(L, "out of the memory");
  left -= (part.used - 1) * part.column_step;
  if (part.rows - 1 > left / part.row_step) return luaL_error(L, "out of the memory");

  const size_t at_once = part.row_bytes < CHUNK_BYTES ? (size_t)(CHUNK_BYTES / part.row_bytes) : 1;
  const size_t most = at_once < (size_t)part.rows ? at_once : (size_t)part.rows;
  Memory *bytes = push_memory(L, most * (size_t)part.row_bytes);
  Memory *row = push_memory(L, (size_t)part.columns * sizeof(float));
  const char *why = NULL;
  for (size_t r = 0; r < (size_t)part.rows && why == NULL; r += most) {
    const size_t rows = most < (size_t)part.rows - r ? most : (size_t)part.rows - r;
    why = read_at(file, at + (int64_t)r * part.row_bytes, bytes->at, rows * (size_t)part.row_bytes);
    float *to = (float *)memory->at + part.to + (int64_t)r * part.row_step;
    if (why == NULL) place_rows(&part, bytes->at, rows, to, row->at);
  }
  release(bytes);
  release(row);
  if (why == NULL) return lua_pushboolean(L, 1), 1;
  lua_pushnil(L);
  lua_pushstring(L, why);
  return 2;
}

/* memory:add(x): to each of its floats */
static int memory_add(lua_State *L) {
  const Memory *memory = luaL_checkudata(L, 1, MEMORY);
  const float x = (float)luaL_checknumber(L, 2);
  for (size_t i = 0; i < memory->bytes / sizeof(float); ++i) ((float *)memory->at)[i] += x;
  return 0;
}

/* ---- packing ---- */

/* In the order of mhagen_matrix, as gen/pack.lua names them. */
static const char *const matrices[] = {"wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo", "slopes", "sink_logits",
                                       "q_norm", "k_norm", "rope_cos", "rope_sin"};
_Static_assert(sizeof matrices / sizeof *matrices == MHAGEN_MATRICES, "a name for each matrix");

/* A field of the table on top as an integer, and as a matrix; zero where it is missing. */
static ptrdiff_t integer_in(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  const ptrdiff_t value = (ptrdiff_t)luaL_optinteger(L, -1, 0);
  lua_pop(L, 1);
  return value;
}

static int matrix_in(lua_State *L, const char *name) {
  int value = MHAGEN_NONE;
  if (lua_getfield(L, -1, name) != LUA_TNIL) {
    const char *text = luaL_checkstring(L, -1);
    for (int i = 0; i < MHAGEN_MATRICES; ++i) {
      if (strcmp(text, matrices[i]) == 0) value = MHAGEN_WQ + i;
    }
    if (value == MHAGEN_NONE) luaL_error(L, "no matrix %s", text);
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

/* The fill on top of the stack; its terms are written behind the first `count`. Returns their number. */
static int read_fill(lua_State *L, mhagen_pack_fill *fill, mhagen_pack_term *terms, int count) {
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
    lua_getfield(L, -1, "sign");
    const int sign = (int)luaL_optinteger(L, -1, 1);
    lua_pop(L, 1);
    terms[count + i] = (mhagen_pack_term){
        matrix_in(L, "a"), flag_in(L, "a_flipped"), matrix_in(L, "b"), flag_in(L, "b_flipped"),
        integer_in(L, "row"), integer_in(L, "column"), integer_in(L, "first"), integer_in(L, "inner"), sign};
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return fill->terms;
}

/* That of gen/fingerprint.lua. */
static uint64_t fingerprint_of(const char *text) { return strtoull(text, NULL, 16); }

/* pack(packing, weights) -> memory with the packed weights. packing: what gen/pack.lua's M.packing returns.
 * weights: memory by the names of matrices, and in_out = true where they lie so. */
static int host_pack(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checktype(L, 2, LUA_TTABLE);
  lua_settop(L, 2);
  luaL_checkstack(L, 40, NULL);
  lua_getfield(L, 1, "bytes");
  const lua_Integer bytes = luaL_checkinteger(L, -1);
  luaL_argcheck(L, bytes >= 0 && bytes <= NUMBER_MOST, 1, "bytes are out of their range");
  lua_getfield(L, 1, "fingerprint");
  mhagen_packing packing = {.bytes = (size_t)bytes, .fingerprint = fingerprint_of(luaL_optstring(L, -1, "0"))};
  lua_pop(L, 1);
  mhagen_weights weights = {.layout = MHAGEN_OUT_IN};

  const float *given[MHAGEN_MATRICES] = {NULL};
  lua_getfield(L, 1, "sizes");
  for (int i = 0; i < MHAGEN_MATRICES; ++i) {
    if (lua_getfield(L, 3 + 1, matrices[i]) == LUA_TTABLE) {
      lua_rawgeti(L, -1, 1), lua_rawgeti(L, -2, 2);
      packing.sizes[i] = (mhagen_matrix_size){(ptrdiff_t)luaL_checkinteger(L, -2),
                                              (ptrdiff_t)luaL_checkinteger(L, -1)};
      lua_pop(L, 2);
    }
    lua_pop(L, 1);
    if (lua_getfield(L, 2, matrices[i]) != LUA_TNIL) {
      const Memory *memory = luaL_checkudata(L, -1, MEMORY);
      const mhagen_matrix_size size = packing.sizes[i];
      if (memory->bytes / sizeof(float) != (size_t)size.rows * (size_t)size.columns) {
        return luaL_error(L, "%s has another size", matrices[i]);
      }
      given[i] = memory->at;
    }
    lua_pop(L, 1);
  }
  lua_getfield(L, 1, "instead"); /* what is pushed for it stays on the stack, as long as it is used */
  for (int i = 0; i < MHAGEN_MATRICES; ++i) {
    if (lua_getfield(L, 5, matrices[i]) == LUA_TNIL) {
      lua_pop(L, 1);
      continue;
    }
    const size_t count = (size_t)lua_rawlen(L, -1);
    const double *doubles = push_doubles(L);
    float *floats = push_memory(L, (count + 1) * sizeof *floats)->at;
    for (size_t j = 0; j < count; ++j) floats[j] = (float)doubles[j];
    packing.instead[i] = floats;
  }
  lua_getfield(L, 2, "in_out");
  if (lua_toboolean(L, -1)) weights.layout = MHAGEN_IN_OUT;
  weights.wq = given[0], weights.wk = given[1], weights.wv = given[2], weights.wo = given[3];
  weights.bq = given[4], weights.bk = given[5], weights.bv = given[6], weights.bo = given[7];
  weights.alibi = given[8], weights.sink = given[9], weights.q_norm = given[10], weights.k_norm = given[11];
  weights.rope_cos = given[12], weights.rope_sin = given[13];

  if (lua_getfield(L, 1, "turns") == LUA_TTABLE) packing.rope_turns = push_doubles(L);
  lua_getfield(L, 1, "first");
  packing.rope_first = (int)luaL_optinteger(L, -1, 0);

  enum { KINDS = 5 };
  static const char *const kinds[KINDS] = {"fills", "rounded", "pairs", "quants", "value_quants"};
  lua_getfield(L, 1, "lists");
  const int of_kinds = lua_gettop(L);
  luaL_checktype(L, of_kinds, LUA_TTABLE);
  size_t counts[KINDS], count = 0;
  for (int kind = 0; kind < KINDS; ++kind) count += counts[kind] = push_list(L, of_kinds, kinds[kind]);
  const int lists = lua_gettop(L) - KINDS + 1;
  mhagen_pack_fill *const list = push_memory(L, (count + 1) * sizeof *list)->at, *fill = list;
  mhagen_pack_term *terms = push_memory(L, (count + 1) * MHAGEN_PACK_TERMS * sizeof *terms)->at;
  int term = 0;
  for (int kind = 0; kind < KINDS; ++kind) {
    for (size_t i = 0; i < counts[kind]; ++i, ++fill) {
      lua_rawgeti(L, lists + kind, (lua_Integer)i + 1);
      term += read_fill(L, fill, terms, term);
      lua_pop(L, 1);
    }
  }
  packing.terms = terms;
  packing.fills = list, packing.fill_count = (int)counts[0];
  packing.rounded = packing.fills + counts[0], packing.rounded_count = (int)counts[1];
  packing.pairs = packing.rounded + counts[1], packing.pair_count = (int)counts[2];
  packing.quants = packing.pairs + counts[2], packing.quant_count = (int)counts[3];
  packing.value_quants = packing.quants + counts[3], packing.value_quant_count = (int)counts[4];
  lua_pushvalue(L, 1);
  packing.f16 = flag_in(L, "f16");
  lua_pop(L, 1);
  lua_getfield(L, 1, "deep");
  packing.deep = luaL_optinteger(L, -1, 1);
  lua_getfield(L, 1, "apart");
  packing.apart = luaL_optinteger(L, -1, 0);
  if (lua_getfield(L, 1, "quant") == LUA_TTABLE) {
    packing.quant_bits = (int)integer_in(L, "bits"), packing.quant_group = integer_in(L, "group");
    packing.quant_sums = flag_in(L, "sums");
  }
  mhagen_pack(&packing, &weights, push_memory(L, packing.bytes)->at);
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

/* add_packed(head, memory) -> the head with one layer more */
static int host_add_packed(lua_State *L) {
  mhagen_packed_head head;
  size_t size;
  const char *text = luaL_checklstring(L, 1, &size);
  const Memory *memory = luaL_checkudata(L, 2, MEMORY);
  luaL_argcheck(L, size == sizeof head, 1, "is no head");
  memcpy(&head, text, sizeof head);
  luaL_argcheck(L, memory->bytes == head.packed_bytes, 2, "has another size");
  mhagen_packed_add(&head, memory->at);
  lua_pushlstring(L, (const char *)&head, sizeof head);
  return 1;
}

/* ---- for Lua ---- */

static void new_type(lua_State *L, const char *name, const luaL_Reg *methods) {
  luaL_newmetatable(L, name);
  luaL_setfuncs(L, methods, 0);
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}

void add_tensors(lua_State *L) {
  static const luaL_Reg of_memory[] = {{"read", memory_read}, {"add", memory_add}, {"floats", memory_floats},
                                       {"free", memory_free}, {"__gc", memory_free}, {"__len", memory_size},
                                       {NULL, NULL}};
  static const luaL_Reg of_file[] = {{"bytes", file_bytes}, {"crc32", file_crc32}, {"size", file_size},
                                     {"close", file_close}, {"__gc", file_close}, {NULL, NULL}};
  static const luaL_Reg functions[] = {{"open_file", host_open_file}, {"floats", host_floats},
                                       {"type_size", host_type_size}, {"pack", host_pack},
                                       {"packed_head", host_packed_head}, {"add_packed", host_add_packed},
                                       {NULL, NULL}};
  new_type(L, MEMORY, of_memory);
  new_type(L, FILE_TYPE, of_file);
  luaL_setfuncs(L, functions, 0);
}
