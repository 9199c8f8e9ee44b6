/* formula.c: what a config says, by the reference of the tests (tests/check/composition.c), for gen/onnx/proof.lua. */
#define _DEFAULT_SOURCE

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <lauxlib.h>

#include "arrays.h"
#include "formula.h"

/* ---- fields of the table at an index ---- */

static double number_in(lua_State *L, int index, const char *name, double missing) {
  lua_getfield(L, index, name);
  const double value = luaL_optnumber(L, -1, missing);
  lua_pop(L, 1);
  return value;
}

static int integer_in(lua_State *L, int index, const char *name, int missing) {
  const double value = number_in(L, index, name, missing);
  if (!(value >= 0 && value <= 1 << 24)) luaL_error(L, "%s is out of its range", name);
  return (int)value;
}

/* The place of a word in a list that ends with NULL; the first one where the field is missing. */
static int word_in(lua_State *L, int index, const char *name, const char *const words[]) {
  lua_getfield(L, index, name);
  const int place = luaL_checkoption(L, -1, words[0], words);
  lua_pop(L, 1);
  return place;
}

static bool is_set(lua_State *L, int index, const char *name) {
  lua_getfield(L, index, name);
  const bool value = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return value;
}

/* ---- the shape ---- */

static const char *text_in(lua_State *L, int index, const char *name) { /* which stays in the table */
  lua_getfield(L, index, name);
  const char *text = luaL_optstring(L, -1, "");
  lua_pop(L, 1);
  return text;
}

/* The options and numbers of a config that a layer of a graph may have. */
static mhagen_kernel read_shape(lua_State *L, int index) {
  static const char *const norms[] = {"none", "rms", "layer", "l2", NULL};
  static const char *const spans[] = {"head", "each", "all", NULL};
  static const char *const turns[] = {"none", "half", "interleaved", NULL};
  static const char *const masks[] = {"none", "bool", "add", NULL};
  static const char *const layouts[] = {"bshd", "bhsd", NULL};
  static const char *const aligns[] = {"top_left", "bottom_right", NULL};
  static const char *const scores[] = {"none", "scaled", "capped", "masked", NULL};
  static const struct {
    const char *field;
    unsigned bit;
  } rows[] = {{"causal", MHAGEN_CAUSAL}, {"window_left", MHAGEN_WINDOW_LEFT}, {"window_right", MHAGEN_WINDOW_RIGHT},
              {"softcap", MHAGEN_SOFTCAP}, {"past", MHAGEN_CACHE_APPEND}, {"cross", MHAGEN_CROSS},
              {"sink", MHAGEN_SINK}, {"kv_len", MHAGEN_KV_LEN}, {"probs", MHAGEN_PROBS}};
  mhagen_kernel shape = {.h = integer_in(L, index, "h", 0), .h_kv = integer_in(L, index, "h_kv", 0),
                         .d_model = integer_in(L, index, "d_model", 0), .dk = integer_in(L, index, "dk", 0),
                         .dv = integer_in(L, index, "dv", 0), .seq = integer_in(L, index, "seq", 0),
                         .seq_kv = integer_in(L, index, "seq_kv", 0), .batch = integer_in(L, index, "batch", 1),
                         .k_width = integer_in(L, index, "k_width", 0), .v_width = integer_in(L, index, "v_width", 0),
                         .y_width = integer_in(L, index, "y_width", 0),
                         .window_left = integer_in(L, index, "window_left", 0),
                         .window_right = integer_in(L, index, "window_right", 0),
                         .scale = number_in(L, index, "scale", 1), .softcap = number_in(L, index, "softcap", 0),
                         .norm_eps = number_in(L, index, "norm_eps", 0),
                         .rope_dims = integer_in(L, index, "rope_dims", 0), .rope_theta = 1};
  if (shape.h < 1 || shape.h_kv < 1 || shape.h % shape.h_kv != 0) luaL_error(L, "heads do not fit");
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    if (is_set(L, index, rows[i].field)) shape.options |= rows[i].bit;
  }
  const int norm = word_in(L, index, "qk_norm", norms), turn = word_in(L, index, "rope", turns),
            mask = word_in(L, index, "mask", masks), score = word_in(L, index, "scores", scores);
  static const int of_norms[] = {0, MHAGEN_NORM_RMS, MHAGEN_NORM_LAYER, MHAGEN_NORM_L2},
                   of_spans[] = {MHAGEN_SPAN_HEAD, MHAGEN_SPAN_EACH, MHAGEN_SPAN_ALL},
                   of_turns[] = {0, MHAGEN_ROPE_HALF, MHAGEN_ROPE_INTERLEAVED};
  static const unsigned of_masks[] = {0, MHAGEN_MASK_BOOL, MHAGEN_MASK_ADD};
  static const int of_scores[] = {0, MHAGEN_SCORES_SCALED, MHAGEN_SCORES_CAPPED, MHAGEN_SCORES_MASKED};
  shape.qk_norm = of_norms[norm], shape.norm_span = of_spans[word_in(L, index, "norm_span", spans)];
  shape.rope = of_turns[turn], shape.options |= of_masks[mask], shape.scores = of_scores[score];
  if (score > 0) shape.options |= MHAGEN_SCORES;
  if (norm > 0) shape.options |= MHAGEN_QK_NORM;
  if (turn > 0) shape.options |= MHAGEN_ROPE;
  if (word_in(L, index, "layout", layouts) == 1) shape.options |= MHAGEN_BHSD;
  if (word_in(L, index, "causal_align", aligns) == 1) shape.options |= MHAGEN_BOTTOM_RIGHT;
  shape.mask_dims = text_in(L, index, "mask_dims");
  const char *const projected = text_in(L, index, "project");
  static const int of_letters[] = {MHAGEN_PROJECT_Q, MHAGEN_PROJECT_K, MHAGEN_PROJECT_V, MHAGEN_PROJECT_O};
  for (int i = 0; i < 4; ++i) {
    if (strchr(projected, "qkvo"[i]) && strcmp(projected, "none") != 0) shape.project |= of_letters[i];
  }
  shape.options |= MHAGEN_UNPROJECTED;
  return shape;
}

