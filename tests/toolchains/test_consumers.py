"""examples/use: kernels in programs of other build systems and languages; and what `ninja install` installs.

Each is built and run as its user would, with the generator of this build.
"""
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys

import pytest

from tools import CXX_COMPILERS, MHAGEN, ROOT, WARNINGS, in_turn, installed, native, need, run, schema

pytestmark = pytest.mark.slow
USE = ROOT / "examples/use"
INSTALL = ["sh", ROOT / "scripts/install-mhagen.sh"]  # what `ninja install` runs
MOST_LINES = 72  # of what a user writes to get at a kernel


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """In which mhagen is a command, without what another project has set."""
    bin = tmp_path_factory.mktemp("bin")
    (bin / "mhagen").symlink_to(MHAGEN)
    (bin / "python").symlink_to(sys.executable)
    kept = {key: value for key, value in os.environ.items() if key not in ("CC", "CFLAGS", "MHAGEN", "DESTDIR")}
    return {**kept, "PATH": f"{bin}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}


class Copies:
    """Copies of the examples, each alone in a folder of its own, as users take them."""

    def __init__(self, here):
        self.here = here

    def __truediv__(self, name):
        folder = self.here / "copies" / name / "alone"
        if not folder.exists():
            shutil.copytree(USE / name, folder)
        return folder


@pytest.fixture
def use(tmp_path):
    return Copies(tmp_path)


@pytest.fixture(scope="session")
def prefix(tmp_path_factory, environment):
    """Where mhagen is installed."""
    prefix = tmp_path_factory.mktemp("prefix") / "usr"
    run(*INSTALL, env={**environment, "PREFIX": str(prefix)})
    return prefix


def glue_of(folder):
    """Lines that a user writes to get at a kernel: no comments, and no program that only calls what the others
    offer."""
    files = [path for path in folder.rglob("*") if path.is_file() and "main." not in path.name
             and path.suffix in ("", ".txt", ".build", ".toml", ".rs", ".py")]
    text = "\n".join(path.read_text() for path in files)
    text = re.sub(r'^ *"""(?!\n).*?"""$', "", text, flags=re.S | re.M)
    if (folder / "flat.c").exists():
        text += re.sub(r"/\*.*?\*/", "", (folder / "flat.c").read_text(), flags=re.S)
    return sum(bool(re.match(r"\s*(?!//|#(?!\[|!|include))\S", line)) for line in text.splitlines())


def test_lines_of_glue():
    rows = re.findall(r"^\| \[.*?\]\(\.\./examples/use/(\w+)\) \|.*\| (\d+) \|$",
                      (ROOT / "docs/integrate.md").read_text(), re.M)
    assert len(rows) == 8
    glue = {name: glue_of(USE / name) for name, _ in rows}
    assert glue == {name: int(lines) for name, lines in rows} and max(glue.values()) <= MOST_LINES


def test_each_example_is_alone():
    """No file of one names another folder, and what two have is the same."""
    for path in USE.rglob("*"):
        assert path.is_dir() or "../" not in path.read_text(), path
    for name, original in ("quickstart.c", ROOT / "examples/quickstart.c"), ("flat.c", USE / "rust/flat.c"):
        copies = list(USE.rglob(name))
        assert len(copies) == {"quickstart.c": 3, "flat.c": 2}[name]
        assert {path.read_text() for path in copies} == {original.read_text()}


# ---- build systems: the program of docs/integrate.md ----

def quickstart_works(program):
    assert re.fullmatch(r"minilm: done, y = (-?\d\.\d{6} ){3}\.\.\.\n", run(program, "2"))


def test_make(use, environment):
    folder = use / "make"
    run("make", "-j2", cwd=folder, env=environment)
    quickstart_works(folder / "quickstart")
    run("make", "-q", cwd=folder, env=environment)
    assert (folder / "minilm_scalar.o").exists()  # it is a bundle
    (folder / "Makefile").write_text((folder / "Makefile").read_text().replace("seq=128", "seq=101"))
    assert "seq=101" in run("make", "-n", cwd=folder, env=environment)


def test_meson(use, environment):
    need("meson")
    folder = use / "meson"
    run("meson", "setup", "build", cwd=folder, env=environment)
    run("ninja", "-C", "build", cwd=folder, env=environment)
    quickstart_works(folder / "build/quickstart")
    assert (folder / "build/minilm_scalar.c").exists()
    assert "no work to do" in run("ninja", "-C", "build", cwd=folder, env=environment)


SHAPE = "h=12 d_model=384 dk=32"


def cmake_builds(folder, environment, *options):
    need("cmake")
    run("cmake", "-S", folder, "-B", folder / "build", *options, env=environment)
    return run("cmake", "--build", folder / "build", "-j2", env=environment)


def test_cmake_of_sources(use, environment):
    """FetchContent takes the sources, builds the generator, and writes nothing into them."""
    folder = use / "cmake"
    output = cmake_builds(folder, environment, "-DCMAKE_DISABLE_FIND_PACKAGE_mhagen=TRUE", "-G", "Ninja",
                          f"-DMHAGEN_SOURCE={ROOT}",
                          f"-DISA={'avx2' if native('avx2') else 'neon'}")
    assert "Building the generator" in output and "Generating minilm" in output
    quickstart_works(folder / "build/quickstart")
    assert "Generating" not in run("cmake", "--build", folder / "build", env=environment)
    links = [path for path in folder.rglob("tree/*") if path.is_symlink()]
    assert len(links) > 5 and all(path.resolve().parent == ROOT for path in links)


def test_cmake_of_package(use, environment, prefix):
    """find_package finds what is installed; a key that changes, and a CONFIG.lua, make the kernel anew. It is a
    bundle, whose members CMake knows as the schema does."""
    (groups,) = [row["groups"] for row in schema() if row["key"] == "isa"]
    for name, isas in groups:
        members = isas.replace("+", ";")
        assert f'REPLACE "^{name}$" "{members}"' in (ROOT / "cmake/mhagen-config.cmake").read_text()
    folder = use / "cmake"
    text = (folder / "CMakeLists.txt").read_text()
    (folder / "CMakeLists.txt").write_text(text.replace(SHAPE, "layer.lua d_model=16 dk=8 unroll=tile"))
    (folder / "layer.lua").write_text("return { h = 2 }\n")
    output = cmake_builds(folder, environment, f"-DCMAKE_PREFIX_PATH={prefix}", "-G", "Unix Makefiles",
                          "-DCMAKE_C_FLAGS_RELEASE=-O1", *([] if native("avx2") else ["-DISA=arm"]))
    assert "Building the generator" not in output
    quickstart_works(folder / "build/quickstart")

    def again():
        return "Generating minilm" in run("cmake", "--build", folder / "build", "-t", "minilm", env=environment)

    assert not again()
    (folder / "layer.lua").write_text("return { h = 1 }\n")
    assert again() and " h=1 " in (folder / "build/mhagen/minilm/minilm.h").read_text()
    (folder / "CMakeLists.txt").write_text(text.replace(SHAPE, "h=1 d_model=16 dk=16 unroll=tile"))
    assert again() and "dk=16" in (folder / "build/mhagen/minilm/minilm.h").read_text() and not again()


SEVERAL = r"""
cmake_minimum_required(VERSION 3.20)
project(several C)
find_package(mhagen REQUIRED)
mhagen_kernel(rows name=by_rows h=1 d_model=8 dk=8 seq=2,4 q_len=true kv_len=true isa=ISAS)
mhagen_kernel(keys h=1 d_model=8 dk=8 attention=cross seq=2 seq_kv=3,5,6 kv_len=true isa=scalar)
add_executable(program main.c)
target_link_libraries(program PRIVATE rows keys)
"""
SEVERAL_MAIN = r"""
#include <stdio.h>
#include "by_rows.h"
#include "keys.h"
int main(void) {
  const int length = 1;
  const mhagen_args args = {.kv_len = &length, .q_len = &length};
  printf("%s %s", mhagen_kernel_at(&by_rows_kernel, &args)->name, mhagen_kernel_at(&keys_kernel, &args)->name);
  return !by_rows_supported() || !keys_supported();
}
"""


def test_cmake_of_several(environment, prefix, tmp_path):
    """CMake knows the files of a bundle of ladders, and of lengths of keys."""
    isas = "x86+avx512_bf16+avx2" if native("avx2") else "arm+scalar"
    members = ["scalar", "avx2", "avx512", "avx512_bf16"] if native("avx2") else ["scalar", "neon"]
    (tmp_path / "CMakeLists.txt").write_text(SEVERAL.replace("ISAS", isas))
    (tmp_path / "main.c").write_text(SEVERAL_MAIN)
    cmake_builds(tmp_path, environment, f"-DCMAKE_PREFIX_PATH={prefix}", "-G", "Unix Makefiles")
    rows, keys = run(tmp_path / "build/program").split()
    assert rows in [f"by_rows_{isa}_s2" for isa in members] and keys == "keys_t3"
    sources = {path.name for path in (tmp_path / "build/mhagen").rglob("*.c")} - {"mhagen.c"}
    assert len(sources) == 1 + len(members) * 3 + 1 + 3


# ---- languages: a layer of four heads ----

D, SEQ, HEADS = 32, 16, 4
BUNDLE = "x86" if native("avx2") else "scalar+neon"


def numbers(count, seed):
    """What the examples take for weights and inputs."""
    list_ = []
    for _ in range(count):
        seed = (seed * 1664525 + 1013904223) % 2 ** 32
        list_.append((seed >> 8) / 2 ** 23 - 1)
    return list_


def product(a, b, columns):
    """Rows of a times the matrix b, by Python's floats."""
    return [[sum(x * b[k * columns + j] for k, x in enumerate(row)) for j in range(columns)] for row in a]


def layer():
    """y by the formula at the head of README."""
    x = numbers(SEQ * D, 5)
    x = [x[r * D:][:D] for r in range(SEQ)]
    q, k, v = (product(x, numbers(D * D, seed), D) for seed in (1, 2, 3))
    heads = [[] for _ in range(SEQ)]
    for at in range(0, D, D // HEADS):
        part = slice(at, at + D // HEADS)
        for row, result in zip(q, heads):
            scores = [sum(map(lambda a, b: a * b, row[part], key[part])) / math.sqrt(D // HEADS) for key in k]
            weights = [math.exp(score - max(scores)) for score in scores]
            result += [sum(w * value[j] for w, value in zip(weights, v)) / sum(weights)
                       for j in range(part.start, part.stop)]
    return [value for row in product(heads, numbers(D * D, 4), D) for value in row]


def layer_works(output):
    got, ref = [float(line) for line in output.split()], layer()
    assert len(got) == len(ref)
    norm = math.sqrt(sum(y * y for y in ref))
    assert math.sqrt(sum((a - b) ** 2 for a, b in zip(got, ref))) < 2e-6 * norm


def commands_of(path):
    """The commands that the comment at the head of a file says."""
    return "\n".join(line[5:] for line in path.read_text().splitlines() if line.startswith("//   "))


def test_cxx(use, environment):
    folder = use / "cxx"
    layer_works(run("sh", "-eu", "-c", commands_of(folder / "main.cpp").replace("-o .", "-o . --quiet"),
                    cwd=folder, env=environment))
    for flags in ["-std=c++17"], ["-std=c++20", "-fno-exceptions", "-fno-rtti"]:
        for compiler in in_turn([name for name in CXX_COMPILERS if shutil.which(name)], flags):
            run(compiler, *flags, *WARNINGS, "-Wsign-conversion", "main.cpp", "layer.o", "mhagen.o", "-pthread",
                "-o", "layer", cwd=folder)
            layer_works(run(folder / "layer"))


BERT = "bert", "encoder.layer.{}.attention.", ["self.query", "self.key", "self.value", "output.dense"]
LLAMA = "llama", "model.layers.{}.self_attn.", ["q_proj", "k_proj", "v_proj", "o_proj"]


def write_model(folder, kind, prefix, parts):
    """A model with the layer above twice."""
    weights = {f"{prefix.format(i)}{name}.weight": numbers(D * D, seed) for i in (0, 1)
               for seed, name in enumerate(parts, 1)}
    size, header, data = 4 * D * D, {}, b""
    for name, matrix in weights.items():
        header[name] = dict(dtype="F32", shape=[D, D], data_offsets=[len(data), len(data) + size])
        data += struct.pack(f"<{D * D}f", *[matrix[i + D * j] for i in range(D) for j in range(D)])
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(dict(model_type=kind, hidden_size=D, num_attention_heads=HEADS,
                                                        num_hidden_layers=2)))


def test_model(use, environment, tmp_path):
    """All layers of a model, with the packed weights that this CPU takes."""
    folder = use / "model"
    write_model(folder / "bert", *BERT)
    commands = commands_of(folder / "main.cpp").replace("MODEL", "bert").replace("x86", BUNDLE)

    def layers_work(output):
        parts = output.split("# encoder.layer.")[1:]
        assert [part.splitlines()[0] for part in parts] == [
            f"{i}.attention, {run(MHAGEN, 'isas', '--widest').strip()}" for i in (0, 1)]
        for part in parts:
            layer_works(part.split("\n", 1)[1])

    layers_work(run("sh", "-eu", "-c", commands.replace("--cxx", "--cxx --quiet"), cwd=folder, env=environment))
    run("g++", "-std=c++20", "-fno-exceptions", "-fno-rtti", "-fsanitize=address,undefined", *WARNINGS,
        "-Wsign-conversion", "-I", folder / "out", "main.cpp", *folder.glob("*.o"), "-o", "checked", cwd=folder)
    layers_work(run(folder / "checked", folder / "out"))

    (name,) = [path.name for path in (folder / "out").glob("*.packed") if path.name.endswith(
        run(MHAGEN, "isas", "--widest").strip() + ".packed")]
    whole, wrong = (folder / "out" / name).read_bytes(), folder / "wrong"
    wrong.mkdir()
    for data in None, b"", whole[:100], whole[:-64], whole + bytes(64), whole[:200] + b"?" + whole[201:]:
        if data is not None:
            (wrong / name).write_bytes(data)
        result = subprocess.run([folder / "checked", wrong], text=True, capture_output=True)
        told = f"{name}: packed weights are another kernel's, damaged, or none\n"
        assert (result.returncode, result.stderr) == (1, told)
    (wrong / name).unlink()
    (wrong / name).mkdir()
    assert subprocess.run([folder / "checked", wrong], capture_output=True).returncode == 1


def test_model_with_tables(use, environment):
    """Layers that share tables of rope give what layers with their own do. A file of other tables is refused."""
    folder, told = use / "model", {}
    write_model(folder / "llama", *LLAMA)
    for tables in "packed", "apart":
        commands = commands_of(folder / "main.cpp").replace("MODEL", "llama").replace("x86", "scalar").replace(
            " -o out", f" rope_tables={tables} --quiet -o out")
        told[tables] = run("sh", "-eu", "-c", f"rm -rf out *.o; {commands}", cwd=folder, env=environment)
    assert told["packed"] == told["apart"] and told["apart"].count("# layers.") == 2
    (file,), (packed,) = (folder / "out").glob("*.tables"), (folder / "out").glob("*.packed")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    result = subprocess.run([folder / "model", folder / "out"], text=True, capture_output=True)
    assert result.stderr == f"{file.name}: packed weights are another kernel's, damaged, or none\n"
    shutil.copy(packed, file)  # a file of this kernel, but not of its tables
    result = subprocess.run([folder / "model", folder / "out"], text=True, capture_output=True)
    assert result.stderr == "layers.0.self_attn: packed weights are another kernel's, damaged, or none\n"


def test_decoder(use, environment):
    """A prompt and steps of each layer, with tables of rope in the layers, and apart."""
    folder, told = use / "decoder", []
    write_model(folder / "llama", *LLAMA)
    for tables in "packed", "apart":
        commands = commands_of(folder / "main.c").replace("MODEL", "llama").replace("isa=native", "isa=scalar").replace(
            " -o out", f" rope_tables={tables} --quiet -o out", 1)
        output = run("sh", "-eu", "-c", f"rm -rf out; {commands}", cwd=folder, env=environment)
        assert re.search(r"^all layers: .* steps differ by [\d.e-]+$", output, re.M)
        told.append(output.splitlines()[:-1])
    assert told[0] == told[1] and len(told[0]) == 2
    run("cc", "-c", "-Iout", *(folder / "out").glob("*.S"), cwd=folder)
    run("cc", "-std=c11", "-fsanitize=address,undefined", *WARNINGS, "-Iout", "main.c", *(folder / "out").glob("*.c"),
        *folder.glob("*.o"), "-lm", "-o", "checked", cwd=folder)
    assert run(folder / "checked").splitlines()[:-1] == told[1]


CXX_TABLES = r"""
#include "layer.h"
#include "mhagen.hpp"
#include <vector>
int main() {
  const std::vector<float> w(LAYER_D_MODEL * LAYER_D_MODEL, 0.25f), x(LAYER_SEQ * LAYER_D_MODEL, 1.0f);
  std::vector<float> y(x.size()), other(x.size()), third(x.size());
  mhagen_weights weights{};
  weights.wq = weights.wk = weights.wv = weights.wo = w.data();
  mhagen::attention one(layer_kernel, weights), two(layer_kernel, weights, one.tables());
  auto copy = two.copy();
  one.run(x, y), two.run(x, other), copy.value().run(x, third);
  return !one.tables() || one.tables() != two.tables() || y != other || y != third;
}
"""


def test_cxx_tables(tmp_path):
    """Layers share tables of rope, also after one has ended."""
    run(MHAGEN, "gen", "h=2", "d_model=8", "dk=4", "seq=3", "isa=scalar", "rope=half", "rope_tables=apart",
        "name=layer", "--cxx", "-o", tmp_path)
    (tmp_path / "test.cpp").write_text(CXX_TABLES)
    run("gcc", "-O1", "-c", "layer.c", "mhagen.c", cwd=tmp_path)
    run("g++", "-std=c++17", "-fsanitize=address,undefined", *WARNINGS, "test.cpp", "layer.o", "mhagen.o", "-pthread",
        "-o", "test", cwd=tmp_path)
    run(tmp_path / "test")


CXX_MISTAKES = r"""
#include <array>
#include <cstring>
#include <vector>
#include "half.h"
#include "layer.h"
#include "mhagen.hpp"
int main() {
  const std::vector<float> w(LAYER_D_MODEL * LAYER_D_MODEL), x(LAYER_SEQ * LAYER_D_MODEL - 1);
  std::array<float, LAYER_SEQ * LAYER_D_MODEL> y;
  mhagen_weights weights{};
  auto none = mhagen::attention::make(layer_kernel, weights);
  if (none || none.status() != MHAGEN_ERR_NULL) return 1;
  try {
    mhagen::attention unmade(layer_kernel, weights);
    return 2;
  } catch (const mhagen::error &e) {
    if (e.status() != MHAGEN_ERR_NULL || std::strcmp(e.what(), mhagen_status_text(e.status()))) return 3;
  }
  weights.wq = weights.wk = weights.wv = weights.wo = w.data();
  mhagen::attention layer(layer_kernel, weights);
  if (layer.try_run(x, y) != MHAGEN_ERR_LENGTH) return 4;
  auto copy = layer.copy();
  mhagen::attention moved = std::move(layer);
  const std::vector<float> whole(moved.q_size());
  if (!copy || copy.value().try_run(whole, y) || moved.try_run(whole, y)) return 5;
  const std::vector<std::uint16_t> half(moved.q_size(), 0x3C00); /* ones */
  std::array<std::uint16_t, LAYER_SEQ * LAYER_D_MODEL> small;
  if (moved.try_run(half, small) != MHAGEN_ERR_LENGTH) return 6;
  mhagen::attention halves(half_kernel, weights);
  halves.run(half, small);
  if (halves.try_run(whole, y) != MHAGEN_ERR_LENGTH || small[0] != 0) return 7;
  static_assert(!std::is_constructible_v<mhagen::view<float>, const std::vector<float> &>);
  static_assert(!std::is_constructible_v<mhagen::view<float>, std::vector<double> &>);
  return 0;
}
"""


def test_cxx_mistakes(tmp_path):
    """Statuses come as results or as exceptions; a view is not of other numbers, and not too short; numbers are of the
    kernel's size."""
    shape = "h=2", "d_model=8", "dk=4", "seq=3", "isa=scalar"
    run(MHAGEN, "gen", *shape, "name=layer", "--cxx", "-o", tmp_path)
    run(MHAGEN, "gen", *shape, "io_dtype=f16", "name=half", "--cxx", "-o", tmp_path)
    (tmp_path / "test.cpp").write_text(CXX_MISTAKES)
    run("gcc", "-O1", "-c", "layer.c", "half.c", "mhagen.c", cwd=tmp_path)
    run("g++", "-std=c++17", "-fsanitize=address,undefined", *WARNINGS, "test.cpp", "layer.o", "half.o", "mhagen.o",
        "-pthread", "-o", "test", cwd=tmp_path)
    run(tmp_path / "test")


def test_rust(use, environment):
    """Cargo takes nothing from outside."""
    need("cargo")
    layer_works(run("cargo", "run", "--release", "--offline", "--quiet", cwd=use / "rust",
                    env={**environment, "CARGO_HOME": str(use.here / "cargo")}))
    assert "layer_scalar.o" in run("ar", "t", next((use / "rust").rglob("liblayer.a")))  # it is a bundle


def test_python(use, environment, tmp_path):
    """pip builds a wheel from the folder, which any Python of this machine can install."""
    if not installed("numpy", "setuptools"):
        pytest.skip("numpy and setuptools are not installed")
    wheels = tmp_path / "wheels"
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", wheels,
        use / "python", env=environment)
    (wheel,) = wheels.iterdir()
    assert re.fullmatch(r"attention_layer-0\.1\.0-py3-none-linux_\w+\.whl", wheel.name)
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", tmp_path / "site", wheel)
    (tmp_path / "program.py").write_text(f"""
import numpy, attention
assert attention.__file__.startswith({str(tmp_path / 'site')!r})
matrices = [numpy.array(m).reshape({D}, {D}) for m in {[numbers(D * D, seed) for seed in (1, 2, 3, 4)]!r}]
x = numpy.array({numbers(SEQ * D, 5)!r}).reshape({SEQ}, {D})
layer = attention.Attention(*matrices)
try: attention._require(1); print("no error")
except RuntimeError as error: assert str(error) == "layer: " + attention._library.layer_flat_text(1).decode(), error
for value in layer(x.astype(numpy.float32)).ravel(): print(value)
try: layer(x[:5]); print("no error")
except Exception as error: assert "shape" in str(error)
""")
    layer_works(run(sys.executable, "-B", tmp_path / "program.py",
                    env={**environment, "PYTHONPATH": tmp_path / "site"}))
    assert "layer_scalar" in run("nm", next((tmp_path / "site").rglob("liblayer.so")))  # it is a bundle


# ---- what docs/integrate.md says ----

READ_ONLY = r"""
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include "layer.h"
static _Alignas(MHAGEN_ALIGN) char workspace[LAYER_WORKSPACE_BYTES];
static float w[LAYER_D_MODEL * LAYER_D_MODEL], x[LAYER_SEQ * LAYER_D_MODEL], y[LAYER_SEQ * LAYER_D_MODEL];
int main(void) {
  void *packed = mmap(0, LAYER_PACKED_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const mhagen_weights weights = {.wq = w, .wk = w, .wv = w, .wo = w};
  const mhagen_args args = {.q = x, .y = y, .packed = packed, .workspace = workspace};
  if (packed == MAP_FAILED || layer_pack(&weights, packed)) return 1;
  return mprotect(packed, LAYER_PACKED_BYTES, PROT_READ) || layer_run(&args);
}
"""


def test_packed_weights_in_read_only_memory(tmp_path):
    run(MHAGEN, "gen", "h=2", "d_model=8", "dk=4", "seq=3", "isa=scalar", "name=layer", "-o", tmp_path)
    (tmp_path / "test.c").write_text(READ_ONLY)
    run("gcc", "-O1", "test.c", "layer.c", "mhagen.c", "-pthread", "-o", "test", cwd=tmp_path)
    run(tmp_path / "test")


def test_statuses_keep_their_values():
    """As docs/integrate.md promises, which is why this list only grows."""
    header = (ROOT / "runtime/mhagen.h").read_text()
    text = header.split("typedef enum mhagen_status {")[1].split("}")[0]
    assert [(name, int(value)) for name, value in re.findall(r"MHAGEN_(\w+) = (\d+)", text)][:10] == [
        ("OK", 0), ("ERR_NULL", 1), ("ERR_ALIGN", 2), ("ERR_LENGTH", 3), ("ERR_CPU", 4), ("ERR_LAYOUT", 5),
        ("ERR_TARGET", 6), ("ERR_ARITHMETIC", 7), ("ERR_PACKED", 8), ("ERR_ROUNDING", 9)]


# ---- install ----

def test_install(environment, tmp_path):
    """DESTDIR stands before all paths, and files name PREFIX alone; uninstalling leaves nothing."""
    to = {**environment, "PREFIX": "/opt/somewhere", "DESTDIR": str(tmp_path / "root")}
    assert "install-mhagen.sh" in run("ninja", "-t", "commands", "install", cwd=ROOT).splitlines()[-1]
    run(*INSTALL, env=to)
    prefix = tmp_path / "root/opt/somewhere"
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
    assert {"bin/mhagen", "include/mhagen/mhagen.h", "include/mhagen/mhagen.hpp", "share/mhagen/mhagen.c",
            "share/pkgconfig/mhagen.pc", "share/cmake/mhagen/mhagen-config.cmake",
            "share/man/man1/mhagen.1", "share/bash-completion/completions/mhagen"} <= files
    for path in files - {"bin/mhagen"}:
        assert str(tmp_path) not in (prefix / path).read_text()
    assert run(prefix / "bin/mhagen", "--version") == run(MHAGEN, "--version")
    run(*INSTALL, "--uninstall", env=to)
    assert not [path for path in prefix.rglob("*") if path.is_file() or "mhagen" in path.name]
    refused = subprocess.run(INSTALL, env={**to, "PREFIX": "here"}, text=True, stderr=subprocess.PIPE)
    assert refused.returncode == 2 and refused.stderr == "install: PREFIX = here: must begin with a /\n"


def test_pkg_config(environment, prefix, tmp_path):
    """Its flags and variables are enough for the program of docs/integrate.md."""
    need("pkg-config")
    commands = """
mhagen=$(pkg-config --variable=program mhagen)
$mhagen gen h=12 d_model=384 dk=32 seq=128 kv_len=true isa=$($mhagen isas --widest) name=minilm -o out --quiet
rm out/mhagen.*
cc -O2 -Iout $(pkg-config --cflags mhagen) quickstart.c out/minilm.c $(pkg-config --variable=runtime mhagen) \
  $(pkg-config --libs mhagen) -o quickstart
"""
    shutil.copy(ROOT / "examples/quickstart.c", tmp_path)
    run("sh", "-eu", "-c", commands, cwd=tmp_path, env={**environment, "PKG_CONFIG_PATH": prefix / "share/pkgconfig"})
    quickstart_works(tmp_path / "quickstart")
    version = run("pkg-config", "--modversion", "mhagen", env={**environment,
                                                               "PKG_CONFIG_PATH": prefix / "share/pkgconfig"})
    assert version.strip() == run(MHAGEN, "--version").split()[1]


def test_debian_package(environment, tmp_path):
    """lintian has nothing to say, and the same sources give the same package; what is in it works."""
    need("dpkg-deb")
    tree = tmp_path / "tree"  # the script builds the program, which other tests run in the project's own
    for name in "bench", "cmake", "gen", "runtime", "scripts", "templates", "tests":
        shutil.copytree(ROOT / name, tree / name)
    for name in "LICENSE", "build.ninja":
        shutil.copy(ROOT / name, tree)
    packages = []
    for _ in range(2):
        path = tree / run("sh", tree / "scripts/deb.sh", tmp_path, env=environment).splitlines()[-1]
        packages.append(path.read_bytes())
    assert packages[0] == packages[1]
    run("dpkg-deb", "-x", path, tmp_path / "root")
    program = tmp_path / "root/usr/bin/mhagen"
    run(program, "gen", "h=2", "d_model=8", "dk=4", "seq=3", "isa=scalar", "-o", tmp_path / "out")
    needed = re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", program))
    assert set(needed) <= {"libc.so.6", "libm.so.6"}
    need("lintian")
    run("lintian", "--fail-on", "error,warning", "--allow-root", path)
