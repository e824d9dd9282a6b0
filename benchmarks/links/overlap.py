"""How much of the communication of `sync, fast` the passes hide, as a trace of its steps shows it."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Overlap:
    """Medians over the steps of a trace, in seconds."""

    step_s: float
    in_flight_s: float
    """In which any bucket is on its way."""
    exposed_s: float
    """In which the worker stands still for one."""

    @property
    def hidden(self) -> float:
        """The share of communication during which the worker computes."""
        return 1 - self.exposed_s / self.in_flight_s


def overlap_of(events: Sequence[dict[str, Any]]) -> Overlap:
    """events: of a trace, times in microseconds; the steps are those of the thread that has spans `step`, and buckets
    travel on others. A step lasts until the next one begins."""
    spans = [(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["tid"]) for e in events if "dur" in e]
    thread = next(tid for name, _, _, tid in spans if name == "step")
    steps = sorted((begin, end) for name, begin, end, _ in spans if name == "step")
    edges = [begin for begin, _ in steps] + [steps[-1][1]]
    travels = [(begin, end) for name, begin, end, tid in spans if name == "sums" and tid != thread]
    stands = [(begin, end) for name, begin, end, tid in spans if name == "sums" and tid == thread]
    found = [
        (stop - start, covered(travels, start, stop), covered(stands, start, stop))
        for start, stop in itertools.pairwise(edges)
    ]
    return Overlap(*(statistics.median(values) for values in zip(*found, strict=True)))


def covered(spans: Iterable[tuple[float, float]], start: float, stop: float) -> float:
    """Seconds between two moments that lie in any of these spans."""
    found, until = 0.0, start
    for begin, end in sorted(spans):
        found += max(0.0, min(end, stop) - max(begin, until))
        until = min(max(until, end), stop)
    return found
