"""Modules of transformers that project, attend and project again, as one kernel.

    FAMILIES                        the modules that are known, and the names of their nn.Linear
    take(name, module, settings)    gives a known module another forward; settings: of mhagen.torch

The first call of each shape is computed by the module too. If results differ the module keeps its own forward; so it
does for arguments that are not known, as a cache, and while one of its parts has hooks.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Names(NamedTuple):
    q: str
    k: str
    v: str
    o: str
    norm: str = ""  # of what o makes and the input of the module


BERT = Names("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm")
VIT = Names("q_proj", "k_proj", "v_proj", "o_proj")
BART = Names("q_proj", "k_proj", "v_proj", "out_proj")
FAMILIES: dict[str, Names] = {
    "AlbertAttention": Names("query", "key", "value", "dense", "LayerNorm"),
    "DistilBertSelfAttention": Names("q_lin", "k_lin", "v_lin", "out_lin"),
    **dict.fromkeys(("BertAttention", "CamembertAttention", "ElectraAttention", "RobertaAttention",
                     "XLMRobertaAttention"), BERT),
    **dict.fromkeys(("DeiTAttention", "Dinov2Attention", "ViTAttention"), VIT),
    **dict.fromkeys(("BartAttention", "CLIPAttention", "HubertAttention", "M2M100Attention", "MarianAttention",
                     "MBartAttention", "SiglipAttention", "Wav2Vec2Attention", "WhisperAttention"), BART)}

WIDTHS, SCALES = ("attention_head_size", "head_dim"), ("scaling", "scale")  # as modules call them
HARMLESS = {"num_items_in_batch", "output_hidden_states", "return_dict", "use_cache"}
MOST = 1e-4  # difference, over the norm of the result
ROUNDED = 0.1  # where numbers are rounded


def first_of(module: nn.Module, names: Sequence[str]) -> Any:
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


class Projections:
    """forward stands in the place of a module's own."""

    def __init__(self, name: str, module: nn.Module, settings: Any):
        self.name, self.module, self.settings = name, module, settings
        self.names = FAMILIES[type(module).__name__]
        self.owner = module.get_submodule(self.names.q.rpartition(".")[0])
        self.right: dict[Any, bool] = {}  # whether the kernels of a shape compute what the module does

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = self.plain_call(args, kwargs)
        linears = [self.module.get_submodule(name) for name in self.names[:4]]
        if given is None or not self.is_plain(linears):
            return self.original(args, kwargs)
        x, mask, causal = given
        weights = [None, *(linear.weight for linear in linears[:3]), None, *(linear.bias for linear in linears[:3]),
                   linears[3].weight, linears[3].bias]
        if not self.settings.takes(self.name, [x], self.module.training, weights, [mask]):
            return self.original(args, kwargs)
        shape = self.settings.padded((x.shape,))[0], causal, None if mask is None else (mask.dtype, mask.shape[:2])
        new = shape not in self.right and not torch.compiler.is_compiling()
        found = self.compute(x, mask, causal, weights) if new or self.right.get(shape) else None
        if new:
            self.right[shape] = self.is_right(found, x, mask, args, kwargs)
        return (found, None) if self.right.get(shape) else self.original(args, kwargs)

    def original(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return type(self.module).forward(self.module, *args, **kwargs)

    def plain_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor | None, bool] | None:
        """Rows, mask and whether attention is causal, of a call without other arguments."""
        values = {**dict(zip(("hidden_states", "attention_mask", *map(str, range(len(args)))), args)), **kwargs}
        x, mask, causal = (values.pop(name, None) for name in ("hidden_states", "attention_mask", "is_causal"))
        if any(value is not None and value is not False and name not in HARMLESS for name, value in values.items()):
            return None
        if not isinstance(x, Tensor) or x.dim() != 3 or mask is not None and (
                not isinstance(mask, Tensor) or mask.dim() != 4):
            return None
        causal = getattr(self.owner, "is_causal", True) if causal is None else causal
        return x, mask, bool(causal) and x.shape[1] > 1 and mask is None

    def is_plain(self, linears: Sequence[nn.Module]) -> bool:
        """Whether nothing but plain linear maps would be called."""
        q, k, v, o = linears
        return all(type(linear) is nn.Linear for linear in linears) and \
            q.in_features == k.in_features == v.in_features == o.out_features and \
            q.out_features == k.out_features == v.out_features == o.in_features and \
            not any(part._forward_hooks or part._forward_pre_hooks or "forward" in part.__dict__
                    for part in self.module.modules() if part is not self.module)

    def compute(self, x: Tensor, mask: Tensor | None, causal: bool, weights: list[Tensor | None]) -> Tensor:
        width = first_of(self.owner, WIDTHS)
        heads = self.module.get_submodule(self.names.q).out_features // width
        y, _ = torch.ops.mhagen.layer(x, None, None, mask, weights, self.settings.keys, heads, width,
                                      first_of(self.owner, SCALES), causal, False)
        return self.module.get_submodule(self.names.norm)(y + x) if self.names.norm else y

    def is_right(self, found: Tensor, x: Tensor, mask: Tensor | None, args: Sequence[Any], kwargs: dict[str, Any]
                 ) -> bool:
        """Whether the module computes the same. If not, the reason is told."""
        self.settings.checking = True
        try:
            result = self.original(args, kwargs)
        finally:
            self.settings.checking = False
        reason = "its result is no tuple of a tensor and None"
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor) and result[1] is None:
            sees = slice(None) if mask is None or mask.dtype != torch.bool else \
                mask.expand(x.shape[0], mask.shape[1], *x.shape[1:2], -1).any(3).all(1)
            right = result[0][sees].float()
            difference = float((found[sees].float() - right).norm() / right.norm())
            rounds = x.dtype != torch.float32 or "dtype" in self.settings.keys
            if difference <= (ROUNDED if rounds else MOST):
                return True
            reason = f"its result differs by {difference:.1e} from that of its projections"
        self.settings.forget(self.name, (x.shape,))
        self.settings.tell(self.name, reason)
        return False


def take(name: str, module: nn.Module, settings: Any) -> None:
    if type(module).__name__ in FAMILIES and type(module).__module__.startswith("transformers.models.") and \
            isinstance(getattr(module.forward, "__self__", None), (type(module), Projections)):
        module.__dict__["forward"] = Projections(name, module, settings).forward
