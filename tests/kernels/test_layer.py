"""What is around attention: the norm and the residual connection of PyTorch's layers, by the Python package."""
import os
import sys

import pytest

from tools import MHAGEN, ROOT, in_turn, installed, shared

if not installed("torch", "numpy"):
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch
from torch import nn

sys.path.insert(0, str(ROOT / "python"))
import mhagen

pytestmark = pytest.mark.slow
WIDTH, HEADS, ROWS, BATCH = 24, 4, 9, 2


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory):
    cache = shared(tmp_path_factory, "python-cache", lambda _: None)
    os.environ.update(MHAGEN=str(MHAGEN), XDG_CACHE_HOME=str(cache), CC="cc -O0")


class RMS(nn.RMSNorm):
    bias = None


def norm_of(kind, eps):
    """One with weights of its own."""
    norm = (nn.LayerNorm if kind == "layer" else RMS)(WIDTH, eps=eps)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


def attention_block(where, attention, norm, x, residual):
    """As nn.TransformerEncoderLayer has it, with norm_first or without."""
    rows = norm(x) if where == "pre" else x
    y = attention(rows, rows, rows, need_weights=False)[0]
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
        weights = dict(zip(("wq", "wk", "wv"), attention.in_proj_weight.chunk(3)))
        weights |= dict(zip(("bq", "bk", "bv"), attention.in_proj_bias.chunk(3)))
        weights |= {"wo": attention.out_proj.weight, "bo": attention.out_proj.bias, "norm1": norm.weight}
        if norm.bias is not None:
            weights["norm1_bias"] = norm.bias
        layer = mhagen.attention(h=HEADS, d_model=WIDTH, dk=WIDTH // HEADS, seq=ROWS, batch=BATCH, isa="scalar",
                                 norm=where, norm_kind=kind, layer_eps=eps, residual=residual, out_in=True,
                                 **{name: weight.numpy().copy() for name, weight in weights.items()})
        found = torch.from_numpy(layer(x.numpy()))
    assert (found - right).abs().max() <= 3e-6 * right.abs().max()
