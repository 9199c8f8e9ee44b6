/* The parts of attention that a library of GEMMs lacks: softmax and transposition in AVX-512, and constants
 * folded into the weights. The contestants share them; each calls what suits it. */
#ifndef PEER_COMPOSE_H
#define PEER_COMPOSE_H

#include <immintrin.h>
#include <math.h>
#include "peer.h"

#ifndef __AVX512F__
#error "the compositions need AVX-512"
#endif

/* All that packing can take out of the run: 1/sqrt(dk) and the change to base 2 go to wq and bq; bk
 * shifts all scores of a row alike, so it is dropped; weights sum to 1, so bv wo goes to bo. */
typedef struct folded {
  float *wq, *bq, *bo;
} folded;

static inline folded fold(const problem *p) {
  const size_t d = (size_t)p->d_model, e = (size_t)p->h * (size_t)p->dk;
  const double scale = 1.4426950408889634 / sqrt(p->dk);
  const folded to = {floats(d * e), floats(e + 16), floats(d)};
  for (size_t i = 0; i < d * e; i++) to.wq[i] = (float)(scale * p->wq[i]);
  for (size_t i = 0; i < e; i++) to.bq[i] = (float)(scale * p->bq[i]);
  for (size_t j = 0; j < d; j++) {
    double sum = p->bo[j];
    for (size_t i = 0; i < e; i++) sum += (double)p->bv[i] * p->wo[i * d + j];
    to.bo[j] = (float)sum;
  }
  return to;
}

/* to[d_model][3][width]: columns of wq, wk and wv side by side, so that they are one product */
static inline void side_by_side(const problem *p, const folded *w, int first, int width, float *to) {
  const int e = p->h * p->dk;
  const float *const from[3] = {w->wq, p->wk, p->wv};
  for (int i = 0; i < p->d_model; i++)
    for (int j = 0; j < 3; j++, to += width)
      memcpy(to, from[j] + (ptrdiff_t)i * e + first, (size_t)width * sizeof *to);
}

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int up(int n, int block) { return (n + block - 1) / block * block; }

static inline __mmask16 lanes(int count) { /* of 16; count may be more */
  return (__mmask16)(count >= 16 ? 0xffff : (1 << count) - 1);
}

static inline __m512 exp2_16(__m512 x) { /* x <= 0; 0.92 ulp; scalef gives 0 where x is very low */
  const __m512 whole = _mm512_roundscale_ps(x, 0);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 y = _mm512_set1_ps(0.000155957678f);
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.00134068797f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.00961772259f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.0555031635f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.240226477f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.693147182f));
  y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, whole);
}

/* s[rows][stride] -> exp2(s - maximum of its row), and 1 / sum of each row. Row r has keys + r keys
 * (at most limit) if causal; behind them up to limit it becomes zero. */
static inline void softmax_rows(float *s, int rows, int stride, int keys, int limit, int causal,
                                float *inverse) {
  for (int r = 0; r < rows; r++, s += stride) {
    const int n = causal ? min(keys + r, limit) : keys;
    const int even = n / 64 * 64;
    const __m512 low = _mm512_set1_ps(-INFINITY);
    __m512 m0 = low, m1 = low, m2 = low, m3 = low;
    for (int j = 0; j < even; j += 64) {
      m0 = _mm512_max_ps(m0, _mm512_loadu_ps(s + j));
      m1 = _mm512_max_ps(m1, _mm512_loadu_ps(s + j + 16));
      m2 = _mm512_max_ps(m2, _mm512_loadu_ps(s + j + 32));
      m3 = _mm512_max_ps(m3, _mm512_loadu_ps(s + j + 48));
    }
    for (int j = even; j < n; j += 16)
      m0 = _mm512_max_ps(m0, _mm512_mask_loadu_ps(low, lanes(n - j), s + j));
    const __m512 max = _mm512_set1_ps(
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(m0, m1), _mm512_max_ps(m2, m3))));
    __m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    for (int j = 0; j < even; j += 64) {
      const __m512 e0 = exp2_16(_mm512_sub_ps(_mm512_loadu_ps(s + j), max));
      const __m512 e1 = exp2_16(_mm512_sub_ps(_mm512_loadu_ps(s + j + 16), max));
      const __m512 e2 = exp2_16(_mm512_sub_ps(_mm512_loadu_ps(s + j + 32), max));
      const __m512 e3 = exp2_16(_mm512_sub_ps(_mm512_loadu_ps(s + j + 48), max));
      _mm512_storeu_ps(s + j, e0), _mm512_storeu_ps(s + j + 16, e1);
      _mm512_storeu_ps(s + j + 32, e2), _mm512_storeu_ps(s + j + 48, e3);
      s0 = _mm512_add_ps(s0, e0), s1 = _mm512_add_ps(s1, e1);
      s2 = _mm512_add_ps(s2, e2), s3 = _mm512_add_ps(s3, e3);
    }
    for (int j = even; j < n; j += 16) {
      const __mmask16 used = lanes(n - j);
      const __m512 e = exp2_16(_mm512_sub_ps(_mm512_mask_loadu_ps(low, used, s + j), max));
      _mm512_mask_storeu_ps(s + j, lanes(limit - j), e); /* zero behind n */
      s0 = _mm512_add_ps(s0, e);
    }
    for (int j = (n + 15) / 16 * 16; j < limit; j += 16)
      _mm512_mask_storeu_ps(s + j, lanes(limit - j), _mm512_setzero_ps());
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3));
    inverse[r] = 1 / _mm512_reduce_add_ps(sum);
  }
}

