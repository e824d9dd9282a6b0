"""Statements of paper 4 that hold for any rates and any recipe."""

import math

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Step, initial_state
from trainers.optim.scaling import momentum_correction
from trainers.spec import MomentumSpec, TrainSpec

EVERY = settings(derandomize=True, deadline=None, database=None, max_examples=150)

SCHEDULES = st.one_of(
    st.sampled_from(["constant", "step", "krizhevsky", "cosine"]),
    st.fixed_dictionaries({"name": st.just("polynomial"), "power": st.floats(0.5, 3), "final": st.floats(0, 1)}),
)


@EVERY
@given(
    k=st.integers(2, 2048),
    n=st.sampled_from([1, 32, 100]),
    lr=st.floats(1e-5, 1.0),
    warmup=st.floats(0.01, 9.9),
    num_examples=st.integers(500, 100_000),
    schedule=SCHEDULES,
)
def test_linear_with_gradual_warmup_is_continuous_at_its_end(
    k: int, n: int, lr: float, warmup: float, num_examples: int, schedule: object
) -> None:
    """Section 2.2: the ramp ends on the schedule. The step from the last warmed-up example to the first after it is no
    more than one of its increments and one of the schedule's own."""
    fields = {
        "workers": {"count": 1, "virtual": k},
        "batch": {"per_worker": n, "base": n},
        "optimizer": {"name": "momentum", "lr": lr},
        "scaling": "linear",
        "schedule": schedule,
        "epochs": 90,
    }
    spec = TrainSpec.model_validate({**fields, "warmup": {"name": "gradual", "epochs": warmup}})
    found, plain = (s.learning_rate(num_examples) for s in (spec, TrainSpec.model_validate(fields)))
    end = math.ceil(warmup * num_examples)
    increment = abs(plain(end) - lr) / (warmup * num_examples)
    assert found(end) == plain(end)
    assert abs(found(end) - found(end - 1)) <= 1.001 * increment + 1e-12 * plain(end)
    assert found(0) == lr
    assert found(end // 2) <= max(lr, plain(end)) * (1 + 1e-12)


@EVERY
@given(
    rates=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40),
    m=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    seed=st.integers(0, 2**31),
)
@example(rates=[1e-6, 1e3, 1e-6, 1e3], m=0.99, seed=0)
def test_momentum_correction_makes_equation_10_equal_to_9_under_any_positive_rates(
    rates: list[float], m: float, seed: int
) -> None:
    """Section 3, remark 2: u is the gradient's momentum in (9), v the rate times it in (10)."""
    nine, ten = MomentumSpec(momentum=m).build(), MomentumSpec(momentum=m, equation=10).build()
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(8, generator=generator, dtype=torch.float64)
    other, before, moved = w.clone(), 0.0, torch.zeros_like(w)
    state, other_state = initial_state(nine, w), initial_state(ten, w)
    for lr in rates:
        g = torch.randn(8, generator=generator, dtype=torch.float64)
        for rule, buffers in ((nine, Buffers(w, state)), (ten, Buffers(other, other_state))):
            rule.apply(buffers, g, buffers, Step(lr, momentum_correction(before, lr)))
        moved = torch.maximum(moved, lr * state["momentum"].abs())
        before = lr
    assert ((other - w).abs() <= 1e-9 * (1 + len(rates) * moved)).all()
    torch.testing.assert_close(other_state["velocity"], state["momentum"] * before, rtol=1e-8, atol=1e-12 * before)
