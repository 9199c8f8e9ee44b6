/* mhagen.h: the types that every generated attention kernel shares, and an optional thread pool.
 *
 * This file may be used, changed and shipped without conditions; it comes without warranty
 * (SPDX-License-Identifier: 0BSD).
 *
 * A generated pair <name>.h, <name>.c needs this header and mhagen.c, a C99 compiler and libc.
 * Neither keeps global state, except that mhagen_cpu_has caches the answers of CPUID, and of Linux
 * about AMX. Define MHAGEN_NO_POOL to leave out the pool, and with it the dependency on threads.
 * Then mhagen_run_parallel runs everything on the caller. Without POSIX threads, as on a bare
 * Cortex-M, it is left out anyway.
 *
 * The computation, for head i of h (Vaswani et al. 2017, and torch.nn.MultiheadAttention):
 *
 *   Q_i = Q Wq_i + bq_i     K_g = K Wk_g + bk_g     V_g = V Wv_g + bv_g
 *   head_i = softmax(scale Q_i K_g^T) V_g
 *   Y = concat(head_1 .. head_h) Wo + bo
 *
 * where scale is 1/sqrt(dk) unless the config sets it. g is the head of keys and values of head i:
 * i itself, or with h_kv < h, counted from 0, floor(i / (h / h_kv)). With alibi, slope_i * (c -
 * pos(r)) is added to the score of query r and key c (Press et al. 2022); pos(r) is the position of
 * the query among the keys, see below. Before that, softcap replaces a score s by softcap * tanh(s
 * / softcap); after it a mask adds to scores, or hides keys. With sink, exp(sink_i) is added to the
 * sum that softmax divides by, in rows that see a key.
 *
 * A config may omit projections (MHAGEN_UNPROJECTED): a row of Q then holds Q_1 .. Q_h side by
 * side, rows of K and V likewise, and Y is head_1 .. head_h. With MHAGEN_BHSD all rows of a head
 * lie together.
 *
 * With qk_norm the rows of Q_i and K_g first have a norm, see below; s then is the largest |score|
 * times the root mean square of all their lengths over the least of them.
 *
 * With rope the rows of Q_i and K_g are rotated before that (Su et al., RoFormer, 2021). In a row
 * at position x, pair j has the angle x * rope_theta^(-2j/rope_dims). Its two columns (a, b) become
 * (a cos - b sin, b cos + a sin). The position of a row of K is its number, that of row r of Q is
 * pos(r). With MHAGEN_ROPE_AT_RUN a run gives the cosines and sines of its rows instead.
 *
 * Errors against float64, s being the largest |score|:
 *
 *   ||y - ref|| <= error * max(1, s/16) * ||ref||   norms of at least 32 rows of attention weights
 *                                                   and 64 columns, where results do not cancel;
 *                                                   s/8 where unit is above 2^-24
 *   ||y - ref|| <= n * unit * (1 + S) * ||size||    each row, of any data
 *
 * The norm of a sum of independent terms is the root of the sum of their squares. Results do not
 * cancel where the norms of queries, keys, values, contexts and y are at least 0.85 of that.
 *
 * error and unit are fields of a kernel: in float32 1e-6 and 2^-24; in int8 3e-2 and 1/254, the
 * error of an operand: half of one of 127 steps. For int8, size and S take the largest number of
 * its row in place of each number of x and of the contexts before Wo, and the largest of its column
 * for W. A largest number below 2^-100 counts as 2^-100. The second bound has
 *
 *   n      16 + max(d_model, k_width, v_width) + dk + seq_kv + h*dv. Widths of rows that are not
 *          projected do not count, nor does h*dv if Y is not projected.
 *   size   the row computed with |x|, |W| and |b|, but the true attention weights.
 *   S      the largest score computed in the same way, of the keys that the row sees.
 *
 * Where Y is not projected, each head of a row counts as a row.
 *
 * Floating-point environment. Rounding is to nearest: with another mode packing, runs and fills
 * return MHAGEN_ERR_ROUNDING. Threads of a scheduler of your own have to have it, too. Packing and
 * the self-test raise no more than FE_INEXACT. A run may raise any flag on any data, because
 * compilers compute numbers that are then not used. Kernels themselves raise FE_OVERFLOW where a
 * number or a sum of weights is too large for its type. They raise FE_INVALID on NaN and
 * infinities, including those that they produce. Where exceptions trap (feenableexcept), call runs
 * and fills by mhagen_call_quietly. Packing and threads of a pool switch traps off by themselves.
 *
 * Where weights are integers times scales (weight_dtype), error is 3e-2 for int8, and 2.4e-1 for
 * int4, with max(1, s/4). That is for groups of 32 normally distributed numbers. For any int4
 * weights it is 1e-1 * c, with c the root mean square of the largest |w| of each group over that of
 * all weights. unit is 1/254 or 1/8. |W| is then the largest that shares its scale, and the second
 * bound has e^x - 1 for x = n * unit * (1 + S).
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
#define MHAGEN_VERSION 200

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

/* Required alignment, in bytes, of the packed weights, tables, the workspace and a cache. */
#define MHAGEN_ALIGN 64

