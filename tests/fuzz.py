#!/usr/bin/env python3
"""Configs against the checker: each is generated, compiled (gcc and clang in turn, -O0 to -O3 in turn, with sanitizers
-O0 and -O1; without a warning, within the stack that the header says, with nothing hidden) and run, NEON under qemu
where the machine is no AArch64.

  python3 tests/fuzz.py --count 500 --isa scalar,avx2              random configs, others each time
  python3 tests/fuzz.py --grid                                     the awkward corners; --grid 6, a sixth of them
  python3 tests/fuzz.py --pairs                                    all pairs of values of two options
  python3 tests/fuzz.py --draws 1000 --count 500                   only errors of rows, of much nasty data
  python3 tests/fuzz.py --replay 'h=3 d_model=7 dk=2 seq=5' --isa neon --cc clang-14 --level 3

A failure is shrunk to a small config that still fails, and printed as the command to replay it.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import itertools
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import covering
import tools
from tools import COMPILERS, ISAS, ROOT, WARNINGS

BATCH = 8  # kernels in one executable
KEPT = ROOT / "build/kept"


def text(config):
    return " ".join(f"{key}={value}" for key, value in config.items())


# ---- configs ----------------------------------------------------------------------------------


def share(config):
    """Heads that share keys and values."""
    return config["h"] // config.get("h_kv", config["h"])


def flops(config):
    d, n = config["d_model"], config["seq"]
    h, dk = config.get("h", 1), config.get("dk", d)
    d = max(d, *(config.get(key, d) for key in ("k_width", "v_width", "y_width")))
    dv, m, batch = config.get("dv", dk), config.get("seq_kv", n), config.get("batch", 1)
    runs = 1 + m / n if config.get("cache") == "append" else 1  # that fill the cache
    return 2 * batch * h * (dk + dv) * (d * (n + m) + n * m) * runs


def text_of(value):
    """As key=value has it."""
    return str(value).lower() if isinstance(value, bool) else value


def draw_value(rng, row, config, tiny):
    draw = row["draw"]
    if "small" in draw:  # an extent: rather small; now and then up to `large`
        return rng.randint(1, 4) if tiny else round(draw["large" if rng.random() < 0.06 else "small"] ** rng.random())
    if "from" in draw:
        multiple = config[row["divides"]] if "divides" in row else None
        return rng.choice([value for value in range(draw["from"], draw["to"] + 1, 2 if row.get("even") else 1)
                           if multiple is None or multiple % value == 0])
    if tiny and "tiny" in draw:
        return draw["tiny"]
    return rng.choice(draw.get("of") or [choice for choice in row.get("choices", ["true"])
                                         if choice != row.get("default")])


def defaults_of(rows):
    return {row["key"]: text_of(row.get("default")) for row in rows}


def breaks_rule(row, config, defaults):
    """Whether a key cannot stand beside the others."""
    def value(key):
        return text_of(config[key]) if key in config else defaults[key]

    def on(key):
        return value(key) != defaults[key]

    def with_value(key, is_):
        return value(key) == text_of(is_)

    def excluded(other):
        there = value(other["key"])
        if value(row["key"]) in other.get("unless", ()) or "but" in other and with_value(*other["but"]):
            return False
        if "of" in other and not with_value(row["key"], other["of"]):
            return False
        if "lacks" in other:
            return there == "none" or not set(other["lacks"]) & set(there)
        return there == text_of(other["is"]) if "is" in other else on(other["key"])

    def counts(beside):
        return on(beside) if isinstance(beside, str) else on(beside["key"]) and not with_value(*beside["but"])

    return (any(map(excluded, row.get("excludes", ())))
            or "least" in row and with_value(*row["least"]["with"]) and config[row["key"]] < config[row["least"]["key"]]
            or "beside" in row and not any(map(counts, row["beside"]))
            or row.get("within") and config[row["key"]] > config[row["within"]]
            or "divides" in row and config[row["divides"]] % config[row["key"]] != 0
            or "multiple" in row and config[row["key"]] % share(config) != 0)


def effective(config, rows):
    """With what else it takes that its options have an effect."""
    config = dict(config)
    for row in rows:
        if row["key"] in config and "draw" in row:
            config.update({key: 2 * config[key] for key in row["draw"].get("twice", ())})
    return config


def alone(config, rows):
    """Without the keys that the value of another one leaves no room for."""
    for row in rows:
        names = row.get("only", {}).get(config.get(row["key"]))
        if names:
            config = {key: value for key, value in config.items() if key in names.split()}
    return config


DRAWN = 8e6  # flops of a config that is drawn, at most


def random_config(rng, rows):
    """As the rows of `mhagen schema --json` say; small, so that many can be checked."""
    defaults = defaults_of(rows)
    while True:
        tiny, scheduled, config = rng.random() < 0.08, rng.random() < 0.3, {}
        for row in rows:
            draw = row.get("draw")
            if not draw or row["planned"] and not scheduled:
                continue
            if rng.random() < draw.get("chance", 0.3 if row["planned"] else 1):
                value = draw_value(rng, row, config, tiny)
                if value != row.get("default"):
                    config[row["key"]] = value
            for value, chance in draw.get("apart", {}).items():
                if rng.random() < chance:
                    config[row["key"]] = value
        config = alone(config, rows)
        while broken := [row["key"] for row in rows if row["key"] in config and breaks_rule(row, config, defaults)]:
            del config[broken[0]]  # which others may need
        config = effective(config, rows)
        heads = config.get("h", 1) * config.get("dk", 1)
        if config.get("unroll") == "k" and max(config["d_model"], config["seq"], heads) > 64:
            config["unroll"] = "tile"  # straight code of long sums takes most of the time, and shows no more
        if flops(config) <= DRAWN:
            return config


def few_rows(config, rng):
    """Mostly so few rows that no norm hides the error of one."""
    few = rng.randint(1, min(4, config.get("seq_kv", 4)) if config.get("cache") == "append" else 4)
    return {**config, "seq": few} if rng.random() < 0.8 else config


def pairs(rows, base):
    """An array with all pairs of values of the options that are not in a base config."""
    rng, defaults, known = random.Random(1), defaults_of(rows), {row["key"]: row for row in rows}
    there = alone({row["key"]: None for row in rows} | base, rows)
    drawn = [row for row in rows if "draw" in row and not row["planned"] and row["key"] in there.keys() - base.keys()]

    def broken(config):
        return sum(breaks_rule(known[key], config, defaults) for key in config)

    return covering.Array(base, {row["key"]: covering.levels(row, lambda row: draw_value(rng, row, base, False))
                                 for row in drawn}, broken, rng)


PAIRS = {"h": 4, "d_model": 20, "dk": 6, "seq": 19}
ONES = {"h": 1, "d_model": 1, "dk": 1, "seq": 1}
MICRO = {"h": 2, "d_model": 3, "dk": 2, "seq": 3, "unroll": "full"}
NONE = {"attention": "none", "d_model": 20, "seq": 19}
STARTS = PAIRS, ONES, MICRO, NONE
TYPES = "dtype", "attend_dtype", "ffn_dtype", "io_dtype", "cache_dtype"


def grid(rows, starts=STARTS):
    """The awkward corners, always in the same order. In them are all pairs of values of options, on each start."""
    switches = {row["key"]: next(value for value in row.get("choices", ["true"]) if value != row["default"])
                for row in rows
                if "bit" in row and row["kind"] in ("flag", "choice") and row["key"] not in TYPES
                and not {"excludes", "beside"} & row.keys()}

    def base(**changes):
        return {"h": 2, "d_model": 20, "dk": 6, "seq": 19, **changes}

    everything = {**switches, "seq_kv": 23, "batch": 3, "dv": 9}
    configs = [base(), base(**everything), base(**everything, fold="off"), base(**everything, q_lanes="columns")]
    configs += [config for start in starts
                for config in map(functools.partial(effective, rows=rows), pairs(rows, start).configs)]
    types = [choice for row in rows if row["key"] in TYPES for choice in row["choices"] if choice != "f32"]
    configs += [base(**everything, dtype=dtype) for dtype in dict.fromkeys(types)]
    small = next(row["choices"] for row in rows if row["key"] == "weight_dtype")[1:]
    configs += [base(**everything, weight_dtype=kind) for kind in small]
    configs += [base(**everything, weight_dtype="int4", value_weight_dtype="int8", **more)
                for more in ({}, {"dtype": "int8"})]
    configs += [base(d_model=n, dk=5, seq=3, weight_dtype=kind) for n in (3, 7, 8, 9, 31, 33, 64, 65)  # whole words
                for kind in small]
    configs += [base(d_model=n, dk=5, seq=3, dtype="int8", **weights) for n in (7, 9, 33, 65)
                for weights in ({"weight_dtype": "int4"}, {"weight_dtype": "int8", "group": 32})]
    configs += [base(d_model=n, seq=8, dtype="bf16", weight_dtype=kind) for n in (7, 33, 70)
                for kind in ("int8", "int4")]
    configs += [dict(h=3, d_model=7, dk=5, dv=11, seq=13),
                dict(h=7, d_model=31, dk=3, dv=2, seq=29),
                dict(h=5, d_model=37, dk=13, seq=17, **switches, seq_kv=41, batch=2)]
    for n in 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49:  # around whole vectors
        configs += [base(seq=n), base(seq=n, causal="true", probs="true")]
        configs += [base(d_model=n, dk=5, dv=3), base(dk=n), base(dv=n, kv_len="true")]
        configs += [base(seq=5, seq_kv=n, **switches), base(seq=n, seq_kv=3, attention="cross")]
    configs += [dict(h=64, d_model=8, dk=1, seq=5), dict(h=64, d_model=64, dk=4, seq=18),
                dict(h=1, d_model=16, dk=256, seq=17), dict(h=1, d_model=9, dk=2, dv=256, seq=6),
                dict(h=1, d_model=1, dk=1, seq=512), dict(h=1, d_model=4096, dk=3, seq=1),
                dict(h=2, d_model=2, dk=2, seq=1, seq_kv=4096, attention="cross", probs="true"),
                dict(h=2, d_model=3, dk=2, seq=4096, seq_kv=1, attention="cross", probs="true"),
                dict(h=1, d_model=6, dk=4, seq=300, causal="true", kv_len="true"),
                dict(h=12, d_model=384, dk=32, seq=128),
                *(base(d_model=n, dv=64, dtype="f16", sum_dtype="f16") for n in (16, 63, 64, 65, 128, 131, 193)),
                base(**{**everything, "dv": 10}, dtype="f16", sum_dtype="f16"),
                # Rows of X in blocks that lie apart, as those of tile registers do; more of X, and of weights, than a
                # cache keeps.
                *(dict(h=2, d_model=40, dk=16, seq=64, seq_kv=100, attention="cross", dtype=kind)
                  for kind in ("bf16", "int8")),
                dict(h=1, d_model=1024, dk=16, seq=270, dtype="bf16"),
                dict(h=1, d_model=1024, dk=16, seq=300, seq_kv=310, attention="cross", dtype="bf16"),
                dict(h=16, d_model=5, dk=1, dv=1024, seq=20, seq_kv=3, attention="cross", fold="off"),  # blocks of Y
                dict(h=5, d_model=700, dk=65, seq=20), dict(h=3, d_model=60, dk=30, seq=70, fetch="shares"),
                base(batch=9, kv_len="true"), base(batch=17, causal="true", probs="true"),
                {**MICRO, "batch": 9},
                # Scores in chunks: with masks, all written out, of one query.
                *(dict(h=1, d_model=5, dk=37, k_block=16, fold="off", **extra) for extra in (
                    dict(seq=40, causal="true", kv_len="true"), dict(seq=9, unroll="k"), dict(seq=5, unroll="full"),
                    dict(seq=1, seq_kv=70, attention="cross", probs="true")))]
    # Keys and values that are not projected, because of wide heads and of few queries.
    for shape in (dict(h=1, d_model=24, dk=32, seq=19), dict(h=3, d_model=7, dk=13, dv=5, seq=37, batch=2),
                  dict(h=1, d_model=600, dk=304, seq=3),
                  dict(h=2, d_model=40, dk=16, seq=2, seq_kv=33, attention="cross", batch=2),
                  dict(h=3, d_model=530, dk=17, dv=9, seq=1, seq_kv=70, attention="cross", probs="true")):
        configs += [{**shape, **way} for way in ({}, {"q_lanes": "columns"}, {"fold": "off"})]
    # Not projected: nothing, or parts; keys in place, copied behind a mask, shared; without a loop.
    none = dict(project="none", attention="cross")
    configs += [{**MICRO, **none, "seq_kv": 4, "causal": "true", "kv_len": "true", "probs": "true"}]
    configs += [base(**extra, **none) for extra in (
        {}, dict(seq_kv=23, causal="true", dv=9), dict(seq_kv=24, kv_len="true", batch=3), dict(seq=1, seq_kv=70),
        dict(h=6, h_kv=2, seq_kv=41, window_left=3, causal="true", probs="true"))]
    configs += [{**shape, "project": letters, "attention": "cross"}
                for letters in ("q", "k", "v", "o", "kv", "qvo", "ko")
                for shape in (dict(h=3, d_model=37, dk=5, dv=7, seq=9), dict(h=2, d_model=9, dk=17, seq=2, seq_kv=33))]
    configs += [{**config, "layout": "bhsd"} for config in configs if config.get("project") in ("none", "v", "ko")]
    configs = [{**config, "dk": 2} if "rope" in config and config["dk"] % 2 else config for config in configs]
    # Zeros behind an odd dk and dv in pairs: in less and in more than a vector, of rows that come from elsewhere.
    configs += [{**dict(h=3, d_model=21, dk=n, seq=40, dtype="bf16"), **extra} for n, extra in (
        (3, {}), (15, dict(rope="half", rope_dims=6)), (17, dict(q_lanes="queries", dv=4)), (31, dict(qk_norm="rms")),
        (33, dict(causal="true", kv_len="true", batch=2)), (19, dict(cache="append", seq_kv=47)),
        (5, dict(h=4, h_kv=2, attention="cross", project="none", layout="bhsd")),
        (35, dict(attention="cross", project="qo", window_left=9, causal="true")))]
    # Heads that share rows of integers, which are multiplied as such.
    shared = dict(h=8, h_kv=2, d_model=16, dk=64, seq=1, cache="append", cache_dtype="int8")
    configs += [{**shared, **extra} for extra in (
        dict(seq_kv=70), dict(seq=2, seq_kv=131, mask="bool", kv_len="true", batch=2), dict(seq_kv=64, window_left=40))]
    # Infinite queries, since f16 has none that large, whose scores softcap makes finite.
    configs += [dict(h=1, d_model=1, dk=1, seq=2, project="kv", io_dtype="f16", softcap="1e9", alibi="true")]
    return list({text(config): config for config in configs}.values())


# ---- toolchains -------------------------------------------------------------------------------


class Toolchain:
    """A compiler for one kind of machine. What it makes for every kernel is kept for the next run. checked_by: the one
    that compiles the checker; this one if it is none."""

    def __init__(self, name, command, runner, flags, checked_by=None):
        self.name, self.command, self.runner = name, [*command, *flags, "-std=c11"], runner
        self.checked_by = checked_by or self
        self.sanitizes = bool(flags)
        self.lock = threading.Lock()
        self.version = execute([command[0], "--version"])[1]

    def compile(self, source, out, *flags):
        return execute([*self.command, *flags, "-c", source, "-o", out])

    def must(self, *words):
        code, output = execute([*self.command, *words])
        if code:
            sys.exit(f"fuzz: {output}")

    def kept(self, name, sources, make, *flags):
        """The directory that make(directory) fills; sources: what it depends on, beside this compiler and flags."""
        told = repr((self.command, self.version, flags, [path.read_bytes() for path in sources]))
        with self.lock:
            return tools.once(KEPT / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:16]}", make)

    @functools.cache
    def header(self, level):
        """Flags that include the intrinsics precompiled: without, they are two thirds of the compile time."""
        def make(out):
            header = out / "intrinsics.h"
            header.write_text("#ifdef __aarch64__\n#include <arm_neon.h>\n#else\n#include <immintrin.h>\n#endif\n")
            self.must(f"-O{level}", "-x", "c-header", header, "-o",
                      f"{header}.{'gch' if self.name == 'gcc' else 'pch'}")
        return ["-include", self.kept("intrinsics", [], make, level) / "intrinsics.h"]

    @functools.cache
    def support(self):
        """The objects of the checker and the reference."""
        sources = [*tools.CHECKER, *tools.REFERENCE]
        flags = os.environ.get("REFERENCE_FLAGS", "").split()
        others = [*(ROOT / "tests/check").glob("*.h"), *(ROOT / "runtime").glob("*.h"),
                  *(path for path in map(pathlib.Path, flags) if path.is_file())]

        def make(out):
            for source in sources:
                self.must("-O2", *WARNINGS, f"-I{ROOT}/runtime", f"-I{ROOT}/tests/check", *flags, "-c", source, "-o",
                          out / f"{source.stem}.o")
        out = self.kept("support", [*sources, *others], make, *flags)
        return [out / f"{source.stem}.o" for source in sources]


toolchain = functools.cache(Toolchain)  # the ISAs of one machine share them


def toolchains(isa, compilers=COMPILERS, sanitize=None):
    """The toolchains for an ISA, and why there are no more."""
    found, missing = [], {}
    flags = [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-g1"] if sanitize else []
    for name in compilers:
        try:
            command, runner = tools.compiler_for(isa, name), tools.runner_for(isa)
        except unittest.SkipTest as reason:
            missing[str(reason)] = None
            continue
        if runner and sanitize:
            return [], "the sanitizers do not run in an emulator"
        more = tuple(runner), tuple(flags)
        if sanitize or not found:  # the checker is compiled once; what sanitizers add is each compiler's own
            checked_by = toolchain(name, tuple(command), *more)
        found.append(toolchain(name, (*command, *tools.emulation(isa)), *more, checked_by))
    return found, ", ".join(missing)


def execute(command, timeout=600):
    """(exit status, output); a time-out ends the whole family of processes."""
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace",
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=timeout)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return -1, f"{process.communicate()[0]}\nno end within {timeout} s"


# ---- one config, and several in one executable --------------------------------------------------


class Item:
    def __init__(self, config, isa, toolchain, level, number=0):
        self.config, self.isa, self.toolchain, self.level = config, isa, toolchain, level
        self.name, self.number = f"c{number}", number
        self.kind, self.detail = None, ""  # ok, skip, refused, or a failure: gen, compile, check
        self.error = self.bound = 0.0
        self.draws = 0

    def settle(self, kind, detail):
        self.kind, self.detail = kind, detail.strip()

    @property
    def failed(self):
        return self.kind in ("gen", "compile", "check")

    @property
    def kernels(self):
        """{name: config} of what is compiled: of every fourth batch also the kernel without it, which must
        give an entry the same bits."""
        kernels = {self.name: self.config}
        if "batch" in self.config and self.number % 4 == 0:
            kernels[f"{self.name}_alone"] = {k: v for k, v in self.config.items() if k != "batch"}
        return kernels

    @property
    def symptom(self):  # what must stay the same while shrinking
        return self.kind, re.match(r"\(.*?\)|", self.detail)[0]

    def generate(self, run, directory):
        for name, config in self.kernels.items():
            code, output = execute([run.mhagen, "gen", *text(config).split(), f"isa={self.isa}",
                                    f"name={name}", "-o", directory], 60)
            if code:
                break
        else:
            return True
        # Only the budget of the unrolling, keys of the schedule and types that an ISA does not have may be refused,
        # and cleanly.
        key = re.search(r"config: (\w+) = (\w+): (isa = )?", output)
        scheduled = {row["key"] for row in run.rows if row["schedule"]}
        may = scheduled | set((*TYPES, "weight_dtype") if key and key[3] else ())
        allowed = (run.changed and key) or "code_limit" in output or (key and key[1] in self.config and key[1] in may)
        clean = not directory.exists() or not list(directory.iterdir())
        self.settle("refused" if code == 2 and allowed and clean else "gen",
                    f"exit status {code}: {output}")
        return False

    def compile(self, run, directory):
        # At -O0 gcc's intrinsics are macros that convert without a cast.
        flags = [f"-O{self.level}", "-fstack-usage", *(WARNINGS if self.level else [])]
        emulated = tools.emulation(self.isa)
        if run.precompile and self.isa != "scalar" and not emulated:
            flags += self.toolchain.header(self.level)
        for name in self.kernels:
            source = directory / f"{name}.c"
            code, output = self.toolchain.compile(source, source.with_suffix(".o"), *flags)
            if code:
                self.settle("compile", "\n".join(output.splitlines()[:8]))
                return False
            if self.toolchain.sanitizes:  # which take more stack, and call functions of their own
                continue
            used, said = tools.stack(source)
            if self.level and not 0 < used < said:  # what the header says is of optimized code
                self.settle("compile", f"(stack) {used} bytes, the header says less than {said}")
                return False
            if not emulated and (found := tools.hidden(source.with_suffix(".o"), name, self.isa)):
                self.settle("compile", f"(hidden) {', '.join(found)}")
                return False
        return True


class Run:
    """What all items of one call of this program share."""

    def __init__(self, mhagen, directory, seed, precompile, draws=None, changed=False):
        self.mhagen, self.directory, self.seed, self.draws = mhagen, directory, seed, draws
        self.changed = changed  # random configs may break rules: keys are given, or missing
        self.rows = tools.schema(mhagen)
        self.precompile = precompile  # would hide a forgotten #include; the warning tests would not
        self.serial = itertools.count()
        self.runtimes, self.lock = {}, threading.Lock()

    def runtime(self, toolchain, source):
        """The object of the runtime that the generator writes beside every kernel."""
        with self.lock:
            if toolchain not in self.runtimes:
                out = pathlib.Path(tempfile.mkdtemp(dir=self.directory)) / "mhagen.o"
                code, output = toolchain.compile(source, out, "-O2", *WARNINGS)
                if code:
                    return None, output
                self.runtimes[toolchain] = out
        return self.runtimes[toolchain], ""

    def check(self, items, keep=False):
        """Settles all items; they share ISA and toolchain. Returns the checker's output."""
        directory = self.directory / f"run{next(self.serial)}"
        ready = []
        for item in items:
            own = directory / item.name
            own.mkdir(parents=True)
            if item.generate(self, own) and item.compile(self, own):
                ready.append(item)
        output = self.link_and_run(ready, directory, terse=not keep) if ready else ""
        if not keep:
            shutil.rmtree(directory)
        lost = [item for item in ready if item.kind is None]
        if len(items) > 1:  # a crash of one must not hide the others
            for item in lost:
                self.check([item])
        else:
            for item in lost:
                item.settle("check", output[-1500:])
        return output

    def link_and_run(self, items, directory, terse):
        kernels = {name: item for item in items for name in item.kernels}
        table = "".join(f"&{item.name}_kernel, " for item in items)
        alone = "".join(f"  failed |= mhagen_check_alone(&{item.name}_kernel, &{name}_kernel, {self.seed}u);\n"
                        for name, item in kernels.items() if name != item.name)
        (directory / "main.c").write_text(
            "".join(f'#include "{item.name}/{name}.h"\n' for name, item in kernels.items()) +
            '#include "checker.h"\n\nint main(int argc, char **argv) {\n'
            f"  static const mhagen_kernel *const kernels[] = {{{table}}};\n"
            f"  int failed = mhagen_check_main(kernels, {len(items)}, argc, argv);\n{alone}"
            "  return failed;\n}\n")
        toolchain = items[0].toolchain
        objects = [directory / item.name / f"{name}.o" for name, item in kernels.items()]
        runtime, output = self.runtime(toolchain, directory / items[0].name / "mhagen.c")
        if not runtime:
            return output
        code, output = execute([*toolchain.command, f"-I{ROOT}/runtime", f"-I{ROOT}/tests/check",
                                directory / "main.c", *objects, runtime, *toolchain.checked_by.support(),
                                "-o", directory / "check", "-lm", "-pthread"])
        if code:
            return output
        code, output = execute([*toolchain.runner, directory / "check", "--seed", self.seed,
                                *(["--terse"] if terse else []),
                                *(["--draws", self.draws] if self.draws else [])])
        results = {match[2]: match for match in re.finditer(
            r"^(ok|FAIL|skip) (\w+) (.*)$", output, re.MULTILINE)}
        for item in items:
            if item.name not in results:
                continue
            verdict, _, detail = results[item.name].groups()
            if verdict == "ok":
                item.error, item.bound = map(float, re.findall(r"(?:err|bound)=(\S+)", detail))
                item.draws = int((re.search(r"draws=(\d+)", detail) or [0, 0])[1])
                item.settle("ok", detail)
            else:
                item.settle("check" if verdict == "FAIL" else "skip", detail)
        if code == 0 and not terse:  # the full report has no line of a verdict
            items[0].settle("ok", output)
        return output


