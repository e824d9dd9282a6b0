"""Update rules: the bits of torch.optim, and the papers' formulas."""

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.optim.written import Fused, Written, equation_10, lion, tensorflow_rmsprop
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.optimizer import Optimizer
from trainers.optim.rule import Step, initial_state
from trainers.optim.scaling import momentum_correction
from trainers.optim.slices import spans
from trainers.optim.update import Contribution, SliceUpdate
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
    (
        AdamSpec(betas=(0.8, 0.97), epsilon=1e-6, weight_decay=DECAY),
        lambda p: Fused(p, torch.optim.Adam, lr=0.1, betas=(0.8, 0.97), eps=1e-6, weight_decay=DECAY),
    ),
    (AdamWSpec(weight_decay=DECAY), lambda p: Fused(p, torch.optim.AdamW, lr=0.1, weight_decay=DECAY)),
    (
        MomentumSpec(equation=10, weight_decay=DECAY),
        lambda p: Written(p, 0.1, DECAY, equation_10, 0.0, momentum=0.9, corrects=True),
    ),
    (
        MomentumSpec(equation=10, momentum_correction=False, weight_decay=DECAY),
        lambda p: Written(p, 0.1, DECAY, equation_10, 0.0, momentum=0.9, corrects=False),
    ),
    (
        RmspropSpec(form="tensorflow", decay=0.9, epsilon=1.0, weight_decay=DECAY),
        lambda p: Written(p, 0.1, DECAY, tensorflow_rmsprop, 1.0, decay=0.9, epsilon=1.0),
    ),
    (
        LionSpec(betas=(0.8, 0.97), weight_decay=DECAY),
        lambda p: Written(p, 0.1, 0.0, lion, 0.0, betas=(0.8, 0.97), decoupled=DECAY),
    ),
]
NAMES = [
    "sgd",
    "momentum",
    "nesterov",
    "rmsprop",
    "adagrad",
    "adam",
    "adamw",
    "equation 10",
    "uncorrected",
    "tensorflow",
    "lion",
]
NAMED = pytest.mark.parametrize(("spec", "optimizer"), PAIRS, ids=NAMES)


@pytest.fixture(autouse=True)
def _one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rate(step: int) -> float:
    return 0.1 / (1 + step)


def contribution(g: Tensor, step: int) -> Contribution:
    before = rate(step - 1) if step else 0.0
    return Contribution(TensorGradient(g), 7, rate(step), correction=momentum_correction(before, rate(step)))


def gradient(numel: int, step: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(step))


def ours(spec: AnyOptimizer, numel: int, steps: int, count: int = 1) -> Tensor:
    """The parameters after some steps, updated in `count` slices from one buffer into the other."""
    rule = spec.build()
    versions = [Buffers(gradient(numel, 99), initial_state(rule, torch.zeros(numel))) for _ in range(2)]
    for step in range(steps):
        now, then = versions[step % 2], versions[(step + 1) % 2]
        for cut in spans(numel, count):
            size = cut.stop - cut.start
            mine, next_ = now.part(cut), then.part(cut)
            piece = contribution(gradient(numel, step)[cut], step)
            SliceUpdate(Optimizer(rule, spec.weight_decay), size, CPU).apply([piece], mine, next_)
    return versions[steps % 2].params


@NAMED
@pytest.mark.parametrize("numel", [1, 7, 63, 65, 1003, 300_001])
def test_the_bits_are_those_of_torch_optim(spec: AnyOptimizer, optimizer: Torch, numel: int) -> None:
    parameter = gradient(numel, 99).requires_grad_()
    theirs = optimizer([parameter])
    for step in range(4):
        parameter.grad = gradient(numel, step) / 7
        theirs.param_groups[0]["lr"] = rate(step)
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
    rule, numel = spec.build(), 101
    mine = Buffers(gradient(numel, 99), initial_state(rule, torch.zeros(numel)))
    for step in range(3):
        update = SliceUpdate(Optimizer(rule, spec.weight_decay), numel, CPU)
        update.apply([contribution(gradient(numel, step), step)], mine, mine)
    assert torch.equal(mine.params, ours(spec, numel, 3))


@pytest.mark.parametrize("places", [3, 40])
def test_an_update_finds_its_pieces_in_whichever_rows_of_a_ring_the_versions_lie(places: int) -> None:
    rule, numel = AdamWSpec().build(), 203
    update = SliceUpdate(Optimizer(rule, 0.01), numel, CPU)
    ring = [Buffers(gradient(numel, 99), initial_state(rule, torch.zeros(numel))) for _ in range(places)]
    for step in range(2 * places):
        update.apply([contribution(gradient(numel, step), step)], ring[step % places], ring[(step + 1) % places])
    assert torch.equal(ring[0].params, ours(AdamWSpec(), numel, 2 * places))


