"""A workload of three layers, and candidates on a described cluster."""

from typing import Any

import numpy as np

from trainers.cost.clusters.cluster import Cluster, cluster_of
from trainers.cost.schedules.fleet import Fleet
from trainers.cost.workload import HeadLayer, LayerWork, RowWork, Workload

MB = 10**6
LAYERS = tuple(
    LayerWork(name=name, parameters=size, forward_flops=10**6, backward_flops=2 * 10**6)
    for name, size in (("a", 250_000), ("b", 500_000), ("c", 250_000))
)
WORK = Workload(model="m", example="an example", layers=LAYERS, variables=(250_000, 500_000, 250_000), num_states=1)
ROWS = RowWork(kernel=3, stride=1, padding=1, dilation=1, height=64, width=128)
HEAD = WORK.model_copy(
    update={"head": (HeadLayer(inputs=500, outputs=1000),), "head_exchanged": 1000, "head_exchanges": 2}
    | {"row_layers": (ROWS, ROWS), "row_flops": 6 * 10**6, "image": 64 * 64, "maps": 64 * 128}
)


def cluster(
    inside: float = 1e9, between: float = 1e9, latency: float = 0.0, core: float | None = None, **more: Any
) -> Cluster:
    common = {"latency": latency, "core": core}
    links = {"in": {"bandwidth": inside, **common}, "out": {"bandwidth": between, **common}}
    whole = {"name": "c", "device": {"name": "d"}, "links": links, "inside": "in", "between": "out"}
    return cluster_of(whole | {"switches": [{"devices": 4, "count": 4}]} | more, "c")


def fleet(*workers: int, on: Cluster | None = None, virtual: int | None = None, **more: Any) -> Fleet:
    counts = np.array(workers)
    virtuals = counts if virtual is None else np.full(len(workers), virtual)
    return Fleet(on or cluster(), counts, virtuals, np.full(len(workers), 2), **more)
