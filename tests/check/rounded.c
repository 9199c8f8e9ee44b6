/* rounded.c of mhagen: an emulator of the roundings of a kernel, as rounded.h says. A number is in double, beside it
 * by how much that of a kernel may be off. */
#include "rounded.h"
#include "formula.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_WEIGHT 0x1p-68 /* a weight of attention below it may be 0: 2^-100 of a sum of 2^-32 */
#define LOG2E 1.4426950408889634
#define FLOAT_UNIT 0x1p-24

typedef struct format {
  const char *name;
  double (*nearest)(const struct format *, double);
  int digits, least; /* of the significand; the exponent from which on there are so many */
  double most;
} format;

/* Ties to even. */
static double to_digits(const format *f, double x) {
  const int exponent = ilogb(x) > f->least ? ilogb(x) : f->least;
  const double step = ldexp(1, exponent - f->digits + 1), rounded = rint(x / step) * step;
  return fabs(rounded) > f->most ? copysign(INFINITY, x) : rounded;
}

/* Ties as they come of tests/toys/toy_type.lua, which leaves large numbers as they are. */
static double split(const format *f, double x) {
  if (fabs(x) >= 0x1p115) return fabs(x) > f->most ? copysign(INFINITY, x) : x;
  const float exact = (float)x, scaled = exact * 4097.0f, rest = scaled - exact;
  return (double)(scaled - rest);
}

/* Null: float32, or a type that is not known here. */
static const format *format_of(const char *type) {
  static const format formats[] = {{"bf16", to_digits, 8, -126, 0x1.FEp127}, {"f16", to_digits, 11, -14, 65504},
                                   {"f32r12", split, 12, -126, FLT_MAX}};
  for (size_t i = 0; type && i < sizeof formats / sizeof *formats; i++) {
    if (!strcmp(type, formats[i].name)) return &formats[i];
  }
  return NULL;
}

static const char *attend_type(const mhagen_kernel *shape) {
  return shape->attend_dtype ? shape->attend_dtype : shape->dtype;
}

/* Of the rows of a cache: a type that has a format, "int8", or null. */
static const char *cache_type(const mhagen_kernel *shape) {
  if (!(shape->options & (MHAGEN_CACHE_APPEND | MHAGEN_CACHE_FIXED))) return NULL;
  return shape->cache_dtype ? shape->cache_dtype : attend_type(shape);
}

static int is_int8(const char *type) { return type && !strcmp(type, "int8"); }

static int is_known(const char *type) { return !type || !strcmp(type, "f32") || format_of(type); }

int mhagen_is_rounded(const mhagen_kernel *shape) {
  const char *attend = attend_type(shape);
  const char *quants = ref_quants(shape);
  if (quants && strcmp(quants, "int8") && strcmp(quants, "int4")) return 0;
  if ((!is_known(shape->dtype) && !ref_has_integers(shape)) || !is_known(attend)) return 0;
  if (!is_known(ref_weight_type(shape)) && !quants) return 0;
  return quants || format_of(ref_weight_type(shape)) || format_of(shape->dtype) || format_of(attend) ||
         format_of(shape->io_dtype) || format_of(cache_type(shape)) || is_int8(cache_type(shape));
}

static double nearest(const format *f, double x) {
  return f && isfinite(x) && x != 0 ? f->nearest(f, x) : x;
}

double mhagen_nearest(const char *type, double x) { return nearest(format_of(type), x); }

uint16_t mhagen_to_bits(const char *type, double x) {
  const format *f = format_of(type);
  const double size = fabs(nearest(f, x));
  const unsigned hidden = 1u << (f->digits - 1), sign = signbit(x) ? 0x8000u : 0, ends = 0x7FFFu & ~(hidden - 1);
  if (isnan(x)) return (uint16_t)(ends | hidden >> 1);
  if (isinf(size)) return (uint16_t)(sign | ends);
  if (size == 0) return (uint16_t)sign;
  const int exponent = ilogb(size) > f->least ? ilogb(size) : f->least;
  const unsigned digits = (unsigned)ldexp(size, f->digits - 1 - exponent);
  const unsigned biased = digits & hidden ? (unsigned)(exponent - f->least + 1) : 0;
  return (uint16_t)(sign | biased << (f->digits - 1) | (digits & (hidden - 1)));
}

double mhagen_of_bits(const char *type, uint16_t bits) {
  const format *f = format_of(type);
  const unsigned hidden = 1u << (f->digits - 1), ends = 0x7FFFu & ~(hidden - 1), size = bits & 0x7FFFu;
  const int biased = (int)(size / hidden);
  if (size > ends) return NAN;
  const double digits = (double)(size % hidden + (biased ? hidden : 0));
  const double x = size == ends ? INFINITY : ldexp(digits, (biased ? biased - 1 : 0) + f->least - (f->digits - 1));
  return bits & 0x8000u ? -x : x;
}

static double distance(double a, double b) { return a == b ? 0 : fabs(a - b); }

/* By how much a product may be off whose one factor is of this size and whose other one may be off. What may be
 * infinite may be NaN times anything; what is infinite is so, or NaN, times anything. */
static double times(double size, double off) {
  return off == INFINITY ? off : size == 0 || off == 0 || size == INFINITY ? 0 : size * off;
}

/* Numbers, and by how much those of a kernel may be off: without limit where they may be infinite, or NaN, or not, for
 * an operand is as near as float32's errors to where its type ends. */
typedef struct inexact {
  double *x, *off;
} inexact;

static inexact from(inexact a, size_t at) { return (inexact){a.x + at, a.off + at}; }

/* By how much what x is rounded to may be off, if x is. */
static double off_rounded(const format *f, double x, double off) {
  if (!f || !isfinite(x)) return off;
  return fmax(distance(nearest(f, x - off), nearest(f, x)), distance(nearest(f, x + off), nearest(f, x)));
}

