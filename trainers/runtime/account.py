"""The coordinator's account of a run: adds up what the workers tell, in whatever order it arrives."""

import time
from collections import Counter
from dataclasses import dataclass, field

from trainers.events import Metrics
from trainers.runtime.messages import Tally


@dataclass
class Account:
    """Sums over all workers, since the start of the run and since the last event."""

    num_examples: int
    """Training examples an epoch."""
    is_synchronous: bool
    examples: int = 0
    """Since the beginning, with those before a resume."""
    first_s: float | None = None
    """When the first step was reported, on the monotonic clock."""
    last_s: float = 0.0
    first_examples: int = 0
    news: list[Tally] = field(default_factory=list)
    news_since_s: float = field(default_factory=time.monotonic)
    steps_of: Counter[int] = field(default_factory=Counter)
    """Steps of each worker."""
    staleness: Counter[int] = field(default_factory=Counter)
    by_epoch: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, tally: Tally) -> None:
        """Count a worker's report."""
        self.last_s = time.monotonic()
        self.examples += tally.examples
        if self.first_s is None:
            self.first_s, self.first_examples = self.last_s, self.examples
        for epoch, (loss, examples) in tally.by_epoch.items():
            old_loss, old_examples = self.by_epoch.get(epoch, (0.0, 0))
            self.by_epoch[epoch] = (old_loss + loss, old_examples + examples)
        self.steps_of[tally.rank] += tally.steps
        self.staleness.update(tally.staleness)
        self.news.append(tally)

    def metrics(self) -> Metrics | None:
        """What is new since the last call; None where nothing is."""
        news, since = [tally for tally in self.news if tally.steps], self.news_since_s
        if not news:
            return None
        self.news, self.news_since_s = [], time.monotonic()
        examples = sum(tally.examples for tally in news)
        return Metrics(
            step=self.steps,
            epoch=self.examples / self.num_examples,
            examples=self.examples,
            examples_per_s=examples / max(self.news_since_s - since, 1e-9),
            loss=sum(tally.loss for tally in news) / max(examples, 1),
            learning_rate=news[-1].learning_rate,
            wait_data_s=sum(tally.wait_data_s for tally in news),
            wait_communication_s=sum(tally.wait_communication_s for tally in news),
            compute_s=sum(tally.compute_s for tally in news),
            workers=len({tally.rank for tally in news}),
            staleness=dict(sorted(self.staleness.items())),
        )

    @property
    def steps(self) -> int:
        """Updates of the parameters so far: synchronous steps, or pushes that were applied."""
        if self.is_synchronous:
            return max(self.steps_of.values(), default=0)
        return self.staleness.total()

    def epoch_is_done(self, epoch: int) -> bool:
        """Whether every example of an epoch was trained."""
        return self.by_epoch.get(epoch, (0.0, 0))[1] >= self.num_examples

    def train_loss(self, epoch: int) -> float | None:
        """Mean over the examples of an epoch, as far as it got."""
        loss, examples = self.by_epoch.get(epoch, (0.0, 0))
        return loss / examples if examples else None

    @property
    def examples_per_s(self) -> float:
        """From the first report to the last."""
        if self.first_s is None or self.last_s <= self.first_s:
            return 0.0
        return (self.examples - self.first_examples) / (self.last_s - self.first_s)
