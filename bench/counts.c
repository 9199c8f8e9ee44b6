/* A plugin of QEMU's user mode emulation. At exit it prints for every translated block its address, its
 * number of instructions, and how often it ran. No package has QEMU's header, so the functions that are
 * used are declared here, as of version 1 of the interface (QEMU 5 to 8).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

struct qemu_plugin_tb;
extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*)(uint64_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *),
                                                 int registers, void *);
extern void qemu_plugin_register_atexit_cb(uint64_t id, void (*)(uint64_t, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);

EXPORT int qemu_plugin_version = 1;
EXPORT int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv);

typedef struct block {
  struct block *next;
  uint64_t address, runs;
  size_t instructions;
} block;

static block *blocks;

static void ran(unsigned cpu, void *data) {
  (void)cpu;
  ((block *)data)->runs++;
}

static void translated(uint64_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  block *b = malloc(sizeof *b);
  if (!b) abort();
  *b = (block){blocks, qemu_plugin_tb_vaddr(tb), 0, qemu_plugin_tb_n_insns(tb)};
  blocks = b;
  qemu_plugin_register_vcpu_tb_exec_cb(tb, ran, 0, b);
}

static void print(uint64_t id, void *data) {
  (void)id, (void)data;
  for (const block *b = blocks; b; b = b->next)
    if (b->runs)
      fprintf(stderr, "%llx %zu %llu\n", (unsigned long long)b->address, b->instructions,
              (unsigned long long)b->runs);
}

int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv) {
  (void)info, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, print, NULL);
  return 0;
}
