"""Adds up what one worker does in a generation, and reports it.

A loss that a GPU has yet to compute is read while it computes the step after, and counts from then on. So the worker is
never more than one step ahead of its GPU. It waits for the step that it has just begun only for the first report of a
generation and where an epoch or the run ends: with every report that would leave the GPU without work until the next
minibatch is there.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.algorithms.base import StepReport
from trainers.collectives.protocol import Collectives
from trainers.data.batches import Skipped
from trainers.errors import LossNotFinite
from trainers.metrics import StepMetrics
from trainers.parameter_server.protocol import ParameterStore
from trainers.training.device import peak_bytes
from trainers.training.messages import GenerationStart, WorkerReport


@dataclass(frozen=True)
class UnreadLoss:
    """Of one step, on its way from the GPU."""

    step: int
    epoch: int
    learning_rate: float
    weight: float
    on_host: Tensor
    """In pinned memory; valid after `arrived`."""
    arrived: torch.cuda.Event

    def read(self) -> float:
        """Wait for it, asleep."""
        self.arrived.synchronize()
        return self.on_host.item()


class Reporter:
    """Of one worker, used by its training thread."""

    def __init__(self, begin: GenerationStart, send: Callable[[WorkerReport], None], every_s: float) -> None:
        self.begin = begin
        self.send = send
        self.every_s = every_s
        self.collectives: Collectives | None = None
        self.store: ParameterStore | None = None
        self.connections: list[Collectives | ParameterStore] = []
        self.metrics = StepMetrics()  # since the last report
        self.since_s = time.perf_counter()
        self.steps = 0  # of the generation
        self.learning_rate = 0.0
        self.delays: tuple[int, ...] = ()
        self.skipped: list[Skipped] = []  # since the last report
        self.has_told_peak = False
        self.unread: UnreadLoss | None = None
        self.staleness: Counter[int] = Counter()  # as of the last report
        self.group_staleness: list[Counter[int]] = []  # likewise

    def connect(self, collectives: Collectives | None, store: ParameterStore | None) -> None:
        """What these count is reported too."""
        self.collectives, self.store = collectives, store
        self.connections = [each for each in (collectives, store) if each is not None]

    def restart(self) -> None:
        """The first step begins: what came before it is not reported."""
        self.take_wait_s()
        self.metrics, self.since_s = StepMetrics(), time.perf_counter()

    def take_wait_s(self) -> float:
        """Seconds that this thread waited for other workers and for shards since the last call."""
        waited = 0.0
        for connection in self.connections:
            waited += connection.waited_s
            connection.waited_s = 0.0
        return waited

    def count_wait(self) -> float:
        """Count the seconds that this thread waited for others since the last call, and return them."""
        waited = self.take_wait_s()
        self.metrics.wait_communication_s += waited
        return waited

    def count_data(self, seconds: float) -> None:
        """A step's data were there after so long. While examples move between workers, waiting for data is waiting for
        workers: that counts as communication."""
        self.metrics.count(wait_data_s=max(0.0, seconds - self.count_wait()))

    def count_step(self, epoch: int, report: StepReport, seconds: float) -> None:
        """Count one step, which took so long once its data were there.

        Raises:
            LossNotFinite: It diverges; on a GPU, it did in the step before.
        """
        waited, noise = self.take_wait_s(), report.noise
        self.steps += 1
        self.metrics.count(
            steps=1, examples=report.examples, dropped=report.dropped,
            wait_communication_s=waited, compute_s=max(0.0, seconds - waited),
            norm=sum(report.norms), norms=len(report.norms), apart_steps=int(report.is_apart),
            signal=noise.squared_norm if noise else 0.0, noise=noise.trace if noise else 0.0, noises=int(bool(noise)),
        )  # fmt: skip
        self.metrics.by_epoch.setdefault(epoch, (0.0, 0.0))
        self.learning_rate, self.delays = report.learning_rate, report.delays
        loss, weight = report.total.loss, report.total.weight
        if isinstance(loss, Tensor):
            following = _on_its_way(self.steps, epoch, report.learning_rate, weight, loss)
            self._read_loss()
            self.unread = following
        else:
            self._count_loss(self.steps, epoch, report.learning_rate, weight, loss)

    def _read_loss(self) -> None:
        """Of the last step whose loss has not been read, if there is one."""
        unread, self.unread = self.unread, None
        if unread is not None:
            self._count_loss(unread.step, unread.epoch, unread.learning_rate, unread.weight, unread.read())

    def _count_loss(self, step: int, epoch: int, learning_rate: float, weight: float, loss: float) -> None:
        self.metrics.count(loss=loss, weight=weight)
        before, weighed = self.metrics.by_epoch.get(epoch, (0.0, 0.0))
        self.metrics.by_epoch[epoch] = before + loss, weighed + weight
        _check(loss, step, epoch, learning_rate)

    @property
    def is_due(self) -> bool:
        """After the first step of all, after the first of an epoch, and every so many seconds, once there is a loss to
        report."""
        if self.steps == 1:
            return True
        if self.unread is not None and not self.metrics.weight:
            return False
        first_of_epoch = len(self.metrics.by_epoch) > 1
        return first_of_epoch or time.perf_counter() - self.since_s >= self.every_s

    def report(self, updates: int, reached: int, loss_scale: float = 0.0, waits: bool = False) -> None:
        """Report what was done since the last time; the arguments are as in `WorkerReport`.

        waits: For the loss of the last step, if the GPU has yet to compute it. The first report always does.
        """
        if waits or self.steps == 1:
            self._read_loss()
        applied = self.store.applied if self.store is not None else []
        metrics, skipped = self.metrics, self.skipped
        now_s = time.perf_counter()
        seconds, self.since_s = now_s - self.since_s, now_s
        peak = (0, 0)
        if self.steps and not self.has_told_peak:
            peak, self.has_told_peak = peak_bytes(), True
        self.skipped, self.metrics = [], StepMetrics()
        if self.collectives is not None:
            metrics += self.collectives.meter.take()
        if self.store is not None:
            metrics += self.store.meter.take()
            metrics += self._new_staleness(self.store)
        self.send(
            WorkerReport(
                number=self.begin.number,
                generation=self.begin.endpoint.generation,
                metrics=metrics,
                learning_rate=self.learning_rate if metrics.steps else 0.0,
                seconds=seconds,
                delays=self.delays if metrics.steps else (),
                updates=updates,
                reached=reached,
                loss_scale=loss_scale,
                peak_bytes=peak,
                skipped=tuple(skipped),
                applied=tuple((p.identity.epoch, p.identity.first, p.identity.last) for p in applied),
            )
        )

    def _new_staleness(self, store: ParameterStore) -> StepMetrics:
        """Of the pushes that were acknowledged since the last report; by group only where there are several."""
        staleness, before = Counter(store.staleness), self.staleness
        groups = [Counter(counts) for counts in store.group_staleness]
        earlier = self.group_staleness or [Counter[int]() for _ in groups]
        self.staleness, self.group_staleness = staleness, groups
        news = tuple(dict(now - then) for now, then in zip(groups, earlier, strict=True))
        return StepMetrics(staleness=dict(staleness - before), group_staleness=news if len(news) > 1 else ())


def _on_its_way(step: int, epoch: int, learning_rate: float, weight: float, loss: Tensor) -> UnreadLoss:
    """Have the GPU send a loss () once it is computed."""
    on_host = loss.to("cpu", non_blocking=True)
    arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(loss.device))
    return UnreadLoss(step, epoch, learning_rate, weight, on_host, arrived)


def _check(loss: float, step: int, epoch: int, learning_rate: float) -> None:
    if not math.isfinite(loss):
        raise LossNotFinite(
            f"the loss became {loss} in step {step} of epoch {epoch + 1} at learning rate "
            f"{learning_rate:g}; try a smaller optimizer.lr"
        )
