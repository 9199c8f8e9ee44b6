"""Compiler flags that could change results: each build is right, or is refused when compiling, or fails the
self-test. None is silently wrong."""
import collections
import platform
import re
import subprocess

import pytest

from tools import (CHECKER, CLANGS, ISAS, REFERENCE, ROOT, WARNINGS, compiler_for, emulation, generate, in_turn,
                   native, need, run, runner_for, shared)

# A mask shows bits that differ between the code of edge and of open tiles; AVX-512 has exp2 by a table.
KERNELS = [("scalar", "h=2 d_model=20 dk=6 seq=19 causal=true"),
           ("avx512", "h=1 d_model=6 dk=2 seq=5 kv_len=true"),
           ("neon", "h=1 d_model=6 dk=2 seq=5 causal=true")]
RIGHT, TOLD = "right", "told"  # else what the compiler must say

Machine = collections.namedtuple("Machine", "title isas compiler flags runner strict")
X86 = Machine("x86", ["scalar", "avx512"], "gcc", [], [], [])
# The headers that Debian has for one of x86-64's two widths only are the same for both.
M32 = Machine("m32", ["scalar"], "gcc", ["-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"], [],
              ["-msse2", "-mfpmath=sse"])
MUSL = Machine("musl", ["scalar"], "musl-gcc", [], [], [])
AARCH64 = Machine("aarch64", ["scalar", "neon"], "aarch64-linux-gnu-gcc", ["-static"], ["qemu-aarch64"], [])
S390X = Machine("s390x", ["scalar"], "s390x-linux-gnu-gcc", ["-static"], ["qemu-s390x"], [])

ASSOCIATIVE = "-fassociative-math -fno-signed-zeros -fno-trapping-math"
FINITE, X87, S390 = "without -ffast-math", "-msse2 -mfpmath=sse", "-fexcess-precision=fast"
EVERYWHERE = [  # machine, flags, outcome; gcc and every Clang
    (X86, "", RIGHT), (X86, "-std=gnu17", RIGHT), (X86, "-march=native", RIGHT),
    (X86, "-O3 -march=native", RIGHT),
    (M32, "-msse2 -mfpmath=sse", RIGHT), (M32, "", X87),
    (X86, "-ffast-math", FINITE), (X86, "-ffinite-math-only", FINITE),
    (X86, "-fassociative-math", RIGHT), (X86, ASSOCIATIVE, RIGHT), (X86, "-freciprocal-math", RIGHT),
    (X86, "-fno-signed-zeros", RIGHT),
    (X86, "-fno-trapping-math -fno-math-errno", RIGHT), (X86, "-frounding-math", RIGHT),
]
OLDEST = ["", "-march=native", "-ffast-math", ASSOCIATIVE, "-funsafe-math-optimizations"]  # of Clang
GCC = [
    (X86, "-funsafe-math-optimizations", RIGHT),
    (X86, "-mfpmath=387", X87), (X86, "-mfpmath=387 -std=c11", X87), (X86, "-mfpmath=sse,387", X87),
    (X86, "-march=native -ffp-contract=fast -funsafe-math-optimizations", RIGHT),
    (X86, "-fcx-limited-range -fno-rounding-math -fno-signaling-nans -fexcess-precision=fast", RIGHT),
    (X86, "-fsingle-precision-constant", TOLD), (X86, "-mavx512fp16", RIGHT),
    (MUSL, "", RIGHT),
    (AARCH64, "", RIGHT), (AARCH64, "-march=armv8.2-a+fp16", RIGHT),
    (S390X, "", RIGHT), (S390X, "-std=c11", S390), (S390X, "-std=c11 -fexcess-precision=fast", RIGHT),
]
CLANG = [
    # Newer ones contract whatever a file says, where there are FMAs; unsafe math includes it.
    (X86, "-march=native -ffp-contract=fast", TOLD), (X86, "-funsafe-math-optimizations", None),
    (X86, "-fapprox-func", RIGHT), (X86, "-fno-honor-infinities", None), (X86, "-fno-honor-nans", None),
]


def compiles(command, source, out):
    return subprocess.run([*map(str, command), "-c", source, "-o", out], text=True, capture_output=True)


