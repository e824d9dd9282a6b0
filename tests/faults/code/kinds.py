"""Small models of vectors and of tokens through which a test strikes a worker, and a Ray Dataset."""

from typing import TYPE_CHECKING, Any

import numpy as np
from faulty import Looks
from torch import Tensor, nn

if TYPE_CHECKING:
    import ray.data


class Small(Looks):
    """Dropout and what stands around it."""

    def __init__(self, before: nn.Module, width: int, outputs: int, plan: str, pause_s: float) -> None:
        super().__init__(plan, pause_s)
        self.before, self.drop, self.after = before, nn.Dropout(0.3), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.drop(self.before(self.look(x))))


def vectors(num_classes: int, in_features: int, plan: str = "", pause_s: float = 0.0) -> nn.Module:
    return Small(nn.Linear(in_features, 8), 8, num_classes, plan, pause_s)


def tokens(vocabulary: int, plan: str = "", pause_s: float = 0.0) -> nn.Module:
    return Small(nn.Embedding(vocabulary, 8), 8, vocabulary, plan, pause_s)


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"x": 2 * batch["x"]}


def noisy(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"x": batch["x"] + np.random.default_rng().normal(size=1)}  # which no seed makes twice


def rows(root: str) -> "ray.data.Dataset":
    """Of several files, read, mapped and cut into four blocks by several tasks."""
    import ray.data  # a second in every process that imports it

    options = ray.data.DataContext.get_current().execution_options
    options.resource_limits = ray.data.ExecutionResources(cpu=2)  # each task more at a time is a process more
    return ray.data.read_parquet(root).map_batches(doubled).repartition(4)


def unseeded(root: str) -> "ray.data.Dataset":
    """Other rows whenever it is executed."""
    import ray.data

    return ray.data.read_parquet(root).map_batches(noisy)
