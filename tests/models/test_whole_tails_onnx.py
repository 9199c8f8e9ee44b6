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
    def __init__(self, axis=-1):
        super().__init__()
        self.axis = axis

    def forward(self, scores):
        return scores.argmax(self.axis)


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


class Times(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, scores):
        return scores * self.factor


class Divided(Times):
    """A temperature that is a weight."""

    def __init__(self, factor):
        super().__init__(torch.full((1,), factor))
        self.factor = torch.nn.Parameter(self.factor)

    def forward(self, scores):
        return scores / self.factor


class Steps(torch.nn.Module):
    """Scores of each row times its number."""

    def forward(self, scores):
        return scores * torch.arange(scores.shape[1])[:, None]


class Length(torch.nn.Module):
    def __init__(self, axis=-1, least=1e-12):
        super().__init__()
        self.axis, self.least = axis, least

    def forward(self, scores):
        return torch.nn.functional.normalize(scores, dim=self.axis, eps=self.least)


def softmax(axis): return lambda: torch.nn.Softmax(axis)


def log_softmax(axis=-1): return lambda: torch.nn.LogSoftmax(axis)


def times(factor): return lambda: Times(factor)


def divided(factor): return lambda: Divided(factor)


# What is taken of the rows, what is behind the logits, and what the summary calls that
TAILS = {
    "softmax": (first, [softmax(-1)], "Softmax of args.logits (node "),
    "softmax of each row": (each, [softmax(-1)], "Softmax of args.logits (node "),
    "log_softmax": (first, [log_softmax()], "LogSoftmax of args.logits (node "),
    "sigmoid": (each, [torch.nn.Sigmoid], "Sigmoid of args.logits (node "),
    "label": (first, [Label], "ArgMax of args.logits (node "),
    "label of a softmax": (each, [softmax(-1), Label], "ArgMax of Softmax of args.logits (nodes "),
    "length": (first, [Length], "args.logits divided by its length (node "),
    "softmax over rows": (each, [softmax(1)], "Softmax over the rows of args.logits (node "),
    "log_softmax over rows": (each, [log_softmax(1)], "LogSoftmax over the rows of args.logits (node "),
    "row of a label": (each, [lambda: Label(1)], "ArgMax over the rows of args.logits (node "),
    "length and a scale": (first, [Length, times(0.7)], "args.logits divided by its length times 0.7 (nodes "),
    "a scale far from one": (each, [times(1e-5), softmax(-1)], "Softmax of args.logits times 1e-05 (nodes "),
    "a scale of zero": (first, [times(0.0)], "args.logits times 0 (node "),
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
        found = model.behind[1:](found[None, :length] if take is each else found[:1])[0]
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
                    lambda x: 2 * x, lambda x: x.sin()).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", exporter,
                  ["a", "logits", "label", "double", "more"])
    whole = headed(path, tmp_path / "out", exporter)
    assert "output logits of the graph, or null" in (tmp_path / "out/model.h").read_text()
    for said in ("Softmax of args.logits (node ", " before output a), which stays with the caller",
                 "ArgMax of args.logits (node ", " before output label), which stays with the caller",
                 "args.logits times 2 (node ", " before output double), which stays with the caller",
                 f"output more ({LABELS} numbers of each text)"):
        assert said in whole.text
    ids = torch.randint(3, 60, (1, 7))
    status, found, _ = whole.run(ids)
    assert status == 0 and near(found[0], model(ids, torch.ones_like(ids), torch.zeros_like(ids))[1][0])


# No functions of the logits of a text: such outputs are left out as a whole.
OTHERS = {
    "softmax of the texts": (first, [linear(LABELS), softmax(0)], LABELS),
    "softmax of halves": (first, [linear(4), Halves], 4),
    "softmax of the texts of rows": (each, [linear(LABELS), softmax(0)], LABELS),
    "length over rows": (each, [linear(LABELS), lambda: Length(1)], LABELS),
    "a scale of each row": (each, [linear(LABELS), Steps], LABELS),
    "a scale of each label": (each, [linear(LABELS), times(torch.linspace(1, 2, LABELS))], LABELS),
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


# What is behind a product and belongs to the head, and what stays with the caller
FACTORS = {
    "times": (first, [times(2.5)], []),
    "divided, softmax": (first, [divided(0.7), softmax(-1)], ["Softmax of args.logits (node "]),
    "of rows, sigmoid": (each, [times(-3.0), torch.nn.Sigmoid], ["Sigmoid of args.logits (node "]),
    "several": (each, [times(0.3), divided(0.1)], []),
    "of rows, softmax over them": (each, [divided(4.0), softmax(1)], ["Softmax over the rows of args.logits (node "]),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(FACTORS), "factors of graphs", count=2))
@pytest.mark.parametrize("bias", [False, True])
def test_factors(name, bias, tmp_path):
    """Logits are multiplied by what the file multiplies them by."""
    take, behind, said = FACTORS[name]
    model = model_of(made(take, linear(LABELS, bias), *behind), name).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", f"{name}, {bias}", ["scores"])
    whole = headed(path, tmp_path / "out", name)
    left = [line for line in whole.text.splitlines() if "left out" in line]
    assert len(left) == len(said) and all(text in left[0] for text in said)
    scales = [each for each in model.behind[1:] if isinstance(each, Times)]
    for length in 1, 7, ROWS:
        ids = torch.randint(3, 60, (1, length))
        rows = model.model(ids, torch.ones_like(ids), torch.zeros_like(ids)).last_hidden_state
        right = model.behind[:1 + len(scales)](take(rows, None, ids))[0]
        status, found, _ = whole.run(ids)
        assert status == 0 and near(found[:length] if take is each else found[0], right)


