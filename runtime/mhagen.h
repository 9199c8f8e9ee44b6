/* mhagen.h: the types that every generated attention kernel shares, and an optional thread pool.
 *
 * This file may be used, changed and shipped without conditions; it comes without warranty
 * (SPDX-License-Identifier: 0BSD).
 *
 * A generated pair <name>.h, <name>.c needs this header and mhagen.c, a C99 compiler and libc.
 * Nothing here or in a kernel keeps global state. Define MHAGEN_NO_POOL to leave the pool (and with
 * it the dependency on threads) out; mhagen_run_parallel then runs everything on the caller. Where
 * there are no POSIX threads, as on a bare Cortex-M, it is left out by itself.
 *
 * The computation, for head i of h (Vaswani et al. 2017, and torch.nn.MultiheadAttention):
 *
 *   Q_i = Q Wq_i + bq_i     K_g = K Wk_g + bk_g     V_g = V Wv_g + bv_g
 *   head_i = softmax(Q_i K_g^T / sqrt(dk)) V_g
 *   Y = concat(head_1 .. head_h) Wo + bo
 *
 * where g is i, or with h_kv < h the head of keys and values that h / h_kv heads share, counted
 * from 0: g = floor(i / (h / h_kv)).
 *
 * Errors against float64, s being the largest |score|:
 *
 *   ||y - ref|| <= error * max(1, s/16) * ||ref||   norms of at least 32 rows of attention weights
 *                                                   and 64 columns, where results do not cancel
 *   ||y - ref|| <= n * unit * (1 + S) * ||size||    each row, of any data
 *
 * error and unit are fields of a kernel: in float32 1e-6, with strassen 2e-6, and 2^-24.
 * n = 16 + max(d_model, k_width, v_width) + dk + seq_kv + h*dv; size is the row computed with |x|,
 * |W| and |b|, but the true attention weights; S is the largest score computed so, of the keys that
 * the row sees.
 */
#ifndef MHAGEN_H
#define MHAGEN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of mhagen, 10000 major + 100 minor + patch. A kernel of another version does not
 * compile with this header. */
#define MHAGEN_VERSION 100

/* MHAGEN_API stands before each declaration that other files use. A shared library that is compiled
 * with -fvisibility=hidden exports these. Define it as empty to export nothing; for a DLL define it
 * as __declspec(dllexport), and in the program that uses the DLL as __declspec(dllimport). */
#ifndef MHAGEN_API
#if defined(__GNUC__) && !defined(_WIN32)
#define MHAGEN_API __attribute__((visibility("default")))
#else
#define MHAGEN_API
#endif
#endif

/* Required alignment, in bytes, of the packed weights and of the workspace. */
#define MHAGEN_ALIGN 64

typedef enum mhagen_status {
  MHAGEN_OK = 0,
  MHAGEN_ERR_NULL = 1,   /* a pointer that the kernel needs is null */
  MHAGEN_ERR_ALIGN = 2,  /* packed or workspace is not aligned to MHAGEN_ALIGN */
  MHAGEN_ERR_LENGTH = 3, /* a kv_len is outside 0..seq_kv */
  MHAGEN_ERR_CPU = 4,    /* this CPU lacks the instructions of the kernel */
  MHAGEN_ERR_LAYOUT = 5, /* mhagen_weights.layout is not one of mhagen_layout */
  MHAGEN_ERR_TARGET = 6, /* the kernel was compiled for an architecture without its instructions */
  MHAGEN_ERR_ARITHMETIC = 7 /* the compiler's flags changed the arithmetic of the kernel */
} mhagen_status;

/* A short English text for a status; never null. */
MHAGEN_API const char *mhagen_status_text(mhagen_status status);

/* How the weight matrices are stored. */
typedef enum mhagen_layout {
  MHAGEN_IN_OUT = 0, /* y = x W:   wq[d_model][h*dk],  wo[h*dv][y_width] */
  MHAGEN_OUT_IN = 1  /* y = x W^T: wq[h*dk][d_model],  wo[y_width][h*dv], as torch.nn.Linear */
} mhagen_layout;

/* The weights of one attention layer, float32. A null bias means zeros. Head i owns the output
 * features i*dk .. i*dk+dk-1 of wq and the rows i*dv .. of wo, head g of keys and values the
 * features g*dk .. of wk and g*dv .. of wv. */
