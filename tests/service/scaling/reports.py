"""Picks out parts of a report."""

from collections.abc import Iterable

from service.scaling.cells import Cell
from service.scaling.evidence import Evidence, Trial
from service.scaling.gaps import Gap
from service.scaling.limits import Reach
from service.scaling.report import ScalingReport, VariantReport


def one(report: ScalingReport) -> VariantReport:
    (variant,) = report.variants
    return variant


def reach(variant: VariantReport, rule: str, warmup: str = "none") -> Reach:
    return next(r for r in variant.rules if (r.rule, r.warmup, r.multiple) == (rule, warmup, 1.0))


def cell(variant: VariantReport, batch: int, rule: str = "none", warmup: str = "none") -> Cell:
    return next(c for c in variant.cells if (c.batch, c.rule, c.warmup, c.multiple) == (batch, rule, warmup, 1.0))


def gaps(variant: VariantReport, kind: str) -> list[Gap]:
    return [gap for gap in variant.gaps if gap.kind == kind]


def with_trials(found: Evidence, trials: Iterable[Trial]) -> Evidence:
    return found.model_copy(update={"trials": tuple(trials)})
