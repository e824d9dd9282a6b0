"""Schedules as functions of examples seen."""

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from trainers.errors import SpecRejected
from trainers.spec import ScalingSpec, TrainSpec, WarmupSpec


def spec(schedule: object, epochs: int = 10) -> TrainSpec:
    optimizer = {"name": "sgd", "lr": 0.4}
    return TrainSpec.model_validate({"schedule": schedule, "epochs": epochs, "optimizer": optimizer})


def test_constant() -> None:
    found = spec("constant").learning_rate(100)
    assert {found(seen) for seen in range(0, 2000, 7)} == {0.4}


def test_step_changes_at_the_epochs_and_not_before() -> None:
    found = spec({"name": "step", "epochs": [2, 3.5], "factor": 0.5}).learning_rate(100)
    assert [found(seen) for seen in (0, 199, 200, 349, 350, 5000)] == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]


def test_cosine_falls_from_the_first_to_the_last_value_and_stays() -> None:
    found = spec({"name": "cosine", "final": 0.1}).learning_rate(100)
    assert found(0) == 0.4
    assert found(500) == pytest.approx(0.4 * 0.55)
    assert found(250) == pytest.approx(0.4 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))))
    assert found(1000) == found(10**6) == pytest.approx(0.04)
    values = [found(seen) for seen in range(1001)]
    assert values == sorted(values, reverse=True)


def test_step_is_paper_4s() -> None:
    """Reduced by 1/10 at the 30th, 60th and 80th epoch of 90."""
    found = spec("step", 90).learning_rate(1000)
    for epoch, expected in [(0, 0.4), (29.9, 0.4), (30, 0.04), (60, 0.004), (80, 0.0004), (89.9, 0.0004)]:
        assert found(round(epoch * 1000)) == pytest.approx(expected)


def test_krizhevskys_is_paper_1s() -> None:
    """Multiplied by 250^(-1/3) at 25, 50 and 75 % of 90 epochs: a 250th of the first rate in the last quarter."""
    found = spec("krizhevsky", 90).learning_rate(1000)
    assert [found(seen) for seen in (0, 22_499)] == [0.4, 0.4]
    assert found(22_500) == found(44_999) == pytest.approx(0.4 / 250 ** (1 / 3))
    assert found(45_000) == found(67_499) == pytest.approx(0.4 / 250 ** (2 / 3))
    assert found(67_500) == found(90_000) == pytest.approx(0.4 / 250)


def test_polynomial_falls_to_the_last_value_and_stays() -> None:
    found = spec({"name": "polynomial", "power": 3, "final": 0.1}).learning_rate(100)
    assert found(0) == pytest.approx(0.4)
    assert found(500) == pytest.approx(0.4 * (0.1 + 0.9 / 8))
    assert found(1000) == found(10**6) == pytest.approx(0.04)


SCHEDULES = ["constant", "step", "krizhevsky", "cosine", {"name": "polynomial", "power": 1.5, "final": 0.2}]
SCHEDULES += ["wsd", "restarts"]


def scaled(warmup: object, schedule: object = "step", k: int = 256, epochs: int = 90, base: int = 256) -> TrainSpec:
    """Paper 4's recipe on 32 k examples a step."""
    return TrainSpec.model_validate({
        "workers": {"count": 1, "virtual": k},
        "batch": {"per_worker": 32, "base": base},
        "optimizer": {"name": "momentum", "lr": 0.1},
        "scaling": "linear",
        "schedule": schedule,
        "warmup": warmup,
        "epochs": epochs,
    })  # fmt: skip


def test_gradual_warmup_is_paper_4s() -> None:
    """From 0.1 by a constant increment an iteration to 3.2 after 5 epochs; then the schedule as it is without."""
    num = 1_281_167
    found, plain = (scaled(warmup).learning_rate(num) for warmup in ("gradual", "none"))
    assert found(0) == 0.1
    assert found(5 * num) == plain(5 * num) == pytest.approx(3.2)
    rates = [found(seen) for seen in range(0, 5 * num, 8192)]
    increments = [b - a for a, b in itertools.pairwise(rates)]
    assert increments == pytest.approx([3.1 * 8192 / (5 * num)] * len(increments))
    for epoch in (5, 10, 30, 60, 80, 89):
        assert found(epoch * num) == plain(epoch * num)


def test_constant_warmup_is_paper_4s() -> None:
    """0.1 for 5 epochs, then 3.2."""
    found = scaled("constant").learning_rate(1000)
    assert {found(seen) for seen in range(5000)} == {0.1}
    assert found(5000) == pytest.approx(3.2)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("seed", range(20))
def test_linear_with_gradual_warmup_is_continuous_at_its_end(schedule: object, seed: int) -> None:
    """The last example before the end is no further from it than the ramp's slope, whatever the schedule."""
    dice = random.Random(seed)
    epochs, num = dice.randint(8, 100), dice.randint(1000, 100_000)
    warmup = {"name": "gradual", "epochs": dice.choice([5, 1, dice.uniform(0.5, 7.5)])}
    run = scaled(warmup, schedule, dice.randint(9, 300), epochs)
    found, plain = run.learning_rate(num), run.model_copy(update={"warmup": WarmupSpec()}).learning_rate(num)
    end = math.ceil(run.warmup.epochs * num)
    assert found(end) == plain(end)
    assert abs(found(end) - found(end - 1)) <= abs(plain(end) - 0.1) / (run.warmup.epochs * num) * 1.001
    assert found(0) == 0.1