typedef enum mhagen_status {
  MHAGEN_OK = 0,
  MHAGEN_ERR_NULL = 1,   /* a pointer that the kernel needs is null */
  MHAGEN_ERR_ALIGN = 2,  /* packed, tables, workspace or cache is not aligned to MHAGEN_ALIGN */
  MHAGEN_ERR_LENGTH = 3, /* a kv_len, kv_start or a number of row_keys is outside 0..seq_kv, a q_len
                            outside 0..seq, or a past outside 0..seq_kv - seq */
  MHAGEN_ERR_CPU = 4,    /* this CPU lacks the instructions of the kernel */
  MHAGEN_ERR_LAYOUT = 5, /* mhagen_weights.layout is not one of mhagen_layout */
  MHAGEN_ERR_TARGET = 6, /* the kernel was compiled for an architecture without its instructions */
  MHAGEN_ERR_ARITHMETIC = 7, /* the compiler's flags changed the arithmetic of the kernel */
  MHAGEN_ERR_PACKED = 8, /* packed weights or tables of another kernel, or of another member of a
                            multi-versioned kernel, or none; or a damaged file of them */
  MHAGEN_ERR_ROUNDING = 9 /* the thread's rounding mode is not to nearest */
} mhagen_status;

/* A short English text for a status; never null. */
MHAGEN_API const char *mhagen_status_text(mhagen_status status);

/* How the weight matrices are stored. */
typedef enum mhagen_layout {
  MHAGEN_IN_OUT = 0, /* y = x W:   wq[d_model][h*dk],  wo[h*dv][y_width] */
  MHAGEN_OUT_IN = 1  /* y = x W^T: wq[h*dk][d_model],  wo[y_width][h*dv], as torch.nn.Linear */
} mhagen_layout;

/* The weights of one attention layer, float32. A null bias means zeros. Head i owns the output
 * features i*dk .. i*dk+dk-1 of wq and the rows i*dv .. of wo. Head g of keys and values owns the
 * features g*dk .. of wk and g*dv .. of wv. A matrix that no projection of the kernel uses may be
 * null. */
typedef struct mhagen_weights {
  const float *wq, *wk, *wv, *wo; /* [d_model][h*dk], [k_width][h_kv*dk], [v_width][h_kv*dv],
                                     [h*dv][y_width] */
  const float *bq, *bk, *bv, *bo; /* [h*dk], [h_kv*dk], [h_kv*dv], [y_width] */
  mhagen_layout layout;
  const float *alibi; /* [h]: slopes, only where the config says so; null: those of the paper */
  const float *sink;  /* [h]: logits, only where the config says so; null means zeros */
  const float *q_norm, *k_norm; /* gains of qk_norm, [dk], or unless norm_span is head [h*dk] and
                                   [h_kv*dk]; null: ones */
  const float *rope_cos, *rope_sin; /* [places][rope_dims/2] in any layout, with rope: the cosine
                                       and sine of the angle by which a row at a position rotates
                                       each pair; positions from min(0, pos(0)) on; null: angles of
                                       rope_theta */
  const float *norm1, *norm1_bias; /* gains and biases of the norm of rows of q or y, if the config
                                      has it, as many as columns; biases only with layer; null:
                                      ones, zeros */
  const float *w1, *w2, *w3; /* of the feed-forward after y, if the config has it:
                                [y_width][ffn], [ffn][y_width], and with ffn_gate [y_width][ffn] */
  const float *b1, *b2, *b3; /* [ffn], [y_width], [ffn]; null: zeros */
  const float *norm2, *norm2_bias; /* of the norm of rows before the feed-forward (norm = pre) or
                                      after it (post), as norm1: [y_width] */
  const float *norm1b, *norm2b; /* gains of the norms of the outputs of attention and the
                                   feed-forward (norm = sandwich): [y_width]; null: ones */
  const float *gain1, *gain2; /* layer scale: gains of the outputs of attention (with residual) and
                                 the feed-forward, before they are added; [y_width]; null: ones;
                                 gain1 is not there with an out_act */
} mhagen_weights;

/* The arguments of one run. Arrays are dense, row-major float32, aligned as float. With
 * MHAGEN_IO_DTYPE q, k, v and y have the type of mhagen_kernel.io_dtype, bfloat16 or half
 * precision. Their arrays are uint16_t, aligned as uint16_t. Convert such a pointer through void:
 * args.q = (const void *)x. */
