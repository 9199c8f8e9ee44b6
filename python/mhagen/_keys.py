"""Keyword arguments by name and type, as editors complete them. `mhagen schema` has what each key means.

    Computation    keys that change how a formula is computed, not the formula or what is in memory
    Weights        the arrays that are packed
    Layer          all keys of a layer, with its weights
"""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from numpy.typing import ArrayLike

Type = Any  # torch.bfloat16, "bfloat16", numpy.float16


class Computation(TypedDict, total=False):
    isa: str | None
    dtype: Literal["f32", "bf16", "f16", "int8"] | Type | None
    attend_dtype: Literal["f32", "bf16", "f16"] | Type | None
    ffn_dtype: Literal["f32", "bf16", "f16", "int8"] | Type | None
    sum_dtype: Literal["f32", "f16"] | Type | None
    weight_dtype: Literal["dtype", "bf16", "f16", "int8", "int4"] | Type | None
    group: int | None
    value_weight_dtype: Literal["weight_dtype", "int8"] | Type | None
    cpu: Literal["generic", "zen3", "zen4", "zen5", "sapphirerapids", "neoverse_v1", "neoverse_v2", "apple_m1",
                 "apple_m2", "native"] | None
    fold: Literal["auto", "off"] | None
    unroll: Literal["auto", "full"] | None
    tuned: str | os.PathLike[str] | None
    query_vectors: int | None
    key_rows: int | None
    context_rows: int | None
    q_lanes: Literal["queries", "columns"] | None
    qkv: Literal["separate", "joint"] | None
    q_rows: int | None
    kv_rows: int | None
    kv_vectors: int | None
    out_rows: int | None
    out_vectors: int | None
    key_block: int | None
    k_block: int | None
    head_block: int | None
    fetch: Literal["none", "panels", "shares", "ahead"] | None
    code_limit: int | None


class Weights(TypedDict, total=False):
    wq: ArrayLike | None
    wk: ArrayLike | None
    wv: ArrayLike | None
    wo: ArrayLike | None
    bq: ArrayLike | None
    bk: ArrayLike | None
    bv: ArrayLike | None
    bo: ArrayLike | None
    alibi: ArrayLike | None
    sink: ArrayLike | None
    q_norm: ArrayLike | None
    k_norm: ArrayLike | None
    rope_cos: ArrayLike | None
    rope_sin: ArrayLike | None
    norm1: ArrayLike | None
    norm1_bias: ArrayLike | None
    norm2: ArrayLike | None
    norm2_bias: ArrayLike | None
    norm1b: ArrayLike | None
    norm2b: ArrayLike | None
    gain1: ArrayLike | None
    gain2: ArrayLike | None
    w1: ArrayLike | None
    b1: ArrayLike | None
    w3: ArrayLike | None
    b3: ArrayLike | None
    w2: ArrayLike | None
    b2: ArrayLike | None


class Layer(Computation, Weights, total=False):
    h: int | None
    h_kv: int | None
    d_model: int | None
    dk: int | None
    dv: int | None
    seq: int | Sequence[int] | None
    seq_kv: int | Sequence[int] | None
    k_width: int | None
    v_width: int | None
    y_width: int | None
    name: str | None
    attention: Literal["self", "cross", "none"] | None
    causal: bool | None
    kv_len: bool | None
    batch: int | None
    probs: bool | None
    window_left: int | None
    window_right: int | None
    causal_align: Literal["top_left", "bottom_right"] | None
    kv_start: bool | None
    row_keys: Literal["none", "range"] | None
    q_len: bool | None
    mask: Literal["none", "bool", "add"] | None
    mask_dims: Literal["k", "qk", "hk", "hqk", "bk", "bqk", "bhk", "bhqk"] | None
    softcap: float | None
    scores: Literal["none", "scaled", "capped", "masked"] | None
    qk_norm: Literal["none", "rms", "layer", "l2"] | None
    norm_span: Literal["head", "each", "all"] | None
    norm_eps: float | None
    rope: Literal["none", "half", "interleaved"] | None
    rope_dims: int | None
    rope_theta: float | None
    rope_tables: Literal["packed", "apart"] | None
    rope_at: Literal["pack", "run"] | None
    cache: Literal["none", "append", "fixed"] | None
    project: str | None
    layout: Literal["bshd", "bhsd"] | None
    cache_layout: Literal["packed", "bhsd"] | None
    scale: float | None
    io_dtype: Literal["f32", "bf16", "f16"] | Type | None
    cache_dtype: Literal["f32", "bf16", "f16", "int8"] | Type | None
    out_act: Literal["none", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu", "tanh"] | None
    residual: bool | None
    norm: Literal["none", "pre", "post", "sandwich", "ffn"] | None
    norm_kind: Literal["layer", "rms"] | None
    layer_eps: float | None
    ffn: int | None
    ffn_act: Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu", "tanh"] | None
    ffn_gate: bool | None
    parallel: bool | None
