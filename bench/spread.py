"""Times attention on scores of several spreads: whether the time of a run depends on numbers.

    python3 bench/spread.py                        # 12 heads of 64, 512 rows, the widest ISA
    python3 bench/spread.py seq=128 causal=true    # other keys of a config; project=none is one of all

Prints, for each standard deviation of the scores, the least time of a run and its ratio to that of the first.
"""
import argparse
import pathlib
import shlex
import subprocess
import tempfile

import suite

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="key=value")
    parser.add_argument("--spreads", default="1,5,10,20,30,50,100")
    parser.add_argument("--cc", default="cc -O2")
    args = parser.parse_args()
    config = dict(word.split("=", 1) for word in [
        "h=12", "dk=64", "seq=512", f"isa={suite.widest()}", *args.keys, "project=none", "name=kernel"])
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory)
        words = [f"{key}={value}" for key, value in config.items()]
        subprocess.run([suite.MHAGEN, "gen", *words, "--quiet", "-o", out],
                       check=True)
        subprocess.run([*shlex.split(args.cc), "-I", out, HERE / "spread.c", out / "kernel.c", out / "mhagen.c", "-o",
                        out / "spread", "-pthread"], check=True)
        text = subprocess.run(["taskset", "-c", "1", out / "spread", *args.spreads.split(",")], check=True, text=True,
                              capture_output=True).stdout
    rows = [line.split() for line in text.splitlines()]
    for spread, us in rows:
        print(f"{spread:>6} {us:>10} us {float(us) / float(rows[0][1]):6.3f}")


if __name__ == "__main__":
    main()
