"""A coordinator that comes back after a death: whom it takes over, and when it begins again. Without Ray."""

from pathlib import Path

import pytest

from tests.runtime.control.fake_actors import FakeActor
from tests.runtime.control.fakes import EXAMPLES, MINIBATCH, FakeRun, play, prepared, small
from trainers.events import State
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control.controller import RunPhase
from trainers.runtime.control.judges.divergence import PATIENCE
from trainers.runtime.control.recovery import Recovery, can_go_on
from trainers.runtime.control.run_events import Survivors
from trainers.runtime.control.run_log import LogSummary
from trainers.runtime.gone import LACKED_MEMORY
from trainers.runtime.memory import REMEDY
from trainers.training.messages import GenerationEnd
from trainers.training.position import Position

TAKES_OVER = ("RECOVERING", "CoordinatorDied")


def survivors(count: int, has_version: bool = True) -> Survivors:
    """So many workers, of which the last was a step ahead when its coordinator died."""
    workers = [
        WorkerHandle(
            number, f"job/worker/{number}", FakeActor(hand_over=[["part"], ["rows"]]), prepared=prepared(number)
        )
        for number in range(count)
    ]
    endings = [
        GenerationEnd(number, Position(step=1 + (number == count - 1), examples=2 * MINIBATCH), has_version=has_version)
        for number in range(count)
    ]
    return Survivors(workers, endings=endings, generation=4, store_worker=-1)


