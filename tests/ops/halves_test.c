/* The arithmetic of tests/ops/halves.h beside exact arithmetic in integers, and beside the instructions where this
 * CPU has
 * them: compile it with mhagen.h on the path, and mhagen.c. Exit status 77: this CPU runs neither. */
#include "halves.h"

#include <cpuid.h>
#include <stdint.h>
#include <stdio.h>

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 uwide;

/* A finite number of half precision, in 2^-24. */
static int64_t fixed_of(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int64_t size = exponent == 0 ? bits & 1023 : (int64_t)(1024 + (bits & 1023)) << (exponent - 1);
  return bits & 0x8000 ? -size : size;
}

static int is_finite(uint16_t bits) { return (bits >> 10 & 31) < 31; }

/* The nearest half precision of `value` in 2^-48, ties to even; zero: the sign of what is none. */
static uint16_t nearest(wide value, uint16_t zero) {
  const uint32_t sign = value < 0 ? 0x8000 : 0;
  uwide size = value < 0 ? -(uwide)value : (uwide)value;
  int shift = 24;
  if (size == 0) return zero;
  while (size >> shift >= 2048) ++shift;
  const uwide rest = size & (((uwide)1 << shift) - 1), middle = (uwide)1 << (shift - 1);
  uint32_t digits = (uint32_t)(size >> shift);
  digits += rest > middle || (rest == middle && digits % 2 != 0);
  /* A carry goes into the exponent. */
  const uint32_t bits = digits < 1024 ? digits : ((uint32_t)(shift - 24) << 10) + digits;
  return (uint16_t)(sign | (bits < 0x7C00 ? bits : 0x7C00));
}

static uint16_t exact_fma(uint16_t a, uint16_t b, uint16_t c) {
  const uint16_t product_sign = (a ^ b) & 0x8000;
  return nearest((wide)fixed_of(a) * fixed_of(b) + ((wide)fixed_of(c) << 24), product_sign & c);
}

__attribute__((target("avx512f"))) static void by_instructions(const uint16_t *a, const uint16_t *b, uint16_t *fma,
                                                               uint16_t *sum) {
  __asm__ volatile("vmovdqu64 (%0), %%zmm0\n\tvmovdqu64 (%1), %%zmm1\n\tvmovdqu64 (%2), %%zmm2\n\t"
                   "vaddph %%zmm1, %%zmm0, %%zmm3\n\tvfmadd231ph %%zmm1, %%zmm0, %%zmm2\n\t"
                   "vmovdqu64 %%zmm2, (%2)\n\tvmovdqu64 %%zmm3, (%3)\n\tvzeroupper"
                   : : "r"(a), "r"(b), "r"(fma), "r"(sum) : "xmm0", "xmm1", "xmm2", "xmm3", "memory");
}

static uint64_t state = 88172645463325252u;

static uint64_t bits64(void) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state;
}

/* Any bits, numbers near each other, small ones, and what makes the sum nearly the middle between two numbers. */
static void draw(uint16_t *x) {
  const uint64_t r = bits64();
  uint32_t a = r & 0xFFFF, b = r >> 16 & 0xFFFF, c = r >> 32 & 0xFFFF;
  if (r >> 60 & 1) a = (a & 0x83FF) | 0x3C00, b = (b & 0x83FF) | (uint32_t)(r >> 49 & 31) << 10;
  if (r >> 61 & 1) c &= 0x87FF;
  if (r >> 62 & 1) b = (b & 0xFC00) | 1u << (r >> 54 & 7);
  if (r >> 63 & 1) a &= 0xFFE0, b &= 0xFFE0;
  x[0] = (uint16_t)a, x[1] = (uint16_t)b, x[2] = (uint16_t)c;
}

__attribute__((target("avx512f"))) int main(void) {
  uint16_t x[32][3], a[32], b[32], c[32], got[32], sum[32], own[32], own_sum[32];
  unsigned eax, ebx, ecx, edx = 0;
  const int there = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && edx >> 23 & 1;
  if (!mhagen_cpu_has(MHAGEN_CPU_AVX512_BF16)) return puts("skipped: this CPU has no AVX-512 with BF16"), 77;
  for (int round = 0; round < 200000; round++) {
    for (int i = 0; i < 32; i++) draw(x[i]), a[i] = x[i][0], b[i] = x[i][1], c[i] = x[i][2];
    const __m512i va = _mm512_loadu_si512(a), vb = _mm512_loadu_si512(b), vc = _mm512_loadu_si512(c);
    _mm512_storeu_si512(got, halves_fmadd_512(va, vb, vc)), _mm512_storeu_si512(sum, halves_add_512(va, vb));
    memcpy(own, c, sizeof own);
    if (there) by_instructions(a, b, own, own_sum);
    for (int i = 0; i < 32; i++) {
      const int finite = is_finite(a[i]) && is_finite(b[i]);
      if (there && ((own[i] & 0x7FFF) <= 0x7C00 || (got[i] & 0x7FFF) <= 0x7C00) && own[i] != got[i])
        return printf("fma: %04x %04x %04x: %04x, not %04x\n", a[i], b[i], c[i], got[i], own[i]), 1;
      if (there && finite && own_sum[i] != sum[i])
        return printf("add: %04x %04x: %04x, not %04x\n", a[i], b[i], sum[i], own_sum[i]), 1;
      if (finite && is_finite(c[i]) && exact_fma(a[i], b[i], c[i]) != got[i])
        return printf("%04x %04x %04x: %04x, not %04x\n", a[i], b[i], c[i], got[i], exact_fma(a[i], b[i], c[i])), 1;
      if (finite && exact_fma(a[i], 0x3C00, b[i]) != sum[i]) return printf("sum %04x %04x\n", a[i], b[i]), 1;
    }
  }
  puts(there ? "ok: exact, and as the instructions" : "ok: exact; skipped: this CPU has no FP16 to compare with");
  return 0;
}