typedef struct mhagen_args {
  const float *q, *k, *v; /* [batch][seq][d_model], [batch][seq_kv][k_width],
                             [batch][seq_kv][v_width]; self-attention reads q alone. What is not
                             projected is [..][seq][h][dk], [..][seq_kv][h_kv][dk] or [..][dv],
                             with MHAGEN_BHSD the heads before the rows: [..][h][seq][dk], ..
                             With cache = append k and v have seq rows */
  float *y;               /* [batch][seq][y_width], where it is not projected [..][seq][h][dv] or,
                             with MHAGEN_BHSD, [..][h][seq][dv]; must not overlap any other
                             buffer */
  const void *packed;     /* filled by the kernel's pack, or a layer of a file of its packed
                             weights; it begins with the kernel's fingerprint; aligned to
                             MHAGEN_ALIGN; only read; may be null where packed_bytes is 0 */
  void *workspace;        /* workspace_bytes, aligned to MHAGEN_ALIGN, contents irrelevant;
                             two runs at the same time need two workspaces */
  const int *kv_len;      /* [batch], each 0..seq_kv: the valid keys; only where the config
                             says so */
  float *probs;           /* [batch][h][seq][seq_kv]: the attention weights; only where the config
                             says so */
  const int *kv_start;    /* [batch], each 0..seq_kv: the first valid key; only where the config
                             says so */
  const int *q_len;       /* [batch], each 0..seq: the rows that are computed; the others of y and
                             probs stay as they are; only where the config says so */
  const void *mask;       /* [batch][h][seq][seq_kv], but for the axes that mask_dims lacks; only
                             where the config says so: unsigned char, not 0 where a key may be seen,
                             or float, added to the scores, and -INFINITY where a key is not seen */
  float *scores;          /* [batch][h][seq][seq_kv]: scores before softmax, -INFINITY where a key
                             is not valid; only where the config says so */
  const int *past;        /* [batch], each 0..seq_kv - seq: the rows that are in the cache before
                             this run; only with cache = append */
  void *cache;            /* [batch] times cache_bytes, aligned to MHAGEN_ALIGN: keys and values
                             that are kept between runs; only where the config says so. With append
                             a run writes the seq rows after past, leaves those before as they are,
                             and may write those after. With MHAGEN_CACHE_BHSD it is aligned as its
                             numbers, with int8 as float, and what follows these rows stays as it
                             is */
  const void *tables;     /* filled by the kernel's pack_tables, or a part of a file of tables; it
                             begins with a fingerprint; aligned to MHAGEN_ALIGN; only read; only
                             where the config has rope_tables = apart */
  const int *row_keys;    /* [batch][seq][2], each 0..seq_kv: row r sees keys first <= c < end of
                             row_keys[..][r] = { first, end } only, and none where first >= end;
                             only where the config has row_keys = range. With q_len only the rows
                             that are asked for are read */
  const float *rope_cos, *rope_sin; /* [batch][seq][rope_dims/2]: the cosine and sine of the angle
                                       by which each row of Q rotates each pair, and each row of
                                       the K that is made from the same rows; only where the config
                                       has rope_at = run */
  const float *k_rope_cos, *k_rope_sin; /* the same for K where it has rows of its own,
                                           [batch][seq_kv][rope_dims/2]: with three inputs, but
                                           without cache = append; with cache = fixed fill reads
                                           them */
} mhagen_args;

/* The options of a kernel, as bits of mhagen_kernel.options. */
enum {
  MHAGEN_CROSS = 1,    /* q, k and v are three inputs */
  MHAGEN_CAUSAL = 2,   /* row r sees keys 0..pos(r), its place among the keys: r, or see below */
  MHAGEN_KV_LEN = 4,   /* reads args->kv_len */
  MHAGEN_PROBS = 8,    /* writes args->probs */
  MHAGEN_WINDOW_LEFT = 32,   /* row r sees no key before pos(r) - window_left */
  MHAGEN_WINDOW_RIGHT = 64,  /* and none after pos(r) + window_right */
  MHAGEN_BOTTOM_RIGHT = 128, /* pos(r) = r + seq_kv - seq; past + r with MHAGEN_CACHE_APPEND */
  MHAGEN_ALIBI = 256,        /* adds slope_i * (c - pos(r)) to the score of query r and key c */
  MHAGEN_KV_START = 512,     /* reads args->kv_start */
  MHAGEN_Q_LEN = 1024,       /* reads args->q_len */
  MHAGEN_MASK_BOOL = 2048,   /* reads args->mask, of unsigned char */
  MHAGEN_MASK_ADD = 4096,    /* reads args->mask, of float */
  MHAGEN_SOFTCAP = 8192,     /* scores become softcap * tanh(score / softcap) */
  MHAGEN_SINK = 16384,       /* the weights of keys sum to less than 1: a sink has the rest */
  MHAGEN_SCORES = 32768,     /* writes args->scores */
  MHAGEN_QK_NORM = 65536,    /* rows of Q and K have a norm */
  MHAGEN_ROPE = 131072,      /* rows of Q and K are rotated by their positions */
  MHAGEN_CACHE_APPEND = 262144, /* k, v (or q, in self-attention) have seq rows, which join the past
                                   rows of args->cache; pos(r) = past + r */
  MHAGEN_CACHE_FIXED = 524288, /* fill writes args->cache, runs read it in the place of k and v */
  MHAGEN_UNPROJECTED = 1048576, /* mhagen_kernel.project says what is projected; the rest is not */
  MHAGEN_BHSD = 2097152,     /* what is not projected is [batch][heads][rows][width] */
  MHAGEN_CACHE_BHSD = 4194304, /* args->cache is [h_kv][seq_kv][dk], then [h_kv][seq_kv][dv] */
  MHAGEN_SCALE = 8388608,    /* scale is not 1/sqrt(dk) but what the config says */
  MHAGEN_DTYPE = 16777216,   /* operands of the projections are rounded to mhagen_kernel.dtype; with
                                int8, rows of activations and columns of weights have scales */
  MHAGEN_ATTEND_DTYPE = 33554432, /* those of attention to another one, attend_dtype */
  MHAGEN_WEIGHT_DTYPE = 67108864, /* wq, wk, wv and wo have fewer bits: weight_dtype */
  MHAGEN_IO_DTYPE = 134217728, /* q, k, v and y are uint16_t in memory: mhagen_kernel.io_dtype */
  MHAGEN_CACHE_DTYPE = 268435456, /* rows of the cache are of mhagen_kernel.cache_dtype */
  MHAGEN_VALUE_WEIGHT_DTYPE = 536870912, /* wv is of mhagen_kernel.value_weight_dtype */
  MHAGEN_RESIDUAL = 1073741824 /* y is the rows of q plus the output of attention */
};