typedef struct mhagen_weights {
  const float *wq, *wk, *wv, *wo; /* [d_model][h*dk], [k_width][h_kv*dk], [v_width][h_kv*dv],
                                     [h*dv][y_width] */
  const float *bq, *bk, *bv, *bo; /* [h*dk], [h_kv*dk], [h_kv*dv], [y_width] */
  mhagen_layout layout;
} mhagen_weights;

/* The arguments of one run. Arrays are dense, row-major float32, aligned as float. */
typedef struct mhagen_args {
  const float *q, *k, *v; /* [batch][seq][d_model], [batch][seq_kv][k_width],
                             [batch][seq_kv][v_width]; self-attention reads q alone */
  float *y;               /* [batch][seq][y_width]; must not overlap any other buffer */
  const void *packed;     /* filled by the kernel's pack; aligned to MHAGEN_ALIGN; only read */
  void *workspace;        /* workspace_bytes, aligned to MHAGEN_ALIGN, contents irrelevant;
                             two runs at the same time need two workspaces */
  const int *kv_len;      /* [batch], each 0..seq_kv: the valid keys; only where the config
                             says so */
  float *probs;           /* [batch][h][seq][seq_kv]: the attention weights; only where the config
                             says so */
} mhagen_args;

/* The options of a kernel, as bits of mhagen_kernel.options. */
enum {
  MHAGEN_CROSS = 1,    /* q, k and v are three inputs */
  MHAGEN_CAUSAL = 2,   /* row r sees keys 0..pos(r), its place among the keys: r, or see below */
  MHAGEN_KV_LEN = 4,   /* reads args->kv_len */
  MHAGEN_PROBS = 8,    /* writes args->probs */
  MHAGEN_STRASSEN = 16, /* projections by Strassen's algorithm; error up to 2e-6 */
  MHAGEN_WINDOW_LEFT = 32,   /* row r sees no key before pos(r) - window_left */
  MHAGEN_WINDOW_RIGHT = 64,  /* and none behind pos(r) + window_right */
  MHAGEN_BOTTOM_RIGHT = 128  /* pos(r) = r + seq_kv - seq */
};

/* The tasks of a phase are independent: each may run on any thread, in any order. Every task of a
 * phase must have ended before a task of the next phase begins. */
typedef struct mhagen_phase {
  const char *name;
  void (*task)(const mhagen_args *args, int index); /* index: first .. first + tasks - 1 */
  int first;
  int tasks;
  double cycles; /* an estimate for all of its tasks, on one core */
} mhagen_phase;

/* A pointer that must be given. */
typedef struct mhagen_need {
  size_t at; /* its offset in mhagen_args or mhagen_weights */
  int align; /* in bytes, a power of two */
  int most;  /* it is to an int for each batch entry, from 0 to this; -1: to anything else */
} mhagen_need;

/* A kernel as data: all that <name>.h declares, for callers that choose kernels at run time. */
typedef struct mhagen_kernel {
  const char *name;
  const char *isa;
  int h, d_model, dk, dv, seq, seq_kv, batch;
  unsigned options; /* MHAGEN_CROSS | ... */
  size_t packed_bytes, workspace_bytes;
  int (*supported)(void);                                         /* has this CPU the ISA? */
  mhagen_status (*pack)(const mhagen_weights *weights, void *packed);
  mhagen_status (*run)(const mhagen_args *args);   /* everything on the calling thread */
  const mhagen_phase *phases; /* what a scheduler runs after mhagen_check_args returned MHAGEN_OK */
  int phase_count; /* 0 where the kernel was compiled for another architecture */
  mhagen_status (*self_test)(void); /* have the compiler's flags left the arithmetic as it is? */
  const mhagen_need *needs; /* what a run needs of mhagen_args */
  int need_count;
  double error; /* what the norm of all errors is of that of all results, above, for s <= 16 */
  double unit;  /* the largest rounding of an operand of a product: 2^-24 for float32 */
  int window_left, window_right; /* where the options say so */
  int h_kv; /* heads of keys and values: h, or a divisor where heads share them */
  int k_width, v_width, y_width; /* numbers in a row of k, v and y: d_model if not said */
} mhagen_kernel;

/* Returns the status that kernel->run would return, for callers who run the phases themselves. */
MHAGEN_API mhagen_status mhagen_check_args(const mhagen_kernel *kernel, const mhagen_args *args);

/* A pool of worker threads. A short while after the last task they sleep until there is a new one.
 * One pool serves any number of kernels, one run at a time: several threads must not use one pool
 * at the same time. */
typedef struct mhagen_pool mhagen_pool;

/* The most threads of a pool. */
#define MHAGEN_MAX_THREADS 1024

