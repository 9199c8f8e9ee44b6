/* bench.h: times one kernel of mhagen. It prints a line `key value` for each figure to standard output;
 * the keys are fields of gen/lab/results.lua. Needs bench.c, reference.c, composition.c, bounds.c, rounded.c,
 * the generated peak.c, mhagen.c, libm and Linux. */
#ifndef MHAGEN_BENCH_H
#define MHAGEN_BENCH_H

#include "mhagen.h"

/* A loop of independent products of a number type on the full vectors of an ISA. */
typedef struct mhagen_peak {
  const char *type;
  mhagen_cpu cpu;
  void (*run)(float *out, const float *data, ptrdiff_t rounds); /* null if it is code for another machine */
  int flops;                                                    /* of one round */
} mhagen_peak;

enum { MHAGEN_PEAK_FLOATS = 1024 }; /* that `out` and `data` need, the latter words of numbers of the type */

extern const mhagen_peak *const mhagen_peaks[]; /* of all types and ISAs; null ends it */

/* Flops of a run by the number type that is multiplied. */
typedef struct mhagen_work {
  const char *type; /* null ends a list */
  double flops;
} mhagen_work;

/* A main program. Usage:
 *   [--threads N] [--samples N] [--quick] [--phases]
 * N threads run on N cores. Without --samples it takes as many samples as a second has room for.
 * --quick leaves out the reference and the cold calls. --phases adds lines `pc ADDRESS`: where the
 * program was, by the symbol table, at moments of a run on one thread. The last line is `status ok`, or
 * the step that failed, after a line `message`. Exit status: 0 or 1; 2 for wrong options. */
int mhagen_bench_main(const mhagen_kernel *kernel, const mhagen_work *work, int argc, char **argv);

/* One of several kernels that compute the same from the same arguments. */
typedef struct mhagen_entry {
  const char *name;
  const mhagen_kernel *kernel;
} mhagen_entry;

enum { MHAGEN_MOST_COMPARED = 64 };

/* A main program for a list of kernels, which ends with a null kernel. Usage:
 *   [--samples N] [NAME...]
 * It runs the named kernels and always the first one. Without --samples it prints for each a line
 * `right NAME ERROR BOUND` or `wrong NAME ERROR BOUND`, compared with float64. With --samples it times them
 * in turn, A B C C B A, on one pinned core, and prints for each a line `time NAME US RATIO`: the lower
 * medians of the time of a run, and of its ratio to the time of the first kernel in the same round. */
int mhagen_compare_main(const mhagen_entry *entries, double flops, int argc, char **argv);

#endif
