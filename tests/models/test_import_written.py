"""`mhagen model` of ONNX files whose attention is written as products and a Softmax, as exporters write it: the layers
that are found against what ONNX Runtime computes of the same graph; and what is no layer, with the reason."""
import random
import warnings

import pytest

from test_import import Imported, refused
from tools import MHAGEN, SEED, installed, need_sums_of_bytes, run, seed_of

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

from onnx import TensorProto, helper, numpy_helper

from onnx_layers import compare, layers_of, rows_of
from test_import_onnx import BATCH, Drawing

NEAR = 1e-5  # relative, against float32 of ONNX Runtime
LOW = float(np.finfo("f4").min)


class Written(Drawing):
    """A graph with attention in its single products."""

    def __init__(self, seed):
        super().__init__(seed)
        self.h, self.outputs, self.functions, self.opset = 2 * self.h_kv, [], [], 17

    def ints(self, *values):
        return self.constant(np.array(values, "i8"))

    def floats(self, *values):
        return self.constant(np.array(values if len(values) > 1 else values[0], "f4"))

    def linear(self, x, columns, bias=True):
        w = self.constant(self.x(self.width, columns))
        y = self.node("MatMul", x, w)
        return self.node("Add", self.constant(self.x(columns)), y) if bias else y

    def heads(self, x, h, perm=(0, 2, 1, 3)):
        return self.node("Transpose", self.node("Reshape", x, self.ints(0, -1, h, self.dk)), perm=perm)

    def softmax(self, scores, axis=-1):
        return self.node("Softmax", scores, axis=axis)

    def attend(self, q, kt, v, scale=True):
        scores = self.node("MatMul", q, kt)
        if scale:
            scores = self.node("Mul", scores, self.floats(self.dk**-0.5))
        return self.node("MatMul", self.softmax(scores), v)

    def rows(self, context, h=None):
        y = self.node("Transpose", context, perm=[0, 2, 1, 3])
        return self.node("Reshape", y, self.ints(0, -1, (h or self.h) * self.dk))

    def finish(self, context):
        y = self.node("MatMul", self.rows(context), self.constant(self.x(self.h * self.dk, 8)))
        return self.node("Add", y, self.constant(self.x(8)))

    def qkv(self, x, h_kv=None):
        h_kv = h_kv or self.h
        return [self.linear(x, heads * self.dk) for heads in (self.h, h_kv, h_kv)]

    def source(self):
        return self.input("x", self.x(BATCH, self.seq, self.width))


def plain(g):
    """PyTorch's: scaled on both sides; the transposes of K in one."""
    x = g.source()
    q, k, v = g.qkv(x)
    root = g.floats(g.dk**-0.25)
    q = g.node("Mul", g.heads(q, g.h), root)
    kt = g.node("Mul", g.heads(k, g.h, (0, 2, 3, 1)), root)
    return g.finish(g.attend(q, kt, g.heads(v, g.h), scale=False)), "h={h} d_model=12 dk={dk}"


def joint(order):
    """Q, K and V as columns of one matrix, in an order of their axes."""
    def build(g):
        sizes = {"3": 3, "h": g.h, "d": g.dk}
        made = g.node("Reshape", g.linear(g.source(), 3 * g.h * g.dk), g.ints(0, -1, *[sizes[c] for c in order]))
        perm = [2 + order.index("3"), 0, 2 + order.index("h"), 1, 2 + order.index("d")]
        made = g.node("Transpose", made, perm=perm)
        parts = []
        for i in range(3):
            if g.coin():
                part = g.node("Slice", made, g.ints(i), g.ints(i + 1), g.ints(0), g.ints(1))
                parts.append(g.node("Squeeze", part, g.ints(0)))
            else:
                parts.append(g.node("Gather", made, g.constant(np.array(i)), axis=0))
        q, k, v = parts
        kt = g.node("Transpose", k, perm=[0, 1, 3, 2])
        return g.finish(g.attend(q, kt, v)), "h={h} d_model=12 dk={dk}"
    build.__name__ = f"joint_{order}"
    return build


def split_of_shapes(g):
    """The bounds of slices are computed from shapes; the heads too."""
    made = g.linear(g.source(), 3 * g.h * g.dk)
    size = g.node("Gather", g.node("Shape", made), g.ints(-1))
    third = g.node("Div", size, g.ints(3))
    bounds = [g.ints(0), third, g.node("Mul", third, g.ints(2)), size]
    parts = [g.node("Slice", made, bounds[i], bounds[i + 1], g.ints(-1)) for i in range(3)]
    dk = g.node("Div", third, g.ints(g.h))
    shape = g.node("Concat", g.ints(0, -1), g.ints(g.h), dk, axis=0)
    q, k, v = [g.node("Transpose", g.node("Reshape", part, shape), perm=[0, 2, 1, 3]) for part in parts]
    kt = g.node("Transpose", k, perm=[0, 1, 3, 2])
    return g.finish(g.attend(q, kt, v)), "h={h} d_model=12 dk={dk}"


def gemm(g):
    """Rows of all sequences below each other, and heads and sequences in one axis."""
    flat = g.node("Reshape", g.source(), g.ints(-1, g.width))
    parts = []
    for _ in range(3):
        y = g.node("Gemm", flat, g.constant(g.x(g.h * g.dk, g.width)), g.constant(g.x(g.h * g.dk)), transB=1)
        y = g.heads(g.node("Reshape", y, g.ints(BATCH, g.seq, g.h * g.dk)), g.h)
        parts.append(g.node("Reshape", y, g.ints(-1, g.seq, g.dk)))
    q, k, v = parts
    context = g.attend(g.node("Div", q, g.floats(g.dk**0.5)), g.node("Transpose", k, perm=[0, 2, 1]), v, scale=False)
    context = g.node("Reshape", context, g.ints(BATCH, g.h, g.seq, g.dk))
    y = g.node("Gemm", g.node("Reshape", g.rows(context), g.ints(-1, g.h * g.dk)),
               g.constant(g.x(g.h * g.dk, 8)), g.constant(g.x(8)))
    return g.node("Reshape", y, g.ints(BATCH, g.seq, 8)), "h={h} d_model=12 dk={dk}"


def channels(g):
    """Convolutions of width 1 behind a transpose."""
    x = g.node("Transpose", g.source(), perm=[0, 2, 1])
    parts = []
    for _ in range(3):
        y = g.node("Conv", x, g.constant(g.x(g.h * g.dk, g.width, 1)), g.constant(g.x(g.h * g.dk)))
        parts.append(g.node("Reshape", y, g.ints(0, g.h, g.dk, -1)))
    q, k, v = parts
    q, v = [g.node("Transpose", part, perm=[0, 1, 3, 2]) for part in (q, v)]
    return g.finish(g.attend(q, k, v)), "h={h} d_model=12 dk={dk}"


def values_first(g):
    """V by transposed weights, as in YOLO's attention, whose rows are channels."""
    x = g.node("Transpose", g.source(), perm=[0, 2, 1])
    y = g.node("Conv", x, g.constant(g.x(3 * g.h * g.dk, g.width, 1)), g.constant(g.x(3 * g.h * g.dk)))
    made = g.node("Reshape", y, g.ints(0, g.h, 3 * g.dk, -1))
    q, k, v = g.node("Split", made, g.ints(g.dk, g.dk, g.dk), outputs=3, axis=2)
    scores = g.node("Mul", g.node("MatMul", g.node("Transpose", q, perm=[0, 1, 3, 2]), k), g.floats(g.dk**-0.5))
    y = g.node("MatMul", v, g.node("Transpose", g.softmax(scores), perm=[0, 1, 3, 2]))
    y = g.node("Conv", g.node("Reshape", y, g.ints(0, g.h * g.dk, -1)), g.constant(g.x(8, g.h * g.dk, 1)))
    return g.node("Transpose", y, perm=[0, 2, 1]), "h={h} d_model=12 dk={dk}"


