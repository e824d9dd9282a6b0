"""The outer rules: their formulas written out, and what they have in common."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.optimizer import Optimizer
from trainers.optim.outer.config import OuterAverage, OuterDelayedNesterov, OuterNesterov, OuterPolyak, OuterSpec
from trainers.optim.update import Contribution, SliceUpdate

N = 1000


def pushes(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(N, generator=generator) for _ in range(count)]


def applied(rule: OuterSpec, pushed: Sequence[Tensor], begin: Tensor, at_once: bool = False) -> Buffers:
    """What a shard makes of pushes, one after the other or in one pass."""
    optimizer = Optimizer(rule.build(4))
    assert len(optimizer.state_names) == rule.num_states(4)
    update = SliceUpdate(optimizer, N, torch.device("cpu"))
    now = Buffers(begin.clone(), optimizer.initial_state(begin))
    found = [Contribution(TensorGradient(d), 1, rule.lr) for d in pushed]
    for some in [found] if at_once else [[each] for each in found]:
        then = Buffers(torch.empty_like(begin), optimizer.initial_state(begin))
        update.apply(some, now, then)
        now = then
    return now


def test_average_nesterov_and_polyak_are_their_formulas() -> None:
    pushed, begin = pushes(5), torch.ones(N)
    w, v = begin.double(), torch.zeros(N).double()
    heavy = begin.double()
    for d in pushed:
        v = 0.9 * v + d
        w, heavy = w - 0.7 * (d + 0.9 * v), heavy - 0.7 * v
    torch.testing.assert_close(applied(OuterNesterov(), pushed, begin).params.double(), w, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(applied(OuterPolyak(), pushed, begin).params.double(), heavy, rtol=1e-5, atol=1e-5)
    plain = begin.double() - 0.5 * torch.stack(pushed).double().sum(0)
    torch.testing.assert_close(
        applied(OuterAverage(lr=0.5), pushed, begin).params.double(), plain, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("c", [0.0, 0.1, 0.25])
def test_delayed_nesterov_is_algorithm_3_written_out(c: float) -> None:
    pushed, theta = pushes(10), torch.ones(N).double()
    m, total = torch.zeros(N).double(), torch.zeros(N).double()
    for t, g in enumerate(pushed):
        total = total + g
        if (t + 1) % 4 == 0:
            m = 0.9 * m + total / 4
            theta = theta - 0.7 * ((1 - c * 4 + c) * 0.9 * m + g / 4)
            total = torch.zeros(N).double()
        else:
            theta = theta - 0.7 * (c * 0.9 * m + g / 4)
    found = applied(OuterDelayedNesterov(activation=c), pushed, torch.ones(N))
    torch.testing.assert_close(found.params.double(), theta, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.state["outer-sum"].double(), total, rtol=1e-5, atol=1e-5)


def test_delayed_nesterov_of_one_push_is_nesterov_and_of_four_their_mean_has_moved_it_as_much() -> None:
    pushed, begin = pushes(8), torch.ones(N)
    one = applied(OuterDelayedNesterov(pushes=1), pushed, begin)
    torch.testing.assert_close(one.params, applied(OuterNesterov(), pushed, begin).params)
    four, mean = (applied(rule, pushed, begin).params for rule in (OuterDelayedNesterov(), OuterNesterov(pushes=4)))
    torch.testing.assert_close(four, mean, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "rule", [OuterAverage(pushes=3), OuterNesterov(pushes=3), OuterPolyak(), OuterDelayedNesterov(activation=0.1)]
)
def test_several_pushes_in_one_pass_give_the_same_bits(rule: OuterSpec) -> None:
    pushed, begin = pushes(7), torch.ones(N)
    one, other = applied(rule, pushed, begin), applied(rule, pushed, begin, at_once=True)
    assert all(torch.equal(a, b) for a, b in zip(one.vectors, other.vectors, strict=True))


@pytest.mark.parametrize("rule", [OuterAverage(pushes="workers"), OuterNesterov(pushes=4), OuterPolyak(pushes=4)])
def test_before_the_last_push_of_a_mean_the_parameters_stay(rule: OuterSpec) -> None:
    pushed, begin = pushes(4), torch.ones(N)
    assert torch.equal(applied(rule, pushed[:3], begin).params, begin)
    single = rule.model_copy(update={"pushes": 1})
    mean = torch.stack(pushed).mean(0)
    expected = applied(single, [mean], begin)
    torch.testing.assert_close(applied(rule, pushed, begin).params, expected.params, rtol=1e-5, atol=1e-5)


def test_elements_whose_pushes_were_counted_otherwise_have_each_its_own_mean() -> None:
    """As where a run is resumed on another number of shards, which had not all applied the same pushes."""
    rule = OuterNesterov(pushes=3)
    pushed, begin = pushes(3), torch.ones(N)
    optimizer = Optimizer(rule.build(4))
    update, before = SliceUpdate(optimizer, N, torch.device("cpu")), applied(rule, pushed[:1], begin)
    other, half = applied(rule, pushed[:2], begin), slice(0, N // 2)
    for mine, theirs in zip(before.vectors, other.vectors, strict=True):
        mine[half] = theirs[half]
    then = Buffers(torch.empty_like(begin), optimizer.initial_state(begin))
    update.apply([Contribution(TensorGradient(pushed[2]), 1, rule.lr)], before, then)
    assert torch.equal(then.params[half], applied(rule, pushed, begin).params[half])
    assert torch.equal(then.params[N // 2 :], begin[N // 2 :])
    assert set(then.state["outer-pushes"].tolist()) == {0.0, 2.0}
