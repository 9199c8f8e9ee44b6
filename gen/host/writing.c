/* writing.c: files that are written, all of a command or none. */
#define _DEFAULT_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lauxlib.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "tensors.h"

/* A file that is written piece by piece, before it is known whether all goes well. As long as it is open it has a
 * lock, by which other processes see that it is not left over. What messages call it is its user value. */
typedef struct Stream {
  int fd;              /* -1: closed */
  char path[PATH_MAX]; /* its temporary name; where that is gone it is a file of another name */
} Stream;

#define STREAM "mhagen.stream"

typedef struct Output {
  const char *name, *text;
  size_t size;
  char temp[PATH_MAX]; /* the name of the new content until all are complete; "" if unchanged */
  char old[NAME_MAX + 1];  /* a second name of what is replaced, until all are; "" if it has none */
  bool existed, replaced;
} Output;

/* mkdir -p. Returns the length of the first prefix of path that did not exist before; that and all
 * longer ones are what remove_dirs takes away. `error` is the errno of a failure, else 0. */
static size_t make_dirs(char *path, int *error) {
  size_t first = SIZE_MAX;
  *error = 0;
  for (size_t end = 1; path[end - 1] != '\0'; ++end) {
    char next = path[end];
    if (next != '/' && next != '\0') continue;
    path[end] = '\0';
    bool made = mkdir(path, 0777) == 0;
    if (made && first == SIZE_MAX) first = end;
    if (!made && errno != EEXIST && *error == 0) *error = errno;
    path[end] = next;
  }
  return first;
}

static void remove_dirs(char *path, size_t first) {
  for (size_t end = strlen(path); end >= first && end > 0; --end) {
    if (path[end] != '/' && path[end] != '\0') continue;
    path[end] = '\0';
    rmdir(path);
  }
}

