/* host.c: the program that runs the generator: Lua, the only access to the world outside, and the
 * embedded files (the generator, its libraries, the templates and the runtime).
 *
 * Two Lua states: one for the generator, which gets the table `host` of this file's functions and,
 * through gen/prelude.lua, no library that could make its output depend on anything but the config;
 * and one per CONFIG.lua or GRID.lua, with no library at all and bounded in size and time.
 *
 * A host function that fails returns nil and a message of one line.
 */
#define _DEFAULT_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <lauxlib.h>
#include <lua.h>
#include <lua-cjson.h>
#include <lualib.h>

#include "embed.h"
#include "mhagen.h"
#include "tensors.h"

extern char **environ;

/* Raises what Lua itself raises then: without the place, by which errors.lua knows it. */
static int no_memory(lua_State *L) {
  lua_pushliteral(L, "not enough memory");
  return lua_error(L);
}

static int fail(lua_State *L, const char *what, const char *why) {
  lua_pushnil(L);
  lua_pushfstring(L, "%s: %s", what, why);
  return 2;
}

/* Since some moment. */
static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- memory ---- */

/* What the generator has, and may have while it reads what others wrote. */
static struct {
  size_t used, most;
  bool exhausted; /* an allocation failed for the limit, not for want of memory */
} heap = {.most = SIZE_MAX};

static void *counted_alloc(void *data, void *block, size_t old_size, size_t new_size) {
  (void)data;
  if (block == NULL) old_size = 0; /* Lua passes the kind of the object instead */
  if (new_size == 0) {
    free(block);
    heap.used -= old_size;
    return NULL;
  }
  if (new_size > old_size && (heap.used > heap.most || new_size - old_size > heap.most - heap.used)) {
    heap.exhausted = true; /* so far: Lua collects its garbage, and asks again */
    return NULL;
  }
  void *const grown = realloc(block, new_size);
  if (grown != NULL) heap.used = heap.used - old_size + new_size;
  return grown;
}

/* limit_memory([bytes]): from now on the generator may take so much more, or again all there is. Returns whether it
 * wanted more than the limit before. */
static int host_limit_memory(lua_State *L) {
  const size_t more = (size_t)luaL_optinteger(L, 1, 0);
  lua_pushboolean(L, heap.exhausted);
  heap.exhausted = false;
  heap.most = more > 0 ? heap.used + more : SIZE_MAX;
  return 1;
}

/* ---- embedded files ---- */

static const EmbeddedFile *find_embedded(const char *name) {
  for (size_t i = 0; i < embedded_count; ++i) {
    if (strcmp(embedded_files[i].name, name) == 0) return &embedded_files[i];
  }
  return NULL;
}

/* embedded(name) -> text, or nil */
static int host_embedded(lua_State *L) {
  const EmbeddedFile *file = find_embedded(luaL_checkstring(L, 1));
  if (file == NULL) return 0;
  lua_pushlstring(L, (const char *)file->data, file->size);
  return 1;
}

static void load_embedded(lua_State *L, const EmbeddedFile *file) {
  const char *chunk = lua_pushfstring(L, "@%s", file->name);
  if (luaL_loadbufferx(L, (const char *)file->data, file->size, chunk, "t") != LUA_OK) lua_error(L);
  lua_remove(L, -2);
}

/* load(name, env) -> the embedded Lua file as a function with these globals, or nil */
static int host_load(lua_State *L) {
  const EmbeddedFile *file = find_embedded(luaL_checkstring(L, 1));
  if (file == NULL) return 0;
  load_embedded(L, file);
  lua_pushvalue(L, 2);
  if (lua_setupvalue(L, -2, 1) == NULL) lua_pop(L, 1); /* a chunk without globals has no _ENV */
  return 1;
}

/* ---- signals ---- */

static volatile sig_atomic_t caught; /* the signal that ends this program, or 0 */
static volatile pid_t running;       /* the program that host_run waits for, or 0 */
static lua_State *generator;

/* Raises an error in the generator, at its next instruction: what it has made is cleaned up as
 * after any other error. */
static void stop(lua_State *L, lua_Debug *event) {
  (void)event;
  lua_sethook(L, NULL, 0, 0);
  lua_createtable(L, 0, 1);
  lua_pushliteral(L, "interrupted");
  lua_setfield(L, -2, "message");
  lua_error(L);
}

