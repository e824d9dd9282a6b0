"""Frozen groups of parameters: they stay as they are, nothing of them travels, and checkpoints have them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.local_runs import LocalRun
from trainers.errors import SpecRejected
from trainers.optim.members import freeze
from trainers.spec import TrainSpec
from trainers.spec.recipe import explain
from trainers.training.checkpoint import Checkpoint, read_checkpoint
from trainers.training.setup import check, set_up

FROZEN = {"name": "momentum", "lr": 0.05, "weight_decay": 0.1, "groups": [{"match": "fc1.*", "frozen": True}]}
ALGORITHMS: list[dict[str, Any]] = [
    {"name": "sync"},
    {"name": "sync", "reduction": "fast"},
    {"name": "sync", "form": "parameter_server"},
    {"name": "downpour", "push": "layerwise"},
    {"name": "downpour", "push": "layerwise", "bucket_bytes": 1, "backprop": {"groups": 2}},
    {"name": "mixed"},
    {"name": "parallel_sgd"},
    {"name": "diloco"},
    {"name": "eamsgd", "tau": 2},
    {"name": "downpour", "push": "delta", "steps": 2},
    {"name": "mixed", "group": 2, "push": "delta", "steps": 2},
    {"name": "admm"},
]


def spec(**fields: object) -> TrainSpec:
    base = {"data": {"name": "digits", "limit": 60}, "model": "lenet5", "epochs": 1, "batch": 10, "workers": 2}
    return TrainSpec.model_validate(base | {"optimizer": FROZEN} | fields)


def trained(train: TrainSpec, folder: Path) -> Checkpoint:
    return read_checkpoint(LocalRun(train, folder).train())


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: "-".join(map(str, a.values())))
def test_no_algorithm_moves_them(algorithm: dict[str, Any], tmp_path: Path) -> None:
    train = spec(algorithm=algorithm)
    if "backprop" in algorithm:
        train = spec(algorithm=algorithm, optimizer=FROZEN | {"groups": [{"match": "conv1.*", "frozen": True}]})
    built, found = set_up(train, None), trained(train, tmp_path / "run")
    built.dataset.close()
    before = dict(built.replica.model.named_parameters())
    frozen = {name for name, parameter in before.items() if not parameter.requires_grad}
    assert len(frozen) == 2
    assert {name for name in before if torch.equal(before[name], found.model[name])} == frozen
    assert not any(frozen & set(named) for named in found.optimizer.values())
    assert built.layout.numel < sum(p.numel() for p in before.values())


def test_a_run_goes_on_from_a_checkpoint_and_frees_them(tmp_path: Path) -> None:
    """The frozen ones are the checkpoint's, whatever the seed would build; freed ones begin with an empty state."""
    first = LocalRun(spec(), tmp_path / "first").train()
    later = {"epochs": 2, "seed": 9, "checkpoint": {"resume": str(first)}}
    there, again = read_checkpoint(first), trained(spec(**later), tmp_path / "again")
    assert torch.equal(again.model["fc1.weight"], there.model["fc1.weight"])
    assert not torch.equal(again.model["fc2.weight"], there.model["fc2.weight"])
    freed = set_up(spec(**later | {"optimizer": FROZEN | {"groups": []}}), None)
    buffers = freed.begin()[0].buffers
    freed.dataset.close()
    assert torch.equal(freed.layout.named(buffers.params)["fc1.weight"], there.model["fc1.weight"])
    momentum = freed.layout.named(buffers.state["momentum"])
    assert not momentum["fc1.weight"].any()
    assert torch.equal(momentum["fc2.weight"], there.optimizer["momentum"]["fc2.weight"])


@pytest.mark.parametrize(
    ("groups", "algorithm", "said"),
    [
        ([{"match": "*", "frozen": True}], "sync", "all parameters are frozen"),
        ([{"match": "fc*", "frozen": True}], "hybrid", "hybrid divides fc1.bias among workers"),
        ([{"match": "conv*", "frozen": True}], "hybrid", "nothing to train by data parallelism"),
    ],
)
def test_what_cannot_be_frozen_is_refused(groups: list[dict[str, object]], algorithm: str, said: str) -> None:
    train = spec(algorithm=algorithm, optimizer=FROZEN | {"groups": groups})
    with pytest.raises(SpecRejected, match=said):
        check(set_up(train, None))


def test_a_model_without_anything_to_train_is_told_apart_from_one_that_is_frozen_here() -> None:
    with pytest.raises(SpecRejected, match=r"^model: it has no parameters"):
        freeze(nn.Flatten(), [])
    with pytest.raises(SpecRejected, match=r"^model: none of its parameters requires a gradient"):
        freeze(nn.Linear(2, 2).requires_grad_(False), [])


def test_a_frozen_group_has_no_options_and_is_explained() -> None:
    with pytest.raises(ValueError, match="leave lr out, or frozen"):
        spec(optimizer=FROZEN | {"groups": [{"match": "*", "frozen": True, "lr": 0.1}]})
    told = explain(spec(), 60).quantities["group_0"]
    assert (told.value, told.formula) == (0, "fc1.*: frozen, neither sent nor updated")
