#!/usr/bin/env python3
"""Graphs that look like attention, and may mean something else: an attention layer as exporters write it, in products
or as one operator (fuzz_operators.py), changed in one or two drawn places. What `mhagen model` makes of each runs in
ONNX Runtime beside the graph itself, and must compute the same, unless it is refused.

    fuzz_lookalikes.py [--count N] [--seed S]      draws N graphs (120)
    fuzz_lookalikes.py --replay NUMBER --seed S    one of them again; it stays in the folder that is named
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MHAGEN = os.environ.get("MHAGEN", str(ROOT / "build/mhagen"))

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto as T, helper, numpy_helper
except ImportError as missing:
    print(f"lookalikes   skipped: {missing.name} is not installed")
    sys.exit(0)

import fuzz_operators

SCORES = ["mask", "s", "scaled", "masked"]  # the places where -inf hides a key
NEAR, NEAR_HALF = 1e-3, 1e-2  # what results may differ by, of the largest; where something is cast to f16


class Graph:
    """Nodes and constants, and drawn numbers; changes: of places that are named."""

    opset = 17

    def __init__(self, seed, changes=None):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(self.random.randrange(2**32))
        self.nodes, self.constants, self.inputs, self.feeds, self.near, self.told = [], [], [], {}, NEAR, []
        self.changes, self.infinite = changes or {}, False  # whether rows are infinite that are multiplied

    def normal(self, *shape, by=1.0):
        return (self.numbers.standard_normal(shape) * by).astype("f4")

    def constant(self, x):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(x), name))
        return name

    def floats(self, x):
        return self.constant(np.asarray(x, "f4"))

    def ints(self, *numbers):
        return self.constant(np.array(numbers, "i8"))

    def node(self, op, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def input(self, name, x):
        self.feeds[name] = x
        self.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
        return name

    def linear(self, x, columns, inputs, amplitude, biased):
        y = self.node("MatMul", x, self.floats(self.normal(inputs, columns, by=amplitude / inputs**0.5)))
        return self.node("Add", y, self.floats(self.normal(columns) / 2)) if biased else y

    def reduced(self, op, value, axis, keepdims=1):
        if self.opset >= 18 or op == "ReduceSum":
            return self.node(op, value, self.ints(axis), keepdims=keepdims)
        return self.node(op, value, axes=[axis], keepdims=keepdims)

    def choose(self, places):
        """Changes for some places, by chance."""
        chosen = self.random.sample(places, self.random.choice([0, 1, 1, 1, 1, 2]))
        self.changes = {place: self.random.choice(CHANGES) for place in chosen}

    def at(self, place, value, *shape):
        """The value at a place, or what its change makes of it."""
        if place not in self.changes:
            return value
        value, how = self.changes[place](self, value, shape)
        self.told.append(f"{how} at {place}")
        self.infinite |= how.startswith("Where to -inf") and place not in SCORES
        return value

    def model(self, y):
        graph = helper.make_graph(self.nodes, "g", self.inputs, [helper.make_tensor_value_info(y, T.FLOAT, None)],
                                  self.constants)
        sets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, ir_version=8, opset_imports=sets)


# ---- changes: of (graph, value, its axes) ----

def pattern(g, shape, low=0.5):
    """Numbers for all, along one axis, at one place of an axis, or of each element; and what they are."""
    how, axis = g.random.choice(["all", "axis", "place", "each"]), g.random.randrange(len(shape))
    if how == "all":
        return np.float32(g.random.choice([low, 2.5, -1.5])), how
    own = [1] * len(shape)
    if how == "each":
        return g.normal(*shape) + 1, how
    own[axis] = shape[axis]
    if how == "axis":
        return g.normal(*own) + 1, f"axis {axis}"
    x = np.ones(own, "f4")
    x.flat[g.random.randrange(shape[axis])] = 2.5
    return x, f"a place of axis {axis}"


def arithmetic(op):
    def change(g, value, shape):
        x, how = pattern(g, shape)
        return g.node(op, value, g.floats(x)), f"{op} of {how}"
    return change


def unary(op, **attributes):
    return lambda g, value, shape: (g.node(op, value, **attributes), op)


def indices(g, shape):
    axis = g.random.randrange(len(shape))
    order = list(range(shape[axis]))
    a, b = g.random.randrange(len(order)), g.random.randrange(len(order))
    order[a], order[b] = order[b], order[a]
    return axis, order


def gather(g, value, shape):
    axis, order = indices(g, shape)
    return g.node("Gather", value, g.ints(*order), axis=axis), f"Gather {order} of axis {axis}"


def repeated(g, value, shape):
    axis, order = indices(g, shape)
    order[-1] = order[0]
    return g.node("Gather", value, g.ints(*order), axis=axis), f"Gather {order} of axis {axis}"


def concat(g, value, shape):
    axis, order = indices(g, shape)
    parts = [g.node("Slice", value, g.ints(i), g.ints(i + 1), g.ints(axis)) for i in order]
    return g.node("Concat", *parts, axis=axis), f"Concat {order} of axis {axis}"


def reversed_axis(g, value, shape):
    axis = g.random.randrange(len(shape))
    return g.node("Slice", value, g.ints(-1), g.ints(-2**40), g.ints(axis), g.ints(-1)), f"axis {axis} reversed"


def shifted(g, value, shape):
    axis = g.random.randrange(len(shape))
    first, rest = g.node("Split", value, g.ints(1, shape[axis] - 1), outputs=2, axis=axis) if shape[axis] > 1 else (
        value, None)
    return (g.node("Concat", rest, first, axis=axis) if rest else value), f"axis {axis} shifted"


def exchanged(g, value, shape):
    axes = list(range(len(shape)))
    same = [(a, b) for a in axes for b in axes if a < b and shape[a] == shape[b]]
    if not same:
        return value, "nothing"
    a, b = g.random.choice(same)
    axes[a], axes[b] = axes[b], axes[a]
    return g.node("Transpose", value, perm=axes), f"axes {a} and {b} exchanged"


def scrambled(g, value, shape):
    flat = g.node("Reshape", value, g.ints(*reversed(shape)))
    return g.node("Transpose", flat, perm=list(range(len(shape)))[::-1]), "Reshape and Transpose"


def cast(to):
    def change(g, value, shape):
        if to == T.FLOAT16:
            g.near = NEAR_HALF
        return g.node("Cast", g.node("Cast", value, to=to), to=T.FLOAT), f"Cast to {T.DataType.Name(to)}"
    return change


def reduced(op):
    def change(g, value, shape):
        axis, keep = g.random.randrange(len(shape)), g.random.randrange(2)
        own = g.reduced(op, value, axis, keep)
        how = g.random.choice(["Sub", "Add", "Mul", "Div"])
        return g.node(how, value, own), f"{how} of {op} of axis {axis}, keepdims {keep}"
    return change


def norm(kind):
    def change(g, value, shape):
        axis, keep = g.random.randrange(len(shape)), g.random.choice([1, 1, 0])
        x = value if kind != "layer" else g.node("Sub", value, g.reduced("ReduceMean", value, axis))
        square = g.node("Mul", x, x)
        if kind == "l2":
            below = g.reduced("ReduceSum", square, axis, keep)
        else:
            below = g.node("Add", g.reduced("ReduceMean", square, axis, keep), g.floats(1e-5))
        return g.node("Div", x, g.node("Sqrt", below)), f"{kind} norm of axis {axis}, keepdims {keep}"
    return change


def where(g, value, shape):
    x, how = pattern(g, shape)
    to = g.random.choice([0.0, 1.0, -1e4, -1e9, -np.inf])
    return g.node("Where", g.constant(np.asarray(x) > 1), value, g.floats(to)), f"Where to {to} of {how}"


def cleared(g, value, shape):
    condition = g.node("Greater", g.reduced("ReduceMean", value, len(shape) - 1), g.floats(0.0))
    return g.node("Where", condition, value, g.floats(0.0)), "Where by the mean"


def clip(g, value, shape):
    low, high = g.random.choice([("", 0.3), (-0.3, ""), (-1e30, ""), (-0.5, 0.5), (-1e9, 1e9)])
    bounds = [g.floats(x) if x != "" else "" for x in (low, high)]
    return g.node("Clip", value, *bounds), f"Clip {low} {high}"


def largest(g, value, shape):
    bounds = g.random.choice([[-1e30], [0.3], [-1e30, 0.2], [-1e9, -1e4]])
    return g.node("Max", value, *map(g.floats, bounds)), f"Max of {bounds}"


def quantized(g, value, shape):
    scale = g.floats(g.random.choice([0.001, 0.02]))
    zero = g.constant(np.int8(g.random.choice([0, 3])))
    g.near = np.inf  # its roundings are another matter
    return g.node("DequantizeLinear", g.node("QuantizeLinear", value, scale, zero), scale, zero), "quantized"


def summed(g, value, shape):
    axis = g.random.randrange(len(shape))
    return g.node("CumSum", value, g.constant(np.int64(axis))), f"CumSum of axis {axis}"


def layer_norm(g, value, shape):
    return g.node("LayerNormalization", value, g.floats(g.normal(shape[-1]) + 1), axis=-1), "LayerNormalization"


def softcap(g, value, shape):
    cap = g.floats(g.random.choice([5.0, -5.0]))
    outer = g.random.choice([cap, g.floats(2.0)])
    return g.node("Mul", g.node("Tanh", g.node("Div", value, cap)), outer), "softcap"


def expanded(g, value, shape):
    """All as one place of an axis."""
    axis = g.random.randrange(len(shape))
    one = g.node("Slice", value, g.ints(0), g.ints(1), g.ints(axis))
    return g.node("Expand", one, g.ints(*shape)), f"axis {axis} as its first"


def itself(g, value, shape):
    op = g.random.choice(["Add", "Mul", "Sub"])
    return g.node(op, value, value), f"{op} of itself"


def same(g, value, shape):
    return g.node("Reshape", g.node("Reshape", value, g.ints(-1)), g.ints(*shape)), "Reshape and back"


CHANGES = [
    *[arithmetic(op) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")] * 3, gather, gather, repeated, concat,
    concat, reversed_axis, shifted, exchanged, exchanged, scrambled,
    *[unary(op) for op in "Abs Neg Relu Tanh Sigmoid Exp Erf Floor Round Identity Sin Softplus Sign Ceil".split()],
    unary("Softmax", axis=-1), unary("Softmax", axis=1), unary("LogSoftmax", axis=-1),
    unary("LpNormalization", axis=-1),
    *[cast(to) for to in (T.INT32, T.INT64, T.INT8, T.BOOL, T.FLOAT16, T.DOUBLE)],
    *[reduced(op) for op in ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2")],
    *[norm(kind) for kind in ("rms", "layer", "l2")] * 2,
    where, where, cleared, clip, summed, largest, quantized, layer_norm, softcap, expanded, itself, same,
]


# ---- the layer ----

PLACES = "x q k v qr kr vr qt kt vt s scaled masked p c ct cr y".split()


def drawn(seed, changes=None):
    """A graph, and what was changed in it; changes: those of places of a layer in products, instead of drawn ones."""
    g = Graph(seed, changes)
    pick = g.random.choice
    if changes is None and pick([0, 1]):
        g.choose(fuzz_operators.PLACES)
        model = g.model(g.node("Identity", fuzz_operators.drawn(g)))
        return g, onnx.shape_inference.infer_shapes(model) if pick([0, 1]) else model
    if changes is None:
        g.choose(PLACES)
    b, s, h = pick([1, 2]), pick([4, 5, 7]), pick([2, 4, 7])
    dk, each = pick([4, 7, 8]), pick([1, 1, 2]) if h % 2 == 0 else 1
    h_kv, width = h // each, pick([h * dk, 12])
    amplitude, fused, einsum, biased = pick([1, 2]), pick([0, 0, 1]), pick([0, 0, 1]), pick([0, 1])

    def linear(x, columns, inputs):
        return g.linear(x, columns, inputs, amplitude, biased)

    x = g.at("x", g.input("x", g.normal(b, s, width)), b, s, width)
    sizes = [h * dk, h_kv * dk, h_kv * dk]
    parts = g.node("Split", linear(x, sum(sizes), width), g.ints(*sizes), outputs=3, axis=2) if fused else [
        linear(x, size, width) for size in sizes]
    heads = []
    for letter, part, size, count in zip("qkv", parts, sizes, (h, h_kv, h_kv)):
        part = g.node("Reshape", g.at(letter, part, b, s, size), g.ints(b, s, count, dk))
        heads.append(g.node("Transpose", g.at(letter + "r", part, b, s, count, dk), perm=[0, 2, 1, 3]))

    def shared(value):
        if each == 1:
            return value
        value = g.node("Expand", g.node("Unsqueeze", value, g.ints(2)), g.ints(b, h_kv, each, s, dk))
        return g.node("Reshape", value, g.ints(b, h, s, dk))

    q = g.at("qt", heads[0], b, h, s, dk)
    k, v = g.at("kt", shared(heads[1]), b, h, s, dk), g.at("vt", shared(heads[2]), b, h, s, dk)
    scores = g.node("Einsum", q, k, equation="bhqd,bhkd->bhqk") if einsum else g.node(
        "MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.at("s", scores, b, h, s, s)
    scores = g.at("scaled", g.node("Div", scores, g.floats(dk**0.5)), b, h, s, s)
    mask = pick(["none", "none", "causal", "where", "padding", "bias"])
    if mask == "causal":
        scores = g.node("Add", scores, g.floats(np.triu(np.full((s, s), pick([-1e9, -np.inf, -1e4])), 1)))
    if mask == "where":
        scores = g.node("Where", g.constant(np.tril(np.ones((s, s), bool))), scores, g.floats(-np.inf))
    if mask == "padding":
        seen = np.arange(s) < [[[[pick([s, s - 1, s - 2])]]] for _ in range(b)]
        scores = g.node("Add", scores, g.input("mask", np.where(seen, 0, -1e9).astype("f4")))
    if mask == "bias":
        scores = g.node("Add", scores, g.floats(g.normal(1, h, s, s)))
    scores = g.at("masked", scores, b, h, s, s)
    weights = g.at("p", g.node("Softmax", scores, axis=-1), b, h, s, s)
    context = g.at("c", g.node("MatMul", weights, v), b, h, s, dk)
    context = g.at("ct", g.node("Transpose", context, perm=[0, 2, 1, 3]), b, s, h, dk)
    context = g.at("cr", g.node("Reshape", context, g.ints(b, s, h * dk)), b, s, h * dk)
    y = g.at("y", linear(context, 8, h * dk), b, s, 8)
    return g, g.model(g.node("Identity", y))


# ---- both ----

def computed(model, feeds, library=None):
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library:
        options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


def differs(want, got, near, infinite=False):
    """By how much, or nothing. Of infinite rows the graph makes NaN behind a mask, zero times infinity; a kernel does
    not read what is masked (docs/special-numbers.md)."""
    if want.shape != got.shape:
        return f"shape {got.shape}, not {want.shape}"
    if (np.isnan(got) > np.isnan(want) if infinite else np.isnan(got) != np.isnan(want)).any():
        return "NaN"
    good = np.isfinite(want)
    if not good.any():
        return None
    with np.errstate(all="ignore"):
        off = np.abs(want - got)[good].max() / (np.abs(want[good]).max() + 1e-9)
    return None if off <= near else f"{off:.1e} of the largest"


def verdict(seed, folder, changes=None):
    """ok, refused, skipped or failed, and why."""
    onnxruntime.set_default_logger_severity(4)
    g, model = drawn(seed, changes)
    told = "; ".join(g.told) or "nothing"
    try:
        want = computed(model.SerializeToString(), g.feeds)
    except Exception as e:  # of several kinds: it is no graph
        return "skipped", f"{told}: {str(e)[:100]}"
    onnx.save(model, folder / "m.onnx")
    command = [MHAGEN, "model", "m.onnx", "isa=scalar", "--onnxruntime", "-o", "out", "--force"]
    result = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=600,
                            env={**os.environ, "CC": "cc -O0"})
    said = result.stderr.strip() or result.stdout.strip()
    if result.returncode == 2 and said.count("\n") == 0 and ".lua:" not in said:
        return "refused", f"{told}: {said}"
    if result.returncode:
        return "failed", f"{told}: status {result.returncode}: {said[-500:]}"
    try:
        got = computed(str(folder / "out/model.onnx"), g.feeds, folder / "out/libmodel.so")
    except Exception as e:  # the graph ran before
        return "failed", f"{told}: {str(e)[:500]}"
    why = differs(want, got, g.near, g.infinite)
    return ("failed", f"{told}: {why}") if why else ("ok", told)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--seed", default=os.environ.get("MHAGEN_SEED", str(int(time.time()))))
    parser.add_argument("--replay", type=int)
    args = parser.parse_args()
    counts = dict.fromkeys(["ok", "failed", "refused", "skipped"], 0)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lookalikes."))
    for number in [args.replay] if args.replay is not None else range(args.count):
        what, why = verdict(f"{args.seed} {number}", folder)
        counts[what] += 1
        if what == "failed" or args.replay is not None:
            again = f"python3 tests/models/fuzz_lookalikes.py --seed {args.seed} --replay {number}"
            print(f"{what}: {why}\n  {again}", flush=True)
    if args.replay is not None:
        print(folder)
    else:
        subprocess.run(["rm", "-r", folder], check=True)
    print("lookalikes   " + ", ".join(f"{count} {what}" for what, count in counts.items()) + f": seed {args.seed}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
