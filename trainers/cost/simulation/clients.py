"""Asynchronous algorithms: each client fetches, computes and pushes by itself, and the shards are shared fairly."""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from simpy import Environment, Event

from trainers.cost.schedules.fleet import Floats
from trainers.cost.simulation.draws import passes
from trainers.cost.simulation.fluid import Network, Route
from trainers.cost.workload import Pace

SHARD = "the fullest shard"


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
    free: int = 0
    """Clients that stand beside the only shard, and wait for nothing there."""
    hidden: float = 0.0
    """Share of an exchange that passes while the client computes."""
    num_fetch: int = 1
    num_push: int = 1
    max_staleness: int | None = None


@dataclass
class Ran:
    """What came of it."""

    ends_s: list[float]
    """When each minibatch that any client trained was through."""
    waiting_s: float
    """The mean, a minibatch: longer at the shard than alone, or for slower clients."""
    staleness: Counter[int]


def run(clients: Clients, pace: Pace, steps: int, rng: np.random.Generator) -> Ran:
    """Let each client train so many minibatches, or until the quickest has trained them: the others stop then too, so
    that a slow one does not go on alone."""
    env = Environment()
    shards = _Shards(env, clients)
    count, members = clients.slowness.shape
    drawn = passes(pace, (steps, count, members), clients.slowness, rng).max(axis=2)  # a group waits for its slowest
    ran = Ran([], 0.0, Counter())
    phases = (
        rng.random(count) * drawn[0].mean()
    ).tolist()  # who begins together without a spread stays together for ever
    workers = [env.process(_client(env, clients, shards, drawn[:, k], k, ran, phases[k])) for k in range(count)]
    env.run(until=env.any_of(workers))
    ran.waiting_s = shards.waited_s / max(1, len(ran.ends_s))
    return ran


class _Shards:
    """The parameters behind the fullest shard, and how far each client is."""

    def __init__(self, env: Environment, clients: Clients) -> None:
        self.env = env
        self.clients = clients
        self.network = Network(env, {SHARD: 1.0})  # a second a second: transfers are as long as they keep it busy
        self.route = Route((SHARD,), 1.0 / clients.own_factor)
        self.version = 0
        self.clocks = [0] * clients.slowness.shape[0]
        self.slowest = 0
        self.moved = env.event()
        self.waited_s = 0.0

    def visit(self, busy_s: float) -> Generator[Event, Any, None]:
        """Go there, and wait for the others who are there."""
        began = self.env.now
        yield self.network.transfer(self.route, busy_s)
        self.waited_s += self.env.now - began - busy_s * self.clients.own_factor

    def may_fetch(self, clock: int) -> Generator[Event, Any, None]:
        """Wait until the slowest client is at most `max_staleness` steps behind."""
        began, bound = self.env.now, self.clients.max_staleness
        while bound is not None and clock - self.slowest > bound:
            yield self.moved
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
    seen, shown = 0, 0.0 if own < clients.free else 1 - clients.hidden
    for clock, computing in enumerate(drawn.tolist()):
        fetches, pushes = clock % clients.num_fetch == 0, (clock + 1) % clients.num_push == 0
        if fetches:
            yield from shards.may_fetch(clock)
            yield from shards.visit(clients.fetch_s * shown)
            seen = shards.version
        if clients.hidden:
            along = (clients.fetch_s * fetches + clients.push_s * pushes) * clients.hidden
            yield env.all_of([env.timeout(computing), shards.network.transfer(shards.route, along)])
            yield env.timeout(clients.fixed_s)
        else:
            yield env.timeout(computing + clients.fixed_s)
        if pushes:
            yield from shards.visit(clients.push_s * shown)
            ran.staleness[shards.version - seen] += 1
            shards.pushed(own, clock + 1)
            seen += 1  # its own update makes nothing of its own stale
        ran.ends_s.append(env.now)
