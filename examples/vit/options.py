"""The options of run.sh. It reads them before anything is installed, so only Python's own library is used."""
import argparse
from pathlib import Path


def parse():
    parser = argparse.ArgumentParser(
        prog="examples/vit/run.sh", description="A vision transformer reads handwritten digits, with its attention on "
        "generated kernels; images and weights are in this folder, NumPy and Matplotlib come from PyPI.")
    parser.add_argument("--isa", help="default: the widest that this CPU has")
    parser.add_argument("--torch", action="store_true", help="compare with transformers on PyTorch as well, which "
                        "requirements.in leaves out")
    parser.add_argument("--out", type=Path, default=Path("build/vit"), help="where the picture goes")
    return parser.parse_args()


if __name__ == "__main__":
    parse()
