"""A step of the algorithms whose workers go on by themselves: downpour, easgd, and mixed between its groups."""

import math
from dataclasses import dataclass

import numpy as np

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.downpour.config import DownpourConfig
from trainers.algorithms.easgd.config import EasgdConfig
from trainers.algorithms.mixed.config import MixedConfig
from trainers.cost.schedules.among_workers import broadcast_s, canonical_s
from trainers.cost.schedules.copies import ADDED, COPIED, IN_PLACE, copies_of_sum
from trainers.cost.schedules.fleet import Fleet, Floats, Ints
from trainers.cost.schedules.repairman import response_s
from trainers.cost.schedules.shares import fullest_share
from trainers.cost.schedules.step import Exchange, Step, missed_s
from trainers.cost.workload import FLOAT_BYTES, Pace, Workload
from trainers.errors import SpecRejected
from trainers.spec import TrainSpec


@dataclass(frozen=True)
class Rhythm:
    """How often a worker, or a group, visits the shards."""

    num_fetch: int
    """Minibatches from one fetch to the next ..."""
    num_push: int
    """... and from one push to the next."""
    max_staleness: int | None
    """Minibatches that the slowest may be behind; None: any number."""
    fetches_first: bool = False
    """Whether a fetch comes before the push of the same minibatch, which then travels while the next are computed."""

    @property
    def overlapped(self) -> float:
        """The share of the pushes after which a worker computes on, since no fetch follows at once: a fetch waits until
        the worker's own pushes are applied."""
        return 1.0 if self.fetches_first else 1 - self.num_push / math.lcm(self.num_fetch, self.num_push)


def rhythm_of(config: AlgorithmConfig) -> Rhythm:
    """Of an algorithm whose workers go on by themselves."""
    assert isinstance(config, DownpourConfig | MixedConfig | EasgdConfig)
    bound, traits = config.max_staleness, config.traits
    if isinstance(config, EasgdConfig) or traits.outer is not None:  # it goes by rounds
        most = None if bound is None else bound * traits.num_push
        return Rhythm(traits.num_push, traits.num_push, most, fetches_first=isinstance(config, EasgdConfig))
    return Rhythm(config.num_fetch, config.num_push, bound)


