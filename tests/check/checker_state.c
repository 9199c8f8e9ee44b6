/* checker_state.c of mhagen: what a kernel reads and writes, and how much of it. */
#include "checker_rooms.h"

#include <string.h>

const char *const names[BUFFERS] = {
    "q", "k", "v", "rope_cos", "rope_sin", "k_rope_cos", "k_rope_sin", "kv_len", "kv_start", "q_len", "mask", "past",
    "row_keys", "wq", "wk", "wv", "wo", "w1", "w3", "w2",
    "bq", "bk", "bv", "bo", "b1", "b3", "b2", "norm1_bias", "norm2_bias", "alibi", "sink", "q_norm", "k_norm", "norm1",
    "norm2", "norm1b", "norm2b", "gain1", "gain2", "rope_cos", "rope_sin", "tables", "packed", "workspace", "cache",
    "y", "probs", "scores"};

int has(const checker *c, uint64_t option) { return (c->kernel->options & option) != 0; }

int projects(const checker *c, int i) {
  const int bits[BUFFERS] = {
      [Q] = MHAGEN_PROJECT_Q, [K] = MHAGEN_PROJECT_K, [V] = MHAGEN_PROJECT_V, [Y] = MHAGEN_PROJECT_O,
      [WQ] = MHAGEN_PROJECT_Q, [WK] = MHAGEN_PROJECT_K, [WV] = MHAGEN_PROJECT_V, [WO] = MHAGEN_PROJECT_O};
  return !has(c, MHAGEN_UNPROJECTED) || (c->kernel->project & bits[i]) != 0;
}

const struct argument arguments[ARGUMENTS] = {
    {Q, offsetof(mhagen_args, q)}, {K, offsetof(mhagen_args, k)}, {V, offsetof(mhagen_args, v)},
    {Y, offsetof(mhagen_args, y)}, {PACKED, offsetof(mhagen_args, packed)},
    {WORKSPACE, offsetof(mhagen_args, workspace)}, {KV_LEN, offsetof(mhagen_args, kv_len)},
    {PROBS, offsetof(mhagen_args, probs)}, {KV_START, offsetof(mhagen_args, kv_start)},
    {Q_LEN, offsetof(mhagen_args, q_len)}, {MASK, offsetof(mhagen_args, mask)},
    {SCORES, offsetof(mhagen_args, scores)}, {PAST, offsetof(mhagen_args, past)},
    {CACHE, offsetof(mhagen_args, cache)}, {TABLES, offsetof(mhagen_args, tables)},
    {ROW_KEYS, offsetof(mhagen_args, row_keys)},
    {COSINES, offsetof(mhagen_args, rope_cos)}, {SINES, offsetof(mhagen_args, rope_sin)},
    {K_COSINES, offsetof(mhagen_args, k_rope_cos)}, {K_SINES, offsetof(mhagen_args, k_rope_sin)},
};

const char *name_at(size_t at) {
  int i = 0;
  while (arguments[i].at != at) i++;
  return names[arguments[i].id];
}

/* What a table says of the pointer to a buffer, or null. */
static const mhagen_need *need_in(const mhagen_need *needs, int count, int id) {
  for (int i = 0; i < count; i++) {
    for (int j = 0; j < ARGUMENTS; j++) {
      if (arguments[j].id == id && arguments[j].at == needs[i].at) return &needs[i];
    }
  }
  return NULL;
}

const mhagen_need *need_of(const checker *c, int id) {
  return need_in(c->kernel->needs, c->kernel->need_count, id);
}

const mhagen_need *fill_need_of(const checker *c, int id) {
  return need_in(c->kernel->fill_needs, c->kernel->fill_need_count, id);
}

int most_of(const checker *c, int id) {
  return id == PAST ? c->kernel->seq_kv - c->kernel->seq : need_of(c, id)->most;
}

int cache_align(const checker *c) { return has(c, MHAGEN_CACHE_BHSD) ? 1 : MHAGEN_ALIGN; }

int rows_given(const checker *c, int i) {
  return i == Q || i == COSINES || i == SINES || has(c, MHAGEN_CACHE_APPEND) ? c->kernel->seq : c->kernel->seq_kv;
}

int is_small(const checker *c, int i) { return has(c, MHAGEN_IO_DTYPE) && (i <= V || i == Y); }

size_t element(const checker *c, int i) {
  return i == MASK && has(c, MHAGEN_MASK_BOOL) ? 1 : is_small(c, i) ? sizeof(uint16_t) : sizeof(float);
}

size_t master_bytes(const checker *c, int i) {
  return is_small(c, i) ? c->buffers[i].bytes * 2 : c->buffers[i].bytes;
}

void encode(const checker *c, int i, const void *from, void *to, size_t bytes) {
  if (!is_small(c, i)) memcpy(to, from, bytes);
  for (size_t j = 0; is_small(c, i) && j < bytes / 2; j++)
    ((uint16_t *)to)[j] = mhagen_to_bits(c->kernel->io_dtype, (double)((const float *)from)[j]);
}

void decode(const checker *c, int i, const void *from, void *to, size_t bytes) {
  if (!is_small(c, i)) memcpy(to, from, bytes);
  for (size_t j = 0; is_small(c, i) && j < bytes / 2; j++)
    ((float *)to)[j] = (float)mhagen_of_bits(c->kernel->io_dtype, ((const uint16_t *)from)[j]);
}

size_t kept_bytes(const checker *c) {
  const mhagen_kernel *k = c->kernel;
  const char *attend = k->attend_dtype ? k->attend_dtype : k->dtype, *type = k->cache_dtype ? k->cache_dtype : attend;
  return type && !strcmp(type, "int8") ? 1 : type && strcmp(type, "f32") ? 2 : sizeof(float);
}
