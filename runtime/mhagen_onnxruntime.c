/* mhagen_onnxruntime.c: generated kernels as operators of ONNX Runtime, 1.18 and later.
 *
 * This file may be used, changed and shipped without conditions; it comes without warranty
 * (SPDX-License-Identifier: 0BSD).
 *
 * Operators of the domain `mhagen`: Attention, and AttentionF16 and AttentionBF16 for rows of these
 * types. A node is one layer.
 *
 *   inputs      q; k, v      rows, as the kernel takes them; k and v of cross-attention alone.
 *                            Any other value may stand for an input that the kernel does not take.
 *               mask         where the kernel has one; bool, int32 and int64, or as q
 *               kv_len       [batch], int32 or int64: the valid keys, where they are an input
 *   output      y
 *   attributes  layer        its name in the table of mhagen_onnxruntime.h
 *               source       mhagen_ort_source: a graph and a library of different models are told
 *
 * Any batch is allowed. Lengths are those of the kernel, or with q_len and kv_len up to these.
 * Tasks run on the threads of the session: those of one batch entry after the other, or whole
 * entries at a time if there are many or small ones. Several runs may call an operator at once, for
 * each asks the session's allocator for its workspaces.
 */
#include "mhagen_onnxruntime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the C API of ONNX Runtime, as far as it is needed here ---- */

#if defined(_WIN32) && !defined(_WIN64)
#define ORT_CALL __stdcall
#else
#define ORT_CALL
#endif

#ifdef _WIN32
#define ORT_EXPORT __declspec(dllexport)
#else
#define ORT_EXPORT __attribute__((visibility("default")))
#endif

enum { API_VERSION = 18 }; /* 1.17 has KernelContext_ParallelFor, 1.18 KernelInfoGetAllocator */

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_NOT_IMPLEMENTED = 9 }; /* codes of a status */

enum { /* types of elements */
  ANY_TYPE = 0, TYPE_FLOAT = 1, TYPE_UINT8 = 2, TYPE_INT32 = 6, TYPE_INT64 = 7, TYPE_BOOL = 9,
  TYPE_FLOAT16 = 10, TYPE_BFLOAT16 = 16
};

enum { REQUIRED = 0, OPTIONAL = 1 }; /* characteristics of an input */

enum { STRING_ATTRIBUTE = 5 };

typedef struct OrtStatus OrtStatus;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtValue OrtValue;
typedef struct OrtShape OrtShape; /* OrtTensorTypeAndShapeInfo */
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtShapeInferContext OrtShapeInferContext;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtApi OrtApi;
typedef struct OrtCustomOp OrtCustomOp;

typedef struct OrtAllocator {
  uint32_t version;
  void *(ORT_CALL *Alloc)(struct OrtAllocator *self, size_t bytes);
  void (ORT_CALL *Free)(struct OrtAllocator *self, void *block);
} OrtAllocator;

/* All members of OrtApi are pointers to functions, and keep their places: later versions add theirs
 * behind. Those that are not called here are gaps. */
typedef void (*unused)(void);

struct OrtApi {
  OrtStatus *(ORT_CALL *CreateStatus)(int code, const char *text);
  unused gap1[25];
  OrtStatus *(ORT_CALL *CreateCustomOpDomain)(const char *name, OrtCustomOpDomain **out);
  OrtStatus *(ORT_CALL *CustomOpDomain_Add)(OrtCustomOpDomain *domain, const OrtCustomOp *op);
  OrtStatus *(ORT_CALL *AddCustomOpDomain)(OrtSessionOptions *options, OrtCustomOpDomain *domain);
  unused gap29[22];
  OrtStatus *(ORT_CALL *GetTensorMutableData)(const OrtValue *value, void **out);
  unused gap52[5];
  OrtStatus *(ORT_CALL *CreateTensorTypeAndShapeInfo)(OrtShape **out);
  OrtStatus *(ORT_CALL *SetTensorElementType)(OrtShape *shape, int type);
  OrtStatus *(ORT_CALL *SetDimensions)(OrtShape *shape, const int64_t *dims, size_t count);
  OrtStatus *(ORT_CALL *GetTensorElementType)(const OrtShape *shape, int *out);
  OrtStatus *(ORT_CALL *GetDimensionsCount)(const OrtShape *shape, size_t *out);
  OrtStatus *(ORT_CALL *GetDimensions)(const OrtShape *shape, int64_t *dims, size_t count);
  OrtStatus *(ORT_CALL *GetSymbolicDimensions)(const OrtShape *shape, const char **names,
                                               size_t count);
  unused gap64[1];
  OrtStatus *(ORT_CALL *GetTensorTypeAndShape)(const OrtValue *value, OrtShape **out);
  unused gap66[21];
  OrtStatus *(ORT_CALL *KernelInfoGetAttribute_string)(const OrtKernelInfo *info, const char *name,
                                                       char *out, size_t *size);
  unused gap88[2];
  OrtStatus *(ORT_CALL *KernelContext_GetInput)(const OrtKernelContext *context, size_t index,
                                                const OrtValue **out);
  OrtStatus *(ORT_CALL *KernelContext_GetOutput)(OrtKernelContext *context, size_t index,
                                                 const int64_t *dims, size_t count, OrtValue **out);
  unused gap92[1];
  void (ORT_CALL *ReleaseStatus)(OrtStatus *status);
  unused gap94[5];
  void (ORT_CALL *ReleaseTensorTypeAndShapeInfo)(OrtShape *shape);
  unused gap100[1];
  void (ORT_CALL *ReleaseCustomOpDomain)(OrtCustomOpDomain *domain);
  unused gap102[30];
  void (ORT_CALL *ReleaseAllocator)(OrtAllocator *allocator);
  unused gap133[135];
  OrtStatus *(ORT_CALL *ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext *context,
                                                             size_t index, OrtShape **out);
  OrtStatus *(ORT_CALL *ShapeInferContext_GetAttribute)(const OrtShapeInferContext *context,
                                                        const char *name, const OrtOpAttr **out);
  OrtStatus *(ORT_CALL *ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext *context,
                                                              size_t index, const OrtShape *shape);
  OrtStatus *(ORT_CALL *SetSymbolicDimensions)(OrtShape *shape, const char **names, size_t count);
  OrtStatus *(ORT_CALL *ReadOpAttr)(const OrtOpAttr *attribute, int type, void *out, size_t bytes,
                                    size_t *size);
  unused gap273[1];
  OrtStatus *(ORT_CALL *KernelContext_ParallelFor)(const OrtKernelContext *context,
                                                   void (*task)(void *data, size_t index),
                                                   size_t count, size_t parts, void *data);
  unused gap275[3];
  OrtStatus *(ORT_CALL *KernelInfoGetAllocator)(const OrtKernelInfo *info, int memory_type,
                                                OrtAllocator **out);
};

