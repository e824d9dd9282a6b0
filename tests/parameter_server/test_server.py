"""A shard whose update gains nothing by sharing a pass answers each push and fetch by itself."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.push_identity import PushIdentity
from trainers.parameter_server.server import Server
from trainers.parameter_server.shard import ReceivedPush, Shard, ShardConfig
from trainers.parameter_server.wire_format import ACKNOWLEDGED, FETCH, REPLY

WORKERS = range(3)


class Told(Server[Any]):
    """Writes down what it would send."""

    def __init__(self, pieces: dict[int, GroupSlice]) -> None:
        super().__init__(None, pieces)
        self.told: list[tuple[str, int, int]] = []  # what, to which worker, at which version
        for worker in WORKERS:
            channel = SimpleNamespace(
                send=lambda message, worker=worker: self._note(worker, message), finish=lambda within_s: None
            )
            self._join(worker, channel)
        self.told.clear()

    def _note(self, worker: int, message: bytes) -> None:
        kind, _, version, *_ = REPLY.unpack(message)
        if kind == ACKNOWLEDGED:
            self.told.append(("acknowledged", worker, version))

    def _send_version(self, worker: int, group: int, row: int, message: bytes) -> None:
        self.told.append(("version", worker, self.pieces[group].shard.version))

    def _let_go(self, worker: int, channel: Any) -> None: ...

    def _is_dead(self, worker: int) -> bool:
        return False


class CountingUpdate:
    """Adds up gradients; notes how many came in each pass."""

    def __init__(self, shares_passes: bool) -> None:
        self.shares_passes = shares_passes
        self.passes: list[int] = []

    def apply(self, contributions: Any, current: Any, following: Any) -> None:
        self.passes.append(len(contributions))
        following.params.copy_(current.params)


def server(shares_passes: bool) -> tuple[Told, CountingUpdate]:
    update = CountingUpdate(shares_passes)
    ring: list[Tensor] = [torch.zeros(4) for _ in range(len(WORKERS) + 2)]
    shard = Shard(ShardConfig(update, lambda _: 0.1), ring, [{}, {}])  # type: ignore[arg-type]
    return Told({0: GroupSlice(slice(0, 4), shard)}), update


def serve(told: Told) -> None:
    """As `Server.serve` does, when nothing more comes."""
    while told._wait_s() == 0:
        told._act()
    told._end()


def arrive(told: Told, worker: int, clock: int = 1) -> None:
    """A worker's push, and its next fetch right behind it."""
    identity = PushIdentity(0, 10 * worker + clock, 10 * worker + clock, 0)
    told.pieces[0].shard.push(ReceivedPush(worker, identity, clock, 1, 1, torch.ones(4)))
    told._request(worker, FETCH, [0, 0, clock], None)


def test_each_push_is_answered_before_the_next_is_applied() -> None:
    told, update = server(shares_passes=False)
    for worker in WORKERS:
        arrive(told, worker)
    serve(told)
    assert update.passes == [1, 1, 1]
    assert told.told == [(what, worker, worker + 1) for worker in WORKERS for what in ("acknowledged", "version")]


def test_pushes_that_share_a_pass_are_answered_together() -> None:
    told, update = server(shares_passes=True)
    for worker in WORKERS:
        arrive(told, worker)
    serve(told)
    assert update.passes == [3]
    assert [version for what, _, version in told.told if what == "version"] == [3, 3, 3]


def test_a_fetch_waits_for_the_pushes_of_its_own_worker_only() -> None:
    told, _ = server(shares_passes=False)
    for worker in WORKERS:
        arrive(told, worker)
    told._request(0, FETCH, [0, 0, 2], None)  # behind the pushes of all others
    serve(told)
    versions = [(worker, version) for what, worker, version in told.told if what == "version"]
    assert versions == [(0, 1), (1, 2), (2, 3)]
