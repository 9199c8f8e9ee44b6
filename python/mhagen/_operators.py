"""Kernels as operators of PyTorch, mhagen::layer and mhagen::sdpa, which torch.compile and torch.export keep.

    layer_op, sdpa_op    what the operators compute
    is_step(q, k)        whether these are a step of a decoder
    rooms(k, v)          the rows that keys and values have memory for

They take the model's own weights, which are packed when they are first seen, and again when they have changed.
"""
from __future__ import annotations

import ctypes
import functools
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import _build, _native
from ._layer import Attention

TYPES: dict[torch.dtype, dict[str, str]] = {
    torch.float32: {}, torch.bfloat16: {"io_dtype": "bf16", "attend_dtype": "bf16"},
    torch.float16: {"io_dtype": "f16", "attend_dtype": "f16"}}  # keys of the tensors' types


# ---- kernels by shape ----

@functools.cache
def kernel_of(keys: str, dtype: torch.dtype, mask: tuple[str, str] | None, more: tuple[tuple[str, Any], ...]
              ) -> Attention:
    """The layer of `key=value ...` and other keys, without weights."""
    return Attention(_native.load(words_of(keys, dtype, mask, dict(more))))


def words_of(keys: str, dtype: torch.dtype, mask: tuple[str, str] | None, more: dict[str, Any]) -> tuple[str, ...]:
    """What `keys` has wins."""
    config: dict[str, Any] = {"isa": "native", **TYPES[dtype], **more}
    if mask is not None:
        config |= {"mask": mask[0], "mask_dims": mask[1]}
    given = dict(word.split("=", 1) for word in keys.split())
    given.pop("lengths", None)
    return _build.words({**config, **given})


# ---- lengths: numbers of rows for which there are kernels; tensors of fewer rows are padded ----

making_all = False  # whether a call makes the kernels of all lengths, not only its own


@functools.cache
def lengths_of(keys: str) -> tuple[int, ...]:
    """Those of the word `lengths` of the keys, in their order."""
    found = re.search(r"\blengths=(\S*)", keys)
    return tuple(map(int, found[1].split(","))) if found else ()


def place(rows: int, lengths: tuple[int, ...]) -> int:
    """The rows of the kernel for these: the least length that is enough."""
    for length in lengths:
        if rows <= length:
            return length
    return rows