def selects(g):
    """As tf2onnx 1.17.0 writes Keras 3.15.1: Gemm without a bias, and a causal Select as sums of products."""
    flat, shape, parts = g.node("Reshape", g.source(), g.ints(-1, g.width)), g.ints(BATCH, g.seq, g.h, g.dk), []
    for _ in range(3):
        y = g.node("Gemm", flat, g.constant(g.x(g.h * g.dk, g.width)), transB=1, beta=0.0)
        y = g.node("Add", g.node("Reshape", y, shape), g.constant(g.x(g.h, g.dk)))
        parts.append(g.node("Transpose", y, perm=[0, 2, 1, 3]))
    q, k, v = parts
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    size = g.node("Gather", g.node("Shape", scores), g.ints(-1))
    ones = g.node("Expand", g.constant(np.array(1)), g.node("Mul", size, size))
    place = g.node("CumSum", ones, g.constant(np.array(0)), exclusive=1)
    place = g.node("Reshape", place, g.node("Concat", size, size, axis=0))
    far = g.node("Sub", g.node("Mod", place, size), g.node("Div", place, size))
    seen = g.node("Not", g.node("Greater", far, g.constant(np.array(0))))
    flag, other = g.node("Cast", seen, to=1), g.node("Cast", g.node("Not", seen), to=1)
    scores = g.node("Mul", flag, g.node("Mul", scores, g.floats(g.dk**-0.5)))
    scores = g.node("Add", scores, g.node("Mul", g.floats(-1e9), other))
    keys = "h={h} d_model=12 dk={dk} causal=true"
    return g.finish(g.node("MatMul", g.softmax(scores), v)), keys


def einsum(g):
    """Keras's before it is converted: heads as an axis of Einsum, and a bias for each head."""
    q, k, v = [g.node("Add", g.node("Reshape", g.linear(g.source() if i == 0 else "x", g.h * g.dk, False),
                                    g.ints(0, 0, g.h, g.dk)), g.constant(g.x(g.h, g.dk))) for i in range(3)]
    scores = g.node("Einsum", g.node("Mul", q, g.floats(g.dk**-0.5)), k, equation="bqhd,bkhd->bhqk")
    y = g.node("Einsum", g.softmax(scores, 3), v, equation="bhqk,bkhd->bqhd")
    y = g.node("MatMul", g.node("Reshape", y, g.ints(0, 0, g.h * g.dk)), g.constant(g.x(g.h * g.dk, 8)))
    return y, "h={h} d_model=12 dk={dk}"


def shared(g):
    """Heads share keys and values, by Expand."""
    x = g.source()
    q, k, v = g.qkv(x, g.h_kv)
    parts = []
    for part in k, v:
        part = g.node("Unsqueeze", g.heads(part, g.h_kv), g.ints(2))
        part = g.node("Expand", part, g.ints(BATCH, g.h_kv, 2, g.seq, g.dk))
        parts.append(g.node("Reshape", part, g.ints(BATCH, g.h, g.seq, g.dk)))
    kt = g.node("Transpose", parts[0], perm=[0, 1, 3, 2])
    return g.finish(g.attend(g.heads(q, g.h), kt, parts[1])), "h={h} h_kv={h_kv} d_model=12 dk={dk}"


def one_key(g):
    """One head of keys and values, broadcast by the products."""
    q, k, v = g.qkv(g.source(), 1)
    return (g.finish(g.attend(g.heads(q, g.h), g.heads(k, 1, (0, 2, 3, 1)), g.heads(v, 1))),
            "h={h} h_kv=1 d_model=12 dk={dk}")


def normed(g, x):
    square = g.node("ReduceMean", g.node("Pow", x, g.floats(2.0)), axes=[-1])
    x = g.node("Mul", x, g.node("Reciprocal", g.node("Sqrt", g.node("Add", square, g.floats(1e-5)))))
    return g.node("Mul", g.constant(g.x(g.dk) + 1), x)


def rotated(interleaved, behind=lambda q: q, normed=normed):
    def build(g):
        """Norms of queries and keys, then rope by positions; a bias before."""
        frequencies = (100.0 ** -(np.arange(g.dk // 2) / (g.dk // 2))).astype("f4")
        angle = np.arange(g.seq)[:, None] * frequencies
        cos, sin = [g.constant(f(np.tile(angle, 2)).astype("f4")) for f in (np.cos, np.sin)]
        if interleaved:  # computed in the graph
            angle = g.node("Einsum", g.constant(np.arange(g.seq, dtype="f4")), g.constant(frequencies),
                           equation="i, j -> i j")
            angle = g.node("Concat", *[g.node("Unsqueeze", angle, g.ints(-1)) for _ in range(2)], axis=-1)
            angle = g.node("Reshape", angle, g.ints(g.seq, g.dk))
            cos, sin = g.node("Cos", angle), g.node("Sin", angle)

        def turned(x):
            half = g.dk // 2
            if interleaved:
                odd = g.node("Neg", g.node("Slice", x, g.ints(1), g.ints(2**62), g.ints(-1), g.ints(2)))
                even = g.node("Slice", x, g.ints(0), g.ints(2**62), g.ints(-1), g.ints(2))
                pair = [g.node("Unsqueeze", part, g.ints(-1)) for part in (odd, even)]
                other = g.node("Reshape", g.node("Concat", *pair, axis=-1), g.node("Shape", x))
            else:
                first, second = [g.node("Slice", x, g.ints(a), g.ints(b), g.ints(3))
                                 for a, b in ((0, half), (half, 2**62))]
                other = g.node("Concat", g.node("Neg", second), first, axis=-1)
            return g.node("Add", g.node("Mul", x, cos), g.node("Mul", other, sin))
        q, k, v = g.qkv(g.source())
        q, k = [g.heads(x, g.h) for x in (q, k)]
        if not interleaved and normed:
            q, k = normed(g, q), normed(g, k)
        kt = g.node("Transpose", turned(k), perm=[0, 1, 3, 2])
        norm = "qk_norm=rms norm_eps=1e-05 " if not interleaved and normed else ""
        return (g.finish(g.attend(behind(turned(q)), kt, g.heads(v, g.h))),
                f"h={{h}} d_model=12 dk={{dk}} {norm}rope={'interleaved' if interleaved else 'half'}")
    build.__name__ = "interleaved" if interleaved else "halves"
    return build


def by_head(g):
    """A factor for each head of scores and values, and one for each column of keys."""
    q, k, v = g.qkv(g.source())
    k = g.node("Mul", g.heads(k, g.h), g.constant(g.x(g.dk) + 1))
    scores = g.node("MatMul", g.heads(q, g.h), g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Div", scores, g.constant(g.x(g.h, 1, 1) + 1))
    v = g.node("Mul", g.heads(v, g.h), g.constant(g.x(1, g.h, 1, 1) + 1))
    return g.finish(g.node("MatMul", g.softmax(scores), v)), "h={h} d_model=12 dk={dk}"


def by_head_turned(g):
    """A factor for each head behind rope, which may be negative but for the first one."""
    by = np.abs(g.x(g.h, 1, 1)) + 0.5
    by[-1] = -0.5
    return rotated(False, lambda x: g.node("Mul", x, g.constant(by)), normed=False)(g)


def cosines(g):
    """Swin 2's: scores of unit vectors times a bounded factor of each head."""
    def unit(x):
        length = g.node("Clip", g.node("ReduceL2", x, axes=[-1], keepdims=1), g.floats(1e-12))
        return g.node("Div", x, g.node("Expand", length, g.node("Shape", x)))
    q, k, v = g.qkv(g.source())
    kt = g.node("Transpose", unit(g.heads(k, g.h)), perm=[0, 1, 3, 2])
    scores = g.node("MatMul", unit(g.heads(q, g.h)), kt)
    by = g.node("Exp", g.node("Clip", g.constant(g.x(g.h, 1, 1) + 2), "", g.floats(2.0)))
    return (g.finish(g.node("MatMul", g.softmax(g.node("Mul", scores, by)), g.heads(v, g.h))),
            "h={h} d_model=12 dk={dk} scale=1 qk_norm=l2 norm_span=each norm_eps=1e-12")


def masked(g):
    """A causal mask of constants by Where, a softcap, and a mask of inputs that is added."""
    q, k, v = g.qkv(g.source())
    scores = g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)))
    scores = g.node("Mul", g.node("Tanh", g.node("Div", scores, g.floats(4.0))), g.floats(4.0))
    seen = g.constant(np.tril(np.ones((1, 1, 9, 9), bool)))
    seen = g.node("Slice", seen, g.ints(0, 0), g.ints(g.seq, g.seq), g.ints(2, 3))
    scores = g.node("Where", seen, scores, g.floats(LOW))
    pad = (np.arange(g.seq) < g.numbers.integers(1, g.seq + 1, (BATCH, 1, 1, 1))).astype("f4")
    off = g.node("Mul", g.node("Sub", g.floats(1.0), g.input("pad", pad)), g.floats(-1e9))
    y = g.node("MatMul", g.softmax(g.node("Add", scores, off)), g.heads(v, g.h))
    return g.finish(y), "h={h} d_model=12 dk={dk} causal=true mask=add mask_dims=bk scale=1 softcap=4"


def windows(g):
    """A band of constants, computed from positions; and weights that are cleared where they are no numbers."""
    q, k, v = g.qkv(g.source())
    scores = g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)))
    place = g.node("Range", g.constant(np.array(0)), g.constant(np.array(g.seq)), g.constant(np.array(1)))
    far = g.node("Sub", g.node("Unsqueeze", place, g.ints(1)), g.node("Unsqueeze", place, g.ints(0)))
    seen = g.node("LessOrEqual", g.node("Abs", far), g.constant(np.array(1)))
    mask = g.node("Where", seen, g.floats(0.0), g.floats(-np.inf))
    p = g.softmax(g.node("Add", mask, scores))
    p = g.node("Where", g.node("IsNaN", p), g.floats(0.0), p)
    keys = "window_left=1 window_right=1 scale=1" if g.seq > 2 else "scale=1"
    return g.finish(g.node("MatMul", p, g.heads(v, g.h))), "h={h} d_model=12 dk={dk} " + keys


