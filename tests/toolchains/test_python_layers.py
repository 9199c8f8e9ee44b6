"""mhagen.torch.replace(layers=True): modules that are a whole layer, with norms, residual connection and feed-forward,
against themselves."""
import copy
import sys
import warnings

import pytest

from python_lib import inference, package_environment  # noqa: F401
from test_python_graphs import DK, Distance, Joint, Own, Rotary
from tools import ROOT, in_turn, installed

if not installed("torch", "numpy"):
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch
from torch import nn

sys.path.insert(0, str(ROOT / "python"))
import mhagen.torch as mt
from mhagen import _build

pytestmark = pytest.mark.slow
WIDTH, ROWS, BATCH = 24, 9, 2


class Block(nn.Module):
    """nanoGPT's, causal."""

    def __init__(self, act=nn.GELU, attn=None):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), attn or Joint(flash=True), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 40), act(), nn.Linear(40, WIDTH), nn.Dropout(0.1))

    def forward(self, x, *more):
        x = x + self.attn(self.ln_1(x), *more)
        return x + self.mlp(self.ln_2(x))


class Between(nn.Module):
    """A layer whose feed-forward is no kernel's, between two others."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(nn.Mish), Block())

    def forward(self, x):
        return self.blocks(x)


def drawn(model):
    torch.manual_seed(3)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * (parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3)
    return model.eval()


def near(found, right):
    assert found.shape == right.shape and (found - right).norm() <= 1e-5 * right.norm()


def rows(batch=BATCH, count=ROWS):
    return torch.randn(batch, count, WIDTH)


def test_blocks(inference):  # noqa: F811
    """Each block is one kernel; other shapes have the same packed weights, and a kernel for all blocks."""
    own = drawn(nn.Sequential(Block(), Block()))
    model = mt.replace(copy.deepcopy(own), rows(), layers=True)
    assert mt.report(model).splitlines() == [f"{i}: kernels for (({BATCH}, {ROWS}, {WIDTH}),)" for i in range(2)]
    for x in rows(), rows(3, 12), rows(1, ROWS):
        near(model(x), own(x))
    found = model[0].__dict__["forward"].__self__
    fits = [fit for fits in found.fits.values() for fit in fits]
    assert len(fits) == 3 and len({id(fit.packed) for fit in fits}) == 1
    assert all("ffn=40" in fit.words and "norm=pre" in fit.words for fit in fits)
    for module in own, model:
        module[0].mlp[0].weight.data = 2 * own[0].mlp[0].weight.data.clone() if module is own else own[0].mlp[0].weight
    x = rows()
    near(model(x), own(x))  # of other weights


@pytest.mark.parametrize("first", [False, True])
def test_of_pytorch(inference, first):  # noqa: F811
    """nn.TransformerEncoder, whose layers PyTorch runs as one operator of its own."""
    layer = nn.TransformerEncoderLayer(WIDTH, 3, 40, batch_first=True, norm_first=first, activation="gelu")
    own = drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    model = mt.replace(copy.deepcopy(own), rows(), layers=True)
    assert mt.report(model).count("kernels for") == 2 and "layers.1: kernels" in mt.report(model)
    for x in rows(), rows(1, 4):
        near(model(x), own(x))
    padding = torch.zeros(BATCH, ROWS, dtype=torch.bool)
    padding[0, 6:] = True
    x, seen = rows(), ~padding
    near(model(x, src_key_padding_mask=padding)[seen], own(x, src_key_padding_mask=padding)[seen])
    assert f"({BATCH}, {ROWS}, {WIDTH}), ({BATCH}, {ROWS}))" in mt.report(model) and "left" not in mt.report(model)


def test_some(inference):  # noqa: F811
    """A block that no kernel has keeps its own norms, and its attention is a kernel by itself."""
    own = drawn(Between())
    model = mt.replace(copy.deepcopy(own), rows(), layers=True)
    lines = mt.report(model).splitlines()
    assert [line.split(":")[0] for line in lines] == ["blocks.0", "blocks.2", "blocks.1.attn"]
    assert all("kernels for" in line for line in lines)
    x = rows()
    near(model(x), own(x))


def test_none(inference):  # noqa: F811
    with pytest.warns(UserWarning, match="no module is a whole layer: .*is no activation of"):
        model = mt.replace(drawn(nn.Sequential(Block(nn.Mish))), rows(), layers=True)
    assert "0.attn: kernels" in mt.report(model)
    with pytest.raises(ValueError, match="layers = True: whole layers are found by an example: give one"):
        mt.replace(drawn(Block()), layers=True)


SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
TEXTS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
         "vocab_size": 60}
IMAGES = {"image_size": 32, "patch_size": 8}
MODELS = {
    "Bert": TEXTS, "Roberta": {**TEXTS, "max_position_embeddings": 40}, "ModernBert": TEXTS, "ViT": IMAGES,
    "DistilBert": {"dim": 48, "n_layers": 2, "n_heads": 3, "hidden_dim": 96, "vocab_size": 60}, "CLIPText": TEXTS,
    "Albert": {**TEXTS, "embedding_size": 16}, "Dinov2": IMAGES, "SiglipVision": {**IMAGES, "vision_use_head": False},
    "Llama": {**TEXTS, "num_key_value_heads": 1},
}


def arguments(name, batch, count):
    if "image_size" in MODELS[name]:
        return {"pixel_values": torch.randn(batch, 3, 32, 32)}
    seen = torch.ones(batch, count, dtype=torch.long)
    seen[0, count - 2:] = 0
    mask = {} if name == "Llama" else {"attention_mask": seen}
    cache = {"use_cache": False} if name == "Llama" else {}
    return {"input_ids": torch.randint(3, 60, (batch, count)), **mask, **cache}


@pytest.mark.parametrize("name", in_turn(list(MODELS), "whole layers of transformers", count=3))
def test_models(inference, name):  # noqa: F811
    """Of transformers: with padding, and with other shapes, where attention within may be its own kernel."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {} if name == "DistilBert" else SIZES
    own = drawn(getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes, **MODELS[name])))
    example = arguments(name, BATCH, ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mt.replace(copy.deepcopy(own), example, layers=True)
        assert mt.report(model).count("kernels for") == (1 if name == "Albert" else 2)
        for given in example, arguments(name, 1, 7):
            seen = given.get("attention_mask", torch.ones(1)).bool()
            right, found = (each(**given).last_hidden_state for each in (own, model))
            near(found[seen] if seen.dim() > 1 else found, right[seen] if seen.dim() > 1 else right)


# ---- lengths: kernels for several numbers of rows ----

LENGTHS = 12, 6, 15


def fits_of(module):
    return [fit for fits in module.__dict__["forward"].__self__.fits.values() for fit in fits]


@pytest.mark.parametrize("attn, packed", [(lambda: Joint(flash=True), 2), (lambda: Distance(False), 2), (Rotary, 3)],
                         ids=["causal", "own mask", "own tables"])
def test_lengths(inference, monkeypatch, attn, packed):  # noqa: F811
    """The kernels of all lengths are made with the example, and share weights if they pack alike: but for 6 rows, and
    for tables of rope among them. More rows than the longest one follow `others`."""
    own = drawn(nn.Sequential(Block(attn=attn()), Block(attn=attn())))
    model = mt.replace(copy.deepcopy(own), rows(), layers=True, lengths=LENGTHS, isa="scalar", others="torch")
    made = ", ".join(f"(({BATCH}, {length}, {WIDTH}),)" for length in (12, 15, 6))
    assert mt.report(model).splitlines() == [f"{i}: kernels for {made}" for i in range(2)]
    fits = fits_of(model[0])
    assert len({fit.words for fit in fits}) == 3 and len({id(fit.packed) for fit in fits}) == packed
    monkeypatch.setattr(_build, "log", None)  # which a compile needs
    for count in 1, 5, 6, 7, ROWS, 12, 14, 15:
        x = rows(count=count)
        near(model(x), own(x))
    assert "left" not in mt.report(model)
    x = rows(count=16)
    with pytest.warns(UserWarning, match="was not seen, and others = torch"):
        near(model(x), own(x))


def test_lengths_of_other_calls(inference):  # noqa: F811
    """Other batch entries and more rows have kernels when they come, and changed weights are packed again."""
    own = drawn(Block())
    model = mt.replace(copy.deepcopy(own), rows(), layers=True, lengths=LENGTHS, isa="scalar")
    for batch, count in (1, 4), (3, 16), (1, 11):
        x = rows(batch, count)
        near(model(x), own(x))
    shapes = ", ".join(f"(({batch}, {count}, {WIDTH}),)" for batch, count in
                       ((1, 12), (1, 6), (2, 12), (2, 15), (2, 6), (3, 16)))
    assert mt.report(model) == f"Block: kernels for {shapes}"
    for module in own, model:
        module.mlp[0].weight.data = 2 * own.mlp[0].weight.data.clone() if module is own else own.mlp[0].weight
    near(model(x), own(x))


@pytest.mark.parametrize("side", ["left", "right"])
def test_lengths_with_padding(inference, monkeypatch, side):  # noqa: F811
    """A mask of the batch, whose entries have lengths of their own."""
    layer = nn.TransformerEncoderLayer(WIDTH, 3, 40, batch_first=True, norm_first=True, activation="gelu")
    own = drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))

    def call(count, hidden):
        at = torch.arange(count)
        padding = torch.stack([at < hidden if side == "left" else at >= count - hidden, at < 0])
        return {"src": rows(count=count), "src_key_padding_mask": padding}
    model = mt.replace(copy.deepcopy(own), call(ROWS, 4), layers=True, lengths=LENGTHS, isa="scalar")
    monkeypatch.setattr(_build, "log", None)
    for count, hidden in (ROWS, 4), (3, 1), (6, 5), (7, 0), (12, 2), (15, 14), (1, 0):
        given = call(count, hidden)
        seen = ~given["src_key_padding_mask"]
        near(model(**given)[seen], own(**given)[seen])
    assert "left" not in mt.report(model) and "attn" not in mt.report(model)


