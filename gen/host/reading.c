/* reading.c: files that are read. */
#define _DEFAULT_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"

/* Pushes the text of a regular file of at most `limit` bytes, or nil and a message. */
int push_text(lua_State *L, const char *path, size_t limit) {
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* a FIFO must not block */
  if (fd < 0) return fail(L, path, strerror(errno));
  const char *why = NULL;
  struct stat status;
  luaL_Buffer text;
  luaL_buffinit(L, &text);
  if (fstat(fd, &status) != 0) {
    why = strerror(errno);
  } else if (!S_ISREG(status.st_mode)) {
    why = S_ISDIR(status.st_mode) ? "is a directory" : "is not a regular file";
  } else {
    enum { BLOCK = 1 << 16 };
    ssize_t got = 1;
    while (got > 0 && luaL_bufflen(&text) <= limit) {
      got = read(fd, luaL_prepbuffsize(&text, BLOCK), BLOCK);
      if (got > 0) luaL_addsize(&text, (size_t)got);
    }
    if (got < 0) why = strerror(errno);
  }
  close(fd);
  bool large = luaL_bufflen(&text) > limit;
  luaL_pushresult(&text);
  if (large) why = lua_pushfstring(L, "is larger than %d MiB", (int)(limit >> 20));
  return why == NULL ? 1 : fail(L, path, why);
}

enum { FILE_BYTES = 1 << 28 };

/* read_file(path) -> the text of a regular file */
static int host_read_file(lua_State *L) {
  return push_text(L, luaL_checkstring(L, 1), FILE_BYTES);
}

/* head(path) -> how a regular file begins; "" where there is none, or something else */
static int host_head(lua_State *L) {
  enum { HEAD = 1024 };
  const char *path = luaL_checkstring(L, 1);
  char text[HEAD];
  ssize_t size = 0;
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0 && errno == EACCES) return fail(L, path, strerror(errno));
  struct stat status;
  if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) size = read(fd, text, HEAD);
  int error = errno;
  if (fd >= 0) close(fd);
  if (size < 0) return fail(L, path, strerror(error));
  lua_pushlstring(L, text, (size_t)size);
  return 1;
}

/* One line of the file in the first upvalue, with its end, or nil. */
static int next_line(lua_State *L) {
  luaL_Stream *file = lua_touserdata(L, lua_upvalueindex(1));
  if (file->f == NULL) return 0;
  char *line = NULL;
  size_t room = 0;
  ssize_t size = getline(&line, &room, file->f);
  if (size >= 0) lua_pushlstring(L, line, size < FILE_BYTES ? (size_t)size : FILE_BYTES);
  free(line);
  if (size >= 0) return 1;
  fclose(file->f);
  file->f = NULL;
  return 0;
}

static int close_lines(lua_State *L) {
  luaL_Stream *file = lua_touserdata(L, 1);
  if (file->f != NULL) fclose(file->f);
  file->f = NULL;
  return 0;
}

/* lines(path) -> a function that returns the next line of a regular file, of any size, until nil */
static int host_lines(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* a FIFO must not block */
  if (fd < 0) return fail(L, path, strerror(errno));
  struct stat status;
  const char *why = fstat(fd, &status) != 0 ? strerror(errno)
                    : S_ISDIR(status.st_mode) ? "is a directory"
                    : !S_ISREG(status.st_mode) ? "is not a regular file" : NULL;
  if (why != NULL) return close(fd), fail(L, path, why);
  luaL_Stream *file = lua_newuserdatauv(L, sizeof *file, 0);
  file->f = fdopen(fd, "r");
  if (file->f == NULL) return close(fd), fail(L, path, strerror(errno));
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, close_lines);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_pushcclosure(L, next_line, 1);
  return 1;
}

/* hash(text) -> 16 hexadecimal digits: FNV-1a of 64 bits */
static int host_hash(lua_State *L) {
  size_t size;
  const char *text = luaL_checklstring(L, 1, &size);
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ (unsigned char)text[i]) * 0x100000001b3;
  char digits[17];
  snprintf(digits, sizeof digits, "%016jx", (uintmax_t)hash);
  lua_pushstring(L, digits);
  return 1;
}

/* exists(path) -> boolean */
static int host_exists(lua_State *L) {
  lua_pushboolean(L, access(luaL_checkstring(L, 1), F_OK) == 0);
  return 1;
}

/* Adds what reads files. */
void add_reading(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"read_file", host_read_file},
      {"head", host_head},
      {"lines", host_lines},
      {"exists", host_exists},
      {"hash", host_hash},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
