"""The manager: the life of a job, cancelling, waiting, and what a restart finds."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.database.job_query import Query
from service.errors import JobNotFound, KeyReused, NeverFits, StateConflict
from service.jobs.manager import JobManager
from service.jobs.progress import LogFilter
from service.spec import parse_spec
from service.status import Status
from tests.service.conftest import Managed, again, all_events, eventually, reached, small, started
from tests.service.fakes import FakeRun, FakeRuns, whole_run
from trainers.events import State

TWO_WORKERS = parse_spec({"epochs": 4})


def test_a_job_lives_from_queue_to_result(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, is_new = await manager.submit(TWO_WORKERS)
            assert is_new
            assert job.state in (State.QUEUED, State.STARTING)
            await reached(manager, job.id, State.STARTING)
            run = await started(runs, job.id)
            run.state(State.RUNNING, "Training", "two workers train")
            run.step(1.0, loss=0.7)
            run.step(2.0, loss=0.3)
            run.evaluation(2, 0.93)
            job = await reached(manager, job.id, State.RUNNING)
            while job.evaluation is None:
                job = await manager.show(job.id)
            assert job.progress == 0.5
            assert job.eta_s is not None
            assert job.metrics is not None
            assert job.metrics.loss == 0.3
            assert (job.reason, job.workers) == ("Training", 2)
            assert job.result.test_accuracy == 0.93
            run.succeed(0.98)
            job = await reached(manager, job.id, State.SUCCEEDED)
            assert (job.progress, job.eta_s, job.workers) == (1.0, None, 0)
            assert job.result.test_accuracy == 0.98
            assert job.result.state is State.SUCCEEDED
            events = await all_events(manager, job.id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            states = [event.data["state"] for event in events if event.type == "state"]
            assert states == ["QUEUED", "RUNNING", "SUCCEEDED"]
            lines = "".join([text async for text in await manager.log_lines(job.id, LogFilter())]).splitlines()
            assert "RUNNING two workers train" in lines[1]

    asyncio.run(scenario())


def test_jobs_are_shown_while_all_other_threads_wait(managed: Managed) -> None:
    """They wait for Ray, for the disk, for a trial's files: nothing that a list of jobs needs."""

    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(TWO_WORKERS)
            gate, others = threading.Event(), ThreadPoolExecutor(1)
            asyncio.get_running_loop().set_default_executor(others)
            waits = asyncio.create_task(asyncio.to_thread(gate.wait, 60))
            try:
                assert (await manager.show(job.id)).id == job.id
                assert [one.id for one in (await manager.page(Query())).jobs] == [job.id]
                assert not waits.done()
            finally:
                gate.set()

    asyncio.run(scenario())


