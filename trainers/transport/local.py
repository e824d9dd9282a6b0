"""All workers in one process, one at a time, in an order that a seed decides, on a virtual clock.

The real algorithms run here unchanged: a worker is a thread that holds a baton. Whenever it waits, the baton goes to
the worker whose virtual time is least among those that can go on. Nothing depends on the machine, so a run can be
repeated, and an interleaving that broke something can be replayed from its seed.
"""

import itertools
import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from trainers.errors import PeerLost, StoreClosed
from trainers.optim.update import initial_state
from trainers.store.groups import Piece
from trainers.store.identity import LONGEST_DELAY, PushIdentity
from trainers.store.shard import Applied, Arrived, Shard, ShardConfig
from trainers.transport.acknowledgements import Acknowledgements
from trainers.transport.messages import Messages
from trainers.transport.protocols import Collectives, Fetched, Handle, ParameterStore, Push, Traffic, Waits, done

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
        self.numbers = itertools.count(10**6)  # of what runs beside the workers

    def run(self, workers: Sequence[Callable[[], T]]) -> list[T]:
        """Run all workers to their end. Returns their results; raises the first error, or PeerLost if all wait."""
        results: dict[int, T] = {}

        def body(worker: int) -> None:
            results[worker] = workers[worker]()

        for worker in range(len(workers)):
            self.time_s[worker], self.ready[worker] = 0.0, _always
        threads = [threading.Thread(target=self._live, args=(i, body), daemon=True) for i in range(len(workers))]
        for thread in threads:
            thread.start()
        with self.changed:
            self._pass_on()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return [results[i] for i in range(len(workers))]

    def beside(self, worker: int, body: Callable[[int], None], ready: Callable[[], bool]) -> None:
        """Have `body(number)` run beside a worker, as one more that the baton goes to, from when `ready()` holds."""
        number = next(self.numbers)
        with self.changed:
            self.time_s[number], self.ready[number] = self.time_s[worker], ready
        threading.Thread(target=self._live, args=(number, body), daemon=True).start()

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

    def _live(self, worker: int, body: Callable[[int], None]) -> None:
        try:
            self._await_turn(worker)
            body(worker)
        except BaseException as error:  # the others must be woken whatever it was
            self.failure = self.failure or error
        with self.changed:
            del self.time_s[worker]
            self._pass_on()

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
        self.post: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)  # lane, from, to -> under way
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
        self._count_exchange(send, receive)
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

    def lane(self, index: int) -> "LocalLane":
        return LocalLane(self, index)

    def close(self) -> None:
        self.group.closed = True


class LocalMessages(Messages):
    """Messages between workers in one process; whoever uses them moves as number `mover` of the world."""

    def __init__(self, collectives: LocalCollectives, lane: int, mover: int) -> None:
        self.group, self.lane, self.mover = collectives.group, lane, mover
        self.rank, self.size, self.nodes = collectives.rank, collectives.size, collectives.nodes
        self.traffic = collectives.traffic

    def close(self) -> None:
        self.group.closed = True

    def _send(self, vector: Tensor, to: int) -> Handle[None]:
        self.group.post[self.lane, self.rank, to].append(vector.detach().clone())
        return done(None)

    def _receive(self, into: Tensor, source: int) -> Handle[None]:
        arrived = self.group.post[self.lane, source, self.rank]

        def finish() -> None:
            self.group.world.pause(self.mover, lambda: self.group.closed or bool(arrived))
            if not arrived:
                raise PeerLost("the group was closed")
            vector = arrived.popleft()
            assert vector.shape == into.shape, f"worker {source} sent {len(vector)} elements, not {len(into)}"
            into.copy_(vector)

        return Handle(finish)


