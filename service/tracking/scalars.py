"""The metrics of an event log as named scalars, for all trackers."""

from collections import Counter

from trainers import Event, latency_figures, metrics_of, set_of

TAGS = {
    "step": {
        "loss": "train/loss",
        "learning_rate": "train/learning_rate",
        "gradient_norm": "train/gradient_norm",
        "noise_scale": "train/noise_scale",
        "examples_per_s": "speed/examples_per_s",
        "workers": "speed/workers",
        "wait_data_s": "time/data_s",
        "wait_communication_s": "time/communication_s",
        "compute_s": "time/computation_s",
        "epoch": "progress/epoch",
        "step": "progress/updates",
    },
    "evaluation": {},  # whatever the task measures
    "epoch": {"train_loss": "train/epoch_loss"},
}
"""Type of event -> metric in the event -> name of the scalar."""


class Scalars:
    """Feed it every event of a log once, in order."""

    def __init__(self) -> None:
        self.stale: Counter[int] = Counter()

    def points(self, event: Event) -> dict[str, float] | None:
        """Name -> value, at the event's `examples`; none if the event has no metrics."""
        tags = TAGS.get(event.type)
        if tags is None:
            return None
        found = {tag: float(event.data[name]) for name, tag in tags.items() if event.data.get(name) is not None}
        if event.type == "evaluation":
            found |= {f"{set_of(event.data)}/{name}": value for name, value in metrics_of(event.data).items()}
        if event.type == "step":
            found |= self._staleness(event.data.get("staleness", {}))
            found |= {f"latency/{name}": seconds for name, seconds in latency_figures(event.data).items()}
        return found

    def _staleness(self, counts: dict[str, int]) -> dict[str, float]:
        """Its mean since the last report; the log counts since the start of the run."""
        before, self.stale = self.stale, Counter({int(updates): number for updates, number in counts.items()})
        news = self.stale - before  # a new coordinator counts from 0; then what it has more
        return {"speed/staleness": sum(u * n for u, n in news.items()) / news.total()} if news else {}
