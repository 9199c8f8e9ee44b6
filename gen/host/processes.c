/* processes.c: programs that are run, compilers and what they make. */
#define _DEFAULT_SOURCE

#include <dirent.h>
#include <errno.h>
#include <lauxlib.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host.h"

extern char **environ;

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
void remove_temporary(void) {
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

/* Starts a program that is terminated when we end, however that is; 127 is its status where it is not there. */
static int start_tied(pid_t *pid, char **argv, const sigset_t *mask, const int ends[2]) {
  const pid_t parent = getpid();
  *pid = fork();
  if (*pid != 0) return *pid < 0 ? errno : 0;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigprocmask(SIG_SETMASK, mask, NULL);
  if (ends[1] >= 0) dup2(ends[1], STDOUT_FILENO);
  for (int i = 0; i < 2; ++i) {
    if (ends[i] >= 0 && ends[i] != STDOUT_FILENO) close(ends[i]);
  }
  if (getppid() == parent) execvp(argv[0], argv);
  _exit(127);
}

/* run({ program, argument, ... } [, limit [, seconds]]) -> exit status, 128 + n for signal n, which
 * ended the program or interrupted us while it ran; with a limit what it wrote to standard output, at
 * most so many bytes, else nil; whether it was ended for having taken longer than `seconds`, where 0
 * and nil are no limit. Other output goes where ours goes. nil, message if it could not be started.
 * A list with the field `tied`: the program does not outlive us. */
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
  lua_getfield(L, 1, "tied");
  int error = lua_toboolean(L, -1)
                  ? start_tied(&child.pid, argv, &before, ends)
                  : posix_spawnp(&child.pid, argv[0], &actions, &attributes, argv, environ);
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

/* Adds what runs programs, its temporary directory, and the clock. */
void add_processes(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"temp_dir", host_temp_dir},
      {"remove_dir", host_remove_dir},
      {"run", host_run},
      {"clock", host_clock},
      {NULL, NULL},
  };
  luaL_setfuncs(L, functions, 0);
}
