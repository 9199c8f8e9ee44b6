"""Attention of PyTorch's models by kernels of mhagen. Inference on CPUs only.

    replace(model, example)              swaps the attention of a model in place, and returns the model
    report(model)                        a line for each layer: its kernels, or why it is left to PyTorch
    scaled_dot_product_attention(q, ..)  torch.nn.functional's, by a kernel

Kernels are the operators mhagen::layer and mhagen::sdpa, which torch.compile and torch.export keep. They take the
model's own weights, which are packed when they are first seen, and again when they have changed.
"""
from __future__ import annotations

import functools
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from . import _build, _native
from ._layer import Attention

TYPES: dict[torch.dtype, dict[str, str]] = {
    torch.float32: {}, torch.bfloat16: {"io_dtype": "bf16", "attend_dtype": "bf16"},
    torch.float16: {"io_dtype": "f16", "attend_dtype": "f16"}}  # keys of the tensors' types


# ---- kernels by shape ----

@functools.cache
def layer_of(keys: str, more: tuple[tuple[str, Any], ...]) -> Attention:
    """The layer of `key=value ...` and other keys, without weights. What `keys` has wins."""
    config = {"isa": "native", **dict(more), **dict(word.split("=", 1) for word in keys.split())}
    return Attention(_native.load(_build.words(config)))


def mask_keys(mask: Tensor | None) -> dict[str, str]:
    """The keys of a mask [b or 1][h or 1][q or 1][k]."""
    if mask is None:
        return {}
    dims = "".join(letter for letter, size in zip("bhqk", mask.shape) if letter == "k" or size > 1)
    return {"mask": "bool" if mask.dtype == torch.bool else "add", "mask_dims": dims}


def require(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    """A kernel reads as many bytes as its shape has."""
    if tuple(tensor.shape) not in shapes:
        raise ValueError(f"mhagen: {name}: shape {tuple(tensor.shape)}: must be {' or '.join(map(str, shapes))}")


def mask_bytes(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask as a kernel of the shape [b][h][q][k] reads it: axes of which every entry is the same have one."""
    if mask.dim() != 4 or any(size not in (1, whole) for size, whole in zip(mask.shape, shape)):
        require("mask", mask, shape)
    mask = mask.expand(*mask.shape[:3], shape[3])
    for axis in range(3):
        if mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask.contiguous() if mask.dtype == torch.bool else mask.to(torch.float32).contiguous()


# ---- packed weights ----

_packed: dict[tuple[Any, ...], tuple[list[StorageWeakRef], np.ndarray]] = {}


def identity(tensor: Tensor | None) -> tuple[Any, ...]:
    """What tells the numbers of a tensor from others, as long as a weak reference keeps its storage's place."""
    if tensor is None:
        return ()
    version = 0 if tensor.is_inference() else tensor._version
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), *tensor.shape, *tensor.stride(), tensor.dtype,
            version)


def packed_of(layer: Attention, weights: list[Tensor | None], names: Any) -> np.ndarray:
    """The weights as the layer's kernel reads them; names(weights) has them by name. Kernels that pack alike share."""
    key = (layer.kernel.data.fingerprint, layer.kernel.data.packed_bytes, *map(identity, weights))
    if key not in _packed:
        for old, (kept, _) in list(_packed.items()):
            if any(storage.expired() for storage in kept):
                _packed.pop(old, None)
        arrays = {name: tensor.detach().float().numpy() for name, tensor in names(weights).items()
                  if tensor is not None}
        kept = [StorageWeakRef(tensor.untyped_storage()) for tensor in weights if tensor is not None]
        _packed[key] = kept, layer.packed_of(out_in=True, **arrays)  # of another thread at the same time: the same
    return _packed[key][1]


# ---- operators ----

def multihead_weights(weights: list[Tensor | None]) -> dict[str, Tensor | None]:
    """Those of nn.MultiheadAttention, by their names in mhagen."""
    joint, wq, wk, wv, bias, wo, bo = weights
    if joint is not None:
        wq, wk, wv = joint.chunk(3)
    bq, bk, bv = (None, None, None) if bias is None else bias.chunk(3)
    return {"wq": wq, "wk": wk, "wv": wv, "wo": wo, "bq": bq, "bk": bk, "bv": bv, "bo": bo}


@torch.library.custom_op("mhagen::layer", mutates_args=(), device_types="cpu", schema=(
    "(Tensor q, Tensor? k, Tensor? v, Tensor? mask, Tensor?[] weights, str keys, int h, bool causal, bool probs)"
    " -> (Tensor, Tensor)"))
