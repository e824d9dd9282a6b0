"""What a run does when it is told what has happened: states, decisions and the log, without Ray."""

import asyncio
from pathlib import Path

import pytest
import ray

from tests.runtime.control.fake_actors import died, ended_by_ray
from tests.runtime.control.fakes import EXAMPLES, FakeRun, ended, play, small, train_everything
from trainers.errors import Fenced, SpecRejected
from trainers.events import State
from trainers.metrics import StepMetrics
from trainers.runtime.control import training
from trainers.runtime.control.controller import RunPhase
from trainers.runtime.control.run_events import TaskFailed, WorkerLost
from trainers.training.messages import WorkerReport

STARTED = [("STARTING", "Starting"), ("RUNNING", "Training")]


# -- starting ---------------------------------------------------------------------------------------------------------


def test_a_run_starts_its_workers_and_has_them_train(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        assert run.launcher.asked_for == [2]
        assert run.log.states == STARTED
        assert run.log.of("state")[-1]["message"] == "2 workers train"
        starts = [run.actor(number).called("train")[0][0] for number in (0, 1)]
        assert [(start.number, start.endpoint.rank, start.endpoint.size) for start in starts] == [(0, 0, 2), (1, 1, 2)]
        assert {start.num_virtual for start in starts} == {4}
        assert all(start.position is None and start.resume is None for start in starts)

    play(tmp_path, scenario)


def test_asynchronous_workers_are_a_group_each(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        assert [group.members for group in run.training.groups] == [[worker] for worker in run.pool.workers]
        assert run.shards.served == [0]
        starts = [run.actor(number).called("train")[0][0] for number in (0, 1)]
        assert [start.endpoint.generation for start in starts] == [0, 1]

    play(tmp_path, scenario, small(algorithm="downpour", workers=2))


def test_a_start_that_fails_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.launcher.may_start.clear()
        await run.begins(RunPhase.STARTING)
        await run.happens(TaskFailed(SpecRejected("model: it does not fit")))
        assert ended(run) == ("FAILED", "SpecRejected", "model: it does not fit")

    play(tmp_path, scenario)


def test_the_log_tells_once_what_memory_a_worker_had_in_its_first_step(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        for number in (0, 1):
            report = WorkerReport(number, 0, StepMetrics(steps=1), peak_bytes=(2_000_000, 0))
            run.controller.report(report)
        told = [one["message"] for one in run.log.of("log") if one["message"].startswith("memory: ")]
        assert len(told) == 1
        assert told[0].startswith("memory: worker 0 had at most 2.0 MB resident in its first step, at least ")
        assert "0.0 MB" not in told[0]

    play(tmp_path, scenario)


# -- workers that die -------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_is_replaced_and_the_others_go_on_at_once(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.pool.room.clear()
        await run.dies(1, 0, step=3)
        assert run.log.of("fault") == [{"actor": "job/worker/1", "why": "died", "examples": 0}]
        assert [(one["workers"], one["left"]) for one in run.log.of("resize")] == [(1, ["job/worker/1"])]
        assert run.pool.let_go_of == [1]
        second = run.actor(0).called("train")[1][0]
        assert (second.endpoint.size, second.position.step, second.root) == (1, 3, 0)
        run.pool.room.set()
        await run.settle()
        assert run.log.of("resize")[-1]["joined"] == ["job/worker/2"]
        assert run.actor(0).called("hold") == [(1,)], "the group is held, so that the newcomer gets in"
        await run.ends(0, step=4)
        assert run.actor(2).called("train")[0][0].endpoint.size == 2
        assert run.actor(2).called("train")[0][0].root == 0
        assert run.controller.phase is RunPhase.TRAINING

    play(tmp_path, scenario)


def test_one_death_too_many_without_progress_fails_the_run(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        for number in (0, 1, 2):
            run.actor(number).training.set_exception(died())
            await run.settle()
        state, reason, message = ended(run)
        assert (state, reason) == ("FAILED", "WorkerDied")
        assert message.startswith("3 processes were lost in a row before the run came any further")
        assert len(run.log.of("fault")) == 3

    play(tmp_path, scenario, small(workers={"count": 1, "virtual": 1}))


def test_a_worker_that_the_kernel_ended_for_memory_is_named_and_nothing_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = asyncio.Event()

    async def ended_for_memory(known: tuple[str, int] | None) -> bool:
        await told.wait()
        return known == ("a", 4)

    monkeypatch.setattr(training, "ended_for_memory", ended_for_memory)

    async def scenario(run: FakeRun) -> None:
        run.parts.watch.kills = ("a", 4)  # type: ignore[attr-defined]
        await run.begins()
        await run.dies(1, 0, step=3)
        assert run.log.of("resize")[-1]["joined"] == ["job/worker/2"]
        assert not [one for one in run.log.of("log") if one["level"] == "error"]
        told.set()
        await run.settle()
        (line,) = [one["message"] for one in run.log.of("log") if one["level"] == "error"]
        assert line.startswith("job/worker/1 was ended by the kernel for want of memory: take a smaller batch")
        assert run.training.failures.causes == ["job/worker/1 was ended by the kernel for want of memory"]

    play(tmp_path, scenario)


def test_a_worker_whose_gpu_is_full_is_told_with_what_to_change(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        await run.happens(WorkerLost(run.pool.workers[1], "broke: OutOfMemoryError: CUDA out of memory", "frames"))
        assert run.log.of("fault")[0]["why"] == "broke: OutOfMemoryError: CUDA out of memory"
        lines = [one["message"] for one in run.log.of("log") if one["level"] == "error"]
        assert lines[0] == "frames"
        assert lines[1].startswith("job/worker/1 lacked memory: take a smaller batch.per_worker")

    play(tmp_path, scenario)


def test_what_a_worker_raised_is_told_without_colours(tmp_path: Path) -> None:
    """Ray writes its name for the process in cyan; the log is read in browsers and files as well."""
    frames = 'Traceback (most recent call last):\n  File "model.py", line 7, in forward\nRuntimeError: struck\n'
    error = ray.exceptions.RayTaskError("train", frames, RuntimeError("struck"), proctitle="ray::Worker.train")
    assert "\x1b[36m" in str(error)

    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.actor(1).training.set_exception(error)
        await run.settle()
        (line,) = [one["message"] for one in run.log.of("log") if one["level"] == "error"]
        assert "\x1b" not in line
        assert line.startswith("ray::Worker.train() (pid=")
        assert line.endswith('File "model.py", line 7, in forward\nRuntimeError: struck')

    play(tmp_path, scenario)


def test_progress_between_deaths_forgives_them(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        for number in range(5):
            run.reports(number, reached=5 * (number + 1))
            run.actor(number).training.set_exception(died())
            await run.settle()
        assert run.controller.end is None
        assert [fault["examples"] for fault in run.log.of("fault")] == [5, 10, 15, 20, 25]

    play(tmp_path, scenario, small(workers={"count": 1, "virtual": 1}))


@pytest.mark.parametrize(
    ("error", "why"), [(died(), "died"), (ended_by_ray(), "was ended by Ray for want of memory (OutOfMemoryError)")]
)
def test_a_worker_that_dies_before_it_is_ready_counts_too(tmp_path: Path, error: Exception, why: str) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.pool.start_workers = lambda reserved: unready(run, reserved, error)  # type: ignore[method-assign]
        run.controller.scale(3)
        await run.settle()
        assert {fault["why"] for fault in run.log.of("fault")} == {f"{why} before it was ready"}
        assert any("lacked memory: take a smaller" in one["message"] for one in run.log.of("log")) == (why != "died")
        assert ended(run)[:2] == ("FAILED", "WorkerDied")
        assert not run.log.of("resize"), "they never trained"

    play(tmp_path, scenario)


def test_newcomers_that_die_with_their_node_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def died_with(node: str | None) -> bool:
        if len(run_of) == 4:  # the fifth is put elsewhere
            del run_of[0].pool.start_workers  # the fake's own again
        return True

    run_of: list[FakeRun] = []
    monkeypatch.setattr(training, "died_with", died_with)

    async def scenario(run: FakeRun) -> None:
        await run.begins()

        def start_workers(reserved: list[object]) -> list[object]:
            run_of.append(run)
            return unready(run, reserved)

        run.pool.start_workers = start_workers  # type: ignore[method-assign, assignment]
        run.controller.scale(3)
        await run.settle()
        assert len(run.log.of("fault")) == 4
        assert [one["workers"] for one in run.log.of("resize")] == [3]

    play(tmp_path, scenario)


def unready(run: FakeRun, reserved: list[object], error: Exception | None = None) -> list[object]:
    (worker,) = type(run.pool).start_workers(run.pool, reserved)
    worker.actor.answers["prepare"] = error or died()
    return [worker]


def test_a_trial_replaces_nobody(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        await run.dies(1)
        assert ended(run)[:2] == ("FAILED", "WorkerDied")
        assert "a trial's processes are not replaced" in ended(run)[2]
        with pytest.raises(SpecRejected, match="keeps its size"):
            run.controller.scale(3)

    play(tmp_path, scenario, is_trial=True)


def test_a_run_with_too_few_workers_waits_for_room(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.pool.room.clear()
        await run.dies(1, 0)
        assert run.log.states[2:] == [("RECOVERING", "TooFewWorkers")]
        assert len(run.actor(0).called("train")) == 1
        run.pool.room.set()
        await run.settle()
        assert run.log.states[3:] == [("RUNNING", "Training")]
        assert len(run.actor(0).called("train")) == 2

    play(tmp_path, scenario, small(workers={"count": 2, "min": 2, "virtual": 4}))


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_run_that_has_trained_everything_succeeds(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.snapshots.may_finish.clear()
        await train_everything(run)
        assert run.controller.phase is RunPhase.FINISHING
        ((snapshot, is_complete),) = run.snapshots.finished
        assert (snapshot.is_last, snapshot.position.step, is_complete) == (True, 4, True)
        run.snapshots.may_finish.set()
        await run.settle()
        assert ended(run) == ("SUCCEEDED", "Succeeded", "trained 1 epochs")
        result = run.controller.result.model_dump(mode="json")
        assert (result["state"], result["examples"], result["test_accuracy"]) == ("SUCCEEDED", EXAMPLES, 0.9)
        (audit,) = run.log.of("epoch_audit")
        assert audit == {"epoch": 1, "dropped": 0, "trained": EXAMPLES, "lost": 0, "duplicated": 0}
        kinds = [kind for kind, _ in run.log.written]
        assert kinds == [
            "state",
            "state",
            "step",
            "epoch",
            "epoch_audit",
            "step",
        ]  # the result stands just before the last state

    play(tmp_path, scenario)


def test_workers_that_end_too_early_fail_the_run(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        await run.ends(0, 1)
        assert ended(run) == ("FAILED", "RunFailed", "the workers ended, and only 0 examples were trained")

    play(tmp_path, scenario)


def test_an_epoch_of_leases_is_audited_from_what_the_shards_applied(tmp_path: Path) -> None:
    """Worker 1 dies with two leases: the shards have applied the first, which it could not report any more."""

    async def scenario(run: FakeRun) -> None:
        await run.begins()
        applied, other = run.controller.lease(1, 1, ())
        assert applied is not None
        assert other is not None
        run.shards.rows = [[[0, 0, applied.first, applied.last]]]
        await run.dies(1)
        assert run.training.progress.examples == EXAMPLES // 8
        trained = list[int]()
        while (lease := run.controller.lease(0, 0, ())[0]) is not None:
            trained += lease.minibatches
            run.reports(0, applied=((0, lease.first, lease.last),))
            assert len(trained) < 20
        assert other.first in trained
        assert applied.first not in trained
        assert run.controller.lease(0, 99, ()) == [], "a coordinator that does not know the generation gives nothing"

    play(tmp_path, scenario, small(algorithm="downpour", workers=2))


# -- another coordinator ----------------------------------------------------------------------------------------------


def test_a_coordinator_that_another_has_replaced_writes_nothing_and_goes(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        ending = asyncio.create_task(run.controller.run())
        await run.reaches(RunPhase.TRAINING)
        run.log.fault = Fenced("another coordinator has taken over this run directory")
        run.controller.stop(State.CANCELLED)
        assert await ending is None
        assert run.pool.is_dismissed
        assert run.log.states == STARTED

    play(tmp_path, scenario)


def test_a_failed_run_that_is_started_again_waits_in_the_queue(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        ending = asyncio.create_task(run.controller.run())
        await run.reaches(RunPhase.TRAINING)
        run.parts.events.put_nowait(TaskFailed(RuntimeError("the moon")))
        end = await ending
        assert end is not None
        assert (end.state, end.reason) == (State.QUEUED, "Retrying")
        assert "WorkerFailed: RuntimeError: the moon" in end.message
        assert "RuntimeError: the moon" in run.log.of("log")[-1]["message"]
        assert run.log.states[-1] == ("QUEUED", "Retrying")
        assert run.pool.is_dismissed

    play(tmp_path, scenario, starts_again=True)