/* Above bit 31 they are macros, because enumerators have type int. */
#define MHAGEN_PRE_NORM ((uint64_t)1 << 31)  /* the rows of q (in self-attention also as k and v)
                                                are normalized first, by norm_kind */
#define MHAGEN_POST_NORM ((uint64_t)1 << 32) /* the rows of y are normalized at the end */
#define MHAGEN_BRANCH_NORM ((uint64_t)1 << 33) /* the outputs of attention and the feed-forward have
                                                  norms of their own, before they are added */
#define MHAGEN_FFN ((uint64_t)1 << 34)      /* a feed-forward follows y: z = y + ffn(y) */
#define MHAGEN_FFN_GATE ((uint64_t)1 << 35) /* it has w3, and computes act(x w1) * (x w3) */
#define MHAGEN_PARALLEL ((uint64_t)1 << 36) /* it reads what attention reads, norm1(x) */
#define MHAGEN_NO_ATTENTION ((uint64_t)1 << 37) /* y is x wo + bo: h is 1, dk the width of x */
#define MHAGEN_OUT_ACT ((uint64_t)1 << 38) /* of which an activation function is taken, out_act */
#define MHAGEN_FFN_NORM ((uint64_t)1 << 39) /* the rows that a feed-forward reads are normalized */
#define MHAGEN_ROW_KEYS ((uint64_t)1 << 40) /* reads args->row_keys */
#define MHAGEN_ROPE_AT_RUN ((uint64_t)1 << 41) /* reads args->rope_cos and rope_sin, and those of K
                                                  where its rows are others */
#define MHAGEN_FFN_DTYPE ((uint64_t)1 << 42) /* operands of the feed-forward are rounded to another
                                                type than those of the projections, ffn_dtype */

enum { /* what args->scores are */
  MHAGEN_SCORES_NONE,
  MHAGEN_SCORES_SCALED, /* scale times the products of queries and keys */
  MHAGEN_SCORES_CAPPED, /* these after softcap */
  MHAGEN_SCORES_MASKED  /* with all that is added, and -INFINITY where a row does not see a key */
};

enum { /* an activation function; with P(x) the normal distribution's */
  MHAGEN_ACT_GELU,       /* x P(x) */
  MHAGEN_ACT_GELU_TANH,  /* x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 */
  MHAGEN_ACT_QUICK_GELU, /* x / (1 + exp(-1.702 x)) */
  MHAGEN_ACT_RELU,       /* max(x, 0) */
  MHAGEN_ACT_RELU2,      /* max(x, 0)^2 */
  MHAGEN_ACT_SILU,       /* x / (1 + exp(-x)) */
  MHAGEN_ACT_TANH        /* tanh(x) */
};

enum { /* what each element x of a row of Q or K becomes, before its gain */
  MHAGEN_NORM_NONE,
  MHAGEN_NORM_RMS,   /* x / sqrt(mean(x^2) + eps) */
  MHAGEN_NORM_LAYER, /* (x - mean) / sqrt(variance + eps) */
  MHAGEN_NORM_L2     /* x / max(sqrt(sum(x^2)), eps) */
};

enum { /* a norm is */
  MHAGEN_SPAN_HEAD, /* of a head's columns, with the same gains for all heads */
  MHAGEN_SPAN_EACH, /* the same with gains for each head */
  MHAGEN_SPAN_ALL   /* of the columns of all heads together */
};

enum { /* the pairs of columns of a head that rope turns */
  MHAGEN_ROPE_NONE,
  MHAGEN_ROPE_HALF,       /* i and i + rope_dims / 2, as in GPT-NeoX and Llama */
  MHAGEN_ROPE_INTERLEAVED /* 2i and 2i + 1, as in GPT-J and Cohere */
};

/* The projections of a kernel, as bits of mhagen_kernel.project. */
enum { MHAGEN_PROJECT_Q = 1, MHAGEN_PROJECT_K = 2, MHAGEN_PROJECT_V = 4, MHAGEN_PROJECT_O = 8 };

/* How products deviate from the formula in kernels whose operands are rounded, as bits of
 * mhagen_kernel.folds. Results are equal up to roundings. */
