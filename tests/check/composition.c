/* composition.c of mhagen: a layer as the composition of its steps, for any kind of numbers: those of reference.c, of
 * bounds.c or of rounded.c. */
#include "formula.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

double *ref_room(formula *f, size_t count) {
  double *room = f->used < REF_ROOMS ? calloc(count + 1, sizeof *room) : NULL;
  if (room) f->rooms[f->used++] = room;
  else f->short_of_memory = 1;
  return room;
}

values ref_values(formula *f, size_t count) {
  values room = {ref_room(f, count), NULL, NULL};
  if (f->beside & REF_SIZES) room.size = ref_room(f, count);
  if (f->beside & REF_ERRORS) room.off = ref_room(f, count);
  return room;
}

int ref_end(formula *f) {
  while (f->used > 0) free(f->rooms[--f->used]);
  return f->short_of_memory ? -1 : 0;
}

/* ---- numbers, and what is beside them ---- */

values ref_from(values a, size_t at) {
  return (values){a.x ? a.x + at : NULL, a.size ? a.size + at : NULL, a.off ? a.off + at : NULL};
}

void ref_exact(values to, size_t count) {
  for (size_t i = 0; i < count && to.size; i++) to.size[i] = fabs(to.x[i]);
  for (size_t i = 0; i < count && to.off; i++) to.off[i] = 0;
}

void ref_fill(values to, double with, size_t count) {
  for (size_t i = 0; i < count && to.x; i++) to.x[i] = with;
  if (to.x) ref_exact(to, count);
}

static void copy(values to, values from, size_t count) {
  if (to.x) memcpy(to.x, from.x, count * sizeof *to.x);
  if (to.size) memcpy(to.size, from.size, count * sizeof *to.size);
  if (to.off) memcpy(to.off, from.off, count * sizeof *to.off);
}

void ref_add(values to, values x, size_t count) {
  for (size_t i = 0; i < count; i++) to.x[i] += x.x[i];
  for (size_t i = 0; i < count && to.size; i++) to.size[i] += x.size[i];
  for (size_t i = 0; i < count && to.off; i++) to.off[i] += x.off[i];
}

/* ---- a formula of a kernel ---- */

formula ref_begin(const mhagen_kernel *shape, const mhagen_weights *weights, const mhagen_args *args,
                  const number *kind, int beside) {
  const extents e = {.h = (size_t)shape->h, .n = (size_t)shape->seq, .m = (size_t)shape->seq_kv,
                     .apart = (shape->options & MHAGEN_BHSD) != 0};
  const size_t h = e.h, h_kv = (size_t)shape->h_kv, dk = (size_t)shape->dk, dv = (size_t)shape->dv;
  const int all = ref_projections(shape), cross = (shape->options & (MHAGEN_CROSS | MHAGEN_CACHE_APPEND)) != 0,
            q = (all & MHAGEN_PROJECT_Q) != 0, k = (all & MHAGEN_PROJECT_K) != 0, v = (all & MHAGEN_PROJECT_V) != 0,
            o = (all & MHAGEN_PROJECT_O) != 0, ffn = (shape->options & MHAGEN_FFN) != 0,
            gate = (shape->options & MHAGEN_FFN_GATE) != 0;
  const size_t y = (size_t)shape->y_width, between = (size_t)shape->ffn;
  const float *const biases[] = {weights->bq, weights->bk, weights->bv, weights->bo,
                                 weights->b1, weights->b3, weights->b2};
  formula f = {
      .shape = shape, .weights = weights, .args = args, .kind = kind, .beside = beside, .e = e,
      .of = {{.multiplies = q, .input = args->q, .all = e.n, .heads = h, .width = dk,
              .inner = q ? (size_t)shape->d_model : h * dk},
             {.multiplies = k, .input = cross ? args->k : args->q, .all = e.m, .heads = h_kv, .width = dk,
              .inner = k ? (size_t)shape->k_width : h_kv * dk},
             {.multiplies = v, .input = cross ? args->v : args->q, .all = e.m, .heads = h_kv, .width = dv,
              .inner = v ? (size_t)shape->v_width : h_kv * dv},
             {.multiplies = o, .all = e.n, .heads = o ? 1 : h, .width = o ? y : dv, .inner = h * dv},
             {.multiplies = ffn, .all = ffn ? e.n : 0, .heads = 1, .width = between, .inner = y},
             {.multiplies = gate, .all = gate ? e.n : 0, .heads = 1, .width = between, .inner = y},
             {.multiplies = ffn, .all = ffn ? e.n : 0, .heads = 1, .width = y, .inner = between}}};
  f.of[REF_Y].gains = shape->options & MHAGEN_RESIDUAL ? weights->gain1 : NULL;
  f.of[REF_W2].gains = ffn ? weights->gain2 : NULL;
  for (int i = 0; i < REF_PRODUCTS; i++) {
    product *p = &f.of[i];
    const size_t columns = p->heads * p->width;
    if (!p->multiplies || !biases[i]) continue;
    p->bias = ref_values(&f, columns);
    for (size_t c = 0; c < columns && !f.short_of_memory; c++) p->bias.x[c] = (double)biases[i][c];
    if (!f.short_of_memory) ref_exact(p->bias, columns);
  }
  return f;
}