def unseen(g):
    """A mask of bools says what is not seen, by batch entry and head, and clears the weights too; another is added."""
    q, k, v = g.qkv(g.source())
    hidden = g.numbers.integers(0, 2, (BATCH, g.h, 1, g.seq)).astype(bool)
    hidden[..., 0] = False
    scores = g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)))
    scores = g.node("Add", scores, g.constant(g.x(1, 1, g.seq, g.seq)))
    scores = g.node("Where", g.input("hidden", hidden), g.floats(LOW), scores)
    weights = g.node("Where", g.node("Not", g.node("Cast", "hidden", to=TensorProto.BOOL)), g.softmax(scores),
                     g.floats(0.0))
    return (g.finish(g.node("MatMul", weights, g.heads(v, g.h))),
            "h={h} d_model=12 dk={dk} mask=add mask_dims=bhqk scale=1")


def quantized(by_row):
    def build(g):
        """Weights of integers behind DequantizeLinear, or Mul by constants."""
        x = g.source()
        parts = []
        for _ in range(3):
            w = g.numbers.integers(-127, 128, (g.h * g.dk, g.width)).astype("i1")
            count = g.width if by_row else g.h * g.dk
            scale = g.constant((g.numbers.random(count) / 200 + 0.01).astype("f4"))
            name = f"w{len(g.constants)}"
            g.constants.append(numpy_helper.from_array(w, name))
            if parts:
                w = g.node("DequantizeLinear", name, scale, axis=1 if by_row else 0)
            else:
                scale = scale if by_row else g.node("Unsqueeze", scale, g.ints(1))
                w = g.node("Mul", g.node("Cast", name, to=TensorProto.FLOAT), scale)
            parts.append(g.node("MatMul", x, g.node("Transpose", w, perm=[1, 0])))
        q, k, v = parts
        return (g.finish(g.attend(g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))),
                "h={h} d_model=12 dk={dk}")
    build.__name__ = f"quantized_{'rows' if by_row else 'columns'}"
    return build


def few_bits(g):
    """MatMulNBits, with zeros or without, and rows of a last block that is padded; beside it a matrix of floats."""
    g.width = g.random.choice([32, 40])
    x, columns, parts = g.source(), g.h * g.dk, []

    def product(x, width, columns, bits, zeros):
        size = 16
        groups = -(-width // size)
        scales = (g.numbers.random(columns * groups) / 8 / 2**bits + 0.01).astype("f4")
        wide = groups if bits == 8 else -(-groups // 2)
        inputs = [x, g.constant(g.numbers.integers(0, 256, (columns, groups, size * bits // 8), "u1")),
                  g.constant(scales)]
        if zeros == "packed":
            inputs.append(g.constant(g.numbers.integers(0, 256, columns * wide, "u1")))
        elif zeros:
            inputs.append(g.constant(g.x(columns * groups) + 8))
        return g.node("MatMulNBits", *inputs, domain="com.microsoft", K=width, N=columns, bits=bits, block_size=size)
    for zeros in "packed", "floats", None:
        parts.append(product(x, g.width, columns, 4 if zeros == "floats" or g.coin() else 8, zeros))
    parts[1] = g.node("Add", parts[1], g.constant(g.x(columns)))
    q, k, v = parts
    scores = g.node("Mul", g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1))), g.floats(0.02))
    context = g.rows(g.node("MatMul", g.softmax(scores), g.heads(v, g.h)))
    last = g.node("MatMul", context, g.constant(g.x(columns, 8))) if g.coin() else product(context, columns, 8, 4, None)
    return last, "h={h} d_model={width} dk={dk}"


def blocks(g):
    """DequantizeLinear with scales of blocks of rows: in the order of MatMul, and of Gemm."""
    g.width, g.opset, columns, parts = 32, 21, g.h * g.dk, []
    flat = g.node("Reshape", g.source(), g.ints(-1, g.width))
    for kind in TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8:
        turned = g.random.randrange(2)
        low, high = {TensorProto.INT4: (-8, 8), TensorProto.UINT4: (0, 16), TensorProto.INT8: (-127, 128)}[kind]

        def integers(*shape):
            name, shape = f"w{len(g.constants)}", shape[::-1] if turned else shape
            x = g.numbers.integers(low, high, shape).ravel()
            raw = x.astype("i1") if high > 16 else (x[::2] & 15 | (x[1::2] & 15) << 4).astype("u1")
            g.constants.append(helper.make_tensor(name, kind, shape, raw.tobytes(), raw=True))
            return name
        scales = (g.numbers.random((2, columns)) / 50 + 0.01).astype("f4")
        zeros = [integers(2, columns)] if kind == TensorProto.UINT4 else []
        w = g.node("DequantizeLinear", integers(g.width, columns), g.constant(scales.T.copy() if turned else scales),
                   *zeros, axis=turned, block_size=16)
        y = g.node("Gemm", flat, w, g.constant(g.x(columns)), transB=turned)
        parts.append(g.node("Reshape", y, g.ints(BATCH, g.seq, columns)))
    q, k, v = parts
    scores = g.node("Mul", g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1))), g.floats(0.05))
    return g.finish(g.node("MatMul", g.softmax(scores), g.heads(v, g.h))), "h={h} d_model={width} dk={dk}"


def short_vector(g):
    """A bias of 4 bits, of which the file has two in each number of a list."""
    g.opset, x, columns = 21, g.source(), g.h * g.dk
    g.constants.append(helper.make_tensor("four", TensorProto.INT4, [columns], g.numbers.integers(-8, 8, columns)))
    q, k, v = g.qkv(x)
    q = g.heads(g.node("Add", q, g.node("DequantizeLinear", "four", g.floats(0.25))), g.h)
    return g.finish(g.attend(q, g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))), "h={h} d_model=12 dk={dk}"


