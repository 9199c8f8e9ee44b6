/* mhagen.c: what all generated kernels share: the CPU check, checks of calls, packing, the pool.
 * mhagen.h says what each function promises.
 *
 * This file may be used, changed and shipped without conditions; it comes without warranty
 * (SPDX-License-Identifier: 0BSD). */
#include "mhagen.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

/* ---- which instructions this CPU has ---- */

#include "parts/cpu.c"

/* ---- the floating-point environment ---- */

#include "parts/environment.c"

/* ---- kernels of bundles, and what is wrong with a call ---- */

#include "parts/calls.c"

/* ---- packing of weights ---- */

#include "parts/packing.c"

/* ---- files of packed weights ---- */

#include "parts/packed_file.c"

/* ---- the pool of threads ---- */

#include "parts/pool.c"
