/* rounded.c of mhagen: an emulator of the roundings of a kernel, as rounded.h says. A number is in double, beside it
 * by how much that of a kernel may be off. */
#include "rounded.h"
#include "formula.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_WEIGHT 0x1p-68 /* a weight of attention below it may be 0: 2^-100 of a sum of 2^-32 */
#define LEAST_ACTIVATED 0x1p-90 /* as small may be 0 what an activation function makes of a negative number */
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
  int any = format_of(attend) || format_of(shape->io_dtype) || format_of(cache_type(shape)) ||
            is_int8(cache_type(shape));
  if (!is_known(attend)) return 0;
  for (int i = 0; i < REF_PRODUCTS; i++) {
    const char *quants = ref_quants(shape, i), *type = ref_dtype(shape, i), *weights = ref_weight_type(shape, i);
    if (quants && strcmp(quants, "int8") && strcmp(quants, "int4")) return 0;
    if (!is_known(type) && !ref_has_integers(shape, i)) return 0;
    if (!is_known(weights) && !quants) return 0;
    any |= quants || format_of(weights) || format_of(type);
  }
  return any;
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

/* By how much what x is rounded to may be off, if x is. */
static double off_rounded(const format *f, double x, double off) {
  if (!f || !isfinite(x) || off == 0) return off;
  return fmax(distance(nearest(f, x - off), nearest(f, x)), distance(nearest(f, x + off), nearest(f, x)));
}

static void round_all(const format *f, double scale, values a, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const double x = a.x[i] * scale;
    a.off[i] = off_rounded(f, x, a.off[i] * scale + (scale == 1 ? 0 : 2 * FLOAT_UNIT * fabs(x)));
    a.x[i] = nearest(f, x);
  }
}

/* One head of a row, as integers times a scale: each may be the one beside it, and the scale is off as the largest
 * magnitude is. */
