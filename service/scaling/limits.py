"""How far each method carries: the largest batch that is as good as the baseline, and where it breaks.

Above the base, error is taken not to fall as the batch grows (paper 4, figure 1). A batch that is within the tolerance
then speaks for the smaller ones that are undecided, and one beyond it for the larger ones. Each end is wrong in about
5 % of cases: those in which the batch whose true error is next to the tolerance is misjudged.
"""

import math
from collections.abc import Iterable, Sequence

from service.scaling.cells import BASE, Cell, Method
from service.scaling.evidence import Question, ReportModel, Rule
from service.scaling.statistics import mean, rising

SAFE = 2
"""A safe batch would hold if it were so many times larger. Paper 4 holds at 8192, on the edge, and advises a batch
that is not close to the breaking point (section 5.3)."""


class Reach(ReportModel):
    """One method's answer."""

    rule: Rule
    warmup: str
    multiple: float
    variant: dict[str, str]
    tried: list[int]
    """Batches above the base."""
    shown: int
    """The largest batch shown to be within the tolerance, with none below it shown to be beyond; at least the base,
    which is as good as itself."""
    estimated: int
    """The most likely limit, without confidence: the largest batch at which the excess, fitted so that it never falls,
    is within the tolerance."""
    breaks_at: int | None
    """The smallest batch shown to be beyond the tolerance, with none above it shown to be within; null: there is
    none."""
    safe: int
    """The largest batch tried of which the double, or more, is shown to hold; else the base."""
    safe_lr: float
    """This method's rate there."""
    mean_excess: float | None
    """Error above the baseline's, mean over the batches tried of which no seed diverged."""

    @property
    def method(self) -> Method:
        """How the rate follows the batch."""
        return Method(self.rule, self.warmup, self.multiple)


def reaches(cells: Sequence[Cell], question: Question) -> list[Reach]:
    """One answer for each method of a variant that was tried above the base batch, the best first."""
    above = [cell for cell in cells if cell.batch > question.base_batch]
    methods = sorted({cell.method for cell in above})
    found = [_reach(sorted(_of(above, m), key=lambda cell: cell.batch), m, question) for m in methods]
    return sorted(found, key=_rank)


def chief(found: Sequence[Reach]) -> list[Reach]:
    """The answers that count: at the rates that the rules give, and the best at whatever rate."""
    return [reach for i, reach in enumerate(found) if reach.multiple == 1 or i == 0]


def _rank(reach: Reach) -> tuple[object, ...]:
    """Of two that are estimated to hold as far, the one shown to hold farther, then that with the lower error."""
    excess = 2.0 if reach.mean_excess is None else reach.mean_excess
    return -reach.estimated, -reach.shown, excess, reach.method


def _of(cells: Iterable[Cell], method: Method) -> list[Cell]:
    return [cell for cell in cells if cell.method == method]


def _reach(cells: Sequence[Cell], method: Method, question: Question) -> Reach:
    base = question.base_batch
    worst = min((cell.batch for cell in cells if cell.verdict == "beyond"), default=math.inf)
    held = [cell for cell in cells if cell.verdict == "within" and cell.batch < worst]
    last = max((cell.batch for cell in cells if cell.verdict == "within"), default=0)
    broke = [cell.batch for cell in cells if cell.verdict == "beyond" and cell.batch > last]
    shown = held[-1].batch if held else base
    near = [cell.batch for cell in cells if cell.batch * SAFE <= shown]
    safe = max(near, default=base)
    excesses = [cell.excess for cell in cells if cell.excess is not None]
    return Reach(
        rule=method.rule,
        warmup=method.warmup,
        multiple=method.multiple,
        variant=cells[0].variant,
        tried=[cell.batch for cell in cells],
        shown=shown,
        estimated=max([base, *_likely(cells, question)]),
        breaks_at=broke[0] if broke else None,
        safe=safe,
        safe_lr=question.predicted_lr(method.rule, safe) * (method.multiple if safe > base else BASE.multiple),
        mean_excess=mean(excesses) if excesses else None,
    )


def _likely(cells: Sequence[Cell], question: Question) -> list[int]:
    """Batches at which the fitted excess is within the tolerance; a cell that broke is an error of 100 %."""
    if any(cell.mean is not None and cell.excess is None for cell in cells):
        return []  # without a baseline
    measured = [cell for cell in cells if cell.mean is not None or cell.diverged]
    excesses = [question.broken_excess if cell.excess is None else cell.excess for cell in measured]
    fitted = rising(excesses, [math.fsum(cell.weights) + cell.diverged for cell in measured])
    return [cell.batch for cell, excess in zip(measured, fitted, strict=True) if excess <= question.tolerance]
