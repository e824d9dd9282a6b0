"""Which nodes the shards of a parameter server go to. Decided here; the runtime puts them there."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainers.errors import SpecRejected

REMEDY = "add a node, or use with_workers"


@dataclass(frozen=True)
class Room:
    """What a node has, or what an actor takes: logical CPUs and GPUs."""

    cpus: float
    gpus: float = 0.0

    def without(self, one: "Room", count: int) -> "Room":
        """What is left when so many like `one` are in it."""
        return Room(self.cpus - count * one.cpus, self.gpus - count * one.gpus)

    def times(self, one: "Room", most: int) -> int:
        """How many like `one` fit into it, up to `most`."""
        counts = [have / take for have, take in ((self.cpus, one.cpus), (self.gpus, one.gpus)) if take]
        return max(0, int(min([most, *(count + 1e-9 for count in counts)])))


def with_workers(
    nodes: dict[str, Room], worker_nodes: Sequence[str], worker: Room, shards: tuple[int, Room]
) -> list[str]:
    """A node for each shard: those of the workers in turn, but not the first worker's, beside which checkpoints are
    written, where there is another with room (paper 3, section IV.C).

    nodes: All there are. worker_nodes: Of each worker, by rank. worker: What each takes. shards: How many, what each
    takes.

    Raises:
        SpecRejected: The shards reserve more than these nodes have left.
    """
    num_shards, shard = shards
    left = {node: nodes[node].without(worker, count) for node, count in Counter(worker_nodes).items()}
    first, *others = left
    found = _in_turn({node: left[node].times(shard, num_shards) for node in others}, num_shards)
    found += _in_turn({first: left[first].times(shard, num_shards)}, num_shards - len(found))
    if len(found) < num_shards:
        room = f"the workers' nodes have room for {len(found)} of {num_shards} shards"
        raise SpecRejected(f"ps.cpus: {room} of {shard.cpus:g} CPUs; make it smaller, or use ps.location: own")
    return found


def own(nodes: dict[str, Room], workers: tuple[int, Room], shards: tuple[int, Room]) -> list[str]:
    """A node for each shard, in turn among nodes that the workers do without.

    nodes: All there are. workers, shards: How many, and what each takes.

    Raises:
        SpecRejected: There are no such nodes, or too few.
    """
    (num_workers, worker), (num_shards, shard) = workers, shards
    holds = {node: room.times(worker, num_workers) for node, room in nodes.items()}
    left, free = sum(holds.values()), list[str]()
    for node in sorted(nodes, key=lambda node: holds[node]):
        able = nodes[node].times(shard, num_shards) > 0
        if able and left - holds[node] >= num_workers and len(free) < num_shards:
            left -= holds[node]
            free.append(node)
    if not free:
        needed = f"the workers need all of the {len(nodes)} nodes, or no other has room for a shard"
        raise SpecRejected(f"ps.location: own: {needed}; {REMEDY}")
    found = _in_turn({node: nodes[node].times(shard, num_shards) for node in free}, num_shards)
    if len(found) < num_shards:
        room_for = f"the nodes that the workers do without have room for {len(found)} of {num_shards} shards"
        raise SpecRejected(f"ps.location: own: {room_for}; {REMEDY}")
    return found


def for_copy(nodes: Mapping[str, Room], shard: str, workers: Collection[str], held: Sequence[str]) -> str | None:
    """The node of a shard's second copy; none where there is no other than the shard's own.

    nodes: Those that may be used. shard: The shard's. workers: Those with workers, which are preferred. held: Of each
    shard and each copy that there is, so that they spread.
    """
    others = [node for node, room in nodes.items() if node != shard and room.cpus > 0]  # one with none is for no work
    return min(others, key=lambda node: (node not in workers, held.count(node)), default=None)


def _in_turn(room: dict[str, int], count: int) -> list[str]:
    """The nodes by turns, each as often as it has room, up to `count`."""
    return [node for turn in range(count) for node, most in room.items() if turn < most][:count]