# ---- shrinking ----------------------------------------------------------------------------------


def smaller(config, rows):
    """Simpler neighbours of a config, the boldest first."""
    required = {row["key"] for row in rows if row.get("required")}
    for key in reversed(config):
        if key not in required and not (key == "attention" and "seq_kv" in config):
            yield {other: value for other, value in config.items() if other != key}
    for attempt in (lambda value: 1), (lambda value: value // 2), (lambda value: value - 1):
        for key, value in config.items():
            if isinstance(value, int) and 1 <= attempt(value) < value:
                yield {**config, key: attempt(value)}


def shrink(run, item, trials=150):
    best, seen = item, set()
    while True:
        for config in smaller(best.config, run.rows):
            if text(config) in seen:
                continue
            if len(seen) >= trials:
                return best
            seen.add(text(config))
            trial = Item(config, item.isa, item.toolchain, item.level)
            run.check([trial])
            if trial.symptom == item.symptom:
                best = trial
                break
        else:
            return best


def replay_command(options, item):
    sanitize = f" --sanitize {options.sanitize}" if options.sanitize else ""
    draws = f" --draws {options.draws}" if options.draws else ""
    return (f"python3 tests/fuzz.py --replay '{text(item.config)}' --isa {item.isa} --cc "
            f"{item.toolchain.name} --level {item.level} --seed {options.seed}{sanitize}{draws}")


def parse_config(line):
    pairs = (pair.split("=", 1) for pair in line.split())
    return {key: int(value) if value.isdigit() else value for key, value in pairs}


def run_command(options):
    """Draws the same configs again."""
    more = "".join(f" --{key} {value}" for key in ("cc", "level", "sanitize")
                   if (value := getattr(options, key)) is not None)
    if options.fixed:
        more += f" --with '{text(options.fixed)}'"
    if options.without != [""]:
        more += f" --without {','.join(options.without)}"
    what = f"--grid {options.grid}" if options.grid else "--pairs" if options.pairs else f"--count {options.count}"
    return f"python3 tests/fuzz.py --seed {options.seed} {what} --isa {options.isa}{more}"


# ---- the program --------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, help="of the configs and of the data (default: a fresh one, "
                        "for random configs; else 1)")
    parser.add_argument("--count", type=int, default=100, help="random configs for each ISA")
    parser.add_argument("--isa", default=",".join(ISAS), help="default: %(default)s")
    parser.add_argument("--with", default="", dest="fixed", metavar="CONFIG", type=parse_config,
                        help="what all random configs have")
    parser.add_argument("--without", default="", metavar="KEYS", type=lambda text: text.split(","),
                        help="options that no random config has, with commas between")
    parser.add_argument("--grid", type=int, nargs="?", const=1, metavar="N",
                        help="the fixed grid instead, or the N-th part that the seed draws of what --pairs has not")
    parser.add_argument("--pairs", action="store_true", help="all pairs of values of two options, each on one ISA")
    parser.add_argument("--draws", type=int, metavar="N",
                        help="only errors of rows, in N draws of nasty data a kernel")
    parser.add_argument("--replay", metavar="CONFIG", help="one config, with the full report")
    parser.add_argument("--cc", help=f"only this compiler; default: {', '.join(COMPILERS)}")
    parser.add_argument("--level", type=int, choices=range(4), help="only this -O level")
    parser.add_argument("--sanitize", metavar="LIST", help="address,undefined or thread")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--mhagen", default=ROOT / "build/mhagen", type=pathlib.Path)
    options = parser.parse_args()
    if options.seed is None:
        options.seed = 1 if options.grid == 1 or options.replay else tools.seed_of(*sys.argv[1:])
    return options


