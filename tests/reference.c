/* reference.c: the reference of reference.h, in double, that mhagen compares with. */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* y[rows][out] = x[rows][in] W + b; x is float (the inputs) or double (the contexts). */
static void project(const float *xf, const double *xd, size_t rows, size_t in, const float *w,
                    const float *b, size_t out, mhagen_layout layout, double *y) {
  size_t step_i = layout == MHAGEN_OUT_IN ? 1 : out, step_o = layout == MHAGEN_OUT_IN ? in : 1;
  for (size_t r = 0; r < rows; r++) {
    for (size_t o = 0; o < out; o++) y[r * out + o] = b ? (double)b[o] : 0;
    for (size_t i = 0; i < in; i++) {
      double x = xf ? (double)xf[r * in + i] : xd[r * in + i];
      for (size_t o = 0; o < out; o++) y[r * out + o] += x * (double)w[i * step_i + o * step_o];
    }
  }
}

/* p[0..keys) = softmax(q k / sqrt(dk)); the rows of k are `stride` apart. */
static void attend(const double *q, const double *k, size_t keys, size_t dk, size_t stride,
                   double *p, double *max_score) {
  double max = -INFINITY, sum = 0;
  for (size_t j = 0; j < keys; j++) {
    double dot = 0;
    for (size_t c = 0; c < dk; c++) dot += q[c] * k[j * stride + c];
    p[j] = dot / sqrt((double)dk);
    if (p[j] > max) max = p[j];
    if (isfinite(p[j]) && fabs(p[j]) > *max_score) *max_score = fabs(p[j]);
  }
  for (size_t j = 0; j < keys; j++) sum += p[j] = exp(p[j] - max);
  for (size_t j = 0; j < keys; j++) p[j] /= sum;
}

double mhagen_promised_error(const mhagen_kernel *shape, double max_score) {
  return (shape->options & MHAGEN_STRASSEN ? 2e-6 : 1e-6) * fmax(1, max_score / 16);
}

int mhagen_reference(const mhagen_kernel *shape, const mhagen_weights *weights,
                     const mhagen_args *args, double *y, double *probs, double *max_score) {
  const size_t h = (size_t)shape->h, d = (size_t)shape->d_model, n = (size_t)shape->seq,
               m = (size_t)shape->seq_kv, dk = (size_t)shape->dk, dv = (size_t)shape->dv;
  const int cross = (shape->options & MHAGEN_CROSS) != 0;
  double *q = malloc((n * h * dk + m * h * dk + m * h * dv + n * h * dv + m) * sizeof *q);
  if (!q) return -1;
  double *k = q + n * h * dk, *v = k + m * h * dk, *context = v + m * h * dv;
  double *p = context + n * h * dv;
  double largest = 0;

  for (size_t b = 0; b < (size_t)shape->batch; b++) {
    const float *qx = args->q + b * n * d, *kx = cross ? args->k + b * m * d : qx,
                *vx = cross ? args->v + b * m * d : qx;
    project(qx, NULL, n, d, weights->wq, weights->bq, h * dk, weights->layout, q);
    project(kx, NULL, m, d, weights->wk, weights->bk, h * dk, weights->layout, k);
    project(vx, NULL, m, d, weights->wv, weights->bv, h * dv, weights->layout, v);

    size_t valid = shape->options & MHAGEN_KV_LEN ? (size_t)args->kv_len[b] : m;
    for (size_t i = 0; i < h; i++) {
      for (size_t r = 0; r < n; r++) {
        size_t keys = shape->options & MHAGEN_CAUSAL && r + 1 < valid ? r + 1 : valid;
        attend(q + r * h * dk + i * dk, k + i * dk, keys, dk, h * dk, p, &largest);
        double *sum = context + r * h * dv + i * dv;
        memset(sum, 0, dv * sizeof *sum);
        for (size_t j = 0; j < keys; j++) {
          for (size_t c = 0; c < dv; c++) sum[c] += p[j] * v[j * h * dv + i * dv + c];
        }
        if (!probs) continue;
        double *row = probs + ((b * h + i) * n + r) * m;
        memset(row, 0, m * sizeof *row);
        memcpy(row, p, keys * sizeof *row);
      }
    }
    project(NULL, context, n, h * dv, weights->wo, weights->bo, d, weights->layout, y + b * n * d);
  }
  free(q);
  if (max_score) *max_score = largest;
  return 0;
}
