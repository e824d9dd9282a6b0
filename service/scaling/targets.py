"""Time, examples and updates until a target error (paper 3, table II)."""

from collections.abc import Sequence

from service.scaling.cells import BASE, Groups, Method, Variant, outcome
from service.scaling.evidence import Point, Question, ReportModel, Rule, Trial
from service.scaling.statistics import mean, std


class TimeToTarget(ReportModel):
    """One method at one batch: what its trials took until an evaluation first met the target error."""

    batch: int
    rule: Rule
    warmup: str
    multiple: float
    variant: dict[str, str]
    target_error: float
    reached: int
    """Trials that met it."""
    of: int
    """Trials that trained to their end, or broke."""
    seconds: float | None
    """Mean over the trials that met it, as are all figures below."""
    seconds_std: float | None
    examples: float | None
    updates: float | None
    """Examples divided by the batch: what counts where a batch is spread over workers."""
    improvement: float | None
    """Seconds of the baseline over these (paper 3's column); null unless all trials of both met the target."""
    fewer_updates: float | None
    """Likewise of updates: as large as batch / base where the larger batch loses nothing."""

    @property
    def method(self) -> Method:
        """How the rate followed the batch."""
        return Method(self.rule, self.warmup, self.multiple)


def times_to_target(groups: Groups, question: Question, target: float, variant: Variant) -> list[TimeToTarget]:
    """One row for each method and batch of a variant that has trials to tell of, the baseline first."""
    rows = []
    for (method, batch), group in groups.items():
        trials = [trial for trial in group.trials if outcome(trial) in ("finished", "diverged", "stopped")]
        if trials:
            rows.append(_row(trials, method, batch, variant, target))
    base = next((row for row in rows if row.batch == question.base_batch and row.method == BASE), None)
    rows.sort(key=lambda row: (row is not base, row.batch, row.method))
    return [_compared(row, base) for row in rows]


def first_below(points: Sequence[Point], target: float) -> Point | None:
    """The first evaluation with an error not above the target."""
    met = [point for point in points if point.test_error is not None and point.test_error <= target]
    return min(met, key=lambda point: (point.examples, point.seconds), default=None)


def _row(trials: Sequence[Trial], method: Method, batch: int, variant: Variant, target: float) -> TimeToTarget:
    met = [point for trial in trials if (point := first_below(trial.points, target)) is not None]
    examples = mean([float(point.examples) for point in met]) if met else None
    return TimeToTarget(
        batch=batch,
        rule=method.rule,
        warmup=method.warmup,
        multiple=method.multiple,
        variant=dict(variant),
        target_error=target,
        reached=len(met),
        of=len(trials),
        seconds=mean([point.seconds for point in met]) if met else None,
        seconds_std=std([point.seconds for point in met]),
        examples=examples,
        updates=examples / batch if examples is not None else None,
        improvement=None,
        fewer_updates=None,
    )


def _compared(row: TimeToTarget, base: TimeToTarget | None) -> TimeToTarget:
    if base is None or row.reached < row.of or base.reached < base.of:
        return row
    ratios = {"improvement": _ratio(base.seconds, row.seconds), "fewer_updates": _ratio(base.updates, row.updates)}
    return row.model_copy(update=ratios)


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None
