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

/* What the mask adds to a score: -INFINITY where the key is not seen through it, 0 where there is no mask. */
double mhagen_mask(const mhagen_kernel *shape, const mhagen_args *args, size_t entry, size_t head, size_t row,
                   size_t key);

/* The slope of a head where weights->alibi is null: that of Press et al. 2022, Train Short, Test Long. */
double mhagen_alibi_slope(int h, int head);

/* Computes the results that a run of a kernel of this shape should have. Only the integers, the options
 * and the stated errors of `shape` are read, and only q, k, v, past, the lengths and mask of `args`. With
 * cache = append k and v have all rows that there ever were, [batch][seq_kv][..], those of this run from
 * past on, in self-attention both the rows of q's input; what is behind these is not read.
 *   y          [batch][seq][y_width], or as the layout of the options says where it is not projected; NaN in
 *              rows behind q_len, here and in probs
 *   probs      [batch][h][seq][seq_kv], zero for keys that a row does not see; may be null
 *   max_score  the largest finite |scale q k| over the visible pairs, with the magnitude of what is added
 *              to it, of a mask only where the key's weight is above 2^-60, or a finite |sink|, which
 *              counts up to 128 above the row's scores; may be null
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

/* Whether the operands of a kernel's products or its results are rounded, or its weights quantized, to types that the
 * reference knows. */
int mhagen_is_rounded(const mhagen_kernel *shape);

/* The nearest number of a type, ties to even: x itself where the type is null or float32. */
double mhagen_nearest(const char *type, double x);

/* The 16 bits of the nearest bfloat16 or half precision, and the number that has such bits. */
uint16_t mhagen_to_bits(const char *type, double x);
double mhagen_of_bits(const char *type, uint16_t bits);

/* Results, and by how much those of a kernel may be off; probs and probs_off may be null. */
typedef struct mhagen_results {
  double *y, *y_off, *probs, *probs_off;
} mhagen_results;

/* The results of such a kernel, in double from operands that are rounded where the kernel rounds them: x and the
 * weights to dtype, or the weights to integers times scales; queries, times scale and log2(e), keys, values and weights
 * of attention, as powers of two times a power of two, to attend_dtype; before that keys and values in
 * a cache to cache_dtype; contexts to dtype; and y to io_dtype. In int8 a row of x or of the
 * contexts is integers times its scale. Float32's errors are carried along: an operand may be another one where these
 * reach over the middle between two. An infinite bound: the result may be finite or not. A result that is not finite
 * with another bound is not finite in any case. Returns 0, or -1 when memory is short. */
int mhagen_reference_rounded(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                             const mhagen_results *results);

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
