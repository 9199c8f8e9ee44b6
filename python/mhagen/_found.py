"""Modules of attention that no row of _projections knows, as one kernel each.

    propose(module, args, kwargs, keys)    the kernel of a module that is attention and nothing else
    Found(name, module, settings)          its forward stands in the place of the module's own

The graph of such a module must be one layer of `mhagen model` from its inputs to its result. Kernels have the weights
that this command packs. The module and its kernel then compute the example and a drawn input, and must agree.
"""
from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from . import _build, _graph, _native, _operators
from ._layer import Attention
from ._projections import MOST, ROUNDED

UNPROJECTED = "it has no projections: mhagen.torch.scaled_dot_product_attention is for such attention"
MOST_SHAPES = 4  # beside the example's: each takes seconds of each module
MOST_FIXED = 4  # sets of masks and tables for which a module has kernels, of one shape
is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)  # PyTorch 2.7 has it
SIMPLE = (type(None), bool, int, float, str, torch.dtype, torch.device)
VALUES = {bool, int, float, str}
NUMBERS = {Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.item, Tensor.tolist,
           Tensor.numpy, torch.equal, torch.allclose}


class Refused(ValueError):
    """Why a module is left to PyTorch."""


@functools.cache
def kernel_of(words: tuple[str, ...]) -> Attention:
    return Attention(_native.load(words))


class Fit(NamedTuple):
    """The kernel of a module for arguments of one shape."""
    words: tuple[str, ...]
    packed: np.ndarray
    places: dict[str, tuple[int, str]]  # of the kernel's arguments: a tensor of the call, and a part that changes it
    hidden: bool  # whether a mask of bool says what is not seen
    mask: np.ndarray | None  # one that no argument changes
    fixed: list[tuple[int, Tensor]]  # tensors of the call that must be the same again
    result: list[Any]  # its leaves; of y the shape and the type
    at: int  # the place of y in it
    spec: Any

    def is_for(self, tensors: Sequence[Tensor]) -> bool:
        return all(torch.equal(tensors[at], tensor) for at, tensor in self.fixed)

    def run(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        taken = {name: (module.get_submodule(part)(tensors[at]) if part else tensors[at]).detach().contiguous()
                 for name, (at, part) in self.places.items()}
        if self.hidden:
            taken["mask"] = ~taken["mask"]
        shape, dtype = self.result[self.at]
        y = torch.empty(shape, dtype=dtype)
        pointers = {name: tensor.data_ptr() for name, tensor in (taken | {"y": y}).items()}
        if self.mask is not None:
            pointers["mask"] = self.mask.ctypes.data
        kernel_of(self.words).run(pointers, torch.get_num_threads(), self.packed)
        return _pytree.tree_unflatten([*self.result[:self.at], y, *self.result[self.at + 1:]], self.spec)


def tensors_of(leaves: Sequence[Any]) -> list[Tensor]:
    """Each once, in the order of _graph.Call."""
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}.values())


def shapes_of(leaves: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in tensors_of(leaves))


def own_forward(module: nn.Module) -> Callable[..., Any]:
    return functools.partial(type(module).forward, module)


# ---- from a module to a kernel ----

def proposed(module: nn.Module, call: _graph.Call, keys: str, whole: bool
             ) -> tuple[dict[str, Any], np.ndarray, np.ndarray | None]:
    """The only layer in the graph of a module, the file of its packed weights, and its mask."""
    dtype = call.tensors[0].dtype
    config = {"isa": "native", "rope_tables": "packed", **_operators.TYPES.get(dtype, {})}
    if dtype != torch.float32:
        config["dtype"] = _build.say_type(dtype)
    config |= {key: value for key, value in (word.split("=", 1) for word in keys.split()) if key != "lengths"}
    with tempfile.TemporaryDirectory() as folder:
        path, out = pathlib.Path(folder, f"{type(module).__name__}.onnx"), pathlib.Path(folder, "out")
        with _graph.by_parts() if whole else contextlib.nullcontext():
            _graph.write(module, call, path, own_forward(module))
        options = [f"{key}={value}" for key, value in config.items()] + ["--layers"] * whole
        values = _graph.values_of(path, out, options)
        files = list(out.glob("*.packed"))
        if len(values) != 1 or len(files) != 1:
            raise Refused("it is more than one layer of attention")
        if whole and "ffn" not in values[0]["config"]:
            notes = [note for note in values[0].get("notes", ()) if note.startswith("attention alone: ")]
            raise Refused(f"it is no whole layer: {notes[0].partition(': ')[2] if notes else 'attention alone'}")
        mask = values[0].get("mask_file")
        return values[0], np.fromfile(files[0], np.uint8), np.load(out / mask) if mask else None


