/* tensors.c: files of tensors, and their numbers as floats in memory of the generator.
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

#include "decoders.h"
#include "host.h"
#include "mhagen.h"
#include "tensors.h"

enum {
  BYTES_MOST = 1 << 27,  /* that Lua gets at once */
  CHUNK_BYTES = 1 << 20, /* that are read at once */
};

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
Memory *push_memory(lua_State *L, size_t bytes) {
  Memory *memory = lua_newuserdatauv(L, sizeof *memory, 0);
  *memory = (Memory){NULL, bytes};
  luaL_setmetatable(L, MEMORY);
  if (bytes > SIZE_MAX - MHAGEN_ALIGN ||
      posix_memalign(&memory->at, MHAGEN_ALIGN, bytes + MHAGEN_ALIGN - bytes % MHAGEN_ALIGN) != 0) {
    memory->at = NULL;
    no_memory(L);
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

/* memory:fill(): with zeros up to a whole unit of packed weights, which are part of it then; push_memory left room */
static int memory_fill(lua_State *L) {
  Memory *memory = luaL_checkudata(L, 1, MEMORY);
  const size_t rest = (MHAGEN_ALIGN - memory->bytes % MHAGEN_ALIGN) % MHAGEN_ALIGN;
  if (rest > 0) memset((char *)memory->at + memory->bytes, 0, rest);
  memory->bytes += rest;
  return 0;
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

/* floats(list) -> memory of its numbers; floats(count): of so many zeros */
static int host_floats(lua_State *L) {
  if (lua_istable(L, 1)) {
    const lua_Integer size = (lua_Integer)lua_rawlen(L, 1);
    float *to = push_memory(L, (size_t)size * sizeof *to)->at;
    for (lua_Integer i = 0; i < size; ++i) {
      lua_rawgeti(L, 1, i + 1);
      to[i] = (float)luaL_checknumber(L, -1);
      lua_pop(L, 1);
    }
    return 1;
  }
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

/* ---- numbers ---- */

/* type_size(name, integers) -> elements and bytes of a block, or nil for a type that is not read; of the types of
 * integers where that is true */
static int host_type_size(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  const Type *type = lua_toboolean(L, 2) ? find_integers(name) : find_type(name);
  if (type == NULL) return 0;
  lua_pushinteger(L, type->elements);
  lua_pushinteger(L, type->bytes);
  return 2;
}

/* Some columns of some rows of a tensor, and their places in memory. */
typedef struct Part {
  const Type *type;
  int64_t row_bytes, rows, columns, column, used;
  int64_t to, row_step, column_step, interleave, interleave_step;
} Part;

/* Rows from the file's bytes to memory; `row` has room for one. */
static void place_rows(const Part *part, const unsigned char *from, size_t rows, float *to, float *row) {
  const size_t blocks = (size_t)(part->columns / part->type->elements);
  for (size_t r = 0; r < rows; ++r, from += part->row_bytes, to += part->row_step) {
    if (part->column_step == 1 && part->interleave == 1 && part->used == part->columns) {
      part->type->read(from, to, blocks);
      continue;
    }
    part->type->read(from, row, blocks);
    const float *next = row + part->column;
    for (int64_t c = 0; c < part->used / part->interleave; ++c) {
      for (int64_t d = 0; d < part->interleave; ++d) to[c * part->column_step + d * part->interleave_step] = *next++;
    }
  }
}

/* memory:read(part, file) -> true: copies columns of `rows` rows of a tensor, which begins at the byte `at` of the
 * file. A row has `columns` numbers, of which column .. column + used - 1 (all) are copied. They become floats at to
 * + r * row_step + c * column_step (1). With `interleave` numbers (1) of a row for each c, the next one of these lies
 * interleave_step floats (1) farther. */
static int memory_read(lua_State *L) {
  const Memory *memory = luaL_checkudata(L, 1, MEMORY);
  const File *file = check_file(L, 3);
  lua_getfield(L, 2, "type");
  Part part = {.type = find_type(luaL_checkstring(L, -1))};
  if (part.type == NULL) part.type = find_integers(luaL_checkstring(L, -1));
  if (part.type == NULL) return luaL_error(L, "unknown type");
  const int64_t at = field(L, "at", 0, -1);
  part.rows = field(L, "rows", 1, -1);
  part.columns = field(L, "columns", 1, -1);
  part.column = field(L, "column", 0, 0);
  part.used = field(L, "used", 1, part.columns);
  part.to = field(L, "to", 0, 0);
  part.row_step = field(L, "row_step", 1, part.columns);
  part.column_step = field(L, "column_step", 1, 1);
  part.interleave = field(L, "interleave", 1, 1);
  part.interleave_step = field(L, "interleave_step", 1, 1);

  part.row_bytes = part.columns / part.type->elements * part.type->bytes;
  const int64_t floats = (int64_t)(memory->bytes / sizeof(float));
  if (part.columns % part.type->elements != 0 || part.column > part.columns - part.used ||
      part.used % part.interleave != 0) {
    return luaL_error(L, "columns are out of their range");
  }
  if (!inside(file, at, 0) || part.rows > (file->size - at) / part.row_bytes) {
    return luaL_error(L, "rows are out of the file");
  }
  /* The last float of the last row; divisions, for products may be too large. */
  int64_t left = floats - 1 - part.to;
  if (left < 0 || part.interleave - 1 > left / part.interleave_step) return luaL_error(L, "out of the memory");
  left -= (part.interleave - 1) * part.interleave_step;
  const int64_t last = part.used / part.interleave - 1;
  if (last > left / part.column_step) return luaL_error(L, "out of the memory");
  left -= last * part.column_step;
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

/* memory:set(list): its floats, all of them */
static int memory_set(lua_State *L) {
  const Memory *memory = luaL_checkudata(L, 1, MEMORY);
  const size_t count = memory->bytes / sizeof(float);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_argcheck(L, lua_rawlen(L, 2) == count, 2, "another count");
  for (size_t i = 0; i < count; ++i) {
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    ((float *)memory->at)[i] = (float)luaL_checknumber(L, -1);
    lua_pop(L, 1);
  }
  return 0;
}

/* memory:scale(scales, zeros, columns, down, across): of rows with so many columns each block of `down` rows and
 * `across` columns has a scale, and x becomes (x - its zero) * scale. Both are memory; zeros may be one number. */
static int memory_scale(lua_State *L) {
  const Memory *memory = luaL_checkudata(L, 1, MEMORY), *scales = luaL_checkudata(L, 2, MEMORY);
  const Memory *zeros = lua_isnumber(L, 3) ? NULL : luaL_checkudata(L, 3, MEMORY);
  const double zero = zeros == NULL ? lua_tonumber(L, 3) : 0.0;
  size_t of[3];
  for (int i = 0; i < 3; ++i) {
    of[i] = (size_t)luaL_checkinteger(L, 4 + i);
    luaL_argcheck(L, luaL_checkinteger(L, 4 + i) > 0, 4 + i, "out of range");
  }
  const size_t columns = of[0], down = of[1], across = of[2], count = memory->bytes / sizeof(float);
  const size_t wide = (columns - 1) / across + 1, rows = count / columns;
  luaL_argcheck(L, count == rows * columns, 4, "does not divide the memory");
  luaL_argcheck(L, scales->bytes == ((rows + down - 1) / down) * wide * sizeof(float), 2, "has another size");
  luaL_argcheck(L, zeros == NULL || zeros->bytes == scales->bytes, 3, "as many as scales");
  const float *by = scales->at, *off = zeros == NULL ? NULL : zeros->at;
  float *x = memory->at;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c, ++x) {
      const size_t k = r / down * wide + c / across;
      *x = (float)(((double)*x - (off == NULL ? zero : (double)off[k])) * (double)by[k]);
    }
  }
  return 0;
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
  static const luaL_Reg of_memory[] = {{"read", memory_read}, {"set", memory_set}, {"floats", memory_floats},
                                       {"scale", memory_scale}, {"fill", memory_fill}, {"free", memory_free},
                                       {"__gc", memory_free}, {"__len", memory_size}, {NULL, NULL}};
  static const luaL_Reg of_file[] = {{"bytes", file_bytes}, {"crc32", file_crc32}, {"size", file_size},
                                     {"close", file_close}, {"__gc", file_close}, {NULL, NULL}};
  static const luaL_Reg functions[] = {{"open_file", host_open_file}, {"floats", host_floats},
                                       {"type_size", host_type_size}, {NULL, NULL}};
  new_type(L, MEMORY, of_memory);
  new_type(L, FILE_TYPE, of_file);
  luaL_setfuncs(L, functions, 0);
}
