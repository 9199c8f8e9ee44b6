"""Layers whose attention is one operator, for fuzz_lookalikes.py: those of com.microsoft, and of ai.onnx's opset 23."""
import numpy as np
import onnxruntime

OLD = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < (1, 32)  # adds masks before softcaps
PLACES = "x q k v qr kr vr qt kt vt mask c cr y".split()
OURS = {"domain": "com.microsoft"}


class Layer:
    """Extents and attributes that are drawn, and operands on their way to an operator."""

    def __init__(self, g):
        pick = g.random.choice
        self.g, self.pick = g, pick
        self.b, self.s, self.h, self.dk = pick([1, 2]), pick([4, 5, 7]), pick([2, 4]), pick([8, 16])
        self.width, self.amplitude, self.biased = pick([12, self.h * self.dk]), pick([1, 2]), pick([0, 1])
        self.attributes = {}
        self.x = g.at("x", g.input("x", g.normal(self.b, self.s, self.width)), self.b, self.s, self.width)

    def maybe(self, key, *values):
        """An attribute that may be left out."""
        if self.pick([0, 1]):
            self.attributes[key] = self.pick(values)
        return self.attributes.get(key)

    def either(self, name, x):
        """A constant, or an input."""
        return self.g.constant(x) if self.pick([0, 1]) else self.g.input(name, x)

    def linear(self, x, columns, inputs):
        return self.g.linear(x, columns, inputs, self.amplitude, self.biased)

    def rows(self, letter, heads, width):
        """A projection, [batch][rows][heads * width]."""
        size = heads * width
        return self.g.at(letter, self.linear(self.x, size, self.width), self.b, self.s, size)

    def split(self, letter, value, heads, width):
        """Rows with their heads apart, [batch][heads][rows][width]."""
        g, b, s = self.g, self.b, self.s
        value = g.at(letter + "r", g.node("Reshape", value, g.ints(b, s, heads, width)), b, s, heads, width)
        return g.at(letter + "t", g.node("Transpose", value, perm=[0, 2, 1, 3]), b, heads, s, width)

    def tables(self, width):
        angle = self.g.numbers.uniform(0, 6, (16, width // 2))
        return [self.g.floats(np.cos(angle)), self.g.floats(np.sin(angle))]

    def places(self):
        at = np.arange(self.s) + np.zeros((self.b, 1), int)
        return self.g.constant(self.pick([at, at + 2, at[:, ::-1]]).astype("i8"))

    def added(self, shapes, flags):
        """A mask that is added, or one of flags; each query sees the first key, and itself."""
        g, shape = self.g, self.pick(shapes)
        hidden = g.numbers.random(shape) < 0.3
        hidden[..., 0] = False
        hidden[..., np.arange(self.s), np.arange(self.s)] = False
        if flags and self.pick([0, 1]):
            return self.either("mask", ~hidden)
        low = self.pick([0, -1e9, -np.inf])
        return g.at("mask", self.either("mask", (g.normal(*shape) + np.where(hidden, low, 0)).astype("f4")), *shape)

    def padding(self):
        """Counts of keys, or flags."""
        counts = np.array([self.pick([self.s, self.s - 1, 2]) for _ in range(self.b)], "i4")
        flags = (np.arange(self.s) < counts[:, None]).astype("i4")
        return self.g.input("padding", self.pick([counts, flags]))

    def of_microsoft(self):
        """Padding and a mask for Attention and MultiHeadAttention, each perhaps."""
        self.maybe("unidirectional", 0, 1)
        self.maybe("scale", 0.3, 0.0)
        self.maybe("mask_filter_value", -1e4, -1e9)
        shapes = [(first, heads, self.s, self.s) for first in (1, self.b) for heads in (1, self.h)]
        return (self.padding() if self.pick([0, 1]) else ""), (self.added(shapes, False) if self.pick([0, 1]) else "")

    def node(self, op, *inputs, **attributes):
        inputs = list(inputs)
        while inputs[-1] == "":
            inputs.pop()
        return self.g.node(op, *inputs, **attributes, **self.attributes)


def attention(layer):
    g, h, dk = layer.g, layer.h, layer.dk
    dv = layer.pick([dk, dk, 4])
    sizes = [h * dk, h * dk, h * dv]
    if dv != dk:
        layer.attributes["qkv_hidden_sizes"] = sizes
    weight = g.floats(g.normal(layer.width, sum(sizes), by=layer.amplitude / layer.width ** 0.5))
    bias = g.floats(g.normal(sum(sizes)) / 2)
    padding, mask = layer.of_microsoft()
    return layer.node("Attention", layer.x, weight, bias, padding, "", mask, num_heads=h, **OURS), dv


def multi_head(layer):
    g, h, dk, b, s = layer.g, layer.h, layer.dk, layer.b, layer.s
    dv = layer.pick([dk, dk, 4])
    q, k, v = layer.rows("q", h, dk), layer.rows("k", h, dk), layer.rows("v", h, dv)
    if layer.pick([0, 0, 1]):
        tables, how = layer.tables(dk), {"interleaved": layer.pick([0, 1]), "num_heads": h}
        places = layer.pick([layer.places(), g.ints(0), g.ints(1)])
        q, k = (g.node("RotaryEmbedding", value, places, *tables, **how, **OURS) for value in (q, k))
    if dv == dk and layer.pick([0, 0, 1]):  # keys and values by heads
        k, v = layer.split("k", k, h, dk), layer.split("v", v, h, dv)
        bias = ""
    else:
        bias = g.floats(g.normal(h * (2 * dk + dv)) / 2) if layer.pick([0, 0, 1]) else ""
    q = g.at("qr", q, b, s, h * dk)
    padding, mask = layer.of_microsoft()
    return layer.node("MultiHeadAttention", q, k, v, bias, padding, mask, num_heads=h, **OURS), dv


def grouped_query(layer):
    g, h, dk, b, s = layer.g, layer.h, 16, layer.b, layer.s  # of other widths ONNX Runtime has none
    h_kv = layer.pick([h, h // 2])
    inputs = [layer.rows(letter, heads, dk) for letter, heads in zip("qkv", (h, h_kv, h_kv))]
    if layer.pick([0, 0, 1]):  # all in one
        heads = h + 2 * h_kv
        inputs = [g.at("q", layer.linear(layer.x, heads * dk, layer.width), b, s, heads * dk), "", ""]
    tables = ["", ""]
    if layer.pick([0, 1]):
        tables = layer.tables(dk)
        layer.attributes["do_rotary"] = 1
        layer.maybe("rotary_interleaved", 0, 1)
    lengths = [layer.either("lengths", np.full(b, s - 1, "i4")), layer.either("total", np.array(s, "i4"))]
    keys = ("scale", 0.3), ("softcap", 2.0, 0.0), ("local_window_size", 2, 3, -1), ("smooth_softmax", 0, 1)
    for key, *values in keys:
        layer.maybe(key, *values)
    sink = g.floats(g.normal(h)) if layer.pick([0, 0, 1]) else ""
    mask = layer.added([(first, heads, s, s) for first in (1, b) for heads in (1, h)], False) \
        if layer.pick([0, 0, 1]) else ""
    return layer.node("GroupQueryAttention", *inputs, "", "", *lengths, *tables, "", mask, sink, num_heads=h,
                      kv_num_heads=h_kv, outputs=3, **OURS)[0], dk


def of_onnx(layer):
    g, h, dk, b, s = layer.g, layer.h, layer.dk, layer.b, layer.s
    g.opset, h_kv, dv = 23, layer.pick([h, h // 2]), layer.pick([dk, dk, 4])
    apart, sizes = layer.pick([0, 1]), {"q": (h, dk), "k": (h_kv, dk), "v": (h_kv, dv)}
    operands = {letter: layer.rows(letter, *size) for letter, size in sizes.items()}
    if apart:
        operands = {letter: layer.split(letter, value, *sizes[letter]) for letter, value in operands.items()}
        if layer.pick([0, 0, 1]):
            gains = {letter: g.floats(g.normal(dk) + 1) for letter in "qk"}
            operands |= {letter: g.node("RMSNormalization", operands[letter], gains[letter]) for letter in "qk"}
    if layer.pick([0, 0, 1]):
        tables, places, how = layer.tables(dk), layer.places(), {"interleaved": layer.pick([0, 1])}
        for letter in "qk":
            own = {} if apart else {"num_heads": sizes[letter][0]}
            operands[letter] = g.node("RotaryEmbedding", operands[letter], *tables, places, **how, **own)
    if not apart:
        layer.attributes |= {"q_num_heads": h, "kv_num_heads": h_kv}
    for key, *values in ("scale", 0.3), ("softcap", 2.0, 0.0), ("is_causal", 0, 1):
        layer.maybe(key, *values)
    shapes = [(s, s), (1, 1, s, s), (b, 1, s, s), (1, h, s, s), (b, h, s, s)]
    capped = OLD and layer.attributes.get("softcap")
    if capped:
        layer.attributes.pop("is_causal", None)  # such a mask too
    mask = layer.added(shapes, True) if layer.pick([0, 1]) and not capped else ""
    y = layer.node("Attention", *operands.values(), mask)
    if not apart:
        return y, dv
    y = g.node("Transpose", g.at("c", y, b, h, s, dv), perm=[0, 2, 1, 3])
    return g.node("Reshape", y, g.ints(b, s, h * dv)), dv


def drawn(g):
    layer = Layer(g)
    b, s = layer.b, layer.s
    context, dv = layer.pick([attention, multi_head, grouped_query, of_onnx])(layer)
    columns = layer.h * dv
    context = g.at("cr", context, b, s, columns)
    if layer.pick([0, 0, 1]):
        return context
    return g.at("y", layer.linear(context, 8, columns), b, s, 8)
