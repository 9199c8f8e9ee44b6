"""Layers that `mhagen model` finds in an ONNX file, against ONNX Runtime: each gets the values of the graph that it
reads, and must compute the one that it stands for."""
import collections
import json

import numpy as np

from reference_lib import drawn_isa
from test_import import Imported
from test_onnx import Memory
from tools import MHAGEN, run


def layers_of(path, out, *keys):
    """The layers as --values has them."""
    text = run(MHAGEN, "model", path, "-o", out, "--values", *keys)
    return [json.loads(line) for line in text.splitlines() if line]


def values_of(model, names, feeds):
    """What ONNX Runtime computes for some values of a graph."""
    import onnx
    import onnxruntime
    wanted = sorted(set(names) - {tensor.name for tensor in model.graph.initializer})
    there = {output.name for output in model.graph.output} | {value.name for value in model.graph.input}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in there)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    computed = [name for name in wanted if name not in feeds]
    values = dict(zip(computed, session.run(computed, feeds))) | feeds
    return values | {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer
                     if tensor.name in names}


def names_of(layer):
    inputs = layer["inputs"]
    return [inputs[key] for key in ("q", "k", "v", "past_k", "past_v") if key in inputs] + [layer["output"]] + \
        [mask["value"] for mask in inputs["masks"]]


def mask_of(masks, values, extents, dims):
    """One mask of several, as the kernel takes it: with the axes that it has."""
    total = None
    for mask in masks:
        x = values[mask["value"]]
        if mask["kind"] == "bool":
            seen = x.astype(bool) != mask.get("hidden", False)
            x = seen if len(masks) == 1 else np.where(seen, 0, -np.inf)
        total = x if total is None else total + x
    kind, total = ("u1" if total.dtype == bool else "f4"), np.asarray(total)
    if total.ndim > 4 or total.ndim == 3 and total.shape[0] not in (1, extents["h"]):  # heads and sequences in one
        total = np.broadcast_to(total, total.shape).reshape(-1, *total.shape[-3:]) if total.ndim > 4 else \
            total.reshape(-1, extents["h"], *total.shape[-2:])
    full = total.reshape((1,) * (4 - total.ndim) + total.shape)
    index = tuple(slice(None) if letter in dims else slice(0, 1) for letter in "bhqk")
    shape = [extents[letter] if letter in dims else 1 for letter in "bhqk"]
    return np.ascontiguousarray(np.broadcast_to(full[index], shape).astype(kind))


def config_of(text, kernel):
    """The keys of a kernel in the summary."""
    for line in text.splitlines():
        pairs = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "h" in pairs and "isa" in pairs:
            yield pairs


def compare(path, model, feeds, out, *keys, isa=None):
    """The relative error of each layer, by name."""
    isa = isa or drawn_isa(str(path))
    names = layers_of(path, out / "names", f"isa={isa}", "seq=8", *keys)
    values = values_of(model, {name for layer in names for name in names_of(layer)}, feeds)
    groups, errors = collections.defaultdict(list), {}
    for layer in names:
        q, k = (np.asarray(values[layer["inputs"].get(key, layer["inputs"]["q"])]) for key in "qk")
        groups[layer["kernel"], q.shape, k.shape].append(layer)
    for number, ((_, q_shape, k_shape), group) in enumerate(groups.items()):
        for name, error in compare_group(path, values, q_shape, k_shape, group, out / str(number), isa, keys):
            errors[name] = error
    return errors


def rows(shape, layout, projected, heads):
    """Sequences and rows of an input."""
    if projected or layout != "bhsd":
        flat = shape if projected or len(shape) < 4 else shape[:-2] + (shape[-2] * shape[-1],)
        return int(np.prod(flat[:-2])), flat[-2]
    return int(np.prod(shape[:-2])) // heads, shape[-2]


def compare_group(path, values, q_shape, k_shape, group, out, isa, keys):
    seq_keys = ["seq=8"]
    text = run(MHAGEN, "model", path, "-o", out / "first", f"isa={isa}", *seq_keys, *keys, "--only", group[0]["layer"])
    config = next(config_of(text, None))
    heads, h_kv = int(config["h"]), int(config.get("h_kv", config["h"]))
    project = config.get("project", "qkvo")
    layout = config.get("layout", "bshd")
    batch, seq = rows(q_shape, layout, "q" in project, heads)
    _, seq_kv = rows(k_shape, layout, "k" in project, h_kv)
    sizes = [f"seq={seq}", f"batch={batch}"] + [f"seq_kv={seq_kv}"] * (seq_kv != seq)
    imported = Imported(path, out / "layers", f"isa={isa}", *sizes, *keys)
    for layer in group:
        inputs, memory = layer["inputs"], Memory()
        args = {key: memory.of(values[inputs[key]], "f4") for key in "qkv" if key in inputs}
        if inputs["masks"] and "mask" in config:
            extents = {"b": batch, "h": heads, "q": seq, "k": seq_kv}
            mask = mask_of(inputs["masks"], values, extents, config.get("mask_dims", "qk"))
            args["mask"] = memory.of(mask, mask.dtype)
        expected = values[layer["output"]]
        y = memory.of(np.full(expected.shape, np.nan), "f4")
        imported.run(layer["layer"], y=y.ctypes.data, **{key: x.ctypes.data for key, x in args.items()})
        yield layer["layer"], float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