#define IS_AT(member, place) \
  typedef char member##_is_at[offsetof(OrtApi, member) == (place) * sizeof(unused) ? 1 : -1]
IS_AT(CreateCustomOpDomain, 26);
IS_AT(GetTensorMutableData, 51);
IS_AT(GetTensorTypeAndShape, 65);
IS_AT(KernelContext_GetOutput, 91);
IS_AT(ReleaseAllocator, 132);
IS_AT(KernelContext_ParallelFor, 274);
IS_AT(KernelInfoGetAllocator, 278);

typedef struct OrtApiBase {
  const OrtApi *(ORT_CALL *GetApi)(uint32_t version);
  const char *(ORT_CALL *GetVersionString)(void);
} OrtApiBase;

struct OrtCustomOp {
  uint32_t version;
  unused CreateKernel;
  const char *(ORT_CALL *GetName)(const OrtCustomOp *op);
  const char *(ORT_CALL *GetExecutionProviderType)(const OrtCustomOp *op);
  int (ORT_CALL *GetInputType)(const OrtCustomOp *op, size_t index);
  size_t (ORT_CALL *GetInputTypeCount)(const OrtCustomOp *op);
  int (ORT_CALL *GetOutputType)(const OrtCustomOp *op, size_t index);
  size_t (ORT_CALL *GetOutputTypeCount)(const OrtCustomOp *op);
  unused KernelCompute;
  void (ORT_CALL *KernelDestroy)(void *kernel);
  int (ORT_CALL *GetInputCharacteristic)(const OrtCustomOp *op, size_t index);
  int (ORT_CALL *GetOutputCharacteristic)(const OrtCustomOp *op, size_t index);
  int (ORT_CALL *GetInputMemoryType)(const OrtCustomOp *op, size_t index);
  unused variadic[4];
  OrtStatus *(ORT_CALL *CreateKernelV2)(const OrtCustomOp *op, const OrtApi *api,
                                        const OrtKernelInfo *info, void **kernel);
  OrtStatus *(ORT_CALL *KernelComputeV2)(void *kernel, OrtKernelContext *context);
  OrtStatus *(ORT_CALL *InferOutputShapeFn)(const OrtCustomOp *op, OrtShapeInferContext *context);
  int (ORT_CALL *GetStartVersion)(const OrtCustomOp *op);
  int (ORT_CALL *GetEndVersion)(const OrtCustomOp *op);
  unused in_place[2], aliases[2];
};

/* Leaves a function with the status of a call that failed. */
#define TRY(call)                                 \
  do {                                            \
    OrtStatus *const status_of_call = (call);     \
    if (status_of_call) return status_of_call;    \
  } while (0)

/* ---- what a node and a run of it have ---- */

typedef struct node {
  const OrtApi *api;
  OrtAllocator *allocator;
  mhagen_ort_layer layer;
} node;

enum { Q, K, V, MASK, KV_LEN, INPUTS, AXES = 6, MASK_AXES = 4 };

static const char *const input_names[INPUTS] = {"q", "k", "v", "mask", "kv_len"};

typedef struct tensor {
  const char *data; /* null: not given */
  int type;
  size_t axes;
  int64_t dims[AXES];
} tensor;

/* The rows of q, k, v or y. A kernel takes heads * rows * width numbers of a batch entry, where
 * heads are not the outer axis 1 * rows * (heads * width). */
typedef struct rows {
  const char *in; /* of an input */
  char *out;      /* of y */
  size_t heads, width; /* in bytes */
  size_t padded;       /* where a copy begins in a workspace; 0: there is none */
} rows;

/* The elements of a mask: steps in the tensor, 0 along axes of one for all. */
typedef struct mask {
  const char *data;
  int type, is_float, hides;
  size_t heads, queries; /* of a batch entry, as the kernel takes them */
  int64_t steps[MASK_AXES]; /* b h q k */
  size_t copied;         /* as `padded` of rows */
} mask;

enum {
  FEW_ENTRIES = 8,      /* fewer run one by one, with their tasks on all threads */
  MOST_WORKERS = 32,    /* as `taken` has bits */
  MOST_BYTES = 64 << 20 /* of all workspaces */
};

/* The cycles of a run below which its tasks are not worth waking threads. */
static const double SMALL = 100e3;

typedef struct run {
  const node *node;
  const OrtKernelContext *context;
  const mhagen_kernel *kernel; /* the member that has these lengths */
  int batch, seq, seq_kv;
  tensor in[INPUTS];
  rows q, k, v, y;
  mask mask;
  char *workspaces;
  size_t workspace_bytes; /* of each */
  unsigned workers;       /* how many there are */
  unsigned taken;         /* bits of those in use */
  int failed;             /* a status of a batch entry */
} run;