def words_of(config: str, numbers: int) -> tuple[str, ...]:
    """The config of all batch entries, of so many numbers in the result."""
    keys = dict(word.split("=", 1) for word in config.split())
    columns = keys.get("y_width", keys.get("d_model"))
    if "o" not in keys.get("project", "qkvo") or columns is None:
        columns = int(keys["h"]) * int(keys.get("dv", keys["dk"]))
    return _build.words({**keys, "batch": numbers // (int(keys["seq"]) * int(columns))})


def places_of(module: nn.Module, layer: dict[str, Any], call: _graph.Call) -> dict[str, tuple[Tensor, str]]:
    """The tensors of the call that the kernel reads, perhaps through a part of the module, such as a norm. Raises
    Refused where the module is more than that and the layer."""
    inputs = layer["inputs"]
    if "project=none" in layer["config"].split():
        raise Refused(UNPROJECTED)
    if layer["output"] != _graph.RESULT or sum(isinstance(leaf, Tensor) for leaf in call.result) != 1:
        raise Refused("it computes more than attention")
    if "swapped" in layer:
        raise Refused("its rows lie as [rows][batch]")
    masks = [] if "mask_file" in layer else inputs["masks"]
    if len(masks) > 1 or "past_k" in inputs or "past_v" in inputs:
        raise Refused("it has a cache, or several masks")
    names = {key: inputs[key] for key in ("q", "k", "v") if key in inputs} | {"mask": mask["value"] for mask in masks}
    given, found = {_graph.INPUT.format(at): tensor for at, tensor in enumerate(call.tensors)}, {}
    for name, value in names.items():
        part = "" if value in given else _graph.module_of(module, value)
        if value not in given and (not part or name == "mask"):
            raise Refused(f"it computes {'a mask' if name == 'mask' else 'other numbers'} before attention")
        found[name] = input_of(module, call, part) if part else given[value], part
    if "mask" in found and found["mask"][0].dtype not in (torch.bool, torch.float32):
        raise Refused(f"its mask is of {found['mask'][0].dtype}")
    return found


def input_of(module: nn.Module, call: _graph.Call, part: str) -> Tensor:
    """The tensor of the call that a part of the module takes. Raises Refused where it takes others, or more."""
    taken: list[tuple[Any, ...]] = []
    hook = module.get_submodule(part).register_forward_hook(lambda _, args, __: taken.append(args))
    with hook, torch.no_grad():
        args, kwargs = call.arguments(call.tensors)
        own_forward(module)(*args, **kwargs)
    if len(taken) != 1 or len(taken[0]) != 1 or not any(taken[0][0] is tensor for tensor in call.tensors):
        raise Refused("it computes other numbers before attention")
    return taken[0][0]


def propose(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], keys: str, whole: bool = False) -> Fit:
    """Arguments are inputs of the graph, or else all but the first one are numbers of it, as tables and masks may be.
    whole: a layer with what is around its attention. Raises ValueError."""
    reasons: list[ValueError] = []
    for fixed in (lambda at: False), (lambda at: at > 0):
        call = _graph.Call(args, kwargs, fixed)
        if not call.tensors or reasons and not call.fixed:
            break
        try:
            layer, packed, mask = proposed(module, call, keys, whole)
            read = places_of(module, layer, call)
        except ValueError as error:
            reasons.append(error)
            continue
        tensors = tensors_of(call.leaves)
        places = {name: (next(at for at, each in enumerate(tensors) if each is tensor), part)
                  for name, (tensor, part) in read.items()}
        hidden = "mask" in places and layer["inputs"]["masks"][0].get("hidden", False)
        given = {at for at, _ in places.values()}
        kept = [(at, tensor.clone()) for at, tensor in enumerate(tensors) if at not in given]
        at = next(at for at, leaf in enumerate(call.result) if isinstance(leaf, Tensor))
        result = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in call.result]
        words = words_of(layer["config"], call.result[at].numel())
        return Fit(words, packed, places, hidden, mask, kept, result, at, call.result_spec)
    raise reasons[0] if reasons else Refused("it has no tensors as arguments")


