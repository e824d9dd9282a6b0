"""The coordinator: one async actor a run. It decides and keeps the log; tensors never pass through it.

STARTING  hire workers and shards, let them prepare, choose the transport
RUNNING   workers train; tallies become events, snapshots become evaluations and checkpoints
then      last snapshot, last evaluation, result; everybody is dismissed before the terminal event is written
"""

import asyncio
import os
import time
import traceback
from collections.abc import Awaitable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import ray

from trainers.elastic.ledger import Desk, Lease, Ledger
from trainers.elastic.order import Order
from trainers.errors import Fenced, MillraceError, RunFailed, Stopped, UserCodeFailed
from trainers.events import EventType, Result, State
from trainers.runtime.account import Account
from trainers.runtime.crew import CONTROL, Crew
from trainers.runtime.journal import Fence, Journal
from trainers.runtime.member import sweep
from trainers.runtime.messages import Exchange, Place, Prepared, Tally
from trainers.runtime.outcome import all_or_the_cause, settled
from trainers.runtime.snapshots import Snapshot, Snapshots
from trainers.spec import TrainSpec
from trainers.transport.rendezvous import Rendezvous, host_rendezvous

T = TypeVar("T")

LEASES_AT_ONCE = 2

LEASE_MINIBATCHES = 64
"""The longest lease: asking costs about a millisecond, a minibatch of a small model two."""


