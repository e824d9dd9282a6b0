"""Asynchronous algorithms: each client fetches, computes and pushes by itself, and the shards are shared fairly."""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from simpy import Environment, Event

from trainers.cost.schedules.fleet import Floats
from trainers.cost.simulation.draws import passes
from trainers.cost.simulation.fluid import Network, Route
from trainers.cost.simulation.recorder import Recorder
from trainers.cost.simulation.timeline import WAITS, Timeline
from trainers.cost.workload import Pace

SHARD = "a shard"
SERVES = ("", "serves one", "serves several")


@dataclass(frozen=True)
class Clients:
    """K clients of the shards: workers, or groups of them. Seconds of a minibatch unless they say otherwise."""

    slowness: Floats
    """Of each client's members, (K, members)."""
    fixed_s: float
    """Besides passes, exchanges and the shard: data, local updates, sums within a group."""
    fetch_s: float
    """The fullest shard is busy with one fetch; per fetch, not per minibatch."""
    push_s: float
    """With one push and its update, likewise."""
    own_factor: float = 1.0
    """How many times as long a visit takes at least, since the client's own link carries all shards' parts."""
    shards: tuple[float, ...] = (1.0,)
    """What each shard has to do for a client, as a share of what the fullest has; that one comes first."""
    nodes: int = 0
    """On which the clients stand in blocks, and the shards one after the other; 0: no client stands beside a shard."""
    beside: float = 0.0
    """How many times as long as the shard's other clients one takes that stands beside it, and loads no link."""
    hidden: float = 0.0
    """Share of an exchange that passes while the client computes."""
    num_fetch: int = 1
    num_push: int = 1
    max_staleness: int | None = None
    fetches_first: bool = False
    """Whether a fetch comes before the push of the same minibatch, and not after it."""

    def is_beside(self, client: int, shard: int) -> bool:
        """Whether the two stand on the same node."""
        return self.nodes > 0 and client * self.nodes // len(self.slowness) == shard % self.nodes


@dataclass
class Ran:
    """What came of it."""

    ends_s: list[float] = field(default_factory=list)
    """When each minibatch that any client trained was through."""
    waiting_s: float = 0.0
    """The mean, a minibatch: longer at the shards than alone, or for slower clients."""
    staleness: Counter[int] = field(default_factory=Counter)
    passes_s: Floats = field(default_factory=lambda: np.zeros((0, 1, 1)))
    """Of each member in each minibatch, (steps, K, members)."""
    timeline: Timeline | None = None
    """Of the last whole cycle."""


def run(clients: Clients, pace: Pace, steps: int, rng: np.random.Generator) -> Ran:
    """Let each client train so many minibatches, or until the quickest has trained them: the others stop then too, so
    that a slow one does not go on alone."""
    env = Environment()
    count, members = clients.slowness.shape
    recorder = Recorder(env, count, "worker" if members == 1 else "group", len(clients.shards))
    shards = _Shards(env, clients, recorder)
    ran = Ran(passes_s=passes(pace, (steps, count, members), clients.slowness, rng))
    drawn = ran.passes_s.max(axis=2)  # a group waits for its slowest
    phases = (
        rng.random(count) * drawn[0].mean()
    ).tolist()  # who begins together without a spread stays together for ever
    workers = [env.process(_client(env, clients, shards, drawn[:, k], k, ran, phases[k])) for k in range(count)]
    env.run(until=env.any_of(workers))
    shards.stop()
    done = max(1, len(ran.ends_s))
    ran.waiting_s = shards.waited_s / done
    ran.timeline = recorder.timeline(env.now * count / done, max(clients.num_fetch, clients.num_push))
    return ran