def with_kernel(fit: Fit, others: Sequence[Fit]) -> Fit:
    """The same with the packed weights in memory that a kernel reads: the only ones of the file, at its end. Kernels
    that pack alike share."""
    size = kernel_of(fit.words).kernel.data.packed_bytes
    packed = fit.packed[len(fit.packed) - size:]
    for other in others:
        if np.array_equal(other.packed, packed):
            return fit._replace(packed=other.packed)
    memory = _native.allocate(size)
    memory[:] = packed
    return fit._replace(packed=memory)


class Plain(torch.overrides.TorchFunctionMode):
    """Refuses code whose steps depend on numbers of tensors: a graph has those of the example."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in NUMBERS:
            raise Refused(f"its code asks for numbers of tensors, by {func.__name__}")
        return func(*args, **(kwargs or {}))


def state_of(module: nn.Module, tensors: Sequence[Tensor]) -> list[Any]:
    """What a call of a module may change beside its result."""
    def identity(value: Any) -> Any:
        return _operators.identity(value) if isinstance(value, Tensor) else id(value)
    return [*map(_operators.identity, tensors), *((name, identity(value)) for part in module.modules() for of in
                                                  (part.__dict__, part._parameters, part._buffers)
                                                  for name, value in of.items())]


@torch.no_grad()
def prove(module: nn.Module, fit: Fit, args: Sequence[Any], kwargs: dict[str, Any], most: float) -> None:
    """Compares on the arguments, and on drawn ones of their shapes. Raises Refused."""
    call = _graph.Call(args, kwargs)
    drawn, generator = list(call.tensors), torch.Generator().manual_seed(1)
    for at in {at for name, (at, _) in fit.places.items() if name != "mask"}:
        own = drawn[at].float()
        drawn[at] = (torch.randn(own.shape, generator=generator) * own.std() + own.mean()).to(drawn[at].dtype)
    for tensors in call.tensors, drawn:
        given, state = call.arguments(tensors), state_of(module, tensors)
        with Plain():
            result = own_forward(module)(*given[0], **given[1])
        if state_of(module, tensors) != state:
            raise Refused("it changes its arguments, or keeps what it computes")
        right, found = (_pytree.tree_leaves(each)[fit.at].float() for each in (result, fit.run(module, tensors)))
        difference = float((found - right).norm() / right.norm())
        if not difference <= most:
            raise Refused(f"its result differs by {difference:.1e} from that of its kernel")


class Found:
    """forward stands in the place of a module's own."""

    def __init__(self, name: str, module: nn.Module, settings: Any, whole: bool = False):
        self.name, self.module, self.settings, self.whole = name, module, settings, whole
        self.fits: dict[Any, list[Fit]] = {}  # by the arguments' shapes; none where there is no kernel
        self.weights: tuple[Any, ...] = ()  # of which these are, with what else the module has

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes kernels of its own weights."""
        return {**self.__dict__, "fits": {}, "weights": ()}

    def original(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return own_forward(self.module)(*args, **kwargs)

    @torch.compiler.disable
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        if is_exporting() or torch.jit.is_tracing() or not self.takes(leaves):
            return self.original(args, kwargs)
        key, tensors = key_of(leaves, spec), tensors_of(leaves)
        fits = self.fits.get(key)
        fit = next((each for each in fits or () if each.is_for(tensors)), None)
        if fit is None and (fits is None or 0 < len(fits) < MOST_FIXED):
            fit = self.fit_of(args, kwargs, key)
        elif fit is None and fits:
            self.settings.tell(self.name, "its masks or tables are others in each call, and it computes with these")
        return self.original(args, kwargs) if fit is None else fit.run(self.module, tensors)

    def takes(self, leaves: Sequence[Any]) -> bool:
        """Whether a kernel may compute this call; else the reason is told."""
        tensors, (module, *parts) = tensors_of(leaves), list(self.module.modules())
        if not tensors or not all(isinstance(leaf, (Tensor, *SIMPLE)) for leaf in leaves) or any(
                part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__ for part in parts):
            return False
        own, buffers = ([each for part in (module, *parts) for each in getattr(part, of).values() if each is not None]
                        for of in ("_parameters", "_buffers"))
        dense = all(tensor.is_cpu and tensor.layout == torch.strided and not tensor.is_nested for tensor in tensors)
        reason = self.settings.reason(tensors[:1], own, tensors, module.training) if dense else \
            "its tensors are not dense ones of the CPU"
        if reason is not None:
            self.settings.tell(self.name, reason)
            return False
        values = [(name, value) for part in (module, *parts) for name, value in part.__dict__.items()
                  if type(value) in VALUES and name != "training"]  # as the scale that a module has
        weights = *map(_operators.identity, [*own, *buffers]), *values
        if weights != self.weights:
            self.weights, self.fits = weights, {}
        return True

    def fit_of(self, args: Sequence[Any], kwargs: dict[str, Any], key: Any, fit: Fit | None = None) -> Fit | None:
        """A kernel that was proved; fit: one that is only proposed."""
        leaves = _pytree.tree_leaves((args, kwargs))
        tensors, shape = tensors_of(leaves), shapes_of(leaves)
        reason = self.settings.reason_of_new(self.name, [shape])
        counts = not self.whole and not self.settings.learning  # one proof of a whole layer is for all of its shapes
        if not reason and counts and key not in self.fits and len(self.fits) > MOST_SHAPES:
            self.settings.shapes[self.name].discard(shape)
            reason = f"shape {shape} is one more than {MOST_SHAPES} beside the example's"
        if reason is None:
            try:
                fit = self.resized(tensors, key, args, kwargs) or self.proved(fit, args, kwargs)
                self.fits.setdefault(key, []).append(fit)
                return fit
            except ValueError as error:
                reason = str(error).removeprefix("mhagen: ")
                self.fits.setdefault(key, [])
                self.settings.shapes[self.name].discard(shape)
        self.settings.tell(self.name, reason)
        return None

    def proved(self, fit: Fit | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Fit:
        """fit: one that is only proposed, or None. Raises ValueError."""
        others = list(itertools.chain(*self.fits.values()))
        dtype = tensors_of(_pytree.tree_leaves((args, kwargs)))[0].dtype
        most = ROUNDED if dtype != torch.float32 or "dtype" in self.settings.keys else MOST
        checking, self.settings.checking = self.settings.checking, True  # attention within it is PyTorch's
        try:
            fit = with_kernel(fit or propose(self.module, args, kwargs, self.settings.keys, self.whole), others)
            prove(self.module, fit, args, kwargs, most)
        finally:
            self.settings.checking = checking
        return fit

    def resized(self, tensors: Sequence[Tensor], key: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fit | None:
        """A whole layer for another number of rows or batch entries: the weights of a kernel that is there already, in
        one of another seq. None where it needs a proof of its own."""
        for own, fits in self.fits.items() if self.whole else ():
            for fit in fits:
                other = for_rows(fit, tensors) if alike(own, key, "mask" in fit.places) else None
                with contextlib.suppress(ValueError):
                    return self.proved(other, args, kwargs) if other else None
        return None


def alike(own: tuple[Any, ...], key: tuple[Any, ...], masked: bool) -> bool:
    """Whether two of key_of differ in sizes alone, and have the same axes of size 1: along these a mask is the same.
    Without a mask it may be one batch entry, or several."""
    def plain(key: tuple[Any, ...]) -> list[Any]:
        return [(leaf[0], *(size == 1 for size in leaf[1][not masked:]), leaf[2])
                if isinstance(leaf[1], torch.Size) else leaf for leaf in key[1:]]
    return own[0] == key[0] and plain(own) == plain(key)


def for_rows(fit: Fit, tensors: Sequence[Tensor]) -> Fit | None:
    """The same weights for the rows of other tensors, if they do not depend on their number."""
    keys, x = dict(word.split("=", 1) for word in fit.words), tensors[fit.places["q"][0]]
    if "rope" in keys or fit.fixed or fit.mask is not None:
        return None
    result = list(fit.result)
    result[fit.at] = tuple(x.shape), fit.result[fit.at][1]
    words = words_of(" ".join(_build.words({**keys, "seq": x.shape[-2]})), x.numel())
    if kernel_of(words).kernel.data.packed_bytes != len(fit.packed):
        return None
    return fit._replace(words=words, result=result)


def key_of(leaves: Sequence[Any], spec: Any) -> tuple[Any, ...]:
    """What a graph depends on, but for numbers: shapes, which tensors are the same, and other arguments."""
    order = {id(tensor): at for at, tensor in enumerate(tensors_of(leaves))}
    return spec, *((order[id(leaf)], leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else (type(leaf), leaf)
                   for leaf in leaves)