/* A status with a text. */
enum { TEXT = 400 };
#define FAIL(node, ...)                    \
  fail((node)->api, (node)->layer.name,    \
       (snprintf(text, sizeof text, __VA_ARGS__), text))

static OrtStatus *fail(const OrtApi *api, const char *layer, const char *text) {
  char all[TEXT + 200];
  snprintf(all, sizeof all, "mhagen: layer %.150s: %s", layer, text);
  return api->CreateStatus(ORT_INVALID_ARGUMENT, all);
}

/* The shape of a tensor as text. */
static const char *shape_of(const tensor *of, char *text, size_t size) {
  size_t end = 0;
  text[0] = '\0';
  for (size_t i = 0; i < of->axes && end < size; i++) {
    end += (size_t)snprintf(text + end, size - end, "%s%lld", i ? ", " : "",
                            (long long)of->dims[i]);
  }
  return text;
}

/* ---- what a kernel takes ---- */

static int is_projected(const mhagen_kernel *kernel, int letter) {
  return !(kernel->options & MHAGEN_UNPROJECTED) || kernel->project & letter;
}

static int is_by_head(const mhagen_kernel *kernel, int letter) {
  return kernel->options & MHAGEN_BHSD && !is_projected(kernel, letter);
}

static size_t element_bytes(const mhagen_kernel *kernel) { return kernel->io_dtype ? 2 : 4; }

/* Rows of `width` numbers, or of `heads` times so many that are not projected. */
static rows rows_for(const mhagen_kernel *kernel, int letter, int width, int heads, int head) {
  const size_t bytes = element_bytes(kernel), count = (size_t)heads, size = (size_t)head * bytes;
  if (is_by_head(kernel, letter)) return (rows){.heads = count, .width = size};
  return (rows){.heads = 1, .width = is_projected(kernel, letter) ? (size_t)width * bytes
                                                                   : count * size};
}

/* The member of a ladder that has room for these lengths; of any other kernel it is that itself. */
static const mhagen_kernel *member_for(const mhagen_kernel *kernel, int seq, int seq_kv) {
  if (!kernel->by_length) return kernel;
  const mhagen_kernel *const *member = kernel->members;
  while (member[1] && ((*member)->seq < seq || (*member)->seq_kv < seq_kv)) ++member;
  return *member;
}

/* ---- inputs ---- */

static OrtStatus *read_shape(const OrtApi *api, const OrtShape *shape, tensor *out) {
  TRY(api->GetTensorElementType(shape, &out->type));
  TRY(api->GetDimensionsCount(shape, &out->axes));
  if (out->axes > AXES) return NULL;
  return api->GetDimensions(shape, out->dims, out->axes);
}

static OrtStatus *read_input(run *r, int index) {
  const OrtApi *const api = r->node->api;
  tensor *const in = &r->in[index];
  const OrtValue *value = NULL;
  TRY(api->KernelContext_GetInput(r->context, (size_t)index, &value));
  if (!value) return NULL;
  OrtShape *shape;
  TRY(api->GetTensorTypeAndShape(value, &shape));
  OrtStatus *const status = read_shape(api, shape, in);
  api->ReleaseTensorTypeAndShapeInfo(shape);
  if (status) return status;
  char text[TEXT];
  if (in->axes > AXES) {
    return FAIL(r->node, "%s has %d axes", input_names[index], (int)in->axes);
  }
  void *data;
  TRY(api->GetTensorMutableData(value, &data));
  in->data = data;
  return NULL;
}

/* What an axis with this letter must be, or -1 for any; of batch and rows that is for others. */
static int64_t size_for(char letter, const rows *of, size_t bytes, int heads) {
  switch (letter) {
    case 'h': return heads;
    case 'd': return (int64_t)(of->width / bytes) / (of->heads > 1 ? 1 : heads);
    case 'w': return (int64_t)(of->width / bytes);
    case '1': return 1;
    default: return -1;
  }
}

/* Takes the rows of an input of so many heads, whose batch must be that of the others; count: how
 * many rows they are. */
static OrtStatus *take_rows(run *r, int index, int heads, rows *out, int *count) {
  const tensor *const in = &r->in[index];
  const char *const letters = r->node->layer.axes[index];
  const size_t bytes = element_bytes(r->node->layer.kernel);
  char text[TEXT], shape[TEXT / 2];
  int64_t batch = 1, seq = 1;
  int right = letters && strlen(letters) == in->axes;
  for (size_t i = 0; i < in->axes && right; i++) {
    const int64_t size = in->dims[i], wanted = size_for(letters[i], out, bytes, heads);
    right = size <= INT32_MAX && (wanted < 0 || size == wanted) &&
            (letters[i] != 'g' || size % heads == 0);
    if (letters[i] == 'b') batch *= size;
    if (letters[i] == 'g') batch *= size / heads;
    if (letters[i] == 's') seq = size;
    right = right && batch <= INT32_MAX;
  }
  if (!right) {
    return FAIL(r->node, "%s is [%s], and its axes must be %s with h = %d, d = %d, w = %d",
                input_names[index], shape_of(in, shape, sizeof shape), letters ? letters : "none",
                heads, (int)size_for('d', out, bytes, heads),
                (int)size_for('w', out, bytes, heads));
  }
  if (index != Q && batch != r->batch) {
    return FAIL(r->node, "%s is [%s], and q has %d batch entries", input_names[index],
                shape_of(in, shape, sizeof shape), r->batch);
  }
  out->in = in->data;
  r->batch = (int)batch;
  *count = (int)seq;
  return NULL;
}

