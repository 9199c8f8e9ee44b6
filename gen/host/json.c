/* json.c: JSON by lua-cjson. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <stdbool.h>
#include <string.h>

#include <lua-cjson.h>

#include "host.h"

/* Makes the value on top, as lua-cjson reads it, what people expect in Lua: a number without a
 * fraction is an integer, and null is nil, or stays if nulls is true. Returns how many keys its objects have. */
static size_t plain_json(lua_State *L, bool nulls) {
  size_t keys = 0;
  if (lua_type(L, -1) == LUA_TNUMBER) {
    lua_Integer whole;
    if (!lua_numbertointeger(lua_tonumber(L, -1), &whole)) return 0;
    if ((lua_Number)whole != lua_tonumber(L, -1)) return 0;
    lua_pushinteger(L, whole);
    lua_replace(L, -2);
  } else if (lua_islightuserdata(L, -1) && !nulls) {
    lua_pushnil(L);
    lua_replace(L, -2);
  } else if (lua_istable(L, -1)) {
    luaL_checkstack(L, 8, NULL);
    lua_pushnil(L);
    while (lua_next(L, -2) != 0) {
      int type = lua_type(L, -1);
      keys += lua_type(L, -2) == LUA_TSTRING;
      if (type == LUA_TSTRING || type == LUA_TBOOLEAN) {
        lua_pop(L, 1);
        continue;
      }
      keys += plain_json(L, nulls);
      lua_pushvalue(L, -2);
      lua_insert(L, -2);
      lua_rawset(L, -4); /* the key is there: this does not disturb lua_next */
    }
  }
  return keys;
}

/* The end of the text of JSON that begins behind a quotation mark. */
static const char *end_of_string(const char *at) {
  while (*at != '"') at += *at == '\\' ? 2 : 1;
  return at;
}

static size_t count_keys(const char *text, const char *end) {
  size_t keys = 0;
  for (; text < end; ++text) {
    keys += *text == ':';
    if (*text == '"') text = end_of_string(text + 1);
  }
  return keys;
}

/* Pushes the first key that an object of JSON has twice, as it is written; nil if it is written in two ways. */
static void push_twice(lua_State *L, const char *text, const char *end) {
  for (; text < end; ++text) {
    if (*text == '{') lua_newtable(L);
    if (*text == '}') lua_pop(L, 1);
    if (*text != '"') continue;
    const char *const key = text + 1;
    text = end_of_string(key);
    const size_t size = (size_t)(text - key);
    if (text[1 + strspn(text + 1, " \t\r\n")] != ':') continue;
    lua_pushlstring(L, key, size);
    lua_pushvalue(L, -1);
    if (lua_rawget(L, -3) != LUA_TNIL) {
      lua_pop(L, 1);
      return;
    }
    lua_pop(L, 1);
    lua_pushboolean(L, 1);
    lua_rawset(L, -3);
  }
  lua_pushnil(L);
}

/* decode(text, nulls) -> the value, with null as nil, or as a light userdata if nulls is true; nil and a message where
 * it is not JSON by the letter, or an object has a key twice */
static int json_decode(lua_State *L) {
  size_t size;
  const char *text = luaL_checklstring(L, 1, &size);
  if (memchr(text, 0, size) != NULL) { /* there lua-cjson stops */
    return lua_pushnil(L), lua_pushliteral(L, "has a null byte"), 2;
  }
  const bool nulls = lua_toboolean(L, 2);
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, 1);
  if (lua_pcall(L, 1, 1, 0) != LUA_OK) return lua_pushnil(L), lua_insert(L, -2), 2;
  if (plain_json(L, nulls) == count_keys(text, text + size)) return 1;
  lua_pushnil(L);
  luaL_checkstack(L, LUA_MINSTACK, NULL);
  push_twice(L, text, text + size);
  const char *const key = lua_tostring(L, -1);
  lua_pushfstring(L, key != NULL ? "key %s is there twice" : "a key is there twice", key);
  lua_pushnil(L);
  lua_insert(L, -2);
  return 2;
}

/* list(values, count) -> JSON of a list of numbers, texts and booleans; null where there is nothing */
static int json_list(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  lua_Integer count = luaL_checkinteger(L, 2);
  if (count == 0) return lua_pushstring(L, "[]"), 1; /* lua-cjson takes it for an object */
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_createtable(L, (int)count, 0);
  for (lua_Integer i = 1; i <= count; ++i) {
    if (lua_rawgeti(L, 1, i) == LUA_TNIL) {
      lua_pop(L, 1);
      lua_pushlightuserdata(L, NULL);
    }
    lua_rawseti(L, -2, i);
  }
  lua_call(L, 1, 1);
  return 1;
}

/* Pushes the table { decode =, list = }. */
void push_json(lua_State *L) {
  enum { DEPTH = 16 }; /* of what is read; a row takes three */
  lua_newtable(L);
  luaopen_cjson(L);
  lua_getfield(L, -1, "decode_max_depth");
  lua_pushinteger(L, DEPTH);
  lua_call(L, 1, 0);
  for (int i = 0; i < 2; ++i) {
    lua_getfield(L, -1, (const char *const[]){"decode_invalid_numbers", "encode_keep_buffer"}[i]);
    lua_pushboolean(L, 0);
    lua_call(L, 1, 0);
  }
  lua_getfield(L, -1, "decode");
  lua_pushcclosure(L, json_decode, 1);
  lua_setfield(L, -3, "decode");
  lua_getfield(L, -1, "encode");
  lua_pushcclosure(L, json_list, 1);
  lua_setfield(L, -3, "list");
  lua_pop(L, 1);
}