static void round_all(const format *f, double scale, inexact a, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const double x = a.x[i] * scale;
    a.off[i] = off_rounded(f, x, a.off[i] * scale + (scale == 1 ? 0 : 2 * FLOAT_UNIT * fabs(x)));
    a.x[i] = nearest(f, x);
  }
}

/* One head of a row, as integers times a scale: each may be the one beside it, and the scale is off as the largest
 * magnitude is. */
static void quantize_kept(inexact a, size_t count) {
  double most = 0, off_most = 0;
  int finite = 1, any = 0;
  for (size_t i = 0; i < count; i++) {
    finite &= isfinite(a.x[i]) != 0, any |= a.off[i] == INFINITY;
    most = fmax(most, fabs(a.x[i])), off_most = fmax(off_most, a.off[i]);
  }
  const double off_part = 8 * FLOAT_UNIT, scale = most / 127, off_scale = off_most / 127,
               least = fmax(0, scale - off_scale) * (1 - off_part), top = (scale + off_scale) * (1 + off_part);
  for (size_t i = 0; i < count; i++) {
    if (!finite || any) {
      a.x[i] = NAN, a.off[i] = finite || any ? INFINITY : 0;
      continue;
    }
    const double steps = scale > 0 ? rint(a.x[i] / scale) : 0, x = steps * scale;
    /* Steps from those of the smallest number over the largest scale to those of the opposite. */
    const double low = fabs(a.x[i]) - a.off[i], high = fabs(a.x[i]) + a.off[i],
                 down = top > 0 ? rint(low * (1 - off_part) / top) * least : 0,
                 up = least > 0 ? fmin(rint(high * (1 + off_part) / least), 127) * top : high;
    a.off[i] = scale == 0 && off_most == 0 ? 0 : fmax(fabs(x) - down, up - fabs(x)) + 0x1p-100;
    a.x[i] = x;
  }
}

/* Rows of so many heads as a cache has them. */
static void round_kept(const mhagen_kernel *shape, inexact a, size_t heads, size_t width) {
  const char *type = cache_type(shape);
  const format *f = format_of(type);
  round_all(f, 1, a, heads * width);
  for (size_t i = 0; i < heads && is_int8(type); i++) quantize_kept(from(a, i * width), width);
}

#define SHORT_STEPS 32767

/* Whether a kernel may multiply rows of a cache in int8 by queries and weights of 16 bits: few rows, of heads that
 * share keys, in float32. */
static int has_shorts(const mhagen_kernel *shape) {
  return is_int8(cache_type(shape)) && !format_of(attend_type(shape)) && shape->seq <= 4 &&
         shape->h >= 4 * shape->h_kv;
}

/* A head of a query as such integers times a scale. */
static void round_to_shorts(inexact a, size_t count) {
  double most = 0;
  for (size_t i = 0; i < count; i++) most = isfinite(a.x[i]) ? fmax(most, fabs(a.x[i]) + a.off[i]) : INFINITY;
  for (size_t i = 0; i < count; i++) {
    if (most == INFINITY) a.x[i] = NAN;
    else a.off[i] += most * (.5 / SHORT_STEPS + 4 * FLOAT_UNIT);
  }
}

/* What a kernel makes of a sum of so many products, whose magnitudes sum to size. */
static double off_sum(double sum, size_t steps, double size, double off) {
  return isfinite(sum) ? off + ((double)steps + 16) * FLOAT_UNIT * size : off;
}

#define STEPS 127        /* of integers, to either side */
#define LEAST_LARGEST 0x1p-100 /* of a row: of smaller numbers no scale has an inverse */

static size_t at_most(size_t count, size_t most) { return count < most ? count : most; }

/* Numbers of a row of an input as integers times their scale, which is NaN where one is not finite. */
static void quantize(const float *x, size_t count, inexact to) {
  float most = (float)LEAST_LARGEST;
  int finite = 1;
  for (size_t i = 0; i < count; i++) most = fmaxf(most, fabsf(x[i])), finite &= isfinite(x[i]) != 0;
  const float inverse = STEPS / most, scale = most / STEPS;
  for (size_t i = 0; i < count; i++) {
    const float scaled = x[i] * inverse;
    to.x[i] = finite ? (double)rintf(scaled) * (double)scale : NAN, to.off[i] = 0;
  }
}

/* The integer of a number where the largest is as given. */
static double integer_of(double x, double largest) { return rint(fmin(fmax(x * STEPS / largest, -STEPS), STEPS)); }

/* By how much an integer times the scale of a row may be off from `value`. The number is from first to last, and the
 * largest from low to high. No integer is half a step from its number, and one alone is off by the scale only. */
static double off_quantized(double first, double last, double low, double high, double value) {
  const double least = integer_of(first, first > 0 ? high : low), most = integer_of(last, last > 0 ? low : high);
  double bottom = least * (least > 0 ? low : high) / STEPS, top = most * (most > 0 ? high : low) / STEPS;
  if (least < most) bottom = fmax(bottom, first - high / (2 * STEPS)), top = fmin(top, last + high / (2 * STEPS));
  return fmax(top - value, value - bottom) * (1 + 4 * FLOAT_UNIT) + 4 * FLOAT_UNIT * fabs(value);
}

/* The same of a row that may be off, as may its largest number then. */
static void quantize_inexact(inexact a, size_t count) {
  double most = LEAST_LARGEST, low = most, high = most;
  int finite = 1, sure = 1;
  for (size_t i = 0; i < count; i++) {
    const double x = fabs(a.x[i]), off = a.off[i];
    if (off == INFINITY) sure = 0;
    else if (!isfinite(x)) finite = 0;
    else most = fmax(most, x), low = fmax(low, x - off), high = fmax(high, x + off);
  }
  for (size_t i = 0; i < count; i++) {
    const double x = a.x[i], value = rint(x * STEPS / most) * most / STEPS;
    const double more = a.off[i] + 4 * FLOAT_UNIT * fabs(x), off = off_quantized(x - more, x + more, low, high, value);
    a.x[i] = finite ? value : NAN, a.off[i] = finite && !sure ? INFINITY : finite ? off : 0;
  }
}