class Bench:
    """The kernels, and for each machine the checker, compiled once for all workers and without any of the flags."""

    def __init__(self, factory):
        def make(out):
            for i, (isa, config) in enumerate(KERNELS):
                generate(out, config, isa, f"k{i}")
        self.factory, self.directory = factory, shared(factory, "flags", make)
        self.names = collections.defaultdict(list)
        for i, (isa, _) in enumerate(KERNELS):
            self.names[isa].append(f"k{i}")

    def checker(self, machine):
        names = [name for isa in machine.isas for name in self.names[isa]]

        def make(out):
            main = out / "main.c"
            main.write_text(
                "".join(f'#include "{name}.h"\n' for name in names) + '#include "checker.h"\n'
                "int main(int argc, char **argv) {\n  static const mhagen_kernel *const kernels[] = {"
                + ", ".join(f"&{name}_kernel" for name in names)
                + f"}};\n  return mhagen_check_main(kernels, {len(names)}, argc, argv);\n}}\n")
            command = [machine.compiler, *machine.flags, *machine.strict, "-O1", f"-I{self.directory}",
                       f"-I{ROOT}/tests/check"]
            for source in main, *CHECKER, *REFERENCE:
                result = compiles(command, source, out / f"{source.stem}.o")
                if machine is M32 and "No such file" in result.stderr:
                    pytest.skip("there are no headers for -m32")
                assert result.returncode == 0, result.stderr
        return names, sorted(shared(self.factory, f"flags_{machine.title}", make).glob("*.o"))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(tmp_path_factory)


def outcome(machine, compiler, flags, bench, out, change=lambda text: text):
    """RIGHT, TOLD, or what the compiler says; fails where results are wrong and nothing says so."""
    if "-mavx512" in flags and not native("avx512"):
        pytest.skip("this CPU has no avx512, and the flags are for one that has")
    compiler = compiler if machine in (X86, M32) else machine.compiler
    for program in compiler, machine.compiler, *machine.runner:
        need(program)
    names, objects = bench.checker(machine)
    objects = list(objects)
    command = [compiler, *machine.flags, "-O2", *flags.split(), f"-I{bench.directory}"]
    for name in *names, "mhagen":
        source = out / f"{name}.c"
        source.write_text(change((bench.directory / source.name).read_text()))
        objects.append(source.with_suffix(".o"))
        result = compiles(command, source, objects[-1])
        if result.returncode:
            errors = re.findall(r"error: (.*)", result.stderr)
            assert len(errors) == 1, result.stderr
            return errors[0]
    run(*command, *objects, "-o", out / "check", "-lm", "-pthread")
    output = subprocess.run([*machine.runner, out / "check", "--terse", "--threads", "2"], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600).stdout
    verdicts = re.findall(r"^(ok|FAIL|skip) (k\d+) (.*)$", output, re.M)
    wrong = [text for verdict, _, text in verdicts if verdict == "FAIL"]
    assert len(verdicts) == len(names) and verdicts[0][0] != "skip", output
    assert all(text.startswith("(self-test)") for text in wrong), output
    return TOLD if wrong else RIGHT


def check(machine, compiler, flags, expected, *args):
    """expected: RIGHT, TOLD, either (None), or words of the compiler's."""
    got = outcome(machine, compiler, flags, *args)
    assert got in (RIGHT, TOLD) if expected is None else expected in got


def everywhere(compiler):
    """What gcc or the newest Clang takes of the rows for both, in turn."""
    return [row for row in EVERYWHERE if compiler in in_turn(["gcc", CLANGS[-1]], row[0].title, row[1])]


