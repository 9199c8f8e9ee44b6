/* rounded.h of mhagen: the results of a kernel whose operands are rounded to small types, or whose weights are
 * integers. */
#ifndef MHAGEN_ROUNDED_H
#define MHAGEN_ROUNDED_H

#include "reference.h"

#include <stdint.h>

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

#endif