class _Shards:
    """The parameters, and how far each client is."""

    def __init__(self, env: Environment, clients: Clients, recorder: Recorder) -> None:
        self.env = env
        self.clients = clients
        self.recorder = recorder
        # A second a second: transfers are as long as they keep it busy.
        self.networks = [Network(env, {SHARD: 1.0}, partial(self._serves, k)) for k in range(len(clients.shards))]
        self.route = Route((SHARD,), 1.0 / clients.own_factor)
        self.served = [(0, 0.0)] * len(clients.shards)  # no client, one or several, and since when
        self.version = 0
        self.clocks = [0] * clients.slowness.shape[0]
        self.slowest = 0
        self.moved = env.event()
        self.waited_s = 0.0

    def visit(self, client: int, busy_s: float, what: str) -> Generator[Event, Any, None]:
        """Go to all shards at once, wait for the others who are there, and go on when the last shard is through."""
        began = self.env.now
        yield self.transfer(client, busy_s)
        self.recorder.add(client, what, began)
        self.waited_s += max(0.0, self.env.now - began - busy_s * self.clients.own_factor)

    def transfer(self, client: int, busy_s: float) -> Event:
        """Begin one. busy_s: Of the fullest shard."""
        if len(self.networks) == 1:
            return self._to(0, client, busy_s)
        return self.env.all_of(self._to(k, client, busy_s * share) for k, share in enumerate(self.clients.shards))

    def _to(self, shard: int, client: int, busy_s: float) -> Event:
        if self.clients.is_beside(client, shard):
            return self.env.timeout(busy_s * self.clients.beside)
        return self.networks[shard].transfer(self.route, busy_s)

    def _serves(self, shard: int, several: int) -> None:
        self._has_served(shard)
        self.served[shard] = several, self.env.now

    def _has_served(self, shard: int) -> None:
        several, since_s = self.served[shard]
        if several and shard < self.recorder.num_shards:
            self.recorder.add_shard(shard, SERVES[several], since_s)

    def stop(self) -> None:
        """Tell the recorder what the shards do at the end."""
        for shard in range(len(self.networks)):
            self._has_served(shard)

    def may_fetch(self, client: int, clock: int, bound: int) -> Generator[Event, Any, None]:
        """Wait until the slowest client is at most so many steps behind."""
        began = self.env.now
        while clock - self.slowest > bound:
            yield self.moved
        self.recorder.add(client, WAITS, began)
        self.waited_s += self.env.now - began

    def pushed(self, client: int, clock: int) -> None:
        """A push is applied."""
        self.version += 1
        self.clocks[client] = clock
        if self.clients.max_staleness is not None and (slowest := min(self.clocks)) > self.slowest:
            self.slowest = slowest
            self.moved.succeed()
            self.moved = self.env.event()


def _client(
    env: Environment, clients: Clients, shards: _Shards, drawn: Floats, own: int, ran: Ran, phase_s: float
) -> Generator[Event, Any, None]:
    """Dean et al. 2012: fetch every num_fetch minibatches, compute, push every num_push. phase_s: Until it begins."""
    yield env.timeout(phase_s)
    seen, shown, record = 0, 1 - clients.hidden, shards.recorder.add
    pushing: Event = env.timeout(0.0)

    def fetch(clock: int) -> Generator[Event, Any, int]:
        yield pushing  # its own pushes are applied before
        if clients.max_staleness is not None:
            yield from shards.may_fetch(own, clock, clients.max_staleness)
        yield from shards.visit(own, clients.fetch_s * shown, "fetch")
        return shards.version

    def push(clock: int, seen: int) -> Generator[Event, Any, None]:
        yield from shards.visit(own, clients.push_s * shown, "push")
        ran.staleness[shards.version - seen] += 1
        shards.pushed(own, clock + 1)

    for clock, computing in enumerate(drawn.tolist()):
        fetches, pushes = clock % clients.num_fetch == 0, (clock + 1) % clients.num_push == 0
        if fetches and not (clients.fetches_first and clock):
            seen = yield from fetch(clock)
        began, computed_s = env.now, computing
        if clients.hidden:
            along = (clients.fetch_s * fetches + clients.push_s * pushes) * clients.hidden
            yield env.all_of([env.timeout(computing), shards.transfer(own, along)])
            computed_s = env.now - began
            yield env.timeout(clients.fixed_s)
        else:
            yield env.timeout(computing + clients.fixed_s)
        record(own, "computing", began, began + computed_s)
        record(own, "data, updates, sums", began + computed_s)
        if pushes:
            if clients.fetches_first:
                seen = yield from fetch(clock + 1 - clients.num_push)
            yield pushing
            if clients.fetches_first or (clock + 1) % clients.num_fetch:  # it computes on
                pushing = env.process(push(clock, seen))
            else:
                yield from push(clock, seen)
            seen += 1  # its own update makes nothing of its own stale
        ran.ends_s.append(env.now)
