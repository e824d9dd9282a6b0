"""The coordinator's account of a run: adds up what the workers tell, in whatever order it arrives."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainers.events import Metrics
from trainers.runtime.messages import Tally


@dataclass
class Account:
    """Sums over all workers, since the start of the run and since the last event."""

    num_examples: int
    """Training examples an epoch."""
    examples: int = 0
    """In the newest version, since the beginning, with those before a resume."""
    first_s: float | None = None
    """When the first step was reported, on the monotonic clock."""
    last_s: float = 0.0
    first_examples: int = 0
    news: list[Tally] = field(default_factory=list)
    news_since_s: float = field(default_factory=time.monotonic)
    reached: dict[int, int] = field(default_factory=dict)
    """Examples in the newest version, by worker; of a synchronous run."""
    staleness: Counter[int] = field(default_factory=Counter)
    updates: int = 0
    """Of the parameters so far, as far as the workers tell."""
    dropped: int = 0
    learning_rate: float = 0.0
    """Of the newest update that was told."""
    group_staleness: list[Counter[int]] = field(default_factory=list)
    by_epoch: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, tally: Tally) -> None:
        """Count a worker's report."""
        self.last_s = time.monotonic()
        if tally.number in self.reached:
            self.reached[tally.number] = max(self.reached[tally.number], tally.reached)
            self.examples = max(self.reached.values())
        if self.first_s is None:
            self.first_s, self.first_examples = self.last_s, self.examples
        for epoch, (loss, examples) in tally.by_epoch.items():
            old_loss, old_examples = self.by_epoch.get(epoch, (0.0, 0))
            self.by_epoch[epoch] = (old_loss + loss, old_examples + examples)
        self.staleness.update(tally.staleness)
        if tally.updates >= self.updates:
            self.learning_rate = tally.learning_rate or self.learning_rate
        self.updates = max(self.updates, tally.updates)
        self.dropped += tally.dropped
        self.group_staleness = self.group_staleness or [Counter() for _ in tally.group_staleness]
        for counts, more in zip(self.group_staleness, tally.group_staleness, strict=False):
            counts.update(more)
        self.news.append(tally)

    def metrics(self) -> Metrics | None:
        """What is new since the last call; None where nothing is."""
        news, since = [tally for tally in self.news if tally.steps], self.news_since_s
        if not news:
            return None
        self.news, self.news_since_s = [], time.monotonic()
        examples = sum(tally.examples for tally in news)
        return Metrics(
            step=self.updates,
            epoch=self.examples / self.num_examples,
            examples=self.examples,
            examples_per_s=examples / max(self.news_since_s - since, 1e-9),
            loss=sum(tally.loss for tally in news) / max(examples, 1),
            learning_rate=news[-1].learning_rate,
            wait_data_s=sum(tally.wait_data_s for tally in news),
            wait_communication_s=sum(tally.wait_communication_s for tally in news),
            compute_s=sum(tally.compute_s for tally in news),
            sent_bytes=sum(tally.sent_bytes for tally in news),
            received_bytes=sum(tally.received_bytes for tally in news),
            pushed_bytes=sum(tally.pushed_bytes for tally in news),
            fetched_bytes=sum(tally.fetched_bytes for tally in news),
            fetches=sum(tally.fetches for tally in news),
            wait_fetch_s=sum(tally.wait_fetch_s for tally in news),
            pushes=sum(tally.pushes for tally in news),
            wait_push_s=sum(tally.wait_push_s for tally in news),
            shuffled_bytes=sum(tally.shuffled_bytes for tally in news),
            crossed_bytes=sum(tally.crossed_bytes for tally in news),
            workers=len({tally.number for tally in news}),
            staleness=dict(sorted(self.staleness.items())),
            dropped=self.dropped,
            group_staleness=[dict(sorted(counts.items())) for counts in self.group_staleness],
            backprop_delays=list(news[-1].delays),
        )

    def begin(self, numbers: Iterable[int], examples: int) -> None:
        """These workers begin a generation of a synchronous run after so many examples."""
        self.reached = dict.fromkeys(numbers, examples)
        self.examples = examples

    def epoch_is_done(self, epoch: int) -> bool:
        """Whether all workers of a synchronous run have told that they have every example of an epoch behind them."""
        return bool(self.reached) and min(self.reached.values()) >= (epoch + 1) * self.num_examples

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
