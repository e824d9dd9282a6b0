"""A trial's training curve as arrays, in few enough points to compare and to draw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.scaling.evidence import Point

Array = NDArray[np.floating[Any]]
BINS = 100
"""Points that a curve has at most: one for each hundredth of the run."""
TINY = 1e-6
"""Of a bin: what rounding may do to an epoch."""
LARGEST = 1e30
"""A loss beyond it is drawn and averaged as this much."""


@dataclass(frozen=True)
class Curve:
    """A quantity against epochs; each point is the mean over one bin, so it holds nothing from later."""

    epochs: Array  # (b,) float64, increasing
    values: Array  # (b,) float64, finite
    broke: float
    """Epoch of the first value that was not finite; infinity where all are."""


def loss_curve(points: Sequence[Point], epochs: float) -> Curve:
    """Training loss, of a run of so many epochs."""
    losses = [(point.epoch, point.train_loss) for point in points if point.train_loss is not None]
    return _binned(losses, epochs)


def last_epoch(points: Sequence[Point]) -> float:
    """How far a trial came; 0 without points."""
    return max((point.epoch for point in points), default=0.0)


def _binned(losses: Sequence[tuple[float, float]], epochs: float) -> Curve:
    pairs = np.array(sorted(losses, key=lambda pair: pair[0]), dtype=np.float64).reshape(-1, 2)  # (p, 2)
    finite = np.isfinite(pairs[:, 1])
    broke = float(pairs[~finite, 0].min(initial=math.inf))
    x, y = pairs[finite, 0], pairs[finite, 1].clip(-LARGEST, LARGEST)
    bins = np.ceil(x / max(epochs, 1e-9) * BINS - TINY).clip(0, BINS).astype(np.int64)
    counts = np.bincount(bins, minlength=BINS + 1)
    full = counts > 0
    centres = np.bincount(bins, x, BINS + 1)[full] / counts[full]
    return Curve(centres, np.bincount(bins, y, BINS + 1)[full] / counts[full], broke)


def together(curves: Sequence[Curve], at: Array) -> Array:
    """Every curve at the same epochs, (curves, epochs) float64; NaN where one has not come so far."""
    rows = [np.interp(at, c.epochs, c.values, right=np.nan) for c in curves if len(c.epochs)]
    return np.array(rows, dtype=np.float64).reshape(len(rows), len(at))


def mean_and_spread(rows: Array) -> tuple[Array, Array, NDArray[np.intp]]:
    """Mean, standard deviation and number of what is not NaN in each column; 0 where there is too little."""
    known = ~np.isnan(rows)
    count = known.sum(axis=0)
    values = np.sort(np.where(known, rows, 0.0), axis=0)  # sorted: the order of seeds must not show in the bits
    mean = values.sum(axis=0) / np.maximum(count, 1)
    squares = np.sort(np.where(known, (rows - mean) ** 2, 0.0), axis=0).sum(axis=0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1)), count
