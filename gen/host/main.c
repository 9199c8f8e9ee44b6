/* main.c: the program: memory, signals, the exit status. */
#define _DEFAULT_SOURCE

#include <fcntl.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdio.h>

#include "host.h"

/* A file that is opened must not become standard output. What has been closed stays useless: the
 * null device is open for the other direction. */
static void keep_standard_files(void) {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

/* A message as a terminal may have it. */
static int push_message(lua_State *L) {
  size_t size;
  const char *text = luaL_tolstring(L, 1, &size);
  return push_printable(L, text, size), 1;
}

int main(int argc, char **argv) {
  keep_standard_files();
  signal(SIGXFSZ, SIG_IGN); /* the file size limit then is an ordinary write error */
  lua_State *L = lua_newstate(counted_alloc, NULL);
  if (L == NULL) return fputs("mhagen: not enough memory\n", stderr), 2;
  catch_signals(L);
  lua_pushcfunction(L, run_program);
  lua_pushinteger(L, argc);
  lua_pushlightuserdata(L, argv);
  int status = 2;
  if (lua_pcall(L, 2, 2, 0) == LUA_OK) status = (int)lua_tointeger(L, -2);
  lua_sethook(L, NULL, 0, 0);
  if (lua_type(L, -1) == LUA_TSTRING) {
    lua_pushcfunction(L, push_message);
    lua_insert(L, -2);
    lua_pcall(L, 1, 1, 0); /* what it may raise is that there is no memory: a text, too */
    fprintf(stderr, "mhagen: %s\n", lua_tostring(L, -1));
  }
  remove_temporary();
  sigset_t before = block_signals(); /* one that comes now is too late */
  lua_close(L);
  if (caught) {
    signal(caught, SIG_DFL);
    unblock_signals(before);
    raise(caught);
  }
  return status;
}
