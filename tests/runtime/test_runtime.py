"""The runtime: warnings, the pool under sanitizers, builds without threads, C++, aarch64."""
import os
import pathlib
import platform
import re
import subprocess

import pytest

from tools import CLANGS, COMPILERS, CXX_COMPILERS, FACTS, ROOT, WARNINGS, compiler_for, need, run, runner_for

RUNTIME = ROOT / "build/runtime/mhagen.c"  # in one file
# Flags, and the arguments of pool_test.
SANITIZERS = {"plain": ([], []), "thread": (["-fsanitize=thread"], ["300"]),
              "locked": (["-DMHAGEN_NO_ATOMICS"], []),
              "locked thread": (["-fsanitize=thread", "-DMHAGEN_NO_ATOMICS"], ["30"]),
              "address": (["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], ["300"])}
CHECKED = "  if (status != MHAGEN_OK) return status;\n  const environment before"
# What breaks the runtime's pool, and the text that takes the place of another.
MUTANTS = {
    "nothing": ("", ""),
    "a task before the check": ("  const mhagen_status status = mhagen_check_args(kernel, args);\n" + CHECKED,
                                "  if (args && args->y && args->probs && args->workspace) "
                                "kernel->phases[0].task(args, 0);\n"
                                "  const mhagen_status status = mhagen_check_args(kernel, args);\n" + CHECKED),
    **{f"{buffer} written after an error": (
        CHECKED, f"  if (status != MHAGEN_OK && args && args->{buffer}) *(float *)(uintptr_t)args->{buffer} = 0;\n"
        + CHECKED) for buffer in ("y", "probs", "workspace", "packed")},
    "no cap": (" || threads > MHAGEN_MAX_THREADS", ""),
    "a child that wakes its parent's threads": ("if (!pool || pool->process != process()) return", "if (!pool) return"),
    "a child that joins its parent's threads": ("if (pool->process != process()) {", "if (0) {"),
}


def build_pool_test(command, out, *flags, runtime=RUNTIME):
    run(*command, "-std=c11", "-O2", "-g", *WARNINGS, *flags, "-I", ROOT / "runtime",
        ROOT / "tests/runtime/pool_test.c", runtime, "-o", out, "-pthread", "-Wl,--wrap=pthread_create")


@pytest.mark.parametrize("isa", ["scalar", "neon"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_no_warnings(compiler, isa, tmp_path):
    command = compiler_for(isa, compiler)
    for level, standard in zip("0123", ("c11", "c99", "gnu99", "c17")):
        for option in [], ["-DMHAGEN_NO_POOL"]:
            run(*command, f"-std={standard}", f"-O{level}", *WARNINGS, *option, "-I", ROOT / "runtime", "-c", RUNTIME,
                "-o", tmp_path / "mhagen.o")


FLUSH = """
#include "mhagen.h"
int main(void) {
  volatile float small = 1e-39f, one = 1;
  const unsigned long before = mhagen_flush_begin();
  volatile float flushed = small * one;
  mhagen_flush_end(before);
  volatile float kept = small * one;
  return flushed != 0 || !(kept > 0);
}
"""


@pytest.mark.parametrize("isa", ["scalar", "neon"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_flush(compiler, isa, tmp_path):
    """Subnormal numbers are zeros between begin and end, and numbers again behind them."""
    command, runner = compiler_for(isa, compiler), runner_for(isa)
    source = tmp_path / "flush.c"
    source.write_text(FLUSH)
    run(*command, "-std=c11", "-O2", *WARNINGS, "-I", ROOT / "runtime", source, RUNTIME, "-o", tmp_path / "flush",
        "-pthread")
    run(*runner, tmp_path / "flush")


@pytest.mark.parametrize("compiler", CXX_COMPILERS)
def test_header_is_cpp(compiler, tmp_path):
    need(compiler)
    source = tmp_path / "use.cpp"
    source.write_text('#include "mhagen.h"\nint main() { return mhagen_args{}.y != nullptr; }\n')
    run(compiler, "-std=c++17", *WARNINGS, "-fsyntax-only", "-I", ROOT / "runtime", source)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_pool(compiler, sanitizer, tmp_path):
    flags, arguments = SANITIZERS[sanitizer]
    build_pool_test(compiler_for("scalar", compiler), tmp_path / "test", *flags)
    run(tmp_path / "test", *arguments)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_pool_mutants(mutant, tmp_path):
    """pool_test fails with each broken runtime."""
    text, (old, new) = RUNTIME.read_text(), MUTANTS[mutant]
    assert old in text
    (tmp_path / "mhagen.c").write_text(text.replace(old, new) if old else text)
    build_pool_test(["gcc"], tmp_path / "test", runtime=tmp_path / "mhagen.c")
    result = subprocess.run([tmp_path / "test"], stdout=subprocess.DEVNULL, timeout=600)
    assert (result.returncode == 0) == (mutant == "nothing")


USABLE = """
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include "mhagen.h"

static int usable(void) {
  mhagen_pool *pool = mhagen_pool_create(0);
  const int threads = pool ? mhagen_pool_threads(pool) : 0;
  mhagen_pool_destroy(pool);
  return threads;
}

static void *pinned(void *result) { /* to the CPU that it runs on */
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET((size_t)sched_getcpu(), &own);
  if (sched_setaffinity(0, sizeof own, &own) == 0) *(int *)result = usable();
  return NULL;
}

int main(void) {
  int of_one = 0;
  pthread_t thread;
  if (pthread_create(&thread, NULL, pinned, &of_one) || pthread_join(thread, NULL)) return 1;
  printf("%d %d", usable(), of_one);
  return 0;
}
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="cgroups are Linux's")
def test_usable_cpus(tmp_path):
    """A pool of 0 threads has one for each CPU of the calling thread's affinity, and no more than cpu.max grants."""
    cpus = sorted(os.sched_getaffinity(0))
    (tmp_path / "main.c").write_text(USABLE)
    run("gcc", "-std=c11", "-O1", "-fsanitize=address,undefined", f'-DMHAGEN_CGROUPS="{tmp_path}/cgroup"', *WARNINGS,
        "-I", ROOT / "runtime", tmp_path / "main.c", RUNTIME, "-o", tmp_path / "usable", "-pthread")

    def threads(maximum, allowed):
        (tmp_path / "cgroup").mkdir(exist_ok=True)
        if maximum:
            (tmp_path / "cgroup/cpu.max").write_text(maximum)
        command = ["taskset", "-c", ",".join(map(str, allowed)), tmp_path / "usable"]
        usable, of_one = map(int, run(*command, timeout=60).split())
        assert of_one == 1
        return usable
    assert threads("", cpus) == threads("max 100000\n", cpus) == threads("99900000 100000\n", cpus) == len(cpus)
    assert threads("", cpus[:1]) == 1
    assert threads("150000 100000\n", cpus) == threads("20000 100000\n", cpus) == 1
    assert threads("250000 100000\n", cpus) == min(2, len(cpus))


def test_pool_on_aarch64(tmp_path):
    build_pool_test(compiler_for("neon", "gcc"), tmp_path / "test", "-static")
    run(*runner_for("neon"), tmp_path / "test", "10")


def test_without_pool(tmp_path):
    build_pool_test(["gcc"], tmp_path / "test", "-DMHAGEN_NO_POOL")
    run(tmp_path / "test")
    run("gcc", "-O2", "-DMHAGEN_NO_POOL", "-c", ROOT / "runtime/mhagen.c", "-o", tmp_path / "m.o")
    undefined = set(re.findall(r"U (\w+)", run("nm", "-u", tmp_path / "m.o")))
    assert undefined <= {"_GLOBAL_OFFSET_TABLE_", "memset", "memcpy", "memcmp", "strcmp", "strlen"}


WAVES = r"""
#include "mhagen.c"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static int wrong(double x, int quarters) {
  const long double turn = 6.283185307179586476925286766559L, part = fmodl(x, 1);
  const double got = wave(x, quarters), expected = (double)sinl(turn * (part + quarters / 4.0L));
  if (fabs(got - expected) <= 1e-15) return 0;
  return printf("%a, %d quarters: %.17g, not %.17g\n", x, quarters, got, expected);
}

int main(void) {
  int failed = 0;
  for (int exponent = -1074; exponent < 1024; exponent++) {
    for (int i = 0; i < 20; i++) {
      const double x = ldexp(0.5 + 0.5 * (rand() / (RAND_MAX + 1.0)), exponent + 1);
      for (int quarters = 0; quarters < 2; quarters++) failed += wrong(x, quarters) + wrong(-x, quarters);
    }
  }
  for (double x = 0; x < 1e17; x = 2 * x + 0.25) failed += wrong(x, 0) + wrong(x, 1);
  return failed > 0;
}
"""


@pytest.mark.parametrize("compiler", COMPILERS)
def test_waves(compiler, tmp_path):
    """Sines and cosines of turns, of every size that a double has."""
    (tmp_path / "main.c").write_text(WAVES)
    for flags in ["-O0"], ["-O2"], ["-O1", "-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all"]:
        run(*compiler_for("scalar", compiler), *flags, "-DMHAGEN_NO_POOL", "-I", ROOT / "runtime", tmp_path / "main.c",
            "-lm", "-o", tmp_path / "waves")
        run(tmp_path / "waves")


# { a mhagen_cpu: the words of /proc/cpuinfo }
CPUS = {row["cpu"]: row.get("cpuinfo", "")
        for isa in FACTS.values() for row in (isa, *isa.get("asks", {}).values())}


@pytest.mark.parametrize("compiler", ["gcc", f"{CLANGS[-1]} -U__GNUC__ -DMHAGEN_NO_POOL"])
def test_texts_and_cpu(compiler, tmp_path):
    """Each status has a text of its own, and the CPU check agrees with the system's; also by Clang as it is for Visual
    Studio, which does not say that it is GNU C."""
    if compiler != "gcc":
        need(CLANGS[-1])
    source = tmp_path / "print.c"
    source.write_text(r"""
#include "mhagen.h"
#include <stdio.h>
int main(void) {
  for (int s = 0; s <= MHAGEN_ERR_ROUNDING + 1; s++) puts(mhagen_status_text((mhagen_status)s));
""" + "".join(f'  printf("%d ", mhagen_cpu_has({cpu}));\n' for cpu in CPUS) + r"""
  return 0;
}
""")
    run(*compiler.split(), "-I", ROOT / "runtime", source, ROOT / "runtime/mhagen.c", "-o", tmp_path / "print",
        *([] if "NO_POOL" in compiler else ["-pthread"]))
    *texts, cpus = run(tmp_path / "print").splitlines()
    assert len(set(texts)) == 11 and texts[-1] == "unknown status"
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"(?:flags|Features)\s*:(.*)", cpuinfo).group(1).split())
    assert dict(zip(CPUS, cpus.split())) == {cpu: str(int(set(needed.split()) <= flags))
                                             for cpu, needed in CPUS.items()}


# ---- tiles ----

@pytest.mark.skipif(platform.machine() != "x86_64", reason="tiles are of x86-64")
@pytest.mark.parametrize("choice", ["single", "bundle"])
def test_refused_tiles(choice, tmp_path):
    """Linux is asked again after a refusal, but a bundle's choice stays."""
    text = RUNTIME.read_text()
    for name, body in [("static unsigned ask_cpu", "ask_words(words); return ~0u;"),
                       ("static int ask_tiles", "asked++; return granted;")]:
        declared = "unsigned words[WORDS];" if "words" in body else ""
        text, count = re.subn(rf"{name}\(void\) {{\n.*?\n}}\n", f"{name}(void) {{ {declared} {body} }}\n", text,
                              flags=re.S)
        assert count == 1
    (tmp_path / "changed.c").write_text("int granted, asked;\n" + text)
    run("gcc", "-O1", "-I", ROOT / "runtime", ROOT / "tests/runtime/amx_refused_test.c", tmp_path / "changed.c", "-o",
        tmp_path / "test", "-pthread")
    run(tmp_path / "test", choice)
