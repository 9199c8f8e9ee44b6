/* softcap.c: the function N_softcap_<lanes> of a kernel N against tanh in double, over floats of all sizes.
 * -DKERNEL="x.c" is the kernel's file, -DSOFTCAP its function, -DLANES the lanes, -DLOAD(x) makes a vector, -DCAP is
 * the cap. */
#include KERNEL

#include <stdio.h>

int main(void) {
  const double cap = CAP * 1.4426950408889634;
  const float odd[] = {0.0f, NAN, INFINITY, -INFINITY};
  double worst = 0;
  float at = 0;
  for (uint64_t bits = 0; bits < 1ull << 32; bits += 20011ull * LANES) {
    float x[LANES], y[LANES];
    for (int i = 0; i < LANES; i++) {
      const uint32_t own = (uint32_t)(bits + (uint64_t)i * 20011);
      memcpy(&x[i], &own, sizeof own);
      if (bits == 0 && i < 4) x[i] = odd[i];
      if (LANES == 1 && bits < 4 * 20011) x[i] = odd[bits / 20011];
    }
    const __typeof__(SOFTCAP(LOAD(x))) vector = SOFTCAP(LOAD(x));
    memcpy(y, &vector, sizeof y);
    for (int i = 0; i < LANES; i++) {
      const double want = cap * tanh((double)x[i] / cap);
      if (isnan(want) != isnan(y[i])) return printf("%a gives %a\n", (double)x[i], (double)y[i]), 1;
      if (isnan(want) || fabs(want) < 1e-30) continue;
      const double error = fabs(y[i] - want) / ldexp(1, ilogb(want) - 23);
      if (error > worst) worst = error, at = x[i];
    }
  }
  printf("%s: %.3g ulp at %a\n", KERNEL, worst, (double)at);
  return !(worst <= 3);
}
