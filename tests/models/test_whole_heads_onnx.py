"""Heads in ONNX files that `mhagen model --whole` reads: the graphs of classes with heads, and products of nobody's."""
import pytest

from test_whole_heads import LABELS, Headed
from test_whole_inputs import near
from test_whole_onnx import IMAGE, MOST, ROWS, export, model_of, of, text_inputs
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


def first(rows, mask, ids): return rows[:, 0]


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
    "bert, the mean and a product": (made(lambda rows, mask, ids: mean(rows, mask), linear(LABELS, False)), "embedding",
                                     False),
    "bert, gelu between": (made(first, linear(16), torch.nn.GELU, linear(LABELS)), "scores",
                           False),
    "bert, wide between": (made(first, linear(400), torch.nn.ReLU, linear(LABELS, of=400)), "scores", False),
    "bert, wide between, of each row": (made(lambda rows, mask, ids: rows, linear(400), torch.nn.ReLU,
                                             linear(LABELS, of=400)), "scores", True),
    "bert, of each row": (made(lambda rows, mask, ids: rows, linear(16), torch.nn.SiLU, linear(LABELS)), "scores",
                          True),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(HEADS), "heads of graphs", count=3))
def test_heads(name, tmp_path):
    make, result, of_rows = HEADS[name]
    model = model_of(make, name)
    model = (model if isinstance(model, (Made, Patches)) else Named(model, result)).eval()
    images = name.startswith("vit")
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
    "the mean with padding": made(lambda rows, mask, ids: rows.mean(1), linear(LABELS)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(OTHERS), "no heads of graphs", count=2))
def test_others(name, tmp_path):
    model = model_of(OTHERS[name], name).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", name, ["scores"])
    whole = Headed(path, tmp_path / "out", "isa=scalar", "seq=8")
    assert "LABELS" not in whole.sizes and f"left out: output scores ({LABELS} numbers of each text)" in whole.text


@torch.no_grad()
def test_names_of_outputs(tmp_path):
    """The name of an output is no C."""
    model = model_of(made(first, linear(LABELS)), "names").eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", "names", ["a*/ int x; /*"])
    whole = Headed(path, tmp_path / "out", "isa=scalar", "seq=8")
    assert whole.sizes["LABELS"] == LABELS
