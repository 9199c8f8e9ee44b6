"""The attention weights of every head of one layer, ours beside the reference's."""
import re

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # the first comes with Matplotlib: the same PNG everywhere
    "font.size": 8,
    "svg.hashsalt": "mhagen",
    "svg.fonttype": "none",  # text stays text: small, and it can be searched
    "axes.linewidth": 0.5,
}
INK, FAINT, ACCENT = "#222222", "#5f6368", "#c2410c"
SHADES = matplotlib.colormaps["Blues"].resampled(25)
NORM = PowerNorm(0.6, 0, 1)  # between linear and square root: 0.1 is visible, 1 still stands out
PAIRS_PER_ROW = 3
QUERY = "jumps"  # the row that the titles and the frames point at


def heatmap(axes, weights, tokens):
    """One path per shade rather than one per cell: less than half of the SVG."""
    n = len(tokens)
    shades = np.minimum(NORM(weights) * SHADES.N, SHADES.N - 1).astype(int)
    for shade in np.unique(shades):
        cells = [Path([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)], closed=True)
                 for y, x in np.argwhere(shades == shade)]
        axes.add_patch(PathPatch(
            Path.make_compound_path(*cells), facecolor=SHADES(shade), edgecolor="white", linewidth=0.4, clip_on=False))
    axes.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    row = tokens.index(QUERY)
    axes.add_patch(Rectangle((0, row), n, 1, fill=False, edgecolor=ACCENT, linewidth=1, clip_on=False))


def label(axis, tokens, **style):
    axis.set_ticks(np.arange(len(tokens)) + 0.5, tokens, **style)
    axis.set_tick_params(length=0, pad=2)
    for tick in axis.get_ticklabels():
        tick.set_color(ACCENT if tick.get_text() == QUERY and axis.axis_name == "y" else INK)


def shorter(svg):
    """Two decimals, and a rectangle by two of its corners: again a third less."""
    svg = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", svg)
    return re.sub(r"M (\S+) (\S+) \nL (\S+) \2 \nL \3 (\S+) \nL \1 \4 \n(?:L \1 \2 \n)?z", r"M\1 \2H\3V\4H\1z", svg)


def draw(ours, theirs, tokens, layer, reference, folder):
    """ours, theirs: [head][query][key]. Writes attention.png and attention.svg; returns their paths."""
    with matplotlib.rc_context(STYLE):
        rows = -(-len(ours) // PAIRS_PER_ROW)
        figure = Figure(figsize=(12, 2.15 * rows + 1), facecolor="white")
        outer = figure.add_gridspec(rows, PAIRS_PER_ROW, left=0.065, right=0.985, top=0.9, bottom=0.075,
                                    wspace=0.2, hspace=0.25)
        for head, (mine, other) in enumerate(zip(ours, theirs)):
            pair = outer[head].subgridspec(1, 2, wspace=0.06)
            left, right = (figure.add_subplot(cell) for cell in pair)
            heatmap(left, mine, tokens)
            heatmap(right, other, tokens)
            label(left.yaxis, tokens)
            if head >= len(ours) - PAIRS_PER_ROW:
                label(left.xaxis, tokens, rotation=90)
                label(right.xaxis, tokens, rotation=90)
            words = mine[tokens.index(QUERY), 1:-1]  # without [CLS] and [SEP]
            top = int(np.argmax(words))
            left.set_title(f"layer {layer} head {head}: ours", loc="left", fontsize=8.5, color=INK, pad=4)
            right.set_title("reference", loc="left", fontsize=8.5, color=FAINT, pad=4)
            right.set_title(f"→ {tokens[top + 1]} {words[top]:.2f}", loc="right", fontsize=8.5,
                            color=ACCENT, pad=4)
        figure.suptitle(f"What each head of layer {layer} looks at: all-MiniLM-L6-v2, attention weights returned by "
                        "a generated kernel", x=0.012, y=0.985, ha="left", fontsize=12, color=INK)
        figure.text(0.012, 0.943, f"Rows: queries, columns: keys. Reference: {reference}, max |difference| "
                    f"{abs(ours - theirs).max():.1e}. Orange: the row of \"{QUERY}\" and the word that it "
                    "weighs most ([CLS], [SEP] not counted).",
                    color=FAINT, fontsize=8.5, va="center")
        bar = figure.colorbar(ScalarMappable(NORM, SHADES), cax=figure.add_axes((0.87, 0.965, 0.115, 0.012)),
                              orientation="horizontal", ticks=[0, 0.1, 0.3, 0.6, 1])
        bar.ax.set_ylabel("attention weight", rotation=0, ha="right", va="center", labelpad=4, fontsize=8.5,
                          color=FAINT)
        bar.ax.tick_params(length=0, pad=2, labelsize=7.5, colors=FAINT)
        bar.outline.set_visible(False)

        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "attention.png", folder / "attention.svg"]
        figure.savefig(paths[0], dpi=130, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
        paths[1].write_text(shorter(paths[1].read_text("utf-8")), "utf-8")
    return paths