def dynamic(g):
    """Products of integers, as ONNX Runtime's dynamic quantization writes them."""
    def product(x, width, columns):
        whole, scale, zero = g.node("DynamicQuantizeLinear", x, outputs=3)
        name = f"w{len(g.constants)}"
        g.constants.append(numpy_helper.from_array(g.numbers.integers(-127, 128, (width, columns)).astype("i1"), name))
        y = g.node("Cast", g.node("MatMulInteger", whole, name, zero), to=TensorProto.FLOAT)
        own = g.constant((g.numbers.random(columns) / 200 + 0.01).astype("f4"))
        return g.node("Mul", y, g.node("Mul", scale, own))
    x = g.source()
    q, k, v = [g.node("Add", product(x, g.width, g.h * g.dk), g.constant(g.x(g.h * g.dk))) for _ in range(3)]
    context = g.attend(g.node("Mul", g.heads(q, g.h), g.floats(0.1)), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))
    return product(g.rows(context), g.h * g.dk, 8), "h={h} d_model=12 dk={dk}"


def between(g):
    """Something that is not known between a projection and the scores: Q is an input, and the output stays outside
    where another node reads the context."""
    q, k, v = g.qkv(g.source())
    q = g.node("Sigmoid", g.heads(q, g.h))
    context = g.attend(q, g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))
    g.outputs.append(context)
    return g.finish(context), "h={h} dk={dk} k_width=12 v_width=12 project=kv layout=bhsd"


def body(nodes, output, constants=()):
    """A graph within a node."""
    return helper.make_graph(nodes, "body", [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
                             list(constants))


def by_places(g):
    """Rows that are scaled or shifted by their places, and numbers that come back from integers by another scale: no
    projection makes them."""
    g.seq = 6
    q, k, v = g.qkv(g.source())
    q = g.node("DequantizeLinear", g.node("QuantizeLinear", q, g.floats(0.01)), g.floats(0.03))
    k = g.node("Add", k, g.constant(g.x(g.seq, g.h * g.dk)))
    v = g.node("Mul", v, g.constant(np.float32([1, 1, 2, 1, 1, 1])[:, None]))
    return (g.finish(g.attend(g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))),
            "h={h} dk={dk} project=o")


def rows_in_threes(g):
    """Rows as three axes, of which two change places: the first two rows and the last one stay where they are."""
    g.seq = 8
    x = g.node("Reshape", g.source(), g.ints(BATCH, 2, 2, 2, g.width))
    flat, parts = g.node("Reshape", g.node("Transpose", x, perm=[0, 2, 1, 3, 4]), g.ints(-1, g.width)), []
    for _ in range(3):
        y = g.node("Gemm", flat, g.constant(g.x(g.width, g.h * g.dk)), g.constant(g.x(g.h * g.dk)))
        parts.append(g.node("Reshape", y, g.ints(BATCH, g.seq, g.h * g.dk)))
    q, k, v = parts
    return (g.finish(g.attend(g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))),
            "h={h} d_model=12 dk={dk}")


def matrix_in_threes(g):
    """Rows of matrices as three axes, of which two change places; and numbers that are added to the rows of Y."""
    g.width, g.seq = 27, 8
    x, parts = g.source(), []
    for _ in range(3):
        w = g.node("Transpose", g.constant(g.x(3, 3, 3, g.h * g.dk)), perm=[1, 0, 2, 3])
        parts.append(g.node("MatMul", x, g.node("Reshape", w, g.ints(27, g.h * g.dk))))
    q, k, v = parts
    context = g.attend(g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))
    y, by_row = g.node("MatMul", g.rows(context), g.constant(g.x(g.h * g.dk, 8))), g.x(8, 1)
    by_row[7] = by_row[0]
    return g.node("Add", y, g.constant(by_row)), "h={h} dk={dk} project=o"


def channel_norms(g):
    """Batch norms behind projections, as LeViT has them, some with negative factors; rows that are the sum of a
    SkipLayerNormalization."""
    x = g.node("SkipLayerNormalization", g.source(), "x", g.constant(g.x(g.width)), domain="com.microsoft", outputs=4)
    x = x[3]
    flat, parts = g.node("Reshape", x, g.ints(-1, g.width)), []
    for _ in range(3):
        y = g.node("Gemm", flat, g.constant(g.x(g.width, g.h * g.dk)), g.constant(g.x(g.h * g.dk)))
        gain, bias, mean, variance = [g.x(g.h * g.dk) for _ in range(4)]
        y = g.node("BatchNormalization", y, *map(g.constant, (gain, bias, mean, np.abs(variance) + 1)), epsilon=1e-3)
        parts.append(g.node("Reshape", y, g.ints(BATCH, g.seq, g.h * g.dk)))
    q, k, v = parts
    return (g.finish(g.attend(g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))),
            "h={h} d_model=12 dk={dk}")


def by_distance(g):
    """SAM's: products of Q and constants are a mask that is added to the scores."""
    q, k, v = g.qkv(g.source())
    q = g.heads(q, g.h)
    scores = g.node("Mul", g.node("MatMul", q, g.heads(k, g.h, (0, 2, 3, 1))), g.floats(g.dk**-0.5))
    table = g.node("Sin", g.constant(g.x(g.h, g.seq, g.seq, g.dk)))
    far = g.node("Einsum", g.node("Transpose", q, perm=[0, 2, 1, 3]), table, equation="bqhd,hqkd->bhqk")
    y = g.node("MatMul", g.softmax(g.node("Add", far, scores)), g.heads(v, g.h))
    return g.finish(y), "h={h} d_model=12 dk={dk} mask=add mask_dims=bhqk"


def merged(g):
    """PyTorch's MultiheadAttention: masks of constants and of inputs in one, by Where and by Add."""
    g.seq = 5
    q, k, v = g.qkv(g.source())
    far = np.where(np.tril(np.ones((g.seq, g.seq), bool)), 0, -np.inf).astype("f4")
    far = g.node("Where", g.input("seen", np.ones((BATCH, 1, 1, g.seq), bool)), g.constant(far), g.floats(-np.inf))
    far = g.node("Add", far, g.input("pad", g.x(BATCH, 1, 1, g.seq)))
    scores = g.node("Add", g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1))), far)
    return (g.finish(g.node("MatMul", g.softmax(scores), g.heads(v, g.h))),
            "h={h} d_model=12 dk={dk} causal=true mask=add mask_dims=bqk scale=1")


def sparse(g):
    """Masks that look like others: causal but for some rows in the middle, and a bias of one head in the middle."""
    g.h, g.seq = 8, 40
    q, k, v = g.qkv(g.source())
    seen, bias = np.tril(np.ones((g.seq, g.seq), bool)), np.zeros((8, 1, g.seq), "f4")
    seen[17:20, 3:15], seen[25], bias[5] = False, True, 4 * g.x(1, g.seq)
    scores = g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)))
    scores = g.node("Where", g.constant(seen), scores, g.floats(LOW))
    y = g.node("MatMul", g.softmax(g.node("Add", scores, g.constant(bias))), g.heads(v, g.h))
    return g.finish(y), "h={h} d_model=12 dk={dk} mask=add mask_dims=hqk scale=1"


def operator(by_head):
    def build(g):
        """Attention of opset 23 behind norms: of heads, or of all columns."""
        g.opset = 23
        q, k, v = [g.heads(x, h) if by_head else x for x, h in zip(g.qkv(g.source(), g.h_kv), (g.h, g.h_kv, g.h_kv))]
        q, k = [g.node("LayerNormalization", x, g.constant(g.x(width) + 1), axis=-1, epsilon=1e-5)
                for x, width in ((q, g.dk if by_head else g.h * g.dk), (k, g.dk if by_head else g.h_kv * g.dk))]
        mask = g.x(BATCH, 1, g.seq, g.seq)
        mask[..., 0] = 1  # a row without a key is not the same
        mask = mask > 0 if by_head else mask
        heads = {} if by_head else dict(q_num_heads=g.h, kv_num_heads=g.h_kv)
        y = g.node("Attention", q, k, v, g.input("mask", mask), is_causal=1, scale=0.3, **heads)
        keys = f"causal=true mask={'bool' if by_head else 'add'} mask_dims=bqk scale=0.3 qk_norm=layer"
        if by_head:
            return g.finish(y), f"h={{h}} h_kv={{h_kv}} d_model=12 dk={{dk}} {keys}"
        y = g.node("MatMul", y, g.constant(g.x(g.h * g.dk, 8)))
        return y, f"h={{h}} h_kv={{h_kv}} d_model=12 dk={{dk}} {keys} norm_span=all"
    build.__name__ = f"operator_{'heads' if by_head else 'rows'}"
    return build


