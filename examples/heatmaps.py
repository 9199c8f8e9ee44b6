"""Attention weights as heat maps: what the pictures of the examples have in common."""
import re

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.patches import PathPatch
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


def heatmap(axes, weights):
    """One path per shade rather than one per cell: less than half of the SVG. NaN is no cell."""
    rows, columns = weights.shape
    shades = np.minimum(NORM(np.nan_to_num(weights)) * SHADES.N, SHADES.N - 1).astype(int)
    shades[np.isnan(weights)] = -1
    for shade in np.unique(shades[shades >= 0]):
        cells = [Path([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)], closed=True)
                 for y, x in np.argwhere(shades == shade)]
        axes.add_patch(PathPatch(
            Path.make_compound_path(*cells), facecolor=SHADES(shade), edgecolor="white", linewidth=0.4, clip_on=False))
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def scale(figure, place):
    """The bar that says what the shades mean."""
    bar = figure.colorbar(ScalarMappable(NORM, SHADES), cax=figure.add_axes(place), orientation="horizontal",
                          ticks=[0, 0.1, 0.3, 0.6, 1])
    bar.ax.set_ylabel("attention weight", rotation=0, ha="right", va="center", labelpad=4, fontsize=8.5, color=FAINT)
    bar.ax.tick_params(length=0, pad=2, labelsize=7.5, colors=FAINT)
    bar.outline.set_visible(False)


def shorter(svg):
    """Two decimals, and a rectangle by two of its corners: again a third less."""
    svg = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", svg)
    return re.sub(r"M (\S+) (\S+) \nL (\S+) \2 \nL \3 (\S+) \nL \1 \4 \n(?:L \1 \2 \n)?z", r"M\1 \2H\3V\4H\1z", svg)


def save(figure, folder):
    """Writes attention.png and attention.svg, the same bytes each time; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "attention.png", folder / "attention.svg"]
    figure.savefig(paths[0], dpi=130, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
    paths[1].write_text(shorter(paths[1].read_text("utf-8")), "utf-8")
    return paths