/* ---- arguments ---- */

/* The array in a field of the table at an index as floats, which stay on the stack; NULL where it is missing. */
static const float *floats_in(lua_State *L, int index, const char *name, size_t wanted) {
  if (lua_getfield(L, index, name) == LUA_TNIL) return NULL;
  size_t count;
  const double *from = numbers_at(L, -1, &count);
  if (count != wanted) luaL_error(L, "%s has another size", name);
  float *to = push_memory(L, count * sizeof *to)->at;
  for (size_t i = 0; i < count; ++i) to[i] = (float)from[i];
  return to;
}

static const float *matrix_in(lua_State *L, int index, const char *name, size_t wanted, bool needed) {
  if (lua_getfield(L, index, name) == LUA_TNIL) {
    if (needed) luaL_error(L, "%s is missing", name);
    return NULL;
  }
  const Memory *memory = luaL_checkudata(L, -1, MEMORY);
  if (memory->bytes / sizeof(float) < wanted) luaL_error(L, "%s is too short", name);
  return memory->at;
}

static mhagen_weights read_weights(lua_State *L, int index, const mhagen_kernel *shape) {
  const size_t h = (size_t)shape->h, h_kv = (size_t)shape->h_kv, dk = (size_t)shape->dk, dv = (size_t)shape->dv,
               pairs = (size_t)shape->rope_dims / 2;
  const struct {
    size_t inputs, columns;
    int project;
  } sizes[] = {{(size_t)shape->d_model, h * dk, MHAGEN_PROJECT_Q},
               {(size_t)shape->k_width, h_kv * dk, MHAGEN_PROJECT_K},
               {(size_t)shape->v_width, h_kv * dv, MHAGEN_PROJECT_V},
               {h * dv, (size_t)shape->y_width, MHAGEN_PROJECT_O}};
  static const char *const matrices[] = {"wq", "wk", "wv", "wo"};
  static const char *const biases[] = {"bq", "bk", "bv", "bo"};
  const float *w[4] = {NULL}, *b[4] = {NULL};
  for (int i = 0; i < 4; ++i) {
    if (!(shape->project & sizes[i].project)) continue;
    w[i] = matrix_in(L, index, matrices[i], sizes[i].inputs * sizes[i].columns, true);
    b[i] = matrix_in(L, index, biases[i], sizes[i].columns, false);
  }
  mhagen_weights weights = {.wq = w[0], .wk = w[1], .wv = w[2], .wo = w[3], .bq = b[0], .bk = b[1], .bv = b[2],
                            .bo = b[3], .layout = is_set(L, index, "in_out") ? MHAGEN_IN_OUT : MHAGEN_OUT_IN};
  if (shape->options & MHAGEN_QK_NORM) {
    const bool each = shape->norm_span != MHAGEN_SPAN_HEAD;
    weights.q_norm = matrix_in(L, index, "q_norm", dk * (each ? h : 1), false);
    weights.k_norm = matrix_in(L, index, "k_norm", dk * (each ? h_kv : 1), false);
  }
  if (shape->options & MHAGEN_SINK) weights.sink = matrix_in(L, index, "sink", h, false);
  if (shape->options & MHAGEN_ROPE) {
    const int more = shape->seq > shape->seq_kv ? shape->seq - shape->seq_kv : 0; /* before all keys, or behind them */
    const size_t places = (size_t)(shape->seq_kv + more);
    weights.rope_cos = matrix_in(L, index, "rope_cos", places * pairs, true);
    weights.rope_sin = matrix_in(L, index, "rope_sin", places * pairs, true);
  }
  return weights;
}