/* What runs is told too; the second time it has no choice. */
static void on_signal(int number) {
  if (running != 0) kill(running, caught != 0 ? SIGKILL : number);
  if (caught == 0) lua_sethook(generator, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
  caught = number;
}

static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDING = sizeof ending / sizeof *ending };

static void catch_signals(lua_State *L) {
  generator = L;
  for (int i = 0; i < ENDING; ++i) {
    struct sigaction action = {.sa_handler = on_signal}, before; /* ends the wait for a lock */
    sigemptyset(&action.sa_mask);
    sigaction(ending[i], NULL, &before);
    if (before.sa_handler != SIG_IGN) sigaction(ending[i], &action, NULL); /* as nohup wants it */
  }
}

/* Signals wait until unblock_signals(before). */
static sigset_t block_signals(void) {
  sigset_t signals, before;
  sigemptyset(&signals);
  for (int i = 0; i < ENDING; ++i) sigaddset(&signals, ending[i]);
  sigprocmask(SIG_BLOCK, &signals, &before);
  return before;
}

static void unblock_signals(sigset_t before) { sigprocmask(SIG_SETMASK, &before, NULL); }

/* ---- configs ---- */

enum {
  CONFIG_BYTES = 1 << 20, /* the longest file */
  WATCH_EVERY = 100,      /* instructions: each may compare strings of all the memory there is */
  ENTRY_BYTES = 256       /* what an entry takes in the generator, besides long texts */
};

typedef struct Limits {
  size_t memory;    /* all bytes ever allocated */
  size_t copies;    /* bytes that the generator gets of the result */
  int instructions; /* of Lua's machine */
  int seconds;      /* of CPU time */
} Limits;

static const Limits config_limits = {8 << 20, 8 << 20, 100000, 2},
                    grid_limits = {256 << 20, 512 << 20, 100000000, 10};

/* The state of a config, and what is left of its limits. A userdata of the generator, which closes
 * the state whatever happens. */
typedef struct Sandbox {
  lua_State *state;
  const Limits *limits;
  size_t memory, copies;
  int instructions;
  double end;     /* not before this time, in seconds, */
  clock_t used;   /* and with so much on the clock of the CPU, which takes longer to ask */
  bool exhausted; /* an allocation failed for the limit, not for want of memory */
} Sandbox;

static void *bounded_alloc(void *sandbox, void *block, size_t old_size, size_t new_size) {
  Sandbox *box = sandbox;
  if (new_size == 0) {
    free(block);
    return NULL;
  }
  if (block == NULL) old_size = 0; /* Lua passes the kind of the object instead */
  size_t growth = new_size > old_size ? new_size - old_size : 0;
  if (growth > box->memory) {
    box->exhausted = true;
    return NULL;
  }
  box->memory -= growth;
  return realloc(block, new_size);
}

static void watch(lua_State *config, lua_Debug *event) {
  (void)event;
  Sandbox *box = *(Sandbox **)lua_getextraspace(config);
  box->instructions -= WATCH_EVERY;
  bool late = seconds() > box->end && clock() > box->used;
  if (box->instructions > 0 && !late && !caught) return;
  luaL_where(config, 0);
  if (caught) {
    lua_pushliteral(config, "interrupted");
  } else if (late) {
    lua_pushfstring(config, "runs for more than %d seconds", box->limits->seconds);
  } else {
    lua_pushfstring(config, "runs for more than %d instructions", box->limits->instructions);
  }
  lua_concat(config, 2);
  lua_error(config);
}

static void close_sandbox(Sandbox *box) {
  if (box->state != NULL) lua_close(box->state);
  box->state = NULL;
}

static int collect_sandbox(lua_State *L) {
  close_sandbox(lua_touserdata(L, 1));
  return 0;
}

/* Pushes a new sandbox. */
static Sandbox *push_sandbox(lua_State *L, const Limits *limits) {
  Sandbox *box = lua_newuserdatauv(L, sizeof *box, 0);
  *box = (Sandbox){.limits = limits, .memory = limits->memory, .copies = limits->copies,
                   .instructions = limits->instructions,
                   .end = seconds() + limits->seconds,
                   .used = clock() + (clock_t)limits->seconds * CLOCKS_PER_SEC};
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, collect_sandbox);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  box->state = lua_newstate(bounded_alloc, box);
  if (box->state == NULL) no_memory(L);
  *(Sandbox **)lua_getextraspace(box->state) = box;
  lua_sethook(box->state, watch, LUA_MASKCOUNT, WATCH_EVERY);
  return box;
}

