"""The kernel of a module for arguments of one shape, and the same for other rows.

    Fit                           a kernel, its packed weights, and where its arguments are in a call
    with_kernel(fit, others)      the same with the weights in memory that its kernel reads
    for_rows(fit, tensors, ...)   the same for the rows and batch entries of other tensors
    key_of(leaves, spec)          what the graph of a call depends on
    alike(own, key, fit)          whether two calls may have the weights of one

With `lengths` the kernel of a whole layer takes fewer rows than it has, too. Its inputs are then extended to its own
rows, and it is told how many there are. Its rope has the angles of a call, so no weights depend on rows.
"""
from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from . import _build, _graph, _native
from ._layer import TABLES, Attention
from ._operators import counts, place


@functools.cache
def kernel_of(words: tuple[str, ...]) -> Attention:
    return Attention(_native.load(words))


def resized(tensor: Tensor, axes: Sequence[int], rows: int) -> Tensor:
    """With so many rows: the first ones, or the same again behind them."""
    for axis in axes:
        if tensor.shape[axis] != rows:
            tensor = tensor.index_select(axis, torch.arange(rows) % tensor.shape[axis])
    return tensor


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

    def axes(self, name: str) -> list[int]:
        """Those of an argument that count rows, from its last one."""
        if name != "mask":
            return [-2]
        dims = dict(word.split("=", 1) for word in self.words).get("mask_dims", "qk")
        return [axis for axis, letter in ((-2, "q"), (-1, "k")) if letter in dims]

    def run(self, module: nn.Module, tensors: Sequence[Tensor]) -> Any:
        kernel, (shape, dtype) = kernel_of(self.words).kernel, self.result[self.at]
        taken = {name: (module.get_submodule(part)(tensors[at]) if part else tensors[at]).detach()
                 for name, (at, part) in self.places.items()}
        if self.hidden:
            taken["mask"] = ~taken["mask"]
        pointers, rows = {}, None
        if "q_len" in kernel.needs:
            rows = counts(shape[-2], kernel.data.batch)
            pointers = dict.fromkeys(("q_len", "kv_len"), ctypes.addressof(rows))
            shape = *shape[:-2], kernel.data.seq, shape[-1]
            taken = {name: resized(self.angles(tensor) if name in TABLES else tensor, self.axes(name), kernel.data.seq)
                     for name, tensor in taken.items()}
        taken = {name: tensor.contiguous() for name, tensor in taken.items()}
        whole = kernel_of(self.words).mask_shape()
        if "mask" in taken and taken["mask"].numel() != math.prod(whole):
            raise ValueError(f"mhagen: its mask of shape {tuple(taken['mask'].shape)} has not all of {whole}")
        y = torch.empty(shape, dtype=dtype)
        pointers |= {name: tensor.data_ptr() for name, tensor in (taken | {"y": y}).items()}
        if self.mask is not None:
            pointers["mask"] = self.mask.ctypes.data
        kernel_of(self.words).run(pointers, torch.get_num_threads(), self.packed)
        if rows is not None:
            y = y[..., :rows[0], :].contiguous()
        return _pytree.tree_unflatten([*self.result[:self.at], y, *self.result[self.at + 1:]], self.spec)

    def angles(self, tensor: Tensor) -> Tensor:
        """Cosines or sines of both columns of each pair, as a kernel has those of a pair."""
        pairs = tensor[..., ::2] if "rope=interleaved" in self.words else tensor[..., :tensor.shape[-1] // 2]
        return pairs.float().expand(kernel_of(self.words).kernel.data.batch, -1, -1)

    def arguments(self, call: _graph.Call, rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Those of a call, but for so many rows. A mask of which a row would see no key shows all."""
        tensors = list(call.tensors)
        for name, (at, _) in self.places.items():
            tensor = tensors[at] = resized(tensors[at], self.axes(name), rows)
            if name == "mask":
                whole = tensor.dtype == torch.bool
                seen = tensor != self.hidden if whole else tensor > float("-inf")
                if not seen.any(-1).all():
                    tensors[at] = torch.full_like(tensor, whole and not self.hidden)
        return call.arguments(tensors)

    def words_for(self, tensors: Sequence[Tensor], lengths: tuple[int, ...]) -> tuple[str, ...]:
        """Those of the kernel for the rows of these, or for the least length that is enough."""
        x = tensors[self.places["q"][0]]
        return self.words_of(place(x.shape[-2], lengths), x.shape[:-2].numel())

    def words_of(self, seq: int, batch: int) -> tuple[str, ...]:
        return _build.words({**dict(word.split("=", 1) for word in self.words), "seq": seq, "batch": batch})


def tensors_of(leaves: Sequence[Any]) -> list[Tensor]:
    """Each once, in the order of _graph.Call."""
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}.values())


def key_of(leaves: Sequence[Any], spec: Any) -> tuple[Any, ...]:
    """What a graph depends on, but for numbers: shapes, which tensors are the same, and other arguments."""
    order = {id(tensor): at for at, tensor in enumerate(tensors_of(leaves))}
    return spec, *((order[id(leaf)], leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else (type(leaf), leaf)
                   for leaf in leaves)


def alike(own: tuple[Any, ...], key: tuple[Any, ...], fit: Fit, exact: bool = False) -> bool:
    """Whether two of key_of differ in sizes alone, and have the same axes of size 1: along these a mask is the same.
    Without a mask it may be one batch entry, or several. exact: whether they differ in rows alone."""
    axes = {at: fit.axes(name) for name, (at, _) in fit.places.items()}
    rows = {leaf[1][axis] for leaf in key[1:] if leaf[0] in axes for axis in axes[leaf[0]]}
    first = 0 if exact or "mask" in fit.places else 1

    def plain(key: tuple[Any, ...]) -> list[Any]:
        return [(leaf[0], leaf[2], *(size if exact else size == 1 for axis, size in enumerate(leaf[1], -len(leaf[1]))
                                     if leaf[0] in axes and axis not in axes[leaf[0]] and axis >= first - len(leaf[1])))
                if isinstance(leaf[1], torch.Size) else leaf for leaf in key[1:]]
    return own[0] == key[0] and plain(own) == plain(key) and len(rows) == 1


def packs(packed: np.ndarray, kernel: _native.Kernel) -> bool:
    """Whether a kernel reads these weights: they end a file, and begin with the kernel's fingerprint."""
    begin = len(packed) - kernel.data.packed_bytes
    return begin >= 0 and packed[begin:begin + 8].view(np.uint64)[0] == kernel.data.fingerprint


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


def for_rows(fit: Fit, tensors: Sequence[Tensor], lengths: tuple[int, ...], others: Sequence[Fit]) -> Fit | None:
    """The same weights, or those of another one, in the kernel for the rows of other tensors. None where weights or a
    mask depend on the number of rows."""
    words = fit.words_for(tensors, lengths)
    own, new = ({word for word in of if word.startswith(("rope=", "seq="))} for of in (fit.words, words))
    by_rows = fit.mask is not None or len(own) > 1 and "rope_cos" not in fit.places
    if fit.fixed or by_rows and own != new:
        return None
    result = list(fit.result)
    result[fit.at] = tuple(tensors[fit.places["q"][0]].shape), fit.result[fit.at][1]
    packed = (each.packed for each in (fit, *others) if packs(each.packed, kernel_of(words).kernel))
    return next((fit._replace(words=words, packed=each, result=result) for each in packed), None)
