/* formula.c: what a config says, by the reference of the tests (tests/check/reference.c), for gen/onnx/proof.lua. */
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

enum { Q, K, V, O, PROJECTIONS };

/* What a projection multiplies: rows of x by w, or rows of x as they are. */
typedef struct Projection {
  const double *w; /* [inner][columns]; null without one */
  const float *b;
  size_t inner, columns, heads, rows; /* of a row that is not projected; of a batch entry, of x */
  const double *x;                    /* null of O */
  const float *floats;                /* the same */
} Projection;

typedef struct Run {
  mhagen_kernel shape;
  mhagen_weights weights;
  mhagen_args args;
  extents e;
  numbers x;
  Projection of[PROJECTIONS];
  const double *past_k, *past_v; /* [batch][heads][past][width] */
  size_t past, width, count;     /* rows of earlier runs; numbers of a row of y, and of y */
  double *y, *hidden;            /* hidden: whether a number depends on a head whose query sees no key */
  double *k, *v;                 /* [batch][h_kv][rows][width]: what a cache has behind the run, or null */
  double *written, *unseen;      /* [batch][h][seq][seq_kv]: scores or weights, of queries that see no key; or null */
  double scores, size;           /* the largest score; the largest number of y without its bias */
} Run;

static const double HIDDEN = -6e4; /* what is added to scores of hidden keys is less: -65504 in f16, or lower */

/* Widths of what is not projected are those of its heads. */
static void set_widths(Run *r) {
  extents *const e = &r->e;
  if (!ref_projects(e, MHAGEN_PROJECT_K)) e->k_width = e->h_kv * e->dk;
  if (!ref_projects(e, MHAGEN_PROJECT_V)) e->v_width = e->h_kv * e->dv;
  if (!ref_projects(e, MHAGEN_PROJECT_O)) e->y_width = e->h * e->dv;
  r->shape.k_width = (int)e->k_width, r->shape.v_width = (int)e->v_width, r->shape.y_width = (int)e->y_width;
  r->width = e->y_width, r->count = (size_t)r->shape.batch * e->n * e->y_width;
}