@pytest.mark.parametrize("warmup", ["constant", "gradual"])
def test_where_the_rate_is_not_raised_there_is_nothing_to_warm_up(warmup: str) -> None:
    """Paper 4, section 5.3: for models of kn > 256."""
    for k, base in ((8, 256), (2, 256)):
        found, plain = (scaled(w, k=k, base=base).learning_rate(1000) for w in (warmup, "none"))
        assert all(found(seen) == plain(seen) for seen in range(0, 90_000, 501))


def test_with_nothing_new_the_rates_keep_their_bits() -> None:
    for schedule in ("constant", {"name": "step", "epochs": [2, 3.5]}, "cosine"):
        plain = spec(schedule).learning_rate(100)
        scaled = spec(schedule).model_copy(update={"scaling": ScalingSpec(name="linear")}).learning_rate(100)
        assert all(plain(seen) == scaled(seen) for seen in range(1200))


# -- against the schedules that users know --------------------------------------------------------------------------

STEPS, BATCH = 200, 8
"""Updates of the runs below, and the examples of each."""


def rates(schedule: object, warmup: object = "none") -> list[float]:
    """The rate of every update of a run of 10 epochs of 20 updates each."""
    fields = {"schedule": schedule, "warmup": warmup, "epochs": 10, "optimizer": {"name": "sgd", "lr": 0.4}}
    fields |= {"workers": {"count": 1, "virtual": 2}, "batch": BATCH // 2}
    found = TrainSpec.model_validate(fields).learning_rate(STEPS * BATCH // 10)
    return [found(step * BATCH) for step in range(STEPS)]


def torchs(build: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]) -> list[float]:
    """The rates of one of torch's or of transformers' schedulers, from the same rate 0.4."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    scheduler, found = build(optimizer), []
    for _ in range(STEPS):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


WARMUPS = [{"name": "linear", "steps": 40}, {"name": "linear", "share": 0.2}, {"name": "linear", "epochs": 2}]


@pytest.mark.parametrize("warmup", WARMUPS, ids=str)
def test_linear_is_that_of_transformers(warmup: object) -> None:
    expected = torchs(lambda o: transformers.get_linear_schedule_with_warmup(o, 40, STEPS))
    assert rates("linear", warmup) == pytest.approx(expected)


def test_inverse_sqrt_is_that_of_transformers() -> None:
    expected = torchs(lambda o: transformers.get_inverse_sqrt_schedule(o, 40))
    assert rates("inverse_sqrt", WARMUPS[0]) == pytest.approx(expected)
    expected = torchs(lambda o: transformers.get_inverse_sqrt_schedule(o, 0, timescale=10_000))
    assert rates("inverse_sqrt") == pytest.approx(expected)
    expected = torchs(lambda o: transformers.get_inverse_sqrt_schedule(o, 0, timescale=30))
    assert rates({"name": "inverse_sqrt", "timescale": 30}) == pytest.approx(expected)


@pytest.mark.parametrize("shape", ["linear", "cosine", "sqrt"])
def test_wsd_is_that_of_transformers(shape: str) -> None:
    """But for its warm-up, which begins at the last rate there, and at nothing here."""
    options = {"num_warmup_steps": 40, "num_decay_steps": 50, "num_stable_steps": 110, "min_lr_ratio": 0.1}
    kind = {"sqrt": "1-sqrt"}.get(shape, shape)
    expected = torchs(lambda o: transformers.get_wsd_schedule(o, decay_type=kind, **options))
    found = rates({"name": "wsd", "decay": 0.25, "shape": shape, "final": 0.1}, WARMUPS[0])
    assert found[40:] == pytest.approx(expected[40:])
    assert found[:40] == pytest.approx([0.4 * step / 40 for step in range(40)])


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_one_cycle_is_torchs(shape: str) -> None:
    """Torch counts the rate after the last update as one of its steps, and its top as one step early."""
    options: dict[str, Any] = {"anneal_strategy": {"cosine": "cos"}.get(shape, shape), "cycle_momentum": False}
    options |= {"total_steps": STEPS + 1, "pct_start": 61 / (STEPS + 1)}
    expected = torchs(lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.4, **options))
    assert rates({"name": "one_cycle", "shape": shape}) == pytest.approx(expected)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_restarts_are_torchs(factor: int) -> None:
    build = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts
    expected = torchs(lambda o: build(o, T_0=20, T_mult=factor, eta_min=0.04))
    assert rates({"name": "restarts", "first": 1, "factor": factor, "final": 0.1}) == pytest.approx(expected)


def refused(**fields: object) -> str:
    with pytest.raises(ValidationError) as caught:
        TrainSpec.model_validate(fields)
    return str(caught.value)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    assert "leave this one out" in refused(schedule="one_cycle", warmup="linear")
    assert "given twice, by steps and share" in refused(warmup={"name": "linear", "steps": 3, "share": 0.1})
    scaled = {"elastic": {"mode": "scale_batch"}, "batch": {"base": 32}, "workers": {"count": 1, "max": 2}}
    assert "use warmup.epochs" in refused(warmup={"name": "linear", "steps": 3}, **scaled)
    with pytest.raises(SpecRejected, match="a warm-up of 201 updates does not end within a run of 10 epochs"):
        rates("constant", {"name": "linear", "steps": 201})


def test_a_warmup_in_steps_reads_back_as_it_was_written() -> None:
    """A resize writes the whole section, in which the epochs have their default."""
    given = TrainSpec.model_validate({"warmup": {"name": "linear", "steps": 3}})
    assert TrainSpec.model_validate(given.model_dump()) == given
