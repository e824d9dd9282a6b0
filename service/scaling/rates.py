"""Which learning rate did best at each batch, against what each rule predicts (paper 4, table 2a)."""

import math
from collections.abc import Sequence

from service.scaling.cells import Cell
from service.scaling.evidence import Question, ReportModel, Rule
from service.scaling.statistics import difference, mean

RULES: tuple[Rule, ...] = ("none", "sqrt", "linear")
NEAR = 1.05
"""Rates closer than this factor are taken for one."""


class Tried(ReportModel):
    """One rate at one batch."""

    lr: float
    rule: Rule
    warmup: str
    multiple: float
    mean: float | None
    std: float | None
    seeds: int
    """That have an error."""
    broken: int
    """Seeds that diverged."""
    as_good: bool
    """Not shown to be worse than the best: their difference, with 95 % confidence, may be none."""


class BatchRates(ReportModel):
    """All rates tried at one batch."""

    batch: int
    variant: dict[str, str]
    tried: list[Tried]
    """By rate."""
    best_lr: float | None
    """With the lowest mean error of those of which no seed broke."""
    predicted: dict[Rule, float]
    """The rate that each rule gives at this batch."""
    agrees: list[Rule]
    """Rules whose rate is not outside of the rates that are as good as the best."""
    at_edge: bool
    """Whether the best is the lowest or highest of three rates or more: a better one may lie beyond."""


def rates_by_batch(cells: Sequence[Cell], question: Question) -> list[BatchRates]:
    """One row a batch, of the cells of one variant."""
    return [_row([c for c in cells if c.batch == batch], question) for batch in sorted({c.batch for c in cells})]


def exponent(rows: Sequence[BatchRates]) -> float | None:
    """p of the power of the batch that the best rates follow, by least squares: 0 none, 0.5 sqrt, 1 linear.

    rows: up to the batch where a rate is still as good as the baseline; beyond it, none is to be followed. None where
    the best rate is known at fewer than three batches.
    """
    pairs = [(math.log2(row.batch), math.log2(row.best_lr)) for row in rows if row.best_lr is not None]
    if len(pairs) < 3:
        return None
    x, y = mean([a for a, _ in pairs]), mean([b for _, b in pairs])
    return math.fsum((a - x) * (b - y) for a, b in pairs) / math.fsum((a - x) ** 2 for a, _ in pairs)


def _row(cells: Sequence[Cell], question: Question) -> BatchRates:
    sound = [c for c in cells if c.mean is not None]
    best = min(sound, key=lambda c: (c.mean or 0.0, c.lr), default=None)
    tried = sorted((_tried(c, best) for c in cells), key=lambda t: (t.lr, t.rule, t.warmup))
    good = [t.lr for t in tried if t.as_good]
    batch = cells[0].batch
    predicted = {rule: question.predicted_lr(rule, batch) for rule in RULES}
    known = sorted({t.lr for t in tried if t.seeds or t.broken})
    at_edge = best is not None and len(known) >= 3 and best.lr in (known[0], known[-1])
    return BatchRates(
        batch=batch,
        variant=cells[0].variant,
        tried=tried,
        best_lr=best.lr if best else None,
        predicted=predicted,
        agrees=[rule for rule in RULES if good and min(good) / NEAR <= predicted[rule] <= max(good) * NEAR],
        at_edge=at_edge,
    )


def _tried(cell: Cell, best: Cell | None) -> Tried:
    return Tried(
        lr=cell.lr,
        rule=cell.rule,
        warmup=cell.warmup,
        multiple=cell.multiple,
        mean=cell.mean,
        std=cell.std,
        seeds=len(cell.errors),
        broken=cell.diverged,
        as_good=_as_good(cell, best),
    )


def _as_good(cell: Cell, best: Cell | None) -> bool:
    if best is None or cell.mean is None:
        return False
    bounds = difference(cell.seeds, best.seeds)
    return cell is best or cell.mean == best.mean or (bounds is not None and bounds[0] <= 0)
