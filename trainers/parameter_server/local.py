"""Shards in this process, on a virtual clock: for tests and the simulator."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainers.errors import StoreClosed
from trainers.links.encoding import DTYPES
from trainers.links.handle import Handle, done
from trainers.links.local import LocalWorld, _always
from trainers.links.meter import Meter
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.pending import Acknowledgements
from trainers.parameter_server.protocol import Fetched, ParameterStore, Push
from trainers.parameter_server.push_identity import LONGEST_DELAY, PushIdentity
from trainers.parameter_server.shard import AppliedPush, ReceivedPush, Shard, ShardConfig


class LocalServer:
    """Shards that are objects of this process, and what they have answered to each worker."""

    def __init__(self, world: LocalWorld, shards: Sequence[dict[int, GroupSlice]]) -> None:
        """shards: for each its pieces, by the number of the group."""
        self.world = world
        self.groups: dict[int, list[GroupSlice]] = defaultdict(list)  # pieces of each, in the order of the vector
        for pieces in shards:
            for group, piece in pieces.items():
                self.groups[group].append(piece)
        self.answers: dict[int, list[AppliedPush]] = defaultdict(list)
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

    def push(self, group: int, piece: GroupSlice, push: ReceivedPush) -> None:
        """Bring one push to one piece of its group."""
        piece.shard.push(push)
        self.apply(group, piece)

    def prepare_generation(self, version: int) -> None:
        """Forget all workers, and have every shard go back to a version where it is one ahead."""
        self.members.clear()
        for shard in self.shards:
            shard.prepare_generation(version)

    def apply(self, group: int, piece: GroupSlice) -> None:
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
        self.meter = Meter()
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
            self.meter.count_fetch(sum(piece.shard.params.numel() for piece in pieces))
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
            push.lay_down(self.slot, piece.span)
            gradient = self.slot[piece.span].to(DTYPES[push.wire], copy=True)
            seen = self.seen[push.identity.group, i]
            base = seen[max(-1 - push.delay, -len(seen))]
            arrived = ReceivedPush(self.worker, push.identity, *numbers, gradient, base, weight=push.weight)
            self.server.push(push.identity.group, piece, arrived)
        self.last = push.identity
        self.meter.count_push(sum(push.num_bytes(piece.shard.params.numel()) for piece in pieces))
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


def local_shard(config: ShardConfig, params: Tensor, num_readers: int) -> Shard:
    """A shard in private memory that starts from `params` (n,) and serves so many readers."""
    ring = [params.clone()] + [torch.zeros_like(params) for _ in range(num_readers + 1)]
    return Shard(config, ring, [config.update.optimizer.initial_state(params) for _ in range(2)])
