/* formula.h of mhagen: the formula over a kind of numbers. reference.c has its steps in double, bounds.c and rounded.c
 * those of two other kinds, and composition.c makes a layer of them. */
#ifndef MHAGEN_FORMULA_H
#define MHAGEN_FORMULA_H

#include "reference.h"

/* Rows of gen/score that only a test has: it defines these, of shape, place, key and x, the entry's queries. */
#ifndef MHAGEN_SCORE
#define MHAGEN_FIRST_KEY 0
#define MHAGEN_SCORE(s) (s)
#define MHAGEN_SCORE_SIZE(s) (s) /* the same with magnitudes, and what errors of s are multiplied with */
#endif

/* Numbers, and what a kind of them has beside each; null where it has not. */
typedef struct values {
  double *x;    /* as the formula has it, or from rounded operands */
  double *size; /* the same of magnitudes, so that no sum cancels */
  double *off;  /* by how much that of a kernel may differ */
} values;

enum { REF_SIZES = 1, REF_ERRORS = 2 }; /* what a kind has beside its numbers */
enum { REF_ROOMS = 128 };               /* of memory */

/* The products of the formula. */
enum { REF_Q, REF_K, REF_V, REF_Y, REF_W1, REF_W3, REF_W2, REF_PRODUCTS }; /* those of the feed-forward behind Y */

/* Rows of Q, K, V or Y: those of an input, or of contexts, times a matrix, or heads as they are. And rows of the
 * feed-forward: normed rows of Y times W1 and W3, and what these make times W2. */
typedef struct product {
  int multiplies;
  const float *input;   /* of all batch entries; null of Y and what is behind it */
  size_t all, rows;     /* rows of an entry: that an input has, that are made */
  size_t inner;         /* numbers in a row of the input */
  size_t heads, width;  /* of a row that is made, and columns of each */
  values bias, to;      /* bias.x may be null; the rows of an entry */
  const float *gains;   /* of its columns, before the layer's rows are added; or null */
} product;

typedef struct extents {
  size_t h, n, m;
  size_t first, end; /* the keys that a row sees, */
  char *sees;        /* but for those that a mask hides */
  ptrdiff_t place;   /* of the first query among the keys */
  int apart;         /* heads that are not projected lie apart: [heads][rows][width] */
} extents;

/* A query and a key of a head; x: the queries of the batch entry. */
typedef struct spot {
  const mhagen_kernel *shape;
  const mhagen_args *args;
  const float *x;
  size_t entry, head, row, key;
  ptrdiff_t place; /* of the query among the keys */
  double slope, sink, mask;
} spot;

typedef struct formula formula;

/* A norm of n columns, MHAGEN_NORM_RMS | ..; gains and biases may be null. */
typedef struct norming {
  int kind;
  double eps;
  size_t n;
  const float *gains, *biases;
} norming;

/* A kind of numbers: its steps of the formula. `round` and `keep` may be null. */
typedef struct number {
  /* A row of an input of the entry. */
  void (*take)(const formula *f, int which, size_t row, values to);
  /* A row that is to be multiplied. */
  void (*round)(const formula *f, int which, values x);
  /* y[rows][heads * width] += x[rows][inner] W */
  void (*multiply)(const formula *f, int which, size_t rows, values x, values y);
  /* Columns of a row of Q or K; or a row of the layer: `which` is REF_PRODUCTS then, or one of three more. */
  void (*norm)(const formula *f, int which, const norming *by, values x);
  /* The activation function of a row of X W1, times a row of X W3: gate.x is null where there is none. Or of Y. */
  void (*activate)(const formula *f, int which, size_t count, values x, values gate);
  /* The heads of a row of Q or K at a place. */
  void (*turn)(const formula *f, int which, ptrdiff_t place, values row);
  /* All rows that a product made. */
  void (*keep)(formula *f, int which);
  /* Of a query and head: p becomes the scores of the keys that it sees, then their weights. */
  void (*score)(const formula *f, const spot *at);
  void (*softmax)(formula *f, const spot *at);
  void (*context)(const formula *f, const spot *at, values context);
} number;

struct formula {
  const mhagen_kernel *shape;
  const mhagen_weights *weights;
  const mhagen_args *args;
  const number *kind;
  int beside;  /* REF_SIZES | ... */
  void *own;   /* what else its kind has */
  extents e;
  size_t entry;                 /* of the batch */
  product of[REF_PRODUCTS];
  values x, q, k, v, context;   /* rows of an entry: that are multiplied, that attend */
  values p;                     /* of the keys of a query and head, [seq_kv], as are: */
  double *score, *mask;         /* products, what the mask adds */
  values y, probs;              /* results; any plane of them may be null */
  void *rooms[REF_ROOMS];
  int used, short_of_memory;
};

