/* oneDNN in bfloat16: matmul and softmax primitives, created ahead, on weights packed ahead. Operands are
 * bfloat16, x too, scores and y float32.
 */
#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include "peer.h"

typedef struct step { /* one primitive and its arguments */
  dnnl_primitive_t primitive;
  dnnl_exec_arg_t args[4];
  int count;
} step;

typedef struct state {
  dnnl_stream_t stream;
  step steps[5]; /* projections, scores, softmax, context, output */
} state;

const char *const peer_forms[] = {"matmul, softmax", NULL};

const char *peer_version(void) {
  static char text[32];
  const dnnl_version_t *v = dnnl_version();
  snprintf(text, sizeof text, "%d.%d.%d %s", v->major, v->minor, v->patch,
           v->cpu_runtime == DNNL_RUNTIME_OMP ? "OpenMP" : "SYCL");
  return text;
}

static void must(dnnl_status_t status) {
  if (status != dnnl_success) fprintf(stderr, "onednn: status %d\n", status), exit(1);
}

static dnnl_engine_t engine;
static dnnl_stream_t stream;

typedef struct matrix { /* of a batch: at + b * batch + i * row + j * column, in numbers of the type */
  char *at;
  dnnl_data_type_t type;
  dnnl_dim_t rows, columns, batch, row, column;
} matrix;

static dnnl_memory_desc_t describe(matrix m, int batch) {
  const dnnl_dims_t dims = {batch, m.rows, m.columns}, strides = {m.batch, m.row, m.column};
  dnnl_memory_desc_t md;
  must(dnnl_memory_desc_create_with_strides(&md, 3, dims, m.type, strides));
  return md;
}

static dnnl_memory_t memory(const_dnnl_memory_desc_t md, void *at) {
  dnnl_memory_t m;
  must(dnnl_memory_create(&m, md, engine, at));
  return m;
}

static dnnl_memory_t reordered(const_dnnl_memory_desc_t from, const void *at, const_dnnl_memory_desc_t to) {
  dnnl_memory_t result = memory(to, floats(dnnl_memory_desc_get_size(to) / sizeof(float) + 16));
  dnnl_primitive_desc_t pd;
  dnnl_primitive_t reorder;
  must(dnnl_reorder_primitive_desc_create(&pd, from, engine, to, engine, NULL));
  must(dnnl_primitive_create(&reorder, pd));
  const dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, memory(from, (void *)at)}, {DNNL_ARG_TO, result}};
  must(dnnl_primitive_execute(reorder, stream, 2, args));
  must(dnnl_stream_wait(stream));
  return result;
}

/* c = a b, of a batch of matrices; with a bias, b are weights of float32: packed here, once */
static step matmul(int batch, matrix a, matrix b, matrix c, const float *bias) {
  dnnl_memory_desc_t a_md = describe(a, batch), b_md = describe(b, batch), c_md = describe(c, batch);
  dnnl_memory_desc_t any = b_md, bias_md = NULL;
  if (bias) {
    const dnnl_dims_t dims = {1, b.rows, b.columns}, bias_dims = {1, 1, b.columns};
    must(dnnl_memory_desc_create_with_tag(&any, 3, dims, dnnl_bf16, dnnl_format_tag_any));
    must(dnnl_memory_desc_create_with_tag(&bias_md, 3, bias_dims, dnnl_f32, dnnl_abc));
  }
  dnnl_primitive_desc_t pd;
  must(dnnl_matmul_primitive_desc_create(&pd, engine, a_md, any, bias_md, c_md, NULL));
  step s = {.count = 3};
  must(dnnl_primitive_create(&s.primitive, pd));
  dnnl_memory_t operand = bias ? reordered(b_md, b.at, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0))
                               : memory(b_md, b.at);
  s.args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, memory(a_md, a.at)};
  s.args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, operand};
  s.args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, memory(c_md, c.at)};
  if (bias) s.args[s.count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, memory(bias_md, (float *)bias)};
  return s;
}

