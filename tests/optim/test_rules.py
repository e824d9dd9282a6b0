"""Update rules: the bits of torch.optim, and the papers' formulas."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainers.optim.rules import build_rule
from trainers.optim.update import Buffers, Contribution, SliceUpdate, Whole, spans, zero_state
from trainers.spec import AdagradSpec, AnyOptimizer, MomentumSpec, NesterovSpec, RmspropSpec, SgdSpec

CPU = torch.device("cpu")
DECAY = 0.013
Torch = Callable[[list[Tensor]], torch.optim.Optimizer]

PAIRS: list[tuple[AnyOptimizer, Torch]] = [
    (SgdSpec(weight_decay=DECAY), lambda p: torch.optim.SGD(p, 0.1, weight_decay=DECAY, foreach=False)),
    (
        MomentumSpec(momentum=0.9, weight_decay=DECAY),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=DECAY, foreach=False),
    ),
    (
        NesterovSpec(momentum=0.8, weight_decay=DECAY),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, nesterov=True, weight_decay=DECAY, foreach=False),
    ),
    (
        RmspropSpec(decay=0.97, epsilon=1e-6, weight_decay=DECAY),
        lambda p: torch.optim.RMSprop(p, 0.1, alpha=0.97, eps=1e-6, weight_decay=DECAY, foreach=False),
    ),
    (
        AdagradSpec(epsilon=1e-9, weight_decay=DECAY),
        lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-9, weight_decay=DECAY, foreach=False),
    ),
]
NAMED = pytest.mark.parametrize(("spec", "optimizer"), PAIRS, ids=[spec.name for spec, _ in PAIRS])


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gradient(numel: int, step: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(step))


def ours(spec: AnyOptimizer, numel: int, steps: int, count: int = 1) -> Tensor:
    """The parameters after some steps, updated in `count` slices from one buffer into the other."""
    rule = build_rule(spec)
    versions = [Buffers(gradient(numel, 99), zero_state(rule, torch.zeros(numel))) for _ in range(2)]
    for step in range(steps):
        now, then = versions[step % 2], versions[(step + 1) % 2]
        for cut in spans(numel, count):
            size = cut.stop - cut.start
            mine, next_ = (Buffers(v.params[cut], {k: s[cut] for k, s in v.state.items()}) for v in (now, then))
            contribution = Contribution(Whole(gradient(numel, step)[cut]), 7, 0.1 / (1 + step))
            SliceUpdate(rule, spec.weight_decay, size, CPU).apply([contribution], mine, next_)
    return versions[steps % 2].params


@NAMED
@pytest.mark.parametrize("numel", [1, 7, 63, 65, 1003, 300_001])
def test_the_bits_are_those_of_torch_optim(spec: AnyOptimizer, optimizer: Torch, numel: int) -> None:
    parameter = gradient(numel, 99).requires_grad_()
    theirs = optimizer([parameter])
    for step in range(4):
        parameter.grad = gradient(numel, step) / 7
        theirs.param_groups[0]["lr"] = 0.1 / (1 + step)
        theirs.step()
    assert torch.equal(ours(spec, numel, 4), parameter.detach())


@NAMED
@pytest.mark.parametrize("count", [2, 3, 7])
def test_the_bits_do_not_depend_on_how_the_vector_is_cut(spec: AnyOptimizer, optimizer: Torch, count: int) -> None:
    assert optimizer
    assert torch.equal(ours(spec, 64 * 11 + 5, 3), ours(spec, 64 * 11 + 5, 3, count))


@NAMED
def test_in_place_is_the_same(spec: AnyOptimizer, optimizer: Torch) -> None:
    assert optimizer
    rule, numel = build_rule(spec), 101
    mine = Buffers(gradient(numel, 99), zero_state(rule, torch.zeros(numel)))
    for step in range(3):
        contribution = Contribution(Whole(gradient(numel, step)), 7, 0.1 / (1 + step))
        SliceUpdate(rule, spec.weight_decay, numel, CPU).apply([contribution], mine, mine)
    assert torch.equal(mine.params, ours(spec, numel, 3))


def test_momentum_is_equation_9_of_paper_4() -> None:
    """u <- m u + g; w <- w - lr u: the learning rate is outside of u, so a change of it acts at once."""
    rule = build_rule(MomentumSpec(momentum=0.5))
    w, state = torch.tensor([1.0]), {"momentum": torch.tensor([4.0])}
    rule.apply(w, torch.tensor([3.0]), state, 0.1, w, state)
    assert state["momentum"].tolist() == [5.0]
    torch.testing.assert_close(w, torch.tensor([0.5]))
