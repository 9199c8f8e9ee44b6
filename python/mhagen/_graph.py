"""Modules of PyTorch as ONNX graphs, in which `mhagen model` finds attention and proves it.

    export(model, example, out, ...)    the kernels, the packed weights and the table of a model's attention
    Call(args, kwargs)                  the arguments of a module as a list of tensors
    write(model, call, path, forward)   an ONNX file of the module with these arguments
    values_of(path, out, options)       what `mhagen model` says of the layers in it

PyTorch has two exporters. The older one traces, takes a tenth of the time and needs no other package; the other one
knows more operators and needs onnxscript. It is asked where the older one fails.
"""
from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from . import _build

INPUT, RESULT = "input_{}", "result"  # names of values in the graph


class Call:
    """Arguments as a list of tensors, each of them once. `fixed` are numbers of the graph instead of its inputs."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], fixed: Callable[[int], bool] = lambda at: False):
        self.leaves, self.spec = _pytree.tree_flatten((tuple(args), dict(kwargs)))
        every: dict[int, list[int]] = {}  # the leaves that are the same tensor
        for at, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor):
                every.setdefault(id(leaf), []).append(at)
        groups = list(every.values())
        self.places = [places for number, places in enumerate(groups) if not fixed(number)]
        self.fixed = [self.leaves[places[0]] for number, places in enumerate(groups) if fixed(number)]
        self.tensors = tuple(self.leaves[places[0]] for places in self.places)
        self.result: list[Any] = []  # the leaves of the result, once it was traced
        self.result_spec: Any = None

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        leaves = list(self.leaves)
        for places, tensor in zip(self.places, tensors):
            for at in places:
                leaves[at] = tensor
        return _pytree.tree_unflatten(leaves, self.spec)


def call_of(example: Any) -> Call:
    """An example of mhagen.torch: a tensor, a tuple of arguments or a dict of them."""
    if isinstance(example, Mapping):
        return Call((), example)
    return Call(example if isinstance(example, (tuple, list)) else (example,), {})


# ---- operators that the older exporter does not know, in others ----

def difference(x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
               ) -> Tensor:
    x = torch.cat([each for each in (prepend, x, append) if each is not None], dim)
    for _ in range(n):
        x = x.narrow(dim, 1, x.shape[dim] - 1) - x.narrow(dim, 0, x.shape[dim] - 1)
    return x


def rms_norm(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
             ) -> Tensor:
    axes = list(range(-len(normalized_shape), 0))
    y = x * torch.rsqrt(x.pow(2).mean(axes, keepdim=True) + (torch.finfo(x.dtype).eps if eps is None else eps))
    return y if weight is None else y * weight


def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """A mask of bool stays the condition of scores: the exporter adds -inf."""
    if enable_gqa:
        k, v = (each.repeat_interleave(q.shape[-3] // each.shape[-3], -3) for each in (k, v))
    if attn_mask is None or attn_mask.dtype != torch.bool or dropout_p > 0:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.where(attn_mask, scores, float("-inf")).softmax(-1) @ v


def multihead(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor,
              key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
              average_attn_weights: bool = True, is_causal: bool = False) -> tuple[Tensor, None]:
    """The forward of a module of self-attention whose rows lie as [batch][rows]: its own turns them round twice. What
    it leaves out, as weights, is noticed where results are compared."""
    if module.in_proj_weight is None or not module.batch_first or query is not key or key is not value:
        raise ValueError("nn.MultiheadAttention is not of one input, [batch][rows][width]")
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    q, k, v = (nn.functional.linear(query, weight, bias).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
               for weight, bias in zip(module.in_proj_weight.chunk(3), biases))
    if key_padding_mask is not None:
        padding = key_padding_mask[:, None, None]
        attn_mask = padding if attn_mask is None else attn_mask + padding
    y = attention(q, k, v, attn_mask)
    return module.out_proj(y.transpose(1, 2).flatten(2)), None


PLAIN: dict[Any, Callable[..., Tensor]] = {
    Tensor.mT.__get__: lambda x: x.transpose(-2, -1), torch.diff: difference, Tensor.diff: difference,
    nn.functional.rms_norm: rms_norm, torch.rms_norm: rms_norm,
    Tensor.masked_fill: lambda x, mask, value: torch.where(mask, value, x),  # whose condition is the mask itself
    nn.functional.scaled_dot_product_attention: attention}


class Plain(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return PLAIN.get(func, func)(*args, **(kwargs or {}))


# ---- exporters ----

@contextlib.contextmanager
def of_tensors(model: nn.Module, call: Call, forward: Callable[..., Any]) -> Iterator[None]:
    """The module takes tensors and returns tensors. It is no part of another one, so that nodes have its names."""
    own = model.__dict__.get("forward")

    def traced(*tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = call.arguments(tensors)
        call.result, call.result_spec = _pytree.tree_flatten(forward(*args, **kwargs))
        return tuple(leaf for leaf in call.result if isinstance(leaf, Tensor))
    model.__dict__["forward"] = traced
    try:
        yield
    finally:
        del model.__dict__["forward"]
        if own is not None:
            model.__dict__["forward"] = own


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What exporters say of themselves, and the older one of a graph that it refuses. Errors are raised."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), torch.no_grad(), mock.patch.object(torch._C, "_jit_onnx_log", create=True):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def no_fast_path() -> Iterator[None]:
    """PyTorch's own layers are not one operator."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def by_parts() -> Iterator[None]:
    """The same, and their attention is products and a softmax."""
    with no_fast_path(), mock.patch.object(nn.MultiheadAttention, "forward", multihead):
        yield


