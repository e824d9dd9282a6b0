"""A run that learns nothing says so, and fails where the spec wants that."""

import math
from pathlib import Path

import pytest

from tests.runtime.control.fakes import EXAMPLES, MINIBATCH, FakeRun, play
from tests.runtime.runs import spec
from trainers.events import State
from trainers.metrics import StepMetrics
from trainers.models.losses import loss_at_chance
from trainers.runtime.control.judges.divergence import PATIENCE, DivergenceWatch, stretch_of
from trainers.training.messages import WorkerReport

CHANCE = math.log(10)


def watched(*losses: float, start: float = 2.4, last: bool = False) -> str | None:
    """What is said after stretches of 10 examples with these losses."""
    watch, total = DivergenceWatch(CHANCE, 10), 0.0
    watch.begins(start)
    watch.begins(1.0)  # of a later step
    for number, loss in enumerate(losses, 1):
        watch.look(10 * number - 5, (total + 5 * loss, 10 * number - 5.0), number - 0.5, False)  # too early to tell
        total += 10 * loss
        watch.look(10 * number, (total, 10.0 * number), number, last and number == len(losses))
    return watch.warning


def test_a_stretch_is_an_epoch_or_a_sixth_of_a_short_run() -> None:
    assert stretch_of(100, 600) == stretch_of(100, 9000) == 100
    assert stretch_of(100, 300) == 50
    assert stretch_of(10_000, 600) == 100, "max_steps ends it within an epoch"
    assert stretch_of(100, 805) == 805 / 8, "none is short"


def test_what_is_reported_after_the_last_look_changes_nothing() -> None:
    """Workers report one after the other: one minibatch may be anywhere."""
    watch = DivergenceWatch(CHANCE, 10)
    watch.look(60, (60 * CHANCE, 60.0), 6, is_last=True)
    watch.look(60, (60 * CHANCE + 1, 65.0), 6, is_last=True)
    assert "the run has learned nothing" in str(watch.warning)


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
        said = [warning["message"] for warning in run.log.of("warning")]
        if on_divergence == "warn":
            assert len(said) == 1
            assert "the run diverges" in said[0]
            assert run.controller.end is None
        else:
            assert run.controller.end is not None
            assert (run.controller.end.state, run.controller.end.reason) == (State.FAILED, "Diverged")

    play(tmp_path, scenario, train=spec(workers=1, epochs=2 * PATIENCE, on_divergence=on_divergence))


@pytest.mark.parametrize("fields", [{"epochs": 1}, {"epochs": 9, "max_steps": 6}])
def test_one_that_ends_within_an_epoch_hears_of_it_by_half_and_at_its_end(
    tmp_path: Path, fields: dict[str, int]
) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        progress = run.training.progress
        generation = run.actor(0).called("train")[-1][0].endpoint.generation
        said = []
        for reached in range(MINIBATCH, progress.extent.examples + 1, MINIBATCH):
            done = StepMetrics(steps=1, examples=MINIBATCH, loss=1000.0 * MINIBATCH, weight=MINIBATCH)
            progress.divergence.start = 0.01
            run.controller.report(WorkerReport(0, generation, done, 0.1, updates=reached // MINIBATCH, reached=reached))
            said.append(progress.divergence.warning)
        half = len(said) // 2
        assert said[half - 2] is None
        assert "the run diverges" in str(said[half])
        assert said[-1] is not None

    play(tmp_path, scenario, train=spec(workers=1, **fields))
