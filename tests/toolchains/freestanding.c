/* A program without libc: it packs, runs, and writes the bytes of y to standard output. With
 * -DHOSTED it is the same with libc. Linux is here only to start, to write and to end. */
#include "kernel.h"

#ifdef HOSTED
#include <stdio.h>
#else
/* All that kernels and runtime call of libc. */
void *memcpy(void *restrict to, const void *restrict from, size_t n) {
  for (size_t i = 0; i < n; i++) {
    ((char *)to)[i] = ((const char *)from)[i];
    __asm__ volatile("" ::: "memory"); /* or the loop would become a call of memcpy */
  }
  return to;
}
void *memset(void *to, int c, size_t n) {
  for (size_t i = 0; i < n; i++) {
    ((char *)to)[i] = (char)c;
    __asm__ volatile("" ::: "memory");
  }
  return to;
}
int memcmp(const void *a, const void *b, size_t n) {
  const unsigned char *x_ = a, *y_ = b;
  for (; n > 0; n--, x_++, y_++)
    if (*x_ != *y_) return *x_ - *y_;
  return 0;
}
int strcmp(const char *a, const char *b) {
  for (; *a && *a == *b; a++, b++) {}
  return (unsigned char)*a - (unsigned char)*b;
}
size_t strlen(const char *text) {
  size_t n = 0;
  for (; text[n]; n++) __asm__ volatile("" ::: "memory");
  return n;
}

#if defined(__x86_64__)
static long call(long number, long a, const void *b, size_t c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}
enum { WRITE = 1, EXIT = 60 };
__asm__(".globl _start\n_start: and $-16, %rsp\n call program\n");
#else
static long call(long number, long a, const void *b, size_t c) {
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a;
  register const void *x1 __asm__("x1") = b;
  register size_t x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}
enum { WRITE = 64, EXIT = 93 };
__asm__(".globl _start\n_start: bl program\n");
#endif
#endif

enum { D = KERNEL_D_MODEL, ROWS = KERNEL_SEQ };
static _Alignas(MHAGEN_ALIGN) char packed[KERNEL_PACKED_BYTES], workspace[KERNEL_WORKSPACE_BYTES];
static float w[4][D * D], x[ROWS * D], y[ROWS * D];

static mhagen_status attend(void) {
  unsigned seed = 1;
  for (size_t i = 0; i < sizeof w / sizeof w[0][0] + sizeof x / sizeof x[0]; i++) {
    float *to = i < ROWS * D ? &x[i] : &w[0][0] + (i - ROWS * D);
    seed = seed * 1664525u + 1013904223u;
    *to = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
  const mhagen_weights weights = {.wq = w[0], .wk = w[1], .wv = w[2], .wo = w[3]};
  const mhagen_args args = {.q = x, .y = y, .packed = packed, .workspace = workspace};
  const mhagen_status status = kernel_pack(&weights, packed);
  return status == MHAGEN_OK ? kernel_run(&args) : status;
}

#ifdef HOSTED
int main(void) {
  const mhagen_status status = attend();
  fwrite(y, sizeof y, 1, stdout);
  return (int)status;
}
#else
void program(void);
void program(void) {
  const mhagen_status status = attend();
  call(WRITE, 1, y, sizeof y);
  call(EXIT, (long)status, 0, 0);
}
#endif
