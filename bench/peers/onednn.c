/* oneDNN: matmul primitives, created ahead, on weights packed ahead in the layout that they ask for, with
 * the biases fused.
 *
 * A form is FLOW-HEADS-ROWS: scores[query][key] (keys) or [key][query] (queries); heads in one primitive
 * (0: all); queries in a block (0: all).
 */
#include <dnnl.h>
#include <stdio.h>
#include "compose.h"

typedef struct step { /* one primitive and its arguments */
  dnnl_primitive_t primitive;
  dnnl_exec_arg_t args[4];
  int count;
} step;

typedef struct block {
  int head, first, rows, keys;
  step scores, context;
} block;

typedef struct state {
  problem p;
  int queries, group, blocks; /* blocks of a group of heads */
  dnnl_stream_t stream;
  step *project, out; /* of each group */
  block *block;       /* of all groups */
  float *s, *inverse, *o;
} state;

const char *const peer_forms[] = {
    "keys-0-0",    "keys-0-64",    "keys-0-128",    "keys-1-0",    "keys-1-64",    "keys-1-128",
    "queries-0-0", "queries-0-64", "queries-0-128", "queries-1-0", "queries-1-64", "queries-1-128", NULL};

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

typedef struct matrix { /* of a batch: at + b * batch + i * row + j * column */
  float *at;
  dnnl_dim_t rows, columns, batch, row, column;
} matrix;

static matrix transposed(matrix m) {
  return (matrix){m.at, m.columns, m.rows, m.batch, m.column, m.row};
}

static dnnl_memory_desc_t describe(const matrix *m, int batch) {
  const dnnl_dims_t dims = {batch, m->rows, m->columns}, strides = {m->batch, m->row, m->column};
  dnnl_memory_desc_t md;
  must(dnnl_memory_desc_create_with_strides(&md, 3, dims, dnnl_f32, strides));
  return md;
}

static dnnl_memory_t memory(const_dnnl_memory_desc_t md, void *at) {
  dnnl_memory_t m;
  must(dnnl_memory_create(&m, md, engine, at));
  return m;
}

/* c = a b, of a batch of matrices; with a bias, b are weights: packed here, once */
static step matmul(dnnl_stream_t stream, int batch, matrix a, matrix b, matrix c, const float *bias) {
  dnnl_memory_desc_t a_md = describe(&a, batch), b_md = describe(&b, batch), c_md = describe(&c, batch);
  dnnl_memory_desc_t any = b_md, bias_md = NULL;
  if (bias) {
    const dnnl_dims_t dims = {1, b.rows, b.columns}, bias_dims = {1, 1, b.columns};
    must(dnnl_memory_desc_create_with_tag(&any, 3, dims, dnnl_f32, dnnl_format_tag_any));
    must(dnnl_memory_desc_create_with_tag(&bias_md, 3, bias_dims, dnnl_f32, dnnl_abc));
  }
  dnnl_primitive_desc_t pd;
  must(dnnl_matmul_primitive_desc_create(&pd, engine, a_md, any, bias_md, c_md, NULL));
  step s = {.count = 3};
  must(dnnl_primitive_create(&s.primitive, pd));
  dnnl_memory_t b_memory = memory(b_md, b.at);
  if (bias) {
    const_dnnl_memory_desc_t packed = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_memory_t to = memory(packed, floats(dnnl_memory_desc_get_size(packed) / 4 + 16));
    dnnl_primitive_desc_t reorder_pd;
    dnnl_primitive_t reorder;
    must(dnnl_reorder_primitive_desc_create(&reorder_pd, b_md, engine, packed, engine, NULL));
    must(dnnl_primitive_create(&reorder, reorder_pd));
    const dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, b_memory}, {DNNL_ARG_TO, to}};
    must(dnnl_primitive_execute(reorder, stream, 2, args));
    must(dnnl_stream_wait(stream));
    b_memory = to;
    s.args[s.count++] = (dnnl_exec_arg_t){DNNL_ARG_BIAS, memory(bias_md, (float *)bias)};
  }
  s.args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, memory(a_md, a.at)};
  s.args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, b_memory};
  s.args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, memory(c_md, c.at)};
  return s;
}

static void execute(const step *s, dnnl_stream_t stream) {
  must(dnnl_primitive_execute(s->primitive, stream, s->count, s->args));
  must(dnnl_stream_wait(stream)); /* the softmax is not the library's */
}

