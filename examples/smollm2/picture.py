"""What each head of one layer looks at while a text grows: a row for each token, as long as the text was then."""
import matplotlib
import numpy as np
from matplotlib.figure import Figure

import heatmaps
from heatmaps import ACCENT, FAINT, INK

PER_ROW = 3


def label(axis, words, **style):
    axis.set_ticks(np.arange(len(words)) + 0.5, words, fontsize=6.5, **style)
    axis.set_tick_params(length=0, pad=2, colors=INK)


def draw(weights, words, layer, folder):
    """weights: [head][query][key]. Writes attention.png and attention.svg; returns their paths."""
    words = [word.replace("\n", "↵").strip() or "␣" for word in words]
    n = len(words)
    with matplotlib.rc_context(heatmaps.STYLE):
        rows = -(-len(weights) // PER_ROW)
        figure = Figure(figsize=(14, 4.6 * rows + 1), facecolor="white")
        grid = figure.add_gridspec(rows, PER_ROW, left=0.07, right=0.99, top=0.93, bottom=0.06, wspace=0.08,
                                   hspace=0.1)
        for head, (mine, cell) in enumerate(zip(weights, grid)):
            axes = figure.add_subplot(cell)
            heatmaps.heatmap(axes, np.where(np.tri(n, dtype=bool), mine, np.nan))
            if head % PER_ROW == 0:
                label(axes.yaxis, words)
            if head >= len(weights) - PER_ROW:
                label(axes.xaxis, words, rotation=90)
            distance = (np.arange(n)[:, None] - np.arange(n)) * np.tri(n)
            axes.set_title(f"layer {layer} head {head}", loc="left", fontsize=9, color=INK, pad=4)
            axes.set_title(f"first token {mine[1:, 0].mean():.2f} · looks back {(mine * distance).sum(-1).mean():.1f}",
                           loc="right", fontsize=8, color=ACCENT, pad=4)
        figure.suptitle(f"What each head of layer {layer} looks at as the answer grows: SmolLM2-135M-Instruct, "
                        "attention weights returned by a generated kernel", x=0.012, y=0.988, ha="left", fontsize=12,
                        color=INK)
        figure.text(0.012, 0.957, "Rows: tokens in the order in which they were written, columns: the tokens that each "
                    "may look at, itself the last. Orange: the mean weight of the first token, and the mean distance.",
                    color=FAINT, fontsize=8.5, va="center")
        heatmaps.scale(figure, (0.87, 0.955, 0.12, 0.008))
        return heatmaps.save(figure, folder)
