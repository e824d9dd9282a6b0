"""The answer in sentences, with how sure each of them is."""

from collections.abc import Sequence

from service.scaling.cells import Cell
from service.scaling.evidence import Question, ReportModel, Rule
from service.scaling.limits import Reach, chief
from service.scaling.statistics import difference


class Lead(ReportModel):
    """The best rule against the best method of another rule, at the largest batch that both tried and up to which the
    best is estimated to hold."""

    rule: Rule
    over: Rule
    batch: int
    low: float | None
    """The other's error above the best's, with 95 % confidence not less; null where seeds are too few or broke."""
    high: float | None
    shown: bool
    """Whether the other is shown to be worse there: its interval lies above 0, or it broke and the best held."""


def lead(found: Sequence[Reach], cells: Sequence[Cell]) -> Lead | None:
    """None where only one rule was tried, or no batch by two."""
    other = next((reach for reach in found if reach.rule != found[0].rule), None)
    if other is None:
        return None
    end = max(found[0].shown, found[0].estimated)
    best = {cell.batch: cell for cell in cells if cell.method == found[0].method and cell.batch <= end}
    second = {cell.batch: cell for cell in cells if cell.method == other.method and cell.verdict != "untried"}
    common = [batch for batch in found[0].tried if batch in best and batch in second]
    if not common:
        return None
    mine, theirs = best[common[-1]], second[common[-1]]
    bounds = None if theirs.mean is None else difference(theirs.seeds, mine.seeds)
    broke = theirs.verdict == "beyond" and mine.verdict == "within"
    return Lead(
        rule=found[0].rule,
        over=other.rule,
        batch=common[-1],
        low=bounds[0] if bounds else None,
        high=bounds[1] if bounds else None,
        shown=broke or (bounds is not None and bounds[0] > 0),
    )


def answer(
    question: Question, baseline: Cell | None, found: Sequence[Reach], first: Lead | None, power: float | None
) -> list[str]:
    """Baseline, each rule, the best of them, what to use."""
    if baseline is None or not baseline.errors:
        claim = f"no trial at batch {question.base_batch} with the rate {question.base_lr:g} has a result"
        return [f"There is no baseline: {claim}. Nothing can be said of larger batches."]
    sentences = [_baseline(question, baseline), *(_reach(reach, question) for reach in chief(found))]
    if not found:
        return [*sentences, "No larger batch was tried."]
    best = found[0]
    sentences.append(_best(best, first, question))
    if power is not None:
        claim = f"As far as a rule holds, the best of the rates tried grew as batch^{power:.2f}"
        sentences.append(f"{claim} (none 0, sqrt 0.5, linear 1).")
    return [*sentences, _use(max(found, key=lambda reach: (reach.safe, reach.shown)), question)]


def _baseline(question: Question, baseline: Cell) -> str:
    metric = question.metric
    mean, std, count = baseline.seeds.mean, baseline.seeds.std, len(baseline.errors)  # without those that broke
    spread = f" ± {metric.spread(std)}" if std is not None else ""
    claim = f"The baseline, batch {question.base_batch} at rate {question.base_lr:g}, has"
    seeds = f"({count} seed{'s' if count > 1 else ''})"
    broke = f"; {baseline.diverged} of its seeds broke" if baseline.diverged else ""
    beyond = "falls below it" if metric.higher_is_better else "exceeds it"
    within = f"as good as that is what {beyond} by less than {metric.gap(question.tolerance)}"
    has = "an error of" if metric.is_error else metric.name
    return f"{claim} {has} {metric.number(mean)}{spread}{metric.unit} {seeds}{broke}; {within}."


def _reach(reach: Reach, question: Question) -> str:
    base = question.base_batch
    if reach.shown > base:
        held = f"is shown to be as good up to batch {reach.shown}, {reach.shown / base:g} times the base"
    else:
        held = "is not shown to be as good at any larger batch"
    likely = f"; the most likely limit is {_batch(reach.estimated, base)}" if reach.estimated != reach.shown else ""
    if reach.breaks_at is not None:
        broke = f"it is shown to break by batch {reach.breaks_at}"
    else:
        broke = f"it is not shown to break at any batch tried, up to {reach.tried[-1]}"
    return f"Rule {reach.method} {held}{likely}; {broke}."


def _best(best: Reach, first: Lead | None, question: Question) -> str:
    if best.estimated == question.base_batch:
        return "No rule holds above the base batch by these trials."
    claim = f"Rule {best.method} fits best"
    if first is None:
        return f"{claim}; no other rule was tried beside it."
    if first.low is not None and first.high is not None:
        metric = question.metric
        between = f"{metric.spread(first.low)} to {metric.gap(first.high)}"
        more = "more error" if metric.is_error else f"{'less' if metric.higher_is_better else 'more'} {metric.name}"
        claim += f": at batch {first.batch} rule {first.over} has {between} {more}"
    elif first.shown:
        claim += f": at batch {first.batch} it holds where rule {first.over} breaks"
    return f"{claim}." if first.shown else f"{claim}, but that it beats rule {first.over} is not shown."


def _use(best: Reach, question: Question) -> str:
    base = question.base_batch
    if best.safe > base:
        claim = f"Use batch {best.safe} with the learning rate {best.safe_lr:.4g} (rule {best.method})"
        return f"{claim}: twice that batch is still shown to hold."
    if best.shown > base:
        rate = question.predicted_lr(best.rule, best.shown) * best.multiple
        claim = f"Batch {best.shown} with the learning rate {rate:.4g} (rule {best.method}) is shown to hold"
        return f"{claim}, but not at a safe distance from where it may break; batch {base} is safe."
    until = ", until more seeds confirm the most likely limit" if best.estimated > base else ""
    return f"Stay at batch {base} with the learning rate {question.base_lr:g}{until}."


def _batch(batch: int, base: int) -> str:
    return f"batch {batch}" if batch > base else "the base"