/* Whether the file has this content: 1, 0, or -1 with errno set. */
static int has_content(int dir, const Output *file) {
  struct stat status;
  if (fstatat(dir, file->name, &status, 0) != 0) return 0;
  if (S_ISDIR(status.st_mode)) return errno = EISDIR, -1;
  if (!S_ISREG(status.st_mode)) return errno = EEXIST, -1;
  if ((size_t)status.st_size != file->size) return 0;
  int fd = openat(dir, file->name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return 0;
  size_t same = 0;
  char block[65536];
  ssize_t got;
  while ((got = read(fd, block, sizeof block)) > 0) {
    size_t size = (size_t)got;
    if (size > file->size - same || memcmp(block, file->text + same, size) != 0) break;
    same += size;
  }
  close(fd);
  return got == 0 && same == file->size;
}

/* Writes the content under the temporary name; 0, or -1 with errno set. `durable`: to the disk, so that
 * after a crash of the machine no empty file has the name. */
static int write_temp(int dir, Output *file, bool durable) {
  int length = snprintf(file->temp, sizeof file->temp, ".%s.%ld.tmp", file->name, (long)getpid());
  if (length >= (int)sizeof file->temp) return file->temp[0] = '\0', errno = ENAMETOOLONG, -1;
  unlinkat(dir, file->temp, 0); /* left behind by a killed process of the same number */
  int fd = openat(dir, file->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return file->temp[0] = '\0', -1;
  for (size_t done = 0; done < file->size;) {
    ssize_t wrote = write(fd, file->text + done, file->size - done);
    if (wrote < 0) {
      int error = errno;
      close(fd);
      return errno = error, -1;
    }
    done += (size_t)wrote;
  }
  int error = durable && fsync(fd) != 0 ? errno : 0;
  if (close(fd) != 0 && error == 0) error = errno;
  return error == 0 ? 0 : (errno = error, -1);
}

/* Gives what is to be replaced a second name, under which it can be put back. Some file systems
 * have no links. */
static void keep_old(int dir, Output *file) {
  struct stat status;
  file->existed = fstatat(dir, file->name, &status, AT_SYMLINK_NOFOLLOW) == 0;
  int length = snprintf(file->old, sizeof file->old, ".%s.%ld.old", file->name, (long)getpid());
  bool fits = length < (int)sizeof file->old;
  if (fits) unlinkat(dir, file->old, 0);
  if (!fits || linkat(dir, file->name, dir, file->old, 0) != 0) file->old[0] = '\0';
}

/* Undoes a replacement, if it can. */
static void put_back(int dir, Output *file) {
  if (!file->existed) {
    if (unlinkat(dir, file->name, 0) == 0) file->replaced = false;
  } else if (file->old[0] != '\0' && renameat(dir, file->old, dir, file->name) == 0) {
    file->replaced = false;
  }
}

/* Every file complete under a temporary name before the first one takes its place, and what they
 * replace is kept until the last one has: whatever fails leaves the directory as it was. If even
 * that fails, `replaced` says of which files. Returns the file that failed, with errno set, or
 * NULL. */
static const Output *replace_files(int dir, Output *files, size_t count, bool durable) {
  const Output *failed = NULL;
  for (size_t i = 0; i < count && failed == NULL; ++i) {
    if (files[i].temp[0] != '\0') continue; /* a stream's */
    int same = has_content(dir, &files[i]);
    if (same < 0 || (same == 0 && write_temp(dir, &files[i], durable) != 0)) failed = &files[i];
  }
  for (size_t i = 0; i < count && failed == NULL; ++i) {
    if (files[i].temp[0] == '\0') continue;
    keep_old(dir, &files[i]);
    files[i].replaced = renameat(dir, files[i].temp, dir, files[i].name) == 0;
    if (files[i].replaced) files[i].temp[0] = '\0';
    else failed = &files[i];
  }
  if (durable && failed == NULL) fsync(dir); /* the names; some file systems cannot */
  int error = errno;
  for (size_t i = 0; i < count; ++i) {
    if (failed != NULL && files[i].replaced) put_back(dir, &files[i]);
    bool needed = failed != NULL && files[i].replaced; /* it is the only one that is left */
    if (files[i].temp[0] != '\0') unlinkat(dir, files[i].temp, 0);
    if (files[i].old[0] != '\0' && !needed) unlinkat(dir, files[i].old, 0);
  }
  errno = error;
  return failed;
}

/* Ends what is written, but keeps the lock; 0, or -1 with errno set. */
static int end_stream(Stream *stream) {
  const int fd = stream->fd;
  stream->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return close(fd);
}

static int collect_stream(lua_State *L) {
  Stream *stream = luaL_checkudata(L, 1, STREAM);
  if (stream->path[0] != '\0') unlink(stream->path);
  if (stream->fd >= 0) close(stream->fd);
  *stream = (Stream){.fd = -1};
  return 0;
}

/* Fails by errno, with the name of the file that the stream becomes. */
static int fail_stream(lua_State *L, int index) {
  const char *why = strerror(errno);
  lua_getiuservalue(L, index, 1);
  return fail(L, lua_tostring(L, -1), why);
}

/* stream:write(text or memory) -> true */
static int write_stream(lua_State *L) {
  Stream *stream = luaL_checkudata(L, 1, STREAM);
  const Memory *memory = luaL_testudata(L, 2, MEMORY);
  size_t size = memory != NULL ? memory->bytes : 0;
  const char *bytes = memory != NULL ? memory->at : luaL_checklstring(L, 2, &size);
  while (size > 0) {
    const ssize_t wrote = write(stream->fd, bytes, size < 1 << 30 ? size : 1 << 30);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return fail_stream(L, 1);
    bytes += wrote, size -= (size_t)wrote;
  }
  return lua_pushboolean(L, 1), 1;
}

/* stream:rewrite(text) -> true: in the place of the first bytes that were written */
static int rewrite_stream(lua_State *L) {
  const Stream *stream = luaL_checkudata(L, 1, STREAM);
  size_t size;
  const char *text = luaL_checklstring(L, 2, &size);
  if (pwrite(stream->fd, text, size, 0) != (ssize_t)size) return fail_stream(L, 1);
  return lua_pushboolean(L, 1), 1;
}

/* The number of the process that has made a stream of this name, or 0. */
static long maker_of(const char *name) {
  long process = 0;
  int number, size = 0;
  if (sscanf(name, ".mhagen.%ld.%d.tmp%n", &process, &number, &size) != 2) return 0;
  return size > 0 && name[size] == '\0' ? process : 0;
}

/* Removes the streams of killed processes: files of ours without a lock whose process is none of this machine. Another
 * machine's has its lock. */
static void remove_stale(const char *path) {
  DIR *dir = opendir(path);
  if (dir == NULL) return;
  for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    const long process = maker_of(entry->d_name);
    if (process <= 0 || kill((pid_t)process, 0) == 0 || errno != ESRCH) continue;
    struct stat file, named;
    const int fd = openat(dirfd(dir), entry->d_name, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        fstatat(dirfd(dir), entry->d_name, &named, AT_SYMLINK_NOFOLLOW) == 0 && named.st_ino == file.st_ino) {
      unlinkat(dirfd(dir), entry->d_name, 0);
    }
    if (fd >= 0) close(fd);
  }
  closedir(dir);
}

/* Opens the stream in a directory, with its lock; false with errno set. */
static bool open_stream(Stream *stream, const char *dir) {
  static int number;
  for (;;) {
    snprintf(stream->path, sizeof stream->path, "%s/.mhagen.%ld.%d.tmp", dir, (long)getpid(), number++);
    stream->fd = open(stream->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (stream->fd < 0 && errno == EEXIST) continue;
    if (stream->fd < 0) return stream->path[0] = '\0', false;
    struct stat file;
    const bool taken = flock(stream->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && fstat(stream->fd, &file) == 0 && file.st_nlink > 0) return true;
    close(stream->fd); /* before it had its lock another process took it for a stale one */
  }
}

/* stream(dir, name) -> a new file for write_files, on the disk of the directory, which need not be there yet; name: of
 * the file that it becomes */
static int host_stream(lua_State *L) {
  char dir[PATH_MAX], real[PATH_MAX - 64];
  const char *name = luaL_checkstring(L, 1);
  size_t size = strlen(name);
  if (size == 0) return fail(L, "output directory", "its name is empty");
  if (size >= sizeof dir) return fail(L, name, strerror(ENAMETOOLONG));
  memcpy(dir, name, size + 1);
  while (access(dir, F_OK) != 0) { /* what write_files will make, its parent has room for */
    while (size > 0 && dir[size - 1] == '/') dir[--size] = '\0';
    while (size > 0 && dir[size - 1] != '/') dir[--size] = '\0';
    if (size == 0) memcpy(dir, ".", 2);
  }
  char resolved[PATH_MAX];
  if (realpath(dir, resolved) == NULL) return fail(L, name, strerror(errno));
  if (strlen(resolved) >= sizeof real) return fail(L, name, strerror(ENAMETOOLONG));
  memcpy(real, resolved, strlen(resolved) + 1);
  remove_stale(real);
  Stream *stream = lua_newuserdatauv(L, sizeof *stream, 1);
  *stream = (Stream){.fd = -1};
  luaL_setmetatable(L, STREAM);
  lua_pushfstring(L, "%s/%s", name, luaL_checkstring(L, 2));
  lua_setiuservalue(L, -2, 1);
  return open_stream(stream, real) ? 1 : fail(L, name, strerror(errno));
}

/* write_files(dir, { {name =, text = or stream =}, ... } [, durable]) -> true. Makes the directory
 * where it is missing; does not touch a file that has its content already. After an error all is as
 * before, or the message says what is not. */
static int host_write_files(lua_State *L) {
  size_t dir_size;
  const char *dir_name = luaL_checklstring(L, 1, &dir_size);
  size_t count = (size_t)lua_rawlen(L, 2);
  if (dir_size == 0) return fail(L, "output directory", "its name is empty");
  char *path = lua_newuserdatauv(L, dir_size + 1, 0);
  memcpy(path, dir_name, dir_size + 1);
  Output *files = lua_newuserdatauv(L, (count + 1) * sizeof *files, 0);
  for (size_t i = 0; i < count; ++i) { /* the list, at index 2, keeps the strings alive */
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    lua_getfield(L, -1, "name");
    lua_getfield(L, -2, "text");
    lua_getfield(L, -3, "stream");
    files[i] = (Output){.name = luaL_checkstring(L, -3)};
    Stream *stream = luaL_testudata(L, -1, STREAM);
    if (stream == NULL) {
      files[i].text = luaL_checklstring(L, -2, &files[i].size);
    } else {
      if (end_stream(stream) != 0) return fail_stream(L, -1);
      memcpy(files[i].temp, stream->path, sizeof files[i].temp);
    }
    lua_pop(L, 4);
  }

  sigset_t before = block_signals(); /* until there are no half-written files */
  int error;
  size_t first_new = make_dirs(path, &error);
  int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool opened = dir >= 0;
  const Output *failed = opened ? replace_files(dir, files, count, lua_toboolean(L, 3)) : NULL;
  if (opened || error == 0) error = errno;
  if (opened) close(dir);
  if (!opened || failed != NULL) remove_dirs(path, first_new);
  unblock_signals(before);

  if (opened && failed == NULL) return lua_pushboolean(L, 1), 1;
  lua_pushstring(L, dir_name);
  if (failed != NULL) {
    lua_pushfstring(L, "/%s", failed->name);
    lua_concat(L, 2);
  }
  fail(L, lua_tostring(L, -1), strerror(error));
  for (size_t i = 0; i < count; ++i) {
    if (!files[i].replaced) continue;
    const char *old = files[i].old[0] != '\0' ? files[i].old : files[i].existed ? "lost" : "none";
    lua_pushfstring(L, "; %s is new already, the old one: %s", files[i].name, old);
    lua_concat(L, 2);
  }
  return 2;
}

/* sync_file(path) -> true: what another program has written is on the disk */
static int host_sync_file(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(L, path, strerror(errno));
  int error = fsync(fd) != 0 ? errno : 0;
  close(fd);
  return error == 0 ? (lua_pushboolean(L, 1), 1) : fail(L, path, strerror(error));
}

/* remove_file(path) -> true, also where there is none */
static int host_remove_file(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  if (unlink(path) != 0 && errno != ENOENT) return fail(L, path, strerror(errno));
  return lua_pushboolean(L, 1), 1;
}

/* Adds what writes files, and the type of streams. */
void add_writing(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"write_files", host_write_files},
      {"stream", host_stream},
      {"sync_file", host_sync_file},
      {"remove_file", host_remove_file},
      {NULL, NULL},
  };
  luaL_newmetatable(L, STREAM);
  lua_pushvalue(L, -1);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, write_stream);
  lua_setfield(L, -2, "write");
  lua_pushcfunction(L, rewrite_stream);
  lua_setfield(L, -2, "rewrite");
  lua_pushcfunction(L, collect_stream);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  luaL_setfuncs(L, functions, 0);
}
