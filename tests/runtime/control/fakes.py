"""A run without Ray: its actors are objects of this process, and a test decides when they answer."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.runtime.control.fake_actors import FakeActor, FakeStandbys, died
from tests.runtime.runs import spec
from trainers import TrainSpec
from trainers.metrics import StepMetrics
from trainers.runtime.actor_handles import WarmPool, WorkerHandle
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.config import RunConfig
from trainers.runtime.control.controller import RunController, RunPhase
from trainers.runtime.control.launch import Launcher
from trainers.runtime.control.onlookers.callbacks import CallbackCalls
from trainers.runtime.control.onlookers.predictions import Predictions
from trainers.runtime.control.onlookers.tracing import Tracing
from trainers.runtime.control.parts import RunParts
from trainers.runtime.control.run_events import RunEvent, ShardBack, StartedRun, Survivors, Tasks
from trainers.runtime.control.run_log import LogSummary, RunLog
from trainers.runtime.control.snapshot_schedule import SnapshotSchedule
from trainers.runtime.control.snapshots import Measured, Snapshot
from trainers.runtime.control.training import Training
from trainers.runtime.messages import ActorLocation, Prepared
from trainers.runtime.topology import Topology
from trainers.training.messages import GenerationEnd, WorkerReport
from trainers.training.position import Position

EXAMPLES, MINIBATCH = 40, 5
SYNC_THROUGH_SHARDS = {"name": "sync", "form": "parameter_server"}


class FakeLog(RunLog):
    """Keeps the events in memory."""

    def __init__(self, before: LogSummary | None = None) -> None:
        self.before = before or LogSummary()
        self.written: list[tuple[str, dict[str, Any]]] = []
        self.fault, self.at_work_s = (None, lambda: 4.0)  # what every write raises from now on; of the whole log

    def summary(self) -> LogSummary:
        return self.before

    def evaluations_until(self, examples: int) -> list[dict[str, Any]]:
        return [found for found in self.of("evaluation") if found["examples"] <= examples] if examples else []

    def open(self) -> None:
        pass

    def write(self, event_type: Any, data: dict[str, Any], is_last: bool = False) -> int:
        if self.fault is not None:
            raise self.fault
        self.written.append((event_type, data))
        return len(self.written)

    def refresh_gauges(self) -> None:
        pass

    def close(self) -> None:
        pass

    def of(self, event_type: str) -> list[dict[str, Any]]:
        """The data of all events of a type."""
        return [data for written, data in self.written if written == event_type]

    @property
    def states(self) -> list[tuple[str, str]]:
        """All states with their reasons."""
        return [(data["state"], data["reason"]) for data in self.of("state")]


class FakePool(ActorPool):
    """Starts actors at once if there is room."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config.job_id, config.spec, None, None, config.warm_pool)
        self.room = asyncio.Event()
        self.room.set()
        self.node = "a"  # where workers are started
        self.let_go_of: list[int] = []
        self.lacks: str | None = None  # room, in a sentence
        self.is_dismissed = False

    async def reserve(self, count: int, least: int) -> list[Any]:
        await self.room.wait()
        return [None] * count

    async def what_room_is_awaited(self) -> str | None:
        return self.lacks

    def start_workers(self, reserved: list[Any]) -> list[WorkerHandle]:
        started = []
        for _ in reserved:
            name = f"job/worker/{self.num_started}"
            actor = FakeActor(prepare=prepared(self.num_started, self.node), hand_over=[["part"], ["rows"]])
            started.append(WorkerHandle(self.num_started, name, actor))
            self.num_started += 1
        self.workers += started
        return started

    def let_go(self, worker: WorkerHandle) -> None:
        self.let_go_of.append(worker.number)
        if worker in self.workers:
            self.workers.remove(worker)

    async def dismiss(self) -> None:
        self.is_dismissed = True

    def draining(self) -> frozenset[str]:
        return frozenset()


class FakeShards:
    """Shards of which a test says what becomes of them."""

    def __init__(self, events: "asyncio.Queue[RunEvent]") -> None:
        self.events = events
        self.version = 0
        self.rows: list[Any] = [()]
        self.served: list[int] = []
        self.replaced: list[int] = []
        self.failure: Exception | None = None  # what replacing a shard comes to

    async def serve(self, index: int) -> None:
        self.served.append(index)
        await asyncio.Event().wait()

    async def keep_standby(self, index: int) -> None:
        pass

    async def keep_first_snapshot(self) -> None:
        pass

    async def replace(self, index: int) -> None:
        self.replaced.append(index)
        if self.failure is not None:
            raise self.failure
        self.events.put_nowait(ShardBack(index, self.version))

    async def applied(self) -> list[Any]:
        return self.rows

    async def agree(self) -> int:
        return self.version

    async def lost(self) -> int:
        return 3

    async def snapshot(self, version: int) -> list[Any]:
        await asyncio.sleep(0)
        return ["part"]