def test_it_goes_on_with_the_workers_that_are_left_from_the_newest_version(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.controller.before = LogSummary(deaths=1)
        await run.begins()
        assert run.log.states == [TAKES_OVER, ("RUNNING", "Training")]
        assert not run.launcher.asked_for
        start = run.actor(0).called("train")[0][0]
        assert (start.root, start.position.step, start.incarnation) == (1, 2, 2)
        assert not run.log.of("fault"), "all workers live on"

    play(tmp_path, scenario, before=LogSummary(), survivors=survivors(2))


@pytest.mark.parametrize(
    ("goes_back", "reason", "message"),
    [(False, "CoordinatorDied", "going on with the actors that survived"), (True, "GoesBack", "the last checkpoint")],
)
def test_it_says_why_it_is_there(tmp_path: Path, goes_back: bool, reason: str, message: str) -> None:
    """A coordinator that ended since data or shards are lost has not died, and nothing of it goes on."""

    async def scenario(run: FakeRun) -> None:
        run.controller.before = LogSummary(goes_back=goes_back)
        await run.begins()
        first = run.log.of("state")[0]
        assert (first["state"], first["reason"]) == ("RECOVERING", reason)
        assert message in first["message"]

    play(tmp_path, scenario, before=LogSummary(), survivors=survivors(2))


def test_it_names_the_actors_that_rays_monitor_ended_with_its_predecessor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But those that the predecessor has told of itself."""

    async def scenario(run: FakeRun) -> None:
        parts = run.controller.parts
        recovery, job = Recovery(parts), parts.config.job_id
        monkeypatch.setattr("trainers.runtime.control.recovery.predecessor_lacked_memory", lambda: True)
        monkeypatch.setattr(
            "trainers.runtime.control.recovery.lacked_memory", lambda _: [f"{job}/evaluator", f"{job}/worker/1"]
        )
        await recovery._say_who_lacked_memory({f"{job}/evaluator"})
        assert run.log.of("fault") == [{"actor": f"{job}/worker/1", "why": LACKED_MEMORY}]
        first, second = [line["message"] for line in run.log.of("log") if line["level"] == "error"]
        assert first.startswith(f"{job}/coordinator {LACKED_MEMORY}")
        assert second == f"{job}/worker/1 {LACKED_MEMORY}: {REMEDY}"

    play(tmp_path, scenario, before=LogSummary(), survivors=survivors(2))


@pytest.mark.parametrize(("loss", "diverges"), [(4.0, False), (6.0, True)])
def test_the_loss_is_still_held_against_that_of_the_first_step(tmp_path: Path, loss: float, diverges: bool) -> None:
    """Which the coordinator before was told: 2.5, of which twice as much is too much, and not what it is told first."""

    async def scenario(run: FakeRun) -> None:
        run.controller.before = LogSummary(losses=((MINIBATCH, 2.5), (2 * MINIBATCH, 9.0)))
        await run.begins()
        watch = run.training.progress.divergence
        watch.chance = 0.0
        watch.begins(loss)
        examples, total = watch.examples, watch.before
        for _ in range(PATIENCE):
            examples, total = examples + round(watch.stretch), (total[0] + loss, total[1] + 1.0)
            watch.look(examples, total, 1.0, False)
        assert (watch.warning is not None) == diverges

    play(tmp_path, scenario, before=LogSummary(), survivors=survivors(2))


def test_what_is_missing_is_started(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.pool.num_started = 2
        await run.begins()
        assert run.log.of("resize")[-1]["joined"] == ["job/worker/2"]

    play(tmp_path, scenario, before=LogSummary(), survivors=survivors(1))


def test_it_goes_on_with_as_many_workers_as_were_asked_for_while_it_trained(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.controller.before = LogSummary(wanted=3)
        run.pool.num_started = 2
        await run.begins()
        assert run.log.of("resize")[-1]["joined"] == ["job/worker/2"]
        run.controller.scale(2)
        await run.happens()
        assert run.log.of("log")[-1]["wanted"] == 2

    play(tmp_path, scenario, before=LogSummary(), survivors=survivors(2))


@pytest.mark.parametrize("left", [survivors(0), survivors(2, has_version=False)])
def test_it_begins_again_with_as_many_workers_as_it_needs_if_no_version_is_left(
    tmp_path: Path, left: Survivors
) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        assert run.recovery.removed
        assert run.launcher.asked_for == [1]
        assert run.log.states == [TAKES_OVER, ("RUNNING", "Training")]

    play(tmp_path, scenario, before=LogSummary(), survivors=left)


@pytest.mark.parametrize(("furthest", "resume", "told"), [(1, None, [2, 3]), (0, None, [1, 2, 3]), (0, "there", [])])
def test_epochs_that_a_checkpoint_holds_and_the_log_does_not_are_told_when_it_begins_again(
    tmp_path: Path, furthest: int, resume: str | None, told: list[int]
) -> None:
    """Shards give a version as soon as they have it; what the workers report of it may have died with a coordinator.
    What was trained before the run, elsewhere, is in another log."""

    async def scenario(run: FakeRun) -> None:
        run.controller.before = LogSummary(furthest=furthest, has_trained=True)
        run.launcher.begins_at = Position(epoch=3, examples=3 * EXAMPLES)
        await run.begins()
        assert not run.launcher.tries, "it was good enough once"
        assert [audit["epoch"] for audit in run.log.of("epoch_audit")] == told
        assert all((audit["trained"], audit["lost"]) == (EXAMPLES, 0) for audit in run.log.of("epoch_audit"))
        assert [epoch["examples"] for epoch in run.log.of("epoch")] == [epoch * EXAMPLES for epoch in told]

    train = small(epochs=4, checkpoint={"resume": resume})
    play(tmp_path, scenario, train, LogSummary(), Survivors())


def test_epochs_that_were_logged_before_are_not_logged_again(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.controller.before = LogSummary(epochs=1)
        await run.begins()
        for number in (0, 1):
            run.reports(number, reached=40)
        assert not run.log.of("epoch")

    play(tmp_path, scenario, small(epochs=2), LogSummary(epochs=1), survivors(2))


def test_a_run_that_was_stopping_stops_under_the_next_coordinator(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.controller.before = run.log.before
        await run.begins()
        assert run.log.states == [TAKES_OVER, ("RUNNING", "Training"), ("PAUSING", "Pausing")]
        assert len(run.actor(0).called("hold")) >= 1
        await run.ends(0, 1)
        assert run.controller.end is not None
        assert run.controller.end.state is State.PAUSED

    play(tmp_path, scenario, before=LogSummary(stops_as=State.PAUSED), survivors=survivors(2))


def test_a_run_that_was_stopping_and_lost_everything_ends_at_once(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.controller.before = run.log.before
        run.controller.begin()
        await run.settle()
        assert run.controller.end is not None
        assert run.controller.end.message == "cancelled before the first step"
        assert not run.launcher.asked_for

    play(tmp_path, scenario, before=LogSummary(stops_as=State.CANCELLED))


def test_a_stop_while_it_looks_for_survivors_is_heard_when_they_go_on(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.controller.begin()
        run.controller.stop(State.CANCELLED)
        await run.settle()
        assert run.log.states[1:] == [("RUNNING", "Training"), ("CANCELLING", "Cancelling")]

    play(tmp_path, scenario, before=LogSummary(), survivors=survivors(2))


def test_a_run_that_was_over_is_left_alone(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        assert await run.controller.run() is None
        assert run.log.written == []
        assert run.controller.phase is RunPhase.NEW

    play(tmp_path, scenario, before=LogSummary(is_over=True))


def test_a_run_through_shards_needs_all_of_them() -> None:
    train = small(algorithm="downpour", workers=2, ps=2)
    found = survivors(2, has_version=False)
    found.shards = {0: object()}
    assert not can_go_on(found, train)
    found.shards = {0: object(), 1: object()}
    assert can_go_on(found, train)
    found.workers = []
    assert not can_go_on(found, train)
