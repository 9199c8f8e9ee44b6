#!/bin/sh
# Two libraries name the width of sliding-window attention alike, local_window_size. With 4 and a causal mask, a row of
# com.microsoft's GroupQueryAttention sees 4 keys, itself among them. A row of jax.nn.dot_product_attention sees 5:
# JAX counts the keys before the row. Without the causal mask JAX's row sees 4 keys after it too, 9 in all.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 \
  jax==0.10.2 jaxlib==0.10.2
"$folder/venv/bin/python" - << 'END'
import sys

import jax
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

onnxruntime.set_default_logger_severity(4)
rows, row = 16, 8
zeros = np.zeros((1, rows, rows), np.float32)  # equal scores: what a row sees are its nonzero weights
values = np.eye(rows, dtype=np.float32)[None]  # and the output is the weights


def seen(y):
    return np.nonzero(np.asarray(y).reshape(rows, rows)[row])[0].tolist()


def by_onnxruntime(window):
    node = helper.make_node("GroupQueryAttention", ["x", "x", "v", "", "", "last", "all"], ["y", "keys", "values"],
                            domain="com.microsoft", num_heads=1, kv_num_heads=1, local_window_size=window)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, zeros.shape),
              helper.make_tensor_value_info("v", TensorProto.FLOAT, values.shape),
              helper.make_tensor_value_info("last", TensorProto.INT32, (1,)),
              helper.make_tensor_value_info("all", TensorProto.INT32, ())]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "keys", "values")]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "graph", inputs, outputs), opset_imports=opsets, ir_version=8)
    given = {"x": zeros, "v": values, "last": np.array([rows - 1], np.int32), "all": np.array(rows, np.int32)}
    return seen(onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)[0])


def by_jax(window, causal):
    x, v = zeros[:, :, None], values[:, :, None]
    return seen(jax.nn.dot_product_attention(x, x, v, is_causal=causal, local_window_size=window))


print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__, "jax", jax.__version__)
found = by_onnxruntime(4), by_jax(4, True), by_jax(4, False)
for what, keys in zip(["ONNX Runtime", "JAX, causal", "JAX, not causal"], found):
    print(f"{what}: with local_window_size=4 row {row} sees {len(keys)} keys, {keys}")
sys.exit(0 if found == ([5, 6, 7, 8], [4, 5, 6, 7, 8], list(range(4, 13))) else "this has changed")
END
