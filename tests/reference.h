/* reference.h: multi-head attention in double, straight from the formulas on top of mhagen.h. The
 * reference shares nothing with the generator, so that the two can disagree. */
#ifndef MHAGEN_REFERENCE_H
#define MHAGEN_REFERENCE_H

#include "mhagen.h"

/* The promised bound of ||y - reference|| / ||reference||, and of the same for probs. It depends on
 * max_score, the largest |score|, because exp amplifies a score's own rounding. It holds for norms over
 * ordinary data: at least 32 rows of attention weights, and 64 columns of y and of the contexts. */
double mhagen_promised_error(const mhagen_kernel *shape, double max_score);

/* The keys first .. end - 1 that a row of a batch entry sees. Of `args` the lengths are read, where the options
 * say so. */
void mhagen_keys_seen(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t row,
                      size_t *first, size_t *end);

/* Computes the results that a run of a kernel of this shape should have. Only the integers, the options
 * and the stated errors of `shape` are read, and only q, k, v and kv_len of `args`.
 *   y          [batch][seq][y_width]
 *   probs      [batch][h][seq][seq_kv], zero for keys that a row does not see; may be null
 *   max_score  the largest finite |q k / sqrt(dk)| over the visible pairs; may be null
 * Whether a NaN or an Inf spreads is left to the arithmetic; a key that a row does not see takes
 * no part in it. A row that sees no key has the context zero. Returns 0, or -1 when memory is
 * short. */
int mhagen_reference(const mhagen_kernel *shape, const mhagen_weights *weights,
                     const mhagen_args *args, double *y, double *probs, double *max_score);

/* The same, and the promise for each row, whatever the data: the largest ||got - reference|| of a
 * row of y, y_bounds[batch][seq], and of a row of weights, probs_bounds[batch][h][seq] or null. They are
 *
 *   (16 + max(d_model, k_width, v_width) + dk + seq_kv + h*dv) * unit * (1 + S) * ||size||
 *
 * where size is the row computed with the magnitudes of x, W and b, but the weights of attention as they
 * are, and S the largest score so computed, |q| |k| / sqrt(dk), of the keys that the row sees; of a row of
 * weights, the row itself and its head's S. With strassen, which mixes rows and columns, the
 * largest element stands for all of an input, and of Wq, Wk, Wv. Nothing may over- or underflow. */
int mhagen_reference_and_bounds(const mhagen_kernel *shape, const mhagen_weights *weights,
                                const mhagen_args *args, double *y, double *probs,
                                double *max_score, double *y_bounds, double *probs_bounds);

#endif