class LocalLane:
    """A `Lane` whose exchanges move beside the workers, in the order that the world's seed decides."""

    def __init__(self, collectives: LocalCollectives, index: int) -> None:
        self.group = collectives.group
        self.mover = self.group.members[collectives.rank]
        self.messages = LocalMessages(collectives, index, self.mover)
        self.begun = self.over = 0

    def begin(self, exchange: Callable[[Messages], None]) -> Handle[None]:
        before, world, errors = self.begun, self.group.world, list[BaseException]()
        self.begun += 1

        def body(number: int) -> None:
            self.messages.mover = number
            try:
                exchange(self.messages)
            except BaseException as error:  # it is the caller's, and those who wait for this worker must be told
                errors.append(error)
                self.messages.close()
            self.over += 1

        def finish() -> None:
            world.pause(self.mover, lambda: self.over > before)
            if errors:
                raise errors[0]

        world.beside(self.mover, body, lambda: self.over == before)
        return Handle(finish)

    def close(self) -> None:
        self.group.closed = True


class LocalServer:
    """Shards that are objects of this process, and what they have answered to each worker."""

    def __init__(self, world: LocalWorld, shards: Sequence[dict[int, Piece]]) -> None:
        """shards: for each its pieces, by the number of the group."""
        self.world = world
        self.groups: dict[int, list[Piece]] = defaultdict(list)  # pieces of each, in the order of the vector
        for pieces in shards:
            for group, piece in pieces.items():
                self.groups[group].append(piece)
        self.answers: dict[int, list[Applied]] = defaultdict(list)
        self.members: set[int] = set()  # workers that have joined and are not gone
        self.closed = False

    @property
    def shards(self) -> list[Shard]:
        """All of them, in the order of the vector."""
        return [piece.shard for _, pieces in sorted(self.groups.items()) for piece in pieces]

    def join(self, worker: int) -> int:
        """A worker comes; where its clock begins.

        Raises:
            StoreClosed: There is no room for it.
        """
        if len(self.members) >= self.shards[0].capacity:
            raise StoreClosed(f"the shards have no room for another worker than {sorted(self.members)}")
        self.members.add(worker)
        begin = max(shard.join(worker) for shard in self.shards)
        for shard in self.shards:
            shard.set_clock(worker, begin)
        return begin

    def forget(self, worker: int) -> None:
        """A worker is gone, whether it left or not."""
        self.members.discard(worker)
        for group, pieces in self.groups.items():
            for piece in pieces:
                piece.shard.leave(worker)
                self.apply(group, piece)

    def push(self, group: int, piece: Piece, push: Arrived) -> None:
        """Bring one push to one piece of its group."""
        piece.shard.push(push)
        self.apply(group, piece)

    def prepare_generation(self, version: int) -> None:
        """Forget all workers, and have every shard go back to a version where it is one ahead."""
        self.members.clear()
        for shard in self.shards:
            shard.prepare_generation(version)

    def apply(self, group: int, piece: Piece) -> None:
        """Make the updates that a piece has all for."""
        for applied in piece.shard.apply():
            if piece is self.groups[group][0]:
                self.answers[applied.push.worker].append(applied)


