#!/bin/sh
# Attention of ai.onnx in ONNX Runtime, with a float mask whose every number is the lowest float32. Such masks are common
# where a program wants to hide keys without infinities. The only difference between the graphs is the opset they import.
#
# Opsets 23 and 24 run a fused kernel, for which such a row has no key: the output is zero. Opset 25 has no kernel on
# CPUs. The operator is expanded, and the row is the mean of all values. With -1e9 all three give the mean.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$folder/venv/bin/python" - << 'END'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

onnxruntime.set_default_logger_severity(4)
x = np.arange(24, dtype=np.float32).reshape(1, 1, 4, 6) / 24


def output(opset, number):
    node = helper.make_node("Attention", ["x", "x", "x", "mask"], ["y"])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape),
              helper.make_tensor_value_info("mask", TensorProto.FLOAT, (4, 4))]
    graph = helper.make_graph([node], "graph", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {"x": x, "mask": np.full((4, 4), number, np.float32)})[0]


def name(y):
    if (y == 0).all():
        return "zero"
    return "mean" if np.allclose(y, x.mean(2, keepdims=True), atol=1e-6) else "other"


print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
found = {}
for number in np.finfo(np.float32).min, np.float32(-1e9):
    for opset in 23, 24, 25:
        y = output(opset, number)
        found[f"{number:.1e}", opset] = name(y)
        print(f"opset {opset}, all of the mask {number}: {name(y)}, first row {y[0, 0, 0].tolist()}")
expected = {("-3.4e+38", 23): "zero", ("-3.4e+38", 24): "zero", ("-3.4e+38", 25): "mean",
            **{("-1.0e+09", opset): "mean" for opset in (23, 24, 25)}}
sys.exit(0 if found == expected else "this has changed")
END