static void read_mask(lua_State *L, int index, Run *r) {
  size_t count = 1;
  for (const char *letter = r->shape.mask_dims; *letter; ++letter) {
    count *= *letter == 'b' ? (size_t)r->shape.batch : *letter == 'h' ? r->e.h : *letter == 'q' ? r->e.n : r->e.m;
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
  if (r->past + r->e.n > r->e.m) luaL_error(L, "seq_kv is too short");
  r->past_k = array_in(L, index, "past_k", batch * r->e.h_kv * r->past * r->e.dk);
  r->past_v = array_in(L, index, "past_v", batch * r->e.h_kv * r->past * r->e.dv);
}

static void read_lengths(lua_State *L, int index, Run *r) {
  const size_t batch = (size_t)r->shape.batch;
  if (!(r->shape.options & MHAGEN_KV_LEN)) return;
  const double *from = array_in(L, index, "kv_len", batch);
  int *lengths = push_memory(L, batch * sizeof *lengths)->at;
  for (size_t b = 0; b < batch; ++b) {
    if (!(from[b] >= 0 && from[b] <= (double)r->e.m)) luaL_error(L, "kv_len is out of its range");
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

/* The arguments at an index of the stack. What is pushed stays there for the run. */
static void read_arguments(lua_State *L, int index, Run *r) {
  const extents *const e = &r->e;
  const mhagen_weights *const w = &r->weights;
  const size_t batch = (size_t)r->shape.batch, hq = e->h * e->dk, hk = e->h_kv * e->dk, hv = e->h_kv * e->dv;
  const bool cross = (r->shape.options & (MHAGEN_CROSS | MHAGEN_CACHE_APPEND)) != 0;
  const struct {
    const char *name;
    int kind;
    const float *w, *b;
    size_t inner, columns, heads, rows;
  } rows[PROJECTIONS] = {{"q", MHAGEN_PROJECT_Q, w->wq, w->bq, e->q_width, hq, e->h, e->n},
                         {cross ? "k" : "q", MHAGEN_PROJECT_K, w->wk, w->bk, e->k_width, hk, e->h_kv, e->m},
                         {cross ? "v" : "q", MHAGEN_PROJECT_V, w->wv, w->bv, e->v_width, hv, e->h_kv, e->m},
                         {NULL, MHAGEN_PROJECT_O, w->wo, w->bo, e->h * e->dv, e->y_width, 0, 0}};
  for (int i = 0; i < PROJECTIONS; ++i) {
    Projection *const p = &r->of[i];
    *p = (Projection){NULL, rows[i].b, rows[i].inner, rows[i].columns, rows[i].heads, rows[i].rows, NULL, NULL};
    if (ref_projects(e, rows[i].kind)) p->w = matrix_of(L, rows[i].w, p->inner, p->columns, w->layout);
    if (!rows[i].name) continue;
    p->x = array_in(L, index, rows[i].name, batch * p->rows * p->inner);
    p->floats = floats_in(L, index, rows[i].name, batch * p->rows * p->inner);
  }
  r->args.q = r->of[Q].floats, r->args.k = r->of[K].floats, r->args.v = r->of[V].floats;
  read_mask(L, index, r);
  read_past(L, index, r);
  read_lengths(L, index, r);
}

/* Rows of a batch entry: y = x W + b, by the product that evaluates the graph, or heads as they are. */
static void take(const Run *r, const Projection *p, size_t entry, size_t rows, const double *x, double *y) {
  if (!p->w) {
    ref_take(&r->e, p->floats + entry * p->rows * p->inner, p->rows, rows, p->heads, p->columns / p->heads, y);
    return;
  }
  for (size_t i = 0; i < rows * p->columns; ++i) y[i] = p->b ? (double)p->b[i % p->columns] : 0;
  multiply(x, p->w, y, rows, p->inner, p->columns);
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
  const extents *const e = &r->e;
  const bool whole = ref_projects(e, MHAGEN_PROJECT_O);
  const size_t one = whole ? e->y_width : e->dv;
  const size_t at = whole ? entry * e->n + row : entry * e->n * e->h + ref_lies(e, e->n, e->h, row, head);
  for (size_t k = 0; k < one; ++k) r->hidden[at * one + k] = 1;
}

/* Rows of all heads as a cache has them. */
static void keep(double *to, const double *from, size_t rows, size_t heads, size_t width) {
  for (size_t i = 0; i < rows * heads; ++i) {
    memcpy(to + (i % heads * rows + i / heads) * width, from + i * width, width * sizeof *to);
  }
}

/* What a run writes beside y for a query: its scores, or its weights. */
static void write_scores(Run *r, const spot *of, const scored *room, bool sees) {
  const size_t m = r->e.m, first = ((of->entry * r->e.h + of->head) * r->e.n + of->row) * m;
  for (size_t j = 0; j < m; ++j) r->unseen[first + j] = !sees;
  if (r->shape.options & MHAGEN_PROBS) {
    ref_store_probs(of, &r->e, room->p, r->written);
    return;
  }
  spot at = *of;
  for (size_t j = 0; j < m; ++j) {
    const bool seen = j >= r->e.first && j < r->e.end && r->e.sees[j];
    at.key = j, at.mask = room->mask[j];
    r->written[first + j] = !seen                                      ? -INFINITY
                            : r->shape.scores == MHAGEN_SCORES_MASKED ? ref_changed(&at, room->score[j])
                            : r->shape.scores == MHAGEN_SCORES_CAPPED ? ref_capped(&r->shape, room->score[j])
                                                                      : room->score[j];
  }
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

static void attend(Run *r, size_t entry, const scored *room) {
  for (size_t i = 0; i < r->e.n * r->e.h; ++i) {
    const size_t row = i / r->e.h, head = i % r->e.h;
    const spot at = ref_spot(&r->shape, &r->weights, &r->args, entry, head, row);
    const bool sees = sees_a_key(r, entry, head, row);
    if (!sees) hide(r, entry, row, head);
    ref_attend(&at, &r->x, &r->e, room);
    for (size_t j = r->e.first; j < r->e.end; ++j) {
      if (r->e.sees[j] && room->mask[j] > HIDDEN) r->scores = fmax(r->scores, fabs(room->score[j]));
    }
    if (r->written) write_scores(r, &at, room, sees);
  }
}

static void run_entry(Run *r, size_t entry, const scored *room) {
  extents *const e = &r->e;
  ref_start_entry(&r->shape, &r->args, entry, e);
  double *const to[] = {r->x.q, r->x.k, r->x.v};
  for (int i = Q; i <= V; ++i) {
    const Projection *const p = &r->of[i];
    take(r, p, entry, i == Q ? e->n : e->made, p->x + entry * p->rows * p->inner, to[i]);
  }
  ref_normalize_and_turn(&r->shape, e, &r->x);
  if (r->past > 0) {
    place_past(r->past_k + entry * e->h_kv * r->past * e->dk, r->past, e->h_kv, e->dk, r->x.k);
    place_past(r->past_v + entry * e->h_kv * r->past * e->dv, r->past, e->h_kv, e->dv, r->x.v);
  }
  if (r->k) {
    keep(r->k + entry * e->h_kv * e->made * e->dk, r->x.k, e->made, e->h_kv, e->dk);
    keep(r->v + entry * e->h_kv * e->made * e->dv, r->x.v, e->made, e->h_kv, e->dv);
  }
  attend(r, entry, room);
  if (r->of[O].w) take(r, &r->of[O], entry, e->n, r->x.context, r->y + entry * e->n * e->y_width);
  else ref_project_output(&r->x, e, entry);
}

/* Pushes an array of zeros. */
static double *push_zeros(lua_State *L, size_t count) {
  double *to = push_memory(L, count * sizeof *to)->at;
  memset(to, 0, count * sizeof *to);
  return to;
}

/* Pushes a table with arrays for what a run writes beside y. */
static void push_more(lua_State *L, Run *r) {
  const extents *const e = &r->e;
  const size_t batch = (size_t)r->shape.batch, rows = r->shape.options & MHAGEN_CACHE_APPEND ? r->past + e->n : e->m;
  lua_createtable(L, 0, 4);
  r->k = push_zeros(L, batch * e->h_kv * rows * e->dk), lua_setfield(L, -2, "k");
  r->v = push_zeros(L, batch * e->h_kv * rows * e->dv), lua_setfield(L, -2, "v");
  if (!(r->shape.options & (MHAGEN_SCORES | MHAGEN_PROBS))) return;
  r->written = push_zeros(L, batch * e->h * e->n * e->m), lua_setfield(L, -2, "scores");
  r->unseen = push_zeros(L, batch * e->h * e->n * e->m), lua_setfield(L, -2, "unseen");
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
  r->e = ref_extents(&r->shape);
  set_widths(r);
  read_arguments(L, 3, r);
  double *const room = push_memory(L, (ref_room(&r->e) + 3 * r->e.m) * sizeof *room)->at;
  double *const keys = room + ref_room(&r->e);
  const scored of_keys = {keys, keys + r->e.m, keys + 2 * r->e.m};
  r->e.sees = push_memory(L, r->e.m)->at;
  const bool more = is_set(L, 1, "more");
  if (more) push_more(L, r);
  r->y = push_zeros(L, r->count);
  r->hidden = push_zeros(L, r->count);
  r->x = ref_numbers(&r->shape, &r->weights, &r->args, r->y);
  ref_divide(&r->x, &r->e, room);
  for (size_t b = 0; b < (size_t)r->shape.batch; ++b) run_entry(r, b, &of_keys);
  for (size_t i = 0; i < r->count; ++i) {
    const double own = r->y[i] - (r->of[O].w && r->of[O].b ? (double)r->of[O].b[i % r->width] : 0);
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
  r->e = ref_extents(&r->shape);
  set_widths(r);
  read_mask(L, 2, r);
  read_past(L, 2, r);
  read_lengths(L, 2, r);
  r->hidden = push_zeros(L, r->count);
  const size_t queries = r->e.n * r->e.h;
  for (size_t i = 0; i < (size_t)r->shape.batch * queries; ++i) {
    const size_t entry = i / queries, row = i % queries / r->e.h, head = i % r->e.h;
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
