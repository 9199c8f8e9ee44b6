"""mhagen.torch: models of PyTorch and transformers with the attention of kernels, against their own."""
import copy
import sys
import warnings

import pytest

from python_lib import inference, package_environment  # noqa: F401
from tools import ROOT, installed, schema

if not installed("torch", "numpy"):
    pytest.skip("PyTorch is not installed", allow_module_level=True)

import torch
from torch import nn

sys.path.insert(0, str(ROOT / "python"))
import mhagen.torch as mt
from mhagen import _operators, _projections

pytestmark = pytest.mark.slow
WIDTH, HEADS, ROWS = 24, 4, 9


def layer(**options):
    return nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **options}).eval()


def replaced(module, *example, **keys):
    return mt.replace(module, example or None, isa="scalar", **keys)


def same(right, found, most=2e-6):
    assert found.shape == right.shape and found.dtype == right.dtype
    assert (found - right).abs().max() <= most * max(1, right.abs().max())


PADDING = torch.zeros(2, ROWS, dtype=torch.bool)
PADDING[1, 6:] = True
FUTURE = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("masks", [
    {}, {"key_padding_mask": PADDING}, {"attn_mask": FUTURE, "is_causal": True, "need_weights": False},
    {"attn_mask": FUTURE, "is_causal": True, "key_padding_mask": PADDING},
    {"attn_mask": torch.rand(2 * HEADS, ROWS, ROWS) < 0.2, "average_attn_weights": False},
    {"attn_mask": torch.randn(ROWS, ROWS), "key_padding_mask": PADDING, "need_weights": False}],
    ids=lambda masks: "+".join(masks) or "none")
def test_masks(masks):
    """Every mask, hint and form of the weights, of a layer with its batch first."""
    own, x = layer(), torch.randn(2, ROWS, WIDTH)
    new = replaced(own)
    for right, found in zip(own(x, x, x, **masks), new(x, x, x, **masks)):
        assert (right is None) == (found is None)
        if right is not None:
            same(right, found)


def test_forms():
    """Rows first, no batch, other widths of keys and values, no biases, cross-attention; and what has no kernel."""
    x, z = torch.randn(ROWS, 2, WIDTH), torch.randn(5, 2, WIDTH)
    own = layer(batch_first=False, bias=False)
    new = replaced(own)
    for inputs in ((x, x, x), (x, z, z), (x[:, 0], z[:, 0], z[:, 0])):
        same(own(*inputs)[0], new(*inputs)[0])
    own, x = layer(), torch.randn(2, ROWS, WIDTH)
    same(own(x, x, x, is_causal=True)[0], replaced(own)(x, x, x, is_causal=True)[0])  # a hint that it has no use for
    own = layer(kdim=7, vdim=11)
    q, k, v = torch.randn(2, 3, WIDTH), torch.randn(2, 5, 7), torch.randn(2, 5, 11)
    same(own(q, k, v)[0], replaced(own)(q, k, v)[0])
    for options in {"add_bias_kv": True}, {"add_zero_attn": True}:
        with pytest.raises(ValueError, match=f"mhagen: MultiheadAttention: .*it: {list(options)[0]}: "):
            replaced(layer(**options))


