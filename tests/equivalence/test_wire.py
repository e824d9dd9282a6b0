"""Gradients that travel as bfloat16: the bits of a program that rounds each once, and half the bytes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import Run, digits_spec, run_all_reduce, run_through_shards, step_batches
from tests.equivalence.optimizers import torch_optimizer
from tests.local_runs import LocalRun
from trainers import explain
from trainers.data.batches import Batch
from trainers.links.encoding import round_to
from trainers.models.dropout import replace_dropout
from trainers.spec import TrainSpec
from trainers.training.checkpoint import Checkpoint, read_checkpoint

SHARDS = {"name": "sync", "form": "parameter_server"}
DOWNPOUR = {"name": "downpour", "max_staleness": 0}


def run_of(algorithm: object = "sync", workers: object = 1, **more: object) -> Run:
    fields = {
        "wire": "bfloat16",
        "algorithm": algorithm,
        "workers": workers,
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
    }
    return Run(digits_spec(fields | more))


def trained(run: Run) -> Tensor:
    through = run.spec.algorithm.traits.uses_parameter_server
    return (run_through_shards if through else run_all_reduce)(run).params[: run.layout.numel]


def rounded(gradient: Tensor) -> Tensor:
    return gradient.bfloat16().float()


def serial(run: Run, batches: Iterator[list[Batch]], is_mean: bool = False, again: bool = False) -> Tensor:
    """Plain PyTorch: the gradient of each minibatch of a step is rounded, and these are added from left to right, which
    is the tree over three, in float32, and divided once.

    is_mean: it is the gradient of the mean that is rounded. again: the result is rounded too.
    """
    model = run.model().to(memory_format=torch.channels_last if run.layout.channels_last else torch.contiguous_format)
    draws, optimizer = replace_dropout(model, run.spec.seed), torch_optimizer(run.spec, model)
    for step in batches:
        sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for batch in step:
            draws.set(batch.epoch, batch.examples)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch.images), batch.labels, reduction="sum")
            (loss / len(batch) if is_mean else loss).backward()
            for total, parameter in zip(sums, model.parameters(), strict=True):
                total.add_(rounded(parameter.grad))
        for total, parameter in zip(sums, model.parameters(), strict=True):
            mean = total if is_mean else total / sum(map(len, step))
            parameter.grad = rounded(mean) if again else mean
        optimizer.step()
    return run.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


@pytest.mark.parametrize("algorithm", ["sync", SHARDS], ids=["all_reduce", "parameter_server"])
def test_sync_is_serial_with_each_virtual_workers_gradient_rounded_on_any_number_of_workers(algorithm: object) -> None:
    runs = [run_of(algorithm, {"count": count, "virtual": 3}, ps=2) for count in (1, 2, 3)]
    expected = serial(runs[0], step_batches(runs[0]))
    for run in runs:
        assert torch.equal(trained(run), expected)
    assert not torch.equal(trained(run_of(algorithm, 3, ps=2, wire="float32")), expected)


@pytest.mark.parametrize("push", ["whole", "layerwise"])
def test_downpour_with_one_worker_is_serial_with_each_push_rounded(push: str) -> None:
    run = run_of(DOWNPOUR | {"push": push, "bucket_bytes": 1}, ps=2)
    assert torch.equal(trained(run), serial(run, step_batches(run), is_mean=True))


def test_asynchronous_back_propagation_without_a_delay_rounds_the_same_pushes() -> None:
    backprop = {"push": "layerwise", "backprop": {"groups": 3, "delay": 0}}
    fields = {"model": "mlp", "ps": 2}
    runs = [run_of(DOWNPOUR | how, **fields) for how in (backprop, {})]
    for run in runs:
        run.net = None
        run.__post_init__()
    assert torch.equal(*map(trained, runs))


def test_mixed_rounds_within_the_group_and_before_the_push() -> None:
    """As many minibatches a lease as make whole steps: 27 of 2 x 3 in each of them."""
    run = run_of({"name": "mixed", "group": 3, "max_staleness": 0}, 3, data={"name": "digits", "limit": 189}, ps=2)
    together = run_of("sync", 3, data={"name": "digits", "limit": 189})
    assert torch.equal(trained(run), serial(together, step_batches(together), again=True))


def sent(algorithm: object, workers: object, wire: str) -> int:
    run = run_of(algorithm, workers, wire=wire, ps=2)
    through = run.spec.algorithm.traits.uses_parameter_server
    return (run_through_shards if through else run_all_reduce)(run).traffic.sent_bytes


@pytest.mark.parametrize(
    ("algorithm", "workers", "share"),
    [
        (SHARDS, 2, 0.5),
        (SHARDS, {"count": 2, "virtual": 4}, 1.0),
        (SHARDS, {"count": 2, "virtual": 5}, 10 / 12),
        (DOWNPOUR, 2, 0.5),
        (DOWNPOUR | {"num_push": 3, "max_staleness": 2}, 2, 0.5),
        (SHARDS | {"backup": 1}, 3, 0.5),
    ],
)
def test_gradients_take_half_the_bytes_where_no_sum_travels(algorithm: object, workers: object, share: float) -> None:
    plain, found = (sent(algorithm, workers, wire) for wire in ("float32", "bfloat16"))
    if algorithm == SHARDS | {"backup": 1}:  # how many of the pushes are dropped depends on the seed alone
        assert abs(found / plain - share) < 0.02
    else:
        assert found == share * plain


def test_an_all_reduce_saves_half_of_what_its_gradients_take() -> None:
    """Each of two workers sends the other half of its own, and then the sum, or parameters, in float32."""
    run = run_of("sync", 2)
    plain, found = (sent("sync", 2, wire) for wire in ("float32", "bfloat16"))
    steps = run.order.steps * run.spec.epochs
    assert plain - found == (4 - 2) * run.layout.numel * steps


CROSSED = {
    "float16, clip, ema, groups": {
        "precision": "float16",
        "clip": {"norm": 0.5},
        "ema": {"decay": 0.9},
        "optimizer": {"name": "adamw", "lr": 0.01, "groups": [{"match": "fc1.bias", "frozen": True}]},
    },
    "lamb": {"optimizer": {"name": "lamb", "lr": 0.01}},
    "muon": {"optimizer": {"name": "muon", "lr": 0.01}},
    "scaled": {
        "scaling": "linear",
        "batch": {"per_worker": 5, "base": 5},
        "warmup": {"name": "gradual", "epochs": 0.5},
    },
}


@pytest.mark.parametrize("name", CROSSED)
def test_a_run_goes_on_on_other_workers_with_the_bits_of_one_that_was_not_stopped(name: str, tmp_path: Path) -> None:
    fields = {"data": {"name": "digits", "limit": 90}, "model": "mlp", "batch": 5, "epochs": 1, "wire": "bfloat16"}

    def run(folder: str, count: int, limit: int | None = None, **more: object) -> Checkpoint:
        workers = {"workers": {"count": count, "virtual": 3}}
        spec = TrainSpec.model_validate(fields | CROSSED[name] | workers | more)
        return read_checkpoint(LocalRun(spec, tmp_path / folder, limit=limit).train())

    whole, _ = run("whole", 1), run("half", 2, limit=2)
    rest = run("rest", 3, checkpoint={"resume": str(tmp_path / "half" / "checkpoint")})
    assert all(torch.equal(rest.model[key], value) for key, value in whole.model.items())
    plain = run("plain", 3, wire="float32")
    assert any(not torch.equal(plain.model[key], value) for key, value in whole.model.items())


@pytest.mark.parametrize(
    "algorithm",
    ["hybrid", "parallel_sgd", "admm", {"name": "sync", "reduction": "fast"}],
    ids=["hybrid", "parallel_sgd", "admm", "fast"],
)
def test_what_sends_something_else_is_refused(algorithm: object) -> None:
    with pytest.raises(ValueError, match="leave wire out, or take sync with reduction: canonical, downpour or mixed"):
        TrainSpec.model_validate({"wire": "bfloat16", "algorithm": algorithm})


@pytest.mark.parametrize(
    ("virtual", "told", "warns"), [(2, "4 bytes", False), (5, "10 bytes", False), (4, "8 bytes", True)]
)
def test_how_many_bytes_travel_is_told(virtual: int, told: str, warns: bool) -> None:
    spec = TrainSpec.model_validate({"wire": "bfloat16", "workers": {"count": 2, "virtual": virtual}})
    recipe = explain(spec, 1437)
    assert recipe.quantities["wire"].value == "bfloat16"
    assert told in recipe.quantities["wire"].formula
    assert any("saves no byte" in warning for warning in recipe.warnings) == warns


def test_rounding_is_to_the_nearest_and_keeps_what_is_no_number() -> None:
    vector = torch.tensor([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-7, -(2.0**-126), float("inf"), float("nan")])
    round_to(vector, "bfloat16")
    found = torch.tensor([1.0, 1.0, 1 + 2**-6, 1 + 2**-7, -(2.0**-126), float("inf"), float("nan")])
    assert torch.equal(vector.nan_to_num(7.0), found.nan_to_num(7.0))
