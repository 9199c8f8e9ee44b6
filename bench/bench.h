/* bench.h: times one kernel of mhagen, and prints what it measured to standard output, a
 * line `key value` for each; the keys are fields of gen/lab/results.lua. Needs bench.c, reference.c, the
 * generated peak.c, mhagen.c, libm and Linux. */
#ifndef MHAGEN_BENCH_H
#define MHAGEN_BENCH_H

#include "mhagen.h"

/* A loop of independent FMAs on the full vectors of an ISA. */
typedef struct mhagen_peak {
  mhagen_cpu cpu;
  void (*run)(float *out, ptrdiff_t rounds); /* null where this is code for another machine */
  int flops;                                 /* of one round */
} mhagen_peak;

enum { MHAGEN_PEAK_FLOATS = 1024 }; /* room that `out` needs */

extern const mhagen_peak *const mhagen_peaks[]; /* of all ISAs; null ends it */

/* A main program. flops: of one run. Usage:
 *   [--threads N] [--samples N] [--quick] [--phases]
 * N threads run on N cores; without --samples as many are taken as are of use in a second. --quick
 * leaves out the reference and the cold calls. --phases adds lines `pc ADDRESS`: where, in terms of
 * the symbol table, the program was at points of time of a run on one thread. The last line is
 * `status ok`, or the step that failed, with a line `message`; exit status 0 or 1, 2 for wrong
 * options. */
int mhagen_bench_main(const mhagen_kernel *kernel, double flops, int argc, char **argv);

/* A kernel among several that compute the same of the same arguments. */
typedef struct mhagen_entry {
  const char *name;
  const mhagen_kernel *kernel;
} mhagen_entry;

enum { MHAGEN_MOST_COMPARED = 64 };

/* A main program for a list of kernels, which a null kernel ends. Usage:
 *   [--samples N] [NAME...]
 * Without --samples a line `right NAME ERROR BOUND` or `wrong ...` for each, against float64. With it
 * a line `time NAME US RATIO`: the lower medians of the time of a run, and of its ratio to that of the
 * first kernel in the same round; A B C C B A on one pinned core. Of the named kernels, and the first. */
int mhagen_compare_main(const mhagen_entry *entries, double flops, int argc, char **argv);

#endif