def places(queries: int, keys: int, lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """The rows of all kernels for calls like the one that has these."""
    if queries == keys:
        return [(length, length) for length in (lengths if queries in lengths else (queries,))]
    return [(rows, columns) for rows in (lengths if queries in lengths else (queries,))
            for columns in (lengths if keys in lengths else (keys,))]


def make_all(keys: str, dtype: torch.dtype, mask: tuple[str, str] | None, more: dict[str, Any]) -> None:
    """The kernels of all lengths, so that no later call waits for one."""
    pairs = places(more["seq"], more.get("seq_kv", more["seq"]), lengths_of(keys))
    _build.libraries([words_of(keys, dtype, mask, more | {"seq": s} | ({"seq_kv": t} if "seq_kv" in more else {}))
                      for s, t in pairs])


def padded(tensor: Tensor, axis: int, size: int) -> Tensor:
    """With zeros behind its rows, which a kernel does not see."""
    rows = tensor.shape[axis]
    if rows == size:
        return tensor.contiguous()
    whole = tensor.new_zeros(*tensor.shape[:axis], size, *tensor.shape[axis + 1:])
    whole.narrow(axis, 0, rows).copy_(tensor)
    return whole


def counts(number: int, batch: int) -> Any:
    """A length for each batch entry."""
    return (ctypes.c_int * batch)(*[number] * batch)


def kind_of(mask: Tensor) -> tuple[str, str]:
    """The keys mask and mask_dims of a mask [b or 1][h or 1][q or 1][k]."""
    dims = "".join(letter for letter, size in zip("bhqk", mask.shape) if letter == "k" or size > 1)
    return "bool" if mask.dtype == torch.bool else "add", dims


def require(name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    """A kernel reads as many bytes as its shape has."""
    if tensor.shape not in shapes:
        raise ValueError(f"mhagen: {name}: shape {tuple(tensor.shape)}: must be {' or '.join(map(str, shapes))}")


def require_mask(name: str, mask: Tensor) -> None:
    """The ones of a tokenizer would be added to scores."""
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(f"mhagen: {name}: {mask.dtype}: must be bool, or floats that are added to scores")


def mask_bytes(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask as a kernel of the shape [b][h][q][k] reads it: axes of which every entry is the same have one."""
    require_mask("mask", mask)
    if mask.dim() != 4 or any(size not in (1, whole) for size, whole in zip(mask.shape, shape)):
        require("mask", mask, shape)  # which it has not
    if mask.shape[3] != shape[3]:
        mask = mask.expand(*mask.shape[:3], shape[3])
    for axis, (size, step) in enumerate(zip(mask.shape[:3], mask.stride())):
        if size > 1 and step == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask.contiguous() if mask.dtype == torch.bool else mask.to(torch.float32).contiguous()


def seen(mask: Tensor, batch: int) -> tuple[list[int], Tensor | None]:
    """How many keys of each batch entry are behind the last one that any row sees; and the mask, where it hides some of
    these."""
    entries, array = mask.shape[0], mask.numpy()
    if mask.shape[1] > 1 or mask.shape[2] > 1:
        by_key, all_see = array.any(axis=(1, 2)), array.all(axis=(1, 2))
    else:
        by_key = all_see = array
    lengths = [len(entry.tobytes().rstrip(b"\0")) for entry in by_key]
    hides = any(0 in entry.tobytes()[:length] for entry, length in zip(all_see, lengths))
    return lengths * (batch // entries), mask if hides else None


def padded_mask(mask: Tensor, rows: int, columns: int) -> Tensor:
    """[..][q or 1][k] for more rows and columns."""
    if mask.shape[3] == columns and mask.shape[2] in (1, rows):
        return mask
    return padded(padded(mask, 2, rows if mask.shape[2] > 1 else 1), 3, columns)


FEW_QUERIES = 4  # of a decoder's step


def is_step(q: Tensor, k: Tensor) -> bool:
    return q.shape[2] <= FEW_QUERIES and q.shape[2] < k.shape[2]


def rooms(k: Tensor, v: Tensor) -> int:
    """The rows for which [b][h][rows][width] have memory, where these are the first ones of each head in caches that
    grow in place; else as many as there are."""
    if k.is_contiguous():
        return k.shape[2]
    batch, heads, rows, width = k.shape
    step = k.stride(1)
    count = step // width
    for tensor in (k, v):
        size = tensor.shape[3]
        strides = (heads * count * size, count * size, size, 1)
        if (tensor.stride() != strides and (batch > 1 or tensor.stride()[1:] != strides[1:]) or
                tensor.storage_offset() + batch * strides[0] > tensor.untyped_storage().nbytes() // tensor.itemsize):
            return rows
    return max(rows, count)


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


# Threads are those of mhagen's pool, as many as PyTorch has. Those of its OpenMP took as long (GOMP_parallel, Zen 5).

# ---- operators: torch.library.custom_op would add 8 us to each call, for checks that a test makes once ----

def operator(name: str, schema: str, compute: Any, fake: Any) -> None:
    torch.library.define(f"mhagen::{name}", schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(f"mhagen::{name}", "cpu", compute)
    torch.library.register_fake(f"mhagen::{name}", fake)


def layer_weights(weights: list[Tensor | None]) -> dict[str, Tensor | None]:
    """Weights by their names in mhagen. Those of queries, keys and values may be one tensor."""
    joint, wq, wk, wv, bias, bq, bk, bv, wo, bo = weights
    if joint is not None:
        wq, wk, wv = joint.chunk(3)
    if bias is not None:
        bq, bk, bv = bias.chunk(3)
    return {"wq": wq, "wk": wk, "wv": wv, "wo": wo, "bq": bq, "bk": bk, "bv": bv, "bo": bo}


def layer_op(q: Tensor, k: Tensor | None, v: Tensor | None, mask: Tensor | None, weights: list[Tensor | None],
             keys: str, h: int, dk: int, scale: float | None, causal: bool, probs: bool) -> tuple[Tensor, Tensor]:
    """y, and the attention weights of every head, of q [b][s][d_model]; without k and v self-attention."""
    batch, rows, width = q.shape
    columns = rows if k is None else k.shape[1]
    lengths = lengths_of(keys)
    s, t = place(rows, lengths), place(columns, lengths)  # those of the kernel
    more: dict[str, Any] = {"batch": batch, "h": h, "d_model": width, "dk": dk, "seq": s, "causal": causal,
                            "probs": probs, "scale": scale, "q_len": s in lengths, "kv_len": t in lengths}
    if q.dtype != torch.float32:
        more["dtype"] = TYPES[q.dtype]["io_dtype"]
    tensors = {"q": padded(q, 1, s)}
    if k is not None and v is not None:
        require("k", k, (batch, columns, k.shape[2]))
        require("v", v, (batch, columns, v.shape[2]))
        more |= {"attention": "cross", "seq_kv": t, "k_width": k.shape[2], "v_width": v.shape[2]}
        tensors |= {"k": padded(k, 1, t), "v": padded(v, 1, t)}
    if mask is not None:
        mask = mask_bytes(mask, (batch, h, rows, columns))
        tensors["mask"] = mask = padded_mask(mask, s, t)
    kind = None if mask is None else kind_of(mask)
    if making_all and lengths:
        make_all(keys, q.dtype, kind, more)
    layer = kernel_of(keys, q.dtype, kind, tuple(more.items()))
    y = torch.empty(batch, s, width, dtype=q.dtype)
    weights_of_heads = torch.empty((batch, h, s, t) if probs else 0)
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()} | {"y": y.data_ptr()}
    if probs:
        pointers["probs"] = weights_of_heads.data_ptr()
    if more["q_len"]:
        q_len = counts(rows, batch)
        pointers["q_len"] = ctypes.addressof(q_len)
    if more["kv_len"]:
        kv_len = counts(columns, batch)
        pointers["kv_len"] = ctypes.addressof(kv_len)
    layer.run(pointers, torch.get_num_threads(), packed_of(layer, weights, layer_weights))
    if probs and (s, t) != (rows, columns):
        weights_of_heads = weights_of_heads[:, :, :rows, :columns].contiguous()
    return y if s == rows else y[:, :rows].contiguous(), weights_of_heads


def layer_fake(q, k, v, mask, weights, keys, h, dk, scale, causal, probs):
    batch, rows, width = q.shape
    columns = rows if k is None else k.shape[1]
    shape = (batch, h, rows, columns) if probs else (0,)
    return q.new_empty(batch, rows, width), q.new_empty(shape, dtype=torch.float32)


SCALES = 1e-9, 1e9  # the least and the largest of a kernel


def sdpa_op(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sink: Tensor | None, causal: bool,
            scale: float | None, softcap: float | None, keys: str) -> Tensor:
    """[b][s][h][dv] of q [b][h][s][dk], k [b][h_kv][t][dk], v [b][h_kv][t][dv]."""
    batch, h, rows, dk = q.shape
    _, h_kv, columns, dv = v.shape
    require("k", k, (batch, h_kv, columns, dk))
    require("v", v, (batch, h_kv, columns, dv))
    if scale is not None and scale < 0:
        q, scale = -q, -scale
    if scale is not None and not SCALES[0] <= scale <= SCALES[1]:
        q, scale = q * scale, 1.0
    lengths, step = lengths_of(keys), is_step(q, k)
    s, t = place(rows, lengths), place(columns, lengths)  # those of the kernel
    if step:
        s, t = rows, columns if causal else rooms(k, v)
    seen_keys = [columns] * batch
    more: dict[str, Any] = {"q_len": not step and s in lengths, "kv_len": not step and t in lengths}
    if mask is not None:
        mask = mask_bytes(mask, (batch, h, rows, columns))
        if mask.dtype == torch.bool and columns > rows:  # a cache that is not full
            seen_keys, mask = seen(mask, batch)
            more["kv_len"] = True
        if mask is not None:
            mask = padded_mask(mask, s, t)
    in_place = step and t > columns
    more["kv_len"] |= in_place
    by_rows = not in_place and k.transpose(1, 2).is_contiguous() and v.transpose(1, 2).is_contiguous()
    axis = 1 if by_rows else 2
    if by_rows:
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    q = padded(q, axis, s)
    if not in_place:
        k, v = padded(k, axis, t), padded(v, axis, t)
    more |= {"project": "none", "layout": "bshd" if by_rows else "bhsd", "batch": batch, "h": h, "h_kv": h_kv,
             "dk": dk, "dv": dv, "seq": s, "seq_kv": t, "causal": causal, "scale": scale, "softcap": softcap,
             "sink": sink is not None}
    kind = None if mask is None else kind_of(mask)
    if making_all and lengths and not step:
        make_all(keys, q.dtype, kind, more)
    layer = kernel_of(keys, q.dtype, kind, tuple(more.items()))
    y = torch.empty((batch, s, h, dv) if by_rows else (batch, h, s, dv), dtype=q.dtype)
    pointers = {"q": q.data_ptr(), "k": k.data_ptr(), "v": v.data_ptr(), "y": y.data_ptr()}
    if mask is not None:
        pointers["mask"] = mask.data_ptr()
    if more["kv_len"]:
        kv_len = (ctypes.c_int * batch)(*seen_keys)
        pointers["kv_len"] = ctypes.addressof(kv_len)
    if more["q_len"]:
        q_len = counts(rows, batch)
        pointers["q_len"] = ctypes.addressof(q_len)
    packed = None if sink is None else packed_of(layer, [sink], lambda weights: {"sink": weights[0]})
    layer.run(pointers, torch.get_num_threads(), packed)
    y = y if by_rows else y.transpose(1, 2)
    return (y if s == rows else y[:, :rows]).contiguous()


def sdpa_fake(q, k, v, mask, sink, causal, scale, softcap, keys):
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


operator("layer", "(Tensor q, Tensor? k, Tensor? v, Tensor? mask, Tensor?[] weights, str keys, int h, int dk, "
         "float? scale, bool causal, bool probs) -> (Tensor, Tensor)", layer_op, layer_fake)
operator("sdpa", "(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? sink, bool causal, float? scale, "
         "float? softcap, str keys) -> Tensor", sdpa_op, sdpa_fake)