enum {
  MHAGEN_FOLD_BK = 1,    /* without bk, which adds the same to all scores of a row */
  MHAGEN_FOLD_BV = 2,    /* bv Wo is added to bo */
  MHAGEN_FOLD_ABSORB_K = 4, /* Wk is applied to the queries, and scores are made of the rows of k */
  MHAGEN_FOLD_MERGE_K = 8,  /* the same with Wq Wk^T, made when packing */
  MHAGEN_FOLD_ABSORB_V = 16, /* Wv is applied to the context, which is made of the rows of v */
  MHAGEN_FOLD_MERGE_V = 32,  /* the same with Wv Wo, made when packing */
  MHAGEN_FOLD_POWERS = 64,   /* weights of attention are made as bfloat16, at most 0.62 % off */
  MHAGEN_FOLD_WIDENED = 128, /* integers of weights, times their scales, are rounded to dtype */
  MHAGEN_FOLD_FFN_WIDENED = 256 /* those of the feed-forward, where it has ffn_dtype, to that */
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

/* A pointer to ints of each row, [batch][seq][ints]. */
typedef struct mhagen_row_need {
  size_t at;      /* its offset in mhagen_args */
  size_t rows_at; /* offset of the pointer to how many rows of a batch entry are read; 0: all are */
  int ints;       /* 0: there is no such pointer */
  int most;       /* each int is from 0 to this */
} mhagen_row_need;

/* A kernel as data: all that <name>.h declares, for callers that choose kernels at run time. */
typedef struct mhagen_kernel {
  size_t size; /* of this struct when the kernel was compiled; it grows at its end */
  const char *name;
  const char *isa;
  int h, d_model, dk, dv, seq, seq_kv, batch;
  uint64_t options; /* MHAGEN_CROSS | ... */
  size_t packed_bytes, workspace_bytes;
  int (*supported)(void);                                         /* has this CPU the ISA? */
  mhagen_status (*pack)(const mhagen_weights *weights, void *packed);
  mhagen_status (*run)(const mhagen_args *args);   /* everything on the calling thread */
  const mhagen_phase *phases; /* what a scheduler runs after mhagen_check_args returned MHAGEN_OK;
                                 with members those of mhagen_kernel_at(kernel, args) */
  int phase_count; /* 0 where the kernel was compiled for another architecture, and with members */
  mhagen_status (*self_test)(void); /* have the compiler's flags left the arithmetic as it is? */
  const mhagen_need *needs; /* what a run needs of mhagen_args */
  int need_count;
  double error; /* the norm of all errors over that of all results, see above, for small s */
  double unit;  /* the largest rounding error of an operand of a product: 2^-24 for float32; for
                   int8 relative to the largest number of its row or column */
  int window_left, window_right; /* where the options say so */
  int h_kv; /* heads of keys and values: h, or a divisor where heads share them */
  int k_width, v_width, y_width; /* numbers in a row of k, v and y: d_model by default */
  int qk_norm, norm_span; /* MHAGEN_NORM_.., MHAGEN_SPAN_.. */
  double norm_eps;
  int rope, rope_dims; /* MHAGEN_ROPE_..; the first columns of a head, in pairs */
  double rope_theta;   /* without tables the angle is position * theta^(-2i/rope_dims); 0 where
                          runs give the angles */
  int project; /* MHAGEN_PROJECT_Q | ..., where the options say MHAGEN_UNPROJECTED; else all four */
  double scale; /* what products of queries and keys are multiplied by */
  double softcap; /* where the options say so */
  const char *mask_dims; /* where the options say so, the axes of the mask: letters of "bhqk" */
  int scores; /* MHAGEN_SCORES_.. */
  size_t cache_bytes; /* of a batch entry; 0: there is no cache */
  mhagen_status (*fill)(const mhagen_args *args); /* null if the kernel has none */
  const mhagen_need *fill_needs; /* what it needs of mhagen_args */
  int fill_need_count;
  uint64_t fingerprint; /* of how weights are packed: kernels with the same one can share them */
  const struct mhagen_kernel *const *members; /* of a bundle (multi-versioned) or a ladder (length
                                                 buckets), null at the end */
  int by_length; /* whether it is a ladder */
  const char *dtype; /* of operands of the projections: "bf16", "f16", "int8"; null is float32 */
  const char *attend_dtype; /* of those of attention; null is dtype */
  unsigned folds; /* where numbers are rounded: MHAGEN_FOLD_BK | ... */
  const char *weight_dtype; /* where the options say so: "bf16", "f16", "int8", "int4" */
  int group; /* of int4 and int8: rows of a column that share a scale; 0 is all of them */
  const char *value_weight_dtype; /* of wv, where the options say so: "int8" */
  const char *io_dtype; /* of q, k, v and y in memory: "bf16", "f16"; null is float32 */
  const char *cache_dtype; /* of rows in the cache: the same, "f32", "int8"; null is attention's */
  const char *sum_dtype; /* of sums of the projections' products: "f16"; null is float32 or int32 */
  size_t tables_bytes; /* of args->tables; 0: the tables of rope, if there are any, are in packed */
  uint64_t tables_fingerprint; /* of how tables are packed: kernels with the same can share them */
  mhagen_status (*pack_tables)(const mhagen_weights *weights, void *tables); /* null without them */
  const mhagen_phase *coarse; /* the same work, to the bit, in fewer and longer tasks, which keep
                                 their results in the caches of one core: an alternative to
                                 phases */
  int coarse_count;           /* its phases; 0: there is no such list */
  int norm_kind;    /* of rows of q or y where the options say so: MHAGEN_NORM_RMS or .._LAYER */
  double layer_eps; /* of the same norm */
  int ffn;          /* the width of the feed-forward after y; 0: there is none */
  int ffn_act;      /* its activation function, MHAGEN_ACT_.. */
  int out_act;      /* that of y, where the options say so */
  mhagen_row_need of_rows; /* what a run needs of each row; needs has the pointer, too */
  const char *ffn_dtype; /* of operands of the feed-forward, where the options say so, like dtype */
} mhagen_kernel;

/* A bundle is a multi-versioned kernel: it has kernels for different CPUs, and the functions of one
 * kernel. Its sizes are enough for any member; folds and sum_dtype are those of the last member.
 * Packed weights and caches belong to the member that made them. A ladder has kernels for several
 * lengths (length buckets), the shortest first. Its members share packed weights and caches.
 *
 * mhagen_kernel_of: the member that the functions of a bundle call on this CPU. It is the best one
 * that CPU and operating system can run at the first call, and the last one if none can run. It is
 * always the same. Any other kernel is returned itself.
 *
 * mhagen_kernel_for: the member with this isa, such as "avx2", or null. Tests and comparisons call
 * its functions instead of the bundle's.
 *
 * mhagen_kernel_at: the kernel that a run with these arguments calls in the end. In a ladder it is
 * the first member whose lengths are enough, and the last one if none has enough. */
MHAGEN_API const mhagen_kernel *mhagen_kernel_of(const mhagen_kernel *kernel);
MHAGEN_API const mhagen_kernel *mhagen_kernel_for(const mhagen_kernel *kernel, const char *isa);
MHAGEN_API const mhagen_kernel *mhagen_kernel_at(const mhagen_kernel *kernel,
                                                 const mhagen_args *args);

/* Returns the status that kernel->run would return, for callers who run the phases themselves. */
MHAGEN_API mhagen_status mhagen_check_args(const mhagen_kernel *kernel, const mhagen_args *args);

/* The same of kernel->fill. */
MHAGEN_API mhagen_status mhagen_check_fill(const mhagen_kernel *kernel, const mhagen_args *args);

/* Calls a kernel's run or fill with traps off, in a thread whose floating-point exceptions trap,
 * and restores modes and flags after it. It does so on x86 and AArch64 with gcc or clang; elsewhere
 * it only calls. */
MHAGEN_API mhagen_status mhagen_call_quietly(mhagen_status (*call)(const mhagen_args *args),
                                             const mhagen_args *args);

/* Explains that status in words: which argument is wrong, and why. Never null, never to be freed.
 * If no argument is wrong, it is mhagen_status_text. */
MHAGEN_API const char *mhagen_args_error(const mhagen_kernel *kernel, const mhagen_args *args);
MHAGEN_API const char *mhagen_fill_error(const mhagen_kernel *kernel, const mhagen_args *args);

/* A file of packed weights begins with this head. The packed weights of one or more layers follow,
 * packed_bytes each. A file of tables has tables in their place. Numbers have the byte order of the
 * CPU that packed. A file needs no copy where it is mapped, or was read to an address aligned to
 * MHAGEN_ALIGN. */
typedef struct mhagen_packed_head {
  char magic[8];        /* MHAGEN_PACKED_MAGIC, with the null byte */
  uint32_t version;     /* MHAGEN_PACKED_VERSION */
  uint32_t head_bytes;  /* sizeof(mhagen_packed_head), a multiple of MHAGEN_ALIGN */
  uint64_t fingerprint; /* of the kernel, or of its tables */
  uint64_t packed_bytes; /* of the kernel, or tables_bytes; a multiple of MHAGEN_ALIGN */
  uint64_t layers;
  uint64_t checksum; /* of all bytes after the head */
  char name[80];     /* of the kernel, its first 79 bytes, and zeros behind: for people */
} mhagen_packed_head;

#define MHAGEN_PACKED_MAGIC "mhagen\n" /* text mode would change it */
#define MHAGEN_PACKED_VERSION 2 /* 1: layers did not begin with the fingerprint */

/* The head of a file for a kernel, without layers. mhagen_packed_add then adds each layer's packed
 * weights to the count and the checksum. The head is complete after the last one. */
MHAGEN_API mhagen_packed_head mhagen_packed_begin(const mhagen_kernel *kernel);
MHAGEN_API void mhagen_packed_add(mhagen_packed_head *head, const void *packed);

/* Whether the `size` bytes of a file, aligned to MHAGEN_ALIGN, are packed weights of the kernel, or
 * tables of it. The first function reads only the head and the size. The second one also checks the
 * checksum, of all bytes. Errors: MHAGEN_ERR_NULL, MHAGEN_ERR_ALIGN, MHAGEN_ERR_PACKED. */
MHAGEN_API mhagen_status mhagen_packed_check_head(const mhagen_kernel *kernel, const void *bytes,
                                                  size_t size);
MHAGEN_API mhagen_status mhagen_packed_check(const mhagen_kernel *kernel, const void *bytes,
                                             size_t size);

/* The packed weights of a layer, from 0 on, or the tables in a file of them. The file was found
 * right by mhagen_packed_check. Null if it has not so many layers. */
MHAGEN_API const void *mhagen_packed_layer(const void *bytes, size_t layer);

/* From mhagen_flush_begin on the calling thread takes numbers below 2^-126 for zeros, as operands
 * and as results (x86: FTZ and DAZ; AArch64: FZ; elsewhere nothing changes); mhagen_flush_end takes
 * what begin returned, and restores that. For real time: subnormal inputs may take many times as
 * long, and with this they do not. Both together take some 40 ns, so they enclose a run, or many.
 * Threads of a pool do as the thread did that created it. */
MHAGEN_API unsigned long mhagen_flush_begin(void);
MHAGEN_API void mhagen_flush_end(unsigned long before);

/* A pool of worker threads. A short while after the last task they sleep until there is a new one.
 * One pool serves any number of kernels, one run at a time: several threads must not use one pool
 * at the same time. */
typedef struct mhagen_pool mhagen_pool;

/* The most threads of a pool. */
#define MHAGEN_MAX_THREADS 1024

/* Creates a pool of `threads` threads, one of which is the caller of mhagen_run_parallel; it
 * allocates. Zero stands for the whole CPUs that the calling thread may use, by its affinity and by
 * the cpu.max of its cgroups. Returns null if threads is outside 0..MHAGEN_MAX_THREADS, if
 * memory or threads are short, or if the runtime has no pool. It also returns null if rounding is
 * not to nearest, since threads inherit the mode. A process made by fork() has none of the workers:
 * there mhagen_run_parallel runs everything on the caller, and mhagen_pool_destroy only frees
 * memory. */
MHAGEN_API mhagen_pool *mhagen_pool_create(int threads);

/* The threads of a pool; 1 for null. */
MHAGEN_API int mhagen_pool_threads(const mhagen_pool *pool);

/* Ends and joins the workers. Null is allowed. */
MHAGEN_API void mhagen_pool_destroy(mhagen_pool *pool);

/* Runs the kernel on the threads of the pool, as mhagen_choose says. With a null pool, or a kernel
 * that is too small to gain from more threads, the caller runs everything. The bits of the result
 * do not depend on the pool. It takes 9 KB of stack beside those of a task. Errors: those of
 * mhagen_check_args; nothing is written then. */
MHAGEN_API
mhagen_status mhagen_run_parallel(const mhagen_kernel *kernel, const mhagen_args *args,
                                  mhagen_pool *pool);

/* How to run a kernel on at most so many threads: which list of phases takes the least time, and on
 * how many threads, by a model of what tasks and waits cost. The kernel has no members. */
typedef struct mhagen_choice {
  const mhagen_phase *phases; /* the kernel's phases or its coarse ones; null: kernel->run */
  int phase_count;
  int threads;   /* that take part, from 1 to the asked ones */
  double cycles; /* of a run, as the model has them */
} mhagen_choice;

MHAGEN_API mhagen_choice mhagen_choose(const mhagen_kernel *kernel, int threads);

/* For generated code: a list of fills says how packed weights are made of the given ones. A fill
 * writes panel[steps][width], float32: `used` columns of a matrix, scaled and rounded once, and
 * zeros behind them. The matrix is a sum of terms, computed in double. Rounds, one inside another,
 * repeat a fill, and move the panel and the terms on. A fill of pairs writes words of 32 bits,
 * panel[(steps + 1) / 2][width]. Each has two steps, the first in the low half, as the nearest
 * bfloat16 or the nearest half precision. A fill that is rounded writes panel[steps][width], the
 * nearest bfloat16 or half precision of float32, as float32. Where `deep` is not 1, so many words
 * of a column that follow each other lie side by side, as panel[words / deep][width][deep]. Where
 * `apart` is not 0, words of so many columns have their first numbers, of 16 bits, before the
 * second ones: panel[words][width / apart][2][apart].
 *
 * A fill of quants writes words of 32 bits as well, panel[ceil(steps / n)][width]. Each has n = 4
 * steps as signed bytes, or n = 8 as signed nibbles. The first step is in the lowest bits, and
 * zeros are behind the last. With quant_bytes the first four nibbles are the low halves of a word's
 * bytes, the others the high halves. Behind the words are their scales, one for `group` steps of a
 * column, float32 [ceil(steps / group)][width]. With quant_beside each row of scales is behind the
 * words of its group. Of bytes it is the largest |number| of these, divided by 127. Of nibbles it
 * is that of least squares near the first largest number, with its sign, divided by -8
 * (docs/quantized.md has the rule). Numbers are divided by their scale and
 * rounded to integers, ties to even, from -127 or -8 to 127 or 7; then the fill's own `scale` is
 * multiplied into theirs. A group of zeros has the scale zero; one with NaN or an infinity has no
 * finite scale. Behind the scales are, if asked for, int32 [width]: -128 times the sum of a
 * column's integers, modulo 2^32, where sums of products with unsigned bytes begin that are 128 too
 * large.
 */
enum { MHAGEN_PACK_TERMS = 2, MHAGEN_PACK_ROUNDS = 3 }; /* the most of a fill */

enum { MHAGEN_ZEROS, MHAGEN_ONES, MHAGEN_COSINES, MHAGEN_SINES }; /* what null stands for */

typedef struct mhagen_matrix {
  size_t at;               /* where mhagen_weights has its pointer */
  ptrdiff_t rows, columns; /* as MHAGEN_IN_OUT has them; biases and slopes have one row, tables of
                              rope one for each place */
  int null;                /* what a null pointer stands for: MHAGEN_ZEROS, .., */
  const float *instead;    /* or these numbers */
} mhagen_matrix;

enum { MHAGEN_NONE = -1 };

typedef struct mhagen_pack_term {
  int a, a_flipped; /* the number of a matrix in the packing's list; whether it is transposed */
  int b, b_flipped; /* the same of what a is multiplied by, or MHAGEN_NONE */
  ptrdiff_t row, column, first, inner; /* where the panel begins; the columns of a in a product */
} mhagen_pack_term;

typedef struct mhagen_pack_round {
  ptrdiff_t count; /* 0 is 1 */
  ptrdiff_t to, row, column, first; /* what a round adds */
} mhagen_pack_round;

typedef struct mhagen_pack_fill {
  ptrdiff_t to; /* place of the panel in packed, in floats or words */
  ptrdiff_t steps, used, width;
  double scale;
  int term, terms; /* the first, and how many */
  mhagen_pack_round rounds[MHAGEN_PACK_ROUNDS];
} mhagen_pack_fill;

typedef struct mhagen_pack_gain {
  int term, matrix; /* the first term of a fill, and the matrix that multiplies its columns */
} mhagen_pack_gain;

typedef struct mhagen_packing {
  size_t bytes;
  uint64_t fingerprint; /* of the kernel, or of its tables, with which what is packed begins; zeros
                           are behind it up to MHAGEN_ALIGN */
  const mhagen_matrix *matrices;
  const mhagen_pack_term *terms;
  const mhagen_pack_fill *fills;
  int fill_count;
  const mhagen_pack_fill *pairs; /* fills of pairs */
  int pair_count;
  const mhagen_need *needs; /* of mhagen_weights */
  int need_count;
  const double *rope_turns; /* where tables of rope are null: the part of a turn for each pair, */
  int rope_first;           /* and the place of their first row */
  const mhagen_pack_fill *quants; /* fills of quants */
  int quant_count;
  int quant_bits;        /* of a number: 8 or 4 */
  ptrdiff_t quant_group; /* steps that share a scale; 0: all of a panel */
  int quant_sums;        /* whether there are the sums */
  int f16;               /* whether pairs and what is rounded are of half precision */
  ptrdiff_t deep;        /* words of pairs and quants side by side; 0 is 1 */
  const mhagen_pack_fill *value_quants; /* fills of quants of 8 bits beside those of fewer bits, */
  int value_quant_count;                /* with a scale for all of a panel's column */
  ptrdiff_t apart; /* columns of pairs of half precision that lie together, 0: each by itself */
  const mhagen_pack_fill *rounded; /* fills that are rounded */
  int rounded_count;
  int quant_beside;      /* whether scales are behind the words of their group, not behind all */
  int quant_bytes;       /* whether nibbles lie as bytes do, four and four */
  const mhagen_pack_gain *gains; /* of columns */
  int gain_count;
  const struct mhagen_packing *beside; /* more fills of the same memory, by another form; or null */
} mhagen_packing;

/* For generated code: the status that packing starts with. */
MHAGEN_API mhagen_status mhagen_check_weights(const mhagen_packing *packing,
                                              const mhagen_weights *weights, const void *packed);

/* For generated code: packs the weights by the list. */
MHAGEN_API void mhagen_pack(const mhagen_packing *packing, const mhagen_weights *weights,
                            void *packed);

/* The version is in the symbol of this one, which each kernel calls: so a kernel does not link with
 * the runtime of another version. A kernel with a runtime of its own has another name for it. */
#define MHAGEN_JOINED(name, version) name##_##version
#define MHAGEN_OF_VERSION(name, version) MHAGEN_JOINED(name, version)
#ifndef mhagen_check_bits
#define mhagen_check_bits MHAGEN_OF_VERSION(mhagen_check_bits, MHAGEN_VERSION)
#endif

/* For generated code: runs a test that raises exceptions on purpose, without traps, and puts flags
 * and modes of the thread back. */
MHAGEN_API void mhagen_test_quietly(void (*test)(const float *in, float *out), const float *in,
                                    float *out);

/* For generated code: MHAGEN_OK if the bits of got[rows][lanes], without the signs, lie between the
 * two of each row, else MHAGEN_ERR_ARITHMETIC; MHAGEN_ERR_ROUNDING where that is the reason. */
MHAGEN_API mhagen_status mhagen_check_bits(const float *got, const uint32_t (*bits)[2], int rows,
                                           int lanes);

/* Instruction sets that a generated kernel may ask for. */
typedef enum mhagen_cpu {
  MHAGEN_CPU_ANY,
  MHAGEN_CPU_AVX2,
  MHAGEN_CPU_AVX512,
  MHAGEN_CPU_NEON,
  MHAGEN_CPU_AVX2_F16C,
  MHAGEN_CPU_AVX512_BF16, /* and MHAGEN_CPU_AVX512, and VNNI */
  MHAGEN_CPU_AVX_VNNI,    /* and MHAGEN_CPU_AVX2_F16C */
  MHAGEN_CPU_AMX,         /* AMX-TILE, -BF16 and -INT8, AVX512_VBMI, and MHAGEN_CPU_AVX512_BF16 */
  MHAGEN_CPU_NEON_I8MM,   /* and DotProd and BF16 */
  MHAGEN_CPU_AVX512_FP16, /* and MHAGEN_CPU_AVX512_BF16 */
  MHAGEN_CPU_NEON_FP16    /* arithmetic of half precision */
} mhagen_cpu;

/* Whether CPU and operating system offer it (AVX2 includes FMA; AVX-512 is F, DQ, BW, VL). The
 * first call for AMX asks Linux for the tiles; other systems grant none to a process. Linux refuses
 * them while a thread has a stack for signals (sigaltstack) without room for tiles. After a refusal
 * each call asks anew, until a bundle has chosen another member. After the grant Linux refuses such
 * stacks: sigaltstack with less than sysconf(_SC_MINSIGSTKSZ) fails with ENOMEM. */
MHAGEN_API int mhagen_cpu_has(mhagen_cpu isa);

#ifdef __cplusplus
}
#endif

#endif
