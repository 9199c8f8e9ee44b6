/* mhagen.c: what all generated kernels share: status texts, the CPU check and the optional pool.
 * mhagen.h says what each function promises.
 *
 * This file may be used, changed and shipped without conditions; it comes without warranty
 * (SPDX-License-Identifier: 0BSD). */
#include "mhagen.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__) && __STDC_HOSTED__
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

/* Clang for Visual Studio does not say __GNUC__. */
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
#define ASKS_CPUID
#include <cpuid.h>

/* What a CPU says of itself: in a register of a leaf and subleaf of CPUID, and in XCR0. */
enum { C1, B7, C7, D7, A7_1, SAVED, WORDS };

/* What each mhagen_cpu needs besides another one. The bits of SAVED are of registers that the
 * operating system saves. Builtins of compilers do not know all of these, and are in a library that
 * not every linker finds. */
static const struct { mhagen_cpu isa, besides; unsigned bits[WORDS]; } cpu_rows[] = {
  /* FMA; AVX2 */
  { MHAGEN_CPU_AVX2, MHAGEN_CPU_ANY, { [C1] = 1u << 12, [B7] = 1u << 5, [SAVED] = 3u << 1 } },
  /* F16C */
  { MHAGEN_CPU_AVX2_F16C, MHAGEN_CPU_AVX2, { [C1] = 1u << 29 } },
  { MHAGEN_CPU_AVX_VNNI, MHAGEN_CPU_AVX2_F16C, { [A7_1] = 1u << 4 } },
  /* AVX512F, DQ, BW and VL */
  { MHAGEN_CPU_AVX512, MHAGEN_CPU_AVX2,
    { [B7] = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, [SAVED] = 7u << 5 } },
  /* AVX512_VNNI; AVX512_BF16 */
  { MHAGEN_CPU_AVX512_BF16, MHAGEN_CPU_AVX512, { [C7] = 1u << 11, [A7_1] = 1u << 5 } },
  { MHAGEN_CPU_AVX512_FP16, MHAGEN_CPU_AVX512_BF16, { [D7] = 1u << 23 } },
  /* AVX512_VBMI; AMX-BF16, AMX-TILE and AMX-INT8; tiles have to be asked for, too */
  { MHAGEN_CPU_AMX, MHAGEN_CPU_AVX512_BF16,
    { [C7] = 1u << 1, [D7] = 1u << 22 | 1u << 24 | 1u << 25, [SAVED] = 3u << 17 } },
};

static void ask_words(unsigned *words) {
  unsigned a, b, c = 0, d;
  memset(words, 0, WORDS * sizeof *words);
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & 1u << 27) == 0) return; /* XGETBV is not to be had */
  words[C1] = c;
  __asm__ volatile("xgetbv" : "=a"(words[SAVED]), "=d"(d) : "c"(0));
#ifdef __APPLE__
  words[SAVED] |= 7u << 5; /* as soon as a thread uses them */
#endif
  if (!__get_cpuid_count(7, 0, &a, &words[B7], &words[C7], &words[D7])) return;
  if (a >= 1) __get_cpuid_count(7, 1, &words[A7_1], &b, &c, &d);
}

/* A bit for each mhagen_cpu. */
static unsigned ask_cpu(void) {
  unsigned words[WORDS], has = 1u << MHAGEN_CPU_ANY;
  ask_words(words);
  for (size_t i = 0; i < sizeof cpu_rows / sizeof cpu_rows[0]; i++) {
    unsigned missing = ~has & 1u << cpu_rows[i].besides;
    for (int j = 0; j < WORDS; j++) missing |= cpu_rows[i].bits[j] & ~words[j];
    if (missing == 0) has |= 1u << cpu_rows[i].isa;
  }
  return has;
}

/* The same, asked once, for on virtual machines CPUID takes some twenty microseconds. Threads that
 * ask at the same time find the same. */
static unsigned known_cpu(void) {
  static unsigned known; /* never 0 */
  unsigned has = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (has == 0) __atomic_store_n(&known, has = ask_cpu(), __ATOMIC_RELAXED);
  return has;
}

/* Asks Linux for the tiles, which a process has to do before it uses them: whether it may. */
static int ask_tiles(void) {
#if defined(__x86_64__) && defined(__linux__)
  const long arch_prctl = 158, request_permission = 0x1023, tile_data = 18;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(arch_prctl), "D"(request_permission), "S"(tile_data)
                   : "rcx", "r11", "memory");
  return result == 0;
#else
  return 0;
#endif
}

/* What is known of the tiles. A refusal may end: a thread had too small a stack for signals. So
 * it is asked again, unless a bundle has chosen a member without tiles, for good. */
enum { UNASKED, REFUSED, DONE_WITHOUT, GRANTED };
static unsigned tile_state;

static unsigned known_tiles(void) { return __atomic_load_n(&tile_state, __ATOMIC_RELAXED); }