def easgd_step(spec: TrainSpec, config: EasgdConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Zhang et al. 2015: every tau steps a worker fetches the centre and pushes the force, which it has written by four
    operations, and takes from its own parameters later."""
    visits = Visits(spec, work, pace, fleet, rhythm_of(config))
    force = (ADDED + IN_PLACE + 2 * COPIED + ADDED) * pace.copy_s / config.tau
    think = (visits.alone_s + force) * fleet.crowding
    nothing = np.zeros(len(fleet.workers))
    return _step(spec, fleet, pace, think, visits.exchange(fleet.workers, think + pace.data_s, nothing), ())


def downpour_step(spec: TrainSpec, config: DownpourConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Dean et al. 2012: a worker fetches every num_fetch minibatches and pushes every num_push.

    With `push: layerwise` groups of parameters travel while the passes compute, all but one group.

    Raises:
        SpecRejected: It asks for what this model does not cover.
    """
    if config.backprop is not None:
        raise SpecRejected(
            "algorithm.backprop: the cost model knows no asynchronous back-propagation; leave backprop out"
        )
    visits = Visits(spec, work, pace, fleet, rhythm_of(config))
    change = (ADDED + 2 * COPIED) / config.traits.num_push if config.traits.outer is not None else 0.0
    think = (visits.alone_s + change * pace.copy_s) * fleet.crowding
    hidden = np.minimum(visits.own_s, pace.passes_s * fleet.crowding) * hidden_share(config, work)
    return _step(spec, fleet, pace, think, visits.exchange(fleet.workers, think + pace.data_s, hidden), ())


def mixed_step(spec: TrainSpec, config: MixedConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Paper 3, section III.C: the workers of a group average their gradients, and the group is one of Downpour's."""
    members = members_of(config, fleet)
    group, rhythm = fleet.with_workers(members, members), rhythm_of(config)
    inner, sent = canonical_s(group, work.num_bytes)
    inner = inner + broadcast_s(group, work.num_bytes) / rhythm.num_fetch
    nothing = np.zeros(len(fleet.workers))
    visits = Visits(spec, work, pace, fleet, rhythm)
    pushed = COPIED if config.traits.outer is None else (ADDED + COPIED) / rhythm.num_push
    # What is fetched, and what is pushed; and the mean of each worker's share.
    copies = COPIED / rhythm.num_fetch + pushed + copies_of_sum(group) + IN_PLACE / members
    think = (visits.alone_s + copies * pace.copy_s) * fleet.crowding
    served = visits.exchange(fleet.workers // members, think + pace.data_s + inner, nothing)
    return _step(spec, fleet, pace, think, served, (Exchange("averages within the group", inner, nothing, sent),))


def members_of(config: MixedConfig, fleet: Fleet) -> Ints:
    """Workers of a group; (C,)."""
    size = fleet.most if config.group == "node" else np.full(len(fleet.workers), config.group)
    found: Ints = np.minimum(size, fleet.workers)
    return found


def hidden_share(config: DownpourConfig, work: Workload) -> float:
    """Of the passes, while so much of them groups of parameters travel: all groups but one."""
    if config.push != "layerwise":
        return 0.0
    return 1 - 1 / max(1, min(len(work.layers), work.num_bytes // config.bucket_bytes))


def _step(
    spec: TrainSpec,
    fleet: Fleet,
    pace: Pace,
    think: Floats,
    served: tuple[Exchange, Floats],
    others: tuple[Exchange, ...],
) -> Step:
    exchange, waiting = served
    return Step(
        examples=fleet.workers * float(spec.batch.per_worker),
        computing_s=think,
        data_s=pace.data_s * fleet.crowding,
        waiting_s=waiting,
        exchanges=(*others, exchange),
    )


class Visits:
    """What a minibatch costs at the fullest shard and on the way there; (C,) each."""

    def __init__(self, spec: TrainSpec, work: Workload, pace: Pace, fleet: Fleet, rhythm: Rhythm) -> None:
        share, b = fullest_share(spec, work.variables, fleet.shards), work.num_bytes
        num_fetch, num_push, lane = rhythm.num_fetch, rhythm.num_push, fleet.lane(all_at_once=False, both_ways=False)
        often = 1 / num_fetch + 1 / num_push
        of_process = share * b / (fleet.cluster.shard_bandwidth or np.inf)
        in_place = fleet.memory_is_shared & (fleet.nodes == 1)  # all read what others wrote where it lies
        fetched = np.where(in_place, 0.0, 1.0)
        self.fetch_s = np.maximum(lane.seconds(1.0, fetched * share * b), of_process)
        """The shard is busy with one fetch ..."""
        bytes_an_element = None if spec.compress is None else spec.compress.bytes_an_element
        shorter = 1.0 if bytes_an_element is None else bytes_an_element / FLOAT_BYTES
        pushed = np.where(in_place, 1.0, shorter)
        travels = np.where(in_place, 0.0, pushed)
        both = (fetched / num_fetch + travels / num_push) * b
        pushed_s = np.maximum(lane.seconds(1.0, travels * share * b), pushed * of_process)
        self.push_s = pushed_s + pace.update_s * share
        """... and with one push, and its update."""
        self.service_s = self.fetch_s / num_fetch + self.push_s / num_push
        """It is busy with both, a minibatch."""
        updating = pace.update_s * share / num_push  # all shards at the same time
        self.own_s = np.maximum(self.service_s, lane.seconds(often, both) + updating)
        """It takes when nobody else is there: the worker's own link carries all shards' parts."""
        pushing = np.maximum(self.push_s / num_push, lane.seconds(1.0 / num_push, travels * b / num_push) + updating)
        self.overlapped_s = rhythm.overlapped * np.minimum(pushing, self.own_s)
        """Of that, what may pass while the worker computes."""
        by_messages = fleet.messages_lane()
        self.beside_s = by_messages.seconds(often, both) + updating
        """It takes where all shards are on the worker's own node, and others on another."""
        self.overlapped_beside_s = rhythm.overlapped * (
            by_messages.seconds(1 / num_push, travels / num_push * b) + updating
        )
        """Likewise."""
        self.at_home = spec.ps.location == "with_workers"
        updated = pace.update_s / num_push * (fleet.is_full & self.at_home)
        self.moving_s = fleet.moving_s(both) + updated
        self.moving_beside_s = fleet.moving_s(both, by_messages=True) + updated
        """CPU seconds of a minibatch's fetches and pushes, at both ends and in the shards, and where all are on one
        node."""
        self.sent_bytes = pushed * b / num_push
        by_rounds = spec.algorithm.traits.outer is not None
        self.alone_s = pace.passes_s + (pace.own_update_s if by_rounds else pace.update_s * (1 - 1 / num_fetch))
        """Passes, and the local steps: all, or those between two fetches."""
        self.fleet = fleet

    def near(self, clients: Ints) -> Ints:
        """Of so many clients, those that stand on a shard's own node; a group that spans nodes stands on none."""
        on_a_node = self.fleet.workers // clients <= self.fleet.most
        at_home = self.at_home & (self.fleet.nodes > 1) & on_a_node
        found: Ints = np.where(at_home, np.maximum(1, clients // self.fleet.nodes), 0)
        return found

    def exchange(self, clients: Ints, think: Floats, hidden: Floats) -> tuple[Exchange, Floats]:
        """The exchange of each of so many clients, and what it waits for the others there.

        Where shards stand on the workers' nodes, a shard's own node does not load its link. Where all of them stand on
        one, as on two nodes, the clients beside them wait for nothing but the way within the node, and the mean is over
        their rates and the others'.
        """
        near = self.near(clients)
        hidden = np.maximum(hidden, np.minimum(self.overlapped_s, think))
        beside = np.maximum(self.beside_s - np.minimum(self.overlapped_beside_s, think), 0.0)
        elsewhere = think - hidden + self.own_s - self.service_s  # of a cycle, what does not pass at the shard
        served = response_s(np.maximum(clients - near, 1), elsewhere, self.service_s)
        waits = np.maximum(served - self.service_s, 0.0)
        whole = self.own_s - hidden + waits
        on_one = (self.fleet.shards == 1) | (self.fleet.nodes == 2)  # none stands beside the first worker
        free = np.where(on_one, near / clients, 0.0)
        near_missed, missed = self.missed(clients, think, hidden)
        mean = 1 / (free / (think + beside + near_missed) + (1 - free) / (think + whole + missed)) - think
        left = np.where(whole > 0, mean / np.where(whole > 0, whole, 1.0), 0.0)
        own = self.own_s * left
        return Exchange("fetches and pushes", own, hidden * left, self.sent_bytes * (1 - free)), waits * left

    def missed(self, clients: Ints, think: Floats, hidden: Floats) -> tuple[Floats, Floats]:
        """What computing misses while the vectors of a client are moved: of one on the shards' node, and of another."""
        beside = np.minimum(self.overlapped_beside_s, think)
        found = (missed_s(self.moving_beside_s, self.beside_s, beside), missed_s(self.moving_s, self.own_s, hidden))
        of_near, of_far = (np.where(clients > 1, each, 0.0) for each in found)
        return of_near, of_far