def choice(g, condition, yes, no):
    """If, with a node in each body whose output has the same name there."""
    return g.node("If", condition, then_branch=body([yes], "it"), else_branch=body([no], "it"))


def is_one(g, x, axis):
    size = g.node("Gather", g.node("Shape", x), g.ints(axis))
    return g.node("Squeeze", g.node("Equal", size, g.ints(1)))


def branches(g):
    """PyTorch's squeeze, for an axis that may have more than one place; in a body of which another one is."""
    x = g.source()
    q, k, v = g.qkv(x)
    q = g.node("Unsqueeze", g.heads(q, g.h), g.ints(0))
    squeeze, same = helper.make_node("Squeeze", [q, "axis"], ["it"]), helper.make_node("Identity", [q], ["it"])
    axis = numpy_helper.from_array(np.array([0]), "axis")
    deep = helper.make_node("If", [is_one(g, x, 0)], ["deep"], then_branch=body([same], "it"),
                            else_branch=body([squeeze], "it", [axis]))
    q = g.node("If", is_one(g, q, 0), then_branch=body([deep, helper.make_node("Identity", ["deep"], ["it"])], "it"),
               else_branch=body([same], "it"))
    context = g.attend(q, g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))
    y = g.finish(context)
    same, other = [helper.make_node(op, [y], ["it"]) for op in ("Identity", "Neg")]
    return choice(g, is_one(g, y, 1), other, same), "h={h} d_model=12 dk={dk}"


def calls(g):
    """Functions of the model, of which one calls the other, and an attribute is the caller's."""
    made = helper.make_node
    turned = made("Transpose", ["x"], ["y"])
    turned.attribute.append(onnx.AttributeProto(name="perm", type=onnx.AttributeProto.INTS, ref_attr_name="order"))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    g.functions += [
        helper.make_function("own", "turn", ["x"], ["y"], [turned], imports, ["order"]),
        helper.make_function("own", "head", ["x", "w", "shape"], ["y"], [
            made("MatMul", ["x", "w"], ["0"]), made("Reshape", ["0", "shape"], ["1"]),
            made("turn", ["1"], ["y"], domain="own", order=[0, 2, 1, 3])], imports)]
    x, shape = g.source(), g.ints(0, -1, g.h, g.dk)
    q, k, v = [g.node("head", x, g.constant(g.x(g.width, g.h * g.dk)), shape, domain="own") for _ in range(3)]
    return g.finish(g.attend(q, g.node("Transpose", k, perm=[0, 1, 3, 2]), v)), "h={h} d_model=12 dk={dk}"


BUILDERS = [plain, joint("3hd"), joint("h3d"), joint("hd3"), split_of_shapes, gemm, channels, values_first, selects,
            einsum, shared, one_key, rotated(True), rotated(False), by_head, by_head_turned, cosines, masked, windows,
            unseen, quantized(False), quantized(True), few_bits, blocks, short_vector, dynamic, between, by_places,
            rows_in_threes,
            matrix_in_threes, channel_norms, by_distance, merged, sparse,
            operator(True), operator(False), branches, calls]


def model_of(g, y, opset=17):
    model = g.model(y, opset)
    model.functions.extend(g.functions)
    model.opset_import.extend([helper.make_opsetid("own", 1)] if g.functions else [])
    for name in g.outputs:
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("build", BUILDERS, ids=lambda build: build.__name__)
def test_written(build, tmp_path):
    """Each is one layer with these keys, and computes the same."""
    if build.__name__ == "dynamic":
        need_sums_of_bytes()
    g = Written(f"{SEED} {build.__name__}")
    y, keys = build(g)
    model = model_of(g, y, g.opset)
    onnx.save(model, tmp_path / "m.onnx")
    rows = rows_of(tmp_path / "m.onnx", tmp_path / "text", g.seq)
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", *rows, "-o", tmp_path / "text")
    found = [line.strip() for line in text.splitlines() if " isa=scalar" in line]
    wanted = keys.format(h=g.h, dk=g.dk, h_kv=g.h_kv, width=g.width).split()
    assert len(found) == 1 and "1 layer, 1 kernel" in text
    assert {word for word in found[0].split() if not word.startswith(("seq", "isa"))} >= set(wanted), (found, wanted)
    errors = compare(tmp_path / "m.onnx", model, g.inputs, tmp_path)
    print(f"\n{found[0]}: {max(errors.values()):.1e}", end="")
    near = 3e-2 if build is dynamic else NEAR  # theirs rounds activations to 8 bits
    assert len(errors) == 1 and max(errors.values()) <= near, text


def test_layers_of_one_matrix(tmp_path):
    """Two layers whose projections are columns of the same matrix do not share packed weights."""
    g = Written(f"{SEED} one matrix")
    x, each = g.source(), g.h * g.dk
    both = g.constant(g.x(g.width, 6 * each))
    for layer in range(2):
        parts = []
        for i in range(3):
            first = (3 * layer + i) * each
            w = g.node("Slice", both, g.ints(first), g.ints(first + each), g.ints(1))
            parts.append(g.node("MatMul", x, w))
        q, k, v = parts
        context = g.attend(g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h))
        g.outputs.append(g.rows(context))
    model = model_of(g, g.outputs.pop())
    onnx.save(model, tmp_path / "m.onnx")
    errors = compare(tmp_path / "m.onnx", model, g.inputs, tmp_path)
    assert len(errors) == 2 and max(errors.values()) <= NEAR, errors