/* From one state to another; else `from` becomes the state that another thread has made it. */
static int move_tiles(unsigned *from, unsigned to) {
  return __atomic_compare_exchange_n(&tile_state, from, to, 0, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

static int has_tiles(void) {
  unsigned now = known_tiles();
  if (now == UNASKED || now == REFUSED) {
    const unsigned answer = ask_tiles() ? GRANTED : REFUSED;
    if (move_tiles(&now, answer)) return answer == GRANTED;
  }
  return now == GRANTED;
}

/* Whether a choice stays that was made when the tiles were in state `before`. */
static int is_settled(unsigned before) {
  unsigned now = known_tiles();
  if (now == REFUSED && move_tiles(&now, DONE_WITHOUT)) return 1;
  return now != GRANTED || before == GRANTED;
}

static int cpu_has(mhagen_cpu isa) {
  if ((known_cpu() & 1u << isa) == 0) return 0;
  if (isa == MHAGEN_CPU_AVX512_BF16) return 1; /* AMX is this where tests emulate tiles */
  return isa != MHAGEN_CPU_AMX || has_tiles();
}
#else
static unsigned known_tiles(void) { return 0; }
static int is_settled(unsigned before) { return before == 0; }
#endif

#if defined(__aarch64__)
/* Arithmetic of half precision: what the compiler takes for granted, or else what the operating
 * system says. */
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
static int has_neon_fp16(void) { return 1; }
#elif defined(__linux__) && __STDC_HOSTED__
static int has_neon_fp16(void) { return (getauxval(AT_HWCAP) & 1ul << 10) != 0; }
#elif defined(__APPLE__)
static int has_neon_fp16(void) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname("hw.optional.neon_fp16", &value, &size, NULL, 0) == 0 && value != 0;
}
#elif defined(_WIN32)
__declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long feature);

static int has_neon_fp16(void) { return IsProcessorFeaturePresent(67); } /* of winnt.h */
#else
static int has_neon_fp16(void) { return 0; }
#endif
#endif

#if defined(__aarch64__)
/* Dot products, bfloat16 and I8MM: what the compiler takes for granted, or else what the operating
 * system says, where there is a libc to ask it by. */
#if defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && \
    defined(__ARM_FEATURE_MATMUL_INT8)
static int has_neon_i8mm(void) { return 1; }
#elif defined(__linux__) && __STDC_HOSTED__
static int has_neon_i8mm(void) {
  const unsigned long first = 1ul << 20, second = 1ul << 13 | 1ul << 14;
  return (getauxval(AT_HWCAP) & first) == first && (getauxval(AT_HWCAP2) & second) == second;
}
#elif defined(__APPLE__)
static int has_feature(const char *name) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, NULL, 0) == 0 && value != 0;
}

static int has_neon_i8mm(void) {
  return has_feature("hw.optional.arm.FEAT_DotProd") && has_feature("hw.optional.arm.FEAT_BF16") &&
         has_feature("hw.optional.arm.FEAT_I8MM");
}
#elif defined(_WIN32)
__declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long feature);

static int has_neon_i8mm(void) { /* the numbers of winnt.h */
  return IsProcessorFeaturePresent(43) && IsProcessorFeaturePresent(66) &&
         IsProcessorFeaturePresent(68);
}
#else
static int has_neon_i8mm(void) { return 0; }
#endif
#endif

/* A thread's floating-point environment, without libc's <fenv.h>, which needs libm: its mode of
 * rounding and its traps, and which exceptions were raised. On other CPUs there is none to hold. */
typedef struct environment {
  uint64_t control, raised;
} environment;

#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__SSE__))
static environment get_environment(void) {
  uint32_t both;
  __asm__ volatile("stmxcsr %0" : "=m"(both) : : "memory");
  return (environment){both, 0};
}

static void set_environment(environment to) {
  const uint32_t both = (uint32_t)to.control;
  __asm__ volatile("ldmxcsr %0" : : "m"(both) : "memory");
}

/* Bits that let an exception trap, or keep it from that; those by which subnormal numbers are
 * zeros. */
static const uint64_t traps_on = 0, traps_off = 0x1F80, flush = 0x8040;
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
static environment get_environment(void) {
  environment now;
  __asm__ volatile("mrs %0, fpcr" : "=r"(now.control) : : "memory");
  __asm__ volatile("mrs %0, fpsr" : "=r"(now.raised) : : "memory");
  return now;
}

static void set_environment(environment to) {
  __asm__ volatile("msr fpcr, %0" : : "r"(to.control) : "memory");
  __asm__ volatile("msr fpsr, %0" : : "r"(to.raised) : "memory");
}

static const uint64_t traps_on = 0x9F00, traps_off = 0, flush = 1u << 24;
#else
static environment get_environment(void) { return (environment){0, 0}; }
static void set_environment(environment to) { (void)to; }
static const uint64_t traps_on = 0, traps_off = 0, flush = 0;
#endif

/* The same modes, without traps. */
static environment without_traps(environment of) {
  return (environment){(of.control & ~traps_on) | traps_off, of.raised};
}

/* Whether sums become the nearest number. The sums themselves tell, on any CPU; memory hides them
 * from the compiler. */
static int rounds_to_nearest(void) {
  const volatile float one = 1.0f, little = 0x1p-26f;
  const volatile float above = one + little, below = one - little;
  return above == 1.0f && below == 1.0f;
}

unsigned long mhagen_flush_begin(void) {
  const environment before = get_environment();
  set_environment((environment){before.control | flush, before.raised});
  return (unsigned long)(before.control & flush);
}

void mhagen_flush_end(unsigned long before) {
  const environment now = get_environment(); /* with what has been raised meanwhile */
  set_environment((environment){(now.control & ~flush) | before, now.raised});
}