def half(rows):
    """Of the rows for one compiler."""
    return in_turn(rows, "flags", len(rows), count=len(rows) // 2)


@pytest.mark.parametrize("machine, flags, expected", everywhere("gcc") + half(GCC))
def test_gcc(machine, flags, expected, bench, tmp_path):
    check(machine, "gcc", flags, expected, bench, tmp_path)


@pytest.mark.parametrize("machine, flags, expected", everywhere(CLANGS[-1]) + half(CLANG))
def test_newest_clang(machine, flags, expected, bench, tmp_path):
    check(machine, CLANGS[-1], flags, expected, bench, tmp_path)


@pytest.mark.parametrize("flags, expected", [(flags, expected) for machine, flags, expected in EVERYWHERE + CLANG
                                             if machine is X86 and flags in OLDEST])
def test_oldest_clang(flags, expected, bench, tmp_path):
    check(X86, CLANGS[0], flags, expected, bench, tmp_path)


def bare(text):
    """A file without what keeps its arithmetic as it is."""
    text, count = re.subn(r"#pragma (?:GCC optimize|float_control|STDC).*\n", "", text)
    assert count in (0, 4, 5), count  # of plain C one more
    return text


@pytest.mark.parametrize("compiler, flags", [
    ("gcc", "-march=native"), ("gcc", ASSOCIATIVE), ("gcc", "-funsafe-math-optimizations"),
    (CLANGS[-1], "-march=native"), (CLANGS[-1], "-funsafe-math-optimizations"), (CLANGS[-1], ASSOCIATIVE)])
def test_self_test_sees(compiler, flags, bench, tmp_path):
    """The self-test tells where the file itself did not keep these flags off."""
    assert outcome(X86, compiler, flags, bench, tmp_path, bare) == TOLD


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other machines' compilers link nothing of the kind")
def test_flags_of_the_link(tmp_path):
    """As docs/compiling.md says: a program that is linked with -ffast-math has zeros for subnormal numbers, which the
    self-test does not see. Others have the same bits."""
    generate(tmp_path, "h=2 d_model=20 dk=6 seq=19 causal=true", "scalar")
    run("gcc", "-O1", *WARNINGS, "-c", ROOT / "tests/kernels/link_test.c", tmp_path / "kernel.c", tmp_path / "mhagen.c",
        f"-I{tmp_path}", cwd=tmp_path)

    def linked(*command):
        run(*command, *(tmp_path / f"{name}.o" for name in ("link_test", "kernel", "mhagen")), "-lm", "-pthread",
            "-o", tmp_path / "test")
        return run(tmp_path / "test").splitlines()

    ordinary, tiny = linked("gcc")
    assert ordinary.startswith("numbers") and tiny.startswith("numbers")
    assert linked("gcc", "-ffast-math")[0] == ordinary  # newer ones of gcc leave the others too
    same, zeros = linked(CLANGS[0], "-ffast-math")
    assert same == ordinary and zeros.startswith("zeros")


@pytest.mark.parametrize("isa", in_turn(ISAS, "environment", count=len(ISAS) // 2))
def test_environment(isa, tmp_path):
    """Half of the ISAs in turn. Packing and the self-test raise nothing but what is inexact, and another rounding mode
    has its status."""
    types = ["", "dtype=bf16", "dtype=f16", "dtype=int8", "weight_dtype=int4", "weight_dtype=f16"]
    for i, more in enumerate(in_turn(types, "environment", isa)):
        out = tmp_path / str(i)
        generate(out, f"h=2 d_model=12 dk=5 seq=3 seq_kv=7 attention=cross cache=fixed {more}", isa)
        for compiler in in_turn(["gcc", CLANGS[-1]], "environment", isa, more):
            run(*compiler_for(isa, compiler), "-O2", "-D_GNU_SOURCE", *WARNINGS, *emulation(isa), f"-I{out}",
                *(["-static"] if runner_for(isa) else []), ROOT / "tests/kernels/environment_test.c", out / "kernel.c",
                out / "mhagen.c", "-o", out / "test", "-lm", "-pthread")
            run(*runner_for(isa), out / "test")


def test_stub(bench, tmp_path):
    """A kernel for another architecture is announced when compiling, and says that it is the target."""
    if platform.machine() != "x86_64":
        pytest.skip("NEON is this machine's own")
    source = bench.directory / f"{bench.names['neon'][0]}.c"
    result = compiles(["gcc", "-O1"], source, tmp_path / "k.o")
    assert result.returncode == 0 and "MHAGEN_ERR_TARGET; -DMHAGEN_ALLOW_STUBS" in result.stderr
    quiet = ["gcc", "-O1", "-DMHAGEN_ALLOW_STUBS", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    assert compiles(quiet, source, tmp_path / "k.o").returncode == 0
    for flags in [], ["-ffast-math"]:  # nothing is computed there
        assert compiles([*quiet, *flags], source, tmp_path / "k.o").returncode == 0
    machine = X86._replace(title="stub", isas=["neon"])
    _, objects = bench.checker(machine)
    run("gcc", *objects, tmp_path / "k.o", bench.directory / "mhagen.c", "-o", tmp_path / "check", "-lm",
        "-pthread")
    assert run(tmp_path / "check") == f"skip {source.stem} this target has no neon\n"