/* ---- the formula ---- */

typedef struct Run {
  mhagen_kernel shape;
  mhagen_weights weights;
  mhagen_args args;
  formula f;
  const double *w[REF_PRODUCTS]; /* [inner][columns]; null where heads are taken as they are */
  const double *x[REF_PRODUCTS]; /* inputs; null of Y */
  const double *past_k, *past_v; /* [batch][heads][past][width] */
  size_t past, width, count;     /* rows of earlier runs; numbers of a row of y, and of y */
  double *y, *hidden;            /* hidden: whether a number depends on a head whose query sees no key */
  double *k, *v;                 /* [batch][h_kv][rows][width]: what a cache has behind the run, or null */
  double *written, *unseen;      /* [batch][h][seq][seq_kv]: scores or weights, of queries that see no key; or null */
  double scores, size;           /* the largest score; the largest number of y without its bias */
} Run;

static const double HIDDEN = -6e4; /* what is added to scores of hidden keys is less: -65504 in f16, or lower */

/* Begins the formula of a shape, without its biases. */
static void begin(Run *r, const number *kind) {
  static const mhagen_weights none;
  r->f = ref_begin(&r->shape, &none, &r->args, kind, 0);
  r->f.weights = &r->weights, r->f.own = r;
  const product *const y = &r->f.of[REF_Y];
  r->width = y->heads * y->width, r->count = (size_t)r->shape.batch * y->all * r->width;
}

static void read_mask(lua_State *L, int index, Run *r) {
  size_t count = 1;
  for (const char *letter = r->shape.mask_dims; *letter; ++letter) {
    count *= *letter == 'b' ? (size_t)r->shape.batch : *letter == 'h' ? r->f.e.h : *letter == 'q' ? r->f.e.n : r->f.e.m;
  }
  if (!(r->shape.options & (MHAGEN_MASK_ADD | MHAGEN_MASK_BOOL))) return;
  const float *mask = floats_in(L, index, "mask", count);
  if (!mask) luaL_error(L, "the mask is missing");
  r->args.mask = mask;
  if (r->shape.options & MHAGEN_MASK_ADD) return;
  unsigned char *flags = push_memory(L, count)->at;
  for (size_t i = 0; i < count; ++i) flags[i] = mask[i] != 0;
  r->args.mask = flags;
}

static const double *array_in(lua_State *L, int index, const char *name, size_t wanted) {
  size_t count;
  lua_getfield(L, index, name);
  const double *at = numbers_at(L, -1, &count);
  if (count != wanted) luaL_error(L, "%s has another size", name);
  return at;
}

static void read_past(lua_State *L, int index, Run *r) {
  const size_t batch = (size_t)r->shape.batch;
  int *places = push_memory(L, batch * sizeof *places)->at;
  for (size_t b = 0; b < batch; ++b) places[b] = (int)r->past;
  r->args.past = places;
  if (r->past == 0) return;
  const product *const k = &r->f.of[REF_K], *const v = &r->f.of[REF_V];
  if (r->past + r->f.e.n > r->f.e.m) luaL_error(L, "seq_kv is too short");
  r->past_k = array_in(L, index, "past_k", batch * k->heads * r->past * k->width);
  r->past_v = array_in(L, index, "past_v", batch * v->heads * r->past * v->width);
}

