"""Each row of architectures.py: generated kernels against transformers' module with random weights, in float64."""
import ctypes
import inspect
import math
import operator
import warnings

import pytest

import architectures
import families
import proposed
from architectures import ROWS, Fields
from reference_lib import (BOTTOM_RIGHT, CACHE_APPEND, CACHE_FIXED, CROSS, SCALE, Args, Generated, Kernel, Weights,
                           aligned, build, drawn_isa)
from tools import ROOT, in_turn

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

BATCH, SEEN, WRITTEN = 2, 11, 7  # sequences, and the rows that encoders see and decoders write
NEAR = 5e-6  # of the largest result, against float32 of PyTorch, which has errors of that size itself
UNSEEN = CROSS | BOTTOM_RIGHT | SCALE  # options that alone change nothing where seq = seq_kv, or no y
STEPS = [8, 8] + 32 * [1]  # the rows of each run with a cache: a prompt in chunks, then a row at a time


@pytest.fixture(scope="module")
def transformers():
    found = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.set_default_dtype(torch.float64)  # some masks are of this type, whatever the model's is
    yield found
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return build(tmp_path_factory)


# ---- what the module does ----


def rounded(x):
    return x.float().to(x.dtype)


def random_weights(model, dtype):
    """Of a size that makes attention weights uneven; with biases, gains and sinks that have an effect. A file of the
    type has the same numbers."""
    for module in model.modules():
        for name, value in module.named_parameters(recurse=False):
            if value.dim() == 1 or "bias" in name:
                value += 0.3 * torch.randn_like(value)
            elif "Sinusoidal" in type(module).__name__:
                continue  # angles, which are no weights
            elif isinstance(module, torch.nn.Embedding):
                torch.nn.init.normal_(value)
            elif isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D":
                torch.nn.init.normal_(value, std=1.5 * module.weight.numel()**-0.25)
            value.copy_(value.to(dtype))


def inputs(model, row, rows, written):
    """Random ones, of the kind that the model takes, with padding where the row has a key for it."""
    config, name = model.config, model.main_input_name

    def images():
        part = getattr(config, "vision_config", None) or getattr(config, "encoder", None) or config
        size = part.image_size if isinstance(part.image_size, list) else [part.image_size] * 2
        return torch.randn(BATCH, getattr(part, "num_channels", 3), *size)

    x = {"input_ids": lambda: torch.randint(1, config.get_text_config().vocab_size, (BATCH, rows)),
         "pixel_values": images,
         "input_features": lambda: torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions),
         "input_values": lambda: torch.randn(BATCH, 4735 if row.kind == "moonshine" else 60),
         "inputs": lambda: torch.randn(BATCH, rows, config.d_model)}.get(name)
    of_kind = families.INPUTS.get(row.name, families.INPUTS.get(row.kind))
    given = of_kind(torch, config, BATCH) if of_kind else {name: x()}
    if row.kind in families.OF_TWO and not of_kind:
        given["pixel_values"] = images()
    asks = "decoder_input_ids" in inspect.signature(model.forward).parameters
    if config.is_encoder_decoder and asks and "decoder_input_ids" not in given:
        vocabulary = getattr(config, "decoder", config).vocab_size
        given["decoder_input_ids"] = torch.randint(1, vocabulary, (BATCH, written))
    if any(name.endswith("_mask") for name in given) or row.kind == "vision-encoder-decoder":
        return given
    if "kv_len" in row.keys:
        given["attention_mask"] = torch.arange(rows) < torch.tensor([[rows - 4], [rows]])
    if "kv_start" in row.keys:
        given["attention_mask"] = torch.arange(rows) >= torch.tensor([[4], [0]])
    return given


CACHES = ["cache", "past_key_values"]  # what transformers calls it from 5.24 on, and before
WITHOUT_CACHE = {"clip", "clip_text_model", "perceiver"} | families.WITHOUT_CACHE


def cache_of(row):
    """How a row's model keeps keys and values from run to run."""
    if row.kind in WITHOUT_CACHE:
        return None
    return "append" if "causal=true" in row.keys else "fixed" if "attention=cross" in row.keys else None