class FakeSnapshots:
    """An evaluator that finds every version good, when it is allowed to."""

    def __init__(self) -> None:
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.finished: list[tuple[Snapshot, bool]] = []

    async def follow(self) -> None:
        await asyncio.Event().wait()

    def is_due(self, position: Position) -> bool:
        return False

    async def finish(self, last: Snapshot, is_complete: bool, is_end: bool = True) -> Measured:
        self.finished.append((last, is_complete))
        await self.may_finish.wait()
        return Measured({"loss": 0.5, "accuracy": 0.9}, 0.1, "model.safetensors")

    async def close(self) -> None:
        pass


class FakeWatch:
    """Finds nobody at fault, unless a test says so."""

    def __init__(self) -> None:
        self.computing: set[int] = set()  # workers that are in a step
        self.kills: tuple[str, int] | None = None  # what each actor's last answer told of its node

    async def run(self) -> None:
        await asyncio.Event().wait()

    def is_computing(self, worker: WorkerHandle) -> bool:
        return worker.number in self.computing

    async def hear_out(self) -> None: ...

    def hurry(self) -> None: ...

    def memory_kills(self, _: Any) -> tuple[str, int] | None:
        return self.kills

    def what_is_awaited(self) -> str | None:
        return "worker/0 opens the dataset, 35 s"


class FakeLauncher(Launcher):
    """Gets as many workers ready as it is told to, when it is allowed to."""

    def __init__(self, parts: RunParts) -> None:
        super().__init__(parts)
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.asked_for: list[int] = []
        self.tries = False
        self.begins_at = Position()

    async def start(self, least: int, before: LogSummary) -> StartedRun:
        self.asked_for.append(least)
        self.tries = not before.has_trained
        await self.may_start.wait()
        found = started(self.parts, least)
        return replace(found, prepared=replace(found.prepared, position=self.begins_at))


class FakeRecovery:
    """Finds what a test has left."""

    def __init__(self, parts: RunParts, survivors: Survivors) -> None:
        self.parts = parts
        self.survivors = survivors
        self.removed = False

    async def find_survivors(self, incarnation: int, lost: Collection[str]) -> Survivors:
        return self.survivors

    async def take_back(self, found: Survivors, before: LogSummary) -> StartedRun:
        self.parts.pool.workers = found.workers
        return StartedRun(prepared(0), (tuple(found.workers),), is_new=False, endings=tuple(found.endings))

    async def remove_leftovers(self, found: Survivors) -> None:
        self.removed = True


def prepared(number: int, node: str = "a") -> Prepared:
    place = ActorLocation(f"job/worker/{number}", node, "127.0.0.1", number)
    minibatches = EXAMPLES // MINIBATCH
    return Prepared(
        place=place, num_examples=EXAMPLES, minibatches=minibatches, steps=minibatches // 2, numel=16,
        shards=((0, 16),), device="cpu", position=Position(),
    )  # fmt: skip


def started(parts: RunParts, count: int) -> StartedRun:
    """So many workers that are ready."""
    workers = parts.pool.start_workers([None] * count)
    for worker in workers:
        worker.prepared = prepared(worker.number)
    algorithm = parts.config.spec.algorithm
    if algorithm.traits.uses_parameter_server:
        parts.pool.shards, parts.pool.shard_nodes, parts.pool.shard_ages = [object()], ["a"], [0]
    ranks = algorithm.groups([worker.prepared.place.node_id for worker in workers if worker.prepared])
    return StartedRun(prepared(0), tuple(tuple(workers[rank] for rank in group) for group in ranks))