/* Pushes the text of a regular file of at most `limit` bytes, or nil and a message. */
static int push_text(lua_State *L, const char *path, size_t limit) {
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

/* Takes so many bytes from what may be copied; false if there are not so many left. */
static bool charge(Sandbox *box, size_t bytes) {
  if (bytes > box->copies) return false;
  box->copies -= bytes;
  return true;
}

/* Copies a string, number or boolean into field `name` of the table on top of `to`, and the name of
 * its type into field `type_name`; of any other value the type alone. False if the copies are too
 * many. */
static bool copy_value(Sandbox *box, int index, lua_State *to, const char *name,
                       const char *type_name) {
  lua_State *from = box->state;
  int type = lua_type(from, index);
  if (type == LUA_TSTRING) {
    size_t size;
    const char *text = lua_tolstring(from, index, &size);
    if (!charge(box, size)) return false;
    lua_pushlstring(to, text, size);
  } else if (type == LUA_TBOOLEAN) {
    lua_pushboolean(to, lua_toboolean(from, index));
  } else if (lua_isinteger(from, index)) {
    lua_pushinteger(to, lua_tointeger(from, index));
  } else if (type == LUA_TNUMBER) {
    lua_pushnumber(to, lua_tonumber(from, index));
  } else {
    lua_pushnil(to);
  }
  lua_setfield(to, -2, name);
  lua_pushstring(to, lua_typename(from, type));
  lua_setfield(to, -2, type_name);
  return true;
}

/* Pushes nil and a message of the error on top of the state. Those of Lua code begin ":<line>:". */
static int fail_config(lua_State *L, Sandbox *box, int status, const char *path) {
  if (status == LUA_ERRMEM && !box->exhausted) return no_memory(L);
  if (status == LUA_ERRMEM) {
    return fail(L, path, lua_pushfstring(L, "needs more than %d MiB of memory",
                                         (int)(box->limits->memory >> 20)));
  }
  bool text = lua_type(box->state, -1) == LUA_TSTRING;
  const char *why = text ? lua_tostring(box->state, -1) : "raises an error that is no text";
  if (why[0] != ':') return fail(L, path, why);
  lua_pushnil(L);
  lua_pushfstring(L, "%s%s", path, why);
  return 2;
}

/* Calls the function under `count` arguments on top of the state. Where it does not return one
 * table: pushes nil and a message on L, and returns 2; else 0. */
static int call_config(lua_State *L, Sandbox *box, int count, const char *path) {
  lua_State *config = box->state;
  int base = lua_gettop(config) - count - 1, status = lua_pcall(config, count, LUA_MULTRET, 0);
  if (status != LUA_OK) return fail_config(L, box, status, path);
  if (lua_gettop(config) != base + 1 || !lua_istable(config, -1)) {
    return fail(L, path, "must return one table");
  }
  return 0;
}

/* Reads the file and runs it in the state, whose top then is its table; errors as call_config. */
static int run_config(lua_State *L, Sandbox *box, const char *path) {
  if (push_text(L, path, CONFIG_BYTES) != 1) return 2;
  size_t size;
  const char *text = lua_tolstring(L, -1, &size);
  int status = luaL_loadbufferx(box->state, text, size, "=", "t");
  if (status != LUA_OK) return fail_config(L, box, status, path);
  return call_config(L, box, 0, path);
}

/* Pushes the table on top of the state as a list { {key=, key_type=, value=, value_type=}, ... }
 * in any order; a value that is a table has its own list, `entries`, to this depth. False if the
 * copies are too many. */
static bool push_entries(lua_State *L, Sandbox *box, int depth) {
  lua_State *config = box->state;
  lua_newtable(L);
  lua_pushnil(config);
  for (lua_Integer i = 1; lua_next(config, -2) != 0; ++i) {
    if (!charge(box, ENTRY_BYTES)) return false;
    lua_newtable(L);
    if (!copy_value(box, -2, L, "key", "key_type")) return false;
    if (!copy_value(box, -1, L, "value", "value_type")) return false;
    if (depth > 0 && lua_istable(config, -1)) {
      if (!push_entries(L, box, depth - 1)) return false;
      lua_setfield(L, -2, "entries");
    }
    lua_rawseti(L, -2, i);
    lua_pop(config, 1);
  }
  return true;
}

static int fail_copies(lua_State *L, Sandbox *box, const char *path) {
  return fail(L, path, lua_pushfstring(L, "returns more than %d MiB of keys and values",
                                       (int)(box->limits->copies >> 20)));
}

/* eval_config(path [, depth]) -> the entries of its table */
static int host_eval_config(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  int depth = (int)luaL_optinteger(L, 2, 0);
  Sandbox *box = push_sandbox(L, &config_limits);
  int results = run_config(L, box, path);
  if (results != 0) return results;
  if (!push_entries(L, box, depth)) return fail_copies(L, box, path);
  close_sandbox(box);
  return 1;
}

/* Returns gen/lab/grid.lua, the only code in the state that sees Lua's base library: what is loaded
 * later gets globals that are empty. */
static int load_grid(lua_State *config) {
  luaL_requiref(config, LUA_GNAME, luaopen_base, 0);
  lua_pop(config, 1);
  load_embedded(config, find_embedded("gen/lab/grid.lua"));
  lua_newtable(config);
  lua_rawseti(config, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
  return 1;
}

/* The list of names on top of the generator's state -> the same list in a config's. */
static int copy_names(lua_State *config) {
  lua_State *L = lua_touserdata(config, 1);
  lua_Integer count = (lua_Integer)lua_rawlen(L, -1);
  lua_createtable(config, (int)count, 0);
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(L, -1, i);
    lua_pushstring(config, lua_tostring(L, -1));
    lua_rawseti(config, -2, i);
    lua_pop(L, 1);
  }
  return 1;
}

/* eval_grid(path, axes_of, limit) -> a list, for each config its entries. axes_of gets the entries
 * of the file's table and returns the names of the axes, in order; its errors are raised. */
static int host_eval_grid(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_Integer limit = luaL_checkinteger(L, 3);
  Sandbox *box = push_sandbox(L, &grid_limits);
  lua_State *config = box->state;
  lua_pushcfunction(config, load_grid);
  int status = lua_pcall(config, 0, 1, 0);
  if (status != LUA_OK) return fail_config(L, box, status, path);
  int results = run_config(L, box, path);
  if (results != 0) return results;

  lua_pushvalue(L, 2);
  if (!push_entries(L, box, 0)) return fail_copies(L, box, path);
  lua_call(L, 1, 1);
  box->memory = box->limits->memory; /* again as much for the product */
  lua_pushcfunction(config, copy_names);
  lua_pushlightuserdata(config, L);
  status = lua_pcall(config, 1, 1, 0);
  if (status != LUA_OK) return fail_config(L, box, status, path);
  lua_pushinteger(config, limit);
  results = call_config(L, box, 3, path);
  if (results != 0) return results;

  lua_Integer count = (lua_Integer)lua_rawlen(config, -1);
  lua_createtable(L, (int)count, 0);
  for (lua_Integer i = 1; i <= count; ++i) {
    lua_rawgeti(config, -1, i);
    if (!push_entries(L, box, 0)) return fail_copies(L, box, path);
    lua_rawseti(L, -2, i);
    lua_pop(config, 1);
  }
  close_sandbox(box);
  return 1;
}

/* ---- reading files ---- */

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

/* ---- writing files ---- */

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

/* ---- locks (for `sweep`) ---- */

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

/* ---- compiling and running (for `check`, `bench` and `sweep`) ---- */

static char *temporary; /* the directory of temp_dir, until it is removed */

/* Removes a directory of files. */
static void remove_files(const char *path) {
  DIR *dir = opendir(path);
  if (dir == NULL) return;
  for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
    unlinkat(dirfd(dir), entry->d_name, 0); /* fails on . and .., as it should */
  }
  closedir(dir);
  rmdir(path);
}

