const char *mhagen_status_text(mhagen_status status) {
  switch (status) {
    case MHAGEN_OK: return "done";
    case MHAGEN_ERR_NULL: return "a pointer that the kernel needs is null";
    case MHAGEN_ERR_ALIGN: return "packed, tables, workspace or cache is not aligned to 64 bytes";
    case MHAGEN_ERR_LENGTH: return "a kv_len, kv_start, row_keys, q_len or past is out of range";
    case MHAGEN_ERR_CPU: return "this CPU lacks the instructions of the kernel";
    case MHAGEN_ERR_LAYOUT: return "the layout of the weights is not one of mhagen_layout";
    case MHAGEN_ERR_TARGET: return "compiled for an architecture without the kernel's instructions";
    case MHAGEN_ERR_ARITHMETIC: return "the compiler's flags changed the arithmetic of the kernel";
    case MHAGEN_ERR_PACKED: return "packed weights are another kernel's, damaged, or none";
    case MHAGEN_ERR_ROUNDING: return "the thread's rounding mode is not to nearest";
  }
  return "unknown status";
}

int mhagen_cpu_has(mhagen_cpu isa) {
#ifdef ASKS_CPUID
  return cpu_has(isa);
#elif defined(__aarch64__)
  if (isa == MHAGEN_CPU_NEON) return 1; /* part of the base architecture */
  if (isa == MHAGEN_CPU_NEON_I8MM) return has_neon_i8mm();
  if (isa == MHAGEN_CPU_NEON_FP16) return has_neon_fp16();
#endif
  return isa == MHAGEN_CPU_ANY;
}

const mhagen_kernel *mhagen_kernel_of(const mhagen_kernel *kernel) {
  const mhagen_kernel *const *member = kernel->members;
  if (!member || kernel->by_length) return kernel;
  for (;;) {
    const unsigned before = known_tiles();
    while (member[1] && !(*member)->supported()) ++member;
    if (member == kernel->members || is_settled(before)) return *member;
    member = kernel->members;
  }
}

const mhagen_kernel *mhagen_kernel_for(const mhagen_kernel *kernel, const char *isa) {
  const mhagen_kernel *const *member = kernel->members;
  if (!member || kernel->by_length) return strcmp(kernel->isa, isa) == 0 ? kernel : NULL;
  while (*member && strcmp((*member)->isa, isa) != 0) ++member;
  return *member;
}

/* Whether each of the ints is one of 0..most. */
static int in_range(const int *ints, int count, int most) {
  for (int i = 0; i < count; ++i) {
    if (ints[i] < 0 || ints[i] > most) return 0;
  }
  return 1;
}

/* What is wrong with one pointer of a struct; `batch` is the number of ints that it points to. */
static mhagen_status check_need(const mhagen_need *need, const void *given, int batch) {
  const void *pointer;
  memcpy(&pointer, (const char *)given + need->at, sizeof pointer);
  if (!pointer) return MHAGEN_ERR_NULL;
  if ((uintptr_t)pointer & (uintptr_t)(need->align - 1)) return MHAGEN_ERR_ALIGN;
  if (need->most >= 0 && !in_range(pointer, batch, need->most)) return MHAGEN_ERR_LENGTH;
  return MHAGEN_OK;
}

/* Of all errors the one that comes first in mhagen_status. */
static mhagen_status check_needs(const mhagen_need *needs, int count, const void *given,
                                 int batch) {
  mhagen_status first = MHAGEN_OK;
  if (!given) return MHAGEN_ERR_NULL;
  for (int i = 0; i < count; ++i) {
    const mhagen_status status = check_need(&needs[i], given, batch);
    if (first == MHAGEN_OK || (status != MHAGEN_OK && status < first)) first = status;
  }
  return first;
}

/* Whether the ints of all rows that a run reads are in their range, where all needs are met. */
static int rows_are_in_range(const mhagen_kernel *kernel, const mhagen_args *args) {
  const mhagen_row_need *const need = &kernel->of_rows;
  const int *ints, *rows = NULL;
  if (need->ints == 0) return 1;
  memcpy(&ints, (const char *)args + need->at, sizeof ints);
  if (need->rows_at) memcpy(&rows, (const char *)args + need->rows_at, sizeof rows);
  for (int b = 0; b < kernel->batch; ++b, ints += (ptrdiff_t)need->ints * kernel->seq) {
    if (!in_range(ints, need->ints * (rows ? rows[b] : kernel->seq), need->most)) return 0;
  }
  return 1;
}

