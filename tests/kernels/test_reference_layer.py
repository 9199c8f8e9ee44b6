"""The reference of what is around attention against PyTorch in double: norms, residuals, feed-forwards."""
import ctypes
import math

import pytest

from reference_lib import (BRANCH_NORM, FFN, FFN_GATE, FFN_NORM, GELU, GELU_TANH, LAYER, NO_ATTENTION, OUT_ACT,
                           PARALLEL, POST_NORM, PRE_NORM, Q_LEN, QUICK_GELU, RELU, RELU2, RESIDUAL, RMS, SILU, TANH,
                           Args, Results, Weights, build, shape_of)

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
functional = torch.nn.functional

H, DK, WIDTH, BETWEEN, ROWS, BATCH, EPS = 2, 5, 7, 11, 4, 2, 1e-3
ACTIVATIONS = {
    GELU: functional.gelu, GELU_TANH: lambda x: functional.gelu(x, approximate="tanh"), RELU: functional.relu,
    QUICK_GELU: lambda x: x * torch.sigmoid(1.702 * x), RELU2: lambda x: functional.relu(x) ** 2,
    SILU: functional.silu, TANH: torch.tanh}
SHAPES = {"wq": (WIDTH, H * DK), "wk": (WIDTH, H * DK), "wv": (WIDTH, H * DK), "wo": (H * DK, WIDTH),
          "bq": (H * DK,), "bk": (H * DK,), "bv": (H * DK,), "bo": (WIDTH,),
          "norm1": (WIDTH,), "norm1_bias": (WIDTH,), "norm2": (WIDTH,), "norm2_bias": (WIDTH,),
          "norm1b": (WIDTH,), "norm2b": (WIDTH,), "gain1": (WIDTH,), "gain2": (WIDTH,),
          "w1": (WIDTH, BETWEEN), "b1": (BETWEEN,), "w3": (WIDTH, BETWEEN), "b3": (BETWEEN,),
          "w2": (BETWEEN, WIDTH), "b2": (WIDTH,)}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build(tmp_path_factory)