/* What an error may have left. */
static void remove_temporary(void) {
  if (temporary != NULL) remove_files(temporary);
  free(temporary);
  temporary = NULL;
}

/* temp_dir() -> the path of a new directory, one at a time; at the latest the end of the program
 * removes it. */
static int host_temp_dir(lua_State *L) {
  if (temporary != NULL) return luaL_error(L, "there is a temporary directory already");
  const char *base = getenv("TMPDIR");
  if (base == NULL || base[0] == '\0') base = "/tmp";
  char *path = strdup(lua_pushfstring(L, "%s/mhagen-XXXXXX", base));
  if (path == NULL) return no_memory(L);
  if (mkdtemp(path) == NULL) {
    free(path);
    return fail(L, base, strerror(errno));
  }
  temporary = path;
  lua_pushstring(L, path);
  return 1;
}

/* remove_dir(path): a directory of files */
static int host_remove_dir(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  if (temporary != NULL && strcmp(path, temporary) == 0) {
    remove_temporary();
  } else {
    remove_files(path);
  }
  return 0;
}

typedef struct Child {
  pid_t pid;
  int out;              /* its standard output, -1 where that is not read or has ended */
  char *text;           /* what is kept of it, at most `limit` bytes */
  size_t size, limit;
  int interrupt;        /* the last signal that was passed on, or came meanwhile, or 0 */
  bool late;            /* it took longer than it may */
} Child;

