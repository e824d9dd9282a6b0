"""What a spec is told to need of memory is what the tensors of its workers and shards take."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from numba.core.registry import CPUDispatcher
from torch import Tensor

from tests.local_runs import LocalRun
from trainers import explain, needed_memory, profile_model
from trainers.collectives.local import LocalGroup
from trainers.cost.clusters.cluster import read_cluster
from trainers.cost.counting import count_workload
from trainers.cost.figures import images_of
from trainers.cost.plan import PlanRequest
from trainers.cost.planner import plan_spec
from trainers.optim.update import SliceUpdate
from trainers.spec import TrainSpec
from trainers.spec.memory import bytes_with, state_bytes
from trainers.training.loop import TrainingLoop

LARGE = {"name": "mlp", "kwargs": {"hidden": 2048}}
"""Larger than what an update takes in at once, for which it has room of its own."""
OTHERS = (type, ModuleType, FunctionType, CPUDispatcher, LocalGroup)
"""What belongs to no worker alone."""


def spec(**fields: Any) -> TrainSpec:
    base = {"data": {"name": "digits", "limit": 30}, "model": LARGE, "batch": 3, "epochs": 1, "seed": 3}
    return TrainSpec.model_validate(base | {"evaluate": {"every_epochs": 0}} | fields)


def held(root: object, least: int, without: tuple[type, ...] = ()) -> int:
    """Bytes of the tensors of at least so many that are reached from an object, each memory once. without: what else
    is not looked into."""
    seen, sizes, left = set[int](), dict[int, int](), [root]
    while left:
        one = left.pop()
        kind = type(one)  # of the object itself: to ask for `__class__` fails where it is a proxy of one that is gone
        if id(one) in seen or issubclass(kind, OTHERS + without):
            continue
        seen.add(id(one))
        if issubclass(kind, Tensor) and one.untyped_storage().nbytes() >= least:
            sizes[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        left += gc.get_referents(one)
    return sum(sizes.values())


def trained(train: TrainSpec, folder: Path) -> tuple[LocalRun, list[TrainingLoop]]:
    """A run, and what its workers are at its end."""
    run, loops = LocalRun(train, folder), list[TrainingLoop]()
    make: Callable[..., TrainingLoop] = run._trainer

    def kept(*arguments: Any) -> TrainingLoop:
        loops.append(make(*arguments))
        return loops[-1]

    run._trainer = kept  # type: ignore[method-assign]
    run.train()
    return run, loops


def kinds() -> Iterator[dict[str, Any]]:
    """Elementwise, with norms a layer, and of whole parameters; with an average, and with parts frozen."""
    for optimizer in ("sgd", "momentum", "adamw", "lars", "lamb", "muon", "torch.optim:NAdam"):
        yield {"optimizer": optimizer}
    yield {"optimizer": "adam", "ema": {"decay": 0.9}}
    yield {
        "optimizer": {
            "name": "momentum",
            "groups": [{"match": "*.bias", "lr": 0.1}, {"match": "fc2.*", "frozen": True}],
        }
    }
    yield {
        "optimizer": "lamb",
        "ema": {"decay": 0.9},
        "workers": {"count": 2, "virtual": 5},
        "transport": "process_group",
    }
    yield {"workers": {"count": 1, "virtual": 5}}


@pytest.mark.parametrize("fields", list(kinds()), ids=str)
def test_a_synchronous_worker_holds_what_is_told(tmp_path: Path, fields: dict[str, Any]) -> None:
    train = spec(**{"workers": 1} | fields)
    run, loops = trained(train, tmp_path / "run")
    numel = run.setups[0].layout.numel
    told = bytes_with(train, len(train.optimizer.build().state_names))
    assert max(held(loop.algorithm, 4 * numel) for loop in loops) == told * numel


def dividing() -> Iterator[dict[str, Any]]:
    """Fully connected layers, whole, restricted, and projected, which are shared out equally or not; and columns."""
    for connect in (None, {"blocks": 2}, {"blocks": 4, "rank": 32}):
        yield {"algorithm": {"name": "hybrid", "connect": connect}, "model": "convnet", "workers": 2}
    yield {"algorithm": "hybrid", "model": "convnet", "workers": {"count": 3, "virtual": 5}, "ema": {"decay": 0.9}}
    columns = {"algorithm": {"name": "hybrid", "columns": 2}, "model": "convnet_two_columns"}
    yield columns | {"workers": 2}
    yield columns | {"workers": {"count": 1, "virtual": 2}, "optimizer": "sgd"}
    yield columns | {"algorithm": {"name": "hybrid", "columns": 2, "connect": {"blocks": 2}}, "workers": 2}


@pytest.mark.parametrize("fields", list(dividing()), ids=str)
def test_a_worker_of_hybrid_holds_its_part_of_divided_layers(tmp_path: Path, fields: dict[str, Any]) -> None:
    """But for what updates take in at once, and a minibatch's activities, which are less than a hundredth of it."""
    train = spec(**fields | {"transport": "process_group"})
    _, loops = trained(train, tmp_path / "run")
    images = images_of(train.model, train.data)
    assert images is not None
    counted = profile_model(train.model, images, algorithm=train.algorithm, num_workers=train.workers.count)
    told = needed_memory(train, counted).vectors
    assert max(held(loop.algorithm, 1024, (SliceUpdate,)) for loop in loops) == pytest.approx(told, rel=0.01)
    planned = plan_spec(train, PlanRequest(cluster=read_cluster("one-weird-trick"), workers=(1,)))
    assert planned.parameters == sum(counted.variables)
    activities = 4 * count_workload(train).activities * train.batch.per_worker
    assert planned.memory_bytes - activities == pytest.approx(told, rel=0.05)  # equal parts, biases for themselves


@pytest.mark.parametrize("name", ["parallel_sgd", "diloco", "downpour"])
def test_other_workers_hold_at_least_what_is_told(tmp_path: Path, name: str) -> None:
    train = spec(workers=2, algorithm=name)
    run, loops = trained(train, tmp_path / "run")
    numel = run.setups[0].layout.numel
    told = bytes_with(train, len(train.optimizer.build().state_names))
    assert all(held(loop.algorithm, 4 * numel) >= told * numel for loop in loops)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "lars", "muon"])
def test_shards_hold_the_state_that_is_told(tmp_path: Path, optimizer: str) -> None:
    train = spec(optimizer=optimizer, algorithm="downpour", ps=2, ema={"decay": 0.9})
    run, _ = trained(train, tmp_path / "run")
    vectors = [
        vector
        for pieces in run.shards
        for piece in pieces.values()
        for state in piece.shard.states
        for vector in state.values()
    ]
    assert 4 * sum(vector.numel() for vector in vectors) == state_bytes(train) * run.setups[0].layout.numel
    quantity = explain(train, 30).quantities["optimizer_state"]
    assert (quantity.value, "2 shards together" in quantity.formula) == (state_bytes(train), True)


def test_a_profile_asks_the_class_of_an_optimizer_and_counts_frozen_parameters_once() -> None:
    """LeNet-5 has 61,706 parameters, 2,572 of them in its two convolutions; NAdam keeps four vectors."""
    train = spec(data="mnist", model="lenet5", workers=1, optimizer={
        "name": "torch.optim:NAdam", "groups": [{"match": "conv*", "frozen": True}]})  # fmt: skip
    images = images_of(train.model, train.data)
    assert images is not None
    found = needed_memory(train, profile_model(train.model, images, groups=train.optimizer.groups))
    assert found.vectors == 4 * ((2 * (1 + 4) + 1) * 59_134 + 2_572)
