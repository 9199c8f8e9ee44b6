#if defined(__aarch64__) && defined(__linux__) && __STDC_HOSTED__
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

/* Clang for Visual Studio does not say __GNUC__. */
#if (defined(__GNUC__) || defined(__clang__)) && (defined(__x86_64__) || defined(__i386__))
#define ASKS_CPUID
#include <cpuid.h>

/* The words that describe a CPU: registers of leaves of CPUID, and XCR0. */
enum { C1, B7, C7, D7, A7_1, SAVED, WORDS };

/* What each mhagen_cpu needs besides another one. The bits of SAVED are of registers that the
 * operating system saves. Compiler builtins do not know all of these, and need a library that not
 * every linker finds. */
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

/* The same, cached, because CPUID takes some twenty microseconds on virtual machines. Threads that
 * ask at the same time get the same answer. */
static unsigned known_cpu(void) {
  static unsigned known; /* never 0 */
  unsigned has = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (has == 0) __atomic_store_n(&known, has = ask_cpu(), __ATOMIC_RELAXED);
  return has;
}

/* Asks Linux for the tiles, as a process must before it uses them. Returns whether it may. */
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

/* What is known of the tiles. A refusal may be temporary, because a thread had too small a signal
 * stack. So Linux is asked again, unless a bundle has chosen a member without tiles for good. */
enum { UNASKED, REFUSED, DONE_WITHOUT, GRANTED };
static unsigned tile_state;

static unsigned known_tiles(void) { return __atomic_load_n(&tile_state, __ATOMIC_RELAXED); }

/* Changes the state from one to another; if another thread was first, `from` becomes its state. */
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

/* Whether a choice that was made in state `before` of the tiles stays. */
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
