"""How many of a model's parameters each worker has."""

import math

from torch import nn

from trainers.algorithms.divided import Divided
from trainers.algorithms.hybrid.column_layers import column_slices, convolutions_of
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.hybrid.slices import layer_slices, shapes
from trainers.models.split import split_built


def divided(config: HybridConfig, model: nn.Module, num_workers: int) -> Divided:
    """Of a model that was just built, with the layers that are trained, as its workers divide it.

    Raises:
        SpecRejected: It cannot be divided so; names the field and what would work.
    """
    split = split_built(model)
    if config.connect is not None:
        config.connect.check_head(split.head)
    ways, ranks = config.ways(split.head), range(num_workers)
    parts = [layer_slices(split.head, ways, rank, num_workers, config.blocks) for rank in ranks]
    if config.columns is not None:
        below = column_slices(convolutions_of(split.backbone, config.columns), config.columns, num_workers)
        parts = [[*first, *rest] for first, rest in zip(below, parts, strict=True)]
    held = [sum(map(math.prod, shapes(own).values())) for own in parts]
    names = {name for part in parts[0] for name in part.layer.parameters}
    built = sum(parameter.numel() for name, parameter in model.named_parameters() if name in names)
    return Divided(whole=sum(held), most=max(held), built=built)
