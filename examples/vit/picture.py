"""Where the class token of the last layer looks: a row for each digit, a column for each head."""
import matplotlib
import numpy as np
from matplotlib.figure import Figure

import digits
import heatmaps
from heatmaps import ACCENT, FAINT, INK


def draw(images, labels, logits, weights, folder):
    """weights: [image][head][patch]. Writes attention.png and attention.svg; returns their paths."""
    chosen = [int(np.flatnonzero(labels == digit)[0]) for digit in range(10)]
    heads, side = weights.shape[1], digits.SIDE // digits.PATCH
    with matplotlib.rc_context(heatmaps.STYLE):
        figure = Figure(figsize=(14, 8.2), facecolor="white")
        grid = figure.add_gridspec(heads + 1, len(chosen), left=0.06, right=0.99, top=0.87, bottom=0.02, wspace=0.08,
                                   hspace=0.12)
        for column, image in enumerate(chosen):
            axes = figure.add_subplot(grid[0, column])
            axes.imshow(images[image], cmap="Greys")
            answer = int(logits[image].argmax())
            axes.set_title(f"reads {answer}", fontsize=10, color=INK if answer == labels[image] else ACCENT, pad=4)
            axes.set(xticks=[], yticks=[])
            for head in range(heads):
                axes = figure.add_subplot(grid[head + 1, column])
                heatmaps.heatmap(axes, weights[image, head].reshape(side, side))
                centers = (np.arange(digits.SIDE) + 0.5) / digits.PATCH
                axes.contour(centers, centers, images[image], [0], colors=ACCENT, linewidths=1)
                if column == 0:
                    axes.set_ylabel(f"head {head}", rotation=0, ha="right", va="center", labelpad=8, color=INK)
        figure.suptitle("Where a vision transformer looks when it reads a digit: attention weights returned by a "
                        "generated kernel", x=0.012, y=0.975, ha="left", fontsize=12, color=INK)
        figure.text(0.012, 0.928, "From the class token of the last layer to the sixteen patches of 2 x 2 pixels. "
                    "Orange: the outline of the digit.", color=FAINT, fontsize=8.5, va="center")
        heatmaps.scale(figure, (0.86, 0.925, 0.125, 0.012))
        return heatmaps.save(figure, folder)
