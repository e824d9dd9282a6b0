"""Says where each worker of a group begins its next generation."""

from collections.abc import Sequence
from dataclasses import replace

from trainers.elastic.binding import Slots, shares
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control.config import RunConfig
from trainers.runtime.control.run_events import StartedRun
from trainers.runtime.control.run_progress import RunProgress
from trainers.runtime.control.worker_group import WorkerGroup
from trainers.runtime.topology import Topology
from trainers.training.messages import GenerationStart
from trainers.training.position import Position


class GenerationPlanner:
    """Numbers the generations, and knows which one each worker was last given."""

    def __init__(
        self, config: RunConfig, topology: Topology, progress: RunProgress, started: StartedRun, incarnation: int
    ) -> None:
        """incarnation: How many coordinators of the run have died."""
        self.config = config
        self.topology = topology
        self.progress = progress
        self.started = started
        self.incarnation = incarnation
        self.is_first = started.is_new
        self.generation_of: dict[int, int] = {}  # by worker
        self.slots = Slots()

    def is_current(self, number: int, generation: int) -> bool:
        """Whether a worker is in this generation, and not in one that an earlier coordinator began."""
        return self.generation_of.get(number) == generation

    def plan(self, group: WorkerGroup, alive: Sequence[WorkerHandle]) -> list[GenerationStart]:
        """Begin a generation of a group's members, by rank. alive: All workers of the run."""
        numbers = [worker.number for worker in group.members]
        endpoints = self.topology.form([worker.prepared for worker in group.members if worker.prepared is not None])
        self.progress.form_group(group.number, numbers)
        position = self._position(group)
        begun = position or self.started.prepared.position
        if not self.progress.leases:
            self.progress.begin_generation(numbers, begun.examples)
        self.generation_of |= dict.fromkeys(numbers, endpoints[0].generation)
        first = GenerationStart(
            0, endpoints[0], position,
            resume=self._checkpoint(position), num_virtual=self.config.spec.virtual_for(len(numbers)),
            incarnation=self.incarnation, products=self.started.prepared.products,
        )  # fmt: skip
        latest = group.latest
        if latest is not None and latest.number in numbers:
            first = replace(first, root=numbers.index(latest.number), states=latest.states)
        at_shards = len(numbers) if not self.config.spec.algorithm.traits.uses_collectives else 1
        return [
            replace(
                first,
                number=worker.number,
                endpoint=endpoint,
                store=self.topology.store_endpoint() if rank < at_shards else None,
                cpus=self._cpus(worker, alive),
            )
            for rank, (worker, endpoint) in enumerate(zip(group.members, endpoints, strict=True))
        ]

    def _cpus(self, worker: WorkerHandle, alive: Sequence[WorkerHandle]) -> tuple[int, ...]:
        """To which a worker keeps; none where it may run on any."""
        assert worker.prepared is not None
        slot = self.slots.of(worker.number, worker.prepared.place.node_id, [one.number for one in alive])
        found = shares(worker.prepared.cores, self.config.spec.workers.threads, self.config.spec.workers.bind)
        return found[slot] if slot < len(found) else ()

    def _position(self, group: WorkerGroup) -> Position | None:
        """Where the generation begins; None means where the spec says."""
        if not self.progress.leases and self._at_shards:
            is_first, self.is_first = self.is_first, False
            return None if is_first else self.progress.synchronous_position()
        return group.latest.position if group.latest is not None else None

    def _checkpoint(self, position: Position | None) -> str | None:
        """The checkpoint to begin from where nobody has a version any more. None in the first generation of all."""
        if position or self._at_shards or self.topology.generations == 1:
            return None
        return self.config.latest_checkpoint()

    @property
    def _at_shards(self) -> bool:
        return self.config.spec.algorithm.traits.uses_parameter_server
