/* locks.c: locks of files, by which processes of a sweep share its folder. */
#define _DEFAULT_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"

/* lock(path, shared, inherited, wait) -> true once this process has the lock of the file, false if
 * another one has it (without wait). It ends with the process or, if inherited, when the last of
 * those that it has started ends too. */
static int host_lock(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  int how = (lua_toboolean(L, 2) ? LOCK_SH : LOCK_EX) | (lua_toboolean(L, 4) ? 0 : LOCK_NB);
  int fd = open(path, O_RDWR | O_CREAT | (lua_toboolean(L, 3) ? 0 : O_CLOEXEC), 0666);
  if (fd < 0) return fail(L, path, strerror(errno));
  if (flock(fd, how) == 0) return lua_pushboolean(L, 1), 1;
  bool taken = errno == EWOULDBLOCK;
  const char *why = strerror(errno);
  close(fd);
  if (!taken) return fail(L, path, why);
  return lua_pushboolean(L, 0), 1;
}

/* locked(path) -> whether some process has the file's lock for itself */
static int host_locked(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return fail(L, path, strerror(errno));
  bool taken = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd); /* and with it the lock */
  lua_pushboolean(L, taken);
  return 1;
}

/* Whether the process of that number has the file open, by Linux's /proc. */
static bool has_open(const char *process, const struct stat *file) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "/proc/%s/fd", process);
  DIR *dir = opendir(path);
  if (dir == NULL) return false;
  bool found = false;
  for (struct dirent *entry; !found && (entry = readdir(dir)) != NULL;) {
    struct stat open_file;
    found = fstatat(dirfd(dir), entry->d_name, &open_file, 0) == 0 &&
            open_file.st_dev == file->st_dev && open_file.st_ino == file->st_ino;
  }
  closedir(dir);
  return found;
}

/* holders(path) -> the processes but this one that have the file open: { { pid =, name = }, ... } */
static int host_holders(lua_State *L) {
  struct stat file;
  lua_newtable(L);
  DIR *dir = stat(luaL_checkstring(L, 1), &file) == 0 ? opendir("/proc") : NULL;
  if (dir == NULL) return 1;
  lua_Integer count = 0;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    long pid = strtol(entry->d_name, NULL, 10);
    if (pid <= 0 || pid == (long)getpid() || !has_open(entry->d_name, &file)) continue;
    char path[PATH_MAX], name[64] = "?";
    snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, name, sizeof name - 1) : -1;
    if (fd >= 0) close(fd);
    if (size > 0) name[size - 1] = '\0'; /* where the end of the line is */
    lua_newtable(L);
    lua_pushinteger(L, pid);
    lua_setfield(L, -2, "pid");
    lua_pushstring(L, name);
    lua_setfield(L, -2, "name");
    lua_rawseti(L, -2, ++count);
  }
  closedir(dir);
  return 1;
}

/* Adds the locks. */
void add_locks(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"lock", host_lock},
      {"locked", host_locked},
      {"holders", host_holders},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
