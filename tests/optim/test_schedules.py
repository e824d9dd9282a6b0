"""Schedules as functions of examples seen."""

import math

import pytest

from trainers.optim.schedules import build_schedule
from trainers.spec import TrainSpec


def spec(schedule: object, epochs: int = 10) -> TrainSpec:
    optimizer = {"name": "sgd", "lr": 0.4}
    return TrainSpec.model_validate({"schedule": schedule, "epochs": epochs, "optimizer": optimizer})


def test_constant() -> None:
    found = build_schedule(spec("constant"), 100)
    assert {found(seen) for seen in range(0, 2000, 7)} == {0.4}


def test_step_changes_at_the_epochs_and_not_before() -> None:
    found = build_schedule(spec({"name": "step", "epochs": [2, 3.5], "factor": 0.5}), 100)
    assert [found(seen) for seen in (0, 199, 200, 349, 350, 5000)] == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]


def test_cosine_falls_from_the_first_to_the_last_value_and_stays() -> None:
    found = build_schedule(spec({"name": "cosine", "final": 0.1}), 100)
    assert found(0) == 0.4
    assert found(500) == pytest.approx(0.4 * 0.55)
    assert found(250) == pytest.approx(0.4 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))))
    assert found(1000) == found(10**6) == pytest.approx(0.04)
    values = [found(seen) for seen in range(1001)]
    assert values == sorted(values, reverse=True)