@torch.no_grad()
def test_optimized(tmp_path):
    """ONNX Runtime writes the factor into the product."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = model_of(made(first, linear(LABELS, False), times(2.5)), "optimized").eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", "optimized", ["scores"])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "o.onnx"), 3
    onnxruntime.InferenceSession(path, options)
    assert b"alpha" in (tmp_path / "o.onnx").read_bytes()
    ids = torch.randint(3, 60, (1, 7))
    status, found, _ = headed(tmp_path / "o.onnx", tmp_path / "out", "optimized").run(ids)
    assert status == 0 and near(found[:1], model(ids, torch.ones_like(ids), torch.zeros_like(ids)))


class Answers(torch.nn.Module):
    """What is made of the columns of one product of each row."""

    def __init__(self, model, make):
        super().__init__()
        self.model, self.make = model, make

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.make(self.model(input_ids, attention_mask, token_type_ids))


def begun(columns, scores):
    """The columns of scores, as the head has them."""
    return [part.squeeze(-1) for part in scores.split(1, -1)][:columns]


def probable(scores): return tuple(part.softmax(1) for part in begun(2, scores))


def probable_and_scores(scores): return (*probable(scores), *begun(2, scores))


def found_at(scores): return tuple(part.argmax(1) for part in begun(2, scores))


def one_softmax(scores): return scores.squeeze(-1).softmax(1)


# Columns, what is made of them, names of outputs, what the summary says of some of these, and a factor of the head
ANSWERS = {
    "probable": (2, probable, "begin end", {"begin": "Softmax over the rows of column 0 of args.logits (node ",
                                            "end": "Softmax over the rows of column 1 of args.logits (node "}, 1),
    "beside scores": (2, probable_and_scores, "a b begin end", {
        "a": "Softmax over the rows of column 0 of", "b": "Softmax over the rows of column 1 of"}, 1),
    "scaled before": (2, lambda scores: probable(scores / 0.5), "begin end", {
        "begin": "Softmax over the rows of column 0 of args.logits (node "}, 2),
    "one scaled": (2, lambda scores: (begun(2, scores)[0], 2 * begun(2, scores)[1]), "begin end", {
        "end": "column 1 of args.logits times 2 (node "}, 1),
    "found": (2, found_at, "begin end", {"begin": "ArgMax over the rows of column 0 of args.logits (node "}, 1),
    "one of each row": (1, one_softmax, "weights", {"weights": "Softmax over the rows of args.logits (node "}, 1),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(ANSWERS), "answers of graphs", count=2))
def test_answers(name, tmp_path):
    columns, make, outputs, said, factor = ANSWERS[name]
    model = model_of(lambda name: Answers(made(each, linear(columns))(name), make), name).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", name, outputs.split())
    whole = headed(path, tmp_path / "out", name)
    assert whole.sizes["LABELS"] == columns and "left out: output" not in whole.text
    for output, words in said.items():
        assert words in whole.text and f" before output {output}), which stays with the caller" in whole.text
    for length in 1, 7, ROWS:
        ids = torch.randint(3, 60, (1, length))
        right = model.model(ids, torch.ones_like(ids), torch.zeros_like(ids))[0]
        status, found, _ = whole.run(ids)
        assert status == 0 and near(found[:length], factor * right)


class Tempered(torch.nn.Module):
    def __init__(self, model, make):
        super().__init__()
        self.model, self.make = model, make

    def forward(self, input_ids, attention_mask, token_type_ids, temperature):
        return self.make(self.model(input_ids, attention_mask, token_type_ids), temperature)


def tempered(path, make, temperature, **axes):
    """A model whose logits an input changes."""
    model = model_of(lambda name: Tempered(made(first, linear(LABELS))(name), make), "tempered").eval()
    inputs = text_inputs(model, "bert")
    axes = {**{name: {0: "batch", 1: "rows"} for name in inputs}, **axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (*inputs.values(), temperature), path, dynamo=False, opset_version=17,
                          input_names=[*inputs, "heat %d"], output_names=["scores"], dynamic_axes=axes)
    return model


@torch.no_grad()
@pytest.mark.parametrize("temperature, axes", [(torch.ones(1), {}), (torch.tensor(1.0), {}),
                                               (torch.ones(2, 1), {"heat %d": {0: "batch"}})])
def test_of_an_input(temperature, axes, tmp_path):
    """What divides logits and is no constant of the file stays with the caller, by name."""
    model = tempered(tmp_path / "m.onnx", lambda x, heat: (x / heat).softmax(-1), temperature, **axes)
    whole = headed(tmp_path / "m.onnx", tmp_path / "out", "tempered")
    assert "left out: Softmax of args.logits divided by heat %d (nodes " in whole.text
    ids = torch.randint(3, 60, (1, 7))
    status, found, _ = whole.run(ids)
    right = model.model(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert status == 0 and near(found[:1], right)


@torch.no_grad()
@pytest.mark.parametrize("make, temperature", [
    (lambda x, heat: (x / heat).softmax(-1), torch.ones(LABELS)), (lambda x, heat: heat / x, torch.ones(1)),
    (lambda x, heat: (x + heat).softmax(-1), torch.ones(1))])
def test_of_other_inputs(make, temperature, tmp_path):
    tempered(tmp_path / "m.onnx", make, temperature)
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
