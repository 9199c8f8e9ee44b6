"""mhagen.torch of modules that no row of it knows: their attention is found in the graph that PyTorch exports, against
the modules themselves."""
import copy
import math
import os
import sys
import warnings

import pytest

from python_lib import inference, package_environment  # noqa: F401
from tools import ROOT, installed

if not installed("torch", "numpy"):
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import numpy as np
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(ROOT / "python"))
import mhagen.torch as mt
from mhagen import _build, _found, _graph, _native
from mhagen._layer import Attention

pytestmark = pytest.mark.slow
WIDTH, HEADS, ROWS, BATCH = 24, 4, 9, 2
DK = WIDTH // HEADS


# ---- modules as users write them ----

class Own(nn.Module):
    """Projections, and heads of them."""

    def __init__(self, groups=HEADS, bias=True):
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias), nn.Linear(WIDTH, WIDTH, bias)
        self.k, self.v = nn.Linear(WIDTH, groups * DK, bias), nn.Linear(WIDTH, groups * DK, bias)

    def heads(self, x):
        return [each(x).view(*x.shape[:2], -1, DK).transpose(1, 2) for each in (self.q, self.k, self.v)]

    def joined(self, context):
        return self.o(context.transpose(1, 2).reshape(context.shape[0], -1, WIDTH))


class Plain(Own):
    def forward(self, x):
        return self.joined(functional.scaled_dot_product_attention(*self.heads(x)))


class Joint(nn.Module):
    """nanoGPT's, whose mask is a buffer."""

    def __init__(self, flash=False):
        super().__init__()
        self.c_attn, self.c_proj, self.flash = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), flash
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = (each.view(b, t, HEADS, c // HEADS).transpose(1, 2) for each in self.c_attn(x).split(c, dim=2))
        if self.flash:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 * self.training)
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
            y = self.attn_dropout(functional.softmax(scores, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c)))


class Normed(nn.Module):
    """timm's, with norms of queries and keys."""

    def __init__(self, norm=nn.Identity):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q_norm, self.k_norm, self.proj_drop = norm(DK), norm(DK), nn.Dropout(0.0)
        for each in filter(lambda each: hasattr(each, "weight"), (self.q_norm, self.k_norm)):
            nn.init.uniform_(each.weight, 0.5, 1.5)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, HEADS, DK).permute(2, 0, 3, 1, 4).unbind(0)
        x = functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(b, n, c)))


class Rotary(Own):
    """x-transformers': einsum, and rope of a part of each head by frequencies."""
    PART = 4

    def __init__(self):
        super().__init__(bias=False)
        self.register_buffer("frequencies", 100.0 ** -(torch.arange(0, self.PART, 2) / self.PART))

    def turned(self, x):
        angle = torch.einsum("i, j -> i j", torch.arange(x.shape[2]).type_as(self.frequencies), self.frequencies)
        angle = torch.stack((angle, angle), dim=-1).flatten(-2)
        first, rest = x[..., :self.PART], x[..., self.PART:]
        even, odd = first.reshape(*first.shape[:-1], -1, 2).unbind(-1)
        other = torch.stack((-odd, even), dim=-1).flatten(-2)
        return torch.cat((first * angle.cos() + other * angle.sin(), rest), dim=-1)

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = torch.einsum("b h i d, b h j d -> b h i j", self.turned(q), self.turned(k)) * DK**-0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.finfo(scores.dtype).max).softmax(dim=-1)
        return self.joined(torch.einsum("b h i j, b h j d -> b h i d", weights, v))


class Inner(Own):
    """lucidrains' ViT: the norm before is a part, and the softmax a module."""

    def __init__(self):
        super().__init__()
        self.norm, self.attend, self.dropout = nn.LayerNorm(WIDTH), nn.Softmax(dim=-1), nn.Dropout(0.1)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)

    def forward(self, x):
        q, k, v = self.heads(self.norm(x))
        return self.joined(self.dropout(self.attend(q @ k.mT * DK**-0.5)) @ v)