/* Reads what is there, and keeps what fits. */
static void read_output(Child *child) {
  char rest[4096];
  bool keep = child->size < child->limit;
  ssize_t got = keep ? read(child->out, child->text + child->size, child->limit - child->size)
                     : read(child->out, rest, sizeof rest);
  if (got > 0 && keep) child->size += (size_t)got;
  if (got > 0 || (got < 0 && errno == EINTR)) return;
  close(child->out);
  child->out = -1;
}

static volatile sig_atomic_t interrupted; /* SIGINT, if one came while wait_without_end waited */

static void note_interrupt(int number) { interrupted = number; }

/* As system(3): the terminal's interrupt ends the child; we stay to clean up. But an interrupt that
 * comes when the child has ended, and we do not know it yet, is not lost. */
static void wait_without_end(Child *child) {
  struct sigaction note = {.sa_handler = note_interrupt}, ignore = {.sa_handler = SIG_IGN}, old_int,
                   old_quit;
  interrupted = 0;
  sigaction(SIGINT, NULL, &old_int);
  if (old_int.sa_handler != SIG_IGN) sigaction(SIGINT, &note, NULL);
  sigaction(SIGQUIT, &ignore, &old_quit);
  siginfo_t info;
  while (child->out >= 0) read_output(child);
  while (waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR) continue;
  sigaction(SIGINT, &old_int, NULL);
  sigaction(SIGQUIT, &old_quit, NULL);
  child->interrupt = interrupted;
}

/* Until the child, the leader of a process group, and its output end. The group is interrupted as we
 * are, terminated after so many seconds, and killed if that does not help. The signals are blocked. */
static void wait_seconds(Child *child, const sigset_t *signals, double limit) {
  enum { GRACE = 2 }; /* seconds after a signal */
  static const int stages[] = {SIGTERM, SIGKILL};
  const int signal_fd = signalfd(-1, signals, SFD_CLOEXEC | SFD_NONBLOCK);
  double end = seconds() + limit;
  for (size_t stage = 0;;) {
    siginfo_t info = {.si_pid = 0};
    waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    if (info.si_pid != 0 && child->out < 0) break;
    const double left = end - seconds();
    if (left <= 0) {
      child->late = child->interrupt == 0;
      if (stage == sizeof stages / sizeof *stages) break; /* another group has its output open */
      kill(-child->pid, stages[stage++]);
      end = seconds() + GRACE;
      continue;
    }
    struct pollfd fds[] = {{.fd = signal_fd, .events = POLLIN}, {.fd = child->out, .events = POLLIN}};
    poll(fds, 2, left > 10 ? 10000 : (int)(left * 1e3) + 1);
    struct signalfd_siginfo got;
    while (read(signal_fd, &got, sizeof got) == (ssize_t)sizeof got) {
      if (got.ssi_signo == SIGCHLD) continue;
      child->interrupt = (int)got.ssi_signo;
      kill(-child->pid, child->interrupt);
      end = fmin(end, seconds() + GRACE);
    }
    if (fds[1].revents != 0) read_output(child);
  }
  /* What it has left, while its number is still taken. */
  if (child->late || child->interrupt != 0) kill(-child->pid, SIGKILL);
  if (child->out >= 0) close(child->out);
  close(signal_fd);
}

/* run({ program, argument, ... } [, limit [, seconds]]) -> exit status, 128 + n for signal n, which
 * ended the program or interrupted us while it ran; with a limit what it wrote to standard output, at
 * most so many bytes, else nil; whether it was ended for having taken longer than `seconds`, where 0
 * and nil are no limit. Other output goes where ours goes. nil, message if it could not be started. */
