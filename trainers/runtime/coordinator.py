"""The coordinator: one async actor a run. It decides and keeps the log; tensors never pass through it.

STARTING  hire workers and shards, let them prepare, choose the transport
RUNNING   teams train, generation after generation; tallies become events, snapshots become evaluations and checkpoints
then      last snapshot, last evaluation, result; everybody is dismissed before the terminal event is written
"""

import asyncio
import os
import time
import traceback
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import ray

from trainers.elastic.endurance import Endurance
from trainers.elastic.ledger import Lease
from trainers.elastic.succession import newest_of
from trainers.errors import (
    Fenced,
    MillraceError,
    RunFailed,
    ShardLost,
    SpecRejected,
    Stopped,
    UserCodeFailed,
    WorkerDied,
)
from trainers.events import RETRYING, EventType, Result, State
from trainers.runtime.books import Books
from trainers.runtime.copies import Copies
from trainers.runtime.crew import CONTROL, Crew, Hired, Staff, gone
from trainers.runtime.exchanges import Exchanges
from trainers.runtime.gauges import KEEP_S, Gauges
from trainers.runtime.journal import Fence, Journal
from trainers.runtime.messages import Begin, Place, Prepared, Tally
from trainers.runtime.node_folder import sweep
from trainers.runtime.outcome import settled
from trainers.runtime.shards import Shards
from trainers.runtime.snapshots import Snapshot, Snapshots
from trainers.runtime.staffing import Staffing
from trainers.runtime.takeover import GOES_BACK, TAKES_OVER, Past, past, survivors
from trainers.runtime.team import Team
from trainers.spec import TrainSpec

T = TypeVar("T")

FAREWELL_S = 5.0
"""How much later than its workers a coordinator may die that is ended together with them."""

RETURNS = 2
"""How often a run that has lost a shard with all that it had goes on from its last checkpoint without having written
another one since."""
HOPELESS = ("SpecRejected", "DataNotFound")
"""Reasons for which a second try fails as well."""


