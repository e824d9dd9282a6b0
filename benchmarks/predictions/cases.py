"""What is predicted and run: every algorithm, by every transport that it has, over links of several rates."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from benchmarks.links import contenders
from benchmarks.measurement.workload import Workload, find_data
from trainers.spec import TrainSpec

ALGORITHMS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "sync, fast": {"name": "sync", "reduction": "fast"},
    "sync through shards": {"name": "sync", "form": "parameter_server"},
    "hybrid": {"name": "hybrid"},
    "spatial": {"name": "spatial"},
    "downpour": {"name": "downpour", "max_staleness": None},
    "easgd": {"name": "easgd", "tau": 4},
    "mixed": {"name": "mixed", "group": 2},
    "parallel_sgd": {"name": "parallel_sgd", "average_every": 4, "shuffle": "none"},
    "diloco": {"name": "diloco", "average_every": 4},
    "admm": {"name": "admm"},
}
"""What seldom exchanges does so every 4 steps, so that a measurement sees many of these rounds."""
BY_MESSAGES = ("sync", "sync, fast", "hybrid", "spatial", "parallel_sgd")
"""That are also run by messages where the workers could share memory."""
BY_OBJECTS = ("downpour", "sync through shards")
"""That also reach their shards through Ray's object store."""
QUESTIONS: dict[str, tuple[str, ...]] = {
    "which algorithm": tuple(ALGORITHMS),
    "which that waits for all in each step": (
        "sync",
        "sync, fast",
        "sync through shards",
        "hybrid",
        "spatial",
        "admm",
    ),
    "which with shards": ("sync through shards", "downpour", "easgd", "mixed"),
    "which that exchanges every 4 steps": ("easgd", "parallel_sgd", "diloco"),
}
"""Among whom a plan names the fastest, at each place."""

Transport = Literal["auto", "process_group", "object_store"]


@dataclass(frozen=True)
class Place:
    """Where two workers train: on two nodes with links of a rate, or on one."""

    gb_per_s: float | None = None
    """Each way; None: one node, whose links nothing throttles."""

    @property
    def title(self) -> str:
        return "one node" if self.gb_per_s is None else f"{self.gb_per_s:g} GB/s"


PLACES = (Place(), Place(1.0), Place(0.2), Place(0.05))


@dataclass(frozen=True)
class Case:
    """One job at one place."""

    algorithm: str
    transport: Transport
    place: Place

    @property
    def key(self) -> str:
        return f"{self.algorithm} | {self.transport} | {self.place.title}"

    @property
    def spec(self) -> TrainSpec:
        """A run without an end."""
        made = contenders.spec_of(workload(), ALGORITHMS[self.algorithm])
        return TrainSpec.model_validate(made.model_dump(mode="json") | {"transport": self.transport})


def cases_of(place: Place) -> Iterator[Case]:
    """All jobs of a place."""
    yield from (Case(name, "auto", place) for name in ALGORITHMS)
    if place.gb_per_s is None:  # between nodes, these are what `auto` takes
        yield from (Case(name, "process_group", place) for name in BY_MESSAGES)
    yield from (Case(name, "object_store", place) for name in BY_OBJECTS)


@cache
def workload() -> Workload:
    """`convnet`, of 17 MB of parameters, on two workers of 128 examples each."""
    return Workload(find_data(None), minibatch=128, warmup_steps=4)
