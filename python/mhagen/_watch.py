"""Which modules of a model may be attention, and have a kernel of _found.

    Watch(caller)                          a run with it shows which modules call a softmax, and with which arguments
    take(model, watch, settings, others)   gives another forward to each of these that is attention and nothing else
    take_layers(model, watch, settings)    the same of modules that are a whole layer, with norms and feed-forward
"""
from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from . import _build
from ._fit import Fit, key_of
from ._found import SIMPLE, UNPROJECTED, Found, NoLengths, Refused, propose

LEVELS = 3  # of modules around a softmax that are tried, from the inside
SOFTMAX = {nn.functional.softmax, torch.softmax, Tensor.softmax, nn.functional.scaled_dot_product_attention,
           nn.functional.multi_head_attention_forward}
MOST_AROUND = 6  # modules around a softmax that are tried as a whole layer, from the outside


class Frame:
    """A call of a module, and how often it came to a softmax."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.module, self.args, self.kwargs, self.count = module, args, kwargs, 0


class Watch(torch.overrides.TorchFunctionMode):
    """Takes down the calls of softmax and scaled_dot_product_attention in a run: the modules around each, from the
    inside, and where its own code is if it calls the latter."""

    def __init__(self, caller: Callable[[], str | None]):
        super().__init__()
        self.caller, self.stack, self.found = caller, [], []
        self.patch = mock.patch.object(nn.Module, "__call__", self.called(nn.Module.__call__))
        self.stack: list[Frame]
        self.found: list[tuple[list[Frame], str | None]]

    def called(self, call: Callable[..., Any]) -> Callable[..., Any]:
        thread = threading.get_ident()

        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return call(module, *args, **kwargs)
            self.stack.append(Frame(module, args, kwargs))
            try:
                return call(module, *args, **kwargs)
            finally:
                self.stack.pop()
        return watched

    def __enter__(self) -> Any:
        self.patch.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.patch.stop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SOFTMAX:
            for frame in self.stack:
                frame.count += 1
            where = self.caller() if func is nn.functional.scaled_dot_product_attention else None
            self.found.append((self.stack[::-1], where))
        return func(*args, **(kwargs or {}))


def best_of(frames: Sequence[Frame], keys: str, known: dict[Any, str]) -> tuple[Frame, Fit]:
    """The module around a softmax that is the most of a layer. Raises Refused with the first reason of one that has
    projections."""
    best: tuple[Frame, Fit] | None = None
    reasons: list[str] = []
    for frame in frames[:LEVELS]:
        leaves, spec = _pytree.tree_flatten((frame.args, frame.kwargs))
        simple = all(isinstance(leaf, (Tensor, *SIMPLE)) for leaf in leaves)
        key = (type(frame.module), *key_of(leaves, spec)) if simple else None
        try:
            if key is None:
                raise Refused("its arguments are more than tensors and numbers")
            if key in known:
                raise Refused(known[key])
            best = frame, propose(frame.module, frame.args, frame.kwargs, keys)
        except ValueError as error:
            reasons.append(str(error).removeprefix("mhagen: "))
            if key is not None:
                known[key] = reasons[-1]
            if best:
                break
    if not best:
        reasons.sort(key=lambda reason: reason == UNPROJECTED)
        raise Refused(reasons[0] if reasons else "it is no module by itself")
    return best


def take_layers(model: nn.Module, watch: Watch, settings: Any) -> set[int]:
    """Gives another forward to the modules that are a whole layer each: around each softmax of a run the outermost one.
    Returns which modules are theirs. Warns if there are none."""
    names, taken = {id(module): name for name, module in model.named_modules()}, set()
    new: list[Found] = []
    reasons: dict[Any, str] = {}  # by what a module is made of
    for stack, _ in watch.found:
        if any(id(frame.module) in taken for frame in stack):
            continue  # a layer that is called several times, as ALBERT's
        frames = [frame for frame in stack if frame.count == 1 and id(frame.module) in names and
                  "forward" not in frame.module.__dict__]
        for frame in frames[-MOST_AROUND:][::-1]:
            found = Found(names[id(frame.module)], frame.module, settings, whole=True)
            leaves, spec = _pytree.tree_flatten((frame.args, frame.kwargs))
            if not all(isinstance(leaf, (Tensor, *SIMPLE)) for leaf in leaves):
                reasons.setdefault(type(frame.module), "its arguments are more than tensors and numbers")
                continue
            key = key_of(leaves, spec)
            kind = tuple((name, type(part)) for name, part in frame.module.named_modules()), *key
            if kind in reasons or not found.takes(leaves):
                continue
            try:
                found.learn(frame.args, frame.kwargs, key)
            except NoLengths as error:
                raise ValueError(f"mhagen: lengths = {_build.say(settings.lengths)}: {found.name or 'the model'}: "
                                 f"{error}: leave lengths out, so that each number of rows has kernels of its own") \
                    from None
            except ValueError as error:
                reasons[kind] = str(error).removeprefix("mhagen: ")
                continue
            new.append(found)
            taken.update(map(id, frame.module.modules()))
            break
    for found in new:
        found.module.__dict__["forward"] = found.forward
        settings.names.append(found.name)
    if not taken:
        warnings.warn("mhagen: layers = True: no module is a whole layer: " +
                      next(iter(reasons.values()), "no softmax was seen"), stacklevel=4)
    return taken


def take(model: nn.Module, watch: Watch, settings: Any, others: Callable[[nn.Module], bool]) -> None:
    """Modules around the softmaxes of a run; others: those that have a kernel, or a reason, already."""
    names, known, seen = {id(module): name for name, module in model.named_modules()}, {}, set()
    for stack, where in watch.found:
        frames = [frame for frame in stack if frame.count == 1 and id(frame.module) in names and
                  not isinstance(frame.module, (nn.Softmax, nn.Dropout))]
        if any(others(frame.module) for frame in stack) or frames and id(frames[0].module) in seen:
            continue
        seen.update(id(frame.module) for frame in frames[:1])
        name, reason = names[id(frames[0].module)] if frames else "", ""
        try:
            frame, fit = best_of(frames, settings.keys, known)
            name = names[id(frame.module)]
            if "forward" in frame.module.__dict__:
                raise Refused("its forward is not that of its class")
            found = Found(name, frame.module, settings)
            leaves, spec = _pytree.tree_flatten((frame.args, frame.kwargs))
            if found.takes(leaves) and found.fit_of(frame.args, frame.kwargs, key_of(leaves, spec), fit):
                frame.module.__dict__["forward"] = found.forward
                settings.names.append(name)
                continue
        except Refused as error:
            reason = f"; by its graph {error}"
            if not where:
                settings.left.setdefault(name, str(error))
        if where:
            settings.tell(where, "it calls torch.nn.functional.scaled_dot_product_attention, in whose place it may "
                                 f"call mhagen.torch.scaled_dot_product_attention{reason}")
