"""Snapshots on their way from the training to the evaluator, which measures them and writes checkpoints.

A snapshot is a set of references to vectors in Ray's object store; the coordinator never sees what is in them.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from trainers.errors import DiskFull, RunFailed
from trainers.events import BestModel, EvaluatedSet, error_median, is_judged, metrics_of
from trainers.optim.ema import RAW
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.ending import cause_of
from trainers.runtime.control.judges.improvement import Improvement
from trainers.runtime.control.run_log import RunLog
from trainers.runtime.gone import GONE
from trainers.runtime.nodes import died_with
from trainers.spec import TrainSpec
from trainers.training.messages import RunLayout
from trainers.training.position import Position

ATTEMPTS = 3
"""Evaluators that may die over one version, not counting those whose node did."""

BEST = "best.safetensors"
"""The best model, in the run's folder."""

WAITING = 2
"""Snapshots that may wait for the evaluator: each holds parameters and state once in Ray's store."""


@dataclass(frozen=True)
class Snapshot:
    """One version of the parameters with what belongs to it."""

    parts: list[Any]
    """References to slices."""
    buffers: list[Any]
    """References to the buffers of virtual ranks, one a worker."""
    position: Position
    """Without what the shards applied, which stands in the parts."""
    is_last: bool = False
    is_passing: bool = False
    """Whether it was taken between two epochs, to be evaluated and not kept."""

    @property
    def is_between(self) -> bool:
        """Whether the epoch is still under way."""
        return self.is_passing or bool(self.position.step)


@dataclass(frozen=True)
class Measured:
    """What the evaluator made of the last snapshot."""

    metrics: dict[str, float]
    """The task's metrics on the test set, by name; none where it was not evaluated."""
    error_median: float | None
    model_path: str
    best: BestModel | None = None
    validation: dict[str, float] = field(default_factory=dict)
    """Likewise on the validation set, where there is one."""


