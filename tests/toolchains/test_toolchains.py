"""The compilers and targets of docs/toolchains.md: kernels and runtime compile as C99 without a warning, link and
compute. Also exports, and versions that do not fit together."""
import os
import re
import shutil
import subprocess

import pytest

from tools import (CLANGS, COVER, ISAS, MHAGEN, REFERENCE, ROOT, WARNINGS, compiler_for, cross_prefix, generate,
                   generate_many, in_turn, native, need, run, runner_for, symbols)

PROGRAM = [ROOT / "tests/toolchains/toolchain_test.c", *REFERENCE]
# Every option, for every ISA; and what is worth a pool's threads, in scalar code. Unrolled as by default.
CONFIGS = ["h=2 d_model=12 dk=4 dv=3 seq=9 attention=cross seq_kv=11 causal=true kv_len=true probs=true "
           "batch=2", "h=2 d_model=32 dk=16 seq=64 probs=true"]
HOST = [isa for isa in ISAS if native(isa)]
X86 = [isa for isa in HOST if native("avx2")]
CORTEX_M = ["arm-none-eabi-gcc", "-mthumb"]
BOARD = ["qemu-system-arm", "-M", "mps2-an500", "-nographic", "-semihosting", "-kernel"]
START = [ROOT / "tests/toolchains/cortex_m.c", "--specs=rdimon.specs", "-Wl,--section-start=.vectors=0", "-lm"]
POSIX = ["-lm", "-pthread"]


class Row:
    """command and warnings: the compiler; link: what linking takes; runner: the emulator; pool: has threads."""

    def __init__(self, command, isas, link=POSIX, runner=(), pool=True, warnings=WARNINGS):
        self.command, self.isas, self.link, self.runner = command, isas, link, runner
        self.pool, self.warnings = pool, warnings


