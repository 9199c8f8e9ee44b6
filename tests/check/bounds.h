/* bounds.h of mhagen: by how much the results of a kernel may differ from those of reference.h, in float32 as it
 * adds. */
#ifndef MHAGEN_BOUNDS_H
#define MHAGEN_BOUNDS_H

#include "reference.h"

/* The promised bound of ||y - reference|| / ||reference||, and of the same for probs. It depends on
 * max_score, the largest |score|, because exp amplifies a score's own rounding. It holds for norms over
 * ordinary data: at least 32 rows of attention weights, and 64 columns of y and of the contexts. */
double mhagen_promised_error(const mhagen_kernel *shape, double max_score);

/* The results of mhagen_reference, and max_score: the largest finite |scale q k| over the visible pairs, with the
 * magnitude of what is added to it, of a mask only where the key's weight is above 2^-60, or a finite |sink|, which
 * counts up to 128 above the row's scores. It may be null, and so may the bounds: the promise for each row, whatever
 * the data. That is the largest ||got - reference|| of a row of y, y_bounds[batch][seq], and of a row of weights,
 * probs_bounds[batch][h][seq]. They are
 *
 *   (16 + max(d_model, k_width, v_width) + dk + seq_kv + h*dv) * unit * (1 + S) * ||size||
 *
 * of these widths those of rows that are projected, and h*dv if Y is; else y has its bounds for each head of a row,
 * y_bounds[batch][seq][h], or [batch][h][seq] where they lie so. size is the row computed with the magnitudes of x,
 * W and b, but the weights of attention as they are, and S the largest score so computed, scale |q| |k|, of the keys
 * that the row sees, with the magnitude of what is added to it, of a mask only where the key's weight is above
 * 2^-60; of a row of weights, the row itself and its head's S. With strassen, which mixes rows and columns, the
 * largest element stands for all of an input, and of Wq, Wk, Wv; with weight_dtype the largest weight that shares a
 * scale for all of these, and expm1 of the factor before ||size|| for it; in int8 so does that of a column of W, and
 * that of a row of x and of the contexts for all of the row; with a cache of int8 that of a row of K or V and
 * head for all of it. Nothing may over- or underflow, but that beside a sink a
 * weight below 2^-94 may be zero. */
int mhagen_reference_and_bounds(const mhagen_kernel *shape, const mhagen_weights *weights,
                                const mhagen_args *args, double *y, double *probs,
                                double *max_score, double *y_bounds, double *probs_bounds);

/* The scores that a run has in args->scores, [batch][h][seq][seq_kv]: -INFINITY for keys outside kv_start .. kv_len,
 * with MHAGEN_SCORES_MASKED for all that a row does not see; NaN in rows behind q_len. And what each may be off by,
 *
 *   (16 + max(d_model, k_width) + dk) * unit * size
 *
 * size being the score computed with the magnitudes of x, W, b and of what is added to it; with strassen and in int8
 * as above.
 * Returns 0, or -1 when memory is short. */
int mhagen_reference_scores(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                            double *scores, double *bounds);

#endif
