"""The reference in double against PyTorch in double."""
import ctypes
import math

import pytest

from reference_lib import (ALIBI, ALL, BHSD, BOTTOM_RIGHT, CACHE_APPEND, CAPPED, CAUSAL, CROSS, EACH, HALF, HEAD,
                           INTERLEAVED, KV_LEN, KV_START, L2, LAYER, MASK_ADD, MASK_BOOL, MASKED, Q_LEN,
                           QK_NORM, RMS, ROPE, ROPE_AT_RUN, ROW_KEYS, SCALED, SINK, SOFTCAP,
                           WINDOW_LEFT, WINDOW_RIGHT, Args, Weights, build, shape_of)

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory)


class Case:
    """Random float32 data of one shape, and the reference's results for it."""

    def __init__(self, library, h, d_model, dk, seq, dv=None, seq_kv=None, batch=2, options=0,
                 kv_len=None, biases=True, layout=1, seed=0, h_kv=None,
                 k_width=None, v_width=None, y_width=None, window_left=0, window_right=0,
                 scale=None, alibi=None, kv_start=None, q_len=None, softcap=0.0, sink=None, rope=0, rope_dims=0,
                 rope_theta=1e4, tables=False, project="qkvo", mask=None, mask_dims="qk", past=None,
                 qk_norm=0, span=HEAD, norm_eps=1e-6, gains=True, first_row=1.0, row_keys=None):
        torch.manual_seed(seed)
        dv, seq_kv, h_kv = dv or dk, seq_kv or seq, h_kv or h
        q_width = d_model if "q" in project else h * dk
        k_width = k_width or (d_model if "k" in project else h_kv * dk)
        v_width = v_width or (d_model if "v" in project else h_kv * dv)
        y_width = y_width or (d_model if "o" in project else h * dv)
        self.project = project
        self.h, self.h_kv, self.dk, self.seq, self.seq_kv, self.batch = h, h_kv, dk, seq, seq_kv, batch
        self.options, self.biases, self.window = options, biases, (window_left, window_right)
        self.scale = scale or dk**-0.5
        self.rope, self.pairs, self.theta = rope, rope_dims // 2, rope_theta
        self.past = torch.tensor(past or [0] * batch, dtype=torch.int32)
        self.first = min(0, int(self.places().min()))
        places = max(seq_kv, int(self.places().max()) + 1) - self.first
        self.tables = torch.randn(2, places, self.pairs) if tables else None
        self.angles = self.drawn_angles() if options & ROPE_AT_RUN else (None, None)
        self.kv_len = torch.tensor(kv_len or [seq_kv] * batch, dtype=torch.int32)
        self.kv_start = torch.tensor(kv_start or [0] * batch, dtype=torch.int32)
        self.q_len = torch.tensor(q_len or [seq] * batch, dtype=torch.int32)
        self.q = torch.randn(batch, seq_kv if options & CACHE_APPEND else seq, q_width)
        self.k, self.v = ((torch.randn(batch, seq_kv, width) for width in (k_width, v_width)) if options & CROSS
                          else (self.q, self.q))
        for x in {self.q, self.k}:
            x[:, 0] *= first_row
        if options & CACHE_APPEND:  # of all rows that there ever are those of this run
            self.q = torch.stack([self.q[b, at:at + seq] for b, at in enumerate(self.past.tolist())])
        shapes = {"q": (h * dk, d_model), "k": (h_kv * dk, k_width), "v": (h_kv * dv, v_width),
                  "o": (y_width, h * dv)}  # as torch.nn.Linear has them
        self.w = {key: torch.randn(shape) for key, shape in shapes.items()}
        self.b = {key: torch.randn(shape[0]) * biases for key, shape in shapes.items()}

        stored = [(w if layout else w.T).contiguous() for w in self.w.values()]
        pointers = [w.data_ptr() if key in project else None for key, w in zip("qkvo", stored)]
        biases = [b.data_ptr() if biases and key in project else None for key, b in self.b.items()]
        weights = Weights(*pointers, *biases, layout)
        if alibi is not None:
            weights.alibi = alibi.data_ptr()
        if sink is not None:
            weights.sink = sink.data_ptr()
        self.norm, self.span, self.eps = qk_norm, span, norm_eps
        widths = (dk, dk) if span == HEAD else (h * dk, h_kv * dk)
        self.gains = [torch.randn(width) if gains else torch.ones(width) for width in widths]
        if gains:
            weights.q_norm, weights.k_norm = (gain.data_ptr() for gain in self.gains)
        if tables:
            weights.rope_cos, weights.rope_sin = (table.data_ptr() for table in self.tables)
        self.given = {key: self.laid(x, key, count) for key, x, count in
                      [("q", self.q, h), ("k", self.k, h_kv), ("v", self.v, h_kv)]}
        args = Args(q=self.given["q"].data_ptr(), kv_len=self.kv_len.data_ptr(), kv_start=self.kv_start.data_ptr(),
                    q_len=self.q_len.data_ptr(), past=self.past.data_ptr())
        self.row_keys = row_keys
        if row_keys is not None:
            args.row_keys = row_keys.data_ptr()
        if options & ROPE_AT_RUN:
            pointers = [table.data_ptr() for tables in self.angles for table in tables]
            args.rope_cos, args.rope_sin, args.k_rope_cos, args.k_rope_sin = pointers
        self.mask, self.mask_dims = mask, mask_dims
        if mask is not None:
            args.mask = mask.data_ptr()
        if options & (CROSS | CACHE_APPEND):
            args.k, args.v = self.given["k"].data_ptr(), self.given["v"].data_ptr()
        kernel = shape_of(options, h=h, h_kv=h_kv, d_model=d_model, dk=dk, dv=dv, seq=seq, seq_kv=seq_kv, batch=batch,
                          k_width=k_width, v_width=v_width, y_width=y_width,
                          window_left=window_left, window_right=window_right, scale=self.scale, softcap=softcap,
                          qk_norm=qk_norm, norm_span=span, norm_eps=norm_eps,
                          rope=rope, rope_dims=rope_dims, rope_theta=rope_theta, project=project,
                          mask_dims=mask_dims.encode())
        self.y = torch.full((batch, seq, y_width), torch.nan, dtype=torch.double)
        self.probs = torch.full((batch, h, seq, seq_kv), torch.nan, dtype=torch.double)
        score = ctypes.c_double()
        assert library.mhagen_reference_and_bounds(
            ctypes.byref(kernel), ctypes.byref(weights), ctypes.byref(args),
            ctypes.c_void_p(self.y.data_ptr()), ctypes.c_void_p(self.probs.data_ptr()),
            ctypes.byref(score), None, None) == 0
        alone = torch.full_like(self.y, torch.nan), torch.full_like(self.probs, torch.nan)
        assert library.mhagen_reference(
            ctypes.byref(kernel), ctypes.byref(weights), ctypes.byref(args),
            *(ctypes.c_void_p(results.data_ptr()) for results in alone)) == 0
        for results, beside_bounds in zip(alone, (self.y, self.probs)):
            assert torch.equal(results.nan_to_num(), beside_bounds.nan_to_num())
        self.max_score, self.library, self.read = score.value, library, (kernel, weights, args)
        self.left = self.y  # as the layout has it
        if options & BHSD and "o" not in project:
            self.left = self.y.view(batch, h, seq, dv)
            self.y = self.left.transpose(1, 2).flatten(2)

    def laid(self, x, key, heads):
        """Rows of an input as the layout has them."""
        if self.options & BHSD and key not in self.project:
            return x.unflatten(-1, (heads, -1)).transpose(1, 2).contiguous()
        return x

    def scores(self, level):
        """What args->scores has, and its bounds."""
        kernel, weights, args = self.read
        kernel.scores = level
        scores, bounds = torch.full((2, *self.probs.shape), torch.nan, dtype=torch.double)
        assert self.library.mhagen_reference_scores(
            ctypes.byref(kernel), ctypes.byref(weights), ctypes.byref(args),
            ctypes.c_void_p(scores.data_ptr()), ctypes.c_void_p(bounds.data_ptr())) == 0
        return scores, bounds

    def drawn_angles(self):
        """Cosines and sines of the rows of Q and of all rows of K, each [batch][rows][pairs]."""
        draw = torch.Generator().manual_seed(3)
        keys = torch.randn(2, self.batch, self.seq_kv, self.pairs, generator=draw)
        if self.options & CROSS and not self.options & CACHE_APPEND:
            return torch.randn(2, self.batch, self.seq, self.pairs, generator=draw), keys
        rows = [keys[:, b, at:at + self.seq] for b, at in enumerate(self.past.tolist())]
        return torch.stack(rows, 1), keys

    def places(self):
        """[seq][1], with a cache [batch][1][seq][1]: the places of the queries among the keys."""
        if self.options & CACHE_APPEND:
            return torch.arange(self.seq)[:, None] + self.past.view(self.batch, 1, 1, 1)
        return torch.arange(self.seq)[:, None] + (self.seq_kv - self.seq if self.options & BOTTOM_RIGHT else 0)

    def hidden(self):
        """[batch][1][seq][seq_kv]: true where a row must not see a key."""
        keys = torch.arange(self.seq_kv)
        hidden = ((keys >= self.kv_len[:, None]) | (keys < self.kv_start[:, None])).view(self.batch, 1, 1, self.seq_kv)
        left, right = self.window
        place = self.places()
        if self.options & CACHE_APPEND:
            hidden = hidden | (keys >= self.past.view(self.batch, 1, 1, 1) + self.seq)
        for option, hides in (CAUSAL, keys > place), (WINDOW_LEFT, keys < place - left), (
                WINDOW_RIGHT, keys > place + right):
            if self.options & option:
                hidden = hidden | hides
        if self.row_keys is not None:
            first, end = self.row_keys[:, None, :, :, None].unbind(3)
            hidden = hidden | (keys < first) | (keys >= end)
        return hidden.expand(self.batch, 1, self.seq, self.seq_kv)

    def turn(self, x, place, angles):
        """[batch][heads][rows][dk] as Llama turns its halves (rotate_half), and GPT-J and Cohere every two columns."""
        if not self.rope:
            return x
        if angles is not None:
            cos, sin = angles[:, :, None].double()
        elif self.tables is not None:
            cos, sin = (table.double()[place - self.first] for table in self.tables)
        else:
            inverse = self.theta ** -(torch.arange(self.pairs, dtype=torch.double) / self.pairs)
            angle = place[..., None].double() * inverse
            cos, sin = angle.cos(), angle.sin()
        turned, rest = x[..., :2 * self.pairs], x[..., 2 * self.pairs:]
        if self.rope == HALF:
            cos, sin = (torch.cat((table, table), -1) for table in (cos, sin))
            first, second = turned.chunk(2, -1)
            other = torch.cat((-second, first), -1)
        else:
            cos, sin = (table.repeat_interleave(2, -1) for table in (cos, sin))
            other = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
        return torch.cat((turned * cos + other * sin, rest), -1)

    def normal(self, x, gain):
        """[batch][heads][rows][dk] with the norm of Qwen 3 (rms), of ViT-22B and Cohere (layer) or of Swin v2 (l2)."""
        if not self.norm:
            return x
        heads = x.shape[1]
        if self.span == ALL:  # as OLMo 2
            x = x.transpose(1, 2).flatten(2)[:, None]

        def rms(x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

        def layer(x):
            if x.dtype == torch.float:  # as Cohere; what layer_norm has of overflow depends on the width
                return rms(x - x.mean(-1, keepdim=True))
            return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=self.eps)

        def l2(x):
            return torch.nn.functional.normalize(x, dim=-1, eps=self.eps)

        norm = {RMS: rms, LAYER: layer, L2: l2}[self.norm]
        overflow = x.float().pow(2).sum(-1, keepdim=True).isinf()
        x = torch.where(overflow, norm(x.float()).double(), norm(x))
        x = x * (gain.unflatten(-1, (heads, 1, -1)) if self.span == EACH else gain)  # the former as Cohere
        return x[:, 0].unflatten(-1, (heads, -1)).transpose(1, 2) if self.span == ALL else x

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