typedef struct matrix {
  const double *at;
  size_t row, column; /* steps */
} matrix;

/* The nearest half precision, as `nearest` has it, but in less time. */
static double half_of(double x) {
  uint64_t bits;
  if (!(fabs(x) >= 0x1p-14)) return rint(x * 0x1p24) * 0x1p-24;
  if (!(fabs(x) < 65520)) return isnan(x) ? x : copysign(INFINITY, x);
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + ((UINT64_C(1) << 41) - 1) + (bits >> 42 & 1)) >> 42 << 42;
  memcpy(&x, &bits, sizeof x);
  return x;
}

enum { BLOCK_NUMBERS = 16, SPAN_NUMBERS = 64 }; /* that sums of half precision are of */

/* A sum of products in half precision: those of even and of odd numbers by themselves, of blocks, of spans of these;
 * and of spans as float32. The products and a sum with one are exact in double, or nearly so. */
static double coarse_sum(const double *a, size_t steps, matrix w, size_t o) {
  double totals[2] = {0, 0};
  for (size_t span = 0; span < steps; span += SPAN_NUMBERS) {
    const size_t span_end = span + SPAN_NUMBERS < steps ? span + SPAN_NUMBERS : steps;
    double sums[2] = {0, 0};
    for (size_t block = span; block < span_end; block += BLOCK_NUMBERS) {
      const size_t end = block + BLOCK_NUMBERS < span_end ? block + BLOCK_NUMBERS : span_end;
      double own[2] = {0, 0};
      for (size_t i = block; i < end; i++) own[i % 2] = half_of(own[i % 2] + a[i] * w.at[i * w.row + o * w.column]);
      for (int half = 0; half < 2; half++) sums[half] = half_of(sums[half] + own[half]);
    }
    totals[0] += sums[0], totals[1] += sums[1];
  }
  return totals[0] + totals[1];
}

/* y[r * ld + o] of so many columns from a row a of the matrix w; coarse: sums are of half precision. What is not finite
 * then is made again in float32. */
static void multiply(inexact a, size_t steps, matrix w, const double *bias, inexact y, size_t columns, int coarse) {
  int exact = 1;
  for (size_t i = 0; i < steps; i++) exact &= a.off[i] == 0;
  for (size_t o = 0; o < columns; o++) {
    double sum = bias ? bias[o] : 0, size = fabs(sum), off = 0;
    for (size_t i = 0; i < steps; i++) {
      const double weight = w.at[i * w.row + o * w.column];
      sum += a.x[i] * weight;
      size += fabs(a.x[i] * weight);
      off += times(fabs(weight), a.off[i]);
    }
    const double own = coarse ? coarse_sum(a.x, steps, w, o) + (bias ? bias[o] : 0) : sum;
    if (isfinite(own)) sum = own;
    /* Of operands that may be others each rounding may be another one; and so may be whether it is finite. */
    if (coarse && !exact) off += 2 * (BLOCK_NUMBERS / 2 + SPAN_NUMBERS / BLOCK_NUMBERS) * 0x1p-11 * size;
    if (coarse && !exact) off += 2 * (double)steps * 0x1p-24;
    y.x[o] = sum, y.off[o] = off_sum(sum, steps, size, off);
  }
}

/* A norm of n columns. */
static void norm_inexact(const mhagen_kernel *shape, size_t n, inexact a) {
  const double count = shape->qk_norm == MHAGEN_NORM_L2 ? 1 : (double)n, steps = (double)n + 16;
  double mean = 0, mean_size = 0, off = 0, squares = 0, off_squares = 0;
  for (size_t i = 0; i < n && shape->qk_norm == MHAGEN_NORM_LAYER; i++) {
    mean += a.x[i] / (double)n, mean_size += fabs(a.x[i]) / (double)n, off += a.off[i] / (double)n;
  }
  if (isfinite(mean)) off += steps * FLOAT_UNIT * mean_size;
  for (size_t i = 0; i < n; i++) {
    a.x[i] -= mean, a.off[i] += off;
    squares += a.x[i] * a.x[i], off_squares += a.off[i] * a.off[i];
  }
  const double length = squares > FLT_MAX * .999 ? INFINITY : ref_length(shape, n, squares);
  const int unsure = squares > FLT_MAX * .999 && squares < FLT_MAX * 1.001;
  const double off_length = sqrt(off_squares / count) + (isfinite(length) ? steps * FLOAT_UNIT * length : 0);
  for (size_t i = 0; i < n; i++) {
    const double x = a.x[i] / length, least = length - off_length;
    const int any = unsure || (isfinite(length) && !(least > 0));
    if (any && off_length < INFINITY) a.off[i] = 2 * sqrt(count); /* no norm makes more */
    else if (any) a.off[i] = INFINITY;
    else if (isfinite(length)) a.off[i] = (a.off[i] + times(fabs(x), off_length)) / least + 8 * FLOAT_UNIT * fabs(x);
    a.x[i] = x;
  }
}

static void norms_inexact(const mhagen_kernel *shape, const float *gains, size_t rows, size_t heads, inexact a) {
  const size_t all = shape->norm_span == MHAGEN_SPAN_ALL, dk = (size_t)shape->dk, n = all ? heads * dk : dk;
  if (!(shape->options & MHAGEN_QK_NORM)) return;
  for (size_t at = 0; at < rows * heads * dk; at += n) {
    norm_inexact(shape, n, from(a, at));
    const float *own = gains && shape->norm_span == MHAGEN_SPAN_EACH ? gains + at % (heads * dk) : gains;
    for (size_t i = 0; gains && i < n; i++) {
      a.x[at + i] *= (double)own[i];
      a.off[at + i] = times(fabs((double)own[i]), a.off[at + i]);
    }
  }
}

