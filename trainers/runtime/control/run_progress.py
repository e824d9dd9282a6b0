"""How far a run is: what was trained, which epochs are over, and which minibatches are leased to which group."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto

from trainers.data.order import Order
from trainers.data.skipped import SkippedExamples
from trainers.elastic.cut_off import CutOff
from trainers.elastic.lease_table import Audit, Lease, LeaseDispatcher, LeaseTable
from trainers.elastic.paces import Paces
from trainers.errors import Diverged
from trainers.events import Result, State
from trainers.latency import Latency
from trainers.parameter_server.groups import parts
from trainers.runtime.control.judges.divergence import REMEDY, DivergenceWatch, stretch_of
from trainers.runtime.control.judges.losses import LossWatch
from trainers.runtime.control.run_log import RunLog
from trainers.runtime.control.snapshots import Measured
from trainers.runtime.messages import Prepared
from trainers.runtime.metrics_aggregator import MetricsAggregator
from trainers.spec import TrainSpec
from trainers.training.messages import RunLayout, WorkerReport
from trainers.training.position import Position

Rows = tuple[tuple[tuple[int, ...], ...], ...]
"""What each shard has applied: epoch, group, first and last minibatch."""

UNSENT = "what it had changed with up to {} examples was not sent, and they are trained again"

LEASES_AT_ONCE = 2
LEASE_MINIBATCHES = 64
"""The longest lease: asking costs about a millisecond, a minibatch of a small model two."""


class RunPhase(Enum):
    """How far a run is. Its log has the `State`, which says less."""

    NEW = auto()
    LOOKING = auto()
    """For the actors that survived the coordinator before this one; then they are adopted, or removed."""
    STARTING = auto()
    """Workers and shards are getting ready. A stop interrupts that."""
    OPENING = auto()
    """The shards begin to serve."""
    TRAINING = auto()
    COLLECTING = auto()
    """Nothing is left to train; the last version is being collected."""
    FINISHING = auto()
    """The last version is evaluated and kept."""
    ENDED = auto()


class RunProgress:
    """Counts what workers report, leases minibatches to those of an asynchronous run, and logs steps and epochs."""

    def __init__(self, spec: TrainSpec, prepared: Prepared, group_sizes: Sequence[int], log: RunLog) -> None:
        """prepared: Where the run begins. group_sizes: How many workers each group has."""
        self.spec = spec
        self.prepared = prepared
        self.log = log
        self.start = prepared.position
        self.metrics = MetricsAggregator(prepared.num_examples)
        self.metrics.examples = self.start.examples
        self.epochs_logged = self.start.epoch
        self.skipped = SkippedExamples(spec.data.max_skipped, prepared.num_examples, log.skipped)
        self.epoch_logged = asyncio.Event()
        self.reported = asyncio.Event()
        self.order = Order(prepared.num_examples, spec.batch.per_worker, spec.workers.num_virtual, spec.seed)
        self.extent = spec.extent(prepared.num_examples)
        self.metrics.run_epochs = self.extent.examples / prepared.num_examples
        self.dispatcher: LeaseDispatcher | None = None  # of an asynchronous run
        traits = spec.algorithm.traits
        self.paces = Paces(traits.num_push) if traits.follows_paces else None
        self.cut_off, self.unsent = CutOff(), 0
        self.metrics.steps_before = self.first_step if spec.algorithm.traits.is_synchronous else 0
        done = already_applied(prepared, self.order, spec)
        if not spec.algorithm.traits.is_synchronous:
            longest, multiple = self._lease_sizes(group_sizes)
            table = LeaseTable(self.order, self.extent.epochs, longest, done, multiple, rest=self.extent.minibatches)
            self.dispatcher = LeaseDispatcher(table)
            self.metrics.examples = self.dispatcher.trained
        stretch = stretch_of(prepared.num_examples, self.extent.examples)
        self.divergence = DivergenceWatch(prepared.chance_loss, stretch, self.metrics.examples)
        self.losses = LossWatch(stretch, prepared.chance_loss > 0)

    def restore_losses(self, losses: Sequence[tuple[int, float]]) -> None:
        """What was reported before another coordinator took over: the examples trained by then, and the loss."""
        self.losses.restore(losses)
        if losses:
            self.divergence.begins(losses[0][1])

    # -- what workers did -----------------------------------------------------------------------------------------

    def add(self, report: WorkerReport) -> None:
        """Count a worker's report."""
        is_first = self.metrics.first_s is None
        self.metrics.add(report)
        self.reported.set()
        self.skipped.add(report.skipped)
        if self.dispatcher is not None:
            if self.paces is not None:
                self.paces.add(report.number, report.metrics.steps, report.metrics.compute_s)
            self._tell_who_is_back(report)
            for epoch, first, last in report.applied if self.dispatcher.serves(report.number) else ():
                self.dispatcher.applied(report.number, Lease(epoch, first, last))
            self.metrics.examples = self.dispatcher.trained
        if is_first:
            self.log_metrics()  # the very first step is logged at once
        self.log_epochs()

    def lease(self, number: int, dropped: Sequence[Lease], closed: bool) -> list[Lease | None]:
        """Take back the leases whose gradients an asynchronous worker has dropped, and hand it others to train; None
        is the end."""
        assert self.dispatcher is not None
        for lease in dropped:
            self.dispatcher.drop(number, lease)
        traits = self.spec.algorithm.traits
        longest = None if self.paces is None else self.paces.steps_of(number, self.dispatcher.group_of)
        count = 1 if traits.num_backup or traits.outer is not None else LEASES_AT_ONCE
        return [self.dispatcher.lease(number, closed, longest) for _ in range(count)]

    def form_group(self, group: int, numbers: Sequence[int]) -> None:
        """These workers are an asynchronous group from now on. What it had leased before is leased again."""
        if self.dispatcher is not None:
            self.dispatcher.form(group, numbers)

    def begin_generation(self, numbers: Sequence[int], examples: int) -> None:
        """These workers of a synchronous run go on after so many examples."""
        self.metrics.begin(numbers, examples)

    def settle_leases(self, group: int, rows: Rows, members: Sequence[int]) -> None:
        """Count what the shards have applied of a group's leases, whether a dead worker could still report it or not.

        rows: What each shard has applied. members: Those of its workers that are left and have ended whole.
        """
        assert self.dispatcher is not None
        leased = {(lease.epoch, i) for lease in self.dispatcher.open_leases(group) for i in lease.minibatches}
        found = replace(self.prepared, position=replace(self.start, epoch=0, step=0, applied=rows))
        for lease in already_applied(found, self.order, self.spec):
            if (lease.epoch, lease.first) in leased:
                self.dispatcher.applied_by_group(group, lease)
        self.metrics.examples = self.dispatcher.trained
        if self.spec.algorithm.traits.outer is not None and (unsent := self.dispatcher.lost_of(group, members)):
            self.unsent += unsent
            self.log.line("warning", f"group {group} begins anew: {UNSENT.format(unsent)}")

    def _tell_who_is_back(self, report: WorkerReport) -> None:
        """Log that a group was cut off, once."""
        number, apart = report.number, report.metrics.apart_steps
        is_first = self.dispatcher is not None and self.dispatcher.is_first(number)  # who knows of the shards' updates
        if is_first and (steps := self.cut_off.add(number, apart, report.updates)):
            message = f"the group of worker {number} was cut off from the shards, {steps} steps long, and is back"
            self.log.line("info", message)

    def agreed_on(self, updates: int) -> None:
        """The shards of a synchronous run are all at this version now."""
        self.metrics.updates = updates

    # -- where the run stands -------------------------------------------------------------------------------------

    @property
    def leases(self) -> bool:
        """Whether minibatches are leased: whether the run is asynchronous."""
        return self.dispatcher is not None

    @property
    def has_unleased(self) -> bool:
        """Whether there are minibatches that nobody has been given."""
        return self.dispatcher is not None and self.dispatcher.has_more()

    @property
    def examples(self) -> int:
        """Trained since the beginning, with those before a resume."""
        return self.metrics.examples

    @property
    def epochs(self) -> float:
        """Passes over the training set since the beginning, with the fraction of the one under way."""
        return self.metrics.examples / self.metrics.num_examples

    def position(self) -> Position:
        """As far as the workers' reports go; without what the shards applied."""
        if self.dispatcher is not None:
            epochs, trained = self.dispatcher.epochs_done(), self.dispatcher.trained
            return Position(epochs, updates=self.metrics.updates, examples=trained)
        return self.after(self.first_step + self.metrics.updates)

    @property
    def first_step(self) -> int:
        """Synchronous steps that were trained before this run."""
        return self.start.epoch * self.prepared.steps + self.start.step

    def after(self, steps: int) -> Position:
        """The position of a synchronous run after so many steps of the training."""
        epoch, step = divmod(steps, self.prepared.steps)
        within = min(step * self.spec.global_batch, self.metrics.num_examples)
        return Position(epoch, step, steps - self.first_step, epoch * self.metrics.num_examples + within)

    def synchronous_position(self) -> Position:
        """Where the next generation of a synchronous run through shards begins."""
        return replace(self.position(), learning_rate=self.metrics.learning_rate)

    def is_complete(self) -> bool:
        """Whether everything is trained."""
        return self.metrics.examples >= self.extent.examples

    async def wait_until_logged(self, epoch: int) -> None:
        """Wait until the end of an epoch is in the log."""
        while self.epochs_logged < epoch:
            self.epoch_logged.clear()
            await self.epoch_logged.wait()

    async def wait_until_reported(self, updates: int) -> None:
        """Wait until the workers have reported so many updates of this run."""
        while self.metrics.updates < updates:
            self.reported.clear()
            await self.reported.wait()

    def result(self, job_id: str, state: State, measured: Measured) -> Result:
        """What came of the run so far; it does not know of time, workers and shards."""
        return Result(
            job_id=job_id,
            state=state,
            epochs=self.epochs,
            examples=self.metrics.examples,
            test_accuracy=measured.metrics.get("accuracy"),
            test_loss=measured.metrics.get("loss"),
            metrics=measured.metrics,
            validation=measured.validation,
            headline=self.prepared.headline,
            higher_is_better=self.prepared.higher_is_better,
            test_error_median=measured.error_median,
            best=measured.best,
            train_loss=self.metrics.train_loss(max(self.metrics.total.by_epoch, default=0)),
            examples_per_s=self.metrics.examples_per_s,
            noise_scale=self.metrics.mean_noise_scale,
            fetch_latency=Latency.of(self.metrics.total.fetch_latency),
            push_latency=Latency.of(self.metrics.total.push_latency),
            wall_s=0.0,
            algorithm=self.spec.algorithm.name,
            workers=0,
            dropped=self.metrics.total.dropped,
            unsent_examples=self.unsent,
            skipped=self.skipped.examples,
            model_path=measured.model_path,
            message=state.lower(),
            warning=self.divergence.warning,
        )

    # -- what the log says ----------------------------------------------------------------------------------------

    def skip_epochs(self, epochs: int) -> None:
        """An earlier coordinator has logged so many."""
        self.epochs_logged = max(self.epochs_logged, epochs)

    def log_epochs_after(self, furthest: int) -> None:
        """Log the ends of the epochs that were over before this run of workers begins, and are not in the log. A
        checkpoint is taken as soon as the shards have its version, and whoever wrote it may have died before the
        workers reported that.

        furthest: The last epoch that is in the log.
        """
        for epoch in range(furthest, self.start.epoch):
            examples = (epoch + 1) * self.metrics.num_examples
            self.log.write("epoch", {"epoch": epoch + 1, "examples": examples, "train_loss": None})
            self.log.write("epoch_audit", self._audit(epoch))

    def log_metrics(self) -> None:
        """Log what the workers have reported since the last time, if anything."""
        has_loss = self.metrics.recent.weight > 0
        metrics = self.metrics.metrics()
        if metrics is None:
            return
        self.divergence.begins(metrics.loss)
        self.log.write("step", metrics.model_dump(mode="json"))
        if has_loss and (said := self.losses.add(metrics.examples, metrics.loss)) is not None:
            self.log.warning(f"{said}; {REMEDY}", metrics.examples, metrics.epoch)

    def log_epochs(self) -> None:
        """Log the epochs that are over and were not logged yet, each with its audit; look whether the run learns.

        Raises:
            Diverged: It does not, and the spec wants it to fail then.
        """
        while self.epochs_logged < self.extent.epochs and self._epoch_is_done(self.epochs_logged):
            loss = self.metrics.train_loss(self.epochs_logged)
            self.log.write("epoch", {
                "epoch": self.epochs_logged + 1, "examples": self.metrics.examples, "train_loss": loss,
            })  # fmt: skip
            self.log.write("epoch_audit", self._audit(self.epochs_logged))
            self.epochs_logged += 1
            self.epoch_logged.set()
        self._look_at_loss()

    def _look_at_loss(self) -> None:
        watch, total = self.divergence, self.metrics.total
        said = watch.warning is not None
        watch.look(self.metrics.examples, (total.loss, total.weight), self.epochs, self.is_complete())
        if watch.warning is not None and self.spec.on_divergence == "fail":
            raise Diverged(watch.warning)
        if watch.warning is not None and not said:
            self.log.warning(watch.warning, self.metrics.examples, self.epochs)

    def _epoch_is_done(self, epoch: int) -> bool:
        if self.dispatcher is not None:
            return self.dispatcher.epochs_done() > epoch
        return self.metrics.epoch_is_done(epoch)

    def _audit(self, epoch: int) -> dict[str, int]:
        """What became of an epoch's examples. A synchronous step is applied with all its examples or not at all, and
        the version after it begins where it ends: every step is in that version exactly once."""
        audit = Audit(epoch, self.metrics.num_examples, 0, 0)
        if self.dispatcher is not None:
            audit = self.dispatcher.audit(epoch)
        counts = {"trained": audit.trained, "lost": audit.lost, "duplicated": audit.duplicated}
        return {"epoch": epoch + 1, "dropped": self.metrics.total.dropped, **counts}

    def _lease_sizes(self, group_sizes: Sequence[int]) -> tuple[int, int]:
        """The longest lease, and the number of which all are multiples, so that no push is cut short."""
        largest, spec = max(group_sizes), self.spec
        push: int = spec.algorithm.traits.num_push * largest
        longest = 1 if spec.algorithm.traits.num_backup else LEASE_MINIBATCHES
        if spec.algorithm.traits.apart_s:  # a group that is cut off has what it was leased before, and no more
            longest = self.prepared.minibatches
        fair = self.prepared.minibatches // (2 * len(group_sizes))
        return max(1, min(longest * largest, fair) // push) * push, push


def already_applied(p: RunLayout, order: Order, spec: TrainSpec) -> list[Lease]:
    """What was trained before the run begins: whole epochs, steps of the next one, and what every shard has applied."""
    position = p.position
    epoch, step = position.epoch, position.step
    found = [Lease(e, 0, order.minibatches - 1) for e in range(min(epoch, spec.epochs))]
    if step:
        trained = position.first + step * (position.virtual or order.num_virtual)
        found.append(Lease(epoch, 0, min(trained, order.minibatches) - 1))
    held = [parts(slice(*cut), [slice(*span) for span in p.groups]) for cut in p.shards]
    sets = [
        {(row[0], i) for row in rows if row[0] >= epoch and row[1] == group for i in range(row[2], row[3] + 1)}
        for shard, rows in enumerate(position.applied)  # of as many shards as there were then
        for group in held[min(shard, len(held) - 1)]
    ]
    everywhere = set.intersection(*sets) if sets and not spec.algorithm.traits.is_synchronous else set()
    return found + [Lease(e, i, i) for e, i in sorted(everywhere) if e < spec.epochs]
