"""The training thread of a worker: feed, step, report. It knows an algorithm and a transport, and no Ray."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, StepReport, Work
from trainers.checkpoint import Position
from trainers.elastic.ledger import Lease
from trainers.errors import LossNotFinite
from trainers.feed import Place, leased, synchronous
from trainers.optim.update import Buffers
from trainers.runtime.gate import Gate
from trainers.runtime.messages import Exchange, Tally
from trainers.setup import Setup
from trainers.transport.canonical import block, subtrees
from trainers.transport.protocols import Collectives, ParameterStore


@dataclass
class Ports:
    """Where a trainer's words go. All are called on the training thread."""

    report: Callable[[Tally], None]
    lease: Callable[[], Lease | None]
    snapshot: Callable[[Buffers, dict[int, dict[str, Tensor]], Position, bool], None]
    """Whole parameters and state, batch-norm buffers by virtual rank, where in the data, and whether it is the last;
    only rank 0 of an algorithm without shards calls it."""


@dataclass
class Sums:
    """What has happened since the last report."""

    since: float = field(default_factory=time.perf_counter)
    steps: int = 0
    examples: int = 0
    loss: float = 0.0
    learning_rate: float = 0.0
    data_s: float = 0.0
    communication_s: float = 0.0
    compute_s: float = 0.0
    by_epoch: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, epoch: int, report: StepReport) -> None:
        """Count one step."""
        loss, examples = self.by_epoch.get(epoch, (0.0, 0))
        self.by_epoch[epoch] = (loss + report.loss, examples + report.examples)
        self.steps += 1
        self.examples += report.examples
        self.loss += report.loss
        self.learning_rate = report.learning_rate


