"""ONNX Runtime's own operators of attention on drawn cases: generated kernels compute the same."""
import random

import pytest

from reference_lib import Generated, drawn_isa
from test_onnx import Memory, missing, with_rows
from tools import SEED, schema

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

CASES, BATCH = 5, 2  # cases of each operator, and sequences of each


class Drawn:
    """A case as a node of ONNX (inputs by name, attributes) and as a kernel (config, weights, arguments)."""

    def __init__(self, operator, number):
        self.random = random.Random(f"{SEED} {operator} {number}")
        self.numbers = np.random.default_rng(self.random.randrange(2**32))
        self.options = {option["key"]: option for option in schema()}
        self.inputs, self.attributes, self.weights, self.args = {}, {}, {}, {}
        self.h_kv, self.dk = self.random.randint(1, 3), 8 * self.random.randint(1, 2)
        self.seq = self.random.randint(2, 6)
        self.config = {"batch": BATCH, "dk": self.dk}

    def x(self, *shape):
        return self.numbers.standard_normal(shape, dtype="f4")

    def has(self, **keys):
        """Draws whether the case has these keys, if a config can."""
        if missing(keys, self.options) or self.random.random() < 0.5:
            return False
        self.config |= keys
        return True

    def keep(self, past, capacity):
        """What is past, in a cache with room for so many rows."""
        self.args["past"] = past
        self.args["cache"] = np.concatenate([with_rows(self.inputs[name], capacity).reshape(BATCH, -1)
                                             for name in ("past_key", "past_value")], axis=1)

    def counts(self, first, last):
        return np.array([self.random.randint(first, last) for _ in range(BATCH)], "i4")

    def bias(self, rows, keys):
        """An input that is added to the scores, of all entries and heads or of one for all."""
        h = self.config["h"]
        dims = self.random.choice(["qk", "hqk", "bqk", "bhqk"])
        if self.has(mask="add", mask_dims=dims):
            extents = {"b": BATCH, "h": h}
            self.inputs["attention_bias"] = self.x(*(extents[axis] if axis in dims else 1 for axis in "bh"), rows, keys)
            self.args["mask"] = self.inputs["attention_bias"]