@dataclass
class FakeRun:
    """A controller, and everything that it was given."""

    controller: RunController
    parts: RunParts
    log: FakeLog
    pool: FakePool
    shards: FakeShards
    snapshots: FakeSnapshots
    launcher: FakeLauncher
    recovery: FakeRecovery

    async def settle(self) -> None:
        """Let the controller take in everything that has happened, and what follows from it."""
        quiet = 0
        while quiet < 20 and self.controller.end is None:
            if self.parts.events.empty():
                quiet += 1
                await asyncio.sleep(0)
            else:
                quiet = 0
                await self.controller.iterate()

    async def happens(self, *events: RunEvent) -> None:
        """Queue events, and settle."""
        for event in events:
            self.parts.events.put_nowait(event)
        await self.settle()

    async def begins(self, phase: RunPhase = RunPhase.TRAINING) -> None:
        """Begin, up to this phase."""
        self.controller.begin()
        await self.settle()
        assert self.controller.phase is phase

    async def reaches(self, phase: RunPhase) -> None:
        """Wait for it, while the controller runs by itself."""
        for _ in range(1000):
            if self.controller.phase is phase:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"it is {self.controller.phase}")

    @property
    def training(self) -> Training:
        assert self.controller.training is not None
        return self.controller.training

    def actor(self, number: int) -> FakeActor:
        """The actor of a worker that is in the pool."""
        (found,) = [worker.actor for worker in self.pool.workers if worker.number == number]
        assert isinstance(found, FakeActor)
        return found

    async def ends(self, *numbers: int, step: int = 1, lost: str = "") -> None:
        """These workers end the generation under way, each with the version after so many steps."""
        position = Position(step=step, examples=step * 2 * MINIBATCH)
        for number in numbers:
            end = GenerationEnd(number, position, lost, has_version=True)
            self.actor(number).training.set_result(end)
        await self.settle()

    async def dies(self, number: int, *others: int, step: int = 1) -> None:
        """A worker does; the others of its group miss it."""
        self.actor(number).training.set_exception(died())
        await self.ends(*others, step=step, lost=f"worker {number} is gone")

    def reports(self, number: int, reached: int = 0, applied: tuple[tuple[int, int, int], ...] = ()) -> None:
        """A worker says that it has so many examples in its version, or got these minibatches applied."""
        generation = self.actor(number).called("train")[-1][0].endpoint.generation
        done = StepMetrics(steps=1, examples=MINIBATCH, loss=1.0, weight=MINIBATCH, by_epoch={0: (1.0, MINIBATCH)})
        updates = reached // MINIBATCH
        report = WorkerReport(number, generation, done, 0.1, updates=updates, reached=reached, applied=applied)
        self.controller.report(report)


def fake_run(folder: Path, before: LogSummary | None, survivors: Survivors | None, config: RunConfig) -> FakeRun:
    """before: What the log says, if there was another coordinator."""
    log, pool, events = FakeLog(before), FakePool(config), asyncio.Queue[RunEvent]()
    shards, snapshots = FakeShards(events), FakeSnapshots()
    schedule = SnapshotSchedule(pool, shards, snapshots)  # type: ignore[arg-type]
    topology = Topology(config.spec, "127.0.0.1")
    parts = RunParts(
        config, events, (tasks := Tasks(events)), log, pool, FakeWatch(), topology,  # type: ignore[arg-type]
        FakeStandbys(), shards, snapshots, CallbackCalls(pool, log, events), schedule,  # type: ignore[arg-type]
        Tracing(folder, pool, log, tasks), Predictions(config, log),
    )  # fmt: skip
    launcher, recovery = FakeLauncher(parts), FakeRecovery(parts, survivors or Survivors())
    controller = RunController(parts, launcher, recovery, is_successor=before is not None)  # type: ignore[arg-type]
    return FakeRun(controller, parts, log, pool, shards, snapshots, launcher, recovery)


Scenario = Callable[[FakeRun], Coroutine[Any, Any, None]]


def play(
    folder: Path,
    scenario: Scenario,
    train: TrainSpec | None = None,
    before: LogSummary | None = None,
    survivors: Survivors | None = None,
    is_trial: bool = False,
    starts_again: bool = False,
) -> None:
    """Play a scenario on a run of two synchronous workers, or of what the spec says."""
    warm = WarmPool([], None) if is_trial else None
    config = RunConfig("job", train or small(), folder, None, warm, starts_again)

    async def body() -> None:
        run = fake_run(folder, before, survivors, config)
        try:
            await scenario(run)
        finally:
            await run.parts.tasks.cancel()
            run.parts.topology.close()

    asyncio.run(body())


def small(**fields: Any) -> TrainSpec:
    """Two workers, eight minibatches an epoch, process groups nowhere."""
    base: dict[str, Any] = {"workers": {"count": 2, "virtual": 4, "max": 4}, "batch": MINIBATCH, "epochs": 1}
    return spec(**(base | {"transport": "shared_memory"} | fields))


def ended(run: FakeRun) -> tuple[str, str, str]:
    """The state in which a run has ended, with reason and message."""
    end = run.controller.end
    assert end is not None, run.controller.phase
    return end.state.value, end.reason, end.message


async def train_everything(run: FakeRun) -> None:
    """Both workers train the only epoch."""
    for number in (0, 1):
        run.reports(number, reached=EXAMPLES)
    await run.ends(0, 1, step=4)
