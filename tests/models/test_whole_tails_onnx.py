"""What stands behind a head in an ONNX file: functions of logits alone are left to the caller, as the summary says."""
import warnings

import pytest

from test_whole_heads import LABELS, Headed
from test_whole_heads_onnx import each, first, linear, made
from test_whole_inputs import near
from test_whole_onnx import ROWS, export, model_of, text_inputs
from tools import in_turn
from whole_lib import expect_refusal, joined, torch


class Label(torch.nn.Module):
    def forward(self, scores):
        return scores.argmax(-1)


class Whole(torch.nn.Module):
    """Numbers without their fractions."""

    def forward(self, scores):
        return scores.int()


class Halves(torch.nn.Module):
    """A Softmax of the first four scores in pairs."""

    def forward(self, scores):
        return scores.unflatten(-1, (2, -1)).softmax(-1).flatten(-2)


class Rest(torch.nn.Module):
    """All scores but the first one."""

    def forward(self, scores):
        return scores.split([1, scores.shape[-1] - 1], -1)[1]


class Scaled(torch.nn.Module):
    def forward(self, scores):
        return (scores / 0.7).softmax(-1)


class Length(torch.nn.Module):
    def __init__(self, axis=-1, least=1e-12):
        super().__init__()
        self.axis, self.least = axis, least

    def forward(self, scores):
        return torch.nn.functional.normalize(scores, dim=self.axis, eps=self.least)


def softmax(axis): return lambda: torch.nn.Softmax(axis)


def log_softmax(): return torch.nn.LogSoftmax(-1)


# What is taken of the rows, what is behind the logits, and what the summary calls that
TAILS = {
    "softmax": (first, [softmax(-1)], "Softmax of args.logits (node "),
    "softmax of each row": (each, [softmax(-1)], "Softmax of args.logits (node "),
    "log_softmax": (first, [log_softmax], "LogSoftmax of args.logits (node "),
    "sigmoid": (each, [torch.nn.Sigmoid], "Sigmoid of args.logits (node "),
    "label": (first, [Label], "ArgMax of args.logits (node "),
    "label of a softmax": (each, [softmax(-1), Label], "ArgMax of Softmax of args.logits (nodes "),
    "length": (first, [Length], "args.logits divided by its length (node "),
    "softmax of a length": (first, [Length, softmax(-1)], "Softmax of args.logits divided by its length (nodes "),
}


def headed(path, out, name):
    return Headed(path, out, "isa=scalar", f"seq={ROWS}", *joined(name))


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(TAILS), "tails of graphs", count=3))
def test_tails(name, tmp_path):
    """What the model returns is what these functions make of our logits."""
    take, behind, said = TAILS[name]
    model = model_of(made(take, linear(LABELS), *behind), name).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", name, ["scores"])
    whole = headed(path, tmp_path / "out", name)
    assert whole.sizes["LABELS"] == LABELS
    assert f"left out: {said}" in whole.text and " before output scores), which stays with the caller\n" in whole.text
    assert "what makes output scores of the graph, or null" in (tmp_path / "out/model.h").read_text()
    for length in 1, 7, ROWS:
        ids = torch.randint(3, 60, (1, length))
        right = model(ids, torch.ones_like(ids), torch.zeros_like(ids))[0]
        status, found, _ = whole.run(ids)
        found = model.behind[1:](found[:length] if take is each else found[0])
        assert status == 0 and (near(found, right) if found.is_floating_point() else torch.equal(found, right))


class Several(torch.nn.Module):
    """Scores, and what is made of them beside each other."""

    def __init__(self, model, *makers):
        super().__init__()
        self.model, self.makers = model, makers

    def forward(self, input_ids, attention_mask, token_type_ids):
        scores = self.model(input_ids, attention_mask, token_type_ids)
        return tuple(make(scores) for make in self.makers)


