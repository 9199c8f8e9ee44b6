/* host.h: the program that runs the generator: Lua, and the only access to the world outside.
 *
 * There are two Lua states. The generator's has the table `host` of the functions in these files. gen/prelude.lua
 * leaves it no library that could make its output depend on anything but the config. The other one runs a CONFIG.lua or
 * GRID.lua, has no library, and is bounded in size and time.
 *
 * A host function that fails returns nil and a message of one line.
 *
 *   basics.c     errors, time                 reading.c    files that are read
 *   memory.c     the generator's memory       writing.c    files that are written, all or none
 *   embedded.c   files inside the program     locks.c      locks of files
 *   signals.c    an interrupt is an error     processes.c  programs that are run
 *   configs.c    states for configs           printing.c   what a terminal may have
 *   tensors.c    tensors of models            json.c       JSON
 *   decoders.c   their numbers as floats      packing.c    weights by the runtime's list
 *   narrowing.c  floats in fewer bits         evaluate.c   tapes without a compiler
 *   program.c    the table `host`             threads.c    the runtime's choice of tasks
 *   main.c       the exit status
 */
#ifndef HOST_H
#define HOST_H

#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

#include <lua.h>

#include "embed.h"

/* Raises what Lua itself raises then: without the place, by which errors.lua knows it. */
int no_memory(lua_State *L);

/* Pushes nil and "what: why"; returns 2. */
int fail(lua_State *L, const char *what, const char *why);

/* Since some moment. */
double seconds(void);

/* The allocator of the generator's state. */
void *counted_alloc(void *data, void *block, size_t old_size, size_t new_size);

/* The embedded file with this path, or null. */
const EmbeddedFile *find_embedded(const char *name);

/* Pushes an embedded file of Lua as a function. */
void load_embedded(lua_State *L, const EmbeddedFile *file);

extern volatile sig_atomic_t caught; /* the signal that ends this program, or 0 */
extern volatile pid_t running;       /* the program that it waits for, or 0 */

void catch_signals(lua_State *L);

/* Signals wait until unblock_signals(before). */
sigset_t block_signals(void);
void unblock_signals(sigset_t before);

/* Pushes the text of a regular file of at most `limit` bytes, or nil and a message; returns how many. */
int push_text(lua_State *L, const char *path, size_t limit);

/* Pushes the text as a terminal may have it. */
void push_printable(lua_State *L, const char *text, size_t size);

/* Removes the temporary directory, if there is one. */
void remove_temporary(void);

/* Pushes the table { decode =, list = }. */
void push_json(lua_State *L);

/* Each adds its functions to the table on top. */
void add_embedded(lua_State *L);
void add_memory_limit(lua_State *L);
void add_configs(lua_State *L);
void add_reading(lua_State *L);
void add_writing(lua_State *L);
void add_locks(lua_State *L);
void add_processes(lua_State *L);
void add_printing(lua_State *L);

/* run_program(argc, argv) returns the exit status and, if something failed, a message. */
int run_program(lua_State *L);

#endif
