"""Layers that `mhagen model` finds in an ONNX file, against ONNX Runtime: each gets the values of the graph that it
reads, and must compute the one that it stands for."""
import json
import subprocess

import numpy as np

from reference_lib import drawn_isa
from test_import import Imported
from test_onnx import Memory
from tools import MHAGEN, run


def layers_of(path, out, *keys):
    """The layers as --values has them."""
    text = run(MHAGEN, "model", path, "-o", out, "--values", *keys)
    values = [json.loads(line) for line in text.splitlines() if line]
    return [each for each in values if "layer" in each]


def rows_of(path, out, rows):
    """The key of rows that a graph leaves open; of one whose rows are the same in all runs nothing."""
    words = [MHAGEN, "model", path, "-o", out, "isa=scalar"]
    said = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600).stdout
    return [f"seq={rows}"] if "seq: is required" in said or "seq_kv: give" in said else []


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
    """The masks of a layer as one, with the axes that the kernel's has."""
    total = None
    for mask in masks:
        x = np.asarray(values[mask["value"]])
        if mask["kind"] == "bool":
            x = x.astype(bool) != mask.get("hidden", False)
            x = x if len(masks) == 1 else np.where(x, 0, -np.inf)
        full = [extents[letter] if letter in mask["axes"] else 1 for letter in "bhqk"]
        x = x.reshape(full) if x.size == np.prod(full) else np.broadcast_to(x, full)
        total = x if total is None else total + x
    index = tuple(slice(None) if letter in dims else slice(0, 1) for letter in "bhqk")
    shape = [extents[letter] if letter in dims else 1 for letter in "bhqk"]
    kind = "u1" if total.dtype == bool else "f4"
    return np.ascontiguousarray(np.broadcast_to(total[index], shape).astype(kind))


def config_of(text):
    """The keys of the first kernel in a summary."""
    for line in text.splitlines():
        pairs = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "h" in pairs and "isa" in pairs:
            return pairs
    raise AssertionError(text)


def weights_of(model, layer):
    """The value that a layer's Softmax makes, or nothing."""
    return next((node.output[0] for node in model.graph.node if node.op_type == "Softmax" and layer["layer"] in (
        node.name, f"Softmax of {node.output[0]}")), None)


def extents_of(layer, values, config, weights):
    """Sequences, heads, rows and keys of a layer: by its attention weights, else by its inputs."""
    project, layout, inputs = config.get("project", "qkvo"), config.get("layout", "bshd"), layer["inputs"]
    heads = int(config["h"])
    extents = {"h": heads}
    if weights is not None:
        return extents | {"q": weights.shape[-2], "k": weights.shape[-1],
                          "b": int(np.prod(weights.shape[:-2])) // heads}
    for letter, axis, count in [("q", "q", heads), ("k", "k", int(config.get("h_kv", heads)))]:
        shape = values[inputs.get(letter, inputs["q"])].shape
        if letter in project or letter == "k" and "k" not in inputs:
            shape = shape if shape[-1] == int(config.get("k_width" if letter == "k" else "d_model", shape[-1])) else ()
            extents["b"], extents[axis] = int(np.prod(shape[:-2])), shape[-2]
        elif layout == "bhsd":
            extents["b"], extents[axis] = int(np.prod(shape[:-2])) // count, shape[-2]
        else:
            wide = len(shape) == 3
            extents["b"], extents[axis] = shape[0], shape[1] if wide else shape[-3]
    return extents


def check_mask(out, layer, values, config, extents):
    """The file of a mask that no input changes, against ONNX Runtime's numbers."""
    file, masks = np.load(out / layer["mask_file"]), layer["inputs"]["masks"]
    mask = mask_of(masks, values, extents, config["mask_dims"])
    shown = np.float32 if config["mask"] == "add" else bool
    assert (out / layer["mask_file"]).stat().st_size == 128 + file.nbytes
    assert file.dtype == shown and file.shape == tuple(mask.shape["bhqk".index(letter)]
                                                       for letter in config["mask_dims"])
    np.testing.assert_allclose(file.reshape(mask.shape).astype(mask.dtype), mask, rtol=1e-5)


def compare(path, model, feeds, out, *keys, isa=None):
    """The relative error of each layer, by name."""
    isa = isa or drawn_isa(str(path))
    rows = rows_of(path, out / "names", 8)
    names = layers_of(path, out / "names", f"isa={isa}", *rows, *keys)
    weights = {layer["layer"]: weights_of(model, layer) for layer in names}
    wanted = {name for layer in names for name in names_of(layer)} | set(weights.values()) - {None}
    values = values_of(model, wanted, feeds)
    errors, made = {}, {}
    for number, layer in enumerate(names):
        text = run(MHAGEN, "model", path, "-o", out / "names", f"isa={isa}", *rows, *keys, "--only", layer["layer"])
        config = config_of(text)
        extents = extents_of(layer, values, config, values.get(weights[layer["layer"]]))
        if "mask_file" in layer:
            check_mask(out / "names", layer, values, config, extents)
        sizes = [f"seq={extents['q']}"]
        if layer.get("swapped"):
            assert extents["b"] == 1 or extents["q"] == 1
        else:
            sizes += [f"batch={extents['b']}"]
        cross = config.get("attention") == "cross" or "k" in layer["inputs"]
        sizes += [f"seq_kv={extents['k']}"] * (cross and not any(key.startswith("seq_kv=") for key in keys))
        only = [] if len(names) == sum(other["kernel"] == layer["kernel"] for other in names) else ["--only",
                                                                                                layer["layer"]]
        key = (*sizes, *only)
        if key not in made:
            made[key] = Imported(path, out / str(number), f"isa={isa}", *sizes, *keys, *only)
        errors[layer["layer"]] = error_of(made[key], layer, values, config, extents)
    return errors


def error_of(imported, layer, values, config, extents):
    inputs, memory = layer["inputs"], Memory()
    args = {key: memory.of(values[inputs[key]], "f4") for key in "qkv" if key in inputs}
    if inputs["masks"] and "mask" in config:
        mask = mask_of(inputs["masks"], values, extents, config.get("mask_dims", "qk"))
        args["mask"] = memory.of(mask, mask.dtype)
    expected = values[layer["output"]]
    assert np.isfinite(expected).all(), f"layer {layer['layer']}: ONNX Runtime itself computes NaN or Inf"
    y = memory.of(np.full(expected.shape, np.nan), "f4")
    imported.run(layer["layer"], y=y.ctypes.data, **{key: x.ctypes.data for key, x in args.items()})
    return float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
