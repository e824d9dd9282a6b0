"""Clipped gradients: those of torch in a serial run, the same bits on any number of workers, or refused."""

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
from tests.equivalence.hybrid_net import net
from tests.local_runs import LocalRun
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint

NORM, VALUE = {"norm": 0.05}, {"value": 0.01}
"""Of gradients whose norms are 0.5 to 3 here."""
SYNC, THROUGH = {"name": "sync"}, {"name": "sync", "form": "parameter_server"}
DOWNPOUR = {"name": "downpour", "num_push": 2, "num_fetch": 2}


def spec(clip: dict[str, float], virtual: int, count: int, algorithm: object = "sync", **more: object) -> TrainSpec:
    small = {"data": {"name": "digits", "limit": 63}, "epochs": 1, "optimizer": {"name": "momentum", "lr": 0.3}}
    workers = {"workers": {"count": count, "virtual": virtual}, "algorithm": algorithm}
    return digits_spec(small | workers | {"clip": clip} | more)


def norms(found: Outcome) -> list[float]:
    return [norm for report in found.reports for norm in report.norms]


@pytest.mark.parametrize("clip", [NORM, VALUE], ids=["norm", "value"])
@pytest.mark.parametrize(
    "optimizer", [{"name": "momentum", "lr": 0.3, "weight_decay": 0.1}, {"name": "lamb", "epsilon": 0.001}]
)
def test_sync_is_torchs_clipping_and_has_the_same_bits_on_any_number_of_workers(
    clip: dict[str, float], optimizer: dict[str, Any]
) -> None:
    optimizer = optimizer | {"groups": [{"match": "norm.*", "frozen": True}, {"match": "*.bias", "lr": 0.01}]}
    runs = [Run(spec(clip, 3, count, optimizer=optimizer)) for count in (1, 2, 3)]
    one, *others = map(run_all_reduce, runs)
    torch.testing.assert_close(one.params, serial(runs[0], step_batches(runs[0]), "sum"), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(other.params, one.params) for other in others)
    assert all(set(norms(other)) == set(norms(one)) for other in others)
    assert (min(norms(one)) > 0.05) if "norm" in clip else not norms(one)
    assert not torch.equal(one.params, run_all_reduce(Run(spec({"norm": 1e6}, 3, 1, optimizer=optimizer))).params)


def test_shards_clip_values_with_the_same_bits() -> None:
    expected, run = run_all_reduce(Run(spec(VALUE, 3, 1))), Run(spec(VALUE, 3, 2, THROUGH, ps=2))
    assert torch.equal(run_through_shards(run).params, expected.params)


@pytest.mark.parametrize("clip", [NORM, VALUE], ids=["norm", "value"])
def test_a_push_is_clipped_before_it_is_applied(clip: dict[str, float]) -> None:
    """One worker with one minibatch a push is a serial run; with two it takes both together."""
    for algorithm in ({"name": "downpour"}, {"name": "mixed", "group": 1}):
        run = Run(spec(clip, 1, 1, algorithm, ps=3))
        found = run_through_shards(run)
        torch.testing.assert_close(found.params, serial(run, step_batches(run), "mean"), rtol=1e-4, atol=1e-5)
    one, *others = (run_through_shards(Run(spec(clip, 1, 1, DOWNPOUR, ps=ps))) for ps in (1, 2, 3))
    assert all(torch.equal(other.params, one.params) and norms(other) == norms(one) for other in others)
    assert len(norms(one)) == (5 if "norm" in clip else 0)  # of 9 minibatches


@pytest.mark.parametrize("algorithm", ["parallel_sgd", "admm", {"name": "admm", "form": "consensus"}])
def test_workers_with_steps_of_their_own_clip_each_of_them(algorithm: object) -> None:
    one, three = (Run(spec(NORM, 3, count, algorithm)) for count in (1, 3))
    expected, found = run_all_reduce(one), run_all_reduce(three)
    assert torch.equal(found.params, expected.params)
    assert sorted(norms(found)) == sorted(norms(expected))
    assert len(norms(found)) == 9  # of as many minibatches


@pytest.mark.parametrize("count", [1, 2])
def test_hybrid_clips_the_gradient_of_all_its_layers_together(count: int) -> None:
    hybrid, sync = (Run(spec(NORM, 2, count, name), net=net) for name in ("hybrid", "sync"))
    found, expected = run_all_reduce(hybrid), run_all_reduce(sync)
    torch.testing.assert_close(found.params, expected.params, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norms(found), norms(expected), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (THROUGH, "use form: all_reduce"),
        ({"name": "sync", "reduction": "fast"}, "use reduction: canonical"),
        ({"name": "downpour", "push": "layerwise"}, "use push: whole"),
        ({"name": "hybrid", "scheme": "b", "fc_batch": "per_turn"}, "use fc_batch: whole"),
    ],
)
def test_where_nobody_knows_the_norm_it_is_refused(algorithm: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        spec(NORM, 2, 2, algorithm)
    assert spec(VALUE, 2, 2, algorithm).clip is not None


@pytest.mark.parametrize("clip", [{}, NORM | VALUE])
def test_it_is_one_of_norm_and_value(clip: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give either norm"):
        spec(clip, 1, 1)


def test_a_run_goes_on_with_other_workers_from_a_checkpoint(tmp_path: Path) -> None:
    small = {"model": "lenet5", "data": {"name": "digits", "limit": 60}}
    whole = LocalRun(spec(NORM, 3, 2, **small), tmp_path / "whole").train()
    first = LocalRun(spec(NORM, 3, 1, **small), tmp_path / "first", limit=1).train()
    again = LocalRun(spec(NORM, 3, 3, checkpoint={"resume": str(first)}, **small), tmp_path / "again").train()
    found, expected = read_checkpoint(again).model, read_checkpoint(whole).model
    assert all(torch.equal(found[name], value) for name, value in expected.items())
