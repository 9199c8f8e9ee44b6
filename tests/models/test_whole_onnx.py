"""`mhagen model --whole` of ONNX files: encoders of texts and of images, against the models that PyTorch exported."""
import random
import warnings

import pytest

from reference_lib import drawn_isa
from tools import MHAGEN, installed, in_turn, run, seed_of
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


class Projected(Gated):
    """Of tables that have less columns than rows have."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.words = torch.nn.Sequential(torch.nn.Embedding(60, 8), torch.nn.Linear(8, sizes[0], bias=False))


class Bare(Gated):
    """Of no norm at either end."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.first = torch.nn.Identity()


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
    "modernbert": of("ModernBert", vocab_size=60, num_hidden_layers=4, global_attn_every_n_layers=3, local_attention=8,
                     pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, **MOST),
    "bert, projected": of("Electra", vocab_size=60, embedding_size=12, **MOST),
    "albert": of("Albert", vocab_size=60, embedding_size=10, **MOST),
    "gated, projected": lambda name: Projected(24, 3, 20, 1, False),
    "gated": lambda name: Gated(24, 3, 20, 2, False),
    "gated, one matrix": lambda name: Gated(32, 2, 12, 2, True),
    "gated, no last norm": lambda name: Bare(16, 2, 12, 1, False),
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


def export(model, inputs, path, name, outputs=("rows",)):
    """By one of PyTorch's two exporters. The last axis of texts is that of rows."""
    axes = {} if "pixel_values" in inputs else {key: value.dim() - 1 for key, value in inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if seed_of("exporter", name) % 2:
            batch, rows = torch.export.Dim("batch"), torch.export.Dim("rows", max=30)
            shapes = [{0: batch, last: rows} for last in axes.values()] if axes else None
            torch.onnx.export(model, tuple(inputs.values()), path, input_names=list(inputs), dynamo=True,
                              output_names=list(outputs), dynamic_shapes=shapes, external_data=False, verbose=False)
        else:
            torch.onnx.export(model, tuple(inputs.values()), path, dynamo=False, input_names=list(inputs),
                              output_names=list(outputs), opset_version=17,
                              dynamic_axes={key: {0: "batch", last: "rows"} for key, last in axes.items()})
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
    lengths = f"seq={ROWS}" if name == "modernbert" else f"seq=5,{ROWS}"
    whole = Encoder(path, tmp_path / "out", f"isa={drawn_isa(name)}", lengths, *joined(name))
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


# ---- what ONNX Runtime makes of several operators ----


class Optimized:
    """An encoder as ONNX Runtime's optimizer writes it, with drawn weights."""

    def __init__(self, attention, counts, rms, width=24, heads=3, hidden=20, layers=2):
        self.draw, self.nodes, self.constants = numpy.random.default_rng(3), [], []
        self.attention, self.heads, self.width, self.hidden = attention, heads, width, hidden
        tables = [self.row(rows, width) for rows in (60, 40, 2)]
        ids = ["input_ids", "segment_ids", *tables, self.gains(), self.row(width), "attention_mask"]
        self.nodes.append(helper.make_node("EmbedLayerNormalization", ids, ["x", "counts"], domain="com.microsoft",
                                           epsilon=1e-6))
        self.padding = "counts" if counts else "attention_mask"
        self.norm = "SkipSimplifiedLayerNormalization" if rms else "SkipLayerNormalization"
        x = "x"
        for _ in range(layers):
            x = self.layer(x)
        inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.INT32, ["batch", "rows"])
                  for name in ("input_ids", "segment_ids", "attention_mask")]
        output = helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, ["batch", "rows", width])
        graph = helper.make_graph(self.nodes, "g", inputs, [output], self.constants)
        self.model = helper.make_model(graph, ir_version=9, opset_imports=[
            helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])

    def row(self, *shape):
        name = f"c{len(self.constants)}"
        values = self.draw.standard_normal(shape) * (shape[0] ** -0.5 if len(shape) > 1 else 0.3)
        self.constants.append(numpy_helper.from_array(values.astype("f4"), name))
        return name

    def gains(self):
        name = self.row(self.width)
        self.constants[-1].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(self.constants[-1]) + 1, name))
        return name

    def node(self, op, *inputs, domain="com.microsoft", **attributes):
        self.nodes.append(helper.make_node(op, inputs, [f"n{len(self.nodes)}"], f"node{len(self.nodes)}", domain=domain,
                                           **attributes))
        return self.nodes[-1].output[0]

    def product(self, x, rows, columns):
        return self.node("MatMul", x, self.row(rows, columns), domain="")

    def summed(self, x, skip):
        """The norm of a sum, to which it adds the bias of the product before."""
        bias = [] if "Simplified" in self.norm else [self.row(self.width)]
        return self.node(self.norm, x, skip, self.gains(), *bias, self.row(self.width), epsilon=1e-6)

    def layer(self, x):
        width = self.width
        if self.attention == "Attention":
            y = self.node("Attention", x, self.row(width, 3 * width), self.row(3 * width), self.padding,
                          num_heads=self.heads)
        else:
            rows = [self.product(x, width, width) for _ in "qkv"]
            y = self.node("MultiHeadAttention", *rows, self.row(3 * width), self.padding, num_heads=self.heads)
        x = self.summed(self.product(y, width, width), x)
        h = self.node("FastGelu", self.product(x, width, self.hidden), self.row(self.hidden))
        return self.summed(self.product(h, self.hidden, width), x)


