/* bounds.h of mhagen: by how much the results of a kernel may differ from those of reference.h, in float32 as it
 * adds. */
#ifndef MHAGEN_BOUNDS_H
#define MHAGEN_BOUNDS_H

#include "reference.h"

/* The promised bound of ||y - reference|| / ||reference||, and of the same for probs. It depends on
 * max_score, the largest |score|, because exp amplifies a score's own rounding. It holds for norms over
 * ordinary data: at least 32 rows of attention weights, and 64 columns of y and of the contexts. */
double mhagen_promised_error(const mhagen_kernel *shape, double max_score);

/* The results of mhagen_reference, and how far those of a kernel may be off. Any of max_score and the bounds may be
 * null.
 *   max_score      the largest finite size of a score over the visible pairs: |scale q k| and |what is added to it|. A
 *                  mask counts only where the key's weight is above 2^-60. A finite |sink| counts up to 128 above the
 *                  row's scores.
 *   y_bounds       [batch][seq]: the largest ||got - reference|| of a row of y, whatever the data
 *   probs_bounds   [batch][h][seq]: the same of a row of weights
 * The bounds are
 *
 *   (16 + max(d_model, k_width, v_width) + dk + seq_kv + h*dv) * unit * (1 + S) * ||size||
 *
 * Only widths of rows that are projected count, and h*dv only if Y is. Else y has bounds for each head of a row, as
 * its layout has them: y_bounds[batch][seq][h] or [batch][h][seq].
 *   size           the row computed with |x|, |W| and |b|, but the true weights of attention; of a row of weights, the
 *                  row itself
 *   S              the largest score so computed of the keys that the row sees, with the magnitude of what is added to
 *                  it. A mask counts as for max_score. Of a row of weights it is its head's.
 * One number stands for others where they share a rounding, the largest:
 *   weight_dtype   for weights that share a scale; the factor before ||size|| then is its expm1
 *   int8           for a column of W, and for a row of x and of the contexts
 *   cache of int8  for a row of K or V and head
 *
 * Nothing may over- or underflow, but that beside a sink a weight below 2^-94 may be zero. */
int mhagen_reference_and_bounds(const mhagen_kernel *shape, const mhagen_weights *weights,
                                const mhagen_args *args, double *y, double *probs,
                                double *max_score, double *y_bounds, double *probs_bounds);

/* The scores that a run has in args->scores, [batch][h][seq][seq_kv]: -INFINITY for keys outside kv_start .. kv_len,
 * with MHAGEN_SCORES_MASKED for all that a row does not see; NaN in rows behind q_len. And what each may be off by,
 *
 *   (16 + max(d_model, k_width) + dk) * unit * size
 *
 * size being the score computed with the magnitudes of x, W, b and of what is added to it; in int8 as above.
 * Returns 0, or -1 when memory is short. */
int mhagen_reference_scores(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                            double *scores, double *bounds);

#endif
