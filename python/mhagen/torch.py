"""Attention of PyTorch's models by kernels of mhagen. Inference on CPUs only.

    replace(model, example)              swaps the attention of a model in place, and returns the model
    export(model, example, out)          writes the kernels and packed weights of a model's attention, as C
    report(model)                        a line for each layer: its kernels, or why it is left to PyTorch
    growing_cache(model)                 a cache for a decoder's generate(), whose steps are kernels too
    scaled_dot_product_attention(q, ..)  torch.nn.functional's, by a kernel
"""
from __future__ import annotations

import collections
import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import _build, _keys, _operators, _projections, _watch
from ._graph import export as export, no_fast_path
from ._operators import TYPES, is_step, place, places, require, require_mask, rooms

if TYPE_CHECKING:
    from typing_extensions import Unpack

# ---- when a kernel is taken ----

Shape = tuple[tuple[int, ...], ...]
MOST_ROWS = 65536  # of seq
MOST_SHAPES = 16  # of a layer: each takes seconds of the compiler's time
# Of a step: heads * keys * (dk + dv). Zen 5, a decoder with 9 heads of 64: over 512 keys both take 90 us in the model;
# over more keys kernels are faster: over 2048 keys, 32 heads of 128, they take .46 of the time.
FEW_NUMBERS = 600_000

# Keys that the model decides. A kernel with other ones would read and write other memory than its tensors have.
FIXED = {*_keys.Layer.__annotations__} - {*_keys.Computation.__annotations__}

AGAIN = "the first step of a decoder"  # it is not told: one of a static cache has the same shape again


