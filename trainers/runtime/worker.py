"""The worker actor: a trainer on one thread, control methods on others."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from trainers.elastic.ledger import Lease
from trainers.elastic.pulse import Beat
from trainers.errors import PeerLost
from trainers.runtime.gate import Gate
from trainers.runtime.member import Member, limit_threads, use_code
from trainers.runtime.messages import Begin, Ended, Prepared, Resigned, Tally
from trainers.runtime.node_folder import node_folder
from trainers.spec import TrainSpec

if TYPE_CHECKING:
    from trainers.runtime.trainer import Trainer, Version
    from trainers.setup import Setup

GROUPS = {"train": 1, "control": 4}
GATE_LOOK_S = 0.05


class Worker(Member):
    """Trains one block of virtual workers, or one asynchronous replica."""

    def __init__(self, name: str, job_id: str, spec: TrainSpec, coordinator: Any) -> None:
        super().__init__(name, job_id)
        self.data_folder = node_folder(job_id)
        self.setup: Setup | None = None
        self.take_up(job_id, spec, coordinator)

    def take_up(self, job_id: str, spec: TrainSpec, coordinator: Any) -> None:
        """Forget the run before, if there was one, and belong to this one."""
        self.renewed = time.monotonic()
        if self.setup is not None:
            self.setup.dataset.close()
        self.job_id = job_id
        self.spec = spec
        self.coordinator = coordinator
        self.gates: defaultdict[int, Gate] = defaultdict(Gate)  # by generation, whoever comes to one first
        self.folder = node_folder(job_id)
        self.setup = None
        self.prepared: Prepared | None = None
        self.trainer: Trainer | None = None
        self.ended: Ended | None = None  # how the last generation ended
        self.idle = threading.Event()  # set while none is trained
        self.idle.set()
        self.term = 0  # of the last coordinator that this worker has answered
        self.beginning = threading.Lock()
        self.version: Version | None = None  # the newest that this worker can tell others
        self.leases: deque[Lease | None] = deque()
        self.ahead: Any = None  # the next leases, asked for before they are needed
        self.handed_over: list[Any] = []  # the last snapshot, on its way to the evaluator
        self.told: deque[Any] = deque(maxlen=64)  # what the coordinator was told last

    def prepare(self, checks: bool) -> Prepared:
        """Load the data, build the model, and say what the coordinator must know of them.

        Raises:
            SpecRejected: The data, the model or the machine do not allow the spec; found by one minibatch if `checks`.
        """
        use_code(self.spec.code is not None)
        limit_threads(self.spec.workers.threads)
        from trainers.setup import check, set_up

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        setup = self.setup = set_up(self.spec, self.data_folder)
        if checks:
            check(setup)
        _, position = setup.begin()
        self.prepared = Prepared(
            place=self.place(),
            num_examples=setup.dataset.num_train,
            minibatches=setup.order.minibatches,
            steps=setup.order.steps,
            numel=setup.layout.numel,
            shards=tuple((cut.start, cut.stop) for cut in setup.layout.shards),
            device=str(setup.replica.device),
            position=asdict(position),
            exempt=tuple((part.start, part.stop) for part in setup.exempt),
            groups=tuple((span.start, span.stop) for span in setup.groups),
        )
        return self.prepared

    def initial(self) -> dict[str, np.ndarray]:
        """The first version of the parameters (`params`) and of the rule's states, (P,) each, for the shards."""
        assert self.setup is not None
        start, _ = self.setup.begin()
        return {"params": start.whole.params.numpy()} | {k: v.numpy() for k, v in start.whole.state.items()}

    def train(self, begin: Begin) -> Ended:
        """Train one generation; returns when this worker has nothing left to do in it, or misses somebody."""
        from trainers.runtime.trainer import Ports, Trainer

        setup = self.setup  # this run's: a later one may have taken up the worker when this one ends
        assert setup is not None
        self.leases, self.ahead = deque(), None  # those of a generation before were given to others
        ports = Ports(report=self._report, lease=self._lease, snapshot=self._snapshot, taken=self._taken)
        gate = self.gates[begin.exchange.generation]
        with self.beginning:
            if begin.term < self.term:  # said by a coordinator that died before it was heard
                return Ended(begin.number, {}, "another coordinator has taken over")
            trainer = self.trainer = Trainer(setup, self.folder, begin, gate, ports, self.version)
            self.idle.clear()
        try:
            self.ended = ended = trainer.train()
            self.version = trainer.version
        finally:
            self.idle.set()
        with suppress(ray.exceptions.RayActorError):  # a coordinator that died; the next one asks for what it needs
            ray.get([*self.told, *self.handed_over])  # it must know all before it hears that this is over
        return ended

    def beat(self) -> Beat:
        """The coordinator lives; and what this worker does."""
        self.renew()
        trainer = self.trainer
        if trainer is None:
            return Beat()
        generation = trainer.exchange.generation
        return Beat(generation, self.gates[generation].begun, trainer.computes())

    def hold(self, generation: int) -> int:
        """Begin no further step; how many were begun."""
        return self.gates[generation].hold()

    def release(self, generation: int, limit: int | None, meeting: int | None) -> None:
        """Go on, up to `limit` steps in all; make a snapshot after step number `meeting`."""
        self.gates[generation].release(limit, meeting)

    def resign(self, term: int) -> Resigned | None:
        """End the generation under way, whatever it is, for a coordinator that took another's place, and begin none
        that came before its `term`. None where this worker was never ready."""
        with self.beginning:
            self.term = max(self.term, term)
            trainer = self.trainer
        if self.prepared is None:
            return None
        if trainer is None:
            return Resigned(self.prepared, None, -1, -1)
        begin = trainer.begin
        self.close(begin.exchange.generation)
        self.idle.wait()
        return Resigned(self.prepared, self.ended, begin.exchange.generation, begin.seat.rank if begin.seat else -1)

    def hand_over(self) -> list[Any]:
        """References to the parts and the batch-norm buffers of the newest version, as a snapshot has them."""
        assert self.version is not None
        return _references(self.version)

    def buffers(self) -> dict[int, dict[str, np.ndarray]]:
        """The batch-norm buffers of the virtual ranks that this worker trains; a checkpoint brought it all of them."""
        assert self.setup is not None
        ranks = self.trainer.ranks if self.trainer else range(0)
        found = [(rank, named) for rank, named in list(self.setup.replica.buffers.items()) if rank in ranks]
        return {rank: {n: b.cpu().numpy().copy() for n, b in named.items()} for rank, named in found if named}

    def sweep(self) -> None:
        """Let go of the data, and remove the run's folder on this node."""
        if self.setup is not None:
            self.setup.dataset.close()
        super().sweep()

    def close(self, generation: int) -> None:
        """Wake the training thread of a generation out of whatever it waits for."""
        self.gates[generation].close()
        if self.trainer is not None and self.trainer.exchange.generation == generation:
            self.trainer.close()

    # -- the trainer's ports --------------------------------------------------------------------------------------

    def _report(self, tally: Tally) -> None:
        self.told.append(self.coordinator.report.remote(tally))

    def _lease(self, dropped: Sequence[Lease]) -> Lease | None:
        """The next lease. One request is under way at any time, because an async actor may answer several in any
        order, and one worker must train in the order of the epoch. Where gradients may be dropped none is made ahead:
        nobody else can train what a slow worker holds."""
        assert self.trainer is not None
        me = (self.trainer.begin.number, self.trainer.exchange.generation)
        if not self.leases:
            try:
                self.leases.extend(ray.get(self.ahead or self.coordinator.lease.remote(*me, dropped)))
            except ray.exceptions.RayActorError:
                raise PeerLost("the coordinator died") from None
            if not self.leases:
                raise PeerLost("another coordinator is about to take over")
            if not self.spec.algorithm.num_backup:
                self.ahead = self.coordinator.lease.remote(*me)
        return self.leases.popleft()

    def _snapshot(self, version: "Version") -> None:
        with suppress(ray.exceptions.RayActorError):
            ray.get(
                self.handed_over
            )  # an evaluator that lags behind the epochs slows them down rather than fill the store
        # The vectors are copied into Ray's store here, before the next step writes over them.
        self.handed_over = [self.coordinator.take_snapshot.remote(*_references(version), asdict(version.position))]

    def _taken(self, version: int) -> None:
        assert self.trainer is not None
        gate, taken = self.gates[self.trainer.exchange.generation], self.coordinator.taken.remote(version)
        while not gate.closed:
            if ray.wait([taken], timeout=GATE_LOOK_S)[0]:
                try:
                    ray.get(taken)
                except ray.exceptions.RayActorError:
                    raise PeerLost("the coordinator died") from None
                return


def _references(version: "Version") -> list[Any]:
    part = {
        "start": 0,
        "params": version.whole.params.cpu().numpy(),
        "state": {name: vector.cpu().numpy() for name, vector in version.whole.state.items()},
        "applied": (),
        "examples": version.position.examples,
        "learning_rate": version.position.learning_rate,
    }
    rows = {rank: {n: b.cpu().numpy() for n, b in named.items()} for rank, named in version.buffers.items()}
    return [[ray.put(part)], [ray.put(rows)]]
