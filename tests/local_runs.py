"""Runs on the local transport through what a run on Ray goes through: trainers, feed, leases, checkpoint files.

Only Ray, the processes and the sockets are left out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from trainers.collectives.endpoints import CollectivesEndpoint
from trainers.collectives.local import LocalCollectives, LocalGroup
from trainers.data.records.ray_rows import OpenRows
from trainers.elastic.lease_table import Lease, LeaseDispatcher, LeaseTable
from trainers.links.local import LocalWorld
from trainers.parameter_server.endpoints import StoreEndpoint
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.local import LocalServer, LocalStore
from trainers.parameter_server.memory import MemoryPlan
from trainers.parameter_server.protocol import ParameterStore
from trainers.parameter_server.server import Server
from trainers.runtime.control.run_progress import already_applied
from trainers.spec import TrainSpec
from trainers.training.checkpoint import write_checkpoint
from trainers.training.loop import ModelVersion, Ports, TrainingLoop
from trainers.training.messages import GenerationStart, WorkerReport
from trainers.training.position import Position
from trainers.training.setup import Setup, set_up
from trainers.training.shard_setup import ShardSetup
from trainers.training.step_gate import StepGate
from trainers.training.step_tracer import StepTracer
from trainers.training.version_parts import VersionPart, checkpoint_of, first_part, part_of_shard, part_of_worker


@dataclass(frozen=True)
class LocalEndpoint(CollectivesEndpoint):
    """A worker of a group in this process."""

    group: LocalGroup

    def connect(
        self, folder: Path, device: torch.device, given_up: Callable[[], bool] = lambda: False
    ) -> LocalCollectives:
        return LocalCollectives(self.group, self.rank, device)


@dataclass(frozen=True, kw_only=True)
class LocalStoreEndpoint(StoreEndpoint):
    """A worker's way to shards in this process."""

    server: LocalServer

    def connect(self, folder: Path, shards: Sequence[slice], num_slots: int, groups: Sequence[slice]) -> ParameterStore:
        return LocalStore(self.server, self.worker)

    def listen(self, folder: Path, index: int, numel: int, pieces: dict[int, GroupSlice]) -> Server[object]:  # type: ignore[type-var]
        raise NotImplementedError("shards in this process are called")