def by_tracing(model: nn.Module, call: Call, path: pathlib.Path, names: dict[str, list[str]]) -> None:
    with Plain():
        torch.onnx.export(model, call.tensors, str(path), dynamo=False, **names)


def by_program(model: nn.Module, call: Call, path: pathlib.Path, names: dict[str, list[str]]) -> None:
    program = torch.onnx.export(model, call.tensors, dynamo=True, verbose=False, **names)
    for node in program.model.graph:
        scopes = [scope for scope in str(node.metadata_props.get("pkg.torch.onnx.name_scopes", "")).split("'")[1::2]]
        node.name = f"{'/'.join(['', *scopes[-2:-1]]).rstrip('/')}/{node.name}"
    program.save(str(path))


def write(model: nn.Module, call: Call, path: pathlib.Path, forward: Callable[..., Any]) -> None:
    """forward: that of the module, or what stands for it. Raises ValueError with PyTorch's reason."""
    names = {"input_names": [INPUT.format(at) for at in range(len(call.tensors))], "output_names": [RESULT]}
    ways, hint = [by_tracing, by_program], ""
    if importlib.util.find_spec("onnxscript") is None:
        ways, hint = [by_tracing], "; for PyTorch's other exporter: pip install onnxscript"
    first = None
    for way in ways:
        try:
            with quiet(), of_tensors(model, call, forward):
                way(model, call, path, names)
            return
        except Exception as error:  # exporters raise anything
            first = first or error
    reason = f"{type(first).__name__}: {first}".strip().splitlines()[0]
    raise ValueError(f"mhagen: {type(model).__name__}: PyTorch does not export it: {reason}{hint}") from first


# ---- what is in a graph ----

class Layer(NamedTuple):
    """A layer of attention. module: its path in the model; node: its name in the table of the C files."""
    module: str
    node: str
    kernel: str
    config: str
    notes: tuple[str, ...]


class Left(NamedTuple):
    """A softmax that is in no kernel, and why."""
    module: str
    node: str
    why: str


class Exported(NamedTuple):
    folder: pathlib.Path
    layers: list[Layer]
    left: list[Left]

    def __str__(self) -> str:
        found = [f"{layer.module or 'it'}: {layer.config}" for layer in self.layers]
        notes = {f"  {note}": None for layer in self.layers for note in layer.notes}
        return "\n".join([*found, *notes, *(f"{left.module or 'it'}: no layer: {left.why}" for left in self.left)])


def values_of(path: pathlib.Path, out: str | os.PathLike[str], options: Sequence[str], **run: Any
              ) -> list[dict[str, Any]]:
    """The lines of `mhagen model --values`."""
    try:
        text = _build.ask("model", str(path), *options, "-o", os.fspath(out), "--values", **run)
    except ValueError as error:
        raise ValueError(str(error).replace(f"{path.parent}{os.sep}", "")) from None
    return [json.loads(line) for line in text.splitlines()]


def module_of(model: nn.Module, node: str) -> str:
    """The path of the module that a node is of, but for a softmax that is a module itself. Names of the older exporter
    have a list that is called twice, as in /blocks/blocks.0/attn/Softmax."""
    parts: list[str] = []
    for part in node.strip("/").split("/")[:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(part)
    path, known = ".".join(parts), dict(model.named_modules())
    while path and (path not in known or isinstance(known[path], (nn.Softmax, nn.Dropout))):
        path = path.rpartition(".")[0]
    return path


def export(model: nn.Module, example: Any, out: str | os.PathLike[str], *options: str, **keys: Any) -> Exported:
    """Writes what `mhagen model` writes of a model: the kernels of its attention, its packed weights and a table of its
    layers, for programs without Python. Attention is found in the model's graph, and proved by evaluating it. example:
    as replace has it; lengths are its own. options are those of the command, as "--embed"; keys those of a config, as
    isa="avx2". What is refused raises ValueError, and nothing is written."""
    if model.training:
        raise ValueError("mhagen: the model is in training: call eval() first")
    words = [_build.word(key, value) for key, value in {"isa": "native", **keys}.items() if value is not None]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, f"{type(model).__name__}.onnx")
        write(model, call_of(example), path, model.forward)
        values = values_of(path, out, [*words, *options], umask=-1)
    layers = [Layer(module_of(model, each["layer"]), each["layer"], each["kernel"], each["config"],
                    tuple(each.get("notes", ()))) for each in values if "layer" in each]
    left = [Left(module_of(model, each["no_layer"]), each["no_layer"], each["why"])
            for each in values if "no_layer" in each]
    return Exported(pathlib.Path(out), layers, left)