def grouped_query(case):
    past, capacity, h_kv = np.zeros(BATCH, "i4"), case.seq, case.h_kv
    dk = case.dk
    h = h_kv * case.random.randint(1, 3)
    case.config |= {"project": "none", "h": h, "h_kv": h_kv, "causal": "true"}
    case.attributes |= {"num_heads": h, "kv_num_heads": h_kv}
    if case.has(cache="append", cache_layout="bhsd"):
        case.seq, capacity, past = 1, 9, case.counts(1, 8)
    case.config |= {"seq": case.seq, "seq_kv": capacity}
    case.inputs |= {"query": case.x(BATCH, case.seq, h * dk), "key": case.x(BATCH, case.seq, h_kv * dk),
                    "value": case.x(BATCH, case.seq, h_kv * dk),
                    "past_key": case.x(BATCH, h_kv, 9 if past.any() else 0, dk),
                    "past_value": case.x(BATCH, h_kv, 9 if past.any() else 0, dk),
                    "seqlens_k": past + case.seq - 1, "total_sequence_length": np.array(past.max() + case.seq, "i4")}
    for name in "scale", "softcap":
        if case.has(**{name: case.random.choice([0.25, 1.5])}):
            case.attributes[name] = case.config[name]
    if case.has(window_left=case.random.randint(0, 3)):
        case.attributes["local_window_size"] = case.config["window_left"] + 1
    if case.has(sink="true"):
        case.attributes["smooth_softmax"] = 1
    if dk % 16 == 0 and case.has(rope=case.random.choice(["half", "interleaved"])):
        case.attributes |= {"do_rotary": 1, "rotary_interleaved": int(case.config["rope"] == "interleaved")}
        tables = {name: case.x(capacity, dk // 2) for name in ("cos", "sin")}
        case.inputs |= {f"{name}_cache": table for name, table in tables.items()}
        case.weights |= {f"rope_{name}": table for name, table in tables.items()}
    case.args |= {of: case.inputs[name] for of, name in zip("qkv", ("query", "key", "value"))}
    if past.any():
        case.keep(past, 9)


def multi_head(case):
    h, dk, seq, seq_kv = case.h_kv, case.dk, case.seq, case.random.randint(2, 7)
    past = case.random.randint(1, 4) if case.has(cache="append", cache_layout="bhsd") else 0
    rows, seq_kv, dv = (seq, past + seq, dk) if past else (seq_kv, seq_kv, 8)
    case.config |= {"project": "none", "h": h, "seq": seq, "seq_kv": seq_kv, "dv": dv}
    case.attributes["num_heads"] = h
    case.inputs |= {"query": case.x(BATCH, seq, h * dk), "key": case.x(BATCH, rows, h * dk),
                    "value": case.x(BATCH, rows, h * dv)}
    if past:
        case.inputs |= {"past_key": case.x(BATCH, h, past, dk), "past_value": case.x(BATCH, h, past, dv)}
        case.keep(np.full(BATCH, past, "i4"), seq_kv)
    if case.has(scale=0.25):
        case.attributes["scale"] = 0.25
    if case.has(kv_len="true"):
        case.inputs["key_padding_mask"] = case.args["kv_len"] = case.counts(1, seq_kv)
    elif case.has(mask="bool", mask_dims="bk"):
        case.inputs["key_padding_mask"] = case.numbers.integers(0, 2, (BATCH, seq_kv), "i4")
        case.inputs["key_padding_mask"][:, 0] = 1  # a row without a key is not the same
        case.args["mask"] = case.inputs["key_padding_mask"].astype("u1")
    if "mask" not in case.args:
        case.bias(seq, seq_kv)
    case.args |= {of: case.inputs[name] for of, name in zip("qkv", ("query", "key", "value"))}


def attention(case):
    h, dk, seq = case.h_kv, case.dk, case.seq
    width, sizes = 12, case.random.choice([[h * dk, h * dk, h * dk], [h * dk, h * dk, h * 4]])
    case.config |= {"project": "qkv", "h": h, "d_model": width, "seq": seq, "dv": sizes[2] // h}
    case.attributes |= {"num_heads": h, "qkv_hidden_sizes": sizes}
    case.inputs |= {"input": case.x(BATCH, seq, width) / 2, "weights": case.x(width, sum(sizes)),
                    "bias": case.x(sum(sizes))}
    if case.has(kv_len="true"):
        case.inputs["mask_index"] = case.args["kv_len"] = case.counts(1, seq)
    if case.has(causal="true"):
        case.attributes["unidirectional"] = 1
    case.bias(seq, seq)
    for name, x in ("w", case.inputs["weights"]), ("b", case.inputs["bias"]):
        case.weights |= {name + of: part for of, part in zip("qkv", np.split(x, np.cumsum(sizes)[:2], axis=-1))}
    case.args["q"] = case.inputs["input"]


# Each operator with the names of its inputs in their order.
OPERATORS = {
    "GroupQueryAttention": (grouped_query, "query key value past_key past_value seqlens_k total_sequence_length "
                                           "cos_cache sin_cache"),
    "MultiHeadAttention": (multi_head, "query key value projection key_padding_mask attention_bias past_key "
                                       "past_value"),
    "Attention": (attention, "input weights bias mask_index past attention_bias"),
}


def theirs(operator, names, case):
    """What ONNX Runtime computes."""
    outputs = 3 if "past_key" in case.inputs else 1  # that it must have
    names = [name if name in case.inputs else "" for name in names.split()]
    node = onnx.helper.make_node(operator, names, ["y", "present_key", "present_value"][:outputs],
                                 domain="com.microsoft", **case.attributes)
    kinds = {"f": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT32}
    graph = onnx.helper.make_graph(
        [node], operator,
        [onnx.helper.make_tensor_value_info(name, kinds[x.dtype.kind], x.shape) for name, x in case.inputs.items()],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)])
    model = onnx.helper.make_model(graph, ir_version=9, opset_imports=[
        onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(["y"], case.inputs)[0]


@pytest.mark.parametrize("number", range(CASES))
@pytest.mark.parametrize("operator", OPERATORS)
def test_operator(operator, number, tmp_path):
    case = Drawn(operator, number)
    draw, names = OPERATORS[operator]
    draw(case)
    lacks = missing(case.config, case.options)
    if lacks:
        pytest.skip(f"no key says {', '.join(sorted(lacks))}")
    expected = theirs(operator, names, case)
    kernel, memory = Generated(case.config, drawn_isa(case.config), tmp_path), Memory()
    y = memory.of(np.full(expected.shape, np.nan))
    kernel.pack(layout=0, **{name: memory.of(x).ctypes.data for name, x in case.weights.items()})
    kernel.run(y=y.ctypes.data, **{name: memory.of(x, x.dtype).ctypes.data for name, x in case.args.items()})
    words = " ".join(f"{key}={value}" for key, value in case.config.items())
    print(f"\n{operator} {words}: max |difference| {np.abs(y - expected).max():.1e}", end="")
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=2e-5, err_msg=words)