@dataclass
class LocalRun:
    """A spec, trained by as many trainers as it has workers."""

    spec: TrainSpec
    folder: Path
    seed: int = 0
    """Of the interleaving."""
    limit: int | None = None
    """Steps of each worker after which it stops."""
    trained: Counter[int] = field(default_factory=Counter)
    """Examples by epoch."""
    dropped: int = 0
    open_rows: OpenRows | None = None
    """The way to what stands for the rows of a Ray Dataset."""
    tracer: StepTracer = field(default_factory=StepTracer)
    """Of the last worker."""
    snapshots: list[tuple[list[VersionPart], dict[int, dict[str, Tensor]], Position]] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = self.spec.workers.count
        self.folder.mkdir(parents=True)
        self.setups = [set_up(self.spec, None, open_rows=self.open_rows) for _ in range(count)]
        self.start, self.position = self.setups[0].begin()
        self.world = LocalWorld(self.seed)
        self.groups = self.spec.algorithm.groups(["here"] * count)
        self.dispatcher = LeaseDispatcher(self._table(), self.groups)
        self.local_groups = [LocalGroup(self.world, members) for members in self.groups]
        self.shards = self._shards() if self.spec.algorithm.traits.uses_parameter_server else []
        self.server = LocalServer(self.world, self.shards)

    def train(self) -> Path:
        """Train to the end. Returns the folder of the last checkpoint."""
        trainers = [self._trainer(rank, setup) for rank, setup in enumerate(self.setups)]
        self.world.run([trainer.train for trainer in trainers])
        last = trainers[0].version
        if last is not None:
            self._snapshot(last)
        if self.server.shards:
            steps = max(trainer.reporter.steps for trainer in trainers)
            held = ((t.ranks, t.setup.replica.buffers) for t in trainers)  # after a resume those of all ranks, and old
            buffers = {rank: named for ranks, found in held for rank, named in found.items() if rank in ranks}
            self.snapshots.append(([part_of_shard(p.items()) for p in self.shards], buffers, self._position(steps)))
        write_checkpoint(self.folder / "checkpoint", checkpoint_of(self.setups[0], *self.snapshots[-1]))
        return self.folder / "checkpoint"

    # -- a run's parts --------------------------------------------------------------------------------------------

    def _trainer(self, rank: int, setup: Setup) -> TrainingLoop:
        gate = StepGate()
        gate.release(self.limit)
        algorithm, store = self.spec.algorithm, None
        i = next(i for i, ranks in enumerate(self.groups) if rank in ranks)
        within = self.groups[i].index(rank)
        if algorithm.traits.uses_parameter_server and (within == 0 or not algorithm.traits.uses_collectives):
            store = LocalStoreEndpoint(len(self.setups), worker=rank, server=self.server)
        endpoint = LocalEndpoint(i, within, len(self.groups[i]), self.local_groups[i])
        begin = GenerationStart(rank, endpoint, store=store)
        tracer = self.tracer if rank == len(self.setups) - 1 else StepTracer()
        leasing = partial(self._lease, rank)
        ports = Ports(self._report, leasing, self._snapshot, lambda clock: None, tracer)
        return TrainingLoop(setup, self.folder, begin, gate, ports, None)

    def _table(self) -> LeaseTable:
        order, spec = self.setups[0].order, self.spec
        size = 1 if spec.algorithm.traits.num_backup else 2 * max(map(len, self.groups))
        extent = spec.extent(order.num_examples)
        done = already_applied(self.setups[0].run_layout(), order, spec)
        return LeaseTable(order, extent.epochs, size, done, size, rest=extent.minibatches)

    def _shards(self) -> list[dict[int, GroupSlice]]:
        found, whole, layout = [], self.start.buffers, self.setups[0].run_layout()
        start = {"params": whole.params.numpy()} | {name: vector.numpy() for name, vector in whole.state.items()}
        for index in range(len(layout.shards)):
            setup = ShardSetup(self.spec, layout, index)
            pieces = setup.pieces(MemoryPlan(Path(), index, self.spec.workers.count, replicas=1), is_mapped=False)
            setup.begin(pieces.items(), first_part(layout, index, start), recovers=False)
            found.append(pieces)
        return found

    def _position(self, steps: int) -> Position:
        order, examples = self.setups[0].order, self.server.shards[0].examples
        if not self.spec.algorithm.traits.is_synchronous:
            return Position(self.dispatcher.epochs_done(), 0, 0, examples)
        epoch, step = divmod(self.position.epoch * order.steps + self.position.step + steps, order.steps)
        return Position(epoch, step, steps, examples)

    # -- a trainer's ports ----------------------------------------------------------------------------------------

    def _report(self, report: WorkerReport) -> None:
        self.trained.update({epoch: examples for epoch, (_, examples) in report.metrics.by_epoch.items()})
        self.dropped += report.metrics.dropped
        for epoch, first, last in report.applied:
            self.dispatcher.applied(report.number, Lease(epoch, first, last))

    def _lease(self, rank: int, dropped: Sequence[Lease]) -> Lease | None:
        for lease in dropped:
            self.dispatcher.drop(rank, lease)
        return self.dispatcher.lease(rank)

    def _snapshot(self, version: ModelVersion) -> None:
        part = part_of_worker(version)
        part = replace(part, params=part.params.copy(), state={name: v.copy() for name, v in part.state.items()})
        rows = {rank: {n: value.clone() for n, value in named.items()} for rank, named in version.buffers.items()}
        self.snapshots.append(([part], rows, version.position))