/* Turns a row; each of a pair takes its part of the other's error, and of float32's roundings of both. */
static void turn_inexact(const mhagen_kernel *shape, const mhagen_weights *w, ptrdiff_t place, size_t heads,
                         inexact a) {
  const size_t width = heads * (size_t)shape->dk;
  if (!(shape->options & MHAGEN_ROPE)) return;
  for (size_t i = 0; i < width; i++) {
    if (isfinite(a.x[i])) a.off[i] += 8 * FLOAT_UNIT * fabs(a.x[i]);
  }
  ref_turn_row(shape, w, place, heads, a.x);
  ref_turn_sizes(shape, w, place, heads, a.off);
  for (size_t i = 0; i < width; i++) {
    if (isnan(a.off[i])) a.off[i] = INFINITY; /* times zero */
  }
}

/* Rows of an input that are multiplied. */
static void take_inexact(const float *x, size_t rows, const format *f, size_t quantized, size_t columns, inexact to) {
  for (size_t i = 0; i < rows && quantized; i++) {
    for (size_t j = 0; j < columns; j += at_most(quantized, columns - j)) {
      quantize(x + i * columns + j, at_most(quantized, columns - j), from(to, i * columns + j));
    }
  }
  if (quantized) return;
  for (size_t i = 0; i < rows * columns; i++) to.x[i] = nearest(f, (double)x[i]), to.off[i] = 0;
}

/* See ref_take. */
static void take_heads(const extents *e, const float *x, size_t all, size_t rows, size_t heads, size_t width,
                       inexact to) {
  ref_take(e, x, all, rows, heads, width, to.x);
  for (size_t i = 0; i < rows * heads * width; i++) to.off[i] = 0;
}

/* What is there for all batch entries. */
typedef struct rounding {
  const mhagen_kernel *shape;
  extents e;
  const format *own, *weights, *attend;
  size_t quantized; /* so many numbers of a row that is projected share a scale, or 0 */
  int coarse; /* their sums */
  mhagen_weights given;
  numbers x;
  double *w[4], *b[4]; /* wq, wk, wv, wo as [in][out], rounded, and not; biases */
  double *exact[4], *merged, *masks;
  void *rooms[64];
  int used, short_of_memory;
} rounding;

static double *room_for(rounding *r, size_t count) {
  double *room = calloc(count + 1, sizeof *room);
  if (!room || r->used == 64) r->short_of_memory = 1;
  else r->rooms[r->used++] = room;
  return room;
}

static inexact inexact_room(rounding *r, size_t count) {
  const inexact room = {room_for(r, count), room_for(r, count)};
  return room;
}

/* The scale of least squares for the numbers of a column that share it, of int4, whose largest one over -8 is `own`;
 * docs/generated-c.md has the rule. */
static float searched_scale(const double *w, size_t count, size_t apart, float own) {
  double best = 0, scale = 1;
  for (double below = 7; below < 10; below += .25) {
    double products = 0, squares = 0;
    for (size_t i = 0; i < count; i++) {
      const double x = floor(fmax(-8, fmin(8, w[i * apart] / (double)own)) * 1024 + .5) / 1024;
      const double integer = fmax(-8, fmin(7, floor(x * below / 8 + .5)));
      products += integer * x, squares += integer * integer;
    }
    if (squares > 0 && products * products / squares > best) {
      best = products * products / squares, scale = products / squares;
    }
  }
  return (float)(scale * (double)own);
}

/* As a kernel reads what packing made of a sum in double, and float32 at first. */
static double nearest_packed(const format *f, double x) { return nearest(f, (double)(float)x); }

/* Weights as integers times a scale, [in][out]. */
static void quantize_weights(const char *quants, size_t group, size_t in, size_t out, double *w) {
  const int nibbles = !strcmp(quants, "int4");
  const double most = nibbles ? 7 : 127, least = nibbles ? -8 : -127;
  for (size_t first = 0; first < in; first += group) {
    const size_t end = first + group < in ? first + group : in;
    for (size_t o = 0; o < out; o++) {
      float scale = 0;
      for (size_t i = first; i < end; i++) {
        const float own = (float)(w[i * out + o] / least);
        if (!isnan(scale) && !(fabsf(own) <= fabsf(scale))) scale = nibbles ? own : fabsf(own);
      }
      if (nibbles && isfinite(scale) && scale != 0)
        scale = searched_scale(w + first * out + o, end - first, out, scale);
      for (size_t i = first; i < end; i++) {
        double *const at = w + i * out + o;
        if (!isfinite(scale)) *at = NAN;
        else if (scale == 0) *at = 0;
        else *at = fmax(least, fmin(most, rint(*at / (double)scale))) * (double)scale;
      }
    }
  }
}

static void take_weights(rounding *r, int i, const float *w, const float *b, size_t in, size_t out) {
  const int flipped = r->given.layout == MHAGEN_OUT_IN;
  const char *quants = i == 2 ? ref_quants_of_values(r->shape) : ref_quants(r->shape);
  r->w[i] = room_for(r, in * out), r->exact[i] = room_for(r, in * out), r->b[i] = room_for(r, out);
  for (size_t j = 0; j < in * out && w && !r->short_of_memory; j++) {
    r->exact[i][j] = (double)(flipped ? w[j % out * in + j / out] : w[j]);
    r->w[i][j] = quants ? r->exact[i][j] : nearest(r->weights, r->exact[i][j]);
  }
  if (quants && w && !r->short_of_memory) {
    quantize_weights(quants, ref_rows_of_scale(r->shape, quants, in), in, out, r->w[i]);
    const int widened = (r->shape->folds & MHAGEN_FOLD_WIDENED) != 0;
    for (size_t j = 0; j < in * out && widened; j++) r->w[i][j] = nearest_packed(r->own, r->w[i][j]);
  }
  for (size_t j = 0; j < out && b && !r->short_of_memory; j++) r->b[i][j] = (double)b[j];
}

