"""Scaling rules: the papers' own figures."""

import math
import random
from typing import Any

import pytest

from trainers.optim.scaling import exact_decay
from trainers.spec import TrainSpec


def spec(
    virtual: int, n: int, base: int | None, scaling: object, lr: float, w: float = 0.0, **more: object
) -> TrainSpec:
    workers = {"count": 1, "virtual": virtual}
    optimizer = {"name": "momentum", "lr": lr, "weight_decay": w}
    batch = {"per_worker": n, "base": base}
    fields = {"workers": workers, "batch": batch, "scaling": scaling, "optimizer": optimizer}
    return TrainSpec.model_validate(fields | more)


@pytest.mark.parametrize(
    ("kn", "expected"),
    [(64, 0.025), (256, 0.1), (512, 0.2), (1024, 0.4), (2048, 0.8), (4096, 1.6), (8192, 3.2), (16384, 6.4)],
)
def test_linear_is_paper_4_tables_1_and_3(kn: int, expected: float) -> None:
    """0.1 kn / 256, with n = 32."""
    found = spec(kn // 32, 32, 256, "linear", 0.1, 0.0001)
    assert found.batch_scaling.learning_rate == pytest.approx(expected)
    assert found.batch_scaling.weight_decay == 0.0001


def test_sqrt_and_none_are_paper_4_table_2a() -> None:
    assert spec(256, 32, 256, "sqrt", 0.1).batch_scaling.learning_rate == pytest.approx(0.1 * math.sqrt(32))
    assert spec(256, 32, 256, "none", 0.1).batch_scaling.learning_rate == 0.1


def test_sqrt_with_its_weight_decay_is_paper_1_section_5() -> None:
    """128 -> 1024, rate 0.01, decay 0.0005."""

    def found(decay: str) -> TrainSpec:
        return spec(8, 128, 128, {"name": "sqrt", "weight_decay": decay}, 0.01, 0.0005)

    assert found("exact").batch_scaling.learning_rate == pytest.approx(math.sqrt(8) * 0.01)
    assert round(found("exact").batch_scaling.weight_decay, 10) == 0.0014141888
    assert round(found("sqrt").batch_scaling.weight_decay, 10) == 0.0014142136
    assert found("keep").batch_scaling.weight_decay == 0.0005


@pytest.mark.parametrize("seed", range(50))
def test_exact_decay_in_one_update_is_that_of_k_updates_at_the_base(seed: int) -> None:
    dice = random.Random(seed)
    e, w, k = 10 ** dice.uniform(-4, 0), 10 ** dice.uniform(-6, -1), dice.choice([0.25, 1, 2.5, 8, 64])
    assert 1 - math.sqrt(k) * e * exact_decay(w, e, k) == pytest.approx((1 - e * w) ** k, rel=1e-12)
    assert exact_decay(w, e, 1) == pytest.approx(w)
    assert exact_decay(0.0, e, k) == 0


@pytest.mark.parametrize("scaling", ["none", "sqrt", "linear", {"name": "sqrt", "weight_decay": "exact"}])
def test_without_a_base_the_rules_do_nothing(scaling: object) -> None:
    found = spec(8, 32, None, scaling, 0.3, 0.01)
    assert (found.batch_scaling.batch_factor, found.batch_scaling.rate_factor, found.batch_scaling.learning_rate) == (
        1,
        1,
        0.3,
    )
    assert found.batch_scaling.weight_decay == 0.01


@pytest.mark.parametrize(
    ("algorithm", "batch"),
    [
        ({"name": "sync"}, 8 * 64),
        ({"name": "sync", "form": "parameter_server", "backup": 2}, 6 * 64),
        ({"name": "mixed", "group": 4}, 4 * 64),
        ({"name": "mixed", "group": "node"}, 8 * 64),
        ({"name": "parallel_sgd"}, 64),
        ({"name": "parallel_sgd", "average_every": 10}, 64),
        ({"name": "parallel_sgd", "average_every": 1}, 8 * 64),
        ({"name": "admm"}, 8 * 64),
        ({"name": "admm", "form": "consensus"}, 64),
        ({"name": "admm", "form": "consensus", "steps": 1}, 8 * 64),
    ],
)
def test_the_batch_is_the_examples_whose_mean_makes_an_update(algorithm: dict[str, Any], batch: int) -> None:
    found = spec(8, 64, 32, "linear", 0.1, algorithm=algorithm, workers=8)
    assert found.update_batch == batch
    assert found.batch_scaling.learning_rate == pytest.approx(0.1 * batch / 32)


def test_for_downpour_the_batch_is_one_workers_minibatch() -> None:
    found = spec(8, 64, 32, "linear", 0.1, algorithm={"name": "downpour", "num_push": 4})
    assert (found.update_batch, found.global_batch) == (64, 512)
    assert found.batch_scaling.learning_rate == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scaling": {"name": "linear", "weight_decay": "exact"}}, "stays as it is"),
        ({"scaling": {"weight_decay": "sqrt"}}, "stays as it is"),
        (
            {"scaling": {"name": "sqrt", "weight_decay": "exact"}, "optimizer": {"lr": 10.0, "weight_decay": 0.5}},
            "below 1",
        ),
        ({"warmup": "gradual", "epochs": 5}, "warm-up of 5 epochs does not end"),
        ({"batch": {"base": 0}}, "greater than or equal to 1"),
        ({"scaling": "cubic"}, "none"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TrainSpec.model_validate(fields)
