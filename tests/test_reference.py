"""The reference in double against PyTorch in double."""
import ctypes

import pytest

from reference_lib import (BOTTOM_RIGHT, CAUSAL, CROSS, KV_LEN, PROBS, WINDOW_LEFT, WINDOW_RIGHT, Args, Weights, build,
                           shape_of)

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("reference") / "reference.so")


class Case:
    """Random float32 data of one shape, and the reference's results for it."""

    def __init__(self, library, h, d_model, dk, seq, dv=None, seq_kv=None, batch=2, options=0,
                 kv_len=None, biases=True, layout=1, seed=0, h_kv=None,
                 k_width=None, v_width=None, y_width=None, window_left=0, window_right=0):
        torch.manual_seed(seed)
        dv, seq_kv, h_kv = dv or dk, seq_kv or seq, h_kv or h
        k_width, v_width, y_width = k_width or d_model, v_width or d_model, y_width or d_model
        self.h, self.h_kv, self.dk, self.seq, self.seq_kv, self.batch = h, h_kv, dk, seq, seq_kv, batch
        self.options, self.biases, self.window = options, biases, (window_left, window_right)
        self.kv_len = torch.tensor(kv_len or [seq_kv] * batch, dtype=torch.int32)
        self.q = torch.randn(batch, seq, d_model)
        self.k, self.v = ((torch.randn(batch, seq_kv, width) for width in (k_width, v_width)) if options & CROSS
                          else (self.q, self.q))
        shapes = {"q": (h * dk, d_model), "k": (h_kv * dk, k_width), "v": (h_kv * dv, v_width),
                  "o": (y_width, h * dv)}  # as torch.nn.Linear has them
        self.w = {key: torch.randn(shape) for key, shape in shapes.items()}
        self.b = {key: torch.randn(shape[0]) * biases for key, shape in shapes.items()}

        stored = [(w if layout else w.T).contiguous() for w in self.w.values()]
        biases = [b.data_ptr() if biases else None for b in self.b.values()]
        weights = Weights(*[w.data_ptr() for w in stored], *biases, layout)
        args = Args(q=self.q.data_ptr(), kv_len=self.kv_len.data_ptr())
        if options & CROSS:
            args.k, args.v = self.k.data_ptr(), self.v.data_ptr()
        kernel = shape_of(options, h=h, h_kv=h_kv, d_model=d_model, dk=dk, dv=dv, seq=seq, seq_kv=seq_kv, batch=batch,
                          k_width=k_width, v_width=v_width, y_width=y_width,
                          window_left=window_left, window_right=window_right)
        self.y = torch.full((batch, seq, y_width), torch.nan, dtype=torch.double)
        self.probs = torch.full((batch, h, seq, seq_kv), torch.nan, dtype=torch.double)
        score = ctypes.c_double()
        assert library.mhagen_reference(
            ctypes.byref(kernel), ctypes.byref(weights), ctypes.byref(args),
            ctypes.c_void_p(self.y.data_ptr()), ctypes.c_void_p(self.probs.data_ptr()),
            ctypes.byref(score)) == 0
        self.max_score = score.value

    def hidden(self):
        """[batch][1][seq][seq_kv]: true where a row must not see a key."""
        keys = torch.arange(self.seq_kv)
        hidden = (keys >= self.kv_len[:, None]).view(self.batch, 1, 1, self.seq_kv)
        left, right = self.window
        place = torch.arange(self.seq)[:, None] + (self.seq_kv - self.seq if self.options & BOTTOM_RIGHT else 0)
        for option, hides in (CAUSAL, keys > place), (WINDOW_LEFT, keys < place - left), (
                WINDOW_RIGHT, keys > place + right):
            if self.options & option:
                hidden = hidden | hides
        return hidden.expand(self.batch, 1, self.seq, self.seq_kv)

    def expect(self, y, probs=None, rows=slice(None)):
        assert (self.y[:, rows] - y[:, rows]).abs().max() <= 1e-12 * max(1, y[:, rows].abs().max())
        if probs is not None:
            assert (self.probs - probs).abs().max() <= 1e-12


@pytest.mark.parametrize("options, kv_len", [
    (0, None), (CAUSAL, None), (KV_LEN, [1, 7, 13]), (CAUSAL | KV_LEN, [4, 13, 2]),
    (CROSS, None), (CROSS | CAUSAL, None), (CROSS | KV_LEN, [1, 13, 5])])
