"""Compiler flags that could change results: each build is right, is refused when compiling, or is told of
by the self-test. None is silently wrong."""
import collections
import re
import subprocess

import pytest

from tools import CLANGS, ROOT, generate, need, run

# Masks show bits that differ between code for edge and for open tiles; the rest is for exp2 and packing.
KERNELS = [("scalar", "h=1 d_model=18 dk=4 seq=33 key_block=8 k_block=16 causal=true kv_len=true probs=true"),
           ("scalar", "h=2 d_model=20 dk=6 seq=19 causal=true"),
           ("avx2", "h=1 d_model=12 dk=4 seq=9 causal=true"),
           ("avx512", "h=1 d_model=12 dk=4 seq=17 kv_len=true"),
           ("neon", "h=1 d_model=12 dk=4 seq=9 causal=true")]
RIGHT, TOLD = "right", "told"  # else what the compiler must say

Machine = collections.namedtuple("Machine", "isas compiler flags runner")
X86 = Machine(["scalar", "avx2", "avx512"], "gcc", [], [])
# The headers that Debian has for one of x86-64's two widths only are the same for both.
M32 = Machine(["scalar"], "gcc", ["-m32", "-idirafter", "/usr/include/x86_64-linux-gnu"], [])
MUSL = Machine(["scalar"], "musl-gcc", [], [])
AARCH64 = Machine(["scalar", "neon"], "aarch64-linux-gnu-gcc", ["-static"], ["qemu-aarch64"])
S390X = Machine(["scalar"], "s390x-linux-gnu-gcc", ["-static"], ["qemu-s390x"])