def layer_op(q: Tensor, k: Tensor | None, v: Tensor | None, mask: Tensor | None, weights: list[Tensor | None],
             keys: str, h: int, causal: bool, probs: bool) -> tuple[Tensor, Tensor]:
    """y, and the attention weights of every head, of q [b][s][d_model]; without k and v self-attention."""
    batch, rows, width = q.shape
    columns = rows if k is None else k.shape[1]
    more = {"batch": batch, "h": h, "d_model": width, "dk": width // h, "seq": rows, "causal": causal, "probs": probs,
            **TYPES[q.dtype], **({"dtype": TYPES[q.dtype]["io_dtype"]} if TYPES[q.dtype] else {})}
    tensors = {"q": q.contiguous()}
    if k is not None and v is not None:
        require("k", k, (batch, columns, k.shape[2]))
        require("v", v, (batch, columns, v.shape[2]))
        more |= {"attention": "cross", "seq_kv": columns, "k_width": k.shape[2], "v_width": v.shape[2]}
        tensors |= {"k": k.contiguous(), "v": v.contiguous()}
    if mask is not None:
        mask = tensors["mask"] = mask_bytes(mask, (batch, h, rows, columns))
    more |= mask_keys(mask)
    layer = layer_of(keys, tuple(more.items()))
    y = torch.empty(batch, rows, width, dtype=q.dtype)
    weights_of_heads = torch.empty((batch, h, rows, columns) if probs else 0)
    layer.run({**{name: tensor.data_ptr() for name, tensor in tensors.items()}, "y": y.data_ptr(),
               **({"probs": weights_of_heads.data_ptr()} if probs else {})}, torch.get_num_threads(),
              packed_of(layer, weights, multihead_weights))
    return y, weights_of_heads


@layer_op.register_fake
def _(q, k, v, mask, weights, keys, h, causal, probs):
    batch, rows, width = q.shape
    columns = rows if k is None else k.shape[1]
    shape = (batch, h, rows, columns) if probs else (0,)
    return q.new_empty(batch, rows, width), q.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("mhagen::sdpa", mutates_args=(), device_types="cpu", schema=(
    "(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? sink, bool causal, float? scale, float? softcap, str keys)"
    " -> Tensor"))
def sdpa_op(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sink: Tensor | None, causal: bool,
            scale: float | None, softcap: float | None, keys: str) -> Tensor:
    """[b][s][h][dv] of q [b][h][s][dk], k [b][h_kv][t][dk], v [b][h_kv][t][dv]."""
    batch, h, rows, dk = q.shape
    _, h_kv, columns, dv = v.shape
    require("k", k, (batch, h_kv, columns, dk))
    require("v", v, (batch, h_kv, columns, dv))
    by_rows = all(tensor.transpose(1, 2).is_contiguous() for tensor in (k, v))
    tensors = {name: tensor.transpose(1, 2).contiguous() if by_rows else tensor.contiguous()
               for name, tensor in (("q", q), ("k", k), ("v", v))}
    more = {"project": "none", "layout": "bshd" if by_rows else "bhsd", "batch": batch, "h": h, "h_kv": h_kv, "dk": dk,
            "dv": dv, "seq": rows, "seq_kv": columns, "causal": causal, "scale": scale, "softcap": softcap,
            "sink": sink is not None, **TYPES[q.dtype]}
    lengths = None
    if mask is not None:
        mask = mask_bytes(mask, (batch, h, rows, columns))
        if mask.dtype == torch.bool and columns > rows:  # a cache that is not full
            lengths, mask = seen(mask, batch)
            more["kv_len"] = True
    more |= mask_keys(mask)
    if mask is not None:
        tensors["mask"] = mask
    layer = layer_of(keys, tuple(more.items()))
    y = torch.empty((batch, rows, h, dv) if by_rows else (batch, h, rows, dv), dtype=q.dtype)
    pointers = {**{name: tensor.data_ptr() for name, tensor in tensors.items()}, "y": y.data_ptr()}
    if lengths is not None:
        pointers["kv_len"] = lengths.ctypes.data
    packed = None if sink is None else packed_of(layer, [sink], lambda weights: {"sink": weights[0]})
    layer.run(pointers, torch.get_num_threads(), packed)
    return y if by_rows else y.transpose(1, 2).contiguous()


@sdpa_op.register_fake
def _(q, k, v, mask, sink, causal, scale, softcap, keys):
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


