"""Runs on the local transport through what a run on Ray goes through: trainers, feed, leases, checkpoint files.

Only Ray, the processes and the sockets are left out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from trainers.checkpoint import Position, write_checkpoint
from trainers.elastic.ledger import Desk, Lease, Ledger
from trainers.runtime import trainer as trainer_module
from trainers.runtime.books import already_applied
from trainers.runtime.evaluator import Evaluator
from trainers.runtime.gate import Gate
from trainers.runtime.messages import Begin, Exchange, Place, Prepared, Tally
from trainers.runtime.shard import ShardActor, first_slice, slice_of
from trainers.runtime.trainer import Ports, Trainer, Version
from trainers.setup import Setup, set_up
from trainers.spec import TrainSpec
from trainers.store.groups import Piece
from trainers.transport.local import LocalCollectives, LocalGroup, LocalServer, LocalStore, LocalWorld
from trainers.transport.shard_memory import Plan

PLACE = Place("local", "here", "127.0.0.1", 0)


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
    snapshots: list[tuple[list[dict[str, Any]], dict[int, dict[str, Tensor]], Position]] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = self.spec.workers.count
        self.folder.mkdir(parents=True)
        self.setups = [set_up(self.spec, None) for _ in range(count)]
        self.start, self.position = self.setups[0].begin()
        self.world = LocalWorld(self.seed)
        self.groups = self.spec.algorithm.groups(["here"] * count)
        self.desk = Desk(self._ledger(), self.groups)
        self.lines: dict[str, LocalGroup] = {}  # by the folder of a group
        self.shards = self._shards() if self.spec.algorithm.uses_parameter_server else []
        self.server = LocalServer(self.world, self.shards)

    def train(self, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Train to the end. Returns the folder of the last checkpoint."""
        monkeypatch.setattr(trainer_module, "connect_store", lambda x, *_: LocalStore(self.server, x.rank))
        monkeypatch.setattr(trainer_module, "connect_collectives", self._connect)
        trainers = [self._trainer(rank, setup) for rank, setup in enumerate(self.setups)]
        self.world.run([trainer.train for trainer in trainers])
        last = trainers[0].version
        if last is not None:
            self._snapshot(last)
        if self.server.shards:
            steps = max(trainer.updates for trainer in trainers)
            buffers = {rank: named for t in trainers for rank, named in t.setup.replica.buffers.items()}
            self.snapshots.append(([slice_of(pieces) for pieces in self.shards], buffers, self._position(steps)))
        evaluator = object.__new__(Evaluator)  # no actor: it has no lease on its life
        evaluator.spec, evaluator.setup = self.spec, self.setups[0]
        parts, rows, position = self.snapshots[-1]
        checkpoint = evaluator._checkpoint(parts, rows, asdict(position))
        write_checkpoint(self.folder / "checkpoint", checkpoint)
        return self.folder / "checkpoint"

    # -- a run's parts --------------------------------------------------------------------------------------------

    def _trainer(self, rank: int, setup: Setup) -> Trainer:
        gate = Gate()
        gate.release(self.limit)
        algorithm, seat = self.spec.algorithm, None
        i = next(i for i, ranks in enumerate(self.groups) if rank in ranks)
        within = self.groups[i].index(rank)
        if algorithm.uses_parameter_server and (within == 0 or not algorithm.uses_collectives):
            seat = Exchange("local", "shards", rank, len(self.setups))
        begin = Begin(rank, Exchange("local", f"g-{i}", within, len(self.groups[i])), seat=seat)
        ports = Ports(self._report, lambda dropped: self._lease(rank, dropped), self._snapshot, lambda clock: None)
        return Trainer(setup, self.folder, begin, gate, ports, None)

    def _connect(self, x: Exchange, *_: object) -> LocalCollectives:
        members = self.groups[int(x.folder.rpartition("-")[2])]
        return LocalCollectives(self.lines.setdefault(x.folder, LocalGroup(self.world, members)), x.rank)

    def _ledger(self) -> Ledger:
        order, spec = self.setups[0].order, self.spec
        size = 1 if spec.algorithm.num_backup else 2 * max(map(len, self.groups))
        return Ledger(order, spec.epochs, size, already_applied(self._prepared(), order, spec), size)

    def _prepared(self) -> Prepared:
        setup = self.setups[0]
        order, layout = setup.order, setup.layout
        cuts = tuple((cut.start, cut.stop) for cut in layout.shards)
        exempt = tuple((part.start, part.stop) for part in setup.exempt)
        position = asdict(self.position)
        numbers = order.num_examples, order.minibatches, order.steps, layout.numel
        groups = tuple((group.start, group.stop) for group in setup.groups)
        return Prepared(PLACE, *numbers, cuts, "cpu", position, exempt, groups)

    def _shards(self) -> list[dict[int, Piece]]:
        found, whole = [], self.start.whole
        for index in range(len(self.setups[0].layout.shards)):
            actor = object.__new__(ShardActor)
            actor.spec, actor.index = self.spec, index
            plan, prepared = Plan(Path(), index, self.spec.workers.count, replicas=1), self._prepared()
            pieces = actor._pieces(plan, prepared, is_shared=False)
            start = {"params": whole.params.numpy()} | {name: vector.numpy() for name, vector in whole.state.items()}
            for group, piece in pieces.items():
                actor._begin(piece, group, prepared, first_slice(prepared, index, start), recovers=False)
            found.append(pieces)
        return found

    def _position(self, steps: int) -> Position:
        order, examples = self.setups[0].order, self.server.shards[0].examples
        if not self.spec.algorithm.is_synchronous:
            return Position(self.desk.ledger.epochs_done(), 0, 0, examples)
        epoch, step = divmod(self.position.epoch * order.steps + self.position.step + steps, order.steps)
        return Position(epoch, step, steps, examples)

    # -- a trainer's ports ----------------------------------------------------------------------------------------

    def _report(self, tally: Tally) -> None:
        self.trained.update({epoch: examples for epoch, (_, examples) in tally.by_epoch.items()})
        self.dropped += tally.dropped
        for epoch, first, last in tally.applied:
            self.desk.applied(tally.number, Lease(epoch, first, last))

    def _lease(self, rank: int, dropped: Sequence[Lease]) -> Lease | None:
        for lease in dropped:
            self.desk.drop(rank, lease)
        return self.desk.lease(rank)

    def _snapshot(self, version: Version) -> None:
        whole, at = version.whole, version.position
        part = {
            "start": 0,
            "params": whole.params.numpy().copy(),
            "state": {name: vector.numpy().copy() for name, vector in whole.state.items()},
            "applied": (),
            "examples": at.examples,
            "learning_rate": at.learning_rate,
        }
        rows = {rank: {n: value.clone() for n, value in named.items()} for rank, named in version.buffers.items()}
        self.snapshots.append(([part], rows, at))
