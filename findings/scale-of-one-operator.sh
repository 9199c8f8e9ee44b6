#!/bin/sh
# Two operators of com.microsoft have an optional attribute `scale`, the factor of the scores: MultiHeadAttention, and
# Attention, which has projections besides. ONNX Runtime, whose operators they are, applies it in both.
#
# OpenVINO's reader of ONNX files applies that of MultiHeadAttention. A graph with that of Attention loads and runs
# without a message, and its results are those of the default, 1 / sqrt(head size).
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 \
  openvino==2026.4.1
"$folder/venv/bin/python" - << 'END'
import io
import sys

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

onnxruntime.set_default_logger_severity(4)
rng = np.random.default_rng(1)
rows, heads, width = 6, 2, 16
x = rng.standard_normal((1, rows, width)).astype(np.float32)
matrix = np.concatenate(3 * [np.eye(width, dtype=np.float32)], axis=1)  # Q = K = V = X: both operators agree
core = openvino.Core()


def graph(operator, **attributes):
    inputs = ["x", "w", "b"] if operator == "Attention" else ["x", "x", "x"]
    node = helper.make_node(operator, inputs, ["y"], domain="com.microsoft", num_heads=heads, **attributes)
    constants = [numpy_helper.from_array(matrix, "w"), numpy_helper.from_array(np.zeros(3 * width, np.float32), "b")]
    made = helper.make_graph([node], "graph", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                             [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                             constants if operator == "Attention" else [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8).SerializeToString()


def by_onnxruntime(data):
    return onnxruntime.InferenceSession(data).run(None, {"x": x})[0]


def by_openvino(data):
    model = core.compile_model(core.read_model(io.BytesIO(data)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return model({"x": x})[0]


def wanted(scale):
    parts = x[0].astype(np.float64).reshape(rows, heads, -1).transpose(1, 0, 2)
    weights = np.exp(scale * parts @ parts.transpose(0, 2, 1))
    return (weights / weights.sum(-1, keepdims=True) @ parts).transpose(1, 0, 2).reshape(1, rows, width)


print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__, "openvino", openvino.__version__)
default, given, found = (width // heads) ** -0.5, 0.05, {}
for operator in "MultiHeadAttention", "Attention":
    for library, run in ("ONNX Runtime", by_onnxruntime), ("OpenVINO", by_openvino):
        y = run(graph(operator, scale=given))
        errors = {scale: float(np.abs(y - wanted(scale)).max()) for scale in (given, default)}
        found[operator, library] = min(errors, key=errors.get)
        assert errors[found[operator, library]] < 1e-5
        print(f"{operator} with scale={given} by {library}: of the formula with {given} it differs by "
              f"{errors[given]:.1e}, of that with the default {default:.3f} by {errors[default]:.1e}")
ignored = [key for key, scale in found.items() if scale != given]
sys.exit(0 if ignored == [("Attention", "OpenVINO")] else "this has changed")
END