def unprojected(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a layer for attention by itself, which has no weights."""
    kept = {key: value for key, value in keys.items() if not re.fullmatch(r"\w*weight_dtype|(sum_)?dtype|group", key)}
    dtype = _build.say_type(keys.get("dtype"))
    return {"attend_dtype": dtype, **kept} if dtype in ("bf16", "f16") else kept


class Settings:
    """How the attention of a model is computed; what its layers have seen, and why they were left to PyTorch."""

    def __init__(self, keys: Mapping[str, Any] | None = None, others: str = "generate", lengths: Sequence[int] = (),
                 steps: str = ""):
        keys = {**(keys or {}), "lengths": sorted(lengths) or None}
        self.keys, self.attention_keys = (" ".join(_build.word(key, value) for key, value in of.items()
                                                   if value is not None) for of in (keys, unprojected(keys)))
        self.lengths = tuple(sorted(lengths))  # that tensors are padded to
        self.others = others
        self.of_steps = steps  # what helps steps of a decoder whose keys are copied
        self.checking = False  # whether attention is PyTorch's, to compare results with
        self.learning = False  # whether shapes that are met now count as seen
        self.shapes: dict[str, set[Shape]] = {}  # those of the inputs that a layer has met
        self.learnt: collections.Counter[str] = collections.Counter()  # how many of these, of each layer
        self.steps: dict[str, Shape] = {}  # that of a layer's last step
        self.left: dict[str, str] = {}
        self.told: set[str] = set()  # kinds of reasons
        self.names: list[str] = []  # of what was swapped

    def takes(self, name: str, inputs: Sequence[Tensor], training: bool, weights: Sequence[Tensor | None] = (),
              added: Sequence[Tensor | None] = ()) -> bool:
        """Whether a kernel computes this call; added: masks and biases. If not, the reason is told once."""
        reason = self.reason(inputs, weights, added, training) or self.reason_of_shape(name, inputs)
        if reason is None:
            return True
        if not torch.compiler.is_compiling():
            self.tell(name, reason)
        return False

    def tell(self, name: str, reason: str) -> None:
        """Once for each kind of reason, at the line of the program that called the model: report has all layers."""
        if name in self.left or reason == AGAIN:
            return
        self.left[name] = reason
        kind = re.sub(r"\d\S*", "", reason)
        if kind not in self.told:
            self.told.add(kind)
            all_of_them = "; mhagen.torch.report(model) has all layers" if self.names else ""
            warnings.warn(f"mhagen: {name or 'attention'}: left to PyTorch: {reason}{all_of_them}",
                          stacklevel=callers_level())

    def reason(self, inputs: Sequence[Tensor], weights: Sequence[Tensor | None], added: Sequence[Tensor | None],
               training: bool) -> str | None:
        if training:
            return "it is in training: call eval()"
        if torch.is_autocast_enabled("cpu"):
            return "autocast is on: dtype=\"bf16\" of replace has the types of a kernel"
        if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad
                                           for tensor in (*inputs, *weights, *added)):
            return "gradients are wanted: call it under torch.no_grad()"
        dtype = inputs[0].dtype
        for tensor in (*inputs, *weights):
            if tensor is None:
                continue
            if not tensor.is_cpu or tensor.is_nested:
                return "its tensors are not dense ones of the CPU"
            if tensor.dtype != dtype or dtype not in TYPES:
                return f"types {', '.join(sorted({str(dtype), str(tensor.dtype)}))}: must be one of float32, " \
                       "bfloat16 and float16"
            if tensor.numel() == 0:
                return "a tensor is empty"
        return None

    def reason_of_shape(self, name: str, inputs: Sequence[Tensor]) -> str | None:
        shape: Shape = tuple(tensor.shape for tensor in inputs)
        shapes = self.shapes.setdefault(name, set())
        alike: list[Shape]
        compiling = torch.compiler.is_compiling()
        if inputs[0].dim() == 4 and inputs[0].shape[0] != inputs[1].shape[0]:
            return "queries have another number of batch entries than keys"
        if inputs[0].dim() == 4 and is_step(*inputs[:2]):
            queries, keys, values = inputs
            if queries.shape[1] * keys.shape[2] * (keys.shape[3] + values.shape[3]) < FEW_NUMBERS:
                return "a step over few keys, for which a call of a kernel takes as long as PyTorch's attention"
            room = keys.shape[2] if compiling else rooms(keys, values)
            shape = (shape[0], (*keys.shape[:2], room, keys.shape[3]), values.shape[3:])
            if shape not in shapes and room == keys.shape[2] and not self.learning:
                reason = self.reason_of_step(name, shape, compiling)
                if reason:
                    return reason
            alike = [shape]
        else:
            alike = self.padded(shape)
        return self.reason_of_new(name, alike, compiling)

    def reason_of_new(self, name: str, alike: list[Shape], compiling: bool = False) -> str | None:
        """Why the first of these shapes gets no kernel; the others get theirs with it."""
        shape, shapes = alike[0], self.shapes.setdefault(name, set())
        if self.learning:
            self.learnt[name] += len({*alike} - shapes)
            shapes.update(alike)
        elif shape not in shapes and not compiling:
            if self.others == "torch":
                return f"shape {plain(shape)} was not seen, and others = torch"
            if len(shapes) - self.learnt[name] >= MOST_SHAPES:
                return f"shape {plain(shape)} is one more than {MOST_SHAPES}: a cache grows, or rows are not padded: " \
                    "lengths=(32, 64, 128) of replace pads them"
            shapes.add(shape)
        return None

    def padded(self, shape: Shape) -> list[Shape]:
        """The shape that the kernel of this one has, and behind it those of all lengths."""
        if not self.lengths:
            return [shape]
        pair = s, t = tuple(place(sizes[-2], self.lengths) for sizes in (shape[0], shape[-1]))
        return [tuple((*sizes[:-2], t if at else s, sizes[-1]) for at, sizes in enumerate(shape))
                for s, t in (pair, *places(s, t, self.lengths))]

    def forget(self, name: str, shape: Shape) -> None:
        self.shapes[name].difference_update(self.padded(shape))

    def reason_of_step(self, name: str, shape: Shape, compiling: bool) -> str | None:
        """A static cache has the shape of the step before. One that grows by copies has each but once."""
        if compiling:
            return "a step of a decoder that was not called before torch.compile"
        before, self.steps[name] = self.steps.get(name), shape
        if before is None:
            return AGAIN
        return None if shape == before else self.of_steps or "its cache grows by copies: give generate() " \
            f"{cache_name()}=mhagen.torch.growing_cache(model), or a static cache"


LIBRARIES = ("mhagen", "torch", "transformers")


def library_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


def callers_level() -> int:
    """The stacklevel, for the function that asks, of the nearest code that is no library of models."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and library_of(frame) in LIBRARIES:
        level, frame = level + 1, frame.f_back
    return level


def cache_name() -> str:
    """generate()'s name for a cache: past_key_values before transformers 5.24."""
    from transformers.generation.utils import ALL_CACHE_NAMES
    return ALL_CACHE_NAMES[0]


def plain(shape: Shape) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(sizes) for sizes in shape)


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
                   None, None, None, self.out_proj.weight, self.out_proj.bias]
        batched = query.dim() == 3

        def rows_last(tensor: Tensor) -> Tensor:
            """[b][rows][width]"""
            return tensor.unsqueeze(0) if not batched else tensor if self.batch_first else tensor.transpose(0, 1)
        inputs = list(map(rows_last, [query] if itself else [query, key, value]))
        taken = self._settings.takes(self._name, inputs, self.training, weights, [attn_mask, key_padding_mask])
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = None
        if taken:
            (batch, rows, _), columns = inputs[0].shape, inputs[-1].shape[1]
            if attn_mask is not None:
                require("attn_mask", attn_mask, (rows, columns), (batch * self.num_heads, rows, columns))
            if key_padding_mask is not None:
                require("key_padding_mask", key_padding_mask, (batch, columns) if batched else (columns,))
            mask = merged_mask(None if causal else attn_mask, key_padding_mask, batch, self.num_heads)
        if not taken or hides_all(mask) or is_causal and attn_mask is None:
            self._original.training = self.training  # for its dropout
            return self._original.forward(query, key, value, key_padding_mask, need_weights, attn_mask,
                                          average_attn_weights, is_causal)
        q, k, v = (inputs[0], None, None) if itself else inputs
        y, probs = torch.ops.mhagen.layer(q, k, v, mask, weights, self._settings.keys, self.num_heads,
                                          self.head_dim, None, causal, need_weights)
        if need_weights:
            probs = probs.to(q.dtype)
            probs = probs.mean(dim=1) if average_attn_weights else probs
        if not batched:
            return y.squeeze(0), probs.squeeze(0) if need_weights else None
        return y if self.batch_first else y.transpose(0, 1), probs if need_weights else None


