"""`mhagen model --whole seq_kv=N` of ONNX files: decoders with a cache of ours, against the models that PyTorch
exported."""
import random
import warnings

import pytest

from reference_lib import drawn_isa
from tools import installed, in_turn, seed_of
from whole_lib import expect_refusal, numpy, torch, transformers

if not installed("onnx", "onnxscript"):
    pytest.skip("onnx or onnxscript is not installed", allow_module_level=True)

import onnx
from onnx import helper, numpy_helper

from test_whole_decoders import PLACES, TEXT, Decoder, model_of, near

# of MODELS in test_whole_decoders.py
EXPORTED = ["llama", "llama, with biases", "llama, scaled", "llama, of many ids", "mistral", "qwen2", "qwen3", "phi3",
            "gemma3_text", "gpt2", "gpt2, of another width"]
BEFORE = 5  # rows of earlier runs when a graph is exported


class Scores(torch.nn.Module):
    """The logits of all rows with a mask of padding, or of the last one without it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask=None):
        more = {"logits_to_keep": 1} if attention_mask is None else {"attention_mask": attention_mask}
        return self.model(input_ids=input_ids, use_cache=False, **more).logits


class Steps(torch.nn.Module):
    """The logits of rows behind those of earlier runs, and the keys and values of all."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = transformers.DynamicCache()
        for i in range(0, len(past), 2):
            cache.update(past[i], past[i + 1], i // 2)
        found = self.model(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                           past_key_values=cache, use_cache=True)
        return found.logits, *(x for layer in found.past_key_values.layers for x in (layer.keys, layer.values))


def inputs_of(model, how):
    """Those of a graph, and the names of their axes that it leaves open."""
    inputs = {"input_ids": torch.randint(1, 49, (2, 7))}
    axes = {"input_ids": {0: "batch", 1: "rows"}}
    if how != "without a mask":
        total = 7 + (BEFORE if how == "steps" else 0)
        inputs["attention_mask"] = torch.ones(2, total, dtype=torch.long)
        axes["attention_mask"] = {0: "batch", 1: "total" if how == "steps" else "rows"}
    if how == "steps":
        inputs["position_ids"] = torch.arange(BEFORE, BEFORE + 7)[None].repeat(2, 1)
        axes["position_ids"] = axes["input_ids"]
        config = model.config
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        for name in (f"past_key_values.{i}.{what}" for i in range(config.num_hidden_layers)
                     for what in ("key", "value")):
            inputs[name], axes[name] = torch.randn(2, heads, BEFORE, width), {0: "batch", 2: "past"}
    return inputs, axes


def export(model, path, how, dynamo, wrapped=None):
    inputs, axes = inputs_of(model, how)
    outputs = ["logits", *(name.replace("past_key_values", "present") for name in inputs if "past" in name)]
    module = (wrapped or (Steps if how == "steps" else Scores))(model).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = [{axis: torch.export.Dim.DYNAMIC for axis in of} for of in axes.values()]
            shapes = (*shapes[:3], tuple(shapes[3:])) if how == "steps" else shapes
            torch.onnx.export(module, tuple(inputs.values()), path, input_names=list(inputs), output_names=outputs,
                              dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False)
        else:
            torch.onnx.export(module, tuple(inputs.values()), path, input_names=list(inputs), output_names=outputs,
                              dynamo=False, opset_version=17, dynamic_axes=axes)
    return path


# How graphs are exported, and whether by the newer exporter, as only that takes a text without a mask.
HOW = [("with a mask", False), ("with a mask", True), ("without a mask", True), ("steps", False), ("steps", True)]


@torch.no_grad()
@pytest.mark.parametrize("name, how, dynamo", in_turn([(name, *how) for name in EXPORTED for how in HOW],
                                                      "whole graphs of decoders", count=4))
def test_models(name, how, dynamo, tmp_path):
    """A prompt in parts, then steps: rows and logits are those of the whole text at once."""
    draw = random.Random(seed_of(name, how))
    model = model_of(name, tmp_path / "model")
    model.set_attn_implementation("eager")
    path = export(model, tmp_path / "m.onnx", how, dynamo)
    whole = Decoder(path, tmp_path / "out", f"isa={drawn_isa(name)}", "seq=1,8", f"seq_kv={PLACES}")
    assert ("window_left=" in whole.text) == (name in ("mistral", "gemma3_text"))
    assert "output" not in whole.text
    ids = [draw.randint(1, 49) for _ in range(PLACES)]
    right = model(torch.tensor([ids]), output_hidden_states=True)
    for first, end, rows, logits in whole.parts(ids):
        assert near(rows, right.hidden_states[-1][0, first:end]) and near(logits, right.logits[0, end - 1])


# ---- operators of ONNX Runtime ----


class Fused:
    """A decoder as onnxruntime-genai's builder writes it, with drawn weights."""

    def __init__(self, joint, bits, tied, rotary, width=64, heads=4, kept=2, hidden=96, layers=2, **attributes):
        self.draw, self.nodes, self.constants = numpy.random.default_rng(3), [], []
        self.joint, self.bits, self.rotary, self.attributes = joint, bits, rotary, attributes
        self.heads, self.kept, self.width, self.dk = heads, kept, width, width // heads
        self.inputs, self.outputs = ["input_ids", "attention_mask"], ["logits"]
        places, turns = numpy.arange(64)[:, None], numpy.arange(rotary)
        angles = places / 50.0 ** (turns / rotary)
        self.tables = [self.constant(of(angles).astype("f4")) for of in (numpy.cos, numpy.sin)]
        counts = self.node("ReduceSum", "attention_mask", self.constant(numpy.array([1], "i8")), keepdims=0)
        counts = self.node("Sub", counts, self.constant(numpy.array([1], "i8")))
        self.lengths = [self.node("Cast", counts, to=onnx.TensorProto.INT32), self.node("Cast", self.node(
            "Gather", self.node("Shape", "attention_mask"), self.constant(numpy.array(1, "i8"))),
            to=onnx.TensorProto.INT32)]
        head = self.drawn(width, 50)
        words = self.node("Transpose", head, perm=[1, 0]) if tied else self.drawn(50, width)
        x, norm = self.node("Gather", words, "input_ids"), "SimplifiedLayerNormalization"
        u = self.node(norm, x, self.gains(), axis=-1, epsilon=1e-5)
        for i in range(layers):
            y = self.product(self.attention(u, i), width, width)
            u, x = self.summed(x, y)
            gate, up = self.product(u, width, hidden), self.product(u, width, hidden)
            h = self.node("Mul", self.node("Mul", gate, self.node("Sigmoid", gate)), up)
            u, x = self.summed(x, self.product(h, hidden, width))
        self.nodes.append(helper.make_node("MatMul", [u, head], ["logits"]))

    def constant(self, x):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(x, name))
        return name

    def drawn(self, *shape):
        return self.constant((self.draw.standard_normal(shape) * shape[0] ** -0.5).astype("f4"))

    def gains(self):
        return self.constant((1 + 0.3 * self.draw.standard_normal(self.width)).astype("f4"))

    def node(self, op, *inputs, outputs=1, domain="", **attributes):
        names = [f"n{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"node{len(self.nodes)}", domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def summed(self, x, y):
        made = self.node("SkipSimplifiedLayerNormalization", x, y, self.gains(), outputs=4, domain="com.microsoft",
                         epsilon=1e-5)
        self.nodes[-1].output[1:3] = ["", ""]
        return made[0], made[3]

    def product(self, x, rows, columns):
        if not self.bits:
            return self.node("MatMul", x, self.drawn(rows, columns))
        words = self.draw.integers(0, 256, (columns, rows // 32, 16), dtype="u1")
        scales = self.draw.uniform(-0.03, 0.03, (columns, rows // 32)).astype("f4")
        return self.node("MatMulNBits", x, self.constant(words), self.constant(scales), domain="com.microsoft",
                         K=rows, N=columns, bits=4, block_size=32)

    def attention(self, u, number):
        counts = [self.heads * self.dk, self.kept * self.dk, self.kept * self.dk]
        made = [self.product(u, self.width, sum(counts)), "", ""] if self.joint else \
            [self.product(u, self.width, count) for count in counts]
        past = [f"past_key_values.{number}.{what}" for what in ("key", "value")]
        self.inputs += past
        self.outputs += [name.replace("past_key_values", "present") for name in past]
        y = self.node("GroupQueryAttention", *made, *past, *self.lengths, *(self.tables if self.rotary else []),
                      outputs=3, domain="com.microsoft", num_heads=self.heads, kv_num_heads=self.kept,
                      do_rotary=int(self.rotary > 0), **self.attributes)
        self.nodes[-1].output[1:] = self.outputs[-2:]
        return y[0]

    def save(self, path):
        integers, floats = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
        axes = {"input_ids": ["batch", "rows"], "attention_mask": ["batch", "total"], "logits": ["batch", "rows", 50]}

        def info(name):
            cached = ["batch", self.kept, "past" if "past" in name else "total", "kv_cache_dim"]
            return helper.make_tensor_value_info(name, integers if name in self.inputs[:2] else floats,
                                                 axes.get(name, cached))
        graph = helper.make_graph(self.nodes, "g", [info(name) for name in self.inputs],
                                  [info(name) for name in self.outputs], self.constants)
        onnx.save(helper.make_model(graph, ir_version=9, opset_imports=[
            helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]), path)
        return path

    def feeds(self, ids):
        empty = numpy.zeros((1, self.kept, 0, self.dk), "f4")
        return {"input_ids": numpy.array([ids]), "attention_mask": numpy.ones((1, len(ids)), "i8"),
                **{name: empty for name in self.inputs[2:]}}


FUSED = {
    "joint": (True, 0, False, 8, {}), "apart": (False, 0, True, 8, {"softcap": 5.0}),
    "of integers": (True, 4, False, 8, {"scale": 0.2}), "interleaved": (True, 0, False, 8, {"rotary_interleaved": 1}),
    "in a window": (True, 0, False, 8, {"local_window_size": 9}), "without rope": (False, 0, False, 0, {}),
}


@pytest.mark.parametrize("name", in_turn(list(FUSED), "operators of decoders", count=3))
def test_operators(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    joint, bits, tied, rotary, attributes = FUSED[name]
    made = Fused(joint, bits, tied, rotary, **attributes)
    path = made.save(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    whole = Decoder(path, tmp_path / "out", f"isa={drawn_isa(name)}", "seq=1,8", f"seq_kv={PLACES}")
    assert ("window_left=8" in whole.text) == (name == "in a window") and "output" not in whole.text
    draw = random.Random(seed_of(name))
    ids = [draw.randint(1, 49) for _ in range(PLACES)]
    right = torch.from_numpy(session.run(["logits"], made.feeds(ids))[0][0])
    for _, end, _, logits in whole.parts(ids):
        assert near(logits, right[end - 1], 1e-4)


def test_other_operators(tmp_path):
    """What the body of an operator has not is said, with its name."""
    for attributes, said in ({"smooth_softmax": 1}, "node9: an operator of attention is not read"), \
            ({"qk_output": 1}, "node node9: qk_output: 1 is not supported"):
        path = Fused(True, 0, False, 8, **attributes).save(tmp_path / "m.onnx")
        expect_refusal(path, tmp_path / "out", said, "isa=scalar", "seq=8", "seq_kv=12")


@pytest.mark.parametrize("what, said", [("lengths", "texts of 40 rows have 39"), ("angles", "rope_cos is another one")])
def test_other_numbers(what, said, tmp_path):
    """Lengths that are those of no text, and first rows of tables of rope that are others."""
    made, path = Fused(True, 0, False, 8), tmp_path / "m.onnx"
    tables = {tensor.name: tensor for tensor in made.constants}
    if what == "lengths":
        for node in made.nodes:
            if node.op_type == "Sub":
                node.input[1] = made.constant(numpy.array([2], "i8"))
    else:
        for name, of in zip(made.tables, (numpy.cos, numpy.sin)):
            x = numpy_helper.to_array(tables[name]).copy()
            x[:4] = of(numpy.arange(4)[:, None] * 1.3 * numpy.ones(8))
            tables[name].CopyFrom(numpy_helper.from_array(x, name))
    expect_refusal(made.save(path), tmp_path / "out", said, "isa=scalar", "seq=8", f"seq_kv={PLACES}")


@pytest.mark.parametrize("same", [True, False])
def test_other_caches(same, tmp_path):
    """Two layers with one cache, and one without."""
    path = tmp_path / "m.onnx"
    model = onnx.load(Fused(False, 0, False, 0, kept=4).save(path))
    first, second = (node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    if same:
        second.input[3:5] = first.input[3:5]
    else:
        second.CopyFrom(helper.make_node("MultiHeadAttention", second.input[:3], second.output[:1], "second",
                                         domain="com.microsoft", num_heads=4, unidirectional=1))
        del model.graph.output[3:]
    onnx.save(model, path)
    expect_refusal(path, tmp_path / "out", "logits is not rows of K and V as a cache has them" if same else
                   "has keys of earlier runs, and second has none", "isa=scalar", "seq=8", "seq_kv=12")


# ---- what is no decoder, or one with another cache ----


class Both(torch.nn.Module):
    """A causal model with something in its way."""

    def __init__(self, model, change):
        super().__init__()
        self.model, self.change = model, change

    def forward(self, input_ids, attention_mask):
        return self.change(self.model, input_ids, attention_mask)


def logits_of(model, ids, mask, **more):
    return model(input_ids=ids, attention_mask=mask, use_cache=False, **more).logits


def of_both_sides(model, ids, mask):
    """Keys behind a row are seen too."""
    return logits_of(model, ids, torch.zeros(ids.shape[0], 1, ids.shape[1], ids.shape[1]))


def of_a_mean(model, ids, mask):
    """Each row has the mean of all rows beside it."""
    x = model.model.embed_tokens(ids)
    return logits_of(model, None, mask, inputs_embeds=x + x.mean(1, keepdim=True))


def of_mask(model, ids, mask):
    """Keys are hidden by what is two behind them, which no padding does."""
    return logits_of(model, ids, torch.where(torch.arange(ids.shape[1]) % 3 == 2, 0, mask))


def by_head(model, ids, mask):
    """All heads but the first have a window."""
    places, head = torch.arange(ids.shape[1]), torch.arange(4)[None, :, None, None]
    far = places[:, None] - places
    seen = (far >= 0) & (far < torch.where(head > 0, 3, 1000))
    return logits_of(model, ids, torch.where(seen, 0.0, -1e9))


class Late(torch.nn.Module):
    """SiLU, twice as large from row 30 on."""

    def forward(self, x):
        return torch.nn.functional.silu(x) * torch.where(torch.arange(x.shape[1]) >= 30, 2, 1)[:, None]


def of_late_rows(model, ids, mask):
    model.model.layers[0].mlp.act_fn = Late()
    return logits_of(model, ids, mask)


class Longer(torch.nn.Module):
    """Angles of longer texts are others."""

    def __init__(self, rope):
        super().__init__()
        self.rope = rope

    def forward(self, x, position_ids):
        many = torch._shape_as_tensor(x)[1] > 10
        return tuple(torch.where(many, y.flip(-1), y) for y in self.rope(x, position_ids))


def by_length(model, ids, mask):
    model.model.rotary_emb = Longer(model.model.rotary_emb)
    return logits_of(model, ids, mask)


@torch.no_grad()
@pytest.mark.parametrize("change, said", [
    (by_head, "Where_output_0 is no padding"), (of_late_rows, "is not what is proposed"),
    (by_length, "it is no self-attention"), (of_a_mean, "embeddings: "),
    (of_both_sides, "its rows depend on later ones, so the model is no decoder"),
    (of_mask, "does more than to hide the keys of padding")])
def test_no_decoders(change, said, tmp_path):
    model = model_of("llama", tmp_path / "model")
    model.set_attn_implementation("eager")
    path = export(model, tmp_path / "m.onnx", "with a mask", False, lambda model: Both(model, change))
    expect_refusal(path, tmp_path / "out", said, "isa=scalar", "seq=8", f"seq_kv={PLACES}")


@torch.no_grad()
def test_what_is_asked_for(tmp_path):
    """A text is no longer than the positions of the model, and a cache needs to know how long."""
    model = model_of("gpt2", tmp_path / "gpt2")
    model.set_attn_implementation("eager")
    for how, dynamo in ("with a mask", False), ("steps", False):
        path = export(model, tmp_path / f"{how}.onnx", how, dynamo)
        expect_refusal(path, tmp_path / "out", "positions of 65 rows: ", "isa=scalar", "seq=8", "seq_kv=65")
        assert Decoder(path, tmp_path / how, "isa=scalar", "seq=8", "seq_kv=64").sizes["PLACES"] == 64
    expect_refusal(path, tmp_path / "out", "input past_key_values.0.key has keys or values of earlier runs",
                   "isa=scalar", "seq=8")
    expect_refusal(path, tmp_path / "out", "seq_kv: is missing", "isa=scalar", "seq=8", "cache_dtype=f16")
    whole = Decoder(path, tmp_path / "bare", "isa=scalar", "seq=8", f"seq_kv={PLACES}", "--no-head")
    right = model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states[-1][0]
    status, rows, _ = whole.run(TEXT)
    assert status == 0 and near(rows, right) and "float *logits" not in (tmp_path / "bare/model.h").read_text()
    whole = Decoder(path, tmp_path / "types", "isa=scalar", "seq=1,8", f"seq_kv={PLACES}", "weight_dtype=int8",
                    "cache_dtype=f16", "--embeddings", "f16")
    assert whole.run(TEXT[:-1])[0] == 0
    status, rows, logits = whole.run(TEXT[-1:], len(TEXT) - 1)
    assert status == 0 and near(logits, model(torch.tensor([TEXT])).logits[0, -1], 5e-2)