class Grouped(Own):
    def __init__(self, groups, how):
        super().__init__(groups)
        self.how = how

    def forward(self, x):
        q, k, v = self.heads(x)
        if self.how == "repeat":
            k, v = (each.repeat_interleave(HEADS // each.shape[1], dim=1) for each in (k, v))
        return self.joined(functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.how == "gqa"))


class Distance(Own):
    """ALiBi, of a decoder or an encoder: a bias that no argument changes."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.register_buffer("slopes", torch.tensor([0.5 ** (2 * (h + 1)) for h in range(HEADS)]).view(HEADS, 1, 1))

    def forward(self, x):
        q, k, v = self.heads(x)
        place = torch.arange(x.shape[1])
        far = (place[None, :] - place[:, None]).float()
        scores = q @ k.transpose(-1, -2) / math.sqrt(DK) + self.slopes * (far if self.causal else -far.abs())
        if self.causal:
            scores = scores.masked_fill(torch.ones(far.shape, dtype=torch.bool).triu(1), float("-inf"))
        return self.joined(scores.softmax(-1) @ v)


class Pattern(Own):
    """A mask of its own that is no window."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.rand(ROWS, ROWS, generator=drawn(3)) < 0.6)
        self.seen.fill_diagonal_(True)

    def forward(self, x):
        return self.joined(functional.scaled_dot_product_attention(*self.heads(x), attn_mask=self.seen))


class Arguments(Own):
    """Tables of rope and a mask are arguments. Its result is that of transformers' modules."""

    def forward(self, x, cos, sin, mask=None):
        q, k, v = self.heads(x)

        def turned(x):
            a, b = x.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        context = functional.scaled_dot_product_attention(turned(q), turned(k), v, attn_mask=mask)
        return self.joined(context), None


class Masked(Own):
    def forward(self, x, mask):
        return self.joined(functional.scaled_dot_product_attention(*self.heads(x), attn_mask=mask))


class Hidden(Own):
    """A mask that says what is not seen."""

    def forward(self, x, mask):
        q, k, v = self.heads(x)
        return self.joined((q @ k.mT / math.sqrt(DK)).masked_fill(mask, float("-inf")).softmax(-1) @ v)


class Padded(Own):
    """Hides keys by the ones and zeros of a tokenizer."""

    def forward(self, x, mask):
        q, k, v = self.heads(x)
        scores = (q @ k.mT / math.sqrt(DK)).masked_fill(mask[:, None, None, :] == 0, -1e9)
        return self.joined(scores.softmax(-1) @ v)


class Crossed(Own):
    def __init__(self):
        super().__init__()
        self.kv = nn.Linear(7, 2 * WIDTH, bias=False)

    def forward(self, x, context):
        q, _, _ = self.heads(x)
        k, v = (each.view(*context.shape[:2], HEADS, DK).transpose(1, 2) for each in self.kv(context).chunk(2, -1))
        return self.joined(functional.scaled_dot_product_attention(q, k, v))


class Core(nn.Module):
    def forward(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)


class Parted(Own):
    """The attention is a module without projections."""

    def __init__(self):
        super().__init__()
        self.core = Core()

    def forward(self, x):
        return self.joined(self.core(*self.heads(x)))


class Talking(Own):
    """Mixes the heads: no kernel does."""

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = torch.einsum("bhij,hg->bgij", q @ k.transpose(-1, -2), torch.ones(HEADS, HEADS).tril() / HEADS)
        return self.joined(scores.softmax(-1) @ v)


class Complex(Own):
    """Llama's rope as Meta wrote it."""

    def forward(self, x):
        q, k, v = self.heads(x)
        angles = torch.outer(torch.arange(x.shape[1]).float(), 100.0 ** -(torch.arange(DK // 2) / (DK // 2)))
        by = torch.polar(torch.ones_like(angles), angles)
        q, k = (torch.view_as_real(torch.view_as_complex(each.reshape(*each.shape[:-1], -1, 2)) * by).flatten(3)
                for each in (q, k))
        return self.joined(functional.scaled_dot_product_attention(q, k, v))


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.norm, self.attn, self.mlp = nn.LayerNorm(WIDTH), attention, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Model(nn.Module):
    """Two layers, and a softmax that is no attention."""

    def __init__(self, make=Joint):
        super().__init__()
        self.h, self.head = nn.ModuleList(Block(make()) for _ in range(2)), nn.Linear(WIDTH, 5)

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return self.head(x).softmax(-1)


SHOWN = torch.ones(BATCH, ROWS, dtype=torch.int64)
SHOWN[1, 6:] = 0
ANGLES = torch.outer(torch.arange(ROWS).float(), 100.0 ** -(torch.arange(DK // 2) / (DK // 2)))
FUTURE = torch.full((ROWS, ROWS), float("-inf")).triu(1)


def rows(*shape):
    return torch.randn(shape or (BATCH, ROWS, WIDTH))


def drawn(seed):
    return torch.Generator().manual_seed(seed)


MODULES = {  # the module, what is beside x among its arguments, and words of its config
    "plain": (Plain, (), "seq=9"),
    "joint": (Joint, (), "causal=true"), "flash": (lambda: Joint(True), (), "causal=true"),
    "timm": (Normed, (), ""), "timm, layer norms": (lambda: Normed(nn.LayerNorm), (), "qk_norm=layer"),
    "timm, RMS norms": (lambda: Normed(nn.RMSNorm), (), "qk_norm=rms"),
    "rotary": (Rotary, (), "causal=true rope=interleaved rope_dims=4"), "inner norm": (Inner, (), ""),
    "GQA by repeating": (lambda: Grouped(2, "repeat"), (), "h_kv=2"), "GQA": (lambda: Grouped(2, "gqa"), (), "h_kv=2"),
    "MQA": (lambda: Grouped(1, "repeat"), (), "h_kv=1"),
    "ALiBi": (lambda: Distance(True), (), "causal=true mask=add mask_dims=hqk"),
    "ALiBi of encoders": (lambda: Distance(False), (), "mask=add mask_dims=hqk"),
    "pattern": (Pattern, (), "mask=bool"), "tables": (Arguments, (ANGLES.cos(), ANGLES.sin(), FUTURE), ""),
    "bool mask": (Masked, (SHOWN[:, None, None].bool(),), "mask=bool mask_dims=bk"),
    "mask of all axes": (Masked, (torch.rand(BATCH, HEADS, ROWS, ROWS, generator=drawn(1)) < 0.8,), "mask_dims=bhqk"),
    "bias": (Masked, (torch.randn(1, HEADS, ROWS, ROWS, generator=drawn(2)),), "mask=add mask_dims=hqk"),
    "hidden": (Hidden, (SHOWN[:, None, None] == 0,), "mask=bool mask_dims=bk"),
    "padding": (Padded, (SHOWN,), "mask=bool mask_dims=bk"), "cross": (Crossed, (torch.ones(BATCH, 5, 7),), "seq_kv=5"),
    "parted": (Parted, (), "")}


def first(result):
    return result[0] if isinstance(result, tuple) else result


def same(right, found, most=2e-6):
    assert found.shape == right.shape and found.dtype == right.dtype
    assert (found - right).abs().max() <= most * max(1, right.abs().max())


def made(name):
    make, more, words = MODULES[name]
    return make().eval(), (rows(), *more), words


# ---- export ----

def ran(exported, x, mask=None):
    """What the only kernel makes of x, with the packed weights of the folder."""
    (layer,) = exported.layers
    config = dict(word.split("=", 1) for word in layer.config.split())
    kernel = Attention(_native.load(_build.words({**config, "batch": len(x)})))
    kernel.packed = _native.allocate(kernel.kernel.data.packed_bytes)
    kernel.packed[:] = np.fromfile(exported.folder / f"{layer.kernel}.packed", np.uint8)[-kernel.packed.size:]
    return torch.from_numpy(kernel(x.numpy(), mask=mask))


@pytest.mark.parametrize("name", MODULES)
def test_export(name, tmp_path):
    """Each is one layer, proved, whose kernel computes what the module does."""
    module, example, words = made(name)
    own = {**module.__dict__}
    exported = mt.export(module, example, tmp_path / "out", isa="scalar")
    assert module.__dict__ == own
    (layer,) = exported.layers
    assert {*words.split()} <= {*layer.config.split()} and not exported.left
    assert ("project" in layer.config) == (name == "tables") and layer.module == ("core" if name == "parted" else "")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.h", "model.c", "mhagen.h", "mhagen.c", f"{layer.kernel}.c", f"{layer.kernel}.packed"} <= names
    files = [*(tmp_path / "out").glob("*.npy")]
    masks = [np.load(path) for path in files]
    assert [path.stat().st_size for path in files] == [128 + mask.nbytes for mask in masks]
    assert any("args.mask is model_mask0.npy from byte 128" in note for note in layer.notes) == (len(files) == 1)
    assert len(masks) == (name == "pattern" or name.startswith("ALiBi"))
    if name not in ("tables", "cross", "inner norm", "padding") and (len(example) == 1 or name == "bool mask"):
        mask = masks[0] if masks else example[1].numpy()[:, 0, 0] if len(example) > 1 else None
        same(module(*example), ran(exported, example[0], mask))


def test_names_of_modules(tmp_path):
    """Layers have the paths of their modules. Files are as the program writes them, and several runs agree."""
    model, x = Model().eval(), rows()
    exported = mt.export(model, x, tmp_path / "out", isa="scalar")
    assert [layer.module for layer in exported.layers] == ["h.0.attn", "h.1.attn"]
    assert [left.module for left in exported.left] == [""] and exported.left[0].node == "/Softmax"
    assert str(exported).splitlines()[0] == \
        "h.0.attn: h=4 d_model=24 dk=6 seq=9 isa=scalar causal=true"
    assert f"it: no layer: {exported.left[0].why}" in str(exported)
    table = (tmp_path / "out" / "model.c").read_text()
    assert '"/h.0/attn/Softmax", 0, 0' in table and "Model.onnx (onnx)" in table
    assert (tmp_path / "out" / "model.c").stat().st_mode & 0o777 == 0o666 & ~os.umask(os.umask(0o022))
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    mt.export(model, {"x": x}, str(tmp_path / "out"), isa="scalar", dtype=None)
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    listed = nn.Sequential(Block(Joint()), nn.Sequential(Block(Inner()))).eval()
    layers = mt.export(listed, x, tmp_path / "listed", isa="scalar").layers
    assert [layer.module for layer in layers] == ["0.attn", "1.0.attn"]
    mt.export(model, x, tmp_path / "own", "--name", "gpt", "--embed", isa="scalar", dtype=torch.bfloat16)
    assert {"gpt.h", "mha_bf16_h4_d24_k6_s9_causal_scalar_packed.S"} <= {each.name for each in (
        tmp_path / "own").iterdir()}


def test_masks_that_are_left_out(tmp_path):
    exported = mt.export(Distance(False).eval(), rows(), tmp_path / "out", isa="scalar", mask="none")
    assert "mask" not in exported.layers[0].config and not [*(tmp_path / "out").glob("*.npy")]


def test_export_of_pytorch(tmp_path):
    """PyTorch's own modules, also padded: self-attention, where all arguments are one tensor."""
    x, z = rows(), rows(BATCH, 5, WIDTH)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    assert "cross" not in mt.export(attention, (x, x, x), tmp_path / "0", isa="scalar").layers[0].config
    assert "attention=cross" in mt.export(attention, (x, z, z), tmp_path / "1", isa="scalar").layers[0].config
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), 2).eval()
    layers = mt.export(encoder, x, tmp_path / "2", isa="scalar").layers
    assert [layer.module for layer in layers] == ["layers.0.self_attn", "layers.1.self_attn"]
    padded = mt.export(encoder, {"src": x, "src_key_padding_mask": SHOWN == 0}, tmp_path / "4", isa="scalar")
    assert len(padded.layers) == 2 and "mask_dims=bhk" in padded.layers[0].config
    decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, 32, batch_first=True).eval()
    layers = mt.export(decoder, (x, z), tmp_path / "3", isa="scalar").layers
    assert [layer.module for layer in layers] == ["self_attn", "multihead_attn"]


SMALL = dict(hidden_size=24, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, vocab_size=50)
TRANSFORMERS = {  # words of each config, and of the kernel's
    "Bert": (SMALL, "seq=9"), "GPT2": (dict(n_embd=24, n_layer=1, n_head=4, vocab_size=50), "causal=true"),
    "Llama": ({**SMALL, "num_key_value_heads": 2}, "h_kv=2 causal=true rope=half"),
    "Qwen3": ({**SMALL, "num_key_value_heads": 2, "head_dim": 6}, "qk_norm=rms rope=half"),
    "T5Encoder": (dict(d_model=24, d_kv=6, d_ff=32, num_layers=1, num_heads=4, vocab_size=50), "mask_dims=hqk scale=1")}


@pytest.mark.skipif(not installed("transformers"), reason="transformers is not installed")
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_export_of_transformers(family, tmp_path):
    """Models of transformers, also those whose calls have a cache."""
    import transformers
    given, words = TRANSFORMERS[family]
    config = getattr(transformers, f"{family.removesuffix('Encoder')}Config")(**given, bos_token_id=1, eos_token_id=2)
    model = getattr(transformers, f"{family}Model")(config).eval()
    exported = mt.export(model, {"input_ids": torch.arange(ROWS)[None] + 3}, tmp_path / "out", isa="scalar")
    (layer,) = exported.layers
    assert {*words.split()} <= {*layer.config.split()} and "project" not in layer.config and layer.module


def test_refused_exports(tmp_path, monkeypatch, capfd):
    """One line that names the node, or PyTorch's reason. Nothing is written or printed, and the module is as before."""
    out, x = tmp_path / "out", rows()
    monkeypatch.setattr(_graph.importlib.util, "find_spec", lambda name: None)
    for module, example, text in (
            (Talking(), x, r"mhagen: Talking\.onnx: no node is .*; node /Softmax: .* before it is not known"),
            (nn.Linear(WIDTH, 2), x, r"mhagen: Linear\.onnx: no node is Attention"),
            (Complex(), x, r"mhagen: Complex: PyTorch does not export it: .*aten::polar.*: pip install onnxscript"),
            (Plain(), {"y": x}, r"mhagen: Plain: PyTorch does not export it: TypeError: .*'y'")):
        own = {**module.eval().__dict__}
        with warnings.catch_warnings(), pytest.raises(ValueError, match=text) as error:
            warnings.simplefilter("error")
            mt.export(module, example, out, isa="scalar")
        assert "\n" not in str(error.value) and str(tmp_path) not in str(error.value)
        assert not out.exists() and module.__dict__ == own
    for keys, text in (({"isa": "scalar", "seq": 3}, r"seq = 3: the graph has 9 rows there in all runs"),
                       ({"isa": "x87"}, "isa = x87"), ({"seqq": 3}, "seqq")):
        with pytest.raises(ValueError, match=f"^mhagen: .*{text}"):
            mt.export(Plain().eval(), x, out, **keys)
    with pytest.raises(ValueError, match="is in training"):
        mt.export(Plain(), x, out)
    assert not out.exists() and capfd.readouterr() == ("", "")


@pytest.mark.skipif(not installed("onnxscript"), reason="onnxscript is not installed")
def test_other_exporter(tmp_path, monkeypatch):
    """What the older exporter does not know, and its names of modules."""
    assert "rope=interleaved" in mt.export(Complex().eval(), rows(), tmp_path / "0", isa="scalar").layers[0].config
    monkeypatch.setattr(_graph, "by_tracing", _graph.by_program)
    exported = mt.export(Model().eval(), rows(), tmp_path / "1", isa="scalar")
    assert [layer.module for layer in exported.layers] == ["h.0.attn", "h.1.attn"]


# ---- replace ----

@pytest.mark.parametrize("name", MODULES)
def test_replace(name):
    """Each is one kernel, for the example, for other numbers and for other shapes."""
    module, example, _ = made(name)
    new = mt.replace(copy.deepcopy(module), example, isa="scalar")
    (found,) = fits_of(new)
    assert mt.report(new).startswith(f"{type(module).__name__}: kernels for ((2, 9, 24)")
    assert [*new.state_dict()] == [*module.state_dict()]
    for x in example[0], rows(), rows().transpose(0, 1).contiguous().transpose(0, 1):
        result = new(x, *example[1:])
        same(first(module(x, *example[1:])), first(result))
        assert isinstance(result, tuple) == isinstance(module(x, *example[1:]), tuple)
    assert len(found) == 1
    if len(example) == 1 and name != "pattern":
        x = rows(3, 4, WIDTH)
        same(module(x), new(x))
        assert mt.report(new).count("(3, 4, 24)") == 1


def fits_of(model):
    """The kernels of each module that has some."""
    return [[fit for fits in forward.__self__.fits.values() for fit in fits] for forward in (
        part.__dict__.get("forward") for part in model.modules()) if forward]


def test_replaced_models(monkeypatch):
    """Each layer of a model, whose other softmax stays without a word. Layers that differ in numbers alone share. What
    is around several is not exported."""
    written, write = set(), _graph.write
    monkeypatch.setattr(_graph, "write", lambda module, *args: written.add(type(module)) or write(module, *args))
    for make in Joint, Inner, lambda: nn.Sequential(Plain()):
        model, x = Model(make).eval(), rows()
        right = model(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mt.replace(model, x, isa="scalar")
        assert [len(fits) for fits in fits_of(model)] == [1, 1]
        same(right, model(x))
        one, other = (fits[0] for fits in fits_of(model))
        assert one.words == other.words and (one.packed != other.packed).any()
        report = mt.report(model).splitlines()
        assert [line.split(":")[0][:8] for line in report] == ["h.0.attn", "h.1.attn", "Model"]
    assert Plain in written and Model not in written


def test_weights_that_change():
    model, x = Plain().eval(), rows()
    other = Plain().eval()
    new = mt.replace(copy.deepcopy(model), x, isa="scalar")
    copied = copy.deepcopy(new)
    assert fits_of(copied) == [[]] and len(fits_of(new)[0]) == 1
    model.q.weight.mul_(3)
    new.q.weight.mul_(3)
    same(model(x), new(x))
    new.load_state_dict(other.state_dict())
    same(other(x), new(x))
    model.q.weight.div_(3)
    same(model(x), copied(x), 4e-6)
    new.o = nn.Linear(WIDTH, WIDTH).eval()
    other.o = new.o
    same(other(x), new(x))
    model = Distance(True).eval()
    new = mt.replace(copy.deepcopy(model), x, isa="scalar")
    model.causal = new.causal = False
    same(model(x), new(x))
    assert len(fits_of(new)[0]) == 1


@pytest.mark.parametrize("make, right", [(Masked, True), (Hidden, False)])
def test_masks_that_change(make, right):
    """One kernel reads any mask that the module uses as it is."""
    module, x = make().eval(), rows()
    new = mt.replace(copy.deepcopy(module), (x, SHOWN[:, None, None].bool() == right), isa="scalar")
    mask = (torch.rand(BATCH, 1, 1, ROWS) < 0.7) == right
    mask[..., :1] = right
    same(module(x, mask), new(x, mask))
    assert [len(fits) for fits in fits_of(new)] == [1]


def test_arguments_that_change():
    """A kernel has the mask and the tables that it was made with; others get one of their own, up to some."""
    module, x = Padded().eval(), rows()
    new = mt.replace(copy.deepcopy(module), (x, SHOWN), isa="scalar")
    for count in range(5, 5 - _found.MOST_FIXED + 1, -1):
        mask = SHOWN.clone()
        mask[1, count:] = 0
        same(module(x, mask), new(x, mask))
    assert [len(fits) for fits in fits_of(new)] == [_found.MOST_FIXED]
    mask[0, 1] = 0
    with pytest.warns(UserWarning, match="attention: left to PyTorch: its masks or tables are others in each call"):
        same(module(x, mask), new(x, mask))
    same(module(x, SHOWN), new(x, SHOWN))
    changed = SHOWN.clone()
    new = mt.replace(copy.deepcopy(module), (x, changed), isa="scalar")
    changed[0, 2] = 0  # the kernel has those from before
    same(module(x, changed), new(x, changed))


class Unread(Own):
    def forward(self, x, scale=1.0, hint=None):
        return self.joined(functional.scaled_dot_product_attention(*self.heads(x), scale=scale))


class ByNumbers(Own):
    """Hides keys only if the mask does: the graph of an example that hides none has no mask."""

    def forward(self, x, mask):
        q, k, v = self.heads(x)
        return self.joined(functional.scaled_dot_product_attention(q, k, v, attn_mask=None if mask.all() else mask))


class Keeping(Own):
    def forward(self, x):
        q, k, v = self.heads(x)
        self.weights = (q @ k.mT / math.sqrt(DK)).softmax(-1)
        return self.joined(self.weights @ v)


class Counting(Plain):
    count = 0

    def forward(self, x):
        self.count += 1
        return super().forward(x)


class Adding(Plain):
    def forward(self, x):
        return x + super().forward(x)


class InPlace(Plain):
    def forward(self, x):
        y = super().forward(x)
        x.add_(0)
        return y


class Noisy(Own):
    def forward(self, x):
        return self.joined(functional.dropout(functional.scaled_dot_product_attention(*self.heads(x)), 0.3))


class Two(Own):
    def forward(self, x):
        q, k, v = self.heads(x)
        weights = (q @ k.mT / math.sqrt(DK)).softmax(-1)
        return self.joined(weights @ v), weights


STAYS = {Talking: "before it is not known", Keeping: "keeps what it computes", Counting: "keeps what it computes",
         Adding: "more than attention", InPlace: "changes its arguments", Noisy: "", Two: "more than attention",
         Core: "has no projections"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", STAYS, ids=lambda make: make.__name__)
def test_modules_that_stay(make):
    """What is no layer, or more than one, or would be something else in a kernel."""
    module = make().eval()
    example = (rows(BATCH, HEADS, ROWS, DK),) * 3 if make is Core else rows()
    with pytest.raises(ValueError, match=f"{make.__name__}: has no .*{STAYS[make]}"):
        mt.replace(module, example, isa="scalar")
    assert "forward" not in module.__dict__


@pytest.mark.filterwarnings("ignore")
def test_code_that_depends_on_numbers():
    module, x = ByNumbers().eval(), rows()
    with pytest.raises(ValueError, match="asks for numbers of tensors, by __bool__"):
        mt.replace(module, (x, SHOWN[:1, None, None].bool()), isa="scalar")


def test_other_arguments():
    """Arguments that are no tensors are those of the graph. A tensor that it does not read must be the same again."""
    module, x = Unread().eval(), rows()
    new = mt.replace(copy.deepcopy(module), (x, 0.5), isa="scalar")
    for scale in 0.5, 0.25:
        same(module(x, scale), new(x, scale))
    hint = rows(3)
    same(module(x, 0.5, hint), new(x, 0.5, hint))
    same(module(x, 0.5, hint + 1), new(x, 0.5, hint + 1))
    assert [len(fits) for fits in fits_of(new)] == [4]
    same(module(x, 0.5, {"a": object()}), new(x, 0.5, {"a": object()}))


def test_proof_against_the_module(monkeypatch):
    """A kernel that computes something else is not taken, whatever the graph says."""
    proposed = _found.proposed

    def other(*args):
        layer, packed, mask = proposed(*args)
        config = layer["config"].replace("seq=9", "seq=9 causal=true")
        return {**layer, "config": config}, packed, mask
    monkeypatch.setattr(_found, "proposed", other)
    with pytest.warns(UserWarning, match=r"left to PyTorch: its result differs by .* from that of its kernel"), \
            pytest.raises(ValueError, match="its result differs"):
        mt.replace(Inner().eval(), rows(), isa="scalar")


def test_when_a_kernel_is_taken():
    """Not in training, with gradients, other types, hooks in it, or of shapes that others = torch leaves."""
    module, x = Plain().eval(), rows()
    new = mt.replace(copy.deepcopy(module), x, isa="scalar", others="torch")
    calls = []
    hook = new.q.register_forward_hook(lambda *_: calls.append(1))
    same(module(x), new(x))
    hook.remove()
    assert calls == [1]
    for wanted, grad, call in (("gradients are wanted", True, lambda: new(x)),
                               ("others = torch", False, lambda: new(rows(1, 3, WIDTH))),
                               ("in training", False, lambda: new.train()(x))):
        new.__dict__["forward"].__self__.settings.left.clear()
        with torch.set_grad_enabled(grad), pytest.warns(UserWarning, match=wanted):
            call()
    with pytest.raises(ValueError, match="has no nn.MultiheadAttention.*With an example"):
        mt.replace(Plain().eval(), isa="scalar")


def test_shapes():
    """Some shapes have kernels, which share their packed weights; others are PyTorch's."""
    module = Plain().eval()
    new = mt.replace(copy.deepcopy(module), rows(), isa="scalar")
    for count in range(1, _found.MOST_SHAPES + 1):
        same(module(x := rows(count, 4, WIDTH)), new(x))
    (fits,) = fits_of(new)
    assert len(fits) == 1 + _found.MOST_SHAPES and len({id(fit.packed) for fit in fits}) == 2  # of two lengths
    with pytest.warns(UserWarning, match=r"shape \(\(9, 4, 24\),\) is one more than 4 beside the example's"):
        same(module(x := rows(9, 4, WIDTH)), new(x))
    same(module(x := rows()), new(x))
    assert len(fits_of(new)[0]) == 1 + _found.MOST_SHAPES


@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_types(dtype, most):
    module, x = Plain().eval().to(dtype), rows().to(dtype)
    same(module(x), mt.replace(copy.deepcopy(module), x, isa="scalar")(x), most)
    module, x = module.float(), x.float()
    new = mt.replace(copy.deepcopy(module), x, isa="scalar", dtype=dtype)
    same(module(x), new(x), most)
    assert f"dtype={_build.say_type(dtype)}" in fits_of(new)[0][0].words


@pytest.mark.filterwarnings("ignore")
def test_graphs_of_replaced_models():
    """torch.compile calls the kernel; exported and traced programs have the module's own code."""
    module, x = Model().eval(), rows()
    new = mt.replace(copy.deepcopy(module), x, isa="scalar")
    right = module(x)
    same(right, torch.compile(new, backend="eager")(x))
    same(right, torch.export.export(new, (x,)).module()(x))
    traced = torch.jit.trace(new, x, check_trace=False)
    y = rows()
    same(module(y), traced(y))


def test_replaced_models_are_exported(tmp_path):
    model = Model().eval()
    mt.replace(model, rows(), isa="scalar")
    assert len(mt.export(model, rows(), tmp_path / "out", isa="scalar").layers) == 2
