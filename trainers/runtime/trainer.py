"""The training thread of a worker in one generation: feed, step, report. It knows an algorithm and a transport, and
no Ray.

A generation ends when all is trained, when the gate closes, or when somebody is missed. What is whole here then, the
next one goes on from.
"""

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Start, StepReport, Work
from trainers.checkpoint import Position
from trainers.elastic.batch import begin_stretch, ramped
from trainers.elastic.ledger import Lease
from trainers.errors import LossNotFinite, PeerLost, StoreClosed
from trainers.feed import Place, leased, synchronous
from trainers.optim.update import Buffers
from trainers.runtime.gate import Gate
from trainers.runtime.messages import Begin, Ended, Exchange, Tally
from trainers.setup import Setup
from trainers.statistics import Statistics, fitted
from trainers.transport.canonical import block, subtrees
from trainers.transport.protocols import Collectives, ParameterStore, Traffic, Waits


@dataclass
class Ports:
    """Where a trainer's words go. All are called on the training thread."""

    report: Callable[[Tally], None]
    lease: Callable[[Sequence[Lease]], Lease | None]
    """Gives back the leases whose gradients were dropped, and asks for the next minibatches."""
    snapshot: Callable[["Version"], None]
    """Only rank 0 of an algorithm without shards calls it."""
    taken: Callable[[int], None]
    """Waits until the version of so many synchronous steps has been taken from the shards."""


@dataclass(frozen=True)
class Version:
    """All that a run without shards goes on from."""

    whole: Buffers
    """Parameters and state, (P,) each."""
    rows: Tensor
    """(V, width) the batch-norm buffers of all virtual ranks."""
    buffers: dict[int, dict[str, Tensor]]
    """The same by virtual rank and name."""
    position: Position


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
    dropped: int = 0
    by_epoch: dict[int, tuple[float, int]] = field(default_factory=dict)
    delays: tuple[int, ...] = ()

    def add(self, epoch: int, report: StepReport) -> None:
        """Count one step."""
        loss, examples = self.by_epoch.get(epoch, (0.0, 0))
        self.by_epoch[epoch] = (loss + report.loss, examples + report.examples)
        self.steps += 1
        self.examples += report.examples
        self.loss += report.loss
        self.dropped += report.dropped
        self.learning_rate = report.learning_rate
        self.delays = report.delays


