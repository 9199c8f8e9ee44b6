"""Fits the constants of gen/schedule/costs.lua to measured times, and says what each loses. A core may have values of
its own in gen/machine/cpu.lua; its rows are compared with these, which --write leaves alone.

    python3 bench/refit.py              compares the constants with the tables of bench/costs; `ninja refit`
    python3 bench/refit.py --write      the same, and writes the fitted values into gen/schedule/costs.lua
    python3 bench/refit.py --measure    writes the table of this machine's core, in about 10 minutes

A row of a table is a config that a constant decides: what the plan compares, and the measured time of one alternative
over that of the other. A value of a constant loses what its alternatives take longer than the faster ones, in the mean
of the rows. The exit status is 1 if a constant loses 0.5 % more than the best value, unless bench/costs/kept.tsv says
why it stays. It is 1 as well if that names a constant that is within its interval.
"""
import argparse
import collections
import datetime
import itertools
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("MHAGEN", ROOT / "build/mhagen")).with_name("mhagen-costs")
TABLES = ROOT / "bench/costs"
CONSTANTS = ROOT / "gen/schedule/costs.lua"
CORES = ROOT / "gen/machine/cpu.lua"

OTHERS = {"shapes.tsv", "kept.tsv"}  # files of that folder that are no tables of a core

TOLERANCE = 0.005  # of the time, that a constant may lose
SIZES = {"shared_keys": [2, 3, 4, 5, 6, 8]}  # the best of several values, where others are thresholds
BELOW, FROM = 1e9, -1e9  # constants that take the alternative below a threshold, and the other one
STEADY = 0.03  # between two halves of the runs of a row; else it runs again, and in the end does not count
RUNS, MOST_RUNS, SAMPLES = 4, 16, 20

Row = collections.namedtuple("Row", "constant compared ratio spread config core")
Fit = collections.namedtuple("Fit", "fitted best allowed loss least worst")


# ---- the constants, and the tables ----

def constants(text):
    """{name: its text} of what is fitted."""
    fitted = text.split("M.fitted = {\n")[1].split("\n}\n")[0]
    return dict(re.findall(r"^  (\w+) = ([\d.]+),$", fitted, re.M))


def with_values(text, values):
    for name, value in values.items():
        text = re.sub(rf"(?m)^  {name} = [\d.]+,$", f"  {name} = {value},", text)
    return text


def of_cores(text):
    """{core: {name: its text}} of the constants that a core has for itself."""
    parts = [part for part in text.split('{ name = "')[1:] if "costs = { " in part]
    return {part.split('"')[0]: dict(re.findall(r"(\w+) = ([\d.]+)", part.split("costs = { ")[1].split("}")[0]))
            for part in parts}


def values(text, cores, rows):
    """(name, text, whether it is of a core, its rows) for each value of a constant."""
    for name, shared in constants(text).items():
        by = {}
        for row in rows:
            if row.constant == name:
                own = cores.get(row.core, {}).get(name)
                by.setdefault((own or shared, own is not None), []).append(row)
        for (value, is_own), some in (by or {(shared, False): []}).items():
            yield name, value, is_own, some