def linear(case, x, key):
    if key not in case.project:
        return x.double()
    return torch.nn.functional.linear(x.double(), case.w[key].double(), case.b[key].double())


def heads(case, x, key, count):
    return linear(case, x, key).unflatten(-1, (count, -1)).transpose(1, 2)


def queries_and_keys(case):
    q, k = heads(case, case.q, "q", case.h), heads(case, case.k, "k", case.h_kv)
    q, k = case.normal(q, case.gains[0]), case.normal(k, case.gains[1])
    return (case.turn(q, case.places()[..., 0], case.angles[0]),
            case.turn(k, torch.arange(case.seq_kv), case.angles[1]))


def expect_composition(case, added=0.0, change=None, sinks=None):
    """PyTorch's scaled_dot_product_attention between linear maps; rows that see no key, for which it has NaN, have the
    context zero. added: to the scores; change: of scores to others, before; sinks: [h], a column of logits that is left
    out behind softmax. What scaled_dot_product_attention has not is done as models of Hugging Face do it."""
    q, k = queries_and_keys(case)
    v = heads(case, case.v, "v", case.h_kv)
    blind = case.hidden().all(-1, keepdim=True)
    mask = torch.zeros(case.seq_kv, dtype=torch.double).add(added).masked_fill(case.hidden(), -torch.inf)
    context = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=case.scale,
                                                               enable_gqa=True)
    k, v = (x.repeat_interleave(case.h // case.h_kv, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * case.scale
    logits = (change(scores) if change else scores) + mask
    if sinks is not None:
        logits = torch.cat([logits, sinks.double().view(1, -1, 1, 1).expand(*logits.shape[:3], 1)], -1)
    probs = logits.softmax(-1)[..., :case.seq_kv].masked_fill(blind, 0)
    if change or sinks is not None:
        context = probs @ v
    context = context.masked_fill(blind, 0)
    y = linear(case, context.transpose(1, 2).flatten(2), "o")
    case.expect(y, probs)
    if change or sinks is not None:
        return
    mask = mask.expand_as(scores)
    counts = mask.isfinite() & ((scores + mask).softmax(-1) > 2.0**-60)  # a mask, where it is far above its rounding
    size = scores.abs() + (mask.abs() if not case.options & MASK_ADD else mask.abs().where(counts, torch.tensor(0.0)))
    largest = size[mask.isfinite()].max().item()
    if case.norm:  # times what short rows make of roundings
        assert case.max_score >= largest * (1 - 1e-12)
        return
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


@pytest.mark.parametrize("qk_norm", [RMS, LAYER, L2])
@pytest.mark.parametrize("span", [HEAD, EACH, ALL])
@pytest.mark.parametrize("options, gains, eps", [(0, True, 1e-6), (CAUSAL, False, 0.5), (CROSS | ROPE, True, 1e-12)])
def test_norms(library, qk_norm, span, options, gains, eps):
    case = Case(library, h=4, h_kv=2, d_model=10, dk=6, seq=5, seq_kv=9 if options & CROSS else None,
                options=options | QK_NORM, qk_norm=qk_norm, span=span, norm_eps=eps, gains=gains,
                rope=HALF if options & ROPE else 0, rope_dims=4)
    expect_composition(case)


@pytest.mark.parametrize("qk_norm", [RMS, LAYER, L2])
@pytest.mark.parametrize("span", [HEAD, EACH, ALL])
@pytest.mark.parametrize("first_row", [1e25, 1e15, torch.inf, torch.nan])
def test_norms_of_huge_rows(library, qk_norm, span, first_row):
    """A row whose squares overflow becomes zero, and one with NaN or Inf stays so, as in PyTorch."""
    case = Case(library, h=4, h_kv=2, d_model=10, dk=6, seq=5, seq_kv=9, options=CROSS | QK_NORM, qk_norm=qk_norm,
                span=span, biases=False, first_row=first_row)
    if math.isfinite(first_row):
        expect_composition(case)
        zero = first_row > 1e20
        assert (case.probs[:, :, 0] == 1 / 9).all() == zero  # of scores that are zero
    else:
        assert case.probs.isnan().all()


@pytest.mark.parametrize("options", [0, CAUSAL, CROSS, CROSS | WINDOW_LEFT, CAUSAL | KV_LEN, WINDOW_RIGHT, ROPE])
@pytest.mark.parametrize("past", [[0, 8], [3, 5]])
def test_append(library, options, past):
    """Rows behind those in a cache."""
    case = Case(library, h=4, h_kv=2, d_model=10, dk=3, dv=5, seq=4, seq_kv=12, options=options | CACHE_APPEND,
                past=past, kv_len=[6, 11] if options & KV_LEN else None, window_left=2, window_right=0,
                rope=HALF if options & ROPE else 0, rope_dims=2)
    expect_composition(case)


@pytest.mark.parametrize("project", ["", "qo", "qvo", "qko"])
@pytest.mark.parametrize("options", [0, CACHE_APPEND, BHSD, BHSD | CACHE_APPEND])
def test_keys_that_are_not_projected(library, project, options):
    """They have their norm, are turned and join a cache like others."""
    case = Case(library, h=4, h_kv=2, d_model=10, dk=6, dv=5, seq=4, seq_kv=12, project=project, qk_norm=RMS,
                gains=True, rope=HALF, rope_dims=4, options=options | CROSS | CAUSAL | QK_NORM | ROPE,
                past=[0, 8] if options & CACHE_APPEND else None)
    expect_composition(case)


# Of a decoder, fields of a Case: all that goes by the places of queries, or of keys.
DECODERS = {
    "rope": dict(options=CAUSAL | ROPE, rope=HALF, rope_dims=6),
    "tables": dict(options=CAUSAL | ROPE | WINDOW_LEFT, rope=INTERLEAVED, rope_dims=4, tables=True, window_left=6),
    "lengths": dict(options=CAUSAL | ALIBI | KV_START | WINDOW_LEFT | MASK_BOOL, kv_start=[3, 0], window_left=5),
    "numbers": dict(options=CAUSAL | KV_LEN | SINK | MASK_ADD, kv_len=[17, 18]),
}


def decoder(library, rows, options, **more):
    """A causal layer over a whole sequence, which PyTorch has computed as well, and its mask with all axes or None."""
    kind = options & (MASK_BOOL | MASK_ADD)
    mask, hides = drawn_mask(kind, "bhqk", b=2, h=4, q=rows, k=rows) if kind else (None, torch.zeros(1))
    case = Case(library, h=4, h_kv=2, d_model=12, dk=6, dv=5, seq=rows, options=options, mask=mask, mask_dims="bhqk",
                **more)
    case.hidden = lambda hidden=case.hidden(): hidden | (hides == -torch.inf)
    slopes = torch.tensor(paper_slopes(4), dtype=torch.double)[:, None, None] * bool(options & ALIBI)
    added = slopes * (torch.arange(rows) - case.places())
    expect_composition(case, added + hides if kind == MASK_ADD else added,
                       sinks=torch.zeros(4) if options & SINK else None)
    return case, mask


@pytest.mark.parametrize("what", DECODERS)
@pytest.mark.parametrize("seq", [1, 3])
def test_chunks_are_the_whole(library, what, seq):
    """A causal layer over a sequence, and over its chunks, each behind the others; two entries at other places."""
    whole, mask = decoder(library, 18, **DECODERS[what])
    fields = {**DECODERS[what], "options": DECODERS[what]["options"] | CACHE_APPEND}
    for past in range(0, 18, seq):
        places = [past, 18 - seq - past]
        rows = [slice(first, first + seq) for first in places]
        part = None if mask is None else torch.stack([mask[b, :, at] for b, at in enumerate(rows)])
        chunk = Case(library, h=4, h_kv=2, d_model=12, dk=6, dv=5, seq=seq, seq_kv=18, past=places, mask=part,
                     mask_dims="bhqk", **fields)
        for b, at in enumerate(rows):
            assert (chunk.q[b] == whole.q[b, at]).all()
            assert (chunk.y[b] - whole.y[b, at]).abs().max() <= 1e-12


@pytest.mark.parametrize("rope", [HALF, INTERLEAVED])
@pytest.mark.parametrize("dims, theta, tables", [(8, 1e4, False), (6, 5e5, False), (2, 1, False), (6, 1e4, True)])
@pytest.mark.parametrize("options, seq, seq_kv", [
    (0, 9, 9), (CAUSAL, 9, 9), (CROSS, 4, 11), (CROSS | BOTTOM_RIGHT, 4, 11), (CROSS | BOTTOM_RIGHT | KV_LEN, 11, 4)])
def test_rope(library, rope, dims, theta, tables, options, seq, seq_kv):
    """As Llama and Cohere write it; partial as in GPT-NeoX, with tables of any numbers, and places before all keys."""
    case = Case(library, h=4, h_kv=2, d_model=10, dk=8, dv=3, seq=seq, seq_kv=seq_kv, options=options | ROPE,
                kv_len=[seq_kv - 1, seq_kv] if options & KV_LEN else None, rope=rope, rope_dims=dims, rope_theta=theta,
                tables=tables)
    expect_composition(case)


@pytest.mark.parametrize("options", [0, KV_LEN, CAUSAL, CAUSAL | BOTTOM_RIGHT | WINDOW_LEFT])
def test_left_padding(library, options):
    """Padding before the keys, of which some rows then see none."""
    case = Case(library, h=2, d_model=10, dk=3, seq=5, seq_kv=8, batch=4, options=options | CROSS | KV_START,
                kv_start=[0, 3, 7, 8], kv_len=[8, 5, 6, 8] if options & KV_LEN else None, window_left=2)
    expect_composition(case)


@pytest.mark.parametrize("options", [0, CAUSAL | KV_LEN, CROSS, CROSS | BOTTOM_RIGHT | CAUSAL, CACHE_APPEND | CAUSAL,
                                     CROSS | CACHE_APPEND, QK_NORM])
@pytest.mark.parametrize("rope, dims", [(HALF, 6), (INTERLEAVED, 4)])
def test_angles_of_a_run(library, rope, dims, options):
    """Each row has angles of its own; those of K are others where its rows are, and in a cache those of their runs."""
    keys = 9 if options & (CROSS | CACHE_APPEND) else 6
    case = Case(library, h=2, d_model=10, dk=6, seq=6, seq_kv=keys, options=options | ROPE | ROPE_AT_RUN, rope=rope,
                rope_dims=dims, kv_len=[5, 4] if options & KV_LEN else None,
                qk_norm=RMS if options & QK_NORM else 0, past=[0, 3] if options & CACHE_APPEND else None)
    expect_composition(case)


@pytest.mark.parametrize("options", [0, CAUSAL | KV_LEN, KV_START | WINDOW_LEFT, CROSS, CACHE_APPEND | CAUSAL])
def test_ranges_of_rows(library, options):
    """Documents in a row, and ranges of any rows, of which some are empty, beside other masks."""
    keys = 9 if options & (CROSS | CACHE_APPEND) else 6
    documents = torch.tensor([[0, 2], [0, 2], [2, 5], [2, 5], [2, 5], [5, 6]])
    ranges = torch.stack([documents, torch.tensor([[0, keys], [3, 3], [4, 1], [keys, keys], [keys - 1, keys], [1, 4]])])
    case = Case(library, h=2, d_model=10, dk=3, seq=6, seq_kv=keys, options=options | ROW_KEYS,
                kv_len=[5, 4] if options & KV_LEN else None, kv_start=[1, 3] if options & KV_START else None,
                past=[0, 3] if options & CACHE_APPEND else None, window_left=2, row_keys=ranges.to(torch.int32))
    expect_composition(case)
    assert options or (case.y[1, 1] == case.b["o"]).all()


def test_documents_are_batch_entries(library):
    """Packed sequences, each of which sees itself alone, and the same as a batch, to the bit."""
    ranges = torch.tensor([[row // 4 * 4, row // 4 * 4 + 4] for row in range(12)], dtype=torch.int32)[None]
    packed = Case(library, h=2, d_model=10, dk=3, seq=12, batch=1, options=ROW_KEYS, row_keys=ranges)
    apart = Case(library, h=2, d_model=10, dk=3, seq=4, batch=3)
    assert torch.equal(packed.q.view(3, 4, 10), apart.q) and torch.equal(packed.y.view(3, 4, 10), apart.y)


@pytest.mark.parametrize("options", [0, CAUSAL])
def test_rows(library, options):
    """Rows that are asked for are those of all; the others are NaN."""
    shape = dict(h=2, d_model=10, dk=3, seq=5, batch=3)
    case = Case(library, **shape, options=options | Q_LEN, q_len=[0, 3, 5])
    whole = Case(library, **shape, options=options)
    for b, rows in enumerate(case.q_len):
        assert (case.y[b, :rows] == whole.y[b, :rows]).all()
        assert (case.probs[b, :, :rows] == whole.probs[b, :, :rows]).all()
        assert case.y[b, rows:].isnan().all() and case.probs[b, :, rows:].isnan().all()


@pytest.mark.parametrize("scale", [1, 0.05, 1e-9, 1e3])
def test_scale(library, scale):
    expect_composition(Case(library, h=3, d_model=10, dk=4, seq=7, scale=scale))


@pytest.mark.parametrize("project", ["", *("q k v o qk kv vo qkv kvo".split())])
@pytest.mark.parametrize("options", [0, CAUSAL | KV_LEN, WINDOW_LEFT])
@pytest.mark.parametrize("shape", [dict(h=3, dk=4, seq=5), dict(h=4, h_kv=2, dk=3, dv=7, seq=6, seq_kv=9)])
def test_unprojected(library, project, options, shape):
    """scaled_dot_product_attention, with linear maps where the letters say."""
    seq_kv = shape.get("seq_kv", shape["seq"])
    expect_composition(Case(library, d_model=10, **shape, project=project, options=options | CROSS,
                            kv_len=[seq_kv - 1, seq_kv] if options & KV_LEN else None, window_left=2))


@pytest.mark.parametrize("options", [0, CAUSAL, CROSS | KV_LEN, CROSS | BOTTOM_RIGHT | WINDOW_LEFT])
def test_heads_before_rows(library, options):
    """What scaled_dot_product_attention takes and returns, as it lies there."""
    seq_kv = 9 if options & CROSS else 6
    case = Case(library, h=4, h_kv=2, d_model=1, dk=3, dv=7, seq=6, seq_kv=seq_kv, project="", window_left=2,
                options=options | CROSS | BHSD, kv_len=[seq_kv - 1, seq_kv] if options & KV_LEN else None)
    q, k, v = (case.given[key].double() for key in "qkv")
    mask = torch.zeros(seq_kv, dtype=torch.double).masked_fill(case.hidden(), -torch.inf)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    assert y.shape == case.left.shape and (y - case.left).abs().max() <= 1e-12


@pytest.mark.parametrize("project", ["", *("q k v o qk kv vo kvo".split())])
def test_layout(library, project):
    """Only what is not projected has another layout; rows that nobody asks for are NaN in any."""
    expect_composition(Case(library, h=4, h_kv=2, d_model=10, dk=3, dv=7, seq=6, seq_kv=9, project=project,
                            options=CROSS | CAUSAL | BHSD))
    case = Case(library, h=4, d_model=10, dk=3, seq=6, project=project, options=CROSS | BHSD | Q_LEN, q_len=[2, 6])
    assert case.y[0, 2:].isnan().all() and case.y[0, :2].isfinite().all() and case.y[1].isfinite().all()


def test_no_visible_key(library):
    """What PyTorch answers with NaN: the context is zero, so y = bo."""
    case = Case(library, h=2, d_model=6, dk=3, seq=4, options=KV_LEN, kv_len=[0, 4])
    assert (case.y[0] == case.b["o"].double()).all() and (case.probs[0] == 0).all()
    assert case.y[1].isfinite().all() and not (case.y[1] == case.b["o"].double()).any()


def paper_slopes(h):
    """Of the code of the paper: Press, Smith and Lewis, Train Short, Test Long, 2022."""
    power = 2 ** math.floor(math.log2(h))
    start = 2 ** -(2 ** -(math.log2(power) - 3))
    slopes = [start ** (i + 1) for i in range(power)]
    return slopes + paper_slopes(2 * power)[0::2][:h - power] if power < h else slopes


@pytest.mark.parametrize("options, kv_len", [
    (0, None), (CAUSAL, None), (CROSS | KV_LEN, [4, 16]), (CROSS | CAUSAL | KV_LEN, [16, 9]),
    (CROSS | CAUSAL | BOTTOM_RIGHT, None), (CROSS | WINDOW_LEFT | BOTTOM_RIGHT | KV_LEN, [2, 15])])
@pytest.mark.parametrize("h, h_kv", [(1, 1), (4, 2), (6, 6), (11, 1)])
@pytest.mark.parametrize("given", [False, True])
def test_alibi(library, options, kv_len, h, h_kv, given):
    """Slopes times distances to the place of a query; a slope for each head of queries."""
    slopes = torch.randn(h) if given else torch.tensor(paper_slopes(h), dtype=torch.double)
    case = Case(library, h=h, h_kv=h_kv, d_model=24, dk=8, seq=13, seq_kv=16 if options & CROSS else 13,
                options=options | ALIBI, kv_len=kv_len, window_left=3, alibi=slopes if given else None)
    expect_composition(case, slopes.double()[:, None, None] * (torch.arange(case.seq_kv) - case.places()))


def drawn_mask(kind, dims, **extents):
    """A mask, and the same as [batch or 1][h or 1][seq or 1][seq_kv] with -inf for keys that are not seen."""
    torch.manual_seed(1)
    mask = torch.randn([extents[axis] for axis in dims])
    hidden = torch.rand(mask.shape) < 0.4
    mask = mask.masked_fill(hidden, -torch.inf) if kind == MASK_ADD else (~hidden * 3).to(torch.uint8)
    added = mask.double() if kind == MASK_ADD else torch.zeros(mask.shape).double().masked_fill(hidden, -torch.inf)
    return mask, added.view([extents[axis] if axis in dims else 1 for axis in "bhqk"])


@pytest.mark.parametrize("dims", ["k", "qk", "hk", "hqk", "bk", "bqk", "bhk", "bhqk"])
@pytest.mark.parametrize("kind", [MASK_BOOL, MASK_ADD])
@pytest.mark.parametrize("options", [0, CAUSAL, CROSS | KV_LEN])
def test_masks(library, kind, dims, options):
    """PyTorch's scaled_dot_product_attention with a mask of truths or of numbers, where some rows see no key."""
    n, m = 7, 9 if options & CROSS else 7
    mask, added = drawn_mask(kind, dims, b=2, h=4, q=n, k=m)
    case = Case(library, h=4, h_kv=2, d_model=10, dk=3, dv=5, seq=n, seq_kv=m, options=options | kind,
                kv_len=[m - 2, m] if options & KV_LEN else None, mask=mask, mask_dims=dims)
    case.hidden = lambda hidden=case.hidden(): hidden | (added == -torch.inf)
    expect_composition(case, added)


def test_masks_of_modules(library):
    """attn_mask by head and key_padding_mask of torch.nn.MultiheadAttention, which add up."""
    padding = torch.arange(13) >= torch.tensor([13, 5, 9])[:, None]
    relative = torch.randn(3, 13, 13)
    added = (relative + torch.zeros(3, 1, 1, 13).masked_fill(padding[:, None, None], -torch.inf)).contiguous()
    for options, mask, dims, attn_mask in [
            (MASK_BOOL, (~padding).to(torch.uint8), "bk", None),
            (MASK_ADD, relative, "hqk", relative.double().repeat(3, 1, 1)),
            (MASK_ADD, added, "bhqk", relative.double().repeat(3, 1, 1))]:
        case = Case(library, h=3, d_model=24, dk=8, seq=13, batch=3, options=options, mask=mask, mask_dims=dims)
        module = torch.nn.MultiheadAttention(24, 3, batch_first=True).double()
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.cat([case.w[key] for key in "qkv"]))
            module.out_proj.weight.copy_(case.w["o"])
            module.in_proj_bias.copy_(torch.cat([case.b[key] for key in "qkv"]))
            module.out_proj.bias.copy_(case.b["o"])
            hides = None if dims == "hqk" else torch.zeros(3, 13).double().masked_fill(padding, -torch.inf)
            y, probs = module(case.q.double(), case.k.double(), case.v.double(), attn_mask=attn_mask,
                              key_padding_mask=hides, average_attn_weights=False)
        case.expect(y, probs)


def test_shifted_windows(library):
    """Swin: a relative bias by head, and for each window, which is an entry of the batch, a mask of -100."""
    windows, n, h = 4, 9, 3
    relative, region = torch.randn(h, n, n), torch.randint(3, (windows, n))
    shifted = torch.where(region[:, None, :] != region[:, :, None], -100.0, 0.0)
    mask = (relative + shifted[:, None]).contiguous()
    case = Case(library, h=h, d_model=12, dk=4, seq=n, batch=windows, options=MASK_ADD, mask=mask, mask_dims="bhqk")
    expect_composition(case, mask.double())


def test_no_key_through_a_mask(library):
    """The context of a head is zero where the mask hides all keys of the row; the lowest float hides none."""
    mask = torch.zeros(2, 4)
    mask[0] = -torch.inf
    mask[1] = torch.finfo(torch.float32).min
    case = Case(library, h=2, d_model=6, dk=3, seq=4, options=MASK_ADD, mask=mask, mask_dims="bk")
    assert (case.y[0] == case.b["o"].double()).all() and (case.probs[0] == 0).all()
    assert (case.probs[1] == 0.25).all()


@pytest.mark.parametrize("options", [0, CAUSAL, ALIBI, CROSS | KV_LEN, CROSS | WINDOW_LEFT | BOTTOM_RIGHT])
@pytest.mark.parametrize("softcap", [0.5, 5, 50])
def test_softcap(library, options, softcap):
    """Scores of Gemma 2, and ALiBi behind them."""
    case = Case(library, h=4, h_kv=2, d_model=10, dk=3, seq=7, seq_kv=9 if options & CROSS else 7, window_left=2,
                kv_len=[0, 5] if options & KV_LEN else None, options=options | SOFTCAP, softcap=softcap)
    slopes = torch.tensor(paper_slopes(4), dtype=torch.double)[:, None, None] * bool(options & ALIBI)
    expect_composition(case, slopes * (torch.arange(case.seq_kv) - case.places()),
                       lambda scores: torch.tanh(scores / softcap) * softcap)


@pytest.mark.parametrize("options", [0, CAUSAL, ALIBI, CROSS | KV_LEN, CROSS | WINDOW_LEFT | BOTTOM_RIGHT])
@pytest.mark.parametrize("sinks", [[0.3, -2, 5, 1], [1e30, -1e30, -torch.inf, 0], None])
def test_sink(library, options, sinks):
    """Sinks of gpt-oss. One above all scores leaves nothing to the keys, -inf is none."""
    given = torch.tensor(sinks) if sinks else None
    case = Case(library, h=4, h_kv=2, d_model=10, dk=3, seq=7, seq_kv=9 if options & CROSS else 7, window_left=2,
                kv_len=[0, 5] if options & KV_LEN else None, options=options | SINK, sink=given)
    slopes = torch.tensor(paper_slopes(4), dtype=torch.double)[:, None, None] * bool(options & ALIBI)
    expect_composition(case, slopes * (torch.arange(case.seq_kv) - case.places()),
                       sinks=given if sinks else torch.zeros(4))


@pytest.mark.parametrize("options", [0, CAUSAL])
def test_add_zero_attn(library, options):
    """torch.nn.MultiheadAttention with the key and value of zeros that add_zero_attn has."""
    case = Case(library, h=3, d_model=24, dk=8, seq=13, options=options | SINK)
    module = torch.nn.MultiheadAttention(24, 3, add_zero_attn=True, batch_first=True).double()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([case.w[key] for key in "qkv"]))
        module.out_proj.weight.copy_(case.w["o"])
        module.in_proj_bias.copy_(torch.cat([case.b[key] for key in "qkv"]))
        module.out_proj.bias.copy_(case.b["o"])
        causal = torch.ones(13, 13, dtype=torch.bool).triu(1) if options else None
        y, probs = module(case.q.double(), case.q.double(), case.q.double(), attn_mask=causal,
                          average_attn_weights=False)
    case.expect(y, probs[..., :13])


@pytest.mark.parametrize("options", [0, CAUSAL | KV_LEN, CROSS | WINDOW_LEFT | BOTTOM_RIGHT | KV_START,
                                     CAUSAL | ALIBI | SOFTCAP, ROPE | SOFTCAP | KV_LEN | KV_START])
@pytest.mark.parametrize("level", [SCALED, CAPPED, MASKED])
def test_scores(library, options, level):
    """Of keys that are not valid they are -inf, and so they are behind masks of what a row does not see."""
    case = Case(library, h=4, h_kv=2, d_model=10, dk=6, seq=7, seq_kv=9 if options & CROSS else 7, window_left=2,
                kv_len=[0, 5] if options & KV_LEN else None, kv_start=[1, 3] if options & KV_START else None,
                rope=HALF if options & ROPE else 0, rope_dims=4 * bool(options & ROPE), softcap=2, options=options)
    scores, bounds = case.scores(level)
    q, k = queries_and_keys(case)
    want = q @ k.repeat_interleave(2, dim=1).transpose(-1, -2) * case.scale
    hidden = case.hidden()
    if level >= CAPPED and options & SOFTCAP:
        want = 2 * torch.tanh(want / 2)
    if level == MASKED and options & ALIBI:
        slopes = torch.tensor(paper_slopes(4), dtype=torch.double)[:, None, None]
        want = want + slopes * (torch.arange(case.seq_kv) - case.places())
    if level < MASKED:
        case.options &= KV_LEN | KV_START
        hidden = case.hidden()
    want = want.masked_fill(hidden, -torch.inf)
    assert (scores.isinf() == hidden).all()
    assert ((scores - want).abs()[scores.isfinite()] <= 1e-12).all() and (bounds[scores.isfinite()] > 0).all()


@pytest.mark.parametrize("kind", [MASK_ADD, MASK_BOOL])
def test_scores_behind_a_mask(library, kind):
    torch.manual_seed(1)
    allowed = torch.rand(7, 7) < 0.7
    added = torch.randn(7, 7).masked_fill(~allowed, -torch.inf)
    case = Case(library, h=2, d_model=10, dk=6, seq=7, options=kind | Q_LEN, q_len=[7, 4],
                mask=added if kind == MASK_ADD else allowed.to(torch.uint8))
    plain, masked = case.scores(SCALED)[0], case.scores(MASKED)[0]
    want = plain + added if kind == MASK_ADD else plain.masked_fill(~allowed, -torch.inf)
    assert masked[1, :, 4:].isnan().all() and not plain[0].isnan().any()
    assert torch.equal(masked[0].isinf(), ~allowed.expand(2, 7, 7))
    assert ((masked - want).abs()[masked.isfinite()] <= 1e-12).all()
