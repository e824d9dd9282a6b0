"""Schedules as functions of examples seen."""

import itertools
import math
import random

import pytest

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