/* a[rows][cols] times columns of b, transposed or not, of a head. */
static void product_of_weights(const double *a, size_t rows, size_t lda, size_t inner, matrix b, size_t columns,
                               double *to) {
  for (size_t r = 0; r < rows; r++) {
    for (size_t o = 0; o < columns; o++) {
      double sum = 0;
      for (size_t i = 0; i < inner; i++) sum += a[r * lda + i] * b.at[i * b.row + o * b.column];
      to[r * columns + o] = sum;
    }
  }
}

/* Rows of an input by one of the matrices for q, k, v. */
static void project_inexact(const rounding *r, int i, size_t rows, const double *bias, inexact x, inexact y) {
  const extents *e = &r->e;
  const size_t widths[] = {e->d, e->k_width, e->v_width}, heads[] = {e->h * e->dk, e->h_kv * e->dk, e->h_kv * e->dv},
               in = widths[i], out = heads[i];
  for (size_t row = 0; row < rows; row++)
    multiply(from(x, row * in), in, (matrix){r->w[i], out, 1}, bias, from(y, row * out), out, r->coarse);
}

typedef struct operands {
  inexact q, k, v;
  size_t depth, breadth, k_heads, v_heads; /* columns of a head; those that rows of k and v have */
} operands;

/* Of one batch entry. */
static void make_operands(rounding *r, size_t entry, operands *o) {
  const mhagen_kernel *shape = r->shape;
  const extents *e = &r->e;
  const unsigned folds = shape->folds;
  const int absorbs = (folds & MHAGEN_FOLD_ABSORB_K) != 0, merges = (folds & MHAGEN_FOLD_MERGE_K) != 0;
  const size_t hq = e->h * e->dk, hk = e->h_kv * e->dk, share = e->h / e->h_kv;
  const float *qx = r->x.qx + entry * e->n * e->q_width, *kx = r->x.kx + entry * e->m * e->k_width,
              *vx = r->x.vx + entry * e->m * e->v_width;
  const size_t widest = e->q_width + e->k_width + e->v_width + hq;
  const inexact x = inexact_room(r, (e->n + e->m) * widest);
  o->depth = absorbs || merges ? e->k_width : e->dk, o->k_heads = absorbs || merges ? 1 : e->h_kv;
  o->breadth = folds & (MHAGEN_FOLD_ABSORB_V | MHAGEN_FOLD_MERGE_V) ? e->v_width : e->dv;
  o->v_heads = o->breadth == e->v_width && folds & (MHAGEN_FOLD_ABSORB_V | MHAGEN_FOLD_MERGE_V) ? 1 : e->h_kv;
  const inexact q = inexact_room(r, e->n * hq);
  o->q = merges || absorbs ? inexact_room(r, e->n * e->h * o->depth) : q;
  o->k = inexact_room(r, e->m * o->k_heads * o->depth), o->v = inexact_room(r, e->m * o->v_heads * o->breadth);
  double *merged = room_for(r, merges ? e->d * e->k_width : 0), *bias = room_for(r, e->k_width);
  if (r->short_of_memory) return;

  if (ref_projects(e, MHAGEN_PROJECT_Q)) {
    take_inexact(qx, e->n, r->own, r->quantized, e->d, x);
    project_inexact(r, 0, e->n, r->b[0], x, q);
  } else {
    take_heads(e, qx, e->n, e->n, e->h, e->dk, q);
  }
  norms_inexact(shape, r->given.q_norm, e->n, e->h, q);
  for (size_t i = 0; i < e->n; i++) turn_inexact(shape, &r->given, e->place + (ptrdiff_t)i, e->h, from(q, i * hq));
  if (absorbs) round_all(r->own, 1, q, e->n * hq);
  for (size_t head = 0; head < e->h && (absorbs || merges); head++) {
    const size_t first = head / share * e->dk;
    const matrix flipped = {r->w[1] + first, 1, hk}, exact = {r->exact[1] + first, 1, hk};
    if (merges) {
      product_of_weights(r->exact[0] + head * e->dk, e->d, hq, e->dk, exact, e->k_width, merged);
      for (size_t i = 0; i < e->d * e->k_width; i++) merged[i] = nearest_packed(r->own, merged[i]);
      product_of_weights(r->b[0] + head * e->dk, 1, hq, e->dk, exact, e->k_width, bias);
    }
    for (size_t i = 0; i < e->n; i++) {
      const inexact to = from(o->q, (i * e->h + head) * o->depth);
      if (merges) multiply(from(x, i * e->d), e->d, (matrix){merged, e->k_width, 1}, bias, to, o->depth, r->coarse);
      else multiply(from(q, i * hq + head * e->dk), e->dk, flipped, NULL, to, o->depth, r->coarse);
    }
  }
  round_all(r->attend, shape->scale * LOG2E, o->q, e->n * e->h * o->depth);
  for (size_t i = 0; i < e->n * e->h && has_shorts(shape); i++) round_to_shorts(from(o->q, i * o->depth), o->depth);

  if (absorbs || merges) {
    take_inexact(kx, e->made, NULL, 0, e->k_width, o->k);
  } else if (ref_projects(e, MHAGEN_PROJECT_K)) {
    take_inexact(kx, e->made, r->own, r->quantized, e->k_width, x);
    project_inexact(r, 1, e->made, folds & MHAGEN_FOLD_BK ? NULL : r->b[1], x, o->k);
  } else {
    take_heads(e, kx, e->m, e->made, e->h_kv, e->dk, o->k);
  }
  norms_inexact(shape, r->given.k_norm, e->made, e->h_kv, o->k);
  for (size_t i = 0; i < e->made; i++) turn_inexact(shape, &r->given, (ptrdiff_t)i, e->h_kv, from(o->k, i * hk));
  round_kept(shape, o->k, e->made * o->k_heads, o->depth);
  round_all(r->attend, 1, o->k, e->made * o->k_heads * o->depth);

  if (o->v_heads == 1 && folds & (MHAGEN_FOLD_ABSORB_V | MHAGEN_FOLD_MERGE_V)) {
    take_inexact(vx, e->made, NULL, 0, e->v_width, o->v);
  } else if (ref_projects(e, MHAGEN_PROJECT_V)) {
    take_inexact(vx, e->made, r->own, r->quantized, e->v_width, x);
    project_inexact(r, 2, e->made, folds & MHAGEN_FOLD_BV ? NULL : r->b[2], x, o->v);
  } else {
    take_heads(e, vx, e->m, e->made, e->h_kv, e->dv, o->v);
  }
  round_kept(shape, o->v, e->made * o->v_heads, o->breadth);
  round_all(r->attend, 1, o->v, e->made * o->v_heads * o->breadth);
}

