"""What wakes the queue, and what it says of a place."""

import asyncio
from typing import Any

import pytest

from service.queue import Queue
from service.waiting import AHEAD, Claim, Rules
from tests.service.fakes import FakeRuns
from trainers import Resources


@pytest.fixture
def queue() -> Queue:
    async def nothing(*_: Any) -> bool:
        return True

    store: Any = None  # nothing is admitted here
    return Queue(store, FakeRuns(), nothing, nothing, lambda _: None, Rules(), nothing)  # type: ignore[arg-type]


def claim(job_id: str, priority: int = 0, cpus: float = 1) -> Claim:
    return Claim(job_id, "ada", priority, Resources(cpus, 0))


def test_only_who_comes_before_the_one_that_finds_no_room_wakes_it(queue: Queue) -> None:
    async def wakes(one: Claim) -> bool:
        queue.changed.clear()
        queue.add(one)
        return queue.changed.is_set()

    async def scenario() -> None:
        assert await wakes(claim("b", cpus=9))
        queue.held_up = claim("b").rank
        assert not await wakes(claim("c"))
        assert await wakes(claim("d", priority=1))
        assert await wakes(claim("a"))
        assert await wakes(claim("b", cpus=1))  # itself, with fewer workers
        queue.changed.clear()
        queue.release("b")
        assert queue.changed.is_set()
        assert [one.job_id for one in queue.line] == ["d", "a", "c"]

    asyncio.run(scenario())


def test_everybody_is_told_a_place_however_far_behind(queue: Queue) -> None:
    line = [claim(f"{number:05d}", cpus=9) for number in range(AHEAD + 5)]
    for one in line:
        queue.add(one)
    found = [queue.outlook(one.job_id) for one in line]
    assert [one.place for one in found if one is not None] == list(range(1, AHEAD + 6))
    queue.release("00000")
    last = queue.outlook(line[-1].job_id)
    assert last is not None
    assert last.place == AHEAD + 4
