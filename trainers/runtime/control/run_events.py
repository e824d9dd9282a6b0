"""The facts that a run's controller acts on. Whatever happens to a run arrives on one queue of these."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from trainers.events import State, StopReason
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control.snapshots import Measured, Snapshot
from trainers.runtime.messages import Prepared, ShardStatus
from trainers.training.messages import GenerationEnd


@dataclass
class Survivors:
    """The actors of a run that outlived its coordinator."""

    workers: list[WorkerHandle] = field(default_factory=list)
    shards: dict[int, Any] = field(default_factory=dict)
    """By index: those that serve."""
    shard_statuses: dict[int, ShardStatus] = field(default_factory=dict)
    """By index: what they answered."""
    dataset: Any = None
    """The actor that holds the Ray Dataset."""
    endings: list[GenerationEnd] = field(default_factory=list)
    """How the generation under way ended for the workers."""
    generation: int = -1
    """The newest that any of them was in."""
    store_worker: int = -1
    """The highest number that any of them had at the shards."""
    num_replaced: int = 0
    """The highest number in the name of any actor that replaced another, or was meant to."""


@dataclass(frozen=True)
class StartedRun:
    """Workers and shards that are ready, and where they begin."""

    prepared: Prepared
    """What a worker said of the model, the data and the position."""
    groups: tuple[tuple[WorkerHandle, ...], ...]
    """The workers that go on step by step together."""
    is_new: bool = True
    """Whether nobody has trained yet."""
    endings: tuple[GenerationEnd, ...] = ()
    """How the generation before ended for those of the first group, where the run was taken over."""
    updates: int | None = None
    """The version that the shards of a synchronous run have agreed on, where it was taken over."""


@dataclass(frozen=True)
class StopRequested:
    """Somebody wants the run to stop at the end of a step."""

    stops_as: State
    """CANCELLED or PAUSED."""
    why: StopReason | None = None


@dataclass(frozen=True)
class StopsEarly:
    """The run is to end well before everything is trained: its evaluations get no better, or a callback asks for it."""

    message: str


@dataclass(frozen=True)
class EvaluationAsked:
    """A callback wants the version after the step under way evaluated."""


@dataclass(frozen=True)
class ScaleRequested:
    """Somebody wants another number of workers, which the spec allows."""

    count: int


@dataclass(frozen=True)
class RequestNoted:
    """Somebody has asked something of the run that its log shall tell of."""

    request: dict[str, Any]


@dataclass(frozen=True)
class SurvivorsFound:
    """The actors that outlived the coordinator before this one are known."""

    survivors: Survivors


@dataclass(frozen=True)
class LeftoversRemoved:
    """Nothing is left of a run that could not go on where it was."""


@dataclass(frozen=True)
class RunStarted:
    """Workers and shards are ready."""

    started: StartedRun


@dataclass(frozen=True)
class ShardsServe:
    """The shards serve, and have kept their first snapshot where they need one."""


@dataclass(frozen=True)
class WorkerReady:
    """A worker that was started while the run trains has loaded its data and built its model."""

    worker: WorkerHandle
    prepared: Prepared


@dataclass(frozen=True)
class WorkerLost:
    """A worker has died, or must be ended because it hangs or broke."""

    worker: WorkerHandle
    why: str
    frames: str = ""
    """Where it broke."""
    with_node: bool = False
    """Whether it is known that its node died."""


@dataclass(frozen=True)
class GenerationEnded:
    """A generation of a group is over for all its members, except those that were lost."""

    group: int
    is_complete: bool
    """Whether nothing is left to train of what the members know."""


@dataclass(frozen=True)
class Regrouped:
    """What must be put right between two generations of a group has been."""

    group: int


@dataclass(frozen=True)
class ShardDied:
    """The process that serves a shard has died."""

    index: int


@dataclass(frozen=True)
class ShardBack:
    """Another process serves a shard."""

    index: int
    version: int
    """From which it goes on."""


@dataclass(frozen=True)
class NodesDraining:
    """These nodes, and no others, are about to be taken away."""

    nodes: frozenset[str]


@dataclass(frozen=True)
class MetricsDue:
    """It is time to report what the workers did."""


@dataclass(frozen=True)
class GaugesDue:
    """It is time to set the gauges again."""


@dataclass(frozen=True)
class LastVersionTaken:
    """Nothing is left to train, and there is a snapshot of the last version of the parameters."""

    snapshot: Snapshot
    lost_updates: int
    """That workers had heard of, and that shards without a second copy have lost."""


@dataclass(frozen=True)
class RunMeasured:
    """The last version is evaluated, and kept as the finished model."""

    measured: Measured


@dataclass(frozen=True)
class TaskFailed:
    """Something under way has failed, and the run with it."""

    error: Exception


@dataclass(frozen=True)
class BackgroundFailed:
    """Something that the run can do without has failed."""

    what: str
    error: Exception


RunEvent = (
    StopRequested | StopsEarly | EvaluationAsked | ScaleRequested | RequestNoted | SurvivorsFound | LeftoversRemoved
    | RunStarted | ShardsServe | WorkerReady | WorkerLost | GenerationEnded | Regrouped | ShardDied | ShardBack
    | NodesDraining | MetricsDue | GaugesDue | LastVersionTaken | RunMeasured | TaskFailed | BackgroundFailed
)  # fmt: skip
EventQueue = asyncio.Queue[RunEvent]


class Tasks:
    """What a run has under way. None of it fails in silence: the queue gets an event."""

    def __init__(self, events: EventQueue) -> None:
        self.events = events
        self.running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin something without which the run cannot go on."""
        return self._begin(self._essential(work), work)

    def start_background(self, what: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin something that the run can do without; `what` names it in the log should it fail."""
        return self._begin(self._background(what, work), work)

    def post_every(self, seconds: float, event: RunEvent) -> None:
        """Put an event on the queue again and again."""
        self.start(self.repeat(seconds, lambda: event))

    async def repeat(self, seconds: float, event: Callable[[], RunEvent]) -> None:
        """Put what is made anew each time on the queue, until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.events.put_nowait(event())

    async def cancel(self) -> None:
        """End all that is under way."""
        running = list(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(self, guarded: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(guarded)
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        task.add_done_callback(lambda _: work.close())  # which has not begun if the task was cancelled at once
        return task

    async def _essential(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.events.put_nowait(TaskFailed(error))

    async def _background(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.events.put_nowait(BackgroundFailed(what, error))
