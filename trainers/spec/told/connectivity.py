"""What the units of divided layers see of each other: a part of the recipe."""

from trainers.algorithms.hybrid.config import HybridConfig
from trainers.spec.quantity import Quantity
from trainers.spec.train import TrainSpec


def connectivity(spec: TrainSpec) -> dict[str, Quantity]:
    """The numbers of restricted connectivity and of columns, where a spec has them."""
    config = spec.algorithm
    if not isinstance(config, HybridConfig):
        return {}
    return _columns(config) | _blocks(config)


def _columns(config: HybridConfig) -> dict[str, Quantity]:
    if config.columns is None:
        return {}
    formula = (
        f"each worker has some of {config.columns} columns, and takes the images of all workers through them; where "
        "columns meet activities travel, and no gradient of a parameter does"
    )
    source = "Krizhevsky et al. 2012, section 3.5; paper 1, section 8"
    return {"columns": Quantity(value=config.columns, formula=formula, source=source)}


def _blocks(config: HybridConfig) -> dict[str, Quantity]:
    if config.connect is None:
        return {}
    formula = (
        f"of a fully connected layer between the first and the last, 1/{config.blocks} of the weights: a unit sees its "
        f"own block below; nothing travels between these layers of up to {config.blocks} workers"
    )
    value = f"{config.blocks} blocks"
    if config.rank:
        value += f", rank {config.rank}"
        formula = (
            "in a fully connected layer between the first and the last, a unit sees the h_b of its own block below and "
            f"P_k h_k of the {config.blocks - 1} others, {config.rank} numbers each; between two layers "
            f"{config.blocks * config.rank} numbers an example travel to each other worker, and their gradients back"
        )
    return {"connect": Quantity(value=value, formula=formula, source="paper 1, sections 5.1 and 8")}