def read_table(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines[0].split("\t") == list(Row._fields[:-1]), path
    for line in lines[1:]:
        name, compared, ratio, spread, config = line.split("\t")
        yield Row(name, float(compared), float(ratio), float(spread), config, path.stem)


def read_kept(tables):
    """{constant: the value that stays}"""
    path = tables / "kept.tsv"
    lines = path.read_text().splitlines() if path.exists() else []
    return dict(line.split("\t")[:2] for line in lines if not line.startswith("#"))


def measured(tables):
    """The steady rows of all tables, as their plans are now."""
    rows = []
    for table in sorted(tables.glob("*.tsv")):
        if table.name not in OTHERS:
            rows += brought_up_to_date([row for row in read_table(table) if row.spread <= STEADY])
    return rows


def compared_now(configs):
    """What the plans of configs compare: {constant: value} each."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "configs"
        path.write_text("".join(f"{config}\n" for config in configs))
        lines = subprocess.run([PROGRAM, path], text=True, capture_output=True, check=True).stdout.split("\n")
    return [dict(word.split("=") for word in line.split()) for line in lines[:len(configs)]]


def brought_up_to_date(rows):
    """The rows with what their plans compare now, without those whose plans do not ask any more."""
    current, moved, gone = [], 0, 0
    found = compared_now([f"{row.config} cpu={row.core}" for row in rows])
    for row, now in zip(rows, found):
        if row.constant in SIZES:
            current.append(row)
        elif row.constant in now:
            value = float(now[row.constant])
            moved += abs(value / row.compared - 1) > TOLERANCE
            current.append(row._replace(compared=value))
        else:
            gone += 1
    if moved or gone:
        print(f"The cost model has changed since: {moved} rows compare other values, {gone} nothing. Measure anew.")
    return current


# ---- the fit ----

def excess(row, value):
    """What a row loses with a value of its constant, as a logarithm of times."""
    if row.constant in SIZES:
        return math.log(row.ratio) if row.compared == value else None
    log = math.log(row.ratio)
    return max(0.0, log if row.compared < value else -log)


def loss(rows, value):
    found = [one for row in rows if (one := excess(row, value)) is not None]
    return sum(found) / len(found) if found else math.inf


def candidates(rows):
    """Intervals of values that decide alike: (above, up to) each. One of a size is of that alone."""
    points = sorted({row.compared for row in rows})
    if rows[0].constant in SIZES:
        return [(point - 1, point) for point in points]
    return list(itertools.pairwise([-math.inf, *points, math.inf]))


def run_around(intervals, good, value):
    """The neighbours that are good around the one that a value is in, as one interval; or None."""
    at = next((i for i, (low, high) in enumerate(intervals) if low < value <= high), None)
    if at is None or not good[at]:
        return None
    first = last = at
    while first > 0 and good[first - 1] and intervals[first - 1][1] == intervals[first][0]:
        first -= 1
    while last + 1 < len(good) and good[last + 1] and intervals[last + 1][0] == intervals[last][1]:
        last += 1
    return intervals[first][0], intervals[last][1]


def middle(low, high, whole):
    """A short number in an interval."""
    if whole:
        return int(high if high < math.inf else low + 1)
    low, high = (low, high) if high < math.inf else (low, low * 1.05)
    low = low if low > -math.inf else high * 0.95
    return next(value for digits in range(2, 9) if low < (value := round((low + high) / 2, digits)) <= high)


def fit(rows, text):
    """The fit of a constant with this text."""
    literal, intervals = float(text), candidates(rows)
    losses = [loss(rows, high) for _, high in intervals]
    least = min(losses)
    best = run_around(intervals, [one <= least + 1e-9 for one in losses], literal)
    fitted = literal if best else middle(*intervals[losses.index(least)], "." not in text)
    best = best or intervals[losses.index(least)]
    good = [one <= least + TOLERANCE for one in losses]
    allowed = run_around(intervals, good, literal) or run_around(intervals, good, fitted)
    worst = max((row for row in rows if excess(row, literal) is not None), key=lambda row: excess(row, literal),
                default=rows[0])
    return Fit(int(fitted) if "." not in text else fitted, best, allowed, loss(rows, literal), least, worst)


# ---- what is printed ----

def shown(interval):
    low, high = interval
    return f"({low:.4g}, {high:.4g}]" if high < math.inf else f"({low:.4g}, inf)"


def tell(name, text, rows, found, kept):
    """Prints a line; whether the constant may have its value, which is the fit's or is kept."""
    lost = math.expm1(excess(found.worst, float(text)) or 0)
    inside = found.allowed[0] < float(text) <= found.allowed[1]
    mark = "" if inside else "  <- outside, kept" if kept == text else "  <- outside"
    if inside and kept:
        mark = "  <- inside, but in kept.tsv"
    print(f"{name:<19} {text:>5} {found.fitted:>7} {shown(found.best):>18} {shown(found.allowed):>18} "
          f"{100 * (found.loss - found.least):6.2f} {100 * found.least:6.2f} {len(rows):4}  {100 * lost:5.1f} "
          f"{found.worst.compared:.4g} {found.worst.config} ({found.worst.core}){mark}")
    return inside and not kept or not inside and kept == text


def markdown(name, text, rows):
    """The row of docs/bench.md."""
    found = fit(rows, text)
    return (f"| `{name}` | {text} | {found.fitted} | {shown(found.allowed)} | {100 * (found.loss - found.least):.2f} "
            f"| {100 * found.least:.2f} | {len(rows)} |")


def refit(rows, kept, path, write, cores=None):
    """Prints the fit of each constant; whether all have values that they may have."""
    text, cores = path.read_text(), cores or of_cores(CORES.read_text())
    print(f"{'constant':<19} {'value':>5} {'fitted':>7} {'loses nothing':>18} {'at most 0.5 %':>18} {'more %':>6} "
          f"{'least':>6} rows  worst row: %, compared, config")
    good, written = True, {}
    for name, value, is_own, some in values(text, cores, rows):
        if not some:
            print(f"{name:<19} {value:>5}  no row")
            continue
        found = fit(some, value)
        right = tell(name, value, some, found, None if is_own else kept.get(name))
        good = good and (right or write and not is_own)
        if not is_own:
            written[name] = value if right else found.fitted
    if write:
        path.write_text(with_values(text, written))
    return good


# ---- measuring ----

def must(*words):
    done = subprocess.run(list(map(str, words)), text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"refit: {' '.join(map(str, words))}: {done.stderr.strip()[-500:]}")
    return done.stdout


def compiler():
    words = os.environ.get("CC", "cc").split()
    return [*words, "-std=c11", *([] if any(word.startswith("-O") for word in words) else ["-O2"]),
            *(f"-I{ROOT / folder}" for folder in ("runtime", "bench", "tests/check"))]


def shared_objects(directory):
    """What the programs of all rows have in common, compiled."""
    must(PROGRAM.with_name("mhagen"), "bench", "--samples", 1, "-o", directory / "peak",
         *"h=1 d_model=4 dk=4 seq=4 isa=scalar".split())
    sources = [ROOT / "build/runtime/mhagen.c", ROOT / "bench/bench.c", directory / "peak/mhagen_peak.c",
               *(ROOT / f"tests/check/{name}.c" for name in ("reference", "composition", "bounds", "rounded"))]
    objects = [directory / f"{source.stem}.o" for source in sources]
    for source, target in zip(sources, objects):
        must(*compiler(), "-c", "-o", target, source)
    return objects


def build(directory, constant, config, values, objects):
    """The program that times the kernels with values of a constant, named by these; None where they are alike."""
    names = [f"kernel_{i}" for i in range(len(values))]
    texts = set()
    for name, value in zip(names, values):
        must(PROGRAM, f"{constant}={value}", "gen", *config.split(), f"name={name}", "-o", directory, "--force")
        texts.add((directory / f"{name}.c").read_text().replace(name, "kernel"))
    if len(texts) == 1:
        return None
    entries = "".join(f'{{"{name}", &{name}_kernel}}, ' for name in names)
    (directory / "main.c").write_text(
        '#include "bench.h"\n' + "".join(f'#include "{name}.h"\n' for name in names) +
        f"int main(int argc, char **argv) {{\n  static const mhagen_entry entries[] = {{{entries}{{0, 0}}}};\n"
        "  return mhagen_compare_main(entries, 1, argc, argv);\n}\n")
    own = [directory / f"{name}.c" for name in (*names, "main")]
    must(*compiler(), f"-I{directory}", *own, *objects, "-o", directory / "program", "-lm", "-pthread")
    return directory / "program"


def least_times(runs):
    return [min(times) for times in zip(*runs)]


def timed(program, count):
    """The least times of the kernels, which take turns; and how far the halves of all runs are apart."""
    runs = []
    while True:
        for _ in range(RUNS):
            told = dict(re.findall(r"^least kernel_(\d+) (\S+)$", must(program, "--samples", SAMPLES), re.M))
            runs.append([float(told[str(i)]) for i in range(count)])
        halves = [least_times(runs[i::2]) for i in range(2)]
        ratios = [[time / times[0] for time in times] for times in halves]
        spread = max(abs(a / b - 1) for a, b in zip(*ratios))
        if spread <= STEADY or len(runs) >= MOST_RUNS:
            return least_times(runs), spread


def rows_of(directory, constant, config, core, objects):
    """The measured rows of a config."""
    values = SIZES.get(constant, [BELOW, FROM])
    full = f"{config} cpu={core}"
    program = build(directory, constant, full, values, objects)
    now = compared_now([full])[0]
    if not program or constant not in SIZES and constant not in now:
        print(f"{constant} does not decide {config}", flush=True)
        return []
    times, spread = timed(program, len(values))
    if constant in SIZES:
        return [Row(constant, value, time / min(times), spread, config, core) for value, time in zip(values, times)]
    return [Row(constant, float(now[constant]), times[0] / times[1], spread, config, core)]


def cpu_name():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    words = [match[1] for key in ("model name", "cpu family", "model", "stepping")
             if (match := re.search(rf"^{key}\s*: (.*)$", text, re.M))]
    return words[0] + " (family {}, model {}, stepping {})".format(*words[1:]) if len(words) == 4 else "unknown"


def measure(tables):
    core = must(PROGRAM.with_name("mhagen"), "isas", "--cpu").strip()
    shapes = [line.split("\t") for line in (tables / "shapes.tsv").read_text().splitlines()
              if not line.startswith("#")]
    version = must(*compiler()[:1], "--version").splitlines()[0]
    flags = " ".join(word for word in compiler()[1:] if not word.startswith("-I"))
    head = [f"# CPU: {cpu_name()}, one core", f"# compiler: {version}, {flags}", f"# date: {datetime.date.today()}",
            "# command: python3 bench/refit.py --measure", "# ratio: time of the alternative below the constant over "
            "that of the other one; of a size, time over that of the best", "\t".join(Row._fields[:-1])]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        objects = shared_objects(directory)
        for constant, config in shapes:
            for row in rows_of(directory, constant, config, core, objects):
                rows.append(f"{row.constant}\t{row.compared:.4f}\t{row.ratio:.4f}\t{row.spread:.3f}\t{row.config}")
                print(rows[-1], flush=True)
    (tables / f"{core}.tsv").write_text("\n".join(head + rows) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="time the configs of shapes.tsv first")
    parser.add_argument("--write", action="store_true", help="write the fitted values into the file of constants")
    parser.add_argument("--tables", type=pathlib.Path, default=TABLES, metavar="DIR")
    parser.add_argument("--constants", type=pathlib.Path, default=CONSTANTS, metavar="FILE")
    args = parser.parse_args()
    if args.measure:
        measure(args.tables)
    return int(not refit(measured(args.tables), read_kept(args.tables), args.constants, args.write))


if __name__ == "__main__":
    sys.exit(main())
