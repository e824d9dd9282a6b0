"""An urgent job gets room from running ones, which get it back: nothing is stopped for it."""

import asyncio

import pytest

from service.jobs.queueing.claims import Claim, Size
from service.jobs.queueing.preemption import Preemption
from service.spec import parse_spec
from tests.service.conftest import Managed, eventually, reached, started
from tests.service.fakes import FakeRun, FakeRuns
from trainers import Resources, State


def claim(name: str, workers: int, least: int = 1, priority: int = 0) -> Claim:
    size = Size(workers, workers, least, Resources(1, 0))
    return Claim(name, "local", priority, Resources(workers, 0), size)


class Asked:
    """What jobs were asked, in order; those named in `deaf` cannot be asked."""

    def __init__(self, *taken: Claim, deaf: tuple[str, ...] = ()) -> None:
        self.requests: list[tuple[str, int]] = []
        self.deaf = deaf
        self.preemption = Preemption({one.job_id: one for one in taken}, self.scale)

    async def scale(self, job_id: str, workers: int) -> bool:
        self.requests.append((job_id, workers))
        return job_id not in self.deaf

    def make(self, first: Claim, free: float = 0.0) -> list[str]:
        return asyncio.run(self.preemption.make_room(first, Resources(free, 0)))

    def give_back(self, free: float) -> None:
        asyncio.run(self.preemption.give_back(Resources(free, 0)))


def test_the_least_urgent_and_youngest_give_first_and_no_more_than_is_lacking() -> None:
    asked = Asked(claim("a", 4, priority=1), claim("b", 4), claim("c", 4))
    assert asked.make(claim("urgent", 5, priority=2)) == ["b", "c"]
    assert asked.requests == [("c", 1), ("b", 2)]
    assert asked.preemption.held["c"].needs == Resources(1, 0)


def test_who_was_asked_is_not_asked_again_while_the_room_is_on_its_way() -> None:
    asked = Asked(claim("a", 4))
    assert asked.make(claim("urgent", 2, priority=1)) == ["a"]
    assert asked.make(claim("urgent", 2, priority=1), free=2.0) == ["a"]
    assert asked.requests == [("a", 2)]


@pytest.mark.parametrize("priority", [0, 1])
def test_nobody_gives_to_one_that_is_no_more_urgent_or_that_would_not_start_even_so(priority: int) -> None:
    asked = Asked(claim("a", 4, least=2), claim("b", 4, least=4))
    assert asked.make(claim("first", 2 + priority, priority=priority)) == []
    assert asked.requests == []


def test_what_was_given_is_given_back_as_far_as_there_is_room() -> None:
    asked = Asked(claim("a", 4), claim("b", 4, priority=1))
    assert asked.make(claim("urgent", 6, priority=2)) == ["a", "b"]
    asked.requests.clear()
    asked.give_back(4.0)
    assert asked.requests == [("b", 4), ("a", 2)]
    assert asked.preemption.shrunk == ["a"]
    asked.give_back(10.0)
    assert asked.requests[-1] == ("a", 4)
    assert asked.preemption.shrunk == []


def test_one_that_cannot_be_told_has_given_nothing() -> None:
    asked = Asked(claim("a", 4), deaf=("a",))
    assert asked.make(claim("urgent", 2, priority=1)) == []
    assert asked.preemption.held["a"].needs == Resources(4, 0)


def test_an_urgent_job_starts_beside_a_running_one_that_grows_back(managed: Managed, runs: FakeRuns) -> None:
    large = parse_spec({"epochs": 4, "workers": {"count": 4, "min": 2}})
    urgent = parse_spec({"epochs": 4, "workers": 2, "priority": 5})

    def has(run: FakeRun, workers: int) -> object:
        async def holds() -> bool:
            return run.size == workers

        return eventually(holds)

    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(large)
            run = await started(runs, job.id)
            run.emit("actors", workers=[{"name": f"worker/{i}"} for i in range(4)])
            run.state(State.RUNNING)
            await reached(manager, job.id, State.RUNNING)
            second, _ = await manager.submit(urgent)
            other = await started(runs, second.id)
            assert run.size == 2
            assert run.alive
        async with managed() as manager:  # a restart in between: it knows who has given
            other.succeed()
            await reached(manager, second.id, State.SUCCEEDED)
            await has(run, 4)  # type: ignore[misc]
            assert (await manager.show(job.id)).state is State.RUNNING

    asyncio.run(scenario())
