#!/bin/sh
# torch.onnx.export(dynamo=True) takes names for the outputs of a graph. All values of an ONNX graph need names of their
# own, and the exporter chooses those of the values between: `embedding` for an nn.Embedding, `linear` for an nn.Linear.
#
# If the caller's name is one that the exporter has chosen for another value, it renames the output and leaves the
# other value as it is. Two nodes then write one name. The export ends without a message, and the file is invalid:
# onnx.checker and ONNX Runtime refuse it. A model that returns an "embedding" meets this easily.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq --disable-pip-version-check numpy==2.4.6 onnx==1.23.2 onnxruntime==1.32.0 \
  onnxscript==0.7.2 torch==2.13.0
cd "$folder"
"$folder/venv/bin/python" - << 'END'
import collections
import sys
import warnings

import onnx
import onnxruntime
import torch

warnings.filterwarnings("ignore")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.project = torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3)

    def forward(self, ids):
        return self.project(self.words(ids).mean(1))


def verdict(check, data):
    try:
        check(data)
    except Exception as error:
        return f"refused: {str(error).splitlines()[0][:100]}"
    return "taken"


def load(data):
    onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


print("torch", torch.__version__, "onnx", onnx.__version__, "onnxruntime", onnxruntime.__version__)
found = {}
for name in "vector", "embedding", "linear":
    torch.onnx.export(Model().eval(), (torch.zeros(1, 5, dtype=torch.long),), "model.onnx", input_names=["ids"],
                      output_names=[name], dynamo=True, external_data=False, verbose=False)
    model = onnx.load("model.onnx")
    written = collections.Counter(output for node in model.graph.node for output in node.output)
    data = model.SerializeToString()
    said = verdict(onnx.checker.check_model, data), verdict(load, data)
    found[name] = max(written.values()), *(text.split(":")[0] for text in said)
    print(f"output_names=[{name!r}]: nodes", [(node.op_type, *node.output) for node in model.graph.node])
    print("  onnx.checker:", said[0])
    print("  ONNX Runtime:", said[1])
good, bad = (1, "taken", "taken"), (2, "refused", "refused")
sys.exit(0 if found == {"vector": good, "embedding": bad, "linear": good} else f"this has changed: {found}")
END
