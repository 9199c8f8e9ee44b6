"""The attention weights of every head of one layer, ours beside the reference's."""
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import heatmaps
from heatmaps import ACCENT, FAINT, INK

PAIRS_PER_ROW = 3
QUERY = "jumps"  # the row that the titles and the frames point at


def heatmap(axes, weights, tokens):
    heatmaps.heatmap(axes, weights)
    row = tokens.index(QUERY)
    axes.add_patch(Rectangle((0, row), len(tokens), 1, fill=False, edgecolor=ACCENT, linewidth=1, clip_on=False))


def label(axis, tokens, **style):
    axis.set_ticks(np.arange(len(tokens)) + 0.5, tokens, **style)
    axis.set_tick_params(length=0, pad=2)
    for tick in axis.get_ticklabels():
        tick.set_color(ACCENT if tick.get_text() == QUERY and axis.axis_name == "y" else INK)


def draw(ours, theirs, tokens, layer, reference, folder):
    """ours, theirs: [head][query][key]. Writes attention.png and attention.svg; returns their paths."""
    with matplotlib.rc_context(heatmaps.STYLE):
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
        heatmaps.scale(figure, (0.87, 0.965, 0.115, 0.012))
        return heatmaps.save(figure, folder)
