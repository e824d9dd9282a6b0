"""Runs that end after so many steps or examples, within an epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.local_runs import LocalRun
from tests.runtime.runs import finished, spec
from trainers import TrainSpec
from trainers.data.order import Extent, Order
from trainers.errors import SpecRejected
from trainers.spec.advice import advice
from trainers.spec.recipe import explain
from trainers.training.checkpoint import read_checkpoint
from trainers.training.setup import set_up

EXAMPLES, BATCH = 203, 5 * 7  # V = 5 virtual workers with 7 examples each: 6 steps an epoch, the last one smaller
LIMIT = {"max_steps": 9}
AFTER = EXAMPLES + 3 * BATCH
"""Examples of 9 steps."""

SYNCHRONOUS: list[dict[str, Any]] = [
    {"algorithm": "sync"},
    {"algorithm": {"name": "sync", "form": "parameter_server"}},
    {"algorithm": {"name": "parallel_sgd", "average_every": 3}},
    {"algorithm": {"name": "admm", "form": "consensus", "steps": 2}},
    {"algorithm": {"name": "diloco", "average_every": 2}},
    {"algorithm": "hybrid", "model": "lenet5"},
    {"algorithm": "spatial", "model": "lenet5"},
]


def run(count: int = 2, **fields: Any) -> TrainSpec:
    return spec(**({"workers": {"count": count, "virtual": 5}, "epochs": 3} | fields))


def test_the_first_limit_ends_the_run_and_no_step_is_divided() -> None:
    order = Order(EXAMPLES, 7, 5, 0)  # 29 minibatches
    assert order.extent(3, 5, None, None) == Extent(3, 0, 3 * EXAMPLES)
    assert order.extent(3, 5, 9, None) == Extent(1, 15, AFTER)
    assert order.extent(3, 5, 12, None) == Extent(2, 0, 2 * EXAMPLES)
    assert order.extent(3, 5, 10**9, 10**9) == Extent(3, 0, 3 * EXAMPLES)
    assert order.extent(3, 5, None, AFTER) == order.extent(3, 5, None, AFTER - 1) == Extent(1, 15, AFTER)
    assert order.extent(3, 5, None, AFTER + 1) == Extent(1, 20, AFTER + BATCH)
    assert order.extent(3, 5, None, 2 * EXAMPLES - 1) == Extent(2, 0, 2 * EXAMPLES)
    assert order.extent(3, 1, 30, None) == Extent(1, 1, EXAMPLES + 7)  # workers that make steps by themselves


@pytest.mark.parametrize(
    "fields", SYNCHRONOUS, ids=["sync", "through shards", "parallel_sgd", "admm", "diloco", "hybrid", "spatial"]
)
def test_it_ends_with_the_bits_that_a_longer_run_has_there(tmp_path: Path, fields: dict[str, Any]) -> None:
    longer = LocalRun(run(**fields, checkpoint={"every_epochs": 0}), tmp_path / "longer", limit=9)
    expected = read_checkpoint(longer.train())
    for count in (1, 2, 3) if fields["algorithm"] == "sync" else (2,):
        found = read_checkpoint(LocalRun(run(count, **fields, **LIMIT), tmp_path / str(count)).train())
        assert (found.position.epoch, found.position.step, found.position.examples) == (1, 3, AFTER)
        for name, tensor in expected.model.items():
            assert torch.equal(found.model[name], tensor), name


@pytest.mark.parametrize(
    "fields",
    [
        {"algorithm": "downpour"},
        {"algorithm": {"name": "mixed", "group": 2}},
        {"algorithm": {"name": "downpour", "push": "delta", "steps": 2}},
        {"algorithm": {"name": "mixed", "group": 2, "push": "delta", "steps": 1}},
        {"algorithm": {"name": "easgd", "tau": 2}},
    ],
    ids=str,
)
def test_asynchronous_workers_train_each_example_up_to_the_end_once(tmp_path: Path, fields: dict[str, Any]) -> None:
    local = LocalRun(spec(workers=2, epochs=3, max_examples=EXAMPLES + 40, **fields), tmp_path / "run")
    found = read_checkpoint(local.train())
    whole = 42  # examples: six minibatches of 7, also as pairs
    assert found.position.examples == EXAMPLES + whole
    assert dict(local.trained) == {0: EXAMPLES, 1: whole}


def test_a_run_is_prolonged_from_where_it_ended(tmp_path: Path) -> None:
    whole = read_checkpoint(LocalRun(run(max_steps=15), tmp_path / "whole").train())
    first = LocalRun(run(**LIMIT), tmp_path / "first").train()
    rest = LocalRun(run(max_steps=15, checkpoint={"resume": str(first)}), tmp_path / "rest")
    found = read_checkpoint(rest.train())
    assert all(torch.equal(found.model[name], tensor) for name, tensor in whole.model.items())
    with pytest.raises(SpecRejected, match="set more than that, and a larger max_steps"):
        set_up(run(**LIMIT, checkpoint={"resume": str(first)}), None).begin()


def test_the_schedule_and_the_recipe_go_by_the_end_of_the_run() -> None:
    short = run(**LIMIT, schedule="linear", optimizer={"name": "sgd", "lr": 1.0})
    assert short.learning_rate(EXAMPLES)(AFTER) == 0.0
    told = explain(short, EXAMPLES)
    assert (told.quantities["steps"].value, told.quantities["steps"].formula) == (
        9,
        "ends before the epochs do, by max_steps",
    )
    assert told.phases[-1].examples == AFTER - BATCH


def test_a_limit_that_is_not_reached_is_told_and_one_that_cannot_hold_is_refused() -> None:
    assert not [said for said in advice(run(**LIMIT), EXAMPLES) if "max_" in said]
    (said,) = [said for said in advice(run(max_steps=19, max_examples=5), EXAMPLES) if "max_" in said]
    assert said == "max_steps: the run ends after 3 epochs, before it comes to 19; raise epochs"
    with pytest.raises(ValidationError, match="give epochs only"):
        TrainSpec.model_validate(
            {"elastic": {"mode": "scale_batch"}, "workers": {"count": 1, "max": 2}, "max_steps": 3}
        )


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("algorithm", [{"name": "sync", "form": "parameter_server"}, {"name": "downpour"}], ids=str)
@pytest.mark.long
def test_a_run_on_ray_ends_there(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    workers = 2 if algorithm["name"] == "downpour" else {"count": 2, "virtual": 5}
    limit = {"max_examples": AFTER}
    ended = finished(
        f"length-{algorithm['name']}", spec(workers=workers, algorithm=algorithm, epochs=3, **limit), tmp_path
    )
    assert ended.events[-1].data["state"] == "SUCCEEDED", ended.events[-1]
    assert ended.of("result")[-1]["examples"] == AFTER
    assert ended.of("step")[-1]["run_epochs"] == AFTER / EXAMPLES
    assert len(ended.of("epoch")) == 1
    assert ended.of("evaluation")[-1]["examples"] == AFTER
    assert ended.of("evaluation")[-1]["epoch"] == AFTER / EXAMPLES
    looked_at = [found["examples"] for found in ended.of("evaluation")]
    assert len(looked_at) == len(set(looked_at)), "no version is evaluated twice"