/* The same of what a run needs. Those of a fill are about no rows. */
static mhagen_status check_all(const mhagen_kernel *kernel, const mhagen_need *needs, int count,
                               const mhagen_args *args) {
  const mhagen_status status = check_needs(needs, count, args, kernel->batch);
  if (status != MHAGEN_OK || needs != kernel->needs) return status;
  return rows_are_in_range(kernel, args) ? MHAGEN_OK : MHAGEN_ERR_LENGTH;
}

const mhagen_kernel *mhagen_kernel_at(const mhagen_kernel *kernel, const mhagen_args *args) {
  const mhagen_kernel *const one = mhagen_kernel_of(kernel);
  const mhagen_kernel *const *member = one->members;
  if (!member) return one;
  while (member[1] && check_all(*member, (*member)->needs, (*member)->need_count, args) ==
                          MHAGEN_ERR_LENGTH) {
    ++member;
  }
  return *member;
}

/* What packed weights begin with. */
static uint64_t fingerprint_in(const void *packed) {
  uint64_t fingerprint;
  memcpy(&fingerprint, packed, sizeof fingerprint);
  return fingerprint;
}

/* Whether packed weights are those of the kernel, which may have none. */
static int is_packed_for(const mhagen_kernel *kernel, const void *packed) {
  return kernel->packed_bytes == 0 || fingerprint_in(packed) == kernel->fingerprint;
}

/* The same for separate tables. Other kernels do not read the field, because a caller may have been
 * compiled with a mhagen_args that ends before it. */
static int has_own_tables(const mhagen_kernel *kernel, const mhagen_args *args) {
  return kernel->tables_bytes == 0 || fingerprint_in(args->tables) == kernel->tables_fingerprint;
}

/* The same, and that this machine can run it, and that packed weights and tables are its own. */
static mhagen_status check_call(const mhagen_kernel *kernel, const mhagen_need *needs, int count,
                                const mhagen_args *args) {
  const mhagen_status status = check_all(kernel, needs, count, args);
  if (status != MHAGEN_OK) return status;
  if (kernel->phase_count == 0) return MHAGEN_ERR_TARGET;
  if (!kernel->supported()) return MHAGEN_ERR_CPU;
  if (!rounds_to_nearest()) return MHAGEN_ERR_ROUNDING;
  const int own = is_packed_for(kernel, args->packed) && has_own_tables(kernel, args);
  return own ? MHAGEN_OK : MHAGEN_ERR_PACKED;
}

mhagen_status mhagen_check_args(const mhagen_kernel *kernel, const mhagen_args *args) {
  const mhagen_kernel *const one = mhagen_kernel_at(kernel, args);
  return check_call(one, one->needs, one->need_count, args);
}

mhagen_status mhagen_check_fill(const mhagen_kernel *kernel, const mhagen_args *args) {
  const mhagen_kernel *const one = mhagen_kernel_at(kernel, args);
  return check_call(one, one->fill_needs, one->fill_need_count, args);
}

/* The messages for an argument that is null, not aligned, or has a number out of its range. */
typedef struct arg_row {
  size_t at; /* in mhagen_args */
  const char *text[3];
} arg_row;

