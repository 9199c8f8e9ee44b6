/* signals.c: SIGINT, SIGTERM and SIGHUP end the generator as an error does. */
#define _DEFAULT_SOURCE

#include <lauxlib.h>
#include <signal.h>

#include "host.h"

volatile sig_atomic_t caught; /* the signal that ends this program, or 0 */
volatile pid_t running;       /* the program that host_run waits for, or 0 */
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

void catch_signals(lua_State *L) {
  generator = L;
  for (int i = 0; i < ENDING; ++i) {
    struct sigaction action = {.sa_handler = on_signal}, before; /* ends the wait for a lock */
    sigemptyset(&action.sa_mask);
    sigaction(ending[i], NULL, &before);
    if (before.sa_handler != SIG_IGN) sigaction(ending[i], &action, NULL); /* as nohup wants it */
  }
}

/* Signals wait until unblock_signals(before). */
sigset_t block_signals(void) {
  sigset_t signals, before;
  sigemptyset(&signals);
  for (int i = 0; i < ENDING; ++i) sigaddset(&signals, ending[i]);
  sigprocmask(SIG_BLOCK, &signals, &before);
  return before;
}

void unblock_signals(sigset_t before) { sigprocmask(SIG_SETMASK, &before, NULL); }