void ref_make_room(formula *f) {
  size_t most = 0;
  for (int i = 0; i < REF_PRODUCTS; i++) {
    product *p = &f->of[i];
    p->to = ref_values(f, p->all * p->heads * p->width);
    if (p->all * p->inner > most) most = p->all * p->inner;
  }
  f->x = ref_values(f, most), f->context = ref_values(f, f->e.n * f->of[REF_Y].inner);
  f->p = ref_values(f, f->e.m), f->score = ref_room(f, f->e.m), f->mask = ref_room(f, f->e.m);
  f->e.sees = (char *)ref_room(f, f->e.m / sizeof(double) + 1);
}

/* ---- products: rows of an input, contexts, rows of Y and of the feed-forward, times a matrix or as they are ---- */

/* Whether the feed-forward reads what attention reads. */
static int is_parallel(const formula *f) { return (f->shape->options & MHAGEN_PARALLEL) != 0; }

/* A norm of rows: the first is around attention, the second around the feed-forward; or of what these make. */
static void norm_row(const formula *f, int i, int of_branch, size_t n, values row) {
  const mhagen_kernel *shape = f->shape;
  const mhagen_weights *w = f->weights;
  const int second = i > REF_Y && (of_branch || !is_parallel(f)),
            biased = shape->norm_kind == MHAGEN_NORM_LAYER && !of_branch;
  const float *const gains[] = {w->norm1, w->norm2, w->norm1b, w->norm2b},
              *const biases[] = {w->norm1_bias, w->norm2_bias};
  const norming by = {.kind = shape->norm_kind, .eps = shape->layer_eps, .n = n,
                      .gains = gains[2 * of_branch + second], .biases = biased ? biases[second] : NULL};
  f->kind->norm(f, REF_PRODUCTS + 2 * of_branch + second, &by, row);
}

/* Whether a norm is in front of the rows that a product multiplies, or behind those that it makes. */
static int norms_input(const formula *f, int i) {
  if (i == REF_W1 && f->shape->options & MHAGEN_FFN_NORM) return 1;
  if (!(f->shape->options & MHAGEN_PRE_NORM)) return 0;
  return i == REF_Q || i == REF_W1 || (i < REF_Y && !(f->shape->options & MHAGEN_CROSS));
}

static int norms_output(const formula *f, int i) {
  return f->shape->options & MHAGEN_POST_NORM && (i == REF_Y || i == REF_W2);
}

/* Whether what a product makes has a norm before it is added to rows of the layer. */
static int norms_branch(const formula *f, int i) {
  return f->shape->options & MHAGEN_BRANCH_NORM && (i == REF_Y || i == REF_W2);
}

/* A row x that a product multiplies, where it lies with others: W3 finds that of W1. */
static void gather(const formula *f, int i, size_t r, values x) {
  const product *p = &f->of[i];
  const product *gate = &f->of[REF_W3];
  if (i < REF_Y) f->kind->take(f, i, r, x);
  if (i == REF_W1 && is_parallel(f)) f->kind->take(f, REF_Q, r, x);
  else if (i == REF_W1) copy(x, ref_from(f->of[REF_Y].to, r * p->inner), p->inner);
  if (i == REF_W2)
    f->kind->activate(f, REF_W1, p->inner, x, gate->multiplies ? ref_from(gate->to, r * p->inner) : (values){0});
  if (norms_input(f, i)) norm_row(f, i, 0, p->inner, x);
  if (p->multiplies && f->kind->round && i != REF_W3) f->kind->round(f, i, x);
}