class Coordinator:
    """Runs one spec to its end."""

    def __init__(
        self,
        job_id: str,
        spec: TrainSpec,
        run_dir: str,
        runtime_env: dict[str, Any] | None,
        staff: Staff | None = None,
        starts_again: bool = False,
    ) -> None:
        self.job_id = job_id
        self.spec = spec
        self.run_dir = Path(run_dir)
        self.crew = Crew(job_id, spec, runtime_env, staff=staff)
        self.staffing = Staffing(self.crew, spec, self)
        self.exchanges = Exchanges(spec, ray.util.get_node_ip_address())
        self.gauges = Gauges(spec)
        self.begun_s = time.monotonic()
        self.returned = ray.get_runtime_context().was_current_actor_reconstructed
        self.before: Past  # what the log told when this coordinator began
        self.term = 0  # coordinators before this one
        self.stopping = asyncio.Event()
        self.stops_as = State.CANCELLED
        self.starts_again = starts_again
        self.tasks: list[asyncio.Task[Any]] = []
        self.snapshots = Snapshots(self.crew, spec, self.run_dir, self._event)
        self.endurance = Endurance()
        self.teams: list[Team] = []
        self.books: Books
        self.copies = Copies(self.crew, self._log_line)
        self.shards = Shards(self.crew, self.copies, self._shard_died, self._shard_is_back)
        self.generation_of: dict[int, int] = {}  # by worker
        self.lost_updates = 0
        self.prepared: Prepared
        self.starts = False  # and nobody has trained yet
        self.waiting = False  # for workers
        self.taken_until, self.taking = 0, asyncio.Condition()  # the newest version that was taken from the shards
        if staff is None:  # by itself: whoever started it may be dead before it could say more
            self.running = asyncio.get_event_loop().create_task(self.run())

    # -- what others call -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From the first event to the last; then this actor ends itself."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.before = past(self.run_dir) if self.returned else Past()
        self.term = self.before.deaths + self.returned
        if self.before.is_over:
            ray.actor.exit_actor()
        self.fence = Fence.take(self.run_dir)
        self.journal = Journal(self.run_dir)
        self.gauges.begin()
        try:
            terminal = await self._run()
        finally:
            for task in self.tasks:
                task.cancel()
            await self.staffing.close()
            self.copies.close()
            await self.crew.dismiss()
            await self.snapshots.close()
            self.exchanges.close()
        if self.crew.staff is not None and terminal[1] == "WorkerDied":
            # Whoever ends a trial ends all its processes, of which this one may be the last: then it has not failed.
            await asyncio.sleep(FAREWELL_S)
        if terminal[0] is State.RECOVERING and self.stopping.is_set():
            terminal = self._stopped("with its last checkpoint")
        with suppress(OSError):  # on a full disk the log has no end: whoever follows it notices that nobody writes
            self._state(*self._last_word(*terminal))
            self.journal.close()
        if terminal[0] is State.RECOVERING:
            ray.kill(self.crew.coordinator, no_restart=False)
            await asyncio.Event().wait()
        if self.crew.staff is None:
            ray.actor.exit_actor()

    async def ping(self) -> str:
        """Proof of life."""
        return self.job_id

    async def process(self) -> int:
        """Its number."""
        return os.getpid()

    async def cancel(self) -> None:
        """Stop cleanly: at the end of a step, with a checkpoint."""
        self.stops_as = State.CANCELLED
        self.stopping.set()

    async def pause(self) -> None:
        """Stop likewise, to be taken up again: the log goes on when another coordinator does."""
        self.stops_as = State.PAUSED
        self.stopping.set()

    async def scale(self, count: int) -> None:
        """Train with so many workers from soon on.

        Raises:
            SpecRejected: The run cannot have so many, or so few.
        """
        self.staffing.want(count)

    async def report(self, tally: Tally) -> None:
        """A worker tells what it did."""
        if self.generation_of.get(tally.number) != tally.generation:
            return  # it was told to a coordinator that has died; what was done then is found where it was done
        self.books.add(tally)
        self.endurance.progressed(self.books.account.examples)

    async def lease(self, number: int, generation: int, dropped: Sequence[Lease] = ()) -> list[Lease | None]:
        """An asynchronous worker gives back what it has dropped and asks for more to do; a None is the end. Nothing
        for one that asked a coordinator which has died."""
        if self.generation_of.get(number) != generation:
            return []
        return self.books.lease(number, dropped, closed=self.stopping.is_set())

    async def take_snapshot(self, parts: list[Any], buffers: list[Any], position: dict[str, Any]) -> None:
        """Rank 0 of a run without shards hands over a version; answered once there is room for it."""
        await self.snapshots.put(Snapshot(parts, buffers, position))

    async def taken(self, version: int) -> None:
        """A worker of a synchronous run through shards is at a version that is to be kept; answered once it is."""
        async with self.taking:
            await self.taking.wait_for(lambda: self.taken_until >= version)

    async def parted(self, index: int, reign: int, copy: str, why: str) -> bool:
        """A shard misses its second copy; whether it may go on without."""
        return await self.copies.parted(index, reign, copy, why)

    # -- the life of a run ----------------------------------------------------------------------------------------

    async def _run(self) -> tuple[State, str, str]:
        told = (State.RECOVERING, TAKES_OVER, "takes over who lived on")
        self._state(*told if self.returned else (State.STARTING, "Starting", "starting workers"))
        try:
            if self.returned:
                await self._take_over()
            else:
                await self._unless_stopped(self._start(self.spec.workers.count))
            self._state(State.RUNNING, "Training", f"{len(self.crew.workers)} workers train")
            await self._train()
            await self._finish()
        except Stopped as stopped:
            return self._stopped(str(stopped))
        except Fenced:
            await self.crew.dismiss()
            ray.actor.exit_actor()
        except Exception as error:
            return self._failure(error)
        account = self.books.account
        if self.stopping.is_set() and not self.books.is_whole():
            return self._stopped(f"after {account.examples} examples")
        return State.SUCCEEDED, "Succeeded", f"trained {account.examples / account.num_examples:g} epochs"

    async def _start(self, least: int) -> None:
        self.starts = True
        self.crew.coordinator = ray.get_runtime_context().current_actor
        sweep(self.job_id)  # what an earlier try under this id may have left on this node
        self.copies.open({}, 0)
        await self.crew.hire(least)
        self.tasks += [asyncio.create_task(self.crew.renew()), asyncio.create_task(self.crew.watch())]
        warming = [shard.prepare.options(concurrency_group=CONTROL).remote() for shard in self.crew.shards]
        first = self.crew.workers[0]
        if self.spec.data.download:  # one fetches, the others find
            await first.ask("prepare", True)
        prepared = await settled([worker.ask("prepare", worker is first) for worker in self.crew.workers])
        for worker, told in zip(self.crew.workers, prepared, strict=True):
            worker.prepared = told
        places: list[Place] = await settled(warming)
        self.prepared = prepared[0]
        self.crew.shard_nodes = [place.node_id for place in places]
        self._event("actors", {
            "workers": [asdict(p.place) for p in prepared],
            "shards": [asdict(place) for place in places],
            "coordinator": {
                "name": f"{self.job_id}/coordinator", "pid": os.getpid(),
                "actor_id": ray.get_runtime_context().get_actor_id(),
            },
        })  # fmt: skip
        for ranks in self.spec.algorithm.groups([p.place.node_id for p in prepared]):
            self.teams.append(Team(len(self.teams), [self.crew.workers[rank] for rank in ranks], self))
        self._open_books()
        if self.crew.shards:
            await self.shards.begin(self.exchanges.open_shards(prepared, places), self.prepared, first.ask("initial"))

    async def _take_over(self) -> None:
        """Go on with those that live, from the newest version that one of them or the shards have; if there are none,
        from the last checkpoint."""
        if self.before.stops_as is not None:
            self.stops_as = self.before.stops_as
            self.stopping.set()
        found = await survivors(self.job_id, self.term)
        held = newest_of(found.endings)
        at_shards = self.spec.algorithm.uses_parameter_server
        lives = len(found.shards) == self.spec.ps.shards if at_shards else held is not None
        if not found.workers or not lives:
            await asyncio.to_thread(gone, self.job_id, but="coordinator")
            self.exchanges.generations = found.generation + 2
            resume = self.spec.checkpoint.model_copy(update={"resume": self._latest() or self.spec.checkpoint.resume})
            self.spec = self.crew.spec = self.spec.model_copy(update={"checkpoint": resume})
            await self._start_again()
            return
        self.crew.coordinator = ray.get_runtime_context().current_actor
        self.crew.take_back(found.workers, [found.shards[i] for i in sorted(found.shards)], found.replaced + 1)
        self.copies.open({i: standing.reign for i, standing in found.standings.items()}, found.replaced)
        self.exchanges.generations, self.exchanges.seats = found.generation + 1, found.seats + 1
        self.tasks += [asyncio.create_task(self.crew.renew()), asyncio.create_task(self.crew.watch())]
        prepared = [worker.prepared for worker in found.workers if worker.prepared is not None]
        self.prepared = prepared[0]
        self.gauges.add("actors", {"workers": [asdict(p.place) for p in prepared]})
        self.snapshots.accuracies = self.before.accuracies
        groups = self.spec.algorithm.groups([p.place.node_id for p in prepared])
        self.teams += [Team(i, [found.workers[rank] for rank in ranks], self) for i, ranks in enumerate(groups)]
        self.teams[0].endings = found.endings
        if at_shards:
            exchange = self.exchanges.reopen(found.standings[0].exchange)
            folders = {index: standing.exchange.folder for index, standing in found.standings.items()}
            await self.shards.take_back(exchange, self.prepared, folders)
            self.crew.shard_nodes = [place.node_id for place in await self.shards.places()]
            position = {**self.prepared.position, "applied": await self.shards.applied()}
            self.prepared = replace(self.prepared, position=position)
        self._open_books()
        self.books.epochs_told = max(self.books.epochs_told, self.before.epochs)
        if at_shards and self.books.desk is None:
            await self.regrouped(self.teams[0])

    async def _start_again(self) -> None:
        """Begin anew, with as many workers as there is room for."""
        workers = self.spec.workers
        try:
            await self._unless_stopped(self._start(workers.min if self.spec.algorithm.takes_fewer else workers.count))
        except SpecRejected as error:  # it was right once, and may be again when the nodes are back
            raise RunFailed(f"the run cannot go on with the nodes that are left: {error}") from None

    def _open_books(self) -> None:
        self.books = Books(self.spec, self.prepared, [len(team.members) for team in self.teams], self._event)

    async def _train(self) -> None:
        forever = (self._tell(), self._keep_gauges(), self.staffing.follow_drains(), self._stop_when_asked())
        self.tasks += [asyncio.create_task(one) for one in forever]
        indices = range(len(self.crew.shards))
        guards = [asyncio.create_task(follow(i)) for follow in (self.shards.serve, self.shards.copy) for i in indices]
        guards.append(asyncio.create_task(self.snapshots.follow()))
        if self.crew.shards:
            guards.append(asyncio.create_task(self._follow_shards()))
        elif self.spec.evaluate.every_s:
            self.tasks.append(asyncio.create_task(self._meet_every(self.spec.evaluate.every_s)))
        training = asyncio.create_task(self._train_to_the_end())
        try:
            await unless_one_fails(training, guards)
        finally:
            training.cancel()
            for guard in guards:
                guard.cancel()

    async def _train_to_the_end(self) -> None:
        if self.crew.shards:
            await self.shards.keep()
        await self.staffing.train(self.teams)
        self.books.tell_metrics()
        self.books.tell_epochs()
        if self.crew.shards:
            self.lost_updates = await self.shards.lost()
        await self.snapshots.put(await self._last())

    async def _finish(self) -> None:
        """The last version: evaluated, kept as a checkpoint and as the finished model."""
        whole, account = self.books.is_whole(), self.books.account
        if not whole and not self.stopping.is_set():
            raise RunFailed(f"the workers ended, and only {account.examples} examples were trained")
        last = await self.snapshots.finish(whole)
        result = Result(
            job_id=self.job_id,
            state=State.SUCCEEDED if whole else self.stops_as,
            epochs=account.examples / account.num_examples,
            examples=account.examples,
            test_accuracy=last.accuracy,
            test_loss=last.loss,
            test_error_median=last.error_median,
            train_loss=account.train_loss(max(account.by_epoch, default=0)),
            examples_per_s=account.examples_per_s,
            wall_s=time.monotonic() - self.begun_s,
            algorithm=self.spec.algorithm.name,
            workers=len(self.crew.workers),
            dropped=account.dropped,
            lost_updates=self.lost_updates,
            model_path=last.model_path,
            message="succeeded" if whole else self.stops_as.lower(),
        )
        self._event("result", result.model_dump(mode="json"))

    async def _last(self) -> Snapshot:
        if self.crew.shards:
            return replace(await self._from_shards(0, self.books.position()), last=True)
        (team,) = self.teams
        if team.newest is None and self.stopping.is_set():
            raise Stopped("with its last checkpoint: no worker has the newest version any more")
        assert team.newest is not None
        holder = next(worker for worker in self.crew.workers if worker.number == team.newest.number)
        parts, buffers = await holder.ask("hand_over")
        return Snapshot(parts, buffers, team.newest.position, last=True)

    # -- what teams ask of their run ------------------------------------------------------------------------------

    def begins(self, team: Team) -> list[Begin]:
        prepared = [worker.prepared for worker in team.members]
        exchanges = self.exchanges.form([p for p in prepared if p is not None])
        numbers = [worker.number for worker in team.members]
        position, algorithm, newest = None, self.spec.algorithm, team.newest
        self.books.form(team.number, numbers)
        if self.books.desk is None and self.crew.shards:
            rate = {"learning_rate": self.books.account.learning_rate}
            position, self.starts = None if self.starts else self.books.position() | rate, False
        elif newest is not None:
            position = newest.position
        begun: dict[str, Any] = dict(position or self.prepared.position)
        if self.books.desk is None:
            self.books.account.begin(numbers, begun["examples"])
        self.generation_of |= dict.fromkeys(numbers, exchanges[0].generation)
        resume = None if position or self.crew.shards or self.exchanges.generations == 1 else self._latest()
        num_virtual = self.spec.virtual_for(len(numbers))
        first = Begin(0, exchanges[0], position, resume=resume, num_virtual=num_virtual, term=self.term)
        if newest is not None and newest.number in numbers:
            first = replace(first, root=numbers.index(newest.number), states=newest.states)
        at_shards = len(numbers) if not algorithm.uses_collectives else 1
        return [
            replace(first, number=number, exchange=exchange, seat=self.exchanges.seat() if rank < at_shards else None)
            for rank, (number, exchange) in enumerate(zip(numbers, exchanges, strict=True))
        ]

    def lost(self, team: Team | None, worker: Hired, why: str, frames: str = "") -> None:
        if why.startswith("broke"):
            self._log_line("error", frames[-4000:])
        self._event("fault", {"actor": worker.name, "why": why, "examples": self.books.account.examples})
        if self.crew.staff is not None:
            raise WorkerDied(f"{worker.name} {why}, and a trial's processes are not replaced")
        self.crew.let_go(worker)
        if worker.prepared is not None:
            self._resized([], [worker])
        node = worker.prepared.place.node_id if worker.prepared is not None else None
        self.endurance.failed(f"{worker.name} {why}", node, worker.number, self.crew.hired)
        self.staffing.news.set()

    def _latest(self) -> str | None:
        """This run's newest checkpoint, if it has one."""
        folder = self.run_dir / "checkpoints"
        found = sorted(path for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []
        return str(found[-1]) if found else None

    async def regrouped(self, team: Team) -> None:
        self.books.tell_metrics()
        if self.books.desk is not None:
            self.books.found_applied(team.number, await self.shards.applied())
            self.books.form(team.number, [member.number for member in team.members])
        elif self.crew.shards:
            self.books.account.updates = await self.shards.agree()
        elif team.newest is None:
            self._log_line("warning", "no worker has the newest version any more: back to the last checkpoint")

    def joined(self, team: Team, worker: Hired) -> None:
        self._resized([worker], [])

    def left(self, team: Team, worker: Hired) -> None:
        self.crew.let_go(worker)
        self.books.form(team.number, [member.number for member in team.members])
        self._resized([], [worker])
        self.staffing.news.set()

    def waits(self, team: Team) -> bool:
        few = self.books.desk is None and len(team.members) < self.spec.workers.min
        if few and not self.waiting:
            told = f"waits for room: {len(team.members)} workers are left, workers.min is {self.spec.workers.min}"
            self._state(State.RECOVERING, "TooFewWorkers", told)
        elif self.waiting and not few:
            self._state(State.RUNNING, "Training", f"{len(team.members)} workers train")
        self.waiting = few
        return few

    def rests(self, team: Team) -> None:
        # Who asks ahead may be given, behind the end that it heard of, what one who died had leased.
        self.books.form(team.number, [])

    def has_work(self) -> bool:
        desk = self.books.desk
        return desk is not None and not self.stopping.is_set() and desk.ledger.has_more()

    def _resized(self, joined: Sequence[Hired], left: Sequence[Hired]) -> None:
        workers = len([worker for worker in self.crew.workers if worker.prepared and not worker.leaves])
        batch = self.spec.virtual_for(workers) * self.spec.batch.per_worker
        self._event("resize", {
            "workers": workers,
            "joined": [worker.name for worker in joined],
            "left": [worker.name for worker in left],
            "nodes": {worker.name: worker.prepared.place.node_ip for worker in joined if worker.prepared},
            "examples": self.books.account.examples,
        } | ({"batch": batch} if self.spec.scales_batch else {}))  # fmt: skip

    # -- stopping and meeting -------------------------------------------------------------------------------------

    async def _stop_when_asked(self) -> None:
        await self.stopping.wait()
        state = State.PAUSING if self.stops_as is State.PAUSED else State.CANCELLING
        self._state(state, state.capitalize(), "stopping at the end of a step")
        await asyncio.gather(*[team.stop() for team in self.teams])

    async def _meet_every(self, seconds: float) -> None:
        """Have the workers of a run without shards meet for a snapshot."""
        while not self.stopping.is_set():
            await asyncio.sleep(seconds)
            await asyncio.gather(*[team.meet() for team in self.teams])

    # -- shards ---------------------------------------------------------------------------------------------------

    async def _follow_shards(self) -> None:
        """Take snapshots from the shards at the ends of epochs and every so many seconds, as the spec asks."""
        books = self.books
        self.tasks.append(asyncio.create_task(self._shards_every(self.spec.evaluate.every_s)))
        begin = max(books.start["epoch"], books.epochs_told)
        if books.desk is None:
            await self._took(books.at_end_of(begin))
        for epoch in range(begin + 1, self.spec.epochs):
            if not self.snapshots.due(epoch):
                continue
            if books.desk is None:
                position = books.at_end_of(epoch)
                snapshot = await self._from_shards(position["updates"], position)
                refs = snapshot.buffers
                await asyncio.to_thread(ray.wait, refs, num_returns=len(refs), fetch_local=False)
                await self.snapshots.put(snapshot)
                await self._took(position)
            else:
                await books.told(epoch)
                if books.epochs_told > epoch and self.snapshots.due(books.epochs_told):
                    continue  # the workers are further already, and that version is still to come
                await self.snapshots.put(await self._from_shards(0, books.position()))

    async def _took(self, position: dict[str, Any]) -> None:
        """The version at a position has been taken, and those before it: workers may make the next."""
        async with self.taking:
            self.taken_until = position["updates"]
            self.taking.notify_all()

    async def _shards_every(self, seconds: float | None) -> None:
        while seconds and not self.stopping.is_set():
            await asyncio.sleep(seconds)
            await self.snapshots.put(replace(await self._from_shards(0, self.books.position()), passing=True))

    async def _from_shards(self, version: int, position: dict[str, Any]) -> Snapshot:
        """Every shard's slice as soon as it has made so many updates, and every worker's buffers."""
        parts = await self.shards.snapshot(version)
        ready = [worker for worker in self.crew.workers if worker.prepared is not None]
        return Snapshot(parts, [worker.ask("buffers") for worker in ready], position)

    def _shard_died(self, index: int) -> None:
        told = {"actor": f"{self.job_id}/shard/{index}", "why": "died", "examples": self.books.account.examples}
        self._event("fault", told)
        crew = self.crew
        self.endurance.failed(f"shard {index} died", crew.shard_nodes[index], crew.shard_ages[index], crew.hired)

    def _shard_is_back(self, index: int, version: int) -> None:
        self._log_line("info", f"shard {index} goes on at version {version}")

    def _stopped(self, when: str) -> tuple[State, str, str]:
        return self.stops_as, self.stops_as.capitalize(), f"{self.stops_as.lower()} {when}"

    def _last_word(self, state: State, reason: str, message: str) -> tuple[State, str, str]:
        """The end, or that it is none: what failed may be started again, unless it would fail again."""
        if state is not State.FAILED or not self.starts_again or reason in HOPELESS or self.stopping.is_set():
            return state, reason, message
        return State.QUEUED, RETRYING, f"{reason}: {message}; starts again from its last checkpoint"

    # -- events ---------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(self.spec.report_every_s)
            self.books.tell_metrics()

    async def _keep_gauges(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            self.gauges.keep()

    def _state(self, state: State, reason: str, message: str) -> None:
        self._event("state", {"state": state.value, "reason": reason, "message": message})

    def _log_line(self, level: str, message: str) -> None:
        self._event("log", {"level": level, "message": message})

    def _event(self, event_type: EventType, data: dict[str, Any]) -> None:
        self.fence.check()
        self.journal.append(event_type, data)
        self.gauges.add(event_type, data)

    def _failure(self, error: Exception) -> tuple[State, str, str]:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, ShardLost) and self.stopping.is_set():
            return self._stopped(f"with its last checkpoint: {cause}")
        if isinstance(cause, ShardLost) and self.crew.staff is None and past(self.run_dir).went_back < RETURNS:
            return State.RECOVERING, GOES_BACK, f"{cause}; goes back to the last checkpoint"
        if isinstance(cause, UserCodeFailed):
            self._log_line("error", str(cause))  # with the last frames of the user's own code
        elif not isinstance(cause, MillraceError):
            frames = (
                str(error)
                if isinstance(error, ray.exceptions.RayTaskError)
                else "".join(traceback.format_exception(cause))
            )
            self._log_line("error", frames[-4000:])
        if isinstance(cause, MillraceError):
            return State.FAILED, cause.reason, str(cause)
        if isinstance(error, ray.exceptions.RayActorError):
            return State.FAILED, "WorkerDied", f"a worker or shard of the run died: {error}"
        return State.FAILED, "WorkerFailed", f"{type(cause).__name__}: {cause}"

    async def _unless_stopped(self, work: Awaitable[T]) -> T:
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            raise Stopped("before the first step")
        return task.result()


async def unless_one_fails(work: asyncio.Task[None], guards: Sequence[asyncio.Future[None]]) -> None:
    """Wait for the work; the first of the guards that fails ends it."""
    pending: set[asyncio.Future[None]] = {work, *guards}
    while not work.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            await one  # raises what ended it
