"""The evaluator actor: assembles snapshots, measures them on the test set, and writes checkpoints.

Workers and shards go on while it works.
"""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from trainers.runtime.member import Member, limit_threads, use_code
from trainers.runtime.messages import Place
from trainers.runtime.node_folder import node_folder
from trainers.spec import TrainSpec

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.checkpoint import Checkpoint
    from trainers.setup import Setup

Part = dict[str, Any]
"""A slice of a snapshot: `start`, `params`, `state`, `applied`, `examples`, `learning_rate`."""

Rows = dict[int, dict[str, np.ndarray]]
"""Batch-norm buffers by virtual rank."""


class Evaluator(Member):
    """Sees snapshots only, never the training."""

    def __init__(self, name: str, job_id: str, spec: TrainSpec) -> None:
        super().__init__(name, job_id)
        self.data_folder = node_folder(job_id)
        self.take_up(job_id, spec)

    def take_up(self, job_id: str, spec: TrainSpec) -> None:
        """Forget the run before, if there was one, and belong to this one."""
        self.renewed = time.monotonic()
        self.job_id = job_id
        self.spec = spec
        self.setup: Setup | None = None

    def prepare(self) -> Place:
        """Map the data, build the model."""
        use_code(self.spec.code is not None)
        limit_threads(self.spec.workers.threads)
        from trainers.setup import set_up

        on_cpu = self.spec.model_copy(update={"device": "cpu"})
        self.setup = set_up(on_cpu, self.data_folder)
        return self.place()

    def evaluate(self, parts: list[Any], buffers: list[Any]) -> tuple[float, float, float]:
        """Mean test loss, accuracy (0 to 1), and how many seconds it took."""
        from trainers.losses import sum_of_losses

        assert self.setup is not None
        begun = time.perf_counter()
        setup, loss, right, count = self.setup, 0.0, 0, 0
        params, _ = self._assemble(ray.get(parts))
        statistics = setup.statistics(params, self._rows(buffers))
        with setup.replica.evaluating(params, statistics) as model:
            for batch in setup.dataset.test_batches(self.spec.evaluate.batch):
                logits = model(batch.images)
                loss += float(sum_of_losses(self.spec.loss, logits, batch.labels))
                right += int((logits.argmax(1) == batch.labels).sum())
                count += len(batch)
        del params
        return loss / count, right / count, time.perf_counter() - begun

    def save(self, folder: str, keep_last: int, parts: list[Any], buffers: list[Any], position: dict[str, Any]) -> None:
        """Write a checkpoint and remove the ones that are too old."""
        from trainers.checkpoint import prune, write_checkpoint

        checkpoint = self._checkpoint(ray.get(parts), self._rows(buffers), position)
        write_checkpoint(Path(folder), checkpoint)
        prune(Path(folder).parent, keep_last, self.spec.checkpoint.resume)

    def export(self, path: str, parts: list[Any], buffers: list[Any]) -> None:
        """Write the finished model: a safetensors file that plain PyTorch loads."""
        from trainers.export import HEADER, FinishedModel
        from trainers.models.weights import save_weights

        assert self.setup is not None
        params, _ = self._assemble(ray.get(parts))
        named = self.setup.layout.named(params) | self.setup.statistics(params, self._rows(buffers))
        whole = self.setup.replica.model.state_dict()
        data, spec = self.setup.dataset, self.spec
        finished = FinishedModel(
            model=spec.model, num_classes=data.num_classes, image_shape=data.image_shape, code=spec.code
        )
        header = {HEADER: finished.model_dump_json()}
        save_weights(Path(path), {name: named.get(name, value) for name, value in whole.items()}, header)

    def _checkpoint(
        self, parts: list[Part], buffers: "dict[int, dict[str, Tensor]]", position: dict[str, Any]
    ) -> "Checkpoint":
        from trainers.checkpoint import Checkpoint, Position

        assert self.setup is not None
        params, state = self._assemble(parts)
        layout = self.setup.layout
        rate = parts[0]["learning_rate"]  # the shards of an asynchronous run may be an update apart
        place = replace(Position(**position), learning_rate=rate, applied=tuple(part["applied"] for part in parts))
        named = {name: layout.named(vector) for name, vector in state.items()}
        return Checkpoint(place, self.spec.model_dump(mode="json"), layout.named(params), named, buffers)

    def _assemble(self, parts: list[Part]) -> "tuple[Tensor, dict[str, Tensor]]":
        """Parameters and states, (P,) each, from the slices of a snapshot."""
        import torch

        assert self.setup is not None
        numel = self.setup.layout.numel
        params = torch.zeros(numel)
        state = {name: torch.zeros(numel) for part in parts for name in part["state"]}
        for part in parts:
            cut = slice(part["start"], part["start"] + len(part["params"]))
            params[cut] = torch.from_numpy(np.array(part["params"]))
            for name, vector in part["state"].items():
                state[name][cut] = torch.from_numpy(np.array(vector))
        return params, state

    def _rows(self, references: list[Any]) -> "dict[int, dict[str, Tensor]]":
        """Buffers by virtual rank; those of asynchronous workers by their place in the list."""
        import torch

        found: list[Rows] = []
        for reference in references:
            with suppress(ray.exceptions.RayError):  # a worker that has died since
                found.append(ray.get(reference))
        numbered = self.spec.algorithm.is_synchronous
        return {
            rank if numbered else place: {name: torch.from_numpy(np.array(value)) for name, value in named.items()}
            for place, rows in enumerate(found)
            for rank, named in rows.items()
        }