const char *mhagen_status_text(mhagen_status status) {
  switch (status) {
    case MHAGEN_OK: return "done";
    case MHAGEN_ERR_NULL: return "a pointer that the kernel needs is null";
    case MHAGEN_ERR_ALIGN: return "packed, tables, workspace or cache is not aligned to 64 bytes";
    case MHAGEN_ERR_LENGTH: return "a kv_len, kv_start, q_len or past is out of its range";
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

/* What is wrong with one pointer of a struct; `batch` is the number of ints behind it. */
static mhagen_status check_need(const mhagen_need *need, const void *given, int batch) {
  const void *pointer;
  memcpy(&pointer, (const char *)given + need->at, sizeof pointer);
  if (!pointer) return MHAGEN_ERR_NULL;
  if ((uintptr_t)pointer & (uintptr_t)(need->align - 1)) return MHAGEN_ERR_ALIGN;
  if (need->most >= 0 && !in_range(pointer, batch, need->most)) return MHAGEN_ERR_LENGTH;
  return MHAGEN_OK;
}

/* The first status of all that is wrong, in the order of mhagen_status. */
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

const mhagen_kernel *mhagen_kernel_at(const mhagen_kernel *kernel, const mhagen_args *args) {
  const mhagen_kernel *const one = mhagen_kernel_of(kernel);
  const mhagen_kernel *const *member = one->members;
  if (!member) return one;
  while (member[1] && check_needs((*member)->needs, (*member)->need_count, args,
                                  (*member)->batch) == MHAGEN_ERR_LENGTH) {
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

/* The same of tables that are apart. Elsewhere they are not read: a caller may have been compiled
 * with a mhagen_args that ends before them. */
static int has_own_tables(const mhagen_kernel *kernel, const mhagen_args *args) {
  return kernel->tables_bytes == 0 || fingerprint_in(args->tables) == kernel->tables_fingerprint;
}

/* The same with what this machine can run, and with whose packed weights and tables they are. */
static mhagen_status check_call(const mhagen_kernel *kernel, const mhagen_need *needs, int count,
                                const mhagen_args *args) {
  const mhagen_status status = check_needs(needs, count, args, kernel->batch);
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

/* What is said of an argument that is null, not aligned, or has a number out of its range. */
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
    ROW(kv_start, "0..seq_kv"),
    ROW(q_len, "0..seq"), ROW(mask, ""), ROW(scores, ""),
    ROW(past, "0..seq_kv - seq"), ROW(cache, ""), ROW(tables, ""),
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
  for (int i = 0; i < count; ++i) {
    if (check_need(&needs[i], args, kernel->batch) != status) continue;
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

/* To ask for the environment waits for all sums before: 1.5 % of a run of micro on Zen 5. So a run
 * does not ask by itself. */
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

/* sin(2 pi (x + quarters / 4)) for any finite x: from 2^53 on all numbers are whole turns. */
static double wave(double x, int quarters) {
  const int fits = x > -0x1p53 && x < 0x1p53;
  double part = fits ? x - (double)(int64_t)x : 0.0; /* exact */
  if (part < 0.0) part += 1.0;
  const int nearest = (int)(part * 4.0 + 0.5);
  const double a = 6.283185307179586 * (part - nearest * 0.25), square = a * a;
  const int quarter = (nearest + quarters) & 3;
  double sum = 0.0; /* Taylor's series, |a| <= pi / 4 */
  for (int i = quarter & 1 ? 16 : 17; i > 1; i -= 2) sum = (1.0 - sum) * square / (i * (i - 1));
  const double value = (quarter & 1 ? 1.0 : a) * (1.0 - sum);
  return quarter & 2 ? -value : value;
}

/* A given matrix as a term reads it: element (row, column) is at[row * row_step + column *
 * column_step], or if at is null that number of a matrix instead. */
typedef struct view {
  const float *at;
  ptrdiff_t row_step, column_step;
  const mhagen_packing *packing;
  const mhagen_matrix *of;
} view;

static int is_table(const mhagen_matrix *m) {
  return m->null == MHAGEN_COSINES || m->null == MHAGEN_SINES;
}

/* A number of a matrix that is not given. */
static double instead(const mhagen_packing *packing, const mhagen_matrix *m, ptrdiff_t i) {
  if (!is_table(m)) return m->null == MHAGEN_ONES ? 1.0 : 0.0;
  const double place = (double)(i / m->columns + packing->rope_first);
  return wave(place * packing->rope_turns[i % m->columns], m->null == MHAGEN_COSINES);
}

static view view_of(const mhagen_packing *packing, const mhagen_weights *weights, int matrix,
                    int flipped) {
  const view none = {NULL, 0, 0, packing, NULL};
  if (matrix == MHAGEN_NONE) return none;
  const mhagen_matrix *const m = packing->matrices + matrix;
  const float *at;
  memcpy(&at, (const char *)weights + m->at, sizeof at);
  view v = {at ? at : m->instead, m->columns, 1, packing, m};
  if (weights->layout == MHAGEN_OUT_IN && !is_table(m)) v.row_step = 1, v.column_step = m->rows;
  const view turned = {v.at, v.column_step, v.row_step, packing, m};
  return flipped ? turned : v;
}

static double element(view v, ptrdiff_t row, ptrdiff_t column) {
  const ptrdiff_t i = row * v.row_step + column * v.column_step;
  return v.at ? (double)v.at[i] : instead(v.packing, v.of, i);
}

/* Adds element (row, column) of a term to a sum. */
static double add_term(const mhagen_pack_term *t, view a, view b, ptrdiff_t row, ptrdiff_t column,
                       double sum) {
  if (t->b == MHAGEN_NONE) return sum + element(a, row, column);
  for (ptrdiff_t i = t->first; a.at && i < t->first + t->inner; ++i) {
    sum += element(a, row, i) * element(b, i, column);
  }
  return sum;
}

/* The bits of the nearest bfloat16, ties to even. */
static uint32_t to_bf16(double x) {
  const float f = (float)x;
  const double size = x < 0.0 ? -x : x, rounded = f < 0.0f ? -(double)f : (double)f;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (x != x) return bits >> 16 | 0x40;
  if (rounded > size) --bits; /* towards zero, and odd if inexact: rounding again is as once */
  if (rounded != size) bits |= 1;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

/* The same of half precision. */
static uint32_t to_f16(double x) {
  const double size = x < 0.0 ? -x : x;
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = (uint32_t)(bits >> 48 & 0x8000);
  if (x != x) return sign | 0x7E00;
  if (size >= 65520.0) return sign | 0x7C00;
  if (size < 0x1p-14) { /* so many times 2^-24 */
    const uint32_t count = (uint32_t)(size * 0x1p24);
    const double part = size * 0x1p24 - count;
    return sign | (count + (part > 0.5 || (part == 0.5 && count % 2 != 0)));
  }
  const uint64_t half = (bits << 1 >> 43) - ((UINT64_C(1023) - 15) << 10);
  const uint64_t rest = bits & ((UINT64_C(1) << 42) - 1), middle = UINT64_C(1) << 41;
  return sign | (uint32_t)(half + (rest > middle || (rest == middle && half % 2 != 0)));
}

/* What bits of these types are, as a float. */
static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static float of_bf16(uint32_t bits) { return of_bits(bits << 16); }

static float of_f16(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000) << 16, size = (bits & 0x7FFF) << 13;
  if (size < UINT32_C(1) << 23) { /* so many times 2^-24 */
    const float x = (float)(bits & 0x3FF) * 0x1p-24f;
    return sign ? -x : x;
  }
  const uint32_t more = size < UINT32_C(31) << 23 ? 127 - 15 : 255 - 31; /* of the exponent */
  return of_bits(sign | (size + (more << 23)));
}

/* Steps and columns at a time: matrices are read along either in lines of the cache that stay, and
 * what does not depend on a column is asked once. */
enum { STEPS = 8, COLUMNS = 32 };

/* What the scales that are tried for a group make of its steps so far, by column: the sum of the
 * integers times the numbers, and that of the squares of the integers. */
enum { TRIED = 12 };

typedef struct fits { int32_t products[TRIED][COLUMNS], squares[TRIED][COLUMNS]; } fits;

/* Where a step of a panel is written. */
typedef struct step_place {
  double scale;          /* of the fill */
  float *words;          /* the row of words with its numbers, */
  ptrdiff_t apart;       /* from one column to the next one; */
  int shift;             /* and their lowest bit in a word */
  float *scales, *sums; /* of quants: the rows of their scales and sums, or null; */
  double least, most;    /* the least and the largest integer; */
  uint32_t mask;         /* the bits of one; */
  int begins, last;      /* whether no step before it, or behind it, shares its scale */
  ptrdiff_t together;    /* columns whose numbers of a step lie together, or 0 */
  fits *fits;            /* of the columns that are written */
} step_place;

static ptrdiff_t at_most(ptrdiff_t count, ptrdiff_t most) { return count < most ? count : most; }

static step_place place_of(const mhagen_packing *packing, const mhagen_pack_fill *fill, int bits,
                      float *panel, ptrdiff_t step) {
  const ptrdiff_t deep = bits < 32 && packing->deep > 1 ? packing->deep : 1, in_word = 32 / bits;
  const ptrdiff_t row = step / in_word, behind = row % deep; /* words side by side */
  const ptrdiff_t words = ((fill->steps + in_word - 1) / in_word + deep - 1) / deep * deep;
  step_place to = {fill->scale, panel + (row - behind) * fill->width + behind, deep,
              (int)(step % in_word) * bits, NULL, NULL, 0.0, 0.0, 0, 0, 0, packing->apart,
              NULL};
  if (bits > 8) return to;
  if (bits == 4 && packing->quant_bytes) to.shift = (int)(step % 4 * 8 + step % 8 / 4 * 4);
  const ptrdiff_t given = bits == packing->quant_bits ? packing->quant_group : 0;
  const ptrdiff_t group = given ? given : fill->steps;
  const ptrdiff_t scales = (fill->steps + group - 1) / group, before = step / group;
  ptrdiff_t end = words;
  if (given && packing->quant_beside) {
    to.words += before * fill->width;
    end = at_most((before + 1) * group / in_word, words);
  }
  to.scales = panel + (end + before) * fill->width;
  if (packing->quant_sums) to.sums = panel + (words + scales) * fill->width;
  to.most = (double)((1 << (bits - 1)) - 1);
  to.least = bits < 8 ? -to.most - 1.0 : -to.most; /* of sixteen integers the last one counts */
  to.mask = (1u << bits) - 1;
  to.begins = step % group == 0;
  to.last = step + 1 == fill->steps || (step + 1) % group == 0;
  return to;
}

/* Writes the numbers of columns first..end - 1, from the sums of the terms. */
typedef void (*write_columns)(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums);

static void write_floats(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) to.words[c] = (float)(to.scale * *sums++);
}

/* Adds to a word modulo 2^32; in zeros that sets bits. */
static void add_bits(float *at, uint32_t bits) {
  uint32_t word;
  memcpy(&word, at, sizeof word);
  word += bits;
  memcpy(at, &word, sizeof word);
}

static void write_bf16(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    add_bits(to.words + c * to.apart, to_bf16(to.scale * *sums++) << to.shift);
  }
}

static void write_f16(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  const ptrdiff_t n = to.together;
  for (ptrdiff_t c = first; c < end; ++c) {
    const uint32_t bits = to_f16(to.scale * *sums++);
    if (n > 0) { /* number `at` of 16 bits, two in a word */
      const ptrdiff_t at = (2 * (c / n) + to.shift / 16) * n + c % n;
      add_bits(to.words + at / 2, bits << at % 2 * 16);
    } else {
      add_bits(to.words + c * to.apart, bits << to.shift);
    }
  }
}

static void write_rounded_bf16(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    to.words[c] = of_bf16(to_bf16((float)(to.scale * *sums++)));
  }
}

static void write_rounded_f16(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    to.words[c] = of_f16(to_f16((float)(to.scale * *sums++)));
  }
}

/* The largest scale that a number of a group asks for; NaN stays. */
static void write_scales(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    float *const at = to.scales + c;
    const float largest = *at < 0.0f ? -*at : *at, scale = (float)(*sums++ / to.least);
    const float size = scale < 0.0f ? -scale : scale;
    if (*at == *at && !(size <= largest)) *at = to.least < -to.most ? scale : size;
  }
}

/* Tries scales of nibbles: 8/7 of the one that is there, which is the largest number over -8, then
 * 8/7.25, .., 8/9.75. The best one's integers have the scale of least squares. Sums are of
 * integers, with numbers in 1024ths of the scale that is there: no machine rounds otherwise. */
static void write_fits(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  int32_t numbers[COLUMNS];
  if (to.begins) memset(to.fits, 0, sizeof *to.fits);
  for (ptrdiff_t c = first; c < end; ++c) {
    const float own = to.scales[c];
    const int finite = own >= -FLT_MAX && own <= FLT_MAX;
    const double exact = finite && own != 0.0f ? sums[c - first] / (double)own : 0.0;
    const double most = exact > 8.0 ? 8.0 : exact; /* as with scales of few digits, below 2^-126 */
    numbers[c - first] = (int32_t)((most < -8.0 ? -8.0 : most) * 1024.0 + 8192.5) - 8192;
  }
  for (int i = 0; i < TRIED; ++i) {
    for (ptrdiff_t c = 0; c < end - first; ++c) {
      const int32_t above = numbers[c] * (28 + i) + 17 * 16384; /* -8.5, in 32768ths */
      const int32_t level = (above < 0 ? 0 : above) / 32768;
      const int32_t integer = (level > 15 ? 15 : level) - 8;
      to.fits->products[i][c] += integer * numbers[c];
      to.fits->squares[i][c] += integer * integer;
    }
  }
  for (ptrdiff_t c = first; to.last && c < end; ++c) {
    double best = 0.0, scale = 0.0;
    for (int i = 0; i < TRIED; ++i) {
      const double product = to.fits->products[i][c - first] / 1024.0;
      const double square = to.fits->squares[i][c - first];
      if (square > 0.0 && product * product / square > best) {
        best = product * product / square;
        scale = product / square;
      }
    }
    if (best > 0.0) to.scales[c] = (float)(scale * (double)to.scales[c]);
  }
}

/* The nearest integer, ties to even, for |x| <= 127; without a branch, which would be a coin's. */
static int to_integer(double x) {
  const int low = (int)(x + 128.0) - 128; /* or one more, where x is almost that */
  const double part = x - low;
  return low + ((part > 0.5) | ((part == 0.5) & low & 1));
}

/* The scales are there; each becomes that of products behind the last step of its group. */
static void write_quants(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    float *const at = to.scales + c;
    const int finite = *at >= -FLT_MAX && *at <= FLT_MAX;
    const double sum = *sums++;
    double exact = finite && *at != 0.0f ? sum / (double)*at : 0.0;
    if (exact > to.most) exact = to.most; /* and see to scales of few digits, below 2^-126 */
    if (exact < to.least) exact = to.least;
    const uint32_t integer = (uint32_t)to_integer(exact);
    add_bits(to.words + c * to.apart, (integer & to.mask) << to.shift);
    if (to.sums) add_bits(to.sums + c, integer * (uint32_t)-128);
    if (to.last) *at = (float)(to.scale * (double)*at);
  }
}

