"""`mhagen model --whole` of ONNX files: encoders of texts and of images, against the models that PyTorch exported."""
import random
import warnings

import pytest

from reference_lib import drawn_isa
from tools import installed, in_turn, seed_of
from whole_lib import expect_refusal, joined, numpy, torch, transformers

if not installed("onnx", "onnxscript"):
    pytest.skip("onnx or onnxscript is not installed", allow_module_level=True)

import onnx
from onnx import helper, numpy_helper

from test_whole import Encoder
from test_whole_inputs import Encoder as Images, near

ROWS = 20
MOST = {"max_position_embeddings": 40}


class Texts(torch.nn.Module):
    """The last rows of a model of ids, with such inputs as its kind has."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return self.model(input_ids=input_ids, attention_mask=attention_mask, **more).last_hidden_state


class Pixels(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        return self.model(pixel_values).last_hidden_state


class Norm(torch.nn.Module):
    """An RMS norm of plain operators, which both exporters write."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Gated(torch.nn.Module):
    """Layers in today's way: RMS norms in front, a gate in the feed-forward, no biases; sizes of nobody's."""

    def __init__(self, width, heads, hidden, layers, joint):
        super().__init__()
        self.heads, self.joint = heads, joint
        self.words = torch.nn.Embedding(60, width)
        self.first = Norm(width)
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({
            "norm1": Norm(width), "norm2": Norm(width),
            "qkv": torch.nn.Linear(width, 3 * width, bias=False), "o": torch.nn.Linear(width, width, bias=False),
            "up": torch.nn.Linear(width, (1 + joint) * hidden, bias=False),
            "gate": torch.nn.Linear(width, hidden, bias=False), "down": torch.nn.Linear(hidden, width, bias=False),
        }) for _ in range(layers))

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)
        hidden = (1 - attention_mask[:, None, None, :]).float() * torch.finfo(torch.float32).min
        for layer in self.layers:
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                       for part in layer["qkv"](layer["norm1"](x)).chunk(3, -1))
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + hidden
            x = x + layer["o"]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            u = layer["norm2"](x)
            up = layer["up"](u)
            gate, up = up.chunk(2, -1) if self.joint else (layer["gate"](u), up)
            x = x + layer["down"](torch.nn.functional.silu(gate) * up)
        return self.first(x)


def config_of(cls, name, **fields):
    draw = random.Random(seed_of(name))
    heads = draw.randint(1, 3)
    sizes = {"num_attention_heads": heads, "hidden_size": heads * draw.choice([4, 10, 16]),
             "num_hidden_layers": draw.randint(1, 3), "intermediate_size": draw.randint(2, 60)}
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
             "intermediate_size": "hidden_dim"} if cls == "DistilBert" else {}
    sizes = {names.get(key, key): value for key, value in sizes.items()}
    return getattr(transformers, f"{cls}Config")(attn_implementation="eager", **{**sizes, **fields})


def of(cls, suffix="Model", **fields):
    return lambda name: getattr(transformers, cls + suffix)(config_of(cls, name, **fields))


IMAGE = {"image_size": 24, "patch_size": 8}
TEXTS = {
    "bert": of("Bert", vocab_size=60, **MOST),
    "bert, of tanh": of("Bert", vocab_size=60, hidden_act="gelu_new", layer_norm_eps=1e-5, **MOST),
    "roberta": of("Roberta", vocab_size=60, type_vocab_size=1, pad_token_id=1, **MOST),
    "distilbert": of("DistilBert", vocab_size=60, activation="relu", **MOST),
    "clip, texts": of("CLIPText", vocab_size=60, bos_token_id=0, eos_token_id=2, **MOST),
    "gated": lambda name: Gated(24, 3, 20, 2, False),
    "gated, one matrix": lambda name: Gated(32, 2, 12, 2, True),
}
IMAGES = {
    "vit": of("ViT", **IMAGE),
    "vit, of quick_gelu": of("ViT", hidden_act="quick_gelu", num_channels=1, image_size=(16, 24), patch_size=8),
    "dinov2": of("Dinov2", **IMAGE),
    "dinov2, interpolated": of("Dinov2", image_size=40, patch_size=8),
    "siglip": of("SiglipVision", vision_use_head=False, **IMAGE),
    "clip, images": of("CLIPVision", **IMAGE),
}