@pytest.mark.parametrize("dtype, most", [(torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_types(dtype, most):
    own, x = layer().to(dtype), torch.randn(2, ROWS, WIDTH, dtype=dtype)
    same(own(x, x, x)[0], replaced(own)(x, x, x)[0], most)
    right = layer()
    for name in torch.bfloat16, "bfloat16", "bf16":
        new = replaced(right, dtype=name)
        assert new._settings.keys == "isa=scalar dtype=bf16"
        assert new._settings.attention_keys == "attend_dtype=bf16 isa=scalar"
    same(right(x.float(), x.float(), x.float())[0], new(x.float(), x.float(), x.float())[0], 3e-2)


def test_encoder():
    """The layers of an encoder do not go round the module, as they do in eval: the operator is called. Parameters and
    their names stay."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), 2).eval()
    names, x = list(encoder.state_dict()), torch.randn(2, ROWS, WIDTH)
    right, plain = encoder(x, src_key_padding_mask=PADDING), encoder(x)
    assert mt.replace(encoder, x, isa="scalar") is encoder and list(encoder.state_dict()) == names
    with torch.profiler.profile() as profile:
        found = encoder(x, src_key_padding_mask=PADDING)
    assert sum(event.count for event in profile.key_averages() if event.key == "mhagen::layer") == 2
    same(right, found)  # with zeros in padded rows, for the encoder has nested tensors
    same(plain, encoder(x))
    assert mt.report(encoder) == "\n".join(
        f"layers.{i}.self_attn: kernels for ((2, 9, 24),)" for i in range(2))


ALONE = torch.zeros(2, ROWS, dtype=torch.bool)
ALONE[0, 5:] = ALONE[1] = True  # the second entry has no key


@pytest.mark.parametrize("options", [{}, {"batch_first": False}, {"kdim": 7}], ids=lambda options: str([*options]))
@pytest.mark.parametrize("mask", ["key_padding_mask", "attn_mask"])
def test_rows_without_keys(options, mask):
    """NaN, or the output bias: what the module has in eval mode."""
    own = layer(**options)
    nn.init.normal_(own.out_proj.bias)
    new, x = replaced(own), torch.randn(2, ROWS, WIDTH)
    x = x if own.batch_first else x.transpose(0, 1)
    masks, key = {mask: ALONE if mask == "key_padding_mask" else torch.ones(ROWS, ROWS).tril(-1) < 1}, x[..., :own.kdim]
    for need_weights in False, True:
        right, found = (each(x, key if options.get("kdim") else x, x, need_weights=need_weights, **masks)[0]
                        for each in (own, new))
        assert right.isnan().any() or not need_weights
        assert torch.allclose(right, found, 1e-5, 2e-6, equal_nan=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
@pytest.mark.parametrize("nested", [True, False])
def test_padded_rows_of_encoders(nested):
    """Zeros behind the last layer where PyTorch has nested tensors, before the encoder's own norm."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True), 2,
                                    nn.LayerNorm(WIDTH), enable_nested_tensor=nested).eval()
    nn.init.normal_(encoder.norm.bias)
    new, x = mt.replace(copy.deepcopy(encoder), isa="scalar"), torch.randn(2, ROWS, WIDTH)
    for masks in ({"src_key_padding_mask": PADDING}, {"src_key_padding_mask": PADDING.flip(1)},
                  {"src_key_padding_mask": ALONE if nested else PADDING},
                  {"src_key_padding_mask": PADDING, "mask": FUTURE}, {}):
        right = encoder(x, **masks)
        assert torch.allclose(right, new(x, **masks), 1e-5, 4e-6, equal_nan=True), masks


def test_threads():
    """As many as PyTorch has; the bits are those of one thread, and of one entry of a batch."""
    own, x = nn.MultiheadAttention(64, 4, batch_first=True).eval(), torch.randn(1, 130, 64)
    new, before = replaced(own), torch.get_num_threads()
    right = new(x, x, x)[0]
    q, k = torch.randn(3, 1, 1, 16), torch.randn(3, 1, 4096, 16)  # PyTorch shares the keys among threads
    step = torch.ops.mhagen.sdpa(q[:1], k[:1], k[:1], None, None, False, None, None, "isa=scalar")
    try:
        torch.set_num_threads(3)
        assert right.equal(new(x, x, x)[0])
        for entries in 1, 3:
            found = torch.ops.mhagen.sdpa(q[:entries], k[:entries], k[:entries], None, None, False, None, None,
                                          "isa=scalar")
            assert step.equal(found[:1])
    finally:
        torch.set_num_threads(before)


def test_weights_that_change():
    own = layer()
    new, x = replaced(own), torch.randn(1, 3, WIDTH)
    before = new(x, x, x)[0]
    new.in_proj_weight.mul_(1.5)
    same(own(x, x, x)[0], new(x, x, x)[0])
    assert (new(x, x, x)[0] - before).abs().max() > 1e-3
    count = len(_operators._packed)
    new.load_state_dict({name: torch.randn_like(tensor) for name, tensor in new.state_dict().items()})
    same(own(x, x, x)[0], new(x, x, x)[0], 1e-5)
    del own, new
    other = replaced(layer())
    other(x, x, x)
    assert len(_operators._packed) <= count  # what nobody has is not kept


def test_weights_that_share_memory():
    own, turned, x = layer(bias=False), layer(bias=False), torch.randn(1, 3, WIDTH)
    turned.in_proj_weight, turned.out_proj.weight = own.in_proj_weight, nn.Parameter(own.out_proj.weight.t())
    for each in own, turned:
        same(each(x, x, x)[0], replaced(each)(x, x, x)[0])


def test_compile_and_export(tmp_path):
    """Both keep the operator; an exported program takes its weights with it."""
    own, x = layer(), torch.randn(2, ROWS, WIDTH)
    right, new = own(x, x, x)[0], replaced(own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(new, fullgraph=True, backend="aot_eager", dynamic=True)
        same(right, compiled(x, x, x)[0])
        same(own(x[:, :4], x[:, :4], x[:, :4])[0], compiled(x[:, :4], x[:, :4], x[:, :4])[0])
        program = torch.export.export(new, (x, x, x))
        assert "mhagen.layer" in program.graph_module.code
        torch.export.save(program, tmp_path / "layer.pt2")
        same(right, torch.export.load(tmp_path / "layer.pt2").module()(x, x, x)[0])
    q, k = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6)
    mask, sink = torch.rand(1, 1, 5, 7) < 0.7, torch.randn(4)
    torch.library.opcheck(torch.ops.mhagen.sdpa, (q, k, k, mask, sink, False, 0.3, 5.0, "isa=scalar"),
                          test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(torch.ops.mhagen.layer, (x, None, None, None, [
        new.in_proj_weight, None, None, None, new.in_proj_bias, None, None, None, new.out_proj.weight,
        new.out_proj.bias], "isa=scalar", HEADS, WIDTH // HEADS, 0.3, True, True),
        test_utils=("test_schema", "test_faketensor"))


def test_left_to_pytorch():
    """Gradients, other devices, types and shapes: PyTorch's result, and the reason once."""
    own, x = layer(), torch.randn(2, ROWS, WIDTH)
    new = replaced(own, x, x, x, others="torch")
    with torch.enable_grad(), pytest.warns(UserWarning, match="gradients are wanted: call it under torch.no_grad"):
        y = new(x, x, x)[0]
        y.sum().backward()
    assert own.in_proj_weight.grad.abs().max() > 0
    bias = torch.zeros(ROWS, ROWS, requires_grad=True)  # of positions, which may be the only thing that is learned
    with torch.enable_grad(), pytest.warns(UserWarning, match="gradients are wanted"):
        for attend in (lambda x: replaced(layer().requires_grad_(False))(x, x, x, attn_mask=bias)[0],
                       lambda x: mt.scaled_dot_product_attention(*3 * [x[None]], bias)):
            bias.grad = None
            attend(x).square().sum().backward()
            assert bias.grad is not None and bias.grad.abs().max() > 0
    same(own(x, x, x, attn_mask=bias)[0], replaced(own)(x, x, x, attn_mask=bias)[0])
    new._settings.left.clear()
    with pytest.warns(UserWarning, match=r"shape \(\(1, 3, 24\),\) was not seen, and others = torch"):
        same(own(*3 * [x[:1, :3]])[0], new(*3 * [x[:1, :3]])[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new(x, x, x)
        new(*3 * [x[:1, :4]])  # told already
    new._settings.left.clear()
    with torch.autocast("cpu"), pytest.warns(UserWarning, match="autocast is on"):
        assert new(x, x, x)[0].dtype == torch.bfloat16
    dropping = replaced(layer(dropout=0.5)).train()
    with pytest.warns(UserWarning, match="it is in training"):
        assert (dropping(x, x, x)[0] != dropping(x, x, x)[0]).any()
    with pytest.raises(ValueError, match="the model is in training, .* call eval"):
        mt.replace(layer().train())
    for key, value in {"seq": 8, "io_dtype": "bf16", "causal": True}.items():  # of memory that tensors do not have
        with pytest.raises(ValueError, match=f"mhagen: {key} = {value}: is the model's own: keys of replace say how"):
            mt.replace(layer(), **{key: value})
    with pytest.raises(ValueError, match="others = eager: must be generate or torch"):
        mt.replace(layer(), others="eager")
    with pytest.raises(ValueError, match="Linear: has no nn.MultiheadAttention"):
        mt.replace(nn.Linear(2, 2).eval())
    for example, hint in ((None, "With an example other modules"), (torch.ones(2), "A call of .*may be one of mhagen")):
        with pytest.raises(ValueError, match=f"can replace: none. {hint}"):
            mt.replace(nn.Linear(2, 2).eval(), example)
    with pytest.raises(ValueError, match="mhagen: config: d_modle = 3: unknown key"):
        replaced(layer(), x, x, x, d_modle=3)


def test_own_calls():
    """Attention that a module calls itself stays, which the example shows."""
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = layer()

        def forward(self, x):
            y = self.attention(x, x, x)[0]
            return nn.functional.scaled_dot_product_attention(y, y, y)
    with pytest.warns(UserWarning, match=f"mhagen: {__file__}:.*: it calls .* may call mhagen.torch.scaled_dot_produ"):
        model = mt.replace(Own().eval(), torch.randn(1, ROWS, WIDTH), isa="scalar")
    assert mt.report(model).count("\n") == 1


def test_many_shapes():
    """Not a kernel for each length of a cache that grows."""
    settings = mt.Settings()
    for rows in range(1, mt.MOST_SHAPES + 1):
        assert settings.takes("layer", [torch.empty(1, rows, 2)], False)
    with pytest.warns(UserWarning, match=f"is one more than {mt.MOST_SHAPES}"):
        assert not settings.takes("layer", [torch.empty(1, 99, 2)], False)
    assert settings.takes("layer", [torch.empty(1, 3, 2)], False)


@pytest.mark.parametrize("options", [
    {}, {"key_padding_mask": PADDING}, {"attn_mask": FUTURE, "is_causal": True, "need_weights": False}],
    ids=lambda options: "+".join(options) or "none")
def test_lengths(options, monkeypatch):
    """Kernels of all lengths are made with the example, and take fewer rows: no call waits for another one."""
    own, x = layer(batch_first="attn_mask" not in options), torch.randn(2, ROWS, WIDTH)
    rows_last = x if own.batch_first else x.transpose(0, 1)
    new = mt.replace(own, lengths=(12, 6, 20), isa="scalar")
    mt.learn(new, {"query": rows_last, "key": rows_last, "value": rows_last, **options}, new._settings)
    assert mt.report(new) == "MultiheadAttention: kernels for ((2, 12, 24),), ((2, 20, 24),), ((2, 6, 24),)"
    monkeypatch.setattr(_operators._build, "log", None)  # which a compile needs
    x = torch.randn(2, 20, WIDTH)
    for rows in 1, 5, 6, 7, 12, 13, 20:
        part = x[:, :rows] if own.batch_first else x[:, :rows].transpose(0, 1)
        masks = {"key_padding_mask": torch.arange(rows) >= torch.tensor([[rows], [max(1, rows - 2)]]),
                 "attn_mask": torch.ones(rows, rows).triu(1) > 0}
        now = {name: masks.get(name, value) for name, value in options.items()}
        for right, found in zip(own(part, part, part, **now), new(part, part, part, **now)):
            if right is not None:
                same(right, found)
    assert len(new._settings.shapes[""]) == 3


def test_lengths_of_attention(monkeypatch):
    """Cross-attention has kernels of all pairs, and keys and values that lie with their heads outside, too; more rows
    than the longest one follow `others`."""
    own = layer(kdim=7, vdim=7)
    new = mt.replace(own, lengths=(4, 8), isa="scalar", others="torch")
    x, z = torch.randn(1, 11, WIDTH), torch.randn(1, 11, 7)
    mt.learn(new, (x[:, :2], z[:, :7], z[:, :7]), new._settings)
    keys = mt.Settings({"isa": "scalar"}, lengths=(8, 16)).attention_keys
    for turned in False, True:
        q, k = (torch.randn(2, 11, 2, 4).transpose(1, 2) if turned else torch.randn(2, 2, 11, 4) for _ in range(2))
        for rows, columns in (5, 9), (8, 8):
            q_now, k_now = q[:, :, :rows], k[:, :, :columns]
            right = nn.functional.scaled_dot_product_attention(q_now, k_now, k_now, is_causal=turned)
            found = torch.ops.mhagen.sdpa(q_now, k_now, k_now, None, None, turned, None, None, keys)
            same(right, found.transpose(1, 2))
    monkeypatch.setattr(_operators._build, "log", None)
    for rows, columns in (1, 1), (4, 8), (5, 3), (8, 8):
        same(own(x[:, :rows], z[:, :columns], z[:, :columns])[0], new(x[:, :rows], z[:, :columns], z[:, :columns])[0])
    with pytest.warns(UserWarning, match="others = torch"):
        new(x[:, :8], z[:, :9], z[:, :9])
    assert new._settings.left == {"": "shape ((1, 8, 24), (1, 9, 7), (1, 9, 7)) was not seen, and others = torch"}
    with pytest.raises(ValueError, match=r"lengths = \(8, 0\): must be integers from 1 to 65536"):
        mt.replace(layer(), lengths=(8, 0))


def test_operators_check_shapes():
    """A kernel reads as many bytes as its shape has, so tensors must have them."""
    q, k = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6)

    def sdpa(q, k, v, mask=None, sink=None):
        torch.ops.mhagen.sdpa(q, k, v, mask, sink, False, None, None, "isa=scalar")
    for call, rule in [(lambda: sdpa(q, k[:1], k), "k: shape (1, 2, 7, 6): must be (2, 2, 7, 6)"),
                       (lambda: sdpa(q, k, k[:, :, :3]), "k: shape (2, 2, 7, 6): must be (2, 2, 3, 6)"),
                       (lambda: sdpa(q, k, k, torch.ones(1, 1, 5, 6) > 0), "mask: shape (1, 1, 5, 6): must be"),
                       (lambda: sdpa(q, k, k, torch.ones(1, 1, 5, 7).int()), "mask: torch.int32: must be bool, or flo"),
                       (lambda: replaced(layer())(*3 * [torch.ones(2, ROWS, WIDTH)], PADDING.long()),
                        "key_padding_mask: torch.int64: must be bool, or floats that are added to scores"),
                       (lambda: replaced(layer())(*3 * [torch.ones(2, ROWS, WIDTH)], PADDING[:1]),
                        "key_padding_mask: shape (1, 9): must be (2, 9)"),  # which would be that of both entries
                       (lambda: replaced(layer())(*3 * [torch.ones(2, ROWS, WIDTH)], attn_mask=FUTURE[:1]),
                        "attn_mask: shape (1, 9): must be (9, 9) or (8, 9, 9)"),
                       (lambda: sdpa(q, k, k, None, torch.ones(3)), "sink: shape (3,): must be (4,)")]:
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value).startswith("mhagen: " + rule)


def test_scaled_dot_product_attention():
    """Tensors that lie with rows or with heads outside, views, shared heads, masks that are repeated."""
    for turned in False, True:
        q, k, v = ((torch.randn(2, rows, heads, width).transpose(1, 2) if turned
                    else torch.randn(2, heads, rows, width))
                   for heads, rows, width in ((4, 5, 6), (2, 7, 6), (2, 7, 3)))
        for mask in None, (torch.rand(5, 7) < 0.6) | (torch.arange(7) == 2), torch.randn(2, 1, 1, 7).expand(2, 4, 5, 7):
            right = nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=0.4, enable_gqa=True)
            same(right, mt.scaled_dot_product_attention(q, k, v, mask, scale=0.4, enable_gqa=True))
    for scale in 0, -0.4, 1e-12, -1e-12, 1e10, float("nan"):  # PyTorch has any
        right = nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
        found = mt.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True)
        assert torch.allclose(right, found, 1e-5, 1e-6, equal_nan=True), scale
    assert _operators.SCALES == next((row["min"], row["max"]) for row in schema() if row["key"] == "scale")


def test_direct_steps(short_steps):
    """Calls without a model are told nothing of its cache."""
    q, k = torch.randn(1, 2, 1, 4), torch.randn(1, 2, 20, 4)
    mt.DIRECT.left.clear()
    mt.DIRECT.told.clear()
    with pytest.warns(UserWarning, match="left to PyTorch: few queries over keys whose number changes: keep") as told:
        for rows in range(6, 9):
            same(nn.functional.scaled_dot_product_attention(q, k[:, :, :rows].clone(), k[:, :, :rows].clone()),
                 mt.scaled_dot_product_attention(q, k[:, :, :rows].clone(), k[:, :, :rows].clone()))
    assert len(told) == 1 and "generate" not in str(told[0].message) and told[0].filename == __file__


# ---- transformers ----

SMALL = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
IDS = torch.arange(2 * ROWS).reshape(2, ROWS) + 1
SEEN = torch.ones(2, ROWS, dtype=torch.long)
SEEN[1, :3] = 0
MODELS = [  # padding, causal and shared heads, softcap and windows, sinks, biases of positions
    ("Bert", "Model", SMALL), ("Llama", "ForCausalLM", DECODER),
    ("Gemma2", "ForCausalLM", {**DECODER, "sliding_window": 4, "attn_implementation": "eager"}),
    ("GptOss", "ForCausalLM", {**DECODER, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1,
                               "attn_implementation": "eager"}),
    ("T5", "EncoderModel", {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4})]


needs_transformers = pytest.mark.skipif(not installed("transformers"), reason="transformers is not installed")


@needs_transformers
@pytest.mark.filterwarnings("ignore")
def test_formulas_of_models():
    """What PyTorch has no function for is left to the model's own: rows before a static cache that is not full."""
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2Config
    module = Gemma2Attention(Gemma2Config(**DECODER), 0).eval()
    module._mhagen = mt.Settings(others="torch"), "attention"
    q, k, v = torch.randn(1, 4, 5, 4), torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    found, _ = mt.attention_forward(module, q, k, v, None, scaling=0.7, softcap=3.0)
    same(torch.ops.mhagen.sdpa(q, k, v, None, None, True, 0.7, 3.0, "isa=scalar"), found)


@needs_transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family, kind, config", MODELS, ids=[family for family, *_ in MODELS])
def test_transformers(family, kind, config):
    """All of its attention, by rows that are not padding; a decoder writes the same words, and its short steps are
    PyTorch's."""
    import transformers
    model = getattr(transformers, family + kind)(getattr(transformers, f"{family}Config")(**config)).eval()
    example = {"input_ids": IDS, "attention_mask": SEEN}
    right = model(**example)[0]
    words = model.generate(IDS[:1], max_new_tokens=4, do_sample=False) if kind == "ForCausalLM" else None
    mt.replace(model, example, isa="scalar")
    assert model.config._attn_implementation == "mhagen" and len(mt.report(model).splitlines()) == 2
    assert "left to PyTorch" not in mt.report(model)
    same(right[SEEN > 0], model(**example)[0][SEEN > 0])
    if words is not None:
        steps = {"max_new_tokens": 4, "do_sample": False}
        assert model.generate(IDS[:1], cache_implementation="static", **steps).tolist() == words.tolist()
        assert model.generate(IDS[:1], **steps).tolist() == words.tolist()
        assert mt.report(model).count("left to PyTorch: a step over few keys") == 2


@pytest.fixture
def short_steps(monkeypatch):
    monkeypatch.setattr(mt, "FEW_NUMBERS", 0)


def decoder():
    import transformers
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**DECODER)).eval()


