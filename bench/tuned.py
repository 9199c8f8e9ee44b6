"""Tunes the shapes of the suite, and shows how much faster the found schedules are than the plan's own. On some
shapes a random search with the same budget runs for comparison.

    python3 bench/tuned.py [OPTION...] [key=value ...]

In the directory of --out are the schedules, tuned.lua (random.lua for the random search), the table, tuned.txt,
and the course of the searches, tune.jsonl, which `mhagen report` shows beside the results of a sweep there.
Shapes that are in the files already are not searched again.
"""
import pathlib
import re
import subprocess

import suite

RANDOM = "micro,small,odd,kwt3,minilm"


def records(path):
    """{shape: {field: text}} of a tuning file."""
    text = path.read_text() if path.exists() else ""
    return {shape: dict(re.findall(r'^    (\w+) = "?(.*?)"?,$', body, re.M))
            for shape, body in re.findall(r'^  \["(.*?)"\] = {\n(.*?)^  },$', text, re.M | re.S)}


def tune(config, args, search, path):
    """The record of a shape: of an earlier run, or by a search."""
    def found():
        return [record for shape, record in records(path).items() if set(config) <= set(shape.split())]
    if not found():
        subprocess.run([suite.MHAGEN, "tune", *config, *args.keys, "--budget", args.budget, "--search", search,
                        "-o", path, "--trace", args.out / "tune.jsonl"], check=True)
    return found()[0]


def ratio(record):
    return f"{float(record['us']) / float(record['default_us']):.3f}" if record else ""


def main():
    parser = suite.options(__doc__)
    parser.add_argument("--shapes", default=",".join(suite.suite()), help="such as micro,minilm")
    parser.add_argument("--out", type=pathlib.Path, default=suite.ROOT / "build/tuned")
    parser.add_argument("--budget", default="60s", help="of each search")
    parser.add_argument("--random", default=RANDOM, metavar="SHAPES", help="default: %(default)s")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [f"{'shape':15} {'default us':>11} {'tuned us':>11} {'ratio':>6} {'random':>6}  tried  schedule"]
    for name in args.shapes.split(","):
        config = [*suite.suite()[name][0], f"isa={args.isa or suite.widest()}"]
        found = tune(config, args, "model", args.out / "tuned.lua")
        other = tune(config, args, "random", args.out / "random.lua") if name in args.random.split(",") else None
        lines.append(f"{name:15} {float(found['default_us']):11.2f} {float(found['us']):11.2f} {ratio(found):>6} "
                     f"{ratio(other):>6}  {found['tried']:>5}  {found['schedule'] or 'the default'}")
        print(lines[0], lines[-1], sep="\n", flush=True)
        (args.out / "tuned.txt").write_text("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
