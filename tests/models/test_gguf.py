"""`mhagen model` of GGUF files that the package gguf writes: attention against the formula of llama.cpp's source, at
commit 0c1e57098. gguf_models.py has the files."""
import math

import pytest

import gguf_models
from reference_lib import drawn_isa
from tools import in_turn, installed

if not installed("numpy", "torch", "safetensors", "gguf"):
    pytest.skip("NumPy, PyTorch, safetensors or gguf is not installed", allow_module_level=True)

import gguf
import numpy
import torch

from test_import import Imported
from test_models import pointers

BATCH, ROWS, REAL = 2, 9, 6  # texts, rows, and those of the first text that are no padding
NEAR = 1e-5  # of the largest result: float32 against float64
OUT_OF_FEW = 6  # blocks of which each is compared; of more some are


# ---- the formula ----


def angles(s, positions):
    """Of ggml_rope_cache_init and rope_yarn: cosines and sines of pairs, of each place."""
    dims, base, by = s["dims"], s["base"], s.get("factor", 1.0)
    pairs = numpy.arange(dims // 2)
    theta = numpy.outer(positions, base ** (-2.0 * pairs / dims)) / s.get("divided", 1.0)
    if "sections" in s:  # ggml_mrope_cache_init of imrope: in texts the fourth place is 0
        sector = pairs % sum(s["sections"])
        theta = theta * (sector < 3 * numpy.take(s["sections"], sector % 3))
    size, turned = s.get("attn_factor", 1.0), theta / by
    if s.get("yarn"):
        def corrected(rotations):
            return dims * math.log(16 / (rotations * 2 * math.pi)) / (2 * math.log(base))
        fast, slow, weight = s["yarn"]
        low, high = max(0, math.floor(corrected(fast))), min(dims - 1, math.ceil(corrected(slow)))
        mix = 1 - numpy.clip((pairs - low) / max(0.001, high - low), 0, 1)
        turned = theta / by * (1 - mix) + theta * mix
        size *= (0.1 * math.log(by) + 1) / (0.1 * weight * math.log(by) + 1)
    return numpy.cos(turned) * size, numpy.sin(turned) * size


def rope(x, s):
    """x: [rows, heads, columns]."""
    if not s.get("rope"):
        return x
    cos, sin = (table[:, None] for table in angles(s, numpy.arange(len(x))))
    dims, y = s["dims"], x.copy()
    one, two = ((slice(0, dims // 2), slice(dims // 2, dims)) if s["rope"] == "neox"
                else (slice(0, dims, 2), slice(1, dims, 2)))
    y[..., one], y[..., two] = x[..., one] * cos - x[..., two] * sin, x[..., one] * sin + x[..., two] * cos
    return y


def norm(x, gains, s):
    if not s.get("norm"):
        return x
    whole = x.reshape(len(x), 1, -1) if s.get("span") == "all" else x
    if s["norm"] == "layer":
        whole = whole - whole.mean(-1, keepdims=True)
    whole = whole / numpy.sqrt((whole * whole).mean(-1, keepdims=True) + s["eps"])
    return (whole if gains is None else whole * gains).reshape(x.shape)


def normed(v, s):
    """Values of Gemma 3n and 4, which have a norm without gains: a kernel takes them as they are then."""
    return norm(v, None, {**s, "span": "heads"})


def slopes(heads):
    """Of ggml_soft_max_ext with max_bias = 8."""
    power = 1 << math.floor(math.log2(heads))
    return numpy.array([(2 ** (-8 / power)) ** (h + 1) if h < power
                        else (2 ** (-4 / power)) ** (2 * (h - power) + 1) for h in range(heads)])


def of_distance(s, rows):
    """ALiBi, or build_pos_bias with drawn numbers for distances: [heads, rows, keys]."""
    distance = numpy.arange(rows) - numpy.arange(rows)[:, None]
    if s.get("drawn"):
        return numpy.random.default_rng(5).normal(size=(s["h"], 2 * rows))[:, distance + rows]
    return -abs(distance) * slopes(s["h"])[:, None, None] * (1 if s.get("alibi") else 0)


def bias(s, rows, real):
    """What is added to scores of a row for a key: [heads, rows, keys]."""
    row, key = numpy.arange(rows)[:, None], numpy.arange(rows)
    hidden = (key >= real) | (row < 0)
    if s.get("causal", True):
        hidden = hidden | (key > row)
    if s.get("window"):
        hidden = hidden | (row - key >= s["window"])
    if s.get("both") is not None:
        hidden = hidden | (abs(row - key) > s["both"])
    return numpy.where(hidden, -numpy.inf, of_distance(s, rows))


def attention(x, w, s, real):
    """build_qkv, norms, rope and build_attn. x: rows of one text."""
    def heads(of, count):
        y = x @ w[f"attn_{of}.weight"].T + w.get(f"attn_{of}.bias", 0)
        return y.reshape(len(x), count, -1)

    q, k, v = heads("q", s["h"]), heads("k", s["h_kv"]), heads("v", s["h_kv"])
    gains = w.get("attn_q_norm.weight"), w.get("attn_k_norm.weight")
    if s.get("span") == "behind":
        q, k = norm(rope(q, s), gains[0], s), norm(rope(k, s), gains[1], s)
    else:
        q, k = rope(norm(q, gains[0], s), s), rope(norm(k, gains[1], s), s)
    if s.get("normed"):
        v = normed(v, s)
    k, v = (numpy.repeat(of, s["h"] // s["h_kv"], axis=1) for of in (k, v))
    scores = numpy.einsum("rhc,khc->hrk", q, k) * s.get("scale", q.shape[-1] ** -0.5)
    if s.get("softcap"):
        scores = s["softcap"] * numpy.tanh(scores / s["softcap"])
    scores = scores + bias(s, len(x), real)
    if s.get("sink"):
        scores = numpy.concatenate([scores, numpy.tile(w["attn_sinks.weight"][:, None, None], (1, len(x), 1))], -1)
    weights = numpy.exp(scores - scores.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True))[..., :len(x)]
    y = numpy.einsum("hrk,khc->rhc", weights, v).reshape(len(x), -1)
    return (y @ w["attn_output.weight"].T + w.get("attn_output.bias", 0)) * s.get("out", 1.0)


# ---- files ----


class File:
    """The fields of a case, and tensors of its blocks, drawn."""

    def __init__(self, case):
        self.case = case
        self.fields = {**gguf_models.FIELDS, **case.fields, "block_count": case.blocks}
        self.draw = numpy.random.default_rng(sum(map(ord, case.name or case.arch)))
        self.shared = {name: 1 + self.draw.random(shape) for name, shape in case.tensors.items()
                       if not name.startswith("attn_")}
        self.blocks = {il: self.block(self.formula(il)) for il in range(case.blocks) if case.has(il)}

    def formula(self, il):
        s = {name: value(il) if callable(value) else value for name, value in self.case.formula.items()}
        sizes = {name: self.fields[f"attention.{of}"] for name, of in [
            ("h", "head_count"), ("h_kv", "head_count_kv"), ("dk", "key_length"), ("dv", "value_length"),
            ("dims", "key_length")]}
        s = {**sizes, **{name: value for name, value in s.items() if value is not None}}
        if "divisors" in s:
            s["divided"] = self.shared[s["divisors"]]
        return s

    def block(self, s):
        d, dk, dv = self.fields["embedding_length"], s["dk"], s["dv"]
        shapes = {"q": (s["h"] * dk, d), "k": (s["h_kv"] * dk, d), "v": (s["h_kv"] * dv, d), "o": (d, s["h"] * dv)}
        tensors = {}
        for letter, shape in shapes.items():
            name = "attn_output" if letter == "o" else f"attn_{letter}"
            tensors[f"{name}.weight"] = self.draw.normal(size=shape) * 1.5 * (shape[0] * shape[1]) ** -0.25
            if letter in self.case.biases:
                tensors[f"{name}.bias"] = self.draw.normal(size=shape[0])
        for name, shape in self.case.tensors.items():
            if name.startswith("attn_"):
                tensors[name] = 1 + 0.3 * self.draw.normal(size=[s.get(size, size) for size in shape])
        return {name: x.astype("f4") for name, x in tensors.items()}

    def name(self, il, tensor):
        if self.case.arch == "t5encoder":
            return f"enc.blk.{il}.{tensor.replace('attn_output', 'attn_o')}"
        return f"blk.{il}.{tensor}"

    def write(self, path):
        writer = gguf.GGUFWriter(path, self.case.arch)
        for name, value in self.fields.items():
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
                   list: writer.add_array, type(None): lambda name, value: None}
            add[type(value)](f"{self.case.arch}.{name}", value)
        for name, x in self.shared.items():
            writer.add_tensor(name, x.astype("f4"))
        for il, tensors in self.blocks.items():
            for name, x in (joint(tensors) if self.case.joint else tensors).items():
                writer.add_tensor(self.name(il, name), numpy.ascontiguousarray(x))
        for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file,
                      writer.close):
            write()
        return path


def joint(tensors):
    """With one matrix and one bias of Q, K and V."""
    others = {name: x for name, x in tensors.items() if name.split(".")[0] not in ("attn_q", "attn_k", "attn_v")}
    for kind in "weight", "bias":
        parts = [tensors[name] for name in (f"attn_{of}.{kind}" for of in "qkv") if name in tensors]
        if parts:
            others[f"attn_qkv.{kind}"] = numpy.concatenate(parts)
    return others


def drawn_blocks(file):
    """All of few blocks; of many the first ones and the last one."""
    all_ = list(file.blocks)
    return all_ if len(all_) <= OUT_OF_FEW else [*all_[:5], all_[-1]]


NAMES = [case.name or case.arch for case in gguf_models.ROWS]


@pytest.mark.parametrize("name", in_turn(NAMES, "GGUF", count=8))
def test_architecture(name, tmp_path):
    case = gguf_models.ROWS[NAMES.index(name)]
    file = File(case)
    imported = Imported(file.write(tmp_path / "model.gguf"), tmp_path / "out", f"isa={drawn_isa(name)}",
                        f"seq={ROWS}", f"batch={BATCH}")
    assert list(imported.layers) == [file.name(il, "")[:-1] for il in file.blocks]
    for il in drawn_blocks(file):
        s, weights = file.formula(il), {name: x.astype("f8") for name, x in file.blocks[il].items()}
        x, y = file.draw.normal(size=(BATCH, ROWS, 32)).astype("f4"), numpy.empty((BATCH, ROWS, 32), "f4")
        y[:] = numpy.nan
        both = not s.get("causal", True)
        real = [REAL if both else ROWS, ROWS]
        expected = numpy.stack([attention(text.astype("f8"), weights, s, count) for text, count in zip(x, real)])
        given = {"kv_len": torch.tensor(real, dtype=torch.int32)} if both else {}
        if s.get("masked"):
            given["mask"] = torch.tensor(of_distance(s, ROWS)).float().contiguous()
        if s.get("normed"):
            v = (x @ weights["attn_v.weight"].T).reshape(BATCH * ROWS, s["h_kv"], -1)
            given |= {"k": torch.tensor(x), "v": torch.tensor(normed(v, s).astype("f4"))}
        imported.run(file.name(il, "")[:-1], y=y.ctypes.data, q=x.ctypes.data, **pointers(given))
        for text, wanted, count in zip(y, expected, real):
            assert abs(text - wanted)[:count].max() <= NEAR * abs(wanted[:count]).max(), (il, imported.text)


def test_names():
    """Those of the package gguf, or of a newer llama.cpp."""
    newer = {"cohere2moe", "granite_swa", "hy_v3", "maple", "mellum", "minimax-01", "nanbeige", "pockettts", "qwen3tts",
             "talkie"}
    assert {case.arch for case in gguf_models.ROWS} - {*gguf.MODEL_ARCH_NAMES.values()} <= newer
