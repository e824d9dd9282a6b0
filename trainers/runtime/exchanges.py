"""How the workers of a generation reach each other, and the shards: decided by nodes and devices."""

from collections.abc import Sequence
from dataclasses import replace

from trainers.errors import RunFailed
from trainers.runtime.messages import Exchange, Place, Prepared
from trainers.spec import TrainSpec
from trainers.transport.rendezvous import Rendezvous, host_rendezvous

COPY = "/copy-"
"""What the folder of a shard's second copy has behind the shard's own."""

SPARE_SEATS = 2
"""Workers more than a run may have that can be at the shards at once: one that is on its way out, one in."""


class Exchanges:
    """Forms one generation after another; hosts what process groups meet at."""

    def __init__(self, spec: TrainSpec, host: str) -> None:
        """host: the address of this process's node."""
        self.spec = spec
        self.host = host
        self.rendezvous: Rendezvous | None = None
        self.generations = 0
        self.seats = 0
        self.shards: Exchange | None = None

    def open_shards(self, workers: Sequence[Prepared], shards: Sequence[Place]) -> Exchange:
        """How all workers of the run, also later ones, reach the shards."""
        nodes = {p.place.node_id for p in workers} | {place.node_id for place in shards}
        wanted = self.spec.transport
        if wanted == "shared_memory" and len(nodes) > 1:
            raise _no_memory(nodes)
        transport, folder = "process_group" if len(nodes) > 1 else "shared_memory", "shards"
        if wanted in ("process_group", "object_store"):
            transport = wanted
        if wanted == "object_store":
            folder = shards[0].name.rpartition("/")[0]
        self.shards = Exchange(transport, folder, 0, self.spec.most_workers + SPARE_SEATS, self._address(transport))
        return self.shards

    def reopen(self, served: Exchange) -> Exchange:
        """The shards serve already, as one of them was given it, but are met here from now on."""
        folder = served.folder.partition(COPY)[0]
        self.shards = replace(served, folder=folder, address=self._address(served.transport))
        return self.shards

    def form(self, workers: Sequence[Prepared]) -> list[Exchange]:
        """A generation of these workers, by rank.

        Raises:
            RunFailed: The spec asks for a transport that they do not have.
        """
        nodes = [p.place.node_id for p in workers]
        order, transport = list(dict.fromkeys(nodes)), self._transport(workers)
        if self.spec.transport == "shared_memory" != transport and self.shards is None:
            raise _no_memory(set(nodes))
        generation, self.generations = self.generations, self.generations + 1
        first = Exchange(
            transport, f"g{generation}", 0, len(workers),
            address=self._address(transport) if self.spec.algorithm.uses_collectives else None,
            generation=generation, nodes=tuple(order.index(node) for node in nodes),
        )  # fmt: skip
        return [replace(first, rank=rank) for rank in range(len(workers))]

    def seat(self) -> Exchange | None:
        """The place of one more worker at the shards, where there are any."""
        if self.shards is None:
            return None
        self.seats += 1
        return replace(self.shards, rank=self.seats - 1)

    def close(self) -> None:
        """Nobody meets any more."""
        if self.rendezvous is not None:
            self.rendezvous.close()

    def _transport(self, workers: Sequence[Prepared]) -> str:
        """Of workers of one node, of workers that have each a node to itself, and of those between."""
        num_nodes = len({p.place.node_id for p in workers})
        on_cpus = all(p.device == "cpu" for p in workers)
        if self.spec.transport == "process_group" or not on_cpus or 1 < num_nodes == len(workers):
            return "process_group"
        return "shared_memory" if num_nodes == 1 else "composed"

    def _address(self, transport: str) -> tuple[str, int] | None:
        if transport in ("shared_memory", "object_store"):
            return None
        if self.rendezvous is None:
            self.rendezvous = host_rendezvous(self.host)
        return self.host, self.rendezvous.port


def _no_memory(nodes: set[str]) -> RunFailed:
    return RunFailed(f"transport: the workers are on {len(nodes)} nodes, which share no memory; use auto")
