"""`gen --single`: a kernel and its runtime in one source and one header."""
import re

import pytest

from tools import COMPILERS, COVER, ISAS, MHAGEN, WARNINGS, compiler_for, cross_prefix, in_turn, need, run, runner_for

SHAPE = "h=2 d_model=12 dk=5 seq=9"
MEMBERS = {"x86_64": "x86+avx512_bf16+amx", "aarch64": "neon+neon_fp16+neon_i8mm"}

# Packs and runs each kernel by the functions of the first one's runtime, and prints the bits of a sum.
USE = """#include <stdio.h>
%(includes)s
static _Alignas(MHAGEN_ALIGN) char packed[1 << 16], workspace[1 << 16];
static int use(const mhagen_kernel *kernel, int threads) {
  static float w[480], x[9 * 12], y[9 * 12];
  for (int i = 0; i < 480; i++) w[i] = (float)(i * 37 %% 101 - 50) / 100;
  for (int i = 0; i < 108; i++) x[i] = (float)(i * 53 %% 103 - 51) / 50;
  const mhagen_weights weights = {.wq = w, .wk = w + 120, .wv = w + 240, .wo = w + 360};
  const mhagen_args args = {.q = x, .y = y, .packed = packed, .workspace = workspace};
  if (kernel->packed_bytes > sizeof packed || kernel->workspace_bytes > sizeof workspace) return 1;
  mhagen_pool *pool = mhagen_pool_create(threads);
  mhagen_status status = kernel->pack(&weights, packed);
  if (status == MHAGEN_OK) status = mhagen_run_parallel(kernel, &args, pool);
  mhagen_pool_destroy(pool);
  double sum = 0;
  for (int i = 0; i < 108; i++) sum += (i + 1) * (double)y[i];
  printf("%%s %%a %%s\\n", mhagen_status_text(status), sum, mhagen_kernel_of(kernel)->isa);
  return status != MHAGEN_OK;
}
int main(void) { return %(calls)s; }
"""


def single(out, config, isa, name, *options):
    told = run(MHAGEN, "gen", *config.split(), f"isa={isa}", f"name={name}", "--single", *options, "-o", out)
    assert re.search(rf"^  compile .* -c \S*{name}\.c$", told, re.M)
    return out / f"{name}.c"


def program(out, kernels, sources):
    (out / "main.c").write_text(USE % {"includes": "\n".join(f'#include "{name}.h"' for name in kernels),
                                       "calls": " | ".join(f"use(&{name}_kernel, 2)" for name in kernels)})
    run("gcc", "-O1", *WARNINGS, "main.c", *sources, "-o", "main", "-pthread", cwd=out)
    return run(out / "main").splitlines()


