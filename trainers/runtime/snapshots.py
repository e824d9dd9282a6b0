"""Snapshots on their way from the training to the evaluator: measured, kept, and told in the log.

A snapshot is a set of references to vectors in Ray's object store; the coordinator never sees what is in them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from trainers.errors import RunFailed
from trainers.events import EventType, error_median
from trainers.runtime.crew import Crew
from trainers.spec import TrainSpec

ATTEMPTS = 3
"""Evaluators that may die over one version."""

WAITING = 2
"""Snapshots that may wait for the evaluator: each holds parameters and state once in Ray's store."""


@dataclass(frozen=True)
class Snapshot:
    """One version of the parameters with what belongs to it."""

    parts: list[Any]
    """References to slices."""
    buffers: list[Any]
    """References to batch-norm buffers, one a worker."""
    position: dict[str, Any]
    """A `Position` but for what the shards applied, which stands in the parts."""
    last: bool = False
    passing: bool = False
    """Whether it was taken between two epochs, to be looked at and not kept."""

    @property
    def is_between(self) -> bool:
        """Whether the epoch is still under way."""
        return self.passing or bool(self.position.get("step"))


@dataclass(frozen=True)
class Measured:
    """What came of the last snapshot."""

    loss: float
    accuracy: float
    error_median: float | None
    model_path: str


class Snapshots:
    """The queue in front of the evaluator."""

    def __init__(
        self, crew: Crew, spec: TrainSpec, run_dir: Path, tell: Callable[[EventType, dict[str, Any]], None]
    ) -> None:
        self.crew = crew
        self.spec = spec
        self.run_dir = run_dir
        self.tell = tell
        self.queue: asyncio.Queue[Snapshot] = asyncio.Queue(maxsize=WAITING)
        self.last: asyncio.Future[Snapshot] = asyncio.get_event_loop().create_future()
        self.ready: Any = None  # the evaluator's `prepare`
        self.busy = False
        self.accuracies: list[tuple[int, float]] = []  # epoch and accuracy at the ends of epochs, and at the very end

    async def put(self, snapshot: Snapshot) -> None:
        """Have it evaluated and kept; waits while too many are in front of it. One that is only passing is dropped
        while the evaluator is busy."""
        if snapshot.last:
            self.last.set_result(snapshot)
        elif not (snapshot.passing and self.busy):
            await self.queue.put(snapshot)

    async def close(self) -> None:
        """Forget what is queued, so that nobody goes on waiting for room."""
        while not self.queue.empty():
            self.queue.get_nowait()
            await asyncio.sleep(0)  # whoever waits comes in now, and is forgotten too

    def due(self, epoch: int) -> bool:
        """Whether something is to be done with the version at the end of an epoch (1 for the first)."""
        return self._evaluates(epoch) or self._keeps(epoch)

    async def follow(self) -> None:
        """Work through the queue until cancelled; only an error ends it by itself."""
        if self.spec.evaluate.every_epochs or self.spec.evaluate.every_s or self.spec.checkpoint.every_epochs:
            await self._evaluator()  # while the workers train, so that it is there when the first epoch ends
        while True:
            await self._work(await self.queue.get())

    async def finish(self, whole: bool) -> Measured:
        """Whatever is still queued, then the last version: evaluated, kept, and left as the finished model."""
        snapshot = await self.last
        while not self.queue.empty():
            await self._work(self.queue.get_nowait())
        loss, accuracy = await self._evaluate(snapshot)
        if self.spec.checkpoint.every_epochs or not whole:
            await self._keep(snapshot)
        path = str(self.run_dir / "model.safetensors")
        await self._ask("export", path, snapshot.parts, snapshot.buffers)
        return Measured(loss, accuracy, error_median(self.accuracies), path)

    async def _work(self, snapshot: Snapshot) -> None:
        self.busy = True
        epoch = snapshot.position["epoch"]
        try:
            if snapshot.is_between or self._evaluates(epoch):
                await self._evaluate(snapshot)
            if not snapshot.is_between and self._keeps(epoch):
                await self._keep(snapshot)
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, ray.exceptions.RayError):
                raise
            told = f"the version after epoch {epoch} was lost with a process that held it, before it was looked at"
            self.tell("log", {"level": "warning", "message": told})
        self.busy = False

    async def _evaluate(self, snapshot: Snapshot) -> tuple[float, float]:
        loss, accuracy, seconds = await self._ask("evaluate", snapshot.parts, snapshot.buffers)
        if snapshot.last or not snapshot.is_between:
            self.accuracies.append((snapshot.position["epoch"], accuracy))
        self.tell("evaluation", {
            "epoch": snapshot.position["epoch"],
            "examples": snapshot.position["examples"],
            "test_loss": loss,
            "test_accuracy": accuracy,
            "test_error_median": error_median(self.accuracies),
            "seconds": seconds,
        })  # fmt: skip
        return loss, accuracy

    async def _keep(self, snapshot: Snapshot) -> None:
        folder = str(self.run_dir / "checkpoints" / f"{snapshot.position['examples']:012d}")
        await self._ask(
            "save", folder, self.spec.checkpoint.keep_last, snapshot.parts, snapshot.buffers, snapshot.position
        )
        where = {"path": folder, "epoch": snapshot.position["epoch"], "examples": snapshot.position["examples"]}
        self.tell("checkpoint", where)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Of the evaluator, or of another one where it dies.

        Raises:
            RunFailed: They all did.
        """
        for _ in range(ATTEMPTS):
            try:
                evaluator = await self._evaluator()
                return await getattr(evaluator, method).remote(*arguments)
            except ray.exceptions.RayActorError:
                self.tell("fault", {"actor": f"{self.crew.job_id}/evaluator", "why": "died"})
                self.crew.evaluator = self.ready = None
        raise RunFailed(f"the evaluator died {ATTEMPTS} times over one version; is there memory enough?")

    async def _evaluator(self) -> Any:
        evaluator = self.crew.hire_evaluator()
        if self.ready is None:
            self.ready = evaluator.prepare.remote()
        await self.ready
        return evaluator

    def _evaluates(self, epoch: int) -> bool:
        every = self.spec.evaluate.every_epochs
        return bool(every) and epoch % every == 0

    def _keeps(self, epoch: int) -> bool:
        every = self.spec.checkpoint.every_epochs
        return bool(every) and epoch % every == 0
