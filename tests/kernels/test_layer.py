"""What is around attention: norms, the residual connection and the feed-forward of PyTorch's layers, by the Python
package."""
import sys

import pytest

from python_lib import package_environment  # noqa: F401
from tools import ISAS, ROOT, in_turn, installed, native

if not installed("torch", "numpy"):
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import numpy
import torch
from torch import nn

sys.path.insert(0, str(ROOT / "python"))
import mhagen

pytestmark = pytest.mark.slow
WIDTH, HEADS, ROWS, BATCH, BETWEEN = 24, 4, 9, 2, 50


class RMS(nn.RMSNorm):
    bias = None


def norm_of(kind, eps, width=WIDTH):
    """One with weights of its own."""
    norm = (nn.LayerNorm if kind == "layer" else RMS)(width, eps=eps)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def drawn(module):
    """With vectors of their own, which PyTorch begins as zeros and ones."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return module


def of_attention(module):
    """Weights by their names in a kernel."""
    weights = dict(zip(("wq", "wk", "wv"), module.in_proj_weight.chunk(3))) | {"wo": module.out_proj.weight}
    if module.in_proj_bias is not None:
        weights |= dict(zip(("bq", "bk", "bv"), module.in_proj_bias.chunk(3))) | {"bo": module.out_proj.bias}
    return weights


def of_norm(number, module):
    weights = {f"norm{number}": module.weight, f"norm{number}_bias": module.bias}
    return {name: weight for name, weight in weights.items() if weight is not None}


def of_linear(number, module):
    return {f"w{number}": module.weight} | ({} if module.bias is None else {f"b{number}": module.bias})


def run(x, **keys):
    """A kernel's rows; keys are of the config, or weights as PyTorch has them."""
    keys = {key: value.numpy().copy() if isinstance(value, torch.Tensor) else value for key, value in keys.items()}
    layer = mhagen.attention(h=HEADS, d_model=WIDTH, dk=WIDTH // HEADS, seq=ROWS, batch=BATCH, isa="scalar",
                             out_in=True, **keys)
    return torch.from_numpy(layer(x.numpy()))


HIDDEN = torch.full((ROWS, ROWS), -torch.inf).triu(1)  # by a causal mask


def attention_block(where, attention, norm, x, residual=True, mask=None):
    """As nn.TransformerEncoderLayer has it, with norm_first or without."""
    rows = norm(x) if where == "pre" else x
    y = attention(rows, rows, rows, attn_mask=mask, need_weights=False)[0]
    y = x + y if residual else y
    return norm(y) if where == "post" else y


@pytest.mark.parametrize("where, kind, eps, residual", in_turn([
    ("pre", "layer", 1e-5, True), ("post", "layer", 1e-12, True), ("pre", "rms", 1e-6, True),
    ("post", "rms", 0.5, False), ("pre", "layer", 1e-5, False)], "layer", count=3))
def test_blocks_of_pytorch(where, kind, eps, residual):
    torch.manual_seed(7)
    with torch.no_grad():
        attention, norm = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), norm_of(kind, eps)
        nn.init.normal_(attention.in_proj_bias)
        x = 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
        right = attention_block(where, attention, norm, x, residual)
        found = run(x, norm=where, norm_kind=kind, layer_eps=eps, residual=residual, **of_attention(attention),
                    **of_norm(1, norm))
    assert (found - right).abs().max() <= 3e-6 * right.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("isa", in_turn(filter(native, ISAS), "constant rows", count=2))
def test_rows_with_a_large_mean(isa):
    """Rows of equal numbers become the biases, however small epsilon is. Others lose what float32 lacks of a mean."""
    width, rows = 768, 19
    norm, none = norm_of("layer", 1e-12, width), numpy.zeros((width, 1), numpy.float32)
    layer = mhagen.attention(h=1, d_model=width, dk=1, seq=rows, isa=isa, norm="post", residual=True, layer_eps=1e-12,
                             wq=none, wk=none, wv=none, wo=none.T.copy(), norm1=norm.weight.numpy(),
                             norm1_bias=norm.bias.numpy())
    equal = (10 ** torch.linspace(-3, 4, rows)).repeat(width, 1).T.contiguous()
    assert (layer(equal.numpy()) == norm.bias.numpy()).all()
    near = 1000 + 0.01 * torch.randn(rows, width)
    right = nn.functional.layer_norm(near.double(), [width], norm.weight.double(), norm.bias.double(), eps=1e-12)
    off = (torch.from_numpy(layer(near.numpy())) - right).abs() / norm.weight.abs()
    assert off.max() <= 3.1e-3