@pytest.mark.parametrize("name", ["Bert", "Llama", "ModernBert"])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_lengths_of_models(inference, monkeypatch, name, masked):  # noqa: F811
    """Of transformers, whose rope is an argument: places may be other ones in each call. A call of one row has no mask
    there, and no rule of its own for causal attention."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    own = drawn(getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**SIZES, **MODELS[name])))

    def call(count):
        given = arguments(name, BATCH, count)
        seen = torch.ones(BATCH, count, dtype=torch.long)
        seen[0, :count // 3] = 0
        places = {"position_ids": torch.arange(count)[None] + count} if name == "Llama" else {}
        return {**given, **places, "attention_mask": seen if masked else None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mt.replace(copy.deepcopy(own), call(ROWS), layers=True, lengths=LENGTHS, isa="scalar")
        for count in 1, 3, 6, 7, 12, 14, 15:
            given = call(count)
            seen = (given["attention_mask"] if masked else torch.ones(BATCH, count)) > 0
            near(model(**given).last_hidden_state[seen], own(**given).last_hidden_state[seen])
            monkeypatch.setattr(_build, "log", None)  # but one row may have had no mask
    report = mt.report(model)
    assert report.count("kernels for") == 2 and "left" not in report and "att" not in report  # of whole layers


class Masked(Own):
    def forward(self, x, mask):
        return self.joined(nn.functional.scaled_dot_product_attention(*self.heads(x), mask))


@pytest.mark.filterwarnings("ignore")
def test_a_mask_of_one_column(inference):  # noqa: F811
    """A kernel would read more numbers than it has."""
    with pytest.raises(ValueError, match=r"its mask of shape \(2, 1, 1, 1\) has not all of \(2, 9\)"):
        mt.replace(drawn(nn.ModuleList([Block(attn=Masked())]))[0], (rows(), torch.randn(BATCH, 1, 1, 1)), isa="scalar")


class Doubled(Own):
    """Its mask is changed first, so a kernel has that of the example."""

    def forward(self, x, mask):
        return self.joined(nn.functional.scaled_dot_product_attention(*self.heads(x), 2 * mask))


class Sharper(Own):
    """Its scale depends on the number of rows."""

    def forward(self, x):
        return self.joined(nn.functional.scaled_dot_product_attention(*self.heads(x), scale=x.shape[1] * DK ** -0.5))


@pytest.mark.parametrize("attn, more, why", [
    (Doubled, (torch.ones(ROWS, ROWS).tril(),), r"it reads a tensor of shape \(9, 9\), which is neither its rows, a "),
    (Sharper, (), "with 6 rows its result differs by .* from that of its kernel")])
def test_no_lengths(inference, attn, more, why):  # noqa: F811
    own = drawn(nn.ModuleList([Block(attn=attn())]))[0]
    with pytest.raises(ValueError, match=f"^mhagen: lengths = 6,12,15: the model: {why}.*: leave lengths out, so that"):
        mt.replace(own, (rows(), *more), layers=True, lengths=LENGTHS, isa="scalar")
    assert "forward" not in own.__dict__
