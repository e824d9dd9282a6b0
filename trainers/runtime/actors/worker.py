"""The worker actor: a training loop on one thread, control methods on others."""

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from trainers.elastic.heartbeat import Heartbeat
from trainers.elastic.lease_table import Lease
from trainers.errors import PeerLost
from trainers.runtime.actors.base import BaseActor, fix_workspace, limit_threads, use_code
from trainers.runtime.actors.callbacks import check as check_callbacks
from trainers.runtime.actors.cores import core_map, keep_to
from trainers.runtime.gone import GONE
from trainers.runtime.memory import memory_kills
from trainers.runtime.messages import Prepared, WorkerStatus
from trainers.runtime.node_folder import node_folder
from trainers.runtime.ray_data.blocks import RowsOfRun
from trainers.spec import TrainSpec
from trainers.training.messages import GenerationEnd, GenerationStart, Traced, WorkerReport
from trainers.training.position import Position
from trainers.training.step_gate import StepGate
from trainers.training.step_tracer import StepTracer

if TYPE_CHECKING:
    from trainers.models.module_buffers import Named
    from trainers.training.loop import ModelVersion, TrainingLoop

GROUPS = {"train": 1, "control": 4}
GATE_LOOK_S = 0.05
WAKE_S = 15.0
"""A training thread that still waits for others so long after it was woken out of that is of no use any more."""


