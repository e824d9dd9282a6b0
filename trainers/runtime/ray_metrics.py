"""The metrics of a run that Ray exports to Prometheus: counters that are fed with the events of the run's log.

Ray exports each as `ray_<name>`, a counter as `ray_<name>_total`, on every node's metrics port. The tags are of low
cardinality, so that a finished job leaves no series of its own behind. The figures of a single job, while it runs, are
exported by the service.
"""

from collections import Counter as Counts
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from trainers.events import Metrics, State
from trainers.spec import TrainSpec

PARTS = ("data", "communication", "computation")
"""What a worker spends its time on."""

KEEP_S = 5.0
"""Between two times that the gauges are set. Ray drops a gauge that is not set for two of its reports, 20 s; it keeps
counters."""

STALENESS = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
"""Bounds of the histogram, in updates; Ray does not allow 0."""

COUNTERS = {
    "millrace_examples": "Examples trained.",
    "millrace_updates": "Updates of the parameters: synchronous steps, or pushes.",
    "millrace_fetches": "Fetches of parameters from the shards.",
    "millrace_fetch_wait_seconds": "Worker seconds spent waiting for fetches.",
    "millrace_pushes": "Pushes of gradients to the shards.",
    "millrace_push_wait_seconds": "Worker seconds spent waiting for pushes to be acknowledged.",
    "millrace_sent_bytes": "Bytes of vectors that workers sent to each other and to the shards.",
    "millrace_resizes": "Changes of the number of workers.",
    "millrace_faults": "Workers and shards that were lost.",
}

FIELDS = {
    "millrace_fetches": "fetches",
    "millrace_fetch_wait_seconds": "wait_fetch_s",
    "millrace_pushes": "pushes",
    "millrace_push_wait_seconds": "wait_push_s",
    "millrace_sent_bytes": "sent_bytes",
}
"""The field of a `step` event that each of these counters adds up."""


class RayMetrics:
    """The metrics of one run. Coordinators of the same algorithm add up."""

    def __init__(self, spec: TrainSpec) -> None:
        self.tags = {"algorithm": spec.algorithm.name}
        self.counters = {name: Counter(name, description, ("algorithm",)) for name, description in COUNTERS.items()}
        self.seconds = Counter("millrace_worker_seconds", "Worker seconds, by what they went into.", (
            "algorithm", "part",
        ))  # fmt: skip
        self.staleness = Histogram("millrace_staleness_updates", "Updates between a push's fetch and its application.",
                                   STALENESS, ("algorithm",))  # fmt: skip
        self.workers = Gauge("millrace_workers", "Workers that train, by node.", ("algorithm", "node"))
        self.before: Metrics | None = None
        self.stale: Counts[int] = Counts()  # as of the last report
        self.node_of: dict[str, str] = {}  # by the name of each worker that trains
        self.nodes: set[str] = set()  # all that have had workers

    def begin(self) -> None:
        """Show every counter at 0: Prometheus sees no increase in a series that begins with 1."""
        for counter in self.counters.values():
            counter._record(0.0, self.tags)  # Ray's own `inc` does not allow 0
        for part in PARTS:
            self.seconds._record(0.0, self.tags | {"part": part})

    def add(self, event_type: str, data: Mapping[str, Any]) -> None:
        """Count one more event."""
        match event_type:
            case "step":
                self._step(Metrics.model_validate(data))
            case "actors":
                self._place({worker["name"]: worker["node_ip"] for worker in data["workers"]})
            case "resize":
                self._count("millrace_resizes", 1)
                stayed = {name: node for name, node in self.node_of.items() if name not in data["left"]}
                self._place(stayed | data["nodes"])
            case "fault":
                self._count("millrace_faults", 1)
                self._place({name: node for name, node in self.node_of.items() if name != data["actor"]})
            case "state" if State(data["state"]).is_terminal:
                self._place({})
            case _:
                pass

    def keep(self) -> None:
        """Set the gauges again, though nothing has changed."""
        self._place(self.node_of)

    def _step(self, now: Metrics) -> None:
        before, self.before = self.before, now
        if before is not None:  # the first report, of one step, may include what an earlier coordinator has counted
            self._count("millrace_examples", now.examples - before.examples)
            self._count("millrace_updates", now.step - before.step)
        for name, field in FIELDS.items():
            self._count(name, getattr(now, field))
        for part, seconds in zip(PARTS, (now.wait_data_s, now.wait_communication_s, now.compute_s), strict=True):
            if seconds > 0:
                self.seconds.inc(seconds, self.tags | {"part": part})
        stale = Counts(now.staleness)
        for updates in (stale - self.stale).elements():
            self.staleness.observe(updates, self.tags)
        self.stale = stale

    def _place(self, node_of: dict[str, str]) -> None:
        """Set how many workers each node has now; 0 for a node that had some before."""
        self.node_of = node_of
        self.nodes |= set(node_of.values())
        counts = Counts(node_of.values())
        for node in self.nodes:
            self.workers.set(counts[node], self.tags | {"node": node})

    def _count(self, name: str, amount: float) -> None:
        if amount > 0:
            self.counters[name].inc(amount, self.tags)
