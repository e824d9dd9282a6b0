"""The same steps in a bare loop: our algorithms on shared memory, without Ray, coordinator, ledger and events.

What the whole path adds to it in CPU seconds is what those cost.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.measurement.contender import Measurement, from_timings
from benchmarks.measurement.millrace_runs import Ours, spec_of
from benchmarks.measurement.processes import together
from benchmarks.measurement.workload import LARGEST_RATE, Timing, Workload, steady
from trainers.errors import StoreClosed

if TYPE_CHECKING:
    from trainers.algorithms.base import Context, Work

SHARED_MEMORY = Path("/dev/shm")
SLOTS = 2


def measure(work: Workload, ours: Ours, expected_per_s: float = LARGEST_RATE) -> Measurement:
    """Workers, and shards where the algorithm has them, each a plain process."""
    steps = work.steps or round(work.seconds * expected_per_s / work.minibatch / work.workers)
    folder = Path(tempfile.mkdtemp(prefix="millrace-bare-", dir=SHARED_MEMORY))
    bare = _Bare(work, ours, steps, folder)
    roles = [(bare, "worker", k) for k in range(work.workers)]
    if ours.algorithm == "downpour":
        roles += [(bare, "shard", s) for s in range(ours.shards)]
    try:
        timings = together(_play, roles)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    workers, shards = timings[: work.workers], timings[work.workers :]
    plain = from_timings(workers, work)
    shards_s = sum(t.cpu_s for t in shards) / sum(t.steps for t in workers)
    return Measurement(plain.examples_per_s, plain.cpu_s_per_step + shards_s)


def _play(bare: "_Bare", role: Literal["worker", "shard"], index: int) -> Timing:
    import torch

    torch.set_num_threads(1)
    bare.open()
    return bare.work_as(index) if role == "worker" else bare.serve_as(index)


class _Bare:
    """What every process of the loop knows."""

    def __init__(self, work: Workload, ours: Ours, steps: int, folder: Path) -> None:
        self.load, self.ours, self.steps, self.folder = work, ours, steps, folder
        self.spec = spec_of(work, ours, (work.warmup_steps + steps) * work.minibatch * work.workers)

    def open(self) -> None:
        """Build the model and open the data, in the process that uses them."""
        from trainers.data.datasets import open_dataset
        from trainers.data.order import Order
        from trainers.models.layout import lay_out

        self.dataset = open_dataset(self.spec.data, self.load.seed)
        self.order = Order(self.dataset.num_train, self.load.minibatch, self.load.workers, self.load.seed)
        self.model = self.load.build_model()
        shards = self.ours.shards if self.spec.algorithm.traits.uses_parameter_server else 1
        self.layout = lay_out(self.model, shards, channels_last=True)
        self.groups = self.spec.algorithm.parameter_groups(self.model, self.layout)

    def work_as(self, rank: int) -> Timing:
        """One worker's steps."""
        config = self.spec.algorithm
        exchange: dict[str, Any] = self._collectives(rank) if config.traits.is_synchronous else self._store(rank)
        algorithm = config.build(self._context(exchange))
        works = self._works(rank)
        timing = steady(lambda: algorithm.step(next(works)), self.load, lambda _: self.steps)
        with suppress(StoreClosed):  # the shards end by themselves after the last push
            algorithm.finish()
        return timing

    def serve_as(self, index: int) -> Timing:
        """One shard, until it has applied all that will come; its time counts from the end of the warm-up."""
        from trainers.optim.optimizer import Optimizer
        from trainers.optim.rule import initial_state
        from trainers.optim.update import SliceUpdate
        from trainers.parameter_server.groups import GroupSlice, parts
        from trainers.parameter_server.shard import Shard, ShardConfig
        from trainers.parameter_server.shared_memory import ShardServer, mapped_ring

        span, rule, first = self.layout.shards[index], self.spec.optimizer.build(), self._start_params()
        schedule, pieces = self.spec.learning_rate(self.dataset.num_train), dict[int, GroupSlice]()
        for group, part in parts(span, self.groups).items():
            params = first[part]
            ring = mapped_ring(self.folder, self.load.workers, self.layout.numel, part)
            ring[0].copy_(params)
            update = SliceUpdate(Optimizer(rule), part.stop - part.start, params.device)
            states = [initial_state(rule, params), initial_state(rule, params)]
            pieces[group] = GroupSlice(part, Shard(ShardConfig(update, schedule), ring, states))
        server = ShardServer(self.folder, index, self.layout.numel, pieces)
        marks: list[tuple[float, float]] = []

        def mark(_: Shard) -> None:
            marks.append((time.perf_counter(), time.process_time()))

        warm, last = (
            self.load.workers * (steps // self.ours.num_push)
            for steps in (self.load.warmup_steps, self.load.warmup_steps + self.steps)
        )
        server.at_version(warm, mark)
        server.at_version(last, mark)
        server.at_version(last, lambda _: server.close())
        server.serve()
        return Timing(self.steps, marks[1][0] - marks[0][0], marks[1][1] - marks[0][1])

    def _collectives(self, rank: int) -> dict[str, Any]:
        from trainers.collectives.shared_memory import SharedMemoryCollectives

        return {"collectives": SharedMemoryCollectives(self.folder, rank, self.load.workers)}

    def _store(self, rank: int) -> dict[str, Any]:
        from trainers.parameter_server.shared_memory import SharedMemoryStore

        store = SharedMemoryStore(self.folder, rank, self.layout.shards, SLOTS, self.groups)
        return {"store": store}

    def _context(self, exchange: dict[str, Any]) -> "Context":
        from trainers.algorithms.base import Context, Start
        from trainers.optim.buffers import Buffers
        from trainers.optim.optimizer import Optimizer
        from trainers.optim.rule import initial_state

        rule, params = self.spec.optimizer.build(), self._start_params()
        return Context(
            replica=self._replica(),
            optimizer=Optimizer(rule),
            schedule=self.spec.learning_rate(self.dataset.num_train),
            num_virtual=self.load.workers,
            start=Start(Buffers(params, initial_state(rule, params))),
            groups=self.groups,
            **exchange,
        )

    def _replica(self) -> Any:
        import torch

        from benchmarks.peers.products import linear_shapes
        from trainers.models.dropout import replace_dropout
        from trainers.models.products.measure import choose
        from trainers.models.replica import Replica

        shapes = linear_shapes(self.model, next(self.load.minibatches(0)).data[0])
        replica = Replica(self.model, self.layout, torch.device("cpu"), replace_dropout(self.model, self.load.seed))
        replica.multiply_as(choose(shapes))  # as a coordinator has it measured
        return replica

    def _start_params(self) -> Any:
        return self.layout.flatten({name: p.detach() for name, p in self.model.named_parameters()})

    def _works(self, rank: int) -> "Iterator[Work]":
        """The worker's minibatches; for an asynchronous one its fixed share instead of what a ledger would lease."""
        from trainers.elastic.lease_table import Lease
        from trainers.training.work import leased, synchronous

        if self.spec.algorithm.traits.is_synchronous:
            return synchronous(self.dataset, self.order, range(rank, rank + 1), self.spec.epochs)
        size = self.ours.num_push
        firsts = range(rank * size, self.order.minibatches - size + 1, self.load.workers * size)
        leases = (Lease(e, first, first + size - 1) for e in range(self.spec.epochs) for first in firsts)
        return leased(self.dataset, self.order, leases)
