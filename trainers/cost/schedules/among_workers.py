"""Sums that workers make among themselves: the canonical reduction, and buckets during the backward pass."""

import numpy as np

from trainers.cost.schedules.fleet import Fleet, Floats, Ints
from trainers.cost.schedules.shares import all_reduce_cost, shipped_vectors
from trainers.cost.schedules.step import Exchange
from trainers.cost.workload import Workload

IN_FLIGHT = 2
BUCKET_BYTES = 2**20


def canonical_s(fleet: Fleet, num_bytes: float) -> tuple[Floats, Floats]:
    """Seconds of a canonical reduction of vectors of so many bytes and of the gathering of what comes out of it, and
    the bytes that a worker sends; (C,) each.

    Through one memory each worker reads its 1/W of all the others' parts, and nothing is gathered (paper 1, section
    4.1). Else each sends its parts' pieces to the others, and its 1/W of the result; over several switches whose
    workers share memory, only one vector a switch travels between them.
    """
    w = fleet.workers.astype(float)
    everybody, own = shipped_vectors(fleet.virtual, fleet.workers)
    if not fleet.memory_is_shared:
        sent = (w - 1) / w * num_bytes * (own + 1)
        return _if_several(w, fleet.lane().seconds(2 * (w - 1), sent)), sent
    read = np.maximum(everybody - own, 0) / w * num_bytes
    within = _if_several(fleet.most, fleet.inside_lane().seconds(2.0, read))
    nodes = fleet.nodes.astype(float)
    parts, _ = shipped_vectors(np.maximum(fleet.virtual, fleet.nodes), fleet.nodes)
    sent = (nodes - 1) / nodes * num_bytes * (parts / nodes + 1)
    between = _if_several(nodes, fleet.between_lane().seconds(2 * (nodes - 1), sent))
    return within + between, np.where(nodes > 1, sent, read)


def canonical(name: str, fleet: Fleet, num_bytes: float, every: Floats | float = 1.0) -> Exchange:
    """The same as an exchange that nothing hides. every: Steps from one to the next."""
    seconds, sent = canonical_s(fleet, num_bytes)
    return Exchange(name, seconds / every, np.zeros(len(fleet.workers)), sent / every)


def broadcast_s(fleet: Fleet, num_bytes: float) -> Floats:
    """Seconds in which all workers get a vector that one of them has; (C,). Through one memory it is written and read
    once. By messages the number of those who have it doubles; where a node has several workers, one of each node gets
    it from the first, and the others from that one."""
    nodes = fleet.nodes.astype(float)
    within = _if_several(fleet.most, fleet.inside_lane().seconds(1.0, num_bytes))
    levels = np.ceil(np.log2(np.maximum(fleet.workers, 1)))
    if not fleet.memory_is_shared:
        one_way = fleet.lane(all_at_once=False, both_ways=False)
        return _if_several(fleet.workers, one_way.seconds(levels, levels * num_bytes))
    apart = fleet.between_lane().seconds(levels, levels * num_bytes)
    carried = fleet.between_lane().seconds(nodes - 1, (nodes - 1) * num_bytes) + within
    between: Floats = np.where(nodes == fleet.workers, apart, carried)
    return np.where(nodes > 1, between, within)


def exchanged(name: str, fleet: Fleet, message_bytes: float, every: float = 1.0) -> Exchange:
    """Messages of so many bytes, one of each virtual worker, that every worker sends to every other."""
    w = fleet.workers.astype(float)
    sent = (w - 1) * np.ceil(fleet.virtual / w) * message_bytes
    seconds = _if_several(w, fleet.lane().seconds(w - 1, sent))
    return Exchange(name, seconds / every, np.zeros(len(fleet.workers)), sent / every)


def bucketed(
    fleet: Fleet, work: Workload, name: str, bucket_bytes: int, in_flight: int, backward_s: Floats
) -> Exchange:
    """Buckets that are summed as soon as the backward pass has completed them (paper 4, section 4), the last layer's
    first. A bucket begins when it is ready and the one before it is through; what is left when the backward pass ends
    is waited for.

    backward_s: (C,) of the last minibatch.
    """
    sizes, ready = buckets_of(work, bucket_bytes)
    seconds = np.stack([bucket_s(fleet, name, size, in_flight) for size in sizes])  # (buckets, C)
    still = np.cumsum(seconds[::-1], axis=0)[::-1]  # from this bucket to the end
    ends = np.max(ready[:, None] * backward_s[None, :] + still, axis=0)
    whole = seconds.sum(0)
    seen = np.minimum(np.maximum(ends - backward_s, 0.0), whole)
    w = fleet.workers.astype(float)
    return Exchange("gradients", whole, whole - seen, 2 * (w - 1) / w * sum(sizes))


def bucket_s(fleet: Fleet, name: str, num_bytes: float, in_flight: int = 1) -> Floats:
    """Seconds of one all-reduce of so many bytes; (C,). While so many are under way at once, they share bandwidth, and
    the latencies pass at the same time."""
    w = fleet.workers.astype(float)
    numel = int(num_bytes / 4)
    in_phases = (fleet.nodes > 1) & (fleet.most > 1) if name in ("auto", "three_phase") else np.zeros(len(w), bool)
    steps, vectors, crosses = all_reduce_cost(name, np.where(in_phases, fleet.nodes, fleet.workers), numel)
    lane, leaders = fleet.lane(all_at_once=False), fleet.between_lane()
    crowded = fleet.lane()
    flat = np.where(
        crosses > 0,
        crowded.seconds(steps / in_flight, vectors * num_bytes),
        lane.seconds(steps / in_flight, vectors * num_bytes),
    )
    levels = np.ceil(np.log2(np.maximum(fleet.most, 1)))
    phases = fleet.inside_lane().seconds(2 * levels / in_flight, levels * num_bytes)
    phases = phases + leaders.seconds(steps / in_flight, vectors * num_bytes)
    found = np.where(in_phases, phases, flat)
    if not fleet.memory_is_shared:
        return found
    read = fleet.inside_lane().seconds(1.0 / in_flight, (w - 1) / w * num_bytes)  # its share, from the others' parts
    return np.where(fleet.nodes > 1, found, _if_several(w, read))


def buckets_of(work: Workload, bucket_bytes: int) -> tuple[list[float], Floats]:
    """Bytes of each bucket in the order in which the backward pass completes them, and the share of its time after
    which each is ready."""
    sizes, ready, size, passed = list[float](), list[float](), 0.0, 0.0
    for layer, share in zip(reversed(work.layers), reversed(work.backward_shares), strict=True):
        size, passed = size + 4 * layer.parameters, passed + share
        if size >= bucket_bytes:
            sizes.append(size)
            ready.append(min(passed, 1.0))
            size = 0.0
    if size or not sizes:
        sizes.append(size)
        ready.append(1.0)
    return sizes, np.array(ready)


def _if_several(members: Floats | Ints, seconds: Floats) -> Floats:
    """Nothing among one."""
    found: Floats = np.where(members > 1, seconds, 0.0)
    return found
