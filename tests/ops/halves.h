/* Arithmetic of half precision by that of double, for kernels of avx512_fp16 on CPUs without it: compile them with
 * -include tests/ops/halves.h and mhagen.h on the path. Of the CPU it asks for AVX-512 with BF16 alone.
 * tests/ops/halves_test.c
 * compares it with C, and with the instructions where there are some. */
#ifndef HALVES_H_INCLUDED
#define HALVES_H_INCLUDED

#define _DEFAULT_SOURCE /* as files have it that this one stands before */
#include <immintrin.h>
#include <string.h>

#include "mhagen.h"

#undef _DEFAULT_SOURCE
#define MHAGEN_CPU_AVX512_FP16 MHAGEN_CPU_AVX512_BF16

#define HALVES_TARGET __attribute__((unused, target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")))

/* The nearest half precision of numbers in double: to float32 by rounding to odd, behind which rounding again is as
 * rounding once (Boldo & Melquiond 2008). */
HALVES_TARGET static __m128i halves_nearest(__m512d x) {
  const __m256 cut = _mm512_cvt_roundpd_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
  const __mmask8 inexact = _mm512_cmp_pd_mask(_mm512_cvtps_pd(cut), x, _CMP_NEQ_UQ);
  const __m256i bits = _mm256_castps_si256(cut);
  const __m256i odd = _mm256_mask_or_epi32(bits, inexact, bits, _mm256_set1_epi32(1));
  return _mm256_cvtps_ph(_mm256_castsi256_ps(odd), _MM_FROUND_TO_NEAREST_INT);
}

HALVES_TARGET static __m512d halves_double(const unsigned short *p) {
  return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* a * b + c of so many halves. The product is exact in double. So is the sum, but where c or the product is so small
 * beside the other one that it changes no digit of half precision, nor the side of a middle. */
HALVES_TARGET static void halves_fma(const void *a, const void *b, const void *c, void *to, int count) {
  unsigned short x[32], y[32], z[32];
  const size_t bytes = 2 * (size_t)count;
  memcpy(x, a, bytes), memcpy(y, b, bytes), memcpy(z, c, bytes);
  for (int i = 0; i < count; i += 8) {
    const __m512d product = _mm512_mul_pd(halves_double(x + i), halves_double(y + i));
    _mm_storeu_si128((__m128i *)(void *)(z + i), halves_nearest(_mm512_add_pd(product, halves_double(z + i))));
  }
  memcpy(to, z, bytes);
}

#define HALVES_WIDTH(bits, count)                                                                      \
  HALVES_TARGET static __m##bits##i halves_fmadd_##bits(__m##bits##i a, __m##bits##i b, __m##bits##i c) { \
    halves_fma(&a, &b, &c, &c, count);                                                                 \
    return c;                                                                                          \
  }                                                                                                    \
  HALVES_TARGET static __m##bits##i halves_add_##bits(__m##bits##i a, __m##bits##i b) {                \
    unsigned short ones[count];                                                                        \
    for (int i = 0; i < count; ++i) ones[i] = 0x3C00;                                                  \
    halves_fma(&a, ones, &b, &b, count);                                                               \
    return b;                                                                                          \
  }
HALVES_WIDTH(512, 32)
HALVES_WIDTH(256, 16)

/* Kernels ask for instructions that clang would also use for what they do in other ways. */
#if defined(__clang__)
#define target(features) target("avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,avx512vnni,avx2,fma,f16c")
#undef __clang_major__
#define __clang_major__ 16 /* from which on kernels call what stands below */
#endif

#define __m512h __m512i
#define __m256h __m256i
#define _mm512_fmadd_ph halves_fmadd_512
#define _mm512_add_ph halves_add_512
#define _mm256_fmadd_ph halves_fmadd_256
#define _mm256_add_ph halves_add_256

#endif
