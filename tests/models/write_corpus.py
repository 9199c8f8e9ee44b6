#!/usr/bin/env python3
"""Writes what libFuzzer begins with for the readers of models, which are small files by the libraries that write
such files."""
import json
import pathlib
import sys

import gguf
import numpy
import torch
from safetensors.torch import save_file

CORPUS = pathlib.Path(__file__).resolve().parent.parent / "corpus"
sys.path.append(str(CORPUS.parent))
import architectures
import test_import
import test_import_onnx
import test_import_quantized


def finish(writer):
    for write in writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close:
        write()


def main():
    draw = numpy.random.default_rng(1)
    for name in "safetensors", "gguf", "npy", "npz", "pytorch", "onnx", "model":
        (CORPUS / name).mkdir(exist_ok=True)
    x = draw.normal(size=(3, 32)).astype("f4")
    save_file({"a.weight": torch.from_numpy(x), "a.bias": torch.ones(3, dtype=torch.bfloat16),
               "b": torch.zeros(2, 2, dtype=torch.float16), "ids": torch.arange(4), "none": torch.zeros(0, 4),
               "scalar": torch.tensor(1.0, dtype=torch.float64)},
              CORPUS / "safetensors/plain", metadata={"format": "pt"})
    test_import_quantized.write_corpus(CORPUS)
    for kind in "f2", "f4", "f8":
        with open(CORPUS / f"npy/{kind}", "wb") as file:
            numpy.save(file, x[:, :5].astype(kind))
    numpy.savez(CORPUS / "npz/two.npz", x=x, bias=x[0].astype("f2"))
    (CORPUS / "npz/two.npz").rename(CORPUS / "npz/two")
    for protocol in 2, 4:
        torch.save(torch.nn.Linear(3, 2).state_dict(), CORPUS / f"pytorch/{protocol}.bin", pickle_protocol=protocol)
        (CORPUS / f"pytorch/{protocol}.bin").rename(CORPUS / f"pytorch/protocol_{protocol}")
    writer = gguf.GGUFWriter(CORPUS / "gguf/plain", "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_token_list(["a", "bc", ""])
    writer.add_token_scores([0.5, 1.0, 2.0])
    writer.add_bool("flag", True)
    writer.add_float64("wide", 1.0)
    for kind in "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1":
        quantized = getattr(gguf.GGMLQuantizationType, kind)
        writer.add_tensor(f"blk.0.{kind}", gguf.quantize(x, quantized), raw_dtype=quantized)
    finish(writer)
    writer = gguf.GGUFWriter(CORPUS / "gguf/blocks", "llama")
    for kind in "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS":
        quantized = getattr(gguf.GGMLQuantizationType, kind)
        elements, size = gguf.GGML_QUANT_SIZES[quantized]
        writer.add_tensor(kind, draw.integers(0, 256, (1, 256 // elements * size), dtype="u1"), raw_dtype=quantized)
    finish(writer)
    test_import.llama_gguf(CORPUS / "gguf/factors", test_import.factors_of(4, 8))
    for operator in test_import_onnx.OPERATORS:
        for number in range(6):
            drawing = test_import_onnx.Drawing(f"corpus {number}")
            drawing.width, (y, opset) = 4, operator(drawing)
            data = drawing.model(y, opset).SerializeToString()
            if len(data) < 4096:
                (CORPUS / f"onnx/{operator.__name__}_{number}").write_bytes(data)
    write_models()


def write_models():
    """The configs of both versions that tests/models/write_configs.py has written."""
    for path in (CORPUS.parent / "configs").glob("transformers-*.json"):
        version, rows = path.stem.split("-")[1].split(".")[0], json.loads(path.read_text())["rows"]
        for row in architectures.ROWS + architectures.MORE:
            if row.name in rows and (row in architectures.ROWS or "text_config" in row.config):
                name = "".join(letter if letter.isalnum() else "_" for letter in row.name.lower())
                text = json.dumps({"model_type": row.kind, **rows[row.name]})
                (CORPUS / "model" / f"{name}_{version}").write_text(text + "\n")


if __name__ == "__main__":
    main()