static void write_panel(const mhagen_packing *packing, const mhagen_pack_fill *fill, int bits,
                        const mhagen_weights *weights, const mhagen_pack_term *terms,
                        write_columns write, float *panel) {
  view a[MHAGEN_PACK_TERMS], b[MHAGEN_PACK_TERMS];
  for (int i = 0; i < fill->terms; ++i) {
    a[i] = view_of(packing, weights, terms[i].a, terms[i].a_flipped);
    b[i] = view_of(packing, weights, terms[i].b, terms[i].b_flipped);
  }
  fits tried;
  for (ptrdiff_t c0 = 0; c0 < fill->width; c0 += COLUMNS) {
    const ptrdiff_t columns = at_most(fill->width - c0, COLUMNS);
    const ptrdiff_t used = at_most(fill->used - c0, columns);
    for (ptrdiff_t k0 = 0; k0 < fill->steps; k0 += STEPS) {
      const ptrdiff_t steps = at_most(fill->steps - k0, STEPS);
      double sums[STEPS][COLUMNS] = {{0}};
      for (int i = 0; i < fill->terms; ++i) {
        const ptrdiff_t row = terms[i].row + k0, column = terms[i].column + c0;
        for (ptrdiff_t c = 0; c < used; ++c) {
          for (ptrdiff_t k = 0; k < steps; ++k) {
            sums[k][c] = add_term(&terms[i], a[i], b[i], row + k, column + c, sums[k][c]);
          }
        }
      }
      for (ptrdiff_t k = 0; k < steps; ++k) {
        step_place to = place_of(packing, fill, bits, panel, k0 + k);
        to.fits = &tried;
        write(to, c0, c0 + columns, sums[k]);
      }
    }
  }
}