/* Refuses a number of rows that the kernel has no room for. */
static OrtStatus *check_count(const node *of, const char *name, int count, int most, int any) {
  char text[TEXT];
  if (count == most || (any && count < most)) return NULL;
  return FAIL(of, "%s has %d rows, and the kernel takes %s%d; generate it with %s=%d%s", name, count,
              any ? "at most " : "", most, name[0] == 'q' ? "seq" : "seq_kv", count,
              any ? "" : name[0] == 'q' ? ", or q_len=true" : ", or kv_len=true");
}

static OrtStatus *take_lengths(run *r) {
  const mhagen_kernel *const kernel = r->node->layer.kernel;
  const uint64_t options = kernel->options;
  r->q = rows_for(kernel, MHAGEN_PROJECT_Q, kernel->d_model, kernel->h, kernel->dk);
  TRY(take_rows(r, Q, kernel->h, &r->q, &r->seq));
  r->seq_kv = r->seq;
  if (options & MHAGEN_CROSS) {
    int values;
    r->k = rows_for(kernel, MHAGEN_PROJECT_K, kernel->k_width, kernel->h_kv, kernel->dk);
    r->v = rows_for(kernel, MHAGEN_PROJECT_V, kernel->v_width, kernel->h_kv, kernel->dv);
    TRY(take_rows(r, K, kernel->h_kv, &r->k, &r->seq_kv));
    TRY(take_rows(r, V, kernel->h_kv, &r->v, &values));
    char text[TEXT];
    if (values != r->seq_kv) return FAIL(r->node, "k has %d rows, and v %d", r->seq_kv, values);
  }
  TRY(check_count(r->node, "q", r->seq, kernel->seq, (options & MHAGEN_Q_LEN) != 0));
  TRY(check_count(r->node, "k", r->seq_kv, kernel->seq_kv, (options & MHAGEN_KV_LEN) != 0));
  const int apart = kernel->seq_kv - kernel->seq;
  if (options & MHAGEN_BOTTOM_RIGHT && r->seq_kv - r->seq != apart) {
    char text[TEXT];
    return FAIL(r->node, "q has %d rows and k %d; causal_align=bottom_right wants %d more of k", r->seq,
                r->seq_kv, apart);
  }
  r->kernel = member_for(kernel, r->seq, r->seq_kv);
  return NULL;
}

/* The valid keys of a batch entry, or -1 where that is no number of them. */
static int valid_keys(const run *r, int entry) {
  const tensor *const in = &r->in[KV_LEN];
  if (in->type == ANY_TYPE) return r->seq_kv;
  int64_t count;
  if (in->type == TYPE_INT64) {
    memcpy(&count, in->data + (size_t)entry * sizeof count, sizeof count);
  } else {
    int32_t number;
    memcpy(&number, in->data + (size_t)entry * sizeof number, sizeof number);
    count = number;
  }
  return count < 0 || count > r->seq_kv ? -1 : (int)count;
}

static OrtStatus *check_valid_keys(const run *r) {
  const tensor *const in = &r->in[KV_LEN];
  char text[TEXT], shape[TEXT / 2];
  if (in->type == ANY_TYPE) return NULL;
  if ((in->type != TYPE_INT32 && in->type != TYPE_INT64) || in->axes != 1 ||
      in->dims[0] != r->batch) {
    return FAIL(r->node, "kv_len is [%s], and must be an int32 or int64 for each of %d batch entries",
                shape_of(in, shape, sizeof shape), r->batch);
  }
  for (int i = 0; i < r->batch; i++) {
    if (valid_keys(r, i) < 0) {
      return FAIL(r->node, "kv_len of batch entry %d is outside 0..%d", i, r->seq_kv);
    }
  }
  return NULL;
}

/* ---- masks ---- */

static const char axes_of_masks[] = "bhqk";

/* The step of an axis that is not of size 1; whether it is one of the kernel's mask. */
static int take_mask_axis(run *r, char letter, int64_t size, int64_t step, const int *extents) {
  const char *const dims = r->kernel->mask_dims, *const found = strchr(axes_of_masks, letter);
  int64_t *const steps = r->mask.steps;
  if (letter == 'g') { /* batch and heads */
    steps[0] = step * extents[1];
    steps[1] = strchr(dims, 'h') ? step : 0;
    return size == (int64_t)extents[0] * extents[1] && (steps[1] || extents[1] == 1);
  }
  if (!found || letter == '\0') return 0;
  const int axis = (int)(found - axes_of_masks);
  steps[axis] = step;
  return size == extents[axis] && (axis == 0 || strchr(dims, letter));
}

static OrtStatus *take_mask(run *r) {
  const tensor *const in = &r->in[MASK];
  const mhagen_kernel *const one = r->kernel;
  mask *const m = &r->mask;
  char text[TEXT], shape[TEXT / 2];
  const int extents[MASK_AXES] = {r->batch, one->h, r->seq, r->seq_kv};
  m->is_float = (one->options & MHAGEN_MASK_ADD) != 0;
  m->heads = strchr(one->mask_dims, 'h') ? (size_t)one->h : 1;
  m->queries = strchr(one->mask_dims, 'q') ? (size_t)one->seq : 1;
  m->data = in->data;
  m->type = in->type;
  m->hides = r->node->layer.mask_hides;
  const int is_float = in->type == TYPE_FLOAT || in->type == TYPE_FLOAT16 ||
                       in->type == TYPE_BFLOAT16;
  const int is_flag = in->type == TYPE_BOOL || in->type == TYPE_UINT8 || in->type == TYPE_INT32 ||
                      in->type == TYPE_INT64;
  const char *const own = r->node->layer.axes[MASK];
  const size_t left = in->axes < MASK_AXES ? MASK_AXES - in->axes : 0;
  const char *const letters = own ? own : axes_of_masks + left;
  int right = (m->is_float ? is_float : is_flag) && strlen(letters) == in->axes;
  int64_t step = 1;
  for (size_t i = in->axes; i-- > 0 && right;) {
    const int64_t size = in->dims[i];
    if (size != 1) right = take_mask_axis(r, letters[i], size, step, extents);
    step *= size;
  }
  if (right) return NULL;
  return FAIL(r->node, "mask has type %d and the shape [%s], and must be %s, with the axes %s; "
              "of b, h, q, k = %d, %d, %d, %d those that are b or in mask_dims=%s, others 1", in->type,
              shape_of(in, shape, sizeof shape), m->is_float ? "added" : "of flags", letters,
              extents[0], extents[1], extents[2], extents[3], one->mask_dims);
}