class Trainer:
    """One worker's training in one generation."""

    def __init__(
        self, setup: Setup, folder: Path, begin: Begin, gate: Gate, ports: Ports, held: Version | None
    ) -> None:
        """held: The newest version that this worker has, if it is to tell the others."""
        self.setup = setup = setup.following(begin.num_virtual or setup.order.num_virtual)
        self.folder = folder
        self.spec = setup.spec
        self.begin = begin
        self.exchange = exchange = begin.exchange
        self.gate = gate
        self.ports = ports
        self.version = held
        self.is_synchronous = self.spec.algorithm.is_synchronous
        self.ranks = range(begin.number, begin.number + 1)  # whose batch-norm buffers it trains
        if self.is_synchronous:
            self.ranks = range(*block(setup.order.num_virtual, exchange.rank, exchange.size))
        self.statistics = Statistics(setup.replica, setup.order.num_virtual, self.ranks)
        self.collectives: Collectives | None = None
        self.store: ParameterStore | None = None
        self.algorithm: Algorithm | None = None
        self.place = Position()
        self.ahead = 0  # steps that the algorithm has finished and this worker has not: 1 while buffers are exchanged
        self.stepping, self.thread = False, 0
        self.sums = Sums()
        self.updates = 0
        self.staleness: Counter[int] = Counter()  # as of the last report
        self.group_staleness: list[Counter[int]] = []  # likewise
        self.told, self.told_shards = Traffic(), Traffic()  # likewise
        self.told_waits = Waits()  # likewise
        self.dropped: list[Lease] = []  # whose minibatches somebody must still train

    def train(self) -> Ended:
        """Train to the end of the run, or to where the gate closes or somebody is missed."""
        lost = ""
        try:
            self._connect()
            self._begin()
            self._steps()
            self._end()
        except (PeerLost, StoreClosed) as error:
            lost = str(error)
            self._rescue()
        finally:
            self.stepping = False  # also where a step was given up: nothing is computed until the next generation
            self.close()
        held = self.version
        position = self.place if held is None else held.position
        states = () if held is None else tuple(held.whole.state)
        return Ended(self.begin.number, asdict(position), lost, held is not None, states)

    def close(self) -> None:
        """Wake the training thread out of whatever it waits for. Called from any thread."""
        self.gate.close()
        if self.collectives is not None:
            self.collectives.close()
        if self.store is not None:
            self.store.close()

    def computes(self) -> bool:
        """Whether the training thread is inside a step and waits for nobody. Called from another thread."""
        frame = sys._current_frames().get(self.thread) if self.stepping else None
        while frame is not None and "/transport/" not in frame.f_code.co_filename:
            frame = frame.f_back
        return self.stepping and frame is None

    # -- a generation ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take up the newest version, from the spec or from the worker that has it."""
        setup, told = self.setup, self.begin.position
        if told is None:
            if self.is_synchronous:
                setup.replica.buffers.clear()
            start, position = setup.begin(self.begin.resume)
            self.place = replace(position, updates=0)
        else:
            self.place = Position(**told)  # type: ignore[arg-type]
            nothing = Buffers(torch.zeros(setup.layout.numel), {})  # filled by who has the version, or not needed
            start = Start(nothing, self.place.examples, self.place.learning_rate)
        if self.spec.scales_batch:
            num_examples = setup.dataset.num_train
            self.place = begin_stretch(self.place, self.spec, setup.order.num_virtual, num_examples)
            schedule = ramped(setup.schedule, self.place, self.spec, num_examples)
            self.setup = setup = replace(setup, schedule=schedule)
        setup.hold(self.ranks, self.place)
        if self.collectives is not None:
            setup.meet(self.collectives)
        if self.is_synchronous and told is None:
            self.statistics.begin(self._clock)
        if self.begin.root is not None:
            start = replace(start, whole=self._receive(self.begin.root, start))
        context = replace(setup.context(start), collectives=self.collectives, store=self.store)
        self.algorithm = self.spec.algorithm.build(context)
        self.version = None  # kept until all have it: who dies before takes nothing along
        self.sums = Sums()

    def _receive(self, root: int, start: Start) -> Buffers:
        """The newest version from the worker `root`."""
        assert self.collectives is not None
        device = self.setup.replica.device
        whole = Buffers(start.whole.params, {name: torch.zeros_like(start.whole.params) for name in self.begin.states})
        rows = self.statistics.version(self._clock)
        if self.exchange.rank == root:
            assert self.version is not None
            whole, rows = self.version.whole, fitted(self.version.rows, len(rows))
        vectors = [vector.to(device) for vector in (whole.params, *(whole.state[name] for name in self.begin.states))]
        for vector in vectors:
            self.collectives.broadcast(vector, root).wait()
        if rows.numel():
            flat = rows.flatten().to(device)
            self.collectives.broadcast(flat, root).wait()
            self.statistics.take(self._clock, flat.view(rows.shape).cpu())
        params, *states = vectors
        return Buffers(params, dict(zip(self.begin.states, states, strict=True)))

    def _steps(self) -> None:
        works = self._works(self.place)
        self._stay()
        while self.gate.enter():
            if self._has_parameters and self.gate.meets():
                self._snapshot()
            begun = time.perf_counter()
            work = next(works, None)
            if work is None:
                break
            fed = time.perf_counter()
            self._account_shuffle()
            self.stepping, self.thread = True, threading.get_ident()
            self._step(work, begun, fed)
            self.stepping = False
            if self._has_parameters and self._snapshot_due(self.place):
                self._snapshot()
            self._stay()

    def _stay(self) -> None:
        """At a version that is to be kept, until it is taken: the shards have it as long as nobody makes the next. But
        first until they have made it: one that dies before must hear of the pushes again."""
        if self.store is not None and self.is_synchronous and self._clock and self._snapshot_due(self.place):
            self.store.settle()
            self.ports.taken(self._clock)

    def _step(self, work: Work, begun: float, fed: float) -> None:
        assert self.algorithm is not None
        if self.is_synchronous:
            self.statistics.turn(self._clock)
        report = self.algorithm.step(work)
        if self.is_synchronous:
            self.ahead = 1
            self.statistics.complete(self._clock + 1)
            self.ahead = 0
        self.updates += 1
        self.place = self._after(self.place, work, report)
        self._account(work, report, begun, fed)
        if report.dropped:
            self.dropped += [Lease(work.epoch, m.index, m.index) for m in work.minibatches]

    def _end(self) -> None:
        """All stop after the same step."""
        assert self.algorithm is not None
        self.algorithm.finish()
        self._report()
        if self._has_parameters:
            whole = self.algorithm.whole()
            if self.exchange.rank == 0 or self.algorithm.newest() is not None:
                assert whole is not None
                self.version = self._version(whole)

    def _rescue(self) -> None:
        """Keep what is whole here, where somebody is missed."""
        newest = self.algorithm.newest(self.ahead) if self.algorithm is not None else None
        if newest is not None:
            self.version = self._version(newest)

    def _version(self, whole: Buffers) -> Version:
        rows = self.statistics.version(self._clock).clone()
        return Version(whole, rows, self.statistics.named(self._clock), self.place)

    @property
    def _clock(self) -> int:
        """Synchronous steps since the beginning of the run."""
        return self.place.updates

    # -- connections ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        x, seat, algorithm = self.exchange, self.begin.seat, self.spec.algorithm
        (self.folder / x.folder).mkdir(exist_ok=True)
        if seat is not None:
            slots = 2
            if self.is_synchronous:
                slots = len(subtrees(self.setup.order.num_virtual, self.ranks.start, self.ranks.stop))
            self.store = connect_store(seat, self.folder, list(self.setup.layout.shards), slots, self.setup.groups)
        if algorithm.uses_collectives:
            self.collectives = connect_collectives(x, self.folder, self.setup.replica.device, lambda: self.gate.closed)
        if self.is_synchronous and self.statistics.width:
            shared = x.transport == "shared_memory"
            file = self.folder / f"buffers-{self.setup.order.num_virtual}"
            self.statistics.open(file if shared else None, self.collectives)

    @property
    def _has_parameters(self) -> bool:
        """Whether the workers hold the parameters, so that their snapshots are made here and not by the shards."""
        return not self.spec.algorithm.uses_parameter_server

    def _works(self, position: Position) -> Iterator[Work]:
        setup = self.setup
        if not self.spec.algorithm.is_synchronous:
            return self._leased(Place(self.begin.number, self.exchange.rank, self.exchange.size))
        begin = (position.epoch, position.first + position.step * setup.order.num_virtual)
        return synchronous(setup.dataset, setup.order, self.ranks, self.spec.epochs, begin)

    def _leased(self, place: Place) -> Iterator[Work]:
        """Until there are no more leases. What is dropped after the last one was asked for is asked for again."""
        while True:
            yield from leased(self.setup.dataset, self.setup.order, iter(self._lease, None), place)
            if not self.dropped:
                return

    def _lease(self) -> Lease | None:
        dropped, self.dropped = self.dropped, []
        return self.ports.lease(dropped)

    # -- accounts -------------------------------------------------------------------------------------------------

    def _account(self, work: Work, report: StepReport, begun: float, fed: float) -> None:
        now = time.perf_counter()
        waited = self._waited()
        self.sums.add(work.epoch, report)
        self.sums.data_s += fed - begun
        self.sums.communication_s += waited
        self.sums.compute_s += now - fed - waited
        if not math.isfinite(report.loss):
            raise LossNotFinite(
                f"the loss became {report.loss} in step {self.updates} of epoch {work.epoch + 1} at learning rate "
                f"{report.learning_rate:g}; try a smaller optimizer.lr"
            )
        first_of_epoch = len(self.sums.by_epoch) > 1
        if self.updates == 1 or first_of_epoch or now - self.sums.since >= self.spec.report_every_s:
            self._report()

    def _account_shuffle(self) -> None:
        """What the feed waited for other workers, while examples moved, is communication."""
        waited = self._waited()
        self.sums.communication_s += waited
        self.sums.data_s -= waited

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
        group_news = self._group_staleness()
        traffic, told = self._traffic(self.collectives, self.store), self.told
        shards, told_shards = self._traffic(self.store), self.told_shards
        self.told, self.told_shards = traffic, shards
        waits, told_waits = replace(self.store.waits) if self.store else Waits(), self.told_waits
        self.told_waits = waits
        self.ports.report(
            Tally(
                number=self.begin.number,
                generation=self.exchange.generation,
                steps=sums.steps,
                examples=sums.examples,
                loss=sums.loss,
                learning_rate=sums.learning_rate,
                wait_data_s=sums.data_s,
                wait_communication_s=sums.communication_s,
                compute_s=sums.compute_s,
                by_epoch=sums.by_epoch,
                sent_bytes=traffic.sent_bytes - told.sent_bytes,
                received_bytes=traffic.received_bytes - told.received_bytes,
                pushed_bytes=shards.sent_bytes - told_shards.sent_bytes,
                fetched_bytes=shards.received_bytes - told_shards.received_bytes,
                fetches=waits.fetches - told_waits.fetches,
                wait_fetch_s=waits.fetch_s - told_waits.fetch_s,
                pushes=waits.pushes - told_waits.pushes,
                wait_push_s=waits.push_s - told_waits.push_s,
                dropped=sums.dropped,
                updates=self.place.updates if self.is_synchronous else self.store.updates if self.store else 0,
                shuffled_bytes=traffic.shuffled_bytes - told.shuffled_bytes,
                crossed_bytes=traffic.crossed_bytes - told.crossed_bytes,
                staleness=dict(news),
                group_staleness=group_news,
                delays=sums.delays,
                reached=self.place.examples if self.is_synchronous else 0,
                applied=tuple((p.identity.epoch, p.identity.first, p.identity.last) for p in applied),
            )
        )

    def _group_staleness(self) -> tuple[dict[int, int], ...]:
        """What is new in each group of parameters; nothing where there is one."""
        if self.store is None or len(self.setup.groups) < 2:
            return ()
        counts = [Counter(found) for found in self.store.group_staleness]
        before, self.group_staleness = self.group_staleness or [Counter() for _ in counts], counts
        return tuple(dict(now - then) for now, then in zip(counts, before, strict=True))

    def _traffic(self, *exchanges: Collectives | ParameterStore | None) -> Traffic:
        moved = [exchange.traffic for exchange in exchanges if exchange is not None]
        sent, received = sum(t.sent_bytes for t in moved), sum(t.received_bytes for t in moved)
        shuffled, crossed = sum(t.shuffled_bytes for t in moved), sum(t.crossed_bytes for t in moved)
        return Traffic(sent, received, shuffled, crossed)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def _after(self, place: Position, work: Work, report: StepReport) -> Position:
        if not self.is_synchronous:
            return place
        ends = work.ends_epoch
        return replace(
            place,
            epoch=place.epoch + ends,
            step=0 if ends else place.step + 1,
            first=0 if ends else place.first,
            updates=place.updates + 1,
            examples=place.examples + work.whole,
            learning_rate=report.learning_rate,
        )

    def _snapshot_due(self, place: Position) -> bool:
        if place.epoch == self.spec.epochs:
            return False  # the last one is made when all is done
        every = [n for n in (self.spec.evaluate.every_epochs, self.spec.checkpoint.every_epochs) if n]
        return place.step == 0 and any(place.epoch % n == 0 for n in every)

    def _snapshot(self) -> None:
        """All workers gather; rank 0 hands it on."""
        assert self.algorithm is not None
        whole = self.algorithm.whole()
        if self.exchange.rank == 0:
            assert whole is not None
            self.ports.snapshot(self._version(whole))
        self._waited()  # a snapshot's waiting is no step's