def test_one_sequence(tmp_path):
    """A graph for one sequence, whose file leaves the batch open."""
    g = Written(f"{SEED} one sequence")
    g.width, rows = 8, g.node("Gather", g.node("Shape", g.input("x", g.x(1, g.seq, 8))), g.ints(1))
    x = g.node("Transpose", "x", perm=[1, 0, 2])
    q, k, v = [g.node("Reshape", part, g.node("Concat", rows, g.ints(g.h, g.dk), axis=0)) for part in g.qkv(x)]
    q, kt, v = [g.node("Transpose", part, perm=perm) for part, perm in ((q, [1, 0, 2]), (k, [1, 2, 0]), (v, [1, 0, 2]))]
    y = g.node("Transpose", g.attend(q, kt, v), perm=[1, 0, 2])
    y = g.node("Reshape", y, g.node("Concat", rows, g.ints(g.h * g.dk), axis=0))
    y = g.node("Reshape", g.node("MatMul", y, g.constant(g.x(g.h * g.dk, 8))), g.ints(1, -1, 8))
    model = model_of(g, y)
    for axis, name in enumerate(["batch", "rows"]):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    onnx.save(model, tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", f"seq={g.seq}", "-o", tmp_path / "text")
    assert f"h={g.h} d_model=8 dk={g.dk} seq={g.seq} isa=scalar\n" in text and " project=" not in text
    (error,) = compare(tmp_path / "m.onnx", model, g.inputs, tmp_path).values()
    assert error <= NEAR


# ---- caches ----


def decoder(rows=None):
    """A graph of one layer with keys of earlier runs and rope by positions that are an input."""
    g = Written(f"{SEED} decoder")
    x, h, dk = "x", g.h, g.dk
    q, k, v = [g.heads(part, heads) for part, heads in zip(g.qkv(x, g.h_kv), (h, g.h_kv, g.h_kv))]
    frequencies = g.constant((100.0 ** -(np.arange(dk // 2) / (dk // 2))).reshape(1, 1, -1).astype("f4"))
    places = g.node("Unsqueeze", g.node("Cast", "position_ids", to=TensorProto.FLOAT), g.ints(-1))
    angle = g.node("MatMul", places, frequencies)
    angle = g.node("Unsqueeze", g.node("Concat", angle, angle, axis=-1), g.ints(1))
    cos, sin = g.node("Cos", angle), g.node("Sin", angle)

    def turned(x):
        first, second = g.node("Split", x, g.ints(dk // 2, dk // 2), outputs=2, axis=-1)
        other = g.node("Concat", g.node("Neg", second), first, axis=-1)
        return g.node("Add", g.node("Mul", x, cos), g.node("Mul", other, sin))
    k = g.node("Concat", "past_key", turned(k), axis=2)
    v = g.node("Concat", "past_value", v, axis=2)
    g.outputs += [k, v]
    seen = g.node("LessOrEqual", g.node("Unsqueeze", g.node("Range", *[g.node("Squeeze", part) for part in (
        g.ints(0), g.node("Gather", g.node("Shape", k), g.ints(2)), g.ints(1))]), g.ints(0)),
        g.node("Unsqueeze", g.node("Gather", "position_ids", g.constant(np.array(0))), g.ints(-1)))
    k, v = [g.node("Reshape", g.node("Tile", g.node("Unsqueeze", part, g.ints(2)), g.ints(1, 1, h // g.h_kv, 1, 1)),
                   g.ints(0, h, -1, dk)) for part in (k, v)]
    scores = g.node("MatMul", turned(q), g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Where", seen, g.node("Mul", scores, g.floats(dk**-0.5)), g.floats(LOW))
    y = g.finish(g.node("MatMul", g.softmax(scores), v))
    model = model_of(g, y)
    of = helper.make_tensor_value_info
    past = [1, g.h_kv, "past", dk]
    model.graph.input.extend([of("x", 1, [1, "rows", g.width]), of("position_ids", TensorProto.INT64, [1, "rows"]),
                              of("past_key", 1, past), of("past_value", 1, past)])
    return g, model, y


def test_decoder(tmp_path):
    """Keys of earlier runs become a cache, if the command line has one; two runs of some rows against ONNX Runtime's,
    whose rows know their places. Without rows of their own K and V are inputs."""
    import onnxruntime

    from test_onnx import Memory
    g, model, y = decoder()
    path, rows = tmp_path / "m.onnx", 3
    onnx.save(model, path)
    said = refused(tmp_path, "model", path, "isa=scalar", "seq=3")
    assert "past_key has keys of earlier runs: give cache=append and seq_kv" in said
    text = run(MHAGEN, "model", path, "isa=scalar", "seq=3", "cache=none", "-o", tmp_path / "none", "--force")
    assert " project=o" in text
    imported = Imported(path, tmp_path / "out", "isa=scalar", f"seq={rows}", "seq_kv=8", "cache=append")
    assert "causal=true" in imported.text and "rope=half" in imported.text and "project" not in imported.text
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    past = [np.zeros((1, g.h_kv, 0, g.dk), "f4")] * 2
    memory, (name,) = Memory(), imported.layers
    cache = memory.of(np.full(imported.row(0).kernel.contents.cache_bytes // 4 + 16, np.nan))
    for run_number in range(2):
        x, at = g.x(1, rows, g.width), run_number * rows
        expected, *past = session.run(None, {"x": x, "position_ids": np.arange(at, at + rows)[None],
                                             "past_key": past[0], "past_value": past[1]})
        got, counts = memory.of(np.full_like(expected, np.nan)), memory.of(np.array([at]), "i4")
        imported.run(name, q=memory.of(x).ctypes.data, y=got.ctypes.data, cache=cache.ctypes.data,
                     past=counts.ctypes.data)
        assert np.linalg.norm(got - expected) <= NEAR * np.linalg.norm(expected)


# ---- what is no layer ----


def by_place(g):
    """Scores that depend on two products."""
    q, k, v = g.qkv(g.source())
    q, kt = g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1))
    scores = g.node("Add", g.node("MatMul", q, kt), g.node("MatMul", g.node("Sigmoid", q), g.node("Tanh", kt)))
    return g.finish(g.node("MatMul", g.softmax(scores), g.heads(v, g.h)))


def other_axis(g):
    q, k, v = g.qkv(g.source())
    scores = g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)))
    return g.finish(g.node("MatMul", g.softmax(scores, 2), g.heads(v, g.h)))


def by_query(g):
    q, k, v = g.qkv(g.source())
    scores = g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)))
    scores = g.node("Mul", scores, g.constant(g.x(g.seq, 1)))
    return g.finish(g.node("MatMul", g.softmax(scores), g.heads(v, g.h)))


def of_inputs(g):
    q, k, v = g.qkv(g.source())
    q, k = [g.node("Sigmoid", g.heads(x, g.h)) for x in (q, k)]
    scores = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    scores = g.node("Mul", scores, g.constant(g.x(g.h, 1, 1)))
    return g.finish(g.node("MatMul", g.softmax(scores), g.heads(v, g.h)))


def classes(g):
    return g.softmax(g.linear(g.source(), 5))


def unlike(g, scores=lambda x: x, weights=lambda x: x):
    """Attention with something of its own around the softmax."""
    g.seq = 8
    q, k, v = g.qkv(g.source())
    x = scores(g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1))))
    return g.finish(g.node("MatMul", weights(g.softmax(x, 3)), g.heads(v, g.h)))


def permuted(g, x):
    """Keys as three axes, of which two change places."""
    x = g.node("Transpose", g.node("Reshape", x, g.ints(BATCH, g.h, 8, 2, 2, 2)), perm=[0, 1, 2, 4, 3, 5])
    return g.node("Reshape", x, g.ints(BATCH, g.h, 8, 8))


def permuted_scores(g): return unlike(g, scores=lambda x: permuted(g, x))


def permuted_weights(g): return unlike(g, weights=lambda x: permuted(g, x))


def mixed_heads(g):
    """Rows of weights that are shared out among heads in another order."""
    return unlike(g, weights=lambda x: g.node("Reshape", g.node("Transpose", x, perm=[0, 2, 1, 3]),
                                              g.ints(BATCH, g.h, 8, 8)))


def dropped(g):
    """Weights that are cleared where no mask hides them."""
    seen = g.input("seen", np.ones((BATCH, 1, 1, 8), bool))
    return unlike(g, weights=lambda x: g.node("Where", seen, x, g.floats(0.0)))


def two_values(g):
    """Scores that are replaced by a constant of which the first number alone is low."""
    seen, other = g.input("seen", np.ones((BATCH, 1, 8, 8), bool)), g.x(8, 8)
    other[0, 0] = -1e9
    return unlike(g, scores=lambda x: g.node("Where", seen, x, g.constant(other)))


def unknown(g):
    return unlike(g, scores=lambda x: g.node("Compress", x, g.constant(np.ones(8, bool)), axis=3))


def misspelt(g):
    """An attribute that is a text where the operator has a number."""
    integers = g.constant(np.ones((g.width, g.h * g.dk), "i1"))
    q = g.node("MatMul", g.source(), g.node("DequantizeLinear", integers, g.floats(1.0, 2.0), axis="rows"))
    k, v = [g.linear("x", g.h * g.dk) for _ in range(2)]
    return g.finish(g.attend(g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h)))


LEFT = [(unknown, "the axes of its input are not known, for node Compress of "),
        *[(build, "is not what the config says") for build in (
            permuted_scores, permuted_weights, by_query, dropped, two_values)],
        (mixed_heads, "the axes of scores are transposed"), (by_place, "adds up two products"),
        (other_axis, "its axis is not the last one"), (of_inputs, "a factor for each head, and Q is no projection"),
        (classes, "no product"), (misspelt, "a node or a constant of it is not as an operator has it (gen/onnx/")]


