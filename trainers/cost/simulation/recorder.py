"""Remembers what some clients and shards of a simulation did last."""

from collections import deque

from simpy import Environment

from trainers.cost.simulation.timeline import Timeline, chosen, track

KEPT = 250
"""Spans of a client: several cycles."""
KEPT_OF_A_SHARD = 10_000
MOST_SHARDS = 4
"""That have a row: the fullest first."""
MOST_STEPS = 8
"""Of a cycle that is shown."""

Spans = deque[tuple[str, float, float]]


class Recorder:
    """A simulation tells it each span when it is over."""

    def __init__(self, env: Environment, clients: int, kind: str, shards: int) -> None:
        """kind: What the clients are, in a word."""
        self.env = env
        self.clients = clients
        self.kind = kind
        self.num_shards = min(shards, MOST_SHARDS)
        self.of_clients = {client: Spans(maxlen=KEPT) for client in chosen(clients)}
        self.of_shards = [Spans(maxlen=KEPT_OF_A_SHARD) for _ in range(self.num_shards)]

    def add(self, client: int, what: str, since_s: float, until_s: float | None = None) -> None:
        """What a client has done until now, or some moment before."""
        if (spans := self.of_clients.get(client)) is not None:
            until_s = self.env.now if until_s is None else until_s
            if until_s > since_s:
                spans.append((what, since_s, until_s))

    def add_shard(self, shard: int, what: str, since_s: float) -> None:
        """Likewise a shard."""
        if self.env.now > since_s:
            self.of_shards[shard].append((what, since_s, self.env.now))

    def timeline(self, step_s: float, cycle: int) -> Timeline:
        """The last cycle that is over for all of them.

        Args:
            step_s: Of a client, in the mean.
            cycle: Minibatches from a fetch, or a push, to the next.
        """
        steps = min(cycle, MOST_STEPS)
        seconds = steps * step_s
        until_s = min((spans[-1][2] for spans in self.of_clients.values() if spans), default=self.env.now)
        since_s = max(0.0, until_s - seconds)
        rows = [track(f"{self.kind} {client}", spans, since_s, seconds) for client, spans in self.of_clients.items()]
        for number, spans in enumerate(self.of_shards):
            name = "the fullest shard" if number == 0 else f"shard {number + 1} by size"
            rows.append(track(name, spans, since_s, seconds))
        left_out = self.clients - len(self.of_clients)
        return Timeline(seconds=seconds, steps=steps, tracks=tuple(rows), left_out=left_out)