/* Whether the mask of a batch entry lies as the kernel takes it. */
static int is_as_it_lies(const run *r) {
  const mask *const m = &r->mask;
  const int64_t keys = r->seq_kv, queries = m->queries > 1 ? r->seq : 1;
  return (m->type == TYPE_FLOAT || m->type == TYPE_BOOL || m->type == TYPE_UINT8) && !m->hides &&
         r->seq_kv == r->kernel->seq_kv && (m->queries == 1 || r->seq == r->kernel->seq) &&
         (keys == 1 || m->steps[3] == 1) && (queries == 1 || m->steps[2] == keys) &&
         (m->heads == 1 || m->steps[1] == keys * queries);
}

static float float_of(uint16_t bits, int type) {
  uint32_t wide = (uint32_t)bits << 16;
  if (type == TYPE_FLOAT16) {
    const uint32_t sign = wide & 0x80000000u, size = (uint32_t)(bits & 0x7FFF) << 13;
    if (size < UINT32_C(1) << 23) {
      const float x = (float)(bits & 0x3FF) * 0x1p-24f;
      return sign ? -x : x;
    }
    wide = sign | (size + ((size < UINT32_C(31) << 23 ? 127u - 15u : 255u - 31u) << 23));
  }
  float x;
  memcpy(&x, &wide, sizeof x);
  return x;
}

/* Copies the keys of a mask that one query and head sees. */
static void copy_keys(const mask *m, int64_t from, int count, char *to) {
  const int64_t step = m->steps[3];
  for (int i = 0; i < count; i++, from += step) {
    if (m->is_float) {
      float x;
      uint16_t bits;
      if (m->type == TYPE_FLOAT) {
        memcpy(&x, m->data + 4 * from, sizeof x);
      } else {
        memcpy(&bits, m->data + 2 * from, sizeof bits);
        x = float_of(bits, m->type);
      }
      memcpy(to + 4 * i, &x, sizeof x);
    } else {
      const size_t bytes = m->type == TYPE_INT64 ? 8 : m->type == TYPE_INT32 ? 4 : 1;
      static const char zeros[8];
      to[i] = (memcmp(m->data + (int64_t)bytes * from, zeros, bytes) != 0) != m->hides;
    }
  }
}

/* The mask of a batch entry as the kernel takes it; keys behind the last one are zeros. */
static const void *mask_of(const run *r, int entry, char *workspace) {
  const mask *const m = &r->mask;
  const size_t bytes = m->is_float ? 4 : 1, width = (size_t)r->kernel->seq_kv * bytes;
  if (!m->copied) return m->data + (int64_t)bytes * (entry * m->steps[0]);
  char *const to = workspace + m->copied;
  for (size_t h = 0; h < m->heads; h++) {
    for (size_t q = 0; q < (m->queries > 1 ? (size_t)r->seq : 1); q++) {
      char *const row = to + (h * m->queries + q) * width;
      copy_keys(m, entry * m->steps[0] + (int64_t)h * m->steps[1] + (int64_t)q * m->steps[2],
                r->seq_kv, row);
      memset(row + (size_t)r->seq_kv * bytes, 0, width - (size_t)r->seq_kv * bytes);
    }
  }
  return to;
}

/* ---- a run ---- */

/* Where a batch entry's rows are, of `count` given and `room` that the kernel may read. They are
 * copied where it would read behind the tensor, or has the heads of more rows. */
static const void *rows_in(const run *r, const rows *of, int entry, int count, int room,
                           char *workspace) {
  const size_t first = (size_t)entry * of->heads * (size_t)count;
  const char *const from = of->in + first * of->width;
  const int fits = (int64_t)(r->batch - entry) * count >= room;
  if (!of->padded || (of->heads == 1 && fits)) return from;
  char *const to = workspace + of->padded;
  const size_t bytes = (size_t)count * of->width;
  for (size_t h = 0; h < of->heads && bytes > 0; h++) {
    memcpy(to + h * (size_t)room * of->width, from + h * bytes, bytes);
  }
  return to;
}

/* Copies the rows of y out of a workspace. */
static void rows_out(const run *r, int entry, const char *workspace) {
  const rows *const of = &r->y;
  const size_t bytes = (size_t)r->seq * of->width;
  for (size_t h = 0; h < of->heads && of->padded; h++) {
    memcpy(of->out + ((size_t)entry * of->heads + h) * bytes,
           workspace + of->padded + h * (size_t)r->kernel->seq * of->width, bytes);
  }
}

typedef struct entry {
  mhagen_args args;
  int q_len, kv_len;
} entry;