def test_what_is_no_layer(tmp_path):
    """Each is said with the node and why; beside a layer the layer is imported."""
    for build, why in LEFT:
        g = Written(f"{SEED} {build.__name__}")
        y = build(g)
        g.nodes[[node.op_type for node in g.nodes].index("Softmax")].name = "it"
        onnx.save(model_of(g, y), tmp_path / "m.onnx")
        said = refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar", "seq=3")
        assert "node it: " in said and why in said, (build.__name__, said)
    g = Written(f"{SEED} both")
    y, _ = plain(g)
    rest = g.node("Softmax", y)
    g.outputs.append(y)
    onnx.save(model_of(g, rest), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    assert "1 layer, 1 kernel" in text and f"  no layer: Softmax of {rest}: " in text


def test_bodies_that_are_not_read(tmp_path):
    """An If whose condition is an input, and a Loop: each is said with the reason, and the layer beside is imported."""
    g = Written(f"{SEED} bodies")
    y, _ = plain(g)
    own = Written(f"{SEED} in a body")
    inner = plain(own)[0]
    flag = g.input("flag", np.array(True))
    chosen = body(own.nodes, inner, own.constants)
    other = body([helper.make_node("Identity", [y], ["same"])], "same")
    g.nodes.append(helper.make_node("If", [flag], ["chosen"], name="choose", then_branch=chosen, else_branch=other))
    of, boolean = helper.make_tensor_value_info, TensorProto.BOOL
    step = helper.make_graph([helper.make_node("Softmax", ["now"], ["next"]),
                              helper.make_node("Identity", ["go"], ["goes"])], "step",
                             [of("i", TensorProto.INT64, []), of("go", boolean, []), of("now", 1, None)],
                             [of("goes", boolean, []), of("next", 1, None)])
    g.nodes.append(helper.make_node("Loop", [g.constant(np.array(2)), "", y], ["looped"], name="loop", body=step))
    late = g.softmax(g.node("MatMul", "chosen", "looped"))
    g.nodes[-1].name = "late"
    g.outputs += ["chosen", "looped"]
    onnx.save(model_of(g, late), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    assert "1 layer, 1 kernel" in text
    assert "  no layer: choose: is If, whose condition, flag, depends on inputs, with 1 node of attention" in text
    assert "  no layer: loop: is Loop, whose body is not read, with 1 node of attention" in text
    assert ("  no layer: late: the axes of its input are not known, for node choose (If), whose condition, flag, "
            "depends on inputs, does not say its own") in text


def test_notes(tmp_path):
    """The summary says why a product is no projection."""
    g = Written(f"{SEED} notes")
    g.width = 32
    x, columns = g.source(), g.h * g.dk
    q = g.node("MatMulNBits", x, g.constant(np.zeros((columns, 2, 8), "u1")), g.constant(g.x(2 * columns)), "",
               g.constant(np.zeros(32, "i4")), domain="com.microsoft", K=32, N=columns, bits=4, block_size=16)
    g.nodes[-1].name = "few"
    k, v = [g.linear(x, columns) for _ in range(2)]
    y = g.finish(g.attend(g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1)), g.heads(v, g.h)))
    onnx.save(model_of(g, y), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    assert " project=kvo" in text and "      Q is an input: few (MatMulNBits) has g_idx\n" in text


def test_rows_that_end_within_a_byte(tmp_path):
    """Of numbers of 4 bits two are in a byte."""
    for width, read in (11, False), (12, True):
        g = Written(f"{SEED} odd")
        g.h, g.dk, g.width, g.opset = 1, width, width, 21
        x, integers = g.source(), g.numbers.integers(0, 256, (width * width + 1) // 2).astype("u1")
        g.constants.append(helper.make_tensor("w", TensorProto.UINT4, [width, width], integers.tobytes(), raw=True))
        q = g.node("MatMul", x, g.node("Cast", "w", to=TensorProto.FLOAT))
        k, v = [g.linear(x, width) for _ in range(2)]
        y = g.finish(g.attend(g.heads(q, 1), g.heads(k, 1, (0, 2, 3, 1)), g.heads(v, 1)))
        onnx.save(model_of(g, y, 21), tmp_path / "m.onnx")
        text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out", "--force")
        assert (" project=kvo" in text and "numbers of 4 bits in rows that end within a byte" in text) != read, text
        assert ("project=" in text) != read, text


def test_attributes_of_another_kind(tmp_path):
    g = Written(f"{SEED} kinds")
    y = g.node("Attention", *g.qkv(g.source()), q_num_heads=g.h, kv_num_heads=g.h, scale="large")
    onnx.save(model_of(g, y, 23), tmp_path / "m.onnx")
    assert ": scale: large must be a number" in refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar", "seq=3")


@pytest.mark.parametrize("of", ["heads", "sequences"])
def test_other_angles(of, tmp_path):
    """Heads or sequences that are turned by different angles are taken as they are, and V with a bias of each."""
    g = Written(f"{SEED} angles by head")
    g.seq, g.dk = 6, 8
    by = np.arange(1, g.h + 1)[:, None, None] if of == "heads" else np.arange(1, BATCH + 1)[:, None, None, None]
    angle = np.tile(np.arange(6)[:, None] * 0.3 ** np.arange(4), 2) * by
    cos, sin = [g.constant(f(angle).astype("f4")) for f in (np.cos, np.sin)]

    def turned(x):
        first, second = g.node("Split", x, g.ints(4, 4), outputs=2, axis=-1)
        other = g.node("Concat", g.node("Neg", second), first, axis=-1)
        return g.node("Add", g.node("Mul", x, cos), g.node("Mul", other, sin))
    q, k, v = [g.heads(x, g.h) for x in g.qkv(g.source())]
    v = g.node("Add", v, g.constant(g.x(BATCH, 1, 1, g.dk))) if of == "sequences" else v
    y = g.finish(g.attend(turned(q), g.node("Transpose", turned(k), perm=[0, 1, 3, 2]), v))
    onnx.save(model_of(g, y), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    assert f" project={'vo' if of == 'heads' else 'o'}" in text and " rope" not in text
    assert "Q is an input: with its projection " in text and " is not what the config says" in text


def test_shifted_behind_rope(tmp_path):
    """Rope is read back only if what was turned is the same for all rows; a mask has all the axes along which it
    moves, also where the first rows and keys share one number."""
    g = Written(f"{SEED} shifted")
    g.seq, half = 8, g.dk // 2
    angle = np.tile(np.arange(8)[:, None] * 0.3 ** np.arange(half), 2)
    cos, sin = [g.constant(f(angle).astype("f4")) for f in (np.cos, np.sin)]

    def turned(x):
        first, second = g.node("Split", x, g.ints(half, half), outputs=2, axis=-1)
        other = g.node("Concat", g.node("Neg", second), first, axis=-1)
        return g.node("Add", g.node("Mul", x, cos), g.node("Mul", other, sin))
    q, k, v = g.qkv(g.source())
    q, k = g.heads(g.node("Add", q, g.constant(g.x(8, g.h * g.dk))), g.h), g.heads(k, g.h)
    scores = g.node("MatMul", turned(q), g.node("Transpose", turned(k), perm=[0, 1, 3, 2]))
    scores = g.node("Reshape", scores, g.ints(BATCH, g.h, 2, 4, 2, 4))
    scores = g.node("Reshape", g.node("Add", scores, g.input("by_part", g.x(BATCH, 1, 2, 1, 2, 1))),
                    g.ints(BATCH, g.h, 8, 8))
    y = g.finish(g.node("MatMul", g.softmax(scores), g.heads(v, g.h)))
    onnx.save(model_of(g, y), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    assert " mask_dims=bqk" in text and " project=vo" in text and " rope" not in text
    assert "Q is an input: with its projection " in text and " is not what the config says" in text


def test_rounded_mask(tmp_path):
    """A mask is taken before it is quantized and back: of one with -inf this makes NaN."""
    g = Written(f"{SEED} rounded mask")
    q, k, v = g.qkv(g.source())
    pad = g.input("pad", np.where(np.arange(g.seq) < 1, 0, -np.inf).astype("f4"))
    scale = g.constant(np.float32(np.inf))
    pad = g.node("DequantizeLinear", g.node("QuantizeLinear", pad, scale), scale)
    scores = g.node("Add", g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1))), pad)
    y = g.finish(g.node("MatMul", g.softmax(scores), g.heads(v, g.h)))
    onnx.save(model_of(g, y), tmp_path / "m.onnx")
    (layer,) = layers_of(tmp_path / "m.onnx", tmp_path / "out", "isa=scalar")
    assert [mask["value"] for mask in layer["inputs"]["masks"]] == ["pad"]


def test_unsqueezed_mask(tmp_path):
    """--values also names a mask before Unsqueeze nodes, which move nothing; without such it names it once."""
    for axes in (0, 1), ():
        g = Written(f"{SEED} unsqueezed mask")
        q, k, v = g.qkv(g.source())
        pad = g.input("pad", g.x(g.seq))
        for axis in axes:
            pad = g.node("Unsqueeze", pad, g.ints(axis))
        scores = g.node("Add", g.node("MatMul", g.heads(q, g.h), g.heads(k, g.h, (0, 2, 3, 1))), pad)
        y = g.finish(g.node("MatMul", g.softmax(scores), g.heads(v, g.h)))
        onnx.save(model_of(g, y), tmp_path / "m.onnx")
        (layer,) = layers_of(tmp_path / "m.onnx", tmp_path / "out", "isa=scalar")
        (mask,) = layer["inputs"]["masks"]
        assert (mask["value"], mask.get("unsqueezed")) == (pad, "pad" if axes else None)


def test_nodes(tmp_path):
    """--values says what stands for a layer: the nodes that nothing else needs, and the values at its ends. The
    projection that another node reads stays."""
    g = Written(f"{SEED} nodes")
    y, _ = plain(g)
    q = next(node.output[0] for node in g.nodes if node.op_type == "Add")
    g.outputs.append(q)
    model = model_of(g, y)
    onnx.save(model, tmp_path / "m.onnx")
    (layer,) = layers_of(tmp_path / "m.onnx", tmp_path / "out", "isa=scalar")
    assert layer["inputs"] == {"q": "x", "masks": []} and layer["output"] == y
    named = {node.name or f"{node.op_type} of {node.output[0]}": node for node in model.graph.node}
    own = [named[name] for name in layer["nodes"]]
    kept = [node for node in model.graph.node if node not in own and node.op_type != "Constant"]
    assert {node.op_type for node in kept} == {"MatMul", "Add"} and kept[-1].output[0] == q and len(kept) == 2
    assert layer["node"] == layer["nodes"][-1] and "Softmax" in {node.op_type for node in own}


# ---- what others write ----

# Other exporters were tried by hand: Keras 3.15.1 (tf2onnx 1.17.0, and model.export), and paddlepaddle 3.3.1
# (paddle2onnx 2.1.0). All layers of three each were found, and differed by at most 3.1e-7.

SMALL = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
TEXT = SMALL | dict(vocab_size=40)
DECODER = TEXT | dict(num_key_value_heads=2, use_cache=False)
VISION = SMALL | dict(image_size=32, patch_size=8)

# Of transformers: the model, its config, what goes in, and keys that its layers have besides h, d_model and dk.
MODELS = {
    "Bert": (TEXT, "text", "mask=add"),
    "DistilBert": (dict(dim=32, n_heads=4, n_layers=2, hidden_dim=48, vocab_size=40), "text", "mask=add"),
    "ViT": (VISION, "image", ""),
    "Dinov2": ({key: value for key, value in VISION.items() if key != "intermediate_size"}, "image", ""),
    "CLIPVision": (VISION, "image", ""),
    "SiglipVision": (VISION, "image", ""),
    "Swin": (dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4), "image",
             "mask=add"),
    "GPT2": (dict(n_embd=32, n_head=4, n_layer=2, vocab_size=40, n_positions=32, use_cache=False), "text",
             "causal=true"),
    "T5Encoder": (dict(d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=48, vocab_size=40), "text",
                  "mask=add mask_dims=bhqk scale=1"),
    "Swinv2": (dict(image_size=32, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=4), "image",
               "scale=1 qk_norm=l2 norm_span=each mask=add"),
    "DebertaV2": (TEXT | dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8,
                              share_att_key=True, max_relative_positions=16, position_biased_input=False), "text",
                  "mask=add mask_dims=bhqk"),
    "Wav2Vec2": (SMALL | dict(conv_dim=(16, 16), conv_kernel=(4, 4), conv_stride=(2, 2), num_feat_extract_layers=2,
                              num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2), "sound", ""),
    "Llama": (DECODER, "text", "causal=true rope=half h_kv=2"),
    "Qwen3": (DECODER | dict(head_dim=16), "text", "causal=true rope=half qk_norm=rms"),
    "Gemma2": (DECODER | dict(head_dim=16, sliding_window=4, query_pre_attn_scalar=16), "text", "softcap=50"),
    "GPTNeoX": (TEXT | dict(use_cache=False, rotary_pct=0.5), "text", "causal=true rope=half rope_dims=4"),
    "Phi": (TEXT | dict(use_cache=False), "text", "causal=true rope=half rope_dims=4"),
    "GPTJ": (dict(n_embd=32, n_head=4, n_layer=2, rotary_dim=4, vocab_size=40, n_positions=32, use_cache=False), "text",
             "rope=interleaved rope_dims=4"),
}
CHOSEN = sorted(random.Random(SEED).sample(sorted(MODELS), 4)) if SEED != "all" else sorted(MODELS)


