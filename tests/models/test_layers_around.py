"""`mhagen model --layers`: whole layers of ONNX files by ONNX Runtime, against the same graphs as they are."""
import json

import pytest

from reference_lib import drawn_isa
from test_import import refused
from test_import_files import gguf_file, gguf_key, gguf_tensor, gguf_text
from test_onnxruntime_ops import Graph, ours, replace, same, session
from test_whole_onnx import IMAGES, TEXTS, Pixels, Texts, export, model_of, text_inputs
from tools import MHAGEN, in_turn, run
from whole_lib import numpy, torch

import onnx


def kinds(path):
    return [node.op_type for node in onnx.load(path).graph.node]


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(TEXTS), "layers of texts", count=3))
def test_texts(name, tmp_path):
    """All lengths of a ladder, with padding; norms and products of the layers are in our nodes."""
    own = model_of(TEXTS[name], name)
    model = own if name.startswith("gated") else Texts(own).eval()
    inputs = text_inputs(model, name)
    path = export(model, inputs, tmp_path / "m.onnx", name)
    lengths = "seq=5,20" if name.startswith("gated") else "seq=20"  # the others' masks have rows of queries
    text = replace(path, tmp_path / "out", f"isa={drawn_isa(name)}", lengths, "--layers")
    assert "attention alone" not in text and " ffn=" in text
    left = kinds(tmp_path / "out/model.onnx")
    assert "Softmax" not in left and left.count("LayerNormalization") <= 2 and "Gelu" not in left
    alone, with_ours = session(path), ours(tmp_path / "out")
    draw = numpy.random.default_rng(1)
    for batch, rows in (2, 7), (1, 20), (3, 5):
        seen = numpy.arange(rows)[None] < draw.integers(1, rows + 1, (batch, 1))
        given = {"input_ids": draw.integers(3, 60, (batch, rows)), "attention_mask": seen.astype("i8"),
                 "token_type_ids": draw.integers(0, 2, (batch, rows))}
        given = {key: given[key] for key in inputs}
        right, found = (each.run(None, given)[0] for each in (alone, with_ours))
        same(right[seen], found[seen])


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(IMAGES), "layers of images", count=2))
def test_images(name, tmp_path):
    model = Pixels(model_of(IMAGES[name], name)).eval()
    config = model.model.config
    size = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
    image = torch.randn(1, config.num_channels, *size)
    path = export(model, {"pixel_values": image}, tmp_path / "m.onnx", name)
    text = replace(path, tmp_path / "out", f"isa={drawn_isa(name)}", "--layers")
    assert "attention alone" not in text and "Softmax" not in kinds(tmp_path / "out/model.onnx")
    given = {"pixel_values": image.numpy()}
    same(session(path).run(None, given)[0], ours(tmp_path / "out").run(None, given)[0])


def layer(graph, x, act="Gelu", causal=0):
    """Norms in front. The activation may be one that no kernel has."""
    def norm(value):
        return graph.node("LayerNormalization", value, graph.constant(graph.x(24)), graph.constant(graph.x(24)))
    u = norm(x)
    y = graph.node("Attention", *[graph.linear(u, 24, 24) for _ in "qkv"], q_num_heads=3, kv_num_heads=3,
                   is_causal=causal)
    x = graph.node("Add", x, graph.linear(y, 24, 24))
    return graph.node("Add", x, graph.linear(graph.node(act, graph.linear(norm(x), 24, 40)), 40, 24))


def test_some_layers(tmp_path):
    """A layer with something else around its attention is a kernel of attention alone, and says so."""
    graph = Graph("around")
    x = graph.input("x", ["batch", 7, 24])
    middle = layer(graph, x, "Mish")
    path = graph.save(tmp_path / "g.onnx", layer(graph, middle, causal=1))
    text = replace(path, tmp_path / "out", f"isa={drawn_isa('around')}", "--layers")
    assert text.count("attention alone") == 1 and "is no activation" in text
    assert kinds(tmp_path / "out/model.onnx") == ["LayerNormalization", "Attention", "Add", "LayerNormalization",
                                                  "MatMul", "Add", "Mish", "MatMul", "Add", "Add", "Attention"]
    given = {"x": graph.x(3, 7, 24)}
    same(session(path).run(None, given)[0], ours(tmp_path / "out").run(None, given)[0])


def test_values(tmp_path):
    """--values names the rows that a whole layer reads and makes."""
    graph = Graph("values")
    x = graph.input("x", [2, 7, 24])
    middle = layer(graph, x)
    last = layer(graph, middle)
    path = graph.save(tmp_path / "g.onnx", last)
    lines = [json.loads(line) for line in run(MHAGEN, "model", path, "-o", tmp_path / "out", "isa=scalar", "--layers",
                                              "--values").splitlines()]
    assert [(line["inputs"]["q"], line["output"]) for line in lines] == [(x, middle), (middle, last)]
    assert all("norm=pre" in line["config"] and "ffn=40" in line["config"] for line in lines)


def test_refused(tmp_path):
    graph = Graph("both")
    path = graph.save(tmp_path / "g.onnx", layer(graph, graph.input("x", [2, 7, 24])))
    assert "--layers and --whole" in refused(tmp_path, "model", path, "--layers", "--whole", "isa=scalar")
    kind = gguf_key("general.architecture", 8, gguf_text("llama"))
    (tmp_path / "m.gguf").write_bytes(gguf_file(kind, gguf_tensor([4]), counts=(1, 1), data=bytes(32)))
    assert "--layers is for ONNX files" in refused(tmp_path, "model", tmp_path / "m.gguf", "--layers", "isa=scalar")