static void read_lengths(lua_State *L, int index, Run *r) {
  const size_t batch = (size_t)r->shape.batch;
  if (!(r->shape.options & MHAGEN_KV_LEN)) return;
  const double *from = array_in(L, index, "kv_len", batch);
  int *lengths = push_memory(L, batch * sizeof *lengths)->at;
  for (size_t b = 0; b < batch; ++b) {
    if (!(from[b] >= 0 && from[b] <= (double)r->f.e.m)) luaL_error(L, "kv_len is out of its range");
    lengths[b] = (int)from[b];
  }
  r->args.kv_len = lengths;
}

/* The matrix of a projection in double, as [inner][columns]. */
static const double *matrix_of(lua_State *L, const float *w, size_t inner, size_t columns, mhagen_layout layout) {
  double *to = push_memory(L, inner * columns * sizeof *to)->at;
  const size_t step_i = layout == MHAGEN_OUT_IN ? 1 : columns, step_c = layout == MHAGEN_OUT_IN ? inner : 1;
  for (size_t i = 0; i < inner; ++i) {
    for (size_t c = 0; c < columns; ++c) to[i * columns + c] = (double)w[i * step_i + c * step_c];
  }
  return to;
}

/* A bias in double. */
static values bias_of(lua_State *L, const float *b, size_t columns) {
  if (!b) return (values){NULL, NULL, NULL};
  double *to = push_memory(L, columns * sizeof *to)->at;
  for (size_t c = 0; c < columns; ++c) to[c] = (double)b[c];
  return (values){to, NULL, NULL};
}

/* The arguments at an index of the stack. What is pushed stays there for the run. */
static void read_arguments(lua_State *L, int index, Run *r) {
  const mhagen_weights *const w = &r->weights;
  const bool cross = (r->shape.options & (MHAGEN_CROSS | MHAGEN_CACHE_APPEND)) != 0;
  const char *const names[] = {"q", cross ? "k" : "q", cross ? "v" : "q"};
  const float *const biases[] = {w->bq, w->bk, w->bv, w->bo};
  for (int i = 0; i <= REF_Y; ++i) {
    product *const p = &r->f.of[i];
    const size_t columns = p->heads * p->width;
    if (i != REF_Y) r->x[i] = array_in(L, index, names[i], (size_t)r->shape.batch * p->all * p->inner);
    if (!p->multiplies) continue;
    r->w[i] = matrix_of(L, ref_matrix(&r->f, i), p->inner, columns, w->layout);
    p->bias = bias_of(L, biases[i], columns);
  }
  read_mask(L, index, r);
  read_past(L, index, r);
  read_lengths(L, index, r);
}

/* ---- a kind of numbers whose inputs are in double, and whose products are those of the evaluated graph ---- */

static void take(const formula *f, int i, size_t row, values to) {
  const Run *const r = f->own;
  const product *const p = &f->of[i];
  const size_t pieces = p->multiplies ? 1 : p->heads, width = p->inner / pieces;
  for (size_t k = 0; k < pieces; ++k) {
    const size_t at = f->entry * p->all * pieces + ref_lies(&f->e, p->all, pieces, row, k);
    memcpy(to.x + k * width, r->x[i] + at * width, width * sizeof *to.x);
  }
}

static void multiply_rows(const formula *f, int i, size_t rows, values x, values y) {
  const Run *const r = f->own;
  multiply(x.x, r->w[i], y.x, rows, f->of[i].inner, f->of[i].heads * f->of[i].width);
}

/* Rows of earlier runs before those of this run. */
static void place_past(const double *from, size_t past, size_t heads, size_t width, double *to) {
  for (size_t head = 0; head < heads; ++head) {
    for (size_t row = 0; row < past; ++row, from += width) {
      memcpy(to + (row * heads + head) * width, from, width * sizeof *to);
    }
  }
}

/* Sets the flags of the numbers of y that come from a query of a head. */
static void hide(Run *r, size_t entry, size_t row, size_t head) {
  const product *const y = &r->f.of[REF_Y];
  const size_t at = entry * y->all * y->heads + ref_lies(&r->f.e, y->all, y->heads, row, y->multiplies ? 0 : head);
  for (size_t k = 0; k < y->width; ++k) r->hidden[at * y->width + k] = 1;
}

