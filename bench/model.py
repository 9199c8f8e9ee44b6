"""Measures how well the cost model orders schedules. It times random schedules of some shapes in a sweep, and
prints for each shape the rank correlation (Spearman) of the model's cycles with the times: those of tiles, by which
plans are made, and those with what the fullest port of each phase takes beyond FMAs.

    python3 bench/model.py [OPTION...] [key=value ...]

The sweep is in the directory of --out, as grid.lua says. It goes on where it was stopped, and `mhagen report`
shows it. Schedules that the generator refuses are drawn again.
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import suite

KEYS = {  # what is drawn, each in every second schedule
    "query_vectors": range(1, 7), "key_rows": range(1, 25), "context_rows": range(1, 25), "q_rows": range(1, 25),
    "q_lanes": ("queries", "columns"), "kv_vectors": range(1, 7), "kv_rows": range(1, 25),
    "out_vectors": range(1, 7), "out_rows": range(1, 25), "fold": ("auto", "off"),
}


def modelled(words):
    """The model's cycles of a config, of tiles and of all, or None where the generator refuses it."""
    result = subprocess.run([suite.MHAGEN, "explain", *words], text=True, capture_output=True)
    found = re.search(r"^  model +([\d,]+) cycles.*?, ([\d,]+) with", result.stdout, re.M)
    return found and tuple(int(number.replace(",", "")) for number in found.groups())


def words_of(config):
    return [f"{key}={value}" for key, value in config.items()]


def draw(rng, base, count):
    """[(config, cycles)]: the plan's own schedule, and different random ones."""
    drawn, seen = [(base, modelled(words_of(base)))], set()
    if not drawn[0][1]:
        sys.exit(subprocess.run([suite.MHAGEN, "explain", *words_of(base)]).returncode)
    for _ in range(100 * count):
        if len(drawn) == count:
            break
        own = {key: rng.choice(values) for key, values in KEYS.items() if rng.random() < 0.5}
        config = {**base, **own}
        text = " ".join(words_of(config))
        cycles = None if text in seen else modelled(words_of(config))
        seen.add(text)
        if cycles:
            drawn.append((config, cycles))
    return drawn


def ranks(values):
    """The place of each value in order; equal ones share the mean of theirs."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


def correlation(xs, ys):
    xs, ys = ranks(xs), ranks(ys)
    if len(set(xs)) < 2 or len(set(ys)) < 2:
        return float("nan")
    mean = (len(xs) - 1) / 2
    over = sum((x - mean) * (y - mean) for x, y in zip(xs, ys))
    return over / (sum((x - mean) ** 2 for x in xs) * sum((y - mean) ** 2 for y in ys)) ** 0.5


def known_by(config):
    """What a drawn config and the row of its results have in common."""
    keys = ("d_model", "h", "dk", "seq", *KEYS)  # the other keys are of all shapes, or of a shape of the suite
    return tuple(str(config.get(key, "auto" if key == "fold" else None)) for key in keys)


def lua(config):
    def text(value):
        return str(value) if re.fullmatch(r"\d+|true|false", str(value)) else json.dumps(value)
    fields = (f"{key} = {text(value)}" for key, value in config.items())
    return "{ " + ", ".join(fields) + " }"


def main():
    parser = suite.options(__doc__)
    parser.add_argument("--shapes", default="micro,small,odd,berttiny,kwt3,minilm", help="of the suite")
    parser.add_argument("--count", type=int, default=40, help="schedules of each shape (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, default=suite.ROOT / "build/model")
    args = parser.parse_args()
    rng, drawn = random.Random(args.seed), {}
    if not set(args.shapes.split(",")) <= set(suite.suite()):
        parser.error("the shapes are " + ", ".join(suite.suite()))
    for name in args.shapes.split(","):
        words = [*suite.suite()[name][0], f"isa={args.isa or suite.widest()}", *args.keys]
        drawn[name] = draw(rng, dict(word.split("=", 1) for word in words), args.count)
    args.out.mkdir(parents=True, exist_ok=True)
    configs = [lua(config) for of_shape in drawn.values() for config, _ in of_shape]
    (args.out / "grid.lua").write_text("return { configs = {\n  " + ",\n  ".join(configs) + ",\n} }\n")
    sweep = subprocess.run([suite.MHAGEN, "sweep", args.out / "grid.lua", "-o", args.out / "sweep", "--samples", "60",
                            "--threads", str(args.threads)], env={**os.environ, "CC": args.cc})
    if sweep.returncode == 2:
        sys.exit(2)
    rows = [json.loads(line) for line in (args.out / "sweep/results.jsonl").read_text().splitlines()]
    times = {known_by(row["config"]): row["us_median"] for row in rows if row["status"] == "ok"}
    lines = [f"{'shape':15} {'schedules':>9} {'tiles':>7} {'all':>7} {'fastest us':>10} {'the plan':>9} {'slowest':>9}"]

    def row(title, pairs, times=""):
        by = [correlation([cycles[i] for cycles, _ in pairs], [us for _, us in pairs]) for i in (0, 1)]
        lines.append(f"{title:15} {len(pairs):9} {by[0]:7.3f} {by[1]:7.3f}{times}")

    everything = []
    for name, of_shape in drawn.items():
        pairs = [(cycles, times.get(known_by(config))) for config, cycles in of_shape]
        own_cycles, own = pairs[0]
        pairs = [pair for pair in pairs if pair[1]]
        us = [pair[1] for pair in pairs]
        everything += [([x / y for x, y in zip(cycles, own_cycles)], time / min(us)) for cycles, time in pairs]
        row(name, pairs, f" {min(us):10.2f} {own or float('nan'):9.2f} {max(us):9.2f}")
    row("all, as ratios", everything)
    row("slower by > 2 %", [pair for pair in everything if pair[1] > 1.02])
    (args.out / "model.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
