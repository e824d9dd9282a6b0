"""The log of a job that waits: it can be read, and takes no file until the job starts."""

import asyncio
from pathlib import Path

from service.database.audit import AuditQuery
from service.database.identity import Requester, Role
from service.jobs.manager import JobManager
from service.jobs.progress import LogFilter
from service.spec import parse_spec
from service.webhooks.webhook_store import Webhooks
from tests.service.conftest import Managed, all_events, reached, started
from tests.service.fakes import FakeRuns
from trainers import Event, State

LARGE, SMALL = parse_spec({"workers": 4}), parse_spec({"workers": 2})
BY = Requester(user="ann", role=Role.user, token="abc", address="10.0.0.9", request_id="r1")


async def so_far(manager: JobManager, job_id: str) -> list[Event]:
    """The log by all ways in which it can be read."""
    found = await manager.events_so_far(job_id, 0, 100)
    assert await manager.events_so_far(job_id, found[-1].seq, 100) == []
    async for batch in await manager.events(job_id):
        assert batch == found
        break
    lines = [line async for line in await manager.log_lines(job_id, LogFilter())]
    assert "".join(lines).count("\n") == len(found)
    return found


def runs_in(tmp_path: Path) -> set[str]:
    """The jobs that have a run directory."""
    return {folder.name for folder in (tmp_path / "runs").iterdir()}


async def one_waits(manager: JobManager, runs: FakeRuns) -> tuple[str, str]:
    """A job that runs, and one that waits behind it."""
    large, _ = await manager.submit(LARGE)
    await started(runs, large.id)
    waiting, _ = await manager.submit(SMALL, "key", "ann", BY)
    return large.id, waiting.id


def test_it_tells_who_has_submitted_the_job_and_after_a_restart_as_well(
    managed: Managed, runs: FakeRuns, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            large, job_id = await one_waits(manager, runs)
            [first] = await so_far(manager, job_id)
            assert (first.seq, first.data["state"], first.data["reason"]) == (1, "QUEUED", "Submitted")
            assert first.data["by"] == BY.model_dump(mode="json")
            assert first.time == (await manager.show(job_id)).created
            assert runs_in(tmp_path) == {large}
        async with managed() as manager:
            assert await so_far(manager, job_id) == [first]
            assert runs_in(tmp_path) == {large}
            runs.runs[large].succeed()
            (await started(runs, job_id)).succeed()
            events = await all_events(manager, job_id)
            assert events[0] == first
            assert [event.seq for event in events] == [1, 2, 3]
        assert runs.swept == []

    asyncio.run(scenario())


def test_what_is_done_to_the_job_follows_it(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            _, job_id = await one_waits(manager, runs)
            reader = asyncio.create_task(all_events(manager, job_id))
            await manager.pause(job_id, BY)
            await manager.resume(job_id, BY)
        async with managed() as manager:
            assert (await manager.show(job_id)).state is State.QUEUED
            await manager.cancel(job_id, BY)
            events = await all_events(manager, job_id)
            told = [event.data.get("state") or event.data["action"] for event in events]
            assert told == ["QUEUED", "job.pause", "PAUSED", "job.resume", "QUEUED", "job.cancel", "CANCELLED"], told
        reader.cancel()

    asyncio.run(scenario())


def test_where_the_audit_has_forgotten_who_it_was_the_log_begins_without(managed: Managed, runs: FakeRuns) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            _, job_id = await one_waits(manager, runs)
            assert len(manager.store.audit.find(AuditQuery(target=job_id))) == 1
            manager.store.audit.prune(0)
        async with managed() as manager:
            [first] = await so_far(manager, job_id)
            assert first.data == {"state": "QUEUED", "reason": "Submitted", "message": "waits for its turn"}

    asyncio.run(scenario())


def test_webhooks_are_told_of_it_once(managed: Managed, runs: FakeRuns, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with managed() as manager:
            hooks = Webhooks(manager.store.engine, tmp_path / "sweeps")
            hook, _ = hooks.create("http://there/", [], "ann")
            large, job_id = await one_waits(manager, runs)
            for _ in range(2):
                hooks.collect()
                [waits] = [one for one in hooks.deliveries(hook.id) if one.job_id == job_id]
                assert (waits.seq, waits.body["data"]["state"]) == (1, "QUEUED")
            runs.runs[large].succeed()
            (await started(runs, job_id)).succeed()
            await reached(manager, job_id, State.SUCCEEDED)
            hooks.collect()
            told = [(one.seq, one.body["data"]["state"]) for one in hooks.deliveries(hook.id) if one.job_id == job_id]
            assert told == [(3, "SUCCEEDED"), (1, "QUEUED")]

    asyncio.run(scenario())
