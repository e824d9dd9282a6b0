"""How much of the communication of `sync, fast` lies behind the backward pass, as a trace of its steps shows it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Overlap:
    """Medians over the steps of a trace, in seconds."""

    step_s: float
    in_flight_s: float
    """From when the first bucket leaves until the last one is there."""
    exposed_s: float
    """Of that, what comes after the backward pass."""

    @property
    def hidden(self) -> float:
        """The share of communication during which the worker computes."""
        return 1 - self.exposed_s / self.in_flight_s


def overlap_of(events: Sequence[dict[str, Any]]) -> Overlap:
    """events: of a trace, times in microseconds; the steps are those of the thread that has spans `step`."""
    spans = [(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["tid"]) for e in events if "dur" in e]
    thread = next(tid for name, _, _, tid in spans if name == "step")
    own = [(name, begin, end) for name, begin, end, tid in spans if tid == thread]
    found = []
    for _, start, stop in (one for one in own if one[0] == "step"):
        inside = [(name, begin, end) for name, begin, end in own if start <= begin and end <= stop]
        sums = [(begin, end) for name, begin, end in inside if name == "sums"]
        computed = max(end for name, _, end in inside if name == "backward")
        arrived = max(end for _, end in sums)
        found.append((stop - start, arrived - min(begin for begin, _ in sums), arrived - computed))
    return Overlap(*(statistics.median(values) for values in zip(*found, strict=True)))