def merged_mask(mask: Tensor | None, padding: Tensor | None, batch: int, heads: int) -> Tensor | None:
    """[b or 1][h or 1][q or 1][k] of PyTorch's masks, in which True hides a key: here it shows one. Numbers are
    added."""
    for name, each in (("attn_mask", mask), ("key_padding_mask", padding)):
        if each is not None:
            require_mask(name, each)
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


def hides_all(mask: Tensor | None) -> bool:
    """Whether a row sees no key: PyTorch's modules then have NaN, or the output bias, by the way that they take.
    Compiled graphs have no branch for it."""
    if mask is None or torch.compiler.is_compiling():
        return False
    array = mask.detach().numpy()
    seen = array if mask.dtype == torch.bool else array > float("-inf")
    return not (seen[..., 0].all() or seen.any(axis=-1).all())  # most masks show the first key


def clear_padding(mask_check: bool, layer: nn.Module, args: Any, kwargs: Mapping[str, Any], y: Tensor) -> Tensor | None:
    """After the last layer of an nn.TransformerEncoder: zeros in the rows that its nested tensors would not have."""
    padding = kwargs.get("src_key_padding_mask")
    if padding is None or kwargs.get("src_mask") is not None or y.dim() != 3 or layer.training or y.requires_grad or \
            torch.is_autocast_enabled() or not torch.backends.mha.get_fastpath_enabled():
        return None
    hidden = padding != 0
    if mask_check and (torch.compiler.is_compiling() or bool((hidden[:, :-1] & ~hidden[:, 1:]).any())):
        return None
    return y.masked_fill(hidden[:, :, None], 0)


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
DIRECT = Settings(steps="few queries over keys whose number changes: keep keys and values in memory for the most of "
                  "them, and give their first rows as views")


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention of [b][h][s][dk]. Rows that see no key are zero, not NaN."""
    if query.dim() != 4 or not DIRECT.takes("scaled_dot_product_attention", [query, key, value], dropout_p > 0,
                                               added=[attn_mask]):
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
    if settings.checking or not settings.takes(name, [query, key, value], module.training or dropout > 0,
                                                added=[attention_mask, s_aux, position_bias]):
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


def growing_cache(model: Any) -> Any:
    """A cache for generate(): transformers' DynamicCache, whose layers grow in place."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    from ._cache import GrowingLayer
    cache = DynamicCache(config=model.config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def register() -> None:
    """attn_implementation="mhagen" of transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask
    AttentionInterface.register("mhagen", attention_forward)
    AttentionMaskInterface.register("mhagen", sdpa_mask)


# ---- whole models ----

def replace(model: nn.Module, example: Any = None, *, layers: bool = False, others: str = "generate",
            lengths: Sequence[int] = (), **keys: Unpack[_keys.Computation]) -> nn.Module:
    """Swaps every nn.MultiheadAttention, and the attention of every model of transformers, in place; returns the model.
    With an example also other modules, whose graphs are attention alone. layers = True: modules that are a whole layer,
    with norms, residual connection and feed-forward, become one kernel each. example: a tensor, a tuple of arguments or
    a dict of them; the model runs on it once, which makes the kernels. Of other shapes others = generate makes kernels
    when they come, others = torch leaves these calls to PyTorch. Of lengths, as (32, 64, 128), the least one that is
    enough has the kernel of a call: all of them are made with the example. keys are those of all kernels, as
    isa="avx2" or dtype="bf16"."""
    if others not in ("generate", "torch"):
        raise ValueError(f"mhagen: others = {others}: must be generate or torch")
    if model.training:
        raise ValueError("mhagen: the model is in training, and kernels have no gradients: call eval() first")
    for key, value in keys.items():
        if key in FIXED:
            raise ValueError(f"mhagen: {key} = {value}: is the model's own: keys of replace say how a kernel "
                             "computes, as isa and dtype do")
    for length in lengths:
        if not isinstance(length, int) or not 1 <= length <= MOST_ROWS:
            raise ValueError(f"mhagen: lengths = {lengths}: must be integers from 1 to {MOST_ROWS}")
    if layers and example is None:
        raise ValueError("mhagen: layers = True: whole layers are found by an example: give one")
    settings = Settings(keys, others, lengths)
    whole = learn_layers(model, example, settings) if layers else set()
    model = swapped(model, settings, whole)
    transformers = sys.modules.get("transformers")
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoder):
            if module.use_nested_tensor:
                clear = functools.partial(clear_padding, getattr(module, "mask_check", True))
                module.layers[-1].register_forward_hook(clear, with_kwargs=True)
            module.use_nested_tensor = False  # which no layer but PyTorch's own takes
        if transformers and isinstance(module, transformers.PreTrainedModel):
            take_model(name, module, settings, whole)
    model.__dict__["_mhagen_settings"] = settings
    if example is not None:
        learn(model, example, settings)
    if not settings.names:
        found = "; ".join(f"{name or 'it'}: {reason}" for name, reason in settings.left.items())
        hint = "With an example other modules are tried, by their graphs" if example is None else \
            "A call of torch.nn.functional.scaled_dot_product_attention may be one of mhagen.torch's"
        raise ValueError(f"mhagen: {type(model).__name__}: has no nn.MultiheadAttention, no attention of transformers' "
                         f"AttentionInterface and none by itself that a kernel can replace: {found or 'none'}. {hint}")
    return model


def swapped(model: nn.Module, settings: Settings, whole: set[int]) -> nn.Module:
    """The model with its modules swapped, but for those within whole layers; one that is in several places stays
    one."""
    new: dict[int, nn.Module] = {}

    def swap(name: str, module: nn.Module) -> nn.Module:
        if id(module) not in new and id(module) not in whole and isinstance(module, nn.MultiheadAttention):
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


def take_model(name: str, model: Any, settings: Settings, whole_layers: set[int]) -> None:
    """A model of transformers, but for parts of it that are models themselves: these are asked, too."""
    register()
    if model.config._attn_implementation != "mhagen":
        model.set_attn_implementation("mhagen")
    if model.config._attn_implementation != "mhagen":
        settings.left[name] = f"{type(model).__name__} does not use transformers' AttentionInterface"
        return
    settings.names.append(name or type(model).__name__)
    for path, module in model.named_modules():
        whole = f"{name}.{path}".strip(".")
        module.__dict__["_mhagen"] = settings, whole
        if id(module) not in whole_layers:
            _projections.take(whole, module, settings)


def own_call() -> str | None:
    """The line that calls scaled_dot_product_attention, if it is no library's."""
    frame = sys._getframe(2)
    return None if library_of(frame) in LIBRARIES else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def is_told(module: nn.Module) -> bool:
    """Whether it has a kernel already, or a reason."""
    return isinstance(module, nn.MultiheadAttention) or "_mhagen" in module.__dict__


@contextlib.contextmanager
def learning(settings: Settings) -> Iterator[None]:
    settings.learning = _operators.making_all = True
    try:
        with torch.no_grad():
            yield
    finally:
        settings.learning = _operators.making_all = False


def watched(model: nn.Module, example: Any) -> _watch.Watch:
    with _watch.Watch(own_call) as watch:
        if isinstance(example, Mapping):
            model(**example)
        else:
            model(*(example if isinstance(example, (tuple, list)) else (example,)))
    return watch


def learn(model: nn.Module, example: Any, settings: Settings) -> None:
    with learning(settings):
        _watch.take(model, watched(model, example), settings, is_told)


def learn_layers(model: nn.Module, example: Any, settings: Settings) -> set[int]:
    for module in model.modules():
        if getattr(getattr(module, "config", None), "_attn_implementation", None) == "mhagen":
            module.set_attn_implementation("sdpa")  # the next model of a config that another one has had
    with learning(settings):
        with no_fast_path():
            watch = watched(model, example)
        return _watch.take_layers(model, watch, settings)


def report(model: nn.Module) -> str:
    """A line for each layer whose shapes were seen, or that is left to PyTorch."""
    settings: Settings = model.__dict__["_mhagen_settings"]
    told = {name: f"kernels for {', '.join(sorted(str(plain(shape)) for shape in shapes))}"
            for name, shapes in settings.shapes.items() if shapes}
    left = {name: f"left to PyTorch: {reason}" for name, reason in settings.left.items()}
    return "\n".join(f"{name or type(model).__name__}: {what}" for of in (told, left) for name, what in of.items())
