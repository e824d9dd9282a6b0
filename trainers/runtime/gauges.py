"""What a run tells Prometheus through Ray: counters that are fed with the events of its log.

Ray exports each as `ray_<name>`, a counter as `ray_<name>_total`, on every node's metrics port. The tags are of low
cardinality: a finished job leaves no series of its own behind. What there is of a single job while it lives, the
service exports.
"""

from collections import Counter as Counts
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

from trainers.events import Metrics, State
from trainers.spec import TrainSpec

PARTS = ("data", "communication", "computation")
"""What a worker's time goes into."""

KEEP_S = 5.0
"""Ray forgets a gauge that is not set again for two of its reports, 20 s; a counter it keeps."""

STALENESS = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
"""Bounds of the histogram, in updates; Ray takes no 0."""

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


class Gauges:
    """The metrics of one run. Coordinators of the same algorithm add up."""

    def __init__(self, spec: TrainSpec) -> None:
        self.tags = {"algorithm": spec.algorithm.name}
        self.counters = {name: Counter(name, told, ("algorithm",)) for name, told in COUNTERS.items()}
        self.seconds = Counter("millrace_worker_seconds", "Worker seconds, by what they went into.", (
            "algorithm", "part",
        ))  # fmt: skip
        self.staleness = Histogram("millrace_staleness_updates", "Updates between a push's fetch and its application.",
                                   STALENESS, ("algorithm",))  # fmt: skip
        self.workers = Gauge("millrace_workers", "Workers that train, by node.", ("algorithm", "node"))
        self.before: Metrics | None = None
        self.stale: Counts[int] = Counts()  # as of the last report
        self.places: dict[str, str] = {}  # of the workers that train: name -> node
        self.nodes: set[str] = set()  # that have had any

    def begin(self) -> None:
        """Show every counter at 0: Prometheus sees no increase in a series that begins with 1."""
        for counter in self.counters.values():
            counter._record(0.0, self.tags)  # Ray's own `inc` takes no 0
        for part in PARTS:
            self.seconds._record(0.0, self.tags | {"part": part})

    def add(self, event_type: str, data: Mapping[str, Any]) -> None:
        """Take in one more event."""
        match event_type:
            case "step":
                self._step(Metrics.model_validate(data))
            case "actors":
                self._place({worker["name"]: worker["node_ip"] for worker in data["workers"]})
            case "resize":
                self._count("millrace_resizes", 1)
                stayed = {name: node for name, node in self.places.items() if name not in data["left"]}
                self._place(stayed | data["nodes"])
            case "fault":
                self._count("millrace_faults", 1)
                self._place({name: node for name, node in self.places.items() if name != data["actor"]})
            case "state" if State(data["state"]).is_terminal:
                self._place({})
            case _:
                pass

    def keep(self) -> None:
        """Say again what stays as it is."""
        self._place(self.places)

    def _step(self, now: Metrics) -> None:
        before, self.before = self.before, now
        if before is not None:  # the first report, of one step, may include what an earlier coordinator has counted
            self._count("millrace_examples", now.examples - before.examples)
            self._count("millrace_updates", now.step - before.step)
        self._count("millrace_fetches", now.fetches)
        self._count("millrace_fetch_wait_seconds", now.wait_fetch_s)
        self._count("millrace_pushes", now.pushes)
        self._count("millrace_push_wait_seconds", now.wait_push_s)
        self._count("millrace_sent_bytes", now.sent_bytes)
        for part, seconds in zip(PARTS, (now.wait_data_s, now.wait_communication_s, now.compute_s), strict=True):
            if seconds > 0:
                self.seconds.inc(seconds, self.tags | {"part": part})
        stale = Counts(now.staleness)
        for updates in (stale - self.stale).elements():
            self.staleness.observe(updates, self.tags)
        self.stale = stale

    def _place(self, places: dict[str, str]) -> None:
        """How many workers each node has now; 0 where there were some."""
        self.places = places
        self.nodes |= set(places.values())
        counts = Counts(places.values())
        for node in self.nodes:
            self.workers.set(counts[node], self.tags | {"node": node})

    def _count(self, name: str, amount: float) -> None:
        if amount > 0:
            self.counters[name].inc(amount, self.tags)
