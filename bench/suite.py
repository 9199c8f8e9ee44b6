"""Times the suite of shapes: a table, and the rows of results as JSON.

    python3 bench/suite.py [OPTION...] [key=value ...]

key=value are keys of the config for every shape. The table and the rows also go to bench.txt and bench.json
in the directory of --out.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MHAGEN = os.environ.get("MHAGEN", str(ROOT / "build/mhagen"))
AROUND = "norm", "ffn", "ffn_act"  # keys of a row that are of the layer around attention
LAYER_TARGET = 0.93  # of the peak, for layers


def suite(layers=False):
    """{id: (the config as arguments, target)} of suite.lua: attention alone, or the whole layers that it has."""
    shapes = {}
    for line in re.findall(r"^  \{ (.*) \},$", (ROOT / "bench/suite.lua").read_text(), re.M):
        values = dict(word.replace('"', "").split(" = ") for word in line.split(", "))
        name, target = values.pop("id"), float(values.pop("target"))
        around = {key: values.pop(key) for key in AROUND if key in values}
        if layers:
            values, target = values | around | {"residual": "true"}, LAYER_TARGET
        if around or not layers:
            shapes[name] = [f"{key}={value}" for key, value in values.items()], target
    return shapes


def widest(keys=()):
    """The widest ISA that this CPU has, for the dtype among some keys of a config."""
    dtype = next((key.split("=")[1] for key in keys if key.startswith("dtype=")), "f32")
    command = [MHAGEN, "isas", "--widest", "--dtype", dtype]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip()


def bench(config, cc="cc", mhagen=MHAGEN, options=()):
    """The row of results of one config."""
    command = [mhagen, "bench", "--json", *options, *config]
    result = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE,
                            env={**os.environ, "CC": cc})
    if not result.stdout:
        sys.exit(result.returncode)  # the reason is on standard error already
    return json.loads(result.stdout)


def options(description):
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="key=value")
    parser.add_argument("--isa", default=None, help="default: the widest that this CPU has")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"),
                        help='compiler and options, such as "clang-19 -O3"')
    parser.add_argument("--threads", type=int, default=1)
    return parser


HEAD = (f"{'shape':<14} {'us min':>10} {'median':>10} {'p99':>10} {'cold':>10} {'GFLOP/s':>8} "
        f"{'of peak':>7} {'target':>6} {'error':>8} {'text':>8} {'cc':>6}")


def table_row(name, row, target):
    if row["status"] != "ok":
        return f"{name:<14} {row['status']}: {row['message']}"
    mark = " " if row["fraction"] >= target else "<"
    return (f"{name:<14} {row['us_min']:10.2f} {row['us_median']:10.2f} {row['us_p99']:10.2f} "
            f"{row['us_cold']:10.2f} {row['gflops']:8.1f} {row['fraction']:7.3f}{mark}{target:6.2f} "
            f"{row['error']:8.1e} {row['text_bytes']:8} {row['compile_seconds']:5.1f}s"
            f"{'  disturbed' if row['disturbed'] else ''}")


def main():
    parser = options(__doc__)
    parser.add_argument("--shapes", help="such as micro,minilm; default: all")
    parser.add_argument("--layers", action="store_true", help="the models' whole layers: norms, residual, feed-forward")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build")
    args = parser.parse_args()
    table = suite(args.layers)
    shapes = args.shapes.split(",") if args.shapes else list(table)
    if not set(shapes) <= set(table):
        parser.error("the shapes are " + ", ".join(table))
    isa = args.isa or widest(args.keys)
    lines, rows = [], []

    def show(line):
        lines.append(line)
        print(line, flush=True)

    for name in shapes:
        config, target = table[name]
        row = bench([*config, f"isa={isa}", *args.keys], args.cc,
                    options=["--threads", args.threads])
        if not rows:
            show(" ".join([f"{isa}, {args.threads} threads, {args.cc}", *args.keys]))
            if row["cpu"]:
                show(f"{row['cpu']}, {row['peak_gflops']:.1f} GFLOP/s a core; {row['compiler']}")
            show(HEAD)
        rows.append({"id": name, "target": target, **row})
        show(table_row(name, row, target))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench.txt").write_text("\n".join(lines) + "\n")
    (args.out / "bench.json").write_text(
        "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return int(any(row["status"] not in ("ok", "skipped") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
