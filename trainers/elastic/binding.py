"""Which cores of its node each worker keeps to. Decided here; the worker's process keeps to them. Imports no torch."""

import itertools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

BindName = Literal["auto", "none", "cores"]
"""What decides on which cores a worker runs."""


@dataclass(frozen=True)
class CoreMap:
    """The logical CPUs that a process may use: by NUMA node, and within one by core, whose hyperthreads they are."""

    nodes: tuple[tuple[tuple[int, ...], ...], ...] = ()

    @property
    def num_cores(self) -> int:
        """Of all NUMA nodes."""
        return sum(map(len, self.nodes))


class Slots:
    """Numbers the workers of each node of a cluster. A worker keeps its slot as long as it lives, and the next worker
    takes the lowest one that is free."""

    def __init__(self) -> None:
        self.taken: dict[int, tuple[str, int]] = {}  # by worker: its node, and its slot there

    def of(self, worker: int, node: str, alive: Collection[int]) -> int:
        """The slot of a worker. alive: All workers of the run."""
        self.taken = {number: place for number, place in self.taken.items() if number in alive}
        if worker not in self.taken:
            used = {slot for at, slot in self.taken.values() if at == node}
            self.taken[worker] = node, next(slot for slot in itertools.count() if slot not in used)
        return self.taken[worker][1]


def shares(cores: CoreMap, threads: int, bind: BindName) -> list[tuple[int, ...]]:
    """The logical CPUs that a node's workers of so many threads keep to, by slot; a worker beyond them is not bound.

    NUMA nodes take turns, so that few workers use the memory of all of them. `auto` shares a NUMA node among the
    workers of its turn, as another run may; `cores` gives each worker cores of its own, with all their hyperthreads.
    """
    if bind == "none" or (bind == "auto" and len(cores.nodes) < 2):
        return []
    if bind == "auto":
        turn = [_logical(node) for node in cores.nodes if len(node) >= threads]
        return turn * (cores.num_cores // (threads * len(turn)) if turn else 0)
    blocks = [[node[i : i + threads] for i in range(0, len(node) - threads + 1, threads)] for node in cores.nodes]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*blocks))
    return [_logical(block) for block in in_turn if block is not None]


def why(cores: CoreMap, threads: int, bind: BindName) -> str:
    """What `shares` does with the workers of such a node and why, in a sentence without its end."""
    found, nodes = shares(cores, threads, bind), len(cores.nodes)
    several = f"{threads} thread{'s' * (threads > 1)}"
    if bind == "none":
        return "workers run on any core, as workers.bind says"
    if bind == "auto" and nodes < 2:
        return f"workers run on any of {cores.num_cores} cores: all are as near to the memory"
    if not found:
        return f"workers run on any of {cores.num_cores} cores: no NUMA node has enough for {several}"
    if bind == "auto":
        return f"each worker keeps to one of {nodes} NUMA nodes, in turn, so that its memory is near"
    return f"each of the first {len(found)} workers of a node keeps to cores of its own for {several}"


def _logical(block: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(sorted(itertools.chain.from_iterable(block)))
