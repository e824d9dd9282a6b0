"""Datasets of one's own, read one by one while it trains: the same bits for whoever reads them, also resumed."""

from pathlib import Path

import pytest
import torch

from tests.data.ownsets import Means
from tests.local_runs import LocalRun
from trainers.models.dropout import replace_dropout
from trainers.spec import TrainSpec
from trainers.tasks.registry import build_task_model
from trainers.training.checkpoint import Checkpoint, read_checkpoint
from trainers.training.setup import set_up
from trainers.training.work import synchronous

SETS = "tests.data.ownsets"
OWN = {
    "task": f"{SETS}:Means",
    "data": {"name": f"{SETS}:sentences", "loader_processes": 0},
    "batch": 3,
    "epochs": 2,
    "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 1e-4},
}
"""41 sentences of several lengths: 14 minibatches an epoch, 5 steps of three virtual workers; noise, padding and
dropout are drawn."""


def spec(count: int, **changes: object) -> TrainSpec:
    return TrainSpec.model_validate({**OWN, "workers": {"count": count, "virtual": 3}, **changes})


def trained(folder: Path, spec: TrainSpec, limit: int | None = None) -> Checkpoint:
    return read_checkpoint(LocalRun(spec, folder, limit=limit).train())


def assert_same(mine: Checkpoint, theirs: Checkpoint) -> None:
    assert mine.position == theirs.position
    for name, value in mine.model.items():
        assert torch.equal(value, theirs.model[name])


def test_sync_equals_serial_and_itself_on_any_number_of_workers_and_resumed_within_an_epoch(tmp_path: Path) -> None:
    whole = trained(tmp_path / "1", spec(1))
    for count in (2, 3):
        assert_same(trained(tmp_path / str(count), spec(count)), whole)
    half = LocalRun(spec(2), tmp_path / "half", limit=7).train()
    rest = trained(tmp_path / "rest", spec(3, checkpoint={"resume": str(half)}))
    for name, value in whole.model.items():
        assert torch.equal(value, rest.model[name])
    for name, value in serial(spec(1)).items():
        torch.testing.assert_close(whole.model[name], value, rtol=2e-4, atol=2e-6)


def serial(spec: TrainSpec) -> dict[str, torch.Tensor]:
    """Plain PyTorch, on the minibatches of the same dataset."""
    setup, task = set_up(spec, None), Means()
    model = build_task_model(setup.task, spec.model, spec.seed)
    draws = replace_dropout(model, spec.seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    for work in synchronous(setup.dataset, setup.order, range(3), spec.epochs):
        batches = [m.batch for m in work.minibatches if m.batch is not None]
        optimizer.zero_grad()
        for batch in batches:
            draws.set(batch.epoch, batch.examples)
            (task.loss(model, batch.data).total / sum(map(len, batches))).backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "downpour", "ps": 2},
        {"algorithm": {"name": "mixed", "group": 3}, "ps": 1, "workers": {"count": 3}},
        {"algorithm": {"name": "sync", "form": "parameter_server"}, "ps": 1},
        {"algorithm": "admm"},
    ],
    ids=["downpour", "mixed", "shards", "admm"],
)
def test_every_example_is_trained_once_an_epoch(changes: dict, tmp_path: Path) -> None:
    run = LocalRun(spec(3, **changes), tmp_path / "run")
    run.train()
    if run.spec.algorithm.traits.is_synchronous:
        assert run.snapshots[-1][2].examples == 2 * 41
    else:
        assert [run.dispatcher.audit(epoch).trained for epoch in (0, 1)] == [41, 41]


def test_evaluation_takes_minibatches_that_are_no_tensors() -> None:
    setup = set_up(spec(1), None)
    with setup.replica.evaluating(setup.replica.initial_params(), {}) as model:
        found = [setup.task.metrics(model, batch.data)["loss"].weight for batch in setup.dataset.test_batches(4)]
    assert found == [4, 4, 1]
