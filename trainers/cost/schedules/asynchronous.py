"""A step of the algorithms whose workers go on by themselves: downpour, easgd, and mixed between its groups."""

from dataclasses import dataclass

import numpy as np

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.downpour.config import DownpourConfig
from trainers.algorithms.easgd.config import EasgdConfig
from trainers.algorithms.mixed.config import MixedConfig
from trainers.cost.schedules.among_workers import canonical_s
from trainers.cost.schedules.fleet import Fleet, Floats, Ints
from trainers.cost.schedules.repairman import response_s
from trainers.cost.schedules.shares import fullest_share
from trainers.cost.schedules.step import Exchange, Step
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


def rhythm_of(config: AlgorithmConfig) -> Rhythm:
    """Of an algorithm whose workers go on by themselves."""
    assert isinstance(config, DownpourConfig | MixedConfig | EasgdConfig)
    bound, traits = config.max_staleness, config.traits
    if isinstance(config, EasgdConfig) or traits.outer is not None:  # it goes by rounds
        return Rhythm(traits.num_push, traits.num_push, None if bound is None else bound * traits.num_push)
    return Rhythm(config.num_fetch, config.num_push, bound)


def easgd_step(spec: TrainSpec, config: EasgdConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Zhang et al. 2015: every tau steps a worker fetches the centre and pushes the force."""
    visits = Visits(spec, work, pace, fleet, rhythm_of(config))
    think = visits.alone_s * fleet.crowding
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
    think = visits.alone_s * fleet.crowding
    hidden = np.minimum(visits.own_s, pace.passes_s * fleet.crowding) * hidden_share(config, work)
    return _step(spec, fleet, pace, think, visits.exchange(fleet.workers, think + pace.data_s, hidden), ())


def mixed_step(spec: TrainSpec, config: MixedConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Paper 3, section III.C: the workers of a group average their gradients, and the group is one of Downpour's."""
    members = members_of(config, fleet)
    inner, sent = canonical_s(fleet.with_workers(members, members), work.num_bytes)
    copied = fleet.inside_lane().seconds(1.0, work.num_bytes) / rhythm_of(config).num_fetch
    inner = inner + np.where(members > 1, copied, 0.0)
    nothing = np.zeros(len(fleet.workers))
    visits = Visits(spec, work, pace, fleet, rhythm_of(config))
    think = visits.alone_s * fleet.crowding
    served = visits.exchange(fleet.workers // members, think + pace.data_s + inner, nothing)
    return _step(spec, fleet, pace, think, served, (Exchange("means of a group", inner, nothing, sent),))


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
        num_fetch, num_push, lane = rhythm.num_fetch, rhythm.num_push, fleet.lane(all_at_once=False)
        often = 1 / num_fetch + 1 / num_push
        of_process = share * b / (fleet.cluster.shard_bandwidth or np.inf)
        self.fetch_s = np.maximum(lane.seconds(1.0, share * b), of_process)
        """The shard is busy with one fetch ..."""
        in_place = fleet.memory_is_shared & (fleet.nodes == 1)  # shards read the gradients where workers wrote them
        bytes_an_element = None if spec.compress is None else spec.compress.bytes_an_element
        shorter = 1.0 if bytes_an_element is None else bytes_an_element / FLOAT_BYTES
        pushed = np.where(in_place, 1.0, shorter)
        pushed_s = np.maximum(lane.seconds(1.0, pushed * share * b), pushed * of_process)
        self.push_s = pushed_s + pace.update_s * share
        """... and with one push, and its update."""
        self.service_s = self.fetch_s / num_fetch + self.push_s / num_push
        """It is busy with both, a minibatch."""
        self.own_s = np.maximum(self.service_s, lane.seconds(often, (1 / num_fetch + pushed / num_push) * b))
        """It takes when nobody else is there: the worker's own link carries all shards' parts."""
        self.beside_s = fleet.inside_lane().seconds(often, (1 / num_fetch + pushed / num_push) * b)
        """It takes where all shards are on the worker's own node."""
        self.sent_bytes = pushed * b / num_push
        local = 1.0 if spec.algorithm.traits.outer is not None else 1 - 1 / num_fetch
        self.alone_s = pace.passes_s + pace.update_s * local
        """Passes, and the local steps: all, or those between two fetches."""
        self.fleet, self.at_home = fleet, spec.ps.location == "with_workers"

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
        elsewhere = think - hidden + self.own_s - self.service_s  # of a cycle, what does not pass at the shard
        served = response_s(np.maximum(clients - near, 1), elsewhere, self.service_s)
        waits = np.maximum(served - self.service_s, 0.0)
        whole = self.own_s - hidden + waits
        on_one = (self.fleet.shards == 1) | (self.fleet.nodes == 2)  # none stands beside the first worker
        free = np.where(on_one, near / clients, 0.0)
        mean = 1 / (free / (think + self.beside_s) + (1 - free) / (think + whole)) - think
        left = np.where(whole > 0, mean / np.where(whole > 0, whole, 1.0), 0.0)
        own = self.own_s * left
        return Exchange("fetches and pushes", own, hidden * left, self.sent_bytes * (1 - free)), waits * left
