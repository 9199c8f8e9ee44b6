"""The package of Python: the wheel, layers of NumPy's arrays."""
import ast
import ctypes
import os
import pathlib
import re
import stat
import subprocess
import sys
import tarfile
import threading
import typing
import zipfile
from collections.abc import Sequence

import pytest

from python_lib import package_environment  # noqa: F401
from tools import COVER, MHAGEN, ROOT, in_turn, installed, need, run, schema, seed_of, shared

if not installed("numpy"):
    pytest.skip("NumPy is not installed", allow_module_level=True)

import numpy as np

from reference_lib import Args, Weights, build

PACKAGE = ROOT / "python"
sys.path.insert(0, str(PACKAGE))
import mhagen
from mhagen import _build, _keys, _layer, _native

TINY = {"h": 2, "d_model": 12, "dk": 6, "seq": 5, "isa": "scalar"}


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    return build(tmp_path_factory)


# ---- the wheel ----

@pytest.fixture(scope="session")
def distributions(tmp_path_factory):
    """The sdist, and the wheel that pip makes of it without a package from anywhere."""
    def make(folder):
        name = run(sys.executable, "-B", "-c", f"import backend; print(backend.build_sdist({str(folder)!r}))",
                   cwd=PACKAGE).strip()
        run(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "-w", folder, folder / name)
    folder = shared(tmp_path_factory, "distributions", make)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_wheel(distributions, tmp_path):
    """One wheel for every Python of this machine; the program in it needs no library."""
    sdist, wheel = distributions
    version = run(MHAGEN, "--version").split()[1]
    machine = os.uname().machine
    assert sdist.name == f"mhagen-{version}.tar.gz"
    assert wheel.name == f"mhagen-{version}-py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert f"Version: {version}\n" in archive.read(f"mhagen-{version}.dist-info/METADATA").decode()
    sources = {f"mhagen/{path.name}" for path in (PACKAGE / "mhagen").iterdir() if path.is_file()}
    assert sources <= {*names} and "mhagen/py.typed" in names
    assert f"mhagen-{version}.dist-info/licenses/liblua5.4-dev" in names  # what is linked in has its terms there
    run(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", tmp_path, wheel)
    program = tmp_path / "bin/mhagen"
    assert "INTERP" not in run("readelf", "-l", program) and run(program, "--version").split()[1] == version
    kept = {name: value for name, value in os.environ.items() if name != "MHAGEN"}
    found = run(sys.executable, "-c", "import mhagen; print(mhagen.program(), mhagen.version())", cwd=tmp_path,
                env={**kept, "PYTHONPATH": str(tmp_path)})
    assert found.split() == [str(program), version]


@pytest.mark.slow
def test_cmake_of_wheel(distributions, tmp_path):
    """find_package finds what pip installs beside the program on the PATH."""
    need("cmake")
    prefix, folder = tmp_path / "prefix", tmp_path / "project"
    run(sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", prefix, distributions[1])
    page = (ROOT / "docs/integrate.md").read_text().split("**After pip**")[1]
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(re.search(r"```cmake\n(.*?)```", page, re.S)[1])
    (folder / "main.c").write_text('#include "tiny.h"\nint main(void) { return !tiny_supported(); }\n')
    environment = {**os.environ, "PATH": f"{prefix}/bin:{os.environ['PATH']}"}
    run("cmake", "-S", folder, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Debug", env=environment)
    run("cmake", "--build", folder / "build", env=environment)
    run(folder / "build/main")


def test_sources(tmp_path):
    """The sdist has no file that was made, and is the same whenever it is made."""
    import backend
    names = [backend.build_sdist(tmp_path / folder) for folder in ("a", "b") if not (tmp_path / folder).mkdir()]
    first, second = ((tmp_path / folder / name).read_bytes() for folder, name in zip("ab", names))
    assert first == second
    with tarfile.open(tmp_path / "a" / names[0]) as archive:
        inside = archive.getnames()
    assert not [name for name in inside if re.search(r"/build/|__pycache__|\.pyc$|/\.", name)]
    assert {f"{names[0][:-7]}/{name}" for name in ("PKG-INFO", "pyproject.toml", "build.ninja")} <= {*inside}
    needed = re.search(r"foreach\(name (.*)\)", (ROOT / "CMakeLists.txt").read_text())[1]
    assert {*needed.split()} == {*backend.PROGRAM}  # CMake builds the program of the same


def test_old_pythons():
    """The syntax is that of the oldest Python that pyproject.toml names."""
    oldest = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())[1]
    for path in PACKAGE.rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, int(oldest)))


