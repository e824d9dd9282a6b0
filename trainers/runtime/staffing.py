"""Staffing: as many workers as are wanted and there is room for, whatever dies, joins or leaves."""

import asyncio
from typing import Protocol

import ray

from trainers.errors import SpecRejected
from trainers.runtime.crew import Crew, Hired
from trainers.runtime.team import Company, Team
from trainers.spec import TrainSpec

DRAIN_LOOK_S = 2.0
"""Between two looks at which nodes are about to be taken away."""


class Employer(Company, Protocol):
    """What staffing needs of its run, beyond what a team needs."""

    def joined(self, team: Team, worker: Hired) -> None:
        """A worker is ready and joins the training."""
        ...

    def rests(self, team: Team) -> None:
        """A team has trained all that its members know of: what it was given behind that is for whoever trains next."""
        ...

    def has_work(self) -> bool:
        """Whether there is something to train that nobody has begun."""
        ...


class Staffing:
    """Runs the teams, and brings the number of their members to what is wanted."""

    def __init__(self, crew: Crew, spec: TrainSpec, employer: Employer) -> None:
        self.crew = crew
        self.spec = spec
        self.employer = employer
        self.wanted = spec.most_workers if spec.elastic.follow_cluster else spec.workers.count
        self.teams: list[Team] = []
        self.news = asyncio.Event()
        self.hiring: set[asyncio.Task[None]] = set()

    def want(self, count: int) -> None:
        """Train with so many workers from soon on.

        Raises:
            SpecRejected: The run cannot have so many, or so few.
        """
        if self.crew.staff is not None:
            raise SpecRejected("workers: a sweep's trial keeps its size; scale a job")
        self.spec.with_workers(count)
        self.wanted = count
        self.news.set()

    async def train(self, teams: list[Team]) -> None:
        """Until all teams have nothing left to train."""
        self.teams = teams
        running: dict[asyncio.Task[None], Team] = {asyncio.create_task(team.train()): team for team in teams}
        try:
            while running or self.employer.has_work():
                self.news.clear()
                self._adjust()
                for team in self.teams:
                    rests = team not in running.values() and (team.members or team.joining)
                    if rests and (team.leaving or self.employer.has_work()):
                        running[asyncio.create_task(team.train())] = team
                news = asyncio.create_task(self.news.wait())
                done, _ = await asyncio.wait({*running, *self.hiring, news}, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
                for task in done - {news}:
                    await task  # raises what ended it
                self.hiring -= done
                for team in [team for task, team in running.items() if task in done]:
                    self.employer.rests(team)
                running = {task: team for task, team in running.items() if task not in done}
        finally:
            for task in running:
                task.cancel()

    async def follow_drains(self) -> None:
        """Take the workers off nodes that are about to be taken away; others are hired where Ray still places any."""
        while True:
            draining = self.crew.draining()
            for worker in self.crew.workers:
                if worker.node in draining and worker.prepared is not None and not worker.leaves:
                    self._retire(worker)
                    self.news.set()
            await asyncio.sleep(DRAIN_LOOK_S)

    async def close(self) -> None:
        """Hire nobody any more."""
        for task in self.hiring:
            task.cancel()
        await asyncio.gather(*self.hiring, return_exceptions=True)

    def _adjust(self) -> None:
        if self.crew.staff is not None:
            return
        staying = [worker for worker in self.crew.workers if not worker.leaves]
        for _ in range(self.wanted - len(staying) - len(self.hiring)):
            self.hiring.add(asyncio.create_task(self._hire()))
        for worker in staying[self.wanted :]:
            self._retire(worker)

    async def _hire(self) -> None:
        reserved = await self.crew.reserve(1, 1)
        (worker,) = self.crew.start_workers(reserved)
        try:
            worker.prepared = await worker.ask("prepare", False)
        except ray.exceptions.RayActorError:
            self.employer.lost(None, worker, "died before it was ready")
            return
        if worker.leaves:  # it was one too many by the time it was ready
            self.crew.let_go(worker)
            return
        team = self._team_for(worker)
        self.employer.joined(team, worker)
        await team.join(worker)
        self.news.set()

    def _team_for(self, worker: Hired) -> Team:
        """The one that lacks somebody; a new one where the members of all are complete."""
        for team in self.teams:
            if len(team.members) + len(team.joining) < team.size or self.spec.algorithm.is_synchronous:
                return team
        self.teams.append(Team(self.teams[-1].number + 1, [], self.employer))
        return self.teams[-1]

    def _retire(self, worker: Hired) -> None:
        worker.leaves = True
        for team in self.teams:
            if worker in (*team.members, *team.joining):
                self.hiring.add(asyncio.create_task(team.leave(worker)))