static int host_run(lua_State *L) {
  size_t count = (size_t)lua_rawlen(L, 1);
  Child child = {.out = -1, .limit = (size_t)luaL_optinteger(L, 2, 0)};
  const double limit = luaL_optnumber(L, 3, 0);
  char **argv = lua_newuserdatauv(L, (count + 1) * sizeof *argv, 0);
  if (child.limit > 0) child.text = lua_newuserdatauv(L, child.limit, 0);
  for (size_t i = 0; i < count; ++i) {
    lua_rawgeti(L, 1, (lua_Integer)i + 1);
    argv[i] = (char *)luaL_checkstring(L, -1); /* the list keeps it alive; a program gets a copy */
    lua_pop(L, 1);
  }
  argv[count] = NULL;
  int ends[2] = {-1, -1};
  if (child.text != NULL && pipe(ends) != 0) return fail(L, "pipe", strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (child.text != NULL) {
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    for (int i = 0; i < 2; ++i) {
      if (ends[i] != STDOUT_FILENO) posix_spawn_file_actions_addclose(&actions, ends[i]);
    }
  }
  sigset_t signals, before;
  sigemptyset(&signals);
  for (size_t i = 0; i < 5; ++i) { /* but one that is ignored, as under nohup, is so by the child too */
    const int number = (const int[]){SIGCHLD, SIGINT, SIGQUIT, SIGTERM, SIGHUP}[i];
    struct sigaction now;
    if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  sigprocmask(SIG_BLOCK, &signals, &before);
  posix_spawnattr_t attributes; /* with a limit of time: a group of its own, which can be killed whole */
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &before);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | (limit > 0 ? POSIX_SPAWN_SETPGROUP : 0));
  int error = posix_spawnp(&child.pid, argv[0], &actions, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (child.text != NULL) close(ends[1]);
  child.out = ends[0];
  int status = 0;
  if (error == 0 && limit > 0) {
    wait_seconds(&child, &signals, limit);
  } else if (error == 0) {
    running = child.pid; /* for the signals, from here on */
    sigprocmask(SIG_SETMASK, &before, NULL);
    wait_without_end(&child);
  } else if (child.out >= 0) {
    close(child.out);
  }
  while (error == 0 && waitpid(child.pid, &status, 0) < 0 && errno == EINTR) continue;
  running = 0;
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (error != 0) return fail(L, argv[0], strerror(error));
  if (child.interrupt == SIGTERM || child.interrupt == SIGHUP) raise(child.interrupt);
  const int end_signal = child.interrupt != 0 ? child.interrupt : WTERMSIG(status);
  lua_pushinteger(L, WIFEXITED(status) && child.interrupt == 0 ? WEXITSTATUS(status) : 128 + end_signal);
  if (child.text != NULL) lua_pushlstring(L, child.text, child.size);
  else lua_pushnil(L);
  lua_pushboolean(L, child.late);
  return 3;
}

/* clock() -> seconds since some moment */
static int host_clock(lua_State *L) {
  lua_pushnumber(L, seconds());
  return 1;
}

/* ---- JSON ---- */

/* Makes the value on top, as lua-cjson reads it, what people expect in Lua: a number without a
 * fraction is an integer, and null is nil. Returns how many keys its objects have. */
static size_t plain_json(lua_State *L) {
  size_t keys = 0;
  if (lua_type(L, -1) == LUA_TNUMBER) {
    lua_Integer whole;
    if (!lua_numbertointeger(lua_tonumber(L, -1), &whole)) return 0;
    if ((lua_Number)whole != lua_tonumber(L, -1)) return 0;
    lua_pushinteger(L, whole);
    lua_replace(L, -2);
  } else if (lua_islightuserdata(L, -1)) {
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
      keys += plain_json(L);
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

/* decode(text) -> the value; nil and a message where it is not JSON by the letter, or an object has a key twice */
static int json_decode(lua_State *L) {
  size_t size;
  const char *text = luaL_checklstring(L, 1, &size);
  if (memchr(text, 0, size) != NULL) { /* there lua-cjson stops */
    return lua_pushnil(L), lua_pushliteral(L, "has a null byte"), 2;
  }
  lua_settop(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, 1);
  if (lua_pcall(L, 1, 1, 0) != LUA_OK) return lua_pushnil(L), lua_insert(L, -2), 2;
  if (plain_json(L) == count_keys(text, text + size)) return 1;
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
static void push_json(lua_State *L) {
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

/* ---- the rest ---- */

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
static void push_printable(lua_State *L, const char *text, size_t size) {
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

/* cpu_has("MHAGEN_CPU_AVX2") -> boolean */
static int host_cpu_has(lua_State *L) {
  static const char *const names[] = {"MHAGEN_CPU_ANY", "MHAGEN_CPU_AVX2", "MHAGEN_CPU_AVX512",
                                      "MHAGEN_CPU_NEON", "MHAGEN_CPU_AVX512_BF16", "MHAGEN_CPU_AVX_VNNI",
                                      "MHAGEN_CPU_AMX", "MHAGEN_CPU_NEON_I8MM", "MHAGEN_CPU_AVX512_FP16",
                                      "MHAGEN_CPU_NEON_FP16", NULL};
  static const mhagen_cpu values[] = {MHAGEN_CPU_ANY, MHAGEN_CPU_AVX2, MHAGEN_CPU_AVX512,
                                      MHAGEN_CPU_NEON, MHAGEN_CPU_AVX512_BF16, MHAGEN_CPU_AVX_VNNI,
                                      MHAGEN_CPU_AMX, MHAGEN_CPU_NEON_I8MM, MHAGEN_CPU_AVX512_FP16,
                                      MHAGEN_CPU_NEON_FP16};
  lua_pushboolean(L, mhagen_cpu_has(values[luaL_checkoption(L, 1, NULL, names)]));
  return 1;
}

/* traceback(message) -> message with the calls that led here, for errors of the generator itself */
static int host_traceback(lua_State *L) {
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

#if defined(__x86_64__)
#define ARCH "x86_64"
#elif defined(__aarch64__)
#define ARCH "aarch64"
#else
#define ARCH "other"
#endif

static void push_host(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"embedded", host_embedded},
      {"load", host_load},
      {"eval_config", host_eval_config},
      {"eval_grid", host_eval_grid},
      {"read_file", host_read_file},
      {"head", host_head},
      {"lines", host_lines},
      {"exists", host_exists},
      {"hash", host_hash},
      {"write_files", host_write_files},
      {"stream", host_stream},
      {"sync_file", host_sync_file},
      {"remove_file", host_remove_file},
      {"lock", host_lock},
      {"locked", host_locked},
      {"holders", host_holders},
      {"temp_dir", host_temp_dir},
      {"remove_dir", host_remove_dir},
      {"run", host_run},
      {"clock", host_clock},
      {"print", host_print},
      {"cpu_has", host_cpu_has},
      {"traceback", host_traceback},
      {"limit_memory", host_limit_memory},
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
  luaL_newlib(L, functions);
  add_tensors(L);
  push_json(L);
  lua_setfield(L, -2, "json");
  const char *cc = getenv("CC"); /* the only environment variable the generator sees */
  lua_pushstring(L, cc != NULL && cc[0] != '\0' ? cc : "cc");
  lua_setfield(L, -2, "cc");
  lua_pushstring(L, ARCH);
  lua_setfield(L, -2, "arch");
  char program[PATH_MAX]; /* this one */
  ssize_t size = readlink("/proc/self/exe", program, sizeof program);
  lua_pushlstring(L, program, size > 0 ? (size_t)size : 0);
  lua_setfield(L, -2, "program");
}

/* run_program(argc, argv): the prelude gets the libraries as globals, and the table host; it
 * returns the main function of the first embedded file, which gets the arguments and returns the
 * exit status and, if something failed, a message. */
static int run_program(lua_State *L) {
  int argc = (int)lua_tointeger(L, 1);
  char **argv = lua_touserdata(L, 2);
  lua_gc(L, LUA_GCGEN, 0, 0); /* a short life with many small tables: a third less time */
  luaL_requiref(L, LUA_GNAME, luaopen_base, 1);
  luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
  luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
  luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
  luaL_requiref(L, LUA_UTF8LIBNAME, luaopen_utf8, 1);
  load_embedded(L, find_embedded("gen/prelude.lua"));
  push_host(L);
  lua_pushstring(L, embedded_files[0].name);
  lua_call(L, 2, 1);
  lua_createtable(L, argc, 0);
  for (int i = 1; i < argc; ++i) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i);
  }
  lua_call(L, 1, 2);
  return 2;
}

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