def operators(call, name="mhagen::sdpa"):
    """How often a call calls an operator."""
    with torch.profiler.profile() as profile:
        call()
    return sum(event.count for event in profile.key_averages() if event.key == name)


@needs_transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padded", [False, True])
def test_steps_of_a_growing_cache(short_steps, padded, monkeypatch):
    """One kernel serves all lengths; where memory ends there is another one."""
    from mhagen import _cache
    monkeypatch.setattr(_cache, "LEAST", 16)
    model = decoder()
    given = {"input_ids": IDS, "attention_mask": SEEN if padded else torch.ones_like(SEEN), "max_new_tokens": 12,
             "do_sample": False}
    words = model.generate(**given)
    mt.replace(model, isa="scalar")
    assert operators(lambda: model.generate(**given)) == 2  # the prompt
    advice = f"left to PyTorch: its cache grows by copies: give generate() {mt.cache_name()}="
    assert mt.report(model).count(advice) == 2
    found, growing = [], {mt.cache_name(): mt.growing_cache(model)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert operators(lambda: found.append(model.generate(**growing, **given))) == 24
    assert found[0].tolist() == words.tolist()
    assert "((2, 4, 1, 4), (2, 2, 16, 4), (4,)), ((2, 4, 1, 4), (2, 2, 32, 4), (4,))" in mt.report(model)


@needs_transformers
def test_warnings_of_generate():
    """One for all layers, at the line that called generate()."""
    model = mt.replace(decoder(), isa="scalar")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.generate(IDS[:1], max_new_tokens=3, do_sample=False)
    told = [warning for warning in told if "mhagen" in str(warning.message)]
    assert [warning.filename for warning in told] == [__file__]
    assert "0.self_attn: left to PyTorch: a step over few keys" in str(told[0].message)
    assert mt.report(model).count("left to PyTorch: a step over few keys") == 2


@needs_transformers
@pytest.mark.filterwarnings("ignore")
def test_steps_of_a_static_cache(short_steps):
    """They have kernels from the second step on, for the first one may be of a cache that grows by copies."""
    model = decoder()
    given = {"input_ids": IDS[:1], "max_new_tokens": 5, "do_sample": False, "cache_implementation": "static",
             "disable_compile": True}
    words = model.generate(**given)
    mt.replace(model, isa="scalar")
    found = []
    assert operators(lambda: found.append(model.generate(**given))) == 2 + 2 * 3  # the prompt, and three of four steps
    assert found[0].tolist() == words.tolist()


@needs_transformers
def test_growing_cache(monkeypatch):
    """Rows stay what they were, in memory for more; what others put in their place is taken."""
    from mhagen._cache import GrowingLayer
    cache, all_rows = mt.growing_cache(decoder()).layers[0], torch.randn(2, 3, 300, 4)
    assert type(cache) is GrowingLayer
    for first, stop in (0, 200), (200, 201), (201, 256), (256, 300):
        keys, values = cache.update(all_rows[:, :, first:stop], -all_rows[:, :, first:stop])
        assert keys.equal(all_rows[:, :, :stop]) and values.equal(-keys)
        assert _operators.rooms(keys, values) == (512 if stop > 256 else 256)
    cache.crop(-100)
    cache.reorder_cache(torch.tensor([1, 0]))
    keys, values = cache.update(all_rows[:, :, :1], all_rows[:, :, :1])
    assert keys.equal(torch.cat([all_rows[[1, 0], :, :200], all_rows[:, :, :1]], dim=2)) and keys.shape[2] == 201
    assert _operators.rooms(*(tensor.contiguous() for tensor in (keys, values))) == 201
    assert _operators.rooms(all_rows.transpose(1, 2), all_rows.transpose(1, 2)) == 3


# ---- projections of transformers' modules ----

TEXT = {"input_ids": IDS, "attention_mask": SEEN}
IMAGE = {"pixel_values": torch.randn(2, 3, 16, 16)}
SPEECH = {"input_values": torch.randn(1, 100)}
PICTURES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
            "image_size": 16, "patch_size": 8}
