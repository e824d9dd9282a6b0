"""All workers in one process, one at a time, in an order that a seed decides, on a virtual clock.

The real algorithms run here unchanged: a worker is a thread that holds a baton. Whenever it waits, the baton goes to
the worker whose virtual time is least among those that can go on. Nothing depends on the machine, so a run can be
repeated, and an interleaving that broke something can be replayed from its seed.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trainers.collectives.messages import Messages
from trainers.collectives.protocol import Collectives
from trainers.errors import PeerLost
from trainers.links.handle import Handle, done
from trainers.links.local import LocalWorld
from trainers.spans import span

CPU = torch.device("cpu")


class LocalGroup:
    """What the members of one `LocalCollectives` share."""

    def __init__(self, world: LocalWorld, members: Sequence[int]) -> None:
        self.world = world
        self.members = members  # their numbers in the world
        self.rounds: dict[tuple[str, int], dict[int, object]] = {}
        self.post: dict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)  # lane, from, to -> under way
        self.gone: set[int] = set()  # ranks that have closed: nothing more comes from them

    def meet(self, kind: str, count: int, rank: int, gift: object) -> dict[int, object]:
        """Lay down a gift and wait until all have laid down theirs, or one is gone that has not."""
        gifts = self.rounds.setdefault((kind, count), {})
        gifts[rank] = gift
        whole = len(self.members)
        self.world.pause(self.members[rank], lambda: len(gifts) == whole or bool(self.gone - gifts.keys()))
        if len(gifts) < len(self.members):
            raise PeerLost("the group was closed")
        return gifts


class LocalCollectives(Collectives):
    """Collectives of workers in one process."""

    def __init__(self, group: LocalGroup, rank: int, device: torch.device = CPU) -> None:
        self.group = group
        self.rank = rank
        self.device = device
        self.size = len(group.members)
        self.sums_beside = device.type == "cpu" and self.size > 1
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
        return LocalCollectives(chosen, list(ranks).index(self.rank), self.device) if self.rank in ranks else None

    def lane(self, index: int) -> "LocalLane":
        return LocalLane(self, index)

    def close(self) -> None:
        self.group.gone.add(self.rank)


class LocalMessages(Messages):
    """Messages between workers in one process; whoever uses them moves as number `mover` of the world."""

    def __init__(self, collectives: LocalCollectives, lane: int, mover: int) -> None:
        self.group, self.lane, self.mover = collectives.group, lane, mover
        self.rank, self.size, self.nodes = collectives.rank, collectives.size, collectives.nodes
        self.meter = collectives.meter

    def close(self) -> None:
        self.group.gone.add(self.rank)

    def _send(self, vector: Tensor, to: int) -> Handle[None]:
        self.group.post[self.lane, self.rank, to].append(vector.detach().clone())
        return done(None)

    def _receive(self, into: Tensor, source: int) -> Handle[None]:
        arrived = self.group.post[self.lane, source, self.rank]

        def finish() -> None:
            self.group.world.pause(self.mover, lambda: bool(arrived) or source in self.group.gone)
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
                with span("sums"):
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
        self.messages.close()


def local_collectives(world: LocalWorld, size: int, device: torch.device = CPU) -> list[LocalCollectives]:
    """Collectives for workers 0 to `size` - 1 of a world, whose vectors lie on `device`."""
    group = LocalGroup(world, range(size))
    return [LocalCollectives(group, rank, device) for rank in range(size)]
