"""Pausing, resuming, retrying, deadlines and retention, on fake runs."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from service.database.job_query import Query
from service.database.job_store import Job
from service.errors import CheckpointNotFound, JobNotFound, NeverFits, SpecInvalid, StateConflict, TooManyWaiting
from service.jobs import active_jobs
from service.jobs.fork import forked_spec
from service.jobs.manager import JobManager
from service.jobs.queueing.claims import Quotas
from service.spec import parse_spec
from service.status import Status
from service.storage.checkpoints import CheckpointView
from tests.service.conftest import Managed, again, all_events, eventually, reached, small, started
from tests.service.fakes import FakeRuns
from tests.service.storage.test_checkpoints import write_checkpoint
from trainers import SpecRejected
from trainers.events import State

ALL_CPUS = parse_spec({"epochs": 4, "workers": 4})


def test_a_paused_job_holds_nothing_and_goes_on_in_the_same_log(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(ALL_CPUS)
            run = await started(runs, job.id)
            run.state(State.RUNNING)
            run.step(1.0)
            await reached(manager, job.id, State.RUNNING)
            reader = asyncio.create_task(all_events(manager, job.id))
            assert (await manager.pause(job.id)).state is State.PAUSING
            assert run.pauses == 1
            with pytest.raises(StateConflict, match="wait until it is PAUSED"):
                await manager.resume(job.id)
            run.state(State.RUNNING, "Late", "a worker joined")
            run.state(State.PAUSING)
            write_checkpoint(run.run_dir, 1500, epoch=1)
            run.state(State.PAUSED, "Paused", "paused after 1500 examples")
            paused = await reached(manager, job.id, State.PAUSED)
            assert (paused.workers, paused.finished, paused.eta_s) == (0, None, None)
            other, _ = await manager.submit(ALL_CPUS)
            await started(runs, other.id)  # nothing is held
            runs.runs[other.id].state(State.CANCELLED)
            await reached(manager, other.id, State.CANCELLED)
            assert (await manager.pause(job.id)).state is State.PAUSED
            assert (await manager.resume(job.id)).state in (State.QUEUED, State.STARTING)
            run = await again(runs, job.id, run)
            assert run.spec.checkpoint.resume == str(run.run_dir / "checkpoints" / "000000001500")
            run.state(State.RUNNING)
            run.step(2.0)
            run.succeed()
            await reached(manager, job.id, State.SUCCEEDED)
            events = await reader  # one stream through it all
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            states = [event.data["state"] for event in events if event.type == "state"]
            assert states == ["QUEUED", "RUNNING", "RUNNING", "PAUSING", "PAUSED", "QUEUED", "RUNNING", "SUCCEEDED"]

    asyncio.run(scenario())


def test_a_job_that_waits_or_is_paused_begins_with_as_many_workers_as_it_was_scaled_to(
    managed: Managed, runs: FakeRuns
) -> None:
    spec = parse_spec({"epochs": 4, "workers": {"count": 2, "virtual": 4, "min": 2}})

    async def scenario() -> None:
        async with managed() as manager:
            first, _ = await manager.submit(ALL_CPUS)
            await started(runs, first.id)
            job, _ = await manager.submit(spec)
            with pytest.raises(SpecRejected, match="2 to 4 of them, not 1"):
                await manager.scale(job.id, 1)
            await manager.scale(job.id, 3)
            assert manager.queue.waiting[job.id].needs.cpus == 3
            runs.runs[first.id].succeed()
            run = await started(runs, job.id)
            assert (run.spec.workers.count, run.spec.workers.num_virtual) == (3, 4)
            run.state(State.RUNNING)
            await reached(manager, job.id, State.RUNNING)
            await manager.pause(job.id)
            with pytest.raises(StateConflict, match="PAUSING"):
                await manager.scale(job.id, 4)
            run.state(State.PAUSED)
            await reached(manager, job.id, State.PAUSED)
            await manager.scale(job.id, 4)
            await manager.resume(job.id)
            run = await again(runs, job.id, run)
            assert (run.spec.workers.count, run.spec.workers.num_virtual) == (4, 4)
            run.succeed()
            await reached(manager, job.id, State.SUCCEEDED)
            with pytest.raises(StateConflict, match="can be scaled"):
                await manager.scale(job.id, 2)

    asyncio.run(scenario())


def test_pausing_in_every_state(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            runs.may_start.clear()
            first, _ = await manager.submit(ALL_CPUS)
            await reached(manager, first.id, State.STARTING)
            assert (await manager.pause(first.id)).state is State.PAUSING  # while nobody can hear of it
            runs.may_start.set()
            run = await started(runs, first.id)
            await eventually(lambda: holds(lambda: run.pauses == 1))
            run.state(State.PAUSED)
            await reached(manager, first.id, State.PAUSED)
            running, _ = await manager.submit(ALL_CPUS)
            await started(runs, running.id)
            waiting, _ = await manager.submit(ALL_CPUS)
            assert (await manager.pause(waiting.id)).state is State.PAUSED
            assert [e.data["state"] for e in await manager.events_so_far(waiting.id, 0, 10)] == ["QUEUED", "PAUSED"]
            assert (await manager.resume(waiting.id)).state is State.QUEUED
            assert (await manager.cancel(first.id)).state is State.CANCELLED  # a paused one, at once
            assert (await manager.cancel(running.id)).state is State.CANCELLING
            for verb in (manager.pause, manager.resume):
                for job_id in (first.id, running.id):
                    with pytest.raises(StateConflict):
                        await verb(job_id)
                with pytest.raises(JobNotFound):
                    await verb("nosuchjob")

    asyncio.run(scenario())


def test_cancelling_a_job_that_is_just_pausing_wins(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(ALL_CPUS)
            run = await started(runs, job.id)
            run.state(State.RUNNING)
            await reached(manager, job.id, State.RUNNING)
            await manager.pause(job.id)
            await manager.cancel(job.id)
            run.state(State.PAUSED)  # it had heard of the pause only
            await reached(manager, job.id, State.CANCELLED)
            assert [e.data["state"] for e in await all_events(manager, job.id)][-2:] == ["PAUSED", "CANCELLED"]

    asyncio.run(scenario())


def test_a_restart_finds_paused_and_resumed_jobs_as_they_are(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            jobs = [(await manager.submit(ALL_CPUS))[0] for _ in range(4)]
            paused, pausing, resumed, torn = (job.id for job in jobs)
            run = await started(runs, paused)
            run.state(State.RUNNING)
            await reached(manager, paused, State.RUNNING)
            await manager.pause(paused)
            run.state(State.PAUSED)
            await reached(manager, paused, State.PAUSED)
            run = await started(runs, pausing)
            run.state(State.RUNNING)
            await reached(manager, pausing, State.RUNNING)
            for job_id in (resumed, torn):
                await manager.pause(job_id)
            await manager.pause(pausing)
        run.state(State.PAUSED)  # while nobody looked
        async with managed() as manager:
            assert (await manager.show(paused)).state is State.PAUSED
            assert (await manager.show(pausing)).state is State.PAUSED
            # The process ends between the store and the log:
            assert manager.store.move(torn, [State.PAUSED], Status(State.QUEUED, "ResumeRequested", "waits"))
            runs.may_start.clear()
            await manager.resume(resumed)
            await reached(manager, resumed, State.STARTING)
            runs.may_start.set()
        async with managed() as manager:
            run = await started(runs, resumed)
            run.state(State.CANCELLED)
            run = await started(runs, torn)
            run.state(State.CANCELLED)
            await reached(manager, torn, State.CANCELLED)
            states = [e.data["state"] for e in await all_events(manager, torn)]
            assert states == ["QUEUED", "PAUSED", "QUEUED", "CANCELLED"]
            assert (await manager.show(paused)).state is State.PAUSED

    asyncio.run(scenario())


def test_a_failed_job_is_started_again_as_often_as_it_may(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(parse_spec(small(retries=2)))
            first = await started(runs, job.id)
            assert first.starts_again
            first.state(State.RUNNING)
            first.state(State.QUEUED, "Retrying", "WorkerDied: starts again")  # what a coordinator says that fails
            second = await again(runs, job.id, first)
            assert second.starts_again
            second.state(State.RUNNING)
            second.die(torn=b'{"seq": 4')  # without a word
            third = await again(runs, job.id, second)
            assert third.starts_again, "to lose a coordinator is not the job's failure"
            third.state(State.RUNNING)
            third.state(State.QUEUED, "Retrying", "WorkerDied: starts again")
            fourth = await again(runs, job.id, third)
            assert not fourth.starts_again
            fourth.state(State.RUNNING)
            fourth.state(State.FAILED, "WorkerDied", "a worker died")
            job = await reached(manager, job.id, State.FAILED)
            assert (job.retries, job.reason) == (2, "WorkerDied")
            events = await all_events(manager, job.id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            states = [e.data["state"] for e in events]
            assert states == ["QUEUED", "RUNNING"] * 4 + ["FAILED"]

    asyncio.run(scenario())


def test_what_cannot_be_started_is_not_tried_for_ever(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            runs.start_error = RuntimeError("no room")
            job, _ = await manager.submit(parse_spec(small(retries=3)))
            job = await reached(manager, job.id, State.FAILED)
            assert (job.retries, job.reason) == (3, "StartFailed")
            assert len(await all_events(manager, job.id)) == 1 + 3 + 1

    asyncio.run(scenario())


def test_a_deadline_stops_what_runs_and_what_waits(
    managed: Managed, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            running, _ = await manager.submit(parse_spec(small(workers=4, deadline_s=5000.5)))
            run = await started(runs, running.id)
            run.state(State.RUNNING)
            waiting, _ = await manager.submit(parse_spec(small(workers=4, deadline_s=5000.5)))
            monkeypatch.setattr(active_jobs, "time", SimpleNamespace(time=lambda: time.time() + 5001))
            job = await reached(manager, waiting.id, State.CANCELLED)
            assert job.reason == "DeadlineExceeded"
            assert await asyncio.to_thread(run.cancelled.wait, 60)
            run.state(State.CANCELLING)
            run.state(State.CANCELLED, "Cancelled", "cancelled after 7 examples")
            job = await reached(manager, running.id, State.CANCELLED)
            assert job.reason == "DeadlineExceeded"
            assert "5000.5 s after its submission" in job.message

    asyncio.run(scenario())


def all_over(manager: JobManager) -> Callable[[], Awaitable[bool]]:
    """Whether the store knows, too, that all have ended: the log says so a little before."""

    async def holds() -> bool:
        return not await asyncio.to_thread(manager.store.unfinished)

    return holds


def test_ended_jobs_are_removed_when_their_time_is_over(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            runs.script = lambda run: run.succeed()
            ids = {}
            for name, fields in {"short": {"ttl_s": 1000}, "long": {"ttl_s": 1e6}, "default": {}}.items():
                job, _ = await manager.submit(parse_spec(small(name=name, **fields)), key=name)
                await reached(manager, job.id, State.SUCCEEDED)
                ids[name] = job.id
            await eventually(all_over(manager))
            folder = (await manager.show(ids["short"])).run_dir
            manager.store.finish(ids["short"], Status(State.FAILED), 0.0, {})  # it has ended: nothing changes
            later = time.time() + 2000
            assert [job.id for job in manager.store.expired(later, None)] == [ids["short"]]
            assert {job.id for job in manager.store.expired(later, 1500.0)} == {ids["short"], ids["default"]}
            manager.removal.remove_expired(time.time())
            assert os.path.exists(folder)  # noqa: ASYNC240 (not yet)
            manager.removal.remove_expired(later)
            assert not os.path.exists(folder)  # noqa: ASYNC240
            with pytest.raises(JobNotFound):
                await manager.show(ids["short"])
            assert (await manager.submit(parse_spec(small(name="short", ttl_s=1000)), key="short"))[
                1
            ]  # its key is free
            await manager.show(ids["long"])

    asyncio.run(scenario())


def test_a_user_may_have_so_much_and_no_more(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed(quotas=Quotas(running_jobs=1, cpus=3, waiting_jobs=2)) as manager:
            one = parse_spec(small(workers=1))
            with pytest.raises(NeverFits, match="ada may hold 3 CPUs"):
                await manager.submit(ALL_CPUS, user="ada")
            first, _ = await manager.submit(one, user="ada")
            await started(runs, first.id)
            waiting = [(await manager.submit(one, str(n), "ada"))[0].id for n in range(2)]
            with pytest.raises(TooManyWaiting, match="2 jobs of ada wait already") as refused:
                await manager.submit(one, user="ada")
            assert refused.value.retry_after_s > 0
            assert (await manager.submit(one, "0", "ada"))[1] is False  # a repeat is no new job

            async def is_told() -> bool:
                return (await manager.show(waiting[0])).reason == "UserLimit"

            await eventually(is_told)
            shown = await manager.show(waiting[0])
            assert shown.user == "ada"
            assert "ada may run 1 job at once" in shown.message
            other, _ = await manager.submit(one, user="bob")
            assert [job.id for job in (await manager.page(Query(user="bob"))).jobs] == [other.id]
            assert (await manager.page(Query(user="b\0b", labels=(("x", "\0"),)))).jobs == []
            await started(runs, other.id)  # he passes those who wait for a limit of their own
            runs.runs[first.id].succeed()
            await started(runs, waiting[0])

    asyncio.run(scenario())


def test_a_fork_of_a_job_from_before_a_part_was_carved_off_keeps_or_changes_it() -> None:
    stored = parse_spec(small()).model_dump(mode="json", exclude={"data": {"carve"}})
    stored["data"]["validation"] = 0.1
    old = Job.model_construct(id="old", spec=stored)
    begin = CheckpointView(step="1", examples=1, epoch=1, written=0.0, files=[])
    kept, changed = (forked_spec(old, {"data": data}, begin).data for data in ({}, {"validation": 0.1}))
    assert (kept.validation, kept.carved, changed.carved) == (None, 0.0, 0.1)


def test_a_fork_of_a_trial_is_no_trial() -> None:
    trial = parse_spec(small(labels={"sweep": "sweep-1", "team": "blue"})).model_dump(mode="json")
    begin = CheckpointView(step="1", examples=1, epoch=1, written=0.0, files=[])
    assert forked_spec(Job.model_construct(id="trial", spec=trial), {}, begin).labels == {"team": "blue"}


def test_a_fork_begins_from_a_checkpoint_with_its_changes(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(parse_spec(small(optimizer={"name": "momentum", "lr": 0.1})))
            with pytest.raises(StateConflict, match="no checkpoint yet"):
                await manager.fork(job.id, {})
            run = await started(runs, job.id)
            run.state(State.RUNNING)
            for epoch in (1, 2):
                write_checkpoint(run.run_dir, 1000 * epoch, epoch)
            forked, is_new = await manager.fork(job.id, {"optimizer": {"lr": 0.5}, "epochs": 9}, "1000", "key")
            assert is_new
            assert forked.forked_from == f"{job.id}/000000001000"
            assert (forked.spec.optimizer.lr, forked.spec.optimizer.name, forked.spec.epochs) == (0.5, "momentum", 9)
            again, is_new = await manager.fork(job.id, {"optimizer": {"lr": 0.5}, "epochs": 9}, "1000", "key")
            assert (again.id, is_new) == (forked.id, False)
            start = await started(runs, forked.id)
            assert start.spec.checkpoint.resume == str(start.run_dir / "checkpoints" / "000000001000")
            assert (start.run_dir / "checkpoints" / "000000001000" / "model.safetensors").read_bytes() == b"weights"
            newest, _ = await manager.fork(job.id, {})
            assert newest.forked_from == f"{job.id}/000000002000"
            for changes, pointer in (
                ({"epochs": 2}, "/epochs"),
                ({"optimizer": {"lr": "fast"}}, "/optimizer/lr"),
                ({"checkpoint": {"resume": "/etc"}}, "/checkpoint/resume"),
                ({"labels": {"sweep": "sweep-1"}}, "/labels/sweep"),
            ):
                with pytest.raises(SpecInvalid) as refused:
                    await manager.fork(job.id, changes)
                assert [error.pointer for error in refused.value.errors] == [pointer]
            with pytest.raises(CheckpointNotFound, match="it has 000000001000, 000000002000"):
                await manager.fork(job.id, {}, "3000")
            kept = {path.name for path in manager.config.runs_dir.iterdir()}
            assert kept == {job.id, forked.id, newest.id}  # nothing is left of those that came to nothing

    asyncio.run(scenario())


async def holds(condition: object) -> bool:
    return bool(condition())  # type: ignore[operator]
