"""Point-to-point messages, over which the all-reduce algorithms are written, and the lanes on which they run.

An exchange on a lane goes on beside the caller. Exchanges on one lane follow each other; those on different lanes go on
at the same time. With c lanes taken in turn, the end of exchange n lets exchange n + c begin (paper 4, section 4.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Protocol

from torch import Tensor

from trainers.errors import PeerLost
from trainers.links.handle import Handle, done
from trainers.links.meter import Meter
from trainers.links.waiting import CountsWaits, waiting
from trainers.spans import span

Transfers = Sequence[tuple[Tensor, int]]
"""Vectors, each with the worker to whom it goes or from whom it comes."""
Round = tuple[Sequence[Tensor], Sequence[Tensor]]
"""What goes to each worker, and what comes from each; by rank."""


class Messages(ABC):
    """Vectors from one worker to another. Those from one worker to one other arrive in the order in which they left.

    Used by one thread at a time, `close` by any.
    """

    rank: int
    size: int
    nodes: tuple[int, ...]
    """The number of the node on which each worker is."""
    meter: Meter
    steps: int = 0
    """Communication steps so far, as the papers count them."""

    def send(self, vector: Tensor, to: int) -> Handle[None]:
        """Send (n,) float32, which must stay as it is until `wait` returns; that may take until the other receives.

        An empty vector is not sent at all.
        """
        if not vector.numel():
            return done(None)
        self.meter.count_vectors(vector.numel(), 0, vector.numel() * (self.nodes[to] != self.nodes[self.rank]))
        return self._send(vector, to)

    def receive(self, into: Tensor, source: int) -> Handle[None]:
        """Fill (n,) float32 with the next vector from `source`, which must be of the same size."""
        if not into.numel():
            return done(None)
        self.meter.count_vectors(0, into.numel())
        return self._receive(into, source)

    def step(self, send: Transfers = (), receive: Transfers = ()) -> None:
        """One communication step: send and receive at the same time."""
        self.steps += 1
        sent = [self.send(vector, to) for vector, to in send]
        for into, source in receive:
            self.receive(into, source).wait()
        for handle in sent:
            handle.wait()

    def trade(self, rounds: Sequence[Round]) -> None:
        """Send each other worker what goes to it and receive what comes from it, all at the same time: flat vectors of
        any type, of the same sizes at both ends. What a worker has for itself is copied. The caller counts what is
        sent.

        Everybody sends to the next first, and receives from the one before, so that no link has to carry two at once.
        """
        others = [(self.rank + turn) % self.size for turn in range(1, self.size)]
        sent = [self._send(send[to], to) for to in others for send, _ in rounds if send[to].numel()]
        for send, receive in rounds:
            if send[self.rank].data_ptr() != receive[self.rank].data_ptr():
                receive[self.rank].copy_(send[self.rank])
        for source in reversed(others):
            for _, receive in rounds:
                if receive[source].numel():
                    self._receive(receive[source], source).wait()
        for handle in sent:
            handle.wait()

    @abstractmethod
    def _send(self, vector: Tensor, to: int) -> Handle[None]:
        """`send`, of at least one element."""

    @abstractmethod
    def _receive(self, into: Tensor, source: int) -> Handle[None]:
        """`receive`, of at least one element."""

    @abstractmethod
    def close(self) -> None:
        """End all connections; a peer that waits for this worker gets `PeerLost`, and so does this one's own thread."""


class SubgroupMessages(Messages):
    """Messages among some of the workers, numbered as in `ranks`; what they move is counted by those of all."""

    def __init__(self, messages: Messages, ranks: Sequence[int]) -> None:
        self.messages = messages
        self.ranks = ranks
        self.rank, self.size = ranks.index(messages.rank), len(ranks)
        self.nodes = tuple(messages.nodes[rank] for rank in ranks)
        self.meter = messages.meter

    def step(self, send: Transfers = (), receive: Transfers = ()) -> None:
        self.messages.step([(v, self.ranks[k]) for v, k in send], [(v, self.ranks[k]) for v, k in receive])

    def _send(self, vector: Tensor, to: int) -> Handle[None]:
        return self.messages._send(vector, self.ranks[to])

    def _receive(self, into: Tensor, source: int) -> Handle[None]:
        return self.messages._receive(into, self.ranks[source])

    def close(self) -> None:
        self.messages.close()


class Lane(Protocol):
    """Runs exchanges one after the other beside the caller."""

    @property
    def messages(self) -> Messages:
        """What its exchanges are given."""
        ...

    def begin(self, exchange: Callable[[Messages], None]) -> Handle[None]:
        """Run `exchange` once those begun before it on this lane are over. `wait` raises what it raises."""
        ...

    def close(self) -> None:
        """Begin nothing more and end the exchange under way with `PeerLost`."""
        ...


class ThreadLane:
    """A `Lane` that is a thread of its own."""

    def __init__(self, messages: Messages, owner: CountsWaits) -> None:
        self.messages: Messages = messages
        self.owner = owner  # in whose `waited_s` the caller's waiting is counted
        self.thread = ThreadPoolExecutor(1, "lane")

    def begin(self, exchange: Callable[[Messages], None]) -> Handle[None]:
        try:
            future = self.thread.submit(self._run, exchange)
        except RuntimeError as error:
            raise PeerLost("the group was closed") from error

        def finish() -> None:
            with waiting(self.owner):
                try:
                    future.result()
                except CancelledError as error:
                    raise PeerLost("the group was closed") from error

        return Handle(finish)

    def close(self) -> None:
        self.messages.close()
        self.thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, exchange: Callable[[Messages], None]) -> None:
        try:
            with span("sums"):
                exchange(self.messages)
        except BaseException:
            self.messages.close()  # so that peers which only wait for this one are told too
            raise