# ---- whole layers ----

def expect(right, x, **keys):
    found = run(x, residual=True, ffn=BETWEEN, **keys)
    assert (found - right).abs().max() <= 1e-5 * right.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("act, first", in_turn([("gelu", False), ("gelu", True), ("relu", False), ("relu", True)],
                                               "encoder layer", count=2))
def test_encoder_layers_of_pytorch(act, first):
    torch.manual_seed(7)
    module = nn.TransformerEncoderLayer(WIDTH, HEADS, BETWEEN, activation=act, norm_first=first, batch_first=True)
    module = drawn(module.eval())
    x = 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
    expect(module(x), x, norm="pre" if first else "post", ffn_act=act, **of_attention(module.self_attn),
           **of_norm(1, module.norm1), **of_norm(2, module.norm2), **of_linear(1, module.linear1),
           **of_linear(2, module.linear2))


def plain_parts():
    """Attention, and the two maps of a feed-forward."""
    return (drawn(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)), nn.Linear(WIDTH, BETWEEN),
            nn.Linear(BETWEEN, WIDTH))


def gated_parts():
    """The same without biases, with the map of a gate."""
    return (nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, bias=False),
            *(nn.Linear(WIDTH, BETWEEN, bias=False) for _ in range(2)), nn.Linear(BETWEEN, WIDTH, bias=False))


@torch.no_grad()
def test_block_of_gpt2():
    """Norms in front, and a feed-forward with the tanh form of gelu."""
    torch.manual_seed(8)
    attention, up, down = plain_parts()
    norms, x = [norm_of("layer", 1e-5) for _ in range(2)], 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
    y = attention_block("pre", attention, norms[0], x, mask=HIDDEN)
    right = y + down(nn.functional.gelu(up(norms[1](y)), approximate="tanh"))
    expect(right, x, norm="pre", causal=True, ffn_act="gelu_tanh", **of_attention(attention), **of_norm(1, norms[0]),
           **of_norm(2, norms[1]), **of_linear(1, up), **of_linear(2, down))


@torch.no_grad()
def test_block_of_gptj():
    """One norm in front of attention and of the feed-forward, which are beside each other."""
    torch.manual_seed(11)
    attention, up, down = plain_parts()
    norm, x = norm_of("layer", 1e-5), 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
    y = attention_block("pre", attention, norm, x, mask=HIDDEN)
    right = y + down(nn.functional.gelu(up(norm(x)), approximate="tanh"))
    expect(right, x, norm="pre", parallel=True, causal=True, ffn_act="gelu_tanh", **of_attention(attention),
           **of_norm(1, norm), **of_linear(1, up), **of_linear(2, down))


@torch.no_grad()
def test_block_of_dinov2():
    """Layer scale: each branch is multiplied by gains before it is added."""
    torch.manual_seed(12)
    attention, up, down = plain_parts()
    norms, gains = [norm_of("layer", 1e-6) for _ in range(2)], [torch.randn(WIDTH) for _ in range(2)]
    x = 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
    y = x + gains[0] * attention_block("pre", attention, norms[0], x, residual=False)
    right = y + gains[1] * down(nn.functional.gelu(up(norms[1](y))))
    expect(right, x, norm="pre", layer_eps=1e-6, **of_attention(attention), **of_norm(1, norms[0]),
           **of_norm(2, norms[1]), **of_linear(1, up), **of_linear(2, down), gain1=gains[0], gain2=gains[1])


@torch.no_grad()
def test_block_of_llama():
    """RMS norms in front, and a gate that silu activates; no biases."""
    torch.manual_seed(9)
    attention, gate, up, down = gated_parts()
    norms, x = [norm_of("rms", 1e-6) for _ in range(2)], 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
    y = attention_block("pre", attention, norms[0], x, mask=HIDDEN)
    u = norms[1](y)
    right = y + down(nn.functional.silu(gate(u)) * up(u))
    expect(right, x, norm="pre", norm_kind="rms", layer_eps=1e-6, causal=True, ffn_act="silu", ffn_gate=True,
           **of_attention(attention), **of_norm(1, norms[0]), **of_norm(2, norms[1]), **of_linear(1, gate),
           **of_linear(3, up), **of_linear(2, down))


@torch.no_grad()
def test_first_block_of_modernbert():
    """Attention reads rows as they are, and the feed-forward those of a norm."""
    torch.manual_seed(15)
    attention, gate, up, down = gated_parts()
    norm, x = norm_of("layer", 1e-5), 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
    y = attention_block("none", attention, None, x)
    u = norm(y)
    expect(y + down(nn.functional.gelu(gate(u)) * up(u)), x, norm="ffn", ffn_gate=True, **of_attention(attention),
           **of_norm(2, norm), **of_linear(1, gate), **of_linear(3, up), **of_linear(2, down))


