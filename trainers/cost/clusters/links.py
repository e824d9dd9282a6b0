"""What the links of a real cluster do, as measured, and the cluster that a plan makes of them. Imports no torch."""

from collections import defaultdict
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainers.cost.clusters.cluster import Cluster
from trainers.cost.figures import Figures, read_figures
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec

LinkTransport = Literal["shared_memory", "process_group", "object_store"]
"""As in a spec; between nodes there is no shared memory."""


class LinkPoint(Figures):
    """One size."""

    num_bytes: int = Field(gt=0)
    seconds: float = Field(gt=0)
    """Median of one transfer, while the others go on."""
    cpu_s: float = Field(default=0.0, ge=0)
    """CPU seconds that a transfer cost both ends, in all processes of their machines; 0: not measured."""


class MeasuredLink(Figures):
    """One transport between two processes, of which so many pairs transfer at once."""

    transport: LinkTransport
    source: str
    """The address of the sender's node."""
    target: str
    """That of the receiver's; the same for processes of one node."""
    at_once: int = Field(ge=1)
    points: tuple[LinkPoint, ...] = Field(min_length=2)
    """From the smallest to the largest."""

    @property
    def latency_s(self) -> float:
        """Of a message whose bytes do not count: the quickest of the points."""
        return min(point.seconds for point in self.points)

    @property
    def bytes_per_s(self) -> float:
        """Of one of the transfers, from the largest size, less the latency."""
        largest = self.points[-1]
        return largest.num_bytes / max(largest.seconds - self.latency_s, 0.01 * largest.seconds)

    @property
    def bytes_per_cpu_s(self) -> float | None:
        """What one core moves, for both ends; None where it was not measured."""
        largest = self.points[-1]
        return largest.num_bytes / largest.cpu_s if largest.cpu_s else None


class LinkNode(Figures):
    """One node."""

    address: str
    cpus: int = Field(ge=0)
    gpus: int = Field(ge=0)


class LinkTable(Figures):
    """The links of a cluster, as `millrace links` has measured them."""

    nodes: tuple[LinkNode, ...] = Field(min_length=1)
    links: tuple[MeasuredLink, ...] = Field(min_length=1)
    pairs_left_out: int = 0
    """Pairs of nodes that were not measured, in a large cluster: each node then with the next one only."""

    def of(self, transport: LinkTransport, between: bool) -> list[MeasuredLink]:
        """Those among the processes of a node, or between nodes."""
        return [one for one in self.links if one.transport == transport and (one.source != one.target) == between]


def read_links(path: Path) -> LinkTable:
    """A table that was kept.

    Raises:
        SpecRejected: The file is none, with the field.
    """
    return read_figures(LinkTable, path, "links", "table of links", "`millrace links` makes one")


def cluster_of_links(table: LinkTable, device: str, spec: TrainSpec) -> Cluster:
    """The measured machines, as a plan takes them: the slowest pair of nodes stands for all.

    Workers of a spec without GPUs have as many places on a node as their threads leave there, and on a single node any
    number, which share its cores.

    Args:
        device: The manufacturer's name, as the profile has it.
        spec: Its transport and devices decide which of the links count.

    Raises:
        SpecRejected: A link that it needs was not measured, or no node has a device for it.
    """
    far: LinkTransport = "object_store" if spec.transport == "object_store" else "process_group"
    shares = spec.workers.gpus == 0 and spec.transport in ("auto", "shared_memory")
    near: LinkTransport = "shared_memory" if shares else far
    if len(table.nodes) == 1 and spec.workers.gpus == 0:
        places = [4096]
    else:
        places = [int(_places(node, spec)) for node in table.nodes]
    switches = [{"devices": number} for number in places if number]
    if not switches:
        raise SpecRejected("links: none of the measured nodes has a device for a worker of the spec; see workers")
    links = {"near": _described(table, near, between=False)}
    if len(switches) > 1:
        links["far"] = _described(table, far, between=True)
        if table.of(far, between=False):
            links["messages"] = _described(table, far, between=False)
    return Cluster.model_validate(
        {
            "name": f"{len(switches)} measured node{'s' * (len(switches) > 1)}",
            "device": {"name": device},
            "links": links,
            "switches": switches,
            "inside": "near",
            "between": "far" if "far" in links else "",
            "messages": "messages" if "messages" in links else "",
        }
    )


def _described(table: LinkTable, transport: LinkTransport, between: bool) -> dict[str, float | None]:
    """The slowest pair: the latency and the rate of one transfer by itself, and what all at once reach together."""
    pairs = defaultdict[tuple[str, str], list[MeasuredLink]](list)
    for one in table.of(transport, between):
        pairs[one.source, one.target].append(one)
    if not pairs:
        where = "between nodes" if between else "among the processes of a node"
        raise SpecRejected(f"links: {transport} was not measured {where}; run `millrace links` again on this cluster")
    alone = [min(found, key=lambda one: one.at_once) for found in pairs.values()]
    return {
        "latency": max(one.latency_s for one in alone),
        "bandwidth": min(max(one.at_once * one.bytes_per_s for one in found) for found in pairs.values()),
        "each": min(one.bytes_per_s for one in alone),
        "core": min((one.bytes_per_cpu_s for one in alone if one.bytes_per_cpu_s), default=None),
    }


def _places(node: LinkNode, spec: TrainSpec) -> float:
    workers = spec.workers
    return node.gpus / workers.gpus if workers.gpus else node.cpus / max(workers.threads, 1)
