"""The training thread of a worker in one generation: feed, step, report. It knows an algorithm and a transport, and
no Ray.

A generation ends when all is trained, when the gate closes, or when somebody is missed. What is whole here then, the
next one goes on from.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Start, StepReport, Work
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block, subtrees
from trainers.elastic.lease_table import Lease
from trainers.errors import PeerLost, StoreClosed
from trainers.links.waiting import WaitFlag, wait_flag
from trainers.models.products.threads import use_threads
from trainers.optim.buffers import Buffers
from trainers.optim.loss_scale import LossScale
from trainers.parameter_server.protocol import ParameterStore
from trainers.spans import span
from trainers.training.batch_ramp import begin_stretch, ramped
from trainers.training.messages import GenerationEnd, GenerationStart, WorkerReport
from trainers.training.position import Position
from trainers.training.rank_buffers import RankBuffers
from trainers.training.reporter import Reporter
from trainers.training.setup import Setup
from trainers.training.step_gate import StepGate
from trainers.training.step_tracer import StepTracer
from trainers.training.work import GroupPosition, leased, synchronous


@dataclass
class Ports:
    """Where a trainer's words go. All are called on the training thread."""

    report: Callable[[WorkerReport], None]
    lease: Callable[[Sequence[Lease]], Lease | None]
    """Gives back the leases whose gradients were dropped, and asks for the next minibatches."""
    snapshot: Callable[["ModelVersion"], None]
    """Only rank 0 of an algorithm without shards calls it."""
    taken: Callable[[int], None]
    """Waits until the version of so many synchronous steps has been taken from the shards."""
    tracer: StepTracer = field(default_factory=StepTracer)
    """Looks on, where somebody asks for a trace."""


@dataclass(frozen=True)
class ModelVersion:
    """All that a run without shards goes on from."""

    whole: Buffers
    """Parameters and state, (P,) each."""
    rows: Tensor
    """(V, width) the buffers of all virtual ranks."""
    buffers: dict[int, dict[str, Tensor]]
    """The same by virtual rank and name."""
    position: Position


