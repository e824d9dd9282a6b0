"""What a spec asks for in vain is said, with what to do."""

from typing import Any

import pytest

from trainers import TrainSpec, explain
from trainers.spec.advice import advice

SGD = {"name": "sgd", "lr": 0.1}


def said(num_examples: int = 1000, **fields: Any) -> list[str]:
    """The fields of which something is said."""
    spec = TrainSpec.model_validate({"batch": 32, "optimizer": SGD} | fields)
    assert explain(spec, num_examples).warnings == advice(spec, num_examples)
    return [sentence.partition(":")[0] for sentence in advice(spec, num_examples)]


def test_nothing_is_said_of_what_is_well() -> None:
    scaled = {"workers": 4, "batch": {"per_worker": 32, "base": 32}, "scaling": "linear"}
    assert said(warmup={"name": "gradual", "epochs": 0.5}, **scaled) == []
    assert said(warmup={"name": "linear", "epochs": 0.5}) == []
    assert said() == []
    assert said(**scaled | {"workers": {"virtual": 8}}) == []
    assert said(**scaled | {"workers": {"virtual": 9}, "schedule": "one_cycle"}) == []
    assert said(algorithm="downpour") == []
    assert said(algorithm="parallel_sgd", workers={"count": 2, "virtual": 8}) == []
    assert said(optimizer="momentum") == []
    assert said(ema={"decay": 0.5}) == []
    assert said(schedule={"name": "restarts", "first": 2, "factor": 3}) == []
    assert said(data={"name": "digits", "mixup": 0.2, "random_erasing": {}}) == []


def test_an_average_over_a_short_run_counts_the_smaller_steps_at_the_ends_of_epochs_too() -> None:
    fields: dict[str, Any] = {"batch": 60, "optimizer": SGD, "workers": 1}
    (short,) = advice(TrainSpec(**fields, epochs=10, ema={"decay": 0.999}), num_examples=100)
    assert short.startswith("ema.decay: after the run's 20 updates 98% of the average")
    assert short.endswith("try 0.8 or less")
    (shortest,) = advice(TrainSpec(**fields, max_steps=3, ema={"decay": 0.9}), num_examples=1000)
    assert shortest.endswith("leave ema out")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"workers": {"count": 2, "virtual": 64}}, "batch"),
        ({"algorithm": "downpour", "workers": 64}, "workers.count"),
        ({"algorithm": "downpour", "workers": {"count": 2, "virtual": 8}}, "workers.virtual"),
        ({"workers": {"count": 2, "max": 4}}, "workers.max"),
        ({"algorithm": "downpour", "optimizer": {"name": "momentum", "momentum": 0.9}}, "optimizer.momentum"),
        ({"ema": {"decay": 0.999}}, "ema.decay"),
        ({"schedule": "step"}, "schedule.epochs"),
        ({"schedule": "restarts", "epochs": 10}, "schedule.first"),
        ({"warmup": {"name": "gradual", "epochs": 0.5}}, "warmup.name"),
        ({"workers": {"virtual": 9}, "batch": {"per_worker": 32, "base": 32}, "scaling": "sqrt"}, "warmup"),
        ({"data": {"name": "image_folder", "shuffle": False}}, "data.shuffle"),
        (
            {"task": "language_model", "data": {"name": "text", "root": "t", "horizontal_flip": True}},
            "data.horizontal_flip",
        ),
        ({"data": {"name": "digits", "cutmix": 1.0}, "batch": 1}, "data.cutmix"),
        ({"algorithm": {"name": "mixed", "group": "node"}, "batch": {"per_worker": 8, "base": 8}}, "algorithm.group"),
    ],
)
def test_what_is_in_vain_or_ends_badly_is_said(fields: dict[str, Any], field: str) -> None:
    assert said(**fields) == [field]


def test_one_asynchronous_worker_has_no_gradient_that_is_late() -> None:
    assert said(algorithm="downpour", workers=1, optimizer="momentum") == []
