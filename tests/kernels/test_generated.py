"""The generated C as a user compiles it: warnings, spills, sizes, other schedulers."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools import (CHECKER, COMPILERS, COVER, CXX_COMPILERS, ISAS, RECENT_COMPILERS, REFERENCE, ROOT, SUITE, WARNINGS,
                   compiler_for, cpu_time, cross_prefix, disassemble, emulation, explain, generate, generate_many,
                   hidden, in_turn, native, need, run, runs, shared, stack)

slow = pytest.mark.slow
NATIVE = list(filter(native, ISAS))
STRAIGHT = "h=1 d_model=8 dk=4 seq=16 unroll=full"  # much on the stack


def compile_within_stack(command, source, *flags):
    run(*command, *flags, "-fstack-usage", "-c", source, cwd=source.parent)
    used, said = stack(source)
    assert 0 < used < said, (source, flags)


@slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiles(compiler, isa, covering_texts, tmp_path):
    """Without a warning, and within the stack. Half of the configs in turn, each of one ISA in turn, and one compiler
    in turn takes it."""
    command = compiler_for(isa, compiler)
    for i in in_turn(range(len(COVER)), "compiles", count=len(COVER) // 2):
        config = COVER[i]
        if isa not in in_turn(ISAS, config) or compiler not in in_turn(COMPILERS, isa, config):
            continue
        for name in f"k{i}_{isa}.c", f"k{i}_{isa}.h", "mhagen.h":
            shutil.copy(covering_texts / name, tmp_path)
        level, standard = [("-O1", "c11"), ("-O2", "c17"), ("-O3", "c11")][(i + ISAS.index(isa)) % 3]
        compile_within_stack(command, tmp_path / f"k{i}_{isa}.c", f"-std={standard}", level, *WARNINGS)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_checker_compiles(compiler):
    """Without a warning by any compiler, for `check` takes that of the user; fuzz.py compiles it by one."""
    need(compiler)
    run(compiler, "-std=c11", "-fsyntax-only", *WARNINGS, "-I", ROOT / "runtime", "-I", ROOT / "tests/check", *CHECKER,
        *REFERENCE)


@pytest.mark.parametrize("compiler", CXX_COMPILERS)
def test_header_is_cpp(compiler, tmp_path):
    need(compiler)
    generate(tmp_path, COVER[1], "scalar")
    use = tmp_path / "use.cpp"
    use.write_text('#include "kernel.h"\n#include "kernel.h"\n'
                   "static_assert(KERNEL_SEQ == 16 && KERNEL_PACKED_BYTES > 0, \"constants\");\n"
                   "int main() { return kernel_supported() + kernel_kernel.h; }\n")
    run(compiler, "-std=c++17", *WARNINGS, "-fsyntax-only", use)


MACROS = ("MHAGEN_VERSION HEADS H_KV D_MODEL DK DV SEQ SEQ_KV BATCH K_WIDTH V_WIDTH Y_WIDTH PACKED_BYTES "
          "WORKSPACE_BYTES CACHE_BYTES")
GUARDS = ["ENCODER_H", "ENCODER_H_", "ENCODER_H__", "_ENCODER_H", "_ENCODER_H_", "__ENCODER_H__", "ENCODER_H_INCLUDED",
          "ENCODER_INCLUDED", "INCLUDED_ENCODER_H", "ENCODER_HPP", "ENCODER_HH", "ENCODER_VERSION", "ENCODER"]


def test_macros_of_headers(tmp_path):
    """A kernel's header leaves the include guards of a product's header of the same name alone."""
    generate(tmp_path, "h=2 d_model=8 dk=4 seq=3 cache=append seq_kv=9", "scalar", "encoder")
    (tmp_path / "use.c").write_text('#include "encoder.h"\n' + "".join(
        f"#ifndef {guard}\n#define {guard}\nint in_{guard};\n#endif\n" for guard in GUARDS))
    seen = run("gcc", "-E", "-P", "use.c", cwd=tmp_path)
    assert [guard for guard in GUARDS if f"int in_{guard};" not in seen] == []
    defined = re.findall(r"^#define (\w+)", (tmp_path / "encoder.h").read_text(), re.M)
    assert defined == ["MHAGEN_HEADER_encoder", *(f"ENCODER_{name}" for name in MACROS.split())]
    own = [guard for path in (ROOT / "templates").glob("*.h.in")  # those of models and of linked weights too
           for guard in re.findall(r"(?m)^#ifndef (\S+)\n#define \1$", path.read_text())]
    assert len(own) == 4 and all(re.fullmatch(r"MHAGEN_HEADER_\$\{(name|symbol)\}", guard) for guard in own)


# ---- machine code ----

def spills(path, isa):
    """{function: stack references of vector registers in its FMA loops}, the number of loops, and
    the references in straight-line code between FMAs."""
    objdump = f"{cross_prefix(isa)}objdump"
    need(objdump)
    found, loops, straight = {}, 0, 0
    for function in disassemble(objdump, path):
        frame = function.frame
        straight += sum(i.uses_stack(frame) for i in function.between_fmas())
        for loop in function.fma_loops():
            loops += 1
            count = sum(i.uses_stack(frame) for i in loop)
            if count:
                found[function.name] = found.get(function.name, 0) + count
    return found, loops, straight


@slow
@pytest.mark.parametrize("shape, config, isa, compiler", [
    (shape, config, isa, compiler) for shape, config in in_turn(SUITE, "suite", count=len(SUITE) // 3)
    for isa in ["avx512", *in_turn(["avx2", "neon"], shape)] for compiler in in_turn(RECENT_COMPILERS, shape, isa)
    if isa == "avx512" or shape in ("micro", "odd", "kwt1", "deit_ti", "minilm", "gpt2_1024")])
def test_suite(shape, config, isa, compiler, tmp_path):
    """No spills in FMA loops, at most 96 KB of text; times are only reported (-rP shows them)."""
    command = compiler_for(isa, compiler)
    start = cpu_time()
    source = generate(tmp_path, config, isa)
    generated = cpu_time()
    run(*command, "-std=c11", "-O2", "-c", source, "-o", tmp_path / "k.o")
    compiled = cpu_time()
    text = int(run("size", tmp_path / "k.o").splitlines()[1].split()[0])
    found, loops, straight = spills(tmp_path / "k.o", isa)
    # But the first tile, whose sums begin with one constant, which gcc copies about.
    found = {name: count for name, count in found.items()
             if not ("_scores_first" in name and count <= 2)}
    print(f"{shape:14} {isa:7} {compiler:9} generated {generated - start:.2f} s, "
          f"compiled {compiled - generated:.1f} s, text {text / 1024:.0f} KB, {loops} FMA loops, "
          f"{sum(found.values())} spills in them, {straight} elsewhere between FMAs")
    assert loops > 0 or shape == "micro"
    assert not found
    assert text <= 96 * 1024
    assert generated - start < 5 and compiled - generated < 60  # ten times what is usual, against hangs alone


@slow
@pytest.mark.parametrize("shape, config, dtype", [
    (shape, config, dtype) for shape, config in in_turn(SUITE, "tiles", count=len(SUITE) // 2)
    for dtype in in_turn(["bf16", "int8"], shape)])
def test_suite_of_tiles(shape, config, dtype, tmp_path):
    """At most 88 KB of machine code. Nothing but tiles multiplies where a product has their rows."""
    source = generate(tmp_path, f"{config} dtype={dtype}", "amx")
    for compiler in in_turn(RECENT_COMPILERS, shape, "amx"):
        start = cpu_time()
        run(*compiler_for("amx", compiler), "-std=c11", "-O2", "-c", source, "-o", tmp_path / "k.o")
        print(f"{shape:14} {compiler:9} compiled {cpu_time() - start:.1f} s")
        assert int(run("size", tmp_path / "k.o").splitlines()[1].split()[0]) <= 88 * 1024
    explained = explain(*config.split(), f"dtype={dtype}", "isa=amx")
    rows = min(32, int(re.search(r"seq=(\d+)", config)[1]))
    assert re.search(f" scores {rows}x(16|32) ", explained) and "no tiles in attention" not in explained


def test_fma_loops_are_found(tmp_path):
    """The counting itself: a loop that must spill, and one that need not."""
    source = tmp_path / "k.c"
    for accumulators, expected in (8, False), (40, True):
        names = [f"a{i}" for i in range(accumulators)]
        source.write_text(
            "#include <immintrin.h>\n#pragma GCC target(\"avx2,fma\")\n"
            "void f(const float *x, float *y) {\n" +
            "".join(f"__m256 {a} = _mm256_loadu_ps(y + {8 * i});\n" for i, a in enumerate(names)) +
            "for (int k = 0; k < 100; k++, x += 8) {\n__m256 b = _mm256_loadu_ps(x);\n" +
            "".join(f"{a} = _mm256_fmadd_ps({a}, b, b);\n" for a in names) + "}\n" +
            "".join(f"_mm256_storeu_ps(y + {8 * i}, {a});\n" for i, a in enumerate(names)) + "}\n")
        run(*compiler_for("avx2", "gcc"), "-O2", "-c", source, "-o", tmp_path / "k.o")
        found, loops, _ = spills(tmp_path / "k.o", "avx2")
        assert loops == 1 and bool(found) == expected


# ---- other callers ----

SCHEDULERS = {"openmp": ["gcc", "-std=c11", "-fopenmp", ROOT / "tests/kernels/scheduler_openmp.c"],
              "tbb": ["g++", "-std=c++17", ROOT / "tests/kernels/scheduler_tbb.cpp"]}
LIBRARIES = {"openmp": ["-fopenmp"], "tbb": ["-ltbb", "-pthread"]}
if not Path("/usr/include/tbb/parallel_for.h").exists():
    del SCHEDULERS["tbb"]


@pytest.fixture(scope="module")
def schedulers(tmp_path_factory):
    """The objects of all schedulers, for the kernels of all ISAs."""
    def compiled(out):
        for name, compiler in SCHEDULERS.items():
            run(*compiler, "-O2", *WARNINGS, "-I", ROOT / "runtime", "-c", "-o", out / f"{name}.o")
    return shared(tmp_path_factory, "schedulers", compiled)


@pytest.mark.parametrize("config", [COVER[1], COVER[3], COVER[8], SUITE[2][1], f"{SUITE[2][1]} dtype=bf16"],
                         ids=["small", "probs", "masks", "odd", "bf16"])
def test_foreign_schedulers(config, schedulers, tmp_path):
    """OpenMP and, where it is installed, oneTBB run the tasks in a random order. A config is of two ISAs in turn."""
    for isa in in_turn(list(filter(runs, ISAS)), "schedulers", config, count=2):
        source = generate(tmp_path, config, isa)
        run(*compiler_for(isa, "gcc"), *emulation(isa), "-std=c11", "-O1", *WARNINGS, "-I", tmp_path,
            '-DHEADER="kernel.h"', "-DKERNEL=kernel_kernel", "-r", "-nostdlib",
            ROOT / "tests/kernels/schedulers_test.c", source, tmp_path / "mhagen.c", "-o", tmp_path / "kernel.o")
        for name in SCHEDULERS:
            run("g++", tmp_path / "kernel.o", schedulers / f"{name}.o", *LIBRARIES[name], "-o", tmp_path / name)
            output = run(tmp_path / name)
            assert re.match("same bits|skipped", output), (name, output)
    if "tbb" not in SCHEDULERS:
        pytest.skip("same bits under OpenMP; libtbb-dev is not installed")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_fast_math_is_refused(compiler, tmp_path):
    """It would change results without a word."""
    need(compiler)
    source = generate(tmp_path, COVER[1], "scalar")
    result = subprocess.run([compiler, "-std=c11", "-O2", "-ffast-math", "-c", source, "-o", tmp_path / "k.o"],
                            text=True, capture_output=True)
    assert result.returncode and "without -ffast-math" in result.stderr


@pytest.mark.parametrize("line, found", [
    ("static int calls; int *at(void) { return &calls; }", ["calls (.bss)", "at (.text)"]),
    ("static int calls = 1; static int *at(void) { return &calls; }\nint *(*const k_run)(void) = at;",
     ["calls (.data)"]),
    ("static _Thread_local int calls; int k_run(void) { return calls++; }",
     ["__tls_get_addr (*UND*)", "calls (.tbss)"]),
    ("float expf(float); float k_run(float x) { return expf(x); }", ["expf (*UND*)"]),
    ("static const float table[] = { 1, 2 }; const float *k_run(int i) { return table + i; }", [])])
def test_hidden_things_are_found(line, found, tmp_path):
    source = tmp_path / "k.c"
    source.write_text(line + "\n")
    run("gcc", "-O1", "-fPIC", "-c", source, "-o", tmp_path / "k.o")
    assert sorted(hidden(tmp_path / "k.o", "k", "scalar")) == sorted(found)


def test_what_a_distribution_adds_is_not_hidden(tmp_path):
    """Ubuntu's gcc protects the stack by default, that of tile registers' settings too."""
    source = tmp_path / "k.c"
    source.write_text("void mhagen_pack(char *); void k_run(void) { char x[64]; mhagen_pack(x); }\n")
    run("gcc", "-O2", "-fstack-protector-strong", "-D_FORTIFY_SOURCE=3", "-c", source, "-o",
        tmp_path / "k.o")
    assert "__stack_chk_fail" in run("nm", tmp_path / "k.o") and hidden(tmp_path / "k.o", "k", "scalar") == []


@slow
def test_many_kernels_link_together(tmp_path):
    """All globals start with the kernel's name, so one program holds any number of them. (What is hidden in kernels of
    all kinds, fuzz.py asks of each.)"""
    configs = {f"kernel{i}_{isa}": (config, isa) for isa in NATIVE
               for i, config in enumerate(in_turn(COVER[:9], "together", isa, count=2))}
    generate_many(tmp_path, {name: f"{config} isa={isa}" for name, (config, isa) in configs.items()})
    header, objects = ["-include", tmp_path / "intrinsics.h"] if NATIVE[1:] else [], []
    if header:  # without, most of the time is theirs
        header[1].write_text("#include <immintrin.h>\n")
        run("gcc", "-O0", "-x", "c-header", header[1], "-o", f"{header[1]}.gch")
    for name, (_, isa) in configs.items():
        objects.append(tmp_path / f"{name}.o")
        run(*compiler_for(isa, "gcc"), "-O0", *header, "-c", tmp_path / f"{name}.c", "-o", objects[-1])
        assert not hidden(objects[-1], name, isa)
    main = tmp_path / "main.c"
    main.write_text("int main(void) { return 0; }\n")
    run("gcc", main, *objects, tmp_path / "mhagen.c", "-o", tmp_path / "main", "-pthread")


@pytest.mark.parametrize("isa, compiler", [
    (isa, compiler) for isa in ISAS for compiler in in_turn(RECENT_COMPILERS, "stack", isa)])
def test_stack(isa, compiler, tmp_path):
    source = generate(tmp_path, STRAIGHT, isa)
    compile_within_stack(compiler_for(isa, compiler), source, "-std=c11", "-O2", *WARNINGS)


@pytest.mark.long
@slow
def test_stack_of_straight_code(tmp_path):
    """gcc keeps every broadcast for the next group of queries."""
    source = generate(tmp_path, "h=1 d_model=8 dk=4 seq=64 unroll=full", "avx2")
    compile_within_stack(compiler_for("avx2", "gcc"), source, "-std=c11", "-O2")
