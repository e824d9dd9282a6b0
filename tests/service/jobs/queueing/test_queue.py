"""What wakes the queue, and the positions that it reports."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.database.job_store import Store
from service.jobs.active_jobs import ActiveJobs
from service.jobs.queueing.claims import Claim, Quotas
from service.jobs.queueing.queue import JobQueue
from service.jobs.queueing.queue_outlook import LOOKAHEAD
from service.projects.projects import Projects
from tests.service import sqlite
from tests.service.fakes import FakeRuns
from trainers import Resources


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    store = Store.open(sqlite.create_database(tmp_path / "jobs.db"))
    yield JobQueue(FakeRuns(), ActiveJobs(), Projects(store.engine, store.writer), Quotas())
    store.close()


def claim(job_id: str, priority: int = 0, cpus: float = 1) -> Claim:
    return Claim(job_id, "ada", priority, Resources(cpus, 0))


def test_only_a_job_before_the_blocked_one_wakes_it(queue: JobQueue) -> None:
    async def wakes(one: Claim) -> bool:
        queue.changed.clear()
        queue.add(one)
        return queue.changed.is_set()

    async def scenario() -> None:
        assert await wakes(claim("b", cpus=9))
        queue.blocked = claim("b").rank
        assert not await wakes(claim("c"))
        assert await wakes(claim("d", priority=1))
        assert await wakes(claim("a"))
        assert await wakes(claim("b", cpus=1))  # itself, with fewer workers
        queue.changed.clear()
        queue.release("b")
        assert queue.changed.is_set()
        assert [one.job_id for one in queue.line] == ["d", "a", "c"]

    asyncio.run(scenario())


def test_every_job_has_a_position_however_far_behind(queue: JobQueue) -> None:
    line = [claim(f"{number:05d}", cpus=9) for number in range(LOOKAHEAD + 5)]
    for one in line:
        queue.add(one)
    found = [queue.outlook(one.job_id) for one in line]
    assert [one.position for one in found if one is not None] == list(range(1, LOOKAHEAD + 6))
    queue.release("00000")
    last = queue.outlook(line[-1].job_id)
    assert last is not None
    assert last.position == LOOKAHEAD + 4
