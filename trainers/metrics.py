"""What training counts, from a transport up to the `step` event. Imports no torch.

A new counter is one field of `StepCounters`: whoever counts it adds to it, workers report it, and the event tells it.
"""

from typing import Any, Self

from trainers.documented import Documented
from trainers.latency import LatencyCounts


class StepCounters(Documented):
    """What adds up over steps, transports and workers."""

    wait_data_s: float = 0.0
    """Worker seconds spent waiting for data since the last report."""
    wait_communication_s: float = 0.0
    """Worker seconds spent waiting for other workers or shards since the last report."""
    compute_s: float = 0.0
    """Worker seconds spent computing since the last report."""
    sent_bytes: int = 0
    """Bytes of vectors that workers sent to each other and to the shards since the last report; on shared memory, that
    others read of theirs."""
    received_bytes: int = 0
    """Bytes of vectors that workers received, likewise."""
    pushed_bytes: int = 0
    """Of `sent_bytes`, those that went to the shards."""
    fetched_bytes: int = 0
    """Of `received_bytes`, those that came from the shards."""
    fetches: int = 0
    """Of parameters from the shards, since the last report."""
    wait_fetch_s: float = 0.0
    """Of `wait_communication_s`, that in which workers stood still for fetches."""
    pushes: int = 0
    """Of gradients to the shards, since the last report."""
    wait_push_s: float = 0.0
    """Of `wait_communication_s`, that in which workers stood still for acknowledgements of pushes."""
    fetch_latency: LatencyCounts = {}
    """How many of the fetches took how long, from asking to the last shard's answer, by bucket (`trainers.latency`)."""
    push_latency: LatencyCounts = {}
    """How many of the pushes took how long, from handing over to the last shard's acknowledgement, likewise. A worker
    hears of it when it next waits for the shards: where it computes first, that is in it."""
    apart_steps: int = 0
    """Steps that workers made since the last report while their group was cut off from the shards
    (`algorithm.apart_s`)."""
    shuffled_bytes: int = 0
    """Of `sent_bytes`, those of training examples that moved to another worker."""
    halo_bytes: int = 0
    """Of `sent_bytes`, those of rows, and of their gradients, that neighbours see of each other's."""
    crossed_bytes: int = 0
    """Of `sent_bytes`, those that went to workers on other nodes."""

    def count(self, **amounts: float) -> None:
        """Add to some of the counters in place: every step does, and to make another sum takes ten times as long."""
        counted = self.__dict__
        for name, amount in amounts.items():
            counted[name] += amount

    def __add__(self, other: "StepCounters") -> Self:
        """The sum, field by field; what the other does not count stays as it is."""
        mine, theirs = self.__dict__, other.__dict__
        sums = {name: _sum(mine[name], theirs[name]) for name in mine if name in theirs}
        return self.model_copy(update=sums)


def _add_into(into: dict[Any, Any], more: dict[Any, Any]) -> None:
    """Value by value, in place."""
    for key, value in more.items():
        into[key] = _sum(into[key], value) if key in into else value


class StepMetrics(StepCounters):
    """What a worker's steps came to."""

    steps: int = 0
    examples: int = 0
    loss: float = 0.0
    """Sum over the examples."""
    weight: float = 0.0
    """What they weigh in it: how many they are, or how many tokens, pixels or boxes."""
    dropped: int = 0
    """Minibatches whose gradients came too late for their step."""
    norm: float = 0.0
    """Sum of the norms of gradients before they were clipped."""
    norms: int = 0
    """How many these are."""
    signal: float = 0.0
    """Sum of the estimates of the squared norm of the true gradient (`NoiseEstimate`)."""
    noise: float = 0.0
    """Sum of the estimates of the trace of the gradients' covariance."""
    noises: int = 0
    """Steps that told of these."""
    by_epoch: dict[int, tuple[float, float]] = {}
    """Epoch -> sum of the loss, weight."""
    staleness: dict[int, int] = {}
    """How many pushes were acknowledged at which staleness."""
    group_staleness: tuple[dict[int, int], ...] = ()
    """Likewise in each group of parameters, where there are several."""

    def add(self, other: "StepMetrics") -> None:
        """Add all of it in place. What is added up for many workers has many values of staleness, and a sum of its own
        for each report would copy them all."""
        mine = self.__dict__
        for name, theirs in other.__dict__.items():
            if isinstance(theirs, dict):
                _add_into(mine[name], theirs)
            elif theirs and isinstance(theirs, tuple) and mine[name]:
                for own, more in zip(mine[name], theirs, strict=True):
                    _add_into(own, more)
            elif isinstance(theirs, tuple):
                mine[name] = mine[name] or tuple(dict(each) for each in theirs)
            else:
                mine[name] += theirs


def _sum(one: Any, other: Any) -> Any:
    """Of numbers; of tuples element by element, where none of them is empty; of dicts value by value."""
    if isinstance(one, dict):
        return one | other | {key: _sum(one[key], other[key]) for key in one if key in other}
    if isinstance(one, tuple):
        return tuple(_sum(a, b) for a, b in zip(one, other, strict=True)) if one and other else one or other
    return one + other
