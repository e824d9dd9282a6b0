"""How examples are divided among the workers: a part of the recipe."""

from trainers.algorithms.spatial.config import SpatialConfig
from trainers.spec.quantity import Quantity
from trainers.spec.train import TrainSpec


def division(spec: TrainSpec) -> dict[str, Quantity]:
    """The numbers of a spatial split, where a spec has one."""
    config, count = spec.algorithm, spec.workers.count
    if not isinstance(config, SpatialConfig):
        return {}
    where = "the first layer that needs whole examples" if config.until is None else config.until
    formula = (
        f"each worker has 1/{count} of the rows of every image and map, up to {where}; of d (k - 1) + 1 rows that a "
        "convolution sees, halos of half of the rest travel between neighbours; minibatches one after the other"
    )
    return {"rows": Quantity(value=f"in {count} parts", formula=formula, source=config.source)}
