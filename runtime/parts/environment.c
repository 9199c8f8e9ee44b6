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

/* Bits that enable traps, and bits that mask them; bits that flush subnormal numbers to zero. */
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

/* Whether sums are rounded to nearest, by two sums, on any CPU; volatile hides them from the
 * compiler. */
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