/* Adds the row of the layer to what a product makes. */
static void add_layer(const formula *f, int i, size_t r, values to) {
  const size_t columns = f->of[i].heads * f->of[i].width;
  if (i == REF_Y && f->shape->options & MHAGEN_RESIDUAL) f->kind->take(f, REF_Q, r, f->x), ref_add(to, f->x, columns);
  if (i == REF_W2) ref_add(to, ref_from(f->of[REF_Y].to, r * columns), columns);
}

/* Whether the row of the layer is added behind all else, and not what a product's sums begin with. */
static int adds_behind(const formula *f, int i) {
  return norms_branch(f, i) || f->of[i].gains || (i == REF_Y && f->shape->options & MHAGEN_OUT_ACT);
}

/* What a product's sums begin with. */
static void begin_row(const formula *f, int i, size_t r, values to) {
  const product *p = &f->of[i];
  const size_t columns = p->heads * p->width;
  ref_fill(to, 0, columns);
  if (p->bias.x) ref_add(to, p->bias, columns);
  if (!adds_behind(f, i)) add_layer(f, i, r, to);
}

/* Multiplies a row by the gains of its columns. */
static void scale_row(const product *p, size_t columns, values to) {
  for (size_t c = 0; c < columns; c++) {
    const double gain = (double)p->gains[c], size = fabs(gain);
    to.x[c] *= gain;
    if (to.size) to.size[c] *= size;
    if (to.off) to.off[c] = size * to.off[c] + (isfinite(to.x[c]) ? 0x1p-24 * fabs(to.x[c]) : 0);
  }
}

/* What follows a product's sums; a sum in float32 is rounded. */
static void end_row(const formula *f, int i, size_t r, values to) {
  const product *p = &f->of[i];
  const size_t columns = p->heads * p->width;
  if (i == REF_Y && f->shape->options & MHAGEN_OUT_ACT)
    f->kind->activate(f, REF_Y, columns, to, (values){0});
  if (norms_branch(f, i)) norm_row(f, i, 1, columns, to);
  if (p->gains) scale_row(p, columns, to);
  if (adds_behind(f, i)) {
    add_layer(f, i, r, to);
    for (size_t c = 0; c < columns && to.off; c++) to.off[c] += isfinite(to.x[c]) ? 0x1p-24 * fabs(to.x[c]) : 0;
  }
  if (norms_output(f, i)) norm_row(f, i, 0, columns, to);
}

static void make(formula *f, int i) {
  const product *p = &f->of[i];
  const size_t columns = p->heads * p->width;
  const values all = i == REF_Y ? f->context : i == REF_W2 ? f->of[REF_W1].to : f->x;
  for (size_t r = 0; r < p->rows; r++) {
    const values x = ref_from(all, r * p->inner), to = ref_from(p->to, r * columns);
    gather(f, i, r, x);
    if (p->multiplies) begin_row(f, i, r, to);
    else copy(to, x, columns);
  }
  if (p->multiplies) f->kind->multiply(f, i, p->rows, all, p->to);
  for (size_t r = 0; r < p->rows && p->multiplies; r++) end_row(f, i, r, ref_from(p->to, r * columns));
}

/* Rows of Q or K: their norms, and their turns. */
static void normalize_and_turn(formula *f, int i) {
  const mhagen_kernel *shape = f->shape;
  const product *p = &f->of[i];
  const float *gains = i == REF_Q ? f->weights->q_norm : f->weights->k_norm;
  const size_t columns = p->heads * p->width;
  norming by = {.kind = shape->qk_norm, .eps = shape->norm_eps, .gains = gains,
                .n = shape->norm_span == MHAGEN_SPAN_ALL ? columns : p->width};
  for (size_t r = 0; r < p->rows; r++) {
    const values row = ref_from(p->to, r * columns);
    for (size_t c = 0; shape->options & MHAGEN_QK_NORM && c < columns; c += by.n) {
      if (gains && shape->norm_span == MHAGEN_SPAN_EACH) by.gains = gains + c;
      f->kind->norm(f, i, &by, ref_from(row, c));
    }
    if (shape->options & MHAGEN_ROPE) f->kind->turn(f, i, (ptrdiff_t)r + (i == REF_Q ? f->e.place : 0), row);
  }
}

