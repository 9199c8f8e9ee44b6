/* formula.h of mhagen: the steps of reference.c, of which bounds.c and rounded.c are made too. */
#ifndef MHAGEN_FORMULA_H
#define MHAGEN_FORMULA_H

#include "reference.h"

/* Rows of gen/score that only a test has: it defines these, of shape, place, key and x, the entry's queries. */
#ifndef MHAGEN_SCORE
#define MHAGEN_FIRST_KEY 0
#define MHAGEN_SCORE(s) (s)
#define MHAGEN_SCORE_SIZE(s) (s) /* the same with magnitudes, and what errors of s are multiplied with */
#endif

/* The numbers that the formula is of, and what comes out on the way. */
typedef struct numbers {
  mhagen_weights weights;
  const float *qx, *kx, *vx;       /* the inputs */
  double *q, *k, *v, *context, *y; /* of one batch entry, but for y */
} numbers;

typedef struct extents {
  size_t h, h_kv, d, n, m, dk, dv, k_width, v_width, y_width;
  size_t first, end; /* the keys that a row sees, */
  char *sees;        /* but for those that a mask hides */
  int project;       /* MHAGEN_PROJECT_Q | ... */
  size_t q_width;    /* numbers in a row of q */
  size_t made;       /* rows of keys and values that there are, */
  ptrdiff_t place;   /* and the place of the first query among them */
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

/* Of the keys of a query and head, [seq_kv] each: products, what the mask adds, weights. */
typedef struct scored {
  double *score, *mask, *p;
} scored;

double ref_dot(const double *a, const double *b, size_t count);

/* The projections of a kernel: MHAGEN_PROJECT_Q | ... */
int ref_projections(const mhagen_kernel *shape);
extents ref_extents(const mhagen_kernel *shape);
numbers ref_numbers(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args, double *y);
int ref_projects(const extents *e, int which);

/* How many numbers q, k, v and context have, and where they lie in memory of that size. */
size_t ref_room(const extents *e);
void ref_divide(numbers *x, const extents *e, double *room);

/* Of `heads` heads of `rows` rows that are not projected, the number of row r of a head where they lie. */
size_t ref_lies(const extents *e, size_t rows, size_t heads, size_t r, size_t head);

/* Of a batch entry the place of its first query, and the rows of keys that there are. */
void ref_start_entry(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, extents *e);
/* Where a query stands among the keys. */
ptrdiff_t ref_place(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row);
size_t ref_rows_made(const mhagen_kernel *shape, const mhagen_args *args, size_t entry); /* in a cache that grows */
size_t ref_rows_asked(const mhagen_kernel *shape, const mhagen_args *args, size_t entry);

/* The heads of the first rows of an input of `all` rows as they are, those of a row side by side. */
void ref_take(const extents *e, const float *x, size_t all, size_t rows, size_t heads, size_t width, double *to);
void ref_project_inputs(const numbers *x, const extents *e, size_t entry);

/* What a norm subtracts from n columns, and what it divides by where these then have such a sum of squares: a length
 * whose square is beyond float32 is infinite. */
double ref_mean(const mhagen_kernel *shape, size_t n, const double *x);
double ref_length(const mhagen_kernel *shape, size_t n, double squares);

/* The cosine and the sine of a pair at a place. */
void ref_rotation(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, ptrdiff_t pair, double *c,
                  double *s);
void ref_turn_row(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, size_t heads, double *x);

/* Queries, keys and values of a batch entry: norms and turns of what is projected. */
void ref_normalize_and_turn(const mhagen_kernel *shape, const extents *e, const numbers *x);

/* A query of a head, whose key and mask are to be set. */
spot ref_spot(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args, size_t entry,
              size_t head, size_t row);

/* What the mask adds to the score of a key. */
double ref_mask(const spot *at, size_t key);

/* scale times the product of a query and a key of a head. */
double ref_score(const mhagen_kernel *shape, const numbers *x, size_t head, size_t row, size_t key);
double ref_alibi(const spot *at);
double ref_capped(const mhagen_kernel *shape, double s);

/* The score that softmax takes. */
double ref_changed(const spot *at, double s);

/* The weights and the context of a query and head; sets the keys that it sees. */
void ref_attend(const spot *of, const numbers *x, extents *e, const scored *to);
void ref_add_context(const numbers *x, const extents *e, size_t row, size_t head, const double *p);
void ref_project_output(const numbers *x, const extents *e, size_t entry);

/* The weights of a query and head where a run has them: zero for keys that it does not see. */
void ref_store_probs(const spot *of, const extents *e, const double *p, double *probs);

/* NaN in the results of queries that nobody asks for. */
void ref_hide_rows(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, double *y, double *probs);

/* ---- of bounds.c, for rounded.c ---- */

/* The same of magnitudes: of a rotation, in which none is taken from another; of a changed score, and by how much this
 * may be off if s is. */
void ref_turn_sizes(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, size_t heads, double *size);
double ref_changed_size(const spot *at, double s);
double ref_changed_off(const spot *at, double s);

/* Whether rows of activations are integers times a scale of theirs. */
int ref_has_integers(const mhagen_kernel *shape);

/* The integers that weights are, times scales, and those of Wv; or null. */
const char *ref_quants(const mhagen_kernel *shape);
const char *ref_quants_of_values(const mhagen_kernel *shape);

/* The type that weights are rounded to which are no integers. */
const char *ref_weight_type(const mhagen_kernel *shape);

/* Rows of a column of such weights that share a scale. */
size_t ref_rows_of_scale(const mhagen_kernel *shape, const char *quants, size_t in);

#endif