/* Runs the rounds of a fill from number `round` on. Each round moves the panel and the terms on. */
static void write_rounds(const mhagen_packing *packing, const mhagen_pack_fill *fill, int bits,
                         const mhagen_weights *weights, int round, const mhagen_pack_term *at,
                         write_columns write, float *panel) {
  if (round == MHAGEN_PACK_ROUNDS) {
    write_panel(packing, fill, bits, weights, at, write, panel);
    return;
  }
  const mhagen_pack_round r = fill->rounds[round];
  mhagen_pack_term terms[MHAGEN_PACK_TERMS];
  for (int i = 0; i < fill->terms; ++i) terms[i] = at[i];
  for (ptrdiff_t n = 0; n == 0 || n < r.count; ++n) {
    write_rounds(packing, fill, bits, weights, round + 1, terms, write, panel + n * r.to);
    for (int i = 0; i < fill->terms; ++i) {
      terms[i].row += r.row;
      terms[i].column += r.column;
      terms[i].first += r.first;
    }
  }
}

/* bits: those of a number. */
static void write_fills(const mhagen_packing *packing, const mhagen_pack_fill *fills, int count,
                        int bits, const mhagen_weights *weights, write_columns write,
                        float *packed) {
  for (int i = 0; i < count; ++i) {
    const mhagen_pack_term *terms = packing->terms + fills[i].term;
    write_rounds(packing, &fills[i], bits, weights, 0, terms, write, packed + fills[i].to);
  }
}

