"""Adds up what the workers of a run report, in whatever order it arrives."""

import math
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainers.events import Metrics
from trainers.metrics import StepCounters, StepMetrics
from trainers.optim.noise_scale import noise_scale
from trainers.training.messages import WorkerReport

NOISE_KEEPS = 0.99
"""Of a moving average, what a step leaves."""


@dataclass(frozen=True)
class Pace:
    """Of one worker."""

    examples_per_s: float
    counts_until_s: float
    """On the monotonic clock: when a worker should have reported again that is as fast as before."""


@dataclass
class MetricsAggregator:
    """Sums over all workers, since the start of the run and since the last event."""

    num_examples: int
    """Training examples an epoch."""
    run_epochs: float = 0.0
    """How long the run is."""
    examples: int = 0
    """In the newest version, since the beginning, with those before a resume."""
    first_s: float | None = None
    """When the first step was reported, on the monotonic clock."""
    last_s: float = 0.0
    first_examples: int = 0
    total: StepMetrics = field(default_factory=StepMetrics)
    """Since the start of the run."""
    recent: StepMetrics = field(default_factory=StepMetrics)
    """Since the last event, of reports with steps in them."""
    recent_reports: list[WorkerReport] = field(default_factory=list)
    """Which are added up in `recent`."""
    paces: dict[int, "Pace"] = field(default_factory=dict)
    """How fast each worker was when it last reported, those of workers that have left among them."""
    reached: dict[int, int] = field(default_factory=dict)
    """Examples in the newest version, by worker; of a synchronous run."""
    steps_before: int = 0
    """Synchronous steps of the training before this run, where it was resumed."""
    updates: int = 0
    """Of the parameters so far, as far as the workers have reported."""
    signal: float = 0.0
    """Moving average of the squared norm of the true gradient."""
    noise: float = 0.0
    """Of the trace of the gradients' covariance."""
    learning_rate: float = 0.0
    """Of the newest update that was reported."""

    def add(self, report: WorkerReport) -> None:
        """Count a worker's report."""
        self.last_s = time.monotonic()
        if report.number in self.reached:
            self.reached[report.number] = max(self.reached[report.number], report.reached)
            self.examples = max(self.examples, report.reached)
        if self.first_s is None:
            self.first_s, self.first_examples = self.last_s, self.examples
        if report.updates >= self.updates:
            self.learning_rate = report.learning_rate or self.learning_rate
        self.updates = max(self.updates, report.updates)
        self.total.add(report.metrics)
        if report.metrics.steps:
            self.recent.add(report.metrics)
            self.recent_reports.append(report)

    def metrics(self) -> Metrics | None:
        """What is new since the last call; None where nothing is."""
        if not self.recent_reports:
            return None
        recent, reports = self.recent, self.recent_reports
        self.recent, self.recent_reports = StepMetrics(), []
        numbers = {report.number for report in reports}
        return Metrics(
            **recent.model_dump(include=set(StepCounters.model_fields)),
            step=self.steps_before + self.updates,
            epoch=self.examples / self.num_examples,
            run_epochs=self.run_epochs,
            examples=self.examples,
            examples_per_s=self._pace(reports),
            loss=recent.loss / recent.weight if recent.weight else 0.0,
            learning_rate=reports[-1].learning_rate,
            gradient_norm=recent.norm / recent.norms if recent.norms and math.isfinite(recent.norm) else None,
            noise_scale=self._noise_scale(recent),
            loss_scale=reports[-1].loss_scale or None,
            workers=len(self.reached or numbers),
            staleness=dict(sorted(self.total.staleness.items())),
            dropped=self.total.dropped,
            group_staleness=[dict(sorted(counts.items())) for counts in self.total.group_staleness],
            backprop_delays=list(reports[-1].delays),
        )

    def _noise_scale(self, recent: StepMetrics) -> float | None:
        """Each of the two estimates is averaged, then divided (McCandlish et al. 2018, appendix A.1)."""
        if not recent.noises:
            return None
        keeps = NOISE_KEEPS**recent.noises
        self.signal = keeps * self.signal + (1 - keeps) * recent.signal / recent.noises
        self.noise = keeps * self.noise + (1 - keeps) * recent.noise / recent.noises
        return noise_scale(self.signal, self.noise)

    @property
    def mean_noise_scale(self) -> float | None:
        """Over the whole run."""
        return noise_scale(self.total.signal, self.total.noise) if self.total.noises else None

    def _pace(self, reports: list[WorkerReport]) -> float:
        """Examples a second of all workers. Each worker's are divided by the time that they took: by the time between
        two events they would jump by whole reports, up and down."""
        now_s, own = time.monotonic(), defaultdict[int, list[WorkerReport]](list)
        for report in reports:
            own[report.number].append(report)
        for number, mine in own.items():
            seconds = max(sum(report.seconds for report in mine), 1e-9)
            self.paces[number] = Pace(sum(report.metrics.examples for report in mine) / seconds, now_s + seconds)
        trains = [pace for number, pace in self.paces.items() if number in self.reached or not self.reached]
        return sum(pace.examples_per_s for pace in trains if pace.counts_until_s >= now_s)

    def begin(self, numbers: Iterable[int], examples: int) -> None:
        """These workers begin a generation of a synchronous run after so many examples."""
        self.reached = dict.fromkeys(numbers, examples)
        self.examples = examples

    def epoch_is_done(self, epoch: int) -> bool:
        """Whether all workers of a synchronous run have reported that every example of an epoch is trained."""
        least = (epoch + 1) * self.num_examples  # asked at every report: mostly nobody is there
        return self.examples >= least and bool(self.reached) and min(self.reached.values()) >= least

    def train_loss(self, epoch: int) -> float | None:
        """Mean over an epoch, as far as it got."""
        loss, weight = self.total.by_epoch.get(epoch, (0.0, 0.0))
        return loss / weight if weight else None

    @property
    def examples_per_s(self) -> float:
        """From the first report to the last."""
        if self.first_s is None or self.last_s <= self.first_s:
            return 0.0
        return (self.examples - self.first_examples) / (self.last_s - self.first_s)
