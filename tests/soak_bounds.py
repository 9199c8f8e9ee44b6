#!/usr/bin/env python3
"""The bound of each row (README) over many distinct small kernels: one process generates a hundred of them,
tcc compiles and links them with the checker in one go, and each computes rows of much nasty data. They are
scalar, for tcc knows no vectors: `fuzz.py --draws` does few kernels of the other ISAs.

  python3 tests/soak_bounds.py --kernels 100000
  python3 tests/soak_bounds.py --climb 40       the bound of norms: kernels and data near those that came next to it
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
KEPT = 8  # configs of each type, from which the next ones of a climb are made
CLIMBED = 1e6  # flops: rows of 64 columns take so many

# What rounds operands, each with a bound of its own.
ROUNDED = [{}, *({key: name} for name in ("bf16", "f16") for key in ("dtype", "attend_dtype", "io_dtype",
                                                                      "weight_dtype")),
           {"dtype": "f16", "sum_dtype": "f16"}, {"dtype": "int8"}, {"weight_dtype": "int8"},
           {"weight_dtype": "int4"}]


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

    def run(self, configs, *options):
        """Each config that is not refused, and what the checker says of it."""
        out = self.directory
        configs = {f"c{i}": config for i, config in enumerate(configs)}
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
        _, output = fuzz.execute([out / "check", "--terse", "--seed", seed, *options])
        found = {name: (verdict, text) for verdict, name, text in
                 re.findall(r"^(ok|FAIL) (\w+) (.*)$", output, re.M)}
        for name, config in configs.items():
            verdict, text = found.get(name, ("FAIL", "said nothing"))
            self.kernels += 1
            if verdict == "FAIL":
                self.failed += 1
                print(f"FAIL {text}\n  again: python3 tests/fuzz.py --replay '{fuzz.text(config)}' --isa scalar "
                      f"--cc gcc --seed {seed} {' '.join(map(str, options))}", flush=True)
            else:
                yield config, text

    def batch(self, count):
        configs = [draw(self.rng, self.rows, self.seen) for _ in range(count)]
        for config, text in self.run(configs, "--draws", self.options.draws):
            error, draws = re.search(r"err=(\S+) .*draws=(\d+)", text).groups()
            self.draws += int(draws)
            if float(error) > self.worst:
                self.worst, self.worst_config = float(error), config

    def line(self):
        return (f"bounds    {self.kernels - self.failed} ok, {self.failed} failed, {self.refused} refused, "
                f"{self.draws} draws, worst {self.worst:.3f} of the bound ({fuzz.text(self.worst_config or {})})")

    def near(self, config):
        """Another one, with one or two of the keys of a drawn one, or other extents."""
        other = fuzz.random_config(self.rng, self.rows)
        keys = self.rng.sample(sorted({*config, *other}), 2) if self.rng.random() < .3 else []
        changed = {key: value for key, value in {**config, **{key: other.get(key) for key in keys}}.items()
                   if value is not None}
        for key in self.rng.sample(["h", "d_model", "dk", "seq"], 1 + (not keys)):
            changed[key] = max(1, round(changed[key] * 2 ** self.rng.uniform(-1, 1)))
        return changed if fuzz.flops(changed) <= CLIMBED else config

    def climb(self, steps):
        """Of each type the configs whose errors are nearest to the bound of norms, found from those before."""
        start = {"h": 2, "d_model": 64, "dk": 32, "seq": 9}
        best = [[(0.0, start)] for _ in ROUNDED]
        for step in range(steps):
            drawn = {}
            for row, kept in zip(ROUNDED, best):
                for _ in range(TOGETHER // len(ROUNDED)):
                    drawn[fuzz.text({**self.near(self.rng.choice(kept)[1]), **row})] = kept
            configs = [dict(word.split("=") for word in line.split()) for line in drawn]
            for config, text in self.run(configs, "--climb", self.options.draws):
                error, bound = map(float, re.search(r"err=(\S+) bound=(\S+)", text).groups())
                kept = drawn[fuzz.text(config)]
                kept.append((error / bound, {key: int(value) if value.isdigit() else value
                                             for key, value in config.items()}, text))
                kept.sort(key=lambda item: -item[0])
                del kept[KEPT:]
            print(f"step {step}: {self.kernels} kernels, {self.failed} failed, {self.refused} refused", flush=True)
        for row, kept in zip(ROUNDED, best):
            if len(kept[0]) > 2:
                print(f"{fuzz.text(row) or 'float32':20} {kept[0][0]:.3f} of its bound: {fuzz.text(kept[0][1])}: "
                      f"{kept[0][2]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kernels", type=int, default=100000)
    parser.add_argument("--climb", type=int, metavar="STEPS", help="the bound of norms, by so many steps of a climb")
    parser.add_argument("--draws", type=int, default=100, help="of each kernel")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so many")
    options = parser.parse_args()
    started = time.time()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mhagen-bounds-") as directory:
        soak = Soak(pathlib.Path(directory), options)
        if options.climb:
            soak.climb(options.climb)
            return soak.failed > 0
        while soak.kernels < options.kernels and time.time() - started < options.seconds:
            soak.batch(min(TOGETHER, options.kernels - soak.kernels))
            if soak.kernels // 1000 > (soak.kernels - TOGETHER) // 1000:
                print(soak.line(), flush=True)
    print(f"{soak.line()}\n{time.time() - started:.0f} s, {cpu_time():.0f} CPU seconds")
    return soak.failed > 0


if __name__ == "__main__":
    sys.exit(main())