class Layer:
    """A layer with weights of its own. Without `given`, pointers that may be null are."""

    def __init__(self, options, act=GELU, kind=LAYER, given=True, flipped=False, ones=False):
        torch.manual_seed(3)
        self.options, self.act, self.kind, self.flipped = options, act, kind, flipped
        alone = bool(options & NO_ATTENTION)
        heads = dict(h=1, dk=WIDTH, dv=WIDTH, project="o") if alone else dict(h=H, dk=DK, dv=DK)
        self.shape = shape_of(options, **heads, d_model=WIDTH, seq=ROWS, seq_kv=ROWS, batch=BATCH, norm_kind=kind,
                              layer_eps=EPS, ffn=BETWEEN * bool(options & FFN), ffn_act=act, out_act=act)
        shapes = SHAPES | ({"wo": (WIDTH, WIDTH)} if alone else {})
        self.w = {name: torch.randn(shape) / (shape[0] ** 0.5 if name.startswith("w") else 1)
                  for name, shape in shapes.items() if given or name.startswith("w")}
        if options & OUT_ACT:
            self.w.pop("gain1", None)
        if ones:
            self.w |= {name: torch.ones(w.shape) for name, w in self.w.items()}

    def norm(self, number, x):
        gain, bias = (self.w.get(f"norm{number}{end}") for end in ("", "_bias"))
        gain, bias = (None if w is None else w.double() for w in (gain, bias))
        if self.kind == RMS:
            return functional.rms_norm(x, (WIDTH,), gain, EPS)
        return functional.layer_norm(x, (WIDTH,), gain, bias, EPS)

    def branch(self, number, x):
        return self.norm(f"{number}b", x) if self.options & BRANCH_NORM else x

    def gain(self, number):
        return self.w.get(f"gain{number}", torch.ones(WIDTH)).double()

    def linear(self, letter, x):
        product = x @ self.w[f"w{letter}"].double()
        return product + self.w[f"b{letter}"].double() if f"b{letter}" in self.w else product

    def attention(self, x):
        if self.options & NO_ATTENTION:
            y = self.linear("o", x)
            return ACTIVATIONS[self.act](y) if self.options & OUT_ACT else y
        q, k, v = (self.linear(letter, x).unflatten(-1, (H, DK)).transpose(1, 2) for letter in "qkv")
        return self.linear("o", functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def feed_forward(self, y, normed):
        u = normed if self.options & PARALLEL else self.norm(2, y) if self.options & (PRE_NORM | FFN_NORM) else y
        between = ACTIVATIONS[self.act](self.linear("1", u))
        if self.options & FFN_GATE:
            between = between * self.linear("3", u)
        z = y + self.gain(2) * self.branch(2, self.linear("2", between))
        return self.norm(2, z) if self.options & POST_NORM else z

    def right(self, x):
        x = x.double()
        normed = self.norm(1, x) if self.options & PRE_NORM else x
        y = self.attention(normed)
        y = self.branch(1, y)
        y = self.gain(1) * y + x if self.options & RESIDUAL else y
        y = self.norm(1, y) if self.options & POST_NORM else y
        return self.feed_forward(y, normed) if self.options & FFN else y

    def found(self, library, x, asked=(ROWS, ROWS)):
        """y of the reference; of bounds.c, and its bounds; of rounded.c, and by how much that may be off."""
        stored = {name: (w.T if self.flipped and w.dim() == 2 else w).contiguous() for name, w in self.w.items()}
        weights = Weights(layout=int(self.flipped), **{name: w.data_ptr() for name, w in stored.items()})
        lengths = torch.tensor(asked, dtype=torch.int32)
        args = Args(q=x.data_ptr(), q_len=lengths.data_ptr())
        read = [ctypes.byref(struct) for struct in (self.shape, weights, args)]
        exact, beside, rounded, off = torch.full((4, BATCH, ROWS, WIDTH), math.nan, dtype=torch.double)
        bounds, score = torch.full((BATCH, ROWS), math.nan, dtype=torch.double), ctypes.c_double()
        at = {name: ctypes.c_void_p(to.data_ptr()) for name, to in
              [("exact", exact), ("beside", beside), ("bounds", bounds)]}
        assert library.mhagen_reference(*read, at["exact"], None) == 0
        assert library.mhagen_reference_and_bounds(*read, at["beside"], None, ctypes.byref(score), at["bounds"],
                                                   None) == 0
        results = Results(y=rounded.data_ptr(), y_off=off.data_ptr())
        assert library.mhagen_reference_rounded(*read, ctypes.byref(results)) == 0
        return exact, beside, bounds, rounded, off


def expect(library, layer, x):
    right = layer.right(x)
    exact, beside, bounds, rounded, off = layer.found(library, x)
    most = right.abs().max()
    assert torch.equal(exact, beside) and (exact - right).abs().max() <= 1e-12 * most
    # Sizes grow by what cancels in each layer norm. Behind four of them a bound is true, and says nothing.
    says = not (layer.kind == LAYER and layer.options & BRANCH_NORM and layer.options & FFN)
    assert (bounds > 0).all() and (not says or (bounds / right.norm(dim=-1)).median() <= 0.5)
    # In float32 no operand is rounded: what rounded.c computes is exact too, and may be off by float32's errors.
    assert (rounded - right).abs().max() <= 1e-12 * most and (off > 0).all()
    assert not says or (off <= 5e-2 * most).all()


SANDWICH = PRE_NORM | BRANCH_NORM
NORMS = [(0, LAYER), (PRE_NORM, LAYER), (POST_NORM, LAYER), (PRE_NORM, RMS), (POST_NORM, RMS), (SANDWICH, RMS),
         (SANDWICH, LAYER)]


@pytest.mark.parametrize("norm, kind", NORMS)
@pytest.mark.parametrize("residual", [0, RESIDUAL])
def test_norms_and_residual(library, norm, kind, residual):
    expect(library, Layer(norm | residual, kind=kind), torch.randn(BATCH, ROWS, WIDTH))


@pytest.mark.parametrize("norm, kind", [*NORMS, (FFN_NORM, LAYER), (FFN_NORM, RMS)])
@pytest.mark.parametrize("gate", [0, FFN_GATE])
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_feed_forward(library, norm, kind, gate, act):
    x = torch.randn(BATCH, ROWS, WIDTH)
    for residual, given, flipped in (0, True, False), (RESIDUAL, True, True), (RESIDUAL, False, False):
        expect(library, Layer(FFN | norm | gate | residual, act, kind, given, flipped), x)
        if norm & PRE_NORM:
            expect(library, Layer(FFN | norm | gate | residual | PARALLEL, act, kind, given, flipped), x)


@pytest.mark.parametrize("norm, kind", NORMS)
@pytest.mark.parametrize("act", [None, *ACTIVATIONS])
def test_a_product_alone(library, norm, kind, act):
    x, options = torch.randn(BATCH, ROWS, WIDTH), NO_ATTENTION | norm | (0 if act is None else OUT_ACT)
    for more, given, flipped in (0, True, False), (RESIDUAL, True, True), (RESIDUAL | FFN, False, False):
        expect(library, Layer(options | more, act or GELU, kind, given, flipped), x)


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("exact_factor", [None, 1, 3])
def test_errors_reach_the_result(library, act, exact_factor):
    """Weights that are off by a few units make results that are off by no more than the bounds say; also where one
    factor between the products has no error, and the sums of the other one cancel: normed rows sum to zero."""
    layer, x = Layer(FFN | FFN_GATE | PRE_NORM | RESIDUAL, act), torch.randn(BATCH, ROWS, WIDTH)
    if exact_factor:
        layer.w |= {f"w{exact_factor}": torch.zeros(WIDTH, BETWEEN), f"b{exact_factor}": torch.ones(BETWEEN),
                    f"w{4 - exact_factor}": 1e5 + layer.w["w1"], "norm2": torch.ones(WIDTH),
                    "norm2_bias": torch.zeros(WIDTH), "wq": torch.zeros(WIDTH, H * DK), "bq": torch.zeros(H * DK)}
    exact, _, bounds, _, off = layer.found(library, x)
    units = {name: torch.randn(w.shape).sign() * (name != f"b{exact_factor}") for name, w in layer.w.items()}
    layer.w = {name: w * (1 + 2**-22 * units[name]) for name, w in layer.w.items()}
    other = layer.right(x) - exact
    assert (other.norm(dim=-1) <= bounds).all() and (other.abs() <= off).all() and (other != 0).any()


def test_rows_that_nobody_asks_for(library):
    x = torch.randn(BATCH, ROWS, WIDTH)
    layer = Layer(FFN | FFN_GATE | POST_NORM | Q_LEN, SILU)
    exact, *_ = layer.found(library, x, asked=(1, 3))
    assert (exact[0, 1:].isnan() & exact[1, 3:].isnan().any()).all()
    right = layer.right(x)
    assert (exact[0, :1] - right[0, :1]).abs().max() <= 1e-12 and (exact[1, :3] - right[1, :3]).abs().max() <= 1e-12


@pytest.mark.parametrize("act", ACTIVATIONS)
@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan, 1e25, -1e25, -90.0])
def test_ends_of_activations(library, act, number):
    """Limits where x is infinite, and squares beyond float32: the number between the products is b1, all else zero."""
    layer = Layer(FFN, act, ones=True)
    for name, w in layer.w.items():
        w.mul_(name in ("w2", "gain2"))
    layer.w["b1"][3] = number
    exact, beside, _, rounded, off = layer.found(library, torch.randn(BATCH, ROWS, WIDTH))
    right = 0.0 if number < 0 else math.inf if act == RELU2 and number > 1e20 else number
    right = math.tanh(number) if act == TANH else right
    for y in exact, beside, rounded:
        assert y.isnan().all() if math.isnan(number) else torch.allclose(y, torch.full_like(y, right), rtol=1e-6)
    assert (off <= 1e-5 * max(1, abs(number))).all() or not math.isfinite(right)


def test_a_row_stays_alone(library):
    """NaN and Inf of a query reach no other row of the feed-forward, here with attention that sees nothing."""
    layer, x = Layer(FFN | FFN_GATE | PRE_NORM | RESIDUAL), torch.randn(BATCH, ROWS, WIDTH)
    for name in "wv", "bv":
        layer.w[name].zero_()
    before, *_ = layer.found(library, x)
    x[1, 2, 3] = 1e30  # its square is not in float32: norms of the row are their biases
    after, *_ = layer.found(library, x)
    others = torch.ones(BATCH, ROWS, dtype=torch.bool)
    others[1, 2] = False
    assert torch.equal(before[others], after[others]) and not torch.equal(before, after)
