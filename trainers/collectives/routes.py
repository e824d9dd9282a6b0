"""Who carries what between nodes of which some have several workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import Node, joined


@dataclass(frozen=True)
class Routes:
    """The same on every worker."""

    nodes: tuple[int, ...]
    """The number of the node on which each worker is."""

    def on(self, node: int) -> list[int]:
        """The workers of a node."""
        return [k for k, where in enumerate(self.nodes) if where == node]

    @cached_property
    def carriers(self) -> dict[int, dict[int, int]]:
        """Node -> worker elsewhere -> who of the node sends to that worker what the node has for it, and takes in what
        comes from there: all of the node in turn."""
        found: dict[int, dict[int, int]] = {}
        for node in set(self.nodes):
            here, away = self.on(node), [k for k, where in enumerate(self.nodes) if where != node]
            found[node] = {k: here[i % len(here)] for i, k in enumerate(away)}
        return found

    def handled(self, rank: int) -> list[int]:
        """The workers whose spans a worker handles: those that it carries, and its own."""
        return [rank, *(k for k, carrier in self.carriers[self.nodes[rank]].items() if carrier == rank)]

    def partners(self, rank: int) -> list[int]:
        """Who carries for a worker, one on each other node."""
        return [carriers[rank] for node, carriers in self.carriers.items() if node != self.nodes[rank]]

    def sums(self, reduction: Reduction, node: int) -> list[Node]:
        """The subtrees whose sums a node sends to the others."""
        return joined(reduction.num_virtual, [part for k in self.on(node) for part in reduction.nodes(k)])

    def read_here(self, rank: int, reduction: Reduction, cuts: Sequence[slice]) -> tuple[int, int]:
        """Of a reduction, the bytes that others of its node read of a worker's parts, and that it reads of theirs: all
        parts, over the spans that each of them handles."""
        mates = [k for k in self.on(self.nodes[rank]) if k != rank]
        widths = {k: sum(cuts[j].stop - cuts[j].start for j in self.handled(k)) for k in (rank, *mates)}
        own, theirs = reduction.num_bytes(rank), sum(reduction.num_bytes(k) for k in mates)
        return own * sum(widths[k] for k in mates), theirs * widths[rank]

    def laid_down_here(self, rank: int, cuts: Sequence[slice]) -> tuple[int, int]:
        """Of a gathering, the elements that a worker lays down for each of the others of its node, and those that they
        lay down for it."""
        widths = [cut.stop - cut.start for cut in cuts]
        mine = sum(widths[k] for k in self.handled(rank))
        return (len(self.on(self.nodes[rank])) - 1) * mine, sum(widths) - mine