void ref_make_rows(formula *f, size_t entry) {
  const mhagen_kernel *shape = f->shape;
  f->entry = entry, f->e.place = ref_place(shape, f->args, entry, 0);
  f->of[REF_Q].rows = f->e.n;
  for (int i = REF_Y; i < REF_PRODUCTS; i++) f->of[i].rows = ref_rows_asked(shape, f->args, entry);
  f->of[REF_K].rows = f->of[REF_V].rows =
      shape->options & MHAGEN_CACHE_APPEND ? (size_t)f->e.place + f->e.n : f->e.m;
  f->q = f->of[REF_Q].to, f->k = f->of[REF_K].to, f->v = f->of[REF_V].to;
  if (shape->options & MHAGEN_NO_ATTENTION) {
    make(f, REF_Q);
    return;
  }
  for (int i = REF_Q; i <= REF_V; i++) {
    make(f, i);
    if (i != REF_V) normalize_and_turn(f, i);
    if (f->kind->keep) f->kind->keep(f, i);
  }
}

/* ---- attention ---- */

static void attend(formula *f, const spot *at) {
  extents *e = &f->e;
  const size_t width = f->of[REF_Y].inner / e->h;
  if (f->shape->options & MHAGEN_NO_ATTENTION) {
    copy(ref_from(f->context, at->row * width), ref_from(f->q, at->row * width), width);
    return;
  }
  mhagen_keys_seen(f->shape, f->args, at->entry, at->row, &e->first, &e->end);
  for (size_t j = e->first; j < e->end; j++) {
    f->mask[j] = ref_mask(at, j);
    e->sees[j] = f->mask[j] == -INFINITY ? 0 : 1;
  }
  f->kind->score(f, at);
  f->kind->softmax(f, at);
  f->kind->context(f, at, ref_from(f->context, (at->row * e->h + at->head) * width));
}

/* Weights of a query and head; NaN where nobody asks for the query. */
static void store_probs(const formula *f, size_t head, size_t row, int asked) {
  const extents *e = &f->e;
  const values to = ref_from(f->probs, ((f->entry * e->h + head) * e->n + row) * e->m);
  ref_fill(to, asked ? 0 : NAN, e->m);
  if (asked) copy(ref_from(to, e->first), ref_from(f->p, e->first), e->end - e->first);
}

/* The product that makes the results. */
static int last_product(const formula *f) { return f->of[REF_W2].multiplies ? REF_W2 : REF_Y; }

static void store_row(const formula *f, size_t r, int asked) {
  const product *y = &f->of[last_product(f)];
  const size_t columns = y->heads * y->width, n = f->e.n;
  for (size_t i = 0; i < y->heads; i++) {
    const values to = ref_from(f->y, (f->entry * n * y->heads + ref_lies(&f->e, n, y->heads, r, i)) * y->width);
    if (asked) copy(to, ref_from(y->to, r * columns + i * y->width), y->width);
    else ref_fill(to, NAN, y->width);
  }
}

void ref_run(formula *f) {
  const size_t h = f->e.h, n = f->e.n;
  for (size_t b = 0; b < (size_t)f->shape->batch && !f->short_of_memory; b++) {
    ref_make_rows(f, b);
    const size_t asked = f->of[REF_Y].rows;
    for (size_t i = 0; i < n * h; i++) {
      const spot at = ref_spot(f, i % h, i / h);
      if (at.row < asked) attend(f, &at);
      store_probs(f, at.head, at.row, at.row < asked);
    }
    for (int i = REF_Y; i <= last_product(f); i++) {
      if (i == REF_Y || f->of[i].multiplies) make(f, i);
    }
    if (f->kind->keep) f->kind->keep(f, last_product(f));
    for (size_t r = 0; r < n; r++) store_row(f, r, r < asked);
  }
}
