"""The options of run.sh. It reads them before anything is installed, so only Python's own library is used."""
import argparse
from pathlib import Path

LAYERS = 6


def parse():
    parser = argparse.ArgumentParser(prog="examples/minilm/run.sh",
                                     description="The attention of all-MiniLM-L6-v2 on generated kernels; the model "
                                     "comes from PyPI (160 MB).")
    parser.add_argument("--isa", help="default: the widest that this CPU has, one that multiplies --dtype if it can")
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16", "int8"], default="f32",
                        help="of operands (default f32)")
    parser.add_argument("--weights", choices=["int8", "int4"], help="of packed weights, where they are smaller")
    parser.add_argument("--value-weights", choices=["int8"], help="of Wv, beside --weights int4")
    parser.add_argument("--layer", type=int, default=0, choices=range(LAYERS), help="the layer to draw (default 0)")
    parser.add_argument("--reference", choices=["onnx", "torch"], default="onnx",
                        help="torch needs packages that requirements.in leaves out (default onnx)")
    parser.add_argument("--search", action="store_true", help="instead of all that, rank a hundred sentences as one "
                        "types, by the whole model as one C program")
    parser.add_argument("--out", type=Path, default=Path("build/minilm"), help="where the picture goes")
    args = parser.parse_args()
    if args.value_weights and args.weights != "int4":
        parser.error("--value-weights: is for --weights int4")
    return args


if __name__ == "__main__":
    parse()
