"""When a trial's training curve has separated from the baseline's, so that training on tells nothing new.

Paper 4, section 5.3: every large minibatch diverges from the baseline at the start; where the final error matches, so
do the curves after the initial epochs (section 5.2: after about 20 of 90); where it does not, there is a noticeable gap
for all epochs, so that "the training curves can be used as a reliable proxy for success well before training finishes".
"""

import math
from collections.abc import Sequence

import numpy as np
from pydantic import ConfigDict, Field

from service.scaling.evidence import Point, ReportModel
from service.scaling.loss_curves import BINS, TINY, Curve, last_epoch, loss_curve, mean_and_spread, together


class Divergence(ReportModel):
    """What counts as separated. The defaults err on the side of training on."""

    model_config = ConfigDict(extra="forbid")

    grace: float = Field(default=0.25, ge=0, le=1)
    """Share of the epochs in which nothing is decided: a curve may still catch up after its warm-up."""
    patience: float = Field(default=0.1, gt=0, le=1)
    """Share of the epochs through which the gap must have lasted."""
    margin: float = Field(default=0.05, ge=0, le=1)
    """The gap must be at least so much of what the baseline's training loss has fallen by since its first point."""
    spreads: float = Field(default=4.0, ge=0)
    """And at least so many standard deviations of the baseline's seeds."""
    min_seeds: int = Field(default=2, ge=2)
    """Seeds of the baseline that must have come as far as the trial."""


class Separation(ReportModel):
    """Whether, and where, a curve separated."""

    separated: bool
    epoch: float | None = None
    """Where it was decided."""
    gap: float | None = None
    """Training loss above the baseline's mean there; null where the loss was not finite."""
    threshold: float | None = None
    why: str = ""
    """A sentence for people."""


def diverges_from_baseline(
    points: Sequence[Point], baseline: Sequence[Sequence[Point]], epochs: float, limits: Divergence | None = None
) -> Separation:
    """Whether a trial has separated from the baseline by what it has shown so far.

    points: of the trial until now. baseline: of each seed of the baseline, which may still be training.
    epochs: that every one of them trains in all. Later points of the trial never change what earlier ones decided.
    """
    curves = [loss_curve(seed, epochs) for seed in baseline]
    return separation(loss_curve(_settled(points, epochs), epochs), curves, epochs, limits or Divergence())


def _settled(points: Sequence[Point], epochs: float) -> list[Point]:
    """The points of whole bins: the mean over the last, begun one would still change."""
    width = epochs / BINS
    edge = (math.floor(last_epoch(points) / width + TINY) + TINY) * width if width > 0 else 0.0
    return [point for point in points if point.epoch <= edge or not math.isfinite(point.train_loss or 0.0)]


def separation(curve: Curve, baseline: Sequence[Curve], epochs: float, limits: Divergence) -> Separation:
    """The same, of curves made before."""
    at = curve.epochs
    rows = together(baseline, at)
    if not len(at) or not len(rows):
        return _broken(curve)
    mean, spread, seeds = mean_and_spread(rows)
    first = max(float(c.values[0]) for c in baseline if len(c.values))
    gap = curve.values - mean
    threshold = np.maximum(limits.spreads * spread, limits.margin * np.maximum(first - mean, 0.0))
    apart = (gap > threshold) & (seeds >= limits.min_seeds) & (at >= limits.grace * epochs)
    patience = limits.patience * epochs
    together_at = np.maximum.accumulate(np.where(apart, -1, np.arange(len(at))))  # the last point of each that was not
    since = at[np.minimum(together_at + 1, len(at) - 1)]
    before = np.interp(at - patience, at, gap)
    closing = np.minimum((gap - before) / patience, 0.0)
    stays = gap + closing * (epochs - at) > threshold  # at the pace at which the gap closes, it will not be closed
    decided = np.flatnonzero(apart & (at - since >= patience) & stays)
    if not len(decided) or curve.broke <= at[decided[0]]:
        return _broken(curve)
    i = int(decided[0])
    why = f"its training loss was {gap[i]:.3g} above the baseline's at epoch {at[i]:.3g}, more than {threshold[i]:.3g}"
    return Separation(
        separated=True, epoch=float(at[i]), gap=float(gap[i]), threshold=float(threshold[i]), why=f"{why}, and stays so"
    )


def _broken(curve: Curve) -> Separation:
    """What a curve decides by itself."""
    if math.isinf(curve.broke):
        return Separation(separated=False)
    why = f"its training loss was not finite at epoch {curve.broke:.3g}"
    return Separation(separated=True, epoch=curve.broke, why=why)