/* The same for s[keys][stride], a query in each of `columns` lanes (whole vectors are processed).
 * If causal, key j is for the columns from j - first on. */
static inline void softmax_columns(float *s, int columns, int stride, int keys, int causal, int first,
                                   float *inverse) {
  for (int c = 0; c < columns; c += 16) {
    const __m512 low = _mm512_set1_ps(-INFINITY);
    const int full = causal ? min(first + c + 1, keys) : keys; /* all lanes see these */
    float *p = s + c;
    for (int j = full; j < keys; j++) /* mask what follows the diagonal */
      _mm512_mask_storeu_ps(p + (size_t)j * stride, lanes(j - first - c), low);
    __m512 m[4] = {low, low, low, low}, sum[4] = {{0}};
    int j = 0;
    for (; j + 4 <= keys; j += 4)
      for (int u = 0; u < 4; u++)
        m[u] = _mm512_max_ps(m[u], _mm512_loadu_ps(p + (size_t)(j + u) * stride));
    for (; j < keys; j++) m[0] = _mm512_max_ps(m[0], _mm512_loadu_ps(p + (size_t)j * stride));
    const __m512 max = _mm512_max_ps(_mm512_max_ps(m[0], m[1]), _mm512_max_ps(m[2], m[3]));
    for (j = 0; j + 4 <= keys; j += 4)
      for (int u = 0; u < 4; u++) {
        float *at = p + (size_t)(j + u) * stride;
        const __m512 e = exp2_16(_mm512_sub_ps(_mm512_loadu_ps(at), max));
        _mm512_storeu_ps(at, e);
        sum[u] = _mm512_add_ps(sum[u], e);
      }
    for (; j < keys; j++) {
      float *at = p + (size_t)j * stride;
      const __m512 e = exp2_16(_mm512_sub_ps(_mm512_loadu_ps(at), max));
      _mm512_storeu_ps(at, e);
      sum[0] = _mm512_add_ps(sum[0], e);
    }
    sum[0] = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
    _mm512_storeu_ps(inverse + c, _mm512_div_ps(_mm512_set1_ps(1), sum[0]));
  }
}

/* a[rows][stride] = a * scale[rows] + bias[columns], either of which may be null. */
static inline void scale_and_add(float *a, int rows, int columns, int stride, const float *scale,
                                 const float *bias) {
  for (int i = 0; i < rows; i++, a += stride)
    for (int c = 0; c < columns; c += 16) {
      const __mmask16 used = lanes(columns - c);
      __m512 v = _mm512_maskz_loadu_ps(used, a + c);
      if (scale) v = _mm512_mul_ps(v, _mm512_set1_ps(scale[i]));
      if (bias) v = _mm512_add_ps(v, _mm512_loadu_ps(bias + c));
      _mm512_mask_storeu_ps(a + c, used, v);
    }
}

/* to[columns][to_stride] = from[rows][from_stride] * scale[columns] + bias[columns], transposed. Scale and
 * bias may be null; whole vectors of them are read. */
static inline void transpose(const float *from, int from_stride, int rows, int columns, float *to,
                             int to_stride, const float *scale, const float *bias) {
  for (int r = 0; r < rows; r += 16)
    for (int c = 0; c < columns; c += 16) {
      const __mmask16 used = lanes(columns - c);
      const __m512 factor = scale ? _mm512_loadu_ps(scale + c) : _mm512_set1_ps(1);
      const __m512 shift = bias ? _mm512_loadu_ps(bias + c) : _mm512_setzero_ps();
      __m512 a[16], b[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++) {
        a[i] = r + i < rows ? _mm512_maskz_loadu_ps(used, from + (size_t)(r + i) * from_stride + c)
                            : _mm512_setzero_ps();
        if (scale || bias) a[i] = _mm512_fmadd_ps(a[i], factor, shift);
      }
#pragma GCC unroll 16
      for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]), b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
      }
#pragma GCC unroll 16
      for (int i = 0; i < 4; i++) {
        b[i] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88);
        b[i + 4] = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        b[i + 8] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        b[i + 12] = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
      }
#pragma GCC unroll 16
      for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_f32x4(b[i], b[i + 8], 0x88);
        a[i + 8] = _mm512_shuffle_f32x4(b[i], b[i + 8], 0xdd);
        a[i + 4] = _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(b[i + 4], b[i + 12], 0xdd);
      }
      const __mmask16 width = lanes(rows - r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++)
        if (c + i < columns) _mm512_mask_storeu_ps(to + (size_t)(c + i) * to_stride + r, width, a[i]);
    }
}

#endif
