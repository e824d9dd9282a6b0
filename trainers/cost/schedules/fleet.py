"""The candidates of a plan: arrays of numbers of workers and shards, and where these hang on a cluster's switches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainers.cost.clusters.cluster import Cluster, DescribedLink

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NOWHERE = DescribedLink(latency=0.0, bandwidth=1e300)
"""Where nothing travels."""


@dataclass(frozen=True)
class Lane:
    """What each of the workers that communicate at once has of the links; (C,) each."""

    latency_s: Floats
    bytes_per_s: Floats

    def seconds(self, steps: Floats | Ints | float, num_bytes: Floats | float) -> Floats:
        """Of so many communication steps in which so many bytes are sent in all."""
        found: Floats = steps * self.latency_s + num_bytes / self.bytes_per_s
        return found


@dataclass(frozen=True)
class Fleet:
    """C candidates. All arrays are (C,)."""

    cluster: Cluster
    workers: Ints
    virtual: Ints
    """V of each; as many as workers where the algorithm has none."""
    shards: Ints
    memory_is_shared: bool = False
    """Whether the workers of a switch exchange through memory that all of them see."""
    cores: int | None = None
    """Of each switch, where workers may have to share them; None: each worker has its device for itself."""
    contention: float = 0.0
    """By what share each worker that computes beside another, on cores of its own, makes its steps longer."""

    @property
    def nodes(self) -> Ints:
        """Switches on which the workers hang."""
        filled = np.cumsum(self.cluster.sizes)
        found: Ints = np.searchsorted(filled, self.workers, side="left") + 1
        return found

    @property
    def most(self) -> Ints:
        """Workers on the switch that has most of them."""
        largest = np.maximum.accumulate(np.asarray(self.cluster.sizes))
        whole = np.where(self.nodes > 1, largest[np.maximum(self.nodes - 2, 0)], 0)
        rest = self.workers - np.concatenate([[0], np.cumsum(self.cluster.sizes)])[self.nodes - 1]
        found: Ints = np.maximum(whole, rest)
        return found

    @property
    def minibatches(self) -> Ints:
        """Of the worker that has most of a synchronous step's."""
        return -(-self.virtual // self.workers)

    @property
    def crowding(self) -> Floats:
        """How many times as long a worker computes because others share its cores, or the caches beside them."""
        cores = self.most if self.cores is None else self.cores
        beside = np.minimum(self.most, cores) - 1
        return np.maximum(1.0, self.most / cores) * (1 + self.contention * beside)

    @property
    def inside(self) -> DescribedLink:
        """The link among the devices of a switch."""
        return self.cluster.links.get(self.cluster.inside, NOWHERE)

    @property
    def between(self) -> DescribedLink:
        """The link between switches."""
        return self.cluster.links.get(self.cluster.between, NOWHERE)

    def inside_lane(self, at_once: Ints | int = 1) -> Lane:
        """Among the workers of a switch, while so many of them send at once: where it is known what one by itself
        reaches, all share the bandwidth."""
        ones = np.ones(len(self.workers))
        users = ones if self.inside.each is None else at_once * ones
        return Lane(self.inside.latency * ones, _at_most(self.inside, self.inside.bandwidth / users))

    def messages_lane(self) -> Lane:
        """Among the workers of a switch, and shards there, where they exchange messages."""
        link, ones = self.cluster.links.get(self.cluster.messages, self.inside), np.ones(len(self.workers))
        return Lane(link.latency * ones, _at_most(link, link.bandwidth * ones))

    def between_lane(self, at_once: Ints | int = 1) -> Lane:
        """Between switches, while so many workers of each use the link at once."""
        ones = np.ones(len(self.workers))
        users = at_once * ones if self.between.shared else ones
        return Lane(self.between.latency * ones, _at_most(self.between, self.between.bandwidth / users))

    @property
    def is_full(self) -> NDArray[np.bool_]:
        """Whether on some switch workers compute on all cores; never where they compute on something else, or nobody
        knows how many these are."""
        places = np.asarray(self.cluster.sizes)[0] if self.cores is None else self.cores
        found: NDArray[np.bool_] = self.most >= places
        return found

    def moving_s(self, num_bytes: Floats | float, by_messages: bool = False) -> Floats:
        """CPU seconds for both ends of moving so many bytes over the slowest link on the way, which computing misses;
        by_messages: within a switch."""
        within = self.cluster.links.get(self.cluster.messages, self.inside) if by_messages else self.inside
        links = (within.core, within.core if by_messages else self.between.core)
        inside, between = (0.0 if core is None else 1 / core for core in links)
        found: Floats = num_bytes * np.where(self.is_full, np.where(self.nodes > 1, between, inside), 0.0)
        return found

    def lane(self, all_at_once: bool = True, both_ways: bool = True) -> Lane:
        """The slowest link on the way of an exchange among all workers.

        Args:
            all_at_once: Whether every worker of a switch crosses it at the same time; else one does, as in a ring.
            both_ways: Whether each worker sends and receives as much at the same time. One thread does both, so that it
                takes at least the work at both ends.
        """
        users = self.most if all_at_once else 1
        inside, between = self.inside_lane(users), self.between_lane(users)
        if both_ways:
            inside, between = (
                lane if link.core is None else replace(lane, bytes_per_s=np.minimum(lane.bytes_per_s, link.core))
                for lane, link in ((inside, self.inside), (between, self.between))
            )
        crosses = self.nodes > 1
        meets = self.most > 1
        slowest = np.where(meets, np.minimum(inside.bytes_per_s, between.bytes_per_s), between.bytes_per_s)
        return Lane(
            np.where(crosses, np.maximum(between.latency_s, meets * inside.latency_s), inside.latency_s),
            np.where(crosses, slowest, inside.bytes_per_s),
        )

    def with_workers(self, workers: Sequence[int] | Ints, virtual: Ints | None = None) -> "Fleet":
        """As many candidates on the same cluster, with other workers."""
        count = np.asarray(workers)
        return replace(self, workers=count, virtual=count if virtual is None else virtual)


def _at_most(link: DescribedLink, bytes_per_s: Floats) -> Floats:
    """What one transfer reaches, where its share of the link is so much."""
    return bytes_per_s if link.each is None else np.minimum(bytes_per_s, link.each)
