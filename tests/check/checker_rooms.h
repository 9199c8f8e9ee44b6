/* checker_rooms.h of mhagen: what the files checker_*.c share: the state of one check, and their functions. */
#ifndef MHAGEN_CHECKER_ROOMS_H
#define MHAGEN_CHECKER_ROOMS_H

#include "bounds.h"
#include "checker.h"
#include "rounded.h"

#include <stddef.h>
#include <stdint.h>

enum {
  Q, K, V, COSINES, SINES, K_COSINES, K_SINES, KV_LEN, KV_START, Q_LEN, MASK, PAST, ROW_KEYS,
  WQ, WK, WV, WO, W1, W3, W2, BQ, BK, BV, BO, B1, B3, B2,
  NORM1_BIAS, NORM2_BIAS, SLOPES, SINKS, Q_NORM, K_NORM, NORM1, NORM2, NORM1B, NORM2B, GAIN1, GAIN2, ROPE_COS, ROPE_SIN,
  TABLES, PACKED, WORKSPACE, CACHE, Y, PROBS, SCORES, BUFFERS,
  LAST_GROWING = SINES, /* of those that a cache keeps rows of */
  LAST_MATRIX = W2, LAST_GAINS = GAIN2, LAST_WEIGHTS = ROPE_SIN
};

typedef struct buffer {
  const char *name;
  size_t bytes; /* 0: this kernel does not use it */
  size_t align;
  void *master; /* what a run should find (inputs, weights, tables, packed), or the last result; of q, k, v and y as
                   float32, whatever they are in the kernel's memory */
  char *room;   /* room_bytes between the two inaccessible pages */
  size_t room_bytes;
  char *at; /* where the kernel finds it now, within room */
} buffer;

#define ROW_BOUNDS 1e7 /* flops of a run up to which its rows are checked one by one */

enum place { BEFORE_GUARD, AFTER_GUARD, BETWEEN, PLACES };
enum scheduler { RUN, POOL, BY_HAND };

typedef struct checker {
  const mhagen_kernel *kernel;
  mhagen_check_options options;
  const char *part; /* what is being checked, for messages */
  uint64_t random;
  double flops; /* of one run, roughly, with those that make what it finds in the cache */
  size_t page;
  buffer buffers[BUFFERS];
  float *all[LAST_GROWING + 1]; /* with cache = append, of the inputs that keys are made of, and of their angles:
                                   [batch][seq_kv][width], all rows that there ever are; else null */
  float *base_y, *base_probs, *base_scores; /* a result to compare others with */
  double *want_y, *want_probs;  /* the reference's result, */
  mhagen_results rounded;       /* where operands are rounded, the same of these; else null, */
  double score;                 /* its largest score */
  double error, bound, score_of_error; /* the worst so far, by error / bound */
  double *y_bounds, *probs_bounds;     /* of the rows, or null where that takes too long, */
  double row, rounded_part;            /* and the worst so far, error / bound; the same of `rounded` */
  int runs;
  const mhagen_kernel *ran; /* the member that the last run called */
  mhagen_phase *phases;  /* the kernel's, each declared large: */
  mhagen_kernel forking; /* what a pool takes to be worth all its threads */
} checker;

/* Squared norms, over the rows that are finite in the reference, and how many there are, of how many runs; most: the
 * largest error of one; of_type: what rounded operands alone make. */
typedef struct norms { double error, most, size, of_type; int rows, runs; } norms;

typedef struct data_set {
  const char *name;
  double input;  /* size of the elements of the inputs, */
  double score;  /* of the scores, */
  double value;  /* of the values and so of the results, */
  double bias;   /* and of the biases; 0: null pointers, of alibi and rope too */
  double rise;   /* keys grow along the sequence, up to this factor */
  int same_rows; /* all rows of an input are equal */
  double low;    /* of what a mask adds, the part that is far below */
  double limit;  /* left out where a run has more flops: keeps the check of a large shape short */
} data_set;

enum { NORMAL, LARGE_SCORES }; /* the first two of `sets` */
enum { ARGUMENTS = 20, INT_BUFFERS = 4, SETS = 11 };

struct argument {
  int id;
  size_t at;
};

