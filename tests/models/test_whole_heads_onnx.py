"""Heads in ONNX files that `mhagen model --whole` reads: the graphs of classes with heads, and products of nobody's."""
import pytest

from test_whole_heads import LABELS, Headed
from test_whole_inputs import near
from test_whole_onnx import IMAGE, MOST, ROWS, Norm, export, model_of, of, text_inputs
from test_whole_outputs import mean
from tools import in_turn
from whole_lib import joined, torch

WORDS = {"vocab_size": 60, "num_labels": LABELS, **MOST}


class Named(torch.nn.Module):
    """One result of a model."""

    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x, attention_mask=None, token_type_ids=None):
        if x.is_floating_point():
            return self.model(x)[self.name]
        more = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        return self.model(x, attention_mask, **more)[self.name]


class Answers(torch.nn.Module):
    """Where an answer begins and where it ends, as two results."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        made = self.model(input_ids, attention_mask, token_type_ids)
        return made.start_logits, made.end_logits


class Patches(torch.nn.Module):
    """A product of each row of an image."""

    def __init__(self, model):
        super().__init__()
        self.model, self.behind = model, torch.nn.Linear(model.config.hidden_size, LABELS)

    def forward(self, pixel_values):
        return self.behind(self.model(pixel_values).last_hidden_state)


class Made(torch.nn.Module):
    """Products behind what is taken of the rows."""

    def __init__(self, model, take, *behind):
        super().__init__()
        self.model, self.take, self.behind = model, take, torch.nn.Sequential(*behind)

    def forward(self, input_ids, attention_mask, token_type_ids):
        rows = self.model(input_ids=input_ids, attention_mask=attention_mask,
                          token_type_ids=token_type_ids).last_hidden_state
        return self.behind(self.take(rows, attention_mask, input_ids))


def bert(name):
    return of("Bert", vocab_size=60, hidden_size=16, num_attention_heads=2, num_hidden_layers=1, **MOST)(name)


def made(take, *behind): return lambda name: Made(bert(name), take, *(make() for make in behind))


def linear(count, bias=True, of=16): return lambda: torch.nn.Linear(of, count, bias=bias)


def norm(of=16, **keys): return lambda: torch.nn.LayerNorm(of, **keys)


def first(rows, mask, ids): return rows[:, 0]


def each(rows, mask, ids): return rows


def row_of_an_id(rows, mask, ids):
    """The row of id 41, or the first one."""
    return rows[torch.arange(len(rows)), ((ids == 41) * torch.arange(ids.shape[1])).sum(1)]


def bounded_mean(rows, mask, ids):
    mask = mask[..., None].float()
    return (rows * mask).sum(1) / mask.sum(1).clamp(min=4)


# What makes a model; its result in the graph and in C; whether it is of each row
HEADS = {
    "bert, sequences": (of("Bert", "ForSequenceClassification", **WORDS), "logits", False),
    "bert, tokens": (of("Bert", "ForTokenClassification", **WORDS), "logits", True),
    "distilbert, sequences": (of("DistilBert", "ForSequenceClassification", **WORDS), "logits", False),
    "roberta, sequences": (of("Roberta", "ForSequenceClassification", type_vocab_size=1, pad_token_id=1, **WORDS),
                           "logits", False),
    "vit": (of("ViT", "ForImageClassification", num_labels=LABELS, **IMAGE), "logits", False),
    "vit, of each row": (lambda name: Patches(of("ViT", **IMAGE)(name)), "scores", True),
    "bert, the mean and a product": (made(lambda rows, mask, ids: mean(rows, mask), linear(LABELS, False)),
                                     "text_embedding", False),
    "bert, gelu between": (made(first, linear(16), torch.nn.GELU, linear(LABELS)), "scores",
                           False),
    "bert, wide between": (made(first, linear(400), torch.nn.ReLU, linear(LABELS, of=400)), "scores", False),
    "bert, wide between, of each row": (made(each, linear(400), torch.nn.ReLU, linear(LABELS, of=400)), "scores", True),
    "bert, of each row": (made(each, linear(16), torch.nn.SiLU, linear(LABELS)), "scores",
                          True),
    "bert, of a projected table": (of("Albert", "ForSequenceClassification", embedding_size=10, **WORDS), "logits",
                                   False),
    "clip, images": (of("CLIPVision", "ModelWithProjection", projection_dim=LABELS, **IMAGE), "image_embeds", False),
    "modernbert, tokens": (of("ModernBert", "ForTokenClassification", pad_token_id=0, bos_token_id=1, eos_token_id=2,
                              cls_token_id=1, sep_token_id=2, local_attention=8, **WORDS), "logits", True),
    "bert, a norm of the mean": (made(lambda rows, mask, ids: mean(rows, mask), norm(), linear(LABELS)), "scores",
                                 False),
    "bert, norms between": (made(first, linear(24), torch.nn.GELU, norm(24, eps=0.3), linear(LABELS, of=24)), "scores",
                            False),
    "bert, an RMS norm": (made(first, lambda: Norm(16), linear(LABELS)), "scores", False),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(HEADS), "heads of graphs", count=3))
def test_heads(name, tmp_path):
    make, result, of_rows = HEADS[name]
    model = model_of(make, name)
    model = (model if isinstance(model, (Made, Patches)) else Named(model, result)).eval()
    images = name in ("vit", "vit, of each row", "clip, images")
    inputs = {"pixel_values": torch.randn(2, 3, 24, 24)} if images else text_inputs(model, name)
    path = export(model, inputs, tmp_path / "m.onnx", name, [result])
    whole = Headed(path, tmp_path / "out", "isa=scalar", *([] if images else [f"seq={ROWS}"]), *joined(name))
    assert whole.sizes["EMBEDDING" if "embed" in result else "LABELS"] == LABELS
    assert "left out: output" not in whole.text
    for length in (1, 7, ROWS) if not images else (0,):
        x = torch.randn(1, 3, 24, 24) if images else torch.randint(3, 60, (1, length))
        more = [] if images else [torch.ones_like(x), torch.zeros_like(x)][:len(inputs) - 1]
        right = model(x, *more)
        status, found, _ = whole.run(x)
        count = right.numel() // LABELS
        assert count == 1 or of_rows
        assert status == 0 and near(found[:count], right.reshape(count, LABELS)) and found[count:].isnan().all()


class Texts(torch.nn.Module):
    """An RMS norm of columns, over the texts."""

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-5)


class Halves(torch.nn.Module):
    """A norm of both halves of a row."""

    def forward(self, x):
        return torch.nn.functional.layer_norm(x.unflatten(-1, (2, -1)), (8,)).flatten(-2)


class Beside(Made):
    """The rows too."""

    def forward(self, input_ids, attention_mask, token_type_ids):
        rows = self.model(input_ids=input_ids, attention_mask=attention_mask,
                          token_type_ids=token_type_ids).last_hidden_state
        return rows, self.behind(self.take(rows, attention_mask, input_ids))


@torch.no_grad()
@pytest.mark.parametrize("take, exporter", [(first, "beside rows"), (each, "beside other rows")])
def test_beside_rows(take, exporter, tmp_path):
    """A norm of the head is none of the rows that the graph returns."""
    model = model_of(lambda name: Beside(bert(name), take, norm()(), linear(LABELS)()), exporter).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", exporter, ["rows", "scores"])
    whole = Headed(path, tmp_path / "out", "isa=scalar", f"seq={ROWS}")
    for length in 1, 7, ROWS:
        x = torch.randint(3, 60, (1, length))
        rows, right = model(x, torch.ones_like(x), torch.zeros_like(x))
        status, found, states = whole.run(x)
        count = right.numel() // LABELS
        assert status == 0 and near(states, rows[0]) and near(found[:count], right.reshape(count, LABELS))


class Biased(torch.nn.Module):
    """A product with a bias and without one: either is the head, and the other one is read too."""

    def __init__(self, model, with_bias):
        super().__init__()
        self.model, self.behind, self.with_bias = model, torch.nn.Linear(16, LABELS, bias=False), with_bias
        self.bias = torch.nn.Parameter(torch.zeros(LABELS))

    def forward(self, input_ids, attention_mask, token_type_ids):
        rows = self.model(input_ids=input_ids, attention_mask=attention_mask,
                          token_type_ids=token_type_ids).last_hidden_state
        bare = self.behind(rows[:, 0])
        other = bare + self.bias
        return (other, bare.tanh()) if self.with_bias else (bare, other.tanh())


@torch.no_grad()
@pytest.mark.parametrize("with_bias", [False, True])
def test_bias_of_others(with_bias, tmp_path):
    """A bias belongs to what it is added to, and not to the product alone."""
    name = f"biased, {with_bias}"
    model = model_of(lambda name: Biased(bert(name), with_bias), name).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", name, ["logits", "other"])
    whole = Headed(path, tmp_path / "out", "isa=scalar", "seq=8")
    x = torch.randint(3, 60, (1, 7))
    status, found, _ = whole.run(x)
    assert status == 0 and near(found[:1], model(x, torch.ones_like(x), torch.zeros_like(x))[0])
    assert f"left out: output other ({LABELS} numbers of each text)" in whole.text


# Outputs that are no such head: they are left out, and the summary names them.
OTHERS = {
    "the second row": made(lambda rows, mask, ids: rows[:, 1], linear(LABELS)),
    "an activation at the end": made(first, linear(LABELS), torch.nn.Tanh),
    "three products": made(first, linear(16), torch.nn.Tanh, linear(16), torch.nn.Tanh,
                           linear(LABELS)),
    "another activation": made(first, linear(16), torch.nn.Softsign, linear(LABELS)),
    "an activation with a bound": made(first, linear(16), torch.nn.ReLU6, linear(LABELS)),
    "the row of an id": made(row_of_an_id, linear(LABELS)),
    "the mean with a bound": made(bounded_mean, linear(LABELS)),
    "a norm of the second row": made(lambda rows, mask, ids: rows[:, 1], norm(), linear(LABELS)),
    "two norms": made(first, norm(), norm(), linear(LABELS)),
    "a norm of the texts": made(first, Texts, linear(LABELS)),
    "a norm of halves": made(first, Halves, linear(LABELS)),
    "a norm and an activation": made(first, norm(), torch.nn.Tanh, linear(LABELS)),
    "more labels than columns": made(first, linear(17000)),
    "too wide between": made(first, linear(17000), torch.nn.ReLU, linear(LABELS, of=17000)),
    "the mean with padding": made(lambda rows, mask, ids: rows.mean(1), linear(LABELS)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(OTHERS), "no heads of graphs", count=2))
def test_others(name, tmp_path):
    model = model_of(OTHERS[name], name).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", name, ["scores"])
    whole = Headed(path, tmp_path / "out", "isa=scalar", "seq=8")
    count = 17000 if name == "more labels than columns" else LABELS
    assert "LABELS" not in whole.sizes and f"left out: output scores ({count} numbers of each text)" in whole.text


@torch.no_grad()
@pytest.mark.parametrize("exporter", ["answers", "questions"])
def test_answers(exporter, tmp_path):
    """Two outputs are the columns of one product of each row."""
    model = Answers(model_of(of("Bert", "ForQuestionAnswering", **{**WORDS, "num_labels": 2}), exporter)).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", exporter, ["begin", "end"])
    whole = Headed(path, tmp_path / "out", "isa=scalar", f"seq={ROWS}")
    assert whole.sizes["LABELS"] == 2 and "left out" not in whole.text
    assert "outputs begin and end of the graph, or null" in (tmp_path / "out/model.h").read_text()
    for length in 1, 7, ROWS:
        x = torch.randint(3, 60, (1, length))
        status, found, _ = whole.run(x)
        right = torch.stack(model(x, torch.ones_like(x), torch.zeros_like(x)), -1)[0]
        assert status == 0 and near(found[:length], right) and found[length:].isnan().all()
    assert "LABELS" not in Headed(path, tmp_path / "bare", "isa=scalar", "seq=8", "--no-head").sizes


class Columns(torch.nn.Module):
    """Two results that look like the columns of a product."""

    def __init__(self, make, columns=2):
        super().__init__()
        self.model, self.make = made(each, linear(columns))("columns"), make

    def forward(self, input_ids, attention_mask, token_type_ids):
        scores = self.model(input_ids, attention_mask, token_type_ids)
        return self.make(*scores.unbind(-1))


@torch.no_grad()
@pytest.mark.parametrize("name, make, columns", in_turn([
    ("one twice", lambda a, b: (a + 0, a), 2), ("one of three", lambda a, b, c: (a, b), 3),
    ("hidden", lambda a, b: (a.masked_fill(torch.arange(a.shape[1]) == 0, -9), b), 2),
    ("of one row", lambda a, b: (a[:, :1], b[:, :1]), 2),
], "no columns of graphs", count=2))
def test_no_answers(name, make, columns, tmp_path):
    model = model_of(lambda name: Columns(make, columns), name).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", name, ["begin", "end"])
    whole = Headed(path, tmp_path / "out", "isa=scalar", "seq=8")
    assert "LABELS" not in whole.sizes and "output begin (" in whole.text and "output end (" in whole.text


@torch.no_grad()
def test_names_of_outputs(tmp_path):
    """The name of an output is no C."""
    model = model_of(made(first, linear(LABELS)), "names").eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", "names", ["a*/ int x; /*"])
    whole = Headed(path, tmp_path / "out", "isa=scalar", "seq=8")
    assert whole.sizes["LABELS"] == LABELS
