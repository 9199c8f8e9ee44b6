"""Attention on CPUs by C that is written for one shape.

    layer = mhagen.attention(h=12, d_model=384, dk=32, seq=128, wq=wq, wk=wk, wv=wv, wo=wo)
    y = layer(x)

mhagen.torch replaces the attention of models of PyTorch. docs/python.md has the rest.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _build, _keys, _native
from ._layer import SWITCHES, WEIGHTS, Attention

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Attention", "attention", "program", "version"]


def program() -> str:
    """The path of the command `mhagen`."""
    return _build.program()


def version() -> str:
    """That of the program, which makes the kernels."""
    return _build.ask("--version").split()[1]


def __getattr__(name: str) -> str:
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def attention(*, threads: int = 1, out_in: bool = False, **keys: Unpack[_keys.Layer]) -> Attention:
    """A layer of a config: h, d_model, dk, seq and all keys of docs/config.md, with the values that Python has for
    them; isa is "native" where it is not given. The first call of a config writes its C and compiles it with $CC;
    others find it in the cache.

    Weights (wq, wk, wv, wo, bq, ..., y = x W, or with out_in as torch.nn.Linear has them) may be given here, or to
    the layer's pack. An array for `sink` or `alibi` switches the key on too. Calls run on so many threads, unless a
    call says another number. A config that mhagen refuses is a ValueError with its line."""
    config: dict[str, Any] = {"isa": "native", **keys}
    weights = {name: config.pop(name) for name in WEIGHTS
               if name in config and not (name in SWITCHES and isinstance(config[name], (bool, str)))}
    config.update({name: True for name in SWITCHES if weights.get(name) is not None})
    layer = Attention(_native.load(_build.words(config)), threads)
    return layer.pack(out_in=out_in, **weights) if any(array is not None for array in weights.values()) else layer