ASSOCIATIVE = "-fassociative-math -fno-signed-zeros -fno-trapping-math"
FINITE, X87, S390 = "without -ffast-math", "-msse2 -mfpmath=sse", "-fexcess-precision=fast"
EVERYWHERE = [  # machine, flags, outcome; gcc and every Clang
    (X86, "", RIGHT), (X86, "-std=gnu17", RIGHT), (X86, "-march=native", RIGHT),
    (X86, "-O3 -march=native", RIGHT),
    (M32, "-msse2 -mfpmath=sse", RIGHT), (M32, "", X87),
    (X86, "-ffast-math", FINITE), (X86, "-ffinite-math-only", FINITE),
    (X86, "-fassociative-math", RIGHT), (X86, ASSOCIATIVE, RIGHT), (X86, "-freciprocal-math", RIGHT),
    (X86, "-fno-signed-zeros", RIGHT), (X86, "-fno-trapping-math", RIGHT), (X86, "-fno-math-errno", RIGHT),
    (X86, "-funsafe-math-optimizations", RIGHT), (X86, "-frounding-math", RIGHT),
]
GCC = [
    (X86, "-mfpmath=387", X87), (X86, "-mfpmath=387 -std=c11", X87), (X86, "-mfpmath=sse,387", X87),
    (X86, "-march=native -ffp-contract=fast -funsafe-math-optimizations", RIGHT),
    (X86, "-fcx-limited-range -fno-rounding-math -fno-signaling-nans -fexcess-precision=fast", RIGHT),
    (X86, "-fsingle-precision-constant", TOLD), (X86, "-mavx512fp16", RIGHT),
    (MUSL, "", RIGHT),
    (AARCH64, "", RIGHT), (AARCH64, "-march=armv8.2-a+fp16", RIGHT),
    (S390X, "", RIGHT), (S390X, "-std=c11", S390), (S390X, "-std=c11 -fexcess-precision=fast", RIGHT),
]
CLANG = [
    (X86, "-march=native -ffp-contract=fast", TOLD),  # whatever a file says of it
    (X86, "-fapprox-func", RIGHT), (X86, "-fno-honor-infinities", None), (X86, "-fno-honor-nans", None),
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """{isa: names of its kernels}, and where they are, with the program that checks them."""
    out, names = tmp_path_factory.mktemp("flags"), collections.defaultdict(list)
    for i, (isa, config) in enumerate(KERNELS):
        names[isa].append(f"k{i}")
        generate(out, config, isa, f"k{i}")
    return names, out


def outcome(machine, compiler, flags, sources, out, change=lambda text: text):
    """RIGHT, TOLD, or what the compiler says; fails where results are wrong and nothing says so."""
    names, directory = sources
    compiler = compiler if machine in (X86, M32) else machine.compiler
    for program in compiler, *machine.runner:
        need(program)
    names = [name for isa in machine.isas for name in names[isa]]
    command = [compiler, *machine.flags, f"-I{directory}", f"-I{ROOT}/tests"]
    flags = ["-O2", *flags.split()]
    objects = []

    def compile_with(options, source, name):
        objects.append(out / f"{name}.o")
        return subprocess.run([*command, *options, "-c", source, "-o", objects[-1]], text=True,
                              capture_output=True)
    for name in *names, "mhagen":
        (out / f"{name}.c").write_text(change((directory / f"{name}.c").read_text()))
        result = compile_with(flags, out / f"{name}.c", name)
        if result.returncode and machine is M32 and "-m32" in result.stderr + "-m32" \
                and re.search(r"(sys/cdefs|bits/libc-header-start|gnu/stubs-32)\.h", result.stderr):
            pytest.skip("no headers for -m32")
        if result.returncode:
            errors = re.findall(r"error: (.*)", result.stderr)
            assert len(errors) == 1, result.stderr
            return errors[0]
        assert "warning: 0x" not in result.stderr
    strict = ["-std=c11", "-O1", *(["-msse2", "-mfpmath=sse"] if machine is M32 else []),
              *(["-fexcess-precision=fast"] if machine is S390X else [])]
    (out / "main.c").write_text(
        "".join(f'#include "{name}.h"\n' for name in names) + '#include "checker.h"\n'
        "int main(int argc, char **argv) {\n  static const mhagen_kernel *const kernels[] = {"
        + ", ".join(f"&{name}_kernel" for name in names)
        + f"}};\n  return mhagen_check_main(kernels, {len(names)}, argc, argv);\n}}\n")
    for source in out / "main.c", ROOT / "tests/checker.c", ROOT / "tests/reference.c":
        result = compile_with(strict, source, source.stem)
        assert result.returncode == 0, result.stderr
    run(*command, *flags, *objects, "-o", out / "check", "-lm", "-pthread")
    output = subprocess.run([*machine.runner, out / "check", "--terse", "--threads", "2"], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300).stdout
    verdicts = re.findall(r"^(ok|FAIL|skip) (k\d+) (.*)$", output, re.M)
    assert len(verdicts) == len(names), output
    wrong = [verdict for verdict in verdicts if verdict[0] == "FAIL"]
    assert all(verdict[2].startswith("(self-test)") for verdict in wrong), output
    assert any(verdict[0] == "ok" for verdict in verdicts) or wrong, output
    return TOLD if wrong else RIGHT


def check(machine, compiler, flags, expected, *args):
    got = outcome(machine, compiler, flags, *args)
    assert expected is None and got in (RIGHT, TOLD) or expected and expected in got, got


@pytest.mark.parametrize("machine, flags, expected", EVERYWHERE + GCC)
def test_gcc(machine, flags, expected, sources, tmp_path):
    check(machine, "gcc", flags, expected, sources, tmp_path)


@pytest.mark.parametrize("machine, flags, expected", EVERYWHERE + CLANG)
@pytest.mark.parametrize("compiler", CLANGS)
def test_clang(compiler, machine, flags, expected, sources, tmp_path):
    check(machine, compiler, flags, expected, sources, tmp_path)


def bare(text):
    """A file without what keeps its arithmetic as it is."""
    text, count = re.subn(r"#pragma (?:GCC optimize|float_control|STDC).*\n", "", text)
    assert count in (0, 4), count
    return text


@pytest.mark.parametrize("compiler, flags", [
    ("gcc", "-march=native"), ("gcc", ASSOCIATIVE), ("gcc", "-funsafe-math-optimizations"),
    (CLANGS[-1], "-march=native"), (CLANGS[-1], "-funsafe-math-optimizations"), (CLANGS[-1], ASSOCIATIVE)])
def test_self_test_sees(compiler, flags, sources, tmp_path):
    """The self-test tells where the file itself did not keep these flags off."""
    assert outcome(X86, compiler, flags, sources, tmp_path, bare) == TOLD
