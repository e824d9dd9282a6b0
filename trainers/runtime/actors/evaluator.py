"""The evaluator actor: assembles snapshots, measures them on examples that are held out, and writes checkpoints.

Workers and shards go on while it works.
"""

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from trainers.errors import SpecRejected
from trainers.events import EvaluatedSet
from trainers.models.products.choice import Choice
from trainers.optim.ema import EMA
from trainers.runtime.actors.base import BaseActor, limit_threads, use_code
from trainers.runtime.memory import give_back
from trainers.runtime.messages import ActorLocation
from trainers.runtime.node_folder import node_folder
from trainers.runtime.ray_data.blocks import RowsOfRun
from trainers.spec import TrainSpec
from trainers.training.position import Position

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.models.module_buffers import Named
    from trainers.tasks.measures import Measure


log = logging.getLogger(__name__)


class Evaluator(BaseActor):
    """Sees snapshots only, never the training."""

    def __init__(self, name: str, job_id: str, spec: TrainSpec, *, coordinator_name: str | None = None) -> None:
        super().__init__(name, job_id, coordinator_name)
        self.data_folder = node_folder(job_id)
        self.take_up(job_id, spec)

    def take_up(self, job_id: str, spec: TrainSpec) -> None:
        """Forget the run before, if there was one, and belong to this one."""
        self.job_id = job_id
        self.spec = spec
        self.setup = None
        self.held = dict[Any, Any]()

    def prepare(self) -> ActorLocation:
        """Map the data, build the model."""
        use_code(self.spec.code is not None)
        limit_threads(self.spec.workers.threads)
        from trainers.training.setup import set_up

        on_cpu = self.spec.model_copy(update={"device": "cpu"})
        self.setup = set_up(on_cpu, self.data_folder, open_rows=RowsOfRun(self.job_id, self.spec.data))
        return self.place()

    def evaluate(self, parts: list[Any], buffers: list[Any], which: EvaluatedSet) -> tuple[dict[str, float], float]:
        """The task's metrics on the validation set or the test set, by name, and how many seconds it took."""
        from trainers.models.products.threads import use_threads
        from trainers.tasks.base import check_headline, measured
        from trainers.tasks.measures import Sum

        assert self.setup is not None
        begun = time.perf_counter()
        setup, found = self.setup, dict[str, "Measure"]()
        use_threads(self.spec.workers.threads)
        params = self._params(parts)
        statistics = setup.statistics(params, self._rows(buffers))
        with setup.replica.evaluating(params, statistics) as model:
            data, size = setup.dataset, self.spec.evaluate.batch
            for batch in data.validation_batches(size) if which == "validation" else data.test_batches(size):
                if batch.skipped:
                    log.warning("skips in the evaluation: %s", "; ".join(why for _, why in batch.skipped))
                    found["skipped"] = found.get("skipped", Sum(0)) + Sum(len(batch.skipped))
                if not len(batch):
                    continue
                for name, measure in measured(setup.task, model, batch.data).items():
                    found[name] = found[name] + measure if name in found else measure
        del params
        give_back()  # until the next one, which may be an epoch away
        if self.spec.evaluate.classes is not None and not found:
            raise SpecRejected(f"evaluate.classes: no {which} example is of one of these; name others, or leave it out")
        check_headline(setup.task, found.keys() - {"skipped"})
        return {name: measure.value for name, measure in found.items()}, time.perf_counter() - begun

    def save(
        self, folder: str, keep_last: int, parts: list[Any], buffers: list[Any], position: Position, products: Choice
    ) -> None:
        """Write a checkpoint and remove the ones that are too old."""
        from trainers.training.checkpoint import prune, write_checkpoint
        from trainers.training.version_parts import checkpoint_of

        assert self.setup is not None
        kept = checkpoint_of(self.setup, self._values(parts), self._rows(buffers), position, products)
        write_checkpoint(Path(folder), kept)
        prune(Path(folder).parent, keep_last, self.spec.checkpoint.resume, Path(folder).name)

    def export(self, path: str, parts: list[Any], buffers: list[Any], raw: bool = False) -> None:
        """Write the finished model: a safetensors file that plain PyTorch loads; raw: not the average."""
        from trainers.models.weights import save_weights
        from trainers.training.export import HEADER, finished_model

        assert self.setup is not None
        params = self._params(parts, raw)
        named = self.setup.layout.named(params) | self.setup.statistics(params, self._rows(buffers))
        finished = finished_model(self.spec, self.setup.task.facts)
        header = {HEADER: finished.model_dump_json()}
        save_weights(Path(path), self.setup.replica.state_of(named), header)

    def hold(self, parts: list[Any], buffers: list[Any]) -> None:
        """Keep what the last version consists of: who has put it into Ray's store may die before it is exported."""
        self.held = dict(zip(parts, ray.get(parts), strict=True))
        for reference in buffers:
            with suppress(ray.exceptions.RayError):  # a worker that has died since
                self.held[reference] = ray.get(reference)

    def cleanup(self) -> None:
        """Let go of the data, and remove the run's folder on this node."""
        if self.setup is not None:
            self.setup.dataset.close()
        super().cleanup()

    def _values(self, references: list[Any]) -> list[Any]:
        held = all(reference in self.held for reference in references)
        return [self.held[reference] for reference in references] if held else ray.get(references)

    def _params(self, parts: list[Any], raw: bool = False) -> "Tensor":
        """(P,) the parameters of a version, or their average where the spec has one."""
        from trainers.training.version_parts import assembled

        assert self.setup is not None
        params, state = assembled(self.setup.layout.numel, self._values(parts))
        return params if self.spec.ema is None or raw else state[EMA]

    def _rows(self, references: list[Any]) -> "dict[int, Named]":
        """Buffers by virtual rank; those of asynchronous workers by their place in the list."""
        found: list[dict[int, Named]] = []
        for reference in references:
            with suppress(ray.exceptions.RayError):  # a worker that has died since
                found += self._values([reference])
        numbered = self.spec.algorithm.traits.is_synchronous
        return {rank if numbered else place: named for place, rows in enumerate(found) for rank, named in rows.items()}