/* The arguments of a batch entry, which must stay where they are. */
static void prepare(const run *r, int index, char *workspace, entry *e) {
  const mhagen_kernel *const one = r->kernel;
  const size_t y = (size_t)index * r->y.heads * (size_t)r->seq * r->y.width;
  char *const to = r->y.padded ? workspace + r->y.padded : r->y.out + y;
  *e = (entry){.q_len = r->seq, .kv_len = valid_keys(r, index)};
  e->args = (mhagen_args){
      .q = rows_in(r, &r->q, index, r->seq, one->seq, workspace),
      .y = (void *)to, .packed = r->node->layer.packed, .workspace = workspace,
      .tables = r->node->layer.tables,
      .kv_len = &e->kv_len, .q_len = &e->q_len};
  if (one->options & MHAGEN_CROSS) {
    e->args.k = rows_in(r, &r->k, index, r->seq_kv, one->seq_kv, workspace);
    e->args.v = rows_in(r, &r->v, index, r->seq_kv, one->seq_kv, workspace);
  }
  if (one->mask_dims) e->args.mask = mask_of(r, index, workspace);
}

/* The number of a workspace that nobody uses; no more tasks run at a time than there are. */
static unsigned take_workspace(run *r) {
  unsigned before = __atomic_load_n(&r->taken, __ATOMIC_RELAXED), index;
  do {
    for (index = 0; before >> index & 1; index++) {}
  } while (!__atomic_compare_exchange_n(&r->taken, &before, before | 1u << index, 0,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
  return index;
}

/* A whole batch entry on the thread that calls it. */
static void run_entry(void *data, size_t index) {
  run *const r = data;
  const unsigned own = take_workspace(r);
  char *const workspace = r->workspaces + own * r->workspace_bytes;
  entry e;
  prepare(r, (int)index, workspace, &e);
  const mhagen_status status = r->kernel->run(&e.args);
  if (status == MHAGEN_OK) rows_out(r, (int)index, workspace);
  else __atomic_store_n(&r->failed, (int)status, __ATOMIC_RELAXED);
  __atomic_fetch_and(&r->taken, ~(1u << own), __ATOMIC_RELEASE);
}

typedef struct tasks {
  const mhagen_phase *phase;
  const mhagen_args *args;
} tasks;

static void run_task(void *data, size_t index) {
  const tasks *const of = data;
  of->phase->task(of->args, of->phase->first + (int)index);
}

/* A batch entry with its tasks on all threads. */
static OrtStatus *run_tasks(run *r, int index) {
  const mhagen_kernel *const one = r->kernel;
  entry e;
  prepare(r, index, r->workspaces, &e);
  const mhagen_status status = mhagen_check_args(one, &e.args);
  if (status != MHAGEN_OK) {
    r->failed = status;
    return NULL;
  }
  for (int i = 0; i < one->phase_count; i++) {
    tasks of = {.phase = &one->phases[i], .args = &e.args};
    TRY(r->node->api->KernelContext_ParallelFor(r->context, run_task, (size_t)of.phase->tasks, 0,
                                                &of));
  }
  rows_out(r, index, r->workspaces);
  return NULL;
}

/* The cycles of a batch entry, by its lengths. */
static double cycles_of(const run *r) {
  double all = 0;
  for (int i = 0; i < r->kernel->phase_count; i++) all += r->kernel->phases[i].cycles;
  return all * r->seq / r->kernel->seq;
}

static OrtStatus *run_all(run *r) {
  if (r->batch > 1 && r->workers > 1) {
    return r->node->api->KernelContext_ParallelFor(r->context, run_entry, (size_t)r->batch,
                                                   r->workers, r);
  }
  OrtStatus *status = NULL;
  for (int i = 0; i < r->batch && !status && !r->failed; i++) {
    if (cycles_of(r) < SMALL) run_entry(r, (size_t)i);
    else status = run_tasks(r, i);
  }
  return status;
}

/* ---- workspaces ---- */

static size_t aligned(size_t bytes) {
  return (bytes + MHAGEN_ALIGN - 1) / MHAGEN_ALIGN * MHAGEN_ALIGN;
}

/* Puts room for a copy of rows into a workspace, if it can be needed. */
static void add_room(run *r, rows *of, int count, int room) {
  if (!of->width || count == room) return;
  of->padded = r->workspace_bytes;
  r->workspace_bytes += aligned(of->heads * (size_t)room * of->width);
}

static void lay_out(run *r) {
  const mhagen_kernel *const one = r->kernel;
  r->workspace_bytes = aligned(one->workspace_bytes ? one->workspace_bytes : 1); /* no copy at 0 */
  add_room(r, &r->q, r->seq, one->seq);
  add_room(r, &r->k, r->seq_kv, one->seq_kv);
  add_room(r, &r->v, r->seq_kv, one->seq_kv);
  if (r->y.heads > 1) add_room(r, &r->y, r->seq, one->seq);
  if (one->mask_dims && !is_as_it_lies(r)) {
    r->mask.copied = r->workspace_bytes;
    r->workspace_bytes += aligned(r->mask.heads * r->mask.queries * (size_t)one->seq_kv *
                                  (r->mask.is_float ? 4 : 1));
  }
  const int many = r->batch >= FEW_ENTRIES || (r->batch > 1 && cycles_of(r) < SMALL);
  size_t workers = !many ? 1 : r->batch < MOST_WORKERS ? (size_t)r->batch : MOST_WORKERS;
  while (workers > 1 && workers * r->workspace_bytes > MOST_BYTES) --workers;
  r->workers = (unsigned)workers;
}

/* ---- the functions of an operator ---- */

/* The axes of y. Batch entries lie along as many axes as q has, or along one. */
static size_t output_dims(const mhagen_ort_layer *layer, const tensor *q, int64_t batch,
                          int64_t seq, int64_t *dims) {
  const mhagen_kernel *const kernel = layer->kernel;
  const rows y = rows_for(kernel, MHAGEN_PROJECT_O, kernel->y_width, kernel->h, kernel->dv);
  const size_t axes = strlen(layer->y_axes);
  const int alone = strchr(layer->y_axes, 'b') == strrchr(layer->y_axes, 'b');
  for (size_t i = 0; i < axes; i++) {
    const char letter = layer->y_axes[i];
    dims[i] = letter == 's' ? seq : letter == 'f' ? batch * seq : letter == 'g' ? batch * kernel->h
            : letter != 'b' ? size_for(letter, &y, element_bytes(kernel), kernel->h)
            : alone ? batch : q->dims[i];
  }
  return axes;
}

static OrtStatus *make_output(run *r, OrtKernelContext *context) {
  const mhagen_kernel *const one = r->kernel;
  int64_t dims[AXES];
  OrtValue *y;
  void *data;
  const size_t axes = output_dims(&r->node->layer, &r->in[Q], r->batch, r->seq, dims);
  TRY(r->node->api->KernelContext_GetOutput(context, 0, dims, axes, &y));
  TRY(r->node->api->GetTensorMutableData(y, &data));
  r->y = rows_for(one, MHAGEN_PROJECT_O, one->y_width, one->h, one->dv);
  r->y.out = data;
  return NULL;
}

static OrtStatus *compute(void *kernel, OrtKernelContext *context) {
  const node *const of = kernel;
  run r = {.node = of, .context = context};
  char text[TEXT];
  const int masked = of->layer.kernel->mask_dims != NULL;
  for (int i = 0; i < INPUTS; i++) {
    const int cross = (of->layer.kernel->options & MHAGEN_CROSS) != 0;
    const int wanted = i == Q || i == KV_LEN || (i == MASK ? masked : cross);
    if (!wanted) continue;
    TRY(read_input(&r, i));
    if (i != KV_LEN && r.in[i].type == ANY_TYPE) return FAIL(of, "%s is missing", input_names[i]);
  }
  TRY(take_lengths(&r));
  TRY(check_valid_keys(&r));
  if (masked) TRY(take_mask(&r));
  TRY(make_output(&r, context));
  if (r.batch == 0 || r.seq == 0) return NULL;
  lay_out(&r);
  char *const block = of->allocator->Alloc(of->allocator,
                                           r.workers * r.workspace_bytes + MHAGEN_ALIGN);
  if (!block) {
    return FAIL(of, "no memory for %u workspaces of %zu bytes", r.workers, r.workspace_bytes);
  }
  r.workspaces = block + (MHAGEN_ALIGN - (size_t)block % MHAGEN_ALIGN) % MHAGEN_ALIGN;
  OrtStatus *const status = run_all(&r);
  of->allocator->Free(of->allocator, block);
  if (status || !r.failed) return status;
  return FAIL(of, "%s", mhagen_status_text((mhagen_status)r.failed));
}

enum { MOST_NAME = 4096 };

/* An attribute of a node. */
static OrtStatus *attribute(const OrtApi *api, const OrtKernelInfo *info, const char *name,
                            char *out, size_t size) {
  OrtStatus *const status = api->KernelInfoGetAttribute_string(info, name, out, &size);
  if (!status) return NULL;
  api->ReleaseStatus(status);
  return fail(api, "?", "a node of mhagen has no attribute `layer` or `source`, or it is too long");
}

/* Whether the library has a layer of this name. */
static int find_layer(const char *name, mhagen_ort_layer *out) {
  for (int i = 0; i < mhagen_ort_layers; i++) {
    *out = mhagen_ort_layer_at(i);
    if (strcmp(out->name, name) == 0) return 1;
  }
  return 0;
}

static OrtStatus *layer_of(const OrtApi *api, const OrtKernelInfo *info, mhagen_ort_layer *out) {
  char name[MOST_NAME], source[MOST_NAME];
  TRY(attribute(api, info, "layer", name, sizeof name));
  TRY(attribute(api, info, "source", source, sizeof source));
  if (strcmp(source, mhagen_ort_source) != 0) {
    return fail(api, name, "the graph is of another model than the library");
  }
  if (find_layer(name, out)) return NULL;
  return fail(api, name, "is not in the library, which was made with other layers");
}

static OrtStatus *create(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info,
                         void **kernel) {
  (void)op;
  node made = {.api = api};
  TRY(layer_of(api, info, &made.layer));
  const mhagen_kernel *const one = made.layer.kernel;
  char text[TEXT];
  if (!one->supported()) return FAIL(&made, "this CPU has no %s", one->isa);
  const mhagen_status status = one->self_test();
  if (status != MHAGEN_OK) return FAIL(&made, "%s", mhagen_status_text(status));
  TRY(api->KernelInfoGetAllocator(info, 0, &made.allocator));
  node *const own = malloc(sizeof *own);
  if (!own) {
    api->ReleaseAllocator(made.allocator);
    return FAIL(&made, "no memory");
  }
  *own = made;
  *kernel = own;
  return NULL;
}

static void destroy(void *kernel) {
  node *const own = kernel;
  own->api->ReleaseAllocator(own->allocator);
  free(own);
}

static const OrtApi *shared_api; /* for the functions that get none */

/* The only axis with a letter, or AXES. */
static size_t axis_of(const char *letters, char letter) {
  const char *const found = strchr(letters, letter);
  return found && !strchr(found + 1, letter) ? (size_t)(found - letters) : AXES;
}

/* What is known of the shape of y before a run, by which ONNX Runtime fuses what is behind it. */
static OrtStatus *infer_with(const OrtApi *api, const OrtShape *q, const mhagen_ort_layer *layer,
                             OrtShape *out) {
  tensor in;
  int64_t dims[AXES];
  const char *names[AXES], *out_names[AXES];
  char made[AXES][MOST_NAME + 20]; /* without a name an axis of unknown size would have size -1 */
  TRY(read_shape(api, q, &in));
  if (in.axes != strlen(layer->axes[Q])) return NULL;
  TRY(api->GetSymbolicDimensions(q, names, in.axes));
  const size_t axes = output_dims(layer, &in, -1, -1, dims);
  for (size_t i = 0; i < axes; i++) {
    const char letter = layer->y_axes[i];
    const size_t from = letter == 'b' || letter == 's' ? axis_of(layer->axes[Q], letter) : AXES;
    out_names[i] = from < AXES && names[from] ? names[from] : "";
    if (letter == 'b' || letter == 's') dims[i] = from < AXES ? in.dims[from] : -1;
    if (letter == 'f' || letter == 'g') dims[i] = -1;
    if (dims[i] >= 0 || out_names[i][0] != '\0') continue;
    snprintf(made[i], sizeof made[i], "%s axis %d", layer->name, (int)i);
    out_names[i] = made[i];
  }
  TRY(api->SetTensorElementType(out, in.type));
  TRY(api->SetDimensions(out, dims, axes));
  return api->SetSymbolicDimensions(out, out_names, axes);
}

static OrtStatus *infer(const OrtCustomOp *op, OrtShapeInferContext *context) {
  (void)op;
  const OrtApi *const api = shared_api;
  const OrtOpAttr *attribute_of;
  OrtShape *q, *out;
  char name[MOST_NAME] = "";
  size_t size;
  mhagen_ort_layer layer;
  TRY(api->ShapeInferContext_GetAttribute(context, "layer", &attribute_of));
  TRY(api->ReadOpAttr(attribute_of, STRING_ATTRIBUTE, name, sizeof name - 1, &size));
  if (!find_layer(name, &layer)) return NULL; /* `create` says so */
  TRY(api->ShapeInferContext_GetInputTypeShape(context, 0, &q));
  TRY(api->CreateTensorTypeAndShapeInfo(&out));
  OrtStatus *status = infer_with(api, q, &layer, out);
  if (!status) status = api->ShapeInferContext_SetOutputTypeShape(context, 0, out);
  api->ReleaseTensorTypeAndShapeInfo(out);
  return status;
}

typedef struct operator_row {
  OrtCustomOp op; /* the first member, whose address ONNX Runtime passes on */
  const char *name;
  int type;
} operator_row;

static const operator_row *row_of(const OrtCustomOp *op) { return (const operator_row *)op; }

static const char *name_of(const OrtCustomOp *op) { return row_of(op)->name; }

static const char *on_cpu(const OrtCustomOp *op) { return (void)op, NULL; }

static int input_type(const OrtCustomOp *op, size_t index) {
  return index < MASK ? row_of(op)->type : ANY_TYPE;
}

static int output_type(const OrtCustomOp *op, size_t index) {
  return (void)index, row_of(op)->type;
}

static size_t input_count(const OrtCustomOp *op) { return (void)op, INPUTS; }

static size_t output_count(const OrtCustomOp *op) { return (void)op, 1; }

static int input_kind(const OrtCustomOp *op, size_t index) {
  return (void)op, index == Q ? REQUIRED : OPTIONAL;
}

static int always_required(const OrtCustomOp *op, size_t index) {
  return (void)op, (void)index, REQUIRED;
}

static int first_version(const OrtCustomOp *op) { return (void)op, 1; }

static int last_version(const OrtCustomOp *op) { return (void)op, INT32_MAX; }

static int default_memory(const OrtCustomOp *op, size_t index) { return (void)op, (void)index, 0; }

#define OPERATOR(operator_name, element_type)                                                       \
  {{.version = API_VERSION, .GetName = name_of, .GetExecutionProviderType = on_cpu,                 \
    .GetInputType = input_type, .GetInputTypeCount = input_count, .GetOutputType = output_type,     \
    .GetOutputTypeCount = output_count, .KernelDestroy = destroy,                                   \
    .GetInputCharacteristic = input_kind, .GetOutputCharacteristic = always_required,               \
    .GetInputMemoryType = default_memory, .CreateKernelV2 = create, .KernelComputeV2 = compute,     \
    .InferOutputShapeFn = infer, .GetStartVersion = first_version, .GetEndVersion = last_version},  \
   operator_name, element_type}

static const operator_row operators[] = {
  OPERATOR("Attention", TYPE_FLOAT),
  OPERATOR("AttentionF16", TYPE_FLOAT16),
  OPERATOR("AttentionBF16", TYPE_BFLOAT16),
};

/* One for all sessions, which only read it. It lives as long as the library does. */
static OrtCustomOpDomain *shared_domain;

static OrtStatus *make_domain(const OrtApi *api, OrtCustomOpDomain **out) {
  TRY(api->CreateCustomOpDomain("mhagen", out));
  for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
    TRY(api->CustomOpDomain_Add(*out, &operators[i].op));
  }
  OrtCustomOpDomain *first = NULL;
  if (!__atomic_compare_exchange_n(&shared_domain, &first, *out, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    api->ReleaseCustomOpDomain(*out); /* another thread was faster */
    *out = first;
  }
  return NULL;
}

/* What ONNX Runtime calls when it has loaded the library. */
ORT_EXPORT OrtStatus *ORT_CALL RegisterCustomOps(OrtSessionOptions *options,
                                                 const OrtApiBase *base);

OrtStatus *ORT_CALL RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  const OrtApi *const api = base->GetApi(API_VERSION);
  if (!api) {
    char text[200];
    snprintf(text, sizeof text, "mhagen: ONNX Runtime %.40s is too old: 1.%d or later is needed",
             base->GetVersionString(), API_VERSION);
    return base->GetApi(1)->CreateStatus(ORT_NOT_IMPLEMENTED, text);
  }
  __atomic_store_n(&shared_api, api, __ATOMIC_RELEASE);
  OrtCustomOpDomain *domain = __atomic_load_n(&shared_domain, __ATOMIC_ACQUIRE);
  if (!domain) TRY(make_domain(api, &domain));
  return api->AddCustomOpDomain(options, domain);
}
