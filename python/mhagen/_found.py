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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from . import _build, _graph, _operators
from ._fit import Fit, alike, for_rows, key_of, tensors_of, with_kernel
from ._layer import TABLES
from ._operators import lengths_of, place
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


class NoLengths(Refused):
    """Why a whole layer has a kernel for one number of rows alone."""


def own_forward(module: nn.Module) -> Callable[..., Any]:
    return functools.partial(type(module).forward, module)


# ---- from a module to a kernel ----

def proposed(module: nn.Module, call: _graph.Call, keys: str, whole: bool, angles: bool = False
             ) -> tuple[dict[str, Any], np.ndarray, np.ndarray | None]:
    """The only layer in the graph of a module, the file of its packed weights, and its mask. angles: whether runs give
    those of its rope."""
    dtype = call.tensors[0].dtype
    config = {"isa": "native", "rope_tables": "apart" if angles else "packed", **_operators.TYPES.get(dtype, {})}
    lengths = whole and lengths_of(keys)
    if lengths:
        config["q_len"] = "true"
    if dtype != torch.float32:
        config["dtype"] = _build.say_type(dtype)
    config |= {key: value for key, value in (word.split("=", 1) for word in keys.split()) if key != "lengths"}
    with tempfile.TemporaryDirectory() as folder:
        path, out = pathlib.Path(folder, f"{type(module).__name__}.onnx"), pathlib.Path(folder, "out")
        with _graph.by_parts() if whole else contextlib.nullcontext():
            _graph.write(module, call, path, own_forward(module))
        options = [f"{key}={value}" for key, value in config.items()] + ["--layers"] * whole
        values = _graph.values_of(path, out, options)
        if lengths and len(values) == 1 and " mask=" not in values[0].get("config", " mask="):
            out = pathlib.Path(folder, "lengths")  # kv_len packs otherwise; where there is a mask it would stand for it
            values = _graph.values_of(path, out, [*options, "kv_len=true"])
        files = list(out.glob("*.packed"))
        if len(values) != 1 or len(files) != 1:
            raise Refused("it is more than one layer of attention")
        if whole and "ffn" not in values[0]["config"]:
            notes = [note for note in values[0].get("notes", ()) if note.startswith("attention alone: ")]
            raise Refused(f"it is no whole layer: {notes[0].partition(': ')[2] if notes else 'attention alone'}")
        mask = values[0].get("mask_file")
        return values[0], np.fromfile(files[0], np.uint8), np.load(out / mask) if mask else None


def words_of(config: str, numbers: int, angles: bool) -> tuple[str, ...]:
    """The config of all batch entries, of so many numbers in the result."""
    keys = dict(word.split("=", 1) for word in config.split())
    columns = keys.get("y_width", keys.get("d_model"))
    if "o" not in keys.get("project", "qkvo") or columns is None:
        columns = int(keys["h"]) * int(keys.get("dv", keys["dk"]))
    if angles:
        keys = {key: value for key, value in keys.items() if key not in ("rope_tables", "rope_theta")}
        keys["rope_at"] = "run"  # which packs what a kernel with its tables apart does
    if "q_len" in keys:
        keys["kv_len"] = "true"
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
    names = {key: inputs[key] for key in ("q", "k", "v") if key in inputs} | {
        "mask": mask.get("unsqueezed", mask["value"]) for mask in masks}
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


