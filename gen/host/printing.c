/* printing.c: text as a terminal may have it. */
#define _DEFAULT_SOURCE

#include <errno.h>
#include <lauxlib.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "host.h"

/* How many of these bytes are one character that a terminal shows, or the end of a line: UTF-8, but no
 * control character, of 7 or 8 bits, and nothing that changes the direction of what follows. 0: none. */
static size_t printable(const unsigned char *text, size_t size) {
  const unsigned char first = text[0];
  if (first < 0x80) return (first >= 0x20 && first != 0x7f) || first == '\n' ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || length > size) return 0;
  unsigned code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((text[i] & 0xc0) != 0x80) return 0;
    code = code << 6 | (text[i] & 0x3f);
  }
  static const unsigned ranges[][2] = {{0, 0x9f}, {0x200e, 0x200f}, {0x2028, 0x202e}, {0x2066, 0x2069},
                                       {0xd800, 0xdfff}, {0x110000, UINT_MAX}};
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; ++i) {
    if (code >= ranges[i][0] && code <= ranges[i][1]) return 0;
  }
  return code >= (length == 4 ? 0x10000u : length == 3 ? 0x800u : 0x80u) ? length : 0;
}

/* Pushes the text as a terminal may have it: all that is printed goes through here, for results, names
 * and messages may hold what others wrote. */
void push_printable(lua_State *L, const char *text, size_t size) {
  luaL_Buffer buffer;
  luaL_buffinit(L, &buffer);
  for (size_t i = 0, length; i < size; i += length > 0 ? length : 1) {
    length = printable((const unsigned char *)text + i, size - i);
    if (length > 0) luaL_addlstring(&buffer, text + i, length);
    else luaL_addchar(&buffer, '?');
  }
  luaL_pushresult(&buffer);
}

/* print(text) -> true: to standard output */
static int host_print(lua_State *L) {
  size_t size;
  const char *text = luaL_checklstring(L, 1, &size);
  push_printable(L, text, size);
  text = lua_tolstring(L, -1, &size);
  if (fwrite(text, 1, size, stdout) != size || fflush(stdout) != 0) {
    return fail(L, "standard output", strerror(errno));
  }
  return lua_pushboolean(L, 1), 1;
}

/* Adds `print`. */
void add_printing(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"print", host_print},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