extern const char *const names[BUFFERS];
extern const struct argument arguments[ARGUMENTS]; /* where mhagen_args has the pointers to buffers */
extern const int int_buffers[INT_BUFFERS];         /* those with integers */
extern const data_set sets[SETS];

/* ---- checker_state.c ---- */

int has(const checker *c, uint64_t option);
/* Whether the kernel projects with the matrix of an input or a result: Q, K, V, or Y, or with a matrix WQ .. WO. */
int projects(const checker *c, int i);
const char *name_at(size_t at);
/* What runs need of a buffer, and what filling the cache needs; or null. */
const mhagen_need *need_of(const checker *c, int id);
const mhagen_need *fill_need_of(const checker *c, int id);
/* The most of an int that any run takes: a ladder's kernels for few rows have room for more before them. */
int most_of(const checker *c, int id);
/* A cache that lies as others have it is aligned as they like. */
int cache_align(const checker *c);
/* Rows of an input of one batch entry, as a run gets it. */
int rows_given(const checker *c, int i);
/* Whether a buffer has numbers of a smaller type than its master. */
int is_small(const checker *c, int i);
/* Bytes of an element of a buffer. */
size_t element(const checker *c, int i);
size_t master_bytes(const checker *c, int i);
/* Floats as a buffer has them, and back. */
void encode(const checker *c, int i, const void *from, void *to, size_t bytes);
void decode(const checker *c, int i, const void *from, void *to, size_t bytes);
/* Bytes of a number in a row of the cache. */
size_t kept_bytes(const checker *c);

/* ---- checker_buffers.c ---- */

uint64_t bits(checker *c);
int below(checker *c, int n);
/* Close to normal(0, 1): the sum of four uniform numbers, the same on every machine. */
double normal(checker *c);
/* The width of the rows of Q, K, V or Y, or of angles; and of the rows that a matrix is multiplied by. */
size_t width_of(const checker *c, int i);
size_t inputs_of(const checker *c, int i);
/* The numbers that a buffer's contents are drawn from, of an input all rows that there ever are; how many; and rows of
 * a batch entry. */
float *data(const checker *c, int i);
int all_rows(const checker *c, int i);
size_t count(const checker *c, int i);
void fill_normal(checker *c, int i, double scale);
void *allocate(const checker *c, size_t bytes);
/* Whether Q, K, V or Y has the rows of each head together. */
int apart(const checker *c, int i);
/* How many numbers of its rows lie side by side: all of them, or those of a head. */
size_t piece_of(const checker *c, int i);
/* Where column j of a row of a batch entry is in Q, K or V, of all rows that there ever are. */
size_t place_in(const checker *c, int i, size_t b, size_t row, size_t j);
/* From one batch entry to the next; 0 where all entries have the same. */
size_t entry_bytes(const checker *c, int i);
/* Rows of y that NaN and Inf reach together, and that have a bound: whole ones, or of each head where heads are not
 * projected together; and how many of them a batch entry has. */
size_t y_row(const checker *c);
size_t y_rows(const checker *c);
/* The query of number i of them, and its head, where it is of one. */
size_t query_of(const checker *c, size_t i);
size_t head_of(const checker *c, size_t i);
/* The places that tables of rope have, from *first on. */
int places_of(const mhagen_kernel *kernel, int *first);
void make_buffers(checker *c);
/* Gives the buffer a place: flush to one of the inaccessible pages, as far as its alignment allows,
 * or a random distance from it. The room is filled with `fill`; 0xFF makes every float a NaN. */
void place(checker *c, int i, enum place where, int fill);
/* What is drawn becomes what the kernel's inputs can be. */
void round_input(checker *c, int i);
void put(const checker *c, int i);
/* Gives an input a place, and its contents. */
void place_input(checker *c, int i, enum place where);
int is_filled(const char *from, const char *to, int fill);
/* Nothing around the buffer has been written. */
void require_surroundings(const checker *c, int i, int fill);
void require_unchanged(const checker *c, int i);
/* After an error: of the buffers from..to those up to PACKED, but for `except`, hold their masters,
 * and the others what they were filled with. */
void require_untouched(const checker *c, int from, int to, int except, const char *what);

/* ---- checker_runs.c ---- */