def model_of(make, name):
    """A model with drawn weights."""
    torch.manual_seed(seed_of(name) % 1000)
    model = make(name).eval()
    for parameter in model.parameters():
        size = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2
        parameter.data = size * torch.randn_like(parameter) + (parameter.data == 1).float()
    return model


def export(model, inputs, path, name):
    """By one of PyTorch's two exporters."""
    axes = [] if "pixel_values" in inputs else list(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if seed_of("exporter", name) % 2:
            batch, rows = torch.export.Dim("batch"), torch.export.Dim("rows", max=30)
            shapes = {key: {0: batch, 1: rows} for key in axes} if axes else None
            torch.onnx.export(model, (), path, kwargs=inputs, dynamo=True, dynamic_shapes=shapes, external_data=False,
                              verbose=False)
        else:
            torch.onnx.export(model, (inputs,), path, dynamo=False, input_names=list(inputs), output_names=["rows"],
                              dynamic_axes={key: {0: "batch", 1: "rows"} for key in axes}, opset_version=17)
    return path


def text_inputs(model, name):
    ids = torch.randint(3, 60, (2, 7))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return inputs | ({"token_type_ids": torch.zeros_like(ids)} if name.startswith("bert") else {})


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(TEXTS), "whole graphs of texts", count=3))
def test_texts(name, tmp_path):
    """All lengths, padded in the model and not in ours."""
    own = model_of(TEXTS[name], name)
    model = own if name.startswith("gated") else Texts(own).eval()
    path = export(model, text_inputs(model, name), tmp_path / "m.onnx", name)
    whole = Encoder(path, tmp_path / "out", f"isa={drawn_isa(name)}", f"seq=5,{ROWS}", *joined(name))
    assert whole.sizes["VOCABULARY"] == 60 and whole.sizes["ROWS"] == ROWS
    assert whole.sizes["TYPES"] == (2 if name.startswith("bert") else 0)
    draw = numpy.random.default_rng(1)
    for length in 1, 5, 6, ROWS:
        ids = numpy.zeros(ROWS, "i8") + (1 if name == "roberta" else 0)
        ids[:length], types = draw.integers(2, 60, length), draw.integers(0, max(1, whole.sizes["TYPES"]), length)
        seen = (torch.arange(ROWS) < length).long()
        inputs = {"input_ids": torch.from_numpy(ids)[None], "attention_mask": seen[None]}
        if name.startswith("bert"):
            inputs["token_type_ids"] = torch.zeros(1, ROWS, dtype=torch.long)
            inputs["token_type_ids"][0, :length] = torch.from_numpy(types)
        right = model(**inputs)[0, :length]
        status, rows, mean = whole.run(ids[:length], types)
        assert status == 0 and near(rows, right) and near(mean, right.mean(0))
    if name == "roberta":
        assert whole.sizes["PADDING"] == 1 and whole.run([5, 1, 6])[0] != 0


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(IMAGES), "whole graphs of images", count=3))
def test_images(name, tmp_path):
    model = Pixels(model_of(IMAGES[name], name)).eval()
    config = model.model.config
    size = [24, 24] if name == "dinov2, interpolated" else config.image_size
    size = list(size) if isinstance(size, (list, tuple)) else [size, size]
    image = torch.randn(1, config.num_channels, *size)
    path = export(model, {"pixel_values": image}, tmp_path / "m.onnx", name)
    whole = Images(path, tmp_path / "out", f"isa={drawn_isa(name)}", *joined(name))
    right = model(image)[0]
    status, rows, mean = whole.run(image)
    tokens = 0 if name == "siglip" else 1
    assert status == 0 and near(rows, right) and near(mean, right[tokens:].mean(0)) and whole.sizes["TOKENS"] == tokens


