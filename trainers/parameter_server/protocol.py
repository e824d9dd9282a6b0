"""The seam between an algorithm and the shards: `ParameterStore`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from trainers.links.encoding import round_to
from trainers.links.handle import Handle
from trainers.links.meter import Meter
from trainers.links.names import NUM_BYTES, WireName
from trainers.optim.compress.feedback import ErrorFeedback
from trainers.parameter_server.push_identity import PushIdentity


@dataclass(frozen=True)
class Push:
    """What a worker says when it hands over a gradient buffer."""

    identity: PushIdentity
    clock: int
    """The worker's clock after the minibatches in it: how many it has computed."""
    examples: int
    """Examples whose gradients are in it."""
    minibatches: int = 1
    """Minibatches whose gradients are in it."""
    delay: int = 0
    """Fetches of its group since the one whose parameters the gradient was computed from."""
    weight: float | None = None
    """What its examples weigh in the loss; None: 1 each. Where a shard makes one update of several pushes, it divides
    the sum of their gradients by the sum of their weights."""
    wire: WireName = "float32"
    """To what the gradient is rounded, in the buffer, before it leaves, and as what it travels."""
    feedback: ErrorFeedback | None = None
    """What compresses the gradient, in the buffer, before it leaves; None: all of it travels."""

    @property
    def divisor(self) -> float:
        """The weight as a number."""
        return self.examples if self.weight is None else self.weight

    def lay_down(self, buffer: Tensor, part: slice) -> Tensor | None:
        """Leave in a part of the buffer (P,) what of it the shards are to add. Returns the message that says so where
        it is compressed."""
        if self.feedback is not None:
            return self.feedback.send(buffer, part)
        round_to(buffer[part], self.wire)
        return None

    def num_bytes(self, numel: int) -> int:
        """What so many elements take where they travel."""
        return NUM_BYTES[self.wire] * numel if self.feedback is None else self.feedback.compressor.length(numel)


@dataclass(frozen=True)
class Fetched:
    """Parameters as they came from the shards."""

    params: Tensor
    """(P,) float32, to be read only; the part of the group that was fetched is valid until that group's next fetch."""
    examples: int
    """Examples applied so far, on the shard that is furthest behind."""
    updates: int
    """Updates made so far, on the shard that is furthest behind."""


class ParameterStore(Protocol):
    """A worker's way to the shards. A store's calls are made by one thread, `close` by any.

    The vector may be divided into groups of parameters, each with versions and clocks of its own; one group, number 0,
    is all of it.
    """

    waited_s: float
    meter: Meter
    updates: int
    """Updates that the first shard had made when it last acknowledged a push of this worker."""
    clock_at_start: int
    """From where this worker counts its minibatches: the clock of the slowest live worker when it joined, so that
    bounded staleness neither has the others wait for it nor lets it run ahead."""

    @property
    def staleness(self) -> dict[int, int]:
        """How many of this worker's pushes were applied at which staleness (updates between fetch and application):
        on the first shard that a group lies on, and in the stalest group."""
        ...

    @property
    def group_staleness(self) -> list[dict[int, int]]:
        """Likewise in each group."""
        ...

    @property
    def applied(self) -> list[Push]:
        """Pushes that every shard has acknowledged since this was last read, in every group."""
        ...

    def fetch(self, min_clock: int, group: int = 0) -> Handle[Fetched]:
        """A group's parameters once no live worker's clock in it is below `min_clock`: t is synchronous, t - s is
        bounded staleness s, 0 is asynchronous. With backup workers, once so many steps are made. One fetch of a group
        at a time.

        Raises:
            StoreClosed: The store was shut down.
        """
        ...

    def answers(self, within_s: float) -> bool:
        """Whether the shards have answered the last fetch of group 0, for which this waits so long at most. Where
        nobody can be cut off from them they will, and it waits for nothing."""
        return True

    def claim(self, clock: int) -> Handle[bool]:
        """Ask for a place in the step after version `clock`, for a gradient computed from that; with backup workers
        only. Who gets none must not push it.

        Raises:
            StoreClosed: The store was shut down.
        """
        ...

    def gradient_buffer(self) -> Tensor:
        """A vector (P,) of float32, with anything in it, free since its last pushes were taken."""
        ...

    def push(self, push: Push) -> Handle[None]:
        """Hand over the part of a group, once, of the buffer that `gradient_buffer` gave last, rounded as the push
        says. `wait` returns when every shard has applied it."""
        ...

    def settle(self) -> None:
        """Wait until every shard has applied whatever this worker has pushed. With a quorum, the step is made then."""
        ...

    def leave(self) -> None:
        """Say that this worker will push no more, so that nobody waits for its clock. Waits for its last pushes."""
        ...

    def close(self) -> None:
        """Let go of memory and connections."""
        ...