mhagen_weights masters_of_weights(const checker *c, int biases);
mhagen_weights placed_weights(const checker *c, mhagen_layout layout, int biases);
/* Packs the weights and tables; the results become the masters of PACKED and TABLES. */
void pack(checker *c, enum place where, int fill, mhagen_layout layout, int biases);
void set_arg(mhagen_args *args, size_t at, const void *pointer);
/* The arguments of a table. What the kernel must not look at is null. */
mhagen_args args_of(const checker *c, const mhagen_need *needs, int need_count);
/* Places everything a run needs. */
mhagen_args place_args(checker *c, enum place where, int fill);
/* A kernel that runs: this one, or of several the first that can. */
const mhagen_kernel *first_member(const checker *c);
/* The kernel that a run with these arguments calls, with phases that are each declared large. */
const mhagen_kernel *forking(checker *c, const mhagen_args *args);
/* How many rows of a batch entry are asked for. */
int rows_of(const checker *c, int b);
/* Runs the kernel on the masters; the results become the masters of Y, PROBS and SCORES. */
void run(checker *c, enum place where, int fill, enum scheduler scheduler, mhagen_pool *pool);

/* ---- checker_data.c ---- */

void set_mask(checker *c, size_t at, int seen, float add);
/* Fresh weights, inputs, lengths and masks. */
void draw(checker *c, const data_set *set);
void draw_and_pack(checker *c, const data_set *set);
/* The tables that null stands for. */
void fill_tables(checker *c);
/* Scores of any size, ties of large ones, cancellation, constants, rows that rise or are alike. Returns
 * whether there are biases. */
int draw_nasty(checker *c);
/* A set of data near one of random data. */
data_set near(checker *c, const data_set *set);

/* ---- checker_numbers.c ---- */

/* Whether a row sees one of the keys from .. to - 1 in any head. */
int row_sees(const checker *c, size_t b, size_t r, size_t from, size_t to);
/* Adds the errors of the last run to the norms. */
void compare(checker *c, int biases, norms *y, norms *probs);
/* The norms keep their bound, where they are of as many rows of weights and columns as it is stated for. */
void require_bound_of_many(checker *c, double score, norms y, norms probs);
/* A few numbers may cancel, and a relative error then says nothing. Norms are of at least 64 independent columns of
 * y and the contexts, in expensive shapes 8: narrow ones take several draws. Rows do not count, for similar
 * attention weights make the rows of y similar. Large scores that are nearly equal are sensitive to rounding, and of
 * few rows one may have them. So there are 32 rows of weights at least, as far as that is cheap. */
void check_numbers(checker *c);
/* Instead of all else: rows of many draws, fewer where one takes long. */
void check_draws(checker *c);
void check_climb(checker *c);

/* ---- checker_bits.c ---- */

void keep_as_base(checker *c);
/* Row r of batch entry b has the bits of the base's entry base_b. */
void require_row_bits(const checker *c, int b, int base_b, size_t r, const char *what);
void require_same_bits(const checker *c, const char *what);
/* Nothing but the data has an influence on the bits. */
void check_repeats(checker *c);
/* The kernel of the same config without a batch gives each entry the same bits. */
void check_alone(checker *c, const mhagen_kernel *alone);

/* ---- checker_hidden.c ---- */

/* One NaN or Inf in one element of one row of one input. */
void check_poison(checker *c);
void check_masks(checker *c);
/* Rows have the same bits whatever the queries are that nobody asks for. In self-attention these are keys, but not
 * where they join a cache. */
void check_queries(checker *c);
/* The extreme lengths. */
void check_lengths(checker *c);
void check_ranges(checker *c);
/* No rows before, and as many as there is room for. What a run finds in the cache stays: it can be done again. */
void check_cache(checker *c);

/* ---- checker_refusals.c ---- */

/* Every way of running gives this status and touches nothing. */
void expect(checker *c, const mhagen_args *args, mhagen_status status, const char *what);
void check_bad_args(checker *c);

/* ---- checker_tables.c ---- */

void check_pack(checker *c);
/* The table of phases, and the numbers in it. */
void check_table(checker *c);
void check_self_test(checker *c);

/* ---- checker.c ---- */

/* Ends the child process. */
_Noreturn void fail(const checker *c, const char *format, ...);
void note(const checker *c, const char *format, ...);

#endif
