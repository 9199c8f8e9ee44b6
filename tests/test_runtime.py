"""The runtime: warnings, the pool under sanitizers, builds without threads, C++, aarch64."""
import pathlib
import re

import pytest

from tools import COMPILERS, CXX_COMPILERS, ROOT, WARNINGS, compiler_for, need, run, runner_for

SANITIZERS = {"plain": [], "thread": ["-fsanitize=thread"],
              "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]}


def build_pool_test(command, out, *flags):
    run(*command, "-std=c11", "-O2", "-g", *WARNINGS, *flags, "-I", ROOT / "runtime",
        ROOT / "tests/pool_test.c", ROOT / "runtime/mhagen.c", "-o", out, "-pthread",
        "-Wl,--wrap=pthread_create")


@pytest.mark.parametrize("isa", ["scalar", "neon"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_warnings(compiler, isa, tmp_path):
    command = compiler_for(isa, compiler)
    for level in "0123":
        for standard in "c11", "c17":
            for option in [], ["-DMHAGEN_NO_POOL"]:
                run(*command, f"-std={standard}", f"-O{level}", *WARNINGS, *option, "-c",
                    ROOT / "runtime/mhagen.c", "-o", tmp_path / "mhagen.o")


@pytest.mark.parametrize("compiler", CXX_COMPILERS)
def test_header_is_cpp(compiler, tmp_path):
    need(compiler)
    source = tmp_path / "use.cpp"
    source.write_text('#include "mhagen.h"\nint main() { return mhagen_args{}.y != nullptr; }\n')
    run(compiler, "-std=c++17", *WARNINGS, "-fsyntax-only", "-I", ROOT / "runtime", source)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_pool(compiler, sanitizer, tmp_path):
    build_pool_test(compiler_for("scalar", compiler), tmp_path / "test", *SANITIZERS[sanitizer])
    run(tmp_path / "test")


def test_pool_on_aarch64(tmp_path):
    build_pool_test(compiler_for("neon", "gcc"), tmp_path / "test", "-static")
    run(*runner_for("neon"), tmp_path / "test")


def test_without_pool(tmp_path):
    build_pool_test(["gcc"], tmp_path / "test", "-DMHAGEN_NO_POOL")
    run(tmp_path / "test")
    run("gcc", "-O2", "-DMHAGEN_NO_POOL", "-c", ROOT / "runtime/mhagen.c", "-o", tmp_path / "m.o")
    undefined = set(re.findall(r"U (\w+)", run("nm", "-u", tmp_path / "m.o")))
    assert undefined <= {"_GLOBAL_OFFSET_TABLE_", "__cpu_indicator_init", "__cpu_model"}


def test_texts_and_cpu(tmp_path):
    """Each status has a text of its own, and the CPU check agrees with the system's."""
    source = tmp_path / "print.c"
    source.write_text(r"""
#include "mhagen.h"
#include <stdio.h>
int main(void) {
  for (int s = 0; s <= MHAGEN_ERR_ARITHMETIC + 1; s++) puts(mhagen_status_text((mhagen_status)s));
  printf("%d %d %d %d\n", mhagen_cpu_has(MHAGEN_CPU_ANY), mhagen_cpu_has(MHAGEN_CPU_AVX2),
         mhagen_cpu_has(MHAGEN_CPU_AVX512), mhagen_cpu_has(MHAGEN_CPU_NEON));
  return 0;
}
""")
    run("gcc", "-I", ROOT / "runtime", source, ROOT / "runtime/mhagen.c", "-o", tmp_path / "print")
    *texts, cpu = run(tmp_path / "print").splitlines()
    assert len(set(texts)) == 9 and texts[-1] == "unknown status"
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"(?:flags|Features)\s*:(.*)", cpuinfo).group(1).split())
    expected = [True, {"avx2", "fma"} <= flags,
                {"avx512f", "avx512dq", "avx512bw", "avx512vl"} <= flags, "asimd" in flags]
    assert cpu.split() == [str(int(has)) for has in expected]