def test_two_files_and_the_same_bits(tmp_path):
    """Two of them, and a kernel with the runtime's own files, in one program."""
    for name, isa in ("one", "scalar"), ("two", "scalar"):
        single(tmp_path, SHAPE, isa, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.c", "one.h", "two.c", "two.h"]
    alone = program(tmp_path, ["one", "two"], ["one.c", "two.c"])
    run(MHAGEN, "gen", *SHAPE.split(), "isa=scalar", "name=plain", "-o", tmp_path)
    for first in ["one", "two", "plain"], ["plain", "two", "one"]:
        together = program(tmp_path, first, ["one.c", "two.c", "plain.c", "mhagen.c"])
        assert len(set(alone + together)) == 1 and together[0].startswith("done ")


def test_one_translation_unit(tmp_path):
    """As CMAKE_UNITY_BUILD makes it: kernels of several ISAs and types, a bundle, a ladder and the runtime, in any
    order, with the bits that files of their own give."""
    widest = run(MHAGEN, "isas", "--widest").strip()
    configs = dict(one="isa=scalar", two=f"isa={widest}", three="isa=scalar dtype=int8",
                   many="isa=arm" if "neon" in widest else "isa=x86",
                   rungs="isa=scalar seq_kv=9,16 attention=cross kv_len=true",
                   cached="isa=scalar cache=fixed attention=cross")
    for name, config in configs.items():
        run(MHAGEN, "gen", *SHAPE.split(), *config.split(), f"name={name}", "--selftest", "-o", tmp_path)
    sources = sorted(path.name for path in tmp_path.glob("*.c"))
    order, = in_turn([sources, sources[::-1]], "order")
    (tmp_path / "unity.c").write_text("".join(f'#include "{name}"\n' for name in order))
    for compiler in in_turn(COMPILERS, "unity"):  # at -O0 gcc's intrinsics are macros that convert without a cast
        run(compiler, "-std=c11", "-O0", *WARNINGS, "-Wno-conversion", "-Wno-sign-conversion", "-c", "unity.c",
            cwd=tmp_path)
    kernels = ["one", "two", "three", "many"]
    assert program(tmp_path, kernels, ["unity.o"]) == program(tmp_path, kernels, sources)


def test_all_symbols_have_the_name(tmp_path):
    source = single(tmp_path, SHAPE, "scalar", "one")
    run("gcc", "-O1", "-c", source, "-o", tmp_path / "one.o")
    names = re.findall(r" [A-TV-Z] (\w+)$", run("nm", tmp_path / "one.o"), re.M)
    assert "one_mhagen_run_parallel" in names and all(name.startswith("one_") for name in names), names


def test_the_command_in_the_file_makes_the_file(tmp_path):
    source = single(tmp_path / "a", SHAPE + " seq_kv=9,12 kv_len=true attention=cross", "x86", "one")
    command = re.search(r"mhagen (gen .*)", source.read_text())[1].split()
    run(MHAGEN, *command, "-o", tmp_path / "b")
    for end in "ch":
        assert (tmp_path / f"a/one.{end}").read_bytes() == (tmp_path / f"b/one.{end}").read_bytes()


@pytest.mark.parametrize("machine", MEMBERS)
def test_bundles_compile(machine, tmp_path):
    """Every member in one file, without a warning: those of a ladder, and some number types in turn."""
    isa = MEMBERS[machine]
    last = isa.split("+")[-1]
    single(tmp_path, SHAPE.replace("seq=9", "seq=4,9 q_len=true kv_len=true"), isa, "ladder")
    names = ["ladder"]
    for i, more in enumerate(in_turn(["dtype=bf16", "dtype=f16", "dtype=int8", "weight_dtype=int4"], machine)):
        single(tmp_path, f"{SHAPE} {more} cache=append seq_kv=20", isa, f"small{i}")
        names.append(f"small{i}")
    for name in names:
        compiler = in_turn(COMPILERS, "single", machine, name)[0]
        run(*compiler_for(last, compiler), "-std=c99", "-O1", *WARNINGS, "-c", f"{name}.c", cwd=tmp_path)


def test_configs_compile(tmp_path):
    """No name of a kernel is one of the runtime's."""
    for i, config in enumerate(in_turn(COVER, "single", count=6)):
        isa = in_turn(ISAS, "single", config)[0]
        single(tmp_path, config, isa, f"k{i}")
        run(*compiler_for(isa, "gcc"), "-O1", *WARNINGS, "-S", f"k{i}.c", cwd=tmp_path)


def test_bundle_runs(tmp_path):
    """A bundle chooses as it does in files of its own."""
    isa = "x86" if not cross_prefix("avx2") else "neon"
    single(tmp_path, SHAPE, isa, "one")
    run(MHAGEN, "gen", *SHAPE.split(), f"isa={isa}", "name=plain", "-o", tmp_path)
    others = sorted(path.name for path in tmp_path.glob("*.c") if path.name not in ("one.c", "main.c"))
    told = program(tmp_path, ["one", "plain"], ["one.c", *others])
    assert told[0] == told[1] and told[0].startswith("done ")


def test_header_is_cpp(tmp_path):
    need("g++")
    single(tmp_path, SHAPE, "scalar", "one", "--cxx")
    (tmp_path / "use.cpp").write_text('#include "one.h"\n#include "mhagen.hpp"\n'
                                      "int main() { return mhagen::attention::make(one_kernel, {}) ? 1 : 0; }\n")
    run("g++", "-std=c++17", *WARNINGS, "-c", "use.cpp", "-o", "use.o", cwd=tmp_path)
    run("gcc", "-O1", "-c", "one.c", "-o", "one.o", cwd=tmp_path)
    run("g++", "use.o", "one.o", "-o", "use", "-pthread", cwd=tmp_path)
    run(*runner_for("scalar"), tmp_path / "use")