def test_a_log_is_followed_while_it_grows_from_any_number(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(TWO_WORKERS)
            readers = [asyncio.create_task(all_events(manager, job.id, after)) for after in (0, 1, 7)]
            run = await started(runs, job.id)
            for index in range(2500):  # more than is held in memory
                run.step(index / 1000)
            await eventually(lambda: has_read(manager, job.id, 2501))
            late = asyncio.create_task(all_events(manager, job.id))
            run.succeed()
            whole, later, last = await asyncio.gather(*readers)
            assert [event.seq for event in whole] == list(range(1, 2504))
            assert await late == whole
            assert later == whole[1:]
            assert last == whole[7:]
            assert await all_events(manager, job.id, 2400) == whole[2400:]
            assert await all_events(manager, job.id, 9999) == []

    asyncio.run(scenario())


async def was_told(run: FakeRun, times: int) -> bool:
    return run.cancels == times


def test_cancel_in_every_state(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            running, _ = await manager.submit(parse_spec(small(workers=4)))
            waiting, _ = await manager.submit(parse_spec(small(workers=4)))
            run = await started(runs, running.id)
            assert (await manager.cancel(waiting.id)).state is State.CANCELLED
            assert [event.data["state"] for event in await all_events(manager, waiting.id)] == ["QUEUED", "CANCELLED"]
            run.state(State.RUNNING)
            await reached(manager, running.id, State.RUNNING)
            assert (await manager.cancel(running.id)).state is State.CANCELLING
            assert run.cancels == 1
            assert (await manager.cancel(running.id)).state is State.CANCELLING
            run.state(State.RECOVERING, "CoordinatorDied", "going on with the actors that survived")
            await eventually(lambda: was_told(run, 2))  # what the dead one had been told, the next one is too
            run.state(State.RUNNING, "Late", "a worker joined")
            run.step(1.0)
            await eventually(lambda: shows_metrics(manager, running.id))
            assert (await manager.show(running.id)).state is State.CANCELLING
            run.state(State.CANCELLED, "Cancelled", "checkpoint written")
            job = await reached(manager, running.id, State.CANCELLED)
            assert job.message == "checkpoint written"
            assert job.result.state is State.CANCELLED
            for job_id in (running.id, waiting.id):
                with pytest.raises(StateConflict, match="CANCELLED"):
                    await manager.cancel(job_id)
            with pytest.raises(JobNotFound):
                await manager.cancel("nosuchjob")
            assert list(runs.runs) == [running.id]

    asyncio.run(scenario())


def test_a_cancel_that_comes_while_the_run_is_being_started_is_not_lost(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        runs.may_start.clear()
        async with managed() as manager:
            job, _ = await manager.submit(TWO_WORKERS)
            await reached(manager, job.id, State.STARTING)
            assert (await manager.cancel(job.id)).state is State.CANCELLING
            runs.may_start.set()
            run = await started(runs, job.id)
            assert await asyncio.to_thread(run.cancelled.wait, 60)

    asyncio.run(scenario())


def test_the_queue_goes_by_priority_then_by_time_and_nobody_passes(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            names = {}
            for name, workers, priority in (("first", 4, 0), ("late", 1, 0), ("big", 4, 1), ("urgent", 2, 5)):
                size = {"count": workers, "min": workers}  # none gives room to another
                job, _ = await manager.submit(parse_spec(small(name=name, workers=size, priority=priority)))
                names[job.id] = name
                if name == "first":
                    await started(runs, job.id)
            assert await manager.num_queued() == 3
            for started_so_far in range(1, 5):
                await eventually(lambda wanted=started_so_far: counted(runs, wanted))
                run = runs.runs[runs.order[-1]]
                run.state(State.RUNNING)
                await reached(manager, run.job_id, State.RUNNING)
                assert len(runs.order) == started_so_far  # the small one fits beside, and does not pass
                run.succeed()
            assert [names[job_id] for job_id in runs.order] == ["first", "urgent", "big", "late"]

    asyncio.run(scenario())


def test_what_never_fits_is_refused_and_what_cannot_start_fails(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            with pytest.raises(NeverFits, match="needs 5 CPUs"):
                await manager.submit(parse_spec(small(workers=5)))
            assert (await manager.page(Query())).jobs == []
            runs.start_error = RuntimeError("no such actor class")
            job, _ = await manager.submit(TWO_WORKERS)
            job = await reached(manager, job.id, State.FAILED)
            assert job.reason == "StartFailed"
            assert "no such actor class" in job.message
            assert runs.swept == [job.id]
            runs.start_error = None
            job, _ = await manager.submit(parse_spec(small(workers=4)))
            await started(runs, job.id)  # the failed one holds nothing

    asyncio.run(scenario())


def test_the_key_makes_one_job(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            answers = await asyncio.gather(*(manager.submit(TWO_WORKERS, "k") for _ in range(50)))
            assert len({job.id for job, _ in answers}) == 1
            assert sum(is_new for _, is_new in answers) == 1
            with pytest.raises(KeyReused, match="another spec"):
                await manager.submit(parse_spec(small(epochs=5)), "k")
            other, is_new = await manager.submit(TWO_WORKERS, "other")
            assert is_new
            assert other.id != answers[0][0].id

    asyncio.run(scenario())


def test_a_restarted_manager_finds_running_and_waiting_jobs_again(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            running, _ = await manager.submit(parse_spec(small(workers=3)))
            waiting, _ = await manager.submit(parse_spec(small(workers=2)))
            run = await started(runs, running.id)
            run.state(State.STARTING)
        run.state(State.RUNNING)
        run.step(2.0)
        async with managed() as manager:
            job = await manager.show(running.id)
            assert (job.state, job.progress) == (State.RUNNING, 0.5)
            assert (await manager.show(waiting.id)).state is State.QUEUED
            reader = asyncio.create_task(all_events(manager, running.id))
            run.succeed()
            assert [event.seq for event in await reader] == [1, 2, 3, 4, 5, 6]
            await started(runs, waiting.id)
        runs.runs[waiting.id].succeed()
        async with managed() as manager:  # it ended while nobody looked
            job = await manager.show(waiting.id)
            assert job.state is State.SUCCEEDED
            assert job.finished is not None
        assert runs.order == [running.id, waiting.id]
        assert runs.swept == []

    asyncio.run(scenario())


def test_a_job_that_lost_its_coordinator_goes_on_in_the_same_log(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            seen, _ = await manager.submit(TWO_WORKERS)
            run = await started(runs, seen.id)
            run.state(State.RUNNING)
            await reached(manager, seen.id, State.RUNNING)
            run.die(torn=b'{"seq": 3, "time": 1.0, "ty')
            (await again(runs, seen.id, run)).succeed()
            await reached(manager, seen.id, State.SUCCEEDED)
            unseen, _ = await manager.submit(TWO_WORKERS)
            before = await started(runs, unseen.id)
            before.state(State.RUNNING)
            await reached(manager, unseen.id, State.RUNNING)
        before.die(torn=b'{"seq": 3')
        async with managed() as manager:
            (await again(runs, unseen.id, before)).succeed()
            await reached(manager, unseen.id, State.SUCCEEDED)
            for job_id in (seen.id, unseen.id):
                events = await all_events(manager, job_id)
                assert [event.seq for event in events] == list(range(1, len(events) + 1))
                assert events[2].data["reason"] == "CoordinatorLost"
                assert "starts again from its last checkpoint" in events[2].data["message"]

    asyncio.run(scenario())


def test_a_job_that_loses_its_coordinator_again_and_again_fails_unless_it_gets_on(
    managed: Managed, runs: FakeRuns
) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(TWO_WORKERS)
            run = await started(runs, job.id)
            for _ in range(2):
                run.die()
                run = await again(runs, job.id, run)
            run.emit("checkpoint", path="there", epoch=1, examples=100)
            for _ in range(2):
                run.die()
                run = await again(runs, job.id, run)
            run.die()
            end = await reached(manager, job.id, State.FAILED)
            assert end.reason == "CoordinatorLost"
            assert "checkpoints it wrote" in end.message

    asyncio.run(scenario())


def test_a_job_that_loses_its_coordinator_while_it_is_cancelled_is_cancelled(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(TWO_WORKERS)
            run = await started(runs, job.id)
            run.state(State.RUNNING)
            await reached(manager, job.id, State.RUNNING)
            await manager.cancel(job.id)
            run.die()
            assert (await reached(manager, job.id, State.CANCELLED)).reason == "CoordinatorLost"

    asyncio.run(scenario())


def test_a_server_that_dies_between_admitting_and_starting_loses_no_job(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        runs.may_start.clear()
        async with managed() as manager:
            blocked, _ = await manager.submit(parse_spec(small(workers=4)))
            await reached(manager, blocked.id, State.STARTING)
            job, _ = await manager.submit(TWO_WORKERS)
            manager.store.move(
                job.id, [State.QUEUED], Status(State.STARTING, "Admitted", "")
            )  # and here the process ends
            runs.script = whole_run  # before the other one may start: it holds every CPU until it has ended
            runs.may_start.set()
        async with managed() as manager:
            await reached(manager, job.id, State.SUCCEEDED)
            assert [event.seq for event in await all_events(manager, job.id)][:2] == [1, 2]

    asyncio.run(scenario())


def test_pages_and_filters(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        runs.script = whole_run
        async with managed() as manager:
            ids = []
            for index in range(7):
                labels = {"team": "vision" if index % 2 else "speech", "n": str(index)}
                job, _ = await manager.submit(parse_spec(small(labels=labels)))
                ids.append(job.id)
                await reached(manager, job.id, State.SUCCEEDED)
            assert ids == sorted(ids)
            assert await listed(manager, Query(limit=3)) == ids[::-1]
            vision = Query(labels=(("team", "vision"),), limit=2)
            assert await listed(manager, vision) == ids[1::2][::-1]
            assert await listed(manager, Query(labels=(("team", "vision"), ("n", "3")))) == [ids[3]]
            assert await listed(manager, Query(labels=(("n", None),))) == ids[::-1]
            assert await listed(manager, Query(states=frozenset({State.FAILED}))) == []

    asyncio.run(scenario())


async def listed(manager: JobManager, query: Query) -> list[str]:
    found: list[str] = []
    while True:
        page = await manager.page(query)
        assert len(page.jobs) <= query.limit
        found += [job.id for job in page.jobs]
        if page.next_page_token is None:
            return found
        query = query.model_copy(update={"before": page.next_page_token})


def test_relative_paths_are_taken_from_where_the_service_stands(managed: Managed, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            spec = await manager.check(parse_spec(small(data={"name": "mnist", "root": "sets"})))
            assert spec.data.root == str(tmp_path / "sets")

    asyncio.run(scenario())


async def counted(runs: FakeRuns, wanted: int) -> bool:
    return len(runs.order) >= wanted


async def shows_metrics(manager: JobManager, job_id: str) -> bool:
    return (await manager.show(job_id)).metrics is not None


async def has_read(manager: JobManager, job_id: str, seq: int) -> bool:
    return manager.active[job_id].log.progress.seq >= seq