/* 2^x as kernels with MHAGEN_FOLD_POWERS make it; it never falls with x. Of twice the bits of a bfloat16 the
 * fraction of x stands for 2^fraction - 1, and a table corrects each four. Below 2^-126 it counts as zero. */
static double power_of_two(double x) {
  const double most = 2 * 0x7F80, fixed = rint(256 * (x + 127) - 23.5);
  const int twice = (int)(fixed < most ? fmax(fixed, 0) : most), place = twice / 4 % 64;
  const double part = fmod((4 * place + 25) / 256.0, 1), looked_up = floor(23.5 + 256 * (exp2(part) - 1 - part));
  const double power = mhagen_of_bits("bf16", (uint16_t)((twice + (int)looked_up + 1) / 2));
  return power < 0x1p-126 ? 0 : power;
}

/* The weights of a row and head, times a power of two, of the scores in `s` less `apart`. Returns their sum. What is
 * far below the largest has fewer digits where the type has no small numbers, still fewer where the largest is
 * guessed. */
static double weights_inexact(const rounding *r, inexact s, double apart, double sink, double *sum_off) {
  const extents *e = &r->e;
  const int guessed = (r->shape->options & (MHAGEN_ALIBI | MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD)) != 0;
  const int least = r->attend ? r->attend->least : -126;
  const double lost = ldexp(1, least - (r->attend ? r->attend->digits : 24)), far = ldexp(1, least + 1);
  /* Keys that are inputs: where one is infinite, so would be numbers of a projected key, of either sign. */
  const int tested = r->shape->folds & (MHAGEN_FOLD_ABSORB_K | MHAGEN_FOLD_MERGE_K) &&
                     r->shape->options & MHAGEN_CROSS;
  double most = sink, sum = 0, off = 0;
  for (size_t j = e->first; j < e->end; j++) {
    if (tested && isinf(s.x[j])) s.x[j] = NAN;
    if (e->sees[j] && s.x[j] > most) most = s.x[j];
  }
  /* Scores less the largest one, and its fraction is added. So huge scores that are equal differ by nothing, with
   * fused products too. */
  const double top = (most - apart) * LOG2E, rest = isfinite(top) ? remainder(top, 1) : 0;
  for (size_t j = e->first; j < e->end; j++) {
    if (!e->sees[j]) {
      s.x[j] = s.off[j] = 0;
      continue;
    }
    const double log2_p = (s.x[j] - most) * LOG2E + rest, p = exp2(log2_p),
                 part = s.off[j] == INFINITY ? INFINITY : fmin(expm1(s.off[j]), 1e30) + 8 * FLOAT_UNIT;
    const int powers = (r->shape->folds & MHAGEN_FOLD_POWERS) != 0 && isfinite(p);
    const double off_log2 = s.off[j] * LOG2E + 0x1p-15; /* of numbers in fixed point as float32 */
    s.x[j] = powers ? power_of_two(log2_p) : nearest(r->attend, p);
    const double least_p = p / (1 + part), most_p = p + times(p, part);
    if (part == INFINITY) {
      s.off[j] = INFINITY;
    } else if (powers) {
      s.off[j] = fmax(s.x[j] - power_of_two(log2_p - off_log2), power_of_two(log2_p + off_log2) - s.x[j]);
      if (p < LEAST_WEIGHT) s.off[j] += p;
    } else if (isfinite(p)) {
      const double down = distance(nearest(r->attend, least_p), s.x[j]),
                   up = distance(nearest(r->attend, most_p), s.x[j]);
      s.off[j] = r->attend ? fmax(down, up) : times(p, part);
      if (p < LEAST_WEIGHT) s.off[j] += p; /* the largest score may be far below a kernel's maximum */
    } else {
      s.off[j] = 0;
    }
    sum += s.x[j], off += s.off[j];
  }
  if (sink != -INFINITY) {
    const double p = exp2((sink - most) * LOG2E + rest);
    sum += p, off += p * 16 * FLOAT_UNIT * (1 + fabs(sink));
  }
  /* A maximum that is guessed may be so far above that a sum is that small. */
  const double smaller = guessed ? 256 * fmax(sum, 1) : 1;
  for (size_t j = e->first; j < e->end; j++) {
    if (!e->sees[j] || !(s.x[j] < far * smaller)) continue;
    s.off[j] += 2 * lost * smaller, off += 2 * lost * smaller;
  }
  *sum_off = off_sum(sum, e->end - e->first, sum, off);
  return sum;
}

