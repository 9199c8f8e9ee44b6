"""Asks llvm-mca about the NEON kernels of the suite: how many FMAs a cycle do their products reach?

    python3 bench/mca.py [--shapes micro,minilm] [--cc "clang-19 --target=aarch64-linux-gnu"]
                         [--isa neon_i8mm] [--cpu neoverse-n1,apple-m1] [key=value ...]

With --isa neon_i8mm and dtype=bf16 or int8, or neon_fp16 and dtype=f16 sum_dtype=f16, these are products of small
numbers as well, which the models start as many of as FMAs.

No Arm hardware is measured. A kernel is compiled with -O2 and run once under QEMU, which counts how often
each instruction runs. For the innermost loops and the straight-line blocks that are products, llvm-mca
gives the cycles of one pass by its model of a CPU: in the steady state, with every load from the
first-level cache and every branch predicted. The code between the products (softmax, starting and storing
tiles, calls) is counted in instructions, not in cycles.

The rate of a product is a fraction of the vector FMAs that the model can start in a cycle. The rate of a
shape is the mean weighted by FMAs, so that it is the fraction for the whole time. It needs what
`scripts/install.sh tests` installs.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import suite

sys.path.append(str(suite.ROOT / "tests"))
from tools import disassemble  # noqa: E402

# FMAs per cycle.
CPUS = {"neoverse-n1": 2, "neoverse-v1": 4, "neoverse-v2": 4, "apple-m1": 3, "neoverse-n2": 2, "apple-m2": 3}
OF_ISA = {"neon": ["neoverse-n1", "neoverse-v1", "neoverse-v2", "apple-m1"],
          "neon_fp16": ["neoverse-n1", "neoverse-v1", "neoverse-v2", "apple-m1"],
          "neon_i8mm": ["neoverse-n2", "neoverse-v1", "neoverse-v2", "apple-m2"]}
OLDEST = 17  # of LLVM: before it, models of other cores answer to the names of Neoverse N1, V1 and V2
TARGET = {"gcc": 0.90, "clang": 0.95}
CROSS = "aarch64-linux-gnu-"
LEAST = 16  # FMAs of a product
SHARE = 0.01  # of a shape's FMAs: what is less is left out

# Once as in a product: pack, run. Small numbers, so that no row of scores needs the second pass.
MAIN = """
#include <stdlib.h>
#include "kernel.h"
static float *numbers(size_t n) {
  float *x = malloc(n * sizeof *x);
  for (size_t i = 0; x && i < n; i++) x[i] = (float)(rand() % 2001 - 1000) / 20000;
  return x;
}
int main(void) {
  enum { D = KERNEL_D_MODEL, N = KERNEL_HEADS * KERNEL_DK };
  float *w = numbers(D * N), *x = numbers(KERNEL_SEQ * D), *y = numbers(KERNEL_SEQ * D);
  void *packed = aligned_alloc(MHAGEN_ALIGN, KERNEL_PACKED_BYTES);
  void *workspace = aligned_alloc(MHAGEN_ALIGN, KERNEL_WORKSPACE_BYTES);
  const mhagen_weights weights = {.wq = w, .wk = w, .wv = w, .wo = w};
  const mhagen_args args = {.q = x, .y = y, .packed = packed, .workspace = workspace};
  return kernel_pack(&weights, packed) || kernel_run(&args);
}
"""


def newest_clang():
    found = pathlib.Path("/usr/bin").glob("clang-[0-9][0-9]")
    return max((path.name for path in found), default="clang")


def version(program):
    """None of one that does not start here."""
    said = subprocess.run([program, "--version"], text=True, capture_output=True).stdout
    return re.search(r"LLVM version (\d+)\S*", said)


def newest_mca():
    """The most recent llvm-mca of $PATH, if it has models of CPUS; or else None, and why."""
    found = [path for folder in os.get_exec_path() for path in pathlib.Path(folder).glob("llvm-mca*")
             if re.fullmatch(r"llvm-mca(-\d+)?", path.name) and version(path)]
    number, program = max(((int(version(path)[1]), path) for path in found), default=(0, None))
    if number >= OLDEST:
        return program, None
    return None, f"llvm-mca of LLVM {OLDEST} or later is needed" + (f"; {program} is of {number}" if found else "")


def call(*command, **options):
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **options)
    if result.returncode:
        sys.exit(f"mca: {' '.join(map(str, command))}\n{result.stderr}")
    return result


# ---- instructions ----

def build(directory, config, isa, cc):
    """Generates and compiles a kernel; returns the program that runs it."""
    call(suite.MHAGEN, "gen", *config, f"isa={isa}", "name=kernel", "--quiet", "-o", directory)
    (directory / "main.c").write_text(MAIN)
    call(*cc.split(), "-std=c11", "-O2", "-c", directory / "kernel.c", "-o", directory / "kernel.o")
    call(CROSS + "gcc", "-static", "-O2", "-DMHAGEN_NO_POOL", directory / "main.c",
         directory / "mhagen.c", directory / "kernel.o", "-o", directory / "main")
    return directory / "main"


def executed(program, plugin):
    """{address: how often} of what one run executes."""
    counts = {}
    lines = call("qemu-aarch64", "-plugin", plugin, program).stderr.splitlines()
    for address, length, runs in (line.split() for line in lines):
        for i in range(int(length)):
            at = int(address, 16) + 4 * i
            counts[at] = counts.get(at, 0) + int(runs)
    return counts


# What products are made of; other arithmetic is that of softmax and the like.
PRODUCT = re.compile(r"((fml[as]|bfdot|sdot|bfmmla|smmla)\s+v|fmul\s.*\.h\[|"
                     r"ld[pur]|ld1|st[pur]|nop|b\.|cbn?z|cmp|movi?\b|fmov"
                     r"|mvni|dup|(add|sub)s?\s+[xw])")


def products(function):
    """(kind, instructions) of the innermost loops that are products and of the straight lines of
    products elsewhere."""
    loops = [loop for loop in function.fma_loops(LEAST) if all(PRODUCT.match(i.text) for i in loop)]
    inside = {i.address for loop in loops for i in loop}
    targets = {i.target for i in function.code}
    lines = [[]]
    for i in function.code:
        if i.address in inside or i.address in targets or not PRODUCT.match(i.text):
            lines.append([])
        if i.address not in inside and PRODUCT.match(i.text):
            lines[-1].append(i)
        if i.target is not None:
            lines.append([])
    found = [("loop", loop) for loop in loops]
    for line in lines:
        at = [n for n, i in enumerate(line) if i.fma]
        # The polynomial of exp has constant factors, products have elements of a matrix.
        by_element = sum(bool(re.search(r"\.(s|h|2h|4b)\[\d\]$|^ld1r|mmla", i.text)) for i in line)
        if len(at) >= LEAST and by_element:
            found.append(("line", line[at[0]:at[-1] + 1]))
    return found


# ---- cycles ----

def cycles(blocks, cpu, mca, known={}):
    """Of one pass of each block of instructions, by differences of long and short runs."""
    texts = ["".join(f"{re.sub(r'[0-9a-f]+ <.*', 'target', re.sub(r' *//.*', '', i.text))}\n"
                     for i in block) for block in blocks]
    new = list(dict.fromkeys(text for text in texts if (text, cpu) not in known))
    if new:
        source = "target:\n" + "".join(f"# LLVM-MCA-BEGIN {n}\n{text}# LLVM-MCA-END\n"
                                       for n, text in enumerate(new))
        few, many = 10, 30
        totals = []
        for passes in few, many:
            output = call(mca, "--mtriple=aarch64-linux-gnu", f"--mcpu={cpu}", "--json",
                          f"--iterations={passes}", input=source).stdout
            totals.append([region["SummaryView"]["TotalCycles"]
                           for region in json.loads(output)["CodeRegions"]])
        for text, short, long in zip(new, *totals):
            known[text, cpu] = (long - short) / (many - few)
    return [known[text, cpu] for text in texts]


class Product:
    """One loop or line of a kernel."""
    def __init__(self, function, kind, code, counts):
        self.name, self.kind, self.code = function.name, kind, code
        self.fmas = sum(i.fma for i in code)
        self.executed = sum(i.fma * counts.get(i.address, 0) for i in code)  # FMAs
        self.spills = sum(i.uses_stack(function.frame) for i in code)
        self.rates = {}  # {cpu: FMAs per cycle}


class Kernel:
    """A shape with a compiler."""
    def __init__(self, config, isa, cc, plugin, mca, cpus):
        with tempfile.TemporaryDirectory() as directory:
            program = build(pathlib.Path(directory), config, isa, cc)
            counts = executed(program, plugin)
            symbols = call(CROSS + "nm", pathlib.Path(directory) / "kernel.o").stdout
            names = {name for name in re.findall(r" [tT] (\w+)$", symbols, re.M) if "pack" not in name}
            functions = [function for function in disassemble(CROSS + "objdump", program)
                         if function.name in names]
        code = [i for function in functions for i in function.code]
        self.instructions = sum(counts.get(i.address, 0) for i in code)
        self.fmas = sum(counts.get(i.address, 0) for i in code if i.fma)
        found = [Product(function, kind, block, counts)
                 for function in functions for kind, block in products(function)]
        self.products = [p for p in found if p.executed >= SHARE * self.fmas]
        self.covered = sum(p.executed for p in self.products) / self.fmas
        for cpu in cpus:
            for p, passes in zip(self.products, cycles([p.code for p in self.products], cpu, mca)):
                p.rates[cpu] = p.fmas / passes

    def mean(self, cpu):
        """The fraction of the rate that all products together reach."""
        time = sum(p.executed / p.rates[cpu] for p in self.products)
        return sum(p.executed for p in self.products) / time / CPUS[cpu]


def heading(cpus):
    return (f"{'shape':<14} {'product':<32} {'FMAs':>9} {'share':>6} {'spills':>6}  " +
            "  ".join(f"{cpu:>16}" for cpu in cpus))


def rate(value, cpu, target):
    """FMAs per cycle, and the fraction."""
    fraction = value / CPUS[cpu]
    return f"{value:10.2f} {fraction:4.3f}{' ' if round(fraction, 3) >= target else '<'}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="key=value", help="of the config, for all shapes")
    parser.add_argument("--shapes", default=",".join(suite.suite()), help="such as micro,minilm")
    parser.add_argument("--cc", action="append", help="compiler and options; may be repeated; "
                        "default: gcc and the newest clang")
    parser.add_argument("--isa", default="neon", choices=OF_ISA)
    parser.add_argument("--cpu", help="default: those of the ISA among " + ", ".join(CPUS))
    parser.add_argument("--out", type=pathlib.Path, default=suite.ROOT / "build")
    args = parser.parse_args()
    shapes, cpus = args.shapes.split(","), args.cpu.split(",") if args.cpu else OF_ISA[args.isa]
    if not set(shapes) <= set(suite.suite()):
        parser.error("the shapes are " + ", ".join(suite.suite()))
    if not set(cpus) <= set(CPUS):
        parser.error("the CPUs are " + ", ".join(CPUS))
    compilers = args.cc or [CROSS + "gcc", newest_clang() + " --target=aarch64-linux-gnu"]
    mca, why = newest_mca()
    if why:
        sys.exit(f"mca: {why}")
    args.out.mkdir(parents=True, exist_ok=True)
    plugin = args.out.resolve() / "counts.so"
    call("cc", "-O2", "-shared", "-fPIC", suite.ROOT / "bench/counts.c", "-o", plugin)
    lines = []

    def show(line=""):
        lines.append(line)
        print(line, flush=True)

    show(f"llvm-mca, {version(mca)[0]}: a model; no Arm hardware was measured. FMAs per cycle, of "
         + ", ".join(f"{CPUS[cpu]} on {cpu}" for cpu in cpus) + ".")
    kernels = {}
    for cc in compilers:
        target = TARGET["clang" if "clang" in cc else "gcc"]
        show(f"\n{call(*cc.split(), '--version').stdout.splitlines()[0]}: {cc} -O2, "
             f"target {target:.2f}")
        show(heading(cpus))
        for name in shapes:
            kernel = kernels[cc, name] = Kernel([*suite.suite()[name][0], *args.keys], args.isa, cc, plugin,
                                                mca, cpus)
            for p in kernel.products:
                show(f"{name:<14} {p.name + ' ' + p.kind:<32} {p.fmas:>9} "
                     f"{p.executed / kernel.fmas:6.3f} {p.spills:6}  " +
                     "  ".join(rate(p.rates[cpu], cpu, target) for cpu in cpus))
            show(f"{name:<14} {'all':<32} {kernel.fmas:>9} {kernel.covered:6.3f} "
                 f"{sum(p.spills for p in kernel.products):6}  " +
                 "  ".join(rate(kernel.mean(cpu) * CPUS[cpu], cpu, target) for cpu in cpus) +
                 f"  {kernel.instructions} instructions, {kernel.fmas / kernel.instructions:.3f} FMAs")
    show("\nFractions over the shapes: the worst product, the worst shape, the mean of the shapes.")
    for cc in compilers:
        for cpu in cpus:
            of_cc = {name: kernels[cc, name] for name in shapes}
            worst, product = min((p.rates[cpu] / CPUS[cpu], f"{name} {p.name}")
                                 for name, kernel in of_cc.items() for p in kernel.products)
            means = {name: kernel.mean(cpu) for name, kernel in of_cc.items()}
            least = min(means, key=means.get)
            show(f"{cc.split()[0]:<22} {cpu:<12} {worst:.3f} {product:<34} "
                 f"{means[least]:.3f} {least:<14} {sum(means.values()) / len(means):.3f}")
    (args.out / "bench-mca.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
