/* cortex_m.c: starts a program on QEMU's board mps2-an500, a Cortex-M7 whose vectors are at address 0.
 * Newlib's semihosting (rdimon) does the rest. Link with -Wl,--section-start=.vectors=0. */
#include <stdint.h>

void _start(void);

static void reset(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: switches the FPU on */
  _start();
}

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {
    (void (*)(void))0x400000, /* the stack, downwards from the end of the first memory */
    reset,
};
