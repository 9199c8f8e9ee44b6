"""What masks, positions and norms cost: kernels with a key against the plain one of the same shape, run in turn.

    bench/variants.py [OPTION...] [key=value ...]      key=value: for both sides

A number is the part of the FMA peak that the variant reaches over that of the plain kernel, both of the flops that they
need: a window has fewer. The goal stands beside it.
"""
import pathlib
import sys
import tempfile
from types import SimpleNamespace

import ab
import suite

VARIANTS = {  # name: keys, goal
    "rope": ("rope=half", 0.97), "rope at run": ("rope=half rope_at=run", 0.95),
    "interleaved rope at run": ("rope=interleaved rope_at=run", 0.95), "qk_norm": ("qk_norm=rms", 0.97),
    "sink": ("sink=true", 0.97),
    "scale": ("scale=0.1", 0.97), "kv_start": ("kv_start=true", 0.97), "row_keys": ("row_keys=range", 0.95),
    "kv_len": ("kv_len=true", 0.97),
    "alibi": ("alibi=true", 0.95), "bool mask of one row": ("mask=bool mask_dims=k", 0.95),
    "add mask of one row": ("mask=add mask_dims=k", 0.95), "bool mask of qk": ("mask=bool", 0.95),
    "add mask of hqk": ("mask=add mask_dims=hqk", 0.90), "softcap": ("softcap=30", 0.80),
    "window of 128": ("window_left=64 window_right=63", 0.85), "causal": ("causal=true", 0.85),
}


def compare(shape, keys, args):
    """The ratio of the fractions of the peak, of lower medians."""
    with tempfile.TemporaryDirectory() as directory:
        programs, fractions = [], ([], [])
        for side, own in enumerate(("", keys)):
            options = SimpleNamespace(isa=args.isa, keys=args.keys, shape=shape, cc=args.cc, a=own, cc_a=None,
                                      mhagen_a=suite.MHAGEN)
            programs.append(ab.build("a", options, pathlib.Path(directory) / str(side))[0])
        for i in range(args.rounds):
            for side in (0, 1) if i % 2 else (1, 0):
                fractions[side].append(float(ab.measure(programs[side], args)["fraction"]))
    plain, variant = map(ab.lower_median, fractions)
    return variant / plain


def main():
    parser = suite.options(__doc__)
    parser.add_argument("--shapes", default="minilm,bert_base_512", help="of the suite, with commas between")
    parser.add_argument("--variants", default="", metavar="WORDS", help="such as rope,softcap; default: all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--samples", type=int, default=10, help="of each measurement")
    args = parser.parse_args()
    names = [name for name in args.variants.split(",") if name] or list(VARIANTS)
    if not set(names) <= set(VARIANTS):
        parser.error("the variants are " + ", ".join(VARIANTS))
    shapes = args.shapes.split(",")
    print(f"{'':<20}" + "".join(f"{shape:>16}" for shape in shapes) + "  goal", flush=True)
    for name in names:
        keys, goal = VARIANTS[name]
        ratios = [compare(shape, keys, args) for shape in shapes]
        print(f"{name:<20}" + "".join(f"{ratio:15.3f}{' ' if ratio >= goal else '<'}" for ratio in ratios)
              + f"  {goal:.2f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
