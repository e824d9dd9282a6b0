"""The average of the parameters: that of torch in a serial run, with the bits of the parameters that it follows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.equivalence.harness import (
    Outcome,
    Run,
    digits_spec,
    run_all_reduce,
    serial,
    step_batches,
)
from tests.equivalence.hybrid_net import net
from tests.local_runs import LocalRun
from trainers.optim.ema import EMA
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint
from trainers.training.setup import set_up

DECAY = 0.6
FAST = {"name": "sync", "reduction": "fast"}
LOCAL = {"name": "parallel_sgd", "average_every": 1, "shuffle": "none"}
THROUGH = {"name": "sync", "form": "parameter_server"}


def spec(virtual: int, count: int, algorithm: object = "sync", **more: object) -> TrainSpec:
    small = {"data": {"name": "digits", "limit": 63}, "epochs": 1, "optimizer": {"name": "momentum", "lr": 0.1}}
    workers = {"workers": {"count": count, "virtual": virtual}, "algorithm": algorithm}
    return digits_spec(small | workers | {"ema": {"decay": DECAY}} | more)


def average(found: Outcome) -> Tensor:
    assert found.buffers is not None
    return found.buffers.state[EMA]


def torchs(run: Run, reduction: str) -> tuple[Tensor, Tensor]:
    """Parameters and average of a serial run with torch's own."""
    kept: list[AveragedModel] = []

    def after_step(model: nn.Module) -> None:
        if not kept:
            kept.append(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY)))
        kept[0].update_parameters(model)

    params = serial(run, step_batches(run), reduction, after_step=after_step)
    return params, run.layout.flatten({name: p.detach() for name, p in kept[0].module.named_parameters()})


@pytest.mark.parametrize("optimizer", [{"name": "momentum", "lr": 0.1}, {"name": "lamb", "epsilon": 0.001}])
def test_sync_has_the_average_of_torch_and_its_bits_on_any_number_of_workers(optimizer: dict[str, Any]) -> None:
    optimizer = optimizer | {"groups": [{"match": "norm.*", "frozen": True}]}
    runs = [Run(spec(3, count, optimizer=optimizer)) for count in (1, 2, 3)]
    one, *others = map(run_all_reduce, runs)
    params, expected = torchs(runs[0], "sum")
    torch.testing.assert_close(average(one), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(average(one), params, rtol=1e-4, atol=1e-5)
    for other in others:
        assert torch.equal(other.params, one.params)
        assert torch.equal(average(other), average(one))
    if optimizer["name"] == "momentum":  # which has the bits of torch
        assert torch.equal(one.params, params)
        assert torch.equal(average(one), expected)


@pytest.mark.parametrize("ps", [1, 2, 3])
@pytest.mark.parametrize(
    "algorithm",
    [THROUGH, {"name": "downpour"}, {"name": "downpour", "push": "layerwise", "bucket_bytes": 1},
     {"name": "mixed", "group": 1}],
    ids=["sync", "downpour", "layerwise", "mixed"],
)  # fmt: skip
def test_shards_keep_the_average_of_their_slices(algorithm: object, ps: int, tmp_path: Path) -> None:
    one = spec(1, 1, algorithm, ps=ps, model="lenet5")
    found = read_checkpoint(LocalRun(one, tmp_path / "run").train())
    expected = read_checkpoint(LocalRun(spec(1, 1, model="lenet5", optimizer=one.optimizer), tmp_path / "sync").train())
    for name, value in expected.optimizer[EMA].items():
        torch.testing.assert_close(found.optimizer[EMA][name], value, rtol=1e-4, atol=1e-5)
        assert not torch.equal(value, expected.model[name])


@pytest.mark.parametrize("algorithm", ["parallel_sgd", "admm"])
def test_the_average_of_workers_averages_has_the_same_bits(algorithm: str) -> None:
    one, three = (run_all_reduce(Run(spec(3, count, algorithm))) for count in (1, 3))
    assert torch.equal(average(one), average(three))
    assert not torch.equal(average(one), one.params)


@pytest.mark.parametrize("algorithm", ["hybrid", FAST, LOCAL, "admm"], ids=["hybrid", "fast", "parallel_sgd", "admm"])
def test_what_is_sync_to_tolerance_has_its_average(algorithm: object) -> None:
    plain = {"optimizer": {"name": "sgd", "lr": 0.1}}
    found, expected = (run_all_reduce(Run(spec(2, 2, name, **plain), net=net)) for name in (algorithm, "sync"))
    torch.testing.assert_close(average(found), average(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"name": "admm", "form": "consensus"}, "use form: averaging"),
        ({"name": "hybrid", "scheme": "b", "fc_batch": "per_turn"}, "use fc_batch: whole"),
    ],
)
def test_where_no_average_is_of_what_is_evaluated_it_is_refused(algorithm: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spec(2, 2, algorithm)


@pytest.mark.parametrize(
    ("algorithm", "clip"),
    [("sync", {"norm": 0.5}), (THROUGH, {"value": 0.01}), ("parallel_sgd", {"norm": 0.5}), ("admm", {"value": 0.01})],
    ids=["sync", "through shards", "parallel_sgd", "admm"],
)
def test_a_run_goes_on_with_its_average_on_other_workers(
    algorithm: object, clip: dict[str, float], tmp_path: Path
) -> None:
    """With groups, and gradients that are clipped."""
    more: dict[str, Any] = {
        "model": "lenet5",
        "data": {"name": "digits", "limit": 60},
        "clip": clip,
        "optimizer": {"name": "adamw", "groups": [{"match": "*.bias", "weight_decay": 0}]},
    }
    whole = LocalRun(spec(3, 2, algorithm, **more), tmp_path / "whole").train()
    first = LocalRun(spec(3, 1, algorithm, **more), tmp_path / "first", limit=1).train()
    assert read_checkpoint(first).position.step == 1
    again = LocalRun(spec(3, 3, algorithm, checkpoint={"resume": str(first)}, **more), tmp_path / "again").train()
    found, expected = read_checkpoint(again), read_checkpoint(whole)
    for ours, theirs in ((found.model, expected.model), (found.optimizer[EMA], expected.optimizer[EMA])):
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def test_an_average_begins_with_the_parameters_of_a_checkpoint_that_has_none(tmp_path: Path) -> None:
    more: dict[str, Any] = {"model": "lenet5", "data": {"name": "digits", "limit": 60}}
    first = LocalRun(spec(3, 1, ema=None, **more), tmp_path / "first", limit=1).train()
    assert EMA not in read_checkpoint(first).optimizer
    start, _ = set_up(spec(3, 1, checkpoint={"resume": str(first)}, **more), None).begin()
    assert torch.equal(start.buffers.state[EMA], start.buffers.params)
