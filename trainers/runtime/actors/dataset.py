"""The actor that holds a run's Ray Dataset: it outlives workers and coordinator, and the blocks are its own."""

from typing import Any

from trainers.runtime.actors.base import BaseActor, use_code
from trainers.runtime.ray_data.blocks import Blocks, executed, named_datasets
from trainers.spec import TrainSpec


class DatasetActor(BaseActor):
    """Executes the Dataset once. Ray frees the blocks when this process ends, so that nothing of them is left."""

    def __init__(self, name: str, job_id: str, spec: TrainSpec, *, coordinator_name: str | None = None) -> None:
        super().__init__(name, job_id, coordinator_name)
        self.spec = spec
        self.held: list[tuple[Any, Blocks]] = []

    def execute(self) -> list[Blocks]:
        """Execute the Datasets, with their order preserved.

        Raises:
            SpecRejected: There is no such Dataset, or it cannot be executed.
        """
        use_code(self.spec.code is not None)
        self.note("executes the Ray Dataset")
        self.held = [executed(dataset, self.spec.data) for dataset in named_datasets(self.spec.data)]
        self.note("holds the Ray Dataset")
        return self.blocks()

    def blocks(self) -> list[Blocks]:
        """Where the rows lie."""
        return [blocks for _, blocks in self.held]