def seen(mask: Tensor, batch: int) -> tuple[np.ndarray[Any, Any], Tensor | None]:
    """How many keys of each batch entry are behind the last one that any row sees; and the mask, where it hides some of
    these."""
    array: Any = mask.numpy()
    by_key = array.any(axis=(1, 2))
    lengths = array.shape[3] - by_key[:, ::-1].argmax(axis=1)
    lengths[~by_key.any(axis=1)] = 0
    hides = any(not entry[..., :length].all() for entry, length in zip(array, lengths))
    return np.full(batch, lengths, np.int32), mask if hides else None


# ---- when a kernel is taken ----

MOST_SHAPES = 16  # of a layer: each takes seconds of the compiler's time
FEW_QUERIES = 4  # lanes are queries: Zen 5, one query, 9 heads of 64, 512 keys: 86 us, those of PyTorch 52 us


def unprojected(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a layer for attention by itself, which has no weights."""
    kept = {key: value for key, value in keys.items() if not re.fullmatch(r"\w*weight_dtype|(sum_)?dtype|group", key)}
    return {"attend_dtype": keys["dtype"], **kept} if keys.get("dtype") in ("bf16", "f16") else kept


class Settings:
    """How the attention of a model is computed; what its layers have seen, and why they were left to PyTorch."""

    def __init__(self, keys: Mapping[str, Any] | None = None, others: str = "generate"):
        keys = keys or {}
        self.keys = " ".join(f"{key}={_build.say(value)}" for key, value in keys.items())
        self.attention_keys = " ".join(f"{key}={_build.say(value)}" for key, value in unprojected(keys).items())
        self.others = others
        self.learning = False  # whether shapes that are met now count as seen
        self.shapes: dict[str, set[tuple[tuple[int, ...], ...]]] = {}  # those of the inputs that a layer has met
        self.left: dict[str, str] = {}
        self.names: list[str] = []  # of what was swapped

    def takes(self, name: str, inputs: Sequence[Tensor], training: bool, weights: Sequence[Tensor | None] = ()) -> bool:
        """Whether a kernel computes this call. If not, the reason is told once."""
        given = [*inputs, *(tensor for tensor in weights if tensor is not None)]
        reason = self.reason(given, training) or self.reason_of_shape(name, inputs)
        if reason is None:
            return True
        if not torch.compiler.is_compiling():
            self.tell(name, reason)
        return False

    def tell(self, name: str, reason: str) -> None:
        if name not in self.left:
            self.left[name] = reason
            warnings.warn(f"mhagen: {name or 'attention'}: left to PyTorch: {reason}", stacklevel=3)

    def reason(self, given: Sequence[Tensor], training: bool) -> str | None:
        if training:
            return "it is in training: call eval()"
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            return "gradients are wanted: call it under torch.no_grad()"
        if torch.is_autocast_enabled("cpu"):
            return "autocast is on: dtype=\"bf16\" of replace has the types of a kernel"
        if any(tensor.device.type != "cpu" or tensor.is_nested for tensor in given):
            return "its tensors are not dense ones of the CPU"
        if given[0].dtype not in TYPES or any(tensor.dtype != given[0].dtype for tensor in given):
            return f"types {', '.join(sorted({str(tensor.dtype) for tensor in given}))}: must be one of float32, " \
                   "bfloat16 and float16"
        if any(size == 0 for tensor in given for size in tensor.shape):
            return "a tensor is empty"
        return None

    def reason_of_shape(self, name: str, inputs: Sequence[Tensor]) -> str | None:
        if inputs[0].dim() == 4 and inputs[0].shape[0] != inputs[1].shape[0]:
            return "queries have another number of batch entries than keys"
        if inputs[0].dim() == 4 and inputs[0].shape[2] <= min(FEW_QUERIES, inputs[1].shape[2] - 1):
            return "a step of a decoder, for which the call of an operator takes as long as PyTorch's attention"
        shape, shapes = tuple(tuple(tensor.shape) for tensor in inputs), self.shapes.setdefault(name, set())
        if shape not in shapes and not torch.compiler.is_compiling():
            if self.others == "torch" and not self.learning:
                return f"shape {shape} was not seen, and others = torch"
            if len(shapes) == MOST_SHAPES:
                return f"shape {shape} is one more than {MOST_SHAPES}: a cache grows, or rows are not padded"
            shapes.add(shape)
        return None


# ---- nn.MultiheadAttention ----

class MultiheadAttention(nn.MultiheadAttention):
    """Stands in the place of a torch.nn.MultiheadAttention, and shares its parameters and buffers."""

    _qkv_same_embed_dim = False  # encoder layers then call forward, in the place of a kernel of their own
    _settings: Settings
    _original: nn.MultiheadAttention
    _name: str

    def __init__(self, original: nn.MultiheadAttention, name: str, settings: Settings):
        nn.Module.__init__(self)
        own = {key: value for key, value in original.__dict__.items() if key != "_qkv_same_embed_dim"}
        self.__dict__.update(own)
        self.__dict__.update(_original=original, _name=name, _settings=settings)  # not a submodule

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
                need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[Tensor, Tensor | None]:
        itself = query is key and key is value
        weights = [self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight, self.in_proj_bias,
                   self.out_proj.weight, self.out_proj.bias]
        inputs = [query] if itself else [query, key, value]
        if not self._settings.takes(self._name, inputs, self.training, weights):
            self._original.training = self.training  # for its dropout
            return self._original.forward(query, key, value, key_padding_mask, need_weights, attn_mask,
                                          average_attn_weights, is_causal)
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")  # as the original does
        batched = query.dim() == 3

        def rows_last(tensor: Tensor) -> Tensor:
            """[b][rows][width]"""
            return tensor.unsqueeze(0) if not batched else tensor if self.batch_first else tensor.transpose(0, 1)
        q = rows_last(query)
        k, v = (None, None) if itself else (rows_last(key), rows_last(value))
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = merged_mask(None if causal else attn_mask, key_padding_mask, q.shape[0], self.num_heads)
        y, probs = torch.ops.mhagen.layer(q, k, v, mask, weights, self._settings.keys, self.num_heads,
                                          causal, need_weights)
        if need_weights:
            probs = probs.to(q.dtype)
            probs = probs.mean(dim=1) if average_attn_weights else probs
        if not batched:
            return y.squeeze(0), probs.squeeze(0) if need_weights else None
        return y if self.batch_first else y.transpose(0, 1), probs if need_weights else None


def merged_mask(mask: Tensor | None, padding: Tensor | None, batch: int, heads: int) -> Tensor | None:
    """[b or 1][h or 1][q or 1][k] of PyTorch's masks, in which True hides a key: here it shows one. Numbers are
    added."""
    if mask is not None:
        mask = mask.view(batch, heads, *mask.shape[1:]) if mask.dim() == 3 else mask[None, None]
    if padding is not None:
        padding = (padding if padding.dim() == 2 else padding[None])[:, None, None]
    masks = [each for each in (mask, padding) if each is not None]
    if not masks:
        return None
    if all(each.dtype == torch.bool for each in masks):
        return ~(masks[0] if len(masks) == 1 else masks[0] | masks[1])
    numbers = [torch.zeros(each.shape).masked_fill(each, float("-inf")) if each.dtype == torch.bool else each.float()
               for each in masks]
    return numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1]


def why_not(module: nn.MultiheadAttention) -> str | None:
    """What a module has that no kernel has."""
    if module.bias_k is not None:
        return "add_bias_kv: keys and values of its own"
    if module.add_zero_attn:
        return "add_zero_attn: its weights have a column more"
    if type(module) is not nn.MultiheadAttention:
        return f"its class is {type(module).__module__}.{type(module).__name__}"
    return None


# ---- transformers, and scaled dot-product attention by itself ----

DEFAULTS = Settings()


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention of [b][h][s][dk]. Rows that see no key are zero, not NaN."""
    if query.dim() != 4 or not DEFAULTS.takes("scaled_dot_product_attention", [query, key, value], dropout_p > 0):
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal,
                                                          scale=scale, enable_gqa=enable_gqa)
    mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.dim())]
    return torch.ops.mhagen.sdpa(query, key, value, mask, None, is_causal, scale, None, "").transpose(1, 2)


