"""`python -m benchmarks.papers.scenes ROOT`: draws some of the scenes that the claim on transfer learns.

ROOT holds Fashion-MNIST and MNIST. The picture is written to docs/claims/scenes.png.
"""

import sys

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.papers.claims import PAGES
from service.claims.experiments.pictures import Scenes, scenes

GARMENTS = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
NAMES = ("ground", *GARMENTS, *map(str, range(10)))
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
DRAWN = 4


def draw(found: Scenes) -> Figure:
    """The first scenes, with boxes, names and tinted masks."""
    figure = Figure(figsize=(3 * DRAWN, 3.1), layout="constrained")
    for place, axes in enumerate(figure.subplots(1, DRAWN)):
        image, target = found[place]
        axes.imshow(image[0], cmap="gray", vmin=0, vmax=255)
        for colour, box, label, mask in zip(COLOURS, target["boxes"], target["labels"], target["masks"], strict=False):
            left, top, right, bottom = box - 0.5
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, color=colour, linewidth=1.6))
            tint = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
            axes.imshow(np.dstack([np.full(mask.shape, part) for part in tint] + [0.45 * mask]))
            axes.text(left, top - 1, NAMES[label], color=colour, fontsize=9, va="bottom", weight="bold")
        axes.axis("off")
    return figure


if __name__ == "__main__":
    draw(scenes(sys.argv[1], train=DRAWN, test=1)[0]).savefig(PAGES / "scenes.png", dpi=110)