def angles_of(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Two tensors that are cosines and sines of the same angles, for both columns of each pair; else none."""
    for one, other in itertools.combinations(range(1, len(tensors)), 2):
        cosines, sines = tensors[one], tensors[other]
        if cosines.shape != sines.shape or cosines.dim() not in (2, 3) or not (
                cosines.is_floating_point() and sines.is_floating_point()):
            continue
        squares = cosines.float() ** 2 + sines.float() ** 2
        if squares.min() > 0 and squares.max() <= 1.01 * squares.min():
            return one, other
    return ()


def propose(module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], keys: str, whole: bool = False) -> Fit:
    """Arguments are inputs of the graph, or else all but the first one are numbers of it, as tables and masks may be.
    Before that, those of rope alone are, if a whole layer has lengths: its kernel takes them as arguments. whole: a
    layer with what is around its attention. Raises ValueError."""
    reasons: list[ValueError] = []
    tensors = tensors_of(_pytree.tree_leaves((args, kwargs)))
    lengths = whole and lengths_of(keys)
    angles = angles_of(tensors) if lengths else ()
    for fixed in (lambda at: False), *([angles.__contains__] if angles else []), (lambda at: at > 0):
        call, turned = _graph.Call(args, kwargs, fixed), fixed == angles.__contains__
        if not call.tensors or reasons and not call.fixed:
            break
        try:
            layer, packed, mask = proposed(module, call, keys, whole, turned)
            read = places_of(module, layer, call)
        except ValueError as error:
            reasons.append(error)
            continue
        places = {name: (next(at for at, each in enumerate(tensors) if each is tensor), part)
                  for name, (tensor, part) in read.items()}
        hidden = "mask" in places and layer["inputs"]["masks"][0].get("hidden", False)
        if turned:
            places |= {name: (at, "") for name, at in zip(TABLES, angles)}
        free = {id(tensor) for tensor in call.tensors} if lengths else ()  # the graph has them, and does not read them
        given = {at for at, _ in places.values()}
        kept = [(at, tensor.clone()) for at, tensor in enumerate(tensors) if at not in given and id(tensor) not in free]
        at = next(at for at, leaf in enumerate(call.result) if isinstance(leaf, Tensor))
        result = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in call.result]
        words = words_of(layer["config"], call.result[at].numel(), turned)
        return Fit(words, packed, places, hidden, mask, kept, result, at, call.result_spec)
    raise reasons[0] if reasons else Refused("it has no tensors as arguments")


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
    for at in {at for name, (at, _) in fit.places.items() if name in TABLES}:
        drawn[at] = drawn[at].flip(-2)  # angles of other places
    for at in {at for name, (at, _) in fit.places.items() if name not in ("mask", *TABLES)}:
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
        self.lengths: tuple[int, ...] = settings.lengths if whole else ()
        self.axes: dict[int, dict[int, list[int]]] = {}  # by the number of tensors: those of each that count rows
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
        tensors = tensors_of(_pytree.tree_leaves((args, kwargs)))
        known, shape = self.known(tensors, key), self.shape_of(tensors)
        if known is not None:
            self.fits[key] = [known]
            return known
        reason = self.settings.reason_of_new(self.name, [shape])
        counts = not self.whole and not self.settings.learning  # one proof of a whole layer is for all of its shapes
        if not reason and counts and key not in self.fits and len(self.fits) > MOST_SHAPES:
            self.settings.shapes[self.name].discard(shape)
            reason = f"shape {shape} is one more than {MOST_SHAPES} beside the example's"
        if reason is None:
            try:
                fit = self.resized(tensors, key, args, kwargs) or self.proved(fit, args, kwargs)
                if self.lengths:
                    of_kernel = self.shape_of(tensors)
                    self.settings.shapes[self.name] = self.settings.shapes[self.name] - {shape} | {of_kernel}
                    self.spread(fit, args, kwargs, [place(fit.result[fit.at][0][-2], self.lengths)])
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
        others = self.proven()
        dtype = tensors_of(_pytree.tree_leaves((args, kwargs)))[0].dtype
        most = ROUNDED if dtype != torch.float32 or "dtype" in self.settings.keys else MOST
        checking, self.settings.checking = self.settings.checking, True  # attention within it is PyTorch's
        try:
            fit = with_kernel(fit or self.proposed(args, kwargs), others)
            prove(self.module, fit, args, kwargs, most)
        finally:
            self.settings.checking = checking
        return fit

    def resized(self, tensors: Sequence[Tensor], key: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Fit | None:
        """A whole layer for another number of rows or batch entries: the weights of a kernel that is there already, in
        one of another seq. None where it needs a proof of its own."""
        for own, fits in self.fits.items() if self.whole else ():
            for fit in fits:
                other = for_rows(fit, tensors, self.lengths, self.proven()) if alike(own, key, fit) else None
                with contextlib.suppress(ValueError):
                    return self.proved(other, args, kwargs) if other else None
        return None

    def proven(self) -> list[Fit]:
        return list(itertools.chain(*self.fits.values()))

    # ---- whole layers with lengths ----

    def shape_of(self, tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
        """Those of the kernel for a call."""
        read = self.axes.get(len(tensors), dict.fromkeys(range(len(tensors)), []))
        return tuple(tuple(place(size, self.lengths) if axis in read[at] else size
                           for axis, size in enumerate(tensor.shape, -tensor.dim()))
                     for at, tensor in enumerate(tensors) if at in read)

    def known(self, tensors: Sequence[Tensor], key: Any) -> Fit | None:
        """The kernel of the length of a call, which was proved for the least and the most of its rows."""
        for own, fits in self.fits.items() if self.lengths else ():
            for fit in fits:
                if alike(own, key, fit, exact=True) and fit.words_for(tensors, self.lengths) == fit.words:
                    return for_rows(fit, tensors, self.lengths, ())
        return None

    def proposed(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Fit:
        """Perhaps for a length that is enough. Raises ValueError."""
        fit = propose(self.module, args, kwargs, self.settings.keys, self.whole)
        if not self.lengths:
            return fit
        if fit.fixed:
            raise NoLengths(f"it reads a tensor of shape {tuple(fit.fixed[0][1].shape)}, which is neither its rows, a "
                            "mask nor tables of rope")
        call = _graph.Call(args, kwargs)
        x = call.tensors[fit.places["q"][0]]
        rows, batch = place(x.shape[-2], self.lengths), x.shape[:-2].numel()  # of its kernel
        self.axes[len(call.tensors)] = {at: fit.axes(name) for name, (at, _) in fit.places.items()}
        if self.settings.learning:
            _build.libraries({fit.words_of(length, batch) for length in (rows, *self.lengths)})
        found = for_rows(fit, call.tensors, self.lengths, self.proven()) if x.shape[-2] > 1 else None
        if found is None:  # it has other weights or masks, and one row does not show that attention is causal
            more = propose(self.module, *fit.arguments(call, rows), self.settings.keys, self.whole)
            found = for_rows(more, call.tensors, self.lengths, ())
        if found is None:
            raise NoLengths(f"its graph is another one with {rows} rows")
        return found

    def learn(self, args: Sequence[Any], kwargs: dict[str, Any], key: Any) -> None:
        """The kernel of an example, and those of all lengths."""
        (fit,) = self.fits[key] = [self.proved(None, args, kwargs)]
        self.settings.reason_of_new(self.name, [self.shape_of(tensors_of(_pytree.tree_leaves((args, kwargs))))])
        self.spread(fit, args, kwargs, self.lengths)

    def spread(self, fit: Fit, args: Sequence[Any], kwargs: dict[str, Any], lengths: Sequence[int]) -> None:
        """Kernels for some of the lengths, each of them proved for the most and the least of its rows."""
        call = _graph.Call(args, kwargs)
        for least, most in zip((1, *(length + 1 for length in self.lengths)), self.lengths):
            for rows in sorted({least, most}, reverse=True) if most in lengths else ():
                leaves, spec = _pytree.tree_flatten(more := fit.arguments(call, rows))
                tensors = tensors_of(leaves)
                try:
                    fit = self.proved(for_rows(fit, tensors, self.lengths, self.proven()), *more)
                except ValueError as error:
                    raise NoLengths(f"with {rows} rows {str(error).removeprefix('mhagen: ')}") from None
                self.fits[key_of(leaves, spec)] = [fit]
            if most in lengths:
                self.settings.reason_of_new(self.name, [self.shape_of(tensors)])
