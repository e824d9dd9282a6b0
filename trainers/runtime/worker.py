"""The worker actor: a trainer on one thread, control methods on others."""

from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from trainers.elastic.ledger import Lease
from trainers.runtime.gate import Gate
from trainers.runtime.member import Member, limit_threads, node_folder, use_code
from trainers.runtime.messages import Exchange, Prepared, Tally
from trainers.spec import TrainSpec

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.checkpoint import Position
    from trainers.optim.update import Buffers
    from trainers.runtime.trainer import Trainer
    from trainers.setup import Setup

GROUPS = {"train": 1, "control": 4}


class Worker(Member):
    """Trains one block of virtual workers, or one asynchronous replica."""

    def __init__(self, name: str, job_id: str, spec: TrainSpec, coordinator: Any) -> None:
        super().__init__(name, job_id)
        self.spec = spec
        self.coordinator = coordinator
        self.gate = Gate()
        self.folder = node_folder(job_id)
        self.setup: Setup | None = None
        self.trainer: Trainer | None = None
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
        setup = self.setup = set_up(self.spec, self.folder)
        if checks:
            check(setup)
        _, position = setup.begin()
        return Prepared(
            place=self.place(),
            num_examples=setup.dataset.num_train,
            minibatches=setup.order.minibatches,
            steps=setup.order.steps,
            numel=setup.layout.numel,
            shards=tuple((cut.start, cut.stop) for cut in setup.layout.shards),
            device=str(setup.replica.device),
            position=asdict(position),
            exempt=tuple((part.start, part.stop) for part in setup.exempt),
        )

    def initial(self) -> dict[str, np.ndarray]:
        """The first version of the parameters (`params`) and of the rule's states, (P,) each, for the shards."""
        assert self.setup is not None
        start, _ = self.setup.begin()
        return {"params": start.whole.params.numpy()} | {k: v.numpy() for k, v in start.whole.state.items()}

    def train(self, exchange: Exchange) -> None:
        """Train to the end of the run; returns when this worker has nothing left to do."""
        from trainers.runtime.trainer import Ports, Trainer

        assert self.setup is not None
        ports = Ports(report=self._report, lease=self._lease, snapshot=self._snapshot)
        self.trainer = Trainer(self.setup, self.folder, exchange, self.gate, ports)
        try:
            self.trainer.train()
            ray.get([*self.told, *self.handed_over])  # the coordinator must know all before it hears that this is over
        finally:
            self.setup.dataset.close()

    def hold(self) -> int:
        """Begin no further step; how many were begun."""
        return self.gate.hold()

    def release(self, limit: int | None, meeting: int | None) -> None:
        """Go on, up to `limit` steps in all; make a snapshot after step number `meeting`."""
        self.gate.release(limit, meeting)

    def buffers(self) -> dict[int, dict[str, np.ndarray]]:
        """The batch-norm buffers of the virtual ranks that this worker trains; a checkpoint brought it all of them."""
        assert self.setup is not None
        ranks = self.trainer.ranks if self.trainer else range(0)
        found = [(rank, named) for rank, named in list(self.setup.replica.buffers.items()) if rank in ranks]
        return {rank: {n: b.cpu().numpy().copy() for n, b in named.items()} for rank, named in found if named}

    def close(self) -> None:
        """Wake the training thread out of whatever it waits for."""
        if self.trainer is not None:
            self.trainer.close()

    # -- the trainer's ports --------------------------------------------------------------------------------------

    def _report(self, tally: Tally) -> None:
        self.told.append(self.coordinator.report.remote(tally))

    def _lease(self) -> Lease | None:
        """The next lease. One request is under way at any time, because an async actor may answer several in any
        order, and one worker must train in the order of the epoch."""
        rank = self.trainer.exchange.rank if self.trainer else 0
        if not self.leases:
            self.leases.extend(ray.get(self.ahead or self.coordinator.lease.remote(rank)))
            self.ahead = self.coordinator.lease.remote(rank)
        return self.leases.popleft()

    def _snapshot(
        self, whole: "Buffers", buffers: "dict[int, dict[str, Tensor]]", position: "Position", last: bool
    ) -> None:
        part = {
            "start": 0,
            "params": whole.params.cpu().numpy(),
            "state": {name: vector.cpu().numpy() for name, vector in whole.state.items()},
            "applied": (),
            "examples": position.examples,
            "learning_rate": position.learning_rate,
        }
        rows = {rank: {n: b.cpu().numpy() for n, b in named.items()} for rank, named in buffers.items()}
        ray.get(self.handed_over)  # an evaluator that lags behind the epochs slows them down rather than fill the store
        # The vectors are copied into Ray's store here, before the next step writes over them.
        self.handed_over = [
            self.coordinator.take_snapshot.remote([ray.put(part)], [ray.put(rows)], asdict(position), last)
        ]
