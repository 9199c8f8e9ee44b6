"""Compares two kernels of one shape, run in turn: the ratio of their times, and who wins how often.

    python3 bench/ab.py --shape minilm --a kv_rows=8 --b kv_rows=10
    python3 bench/ab.py --shape micro --a "" --cc-b clang-19
    python3 bench/ab.py h=4 d_model=32 dk=8 seq=16 --mhagen-b ../other/build/mhagen

Other key=value are for both sides. A round is a short measurement of A and one of B; they take turns in
being first.
"""
import pathlib
import subprocess
import sys
import tempfile

import suite


def build(side, args, directory):
    """Builds, checks and times one side once; returns its program and row."""
    def own(option):
        return getattr(args, option + side)
    words = [f"isa={args.isa or suite.widest()}", *args.keys, *own("").split()]
    if args.shape:
        words = suite.suite()[args.shape][0] + words
    config = dict(word.split("=", 1) for word in words)  # later ones win
    row = suite.bench([f"{key}={value}" for key, value in config.items()], own("cc_") or args.cc,
                      own("mhagen_"), ["--samples", 5, "-o", directory])
    if row["status"] != "ok":
        sys.exit(f"{side}: {row['status']}: {row['message']}")
    return directory / "mhagen_bench", row


def measure(program, args):
    """{key: value} that one short run of a program printed."""
    text = subprocess.run([program, "--quick", "--threads", str(args.threads), "--samples",
                           str(args.samples)], text=True, capture_output=True, check=True).stdout
    return dict(line.split(" ", 1) for line in text.splitlines())


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


def main():
    parser = suite.options(__doc__)
    parser.add_argument("--shape", choices=suite.suite(), help="of the suite")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--samples", type=int, default=10, help="of each measurement")
    for side in "ab":
        parser.add_argument(f"--{side}", default="", metavar="'key=value ...'")
        parser.add_argument(f"--mhagen-{side}", default=suite.MHAGEN, metavar="PROGRAM")
        parser.add_argument(f"--cc-{side}", metavar="CC", help="instead of --cc")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        sides = {side: build(side, args, pathlib.Path(directory) / side) for side in "ab"}
        times, fractions = {"a": [], "b": []}, {"a": [], "b": []}
        for i in range(args.rounds):
            for side in "ab" if i % 2 else "ba":
                result = measure(sides[side][0], args)
                times[side].append(float(result["us_median"]))
                fractions[side].append(float(result["fraction"]))
    for side in "ab":
        row = sides[side][1]
        print(f"{side.upper()}  {lower_median(times[side]):10.2f} us  min {min(times[side]):10.2f}  "
              f"of peak {lower_median(fractions[side]):.4f}  text {row['text_bytes']}  "
              f"error {row['error']:.1e}  {row['flags']}: {row['command']}")
    ratios = sorted(b / a for a, b in zip(times["a"], times["b"]))
    quarter = len(ratios) // 4
    print(f"B / A  {lower_median(times['b']) / lower_median(times['a']):.4f}; "
          f"middle half of the rounds {ratios[quarter]:.4f} to {ratios[-1 - quarter]:.4f}; "
          f"B is faster in {sum(ratio < 1 for ratio in ratios)} of {args.rounds}")


if __name__ == "__main__":
    main()
