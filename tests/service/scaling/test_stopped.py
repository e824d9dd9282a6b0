"""Seeds that were stopped early: evidence with a weight of its own, and no contradiction in the report."""

import math

import numpy as np
import pytest

from service.scaling.evidence import Evidence, Point, Trial
from service.scaling.markdown import markdown
from service.scaling.report import scaling_report
from service.scaling.statistics import Seeds
from tests.service.scaling.reports import cell, one
from tests.service.scaling.synthetic import BASE, evidence, trial

EPOCHS = 10
STOPPED = {"state": "STOPPED", "reason": "DivergesFromBaseline", "error": None}


def curve(behind: float, epochs: int = EPOCHS, loss: float = 0.0) -> tuple[Point, ...]:
    """From an error of 50 % down to 5 % and what it is behind, in equal steps."""
    return tuple(
        Point(
            examples=100 * epoch, epoch=epoch, seconds=epoch, train_loss=loss or 2.3 - 0.2 * epoch,
            test_error=0.5 - 0.45 * epoch / EPOCHS + behind,
        )
        for epoch in range(1, epochs + 1)
    )  # fmt: skip


def seed(number: int, behind: float, batch: int = 512, **more: object) -> Trial:
    rule = "none" if batch == BASE else "linear"
    told: dict[str, object] = {"points": curve(behind), "error": 0.05 + behind, "start_loss": 2.3}
    return trial(batch, rule, seed=number, **told | more)


def baseline() -> list[Trial]:
    return [seed(number, behind, BASE) for number, behind in enumerate((-0.001, 0.0, 0.001))]


def found(*trials: Trial) -> Evidence:
    return evidence([*baseline(), *trials], tolerance=0.02)


def test_a_seed_that_was_as_good_when_it_was_stopped_does_not_break_its_cell() -> None:
    """As in `scaling-rules-small`: the cell read 3.61 % and broken, and its seeds had reached the target in 2 of 2."""
    stopped = seed(1, 0.001, **STOPPED, points=curve(0.001, 4))
    report = scaling_report(found(seed(0, 0.0), stopped))
    here = cell(one(report), 512, "linear")
    assert (here.finished, here.stopped, here.diverged, here.weights) == (1, 1, 0, [1.0, 0.4])
    assert here.mean == pytest.approx(0.05 + 0.4 / 1.4 * 0.001)
    assert here.excess == pytest.approx(0.4 / 1.4 * 0.001)
    assert here.verdict == "within"
    assert "is shown to be as good up to batch 512" in one(report).answer[1]
    assert "| 512 | linear | none | 0.4 | 5.03 ± 0.07 % | 1, 1 stopped |" in markdown(report)


def test_seeds_that_were_behind_when_they_were_stopped_count_as_that_far_behind() -> None:
    stopped = [seed(n, 0.08 + 0.001 * n, **STOPPED, points=curve(0.08 + 0.001 * n, 5)) for n in range(3)]
    here = cell(one(scaling_report(found(*stopped))), 512, "linear")
    assert here.excess == pytest.approx(0.081)  # not the 32 points between its error then and the baseline's at the end
    assert (here.mean, here.verdict) == (pytest.approx(0.131), "beyond")


@pytest.mark.parametrize("loss", [2.3, 5.0, math.nan])
def test_a_run_that_was_stopped_at_chance_is_a_failure(loss: float) -> None:
    """And a broken cell has no mean: what the other seed came to is no result of the cell."""
    stopped = seed(1, 0.4, **STOPPED, points=curve(0.4, 4, loss))
    report = scaling_report(found(seed(0, 0.0), stopped))
    here = cell(one(report), 512, "linear")
    assert (here.diverged, here.stopped, here.mean, here.excess, here.verdict) == (1, 0, None, None, "beyond")
    assert "| 512 | linear | none | 0.4 | broke | 1, 1 diverged | - | beyond |" in markdown(report)


def test_what_asha_stopped_is_evidence_as_well() -> None:
    here = cell(one(scaling_report(found(seed(0, 0.0), seed(1, 0.3, state="STOPPED", reason="Asha")))), 512, "linear")
    assert (here.stopped, here.missing, here.verdict) == (1, 0, "undecided")


def test_a_seed_counts_as_much_as_it_is_worth() -> None:
    errors, weights = (0.1, 0.13, 0.2), (1.0, 0.4, 0.7)
    seeds = Seeds(errors, weights)
    assert seeds.mean == pytest.approx(np.average(errors, weights=weights))
    assert seeds.variance == pytest.approx(np.cov(errors, aweights=weights))
    assert seeds.effective == pytest.approx(2.1**2 / 1.65)
    assert Seeds.of(errors).effective == 3