# ---- layouts ----

def test_layouts():
    """layout.c has every pointer of weights and arguments, and ctypes' structs of the tests have the same places."""
    header, kernel = (ROOT / "runtime/mhagen.h").read_text(), mhagen.attention(**TINY).kernel
    for of, struct, more in ("args", Args, ()), ("weights", Weights, {"layout"}):
        body = re.search(rf"typedef struct mhagen_{of} \{{(.*?)\}} mhagen_{of};", header, re.S)[1]
        pointers = re.findall(r"\*(\w+)", re.sub(r"/\*.*?\*/", "", body, flags=re.S))
        assert len(pointers) >= 14 and {*kernel.layouts[of]} == {*pointers, *more, ""}
        assert {name: at for name, (at, _) in kernel.layouts[of].items() if name} == {
            name: getattr(struct, name).offset for name in [*pointers, *more]}
    assert {*_layer.WEIGHTS} == {*kernel.layouts["weights"]} - {"layout", ""}
    assert {*kernel.layouts["args"]} == {*_layer.READ, *_layer.MADE, ""}
    assert (kernel.data.h, kernel.data.d_model, kernel.data.y_width, kernel.data.batch) == (2, 12, 12, 1)
    assert kernel.layouts["constant"]["MHAGEN_MAX_THREADS"][0] == _native.MAX_THREADS
    assert kernel.layouts["constant"]["MHAGEN_ALIGN"][0] == _native.ALIGN


# ---- numbers ----

def value_of(text):
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return {"true": True, "false": False}.get(text, text)


