"""`mhagen model --whole` of ONNX files: masks of padding in their forms, and inputs whose names say nothing."""
import pytest

from reference_lib import drawn_isa
from tools import in_turn
from test_whole import Encoder
from test_whole_onnx import Gated, export, model_of, near
from whole_lib import expect_refusal, torch

ROWS, LEAST = 12, torch.finfo(torch.float32).min

# How keys are hidden: of ids and the mask of the caller, what is added to scores, or which keys are hidden.
ADDED = {
    "flags": lambda ids, mask: (1 - mask) * LEAST,
    "floats": lambda ids, mask: (1.0 - mask) * -1e9,
    "padding": lambda ids, mask: mask,
    "integers of padding": lambda ids, mask: mask * -1e9,
    "padding of bytes": lambda ids, mask: mask != 0,
    "added": lambda ids, mask: mask,
    "of ids": lambda ids, mask: ids == 0,
    "of large ids": lambda ids, mask: ~(ids > 0),
    "of ids and flags": lambda ids, mask: (ids == 1) | (mask == 0),
    "of no names": lambda ids, mask: (1 - mask.float()) * LEAST,
    "of no names, of padding": lambda ids, mask: mask,
}
# The type of the caller's mask, and what it has for keys that are seen and for padding
MASKS = {"floats": (torch.float32, 1, 0), "padding": (torch.bool, False, True),
         "added": (torch.float32, 0.0, -torch.inf),
         "integers of padding": (torch.int64, 0, 1), "padding of bytes": (torch.uint8, 0, 1),
         "of no names, of padding": (torch.bool, False, True)}
PADDING = {"of ids": 0, "of large ids": 0, "of ids and flags": 1}


class Masked(Gated):
    """An encoder with types, whose masks have one of these forms."""

    def __init__(self, name):
        super().__init__(16, 2, 12, 1, False)
        self.name, self.types = name, torch.nn.Embedding(3, 16)

    def forward(self, ids, mask=None, types=None):
        x = self.words(ids)
        x = x if types is None else x + self.types(types)
        hidden = ADDED[self.name](ids, mask)
        hidden = hidden if hidden.dim() == 4 else hidden[:, None, None, :]
        for layer in self.layers:
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                       for part in layer["qkv"](layer["norm1"](x)).chunk(3, -1))
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            scores = scores.masked_fill(hidden, -torch.inf) if hidden.dtype == torch.bool else scores + hidden
            x = x + layer["o"]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            u = layer["norm2"](x)
            x = x + layer["down"](torch.nn.functional.silu(layer["gate"](u)) * layer["up"](u))
        return self.first(x)


def inputs_of(name, ids, length, types):
    """The inputs of the graph, in their order, for a text of this length."""
    inputs = {"ids": ids}
    if name not in ("of ids", "of large ids"):
        dtype, seen, padding = MASKS.get(name, (torch.int64, 1, 0))
        mask = torch.full(ids.shape, seen, dtype=dtype).masked_fill(torch.arange(ids.shape[1]) >= length, padding)
        inputs["mask"] = mask[:, None, None] if name == "added" else mask
    return inputs | ({"types": types} if name.startswith("of no names") else {})


def exported(model, path):
    name = model.name
    inputs = inputs_of(name, torch.randint(2, 60, (2, 7)), 7, torch.randint(0, 3, (2, 7)))
    if name.startswith("of no names"):
        inputs = dict(zip("abc", inputs.values()))
    return export(model, inputs, path, name)


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(ADDED), "masks of whole graphs", count=4))
def test_masks(name, tmp_path):
    model = model_of(lambda _: Masked(name), name)
    whole = Encoder(exported(model, tmp_path / "m.onnx"), tmp_path / "out", f"isa={drawn_isa(name)}", f"seq={ROWS}")
    with_types = name.startswith("of no names")
    assert whole.sizes["VOCABULARY"] == 60 and whole.sizes["TYPES"] == (3 if with_types else 0)
    for length in 1, 5, ROWS:
        ids, types = torch.full((1, ROWS), PADDING.get(name, 7)), torch.randint(0, 3, (1, ROWS))
        ids[:, :length] = torch.randint(2, 60, (length,))
        right = model(**inputs_of(name, ids, length, types))[0, :length]
        status, rows, _ = whole.run(ids[0, :length], types[0, :length] if with_types else None)
        assert status == 0 and near(rows, right)
    if name in PADDING:
        assert whole.sizes["PADDING"] == PADDING[name] and whole.run([5, PADDING[name], 6])[0] != 0


