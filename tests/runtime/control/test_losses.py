"""A loss that jumps and stays is told once, while the run trains; curves of good runs are left alone."""

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.control.fakes import FakeRun, play
from tests.runtime.runs import spec
from trainers.metrics import StepMetrics
from trainers.runtime.control.judges.losses import LossWatch
from trainers.training.messages import WorkerReport

EPOCHS, REPORTS, EXAMPLES = 20, 24, 960
"""Of a run: its epochs, reports in each, and examples of an epoch."""
Curve = Callable[[float], float]
"""The loss by the epoch."""


def told(
    curve: Curve, noise: float = 0.1, seed: int = 0, knows_chance: bool = True, reports: int = REPORTS
) -> list[str]:
    """What is said of a run with this loss, each report off by so much of it."""
    watch, draw, said = LossWatch(EXAMPLES, knows_chance), random.Random(seed), list[str]()
    for report in range(1, EPOCHS * reports + 1):
        loss = curve(report / reports) * (1 + draw.gauss(0, noise))
        said += filter(None, [watch.add(report * EXAMPLES // reports, loss)])
    return said


def learns(epoch: float) -> float:
    return 0.05 + 2.3 * math.exp(-1.5 * epoch)


GOOD: dict[str, Curve] = {
    "learns": learns,
    "learns slowly": lambda epoch: 2.3 - 0.05 * epoch,
    "plateau, then learns": lambda epoch: 2.3 if epoch < 4 else learns(epoch - 4),
    "restarts of the rate": lambda epoch: learns(epoch) + 0.4 * math.exp(-3 * (epoch % 5)) * (epoch > 5),
    "one cycle, rises in the middle": lambda epoch: learns(epoch) + 0.3 * math.exp(-((epoch - 9) ** 2) / 8),
    "begins with good weights": lambda epoch: 0.3,
    "begins far off": lambda epoch: 900.0 * math.exp(-40 * epoch) + learns(epoch),
    "overfits to nothing": lambda epoch: 2.3 * math.exp(-epoch),
    "a spike of half an epoch": lambda epoch: 2.3 if 9.3 < epoch < 9.8 else learns(epoch),
    "falls in steps": lambda epoch: (2.0, 0.8, 0.4, 0.3)[min(3, int(epoch // 5))],
    "of either sign": lambda epoch: 1.0 - 0.5 * epoch,
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_a_good_run_is_left_alone(name: str, noise: float) -> None:
    for seed in range(10):
        assert told(GOOD[name], noise, seed) == []


@pytest.mark.parametrize("name", ["learns", "learns slowly", "begins far off", "of either sign"])
@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_nor_where_nobody_knows_the_loss_of_guessing(name: str, noise: float) -> None:
    for seed in range(10):
        assert told(GOOD[name], noise, seed, knows_chance=False) == []


@pytest.mark.parametrize("noise", [0.02, 0.3])
@pytest.mark.parametrize("reports", [8, 24, 100])
def test_a_loss_that_jumps_and_stays_is_told_once(noise: float, reports: int) -> None:
    for seed in range(10):
        (said,) = told(lambda epoch: 2.3 if epoch > 9.3 else learns(epoch), noise, seed, reports=reports)
        assert "the loss has jumped to " in said


def test_another_episode_is_told_again() -> None:
    said = told(lambda epoch: 2.3 if 5 < epoch < 9 or epoch > 15 else learns(epoch))
    assert len(said) == 2


def test_one_that_never_comes_down_is_told_where_guessing_is_not_known() -> None:
    assert told(lambda epoch: 5.0, 0.02, knows_chance=True) == []
    (said,) = told(lambda epoch: 5.0, 0.02, knows_chance=False)
    assert said.endswith("at the first step: it has not come down")


def test_what_an_earlier_coordinator_has_told_is_not_told_again() -> None:
    reports = [(40 * n, 2.3 if n > 240 else learns(n / 24)) for n in range(1, 400)]
    before, after = LossWatch(EXAMPLES, True), LossWatch(EXAMPLES, True)
    assert sum(before.add(*one) is not None for one in reports) == 1
    after.restore(reports[:300])
    after.restore(reports[280:300])  # it went back to a checkpoint
    assert [after.add(*one) for one in reports[300:]] == [None] * 99
    assert after == before


def test_the_run_says_so_and_goes_on(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        progress = run.training.progress
        progress.losses.stretch = 80
        generation = run.actor(0).called("train")[-1][0].endpoint.generation
        for step in range(1, 40):
            loss = 0.8 if step > 25 else 0.1 + math.exp(-step)
            done = StepMetrics(steps=1, examples=10, loss=10 * loss, weight=10)
            run.controller.report(WorkerReport(0, generation, done, 0.1, updates=step, reached=10 * step))
            progress.log_metrics()
        (warning,) = run.log.of("warning")
        assert "has jumped to 0.8 and stays there, after 0.1; a smaller" in warning["message"]
        assert (warning["examples"], warning["epoch"]) == (330, 8.25)
        assert run.controller.end is None

    play(tmp_path, scenario, train=spec(workers=1, epochs=20))
