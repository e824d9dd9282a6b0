"""Staffing: who trains on, and who leaves, at the end of a run. The teams' generations are played, the rest is real."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.runtime.runs import spec
from trainers.elastic.ledger import Desk, Lease, Ledger
from trainers.elastic.order import Order
from trainers.runtime.crew import Crew, Hired
from trainers.runtime.staffing import Employer, Staffing
from trainers.runtime.team import Team

TRAIN = spec(algorithm="downpour", workers={"count": 2, "min": 1})


class Run:
    """An asynchronous run of two workers, and what its staffing asks of it."""

    def __init__(self, minibatches: int) -> None:
        self.crew = Crew("staffing", TRAIN, None)
        self.crew.workers = [Hired(number, f"staffing/worker/{number}", None) for number in range(2)]
        self.ledger = Ledger(Order(minibatches, 1, 1, 0), 1, lease_size=1)
        self.desk = Desk(self.ledger, [[0], [1]])
        self.gone: list[int] = []
        self.news = asyncio.Event()

    def lost(self, team: Team | None, worker: Hired, why: str, frames: str = "") -> None:
        raise AssertionError(why)

    def left(self, team: Team, worker: Hired) -> None:
        self.crew.workers.remove(worker)
        self.gone.append(worker.number)
        self.news.set()
        self.desk.form(team.number, [])

    def waits(self, team: Team) -> bool:
        return False

    async def regrouped(self, team: Team) -> None:
        pass

    def joined(self, team: Team, worker: Hired) -> None:
        raise AssertionError(worker.name)

    def rests(self, team: Team) -> None:
        self.desk.form(team.number, [])

    def has_work(self) -> bool:
        return self.ledger.has_more()


Generation = Callable[["Played"], Any]


class Played(Team):
    """A team whose generations are a test's."""

    plays: Generation

    async def _generation(self) -> bool:
        self.company.desk.form(self.number, [worker.number for worker in self.members])  # type: ignore[attr-defined]
        await self.plays()  # type: ignore[call-arg]
        return True


def staffed(run: Run, *plays: Generation) -> tuple[Staffing, list[Played]]:
    staffing = Staffing(run.crew, TRAIN, cast("Employer", run))
    teams = [Played(number, [run.crew.workers[number]], cast("Employer", run)) for number in range(2)]
    for team, generation in zip(teams, plays, strict=True):
        team.plays = generation.__get__(team)
    return staffing, teams


def trained(run: Run, number: int) -> None:
    """A worker trains all that it gets until it hears of the end."""
    while (lease := run.desk.lease(number)) is not None:
        run.desk.applied(number, lease)


@pytest.mark.timeout(30)
def test_what_a_team_was_given_behind_the_end_that_it_had_heard_of_is_trained() -> None:
    """Worker 0 asks ahead. It hears of the end, worker 1 leaves with a minibatch undone, and worker 0 is given that."""
    run, generations = Run(2), [0, 0]

    async def plays(team: Played) -> None:
        generations[team.number] += 1
        if generations[0] > 1 or team.number == 1:
            trained(run, team.number)
            return
        own = run.desk.lease(0)
        assert own is not None
        assert run.ledger.lease(1) == Lease(0, 1, 1)
        assert run.desk.lease(0) is None
        run.ledger.release(1)
        run.desk.applied(0, own)
        assert run.desk.lease(0) == Lease(0, 1, 1)

    staffing, teams = staffed(run, plays, plays)
    asyncio.run(staffing.train(list(teams[:1])))
    assert run.ledger.audit(0).lost == 0


@pytest.mark.timeout(30)
def test_one_whose_team_has_nothing_left_to_train_leaves_when_it_is_told_to() -> None:
    """Worker 0 trains the last minibatch as worker 1, which got none, is told to leave."""
    run, rested = Run(1), asyncio.Event()

    async def trains(_: Played) -> None:
        lease = run.desk.lease(0)
        assert lease is not None
        await rested.wait()
        await asyncio.sleep(0)
        staffing.want(1)
        await asyncio.wait_for(run.news.wait(), 5)
        run.desk.applied(0, lease)

    async def rests(_: Played) -> None:
        rested.set()

    staffing, teams = staffed(run, trains, rests)
    asyncio.run(staffing.train(list(teams)))
    assert (run.gone, run.ledger.audit(0).lost) == ([1], 0)