def attention_forward(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                      scaling: float | None = None, dropout: float = 0.0, is_causal: bool | None = None,
                      softcap: float | None = None, s_aux: Tensor | None = None, position_bias: Tensor | None = None,
                      **kwargs: Any) -> tuple[Tensor, None]:
    """What transformers' AttentionInterface calls `mhagen`; the masks are those of its `sdpa`."""
    settings, name = getattr(module, "_mhagen", (DEFAULTS, type(module).__name__))
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not settings.takes(name, [query, key, value], module.training or dropout > 0):
        return by_pytorch(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout,
                          is_causal=is_causal, softcap=softcap, s_aux=s_aux, position_bias=position_bias, **kwargs)
    mask = attention_mask
    if position_bias is not None:
        mask = position_bias if mask is None else position_bias + added(mask)
    causal = bool(is_causal) and query.shape[2] > 1 and attention_mask is None
    return torch.ops.mhagen.sdpa(query, key, value, mask, s_aux, causal, scaling, softcap,
                                 settings.attention_keys), None


def by_pytorch(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
               softcap: float | None, s_aux: Tensor | None, **kwargs: Any) -> tuple[Tensor, Any]:
    """The model's own functions: sdpa, or what it has for scores of another formula."""
    if softcap is None and s_aux is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    eager = sys.modules[type(module).__module__].eager_attention_forward
    rows, columns = query.shape[2], key.shape[2]
    if mask is None and kwargs["is_causal"] and rows > 1:
        mask = torch.ones(rows, columns, dtype=torch.bool).tril()[None, None]  # behind these a static cache is empty
    more = {"softcap": softcap, "s_aux": s_aux, **kwargs}
    return eager(module, query, key, value, None if mask is None else added(mask).to(query.dtype),
                 **{name: value for name, value in more.items() if value is not None})


