/* checker.h: runs a generated kernel against the reference in double and against every promise of
 * mhagen.h. Needs checker*.c, reference.c, composition.c, bounds.c, rounded.c,
 * mhagen.c, libm and POSIX. */
#ifndef MHAGEN_CHECKER_H
#define MHAGEN_CHECKER_H

#include "mhagen.h"

typedef struct mhagen_check_options {
  unsigned long long seed;
  const char *threads; /* sizes of the pools to run on, such as "1,2,5" */
  int terse;           /* one line per kernel */
  int draws;           /* if not 0, only the rows of so many draws of nasty data are checked */
  int climb;           /* if not 0, only norms are, of so many sets of data that come nearer to their bound */
} mhagen_check_options;

/* Checks one kernel in a child process, so that a crash is reported like any other failure. Prints to
 * standard output. Returns 0, also for a kernel that this CPU cannot run, or 1. */
int mhagen_check(const mhagen_kernel *kernel, const mhagen_check_options *options);

/* Checks that each entry of a kernel's batch gets the same bits as from `alone`, the kernel of the same
 * config without a batch. Prints failures only. Returns 0 or 1. */
int mhagen_check_alone(const mhagen_kernel *kernel, const mhagen_kernel *alone,
                       unsigned long long seed);

/* A main program: checks each kernel, or those that the command line names. Usage:
 *   [--seed N] [--threads 1,2,5] [--terse] [--draws N] [--climb N] [NAME...]
 * Terse lines are `ok NAME err=.. bound=.. s=..` (with --draws `ok NAME err=.. bound=1 worst=.. draws=..`,
 * the worst error of a row over its bound, and in which draw), `FAIL NAME (where) why` or `skip NAME why`. */
int mhagen_check_main(const mhagen_kernel *const *kernels, int count, int argc, char **argv);

#endif
