"""Backup workers over several shards: whatever the order in which messages arrive, all shards make the same steps."""

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch

from trainers.data.order import Order
from trainers.elastic.lease_table import Audit, Lease, LeaseTable
from trainers.optim.optimizer import Optimizer
from trainers.optim.update import SliceUpdate
from trainers.parameter_server.push_identity import PushIdentity
from trainers.parameter_server.shard import ReceivedPush, Shard, ShardConfig
from trainers.spec import SgdSpec

NUMEL = 64
Message = Callable[[Shard], object]


def make_shard(quorum: int, backup: int) -> Shard:
    """Zeros to begin with and learning rate -1: what each step adds is its mean."""
    rule = SgdSpec(weight_decay=0).build()
    update = SliceUpdate(Optimizer(rule), NUMEL, torch.device("cpu"))
    ring = [torch.zeros(NUMEL) for _ in range(quorum + backup + 2)]
    return Shard(ShardConfig(update, lambda examples: -1.0, quorum, backup), ring, [{}, {}])


def arrive(number: int, worker: int, clock: int = 1, epoch: int = 0, value: float = 1.0) -> ReceivedPush:
    return ReceivedPush(worker, PushIdentity(epoch, number, number), clock, 1, 1, torch.full((NUMEL,), value))


class Network:
    """Workers and shards. What a worker sends to a shard arrives in its order; all else happens in the seed's."""

    def __init__(self, seed: int, num_shards: int, quorum: int, backup: int, table: LeaseTable) -> None:
        self.dice = random.Random(seed)
        self.shards = [make_shard(quorum, backup) for _ in range(num_shards)]
        self.table = table
        self.lines: dict[tuple[int, int], deque[Message]] = {
            (worker, shard): deque() for worker in range(quorum + backup) for shard in range(num_shards)
        }
        self.owing: set[tuple[int, PushIdentity, int]] = set()  # worker, push, shard that has not applied it
        self.steps: list[list[list[PushIdentity]]] = [[] for _ in self.shards]
        self.dropped = 0
        self.bodies = {worker: self._work(worker) for worker in range(quorum + backup)}
        self.waits = {worker: next(body) for worker, body in self.bodies.items()}

    def run(self) -> None:
        """To the end of all; fails where everybody waits for another one."""
        while self.waits:
            able = [partial(self._deliver, *line) for line, messages in self.lines.items() if messages]
            able += [partial(self._apply, s) for s, shard in enumerate(self.shards) if shard.ripe]
            able += [partial(self._go, worker) for worker, ready in self.waits.items() if ready()]
            assert able, "everybody waits"
            self.dice.choice(able)()

    def _go(self, worker: int) -> None:
        del self.waits[worker]
        for following in itertools.islice(self.bodies[worker], 1):
            self.waits[worker] = following

    def _deliver(self, worker: int, shard: int) -> None:
        self.lines[worker, shard].popleft()(self.shards[shard])

    def _apply(self, shard: int) -> None:
        applied = self.shards[shard].apply(limit=1)
        assert all(answer.staleness == 0 for answer in applied)
        self.steps[shard].append(sorted(answer.push.identity for answer in applied))
        for answer in applied:
            self.owing.discard((answer.push.worker, answer.push.identity, shard))
            if not any((answer.push.worker, answer.push.identity, s) in self.owing for s in range(len(self.shards))):
                i = answer.push.identity
                self.table.applied(answer.push.worker, Lease(i.epoch, i.first, i.last))

    def _work(self, worker: int) -> Iterator[Callable[[], bool]]:
        """What a worker does, as what it waits for one after the other."""
        clock = 0
        while (lease := self.table.lease(worker)) is not None:
            version, bases = None, []
            for shard in self.shards:  # each answers when it is so far, which may be a step later than another
                yield lambda shard=shard, clock=clock: shard.may_fetch(clock)
                shard.pin(worker)
                bases.append(shard.version)
                version = shard.version if version is None else min(version, shard.version)
            assert version is not None
            clock = version + 1
            for _ in range(self.dice.choice([1, 30]) if worker == 0 else 1):
                yield lambda: True  # computes, the first worker sometimes for long
            answer: list[bool] = []
            self.lines[worker, 0].append(lambda shard, a=answer, v=version: a.append(shard.claim(worker, v)))
            yield lambda answer=answer: bool(answer)
            if not answer[0]:
                self.dropped += 1
                self.table.drop(worker, lease)
                for s in range(1, len(self.shards)):
                    self.lines[worker, s].append(lambda shard, v=version: shard.pass_by(worker, v))
                continue
            push = arrive(lease.first, worker, clock, lease.epoch)
            for s in range(len(self.shards)):
                self.owing.add((worker, push.identity, s))
                based = replace(push, base=bases[s])
                self.lines[worker, s].append(lambda shard, push=based: shard.push(push))
        yield lambda: not any(who == worker for who, _, _ in self.owing)
        for s in range(len(self.shards)):
            self.lines[worker, s].append(lambda shard: shard.leave(worker))