void *peer_setup(const problem *p, const char *form) {
  char flow[16];
  int group, rows;
  if (sscanf(form, "%15[a-z]-%d-%d", flow, &group, &rows) != 3) return NULL;
  const int n = p->n, d = p->d_model, dk = p->dk, e = p->h * dk;
  if (!engine) must(dnnl_engine_create(&engine, dnnl_cpu, 0));
  state *s = calloc(1, sizeof *s);
  s->p = *p, s->queries = !strcmp(flow, "queries"), s->group = group ? group : p->h;
  must(dnnl_stream_create(&s->stream, engine, dnnl_stream_in_order));
  rows = min(rows ? rows : n, n);
  const int w = s->group * dk, groups = p->h / s->group;
  s->blocks = (n + rows - 1) / rows;
  s->project = calloc((size_t)groups, sizeof *s->project);
  s->block = calloc((size_t)groups * (size_t)s->blocks, sizeof *s->block);
  s->s = floats((size_t)s->group * (size_t)up(n, 16) * (size_t)up(rows, 16));
  s->inverse = floats((size_t)s->group * (size_t)up(rows, 16)), s->o = floats((size_t)n * e);

  const folded f = fold(p);
  float *qkv = floats((size_t)n * 3 * w), *weights = floats((size_t)d * 3 * w);
  block *b = s->block;
  for (int g = 0; g < groups; g++) {
    float *bias = floats((size_t)3 * w);
    memcpy(bias, f.bq + g * w, 4 * (size_t)w);
    side_by_side(p, &f, g * w, w, weights);
    s->project[g] = matmul(s->stream, 1, (matrix){(float *)p->x, n, d, (ptrdiff_t)n * d, d, 1},
                           (matrix){weights, d, 3 * w, (ptrdiff_t)d * 3 * w, 3 * w, 1},
                           (matrix){qkv, n, 3 * w, (ptrdiff_t)n * 3 * w, 3 * w, 1}, bias);
    for (int first = 0; first < n; first += rows, b++) {
      const int r = min(rows, n - first), keys = p->causal ? first + r : n;
      const int ld = 3 * w, stride = up(s->queries ? r : keys, 16);
      float *q = qkv + (ptrdiff_t)first * ld, *k = qkv + w, *v = k + w;
      float *o = s->o + (ptrdiff_t)first * e + g * w;
      *b = (block){.head = g * s->group, .first = first, .rows = r, .keys = keys};
      const ptrdiff_t size = (ptrdiff_t)(s->queries ? keys : r) * stride;
      const matrix queries = {q, r, dk, dk, ld, 1}, all_keys = {k, keys, dk, dk, ld, 1};
      const matrix weighted = s->queries ? (matrix){s->s, r, keys, size, 1, stride}
                                         : (matrix){s->s, r, keys, size, stride, 1};
      b->scores =
          s->queries ? matmul(s->stream, s->group, all_keys, transposed(queries), transposed(weighted), NULL)
                     : matmul(s->stream, s->group, queries, transposed(all_keys), weighted, NULL);
      b->context = matmul(s->stream, s->group, weighted, (matrix){v, keys, dk, dk, ld, 1},
                          (matrix){o, r, dk, dk, e, 1}, NULL);
    }
  }
  s->out = matmul(s->stream, 1, (matrix){s->o, n, e, (ptrdiff_t)n * e, e, 1},
                  (matrix){(float *)p->wo, e, d, (ptrdiff_t)e * d, d, 1},
                  (matrix){p->y, n, d, (ptrdiff_t)n * d, d, 1}, f.bo);
  free(weights);
  return s;
}

void peer_run(void *pointer) {
  const state *s = pointer;
  const problem *p = &s->p;
  const int dk = p->dk, e = p->h * dk;
  const block *b = s->block;
  for (int g = 0; g < p->h / s->group; g++) {
    execute(&s->project[g], s->stream);
    for (int i = 0; i < s->blocks; i++, b++) {
      const int r = b->rows, keys = b->keys, stride = up(s->queries ? r : keys, 16);
      float *scores = s->s, *inverse = s->inverse, *o = s->o + (ptrdiff_t)b->first * e + b->head * dk;
      execute(&b->scores, s->stream);
      for (int head = 0; head < s->group; head++, inverse += up(r, 16)) {
        if (s->queries)
          softmax_columns(scores, r, stride, keys, p->causal, b->first, inverse);
        else
          softmax_rows(scores, r, stride, p->causal ? b->first + 1 : keys, keys, p->causal, inverse);
        scores += (ptrdiff_t)(s->queries ? keys : r) * stride;
      }
      execute(&b->context, s->stream);
      for (int head = 0; head < s->group; head++)
        scale_and_add(o + head * dk, r, dk, e, s->inverse + head * up(r, 16), NULL);
    }
  }
  execute(&s->out, s->stream);
}
