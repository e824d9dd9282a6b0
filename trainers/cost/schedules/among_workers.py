"""Sums that workers make among themselves: the canonical reduction, and buckets while the passes go on."""

import numpy as np

from trainers.collectives.buckets import IN_FLIGHT, ordered_bucket_bytes
from trainers.cost.schedules.fleet import Fleet, Floats, Ints
from trainers.cost.schedules.shares import all_reduce_cost, shipped_vectors
from trainers.cost.schedules.step import Exchange
from trainers.cost.workload import Workload


def canonical_s(fleet: Fleet, num_bytes: float) -> tuple[Floats, Floats]:
    """Seconds of a canonical reduction of vectors of so many bytes and of the gathering of what comes out of it, and
    the bytes that a worker sends; (C,) each.

    Through one memory each worker reads its 1/W of all the others' parts, and nothing is gathered (paper 1, section
    4.1). Else each sends its parts' pieces to the others, and its 1/W of the result; over several switches whose
    workers share memory, only one vector a switch travels between them.
    """
    within, by_messages, sent = _canonical_parts(fleet, num_bytes)
    return within + by_messages, sent


def _canonical_parts(fleet: Fleet, num_bytes: float) -> tuple[Floats, Floats, Floats]:
    """The same; of the seconds, first those in which memory is read, then those of messages."""
    w = fleet.workers.astype(float)
    everybody, own = shipped_vectors(fleet.virtual, fleet.workers)
    if not fleet.memory_is_shared:
        sent = (w - 1) / w * num_bytes * (own + 1)
        return np.zeros(len(w)), _if_several(w, fleet.lane().seconds(2 * (w - 1), sent)), sent
    read = np.maximum(everybody - own, 0) / w * num_bytes
    within = _if_several(fleet.most, fleet.inside_lane().seconds(2.0, read))
    nodes = fleet.nodes.astype(float)
    parts, _ = shipped_vectors(np.maximum(fleet.virtual, fleet.nodes), fleet.nodes)
    sent = (nodes - 1) / nodes * num_bytes * (parts / nodes + 1)
    between = _if_several(nodes, fleet.between_lane().seconds(2 * (nodes - 1), sent))
    return within, between, np.where(nodes > 1, sent, read)


def canonical(name: str, fleet: Fleet, num_bytes: float, every: Floats | float = 1.0) -> Exchange:
    """The same as an exchange that nothing hides. every: Steps from one to the next."""
    seconds, sent = canonical_s(fleet, num_bytes)
    return Exchange(name, seconds / every, np.zeros(len(fleet.workers)), sent / every)


def canonical_beside(name: str, fleet: Fleet, work: Workload, backward_s: Floats) -> Exchange:
    """The same of the gradients of a step, each bucket from when the backward pass completes it. Messages are hidden;
    what is read within a switch takes the processors that compute.

    backward_s: (C,) of the last minibatch.
    """
    within, messages, sent = _canonical_parts(fleet, work.num_bytes)
    hidden, least = np.zeros(len(messages)), np.array([ordered_bucket_bytes(int(count)) for count in fleet.workers])
    for bucket_bytes in np.unique(least):
        sizes, ready, _ = buckets_of(work, int(bucket_bytes))
        seconds = np.stack([_canonical_parts(fleet, size)[1] for size in sizes])
        _, ends = through_lanes(ready[:, None] * backward_s[None, :], seconds, IN_FLIGHT)
        seen = np.clip(ends.max(axis=0) - backward_s, 0.0, messages)
        hidden = np.where(least == bucket_bytes, messages - seen, hidden)
    return Exchange(name, within + messages, hidden, sent)


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
    fleet: Fleet,
    work: Workload,
    name: str,
    bucket_bytes: int,
    in_flight: int,
    backward_s: Floats,
    data_s: Floats | float = 0.0,
    forward_s: Floats | float = 0.0,
) -> Exchange:
    """Buckets that are summed as soon as the backward pass has completed them (paper 4, section 4), the last layer's
    first, and until the next forward pass needs them (Jayarajan et al. 2019). What is not there then is waited for.

    backward_s: (C,) of the last minibatch. data_s, forward_s: (C,) of the next one; 0 where a step ends with its sums.
    """
    sizes, ready, needed = buckets_of(work, bucket_bytes)
    seconds = np.stack([bucket_s(fleet, name, size, in_flight) for size in sizes])  # (buckets, C)
    _, ends = through_lanes(ready[:, None] * backward_s[None, :], seconds, in_flight)
    due = backward_s + data_s + needed[:, None] * (forward_s * np.ones(len(backward_s)))
    whole = seconds.sum(0)
    seen = np.clip(np.max(ends - due, axis=0), 0.0, whole)
    w = fleet.workers.astype(float)
    return Exchange("gradients", whole, whole - seen, 2 * (w - 1) / w * sum(sizes))


def through_lanes(ready_s: Floats, seconds: Floats, lanes: int) -> tuple[Floats, Floats]:
    """When each exchange begins and ends; (n, C) each. Number i takes lane i modulo `lanes`, once it is ready and the
    one before it there is through. Exchanges that are under way together share the link evenly.

    ready_s: (n, C). seconds: (n, C), that each takes alone.
    """
    count, candidates = seconds.shape
    begins, ends, now = ready_s.copy(), np.zeros_like(seconds), np.zeros(candidates)
    heads = np.tile(np.arange(lanes)[:, None], candidates)  # the number of the exchange that is next on each lane
    left = np.vstack([seconds, np.zeros((lanes, candidates))])[:lanes]  # what it still takes alone
    while (is_there := heads < count).any():
        ready = np.where(is_there, np.take_along_axis(ready_s, np.minimum(heads, count - 1), 0), np.inf)
        is_on_its_way = ready <= now
        sharing = np.maximum(is_on_its_way.sum(0), 1)
        changes = np.where(is_on_its_way, left * sharing, ready - now).min(0)  # the next one ends, or begins
        passed = np.where(np.isfinite(changes), changes, 0.0)
        is_through = is_on_its_way & (left * sharing <= passed)
        left = np.where(is_on_its_way, left - passed / sharing, left)
        now = now + passed
        for lane in range(lanes):
            (those,) = np.nonzero(is_through[lane])
            ends[heads[lane, those], those] = now[those]
            heads[lane, those] += lanes
            those = those[heads[lane, those] < count]
            following = heads[lane, those]
            begins[following, those] = np.maximum(now[those], ready_s[following, those])
            left[lane, those] = seconds[following, those]
    return begins, ends


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


def buckets_of(work: Workload, bucket_bytes: int) -> tuple[list[float], Floats, Floats]:
    """Bytes of each bucket in the order in which the backward pass completes them, the share of its time after which
    each is ready, and the share of the next forward pass after which each is needed."""
    sizes, ready, needed = list[float](), list[float](), list[float]()
    size, passed, ahead = 0.0, 0.0, 1.0
    shares = zip(work.layers, work.backward_shares, work.forward_shares, strict=True)
    for layer, backward, forward in reversed(list(shares)):
        size, passed, ahead = size + 4 * layer.parameters, passed + backward, ahead - forward
        if size >= bucket_bytes:
            sizes.append(size)
            ready.append(min(passed, 1.0))
            needed.append(max(ahead, 0.0))
            size = 0.0
    if size or not sizes:
        sizes.append(size)
        ready.append(1.0)
        needed.append(0.0)
    return sizes, np.array(ready), np.array(needed)


def _if_several(members: Floats | Ints, seconds: Floats) -> Floats:
    """Nothing among one."""
    found: Floats = np.where(members > 1, seconds, 0.0)
    return found