class Worker(BaseActor):
    """Trains one block of virtual workers, or one asynchronous replica."""

    def __init__(
        self, name: str, job_id: str, spec: TrainSpec, coordinator: Any, *, coordinator_name: str | None = None
    ) -> None:
        super().__init__(name, job_id, coordinator_name)
        self.data_folder = node_folder(job_id)
        self.take_up(job_id, spec, coordinator)

    def take_up(self, job_id: str, spec: TrainSpec, coordinator: Any) -> None:
        """Forget the run before, if there was one, and belong to this one."""
        if self.setup is not None:
            self.setup.dataset.close()
        self.job_id = job_id
        self.spec = spec
        self.coordinator = coordinator
        self.gates: defaultdict[int, StepGate] = defaultdict(StepGate)  # by generation, whoever comes to one first
        self.folder = node_folder(job_id)
        self.setup = None
        self.prepared: Prepared | None = None
        self.trainer: TrainingLoop | None = None
        self.ended: GenerationEnd | None = None  # how the last generation ended
        self.idle = threading.Event()  # set while none is trained
        self.idle.set()
        self.incarnation = 0  # of the last coordinator that this worker has answered
        self.beginning = threading.Lock()
        self.version: ModelVersion | None = None  # the newest that this worker can tell others
        self.leases: deque[Lease | None] = deque()
        self.ahead: Any = None  # the next leases, asked for before they are needed
        self.handed_over: list[Any] = []  # the last snapshot, on its way to the evaluator
        self.reports: deque[Any] = deque(maxlen=64)  # the last ones, on their way to the coordinator
        self.tracer = StepTracer()

    def prepare(self, chooses: bool, tries: bool) -> Prepared:
        """Load the data, build the model, and say what the coordinator must know of them.

        Args:
            chooses: Measure which library multiplies faster, for all workers, where no checkpoint says it.
            tries: Look at the callbacks, and train one minibatch, which is thrown away.

        Raises:
            SpecRejected: The data, the model or the machine do not allow the spec.
        """
        use_code(self.spec.code is not None)
        limit_threads(self.spec.workers.threads)
        fix_workspace()
        if tries:
            check_callbacks(self.spec.callbacks)
        self.note("imports torch")
        from trainers.training.products import with_products
        from trainers.training.setup import check, set_up

        setup = self.setup = set_up(self.spec, self.data_folder, self.note, RowsOfRun(self.job_id, self.spec.data))
        if tries:
            self.note("compiles the model" if self.spec.model.compile else "tries the spec on one minibatch")
            check(setup)
        layout = setup.run_layout()
        if chooses:
            self.note("measures which library multiplies faster")
            layout = with_products(setup, layout)
        self.note("is ready")
        self.prepared = Prepared(**vars(layout), place=self.place(), cores=core_map(), memory_kills=memory_kills())
        return self.prepared

    def initial(self) -> dict[str, np.ndarray]:
        """The first version of the parameters (`params`) and of the rule's states, (P,) each, for the shards."""
        assert self.setup is not None
        start, _ = self.setup.begin()
        return {"params": start.buffers.params.numpy()} | {k: v.numpy() for k, v in start.buffers.state.items()}

    def train(self, begin: GenerationStart) -> GenerationEnd:
        """Train one generation; returns when this worker has nothing left to do in it, or misses somebody."""
        from trainers.training.loop import Ports, TrainingLoop

        setup = self.setup  # this run's: a later one may have taken up the worker when this one ends
        assert setup is not None
        self.leases, self.ahead = deque(), None  # those of a generation before were given to others
        ports = Ports(self._report, self._lease, self._snapshot, self._taken, self.tracer)
        gate = self.gates[begin.endpoint.generation]
        with self.beginning:
            if begin.incarnation < self.incarnation:  # said by a coordinator that died before it was heard
                return GenerationEnd(begin.number, Position(), "another coordinator has taken over")
            trainer = self.trainer = TrainingLoop(setup, self.folder, begin, gate, ports, self.version)
            self.prepared = None if self.prepared is None else replace(self.prepared, products=begin.products)
            self.idle.clear()
        keep_to(begin.cpus)
        try:
            self.ended = ended = trainer.train()
            self.version = trainer.version
        finally:
            self.idle.set()
        with suppress(*GONE):  # a coordinator that died; the next one asks for what it needs
            ray.get([*self.reports, *self.handed_over])  # it must know all before it hears that this is over
        return ended

    def heartbeat(self) -> Heartbeat:
        """What the worker does, and how far it is."""
        trainer, beat = self.trainer, super().heartbeat()
        if trainer is None:
            return beat
        generation = trainer.endpoint.generation
        from trainers.models.passes.compiled import is_compiling

        begun, computes = self.gates[generation].begun, trainer.computes() and not is_compiling()
        return replace(beat, generation=generation, begun=begun, computes=computes)

    def hold(self, generation: int) -> int:
        """Begin no further step; how many were begun."""
        return self.gates[generation].hold()

    def release(self, generation: int, limit: int | None, meeting: int | None) -> None:
        """Go on, up to `limit` steps in all; make a snapshot after step number `meeting`."""
        self.gates[generation].release(limit, meeting)

    def begin_trace(self, steps: int) -> None:
        """Record the next steps, from the next one on."""
        assert self.setup is not None
        self.tracer.begin(steps, uses_gpu=self.setup.replica.device.type == "cuda")

    def traced(self, within_s: float) -> Traced:
        """How far that is; answered within so many seconds, and at once when it is over."""
        return self.tracer.look(within_s, self.name)

    def end_trace(self) -> None:
        """Record no further step."""
        self.tracer.give_up("")

    def resign(self, incarnation: int) -> WorkerStatus | None:
        """End the generation under way, whatever it is, for a coordinator that took another's place, and begin none
        that came before its `incarnation`. None where this worker was never ready, or cannot be woken."""
        with self.beginning:
            self.incarnation = max(self.incarnation, incarnation)
            trainer = self.trainer
        if self.prepared is None:
            return None
        if trainer is None:
            return WorkerStatus(self.prepared, None, -1, -1)
        begin = trainer.begin
        self.close(begin.endpoint.generation)
        while not self.idle.wait(WAKE_S):
            if not trainer.computes():
                return None
        store_worker = begin.store.worker if begin.store is not None else -1
        return WorkerStatus(self.prepared, self.ended, begin.endpoint.generation, store_worker)

    def hand_over(self) -> list[Any]:
        """References to the parts and the buffers of the newest version, as a snapshot has them."""
        assert self.version is not None
        return _references(self.version)

    def buffers(self) -> "dict[int, Named]":
        """The buffers of the virtual ranks that this worker trains; a checkpoint brought it all of them."""
        assert self.setup is not None
        ranks = self.trainer.ranks if self.trainer else range(0)
        found = [(rank, named) for rank, named in list(self.setup.replica.buffers.items()) if rank in ranks]
        return {rank: {n: b.to("cpu", copy=True) for n, b in named.items()} for rank, named in found if named}

    def cleanup(self) -> None:
        """Let go of the data, and remove the run's folder on this node."""
        if self.setup is not None:
            self.setup.dataset.close()
        super().cleanup()

    def close(self, generation: int) -> None:
        """Wake the training thread of a generation out of whatever it waits for."""
        self.gates[generation].close()
        if self.trainer is not None and self.trainer.endpoint.generation == generation:
            self.trainer.close()

    # -- the trainer's ports --------------------------------------------------------------------------------------

    def _report(self, report: WorkerReport) -> None:
        self.reports.append(self.coordinator.report.remote(report))

    def _lease(self, dropped: Sequence[Lease]) -> Lease | None:
        """The next lease. One request is under way at any time, because an async actor may answer several in any
        order, and one worker must train in the order of the epoch. Where gradients may be dropped none is made ahead:
        nobody else can train what a slow worker holds."""
        assert self.trainer is not None
        me = (self.trainer.begin.number, self.trainer.endpoint.generation)
        if not self.leases:
            try:
                self.leases.extend(ray.get(self.ahead or self.coordinator.lease.remote(*me, dropped)))
            except GONE:
                raise PeerLost("the coordinator died") from None
            if not self.leases:
                raise PeerLost("another coordinator is about to take over")
            if not self.spec.algorithm.traits.num_backup:
                self.ahead = self.coordinator.lease.remote(*me)
        return self.leases.popleft()

    def _snapshot(self, version: "ModelVersion") -> None:
        with suppress(*GONE):
            ray.get(
                self.handed_over
            )  # an evaluator that lags behind the epochs slows them down rather than fill the store
        # The vectors are copied into Ray's store here, before the next step writes over them.
        self.handed_over = [self.coordinator.take_snapshot.remote(*_references(version), version.position)]

    def _taken(self, version: int) -> None:
        assert self.trainer is not None
        gate, taken = self.gates[self.trainer.endpoint.generation], self.coordinator.taken.remote(version)
        while not gate.closed:
            if ray.wait([taken], timeout=GATE_LOOK_S)[0]:
                try:
                    ray.get(taken)
                except GONE:
                    raise PeerLost("the coordinator died") from None
                return


def _references(version: "ModelVersion") -> list[Any]:
    from trainers.training.version_parts import part_of_worker

    rows = {rank: {n: b.cpu() for n, b in named.items()} for rank, named in version.buffers.items()}
    return [[ray.put(part_of_worker(version))], [ray.put(rows)]]