/* The scores that a row sees in a head. Sums start at the maximum or less, whose size is a part of each error. */
static void scores_inexact(const rounding *r, const operands *o, spot at, size_t row, inexact s) {
  const extents *e = &r->e;
  const size_t head = row % e->h, steps = o->depth + 16, of_head = o->k_heads == 1 ? 0 : head / (e->h / e->h_kv);
  const inexact q = from(o->q, row * o->depth);
  double largest = 0;
  for (size_t j = e->first; j < e->end; j++) {
    const inexact k = from(o->k, (j * o->k_heads + of_head) * o->depth);
    double sum = 0, size = 0, off = 0;
    for (size_t i = 0; i < o->depth; i++) {
      sum += q.x[i] * k.x[i], size += fabs(q.x[i] * k.x[i]);
      off += times(fabs(q.x[i]), k.off[i]) + times(fabs(k.x[i]), q.off[i]) + times(q.off[i], k.off[i]);
    }
    at.key = j, at.mask = r->masks[j];
    s.x[j] = ref_changed(&at, sum / LOG2E);
    size = ref_changed_size(&at, size / LOG2E);
    s.off[j] = off_sum(s.x[j], steps, size, ref_changed_off(&at, off / LOG2E));
    if (e->sees[j] && isfinite(size) && s.x[j] > -1e6) largest = fmax(largest, size);
  }
  if (isfinite(at.sink)) largest = fmax(largest, fabs(at.sink));
  for (size_t j = e->first; j < e->end; j++) s.off[j] += (double)steps * FLOAT_UNIT * largest;
}

/* By how much a quotient with a sum may be off, which is a mean or a part of one: at most so much. */
static double shared(double off, double sum, double sum_off, double most) {
  if (off == INFINITY || sum_off == INFINITY) return INFINITY;
  return off == 0 ? 0 : sum_off < sum ? fmin(off / (sum - sum_off), most) : most;
}

/* By how much a context may be off where weights times scales of values are integers of 16 bits. */
static double off_of_shorts(const rounding *r, const operands *o, size_t of_head, inexact p) {
  const extents *e = &r->e;
  double most = 0;
  for (size_t j = e->first; j < e->end && has_shorts(r->shape); j++) {
    double size = 0;
    const double *v = o->v.x + (j * o->v_heads + of_head) * o->breadth;
    for (size_t c = 0; c < o->breadth; c++) size = fmax(size, fabs(v[c]));
    if (e->sees[j] && isfinite(size)) most = fmax(most, (p.x[j] + p.off[j]) * size);
  }
  return most * (.5 / SHORT_STEPS + 4 * FLOAT_UNIT) * (double)(e->end - e->first);
}

/* The context of a row and head. */
static void context_inexact(const rounding *r, const operands *o, size_t head, inexact p, double sum, double sum_off,
                            inexact to) {
  const extents *e = &r->e;
  const size_t of_head = o->v_heads == 1 ? 0 : head / (e->h / e->h_kv), keys = e->end - e->first;
  int none = 1; /* whatever a sink is */
  for (size_t j = e->first; j < e->end; j++) none &= !e->sees[j];
  const double off_shorts = off_of_shorts(r, o, of_head, p);
  for (size_t c = 0; c < o->breadth; c++) {
    double x = 0, size = 0, off = off_shorts, most = 0;
    for (size_t j = e->first; j < e->end; j++) {
      const size_t at = (j * o->v_heads + of_head) * o->breadth + c;
      const double v = fabs(o->v.x[at]), v_off = o->v.off[at];
      if (!e->sees[j]) continue;
      x += p.x[j] * o->v.x[at], size += p.x[j] * v;
      off += times(v, p.off[j]) + times(p.x[j], v_off) + times(p.off[j], v_off);
      if (isfinite(v + v_off)) most = fmax(most, v + v_off);
    }
    to.x[c] = none || sum == 0 ? 0 : x / sum;
    off = off_sum(x, keys, size, off) + times(fabs(to.x[c]), sum_off);
    to.off[c] = none || sum == 0 ? 0 : shared(off, sum, sum_off, 4 * most);
  }
}

/* The matrices that contexts are multiplied by, and the biases of y. */
static void make_output(rounding *r) {
  const extents *e = &r->e;
  const size_t hv = e->h_kv * e->dv, share = e->h / e->h_kv;
  const int merges = (r->shape->folds & MHAGEN_FOLD_MERGE_V) != 0;
  r->merged = room_for(r, merges ? e->h * e->v_width * e->y_width : 0);
  double *bias = room_for(r, e->y_width);
  if (r->short_of_memory) return;
  for (size_t head = 0; head < e->h; head++) {
    const matrix wo = {r->exact[3] + head * e->dv * e->y_width, e->y_width, 1};
    const size_t first = head / share * e->dv;
    double *of_head = r->merged + head * e->v_width * e->y_width;
    if (merges) product_of_weights(r->exact[2] + first, e->v_width, hv, e->dv, wo, e->y_width, of_head);
    if (!(r->shape->folds & MHAGEN_FOLD_BV)) continue;
    product_of_weights(r->b[2] + first, 1, hv, e->dv, wo, e->y_width, bias);
    for (size_t i = 0; i < e->y_width; i++) r->b[3][i] += bias[i];
  }
  const size_t count = merges ? e->h * e->v_width * e->y_width : 0;
  for (size_t i = 0; i < count; i++) r->merged[i] = nearest_packed(r->own, r->merged[i]);
}