class Snapshots:
    """The queue in front of the evaluator."""

    def __init__(
        self, pool: ActorPool, spec: TrainSpec, run_dir: Path, log: RunLog, on_plateau: Callable[[str], None]
    ) -> None:
        """on_plateau: Is told why the run should stop early."""
        self.pool = pool
        self.on_plateau = on_plateau
        self.spec = spec
        self.run_dir = run_dir
        self.log = log
        self.queue: asyncio.Queue[Snapshot] = asyncio.Queue(maxsize=WAITING)
        self.ready: Any = None  # the evaluator's `prepare`
        self.is_busy = False
        self.under_way: asyncio.Future[None] | None = None  # the work on the last snapshot that was taken up
        self.layout: RunLayout  # from `begin` on
        self.accuracies: list[tuple[int, float]] = []  # epoch and accuracy at the ends of epochs, and at the very end
        keep, stop = spec.checkpoint.keep_best, spec.early_stop
        self.best_by = None if keep is None else Improvement("checkpoint.keep_best", keep)
        self.stops_by = None if stop is None else Improvement("early_stop", stop, stop.min_delta)
        self.best: BestModel | None = None

    def begin(self, layout: RunLayout) -> None:
        """Workers are ready, and have said what the run is about. What the log tells of the training before is what
        they must be better than."""
        self.layout = layout
        for found in self.log.evaluations_until(layout.position.examples):
            if is_judged(found) and self._judge(found):
                self._note_best(found)

    def restore(self, evaluations: list[dict[str, Any]]) -> None:
        """Take over what an earlier coordinator has measured since the run began."""
        for found in filter(is_judged, evaluations):
            accuracy = metrics_of(found).get("accuracy")
            if accuracy is not None and found["epoch"] == int(found["epoch"]):
                self.accuracies.append((int(found["epoch"]), accuracy))
            if self._judge(found):
                self._note_best(found)
            self._look_for_plateau()

    async def put(self, snapshot: Snapshot) -> None:
        """Have it evaluated and kept; waits while too many are in front of it."""
        await self.queue.put(snapshot)

    async def close(self) -> None:
        """Drop what is queued, so that nobody goes on waiting for room, and what is under way."""
        if self.under_way is not None:
            self.under_way.cancel()
            await asyncio.gather(self.under_way, return_exceptions=True)
        while not self.queue.empty():
            self.queue.get_nowait()
            await asyncio.sleep(0)  # one that waited for room comes in now, and is dropped too

    def is_due(self, position: Position) -> bool:
        """Whether the version there is to be evaluated or kept. The steps of asynchronous runs are not counted here."""
        return self._evaluates(position) or self._keeps(position)

    async def follow(self) -> None:
        """Work through the queue until cancelled; only an error ends it by itself. What is under way then goes on."""
        evaluate = self.spec.evaluate
        if evaluate.every_epochs or evaluate.every_steps or evaluate.every_s or self.spec.checkpoint.every_epochs:
            with suppress(*GONE):  # whoever needs it will ask for another
                await self._evaluator()  # while the workers train, so that it is there when the first epoch ends
        while True:
            self.under_way = asyncio.ensure_future(self._work(await self.queue.get()))
            await asyncio.shield(self.under_way)

    async def finish(self, last: Snapshot, is_complete: bool, is_end: bool = True) -> Measured:
        """Work through what is still queued; then evaluate the last version and leave it as the finished model.

        A run that is not complete gets a checkpoint of it, whatever the spec says. is_end: Whether it shall not go on
        later; only then a test set beside a validation set is evaluated.

        Raises:
            DiskFull: There is no room for the finished model, or for that checkpoint.
        """
        if self.under_way is not None:
            await self.under_way
        while not self.queue.empty():
            await self._work(self.queue.get_nowait())
        await self._ask("hold", last.parts, last.buffers)
        measured = {self._judging: await self._evaluate(last)}
        if self._judging == "validation" and is_end:
            measured["test"] = await self._test(last)
        path = str(self.run_dir / "model.safetensors")
        try:
            if not is_complete:
                await self._keep(last)
            elif self.spec.checkpoint.every_epochs:
                await self._keep_if_there_is_room(last)
            await self._ask("export", path, last.parts, last.buffers)
            if self.spec.ema is not None:
                await self._ask("export", str(self.run_dir / RAW), last.parts, last.buffers, True)
        except DiskFull as error:
            raise DiskFull(f"{cause_of(error)}; {self._what_there_is()}; make room before the next attempt") from error
        median = error_median(self.accuracies) if self._judging == "test" else None
        return Measured(measured.get("test", {}), median, path, self.best, measured.get("validation", {}))

    async def _work(self, snapshot: Snapshot) -> None:
        self.is_busy = True
        position = snapshot.position
        try:
            if snapshot.is_between or self._evaluates(position):
                await self._evaluate(snapshot)
            if not snapshot.is_between and self._keeps(position):
                await self._keep_if_there_is_room(snapshot)
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, ray.exceptions.RayError):
                raise
            which = f"the version after epoch {position.epoch}"
            lost = f"{which} was lost with a process that held it, before it was looked at"
            self.log.line("warning", lost)
        self.is_busy = False

    async def _evaluate(self, snapshot: Snapshot) -> dict[str, float]:
        metrics, seconds = await self._measured(snapshot, self._judging)
        if "accuracy" in metrics and (snapshot.is_last or not snapshot.is_between):
            self.accuracies.append((snapshot.position.epoch, metrics["accuracy"]))
        found = self._told(snapshot, metrics, seconds, self._judging)
        if self._judge(found):
            await self._keep_best(snapshot, found)
        self.log.write("evaluation", found)
        if not snapshot.is_last:
            self._look_for_plateau()
        return metrics

    async def _test(self, last: Snapshot) -> dict[str, float]:
        """Evaluate the test set, which nothing was judged by."""
        metrics, seconds = await self._measured(last, "test")
        self.log.write("evaluation", self._told(last, metrics, seconds, "test"))
        return metrics

    async def _measured(self, snapshot: Snapshot, which: EvaluatedSet) -> tuple[dict[str, float], float]:
        measured: tuple[dict[str, float], float]
        measured = await self._ask("evaluate", snapshot.parts, snapshot.buffers, which)
        return measured

    def _told(self, snapshot: Snapshot, metrics: dict[str, float], seconds: float, which: EvaluatedSet) -> Any:
        """The data of an `evaluation`."""
        has_median = "accuracy" in metrics and which == self._judging
        return {
            **self._place(snapshot),
            **({"set": which} if self.layout.has_validation else {}),
            **{f"{which}_{name}": value for name, value in metrics.items()},
            **({f"{which}_error_median": error_median(self.accuracies)} if has_median else {}),
            "seconds": seconds, "headline": self.layout.headline, "higher_is_better": self.layout.higher_is_better,
        }  # fmt: skip

    @property
    def _judging(self) -> EvaluatedSet:
        """The set that is evaluated while it trains."""
        return "validation" if self.layout.has_validation else "test"

    async def _keep_best(self, snapshot: Snapshot, found: dict[str, Any]) -> None:
        """Write the best model so far over the one before it; before the log tells its evaluation, so that the file is
        there whenever the log says so."""
        try:
            await self._ask("export", str(self.run_dir / BEST), snapshot.parts, snapshot.buffers)
            self._note_best(found)
        except DiskFull as error:
            self.log.line("warning", f"{cause_of(error)}; the run goes on, and the best model before this one is kept")

    def _judge(self, found: dict[str, Any]) -> bool:
        """Take note of an evaluation. Whether it is the best so far, and the best is to be kept."""
        if self.stops_by is not None:
            self.stops_by.add(found)
        return self.best_by is not None and self.best_by.add(found)

    def _note_best(self, found: dict[str, Any]) -> None:
        assert self.best_by is not None
        metric, path = self.best_by.metric, str(self.run_dir / BEST)
        place = {"epoch": found["epoch"], "examples": found["examples"]}
        self.best = BestModel(metric=metric, value=metrics_of(found)[metric], **place, model_path=path)

    def _look_for_plateau(self) -> None:
        stop, by = self.spec.early_stop, self.stops_by
        if stop is None or by is None or by.since < stop.patience:
            return
        delta = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
        seen = "evaluation" if stop.patience == 1 else f"{stop.patience} evaluations"
        best = math.nan if by.best is None else by.best
        message = f"{by.metric} has not improved{delta} on {best:.4g} in the last {seen}"
        self.on_plateau(message)

    def _place(self, snapshot: Snapshot) -> dict[str, int | float]:
        """Where in the training a version lies, as events tell it."""
        position, layout = snapshot.position, self.layout
        epoch: float = position.epoch  # of an asynchronous run workers may be a little further when one is over
        if snapshot.is_between or (snapshot.is_last and position.examples != position.epoch * layout.num_examples):
            epoch = position.examples / layout.num_examples
        place = {"epoch": epoch, "examples": position.examples}
        if not self.spec.algorithm.traits.is_synchronous or self.spec.scales_batch:
            return place
        return place | {"step": position.epoch * layout.steps + position.step}

    async def _keep_if_there_is_room(self, snapshot: Snapshot) -> None:
        """The run goes on without this checkpoint: the disk may be full for a moment only."""
        try:
            await self._keep(snapshot)
        except DiskFull as error:
            self.log.line("warning", f"{cause_of(error)}; the run goes on, and {self._what_there_is()}")

    def _what_there_is(self) -> str:
        written = (self.run_dir / "checkpoints").glob("[0-9]*")
        newest = max(map(str, written), default=self.spec.checkpoint.resume)
        return "there is no checkpoint" if newest is None else f"the checkpoint {newest} is whole"

    async def _keep(self, snapshot: Snapshot) -> None:
        folder = str(self.run_dir / "checkpoints" / f"{snapshot.position.examples:012d}")
        await self._ask(
            "save", folder, self.spec.checkpoint.keep_last, snapshot.parts, snapshot.buffers, snapshot.position,
            self.layout.products,
        )  # fmt: skip
        where = {"path": folder, "epoch": snapshot.position.epoch, "examples": snapshot.position.examples}
        self.log.write("checkpoint", where)

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Ask the evaluator, and if it dies another one.

        Raises:
            RunFailed: They all died, and not because their nodes did.
        """
        causes: list[str] = []
        while len(causes) < ATTEMPTS:
            try:
                evaluator = await self._evaluator()
                return await getattr(evaluator, method).remote(*arguments)
            except GONE:
                node, why = self.pool.forget_evaluator()
                self.log.write("fault", {"actor": f"{self.pool.job_id}/evaluator", "why": why})
                self.ready = None
                if not await died_with(node):
                    causes.append(why)
        remedy = "; is there memory enough?" if "died" in causes else ""
        why = "; ".join(dict.fromkeys(causes))
        raise RunFailed(f"the evaluator was lost {ATTEMPTS} times over one version: it {why}{remedy}")

    async def _evaluator(self) -> Any:
        evaluator = self.pool.start_evaluator()
        if self.ready is None:
            self.ready = evaluator.prepare.remote()
        await self.ready
        return evaluator

    def _evaluates(self, position: Position) -> bool:
        spec, epoch = self.spec, position.epoch
        if not spec.algorithm.traits.is_synchronous:
            return bool(spec.evaluate.every_epochs) and epoch % spec.evaluate.every_epochs == 0
        return spec.evaluate.is_due(epoch, position.step, self.layout.steps)

    def _keeps(self, position: Position) -> bool:
        every = self.spec.checkpoint.every_epochs
        return position.step == 0 and bool(every) and position.epoch % every == 0