@pytest.mark.parametrize("biases", [True, False])
def test_multihead_attention(library, options, kv_len, biases):
    """torch.nn.MultiheadAttention, whose d_model is always h * dk."""
    case = Case(library, h=3, d_model=24, dk=8, seq=13, batch=3, options=options, kv_len=kv_len,
                biases=biases)
    module = torch.nn.MultiheadAttention(24, 3, bias=biases, batch_first=True).double()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([case.w[key] for key in "qkv"]))
        module.out_proj.weight.copy_(case.w["o"])
        if biases:
            module.in_proj_bias.copy_(torch.cat([case.b[key] for key in "qkv"]))
            module.out_proj.bias.copy_(case.b["o"])
        causal = torch.ones(13, 13, dtype=torch.bool).triu(1) if options & CAUSAL else None
        padding = torch.arange(13) >= case.kv_len[:, None] if options & KV_LEN else None
        y, probs = module(case.q.double(), case.k.double(), case.v.double(), attn_mask=causal,
                          key_padding_mask=padding, average_attn_weights=False)
    case.expect(y, probs)


def test_widths(library):
    """kdim and vdim of torch.nn.MultiheadAttention."""
    case = Case(library, h=3, d_model=24, dk=8, seq=5, seq_kv=13, options=CROSS, k_width=10, v_width=31)
    module = torch.nn.MultiheadAttention(24, 3, kdim=10, vdim=31, batch_first=True).double()
    with torch.no_grad():
        for key in "qkv":
            getattr(module, key + "_proj_weight").copy_(case.w[key])
        module.in_proj_bias.copy_(torch.cat([case.b[key] for key in "qkv"]))
        module.out_proj.weight.copy_(case.w["o"])
        module.out_proj.bias.copy_(case.b["o"])
        y, probs = module(case.q.double(), case.k.double(), case.v.double(), average_attn_weights=False)
    case.expect(y, probs)


def expect_composition(case):
    """PyTorch's scaled_dot_product_attention between linear maps; rows that see no key, for which it has NaN, have the
    context zero."""
    def heads(x, key, count):
        x = torch.nn.functional.linear(x.double(), case.w[key].double(), case.b[key].double())
        return x.unflatten(-1, (count, -1)).transpose(1, 2)

    q, k, v = heads(case.q, "q", case.h), heads(case.k, "k", case.h_kv), heads(case.v, "v", case.h_kv)
    blind = case.hidden().all(-1, keepdim=True)
    context = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=~case.hidden(), enable_gqa=True)
    context = context.masked_fill(blind, 0)
    y = torch.nn.functional.linear(context.transpose(1, 2).flatten(2), case.w["o"].double(),
                                   case.b["o"].double())
    k = k.repeat_interleave(case.h // case.h_kv, dim=1)
    scores = (q @ k.transpose(-1, -2) / case.dk**0.5).masked_fill(case.hidden(), -torch.inf)
    case.expect(y, scores.softmax(-1).masked_fill(blind, 0))
    largest = scores[scores.isfinite()].abs().max().item()
    assert case.max_score == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("options", range(8))
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("shape", [
    dict(h=1, d_model=1, dk=1, seq=1), dict(h=2, d_model=5, dk=3, dv=7, seq=6),
    dict(h=5, d_model=11, dk=4, dv=2, seq=9), dict(h=2, d_model=16, dk=32, seq=40),
    dict(h=6, h_kv=2, d_model=10, dk=4, dv=3, seq=9), dict(h=4, h_kv=1, d_model=8, dk=5, seq=7, y_width=13)])
def test_composition(library, shape, options, layout):
    """Any dk, dv, h_kv and seq_kv: PyTorch's scaled_dot_product_attention between linear maps."""
    seq_kv = shape["seq"] + 3 if options & CROSS else shape["seq"]
    kv_len = [1 + seq_kv // 2, seq_kv] if options & KV_LEN else None
    case = Case(library, **shape, seq_kv=seq_kv, options=options, kv_len=kv_len, layout=layout)
    expect_composition(case)


@pytest.mark.parametrize("options", [CAUSAL, WINDOW_LEFT, WINDOW_RIGHT, WINDOW_LEFT | WINDOW_RIGHT,
                                     CAUSAL | WINDOW_LEFT | KV_LEN])
@pytest.mark.parametrize("align", [0, BOTTOM_RIGHT])
@pytest.mark.parametrize("seq, seq_kv", [(9, 9), (4, 11), (11, 4), (1, 6)])
def test_windows(library, options, align, seq, seq_kv):
    """An explicit mask for windows and places; with more queries than keys some rows see none."""
    case = Case(library, h=2, d_model=10, dk=3, seq=seq, seq_kv=seq_kv, options=options | align | CROSS,
                kv_len=[seq_kv - 1, seq_kv] if options & KV_LEN else None, window_left=2, window_right=1)
    expect_composition(case)


def test_no_visible_key(library):
    """What PyTorch answers with NaN: the context is zero, so y = bo."""
    case = Case(library, h=2, d_model=6, dk=3, seq=4, options=KV_LEN, kv_len=[0, 4])
    assert (case.y[0] == case.b["o"].double()).all() and (case.probs[0] == 0).all()
    assert case.y[1].isfinite().all() and not (case.y[1] == case.b["o"].double()).any()
