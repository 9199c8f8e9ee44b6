"""Makes up the results of a sweep, for the tests and the picture of `mhagen report`:

    python3 tests/commands/synthetic.py DIR [--rows 400] [--seed 1] [--slower 1.0] [--tune]

The times follow a simple model with noise; nothing is measured.
"""
import argparse
import itertools
import json
import math
import pathlib
import random

# Each axis with its values, the first ones first taken. None: the plan's choice.
AXES = {
    "isa": ["avx512", "avx2", "neon"], "seq": [128, 32, 512, 64, 256], "unroll": ["auto", "tile", "k"],
    "d_model": [384, 128, 768, 64], "h": [12, 4, 8, 2], "key_rows": [None, 4, 6, 2],
    "dk": [32, 64, 16], "threads": [1, 2],
}
DEFAULTS = {"attention": "self", "causal": False, "kv_len": False, "batch": 1, "probs": False,
            "unroll": "auto", "code_limit": 60000}
PEAK = {"avx512": 118.4, "avx2": 76.9, "neon": 41.2}  # GFLOP/s
EFFICIENCY = {"auto": 0.78, "tile": 0.66, "k": 0.71}
FAILURES = [
    ("generate", "code_limit = 60000: needs 81234 statements at unroll = k"),
    ("compile", "cc: internal compiler error: \"Killed\" (program cc1) in </script><b>&amp;"),
    ("check", "y differs from the reference: 2.1e-4 \u2028\u2029 \u00b5 > 1e-6"),
    ("time", "ended with status 132"),
]


def grid(rows):
    """As many values of each axis, evenly, as it takes to have so many combinations; where all do not
    suffice, more lengths."""
    used = dict.fromkeys(AXES, 1)
    for axis in itertools.cycle(AXES):
        if math.prod(used.values()) >= rows or all(used[axis] == len(AXES[axis]) for axis in AXES):
            break
        used[axis] = min(used[axis] + 1, len(AXES[axis]))
    values = {axis: AXES[axis][:count] for axis, count in used.items()}
    values["seq"] += range(513, 513 + (rows - 1) // math.prod(used.values()) * used["seq"])
    values = values.values()
    return [dict(zip(AXES, combination)) for combination in itertools.product(*values)]


def row_of(point, rng, slower):
    config = {**DEFAULTS, **point}
    threads = config.pop("threads")
    config.update(dv=config["dk"], seq_kv=config["seq"])
    h, d, dk, seq, isa, unroll = (config[k] for k in ("h", "d_model", "dk", "seq", "isa", "unroll"))
    config["name"] = f"mha_f32_h{h}_d{d}_k{dk}_s{seq}" + f"_u{unroll}" * (unroll != "auto") + f"_{isa}"
    given = [k for k in ("h", "d_model", "dk", "seq", "isa") if config[k] is not None]
    given += [k for k in ("unroll", "key_rows") if config.get(k) != DEFAULTS.get(k)]
    flops = 8 * seq * d * h * dk + 4 * seq * seq * h * dk
    efficiency = EFFICIENCY[unroll] * (1 - 0.9 / math.sqrt(seq)) * (1 - 4 / d)
    efficiency *= 1 - 0.03 * abs((config["key_rows"] or 5) - 5)
    efficiency *= min(1.0, rng.gauss(0.985, 0.012))
    us = flops / (1e3 * PEAK[isa] * efficiency * threads ** 0.85) * slower
    statements = int({"auto": 1500, "tile": 900, "k": 160}[unroll] * (d if unroll == "k" else 8) ** 0.5
                     * rng.uniform(0.9, 1.1))
    row = {
        "name": config["name"], "status": "ok", "config": config,
        "command": "mhagen gen " + " ".join(f"{k}={config[k]}" for k in given),
        "version": "0.2.0", "compiler": "gcc (GCC) 12.2.0", "flags": "gcc -O2 -std=c11",
        "cpu": "Example 9000 CPU @ 2.50GHz", "cores": 2, "system": "Linux 6.1.0", "threads": threads,
        "flops": flops, "statements": statements, "text_bytes": statements * 7 + 4096,
        "packed_bytes": 16 * d * h * dk, "workspace_bytes": 4 * seq * (3 * h * dk + d),
        "generate_seconds": round(statements * 2e-5, 4), "compile_seconds": round(statements * 9e-4, 3),
        "error": float(f"{10 ** rng.gauss(-6.9, 0.12):.3e}"), "repetitions": 31,
        "us_min": round(us * 0.985, 3), "us_median": round(us, 3), "us_p99": round(us * 1.08, 3),
        "us_cold": round(us * 1.15 + 60, 3), "gflops": round(flops / us / 1e3, 2),
        "peak_gflops": PEAK[isa], "fraction": round(flops / us / 1e3 / PEAK[isa] / threads, 4),
        "disturbed": rng.random() < 0.02,
    }
    if rng.random() < 0.05:
        status, message = rng.choice(FAILURES)
        kept = list(row)[:list(row).index("flops") + 1]
        row = {**{key: row[key] for key in kept}, "status": status, "message": message}
    return row


def results(rows=400, seed=1, slower=1.0):
    rng = random.Random(seed)
    points = grid(rows)
    chosen = sorted(rng.sample(range(len(points)), rows))
    return [row_of(points[i], rng, slower) for i in chosen]


def tuning(seed=1):
    rng = random.Random(seed)
    rows = []
    for shape, default in ("h12_d384_k32_s128", 812.0), ("h4_d128_k32_s512", 655.0):
        for method, gain in ("model", 0.24), ("random", 0.15):
            for second in range(1, 61, 2):
                reached = 1 - gain * (1 - math.exp(-second / (12 if method == "model" else 30)))
                rows.append({"shape": shape, "method": method, "second": second + rng.random(),
                             "us": round(default * reached * rng.uniform(1.0, 1.25), 2),
                             "default_us": default})
    return rows


def write(directory, rows, name="results.jsonl"):
    """The rows as a file of lines in a directory, which is made; returns the directory."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (directory / name).write_text("".join(lines), encoding="utf-8")
    return directory


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slower", type=float, default=1.0, help="multiplies all times")
    parser.add_argument("--tune", action="store_true", help="also tune.jsonl")
    args = parser.parse_args()
    write(args.directory, results(args.rows, args.seed, args.slower))
    if args.tune:
        write(args.directory, tuning(args.seed), "tune.jsonl")