/* Creates a pool of `threads` threads, one of which is the caller of mhagen_run_parallel; it
 * allocates. Returns null if threads is outside 1..MHAGEN_MAX_THREADS, if memory or threads are
 * short, or if the runtime has no pool. A process made by fork() has none of the workers: there
 * mhagen_run_parallel runs everything on the caller, and mhagen_pool_destroy only frees memory. */
MHAGEN_API mhagen_pool *mhagen_pool_create(int threads);

/* Ends and joins the workers. Null is allowed. */
MHAGEN_API void mhagen_pool_destroy(mhagen_pool *pool);

/* Runs the kernel on the threads of the pool. With a null pool, or a kernel that is too small to
 * gain from waking threads, the caller runs everything. The bits of the result do not depend on the
 * pool. Errors: those of mhagen_check_args; nothing is written then. */
MHAGEN_API
mhagen_status mhagen_run_parallel(const mhagen_kernel *kernel, const mhagen_args *args,
                                  mhagen_pool *pool);

/* For generated code: a list of fills says how packed weights are made of the given ones. A fill
 * writes panel[steps][width], float32: `used` columns of a matrix, scaled and rounded once, and
 * zeros behind them. The matrix is a sum of terms, computed in double. Rounds, one inside another,
 * repeat a fill, and move the panel and the terms on. */
enum { MHAGEN_PACK_TERMS = 4, MHAGEN_PACK_ROUNDS = 3 }; /* the most of a fill */

enum { /* a matrix of mhagen_weights */
  MHAGEN_NONE,
  MHAGEN_WQ, MHAGEN_WK, MHAGEN_WV, MHAGEN_WO, MHAGEN_BQ, MHAGEN_BK, MHAGEN_BV, MHAGEN_BO,
  MHAGEN_MATRICES = MHAGEN_BO
};

typedef struct mhagen_matrix_size {
  ptrdiff_t rows, columns; /* as MHAGEN_IN_OUT has them; biases have one row */
} mhagen_matrix_size;

typedef struct mhagen_pack_term {
  int a, a_flipped; /* a matrix, or its transposed; null means zeros */
  int b, b_flipped; /* MHAGEN_NONE, or what a is multiplied by */
  ptrdiff_t row, column, first, inner; /* where the panel begins; the columns of a in a product */
  int sign;         /* of a alone */
} mhagen_pack_term;

typedef struct mhagen_pack_round {
  ptrdiff_t count; /* 0 is 1 */
  ptrdiff_t to, row, column, first; /* what a round adds */
} mhagen_pack_round;

typedef struct mhagen_pack_fill {
  ptrdiff_t to; /* place of the panel in packed, in floats */
  ptrdiff_t steps, used, width;
  double scale;
  int term, terms; /* the first, and how many */
  mhagen_pack_round rounds[MHAGEN_PACK_ROUNDS];
} mhagen_pack_fill;

typedef struct mhagen_packing {
  size_t bytes;
  mhagen_matrix_size sizes[MHAGEN_MATRICES]; /* from MHAGEN_WQ on */
  const mhagen_pack_term *terms;
  const mhagen_pack_fill *fills;
  int fill_count;
  const mhagen_need *needs; /* of mhagen_weights */
  int need_count;
} mhagen_packing;

/* For generated code: the status that packing starts with. */
MHAGEN_API mhagen_status mhagen_check_weights(const mhagen_packing *packing,
                                              const mhagen_weights *weights, const void *packed);

/* For generated code: packs the weights by the list. */
MHAGEN_API void mhagen_pack(const mhagen_packing *packing, const mhagen_weights *weights,
                            void *packed);

/* For generated code: MHAGEN_OK if the bits of got[rows][lanes], without the signs, lie between the
 * two of each row, else MHAGEN_ERR_ARITHMETIC. */
MHAGEN_API mhagen_status mhagen_check_bits(const float *got, const uint32_t (*bits)[2], int rows,
                                           int lanes);

/* Instruction sets that a generated kernel may ask for. */
typedef enum mhagen_cpu {
  MHAGEN_CPU_ANY,
  MHAGEN_CPU_AVX2,
  MHAGEN_CPU_AVX512,
  MHAGEN_CPU_NEON
} mhagen_cpu;

/* Whether CPU and operating system offer it (AVX2 includes FMA; AVX-512 is F, DQ, BW, VL). */
MHAGEN_API int mhagen_cpu_has(mhagen_cpu isa);

#ifdef __cplusplus
}
#endif

#endif