# ---- graphs that look alike ----


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A file of BERT by the older exporter, whose nodes have the names of modules."""
    model = Texts(model_of(of("Bert", vocab_size=60, num_hidden_layers=2, hidden_size=16, num_attention_heads=2,
                              intermediate_size=24, **MOST), "bert")).eval()
    path = tmp_path_factory.mktemp("graphs") / "m.onnx"
    inputs = text_inputs(model, "bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (inputs,), path, dynamo=False, input_names=list(inputs), output_names=["rows"],
                          dynamic_axes={key: {0: "batch", 1: "rows"} for key in inputs}, opset_version=14)
    return path


def node_of(graph, *words):
    """The first node whose name has all these words."""
    return next(node for node in graph.node if all(word in node.name for word in words))


def behind(graph, value, op, *operands, domain=""):
    """Puts a node behind a value, of it and these numbers; all others read its result."""
    new = f"{value} changed"
    for node in graph.node:
        for k, name in enumerate(node.input):
            if name == value:
                node.input[k] = new
    place = next(i for i, node in enumerate(graph.node) if value in node.output) + 1
    names = [f"{new} by {i}" for i in range(len(operands))]
    graph.initializer.extend(numpy_helper.from_array(numpy.asarray(x, "f4"), n) for x, n in zip(operands, names))
    graph.node.insert(place, helper.make_node(op, [value, *names], [new], name=new, domain=domain))


def as_tanh(graph):
    node_of(graph, "layer.1", "Erf").op_type = "Tanh"


def other_residual(graph):
    """The second layer adds the rows of the first one's input."""
    rows = node_of(graph, "layer.1/attention/output/Add")
    first = node_of(graph, "layer.0/attention/output/Add")
    k = next(k for k, name in enumerate(rows.input) if "dense" not in name)
    rows.input[k] = next(name for name in first.input if "dense" not in name)


def between_layers(graph):
    behind(graph, node_of(graph, "layer.0/output/LayerNorm", "Add_1").output[0], "Mul", 1.01)


def in_hidden(graph):
    behind(graph, node_of(graph, "layer.1/intermediate/dense", "Add").output[0], "Mul", 0.9)


def other_eps(graph):
    """One of the two norms of a layer."""
    node = node_of(graph, "layer.1/output/LayerNorm/Add")
    maker = next(node_ for node_ in graph.node if node_.output[0] in node.input and node_.op_type == "Constant")
    maker.attribute[0].t.CopyFrom(numpy_helper.from_array(numpy.array(0.03, "f4")))


def other_words(graph):
    behind(graph, node_of(graph, "word_embeddings").output[0], "Mul", 2.0)


def biased_mask(graph):
    """Keys that may be seen have different numbers."""
    node = node_of(graph, "layer.1/attention/self/Add")
    mask = next(name for name in node.input if "MatMul" not in name and "Mul" not in name and "Div" not in name)
    behind(graph, mask, "Mul", 0.5)
    behind(graph, f"{mask} changed", "Add", -0.25)


def more_products(graph):
    """A second hidden layer."""
    behind(graph, node_of(graph, "layer.0/intermediate/dense", "Add").output[0], "MatMul", numpy.eye(24) * 1.5)


def of_ids(graph):
    """Positions from the ids."""
    node = node_of(graph, "position_embeddings")
    node.input[1] = "input_ids"


REFUSED = {as_tanh: "no activation", other_residual: "added to", between_layers: "reads",
           in_hidden: "no activation", other_eps: "norms", other_words: "no sum with a row of a table",
           biased_mask: "does more than to hide", more_products: "no activation", of_ids: "ids"}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_look_alikes(bert, change, tmp_path):
    model = onnx.load(bert)
    change(model.graph)
    onnx.save(model, tmp_path / "m.onnx")
    expect_refusal(tmp_path / "m.onnx", tmp_path / "out", REFUSED[change], "isa=scalar", "seq=8")


def test_refusals(bert, tmp_path):
    for keys, said in [([], "seq: is required"), (["seq=8", "causal=true"], "is the model's own"),
                       (["seq=8", "kv_len=true"], "is the model's own")]:
        expect_refusal(bert, tmp_path / "out", said, "isa=scalar", *keys)