/* Rows of all heads as a cache has them. */
static void copy_heads(double *to, const double *from, size_t rows, size_t heads, size_t width) {
  for (size_t i = 0; i < rows * heads; ++i) {
    memcpy(to + (i % heads * rows + i / heads) * width, from + i * width, width * sizeof *to);
  }
}

/* Rows of K and V: those of earlier runs come before them, and a cache has both. */
static void keep(formula *f, int i) {
  const Run *const r = f->own;
  const product *const p = &f->of[i];
  const double *const past = i == REF_K ? r->past_k : r->past_v;
  double *const kept = i == REF_K ? r->k : r->v;
  if (i != REF_K && i != REF_V) return;
  if (r->past > 0)
    place_past(past + f->entry * p->heads * r->past * p->width, r->past, p->heads, p->width, p->to.x);
  if (kept) copy_heads(kept + f->entry * p->heads * p->rows * p->width, p->to.x, p->rows, p->heads, p->width);
}

/* Whether a query sees a key that no mask hides. */
static bool sees_a_key(const Run *r, size_t entry, size_t head, size_t row) {
  size_t first, end;
  mhagen_keys_seen(&r->shape, &r->args, entry, row, &first, &end);
  for (size_t key = first; key < end; ++key) {
    if (mhagen_mask(&r->shape, &r->args, entry, head, row, key) > HIDDEN) return true;
  }
  return false;
}

/* What a run writes beside y for a query: its scores, or its weights. */
static void write_scores(Run *r, const spot *of, bool sees) {
  const formula *const f = &r->f;
  const size_t m = f->e.m, first = ((of->entry * f->e.h + of->head) * f->e.n + of->row) * m;
  spot at = *of;
  for (size_t j = 0; j < m; ++j) {
    const bool in = j >= f->e.first && j < f->e.end, seen = in && f->e.sees[j];
    r->unseen[first + j] = !sees;
    at.key = j, at.mask = f->mask[j];
    r->written[first + j] = r->shape.options & MHAGEN_PROBS           ? (in ? f->p.x[j] : 0)
                            : !seen                                   ? -INFINITY
                            : r->shape.scores == MHAGEN_SCORES_MASKED ? ref_changed(&at, f->score[j])
                            : r->shape.scores == MHAGEN_SCORES_CAPPED ? ref_capped(&r->shape, f->score[j])
                                                                      : f->score[j];
  }
}

static void softmax(formula *f, const spot *at) {
  Run *const r = f->own;
  const bool sees = sees_a_key(r, at->entry, at->head, at->row);
  if (!sees) hide(r, at->entry, at->row, at->head);
  ref_softmax(f, at);
  for (size_t j = f->e.first; j < f->e.end; ++j) {
    if (f->e.sees[j] && f->mask[j] > HIDDEN) r->scores = fmax(r->scores, fabs(f->score[j]));
  }
  if (r->written) write_scores(r, at, sees);
}

static const number wide = {.take = take, .multiply = multiply_rows, .norm = ref_norm, .turn = ref_turn, .keep = keep,
                            .score = ref_scores, .softmax = softmax, .context = ref_context};

/* Pushes an array of zeros. */
static double *push_zeros(lua_State *L, size_t count) {
  double *to = push_memory(L, count * sizeof *to)->at;
  memset(to, 0, count * sizeof *to);
  return to;
}

/* Pushes a table with arrays for what a run writes beside y. */
static void push_more(lua_State *L, Run *r) {
  const product *const k = &r->f.of[REF_K], *const v = &r->f.of[REF_V];
  const size_t batch = (size_t)r->shape.batch, n = r->f.e.n, m = r->f.e.m,
               rows = r->shape.options & MHAGEN_CACHE_APPEND ? r->past + n : m;
  lua_createtable(L, 0, 4);
  r->k = push_zeros(L, batch * k->heads * rows * k->width), lua_setfield(L, -2, "k");
  r->v = push_zeros(L, batch * v->heads * rows * v->width), lua_setfield(L, -2, "v");
  if (!(r->shape.options & (MHAGEN_SCORES | MHAGEN_PROBS))) return;
  r->written = push_zeros(L, batch * r->f.e.h * n * m), lua_setfield(L, -2, "scores");
  r->unseen = push_zeros(L, batch * r->f.e.h * n * m), lua_setfield(L, -2, "unseen");
}

