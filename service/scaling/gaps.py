"""Where the evidence is too thin for an answer, and the trials that would settle it."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from service.scaling.cells import BASE, Cell, Groups, Method, Variant, outcome
from service.scaling.evidence import Question, ReportModel, Rule
from service.scaling.limits import Reach, chief
from service.scaling.rates import BatchRates
from service.scaling.statistics import Seeds, mean, seeds_to_settle

PAPER_SEEDS = 5  # paper 4, section 5.1

Why = Literal["baseline", "lost", "seeds", "close", "gap", "between", "larger", "rate"]


class Proposal(ReportModel):
    """Trials to add: one for each seed."""

    batch: int
    rule: Rule
    warmup: str
    multiple: float
    """Of the base rate."""
    lr: float
    """In force after scaling and warm-up."""
    seeds: list[int]
    variant: dict[str, str]
    """Swept settings of other kinds."""
    why: str
    """What they would settle."""
    about_s: float | None
    """How long they would train in all, by the trials of this sweep; null where none tells."""


class Gap(ReportModel):
    """Something that the evidence does not tell."""

    kind: Why
    """baseline: no spread to compare with; lost: trials without a result; seeds: more would decide; close: seeds alone
    will not; gap, between, larger: batches not tried; rate: the best rate may lie beyond those tried."""
    message: str
    proposals: list[Proposal]


class View(NamedTuple):
    """What one variant came to, for those who look for gaps in it."""

    variant: Variant
    groups: Groups
    cells: Sequence[Cell]
    baseline: Seeds
    question: Question
    pace_s: float | None
    """Mean seconds of a whole trial."""


def gaps(view: View, reaches: Sequence[Reach], rates: Sequence[BatchRates]) -> list[Gap]:
    """All gaps, those first on which everything else rests."""
    own = chief(reaches)
    found = [*_baseline(view), *_lost(view)]
    if view.baseline.errors:
        for reach in own:
            found += _undecided(view, reach)
            found += _bracket(view, reach)
    if not own and view.baseline.errors:
        larger = [view.question.base_batch * 2**i for i in range(1, 4)]
        message = "no rule was tried at a batch above the base"
        found.append(
            _gap(view, "larger", message, [(Method("linear", "none", 1.0), b) for b in larger], "where it holds")
        )
    return [*found, *_edges(view, reaches, rates)]


def _baseline(view: View) -> list[Gap]:
    count, batch = len(view.baseline.errors), view.question.base_batch
    cell = _cell(view, BASE, batch)
    if cell is not None and cell.diverged:
        message = f"{_seeds(cell.diverged)} of the baseline broke: its rate is too high to compare anything with"
        half = BASE._replace(multiple=0.5)
        return [_gap(view, "baseline", message, [(half, batch)], "whether half of the base rate is sound", PAPER_SEEDS)]
    if count >= 2:
        return []
    message = f"the baseline, batch {batch} at the base rate, has {_seeds(count)}: nothing can be compared with it"
    return [_gap(view, "baseline", message, [(BASE, batch)], "the baseline's mean and spread", PAPER_SEEDS)]


def _lost(view: View) -> list[Gap]:
    found = []
    for (method, batch), group in view.groups.items():
        cell = _cell(view, method, batch)
        if cell is None or not cell.missing:
            continue
        lost = [t for ts in group.by_seed.values() if all(outcome(t) == "missing" for t in ts) for t in ts]
        states = ", ".join(sorted({f"{t.state} {t.reason}".strip() or "no reason" for t in lost}))
        message = f"rule {method} at batch {batch}: {_seeds(cell.missing)} ended without a result ({states})"
        again = _proposal(view, method, batch, sorted({t.seed for t in lost}), "the same once more")
        found.append(Gap(kind="lost", message=message, proposals=[again]))
    return found


def _undecided(view: View, reach: Reach) -> list[Gap]:
    """The first batch above the largest shown to hold at which neither verdict was reached."""
    cells = [cell for batch in reach.tried if (cell := _cell(view, reach.method, batch)) is not None]
    open_cell = next((cell for cell in cells if cell.batch > reach.shown and cell.verdict != "within"), None)
    if open_cell is None or open_cell.verdict == "beyond":
        return _contradiction(view, reach, cells)
    message = f"rule {reach.method} at batch {open_cell.batch}"
    if open_cell.verdict == "untried":
        return (
            [] if open_cell.missing else [Gap(kind="lost", message=f"{message}: no seed has ended yet", proposals=[])]
        )
    count = seeds_to_settle(open_cell.seeds, view.baseline, view.question.tolerance)
    message = f"{message}: {_seeds(len(open_cell.errors))} do not decide whether it is within the tolerance"
    if count is None:
        message += "; its error is so near the tolerance that 20 seeds would not either: state another tolerance"
        return [Gap(kind="close", message=message, proposals=[])]
    wanted = [(reach.method, open_cell.batch), (BASE, view.question.base_batch)]
    return [_gap(view, "seeds", message, wanted, f"whether batch {open_cell.batch} holds", count)]


def _contradiction(view: View, reach: Reach, cells: Sequence[Cell]) -> list[Gap]:
    """A batch that is beyond the tolerance below one that is within."""
    worst = [cell for cell in cells if cell.verdict == "beyond"]
    later = [cell for cell in cells if cell.verdict == "within" and worst and cell.batch > worst[0].batch]
    if not later:
        return []
    message = f"rule {reach.method} is beyond the tolerance at batch {worst[0].batch} and within it at {later[0].batch}"
    wanted = [(reach.method, worst[0].batch), (reach.method, later[0].batch)]
    count = len(worst[0].errors) + worst[0].diverged + PAPER_SEEDS
    return [_gap(view, "seeds", message, wanted, "which of the two was chance", count)]


def _bracket(view: View, reach: Reach) -> list[Gap]:
    """Batches not tried between the last that held and the first that broke, or above the last."""
    method, last = reach.method, reach.tried[-1]
    others = {batch for m, batch in view.groups if m.multiple == 1}
    skipped = [b for b in sorted(others) if view.question.base_batch < b < last and b not in reach.tried]
    found = []
    if skipped:
        message = f"rule {method} was not tried at batch {_listed(skipped)}, between those at which it was"
        found.append(_gap(view, "gap", message, [(method, batch) for batch in skipped], "whether it holds there"))
    if reach.breaks_at is None and reach.estimated == last:
        message = f"rule {method} has not broken up to batch {last}, the largest tried"
        found.append(_gap(view, "larger", message, [(method, last * 2), (method, last * 4)], "where it breaks"))
    if reach.breaks_at is not None and reach.breaks_at > 2 * reach.estimated:
        tried = {reach.shown, *reach.tried}
        between = [b for b in _doublings(reach.estimated, reach.breaks_at) if b not in tried]
        if between:
            message = f"rule {method} breaks somewhere between batch {reach.estimated} and {reach.breaks_at}"
            found.append(_gap(view, "between", message, [(method, batch) for batch in between], "where it breaks"))
    return found


def _edges(view: View, reaches: Sequence[Reach], rates: Sequence[BatchRates]) -> list[Gap]:
    """Only at the batches that an answer rests on: elsewhere a better rate would change nothing."""
    batches = {view.question.base_batch, *(reach.shown for reach in reaches[:1])}
    found = []
    for row in rates:
        if row.batch not in batches or not row.at_edge:
            continue
        best = next(tried for tried in row.tried if tried.lr == row.best_lr and not tried.broken)
        highest = best.lr >= max(tried.lr for tried in row.tried)
        message = f"at batch {row.batch} the best rate, {best.lr:g}, is the {'highest' if highest else 'lowest'} tried"
        method = Method(best.rule, best.warmup, best.multiple * (2 if highest else 0.5))
        found.append(_gap(view, "rate", message, [(method, row.batch)], "whether the best rate lies beyond"))
    return found


def _gap(
    view: View, kind: Why, message: str, wanted: Iterable[tuple[Method, int]], why: str, seeds: int | None = None
) -> Gap:
    """A gap with the trials that close it: so many seeds of each wanted cell, counting those that there are."""
    proposals = []
    for method, batch in wanted:
        group = view.groups.get((method, batch))
        used = set(group.by_seed) if group else set()
        count = (seeds or _usual(view)) - len(used)
        if count > 0:
            proposals.append(_proposal(view, method, batch, _fresh(view, used, count), why))
    return Gap(kind=kind, message=message, proposals=proposals)


def _usual(view: View) -> int:
    """As many seeds as most cells have, at least three."""
    return max(3, *(len(group.by_seed) for group in view.groups.values())) if view.groups else PAPER_SEEDS


def _fresh(view: View, used: set[int], count: int) -> list[int]:
    """Seeds that the cell lacks: the sweep's own first, so that cells share them, then new ones."""
    known = sorted({seed for group in view.groups.values() for seed in group.by_seed} - used)[:count]
    new = range(max([*known, *used, -1]) + 1, max([*known, *used, -1]) + 1 + count - len(known))
    return [*known, *new]


def _proposal(view: View, method: Method, batch: int, seeds: list[int], why: str) -> Proposal:
    return Proposal(
        batch=batch,
        rule=method.rule,
        warmup=method.warmup,
        multiple=method.multiple,
        lr=view.question.predicted_lr(method.rule, batch) * method.multiple,
        seeds=seeds,
        variant=dict(view.variant),
        why=why,
        about_s=None if view.pace_s is None else view.pace_s * len(seeds),
    )


def _cell(view: View, method: Method, batch: int) -> Cell | None:
    return next((cell for cell in view.cells if cell.method == method and cell.batch == batch), None)


def _doublings(low: int, high: int) -> list[int]:
    """Batches between two, by factors of two from the lower."""
    found = []
    while low * 2 < high:
        low *= 2
        found.append(low)
    return found


def _listed(batches: Sequence[int]) -> str:
    return ", ".join(str(batch) for batch in batches)


def _seeds(count: int) -> str:
    return {0: "no seed", 1: "one seed"}.get(count, f"{count} seeds")


def mean_seconds(groups: Groups) -> float | None:
    """Of whole trials."""
    ended = [t.points[-1].seconds for g in groups.values() for t in g.trials if outcome(t) == "finished" and t.points]
    return mean(ended) if ended else None
