#!/usr/bin/env python3
"""The bound of each row (README) over many distinct small kernels: one process generates a hundred of them,
tcc compiles and links them with the checker in one go, and each computes rows of much nasty data. They are
scalar, for tcc knows no vectors: `fuzz.py --draws` does few kernels of the other ISAs.

  python3 tests/soak_bounds.py --kernels 100000
"""
import argparse
import pathlib
import random
import re
import sys
import tempfile
import time

import fuzz
import tools
from tools import MHAGEN, ROOT, cpu_time, schema

TOGETHER = 100


def draw(rng, rows, seen):
    """A config that was not there yet, so small that a hundred take some seconds."""
    while True:
        config = fuzz.few_rows(fuzz.random_config(rng, rows), rng)
        config.pop("cpu", None)  # scalar code is for any; the tiles are drawn anyway
        line = fuzz.text(config)
        if fuzz.flops(config) <= 2e4 and line not in seen:
            seen.add(line)
            return config


def must(*command, timeout=600):
    code, output = fuzz.execute(command, timeout)
    if code:
        sys.exit(f"soak_bounds: {' '.join(map(str, command))}\n{output[-4000:]}")
    return output


class Soak:
    def __init__(self, directory, options):
        self.directory, self.options = directory, options
        self.rows = schema(MHAGEN)
        self.rng, self.seen = random.Random(options.seed), set()
        self.kernels = self.draws = self.refused = self.failed = 0
        self.worst, self.worst_config = 0.0, None
        self.support = []
        for source in *tools.CHECKER, *tools.REFERENCE:  # which take most of the time
            self.support.append(directory / f"{source.stem}.o")
            must("gcc", "-std=c11", "-O2", "-I", ROOT / "runtime", "-c", source, "-o", self.support[-1])

    def batch(self, count):
        out = self.directory
        configs = {f"c{i}": draw(self.rng, self.rows, self.seen) for i in range(count)}
        (out / "configs").write_text("".join(f"isa=scalar name={name} {fuzz.text(config)}\n"
                                             for name, config in configs.items()))
        for refused in re.findall(r" name=(\w+)", must(ROOT / "build/mhagen-many", out, out / "configs")):
            del configs[refused]
            self.refused += 1
        (out / "main.c").write_text(
            "".join(f'#include "{name}.h"\n' for name in configs) + '#include "checker.h"\n'
            "int main(int argc, char **argv) {\n  static const mhagen_kernel *const kernels[] = {"
            + "".join(f"&{name}_kernel, " for name in configs)
            + f"}};\n  return mhagen_check_main(kernels, {len(configs)}, argc, argv);\n}}\n")
        must("tcc", "-I", out, "-I", ROOT / "tests/check", out / "main.c", *(out / f"{name}.c" for name in configs),
             out / "mhagen.c", *self.support, "-o", out / "check", "-lm", "-pthread")
        seed = self.rng.randrange(1 << 30)
        _, output = fuzz.execute([out / "check", "--terse", "--seed", seed, "--draws", self.options.draws])
        found = {name: (verdict, text) for verdict, name, text in
                 re.findall(r"^(ok|FAIL) (\w+) (.*)$", output, re.M)}
        for name, config in configs.items():
            verdict, text = found.get(name, ("FAIL", "said nothing"))
            self.kernels += 1
            if verdict == "FAIL":
                self.failed += 1
                print(f"FAIL {text}\n  again: python3 tests/fuzz.py --replay '{fuzz.text(config)}' --isa scalar "
                      f"--cc gcc --seed {seed} --draws {self.options.draws}", flush=True)
                continue
            error, draws = re.search(r"err=(\S+) .*draws=(\d+)", text).groups()
            self.draws += int(draws)
            if float(error) > self.worst:
                self.worst, self.worst_config = float(error), config

    def line(self):
        return (f"bounds    {self.kernels - self.failed} ok, {self.failed} failed, {self.refused} refused, "
                f"{self.draws} draws, worst {self.worst:.3f} of the bound ({fuzz.text(self.worst_config or {})})")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kernels", type=int, default=100000)
    parser.add_argument("--draws", type=int, default=100, help="of each kernel")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    options = parser.parse_args()
    started = time.time()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mhagen-bounds-") as directory:
        soak = Soak(pathlib.Path(directory), options)
        while soak.kernels < options.kernels and time.time() - started < options.seconds:
            soak.batch(min(TOGETHER, options.kernels - soak.kernels))
            if soak.kernels // 1000 > (soak.kernels - TOGETHER) // 1000:
                print(soak.line(), flush=True)
    print(f"{soak.line()}\n{time.time() - started:.0f} s, {cpu_time():.0f} CPU seconds")
    return soak.failed > 0


if __name__ == "__main__":
    sys.exit(main())