static void quantize_kept(values a, size_t count) {
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
static void round_kept(const mhagen_kernel *shape, values a, size_t heads, size_t width) {
  const char *type = cache_type(shape);
  const format *f = format_of(type);
  round_all(f, 1, a, heads * width);
  for (size_t i = 0; i < heads && is_int8(type); i++) quantize_kept(ref_from(a, i * width), width);
}

#define SHORT_STEPS 32767

/* Whether a kernel may multiply rows of a cache in int8 by queries and weights of 16 bits: few rows, of heads that
 * share keys, in float32. */
static int has_shorts(const mhagen_kernel *shape) {
  return is_int8(cache_type(shape)) && !format_of(attend_type(shape)) && shape->seq <= 4 &&
         shape->h >= 4 * shape->h_kv;
}

/* A head of a query as such integers times a scale. */
static void round_to_shorts(values a, size_t count) {
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
static void quantize(values a, size_t count) {
  float most = (float)LEAST_LARGEST;
  int finite = 1;
  for (size_t i = 0; i < count; i++) most = fmaxf(most, fabsf((float)a.x[i])), finite &= isfinite(a.x[i]) != 0;
  const float inverse = STEPS / most, scale = most / STEPS;
  for (size_t i = 0; i < count; i++) {
    const float scaled = (float)a.x[i] * inverse;
    a.x[i] = finite ? (double)rintf(scaled) * (double)scale : NAN;
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

static int is_exact(values a, size_t count) {
  int exact = 1;
  for (size_t i = 0; i < count; i++) exact &= a.off[i] == 0;
  return exact;
}

/* The same of a row that may be off, as may its largest number then. */
static void quantize_inexact(values a, size_t count) {
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

/* y[columns] += a row a of the matrix w; coarse: sums are of half precision, in memory for as many. What is not finite
 * then is made again in float32. */
static void multiply(values a, size_t steps, matrix w, values y, size_t columns, double *coarse) {
  const int exact = is_exact(a, steps);
  for (size_t o = 0; o < columns && coarse; o++) coarse[o] = coarse_sum(a.x, steps, w, o) + y.x[o];
  for (size_t i = 0; i < steps; i++) {
    const double *of = w.at + i * w.row, x = a.x[i], off = a.off[i];
    for (size_t o = 0; o < columns; o++) {
      const double term = x * of[o * w.column];
      y.x[o] += term, y.size[o] += fabs(term);
    }
    for (size_t o = 0; o < columns && off != 0; o++) y.off[o] += times(fabs(of[o * w.column]), off);
  }
  for (size_t o = 0; o < columns; o++) {
    if (coarse && isfinite(coarse[o])) y.x[o] = coarse[o];
    /* Of operands that may be others each rounding may be another one; and so may be whether it is finite. */
    if (coarse && !exact) y.off[o] += 2 * (BLOCK_NUMBERS / 2 + SPAN_NUMBERS / BLOCK_NUMBERS) * 0x1p-11 * y.size[o];
    if (coarse && !exact) y.off[o] += 2 * (double)steps * 0x1p-24;
    y.off[o] = off_sum(y.x[o], steps, y.size[o], y.off[o]);
  }
}

/* A norm of n columns. */
static void norm_inexact(const formula *f, int which, const norming *by, values a) {
  const size_t n = by->n;
  (void)f, (void)which;
  const double count = by->kind == MHAGEN_NORM_L2 ? 1 : (double)n, steps = (double)n + 16;
  double mean = 0, mean_size = 0, off = 0, squares = 0, off_squares = 0;
  for (size_t i = 0; i < n && by->kind == MHAGEN_NORM_LAYER; i++) {
    mean += a.x[i] / (double)n, mean_size += fabs(a.x[i]) / (double)n, off += a.off[i] / (double)n;
  }
  if (isfinite(mean)) off += steps * FLOAT_UNIT * mean_size;
  for (size_t i = 0; i < n; i++) {
    a.x[i] -= mean, a.off[i] += off;
    squares += a.x[i] * a.x[i], off_squares += a.off[i] * a.off[i];
  }
  const double length = squares > FLT_MAX * .999 ? INFINITY : ref_length(by, squares);
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
  for (size_t i = 0; i < n; i++) {
    const double gain = by->gains ? (double)by->gains[i] : 1, bias = by->biases ? (double)by->biases[i] : 0;
    a.off[i] = times(fabs(gain), a.off[i]);
    a.x[i] = a.x[i] * gain + bias;
    if (bias != 0 && isfinite(a.x[i])) a.off[i] += 2 * FLOAT_UNIT * fabs(a.x[i]);
    a.size[i] = fabs(a.x[i]); /* of a sum that begins with it */
  }
}

/* A result that is infinite where it is beyond float32, and may be so where its error reaches there. */
static void end_float(values a, size_t i) {
  const double size = fabs(a.x[i]), most = (double)FLT_MAX;
  if (size - a.off[i] <= most && size + a.off[i] > most) a.off[i] = INFINITY;
  a.x[i] = ref_float(a.x[i]);
}

/* The function's own error is a few units of the result, which may be zero where it is tiny. Beside operands of a
 * shorter type both forms of gelu may have one of 2^-14.8 of x, but not where they are x or 0. */
static double off_activated(const mhagen_kernel *shape, int which, double x, double y) {
  const char *type = ref_dtype(shape, which);
  const int act = ref_act_of(shape, which);
  const int is_short = (act == MHAGEN_ACT_GELU || act == MHAGEN_ACT_GELU_TANH) && type && fabs(x) < 16;
  return 16 * FLOAT_UNIT * fabs(y) + LEAST_ACTIVATED + (is_short ? 0x1p-14 * fabs(x) : 0);
}

static void activate_inexact(const formula *f, int which, size_t count, values a, values gate) {
  const int act = ref_act_of(f->shape, which);
  for (size_t i = 0; i < count; i++) {
    const double x = a.x[i], y = ref_act(act, x);
    a.off[i] = times(ref_act_slope(act, x, a.off[i]), a.off[i]), a.x[i] = y;
    if (isfinite(x)) a.off[i] += off_activated(f->shape, which, x, y);
    end_float(a, i);
    if (!gate.x) continue;
    end_float(gate, i);
    a.off[i] = times(fabs(gate.x[i]), a.off[i]) + times(fabs(a.x[i]), gate.off[i]) + times(a.off[i], gate.off[i]);
    a.x[i] *= gate.x[i];
    if (isfinite(a.x[i])) a.off[i] += 2 * FLOAT_UNIT * fabs(a.x[i]);
    end_float(a, i);
  }
}

/* Each of a pair takes its part of the other's error, and of float32's roundings of both. */
static void turn_inexact(const formula *f, int which, ptrdiff_t place, values a) {
  const size_t width = f->of[which].heads * f->of[which].width;
  for (size_t i = 0; i < width; i++) {
    if (isfinite(a.x[i])) a.off[i] += 8 * FLOAT_UNIT * fabs(a.x[i]);
  }
  ref_turn(f, which, place, (values){a.x, NULL, a.off});
  for (size_t i = 0; i < width; i++) {
    if (isnan(a.off[i])) a.off[i] = INFINITY; /* times zero */
  }
}

/* What is there beside the formula. */
typedef struct rounding {
  const format *attend, *own[REF_PRODUCTS], *weights[REF_PRODUCTS];
  size_t quantized[REF_PRODUCTS]; /* so many numbers of a row that is multiplied share a scale, or 0 */
  double *coarse;   /* sums of half precision, or null */
  double *w[REF_PRODUCTS], *exact[REF_PRODUCTS]; /* matrices as [in][out], rounded, and not */
  values queries, context; /* queries times Wk^T of an entry; a head's context before Wv; or null */
  size_t heads_k, heads_v; /* of what is projected */
  double sum, sum_off;     /* of the weights of a query and head */
} rounding;

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

/* As a kernel widens an integer times its scale: float32 first. */
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

/* Gains of a product are packed into its weights, and into its bias. */
static void take_gains(formula *f, int i, const float *gains) {
  product *p = &f->of[i];
  for (size_t c = 0; c < p->heads * p->width && p->bias.x; c++) p->bias.x[c] *= (double)gains[c];
  if (p->bias.x) ref_exact(p->bias, p->heads * p->width);
  p->gains = NULL;
}

static void take_weights(formula *f, int i) {
  rounding *r = f->own;
  const size_t in = f->of[i].inner, out = f->of[i].heads * f->of[i].width;
  const unsigned widens = ref_is_apart(f->shape, i) ? MHAGEN_FOLD_FFN_WIDENED : MHAGEN_FOLD_WIDENED;
  const int flipped = f->weights->layout == MHAGEN_OUT_IN, widened = (f->shape->folds & widens) != 0;
  const char *quants = ref_quants(f->shape, i);
  const float *w = ref_matrix(f, i), *gains = f->shape->options & MHAGEN_BRANCH_NORM ? NULL : f->of[i].gains;
  r->w[i] = ref_room(f, in * out), r->exact[i] = ref_room(f, in * out);
  for (size_t j = 0; j < in * out && !f->short_of_memory; j++) {
    r->exact[i][j] = (double)(flipped ? w[j % out * in + j / out] : w[j]) * (gains ? (double)gains[j % out] : 1);
    r->w[i][j] = quants ? r->exact[i][j] : nearest(r->weights[i], r->exact[i][j]);
  }
  if (gains) take_gains(f, i, gains);
  if (!quants || f->short_of_memory) return;
  quantize_weights(quants, ref_rows_of_scale(f->shape, quants, in), in, out, r->w[i]);
  for (size_t j = 0; j < in * out && widened; j++) r->w[i][j] = nearest_packed(r->own[i], r->w[i][j]);
}

/* to[rows][..] = a times b, of matrices of weights. */
static void product_of_weights(matrix a, size_t rows, size_t inner, matrix b, size_t columns, double *to, size_t ld) {
  for (size_t r = 0; r < rows; r++) {
    for (size_t o = 0; o < columns; o++) {
      double sum = 0;
      for (size_t i = 0; i < inner; i++) sum += a.at[r * a.row + i] * b.at[i * b.row + o * b.column];
      to[r * ld + o] = sum;
    }
  }
}

/* ---- products of weights ---- */

/* Keys or values are an input itself, one head for all. */
static void take_inputs(product *p) {
  p->multiplies = 0, p->heads = 1, p->width = p->inner;
}

/* Queries times Wq Wk^T of each head. */
static void merge_keys(formula *f) {
  rounding *r = f->own;
  product *q = &f->of[REF_Q], *k = &f->of[REF_K];
  const size_t h = f->e.h, dk = q->width, hq = h * dk, hk = k->heads * dk, columns = h * k->inner;
  double *merged = ref_room(f, q->inner * columns);
  const values bias = ref_values(f, columns);
  for (size_t head = 0; head < h && !f->short_of_memory; head++) {
    const matrix wq = {r->exact[REF_Q] + head * dk, hq, 1}, bq = {q->bias.x + head * dk, hq, 1},
                 wk = {r->exact[REF_K] + head / (h / k->heads) * dk, 1, hk};
    product_of_weights(wq, q->inner, dk, wk, k->inner, merged + head * k->inner, columns);
    product_of_weights(bq, 1, dk, wk, k->inner, bias.x + head * k->inner, columns);
  }
  for (size_t i = 0; i < q->inner * columns && !f->short_of_memory; i++) merged[i] = nearest(r->own[REF_Q], merged[i]);
  if (!f->short_of_memory) ref_exact(bias, columns);
  r->w[REF_Q] = merged, q->bias = bias, q->width = k->inner;
  take_inputs(k);
}

/* bv Wo in the bias of Y. */
static void fold_bias(formula *f) {
  const rounding *r = f->own;
  const product *v = &f->of[REF_V], *y = &f->of[REF_Y];
  const size_t h = f->e.h, dv = v->width;
  double *const bias = ref_room(f, y->width);
  for (size_t head = 0; head < h && !f->short_of_memory; head++) {
    const matrix bv = {v->bias.x + head / (h / v->heads) * dv, 0, 1},
                 wo = {r->exact[REF_Y] + head * dv * y->width, y->width, 1};
    product_of_weights(bv, 1, dv, wo, y->width, bias, y->width);
    for (size_t i = 0; i < y->width; i++) y->bias.x[i] += bias[i];
  }
  if (!f->short_of_memory) ref_exact(y->bias, y->width);
}

/* Contexts times Wv Wo of each head. */
static void merge_values(formula *f) {
  rounding *r = f->own;
  product *v = &f->of[REF_V], *y = &f->of[REF_Y];
  const size_t h = f->e.h, dv = v->width, hv = v->heads * dv, columns = y->width, count = h * v->inner * columns;
  double *merged = ref_room(f, count);
  for (size_t head = 0; head < h && !f->short_of_memory; head++) {
    const matrix wv = {r->exact[REF_V] + head / (h / v->heads) * dv, hv, 1},
                 wo = {r->exact[REF_Y] + head * dv * columns, columns, 1};
    product_of_weights(wv, v->inner, dv, wo, columns, merged + head * v->inner * columns, columns);
  }
  for (size_t i = 0; i < count && !f->short_of_memory; i++) merged[i] = nearest(r->own[REF_Y], merged[i]);
  r->w[REF_Y] = merged, y->inner = h * v->inner;
  take_inputs(v);
}

/* What a kernel multiplies otherwise than the formula says. */
static void fold(formula *f) {
  rounding *r = f->own;
  const unsigned folds = f->shape->folds;
  product *k = &f->of[REF_K], *v = &f->of[REF_V];
  const size_t h = f->e.h;
  for (int i = 0; i < REF_PRODUCTS; i++) {
    if (f->of[i].multiplies && !f->of[i].bias.x) f->of[i].bias = ref_values(f, f->of[i].heads * f->of[i].width);
  }
  if (f->short_of_memory) return;
  r->heads_k = k->heads, r->heads_v = v->heads;
  if (folds & MHAGEN_FOLD_BK) k->bias.x = NULL;
  if (folds & MHAGEN_FOLD_BV) fold_bias(f), v->bias.x = NULL;
  if (folds & MHAGEN_FOLD_MERGE_K) merge_keys(f);
  if (folds & MHAGEN_FOLD_MERGE_V) merge_values(f);
  if (folds & MHAGEN_FOLD_ABSORB_K) r->queries = ref_values(f, f->e.n * h * k->inner), take_inputs(k);
  if (folds & MHAGEN_FOLD_ABSORB_V) r->context = ref_values(f, v->inner), take_inputs(v);
}

/* ---- a kind of numbers with errors ---- */

/* A row that is multiplied: of an input, of what a norm made of it, or of contexts. */
static void round_inexact(const formula *f, int i, values x) {
  const rounding *r = f->own;
  const size_t count = f->of[i].inner, shared = r->quantized[i];
  for (size_t c = 0; shared && c < count; c += at_most(shared, count - c)) {
    const values part = ref_from(x, c);
    const size_t numbers = at_most(shared, count - c);
    if (is_exact(part, numbers)) quantize(part, numbers);
    else quantize_inexact(part, numbers);
  }
  if (!shared) round_all(r->own[i], 1, x, count);
}

static void multiply_inexact(const formula *f, int i, size_t rows, values x, values y) {
  const rounding *r = f->own;
  const size_t in = f->of[i].inner, out = f->of[i].heads * f->of[i].width;
  double *const coarse = ref_is_apart(f->shape, i) ? NULL : r->coarse;
  for (size_t row = 0; row < rows; row++)
    multiply(ref_from(x, row * in), in, (matrix){r->w[i], out, 1}, ref_from(y, row * out), out, coarse);
}

/* Wk is applied to the queries. */
static void absorb_keys(formula *f) {
  const rounding *r = f->own;
  const product *q = &f->of[REF_Q], *k = &f->of[REF_K];
  const size_t h = f->e.h, rows = q->rows * h;
  round_all(r->own[REF_K], 1, f->q, rows * q->width);
  ref_fill(r->queries, 0, rows * k->inner);
  for (size_t i = 0; i < rows; i++) {
    const matrix wk = {r->w[REF_K] + i % h / (h / r->heads_k) * q->width, 1, r->heads_k * q->width};
    multiply(ref_from(f->q, i * q->width), q->width, wk, ref_from(r->queries, i * k->inner), k->inner, r->coarse);
  }
  f->q = r->queries;
}

/* Rows as attention multiplies them, or as a kernel returns them. */
static void keep_inexact(formula *f, int i) {
  const rounding *r = f->own;
  const product *p = &f->of[i];
  const size_t heads = p->rows * p->heads, depth = f->of[REF_K].width;
  if (i >= REF_Y) {
    round_all(format_of(f->shape->io_dtype), 1, p->to, heads * p->width);
  } else if (i == REF_Q) {
    if (r->queries.x) absorb_keys(f);
    round_all(r->attend, f->shape->scale * LOG2E, f->q, heads * depth);
    for (size_t head = 0; head < heads && has_shorts(f->shape); head++)
      round_to_shorts(ref_from(f->q, head * depth), depth);
  } else {
    round_kept(f->shape, p->to, heads, p->width);
    round_all(r->attend, 1, p->to, heads * p->width);
  }
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

/* The scores that a row sees in a head. Sums start at the maximum or less, whose size is a part of each error. */
static void scores_inexact(const formula *f, const spot *of) {
  const extents *e = &f->e;
  const size_t heads = f->of[REF_K].heads, depth = f->of[REF_K].width, steps = depth + 16,
               of_key = of->head / (e->h / heads);
  const values q = ref_from(f->q, (of->row * e->h + of->head) * depth), s = f->p;
  spot at = *of;
  double largest = 0;
  for (size_t j = e->first; j < e->end; j++) {
    const values k = ref_from(f->k, (j * heads + of_key) * depth);
    double sum = 0, size = 0, off = 0;
    for (size_t i = 0; i < depth; i++) {
      sum += q.x[i] * k.x[i], size += fabs(q.x[i] * k.x[i]);
      off += times(fabs(q.x[i]), k.off[i]) + times(fabs(k.x[i]), q.off[i]) + times(q.off[i], k.off[i]);
    }
    at.key = j, at.mask = f->mask[j];
    s.x[j] = ref_changed(&at, sum / LOG2E);
    size = ref_changed_size(&at, size / LOG2E);
    s.off[j] = off_sum(s.x[j], steps, size, ref_changed_off(&at, off / LOG2E));
    if (e->sees[j] && isfinite(size) && s.x[j] > -1e6) largest = fmax(largest, size);
  }
  if (isfinite(at.sink)) largest = fmax(largest, fabs(at.sink));
  for (size_t j = e->first; j < e->end; j++) s.off[j] += (double)steps * FLOAT_UNIT * largest;
}

/* The weights of a row and head, times a power of two, of its scores less `apart`, and their sum. What is far below the
 * largest has fewer digits where the type has no small numbers, still fewer where the largest is guessed. */
static void weights_inexact(const formula *f, double apart, double sink) {
  rounding *r = f->own;
  const extents *e = &f->e;
  const values s = f->p;
  const int guessed = (f->shape->options & (MHAGEN_ALIBI | MHAGEN_MASK_BOOL | MHAGEN_MASK_ADD)) != 0;
  const int least = r->attend ? r->attend->least : -126;
  const double lost = ldexp(1, least - (r->attend ? r->attend->digits : 24)), far = ldexp(1, least + 1);
  /* Keys that are inputs: where one is infinite, so would be numbers of a projected key, of either sign. */
  const int tested = f->shape->folds & (MHAGEN_FOLD_ABSORB_K | MHAGEN_FOLD_MERGE_K) &&
                     f->shape->options & MHAGEN_CROSS;
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
    const int powers = (f->shape->folds & MHAGEN_FOLD_POWERS) != 0 && isfinite(p);
    const double off_log2 = s.off[j] * LOG2E + 0x1p-15; /* of numbers in fixed point as float32 */
    s.x[j] = powers ? power_of_two(log2_p) : nearest(r->attend, p);
    const double least_p = p / (1 + part), most_p = p + times(p, part);
    if (part == INFINITY) {
      s.off[j] = INFINITY;
    } else if (powers) {
      s.off[j] = fmax(s.x[j] - power_of_two(log2_p - off_log2), power_of_two(log2_p + off_log2) - s.x[j]);
      if (p < LEAST_WEIGHT) s.off[j] += fmax(p, s.x[j]);
    } else if (isfinite(p)) {
      const double down = distance(nearest(r->attend, least_p), s.x[j]),
                   up = distance(nearest(r->attend, most_p), s.x[j]);
      s.off[j] = r->attend ? fmax(down, up) : times(p, part);
      if (p < LEAST_WEIGHT) s.off[j] += fmax(p, s.x[j]); /* the largest score may be far below a kernel's maximum */
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
  r->sum = sum, r->sum_off = off_sum(sum, e->end - e->first, sum, off);
}

static void softmax_inexact(formula *f, const spot *at) {
  /* Distances of alibi are to the last key, which is the same for all keys: but not for a sink, nor where scores are
     shown whole. */
  const int whole = (f->shape->options & MHAGEN_SINK) || f->shape->scores == MHAGEN_SCORES_MASKED;
  const double to_last = (double)((ptrdiff_t)f->e.end - 1 - at->place), apart = whole ? 0 : at->slope * to_last;
  weights_inexact(f, isfinite(apart) ? apart : 0, at->sink);
}

/* By how much a quotient with a sum may be off, which is a mean or a part of one: at most so much. */
static double shared(double off, double sum, double sum_off, double most) {
  if (off == INFINITY || sum_off == INFINITY) return INFINITY;
  return off == 0 ? 0 : sum_off < sum ? fmin(off / (sum - sum_off), most) : most;
}

/* By how much a context may be off where weights times scales of values are integers of 16 bits. */
static double off_of_shorts(const formula *f, size_t of_key) {
  const extents *e = &f->e;
  const size_t heads = f->of[REF_V].heads, width = f->of[REF_V].width;
  double most = 0;
  for (size_t j = e->first; j < e->end && has_shorts(f->shape); j++) {
    double size = 0;
    const double *v = f->v.x + (j * heads + of_key) * width;
    for (size_t c = 0; c < width; c++) size = fmax(size, fabs(v[c]));
    if (e->sees[j] && isfinite(size)) most = fmax(most, (f->p.x[j] + f->p.off[j]) * size);
  }
  return most * (.5 / SHORT_STEPS + 4 * FLOAT_UNIT) * (double)(e->end - e->first);
}

/* The mean of values by the weights of a query and head. */
static void mean_of_values(const formula *f, size_t head, values to) {
  const rounding *r = f->own;
  const extents *e = &f->e;
  const values p = f->p;
  const double sum = r->sum, sum_off = r->sum_off;
  const size_t heads = f->of[REF_V].heads, width = f->of[REF_V].width, of_key = head / (e->h / heads),
               keys = e->end - e->first;
  int none = 1; /* whatever a sink is */
  for (size_t j = e->first; j < e->end; j++) none &= !e->sees[j];
  const double off_shorts = off_of_shorts(f, of_key);
  for (size_t c = 0; c < width; c++) {
    double x = 0, size = 0, off = off_shorts, most = 0;
    for (size_t j = e->first; j < e->end; j++) {
      const size_t at = (j * heads + of_key) * width + c;
      const double v = fabs(f->v.x[at]), v_off = f->v.off[at];
      if (!e->sees[j]) continue;
      x += p.x[j] * f->v.x[at], size += p.x[j] * v;
      off += times(v, p.off[j]) + times(p.x[j], v_off) + times(p.off[j], v_off);
      if (isfinite(v + v_off)) most = fmax(most, v + v_off);
    }
    to.x[c] = none || sum == 0 ? 0 : x / sum;
    off = off_sum(x, keys, size, off) + times(fabs(to.x[c]), sum_off);
    to.off[c] = none || sum == 0 ? 0 : shared(off, sum, sum_off, 4 * most);
  }
}

/* Weights over their sum. */
static void share_weights(const formula *f) {
  const rounding *r = f->own;
  for (size_t j = f->e.first; j < f->e.end; j++) {
    const double p = f->p.x[j];
    const int sees = f->e.sees[j] && r->sum != 0;
    f->p.x[j] = sees ? p / r->sum : 0;
    const double off = sees ? f->p.off[j] + times(f->p.x[j], r->sum_off) + 8 * FLOAT_UNIT * p : 0;
    f->p.off[j] = sees ? shared(off, r->sum, r->sum_off, 2) + FLT_MIN : 0;
  }
}

static void context_inexact(const formula *f, const spot *at, values context) {
  const rounding *r = f->own;
  const product *v = &f->of[REF_V];
  mean_of_values(f, at->head, r->context.x ? r->context : context);
  if (r->context.x) { /* Wv is applied to it */
    const size_t dv = (size_t)f->shape->dv, first = at->head / (f->e.h / r->heads_v) * dv;
    round_all(r->own[REF_V], 1, r->context, v->inner);
    ref_fill(context, 0, dv);
    if (v->bias.x) ref_add(context, ref_from(v->bias, first), dv);
    multiply(r->context, v->inner, (matrix){r->w[REF_V] + first, r->heads_v * dv, 1}, context, dv, r->coarse);
  }
  if (f->probs.x) share_weights(f);
}

int mhagen_reference_rounded(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                             const mhagen_results *results) {
  static const number kind = {.take = ref_take, .round = round_inexact, .multiply = multiply_inexact,
                              .norm = norm_inexact, .activate = activate_inexact, .turn = turn_inexact,
                              .keep = keep_inexact, .score = scores_inexact,
                              .softmax = softmax_inexact, .context = context_inexact};
  rounding r = {.attend = format_of(attend_type(shape))};
  for (int i = 0; i < REF_PRODUCTS; i++) {
    r.own[i] = format_of(ref_dtype(shape, i)), r.weights[i] = format_of(ref_weight_type(shape, i));
    const char *quants = ref_quants(shape, i == REF_V ? REF_K : i); /* rows of X are the same for all three */
    if (ref_has_integers(shape, i)) r.quantized[i] = ref_rows_of_scale(shape, quants, SIZE_MAX);
  }
  formula f = ref_begin(shape, weights, args, &kind, REF_SIZES | REF_ERRORS);
  size_t widest = 0;
  f.own = &r;
  for (int i = 0; i < REF_PRODUCTS; i++) {
    if (f.of[i].multiplies) take_weights(&f, i);
  }
  fold(&f);
  for (int i = 0; i < REF_PRODUCTS; i++) widest += f.of[i].heads * f.of[i].width;
  if (shape->sum_dtype) r.coarse = ref_room(&f, widest);
  ref_make_room(&f);
  f.y = (values){results->y, NULL, results->y_off}, f.probs = (values){results->probs, NULL, results->probs_off};
  ref_run(&f);
  return ref_end(&f);
}