@torch.no_grad()
def test_block_of_gemma():
    """RMS norms in front of attention and the feed-forward, and of what these make."""
    torch.manual_seed(10)
    attention, gate, up, down = gated_parts()
    norms, x = [norm_of("rms", 1e-6) for _ in range(4)], 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
    y = x + norms[1](attention_block("pre", attention, norms[0], x, residual=False, mask=HIDDEN))
    u = norms[2](y)
    right = y + norms[3](down(nn.functional.gelu(gate(u), approximate="tanh") * up(u)))
    expect(right, x, norm="sandwich", norm_kind="rms", layer_eps=1e-6, causal=True, ffn_act="gelu_tanh", ffn_gate=True,
           **of_attention(attention), **of_norm(1, norms[0]), **of_norm(2, norms[2]), norm1b=norms[1].weight,
           norm2b=norms[3].weight, **of_linear(1, gate), **of_linear(3, up), **of_linear(2, down))


# ---- a product alone ----

@torch.no_grad()
@pytest.mark.parametrize("isa, dtype, most", in_turn(
    [(isa, dtype, most) for isa in filter(native, ISAS) for dtype, most in (("f32", 1e-6), ("bf16", 1e-2))],
    "patches", count=3))
def test_patches_of_an_image(isa, dtype, most):
    """A convolution whose window never overlaps is a product over rows of patches."""
    torch.manual_seed(13)
    convolution, image = nn.Conv2d(3, WIDTH, 5, 5), torch.randn(BATCH, 3, 15, 20)
    patches = nn.functional.unfold(image, 5, stride=5).mT.contiguous()
    layer = mhagen.attention(attention="none", d_model=75, y_width=WIDTH, seq=12, batch=BATCH, isa=isa, dtype=dtype,
                             out_in=True, wo=convolution.weight.flatten(1).numpy(), bo=convolution.bias.numpy())
    right = convolution(image).flatten(2).mT
    assert (torch.from_numpy(layer(patches.numpy())) - right).norm() <= most * right.norm()
    assert list(layer.weight_shapes()) == ["wo", "bo"]


@torch.no_grad()
def test_a_block_without_attention():
    """A norm, a product with its activation and the residual connection, then a feed-forward."""
    torch.manual_seed(14)
    norms, linear = [norm_of("layer", 1e-5) for _ in range(2)], drawn(nn.Linear(WIDTH, WIDTH))
    up, down = drawn(nn.Linear(WIDTH, BETWEEN)), drawn(nn.Linear(BETWEEN, WIDTH))
    x = 3 * torch.randn(BATCH, ROWS, WIDTH) + 1
    y = x + nn.functional.silu(linear(norms[0](x)))
    right = y + down(nn.functional.relu(up(norms[1](y))))
    keys = {"wo": linear.weight, "bo": linear.bias} | of_norm(1, norms[0]) | of_norm(2, norms[1]) | of_linear(1, up) \
        | of_linear(2, down)
    layer = mhagen.attention(attention="none", d_model=WIDTH, seq=ROWS, batch=BATCH, isa="scalar", norm="pre",
                             residual=True, out_act="silu", ffn=BETWEEN, ffn_act="relu", out_in=True,
                             **{name: weight.numpy() for name, weight in keys.items()})
    assert (torch.from_numpy(layer(x.numpy())) - right).abs().max() <= 1e-5 * right.abs().max()
    assert "gain1" not in layer.weight_shapes() and "gain2" in layer.weight_shapes()


def test_names_of_weights():
    """A layer tells what it reads."""
    layer = mhagen.attention(h=HEADS, d_model=WIDTH, dk=WIDTH // HEADS, seq=ROWS, isa="scalar", norm="post", y_width=20,
                             ffn=BETWEEN, ffn_gate=True)
    shapes = layer.weight_shapes()
    assert [shapes[name] for name in ("w1", "w3", "w2", "b1", "b3", "b2")] == [
        (20, BETWEEN), (20, BETWEEN), (BETWEEN, 20), (BETWEEN,), (BETWEEN,), (20,)]
    assert [shapes[name] for name in ("norm1", "norm1_bias", "norm2", "norm2_bias")] == 4 * [(20,)]
    assert shapes["gain2"] == (20,) and "gain1" not in shapes  # no residual
    assert len(shapes) == 8 + 6 + 4 + 1