TRANSLATES = {"vocab_size": 40, "d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 4,
              "encoder_ffn_dim": 24, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 24,
              "max_position_embeddings": 64, "pad_token_id": 0}
LISTENS = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
           "conv_dim": (8, 8), "conv_stride": (2, 2), "conv_kernel": (3, 3), "num_feat_extract_layers": 2,
           "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
PROJECTS = {  # the family of a module: a model with two of it, its config, its inputs
    "Albert": ("AlbertModel", {**SMALL, "embedding_size": 8}, TEXT),
    "Bart": ("BartModel", TRANSLATES, TEXT), "Bert": ("BertModel", SMALL, TEXT),
    "CLIP": ("CLIPVisionModel", PICTURES, IMAGE), "Camembert": ("CamembertModel", SMALL, TEXT),
    "DeiT": ("DeiTModel", PICTURES, IMAGE), "Dinov2": ("Dinov2Model", PICTURES, IMAGE),
    "DistilBert": ("DistilBertModel", {"vocab_size": 40, "dim": 16, "n_heads": 4, "hidden_dim": 24, "n_layers": 2},
                   TEXT),
    "Electra": ("ElectraModel", {**SMALL, "embedding_size": 16}, TEXT), "Hubert": ("HubertModel", LISTENS, SPEECH),
    "M2M100": ("M2M100Model", TRANSLATES, TEXT), "MBart": ("MBartModel", TRANSLATES, TEXT),
    "Marian": ("MarianModel", {**TRANSLATES, "decoder_start_token_id": 0}, TEXT),
    "Roberta": ("RobertaModel", SMALL, TEXT),
    "Siglip": ("SiglipVisionModel", {**PICTURES, "vision_use_head": False}, IMAGE),
    "ViT": ("ViTModel", PICTURES, IMAGE), "Wav2Vec2": ("Wav2Vec2Model", LISTENS, SPEECH),
    "Whisper": ("WhisperModel", {**TRANSLATES, "num_mel_bins": 8, "max_source_positions": 10},
                {"input_features": torch.randn(2, 8, 20)}),
    "XLMRoberta": ("XLMRobertaModel", SMALL, TEXT)}