def connect_collectives(
    x: Exchange, folder: Path, device: torch.device, given_up: Callable[[], bool] = lambda: False
) -> Collectives:
    """The collectives of a generation. given_up: Whether to wait for its workers no longer."""
    if x.transport == "shared_memory":
        from trainers.transport.shared_memory import SharedMemoryCollectives

        return SharedMemoryCollectives(folder / x.folder, x.rank, x.size, given_up)
    from trainers.transport.process_group import GroupConfig, ProcessGroupCollectives

    assert x.address is not None
    config = GroupConfig(x.address, x.folder, x.rank, x.size, device, nodes=x.nodes)
    if x.transport == "process_group":
        return ProcessGroupCollectives(config, given_up)
    from trainers.transport.composed import join_composed

    own = folder / x.folder / f"node-{x.nodes[x.rank]}"  # nodes may be one machine's, and its memory one file system
    own.mkdir(exist_ok=True)
    return join_composed(config, own, given_up)


def connect_store(
    x: Exchange, folder: Path, shards: list[slice], slots: int, groups: Sequence[slice] = ()
) -> ParameterStore:
    """A worker's way to the shards."""
    if x.transport == "shared_memory":
        from trainers.transport.shared_store import SharedMemoryStore

        return SharedMemoryStore(folder / x.folder, x.rank, shards, slots, groups)
    if x.transport == "object_store":
        from trainers.runtime.object_store import ObjectStore, named

        return ObjectStore(named(x.folder), x.rank, shards, slots, groups)
    from trainers.transport.process_group_store import ProcessGroupStore

    assert x.address is not None
    return ProcessGroupStore(x.address, f"g{x.generation}", x.rank, shards, slots, groups)