class TrainingLoop:
    """One worker's training in one generation."""

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        begin: GenerationStart,
        gate: StepGate,
        ports: Ports,
        held: ModelVersion | None,
    ) -> None:
        """held: The newest version that this worker has, if it is to tell the others."""
        self.setup = setup = setup.following(begin.num_virtual or setup.order.num_virtual)
        self.folder = folder
        self.spec = setup.spec
        self.extent = setup.spec.extent(setup.dataset.num_train)
        self.begin = begin
        self.endpoint = endpoint = begin.endpoint
        self.gate = gate
        self.ports = ports
        self.version = held
        traits = self.spec.algorithm.traits
        self.is_synchronous = traits.is_synchronous
        self.has_parameters = not traits.uses_parameter_server
        """Whether the workers hold the parameters, so that their snapshots are made here and not by the shards."""
        self.ranks = range(begin.number, begin.number + 1)  # whose buffers it trains
        if self.is_synchronous:
            self.ranks = range(*block(setup.order.num_virtual, endpoint.rank, endpoint.size))
        setup.replica.multiply_as(begin.products)
        self.buffers = RankBuffers(setup.replica, setup.order.num_virtual, self.ranks)
        self.collectives: Collectives | None = None
        self.store: ParameterStore | None = None
        self.algorithm: Algorithm | None = None
        self.place = Position()
        self.ahead = 0  # steps that the algorithm has finished and this worker has not: 1 while buffers are exchanged
        self.stepping = False
        self.waiting = WaitFlag()  # the training thread's, once there is one
        self.reporter = Reporter(begin, ports.report, self.spec.report_every_s)
        self.dropped: list[Lease] = []  # whose minibatches somebody must still train

    def train(self) -> GenerationEnd:
        """Train to the end of the run, or to where the gate closes or somebody is missed."""
        lost, self.waiting = "", wait_flag()
        use_threads(self.spec.workers.threads)
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
            self.ports.tracer.leave(lost)
            self.close()
        held = self.version
        position = self.place if held is None else held.position
        states = () if held is None else tuple(held.whole.state)
        return GenerationEnd(self.begin.number, position, lost, held is not None, states)

    def close(self) -> None:
        """Wake the training thread out of whatever it waits for. Called from any thread."""
        self.gate.close()
        if self.collectives is not None:
            self.collectives.close()
        if self.store is not None:
            self.store.close()

    def computes(self) -> bool:
        """Whether the training thread is inside a step and waits for no peer. Called from another thread."""
        return self.stepping and not self.waiting.is_raised

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
            self.place = told
            nothing = Buffers(torch.zeros(setup.layout.numel), {})  # filled by who has the version, or not needed
            scale = LossScale(told.loss_scale, told.scaled_updates)
            start = Start(nothing, told.examples, told.learning_rate, scale)
        if self.spec.scales_batch:
            num_examples = setup.dataset.num_train
            self.place = begin_stretch(self.place, self.spec, setup.order.num_virtual, num_examples)
            schedule = ramped(setup.schedule, self.place, self.spec, num_examples)
            self.setup = setup = replace(setup, schedule=schedule)
        setup.hold(self.ranks, self.place)
        if self.collectives is not None:
            setup.meet(self.collectives)
        if self.is_synchronous and told is None:
            self.buffers.begin(self._clock)
        if self.begin.root is not None:
            start = replace(start, buffers=self._receive(self.begin.root, start))
        context = replace(setup.context(start), collectives=self.collectives, store=self.store)
        self.algorithm = self.spec.algorithm.build(context)
        start.let_go()
        self.version = None  # kept until all have it: who dies before takes nothing along
        self.reporter.restart()

    def _receive(self, root: int, start: Start) -> Buffers:
        """The newest version from the worker `root`."""
        assert self.collectives is not None
        device = self.collectives.device
        whole = Buffers(
            start.buffers.params, {name: torch.zeros_like(start.buffers.params) for name in self.begin.states}
        )
        rows = self.buffers.version(self._clock)
        if self.endpoint.rank == root:
            assert self.version is not None
            whole, rows = self.version.whole, self.buffers.layout.fitted(self.version.rows, len(rows))
        vectors = [vector.to(device) for vector in (whole.params, *(whole.state[name] for name in self.begin.states))]
        for vector in vectors:
            self.collectives.broadcast(vector, root).wait()
        if rows.numel():
            flat = rows.flatten().to(device)
            self.collectives.broadcast(flat, root).wait()
            self.buffers.take(self._clock, flat.view(rows.shape).cpu())
        params, *states = vectors
        return Buffers(params, dict(zip(self.begin.states, states, strict=True)))

    def _steps(self) -> None:
        works = self._works(self.place)
        self._stay()
        while self.gate.enter():
            if self.has_parameters and self.gate.meets():
                self._snapshot()
            self.reporter.count_wait()
            self.ports.tracer.turn()
            with span("step"):
                if (work := self._next(works)) is None:
                    break
                self.stepping = True
                self._step(work)
                self.stepping = False
            self.ports.tracer.count()
            if self.has_parameters and self._snapshot_due(self.place):
                self._snapshot()
            self._stay()

    def _next(self, works: Iterator[Work]) -> Work | None:
        begun = time.perf_counter()
        with span("data"):
            work = next(works, None)
        if work is not None:
            self.reporter.count_data(time.perf_counter() - begun)
        return work

    def _stay(self) -> None:
        """At a version that is to be kept, until it is taken: the shards have it as long as nobody makes the next. But
        first until they have made it: one that dies before must hear of the pushes again."""
        if self.store is not None and self.is_synchronous and self._clock and self._snapshot_due(self.place):
            self.store.settle()
            self.ports.taken(self._clock)

    def _step(self, work: Work) -> None:
        assert self.algorithm is not None
        begun = time.perf_counter()
        if self.is_synchronous:
            self.buffers.turn(self._clock)
        report = self.algorithm.step(work)
        if self.is_synchronous:
            self.ahead = 1
            with span("buffers"):
                self.buffers.complete(self._clock + 1)
            self.ahead = 0
        self.place = self._after(self.place, work, report)
        self.reporter.skipped += work.skipped
        self.reporter.count_step(work.epoch, report, time.perf_counter() - begun)
        if self.reporter.is_due:
            self._report(waits=work.ends_epoch)
        if report.dropped:
            self.dropped += [Lease(work.epoch, m.index, m.index) for m in work.minibatches]

    def _end(self) -> None:
        """All stop after the same step."""
        assert self.algorithm is not None
        self.algorithm.finish()
        self._report(waits=True)
        if self.has_parameters:
            whole = self.algorithm.gather_state()
            if self.endpoint.rank == 0 or self.algorithm.local_state() is not None:
                assert whole is not None
                self.version = self._version(whole)

    def _rescue(self) -> None:
        """Keep what is whole here, where somebody is missed."""
        newest = self.algorithm.local_state(self.ahead) if self.algorithm is not None else None
        if newest is not None:
            self.version = self._version(newest)

    def _version(self, whole: Buffers) -> ModelVersion:
        rows = self.buffers.version(self._clock).clone()
        return ModelVersion(whole, rows, self.buffers.named(self._clock), self.place)

    @property
    def _clock(self) -> int:
        """Synchronous steps since the beginning of the run."""
        return self.place.updates

    # -- connections ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        setup, ranks = self.setup, self.ranks
        if self.begin.store is not None:
            slots = len(subtrees(setup.order.num_virtual, ranks.start, ranks.stop)) if self.is_synchronous else 2
            self.store = self.begin.store.connect(self.folder, setup.layout.shards, slots, setup.groups)
        self.collectives = self.endpoint.connect(self.folder, setup.replica.device, lambda: self.gate.closed)
        self.reporter.connect(self.collectives, self.store)
        if self.is_synchronous and self.buffers.width:
            file = self.folder / f"buffers-{setup.order.num_virtual}"
            self.buffers.open(file if self.endpoint.shares_memory else None, self.collectives)

    def _works(self, position: Position) -> Iterator[Work]:
        setup = self.setup
        if not self.is_synchronous:
            return self._leased(GroupPosition(self.begin.number, self.endpoint.rank, self.endpoint.size))
        begin = (position.epoch, position.first + position.step * setup.order.num_virtual)
        return synchronous(setup.dataset, setup.order, self.ranks, self.extent.epochs, begin, self.extent.minibatches)

    def _leased(self, place: GroupPosition) -> Iterator[Work]:
        """Until there are no more leases. What is dropped after the last one was asked for is asked for again."""
        while True:
            yield from leased(self.setup.dataset, self.setup.order, iter(self._lease, None), place)
            if not self.dropped:
                return

    def _lease(self) -> Lease | None:
        dropped, self.dropped = self.dropped, []
        return self.ports.lease(dropped)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def _after(self, place: Position, work: Work, report: StepReport) -> Position:
        if not self.is_synchronous:
            return place
        ends = work.ends_epoch
        return place.after(
            epoch=place.epoch + ends,
            step=0 if ends else place.step + 1,
            first=0 if ends else place.first,
            updates=place.updates + 1,
            examples=place.examples + work.total_examples,
            learning_rate=report.learning_rate,
            loss_scale=report.loss_scale.factor,
            scaled_updates=report.loss_scale.updates,
        )

    def _snapshot_due(self, place: Position) -> bool:
        if place.examples == self.extent.examples:
            return False  # the last one is made when all is done
        kept = self.spec.checkpoint.every_epochs
        is_kept = place.step == 0 and bool(kept) and place.epoch % kept == 0
        return is_kept or self.spec.evaluate.is_due(place.epoch, place.step, self.setup.order.steps)

    def _snapshot(self) -> None:
        """All workers gather; rank 0 hands it on."""
        assert self.algorithm is not None
        with span("snapshot"):
            whole = self.algorithm.gather_state()
            if self.endpoint.rank == 0:
                assert whole is not None
                self.ports.snapshot(self._version(whole))
        self.reporter.take_wait_s()  # waiting for a snapshot is no part of a step

    def _report(self, waits: bool = False) -> None:
        if self.is_synchronous:
            scale = self.place.loss_scale if self.spec.precision == "float16" else 0.0
            self.reporter.report(self.place.updates, self.place.examples, scale, waits)
        else:
            self.reporter.report(self.store.updates if self.store is not None else 0, 0, waits=waits)