def projecting(family):
    """The model of a family, or its encoder, and an example."""
    import transformers
    kind, config, example = PROJECTS[family]
    model = getattr(transformers, kind)
    model = model(model.config_class(**config))
    model = model.get_encoder() if "d_model" in config else model
    for parameter in model.parameters():
        parameter.normal_(0, 0.3)  # with zeros for biases much would be right by chance
    return model.eval(), example


def test_families():
    """Each known module is tested below."""
    names = [name.removesuffix("Attention").removesuffix("Self") for name in _projections.FAMILIES]
    assert sorted(names) == sorted(PROJECTS) and len(set(names)) == len(names)


@needs_transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", PROJECTS)
def test_projections(family):
    """A kernel for each module, which gives the model's results by rows that are not padding."""
    model, example = projecting(family)
    right = model(**example)[0]
    mt.replace(model, example, isa="scalar")
    found = []
    assert operators(lambda: found.append(model(**example)[0]), "mhagen::layer") == 2
    assert operators(lambda: model(**example)) == 0
    shown = SEEN > 0 if "attention_mask" in example else slice(None)
    same(right[shown], found[0][shown], 1e-5)


@needs_transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family, kind, config", [MODELS[0], MODELS[1]], ids=["Bert", "Llama"])
def test_lengths_of_models(family, kind, config, monkeypatch):
    """With the masks of their padding."""
    import transformers
    model = getattr(transformers, family + kind)(getattr(transformers, f"{family}Config")(**config)).eval()
    own = copy.deepcopy(model)
    mt.replace(model, {"input_ids": IDS, "attention_mask": SEEN, "use_cache": False}, lengths=(8, 16), isa="scalar")
    assert "kernels for" in mt.report(model)
    monkeypatch.setattr(_operators._build, "log", None)
    for rows in 6, 8, 12:
        ids, seen = torch.arange(2 * rows).reshape(2, rows) + 1, torch.ones(2, rows, dtype=torch.long)
        seen[1, :2] = 0
        given = {"input_ids": ids, "attention_mask": seen, "use_cache": False}
        same(own(**given)[0][seen > 0], model(**given)[0][seen > 0], 1e-5)
    assert "left to PyTorch" not in mt.report(model)


