"""`mhagen model --whole` of ONNX files: tables of words that are large, or of other types than their rows."""
import pytest

from test_whole import Encoder
from test_whole_onnx import behind, bert_file, near, node_of
from whole_lib import expect_refusal, numpy, torch

import onnx  # without it the line before skips this file
from onnx import helper, numpy_helper

WORDS, WIDTH = 60, 16
AT, ROWS = 5 << 30, 2_200_000  # where a table of 134 MiB begins in its file


def table_of(graph):
    """The table of words, and the node that reads it."""
    node = node_of(graph, "word_embeddings")
    return next(tensor for tensor in graph.initializer if tensor.name == node.input[0]), node


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return bert_file(tmp_path_factory.mktemp("graphs") / "m.onnx")


@pytest.fixture(scope="module")
def large(bert, tmp_path_factory):
    """A file whose last words are the words of another one, and those before have zeros."""
    model, folder = onnx.load(bert), tmp_path_factory.mktemp("large")
    tensor, _ = table_of(model.graph)
    words = numpy_helper.to_array(tensor).astype("f4")
    with open(folder / "m.onnx_data", "wb") as file:
        for first in 0, ROWS - WORDS:
            file.seek(AT + first * WIDTH * 4)
            file.write(words.tobytes())
    tensor.CopyFrom(onnx.TensorProto(name=tensor.name, dims=[ROWS, WIDTH], data_type=onnx.TensorProto.FLOAT,
                                     data_location=onnx.TensorProto.EXTERNAL))
    for key, value in {"location": "m.onnx_data", "offset": AT, "length": ROWS * WIDTH * 4}.items():
        tensor.external_data.add(key=key, value=str(value))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def test_large_tables(bert, large, tmp_path):
    whole, other = (Encoder(path, tmp_path / path.parent.name, "isa=scalar", "seq=8") for path in (large, bert))
    assert whole.sizes["VOCABULARY"] == ROWS
    ids = numpy.array([5, 59, 0, 17])
    right = other.run(ids)[1]
    for first in 0, ROWS - WORDS:
        status, rows, _ = whole.run(ids + first)
        assert status == 0 and torch.equal(rows, right)
    status, rows, _ = whole.run(ids + WORDS)
    assert status == 0 and not near(rows, right)


def beside(graph, value, name):
    graph.initializer.append(numpy_helper.from_array(numpy.asarray(value), name))
    return name


def put_before(graph, node, op, *inputs, **attributes):
    """Another node makes the table that a node reads."""
    graph.node.insert(list(graph.node).index(node), helper.make_node(op, inputs, ["the table"], "table", **attributes))
    node.input[0] = "the table"


def of_halves(graph):
    tensor, node = table_of(graph)
    name = beside(graph, numpy_helper.to_array(tensor).astype("f2"), "halves")
    put_before(graph, node, "Cast", name, to=onnx.TensorProto.FLOAT)


def of_integers(graph, scale=0.01, more=()):
    tensor, node = table_of(graph)
    words = numpy.clip(numpy.round(numpy_helper.to_array(tensor) / 0.01) + 3, -128, 127).astype("i1")
    inputs = [beside(graph, words, "integers"), beside(graph, numpy.asarray(scale, "f4"), "scale"),
              beside(graph, numpy.full(numpy.shape(scale), 3, "i1"), "zero")]
    put_before(graph, node, "DequantizeLinear", *inputs, **dict(more))


def of_columns(graph):
    of_integers(graph, numpy.linspace(0.005, 0.02, WIDTH), [("axis", 1)])


def of_rows(graph):
    of_integers(graph, numpy.linspace(0.005, 0.02, WORDS), [("axis", 0)])


def twice(graph):
    """Rows of a table that is dequantized are dequantized once more."""
    of_integers(graph)
    value = node_of(graph, "word_embeddings").output[0]
    behind(graph, value, "DequantizeLinear", 0.5)


def with_factors(graph):
    """The words by a root, and all of the sum by less than one."""
    behind(graph, node_of(graph, "word_embeddings").output[0], "Mul", 4.0)
    behind(graph, node_of(graph, "token_type_embeddings").output[0], "Div", [[[3.0]]])
    behind(graph, node_of(graph, "embeddings/Add").output[0], "Mul", 0.7)


def of_integers_with_factors(graph):
    of_integers(graph)
    with_factors(graph)


@torch.no_grad()
@pytest.mark.parametrize("change", [of_halves, of_integers, with_factors, of_integers_with_factors],
                         ids=lambda change: change.__name__)
def test_types_of_tables(bert, change, tmp_path):
    """A table that is made of another one before its rows are taken."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    model = onnx.load(bert)
    change(model.graph)
    onnx.save(model, tmp_path / "m.onnx")
    ids = numpy.arange(20, 28, dtype="i8")
    feeds = {"input_ids": ids[None], "attention_mask": numpy.ones((1, 8), "i8"),
             "token_type_ids": numpy.zeros((1, 8), "i8")}
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    right = torch.from_numpy(session.run(None, feeds)[0][0])
    status, rows, _ = Encoder(tmp_path / "m.onnx", tmp_path / "out", "isa=scalar", "seq=8").run(ids)
    assert status == 0 and near(rows, right)


@pytest.mark.parametrize("change", [of_columns, of_rows, twice], ids=lambda change: change.__name__)
def test_tables_that_look_alike(bert, change, tmp_path):
    model = onnx.load(bert)
    change(model.graph)
    onnx.save(model, tmp_path / "m.onnx")
    expect_refusal(tmp_path / "m.onnx", tmp_path / "out", "no sum with a row of a table for each id", "isa=scalar",
                   "seq=8")