/* A row of y, or its heads, from the contexts. */
static void output_inexact(const rounding *r, const operands *o, inexact context, inexact applied, inexact y) {
  const extents *e = &r->e;
  const unsigned folds = r->shape->folds;
  const size_t hv = e->h_kv * e->dv;
  if (folds & (MHAGEN_FOLD_ABSORB_V | MHAGEN_FOLD_MERGE_V)) round_all(r->own, 1, context, e->h * o->breadth);
  if (folds & MHAGEN_FOLD_MERGE_V) {
    multiply(context, e->h * o->breadth, (matrix){r->merged, e->y_width, 1}, r->b[3], y, e->y_width, r->coarse);
    return;
  }
  for (size_t head = 0; head < e->h && folds & MHAGEN_FOLD_ABSORB_V; head++) {
    const size_t first = head / (e->h / e->h_kv) * e->dv;
    multiply(from(context, head * o->breadth), o->breadth, (matrix){r->w[2] + first, hv, 1},
             folds & MHAGEN_FOLD_BV ? NULL : r->b[2] + first, from(applied, head * e->dv), e->dv, r->coarse);
  }
  if (folds & MHAGEN_FOLD_ABSORB_V) context = applied;
  if (ref_projects(e, MHAGEN_PROJECT_O)) {
    const size_t columns = e->h * e->dv;
    for (size_t i = 0; r->quantized && i < columns; i += at_most(r->quantized, columns - i)) {
      quantize_inexact(from(context, i), at_most(r->quantized, columns - i));
    }
    if (!r->quantized) round_all(r->own, 1, context, e->h * e->dv);
    multiply(context, e->h * e->dv, (matrix){r->w[3], e->y_width, 1}, r->b[3], y, e->y_width, r->coarse);
    return;
  }
  memcpy(y.x, context.x, e->h * e->dv * sizeof *y.x), memcpy(y.off, context.off, e->h * e->dv * sizeof *y.off);
}

static void write_row(const rounding *r, const mhagen_results *to, size_t entry, size_t row, inexact y) {
  const extents *e = &r->e;
  round_all(format_of(r->shape->io_dtype), 1, y, e->y_width);
  for (size_t i = 0; i < e->y_width; i++) {
    size_t at = row * e->y_width + i;
    if (!ref_projects(e, MHAGEN_PROJECT_O)) at = ref_lies(e, e->n, e->h, row, i / e->dv) * e->dv + i % e->dv;
    to->y[entry * e->n * e->y_width + at] = y.x[i];
    to->y_off[entry * e->n * e->y_width + at] = y.off[i];
  }
}

static void entry_rounded(rounding *r, const mhagen_args *args, const mhagen_results *to, size_t entry) {
  const mhagen_kernel *shape = r->shape;
  extents *e = &r->e;
  operands o;
  ref_start_entry(shape, args, entry, e);
  make_operands(r, entry, &o);
  const inexact p = inexact_room(r, e->m), y = inexact_room(r, e->y_width), applied = inexact_room(r, e->h * e->dv),
                context = inexact_room(r, e->h * o.breadth);
  for (size_t i = 0; i < e->n && !r->short_of_memory; i++) {
    const int asked = i < ref_rows_asked(shape, args, entry);
    mhagen_keys_seen(shape, args, entry, i, &e->first, &e->end);
    for (size_t head = 0; head < e->h; head++) {
      double sum_off, *probs = to->probs ? to->probs + ((entry * e->h + head) * e->n + i) * e->m : NULL,
                      *probs_off = to->probs ? to->probs_off + (probs - to->probs) : NULL;
      const spot at = ref_spot(shape, &r->given, args, entry, head, i);
      for (size_t j = e->first; j < e->end; j++) {
        r->masks[j] = ref_mask(&at, j);
        e->sees[j] = r->masks[j] == -INFINITY ? 0 : 1;
      }
      scores_inexact(r, &o, at, i * e->h + head, p);
      /* Distances of alibi are to the last key, which is the same for all keys: but not for a sink, nor where
         scores are shown whole. */
      const int whole = (shape->options & MHAGEN_SINK) || shape->scores == MHAGEN_SCORES_MASKED;
      const double to_last = (double)((ptrdiff_t)e->end - 1 - at.place),
                   apart = whole ? 0 : at.slope * to_last;
      const double sum = weights_inexact(r, p, isfinite(apart) ? apart : 0, at.sink, &sum_off);
      context_inexact(r, &o, head, p, sum, sum_off, from(context, head * o.breadth));
      for (size_t j = 0; j < e->m && probs; j++) {
        const int sees = j >= e->first && j < e->end && e->sees[j] && sum != 0;
        probs[j] = !asked ? NAN : sees ? p.x[j] / sum : 0;
        const double off = sees ? p.off[j] + times(probs[j], sum_off) + 8 * FLOAT_UNIT * p.x[j] : 0;
        probs_off[j] = sees ? shared(off, sum, sum_off, 2) + FLT_MIN : 0;
      }
    }
    output_inexact(r, &o, context, applied, y);
    for (size_t j = 0; j < e->y_width && !asked; j++) y.x[j] = NAN;
    write_row(r, to, entry, i, y);
  }
}

int mhagen_reference_rounded(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                             const mhagen_results *results) {
  rounding r = {.shape = shape, .e = ref_extents(shape), .own = format_of(shape->dtype),
                .weights = format_of(ref_weight_type(shape)), .attend = format_of(attend_type(shape)),
                .quantized = ref_has_integers(shape) ? ref_rows_of_scale(shape, ref_quants(shape), SIZE_MAX) : 0,
                .given = *weights,
                .coarse = shape->sum_dtype != NULL,
                .x = ref_numbers(shape, weights, args, NULL)};
  extents *e = &r.e;
  const size_t hq = e->h * e->dk, hk = e->h_kv * e->dk, hv = e->h_kv * e->dv;
  take_weights(&r, 0, weights->wq, weights->bq, e->d, hq);
  take_weights(&r, 1, weights->wk, weights->bk, e->k_width, hk);
  take_weights(&r, 2, weights->wv, weights->bv, e->v_width, hv);
  take_weights(&r, 3, weights->wo, weights->bo, e->h * e->dv, e->y_width);
  r.masks = room_for(&r, e->m);
  e->sees = malloc(e->m);
  if (!e->sees) r.short_of_memory = 1;
  if (!r.short_of_memory) make_output(&r);
  const int common = r.used;
  for (size_t b = 0; b < (size_t)shape->batch && !r.short_of_memory; b++) {
    entry_rounded(&r, args, results, b);
    while (r.used > common) free(r.rooms[--r.used]);
  }
  while (r.used > 0) free(r.rooms[--r.used]);
  free(e->sees);
  return r.short_of_memory ? -1 : 0;
}