/* formula(shape, weights, args) -> y, flags, the largest score, the largest number of y without its bias, more
 *   shape     keys of a config and their values; past: rows in the cache, of cross-attention; more: whether more is
 *             wanted: { k =, v = [batch][h_kv][rows][width]; scores =, unseen = [batch][h][seq][seq_kv] with the keys
 *             scores or probs: what a run writes, and whether the query sees no key }
 *   weights   memory of floats by the names of matrices, and in_out = true where they lie so; tables of rope too
 *   args      arrays: q, k, v, mask, kv_len as a run of the config has them; past_k, past_v [batch][h_kv][past][width]
 *   flags     of the numbers of y: whether a query of theirs sees no key */
static int host_formula(lua_State *L) {
  for (int i = 1; i <= 3; ++i) luaL_checktype(L, i, LUA_TTABLE);
  lua_settop(L, 3);
  luaL_checkstack(L, 60, NULL);
  Run *const r = push_memory(L, sizeof *r)->at;
  *r = (Run){.shape = read_shape(L, 1), .past = (size_t)integer_in(L, 1, "past", 0)};
  r->weights = read_weights(L, 2, &r->shape);
  begin(r, &wide);
  read_arguments(L, 3, r);
  const bool more = is_set(L, 1, "more");
  if (more) push_more(L, r);
  r->y = push_zeros(L, r->count);
  r->hidden = push_zeros(L, r->count);
  r->f.y.x = r->y;
  ref_make_room(&r->f);
  ref_run(&r->f);
  if (ref_end(&r->f)) luaL_error(L, "not enough memory");
  const float *const bias = r->f.of[REF_Y].multiplies ? r->weights.bo : NULL;
  for (size_t i = 0; i < r->count; ++i) {
    const double own = r->y[i] - (bias ? (double)bias[i % r->width] : 0);
    if (own == own) r->size = fmax(r->size, fabs(own));
  }
  lua_pushnumber(L, r->scores);
  lua_pushnumber(L, r->size);
  if (more) lua_pushvalue(L, -5); else lua_pushnil(L);
  return 5;
}

/* hidden(shape, args) -> the flags of formula */
static int host_hidden(lua_State *L) {
  for (int i = 1; i <= 2; ++i) luaL_checktype(L, i, LUA_TTABLE);
  lua_settop(L, 2);
  Run *const r = push_memory(L, sizeof *r)->at;
  *r = (Run){.shape = read_shape(L, 1), .past = (size_t)integer_in(L, 1, "past", 0)};
  begin(r, NULL);
  read_mask(L, 2, r);
  read_past(L, 2, r);
  read_lengths(L, 2, r);
  r->hidden = push_zeros(L, r->count);
  const size_t queries = r->f.e.n * r->f.e.h;
  for (size_t i = 0; i < (size_t)r->shape.batch * queries; ++i) {
    const size_t entry = i / queries, row = i % queries / r->f.e.h, head = i % r->f.e.h;
    if (!sees_a_key(r, entry, head, row)) hide(r, entry, row, head);
  }
  return 1;
}

/* difference(x, y, flags) -> the largest one of two arrays where no flag is set; flags may be missing */
static int host_difference(lua_State *L) {
  size_t counts[3];
  const double *of[3] = {NULL};
  for (int i = 0; i < (lua_isnoneornil(L, 3) ? 2 : 3); ++i) {
    of[i] = numbers_at(L, i + 1, &counts[i]);
    luaL_argcheck(L, counts[i] == counts[0], i + 1, "another size");
  }
  double most = 0;
  for (size_t i = 0; i < counts[0]; ++i) {
    const double x = of[0][i], y = of[1][i];
    if ((of[2] && of[2][i] != 0) || x == y || (x != x && y != y)) continue;
    const double off = fabs(x - y);
    most = off <= most ? most : off == off ? off : INFINITY;
  }
  lua_pushnumber(L, most);
  return 1;
}

void add_formula(lua_State *L) {
  static const luaL_Reg functions[] = {
      {"formula", host_formula}, {"hidden", host_hidden}, {"difference", host_difference}, {NULL, NULL}};
  luaL_setfuncs(L, functions, 0);
}
