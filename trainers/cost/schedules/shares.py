"""What the real layouts and reductions make of a spec: the fullest shard, the parts that workers ship, all-reduces."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import nn

from trainers.collectives.all_reduce.base import AllReduceCost
from trainers.collectives.all_reduce.binary_blocks import BINARY_BLOCKS
from trainers.collectives.all_reduce.choice import fastest
from trainers.collectives.all_reduce.ring import RING
from trainers.collectives.reduction import Reduction
from trainers.cost.schedules.fleet import Floats, Ints
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.layout import lay_out
from trainers.models.registry import build_model
from trainers.spec import TrainSpec


@lru_cache(maxsize=4096)
def _shares(variables: tuple[int, ...], shards: int, placement: str, whole: bool) -> tuple[float, ...]:
    model = nn.Module()
    for index, numel in enumerate(variables):  # as the layout takes them: names and shapes only
        model.register_parameter(f"p{index}", nn.Parameter(torch.empty(numel, device="meta")))
    try:
        layout = lay_out(model, shards, placement, keeps_parameters_whole=whole)  # type: ignore[arg-type]
    except ValueError as error:
        raise SpecRejected(f"ps.shards: {error}") from None
    return tuple((cut.stop - cut.start) / layout.numel for cut in layout.shards)


def shard_shares(spec: TrainSpec, variables: tuple[int, ...], shards: int) -> tuple[float, ...]:
    """Of the parameters, what each of so many shards holds.

    Raises:
        SpecRejected: The model is too small for so many.
    """
    return _shares(variables, shards, spec.ps.placement, spec.optimizer.whole)


def fullest_share(spec: TrainSpec, variables: tuple[int, ...], shards: Ints) -> Floats:
    """Of the parameters, what the fullest of so many shards holds; (C,).

    Raises:
        SpecRejected: The model is too small for so many.
    """
    share = {int(s): max(shard_shares(spec, variables, int(s))) for s in np.unique(shards)}
    return np.array([share[int(s)] for s in shards])


def fullest_of_model(name: str, placement: str, counts: Sequence[int]) -> dict[int, float]:
    """Number of shards -> what the fullest of them holds of a model, 0 to 1.

    name: Of the model; on 224x224 colour images in 1000 classes.
    """
    with torch.device("meta"):
        model = build_model(ModelSpec(name=name), 1000, (3, 224, 224), seed=0)
    variables = tuple(parameter.numel() for parameter in model.parameters())
    return {shards: max(_shares(variables, shards, placement, False)) for shards in counts}


@lru_cache(maxsize=65536)
def _shipped(virtual: int, workers: int) -> tuple[int, int]:
    if virtual % workers == 0 and (virtual // workers) & (virtual // workers - 1) == 0:
        return workers, 1
    counts = [len(Reduction(virtual, workers, 1).nodes(rank)) for rank in range(workers)]
    return sum(counts), max(counts)


def shipped_vectors(virtual: Ints, workers: Ints) -> tuple[Floats, Floats]:
    """Sums of subtrees that all workers ship in a canonical reduction, and those of the one that ships most; (C,)."""
    pairs = {(int(v), int(w)) for v, w in zip(virtual, workers, strict=True)}
    known = {pair: _shipped(*pair) for pair in pairs}
    found = np.array([known[int(v), int(w)] for v, w in zip(virtual, workers, strict=True)], dtype=float)
    return found[:, 0], found[:, 1]


def all_reduce_cost(name: str, members: Ints, numel: int) -> tuple[Floats, Floats, Floats]:
    """Steps, vectors sent, and whether they all cross at once, of an all-reduce among so many; (C,) each."""
    known: dict[int, tuple[AllReduceCost, bool]] = {}
    for p in map(int, np.unique(members)):
        if p == 1:
            known[p] = AllReduceCost(0, 0.0), False
            continue
        algorithm = {"ring": RING, "halving_doubling": BINARY_BLOCKS, "binary_blocks": BINARY_BLOCKS}.get(name)
        chosen = algorithm or fastest(p, numel)
        known[p] = chosen.cost(p), chosen is BINARY_BLOCKS
    costs = [known[int(p)] for p in members]
    return (
        np.array([float(cost.steps) for cost, _ in costs]),
        np.array([cost.vectors for cost, _ in costs]),
        np.array([float(crosses) for _, crosses in costs]),
    )