def test_momentum_is_equation_9_of_paper_4() -> None:
    """u <- m u + g; w <- w - lr u: the learning rate is outside of u, so a change of it acts at once."""
    rule = MomentumSpec(momentum=0.5).build()
    w, state = torch.tensor([1.0]), {"momentum": torch.tensor([4.0])}
    rule.apply(Buffers(w, state), torch.tensor([3.0]), Buffers(w, state), Step(0.1))
    assert state["momentum"].tolist() == [5.0]
    torch.testing.assert_close(w, torch.tensor([0.5]))


def trained(spec: MomentumSpec, rates: list[float], seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Parameters and state in float64 after one update at each of the rates, on a gradient that depends on both."""
    rule, numel = spec.build(), 33
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(numel, generator=generator, dtype=torch.float64)
    state, before = initial_state(rule, w), 0.0
    for lr in rates:
        g = torch.randn(numel, generator=generator, dtype=torch.float64) + 0.1 * w
        rule.apply(Buffers(w, state), g, Buffers(w, state), Step(lr, momentum_correction(before, lr)))
        before = lr
    return w, state


@pytest.mark.parametrize("seed", range(50))
def test_momentum_correction_makes_equation_10_equal_to_9_under_any_positive_rates(seed: int) -> None:
    """Paper 4, remark 2, on rates that jump by up to six orders of magnitude either way."""
    dice = random.Random(seed)
    rates = [10 ** dice.uniform(-4, 0) if dice.random() < 0.7 else 0.01 for _ in range(dice.randint(1, 60))]
    m = dice.choice([0.0, 0.5, 0.9, 0.99])
    expected, u = trained(MomentumSpec(momentum=m), rates, seed)
    found, v = trained(MomentumSpec(momentum=m, equation=10), rates, seed)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(v["velocity"], u["momentum"] * rates[-1], rtol=1e-9, atol=1e-12)


def test_without_correction_equation_10_is_another_rule_when_the_rate_changes() -> None:
    off = MomentumSpec(equation=10, momentum_correction=False)
    expected, _ = trained(MomentumSpec(), [0.1] * 5, 0)
    torch.testing.assert_close(trained(off, [0.1] * 5, 0)[0], expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(trained(off, [0.1, 0.1, 3.2], 0)[0], trained(MomentumSpec(), [0.1, 0.1, 3.2], 0)[0])


@pytest.mark.parametrize("rates", [[0.0], [0.1, 0.0], [0.1, 0.0, 0.0, 0.2, 0.3], [0.0, 0.1]])
def test_momentum_correction_is_defined_where_a_rate_is_0(rates: list[float]) -> None:
    """At a rate of 0 nothing moves and v becomes 0; afterwards its history begins anew."""
    w, state = trained(MomentumSpec(equation=10), rates, 1)
    assert w.isfinite().all()
    assert state["velocity"].isfinite().all()
    moved, _ = trained(MomentumSpec(equation=10), rates[:1], 1)
    if rates[-1] == 0:
        assert torch.equal(w, moved)
        assert not state["velocity"].any()


def test_equation_10_by_hand() -> None:
    """v = 4 at rate 0.1; the rate rises to 0.2: v <- 0.5 (0.2 / 0.1) 4 + 0.2 3 = 4.6, w <- 1 - 4.6."""
    rule = MomentumSpec(momentum=0.5, equation=10).build()
    w, state = torch.tensor([1.0]), {"velocity": torch.tensor([4.0])}
    rule.apply(Buffers(w, state), torch.tensor([3.0]), Buffers(w, state), Step(0.2, momentum_correction(0.1, 0.2)))
    torch.testing.assert_close(state["velocity"], torch.tensor([4.6]))
    torch.testing.assert_close(w, torch.tensor([-3.6]))


def test_tensorflows_rmsprop_is_the_program_written_out() -> None:
    """With what paper 3 trained with: rate 0.1, decay 0.9, epsilon 1; ms begins at 1, epsilon is inside the root."""
    rule = RmspropSpec(form="tensorflow", decay=0.9, epsilon=1.0).build()
    w = torch.tensor([0.5, -2.0], dtype=torch.float64)
    state = initial_state(rule, w)
    theirs, ms = w.tolist(), [1.0, 1.0]
    for step in range(20):
        g = [math.sin(step + 1.0), 3.0 * math.cos(step)]
        rule.apply(Buffers(w, state), torch.tensor(g, dtype=torch.float64), Buffers(w, state), Step(0.1))
        for i in range(2):
            ms[i] = 0.9 * ms[i] + 0.1 * g[i] ** 2
            theirs[i] -= 0.1 * g[i] / math.sqrt(ms[i] + 1.0)
    assert w.tolist() == pytest.approx(theirs, rel=1e-12)
    pytorchs = RmspropSpec(decay=0.9, epsilon=1.0).build()
    one, two = torch.tensor([1.0]), torch.tensor([1.0])
    for each, x in ((pytorchs, one), (rule, two)):
        buffers = Buffers(x, initial_state(each, x))
        each.apply(buffers, torch.tensor([1.0]), buffers, Step(0.1))
    assert one.item() == pytest.approx(1 - 0.1 / (math.sqrt(0.1) + 1))
    assert two.item() == pytest.approx(1 - 0.1 / math.sqrt(2))
