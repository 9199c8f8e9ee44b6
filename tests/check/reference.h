/* reference.h: multi-head attention in double, straight from the formulas on top of mhagen.h. The
 * reference shares nothing with the generator, so that the two can disagree. */
#ifndef MHAGEN_REFERENCE_H
#define MHAGEN_REFERENCE_H

#include "mhagen.h"

/* The keys first .. end - 1 that a row of a batch entry sees. Of `args` the lengths are read, where the options
 * say so. */
void mhagen_keys_seen(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row,
                      size_t *first, size_t *end);

/* What the mask adds to a score: -INFINITY where the key is not seen through it, 0 where there is no mask. */
double mhagen_mask(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t head, size_t row,
                   size_t key);

/* The slope of a head where weights->alibi is null: that of Press et al. 2022, Train Short, Test Long. */
double mhagen_alibi_slope(int h, int head);

/* Computes the results that a run of a kernel of this shape should have. Only the integers and the options of `shape`
 * are read, and only q, k, v, past, the lengths, mask and angles of `args`. With cache = append k and v have all rows
 * that there ever were, [batch][seq_kv][..]. Those of this run are from past on; in self-attention they are the rows of
 * q's input. No row behind these is read. k_rope_cos and k_rope_sin have the angles of all these rows, always.
 *   y          [batch][seq][y_width], or as the layout of the options says where it is not projected; NaN in
 *              rows behind q_len, here and in probs
 *   probs      [batch][h][seq][seq_kv], zero for keys that a row does not see; may be null
 * Whether a NaN or an Inf spreads is left to the arithmetic; a key that a row does not see takes
 * no part in it. A row that sees no key has the context zero. Returns 0, or -1 when memory is
 * short. */
int mhagen_reference(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args, double *y,
                     double *probs);

#endif
