/* The layouts of mhagen.h's structs as data. It is compiled with each kernel, so that Python repeats no layout. */
#include "mhagen.h"

typedef struct field {
  const char *of, *name;
  size_t value; /* an offset, or the value of a constant */
  char kind;    /* as Python's module struct has it; of a constant a blank */
} field;

#define KIND(x) \
  _Generic((x), int: 'i', unsigned: 'I', double: 'd', size_t: sizeof(size_t) == 8 ? 'Q' : 'I', default: 'P')
#define ARG(name) {"args", #name, offsetof(mhagen_args, name), 'P'}
#define WEIGHT(name) {"weights", #name, offsetof(mhagen_weights, name), 'P'}
#define KERNEL(name) {"kernel", #name, offsetof(mhagen_kernel, name), KIND(((mhagen_kernel *)0)->name)}
#define NEED(name) {"need", #name, offsetof(mhagen_need, name), KIND(((mhagen_need *)0)->name)}
#define CONSTANT(name) {"constant", #name, (size_t)name, ' '}

MHAGEN_API extern const field mhagen_python_fields[];
const field mhagen_python_fields[] = {
  ARG(q), ARG(k), ARG(v), ARG(y), ARG(packed), ARG(workspace), ARG(kv_len), ARG(probs), ARG(kv_start), ARG(q_len),
  ARG(mask), ARG(scores), ARG(past), ARG(cache), ARG(tables), ARG(row_keys),
  ARG(rope_cos), ARG(rope_sin), ARG(k_rope_cos), ARG(k_rope_sin),
  {"args", "", sizeof(mhagen_args), ' '},
  WEIGHT(wq), WEIGHT(wk), WEIGHT(wv), WEIGHT(wo), WEIGHT(bq), WEIGHT(bk), WEIGHT(bv), WEIGHT(bo), WEIGHT(alibi),
  WEIGHT(sink), WEIGHT(q_norm), WEIGHT(k_norm), WEIGHT(rope_cos), WEIGHT(rope_sin), WEIGHT(norm1),
  WEIGHT(norm1_bias), WEIGHT(w1), WEIGHT(w2), WEIGHT(w3), WEIGHT(b1), WEIGHT(b2), WEIGHT(b3), WEIGHT(norm2),
  WEIGHT(norm2_bias), WEIGHT(norm1b), WEIGHT(norm2b), WEIGHT(gain1), WEIGHT(gain2),
  {"weights", "layout", offsetof(mhagen_weights, layout), 'i'}, {"weights", "", sizeof(mhagen_weights), ' '},
  KERNEL(name), KERNEL(isa), KERNEL(h), KERNEL(d_model), KERNEL(dk), KERNEL(dv), KERNEL(seq), KERNEL(seq_kv),
  KERNEL(batch), KERNEL(packed_bytes), KERNEL(workspace_bytes), KERNEL(supported), KERNEL(pack),
  KERNEL(run), KERNEL(self_test), KERNEL(needs), KERNEL(need_count), KERNEL(error), KERNEL(h_kv), KERNEL(k_width),
  KERNEL(v_width), KERNEL(y_width), KERNEL(norm_span), KERNEL(rope_dims), KERNEL(project), KERNEL(mask_dims),
  KERNEL(cache_bytes), KERNEL(fill), KERNEL(fill_needs), KERNEL(fill_need_count), KERNEL(io_dtype),
  KERNEL(tables_bytes), KERNEL(pack_tables), KERNEL(norm_kind), KERNEL(ffn),
  {"kernel", "options", offsetof(mhagen_kernel, options), 'Q'},
  {"kernel", "fingerprint", offsetof(mhagen_kernel, fingerprint), 'Q'},
  {"kernel", "", sizeof(mhagen_kernel), ' '},
  NEED(at), NEED(most), {"need", "", sizeof(mhagen_need), ' '},
  CONSTANT(MHAGEN_ALIGN), CONSTANT(MHAGEN_OUT_IN), CONSTANT(MHAGEN_MAX_THREADS), CONSTANT(MHAGEN_UNPROJECTED),
  CONSTANT(MHAGEN_BHSD), CONSTANT(MHAGEN_MASK_BOOL), CONSTANT(MHAGEN_CACHE_APPEND), CONSTANT(MHAGEN_QK_NORM),
  CONSTANT(MHAGEN_ROPE), CONSTANT(MHAGEN_ALIBI), CONSTANT(MHAGEN_SINK), CONSTANT(MHAGEN_PROJECT_Q),
  CONSTANT(MHAGEN_PROJECT_K), CONSTANT(MHAGEN_PROJECT_V), CONSTANT(MHAGEN_PROJECT_O), CONSTANT(MHAGEN_SPAN_HEAD),
  CONSTANT(MHAGEN_PRE_NORM), CONSTANT(MHAGEN_POST_NORM), CONSTANT(MHAGEN_NORM_LAYER),
  CONSTANT(MHAGEN_FFN), CONSTANT(MHAGEN_FFN_GATE), CONSTANT(MHAGEN_BRANCH_NORM), CONSTANT(MHAGEN_PARALLEL),
  CONSTANT(MHAGEN_RESIDUAL), CONSTANT(MHAGEN_OUT_ACT), CONSTANT(MHAGEN_FFN_NORM), CONSTANT(MHAGEN_ROPE_AT_RUN),
  {0, 0, 0, 0},
};
