"""A shard by itself: fusing, clocks, pins and repeated pushes."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trainers.optim.optimizer import Optimizer
from trainers.optim.rule import initial_state
from trainers.optim.update import SliceUpdate
from trainers.parameter_server.push_identity import PushIdentity
from trainers.parameter_server.shard import ReceivedPush, Shard, ShardConfig
from trainers.spec import (
    AdagradSpec,
    AdamSpec,
    AdamWSpec,
    AnyOptimizer,
    LionSpec,
    MomentumSpec,
    NesterovSpec,
    RmspropSpec,
    SgdSpec,
)

NUMEL = 64 * 3 + 7
RULES = [
    SgdSpec(weight_decay=0.01),
    MomentumSpec(weight_decay=0.01),
    NesterovSpec(),
    RmspropSpec(weight_decay=0.01),
    AdamSpec(weight_decay=0.01),
    AdamWSpec(),
    LionSpec(),
    AdagradSpec(),
    MomentumSpec(equation=10, weight_decay=0.01),
    RmspropSpec(form="tensorflow", epsilon=1.0, weight_decay=0.01),
]


def make_shard(spec: AnyOptimizer, quorum: int = 0, readers: int = 2) -> Shard:
    rule = spec.build()
    params = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0))
    update = SliceUpdate(Optimizer(rule, spec.weight_decay), NUMEL, torch.device("cpu"))
    ring = [params] + [torch.full((NUMEL,), torch.nan) for _ in range(readers + 1)]
    states = [initial_state(rule, params) for _ in range(2)]
    return Shard(ShardConfig(update, lambda seen: 0.1 / (1 + seen), quorum), ring, states)


def arrive(
    number: int, worker: int = 0, clock: int = 0, last: int | None = None, value: float | None = None
) -> ReceivedPush:
    generator = torch.Generator().manual_seed(number + 1)
    gradient = torch.randn(NUMEL, generator=generator) if value is None else torch.full((NUMEL,), value)
    last = number if last is None else last
    return ReceivedPush(
        worker, PushIdentity(0, number, last), clock, 4 * (last - number + 1), last - number + 1, gradient
    )


def state_of(shard: Shard) -> list[Tensor]:
    return [shard.params, *shard.state.values()]


@pytest.mark.parametrize("spec", RULES, ids=lambda spec: spec.name)
@pytest.mark.parametrize("seed", range(3))
def test_pushes_in_one_pass_give_the_bits_of_one_by_one(spec: AnyOptimizer, seed: int) -> None:
    dice = random.Random(seed)
    single, fused, limited = make_shard(spec), make_shard(spec), make_shard(spec)
    pushes = [arrive(number) for number in range(12)]
    for push in pushes:
        single.push(push)
        assert [a.version for a in single.apply()] == [push.identity.first + 1]
    while pushes:
        count = dice.randint(1, 4)
        for push in pushes[:count]:
            fused.push(push)
            limited.push(push)
        assert len(fused.apply()) == len(pushes[:count])
        pushes = pushes[count:]
    while limited.ripe:
        before = limited.version
        limited.apply(limit=2)
        assert limited.version == before + 2
    for other in (fused, limited):
        assert (other.version, other.examples) == (single.version, single.examples) == (12, 48)
        for a, b in zip(state_of(single), state_of(other), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("quorum", [3, 5])
def test_a_quorum_updates_once_whatever_the_order_of_its_parts(quorum: int) -> None:
    whole = make_shard(MomentumSpec(), quorum)
    expected: list[Tensor] | None = None
    for seed in range(5):
        shard = whole if seed == 0 else make_shard(MomentumSpec(), quorum)
        parts = [arrive(number) for number in range(quorum)]
        random.Random(seed).shuffle(parts)
        for part in parts[:-1]:
            shard.push(part)
            assert shard.apply() == []
        shard.push(parts[-1])
        assert len(shard.apply()) == quorum
        assert (shard.version, shard.examples) == (1, 4 * quorum)
        expected = expected or state_of(shard)
        for a, b in zip(expected, state_of(shard), strict=True):
            assert torch.equal(a, b)


def test_a_repeated_part_is_answered_and_not_added() -> None:
    shard, plain = make_shard(SgdSpec(), 3), make_shard(SgdSpec(), 3)
    for push in (arrive(0), arrive(0, worker=1), arrive(1), arrive(2)):
        shard.push(push)
    for number in range(3):
        plain.push(arrive(number))
    answers, _ = shard.apply(), plain.apply()
    assert sorted((a.push.worker, a.push.identity.first) for a in answers) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert torch.equal(shard.params, plain.params)
    assert shard.examples == plain.examples == 12


def test_a_repeated_push_moves_the_clock_and_nothing_else() -> None:
    shard = make_shard(SgdSpec())
    shard.join(0)
    shard.join(1)
    shard.push(arrive(0, worker=0, clock=1))
    shard.push(arrive(0, worker=1, clock=1))
    before = shard.params.clone()
    assert [(a.version, a.staleness) for a in shard.apply()] == [(1, 0), (1, 0)]
    assert shard.may_fetch(1)
    assert not torch.equal(shard.params, before)
    now = shard.params.clone()
    shard.push(arrive(0, worker=1, clock=2))
    shard.apply()
    assert (shard.version, shard.clocks[1]) == (1, 2)
    assert torch.equal(shard.params, now)


def test_clocks() -> None:
    shard = make_shard(SgdSpec())
    assert shard.may_fetch(10**9)  # nobody to wait for
    assert [shard.join(0), shard.join(1)] == [0, 0]
    shard.push(arrive(0, worker=0, clock=3))
    shard.apply()
    assert not shard.may_fetch(1)
    assert shard.join(2) == 0
    shard.leave(1)
    shard.leave(2)
    assert shard.may_fetch(3)
    assert not shard.may_fetch(4)
    assert shard.join(3) == 3  # starts where the slowest is
    shard.push(arrive(9, worker=1, clock=7))  # from one that has left
    shard.apply()
    assert 1 not in shard.clocks


def test_a_pinned_version_stays_whole() -> None:
    shard = make_shard(SgdSpec(), readers=2)
    dice, copies = random.Random(4), {}
    for number in range(200):
        shard.push(arrive(number))
        shard.apply()
        reader = dice.randrange(2)
        copies[reader] = shard.pin(reader), shard.params.clone()
        for row, copy in copies.values():
            assert torch.equal(shard.ring[row], copy)


def test_staleness_is_updates_since_the_pushers_fetch() -> None:
    shard = make_shard(SgdSpec())
    for worker in range(2):
        shard.join(worker)
        shard.pin(worker)
    for number, worker in enumerate([0, 0, 1]):
        shard.push(arrive(number, worker))
    assert [a.staleness for a in shard.apply()] == [0, 1, 2]
    shard.push(replace(arrive(3, worker=1), base=3))
    assert [a.staleness for a in shard.apply()] == [0]
    assert shard.staleness == {0: 2, 1: 1, 2: 1}


@pytest.mark.parametrize(("harmless", "divisors"), [(1, (1, 1, 2, 3)), (0, (1, 2, 3, 4))])
@pytest.mark.parametrize("spec", [SgdSpec(lr=1.0), MomentumSpec(lr=1.0), MomentumSpec(lr=1.0, equation=10)])
def test_a_staleness_aware_step_is_the_plain_one_at_the_divided_rate(
    spec: AnyOptimizer, harmless: int, divisors: tuple[int, ...]
) -> None:
    """Pushes of staleness 0, 1, 2, 3 after one fetch."""
    aware, plain = make_shard(spec), make_shard(spec)
    rates = iter([0.1 / divisor for divisor in divisors])
    aware.config = replace(aware.config, learning_rate=lambda seen: 0.1, harmless_staleness=harmless)
    plain.config = replace(plain.config, learning_rate=lambda seen: next(rates))
    for shard in (aware, plain):
        shard.join(0)
        shard.pin(0)
    for number in range(4):
        aware.push(arrive(number))
        plain.push(arrive(number))
        (answer,) = aware.apply()
        plain.learning_rate = 0.0  # no momentum correction: dividing is no change of the schedule
        plain.apply()
        assert answer.staleness == number
        assert torch.equal(aware.params, plain.params)
        assert aware.learning_rate == 0.1


def test_a_delayed_push_is_as_stale_as_its_own_fetch() -> None:
    shard = make_shard(SgdSpec())
    shard.join(0)
    found = []
    for number in range(5):
        shard.push(replace(arrive(number), base=shard.version - min(number, 2)))
        found += [answer.staleness for answer in shard.apply()]
    assert found == [0, 1, 2, 2, 2]