class Trainer:
    """One worker's training, from its place in a generation to the end of the run."""

    def __init__(self, setup: Setup, folder: Path, exchange: Exchange, gate: Gate, ports: Ports) -> None:
        self.setup = setup
        self.folder = folder
        self.spec = setup.spec
        self.exchange = exchange
        self.gate = gate
        self.ports = ports
        self.ranks = range(exchange.rank, exchange.rank + 1)  # whose batch-norm buffers it trains
        if self.spec.algorithm.is_synchronous:
            self.ranks = range(*block(setup.order.num_virtual, exchange.rank, exchange.size))
        self.collectives: Collectives | None = None
        self.store: ParameterStore | None = None
        self.sums = Sums()
        self.updates = 0
        self.staleness: Counter[int] = Counter()  # as of the last report

    def train(self) -> None:
        """Run to the end of the spec, or to where the gate closes."""
        start, position = self.setup.begin()
        self._connect()
        context = replace(self.setup.context(start), collectives=self.collectives, store=self.store)
        algorithm = self.spec.algorithm.build(context)
        place = replace(position, updates=0)
        self.sums = Sums()
        works = self._works(position)
        while self.gate.enter():
            if self._has_parameters and self.gate.meets():
                self._snapshot(algorithm, place, last=False)
            begun = time.perf_counter()
            work = next(works, None)
            if work is None:
                break
            fed = time.perf_counter()
            report = algorithm.step(work)
            self._account(work, report, begun, fed)
            place = self._after(place, work, report)
            if self._snapshot_due(place):
                self._snapshot(algorithm, place, last=False)
        algorithm.finish()
        self._report()
        if self._has_parameters:
            self._snapshot(algorithm, place, last=True)

    def close(self) -> None:
        """Wake the training thread out of whatever it waits for. Called from another thread."""
        if self.collectives is not None:
            self.collectives.close()
        if self.store is not None:
            self.store.close()

    # -- connections ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        x, algorithm, shards = self.exchange, self.spec.algorithm, list(self.setup.layout.shards)
        (self.folder / x.folder).mkdir(exist_ok=True)
        if algorithm.uses_parameter_server and (x.group is None or x.group.rank == 0):
            slots = 2
            if algorithm.is_synchronous:
                slots = len(subtrees(self.setup.order.num_virtual, self.ranks.start, self.ranks.stop))
            self.store = connect_store(x, self.folder, shards, slots)
        if algorithm.uses_collectives:
            among = x.group or x
            (self.folder / among.folder).mkdir(exist_ok=True)
            self.collectives = connect_collectives(among, self.folder, self.setup.replica.device)

    @property
    def _has_parameters(self) -> bool:
        """Whether the workers hold the parameters, so that their snapshots are made here and not by the shards."""
        return not self.spec.algorithm.uses_parameter_server

    def _works(self, position: Position) -> Iterator[Work]:
        setup = self.setup
        if not self.spec.algorithm.is_synchronous:
            group = self.exchange.group
            place = Place(self.exchange.rank, group.rank, group.size) if group else Place(self.exchange.rank)
            return leased(setup.dataset, setup.order, iter(self.ports.lease, None), place)
        begin = (position.epoch, position.step)
        return synchronous(setup.dataset, setup.order, self.ranks, self.spec.epochs, begin)

    # -- accounts -------------------------------------------------------------------------------------------------

    def _account(self, work: Work, report: StepReport, begun: float, fed: float) -> None:
        now = time.perf_counter()
        waited = self._waited()
        self.sums.add(work.epoch, report)
        self.sums.data_s += fed - begun
        self.sums.communication_s += waited
        self.sums.compute_s += now - fed - waited
        self.updates += 1
        if not math.isfinite(report.loss):
            raise LossNotFinite(
                f"the loss became {report.loss} in step {self.updates} of epoch {work.epoch + 1} at learning rate "
                f"{report.learning_rate:g}; try a smaller optimizer.lr"
            )
        first_of_epoch = len(self.sums.by_epoch) > 1
        if self.updates == 1 or first_of_epoch or now - self.sums.since >= self.spec.report_every_s:
            self._report()

    def _waited(self) -> float:
        waited = 0.0
        for exchange in (self.collectives, self.store):
            if exchange is not None:
                waited += exchange.waited_s
                exchange.waited_s = 0.0
        return waited

    def _report(self) -> None:
        sums, self.sums = self.sums, Sums()
        applied, staleness = (
            self.store.applied if self.store else [],
            Counter(self.store.staleness if self.store else {}),
        )
        news, self.staleness = staleness - self.staleness, staleness
        self.ports.report(
            Tally(
                rank=self.exchange.rank,
                steps=sums.steps,
                examples=sums.examples,
                loss=sums.loss,
                learning_rate=sums.learning_rate,
                wait_data_s=sums.data_s,
                wait_communication_s=sums.communication_s,
                compute_s=sums.compute_s,
                by_epoch=sums.by_epoch,
                staleness=dict(news),
                applied=tuple((p.identity.epoch, p.identity.first, p.identity.last) for p in applied),
            )
        )

    # -- snapshots ------------------------------------------------------------------------------------------------

    def _after(self, place: Position, work: Work, report: StepReport) -> Position:
        if not self.spec.algorithm.is_synchronous:
            return place
        ends = place.step + 1 == self.setup.order.steps
        return replace(
            place,
            epoch=place.epoch + ends,
            step=0 if ends else place.step + 1,
            updates=self.updates,
            examples=place.examples + work.whole,
            learning_rate=report.learning_rate,
        )

    def _snapshot_due(self, place: Position) -> bool:
        if not self._has_parameters or place.epoch == self.spec.epochs:
            return False  # the shards have it; or the last one is made when all is done
        every = [n for n in (self.spec.evaluate.every_epochs, self.spec.checkpoint.every_epochs) if n]
        return place.step == 0 and any(place.epoch % n == 0 for n in every)

    def _snapshot(self, algorithm: Algorithm, place: Position, last: bool) -> None:
        """All workers gather; rank 0 hands it on."""
        whole = algorithm.whole()
        buffers = self._gather_buffers()
        if self.exchange.rank == 0:
            assert whole is not None
            self.ports.snapshot(whole, buffers, place, last)
        self._waited()  # a snapshot's waiting is no step's

    def _gather_buffers(self) -> dict[int, dict[str, Tensor]]:
        """The batch-norm buffers of all virtual ranks, on rank 0."""
        replica, collectives = self.setup.replica, self.collectives
        assert collectives is not None
        shapes = {name: buffer.shape for name, buffer in replica.initial_buffers.items()}
        if not shapes:
            return {}
        width = sum(shape.numel() for shape in shapes.values())
        mine = [torch.cat([b.flatten().cpu() for b in replica.float_buffers(r).values()]) for r in self.ranks]
        empty = torch.empty(0)
        send = [torch.cat(mine) if k == 0 else empty for k in range(collectives.size)]
        blocks = [range(*block(self.setup.order.num_virtual, k, collectives.size)) for k in range(collectives.size)]
        root = collectives.rank == 0
        receive = [torch.empty(len(ranks) * width if root else 0) for ranks in blocks]
        collectives.all_to_all(send, receive).wait()
        found: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for ranks, rows in zip(blocks, receive, strict=True) if root else ():
            for rank, row in zip(ranks, rows.view(len(ranks), width), strict=True):
                cuts = torch.split(row, [shape.numel() for shape in shapes.values()])
                found[rank] = {name: cut.view(shapes[name]) for name, cut in zip(shapes, cuts, strict=True)}
        return dict(found)


def connect_collectives(x: Exchange, folder: Path, device: torch.device) -> Collectives:
    """The collectives of a generation."""
    if x.transport == "shared_memory":
        from trainers.transport.shared_memory import SharedMemoryCollectives

        return SharedMemoryCollectives(folder / x.folder, x.rank, x.size)
    from trainers.transport.process_group import GroupConfig, ProcessGroupCollectives

    assert x.address is not None
    return ProcessGroupCollectives(GroupConfig(x.address, x.folder, x.rank, x.size, device))


def connect_store(x: Exchange, folder: Path, shards: list[slice], slots: int) -> ParameterStore:
    """A worker's way to the shards of a generation."""
    if x.transport == "shared_memory":
        from trainers.transport.shared_store import SharedMemoryStore

        return SharedMemoryStore(folder / x.folder, x.rank, x.size, shards, slots)
    from trainers.transport.process_group_store import ProcessGroupStore

    assert x.address is not None
    return ProcessGroupStore(x.address, f"g{x.generation}", x.rank, shards, slots)
