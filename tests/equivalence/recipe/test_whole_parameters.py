"""Optimizers that update parameters as wholes: the same bits on any number of workers and shards, and the formula's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.equivalence.harness import (
    Outcome,
    Run,
    digits_spec,
    run_all_reduce,
    run_through_shards,
    serial,
    step_batches,
)
from tests.local_runs import LocalRun
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "lars": {"name": "lars", "lr": 0.3, "trust": 0.02, "weight_decay": 0.01, "epsilon": 0.001},
    "lars, all adapted": {"name": "lars", "lr": 0.3, "trust": 0.02, "no_decay": [], "epsilon": 0.001},
    "lamb": {
        "name": "lamb",
        "lr": 0.01,
        "epsilon": 0.001,
        "groups": [{"match": "*1.weight", "lr": 0.02, "betas": [0.5, 0.9]}],
    },
    "muon": {"name": "muon", "adamw_lr": 0.002, "epsilon": 0.001, "weight_decay": 0.01},
    "NAdam": {"name": "torch.optim:NAdam", "weight_decay": 0.01, "kwargs": {"eps": 0.001, "foreach": False}},
    "Adafactor": {"name": "torch.optim:Adafactor", "lr": 0.01, "no_decay": []},
}
"""With a tiny epsilon the gradient of a bias before batch norm, which is rounding errors only, would count."""
EACH = pytest.mark.parametrize("optimizer", OPTIMIZERS)


def spec(virtual: int, count: int, optimizer: str, **more: object) -> TrainSpec:
    fields = {"workers": {"count": count, "virtual": virtual}, "optimizer": OPTIMIZERS[optimizer], "epochs": 1}
    return digits_spec({"algorithm": "sync", "data": {"name": "digits", "limit": 63}, **fields, **more})


def same(run: Run, found: Outcome, expected: dict[str, torch.Tensor]) -> bool:
    named = run.layout.named(found.params)
    return all(torch.equal(named[name], value) for name, value in expected.items())


@EACH
def test_sync_has_the_same_bits_on_any_number_of_workers_and_through_shards(optimizer: str) -> None:
    one = Run(spec(3, 1, optimizer))
    expected = one.layout.named(run_all_reduce(one).params)
    for count in (2, 3):
        run = Run(spec(3, count, optimizer))
        assert same(run, run_all_reduce(run), expected)
        through = Run(spec(3, count, optimizer, algorithm={"name": "sync", "form": "parameter_server"}, ps=count))
        assert same(through, run_through_shards(through, seed=count), expected)


@EACH
def test_a_serial_run_is_the_formula(optimizer: str) -> None:
    run = Run(spec(2, 2, optimizer))
    found, expected = run_all_reduce(run).params, serial(run, step_batches(run), "sum")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@EACH
def test_one_asynchronous_worker_is_a_serial_run(optimizer: str) -> None:
    run = Run(spec(1, 1, optimizer, algorithm={"name": "downpour", "push": "layerwise", "bucket_bytes": 1}, ps=3))
    found, expected = run_through_shards(run).params, serial(run, step_batches(run), "mean")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["lars", "NAdam"])
@pytest.mark.parametrize("algorithm", ["parallel_sgd", "admm"])
def test_workers_with_steps_of_their_own_have_the_same_bits(optimizer: str, algorithm: str) -> None:
    one, *others = (Run(spec(3, count, optimizer, algorithm=algorithm)) for count in (1, 2))
    expected = one.layout.named(run_all_reduce(one).params)
    assert all(same(run, run_all_reduce(run), expected) for run in others)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [("hybrid", "use algorithm: sync"), ({"name": "sync", "reduction": "fast"}, "use reduction: canonical")],
)
def test_where_nobody_has_all_of_a_parameter_it_is_refused(algorithm: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spec(2, 2, "lars", algorithm=algorithm)


def test_torchs_own_has_the_bits_of_torch() -> None:
    run = Run(spec(2, 2, "NAdam"))
    assert torch.equal(run_all_reduce(run).params, serial(run, step_batches(run), "sum"))


@pytest.mark.parametrize("optimizer", ["lamb", "muon", "NAdam"])
def test_a_run_goes_on_with_other_workers_from_a_checkpoint(optimizer: str, tmp_path: Path) -> None:
    small = {"model": "lenet5", "data": {"name": "digits", "limit": 60}}
    whole = LocalRun(spec(3, 2, optimizer, **small), tmp_path / "whole").train()
    first = LocalRun(spec(3, 1, optimizer, **small), tmp_path / "first", limit=1).train()
    more = {"checkpoint": {"resume": str(first)}}
    again = LocalRun(spec(3, 3, optimizer, **small, **more), tmp_path / "again").train()
    found, expected = read_checkpoint(again), read_checkpoint(whole)
    assert read_checkpoint(first).position.step == 1
    for ours, theirs in [
        (found.model, expected.model),
        *((found.optimizer[name], expected.optimizer[name]) for name in expected.optimizer),
    ]:
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())
