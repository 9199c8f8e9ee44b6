"""Graphs whose formula depends on how many rows or sequences a run has: what `mhagen model --onnxruntime` makes of each
computes the same in runs of several lengths, or the layer stays as it is."""
import os

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

import fuzz_lookalikes as fuzz
from fuzz_lookalikes import T, helper
from test_import import refused
from tools import MHAGEN, run

ROWS = 9  # seq of the kernels


class Layer(fuzz.Graph):
    """A layer of four heads of 8; `change` makes another value of one at a place. x and z have open axes."""

    def __init__(self, change, cross=False):
        super().__init__("lengths")
        self.change, self.cross = change, cross
        self.x = self.open("x", "rows")
        z = self.open("z", "keys") if cross else self.x
        self.rows, self.keys = (self.node("Gather", self.node("Shape", value), self.constant(np.int64(1)))
                                for value in (self.x, z))
        q, k, v = (self.heads(place, value) for place, value in zip("qkv", (self.x, z, z)))
        scores = self.at("s", self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 3, 2])))
        y = self.node("MatMul", self.node("Softmax", scores, axis=-1), v)
        flat = self.node("Reshape", self.node("Transpose", y, perm=[0, 2, 1, 3]), self.ints(0, 0, 32))
        self.y = self.node("MatMul", flat, self.floats(self.normal(32, 8)))

    def open(self, name, rows):
        self.inputs.append(helper.make_tensor_value_info(name, T.FLOAT, ["batch", rows, 32]))
        return name

    def at(self, place, value):
        return self.change(self, value) if place in self.change.places else value

    def heads(self, place, x):
        y = self.node("MatMul", x, self.floats(self.normal(32, 32, by=0.3)))
        return self.at(place, self.node("Transpose", self.node("Reshape", y, self.ints(0, 0, 4, 8)), perm=[0, 2, 1, 3]))

    def number(self, of):
        return self.node("Cast", of, to=T.FLOAT)

    def places(self, of, axis):
        numbers = self.node("Range", self.constant(np.int64(0)), of, self.constant(np.int64(1)))
        return self.node("Unsqueeze", numbers, self.ints(axis))

    def where(self, scores, *seen):
        return self.node("Where", self.node(*seen), scores, self.floats(-np.inf))


def of(*places, cross=False):
    def mark(change):
        change.places, change.cross = places, cross
        return change
    return mark


@of("s")
def window(g, scores):
    """A window of half of the rows."""
    far = g.node("Sub", g.places(g.rows, 1), g.places(g.rows, 0))
    return g.where(scores, "Less", far, g.node("Div", g.rows, g.constant(np.int64(2))))


@of("s")
def causal_if_long(g, scores):
    seen = g.node("LessOrEqual", g.places(g.rows, 0), g.places(g.rows, 1))
    return g.where(scores, "Or", seen, g.node("Less", g.rows, g.constant(np.int64(6))))


@of("s", cross=True)
def bottom_right(g, scores):
    last = g.node("Add", g.places(g.rows, 1), g.node("Sub", g.keys, g.rows))
    return g.where(scores, "LessOrEqual", g.places(g.keys, 0), last)


@of("s")
def capped(g, scores):
    cap = g.number(g.rows)
    return g.node("Mul", g.node("Tanh", g.node("Div", scores, cap)), cap)


@of("q", "k")
def turned(g, value):
    """Rope whose base grows with the rows, as dynamic scaling has it."""
    base = g.node("Pow", g.number(g.rows), g.floats(-np.arange(4) / 4))
    angles = g.node("Mul", g.number(g.places(g.rows, 1)), base)
    angles = g.node("Concat", angles, angles, axis=-1)
    low, high = g.node("Split", value, g.ints(4, 4), outputs=2, axis=3)
    crossed = g.node("Mul", g.node("Concat", g.node("Neg", high), low, axis=-1), g.node("Sin", angles))
    return g.node("Add", g.node("Mul", value, g.node("Cos", angles)), crossed)


@of("q", "k")
def normed(g, value):
    mean = g.reduced("ReduceMean", g.node("Mul", value, value), 3)
    return g.node("Div", value, g.node("Sqrt", g.node("Add", mean, g.node("Div", g.number(g.rows), g.floats(99)))))


@of("v")
def shrunk(g, value):
    return g.node("Div", value, g.number(g.rows))


@of("q")
def scaled_by_batch(g, value):
    return g.node("Mul", value, g.number(g.node("Gather", g.node("Shape", g.x), g.constant(np.int64(0)))))


@pytest.mark.parametrize("change", [window, causal_if_long, bottom_right, capped, turned, normed, shrunk,
                                    scaled_by_batch], ids=lambda change: change.__name__)
def test_lengths(change, tmp_path):
    g = Layer(change, change.cross)
    onnx.save(g.model(g.y), tmp_path / "m.onnx")
    words = ["model", tmp_path / "m.onnx", "isa=scalar", f"seq={ROWS}", "--onnxruntime"]
    if change in (capped, scaled_by_batch):
        assert " is another one in runs of other lengths" in refused(tmp_path, *words)
        return
    run(MHAGEN, *words, "-o", tmp_path / "out", env={**os.environ, "CC": "cc -O0"})
    for batch, rows, keys in (2, ROWS, ROWS), (1, 4, 7), (3, 5, ROWS):
        feeds = {"x": g.normal(batch, rows, 32)}
        if change.cross:
            feeds["z"] = g.normal(batch, keys, 32)
        want = fuzz.computed(str(tmp_path / "m.onnx"), feeds)
        got = fuzz.computed(str(tmp_path / "out/model.onnx"), feeds, tmp_path / "out/libmodel.so")
        assert not fuzz.differs(want, got, fuzz.NEAR)


def test_masks_beside_lengths(tmp_path):
    """Lengths of the command line stand for padding. A bias of constants stays, and the summary names what does not."""
    @of("s")
    def biased(g, scores):
        g.inputs.append(helper.make_tensor_value_info("padding", T.FLOAT, ["batch", 1, 1, "rows"]))
        far = g.number(g.node("Sub", g.places(g.rows, 0), g.places(g.rows, 1)))
        return g.node("Add", g.node("Add", scores, far), "padding")
    g = Layer(biased)
    onnx.save(g.model(g.y), tmp_path / "m.onnx")
    for word, masks in ("kv_len=true", " kv_len=true mask=add"), ("kv_len=false", " mask=add"), ("mask=none", ""):
        text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", f"seq={ROWS}", word, "-o", tmp_path / word)
        assert f" isa=scalar{masks}\n" in text.replace(" mask_dims=bqk", "").replace(" scale=1", ""), text
        assert ("mask padding is left out, for kv_len hides keys" in text) == (word == "kv_len=true")


def test_places_of_rows(tmp_path):
    """The summary names an input that a kernel does not read, for it has places of rows."""
    @of("s")
    def by_places(g, scores):
        g.inputs.append(helper.make_tensor_value_info("position_ids", T.INT64, ["rows"]))
        first, second = (g.node("Unsqueeze", "position_ids", g.ints(axis)) for axis in (0, 1))
        return g.where(scores, "LessOrEqual", first, second)
    g = Layer(by_places)
    onnx.save(g.model(g.y), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", f"seq={ROWS}", "-o", tmp_path / "out")
    assert " causal=true" in text and "      position_ids is not read: row i has place i\n" in text
