"""The options of run.sh. It reads them before anything is installed, so only Python's own library is used."""
import argparse
from pathlib import Path

LAYERS, ROOM = 30, 512
QUESTION = "Why is the sky blue, and why are sunsets red?"


def parse():
    parser = argparse.ArgumentParser(
        prog="examples/smollm2/run.sh", description="SmolLM2-135M-Instruct writes an answer, token by token, with its "
        "attention on generated kernels that share a cache; the model comes from PyPI (93 MB).")
    parser.add_argument("question", nargs="?", default=QUESTION, help=f'default: "{QUESTION}"')
    parser.add_argument("--tokens", type=int, default=240, help="how many to write at most (default 240)")
    parser.add_argument("--isa", help="default: the widest that this CPU has, one that multiplies --dtype if it can")
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32",
                        help="of operands and of the cache (default f32)")
    parser.add_argument("--whole", action="store_true", help="the whole model as one C program, not attention alone")
    parser.add_argument("--weights", choices=["f32", "bf16", "int8", "int4"], default="f32",
                        help="of the program of --whole (default f32)")
    parser.add_argument("--unchecked", action="store_true", help="with --whole: do not compare the tokens with the "
                        "formulas in float64, which take longer")
    parser.add_argument("--layer", type=int, default=12, choices=range(LAYERS), metavar=f"0..{LAYERS - 1}",
                        help="the layer to draw (default 12)")
    parser.add_argument("--torch", action="store_true", help="compare with transformers on PyTorch as well, which "
                        "requirements.in leaves out")
    parser.add_argument("--out", type=Path, default=Path("build/smollm2"), help="where the picture goes")
    args = parser.parse_args()
    if not 1 <= args.tokens <= ROOM:
        parser.error(f"argument --tokens: must be from 1 to {ROOM}")
    if args.weights != "f32" and not args.whole:
        parser.error("argument --weights: is of --whole; --dtype says the type of attention")
    if args.unchecked and (args.torch or not args.whole):
        parser.error("argument --unchecked: is of --whole, without --torch")
    return args


if __name__ == "__main__":
    parse()