@torch.no_grad()
@pytest.mark.parametrize("exporter", ["several tails", "several tails, otherwise"])
def test_several(exporter, tmp_path):
    """Logits that are an output have its name. What else is made of them is left out, by name or not."""
    model = Several(model_of(made(first, linear(LABELS)), exporter), torch.nn.Softmax(-1), lambda x: x, Label(),
                    lambda x: 2 * x).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", exporter, ["a", "logits", "label", "more"])
    whole = headed(path, tmp_path / "out", exporter)
    assert "output logits of the graph, or null" in (tmp_path / "out/model.h").read_text()
    for said in ("Softmax of args.logits (node ", " before output a), which stays with the caller",
                 "ArgMax of args.logits (node ", " before output label), which stays with the caller",
                 f"output more ({LABELS} numbers of each text)"):
        assert said in whole.text
    ids = torch.randint(3, 60, (1, 7))
    status, found, _ = whole.run(ids)
    assert status == 0 and near(found[0], model(ids, torch.ones_like(ids), torch.zeros_like(ids))[1][0])


# No functions of the logits of a text: such outputs are left out as a whole.
OTHERS = {
    "softmax of the rows": (each, [linear(LABELS), softmax(1)], LABELS),
    "softmax of the texts": (first, [linear(LABELS), softmax(0)], LABELS),
    "softmax of halves": (first, [linear(4), Halves], 4),
    "softmax of scaled logits": (first, [linear(LABELS), Scaled], LABELS),
    "length of the texts": (first, [linear(LABELS), lambda: Length(0)], LABELS),
    "length with a bound": (first, [linear(LABELS), lambda: Length(-1, 0.01)], LABELS),
    "a part of the logits": (each, [linear(LABELS), Rest], LABELS - 1),
    "logits without fractions": (first, [linear(LABELS), Whole], LABELS),
    "sigmoid without fractions": (each, [linear(LABELS), torch.nn.Sigmoid, Whole], LABELS),
    "label of a softmax of the texts": (first, [linear(LABELS), softmax(0), Label], None),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(OTHERS), "no tails of graphs", count=3))
def test_others(name, tmp_path):
    take, behind, width = OTHERS[name]
    model = model_of(made(take, *behind), name).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", name, ["scores"])
    whole = headed(path, tmp_path / "out", name)
    of = "row" if take is each else "text"
    assert "LABELS" not in whole.sizes and "which stays with the caller" not in whole.text
    assert f"left out: output scores ({f'{width} numbers of each {of}' if width else ''}" in whole.text


class Tempered(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids, temperature):
        return (self.model(input_ids, attention_mask, token_type_ids) / temperature).softmax(-1)


@torch.no_grad()
def test_of_an_input(tmp_path):
    """Logits that an input divides are no logits of the rows alone."""
    model = model_of(lambda name: Tempered(made(first, linear(LABELS))(name)), "tempered").eval()
    inputs = text_inputs(model, "bert")
    axes = {name: {0: "batch", 1: "rows"} for name in inputs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (*inputs.values(), torch.ones(1)), tmp_path / "m.onnx", dynamo=False, opset_version=17,
                          input_names=[*inputs, "temperature"], output_names=["scores"], dynamic_axes=axes)
    whole = headed(tmp_path / "m.onnx", tmp_path / "out", "tempered")
    assert "LABELS" not in whole.sizes and f"left out: output scores ({LABELS} numbers of each text)" in whole.text


class Read(torch.nn.Module):
    """Weights of rows by a Softmax, which is returned too."""

    def __init__(self, model):
        super().__init__()
        self.model, self.score = model, torch.nn.Linear(16, 1)

    def forward(self, input_ids, attention_mask, token_type_ids):
        rows = self.model(input_ids, attention_mask, token_type_ids)
        weights = self.score(rows).squeeze(-1).softmax(-1)
        return rows, weights, (weights[..., None] * rows).sum(1)


@torch.no_grad()
def test_what_others_read(tmp_path):
    """A Softmax whose result is read within the graph may be attention that is not known."""
    model = model_of(lambda name: Read(made(each)(name)), "read").eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", "read", ["rows", "weights", "sum"])
    expect_refusal(path, tmp_path / "out", "m.onnx: --whole: node ", "isa=scalar", "seq=8")