def hides_one_more(ids, mask):
    """An id besides that of padding."""
    return (ids == 0) | (ids == 9)


def hides_large_ids(ids, mask):
    return (ids == 0) | (ids > 57)


def hides_two(ids, mask):
    """Flags of padding, and an id that a text may have."""
    return (mask == 0) | (ids > 50)


def hides_the_first(ids, mask):
    """The first key too, unless it is the only one."""
    first = torch.arange(ids.shape[1]) == 0
    return (mask == 0) | (first & (mask.sum(1, keepdim=True) > 1))


def hides_the_last(ids, mask):
    """The last key of a text too, which another one follows."""
    return mask.cumsum(1) >= mask.sum(1, keepdim=True) + (mask.sum(1, keepdim=True) < 2)


def is_added_to(ids, mask):
    """Keys that are seen have numbers of their own."""
    return mask * 0.25 - 0.25 + (mask == 0) * -1e9 + 0.1 * torch.arange(ids.shape[1])


def of_halves(ids, mask):
    """What is 1 is seen in full, and what is 0 in part."""
    return (1 - mask) * -3.0


ALIKE = {hides_one_more: "depend on several ids", hides_large_ids: "does more than to hide",
         hides_two: "does more than to hide", hides_the_first: "does more than to hide",
         hides_the_last: "does more than to hide", is_added_to: "does more than to hide",
         of_halves: "does more than to hide"}


@torch.no_grad()
@pytest.mark.parametrize("change", ALIKE, ids=lambda change: change.__name__)
def test_masks_that_look_alike(change, tmp_path, monkeypatch):
    name = "of ids" if change in (hides_one_more, hides_large_ids) else "flags"
    monkeypatch.setitem(ADDED, name, change)
    model = model_of(lambda _: Masked(name), "alike")
    path = exported(model, tmp_path / "m.onnx")
    expect_refusal(path, tmp_path / "out", ALIKE[change], "isa=scalar", f"seq={ROWS}")


class Twofold(Masked):
    """Two tables of as many rows, by inputs whose names say nothing."""

    def __init__(self, name):
        super().__init__(name)
        self.types = torch.nn.Embedding(60, 16)


class More(torch.nn.Module):
    """Rows of ids to which an input is added that is nothing known."""

    def __init__(self, model):
        super().__init__()
        self.model, self.words = model, model.words

    def forward(self, ids, mask, more):
        own = self.words.forward
        self.words.forward = lambda given: own(given) + more[..., None]
        try:
            return self.model(ids, mask)
        finally:
            self.words.forward = own


@torch.no_grad()
def test_inputs_that_say_nothing(tmp_path):
    """Which of two tables is that of words is not clear, and what another input is neither."""
    ids, mask = torch.randint(2, 60, (2, 7)), torch.ones(2, 7).long()
    model = model_of(lambda _: Twofold("of no names"), "alike")
    path = export(model, {"a": ids, "b": mask, "c": ids.clone()}, tmp_path / "m.onnx", "twofold")
    expect_refusal(path, tmp_path / "out", "c and a are both like ids", "isa=scalar", f"seq={ROWS}")
    model = More(model_of(lambda _: Masked("flags"), "alike")).eval()
    path = export(model, {"ids": ids, "mask": mask, "more": mask.float()}, tmp_path / "m.onnx", "more")
    expect_refusal(path, tmp_path / "out", "more is no ids, types, mask or positions", "isa=scalar", f"seq={ROWS}")