class Observed:
    """The attention of a row in a model that runs: how it is called, what its linear maps take, and y."""

    def __init__(self, transformers, row, dtype=torch.float32):
        torch.manual_seed(sum(map(ord, row.name)))
        self.config = architectures.config_of(transformers, row)
        if hasattr(self.config, "_experts_implementation"):
            self.config._experts_implementation = "eager"  # others have no float64
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            built_by = operator.attrgetter(families.BUILT_BY.get(
                row.name, families.BUILT_BY.get(row.kind, "AutoModel")))(transformers)
            make = getattr(built_by, "from_config", getattr(built_by, "_from_config", None))
            model = make(self.config, attn_implementation="eager").eval()
            if row.kind in families.SINGLE:
                model.float()
            random_weights(model, dtype)
            self.row = architectures.in_module(transformers, row)
            self.model = model  # version 4 has the modules of CLIP in another
            self.module = next(module for name, module in model.named_modules() if name.endswith(self.row.at))
            self.maps = [self.module.get_submodule(name.replace("[heads]", "")) for name in self.row.matrices.split()]
            self.calls, self.x, self.y = [], {of: [] for of in "qkv"[:len(self.maps) - 1]}, []
            self.watch()
            self.cache = cache_of(row)
            taken = inspect.signature(model.forward).parameters
            self.past = next((name for name in CACHES if name in taken), None)
            assert self.past or not self.cache, f"{row.name}: its model takes no cache by a name that is known"
            alone = self.cache and not self.config.is_encoder_decoder
            self.given = inputs(model, row, sum(STEPS) if alone else SEEN, sum(STEPS) if self.cache else WRITTEN)
            if self.cache:
                self.grow(model)
            else:
                model.get_submodule(proposed.RUNS.get(row.name, ""))(**self.given)

    def watch(self):
        signature = inspect.signature(self.module.forward)
        self.module.register_forward_pre_hook(
            lambda m, args, kwargs: self.calls.append(signature.bind(*args, **kwargs).arguments), with_kwargs=True)
        for of, linear in zip(self.x, self.maps):
            linear.register_forward_pre_hook(lambda m, args: (rounded(args[0]), *args[1:]))  # what a kernel can take
            linear.register_forward_pre_hook(lambda m, args, of=of: self.x[of].append(self.of_texts(args[0])))
        self.maps[-1].register_forward_hook(
            lambda m, args, y: self.y.append(self.of_texts(y[0] if isinstance(y, tuple) else y,
                                                           families.LAST_ROWS_FIRST)))

    def of_texts(self, x, rows_first=families.ROWS_FIRST):
        """Rows of each text of the batch, or of each image, which may have lines and columns."""
        x = x.flatten(1, -2) if x.dim() > 3 else x
        return x.transpose(0, 1) if self.row.kind in rows_first else x

    def grow(self, model):
        """Runs a decoder as it is run to write: each run adds rows behind those of the runs before."""
        ids, end, past = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids", 0, None
        for rows in STEPS:
            given = {**self.given, ids: self.given[ids][:, end:end + rows]}
            end += rows
            if "attention_mask" in given and not model.config.is_encoder_decoder:
                given["attention_mask"] = given["attention_mask"][:, :end]
            past = getattr(model(**given, **{self.past: past}, use_cache=True), self.past)

    def inputs(self):
        """q, k and v."""
        return [torch.cat(self.x.get(of, self.x["q"]), dim=1) for of in "qkv"]

    def values(self, expressions, **names):
        """What expressions of the module's parts, of the arguments of its call and of the names are."""
        def value(text, call):
            known = {"log": math.log, "inf": math.inf, "zeros": torch.zeros}
            return eval(text, known, Fields(self.module, **call, **names)).detach()

        axes = {"rope_cos": 0, "rope_sin": 0, "v": 1}  # of the rows of all calls
        return {name: torch.cat([value(text, call) for call in self.calls], axes[name]) if name in axes
                else value(text, self.calls[0]) for name, text in expressions.items()}


# ---- the same by a kernel ----