static step softmax(int batch, matrix from, matrix to) {
  dnnl_memory_desc_t from_md = describe(from, batch), to_md = describe(to, batch);
  dnnl_primitive_desc_t pd;
  must(dnnl_softmax_forward_primitive_desc_create(&pd, engine, dnnl_forward_inference, dnnl_softmax_accurate, from_md,
                                                  to_md, 2, NULL));
  step s = {.count = 2, .args = {{DNNL_ARG_SRC, memory(from_md, from.at)}, {DNNL_ARG_DST, memory(to_md, to.at)}}};
  must(dnnl_primitive_create(&s.primitive, pd));
  return s;
}

void *peer_setup(const problem *p, const char *form) {
  const int n = p->n, d = p->d_model, h = p->h, dk = p->dk, e = h * dk;
  (void)form;
  if (p->causal) return NULL;
  must(dnnl_engine_create(&engine, dnnl_cpu, 0));
  must(dnnl_stream_create(&stream, engine, dnnl_stream_in_order));
  float *weights = floats((size_t)d * 3 * (size_t)e), *bias = floats((size_t)3 * (size_t)e);
  const float scale = 1 / sqrtf((float)dk), *from[3] = {p->wq, p->wk, p->wv}, *biases[3] = {p->bq, p->bk, p->bv};
  for (int j = 0; j < 3 * e; j++) {
    const float factor = j < e ? scale : 1;
    bias[j] = factor * biases[j / e][j % e];
    for (int i = 0; i < d; i++) weights[(size_t)i * 3 * (size_t)e + j] = factor * from[j / e][(size_t)i * e + j % e];
  }
  const matrix x = {(char *)p->x, dnnl_f32, n, d, (dnnl_dim_t)n * d, d, 1};
  matrix x_bf16 = x;
  x_bf16.type = dnnl_bf16;
  void *at;
  must(dnnl_memory_get_data_handle(reordered(describe(x, 1), x.at, describe(x_bf16, 1)), &at));
  x_bf16.at = at;
  char *qkv = (char *)floats((size_t)n * 3 * (size_t)e), *o = (char *)floats((size_t)n * e);
  const dnnl_dim_t square = (dnnl_dim_t)n * n;
  const matrix scores = {(char *)floats((size_t)h * (size_t)square), dnnl_f32, n, n, square, n, 1};
  const matrix shares = {(char *)floats((size_t)h * (size_t)square), dnnl_bf16, n, n, square, n, 1};
  const matrix q = {qkv, dnnl_bf16, n, dk, dk, 3 * e, 1}, k = {qkv + 2 * e, dnnl_bf16, dk, n, dk, 1, 3 * e},
               v = {qkv + 4 * e, dnnl_bf16, n, dk, dk, 3 * e, 1};
  state *s = calloc(1, sizeof *s);
  s->stream = stream;
  s->steps[0] = matmul(1, x_bf16, (matrix){(char *)weights, dnnl_f32, d, 3 * e, (dnnl_dim_t)d * 3 * e, 3 * e, 1},
                       (matrix){qkv, dnnl_bf16, n, 3 * e, (dnnl_dim_t)n * 3 * e, 3 * e, 1}, bias);
  s->steps[1] = matmul(h, q, k, scores, NULL);
  s->steps[2] = softmax(h, scores, shares);
  s->steps[3] = matmul(h, shares, v, (matrix){o, dnnl_bf16, n, dk, dk, e, 1}, NULL);
  s->steps[4] = matmul(1, (matrix){o, dnnl_bf16, n, e, (dnnl_dim_t)n * e, e, 1},
                       (matrix){(char *)p->wo, dnnl_f32, e, d, (dnnl_dim_t)e * d, d, 1},
                       (matrix){(char *)p->y, dnnl_f32, n, d, (dnnl_dim_t)n * d, d, 1}, p->bo);
  return s;
}

void peer_run(void *pointer) {
  const state *s = pointer;
  for (int i = 0; i < 5; i++) must(dnnl_primitive_execute(s->steps[i].primitive, s->stream, s->steps[i].count,
                                                          s->steps[i].args));
  must(dnnl_stream_wait(s->stream));
}