def drawn(layer, seed):
    """Weights, and the arguments of a run but for its results."""
    draw, kernel, data = np.random.default_rng(seed), layer.kernel, layer.kernel.data
    weights = {name: draw.standard_normal([64 if n == -1 else n for n in shape], np.float32) / 3
               for name, shape in layer.weight_shapes().items() if not name.startswith("rope")}
    arguments = {}
    for name, most in kernel.needs.items():
        if name in "qkv":
            arguments[name] = draw.standard_normal(layer._shapes[name][0][0], np.float32)
        elif name == "mask":
            numbers = draw.standard_normal(layer.mask_shape(), np.float32)
            arguments[name] = numbers > -0.5 if kernel.has("MASK_BOOL") else numbers
        elif name == "row_keys":
            arguments[name] = draw.integers(0, data.seq_kv + 1, (data.batch, data.seq, 2))
        elif name in _layer.ANGLES:
            rows = data.seq if name in _layer.TABLES else data.seq_kv
            arguments[name] = draw.standard_normal((data.batch, rows, data.rope_dims // 2), np.float32)
        elif name in _layer.LENGTHS:
            arguments[name] = draw.integers(most // 2, most + 1, data.batch)
    return weights, arguments


CONFIGS = [config for config in COVER if not re.search("cache=|dtype", config)]


@pytest.mark.parametrize("config", in_turn(CONFIGS, "python", count=4))
def test_against_reference(config, reference):
    """Any config, with its weights and arguments by name."""
    keys = {key: value_of(value) for key, value in (word.split("=") for word in config.split())}
    layer = mhagen.attention(isa="native", **keys)
    weights, arguments = drawn(layer, seed_of(config))
    results = layer.pack(**weights)(**arguments)
    y = results[0] if isinstance(results, tuple) else results

    kept = {name: np.ascontiguousarray(array, np.int32 if name in (*_layer.LENGTHS, "row_keys") else array.dtype)
            for name, array in arguments.items()}
    for name in _layer.TABLES:  # which the reference reads of all rows of K
        if name in kept:
            kept.setdefault(f"k_{name}", kept[name])
    right = np.empty(y.shape)
    probs = np.empty((y.shape[0], layer.kernel.data.h, layer.kernel.data.seq, layer.kernel.data.seq_kv))
    assert reference.mhagen_reference(
        ctypes.c_void_p(layer.kernel.address),
        ctypes.byref(Weights(**{name: array.ctypes.data for name, array in weights.items()})),
        ctypes.byref(Args(**{name: array.ctypes.data for name, array in kept.items()})),
        ctypes.c_void_p(right.ctypes.data), ctypes.c_void_p(probs.ctypes.data), None) == 0
    assert np.abs(y - np.nan_to_num(right)).max() <= 1e-4 * np.nanmax(np.abs(right))  # NaN behind q_len
    if "probs" in layer.kernel.needs:
        assert np.abs(results[1] - np.nan_to_num(probs)).max() < 1e-5


def tiny(**keys):
    layer = mhagen.attention(**{**TINY, **keys})
    weights, arguments = drawn(layer, 7)
    return layer.pack(**weights), weights, arguments


def test_layouts_of_arrays():
    """Transposed weights, views, an array for y, no axis of the batch: the same numbers, and copies only where one is
    needed."""
    layer, weights, arguments = tiny()
    x = arguments["q"]
    y = layer(x)
    assert y.shape == (1, 5, 12) and layer(x[0]).shape == (5, 12)
    out = np.empty((5, 12), np.float32)
    assert layer(x[0], out=out) is out and (out == y[0]).all()
    assert (layer(np.asfortranarray(x.astype(float))[0]) == y[0]).all()
    turned = {name: array.T if array.ndim == 2 else array for name, array in weights.items()}
    assert (layer.pack(out_in=True, **turned)(x) == y).all()
    by_call = mhagen.attention(**TINY, **weights)
    assert (by_call(x, threads=3) == y).all() and by_call.kernel is layer.kernel
    assert layer._input("q", x, layer.kernel.needs) is x  # not copied


def test_switches():
    """An array for a key that is a weight, too, is both; so is True."""
    sink = np.array([0.5, -1], np.float32)
    plain, weights, arguments = tiny()
    layer = mhagen.attention(**TINY, **weights, sink=sink)
    same, *_ = tiny(sink=True)
    assert layer.kernel is same.kernel is not plain.kernel
    assert (same.pack(**weights, sink=sink)(**arguments) == layer(**arguments)).all()
    assert (same.pack(**weights)(**arguments) != layer(**arguments)).any()


def test_half_types():
    """q, k, v and y of 16 bits, bfloat16 as its bits."""
    layer, weights, arguments = tiny()
    right = layer(arguments["q"])
    half = mhagen.attention(**TINY, io_dtype="f16", **weights)(arguments["q"].astype(np.float16))
    assert half.dtype == np.float16 and np.abs(half - right).max() < 1e-2
    bits = (arguments["q"].view(np.uint32) >> 16).astype(np.uint16)
    wide = mhagen.attention(**TINY, io_dtype="bf16", **weights)(bits)
    assert wide.dtype == np.uint16
    assert np.abs((wide.astype(np.uint32) << 16).view(np.float32) - right).max() < 6e-2 * np.abs(right).max()
    with pytest.raises(ValueError, match="q: dtype float32: must be bfloat16 of ml_dtypes, or its bits as uint16"):
        mhagen.attention(**TINY, io_dtype="bf16", **weights)(arguments["q"])


def test_caches():
    """Steps of a decoder are the rows of a causal layer; a fixed cache is cross-attention."""
    whole, weights, arguments = tiny(causal=True, rope="half")
    step = mhagen.attention(**{**TINY, "seq": 1}, seq_kv=5, cache="append", causal=True, rope="half", **weights)
    cache = step.new_cache()
    rows = [step(row[None], past=at, cache=cache)[0] for at, row in enumerate(arguments["q"][0])]
    assert np.abs(rows - whole(**arguments)[0]).max() < 1e-5
    apart = mhagen.attention(**TINY, causal=True, rope="half", rope_tables="apart", **weights)
    other = mhagen.attention(**TINY, causal=True, rope="half", rope_tables="apart", **weights)
    assert apart.tables is other.tables and np.array_equal(apart(**arguments), whole(**arguments))
    turned = {name: np.tile(np.float32([[0.6], [0.8]][name == "rope_sin"]), (5, apart.kernel.data.rope_dims // 2))
              for name in ("rope_cos", "rope_sin")}
    whole.pack(**weights, **turned)
    assert np.array_equal(apart.pack(**weights, **turned)(**arguments), whole(**arguments))
    assert apart.tables is not other.tables and not np.array_equal(apart(**arguments), other(**arguments))
    cross, weights, arguments = tiny(attention="cross", seq_kv=7, batch=2)
    fixed = mhagen.attention(**TINY, attention="cross", seq_kv=7, batch=2, cache="fixed", **weights)
    cache = fixed.new_cache()
    fixed.fill(arguments["k"], arguments["v"], cache)
    assert np.abs(fixed(arguments["q"], cache=cache) - cross(**arguments)).max() < 1e-5


def by_places(layer, places):
    """Cosines and sines of the angles that packing takes."""
    pairs = layer.kernel.data.rope_dims // 2
    angles = np.asarray(places)[..., None] * 1e4 ** -(np.arange(pairs) / pairs)
    return np.float32(np.cos(angles)), np.float32(np.sin(angles))


@pytest.mark.parametrize("rope", ["half", "interleaved"])
def test_angles_of_a_run(rope):
    """Those of places are the packed ones. In a cache rows keep the angles that they were written with; K of other
    rows than Q has its own."""
    shape = {**TINY, "dk": 20, "rope": rope, "rope_dims": 18}
    packed, weights, arguments = tiny(**shape, causal=True)
    given = mhagen.attention(**shape, causal=True, rope_at="run", **weights)
    cos, sin = by_places(given, range(5))
    right = packed(**arguments)
    assert np.abs(given(**arguments, rope_cos=cos, rope_sin=sin) - right).max() < 1e-6
    assert np.abs(given(**arguments, rope_cos=cos[::-1], rope_sin=sin) - right).max() > 1e-3

    step = mhagen.attention(**{**shape, "seq": 1}, seq_kv=5, cache="append", causal=True, rope_at="run", **weights)
    cache = step.new_cache()
    rows = [step(row[None], past=at, cache=cache, rope_cos=cos[[at]], rope_sin=sin[[at]])[0]
            for at, row in enumerate(arguments["q"][0])]
    assert np.abs(rows - right[0]).max() < 1e-5

    packed, weights, arguments = tiny(**shape, attention="cross", seq_kv=7, batch=2)
    right = packed(**arguments)
    k_cos, k_sin = by_places(packed, range(7))
    given = mhagen.attention(**shape, attention="cross", seq_kv=7, batch=2, rope_at="run", **weights)
    of_q = {"rope_cos": np.stack([cos, cos]), "rope_sin": sin}
    assert np.abs(given(**arguments, **of_q, k_rope_cos=k_cos, k_rope_sin=k_sin) - right).max() < 1e-6
    fixed = mhagen.attention(**shape, attention="cross", seq_kv=7, batch=2, cache="fixed", rope_at="run", **weights)
    cache = fixed.new_cache()
    fixed.fill(arguments["k"], arguments["v"], cache, k_rope_cos=k_cos, k_rope_sin=k_sin)
    assert np.abs(fixed(arguments["q"], cache=cache, **of_q) - right).max() < 1e-6


def test_wrong_angles():
    layer, weights, arguments = tiny(rope="half", rope_at="run")
    good = np.ones((5, 3), np.float32)
    for angles, rule in [({"rope_cos": good}, "rope_sin: not given: this kernel reads it"),
                         ({"rope_cos": good, "rope_sin": good[:4]}, "rope_sin: shape (4, 3): must be (1, 5, 3) or"),
                         ({"rope_cos": good, "rope_sin": good > 0}, "rope_sin: dtype bool: must be real numbers"),
                         ({"rope_cos": good, "k_rope_cos": good}, "k_rope_cos: given: this kernel reads q, rope_cos")]:
        with pytest.raises(ValueError, match=re.escape(rule)):
            layer(arguments["q"], **angles)
    with pytest.raises(ValueError, match="rope_cos: a weight: this kernel reads wq, "):
        layer.pack(**weights, rope_cos=good)
    with pytest.raises(ValueError, match="rope_cos: given: this kernel reads q"):
        tiny(rope="half")[0](arguments["q"], rope_cos=good)


# ---- names ----

def test_keys():
    """Keyword arguments are the keys of the schema, with their values."""
    kinds = {"integer": int, "ladder": int | Sequence[int], "flag": bool, "number": float, "bundle": str,
             "identifier": str, "letters": str, "file": str | os.PathLike[str]}
    known = typing.get_type_hints(_keys.Layer)
    assert {*known} == {row["key"] for row in schema()} | {*_layer.WEIGHTS}
    for row in schema():
        of = known[row["key"]]
        if row["kind"] == "choice":
            choices = typing.Literal[(*row["choices"], *["native"] * ("native" in row))]
            assert of in (choices | None, choices | typing.Any | None), row["key"]
        elif row["key"] not in _layer.SWITCHES:
            assert of == kinds[row["kind"]] | None, row["key"]


def test_names():
    """Number types by PyTorch's and NumPy's names, the version, the command, a layer's repr."""
    words = _build.words({**TINY, "dtype": "bfloat16", "io_dtype": np.float16, "causal": np.True_})
    assert {"dtype=bf16", "io_dtype=f16", "causal=true"} <= {*words}
    with pytest.raises(ValueError, match="^mhagen: config: dtype = float64: must be one of f32, bf16, f16, int8"):
        mhagen.attention(**{**TINY, "isa": "native"}, dtype=np.float64)
    version = mhagen.version()
    assert python("import mhagen; print(mhagen.__version__)").strip() == version and not hasattr(mhagen, "no_such")
    told = run(sys.executable, "-B", "-m", "mhagen", "--version", env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    assert told == f"mhagen {version}\n"
    layer = mhagen.attention(**TINY, threads=2)
    assert repr(layer) == "<mhagen.Attention d_model=12 dk=6 h=2 seq=5 isa=scalar, weights not packed, threads 2>"


# ---- what is refused ----

def test_refusals():
    layer, weights, arguments = tiny(kv_len=True)
    x = arguments["q"]
    for call, rule in [
            (lambda: mhagen.attention(h=2, d_modle=3), "config: d_modle = 3: unknown key, did you mean d_model?"),
            (lambda: mhagen.attention(**{**TINY, "dk": 0}), "config: dk = 0: must be an integer from 1 to 1024"),
            (lambda: layer(x), "kv_len: not given: this kernel reads it"),
            (lambda: layer(x, kv_len=6), "kv_len: 6: must be from 0 to 5"),
            (lambda: layer(x, kv_len=2**32 + 3), "kv_len: 4294967299: must be from 0 to 5"),
            (lambda: layer(x, kv_len=np.uint64(2**63)), "kv_len: 9223372036854775808: must be from 0 to 5"),
            (lambda: layer(x, kv_len=[1, 2]), "kv_len: [1, 2]: must be an integer, or 1 of them"),
            (lambda: layer(x, kv_len=5, q_len=1), "q_len: given: this kernel reads q, kv_len"),
            (lambda: layer(x[:, :3], kv_len=3), "q: shape (1, 3, 12): must be (1, 5, 12) or (5, 12)"),
            (lambda: layer(x, kv_len=3, out=x[..., ::2]), "out: float32: is written to, and must be a contiguous, wri"),
            (lambda: layer(x, kv_len=3, threads=0), "threads = 0: must be an integer from 1 to 1024"),
            (lambda: layer(x, kv_len=3, threads=2**32 + 1), "threads = 4294967297: must be an integer from 1 to 1024"),
            (lambda: mhagen.attention(**TINY, threads=1.5), "threads = 1.5: must be an integer from 1 to 1024"),
            (lambda: layer(x, kv_len=3, out=x), "out: the memory of q: y must have memory of its own"),
            (lambda: layer.pack(**{**weights, "wq": None}), "wq: not given: a layer needs these weights"),
            (lambda: layer.pack(**weights, sink=[1, 2]), "sink: a weight: this kernel reads wq, bq"),
            (lambda: layer.pack(**{**weights, "wo": weights["wo"][1:]}), "wo: shape (11, 12): must be (12, 12)"),
            (lambda: mhagen.attention(**TINY)(x), "weights: not packed: call pack"),
            (lambda: layer.new_cache(), "new_cache: this kernel has none")]:
        with pytest.raises(ValueError, match="mhagen: " + re.escape(rule)) as caught:
            call()
        assert "\n" not in str(caught.value)
    y = layer(x, kv_len=3)
    assert np.isfinite(y).all()  # as if nothing had happened


def test_ranges_of_rows():
    """Of each row of each batch entry, or of the rows of all entries; what is wrong is refused, also beyond 32 bits."""
    layer, _, arguments = tiny(row_keys="range", batch=2)
    x = arguments["q"]
    ranges = [[0, 3], [0, 3], [0, 3], [3, 5], [3, 5]]
    y = layer(x, row_keys=ranges)
    assert (layer(x, row_keys=np.array([ranges, ranges], np.uint8)) == y).all()
    assert np.abs(y - layer(x, row_keys=[[0, 5]] * 5)).max() > 1e-3
    for wrong, rule in [([[0, 3]], "must be integers of the shape (2, 5, 2) or (5, 2)"),
                        (np.ones((5, 2)), "must be integers of the shape"),
                        (None, "row_keys: not given: this kernel reads it"),
                        ([[0, 6]] * 5, "row_keys has a number that is outside 0..seq_kv"),
                        ([[2**32, 5]] * 5, "row_keys has a number that is outside 0..seq_kv"),
                        ([[-1, 5]] * 5, "row_keys has a number that is outside 0..seq_kv")]:
        with pytest.raises(ValueError, match=re.escape(rule)):
            layer(x, row_keys=wrong)


def test_types():
    """What is not of the kernel's type is converted where its numbers stay, or refused by its type."""
    layer, weights, arguments = tiny()
    x = arguments["q"]
    y = layer(x)
    assert (layer(x.astype(">f4")) == y).all() and layer(x, threads=np.int64(1)).shape == y.shape
    cached = mhagen.attention(**TINY, cache="append", seq_kv=8, **weights)
    sees, adds = tiny(mask="bool")[0], tiny(mask="add")[0]
    numbers = np.where(np.eye(5), 0, -np.inf)
    assert (sees(x, mask=(numbers == 0).tolist()) == adds(x, mask=numbers.astype(np.float16))).all()
    for call, rule in [
            (lambda: sees(x, mask=numbers), 'mask: dtype float64: must be bool, true where a key is seen: mask="add"'),
            (lambda: sees(x, mask=np.eye(5, dtype=int)), "mask: dtype int64: must be bool"),
            (lambda: adds(x, mask=numbers == 0), "mask: dtype bool: must be floats, which are added to scores: mask="),
            (lambda: adds(x, mask=np.eye(5, dtype=np.uint8)), "mask: dtype uint8: must be floats"),
            (lambda: adds(x, mask=1j * np.eye(5)), "mask: dtype complex128: must be real numbers"),
            (lambda: layer(x + 0j), "q: dtype complex64: must be real numbers"),
            (lambda: layer(x > 0), "q: dtype bool: must be real numbers"),
            (lambda: layer(np.ma.masked_greater(x, 0)), "q: a masked array: has numbers that are hidden; fill it"),
            (lambda: layer(x.astype(object)), "q: dtype object: must be real numbers"),
            (lambda: layer(x.astype(np.uint16)), "q: dtype uint16: may be the bits of bfloat16: view them as bfloat16"),
            (lambda: layer.pack(**{**weights, "wq": 1j * weights["wq"]}), "wq: dtype complex64: must be real numbers"),
            (lambda: layer.pack(**{**weights, "wq": weights["wq"].astype(np.uint16)}), "wq: dtype uint16: may be"),
            (lambda: layer(x, out=np.empty(y.shape, np.int32)), "out: int32: is written to, and must be a contiguous"),
            (lambda: layer(x, out=np.empty(y.shape, ">f4")), "out: >f4: is written to"),
            (lambda: layer(x, out=[]), "out: list: is written to"),
            (lambda: cached(x, past=0, cache=cached.new_cache().view(np.int8)), "cache: int8: is written to")]:
        with pytest.raises(ValueError, match="mhagen: " + re.escape(rule)):
            call()
    bits = (x.view(np.uint32) >> 16).astype(np.uint16)
    wide = mhagen.attention(**TINY, io_dtype="bf16", **weights)
    assert (wide(bits.astype(">u2")) == wide(bits)).all()


def test_other_machines():
    isa = "neon" if os.uname().machine == "x86_64" else "avx2"
    with pytest.raises(RuntimeError, match=f"isa = {isa}: this CPU lacks its instructions"):
        mhagen.attention(**{**TINY, "isa": isa})


# ---- the cache of libraries ----

def python(*lines, **environment):
    """Standard output of a new process that has the package."""
    return subprocess.run([sys.executable, "-B", "-c", "\n".join(lines)], check=True, text=True, stdout=subprocess.PIPE,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE), **environment}).stdout


def test_silence(tmp_path):
    """A line on stderr before each compile, and none where a kernel is in the cache."""
    lines = f"import mhagen; [mhagen.attention(**{TINY}, scale=scale) for scale in (0.8, 0.9, 0.8)]"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "XDG_CACHE_HOME": str(tmp_path)}
    for count in 2, 0:
        done = subprocess.run([sys.executable, "-B", "-c", lines], env=environment, text=True, capture_output=True)
        told = done.stderr.splitlines()
        assert not done.returncode and not done.stdout and len(told) == count
        assert all(line.startswith("mhagen: compiles a kernel, which takes seconds: d_model=12 ") for line in told)


LINES = ("import mhagen", f"layer = mhagen.attention(**{TINY}, scale=0.7)", "print(layer.kernel.folder)")


def test_cache_of_libraries(tmp_path):
    """Two processes at once make one folder, whole; what makes another kernel has another one."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "XDG_CACHE_HOME": str(tmp_path)}
    both = [subprocess.Popen([sys.executable, "-B", "-c", "\n".join(LINES)], env=environment, text=True,
                             stdout=subprocess.PIPE) for _ in range(2)]
    folders = {process.communicate()[0].strip() for process in both}
    assert not any(process.returncode for process in both)
    (folder,) = folders
    assert {path.name for path in (tmp_path / "mhagen").iterdir()} == {os.path.basename(folder)}
    before = os.stat(f"{folder}/kernel.so").st_mtime_ns
    assert python(*LINES, XDG_CACHE_HOME=str(tmp_path)).strip() == folder
    assert os.stat(f"{folder}/kernel.so").st_mtime_ns == before  # not made again
    assert python(*LINES, XDG_CACHE_HOME=str(tmp_path), CC="cc -O1").strip() != folder
    for lines in ({**TINY, "seq": 6}, {**TINY, "causal": True}):
        assert _build.key(_build.words(lines)) != _build.key(_build.words(TINY))
    assert _build.words({"h": 1, "dk": 2, "seq": (1, 2)}) == _build.words({"seq": [1, 2], "dk": 2, "h": 1, "dv": None})


def test_cache_of_others(tmp_path, monkeypatch):
    """What others may write, or have written, is not loaded: the cache, what it is in up to a folder where only owners
    replace entries, the kernel's folder and its library."""
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    own, owners, real = os.stat(tmp_path), {}, pathlib.Path.lstat

    def lstat(path):
        state = real(path)
        return os.stat_result((*state[:4], owners.get(path, own.st_uid), *state[5:]))
    monkeypatch.setattr(pathlib.Path, "lstat", lstat)
    given, mask = _build.words({**TINY, "scale": 0.6}), os.umask(0o002)
    path = _build.library(given)
    os.umask(mask)
    cache, folder = path.parent.parent, path.parent
    for each in path, folder, cache, home:
        mode = stat.S_IMODE(each.stat().st_mode)
        for more in 0o020, 0o002:
            each.chmod(mode | more)
            with pytest.raises(PermissionError, match=f": other users may write to {each}, and .*: chmod go-w {each}"):
                _build.library(given)
        each.chmod(mode)
        owners[each] = own.st_uid + 1
        with pytest.raises(PermissionError, match=f": {each} belongs to another user, .*: set XDG_CACHE_HOME"):
            _build.library(given)
        owners.clear()
    home.chmod(0o1777)
    assert _build.library(given) == path
    cache.chmod(0o1777)
    with pytest.raises(PermissionError, match="other users may write to"):
        _build.library(given)
    cache.chmod(0o700)
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    assert _build.library(given) == path
    home.chmod(0o777)
    with pytest.raises(PermissionError, match=f"other users may write to {home}"):
        _build.library(given)


def test_compiler_fails(tmp_path):
    """One line, and nothing is left in the cache."""
    failing = "\n".join([*LINES[:1], f"try: {LINES[1]}", "except Exception as e: print(type(e).__name__, e)"])
    for compiler, rule in (("false", "RuntimeError mhagen: false: "),
                           ("no-such", "FileNotFoundError mhagen: CC = no-such")):
        assert python(failing, CC=compiler, XDG_CACHE_HOME=str(tmp_path)).startswith(rule)
        assert not [*(tmp_path / "mhagen").glob("*")]


# ---- threads of Python ----

def test_threads():
    """Calls of several threads at the same time, and of a child after fork."""
    layer, _, arguments = tiny(kv_len=True)
    right, found = [layer(arguments["q"], kv_len=n) for n in range(6)], []

    def calls(n):
        found.extend((layer(arguments["q"], kv_len=n, threads=n % 3 + 1) == right[n]).all() for _ in range(200))
    threads = [threading.Thread(target=calls, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found) and len(found) == 1200
    child = os.fork()
    if not child:
        os._exit(not (layer(arguments["q"], kv_len=2, threads=2) == right[2]).all())
    assert os.waitpid(child, 0)[1] == 0