@needs_transformers
@pytest.mark.filterwarnings("ignore")
def test_projections_of_decoders():
    """With a cache, and across, the model's own projections and a kernel for attention; without one their own."""
    import transformers
    model = transformers.BartModel(transformers.BartConfig(**TRANSLATES)).eval()
    for cached in False, True:
        example = {**TEXT, "decoder_input_ids": IDS[:, :5], "use_cache": cached}
        right = model(**example)[0]
        mt.replace(model, example, isa="scalar")
        same(right, model(**example)[0], 1e-5)
        assert operators(lambda: model(**example), "mhagen::layer") == 2 + (not cached)
        assert operators(lambda: model(**example)) == 1 + cached


@needs_transformers
def test_projections_that_are_not_plain():
    """Hooks, other modules in the place of nn.Linear, wrong results, training: the module's own forward."""
    model, example = projecting("Bert")
    right = model(**example)[0]
    mt.replace(model, example, isa="scalar")
    modules = [layer.attention for layer in model.encoder.layer]
    called = []
    hook = modules[0].self.query.register_forward_hook(lambda *_: called.append(1))
    assert operators(lambda: model(**example), "mhagen::layer") == 1 and called
    hook.remove()

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)
    plain = modules[1].output.dense
    doubled = modules[1].output.dense = Doubled(16, 16)
    doubled.weight, doubled.bias = nn.Parameter(plain.weight / 2), nn.Parameter(plain.bias / 2)
    assert operators(lambda: same(right[SEEN > 0], model(**example)[0][SEEN > 0], 1e-5), "mhagen::layer") == 1
    with pytest.warns(UserWarning, match="it is in training"):
        model.train()(**example)


@needs_transformers
def test_projections_that_differ(monkeypatch):
    """The first call of a shape is compared, so a module that has become another keeps its forward."""
    model, example = projecting("Bert")
    right = model(**example)[0]
    monkeypatch.setitem(_projections.FAMILIES, "BertAttention",
                        _projections.BERT._replace(q="self.key", k="self.query"))
    with pytest.warns(UserWarning, match=r"layer.0.attention: left to PyTorch: its result differs by [1-9].*e-0"):
        mt.replace(model, example, isa="scalar")
    assert operators(lambda: model(**example), "mhagen::layer") == 0
    same(right[SEEN > 0], model(**example)[0][SEEN > 0])
    assert mt.report(model).count("attention.self: kernels for ((2, 4, 9, 4)") == 2


@needs_transformers
@pytest.mark.filterwarnings("ignore")
def test_copies_and_compiled_projections():
    """A copy has weights of its own, and torch.compile keeps the operators."""
    model, example = projecting("ViT")
    mt.replace(model, example, isa="scalar")
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.mul_(1.1)
    assert (other(**example)[0] - model(**example)[0]).abs().max() > 1e-3
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(model(**example)[0], compiled(**example)[0])
    assert operators(lambda: compiled(**example), "mhagen::layer") == 2