/* Compilers may divide by zero where the quotient is not used, so traps are off. */
void mhagen_pack(const mhagen_packing *p, const mhagen_weights *weights, void *packed) {
  const environment before = get_environment();
  set_environment(without_traps(before));
  if (p->bytes > 0) {
    memset(packed, 0, p->bytes); /* the gaps between sections too */
    memcpy(packed, &p->fingerprint, sizeof p->fingerprint);
  }
  write_fills(p, p->fills, p->fill_count, 32, weights, write_floats, packed);
  write_fills(p, p->rounded, p->rounded_count, 32, weights,
              p->f16 ? write_rounded_f16 : write_rounded_bf16, packed);
  write_fills(p, p->pairs, p->pair_count, 16, weights, p->f16 ? write_f16 : write_bf16, packed);
  write_fills(p, p->quants, p->quant_count, p->quant_bits, weights, write_scales, packed);
  if (p->quant_bits == 4) write_fills(p, p->quants, p->quant_count, 4, weights, write_fits, packed);
  write_fills(p, p->quants, p->quant_count, p->quant_bits, weights, write_quants, packed);
  write_fills(p, p->value_quants, p->value_quant_count, 8, weights, write_scales, packed);
  write_fills(p, p->value_quants, p->value_quant_count, 8, weights, write_quants, packed);
  set_environment(before);
}

mhagen_packed_head mhagen_packed_begin(const mhagen_kernel *kernel) {
  const mhagen_kernel *const one = mhagen_kernel_of(kernel);
  mhagen_packed_head head = {.magic = MHAGEN_PACKED_MAGIC,
                             .version = MHAGEN_PACKED_VERSION,
                             .head_bytes = sizeof head,
                             .fingerprint = one->fingerprint,
                             .packed_bytes = one->packed_bytes};
  const size_t length = strlen(one->name), most = sizeof head.name - 1;
  memcpy(head.name, one->name, length < most ? length : most);
  return head;
}

/* The checksum of words behind those that it is of. Each step is one-to-one, so no change of a
 * single word is missed. */
static uint64_t sum_words(uint64_t sum, const void *bytes, uint64_t size) {
  for (uint64_t i = 0; i < size; i += sizeof sum) {
    uint64_t word;
    memcpy(&word, (const char *)bytes + i, sizeof word);
    sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
    sum ^= sum >> 32;
  }
  return sum;
}

void mhagen_packed_add(mhagen_packed_head *head, const void *packed) {
  head->layers += 1;
  head->checksum = sum_words(head->checksum, packed, head->packed_bytes);
}