# By the row's name in docs/toolchains.md: compiler, target.
ROWS = {
    "gcc | Linux": Row(["gcc"], HOST),
    "clang, the oldest | Linux": Row([CLANGS[0]], HOST),
    "clang, the newest | Linux": Row([CLANGS[-1]], HOST),
    "gcc | Linux with musl": Row(["musl-gcc"], HOST, ["-static", *POSIX]),
    "tcc | Linux": Row(["tcc"], ["scalar"], warnings=["-Wall", "-Werror"]),
    "gcc | Linux, aarch64": Row(["aarch64-linux-gnu-gcc"], ["scalar", "neon", "neon_i8mm"],
                                runner=["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]),
    "gcc | Linux, armhf": Row(["arm-linux-gnueabihf-gcc"], ["scalar"],
                              runner=["qemu-arm", "-L", "/usr/arm-linux-gnueabihf"]),
    "gcc (mingw-w64) | Windows, x86-64": Row(["x86_64-w64-mingw32-gcc"], ["scalar"], ["-static", *POSIX], ["wine"]),
    "clang (mingw-w64) | Windows, x86-64": Row([CLANGS[-1], "--target=x86_64-w64-mingw32"], ["scalar", *X86[1:]],
                                               ["-static", *POSIX], ["wine"]),
    "gcc (newlib) | Cortex-M7": Row([*CORTEX_M, "-mcpu=cortex-m7", "-mfpu=fpv5-d16", "-mfloat-abi=hard"],
                                    ["scalar"], START, BOARD, pool=False),
    "gcc (newlib) | Cortex-M0": Row([*CORTEX_M, "-mcpu=cortex-m0"], ["scalar"], START, BOARD, pool=False),
}
NEEDS = {"--target=x86_64-w64-mingw32": "x86_64-w64-mingw32-gcc"}  # Clang takes its headers and libraries


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """That of emulators: Wine keeps a directory."""
    return {**os.environ, "WINEPREFIX": str(tmp_path_factory.mktemp("wine") / "prefix"), "WINEDEBUG": "-all"}


def skipped_rows(name):
    row = ROWS[name]
    for program in [row.command[0], *(NEEDS[word] for word in row.command if word in NEEDS)]:
        need(program)
    return row


@pytest.mark.parametrize("name", in_turn(ROWS, "toolchains", count=len(ROWS) // 2 + 1))
def test_row(name, tmp_path, environment):
    """More than half of the rows in turn: scalar code, and one more ISA in turn. What an ISA needs of a compiler
    test_compiles has."""
    row = skipped_rows(name)
    programs, reference = [], [tmp_path / f"{source.stem}.o" for source in REFERENCE]
    run(*row.command, "-std=c99", "-O1", "-I", ROOT / "runtime", "-c", *REFERENCE, cwd=tmp_path)
    others = [isa for isa in row.isas if isa != "scalar"]
    for isa in ["scalar", *(in_turn(others, name) if others else [])]:
        for i, config in enumerate(CONFIGS if isa == "scalar" else CONFIGS[:1]):
            out = tmp_path / f"{isa}_{i}"
            generate(out, config, isa)
            sources = "kernel.c", "mhagen.c"
            for standard in in_turn([("-std=gnu99", "-O1"), ("-std=c99", "-O2")], name, isa, config):
                run(*row.command, *standard, *row.warnings, "-c", *sources, cwd=out)
            programs.append(out / "program.exe")
            run(*row.command, "-std=c99", "-O1", "-I", out, "-I", ROOT / "tests/check", PROGRAM[0], *reference,
                "kernel.o", "mhagen.o", "-o", programs[-1], *row.link, cwd=out)
    if row.runner and not shutil.which(row.runner[0]):
        pytest.skip(f"{name}: compiled and linked, not run: {row.runner[0]} is not installed")
    for program in programs:
        output = run(*row.runner, program, env=environment, stdin=subprocess.DEVNULL)
        assert output.rstrip().endswith("with a pool" if row.pool else "without a pool") or "lacks the ISA" in output


def test_all_options_by_tcc(tmp_path):
    """What it lacks of the language, as _Pragma, only some configs have."""
    need("tcc")
    generate_many(tmp_path, {f"kernel{i}": f"{config} isa=scalar" for i, config in enumerate(COVER)})
    run("tcc", "-Wall", "-Werror", "-c", *tmp_path.glob("*.c"), cwd=tmp_path)


def test_table():
    """docs/toolchains.md has these rows, in this order."""
    text = (ROOT / "docs/toolchains.md").read_text()
    assert [" | ".join(row) for row in re.findall(r"^\| (.+?) \| (.+?) \|.*\| \d+ \|$", text, re.M)] == list(ROWS)


# ---- without libc ----

FREESTANDING = ["-ffreestanding", "-nostdlib", "-static", "-DMHAGEN_NO_POOL", *WARNINGS, "-std=gnu11"]


@pytest.mark.parametrize("isa", in_turn(ISAS, "freestanding", count=len(ISAS) // 2))
def test_freestanding(isa, tmp_path):
    """Headers of the compiler's target and five functions are enough; the bits are those of a program with libc.
    docs/integrate.md names the functions."""
    compiler = in_turn(["gcc", CLANGS[-1]], isa)[0]
    command, runner = compiler_for(isa, compiler), runner_for(isa)
    generate(tmp_path, "h=2 d_model=12 dk=4 seq=9", isa)
    program = [ROOT / "tests/toolchains/freestanding.c", "-I."]
    run(*command, "-O2", *FREESTANDING, "-c", "kernel.c", "mhagen.c", cwd=tmp_path)
    run(*command, "-O2", *FREESTANDING, *program, "kernel.o", "mhagen.o", "-o", "free", "-lgcc", cwd=tmp_path)
    run(*command, "-O1", "-DHOSTED", "-static", *program, "kernel.c", "mhagen.c", "-o", "hosted", "-pthread",
        cwd=tmp_path)

    def result(program):
        done = subprocess.run([*runner, tmp_path / program], stdout=subprocess.PIPE)
        return done.returncode, done.stdout

    status, y = result("free")
    if status == 4:
        pytest.skip(f"this CPU has no {isa}")
    assert status == 0 and len(y) == 4 * 9 * 12 and any(y) and result("hosted") == (0, y)
    undefined = {name for file in ("kernel.o", "mhagen.o") for name in
                 re.findall(r" U (\w+)", run(f"{cross_prefix(isa)}nm", "-u", tmp_path / file))}
    page = (ROOT / "docs/integrate.md").read_text()
    named = re.search(r"functions\sof\slibc\sthat\sthey\scall\sare\s([^.]*)\.", page)
    others = re.compile("mhagen|_GLOBAL_OFFSET_TABLE_")  # our own, and the linker's
    assert {name for name in undefined if not others.search(name)} <= set(re.findall(r"`(\w+)`", named[1]))


# ---- what a shared library exports ----

def exported(library):
    return set(re.findall(r" [TRD] (\w+)", run("nm", "-D", "--defined-only", library)))


def declared(*headers):
    """The functions and kernels that headers declare for other files."""
    text = "".join(header.read_text() for header in headers)
    return symbols(re.findall(r"^MHAGEN_API\s[^;(]*?(\w+)(?:\(|;)", text, re.M))


@pytest.mark.parametrize("compiler", ["gcc", CLANGS[-1]])
def test_shared_library(compiler, tmp_path):
    """Under -fvisibility=hidden it exports what the headers declare, or nothing; a program runs with it."""
    need(compiler)
    generate(tmp_path, CONFIGS[1], "scalar")
    hidden = [compiler, "-O2", "-fPIC", "-fvisibility=hidden", "kernel.c", "mhagen.c"]
    link = ["-I", ROOT / "tests/check", "-I", tmp_path, *PROGRAM]
    names = declared(tmp_path / "kernel.h", tmp_path / "mhagen.h")
    assert {"kernel_run", "kernel_kernel", "mhagen_run_parallel", "mhagen_status_text"} <= names
    run(*hidden, "-shared", "-o", "libkernel.so", *POSIX, cwd=tmp_path)
    assert exported(tmp_path / "libkernel.so") == names
    run(compiler, "-O2", *link, "-L.", "-lkernel", "-Wl,-rpath," + str(tmp_path), "-o", "shared", *POSIX, cwd=tmp_path)
    run(*hidden, *link, "-o", "static", *POSIX, cwd=tmp_path)
    assert run(tmp_path / "shared") == run(tmp_path / "static")
    run(*hidden, "-DMHAGEN_API=", "-shared", "-o", "libnothing.so", *POSIX, cwd=tmp_path)
    assert not exported(tmp_path / "libnothing.so")


def test_dll(tmp_path, environment):
    need("x86_64-w64-mingw32-gcc")
    generate(tmp_path, CONFIGS[1], "scalar")
    gcc = ["x86_64-w64-mingw32-gcc", "-O2", "-static", "-I", ROOT / "tests/check", "-I", tmp_path]
    run(*gcc, "-DMHAGEN_API=__declspec(dllexport)", "-shared", "kernel.c", "mhagen.c", "-o", "kernel.dll",
        "-Wl,--out-implib,libkernel.a", *POSIX, cwd=tmp_path)
    text = run("x86_64-w64-mingw32-objdump", "-p", tmp_path / "kernel.dll")
    exports = set(re.findall(r"^\s*\[ *\d+\] (\w+)$", text, re.M))
    assert exports == declared(tmp_path / "kernel.h", tmp_path / "mhagen.h")
    run(*gcc, "-DMHAGEN_API=__declspec(dllimport)", *PROGRAM, "libkernel.a", "-o", "program.exe", *POSIX, cwd=tmp_path)
    if not shutil.which("wine"):
        pytest.skip("compiled and linked, not run: wine is not installed")
    assert "with a pool" in run("wine", tmp_path / "program.exe", env=environment)


# What stands in for headers of Visual Studio: all that kernels, the runtime and Clang's own headers use of them.
CL_HEADERS = {
    "string.h": "void *memcpy(void *, const void *, size_t);\nvoid *memset(void *, int, size_t);\n"
                "int memcmp(const void *, const void *, size_t);\nint strcmp(const char *, const char *);\n"
                "size_t strlen(const char *);\n",
    "math.h": "#define INFINITY ((float)(1e+300 * 1e+300))\n",
    "malloc.h": "void *malloc(size_t);\nvoid free(void *);\nvoid *_aligned_malloc(size_t, size_t);\n"
                "void _aligned_free(void *);\n"}


def test_clang_cl(tmp_path):
    """As clang-cl compiles them: without a warning, without a pool, and with all ISAs."""
    need(CLANGS[-1])
    (tmp_path / "include").mkdir()
    for name, text in CL_HEADERS.items():
        (tmp_path / "include" / name).write_text(f"#pragma once\n#include <stddef.h>\n{text}")
    shutil.copy(tmp_path / "include/malloc.h", tmp_path / "include/stdlib.h")
    generate(tmp_path, "h=2 d_model=12 dk=4 seq=9 kv_len=true", "x86+avx_vnni+amx")
    for source in tmp_path.glob("*.c"):
        run(CLANGS[-1], "--driver-mode=cl", "--target=x86_64-pc-windows-msvc", "/O1", "/W4", "/WX", "/imsvc", "include",
            "/c", "/FA", source.name, cwd=tmp_path)
    for stem, word in ("mhagen", "cpuid"), ("kernel_avx2", "ymm"), ("kernel_avx512", "zmm"):
        assert word in (tmp_path / f"{stem}.asm").read_text()


# ---- refused ----

def errors(*command, cwd):
    result = subprocess.run(list(map(str, command)), cwd=cwd, text=True, stderr=subprocess.PIPE)
    assert result.returncode != 0
    return re.findall(r"error: (?:#error )?\"?(.*?)\"?$", result.stderr, re.M)


@pytest.mark.parametrize("isa", X86[1:])
def test_gcc_for_windows_refuses_avx(isa, tmp_path):
    need("x86_64-w64-mingw32-gcc")
    generate(tmp_path, CONFIGS[0], isa)
    assert errors("x86_64-w64-mingw32-gcc", "-c", "kernel.c", cwd=tmp_path) == [
        "gcc for Windows does not align the stack for AVX: compile this file with clang"]


@pytest.mark.parametrize("file, other, now", [("kernel.h", "mhagen.h", r"(#define MHAGEN_VERSION) \d+"),
                                              ("kernel.c", "kernel.h", r"(#define KERNEL_MHAGEN_VERSION) \d+")])
def test_versions_that_do_not_fit(file, other, now, tmp_path):
    """One line says which file is of another version; also where the other file is of none."""
    generate(tmp_path, CONFIGS[1], "scalar")
    version = run(MHAGEN, "--version").split()[1]
    text = (tmp_path / other).read_text()
    for changed in r"\1 99999", "":
        (tmp_path / other).write_text(re.sub(now, changed, text, count=1))
        if file == "kernel.c":  # the other kernel.h fits its own mhagen.h
            runtime = (tmp_path / "mhagen.h").read_text()
            number = changed.replace(r"\1 ", "") or "0"
            (tmp_path / "mhagen.h").write_text(re.sub(r"(define MHAGEN_VERSION) \d+", rf"\1 {number}", runtime))
        assert errors("gcc", "-c", "kernel.c", cwd=tmp_path) == [
            f"{file} is of mhagen {version}, {other} is not: generate both with one version"]


def test_runtime_that_does_not_fit(tmp_path):
    """What is compiled with one version each does not link."""
    for folder, change in ("kernel", None), ("runtime", r"\1 99999"):
        generate(tmp_path / folder, CONFIGS[1], "scalar")
        header = tmp_path / folder / "mhagen.h"
        header.write_text(re.sub(r"(#define MHAGEN_VERSION) \d+", change or r"\g<0>", header.read_text(), count=1))
    (tmp_path / "main.c").write_text('#include "kernel.h"\nint main(void) { return kernel_self_test(); }\n')
    program = ["gcc", "-I", tmp_path / "kernel", tmp_path / "main.c", tmp_path / "kernel/kernel.c"]
    run(*program, tmp_path / "kernel/mhagen.c", "-o", tmp_path / "program", *POSIX)
    run(tmp_path / "program")
    result = subprocess.run([*program, tmp_path / "runtime/mhagen.c", *POSIX, "-o", tmp_path / "other"], cwd=tmp_path,
                            text=True, stderr=subprocess.PIPE)
    assert result.returncode != 0 and "undefined reference to `mhagen_check_bits_" in result.stderr


def test_version_of_the_runtime():
    """mhagen.h says the version of the generator."""
    major, minor, patch = map(int, run(MHAGEN, "--version").split()[1].split("."))
    number = re.search(r"^#define MHAGEN_VERSION (\d+)$", (ROOT / "runtime/mhagen.h").read_text(), re.M)[1]
    assert int(number) == 10000 * major + 100 * minor + patch