def listed(options):
    """The configs that no draw makes, for all ISAs; None stands for one that is drawn."""
    if options.replay:
        return [parse_config(options.replay)]
    rows = tools.schema(options.mhagen)
    if options.grid:
        return grid(rows, STARTS[options.grid > 1:])  # --pairs has those on the first start
    if options.pairs:
        return [effective(config, rows) for config in pairs(rows, PAIRS).configs]
    return [None] * options.count


def shares(options, configs, chains):
    """{ISA: its configs}. Those that are emulated take ten times as long: they have half as many as the others, none of
    them large, and of the pairs as many as one other ISA together."""
    emulated = [isa for isa in chains if chains[isa][0].runner]
    if options.pairs:
        turns = [[isa] for isa in chains if isa not in emulated] + ([emulated] if emulated else [])
        given = {isa: [] for isa in chains}
        for i, config in enumerate(configs if turns else [], options.seed):
            turn = turns[i % len(turns)]
            given[turn[i // len(turns) % len(turn)]].append(config)
        return given

    def drawn(isa):  # another part for each ISA
        some = [config for config in configs if isa not in emulated or not config or flops(config) <= DRAWN]
        part = (options.grid or 1) * (1 + (isa in emulated))
        return random.Random(f"{options.seed} {isa}").sample(some, -(-len(some) // part))
    return {isa: configs if options.grid == 1 or options.replay else drawn(isa) for isa in chains}


def batches(options, configs, isa, chains, first):
    """Lists of items that share a toolchain, the first one of a number; run_batch draws the random configs. Sanitizers
    see what the text does, which takes far longer to compile at -O2 and -O3, and shows no more."""
    levels = 2 if options.sanitize else 4
    for start in range(0, len(configs), BATCH):
        chain = chains[(first + start // BATCH) % len(chains)]
        yield [Item(config, isa, chain, (options.level, i % levels)[options.level is None], start + i)
               for i, config in enumerate(configs[start:start + BATCH])]


def run_batch(options, run, items):
    """Draws again what is refused; returns how often."""
    if items[0].config:
        run.check(items)
        return 0
    refused, todo = 0, items
    for attempt in range(20):
        for item in todo:
            rng = random.Random(f"{options.seed} {item.isa} {item.name} {attempt}")
            drawn = random_config(rng, run.rows)
            drawn = {key: value for key, value in drawn.items() if key not in options.without} | options.fixed
            item.config = alone(drawn, run.rows)
            item.kind = None
            if options.draws:
                item.config = few_rows(item.config, rng)
        run.check(todo)
        todo = [item for item in todo if item.kind == "refused"]
        if not todo:
            break
        refused += len(todo)
    return refused


def main():
    options = arguments()
    started, results, refused, skipped, found = time.time(), {}, {}, {}, {}
    compilers = [options.cc] if options.cc else COMPILERS
    if not options.mhagen.exists():
        sys.exit(f"fuzz: {options.mhagen} does not exist; build it first: ninja")
    with tempfile.TemporaryDirectory(prefix="mhagen-fuzz-") as directory:
        run = Run(options.mhagen.resolve(), pathlib.Path(directory), options.seed,
                  precompile=not options.replay, draws=options.draws,
                  changed=options.fixed or options.without != [""])
        work, configs = [], listed(options)
        for isa in options.isa.split(","):
            chains, reason = toolchains(isa, compilers, options.sanitize)
            results[isa], refused[isa] = [], 0
            if chains:
                found[isa] = chains
            else:
                skipped[isa] = reason
        for isa, given in shares(options, configs, found).items():
            # Few batches have all compilers in turn, but for sanitizers, for each of which the checker is compiled.
            work += batches(options, given, isa, found[isa], 0 if options.sanitize else options.seed + len(work))
        print(*tools.toolchains([isa for isa in results if isa not in skipped], compilers), sep="\n",
              flush=True)
        if options.grid != 1 and not options.replay:
            print(f"again: {run_command(options)}", flush=True)
        if options.replay:
            for items in work:
                items[0].level = options.level if options.level is not None else 2
                print(run.check(items, keep=True) or items[0].detail)
            return any(item.failed for items in work for item in items)

        random.Random(options.seed).shuffle(work)  # so that the slow ISA does not come last
        failures, done, total = [], 0, sum(map(len, work))
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            futures = {pool.submit(run_batch, options, run, items): items for items in work}
            for future in concurrent.futures.as_completed(futures):
                items = futures[future]
                refused[items[0].isa] += future.result()
                results[items[0].isa] += items
                before, done = done, done + len(items)
                for item in filter(lambda item: item.failed, items):
                    failures.append(item)
                    print(f"FAIL ({item.kind}) {item.isa} {item.toolchain.name} -O{item.level}: "
                          f"{text(item.config)}\n     {item.detail}", flush=True)
                progress = f"{done} of {total} kernels, {len(failures)} failures"
                if sys.stderr.isatty():
                    print(f"\r{progress}", end="", file=sys.stderr, flush=True)
                elif 10 * done // total > 10 * before // total:  # a file: a line for each tenth
                    print(progress, file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)
        for item in failures[:3]:
            small = shrink(run, item)
            print(f"shrunk to: {small.detail}\n  {replay_command(options, small)}", flush=True)

    for isa, items in results.items():
        if isa in skipped:
            print(f"{isa:11} skipped: {skipped[isa]}")
            continue
        ok = [item for item in items if item.kind == "ok"]
        skips = [item for item in items if item.kind == "skip"]
        line = f"{isa:11} {len(ok)} ok, {sum(item.failed for item in items)} failed"
        line += f", {refused[isa] + sum(item.kind == 'refused' for item in items)} refused"
        if options.draws:
            line += f", {sum(item.draws for item in ok)} draws"
        if skips:
            line += f", {len(skips)} skipped: {skips[0].detail}"
        if ok:
            worst = max(ok, key=lambda item: item.error / item.bound)
            line += f", worst error {worst.error:.2g} of {worst.bound:.2g} ({text(worst.config)})"
        print(line)
    what = "grid" if options.grid else "pairs" if options.pairs else f"seed {options.seed}"
    print(f"{what}: {sum(map(len, results.values()))} kernels, {len(failures)} failures, "
          f"{time.time() - started:.0f} s, {tools.cpu_time():.0f} CPU seconds")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
