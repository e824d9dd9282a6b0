"""How the workers of a generation reach each other, and the shards: decided by nodes and devices."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from trainers.collectives.endpoints import (
    CollectivesEndpoint,
    HierarchicalEndpoint,
    IndependentEndpoint,
    ProcessGroupEndpoint,
    SharedMemoryEndpoint,
)
from trainers.errors import RunFailed
from trainers.links.rendezvous import Address, Rendezvous, host_rendezvous
from trainers.links.tcp import SILENT_S
from trainers.parameter_server.endpoints import ProcessGroupStoreEndpoint, SharedMemoryStoreEndpoint, StoreEndpoint
from trainers.runtime.messages import ActorLocation, ObjectStoreEndpoint, Prepared
from trainers.spec import TrainSpec

STANDBY = "/standby-"
"""What stands between the name of a shard's folder and the rest of its standby's."""

SPARE_WORKERS = 2
"""Workers beyond a run's most that may be connected to the shards at once: one that is leaving, one that is joining."""


class Topology:
    """Forms one generation after another; hosts the rendezvous of process groups."""

    def __init__(self, spec: TrainSpec, host: str) -> None:
        """host: the address of this process's node."""
        self.spec = spec
        self.host = host
        self.rendezvous: Rendezvous | None = None
        self.generations = 0
        self.store_workers = 0  # numbers that were given to workers at the shards
        self.shards: StoreEndpoint | None = None

    def open_shards(self, workers: Sequence[Prepared], shards: Sequence[ActorLocation]) -> StoreEndpoint:
        """How all workers of the run, also later ones, reach the shards.

        Raises:
            RunFailed: The spec asks for shared memory, and they are on several nodes.
        """
        nodes = {p.place.node_id for p in workers} | {place.node_id for place in shards}
        wanted, capacity = self.spec.transport, self.spec.most_workers + SPARE_WORKERS
        if wanted == "shared_memory" and len(nodes) > 1:
            raise _no_memory(nodes)
        if wanted == "object_store":
            self.shards = ObjectStoreEndpoint(capacity, actors=shards[0].name.rpartition("/")[0])
        elif wanted == "process_group" or len(nodes) > 1:
            silent_s = SILENT_S + self.spec.algorithm.traits.apart_s
            self.shards = ProcessGroupStoreEndpoint(capacity, address=self._address(), silent_s=silent_s)
        else:
            self.shards = SharedMemoryStoreEndpoint(capacity)
        return self.shards

    def reopen(self, served: StoreEndpoint) -> StoreEndpoint:
        """The shards serve already, one through this endpoint; from now on workers find them at this process."""
        self.shards = replace(served, folder=served.folder.partition(STANDBY)[0])
        if isinstance(self.shards, ProcessGroupStoreEndpoint):
            self.shards = replace(self.shards, address=self._address())
        return self.shards

    def form(self, workers: Sequence[Prepared]) -> list[CollectivesEndpoint]:
        """A generation of these workers, by rank.

        Raises:
            RunFailed: The spec asks for shared memory, and they do not share any.
        """
        names = [p.place.node_id for p in workers]
        order, kind = list(dict.fromkeys(names)), self._kind(workers)
        if self.spec.transport == "shared_memory" and kind is not None and self.shards is None:
            raise _no_memory(set(names), {p.device for p in workers})
        generation, self.generations = self.generations, self.generations + 1
        numbers = [(generation, rank, len(workers)) for rank in range(len(workers))]
        if not self.spec.algorithm.traits.uses_collectives:
            return [IndependentEndpoint(*three, on_one_node=kind is None) for three in numbers]
        if kind is None:
            return [SharedMemoryEndpoint(*three) for three in numbers]
        address, nodes = self._address(), tuple(order.index(name) for name in names)
        crowded = len({(p.place.node_id, p.device) for p in workers}) < len(workers)  # NCCL takes one worker a GPU
        return [kind(*three, address, nodes, through_host=crowded) for three in numbers]

    def resume_after(self, generation: int, store_worker: int) -> None:
        """Number the next generation and worker at the shards after these, which an earlier coordinator has used."""
        self.generations, self.store_workers = generation + 1, store_worker + 1

    def store_endpoint(self) -> StoreEndpoint | None:
        """How one more worker reaches the shards, where there are any."""
        if self.shards is None:
            return None
        self.store_workers += 1
        return replace(self.shards, worker=self.store_workers - 1)

    def close(self) -> None:
        """Close the rendezvous."""
        if self.rendezvous is not None:
            self.rendezvous.close()

    def _kind(self, workers: Sequence[Prepared]) -> type[ProcessGroupEndpoint] | None:
        """What connects these workers; None: memory that all of them share, of their node or of their GPU."""
        num_nodes, devices = len({p.place.node_id for p in workers}), {p.device for p in workers}
        shares_none = (len(devices) > 1 or num_nodes > 1) and devices != {"cpu"}
        if self.spec.transport == "process_group" or shares_none or 1 < num_nodes == len(workers):
            return ProcessGroupEndpoint
        return None if num_nodes == 1 else HierarchicalEndpoint

    def _address(self) -> Address:
        """Of the rendezvous, hosted from when it is first needed."""
        if self.rendezvous is None:
            self.rendezvous = host_rendezvous(self.host)
        return self.host, self.rendezvous.port


def _no_memory(nodes: set[str], devices: Collection[str] = ()) -> RunFailed:
    if len(nodes) == 1:
        return RunFailed(f"transport: the workers are on {len(devices)} GPUs, which share no memory; use auto")
    return RunFailed(f"transport: the workers are on {len(nodes)} nodes, which share no memory; use auto")