mhagen_status mhagen_packed_check_head(const mhagen_kernel *kernel, const void *bytes,
                                       size_t size) {
  mhagen_packed_head head;
  if (!bytes) return MHAGEN_ERR_NULL;
  if ((uintptr_t)bytes % MHAGEN_ALIGN != 0) return MHAGEN_ERR_ALIGN;
  if (size < sizeof head) return MHAGEN_ERR_PACKED;
  memcpy(&head, bytes, sizeof head);
  const mhagen_kernel *const one = mhagen_kernel_of(kernel);
  const int of_weights = head.fingerprint == one->fingerprint &&
                         head.packed_bytes == one->packed_bytes;
  const int of_tables = one->tables_bytes > 0 && head.fingerprint == one->tables_fingerprint &&
                        head.packed_bytes == one->tables_bytes;
  const uint64_t rest = size - sizeof head;
  const uint64_t layers = head.packed_bytes > 0 ? rest / head.packed_bytes : head.layers;
  const int good = memcmp(head.magic, MHAGEN_PACKED_MAGIC, sizeof head.magic) == 0 &&
                   head.version == MHAGEN_PACKED_VERSION && head.head_bytes == sizeof head &&
                   (of_weights || of_tables) && head.layers == layers &&
                   rest == layers * head.packed_bytes;
  return good ? MHAGEN_OK : MHAGEN_ERR_PACKED;
}

mhagen_status mhagen_packed_check(const mhagen_kernel *kernel, const void *bytes, size_t size) {
  const mhagen_status found = mhagen_packed_check_head(kernel, bytes, size);
  mhagen_packed_head head;
  if (found != MHAGEN_OK) return found;
  memcpy(&head, bytes, sizeof head);
  for (size_t i = 0; i < head.layers && head.packed_bytes > 0; ++i) {
    if (fingerprint_in(mhagen_packed_layer(bytes, i)) != head.fingerprint) return MHAGEN_ERR_PACKED;
  }
  const uint64_t sum = sum_words(0, (const char *)bytes + sizeof head, size - sizeof head);
  return sum == head.checksum ? MHAGEN_OK : MHAGEN_ERR_PACKED;
}

const void *mhagen_packed_layer(const void *bytes, size_t layer) {
  mhagen_packed_head head;
  memcpy(&head, bytes, sizeof head);
  if (layer >= head.layers) return NULL;
  return (const char *)bytes + sizeof head + layer * (size_t)head.packed_bytes;
}

/* POSIX threads are on these systems; on others, such as a bare Cortex-M, there is no pool. */
#if !defined(__unix__) && !defined(__APPLE__) && !defined(__MINGW32__) && !defined(MHAGEN_NO_POOL)
#define MHAGEN_NO_POOL
#endif

#ifdef MHAGEN_NO_POOL

mhagen_pool *mhagen_pool_create(int threads) {
  (void)threads;
  return NULL;
}

void mhagen_pool_destroy(mhagen_pool *pool) { (void)pool; }

mhagen_status mhagen_run_parallel(const mhagen_kernel *kernel, const mhagen_args *args,
                                  mhagen_pool *pool) {
  (void)pool;
  return kernel->run(args);
}

#else

#include <pthread.h>
#include <stdlib.h>

#ifdef __MINGW32__
static long cpus(void) { return pthread_num_processors_np(); }
static long process(void) { return 0; } /* Windows has no fork */
#else
#include <unistd.h>
static long cpus(void) { return sysconf(_SC_NPROCESSORS_ONLN); }
static long process(void) { return (long)getpid(); }
#endif

/* Before a thread sleeps it looks this often whether something has happened, which takes a tenth of
 * a millisecond on Zen 4: the phases of a run follow each other sooner than a thread can be woken.
 * Two threads on minilm are 1.98 times as fast as one, and 1.73 times with a quarter of the looks.
 * A look takes no lock, so the number is read and written atomically, by builtins that need no C11.
 * With a compiler that has no such builtins threads sleep at once. */
#ifdef __GNUC__
enum { LOOKS = 200, PAUSES = 25 };
static unsigned get(const unsigned *number) { return __atomic_load_n(number, __ATOMIC_RELAXED); }
static void set(unsigned *number, unsigned to) { __atomic_store_n(number, to, __ATOMIC_RELAXED); }
#else
enum { LOOKS = 0, PAUSES = 0 };
static unsigned get(const unsigned *number) { return *number; }
static void set(unsigned *number, unsigned to) { *number = to; }
#endif

/* One mutex guards everything but the constant part. Tasks are handed out under it too: a task is
 * far longer than a lock, and so next, end and unfinished can be understood without a memory model.
 * The current phase is over when unfinished is 0; only then does the caller post another one. */
struct mhagen_pool {
  pthread_mutex_t lock;
  pthread_cond_t work; /* there are tasks to hand out, or stop */
  pthread_cond_t done; /* unfinished has become 0 */
  void (*task)(const mhagen_args *args, int index);
  const mhagen_args *args;
  int next, end;  /* indices of the tasks not handed out yet */
  unsigned unfinished; /* tasks that have not ended yet; read without the lock as well */
  unsigned posted;     /* counts what the workers must see, phases and stop; the same */
  int stop;
  int looks;    /* constant from here on: before sleeping; none with more threads than CPUs */
  long process; /* that the workers are in: a fork leaves them there */
  int workers;  /* the caller is no worker */
  pthread_t worker[];
};

/* Called with the lock held. Waits, unlocked, as long as a number that changes under the lock has
 * this value. */