def added(mask: Tensor) -> Tensor:
    """What is added to scores by a mask in which True shows a key."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


def register() -> None:
    """attn_implementation="mhagen" of transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    AttentionInterface.register("mhagen", attention_forward)
    AttentionMaskInterface.register("mhagen", sdpa_mask)


# ---- whole models ----

def replace(model: nn.Module, example: Any = None, *, others: str = "generate", **keys: Any) -> nn.Module:
    """Swaps every nn.MultiheadAttention, and the attention of every model of transformers, in place; returns the model.
    example: a tensor, a tuple of arguments or a dict of them; the model runs on it once, which makes the kernels. Of
    other shapes others = generate makes kernels when they come, others = torch leaves these calls to PyTorch. keys
    are those of all kernels, as isa="avx2" or dtype="bf16"."""
    if others not in ("generate", "torch"):
        raise ValueError(f"mhagen: others = {others}: must be generate or torch")
    if model.training:
        raise ValueError("mhagen: the model is in training, and kernels have no gradients: call eval() first")
    settings = Settings(keys, others)
    model = swapped(model, settings)
    transformers = sys.modules.get("transformers")
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # which no layer but PyTorch's own takes
        if transformers and isinstance(module, transformers.PreTrainedModel):
            take_model(name, module, settings)
    if not settings.names:
        found = "; ".join(f"{name or 'it'}: {reason}" for name, reason in settings.left.items())
        raise ValueError(f"mhagen: {type(model).__name__}: has no nn.MultiheadAttention, and no attention of "
                         f"transformers' AttentionInterface, that a kernel can replace: {found or 'none at all'}")
    model.__dict__["_mhagen_settings"] = settings
    if example is not None:
        learn(model, example, settings)
    return model


def swapped(model: nn.Module, settings: Settings) -> nn.Module:
    """The model with its modules swapped; one that is in several places stays one."""
    new: dict[int, nn.Module] = {}

    def swap(name: str, module: nn.Module) -> nn.Module:
        if id(module) not in new and isinstance(module, nn.MultiheadAttention):
            reason = why_not(module)
            if reason:
                settings.left[name] = reason
            else:
                settings.names.append(name)
            new[id(module)] = module if reason else MultiheadAttention(module, name, settings)
        return new.get(id(module), module)
    model = swap("", model)
    for path, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            other = swap(f"{path}.{name}".lstrip("."), child)
            if other is not child:
                setattr(parent, name, other)
    return model


def take_model(name: str, model: Any, settings: Settings) -> None:
    """A model of transformers, but for parts of it that are models themselves: these are asked, too."""
    register()
    if model.config._attn_implementation != "mhagen":
        model.set_attn_implementation("mhagen")
    if model.config._attn_implementation != "mhagen":
        settings.left[name] = f"{type(model).__name__} does not use transformers' AttentionInterface"
        return
    settings.names.append(name or type(model).__name__)
    for path, module in model.named_modules():
        module.__dict__["_mhagen"] = settings, f"{name}.{path}".strip(".")


def learn(model: nn.Module, example: Any, settings: Settings) -> None:
    settings.learning = True
    try:
        with torch.no_grad():
            if isinstance(example, Mapping):
                model(**example)
            else:
                model(*(example if isinstance(example, (tuple, list)) else (example,)))
    finally:
        settings.learning = False


def report(model: nn.Module) -> str:
    """A line for each layer whose shapes were seen, or that is left to PyTorch."""
    settings: Settings = model.__dict__["_mhagen_settings"]
    told = {name: f"kernels for {', '.join(map(str, sorted(shapes, key=str)))}"
            for name, shapes in settings.shapes.items() if shapes}
    left = {name: f"left to PyTorch: {reason}" for name, reason in settings.left.items()}
    return "\n".join(f"{name or type(model).__name__}: {what}" for of in (told, left) for name, what in of.items())