class LocalStore(ParameterStore):
    """A worker's way to the shards of a `LocalServer`."""

    def __init__(self, server: LocalServer, worker: int) -> None:
        self.closed = False
        self.server = server
        self.worker = worker
        self.waited_s = 0.0
        self.traffic = Traffic()
        self.waits = Waits()
        self.updates = 0
        self.slot = torch.zeros(sum(shard.params.numel() for shard in server.shards))
        self.params = torch.zeros_like(self.slot)
        self.acknowledged = Acknowledgements(len(server.groups))
        self.last: PushIdentity | None = None  # that was pushed
        # (group, piece) -> versions at the last fetches, the newest last
        self.seen: dict[tuple[int, int], deque[int]] = {}
        self.clock_at_start = server.join(worker)
        for group, pieces in server.groups.items():
            for i, piece in enumerate(pieces):
                self.seen[group, i] = deque([piece.shard.version], LONGEST_DELAY + 1)

    @property
    def staleness(self) -> dict[int, int]:
        return dict(self.acknowledged.staleness)

    @property
    def group_staleness(self) -> list[dict[int, int]]:
        return [dict(counts) for counts in self.acknowledged.by_group]

    @property
    def applied(self) -> list[Push]:
        answers, self.server.answers[self.worker] = self.server.answers[self.worker], []
        self.updates = max([self.updates, *(a.version for a in answers)])
        for a in answers:
            push = Push(a.push.identity, a.push.clock, a.push.examples, a.push.minibatches)
            self.acknowledged.add(push, a.staleness)
        return self.acknowledged.taken()

    def fetch(self, min_clock: int, group: int = 0) -> Handle[Fetched]:
        def finish() -> Fetched:
            pieces = self.server.groups[group]
            self._pause(lambda: all(piece.shard.may_fetch(min_clock) for piece in pieces))
            for i, piece in enumerate(pieces):
                self.params[piece.span] = piece.shard.ring[piece.shard.pin(self.worker)]
                self.seen[group, i].append(piece.shard.version)
                self.traffic.count(0, piece.shard.params.numel())
            self.waits.fetches += 1
            behind = min(piece.shard.examples for piece in pieces), min(piece.shard.version for piece in pieces)
            return Fetched(self.params, *behind)

        return Handle(finish)

    def claim(self, clock: int) -> Handle[bool]:
        self._pause(_always)  # computing the gradient took time
        first, *others = self.server.groups[0]
        granted = first.shard.claim(self.worker, clock)
        for piece in others if not granted else ():
            piece.shard.pass_by(self.worker, clock)
        for piece in self.server.groups[0]:
            self.server.apply(0, piece)
        return done(granted)

    def gradient_buffer(self) -> Tensor:
        return self.slot

    def push(self, push: Push) -> Handle[None]:
        self._pause(_always)  # computing the gradient took time, in which others may have pushed
        pieces = self.server.groups[push.identity.group]
        numbers = push.clock, push.examples, push.minibatches
        for i, piece in enumerate(pieces):
            gradient = self.slot[piece.span].clone()
            self.traffic.count(gradient.numel(), 0)
            seen = self.seen[push.identity.group, i]
            base = seen[max(-1 - push.delay, -len(seen))]
            arrived = Arrived(self.worker, push.identity, *numbers, gradient, base)
            self.server.push(push.identity.group, piece, arrived)
        self.last = push.identity
        self.waits.pushes += 1
        return Handle(lambda: self._pause(lambda: self._is_applied(push.identity)))

    def settle(self) -> None:
        last = self.last
        if last is not None and not self._is_applied(last):
            self._pause(lambda: self._is_applied(last))

    def leave(self) -> None:
        self.settle()
        for group, pieces in self.server.groups.items():
            for piece in pieces:
                piece.shard.leave(self.worker)
                self.server.apply(group, piece)

    def close(self) -> None:
        self.closed = True

    def _is_applied(self, identity: PushIdentity) -> bool:
        return all(identity in piece.shard.applied for piece in self.server.groups[identity.group])

    def _pause(self, ready: Callable[[], bool]) -> None:
        self.server.world.pause(self.worker, lambda: self.server.closed or self.closed or ready())
        if self.server.closed or self.closed:
            raise StoreClosed("the parameter store was closed")


def local_collectives(world: LocalWorld, size: int) -> list[LocalCollectives]:
    """Collectives for workers 0 to `size` - 1 of a world."""
    group = LocalGroup(world, range(size))
    return [LocalCollectives(group, rank) for rank in range(size)]


def local_shard(config: ShardConfig, params: Tensor, num_readers: int) -> Shard:
    """A shard in private memory that starts from `params` (n,) and serves so many readers."""
    ring = [params.clone()] + [torch.zeros_like(params) for _ in range(num_readers + 1)]
    return Shard(config, ring, [initial_state(config.update.rule, params) for _ in range(2)])
