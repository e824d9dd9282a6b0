"""A run that learns nothing says so, and fails where the spec wants that."""

import math
from pathlib import Path

import pytest

from tests.runtime.control.fakes import EXAMPLES, MINIBATCH, FakeRun, play
from tests.runtime.runs import spec
from trainers.events import State
from trainers.metrics import StepMetrics
from trainers.models.losses import loss_at_chance
from trainers.runtime.control.divergence import PATIENCE, DivergenceWatch
from trainers.training.messages import WorkerReport

CHANCE = math.log(10)


def watched(*losses: float, start: float = 2.4, last: bool = False) -> str | None:
    watch = DivergenceWatch(CHANCE)
    watch.begins(start)
    watch.begins(1.0)  # of a later step
    for number, loss in enumerate(losses, 1):
        watch.epoch(number, loss, is_last=last and number == len(losses))
    return watch.warning


def test_one_that_learns_is_left_alone() -> None:
    assert watched(2.2, 1.0, 0.5, 0.5, 0.51, last=True) is None
    assert watched(0.31, 0.3, 0.31, start=0.3, last=True) is None, "it began with good weights"


def test_a_plateau_at_the_start_is_given_time() -> None:
    assert watched(*[CHANCE] * (PATIENCE - 1)) is None
    assert "the run has learned nothing" in str(watched(*[CHANCE] * PATIENCE))
    assert watched(*[CHANCE] * PATIENCE, 1.5) is None, "it learns after all"
    assert "guessing has 2.3" in str(watched(CHANCE, last=True)), "there is no more time"


def test_one_whose_loss_stays_above_its_start_diverges() -> None:
    assert "it was 2.4 at the start: the run diverges" in str(watched(2000, 4000, 3000))


def test_the_loss_of_guessing() -> None:
    assert loss_at_chance("cross_entropy", 10) == pytest.approx(2.302585)
    units = -math.log(0.1) - 9 * math.log(0.9)  # each of 10 says 0.1, and one is right with 1
    assert loss_at_chance("logistic", 10) == pytest.approx(units)
    assert loss_at_chance("cross_entropy", 1) == 0


def loses(run: FakeRun, loss: float) -> None:
    """Worker 0 has trained all but the last epoch at this loss."""
    generation = run.actor(0).called("train")[-1][0].endpoint.generation
    for epoch in range(PATIENCE):
        done = StepMetrics(
            steps=8,
            examples=EXAMPLES,
            loss=loss * EXAMPLES,
            weight=EXAMPLES,
            by_epoch={epoch: (loss * EXAMPLES, EXAMPLES)},
        )
        reached = (epoch + 1) * EXAMPLES
        run.controller.report(WorkerReport(0, generation, done, 0.1, updates=reached // MINIBATCH, reached=reached))


@pytest.mark.parametrize("on_divergence", ["warn", "fail"])
def test_the_run_says_so_or_fails(tmp_path: Path, on_divergence: str) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.training.progress.divergence.begins(0.01)
        loses(run, 1000.0)
        await run.settle()
        said = [line["message"] for line in run.log.of("log") if line["level"] == "warning"]
        if on_divergence == "warn":
            assert len(said) == 1
            assert "the run diverges" in said[0]
            assert run.controller.end is None
        else:
            assert run.controller.end is not None
            assert (run.controller.end.state, run.controller.end.reason) == (State.FAILED, "Diverged")

    play(tmp_path, scenario, train=spec(workers=1, epochs=PATIENCE + 1, on_divergence=on_divergence))