double ref_dot(const double *a, const double *b, size_t count);

/* The projections of a kernel: MHAGEN_PROJECT_Q | ... */
int ref_projections(const mhagen_kernel *shape);

/* Of `heads` heads of `rows` rows that are not projected, the number of row r of a head where they lie. */
size_t ref_lies(const extents *e, size_t rows, size_t heads, size_t r, size_t head);

/* Where a query stands among the keys. */
ptrdiff_t ref_place(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row);
size_t ref_rows_made(const mhagen_kernel *shape, const mhagen_args *args, size_t entry); /* in a cache that grows */
size_t ref_rows_asked(const mhagen_kernel *shape, const mhagen_args *args, size_t entry);

/* ---- the formula over a kind of numbers ---- */

/* A formula whose products may still be changed, then with its memory, then run. All memory goes with ref_end, which
 * returns -1 where it was short. */
formula ref_begin(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                  const number *kind, int beside);
void ref_make_room(formula *f);
void ref_run(formula *f);
int ref_end(formula *f);

/* Q, K and V of a batch entry alone. */
void ref_make_rows(formula *f, size_t entry);

/* Memory that goes with the formula, zeroed. */
double *ref_room(formula *f, size_t count);
values ref_values(formula *f, size_t count);

values ref_from(values a, size_t at);

/* What is beside numbers that are exact: their magnitudes, and no error. */
void ref_exact(values to, size_t count);
void ref_fill(values to, double with, size_t count);
void ref_add(values to, values x, size_t count);

/* ---- its steps in double ---- */

void ref_take(const formula *f, int which, size_t row, values to);

/* y[rows][columns] += x[rows][inner] w, of a product. */
void ref_multiply(const formula *f, int which, const float *w, size_t rows, const double *x, double *y);
const float *ref_matrix(const formula *f, int which);

/* What a norm subtracts from n columns, and what it divides by where these then have such a sum of squares: a length
 * whose square is beyond float32 is infinite. */
double ref_mean(const norming *by, const double *x);
double ref_length(const norming *by, double squares);
void ref_norm(const formula *f, int which, const norming *by, values x);

/* An activation function; and by how much its result may be off for each unit that x may be off, if it may be off by so
 * much. */
double ref_act(int act, double x);
double ref_act_slope(int act, double x, double off);
double ref_float(double x); /* infinite where it is beyond float32 */
int ref_act_of(const mhagen_kernel *shape, int which); /* of a product's results */
void ref_activate(const formula *f, int which, size_t count, values x, values gate);

/* Magnitudes and errors are turned so that none is taken from another. */
void ref_turn(const formula *f, int which, ptrdiff_t place, values row);

/* A query of a head, whose key and mask are to be set. */
spot ref_spot(const formula *f, size_t head, size_t row);

/* What the mask adds to the score of a key. */
double ref_mask(const spot *at, size_t key);

/* scale times the product of a query and a key of a head, of rows q and k. */
double ref_score(const formula *f, const spot *at, const double *q, const double *k);
double ref_alibi(const spot *at);
double ref_capped(const mhagen_kernel *shape, double s);

/* The score that softmax takes. */
double ref_changed(const spot *at, double s);
void ref_scores(const formula *f, const spot *at);
void ref_softmax(formula *f, const spot *at);
void ref_context(const formula *f, const spot *at, values context);

/* ---- of bounds.c, for rounded.c ---- */

/* The magnitude of a changed score, and by how much this may be off if s is. */
double ref_changed_size(const spot *at, double s);
double ref_changed_off(const spot *at, double s);

/* Whether a product has another type than the projections. */
int ref_is_apart(const mhagen_kernel *shape, int i);

/* The type of the operands of a product, by its number in `of`; null for float32. */
const char *ref_dtype(const mhagen_kernel *shape, int i);

/* Whether its rows of activations are integers times a scale of theirs. */
int ref_has_integers(const mhagen_kernel *shape, int i);

/* The integers that its weights are, times scales; or null. */
const char *ref_quants(const mhagen_kernel *shape, int i);

/* The type that its weights are rounded to where they are no integers. */
const char *ref_weight_type(const mhagen_kernel *shape, int i);

/* Rows of a column of such weights that share a scale. */
size_t ref_rows_of_scale(const mhagen_kernel *shape, const char *quants, size_t in);

#endif
