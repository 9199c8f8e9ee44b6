#!/usr/bin/env python3
"""Draws the plots of times from the tables of the pages that they illustrate.

    python3 bench/plot.py [DIR]

speed.svg: how many times as long as mhagen other libraries take, by docs/bench.md. A panel is a CPU, a bar the
geometric mean of a library over the shapes of the suite, the line on it goes from its least to its most.
whole.svg: the time of a text by MiniLM, by docs/whole.md. A panel is a length.
Takes Matplotlib (examples/minilm/requirements.txt).
"""
import math
import re
import sys
from pathlib import Path

import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
CPUS = {"AMD Zen 4": "## Other libraries", "AMD Zen 5": "### On Zen 5", "Intel Granite Rapids": "### On Intel"}
OURS, PEERS, INK = "#c2410c", "#9db4cc", "#222222"
STYLE = {"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Verdana"], "font.size": 8,
         "svg.hashsalt": "mhagen", "svg.fonttype": "none"}
MOST = 5.0  # of the axis; what passes it is written


def ratios(page, heading):
    """{library: times as long as mhagen, of each shape} in the first table of float32 below a heading."""
    rows = re.search(r"^\| shape \| us \| of peak \|.*?(?=\n\n)", page.split(f"\n{heading}\n")[1], re.M | re.S)[0]
    head, _, *shapes = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines())
    return {name: [float(row[i]) for row in shapes] for i, name in enumerate(head) if i > 2}


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def panel(axes, title, libraries, names):
    """names: libraries of all panels"""
    axes.barh(0, 1, color=OURS, height=0.7)
    for i, name in enumerate(names, 1):
        values, text = libraries.get(name), "no figure"
        if values:
            axes.barh(i, mean(values), color=PEERS, height=0.7)
            axes.plot([min(values), min(max(values), MOST)], [i, i], color=INK, linewidth=0.7)
            text = f"{mean(values):.2f}" + (f", to {max(values):.0f}" if max(values) > MOST else "")
        axes.text(MOST * 1.02, i, text, va="center", color=INK)
    axes.set(xlim=(0, MOST), ylim=(len(names) + 0.5, -0.6), title=title, yticks=range(len(names) + 1), xticks=range(6))
    axes.set_yticklabels(["mhagen", *names])
    axes.axvline(1, color=OURS, linewidth=0.7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def save(figure, path):
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw_speed(path):
    page = (ROOT / "docs/bench.md").read_text()
    with plt.rc_context(STYLE):
        found = {title: ratios(page, heading) for title, heading in CPUS.items()}
        names = max(found.values(), key=len)
        figure, panels = plt.subplots(1, len(CPUS), figsize=(10, 2.9), sharey=True)
        for axes, (title, libraries) in zip(panels, found.items()):
            panel(axes, title, libraries, names)
        figure.supxlabel("time of a run over that of mhagen (float32, one core); bar: geometric mean of 14 shapes, "
                         "line: least to most", fontsize=8)
        figure.subplots_adjust(left=0.09, right=0.93, top=0.9, bottom=0.17, wspace=0.45)
        save(figure, path)


def times(page):
    """[(what ran, [ms of each length])] and the lengths, of the table of texts."""
    rows = re.search(r"^\| \| 16 ids \|.*?(?=\n\n)", page, re.M | re.S)[0]
    head, _, *runs = ([cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines())
    return [(name.replace("`", ""), list(map(float, figures[:3]))) for name, *figures in runs], head[1:4]


def draw_whole(path):
    runs, lengths = times((ROOT / "docs/whole.md").read_text())
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(lengths), figsize=(10, 2.2), sharey=True)
        for i, (axes, length) in enumerate(zip(panels, lengths)):
            most = max(figures[i] for _, figures in runs)
            for row, (name, figures) in enumerate(runs):
                axes.barh(row, figures[i], color=OURS if name.startswith("mhagen") else PEERS, height=0.7)
                axes.text(figures[i] + 0.02 * most, row, f"{figures[i]:g}", va="center", color=INK)
            axes.set(xlim=(0, 1.15 * most), ylim=(len(runs) - 0.4, -0.6), title=length, yticks=range(len(runs)))
            axes.set_yticklabels([name for name, _ in runs])
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
        figure.supxlabel("milliseconds of a text by all-MiniLM-L6-v2, one core of an Intel Emerald Rapids", fontsize=8)
        figure.subplots_adjust(left=0.19, right=0.99, top=0.88, bottom=0.2, wspace=0.1)
        save(figure, path)


PLOTS = {"speed.svg": draw_speed, "whole.svg": draw_whole}


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs")
    for name, draw in PLOTS.items():
        draw(folder / name)