class Coordinator:
    """Runs one spec to its end."""

    def __init__(self, job_id: str, spec: TrainSpec, run_dir: str, runtime_env: dict[str, Any] | None) -> None:
        self.job_id = job_id
        self.spec = spec
        self.run_dir = Path(run_dir)
        self.crew = Crew(job_id, spec, runtime_env)
        self.begun_s = time.monotonic()
        self.stopping = asyncio.Event()
        self.gates = asyncio.Lock()  # whoever holds workers in front of their gates
        self.tasks: list[asyncio.Task[Any]] = []
        self.snapshots = Snapshots(self.crew, spec, self.run_dir, self._log)
        self.desk: Desk | None = None
        self.groups: list[list[int]] = []  # ranks of the workers that go on step by step together
        self.account: Account
        self.prepared: Prepared
        self.rendezvous: Rendezvous | None = None
        self.epochs_told = 0
        self.epoch_news = asyncio.Event()

    # -- what others call -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """From the first event to the last; then this actor ends itself."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.fence = Fence.take(self.run_dir)
        self.journal = Journal(self.run_dir)
        try:
            terminal = await self._run()
        finally:
            for task in self.tasks:
                task.cancel()
            await self.crew.dismiss()
            await self.snapshots.close()
            if self.rendezvous is not None:
                self.rendezvous.close()
        self._state(*terminal)
        self.journal.close()
        ray.actor.exit_actor()

    async def ping(self) -> str:
        """Proof of life."""
        return self.job_id

    async def cancel(self) -> None:
        """Stop cleanly: at the end of a step, with a checkpoint."""
        self.stopping.set()

    async def report(self, tally: Tally) -> None:
        """A worker tells what it did."""
        self.account.add(tally)
        if self.desk is not None:
            for epoch, first, last in tally.applied:
                self.desk.applied(tally.rank, Lease(epoch, first, last))
        if self.account.steps_of.total() == 1:
            self._tell_metrics()  # the first step of all is told at once
        self._tell_epochs()

    async def lease(self, rank: int) -> list[Lease | None]:
        """An asynchronous worker asks for more to do; a None is the end."""
        assert self.desk is not None
        return [self.desk.lease(rank, closed=self.stopping.is_set()) for _ in range(LEASES_AT_ONCE)]

    async def take_snapshot(self, parts: list[Any], buffers: list[Any], position: dict[str, Any], last: bool) -> None:
        """Rank 0 of a run without shards hands over a version; answered once there is room for it."""
        await self.snapshots.put(Snapshot(parts, buffers, position, last))

    # -- the life of a run ----------------------------------------------------------------------------------------

    async def _run(self) -> tuple[State, str, str]:
        self._state(State.STARTING, "Starting", "starting workers")
        try:
            await self._unless_stopped(self._start())
            self._state(State.RUNNING, "Training", f"{self.spec.workers.count} workers train")
            await self._train()
            await self._finish()
        except Stopped:
            return State.CANCELLED, "Cancelled", "cancelled before the first step"
        except Fenced:
            await self.crew.dismiss()
            ray.actor.exit_actor()
        except Exception as error:
            return self._failure(error)
        if self.stopping.is_set() and not self._is_whole():
            return State.CANCELLED, "Cancelled", f"cancelled after {self.account.examples} examples"
        return State.SUCCEEDED, "Succeeded", f"trained {self.account.examples / self.account.num_examples:g} epochs"

    async def _start(self) -> None:
        me = ray.get_runtime_context().current_actor
        sweep(self.job_id)  # what an earlier try under this id may have left on this node
        await self.crew.hire(me)
        self.tasks.append(asyncio.create_task(self.crew.renew()))
        warming = [shard.prepare.options(concurrency_group=CONTROL).remote() for shard in self.crew.shards]
        first, *others = self.crew.workers
        if self.spec.data.download:  # one fetches, the others find
            await settled([first.prepare.options(concurrency_group=CONTROL).remote(True)])
        asked = [first.prepare.options(concurrency_group=CONTROL).remote(True)]
        asked += [worker.prepare.options(concurrency_group=CONTROL).remote(False) for worker in others]
        prepared: list[Prepared] = await settled(asked)
        places: list[Place] = await settled(warming)
        self.prepared = prepared[0]
        self._event("actors", {
            "workers": [asdict(p.place) for p in prepared],
            "shards": [asdict(place) for place in places],
            "coordinator": {"name": f"{self.job_id}/coordinator", "pid": os.getpid()},
        })  # fmt: skip
        self.groups = self.spec.algorithm.groups([p.place.node_id for p in prepared])
        self._open_books()
        self.exchanges = await self._exchanges(prepared, places)
        if self.crew.shards:
            start = first.initial.options(concurrency_group=CONTROL).remote()
            opened = [
                shard.open.options(concurrency_group=CONTROL).remote(self.exchanges[0], self.prepared, start)
                for shard in self.crew.shards
            ]
            await settled(opened)

    def _open_books(self) -> None:
        spec, p = self.spec, self.prepared
        self.account = Account(p.num_examples, spec.algorithm.is_synchronous)
        self.account.examples = int(p.position["examples"])  # type: ignore[call-overload]
        self.epochs_told = int(p.position["epoch"])  # type: ignore[call-overload]
        order = Order(p.num_examples, spec.batch.per_worker, spec.workers.num_virtual, spec.seed)
        done = already_applied(p, order, spec)
        for lease in done:
            loss, examples = self.account.by_epoch.get(lease.epoch, (0.0, 0))
            more = sum(order.size(i) for i in range(lease.first, lease.last + 1))
            self.account.by_epoch[lease.epoch] = (loss, examples + more)
        if not spec.algorithm.is_synchronous:
            group = max(map(len, self.groups))
            push = getattr(spec.algorithm, "num_push", 1) * group
            size = max(1, min(LEASE_MINIBATCHES * group, p.minibatches // (2 * len(self.groups))) // push) * push
            self.desk = Desk(Ledger(order, spec.epochs, size, done), self.groups)

    async def _exchanges(self, prepared: list[Prepared], places: list[Place]) -> list[Exchange]:
        """How each worker reaches the others; `auto` takes shared memory where all are on one node and compute on the
        CPU, or talk to shards only."""
        nodes = {p.place.node_id for p in prepared} | {place.node_id for place in places}
        on_cpu = all(p.device == "cpu" for p in prepared)
        able = len(nodes) == 1 and (on_cpu or bool(places))
        wanted = self.spec.transport
        if wanted == "shared_memory" and not able:
            raise RunFailed(f"transport: the workers are on {len(nodes)} nodes, which share no memory; use auto")
        transport = "shared_memory" if wanted == "shared_memory" or (wanted == "auto" and able) else "process_group"
        within = [self._transport_within([prepared[rank] for rank in ranks]) for ranks in self._subgroups()]
        address = None
        if "process_group" in (transport, *within):
            host = ray.util.get_node_ip_address()
            self.rendezvous = host_rendezvous(host)
            address = (host, self.rendezvous.port)
        self._log_line("info", f"{len(prepared)} workers exchange through {transport}")
        found = [Exchange(transport, "g0", rank, len(prepared), address) for rank in range(len(prepared))]
        for i, ranks in enumerate(self._subgroups()):
            for k, rank in enumerate(ranks):
                found[rank] = replace(found[rank], group=Exchange(within[i], f"g0-group-{i}", k, len(ranks), address))
        return found

    def _subgroups(self) -> list[list[int]]:
        """The groups whose workers exchange tensors among themselves and not only through the shards."""
        algorithm = self.spec.algorithm
        return self.groups if algorithm.uses_collectives and algorithm.uses_parameter_server else []

    def _transport_within(self, members: list[Prepared]) -> str:
        on_one_node = len({p.place.node_id for p in members}) == 1
        able = on_one_node and all(p.device == "cpu" for p in members) and self.spec.transport != "process_group"
        return "shared_memory" if able else "process_group"

    async def _train(self) -> None:
        serving = [shard.serve.options(concurrency_group="serve").remote() for shard in self.crew.shards]
        training = [
            worker.train.options(concurrency_group="train").remote(exchange)
            for worker, exchange in zip(self.crew.workers, self.exchanges, strict=True)
        ]
        self.tasks.append(asyncio.create_task(self._tell()))
        self.tasks.append(asyncio.create_task(self._stop_when_asked()))
        following = [asyncio.create_task(self.snapshots.follow())]
        if self.crew.shards:
            following.append(asyncio.create_task(self._follow_shards()))
        elif self.spec.evaluate.every_s:
            self.tasks.append(asyncio.create_task(self._meet_every(self.spec.evaluate.every_s)))
        try:
            await all_or_the_cause(training, [*serving, *following])
        except BaseException:
            for member in [*self.crew.workers, *self.crew.shards]:
                member.close.options(concurrency_group=CONTROL).remote()
            raise
        finally:
            for task in following:
                task.cancel()
        self._tell_metrics()
        self._tell_epochs()

    async def _finish(self) -> None:
        """The last version: evaluated, kept as a checkpoint and as the finished model."""
        if self.crew.shards:
            await self.snapshots.put(await self.snapshots.from_shards(0, self._position(), last=True))
        whole = self._is_whole()
        last = await self.snapshots.finish(whole)
        result = Result(
            job_id=self.job_id,
            state=State.SUCCEEDED if whole else State.CANCELLED,
            epochs=self.account.examples / self.account.num_examples,
            examples=self.account.examples,
            test_accuracy=last.accuracy,
            test_loss=last.loss,
            test_error_median=last.error_median,
            train_loss=self.account.train_loss(max(self.account.by_epoch, default=0)),
            examples_per_s=self.account.examples_per_s,
            wall_s=time.monotonic() - self.begun_s,
            algorithm=self.spec.algorithm.name,
            workers=self.spec.workers.count,
            model_path=last.model_path,
            message="succeeded" if whole else "cancelled",
        )
        self._event("result", result.model_dump(mode="json"))

    # -- stopping and meeting -------------------------------------------------------------------------------------

    async def _stop_when_asked(self) -> None:
        """Hold every worker in front of its next step, then let all go on to the step that the furthest has begun."""
        await self.stopping.wait()
        self._state(State.CANCELLING, "Cancelling", "stopping at the end of a step")
        async with self.gates:
            begun = await self._ask_workers("hold")
            limits = {rank: max(begun[other] for other in group) for group in self.groups for rank in group}
            await self._ask_workers("release", [(limits[rank], None) for rank in range(len(begun))])

    async def _meet_every(self, seconds: float) -> None:
        """Have the workers of a run without shards meet for a snapshot."""
        while True:
            await asyncio.sleep(seconds)
            async with self.gates:
                if self.stopping.is_set():
                    return
                begun = await self._ask_workers("hold")
                await self._ask_workers("release", [(None, max(begun)) for _ in begun])

    async def _ask_workers(self, method: str, arguments: list[tuple[Any, ...]] | None = None) -> list[Any]:
        workers = zip(self.crew.workers, arguments or [()] * len(self.crew.workers), strict=True)
        return await settled([getattr(w, method).options(concurrency_group=CONTROL).remote(*a) for w, a in workers])

    async def _follow_shards(self) -> None:
        """Take snapshots from the shards at the ends of epochs and every so many seconds, as the spec asks."""
        spec = self.spec
        start = self.prepared.position
        begun = int(start["epoch"]) * self.prepared.steps + int(start["step"])  # type: ignore[call-overload]
        periodic = asyncio.create_task(self._shards_every(spec.evaluate.every_s))
        self.tasks.append(periodic)
        for epoch in range(int(start["epoch"]) + 1, spec.epochs):  # type: ignore[call-overload]
            if not self.snapshots.due(epoch):
                continue
            if spec.algorithm.is_synchronous:
                position = {"epoch": epoch, "updates": epoch * self.prepared.steps - begun}
                position["examples"] = epoch * self.prepared.num_examples
                await self.snapshots.put(await self.snapshots.from_shards(position["updates"], position))
            else:
                await self._epoch_told(epoch)
                if self.epochs_told > epoch and self.snapshots.due(self.epochs_told):
                    continue  # the workers are further already, and that version is still to come
                await self.snapshots.put(await self.snapshots.from_shards(0, self._position()))

    async def _shards_every(self, seconds: float | None) -> None:
        while seconds and not self.stopping.is_set():
            await asyncio.sleep(seconds)
            await self.snapshots.put(await self.snapshots.from_shards(0, self._position(), passing=True))

    async def _epoch_told(self, epoch: int) -> None:
        while self.epochs_told < epoch:
            self.epoch_news.clear()
            await self.epoch_news.wait()

    def _position(self) -> dict[str, Any]:
        """Where the run is, as far as the tallies tell; a `Position` but for what the shards applied."""
        examples = self.account.examples
        if self.desk is not None:
            ledger = self.desk.ledger
            return {"epoch": ledger.epochs_done(), "updates": self.account.steps, "examples": ledger.trained}
        start = self.prepared.position
        steps = int(start["epoch"]) * self.prepared.steps + int(start["step"]) + self.account.steps  # type: ignore[call-overload]
        epoch, step = divmod(steps, self.prepared.steps)
        return {"epoch": epoch, "step": step, "updates": self.account.steps, "examples": examples}

    def _is_whole(self) -> bool:
        return self.account.examples >= self.spec.epochs * self.account.num_examples

    # -- events ---------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(self.spec.report_every_s)
            self._tell_metrics()

    def _tell_metrics(self) -> None:
        metrics = self.account.metrics()
        if metrics is not None:
            self._event("step", metrics.model_dump(mode="json"))

    def _tell_epochs(self) -> None:
        while self.epochs_told < self.spec.epochs and self.account.epoch_is_done(self.epochs_told):
            self._event("epoch", {
                "epoch": self.epochs_told + 1,
                "examples": self.account.examples,
                "train_loss": self.account.train_loss(self.epochs_told),
            })  # fmt: skip
            self.epochs_told += 1
            self.epoch_news.set()

    def _state(self, state: State, reason: str, message: str) -> None:
        self._event("state", {"state": state.value, "reason": reason, "message": message})

    def _log(self, event_type: EventType, data: dict[str, Any]) -> None:
        self._event(event_type, data)

    def _log_line(self, level: str, message: str) -> None:
        self._event("log", {"level": level, "message": message})

    def _event(self, event_type: EventType, data: dict[str, Any]) -> None:
        self.fence.check()
        self.journal.append(event_type, data)

    def _failure(self, error: Exception) -> tuple[State, str, str]:
        cause = getattr(error, "cause", None) or error
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
            raise Stopped("cancelled before the first step")
        return task.result()


def already_applied(p: Prepared, order: Order, spec: TrainSpec) -> list[Lease]:
    """What a resumed run has behind it: whole epochs, steps of the next one, and what every shard has applied."""
    position: dict[str, Any] = dict(p.position)
    epoch, step = position["epoch"], position["step"]
    found = [Lease(e, 0, order.minibatches - 1) for e in range(min(epoch, spec.epochs))]
    if step:
        found.append(Lease(epoch, 0, min(step * order.num_virtual, order.minibatches) - 1))
    sets = [
        {(row[0], i) for row in rows if row[0] >= epoch for i in range(row[2], row[3] + 1)}
        for rows in position["applied"]
    ]
    both = set.intersection(*sets) if sets and not spec.algorithm.is_synchronous else set()
    return found + [Lease(e, i, i) for e, i in sorted(both) if e < spec.epochs]
