"""Who trains over the links, and what no one can beat there."""

import os
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.links import endless, namespaces
from benchmarks.links.endless import Rate
from benchmarks.measurement.processes import free_port, together
from benchmarks.measurement.workload import Timing, Workload
from benchmarks.peers import ddp, limit
from benchmarks.peers.ddp import DdpConfig
from trainers.spec import TrainSpec

LIMIT, DDP = "limit: processes that never talk, with Millrace's products", "DDP on gloo"
FAST, CANONICAL = "Millrace sync, fast", "Millrace sync, canonical"
OURS: dict[str, dict[str, Any]] = {
    FAST: {"name": "sync", "reduction": "fast"},
    CANONICAL: {"name": "sync"},
    "Millrace downpour, staleness 1": {"name": "downpour", "max_staleness": 1},
    "Millrace mixed, groups of 2": {"name": "mixed", "group": 2, "max_staleness": 1},
    "Millrace hybrid": {"name": "hybrid"},
    "Millrace parallel_sgd, averages every 10": {"name": "parallel_sgd", "average_every": 10, "shuffle": "none"},
}
ENDLESS = 1000  # epochs; a run is ended when enough of it was seen
REPORT_S = 0.5


@dataclass(frozen=True)
class Place:
    """So many nodes, and the links between them."""

    nodes: int
    mbit_per_s: float
    per_node: int = 1
    """Workers of each."""

    @property
    def workers(self) -> int:
        return self.nodes * self.per_node

    @property
    def title(self) -> str:
        nodes = f"{self.nodes} nodes" if self.per_node == 1 else f"{self.nodes} nodes of {self.per_node} workers"
        return f"{nodes}, links of {self.mbit_per_s:g} Mbit/s"

    def seconds(self, num_bytes: float) -> float:
        """In which a link lets through so many bytes one way."""
        return num_bytes * 8 / (self.mbit_per_s * 1e6)


def all_reduce_bytes(place: Place, num_parameters: int) -> float:
    """What each node must send at least so that all have the sum of a vector of float32 (paper 4, section 4.1)."""
    return 2 * (place.nodes - 1) / place.nodes * 4 * num_parameters


def bound_of(place: Place, work: Workload, limit_per_s: float, num_parameters: int) -> float:
    """Examples/s of a step that takes as long as the longer of its computing and its bytes at the link's rate."""
    examples = work.minibatch * place.workers
    return examples / max(examples / limit_per_s, place.seconds(all_reduce_bytes(place, num_parameters)))


def spec_of(work: Workload, algorithm: dict[str, Any]) -> TrainSpec:
    """An endless run; its shards, where it has any, stand with the workers and have no second copy, as DDP has none."""
    return TrainSpec.model_validate(
        {
            "workers": {"count": work.workers, "threads": 1},
            "algorithm": algorithm,
            "model": work.model,
            "data": work.data.model_dump(),
            "batch": work.minibatch,
            "optimizer": {"name": "momentum", "lr": work.lr, "momentum": work.momentum},
            "ps": {"shards": work.workers, "replicas": 1},
            "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0},
            "epochs": ENDLESS,
            "seed": work.seed,
            "report_every_s": REPORT_S,
        }
    )


def measure(name: str, work: Workload, namespaces_: tuple[str, ...], num_parameters: int) -> Rate:
    """One contender, with as many workers in each namespace. Called in the first of them, on the Ray that is there."""
    if name == LIMIT:
        return Rate(limit.measure(replace(work, our_products=True)).examples_per_s, 0.0)
    if name == DDP:
        address = f"{namespaces.ADDRESSES[0]}:{free_port()}"
        nodes = [name for name in namespaces_ for _ in range(work.workers // len(namespaces_))]
        there = [(namespace, work, rank, address) for rank, namespace in enumerate(nodes)]
        timings = together(_ddp_there, there)
        sent = all_reduce_bytes(Place(len(there), 1.0), num_parameters) / work.minibatch  # gloo's rings send no more
        return Rate(sum(t.steps * work.minibatch / t.seconds for t in timings), 0.0, sent)
    return endless.run(work, spec_of(work, OURS[name]), "bench")


def _ddp_there(namespace: str, work: Workload, rank: int, address: str) -> Timing:
    namespaces.enter(namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = namespaces.CABLE
    return ddp.train(work, DdpConfig(), rank, address)