def weights_of(row, maps, shape):
    """The matrices and biases of q, k, v and o, of which a module may have the first three in one."""
    def features(linear):  # as torch.nn.Linear has them; GPT-2's Conv1D is the other way round
        w = linear.weight if isinstance(linear, torch.nn.Linear) else linear.weight.T
        return w.detach(), None if linear.bias is None else linear.bias.detach()

    pairs = [features(linear) for linear in maps]
    if len(maps) == 2:
        parts = [shape.h * shape.dk, shape.h_kv * shape.dk, shape.h_kv * shape.dv]
        blocks = shape.h_kv if "[heads]" in row.matrices else 1

        def divide(x):
            if x is None:
                return 3 * [None]
            return [part.flatten(0, 1) for part in
                    x.unflatten(0, (blocks, -1)).split([part // blocks for part in parts], dim=1)]

        pairs = [*zip(*map(divide, pairs[0])), pairs[1]]
    return {name + of: x for of, pair in zip("qkvo", pairs) for name, x in zip("wb", pair) if x is not None}


def floats(tensors):
    return {name: x.float().contiguous() for name, x in tensors.items()}


def pointers(tensors):
    return {name: x.data_ptr() for name, x in tensors.items()}


@pytest.mark.parametrize("row", [row for part in in_turn([0, 1], "models") for row in ROWS[part::2]],
                         ids=lambda row: row.name)
def test_architecture(transformers, reference, row, tmp_path):
    seen = Observed(transformers, row)
    x, y = dict(zip("qkv", seen.inputs())), torch.cat(seen.y, dim=1)
    (batch, rows, _), seq_kv = y.shape, x["k"].shape[1]
    keys = architectures.keys(row, seen.config) | {"batch": batch}
    cross = keys.get("attention") == "cross"
    assert cross or all((of == x["q"]).all() for of in x.values())
    if cross or seen.cache:
        keys["seq_kv"] = seq_kv
    if seen.cache:
        keys["cache"] = seen.cache
    lengths = STEPS if seen.cache else [rows]
    isa = drawn_isa(row.name)
    kernels = {seq: Generated({**keys, "seq": seq}, isa, tmp_path / str(seq)) for seq in set(lengths)}
    shape = kernels[lengths[0]].shape

    weights = floats(weights_of(row, seen.maps, shape) | seen.values(seen.row.weights))
    for kernel in kernels.values():
        kernel.pack(layout=1, **pointers(weights))
    real = seen.given.get("attention_mask", torch.ones(y.shape[:2], dtype=torch.bool))
    counts = {key: count.sum(1, dtype=torch.int32)
              for key, count in [("kv_len", real), ("kv_start", ~real)] if key in keys}

    def arguments(past, seq):
        part = {of: x[of] if cross and of != "q" else x[of][:, past:past + seq] for of in x}
        part |= seen.values(seen.row.args, batch=batch, seq=seq, seq_kv=seq_kv, past=past)
        return floats(part) | counts | {"past": torch.full((batch,), past, dtype=torch.int32)}

    room, cache = aligned(batch * shape.cache_bytes)
    if seen.cache == "fixed":
        encoded = floats({of: x[of] for of in "kv"})
        kernels[1].fill(cache=cache, **pointers(encoded))
    got, past = [], 0
    for seq in lengths:
        got.append(torch.full((batch, seq, y.shape[2]), torch.nan, dtype=torch.float32))
        args = arguments(past, seq)
        kernels[seq].run(y=got[-1].data_ptr(), cache=cache, **pointers(args))
        past += seq
    used = ... if cross else real  # what padding has for results has no use
    error, size = (torch.cat(got, dim=1) - y)[used].abs().max().item(), y[used].abs().max().item()
    print(f"\n{row.name:30} max |difference| {error:.1e}, max |y| {size:.1f}", end="")
    assert error <= NEAR * size

    whole = Kernel.from_buffer_copy(shape)  # the same without a cache
    whole.options &= ~(CACHE_APPEND | CACHE_FIXED)
    whole.seq = rows

    def difference(bit=0):
        """Of the reference in double, without one of the options."""
        other, args, expected = Kernel.from_buffer_copy(whole), arguments(0, rows), torch.empty(y.shape)
        other.options ^= bit
        assert reference.mhagen_reference(
            ctypes.byref(other), ctypes.byref(Weights(layout=1, **pointers(weights))),
            ctypes.byref(Args(**pointers(args))), ctypes.c_void_p(expected.data_ptr()), None) == 0
        return (expected - y)[used].abs().max()

    assert difference() <= 1e-5
    for bit in [1 << i for i in range(32) if whole.options & ~UNSEEN & 1 << i]:
        assert not difference(bit) < 1e-3, f"nothing shows bit {bit} of the options"


def test_table():
    """docs/models.md has the table."""
    assert architectures.table() in (ROOT / "docs/models.md").read_text(), "tests/models/architectures.py prints it"