@pytest.mark.parametrize(("quorum", "backup", "num_shards"), [(2, 1, 2), (3, 1, 3), (4, 3, 2)])
@pytest.mark.parametrize("minibatches", [1, 2, 13])
def test_all_shards_make_the_same_steps_and_come_to_an_end(
    quorum: int, backup: int, num_shards: int, minibatches: int
) -> None:
    dropped = 0
    for seed in range(40):
        table = LeaseTable(Order(minibatches, 1, quorum, 0), 2, lease_size=1)
        network = Network(seed, num_shards, quorum, backup, table)
        network.run()
        for epoch in range(2):
            assert table.audit(epoch) == Audit(epoch, trained=minibatches, lost=0, duplicated=0)
        assert all(steps == network.steps[0] for steps in network.steps)
        assert sum(map(len, network.steps[0])) == 2 * minibatches
        assert max(map(len, network.steps[0])) <= quorum
        for shard in network.shards:
            assert torch.equal(shard.params, torch.full((NUMEL,), float(len(network.steps[0]))))
        dropped += network.dropped
    assert (dropped > 0) == (2 * minibatches > quorum)


def test_places_are_given_to_the_first_k_and_to_nobody_late() -> None:
    shard = make_shard(2, 1)
    assert [shard.claim(worker, 0) for worker in (2, 0, 1)] == [True, True, False]
    for number, worker in enumerate((2, 0)):
        shard.push(arrive(number, worker))
    assert not shard.claim(1, 0)
    assert len(shard.apply()) == 2
    assert not shard.claim(1, 0), "a gradient of the step before"
    assert shard.claim(1, 1)


def test_a_step_waits_for_no_more_than_those_who_are_left() -> None:
    shard = make_shard(2, 1)
    shard.push(arrive(0, 0))
    shard.leave(1)
    assert shard.apply() == []
    shard.leave(2)
    assert len(shard.apply()) == 1
    assert shard.may_fetch(1)
    assert not shard.may_fetch(2)


def test_the_mean_is_over_the_examples_that_counted() -> None:
    shard = make_shard(3, 1)
    shard.leave(3)
    shard.leave(2)
    for number, value in enumerate((1.0, 4.0)):
        shard.push(arrive(number, number, value=value))
    shard.apply()
    assert float(shard.params[0]) == 2.5
    assert shard.examples == 2


def test_what_a_snapshot_had_already_takes_its_place_and_changes_nothing() -> None:
    """A run that goes on from a snapshot of which this shard was a step ahead of another."""
    shard = make_shard(2, 1)
    for number in range(3):
        shard.applied.add(PushIdentity(0, number, number))
    for number, worker in ((0, 0), (1, 1)):
        shard.push(arrive(number, worker, clock=1))
    assert len(shard.apply()) == 2
    assert (shard.version, shard.examples, float(shard.params[0])) == (1, 0, 0.0)
    for number, worker in ((2, 0), (3, 2)):
        shard.push(arrive(number, worker, clock=2))
    shard.apply()
    assert (shard.version, shard.examples, float(shard.params[0])) == (2, 1, 1.0)
    shard.push(arrive(3, 2, clock=2))  # pushed again
    assert len(shard.apply()) == 1
    assert (shard.version, shard.examples, float(shard.params[0])) == (2, 1, 1.0)