def exported(name, path, config, kind):
    """A model of random weights that PyTorch has exported; returns its inputs."""
    import torch
    import transformers
    torch.manual_seed(seed_of(name))
    config = getattr(transformers, name.replace("Encoder", "") + "Config")(**config)
    both = name not in ("DebertaV2", "Gemma2", "Swinv2", "T5Encoder")
    config._attn_implementation = random.Random(SEED + name).choice(["eager", "sdpa"]) if both else "eager"
    model = getattr(transformers, name + "Model")(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    inputs = {"text": lambda: {"input_ids": torch.randint(3, 40, (2, 7)),
                               "attention_mask": torch.ones(2, 7, dtype=torch.long)},
              "image": lambda: {"pixel_values": torch.randn(2, 3, 32, 32)},
              "sound": lambda: {"input_values": torch.randn(2, 80)}}[kind]()

    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *given):
            return self.model(**dict(zip(inputs, given)))[0]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter that needs no other package is the older one
        torch.onnx.export(First(), tuple(inputs.values()), str(path), input_names=list(inputs), dynamo=False,
                          opset_version=17, dynamic_axes={
                              key: dict(enumerate(["batch", "rows"][:1 if x.ndim == 4 else 2]))
                              for key, x in inputs.items()})
    return {key: x.numpy() for key, x in inputs.items()}


@pytest.mark.parametrize("name", CHOSEN)
def test_export_of_transformers(name, tmp_path):
    """All layers of a model are found, with all projections, and compute the same."""
    if not installed("torch", "transformers"):
        pytest.skip("PyTorch or transformers is not installed")
    config, kind, keys = MODELS[name]
    path = tmp_path / "m.onnx"
    feeds = exported(name, path, config, kind)
    model = onnx.load(path)
    feeds = {value.name: feeds[value.name] for value in model.graph.input}
    text = run(MHAGEN, "model", path, "isa=scalar", *rows_of(path, tmp_path / "text", 8), "-o", tmp_path / "text")
    softmaxes = sum(node.op_type == "Softmax" for node in model.graph.node)
    assert f", {softmaxes} layers, " in text and "no layer" not in text and "project=" not in text, text
    assert all(f" {key}" in text for key in keys.split()), text
    assert ("is made of Q and K, as scores by distance are" in text) == (name == "DebertaV2")
    errors = compare(path, model, feeds, tmp_path)
    print(f"\n{name}: {max(errors.values()):.1e}", end="")
    assert len(errors) == softmaxes and max(errors.values()) <= NEAR