static void look(mhagen_pool *pool, const unsigned *number, unsigned is) {
  pthread_mutex_unlock(&pool->lock);
  for (int i = 0; i < pool->looks && get(number) == is; i++) {
    for (int j = 0; j < PAUSES; j++) {
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
      __builtin_ia32_pause();
#elif defined(__GNUC__) && defined(__aarch64__)
      __asm__ volatile("isb"); /* yield does nothing on most */
#endif
    }
  }
  pthread_mutex_lock(&pool->lock);
}

/* Called with the lock held. Runs tasks, unlocked, until all are handed out. */
static void take_tasks(mhagen_pool *pool) {
  while (pool->next < pool->end) {
    int index = pool->next++;
    pthread_mutex_unlock(&pool->lock);
    pool->task(pool->args, index); /* stays as it is while a task is unfinished */
    pthread_mutex_lock(&pool->lock);
    set(&pool->unfinished, pool->unfinished - 1);
    if (pool->unfinished == 0) pthread_cond_signal(&pool->done);
  }
}

static void *work(void *argument) {
  mhagen_pool *pool = argument;
  set_environment(without_traps(get_environment()));
  pthread_mutex_lock(&pool->lock);
  while (!pool->stop) {
    if (pool->next >= pool->end) look(pool, &pool->posted, pool->posted);
    if (pool->next < pool->end)
      take_tasks(pool);
    else if (!pool->stop)
      pthread_cond_wait(&pool->work, &pool->lock);
  }
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

mhagen_pool *mhagen_pool_create(int threads) {
  if (threads < 1 || threads > MHAGEN_MAX_THREADS || !rounds_to_nearest()) return NULL;
  int wanted = threads - 1;
  mhagen_pool *pool = calloc(1, sizeof *pool + (size_t)wanted * sizeof pool->worker[0]);
  if (!pool) return NULL;
  pool->looks = threads <= cpus() ? LOOKS : 0;
  pool->process = process();
  if (pthread_mutex_init(&pool->lock, NULL)) goto no_lock;
  if (pthread_cond_init(&pool->work, NULL)) goto no_work;
  if (pthread_cond_init(&pool->done, NULL)) goto no_done;
  while (pool->workers < wanted) {
    if (pthread_create(&pool->worker[pool->workers], NULL, work, pool)) {
      mhagen_pool_destroy(pool); /* joins those that did start */
      return NULL;
    }
    pool->workers++;
  }
  return pool;

no_done:
  pthread_cond_destroy(&pool->work);
no_work:
  pthread_mutex_destroy(&pool->lock);
no_lock:
  free(pool);
  return NULL;
}

void mhagen_pool_destroy(mhagen_pool *pool) {
  if (!pool) return;
  if (pool->process != process()) { /* nobody to join, and a worker may have held the lock */
    free(pool);
    return;
  }
  pthread_mutex_lock(&pool->lock);
  pool->stop = 1;
  set(&pool->posted, pool->posted + 1);
  pthread_cond_broadcast(&pool->work);
  pthread_mutex_unlock(&pool->lock);
  for (int i = 0; i < pool->workers; i++) pthread_join(pool->worker[i], NULL);
  pthread_cond_destroy(&pool->done);
  pthread_cond_destroy(&pool->work);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}

/* Waking a sleeping thread takes some 20000 cycles, and its caches are cold. */
static const double worth_waking = 100000;

static int worth_forking(const mhagen_pool *pool, const mhagen_phase *phase) {
  return pool && pool->workers > 0 && phase->tasks > 1 && phase->cycles >= worth_waking;
}

static void fork_phase(mhagen_pool *pool, const mhagen_phase *phase, const mhagen_args *args) {
  pthread_mutex_lock(&pool->lock);
  pool->task = phase->task;
  pool->args = args;
  pool->next = phase->first;
  pool->end = phase->first + phase->tasks;
  set(&pool->unfinished, (unsigned)phase->tasks);
  set(&pool->posted, pool->posted + 1);
  /* The caller takes a task itself: wake no more workers than there are others. */
  for (int i = 0; i < pool->workers && i < phase->tasks - 1; i++) pthread_cond_signal(&pool->work);
  take_tasks(pool);
  for (unsigned left = pool->unfinished; left > 0; left = pool->unfinished) {
    look(pool, &pool->unfinished, left);
    if (pool->unfinished == left) break;
  }
  while (pool->unfinished > 0) pthread_cond_wait(&pool->done, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
}

mhagen_status mhagen_run_parallel(const mhagen_kernel *any, const mhagen_args *args,
                                  mhagen_pool *pool) {
  const mhagen_kernel *const kernel = mhagen_kernel_at(any, args);
  int forks = 0;
  for (int p = 0; p < kernel->phase_count; p++) forks += worth_forking(pool, &kernel->phases[p]);
  if (forks == 0 || pool->process != process()) {
    return kernel->run(args); /* in the order that keeps one core's caches warm */
  }
  const mhagen_status status = mhagen_check_args(kernel, args);
  if (status != MHAGEN_OK) return status;
  const environment before = get_environment();
  set_environment(without_traps(before));
  for (int p = 0; p < kernel->phase_count; p++) {
    const mhagen_phase *phase = &kernel->phases[p];
    if (worth_forking(pool, phase)) {
      fork_phase(pool, phase, args);
    } else {
      for (int i = 0; i < phase->tasks; i++) phase->task(args, phase->first + i);
    }
  }
  set_environment(before);
  return MHAGEN_OK;
}

#endif
