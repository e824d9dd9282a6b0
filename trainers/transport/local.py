"""All workers in one process, one at a time, in an order that a seed decides, on a virtual clock.

The real algorithms run here unchanged: a worker is a thread that holds a baton. Whenever it waits, the baton goes to
the worker whose virtual time is least among those that can go on. Nothing depends on the machine, so a run can be
repeated, and an interleaving that broke something can be replayed from its seed.
"""

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from trainers.errors import PeerLost, StoreClosed
from trainers.optim.update import initial_state
from trainers.store.shard import Applied, Arrived, Shard, ShardConfig
from trainers.transport.protocols import Collectives, Fetched, Handle, ParameterStore, Push

T = TypeVar("T")


class LocalWorld:
    """Runs workers as threads of which exactly one moves."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.changed = threading.Condition()
        self.time_s: dict[int, float] = {}
        self.ready: dict[int, Callable[[], bool]] = {}
        self.turn: int | None = None
        self.failure: BaseException | None = None

    def run(self, workers: Sequence[Callable[[], T]]) -> list[T]:
        """Run all workers to their end. Returns their results; raises the first error, or PeerLost if all wait."""
        results: dict[int, T] = {}

        def body(worker: int) -> None:
            try:
                self._await_turn(worker)
                results[worker] = workers[worker]()
            except BaseException as error:  # the others must be woken whatever it was
                self.failure = self.failure or error
            with self.changed:
                del self.time_s[worker]
                self._pass_on()

        for worker in range(len(workers)):
            self.time_s[worker], self.ready[worker] = 0.0, _always
        threads = [threading.Thread(target=body, args=(i,), daemon=True) for i in range(len(workers))]
        for thread in threads:
            thread.start()
        with self.changed:
            self._pass_on()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return [results[i] for i in range(len(workers))]

    def pause(self, worker: int, ready: Callable[[], bool], cost_s: float | None = None) -> None:
        """Give the baton away until `ready()` holds and it is this worker's turn; costs virtual time."""
        with self.changed:
            if worker not in self.time_s:  # outside `run`: one caller, nothing to schedule
                if not ready():
                    raise PeerLost("nobody is left who could end this wait")
                return
            self.time_s[worker] += self.random.expovariate(1.0) if cost_s is None else cost_s
            self.ready[worker] = ready
            self._pass_on()
        self._await_turn(worker)

    def _await_turn(self, worker: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == worker or self.failure is not None)
            if self.failure is not None:
                raise PeerLost("another worker of this local run failed") from self.failure

    def _pass_on(self) -> None:
        able = [worker for worker in self.time_s if self.ready[worker]()]
        if self.time_s and not able:
            self.failure = self.failure or PeerLost("every worker waits for another one")
        self.turn = min(able, key=lambda worker: (self.time_s[worker], worker), default=None)
        self.changed.notify_all()


def _always() -> bool:
    return True


class LocalGroup:
    """What the members of one `LocalCollectives` share."""

    def __init__(self, world: LocalWorld, members: Sequence[int]) -> None:
        self.world = world
        self.members = members  # their numbers in the world
        self.rounds: dict[tuple[str, int], dict[int, object]] = {}
        self.closed = False

    def meet(self, kind: str, count: int, rank: int, gift: object) -> dict[int, object]:
        """Lay down a gift and wait until all have laid down theirs."""
        gifts = self.rounds.setdefault((kind, count), {})
        gifts[rank] = gift
        self.world.pause(self.members[rank], lambda: self.closed or len(gifts) == len(self.members))
        if len(gifts) < len(self.members):
            raise PeerLost("the group was closed")
        return gifts


