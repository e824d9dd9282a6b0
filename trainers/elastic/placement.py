"""Which nodes the shards of a parameter server go to. Decided here; the runtime puts them there."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainers.errors import SpecRejected

REMEDY = "add a node, or use with_workers"


@dataclass(frozen=True)
class NodeCapacity:
    """What a node has, or what an actor takes: logical CPUs and GPUs."""

    cpus: float
    gpus: float = 0.0

    def without(self, one: "NodeCapacity", count: int) -> "NodeCapacity":
        """What is left when so many actors like `one` are in it."""
        return NodeCapacity(self.cpus - count * one.cpus, self.gpus - count * one.gpus)

    def times(self, one: "NodeCapacity", most: int) -> int:
        """How many actors like `one` fit into it, up to `most`."""
        counts = [have / take for have, take in ((self.cpus, one.cpus), (self.gpus, one.gpus)) if take]
        return max(0, int(min([most, *(count + 1e-9 for count in counts)])))

    def __str__(self) -> str:
        parts = [(self.cpus, "CPU"), (self.gpus, "GPU")]
        return " and ".join(f"{count:g} {unit}{'s' * (count != 1)}" for count, unit in parts if count) or "0 CPUs"


def with_workers(
    nodes: dict[str, NodeCapacity], worker_nodes: Sequence[str], worker: NodeCapacity, shards: tuple[int, NodeCapacity]
) -> list[str]:
    """A node for each shard: those of the workers in turn, but not the first worker's, beside which checkpoints are
    written, where there is another with room (paper 3, section IV.C).

    nodes: All of the cluster. worker_nodes: By rank, the node of each worker. worker: What a worker takes. shards: How
    many there are, and what each takes.

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


def own(
    nodes: dict[str, NodeCapacity], workers: tuple[int, NodeCapacity], shards: tuple[int, NodeCapacity]
) -> list[str]:
    """A node for each shard, in turn among nodes that the workers do without.

    nodes: All of the cluster. workers, shards: How many there are, and what each takes.

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


def for_copy(
    nodes: Mapping[str, NodeCapacity], shard: str, workers: Collection[str], held: Sequence[str]
) -> str | None:
    """The node of a shard's second copy; None if there is none beside the shard's own.

    nodes: Those that may be used. shard: The node of the shard. workers: The nodes with workers, which are preferred.
    held: The node of each shard and each copy that there is, so that they spread.
    """
    others = [
        node for node, room in nodes.items() if node != shard and room.cpus > 0
    ]  # a node without CPUs is not meant for work
    return min(others, key=lambda node: (node not in workers, held.count(node)), default=None)


def awaited_room(
    nodes: Collection[NodeCapacity], worker: NodeCapacity, count: int, missing: int, is_refused: bool
) -> str:
    """What a run waits for whose workers find no room, in a sentence.

    nodes: All of the cluster, as large as it is now. worker: What one takes. count: How many are to start. missing: How
    many of them have no room yet. is_refused: Whether Ray's autoscaler says that it has no node to add for them.
    """
    whose = f"{missing} of {count} workers of {worker} {'have' if missing > 1 else 'has'} no room"
    if is_refused:
        limits = "it is at its limit, or no node of it is large enough"
        return f"waits for room: {whose}, and Ray's autoscaler adds no node to the cluster, since {limits}"
    if sum(node.times(worker, count) for node in nodes) < count:
        return f"waits for the cluster to grow: {whose} yet"
    return f"waits for the cluster to grow, or for others to leave it: {whose} yet"


def _in_turn(room: dict[str, int], count: int) -> list[str]:
    """The nodes in turn, each as often as it has room, up to `count`."""
    return [node for turn in range(count) for node, most in room.items() if turn < most][:count]