/* What is wrong with what a run, or a fill, was given. */
static const char *call_error(const mhagen_kernel *kernel, const mhagen_need *needs, int count,
                              const mhagen_args *args, mhagen_status status) {
#define ROW(name, range) \
  {offsetof(mhagen_args, name), \
   {#name " is null, and the kernel needs it", #name " is not aligned to 64 bytes, MHAGEN_ALIGN", \
    #name " has a number that is outside " range}}
  static const arg_row rows[] = {
    ROW(q, ""), ROW(k, ""), ROW(v, ""), ROW(y, ""), ROW(packed, ""), ROW(workspace, ""),
    ROW(kv_len, "0..seq_kv"), ROW(probs, ""),
    ROW(kv_start, "0..seq_kv"), ROW(row_keys, "0..seq_kv"),
    ROW(q_len, "0..seq"), ROW(mask, ""), ROW(scores, ""),
    ROW(past, "0..seq_kv - seq"), ROW(cache, ""), ROW(tables, ""),
    ROW(rope_cos, ""), ROW(rope_sin, ""), ROW(k_rope_cos, ""), ROW(k_rope_sin, ""),
  };
#undef ROW
  if (!args) return "args is null";
  if (status == MHAGEN_ERR_PACKED && is_packed_for(kernel, args->packed)) {
    return fingerprint_in(args->tables) == 0
               ? "tables is empty: the kernel's pack_tables has not filled it"
               : "tables is not of this kernel: its pack_tables has to fill it, or a file of them";
  }
  if (status == MHAGEN_ERR_PACKED) {
    return fingerprint_in(args->packed) == 0
               ? "packed has no weights yet: the kernel's pack has not filled it"
               : "packed is not of this kernel: its pack has to fill it, or a file of its weights";
  }
  const int of_rows = status == MHAGEN_ERR_LENGTH &&
                      check_needs(needs, count, args, kernel->batch) == MHAGEN_OK;
  for (int i = 0; i < count; ++i) {
    const int wrong = of_rows ? needs[i].at == kernel->of_rows.at
                              : check_need(&needs[i], args, kernel->batch) == status;
    if (!wrong) continue;
    for (size_t j = 0; j < sizeof rows / sizeof rows[0]; ++j) {
      if (rows[j].at == needs[i].at && status <= MHAGEN_ERR_LENGTH && status >= MHAGEN_ERR_NULL) {
        return rows[j].text[status - MHAGEN_ERR_NULL];
      }
    }
  }
  return mhagen_status_text(status);
}

const char *mhagen_args_error(const mhagen_kernel *kernel, const mhagen_args *args) {
  const mhagen_kernel *const one = mhagen_kernel_at(kernel, args);
  return call_error(one, one->needs, one->need_count, args, mhagen_check_args(one, args));
}

const char *mhagen_fill_error(const mhagen_kernel *kernel, const mhagen_args *args) {
  const mhagen_kernel *const one = mhagen_kernel_at(kernel, args);
  return call_error(one, one->fill_needs, one->fill_need_count, args, mhagen_check_fill(one, args));
}

mhagen_status mhagen_check_weights(const mhagen_packing *packing, const mhagen_weights *weights,
                                   const void *packed) {
  const mhagen_status status = check_needs(packing->needs, packing->need_count, weights, 0);
  if (status == MHAGEN_ERR_NULL || (!packed && packing->bytes > 0)) return MHAGEN_ERR_NULL;
  if ((uintptr_t)packed % MHAGEN_ALIGN != 0) return MHAGEN_ERR_ALIGN;
  const int known = weights->layout == MHAGEN_IN_OUT || weights->layout == MHAGEN_OUT_IN;
  if (!known || status != MHAGEN_OK) return known ? status : MHAGEN_ERR_LAYOUT;
  return rounds_to_nearest() ? MHAGEN_OK : MHAGEN_ERR_ROUNDING;
}

void mhagen_test_quietly(void (*test)(const float *in, float *out), const float *in, float *out) {
  const environment before = get_environment();
  set_environment(without_traps(before));
  test(in, out);
  set_environment(before);
}

/* Reading the floating-point environment waits for all earlier sums, 1.5 % of a run of micro on Zen
 * 5. So a run does not read it by itself. */
mhagen_status mhagen_call_quietly(mhagen_status (*call)(const mhagen_args *args),
                                  const mhagen_args *args) {
  const environment before = get_environment();
  set_environment(without_traps(before));
  const mhagen_status status = call(args);
  set_environment(before);
  return status;
}

mhagen_status mhagen_check_bits(const float *got, const uint32_t (*bits)[2], int rows, int lanes) {
  int good = 1;
  if (!rounds_to_nearest()) return MHAGEN_ERR_ROUNDING;
  for (int i = 0; i < rows * lanes; ++i) {
    uint32_t x;
    memcpy(&x, &got[i], sizeof x);
    x &= 0x7FFFFFFFu;
    good &= x >= bits[i / lanes][0] && x <= bits[i / lanes][1];
  }
  return good ? MHAGEN_OK : MHAGEN_ERR_ARITHMETIC;
}