class LocalCollectives(Collectives):
    """Collectives of workers in one process."""

    def __init__(self, group: LocalGroup, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.size = len(group.members)
        self.calls = 0

    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        self.calls += 1
        count, gift = self.calls, [tensor.detach().clone() for tensor in send]

        def finish() -> None:
            for k, sent in self.group.meet("exchange", count, self.rank, gift).items():
                assert isinstance(sent, list)
                receive[k].copy_(sent[self.rank])

        return Handle(finish)

    def barrier(self, signal: int = 0) -> Handle[int]:
        self.calls += 1
        count = self.calls

        def finish() -> int:
            signals = self.group.meet("barrier", count, self.rank, signal).values()
            return max(number for number in signals if isinstance(number, int))

        return Handle(finish)

    def subgroup(self, ranks: Sequence[int]) -> "LocalCollectives | None":
        self.calls += 1
        group = LocalGroup(self.group.world, [self.group.members[rank] for rank in ranks])
        groups = self.group.meet(f"subgroup {list(ranks)}", self.calls, self.rank, group)
        chosen = groups[min(groups)]
        assert isinstance(chosen, LocalGroup)
        return LocalCollectives(chosen, list(ranks).index(self.rank)) if self.rank in ranks else None

    def close(self) -> None:
        self.group.closed = True


class LocalServer:
    """Shards that are objects of this process, and what they have answered to each worker."""

    def __init__(self, world: LocalWorld, shards: Sequence[Shard]) -> None:
        self.world = world
        self.shards = shards
        self.answers: dict[int, list[Applied]] = defaultdict(list)
        self.closed = False

    def push(self, shard: Shard, push: Arrived) -> None:
        """Bring one push to one shard."""
        shard.push(push)
        for applied in shard.apply():
            if shard is self.shards[0]:
                self.answers[applied.push.worker].append(applied)


class LocalStore(ParameterStore):
    """A worker's way to the shards of a `LocalServer`."""

    def __init__(self, server: LocalServer, worker: int) -> None:
        self.server = server
        self.worker = worker
        self.waited_s = 0.0
        self.slot = torch.zeros(sum(shard.params.numel() for shard in server.shards))
        self.counts: Counter[int] = Counter()
        for shard in server.shards:
            shard.join(worker)

    @property
    def staleness(self) -> dict[int, int]:
        return dict(self.counts)

    @property
    def applied(self) -> list[Push]:
        answers, self.server.answers[self.worker] = self.server.answers[self.worker], []
        self.counts.update(answer.staleness for answer in answers)
        return [Push(a.push.identity, a.push.clock, a.push.examples, a.push.minibatches) for a in answers]

    def fetch(self, min_clock: int) -> Handle[Fetched]:
        def finish() -> Fetched:
            shards = self.server.shards
            self._pause(lambda: all(shard.may_fetch(min_clock) for shard in shards))
            pinned = [shard.ring[shard.pin(self.worker)] for shard in shards]
            return Fetched(torch.cat(pinned), min(shard.examples for shard in shards))

        return Handle(finish)

    def gradient_buffer(self) -> Tensor:
        return self.slot

    def push(self, push: Push) -> Handle[None]:
        self._pause(_always)  # computing the gradient took time, in which others may have pushed
        cuts = torch.split(self.slot.clone(), [shard.params.numel() for shard in self.server.shards])
        for shard, cut in zip(self.server.shards, cuts, strict=True):
            arrived = Arrived(self.worker, push.identity, push.clock, push.examples, push.minibatches, cut)
            self.server.push(shard, arrived)
        shards = self.server.shards
        return Handle(lambda: self._pause(lambda: all(push.identity in shard.applied for shard in shards)))

    def leave(self) -> None:
        for shard in self.server.shards:
            shard.leave(self.worker)

    def close(self) -> None:
        self.server.closed = True

    def _pause(self, ready: Callable[[], bool]) -> None:
        self.server.world.pause(self.worker, lambda: self.server.closed or ready())
        if self.server.closed:
            raise StoreClosed("the parameter store was closed")


def local_collectives(world: LocalWorld, size: int) -> list[LocalCollectives]:
    """Collectives for workers 0 to `size` - 1 of a world."""
    group = LocalGroup(world, range(size))
    return [LocalCollectives(group, rank) for rank in range(size)]


def local_shard(config: ShardConfig, params: Tensor, num_readers: int) -> Shard:
    """A shard in private memory that starts from `params` (n,) and serves so many readers."""
    ring = [params.clone()] + [torch.zeros_like(params) for _ in range(num_readers + 1)]
    return Shard(config, ring, [initial_state(config.update.rule, params) for _ in range(2)])
