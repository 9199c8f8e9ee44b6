#!/bin/sh
# Attention of ai.onnx with is_causal and softcap, in ONNX Runtime. A causal row ends with its own key, so what stands
# behind it should not matter.
#
# ONNX Runtime 1.24.1 adds the mask to the scores before it caps them. Of minus infinity the cap makes minus softcap, a
# finite score: each row sees all keys, and its output changes with the values behind it. 1.32.0 caps first, and a row
# stays what it was. Both accept the same file, and neither warns.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
cat > "$folder/run.py" << 'END'
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

onnxruntime.set_default_logger_severity(4)
rng = np.random.default_rng(1)
q, k, v = (rng.standard_normal((1, 1, 4, 8)).astype(np.float32) for _ in range(3))
node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1, softcap=2.0)
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, q.shape) for name in "qkv"]
graph = helper.make_graph([node], "graph", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
session = onnxruntime.InferenceSession(model.SerializeToString())
other = v.copy()
other[0, 0, 3] += 1  # the last value, which no row but the last one sees
first, second = (session.run(None, {"q": q, "k": k, "v": values})[0][0, 0] for values in (v, other))
moved = np.abs(first - second).max(axis=1)
print("onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__, "changes of rows 0 to 3:", moved.tolist())
leaks = bool((moved[:3] > 0.01).all())
sys.exit(0 if leaks == (sys.argv[1] == "leaks") and moved[3] > 0.01 else "this has changed")
END
python3 -m venv "$folder/old"
"$folder/old/bin/pip" install -qq --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.24.1
python3 -m venv "$folder/new"
"$folder/new/bin/pip" install -qq --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0
"$folder/old/bin/python" "$folder/run.py" leaks
"$folder/new/bin/python" "$folder/run.py" "stays apart"