@torch.no_grad()
@pytest.mark.parametrize("attention, counts, rms", in_turn(
    [("Attention", False, False), ("Attention", True, False), ("MultiHeadAttention", False, False),
     ("Attention", False, True)], "whole graphs of operators", count=2))
def test_operators_of_several(attention, counts, rms, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    made, rows = Optimized(attention, counts, rms), 12
    onnx.save(made.model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    whole = Encoder(tmp_path / "m.onnx", tmp_path / "out", f"isa={drawn_isa(attention)}", f"seq={rows}")
    for length in 1, 7, rows:
        inputs = {"input_ids": made.draw.integers(0, 60, (1, rows)), "segment_ids": made.draw.integers(0, 2, (1, rows)),
                  "attention_mask": (numpy.arange(rows) < length)[None]}
        right, = session.run(None, {key: value.astype("i4") for key, value in inputs.items()})
        status, found, _ = whole.run(inputs["input_ids"][0, :length], inputs["segment_ids"][0, :length])
        assert status == 0 and near(found, torch.from_numpy(right[0, :length]))


def dequantized(path, integers):
    """A model of floats with the weights that a file has as integers."""
    model, changed = onnx.load(path), 0
    others = {own.name: numpy_helper.to_array(own) for own in onnx.load(integers).graph.initializer}
    for own in model.graph.initializer:
        quantized, scale, zero = (others.get(f"{own.name}_{what}") for what in ("quantized", "scale", "zero_point"))
        if quantized is not None:
            own.CopyFrom(numpy_helper.from_array(((quantized.astype("f4") - zero) * scale).astype("f4"), own.name))
            changed += 1
    assert changed > 8
    return model


@torch.no_grad()
@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
def test_integers(bert, kind, tmp_path):
    """Weights and tables of integers are dequantized. Rows, which ONNX Runtime rounds besides, are not rounded."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    from onnxruntime.quantization import QuantType, quantize_dynamic
    quantize_dynamic(bert, tmp_path / "m.onnx", weight_type=QuantType[kind], per_channel=kind == "QInt8")
    assert {"MatMulInteger", "DequantizeLinear"} <= {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}
    whole = Encoder(tmp_path / "m.onnx", tmp_path / "out", "isa=scalar", "seq=8")
    ids, types = numpy.arange(20, 28, dtype="i8"), numpy.arange(8) % 2
    feeds = {"input_ids": ids[None], "attention_mask": numpy.ones((1, 8), "i8"), "token_type_ids": types[None]}
    model = dequantized(bert, tmp_path / "m.onnx").SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    right = torch.from_numpy(session.run(None, feeds)[0][0])
    status, rows, _ = whole.run(ids, types)
    assert status == 0 and near(rows, right)


# ---- graphs that look alike ----


def bert_file(path):
    """BERT by the older exporter, whose nodes have the names of modules."""
    model = Texts(model_of(of("Bert", vocab_size=60, num_hidden_layers=2, hidden_size=16, num_attention_heads=2,
                              intermediate_size=24, **MOST), "bert")).eval()
    inputs = text_inputs(model, "bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (inputs,), path, dynamo=False, input_names=list(inputs), output_names=["rows"],
                          dynamic_axes={key: {0: "batch", 1: "rows"} for key in inputs}, opset_version=14)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return bert_file(tmp_path_factory.mktemp("graphs") / "m.onnx")


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


def projected_twice(graph):
    """Rows of the embeddings by two products, with an activation between them."""
    value = node_of(graph, "embeddings/LayerNorm", "Add_1").output[0]
    for op, *operands in ("MatMul", numpy.eye(16) * 1.5), ("Tanh",), ("MatMul", numpy.eye(16) * 0.7):
        behind(graph, value, op, *operands)
        value += " changed"


def normed_behind_a_product(graph):
    """The norm of the embeddings is that of a product of them."""
    behind(graph, node_of(graph, "embeddings/Add_1").output[0], "MatMul", numpy.eye(16) * 1.5)


def in_hidden(graph):
    behind(graph, node_of(graph, "layer.1/intermediate/dense", "Add").output[0], "Mul", 0.9)


def other_eps(graph):
    """One of the two norms of a layer."""
    node = node_of(graph, "layer.1/output/LayerNorm/Add")
    maker = next(node_ for node_ in graph.node if node_.output[0] in node.input and node_.op_type == "Constant")
    maker.attribute[0].t.CopyFrom(numpy_helper.from_array(numpy.array(0.03, "f4")))


def other_words(graph):
    """Columns of words have factors of their own."""
    behind(graph, node_of(graph, "word_embeddings").output[0], "Mul", numpy.linspace(0.5, 2, 16))


def of_the_sum(graph):
    """A factor of the words alone, behind what has already been added to them."""
    behind(graph, node_of(graph, "embeddings/Add").output[0], "Mul", 2.0)
    behind(graph, node_of(graph, "embeddings/Add").output[0] + " changed", "Abs")


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


def of_one_id(graph):
    """Another position of id 1, which no node compares with."""
    node = node_of(graph, "position_embeddings")
    place, index = list(graph.node).index(node), node.input[1]
    graph.initializer.append(numpy_helper.from_array(numpy.array(1), "one"))
    for k, (op, *inputs) in enumerate([("Sub", "input_ids", "one"), ("Abs", "step0"), ("Min", "step1", "one"),
                                       ("Add", "step2", index)]):
        graph.node.insert(place + k, helper.make_node(op, inputs, [f"step{k}"], f"step{k}"))
    node.input[1] = "step3"


def from_the_end(graph):
    """Positions that count from the end of a run."""
    node = node_of(graph, "position_embeddings")
    place, index = list(graph.node).index(node), node.input[1]
    graph.node.insert(place, helper.make_node("ReduceMax", [index], ["last"], "last"))
    graph.node.insert(place + 1, helper.make_node("Sub", ["last", index], ["from the end"], "turned"))
    node.input[1] = "from the end"


def one_more_norm(graph):
    """Behind the last layer, whose rows have one already."""
    rows = graph.output[0].name
    behind(graph, rows, "LayerNormalization", numpy.linspace(0.5, 2, 16))
    graph.output[0].name = f"{rows} changed"


REFUSED = {projected_twice: "no sum with a row of a table", normed_behind_a_product: "no sum with a row of a table",
           as_tanh: "no activation", other_residual: "added to", between_layers: "reads",
           in_hidden: "no activation", other_eps: "norms", other_words: "no sum with a row of a table",
           of_the_sum: "no sum with a row of a table",
           biased_mask: "does more than to hide", more_products: "no activation", of_ids: "ids",
           of_one_id: "depends on ids",
           from_the_end: "is not the sum of the tables", one_more_norm: "two epsilons"}


@pytest.mark.parametrize("change", REFUSED, ids=lambda change: change.__name__)
def test_look_alikes(bert, change, tmp_path):
    model = onnx.load(bert)
    change(model.graph)
    onnx.save(model, tmp_path / "m.onnx")
    expect_refusal(tmp_path / "m.onnx", tmp_path / "out", REFUSED[change], "isa=scalar", "seq=8")


@torch.no_grad()
def test_norms_at_both_ends(bert, tmp_path):
    model = onnx.load(bert)
    one_more_norm(model.graph)
    node_of(model.graph, "changed").attribute.append(helper.make_attribute("epsilon", 1e-12))
    onnx.save(model, tmp_path / "m.onnx")
    made = [Encoder(path, tmp_path / path.parent.name, "isa=scalar", "seq=8") for path in (bert, tmp_path / "m.onnx")]
    (_, before, _), (status, rows, _) = (whole.run([5, 6, 7, 8]) for whole in made)
    right = torch.nn.functional.layer_norm(before, (16,)) * torch.linspace(0.5, 2, 16)
    assert status == 0 and near(rows, right)


def vit_file(path):
    model = Pixels(model_of(of("ViT", num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24,
                               **IMAGE), "vit")).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.randn(1, 3, 24, 24),), path, dynamo=False, input_names=["pixel_values"],
                          output_names=["rows"], dynamic_axes={"pixel_values": {0: "batch"}}, opset_version=14)
    return path


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    return vit_file(tmp_path_factory.mktemp("images") / "m.onnx")


def other_order(graph):
    """Patches column by column."""
    node = node_of(graph, "Conv")
    behind(graph, node.output[0], "Transpose")
    node_of(graph, "changed").attribute.append(helper.make_attribute("perm", [0, 1, 3, 2]))


def brighter(graph):
    behind(graph, node_of(graph, "Conv").output[0], "Relu")


def two_last_norms(graph):
    rows = node_of(graph, "model/layernorm/ReduceMean")
    graph.initializer.append(numpy_helper.from_array(numpy.linspace(0.5, 2, 16, dtype="f4"), "gains"))
    graph.node.append(helper.make_node("LayerNormalization", [rows.input[0], "gains"], ["other rows"], "other norm"))
    graph.output.append(helper.make_tensor_value_info("other rows", onnx.TensorProto.FLOAT, None))


@pytest.mark.parametrize("change, said", [(other_order, "is not the sum of patches"), (brighter, "sum of patches"),
                                          (two_last_norms, "has several")], ids=lambda value: getattr(
                                              value, "__name__", ""))
def test_images_that_look_alike(vit, change, said, tmp_path):
    model = onnx.load(vit)
    change(model.graph)
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "m.onnx")
    expect_refusal(tmp_path / "m.onnx", tmp_path / "out", said, "isa=scalar")


def test_another_norm(vit, tmp_path):
    """Of the rows that the first layer reads, for another output."""
    model = onnx.load(vit)
    rows = node_of(model.graph, "embeddings/Add").output[0]
    model.graph.initializer.append(numpy_helper.from_array(numpy.linspace(0.5, 2, 16, dtype="f4"), "gains"))
    model.graph.node.append(helper.make_node("LayerNormalization", [rows, "gains"], ["other rows"], "other norm"))
    model.graph.output.append(helper.make_tensor_value_info("other rows", onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "m.onnx")
    told = run(MHAGEN, "model", tmp_path / "m.onnx", "--whole", "isa=scalar", "-o", tmp_path / "out")
    assert "output other rows" in told


@torch.no_grad()
def test_open_images(tmp_path):
    """A graph of images of any size is for the size that --image says."""
    model = Pixels(model_of(of("ViT", num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24,
                               **IMAGE), "vit")).eval()
    image = torch.randn(1, 3, 24, 24)
    axes = dict(enumerate(["batch", "channels", "height", "width"]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (image,), tmp_path / "m.onnx", dynamo=False, input_names=["pixel_values"],
                          dynamic_axes={"pixel_values": axes}, opset_version=14)
    expect_refusal(tmp_path / "m.onnx", tmp_path / "out", "--image HEIGHTxWIDTH says it", "isa=scalar")
    status, rows, _ = Images(tmp_path / "m.onnx", tmp_path / "out", "isa=scalar", "--image", "24").run(image)
    assert status == 0 and near(rows, model(image)[0])


def test_size_of_closed_images(vit, bert, tmp_path):
    for path in vit, bert:
        expect_refusal(path, tmp_path / "out", "no image of the graph", "isa=scalar", "seq=8", "--image", "24")


@torch.no_grad()
def test_halves(tmp_path):
    """f16 constants are taken as they are; the activation is the nearest one."""
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    from onnxruntime.transformers.float16 import convert_float_to_float16
    for act in "gelu", "gelu_new":
        model = Texts(model_of(of("Bert", vocab_size=60, hidden_act=act, hidden_size=16, num_attention_heads=2,
                                  num_hidden_layers=1, intermediate_size=24, **MOST), act)).eval()
        inputs = text_inputs(model, "bert")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (inputs,), tmp_path / "m.onnx", dynamo=False, input_names=list(inputs),
                              dynamic_axes={key: {0: "batch", 1: "rows"} for key in inputs}, opset_version=14)
        onnx.save(convert_float_to_float16(onnx.load(tmp_path / "m.onnx")), tmp_path / "m.onnx")
        whole = Encoder(tmp_path / "m.onnx", tmp_path / act, "isa=scalar", "seq=8")
        ids = torch.randint(3, 60, (1, 8))
        right = model(ids, torch.ones_like(ids), torch.zeros_like(ids))[0]
        status, rows, _ = whole.run(ids[0].numpy())
        assert status == 0 and near(rows, right, 3e-3)
        assert ("ffn_act=gelu_tanh" in whole.text) == (act == "gelu_new")


def test_refusals(bert, tmp_path):
    for keys, said in [([], "seq: is required"), (["seq=8", "causal=true"], "is the model's own"),
                       (["seq=8", "kv_len=true"], "is the model's own")]:
        expect_refusal(bert, tmp_path / "out", said, "isa=scalar", *keys)
