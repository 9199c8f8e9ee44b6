/* fault_shim.c: preloaded by tests/host/test_faults.py; makes calls of the C library fail in one process.
 *
 *   FAIL="renameat N [COUNT]"  the N-th call from now on, and so many (all) after it, has an input/output error
 *   FAIL="linkat N [COUNT]"    as on a file system without links
 *
 * With a semicolon between them there may be several. The programs that this one starts are spared.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RENAMEAT, LINKAT, KINDS };
static const char *const names[KINDS] = {"renameat", "linkat"};
static long calls[KINDS], first[KINDS], last[KINDS];

__attribute__((constructor)) static void read_environment(void) {
  const char *text = getenv("FAIL");
  for (; text != NULL; text = strchr(text, ';') ? strchr(text, ';') + 1 : NULL) {
    char name[16];
    long n, count;
    int got = sscanf(text, " %15s %ld %ld", name, &n, &count);
    for (int kind = 0; kind < KINDS; ++kind) {
      if (got < 2 || strcmp(name, names[kind]) != 0) continue;
      calls[kind] = 0;
      first[kind] = n;
      last[kind] = got == 3 ? n + count - 1 : LONG_MAX;
    }
  }
  unsetenv("FAIL");
  unsetenv("LD_PRELOAD");
}

static int fails(int kind, int error) {
  ++calls[kind];
  if (first[kind] == 0 || calls[kind] < first[kind] || calls[kind] > last[kind]) return 0;
  errno = error;
  return 1;
}

int renameat(int from, const char *old, int to, const char *name) {
  static int (*real)(int, const char *, int, const char *);
  if (real == NULL) real = (int (*)(int, const char *, int, const char *))dlsym(RTLD_NEXT, "renameat");
  return fails(RENAMEAT, EIO) ? -1 : real(from, old, to, name);
}

int linkat(int from, const char *old, int to, const char *name, int flags) {
  static int (*real)(int, const char *, int, const char *, int);
  if (real == NULL) real = (int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat");
  return fails(LINKAT, EPERM) ? -1 : real(from, old, to, name, flags);
}
