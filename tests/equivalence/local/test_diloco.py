"""`diloco`: `parallel_sgd` where its outer step is none, `sync` where a round is a step, else the formula."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests.equivalence.harness import Run, digits_spec, run_all_reduce
from tests.equivalence.local.local_sgd import Meet, averaged, in_parts, mean_into, same
from tests.local_runs import LocalRun
from trainers.collectives.local import local_collectives
from trainers.links.local import LocalWorld
from trainers.spec import TrainSpec, field_errors
from trainers.spec.advice import advice
from trainers.spec.recipe import explain
from trainers.training.checkpoint import read_checkpoint
from trainers.training.setup import set_up

NEAR = {"rtol": 2e-4, "atol": 2e-5}
MEAN = {"lr": 1.0, "momentum": 0.0}
SGD = {"name": "sgd", "lr": 0.05, "weight_decay": 0.001}
ADAMW = {"name": "adamw", "lr": 0.003, "epsilon": 0.001, "weight_decay": 0.1}
"""With a tiny epsilon the gradient of a bias before batch norm, which is rounding errors only, would count."""


def spec(count: int, optimizer: object = SGD, every: int = 4, outer: object = None, **more: object) -> TrainSpec:
    algorithm = {"name": "diloco", "average_every": every, "outer": outer or {}}
    fields = {"algorithm": algorithm, "workers": {"count": count, "virtual": 3}, "optimizer": optimizer}
    return digits_spec(fields | more)


# -- what it must equal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [SGD, SGD | {"name": "momentum"}], ids=["sgd", "momentum"])
def test_an_outer_step_that_is_none_leaves_parallel_sgd_bit_for_bit(optimizer: dict[str, Any]) -> None:
    """On the same examples, with batch norm, dropout and uneven last steps. Only where the rule keeps no state, which
    `parallel_sgd` averages and `diloco` leaves with its worker."""
    local = {"name": "parallel_sgd", "average_every": 4, "shuffle": "none"}
    parallel = Run(spec(2, optimizer, algorithm=local))
    run = Run(spec(2, optimizer, outer=MEAN))
    run.order = parallel.examples(0, local_collectives(LocalWorld(), 1)[0])[1]
    equal = torch.equal(run_all_reduce(run).params, run_all_reduce(parallel).params)
    assert equal == (optimizer["name"] == "sgd")


@pytest.mark.parametrize(
    ("outer", "rule"),
    [
        (MEAN, SGD),
        ({}, SGD | {"name": "nesterov", "lr": 0.7 * 0.05, "momentum": 0.9}),
        ({"lr": 0.5, "nesterov": False}, SGD | {"name": "momentum", "lr": 0.5 * 0.05, "momentum": 0.9}),
    ],
    ids=["sgd", "nesterov", "momentum"],
)
def test_a_round_of_one_step_of_sgd_is_sync_with_the_outer_rule(outer: dict[str, Any], rule: dict[str, Any]) -> None:
    """203 examples: the last step of an epoch is uneven, so a mean of means would show."""
    sync = digits_spec({"algorithm": "sync", "workers": {"count": 2, "virtual": 3}, "optimizer": rule})
    found = run_all_reduce(Run(spec(2, SGD, 1, outer))).params
    torch.testing.assert_close(found, run_all_reduce(Run(sync)).params, **NEAR)


def outer_of_torch(run: Run) -> Meet:
    """`torch.optim.SGD` on the parameters that a round began with, whose gradient is start minus mean."""
    outer, start = run.spec.algorithm.outer, run.net(run.spec.seed)
    optimizer = torch.optim.SGD(start.parameters(), lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov)

    def meet(models: list[nn.Module], _: list[torch.optim.Optimizer], shares: list[float]) -> None:
        for mine, *theirs in zip(start.parameters(), *(m.parameters() for m in models), strict=True):
            mean_into([p.detach() for p in theirs], shares)
            mine.grad = mine.detach() - theirs[0].detach()
        optimizer.step()
        for model in models:
            for mine, theirs in zip(start.parameters(), model.parameters(), strict=True):
                theirs.detach().copy_(mine.detach())

    return meet


def test_it_is_algorithm_1_written_out() -> None:
    """AdamW within, whose state stays with each worker; ten steps an epoch in rounds of 4, 4 and 2, of which the last
    is uneven; batch norm, dropout, augmentation; each worker's gradient clipped; a rate that moves."""
    run = Run(spec(2, ADAMW, clip={"norm": 0.5}, schedule="cosine"))
    found = run_all_reduce(run).params
    torch.testing.assert_close(found, averaged(run, 4, meet=outer_of_torch(run)), **NEAR)
    assert not torch.allclose(found, averaged(run, 4), **NEAR)


# -- the same bits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer",
    [
        ADAMW | {"groups": [{"match": "norm.*", "frozen": True}, {"match": "*.bias", "lr": 0.01}]},
        {"name": "muon", "adamw_lr": 0.002, "epsilon": 0.001},
        {"name": "torch.optim:NAdam", "kwargs": {"eps": 0.001, "foreach": False}},
    ],
    ids=lambda optimizer: optimizer["name"],
)
def test_the_same_bits_on_any_number_of_workers(optimizer: dict[str, Any]) -> None:
    small = {"data": {"name": "digits", "limit": 63}, "clip": {"norm": 0.5}, "warmup": {"name": "linear", "epochs": 1}}
    one, *others = (run_all_reduce(Run(spec(count, optimizer, 2, **small))).buffers for count in (1, 2, 3))
    assert all(same(one, other) for other in others)


def test_a_run_goes_on_bit_for_bit_on_other_workers() -> None:
    """Cut within a round, again just before the last step of an epoch, and at its end."""
    run = Run(spec(2, ADAMW, schedule="cosine", epochs=3, batch=8))
    steps = run.order.steps
    assert steps == 9
    expected = run_all_reduce(run).buffers
    assert same(in_parts(run, [steps + 2, 2 * steps - 1, 2 * steps], [2, 3, 1, 2]), expected)


def test_another_algorithm_goes_on_within_a_round(tmp_path: Path) -> None:
    """With what an outer step would make of the parameters, and the mean of the workers' optimizer states."""
    small = {"model": "mlp", "data": {"name": "digits", "limit": 101}}
    first = LocalRun(spec(2, ADAMW, **small), tmp_path / "first", limit=2).train()
    found = read_checkpoint(first)
    begun = set_up(spec(3, ADAMW, algorithm="sync", checkpoint={"resume": str(first)}, **small), None)
    buffers = begun.begin()[0].buffers
    begun.dataset.close()
    assert sorted(buffers.state) == ["exp_avg", "exp_avg_sq", "step"]
    for name, value in begun.layout.named(buffers.state["exp_avg"]).items():
        own = torch.stack([found.optimizer[f"exp_avg-{rank}"][name] for rank in range(3)])
        assert torch.equal(value, own.mean(0))
        assert not torch.equal(own[0], own[1])


# -- its spec ---------------------------------------------------------------------------------------------------------


def test_the_optimizer_that_is_left_out_is_adamw() -> None:
    train = TrainSpec.model_validate({"algorithm": "diloco"})
    assert (train.optimizer.name, train.algorithm.outer.lr, train.algorithm.outer.momentum) == ("adamw", 0.7, 0.9)
    assert TrainSpec.model_validate_json(train.model_dump_json()) == train
    assert train.update_batch == train.batch.per_worker


@pytest.mark.parametrize(
    ("fields", "pointer", "message"),
    [
        ({"algorithm": {"name": "diloco", "average_every": 0}}, "/algorithm/average_every", "must be at least 1"),
        ({"algorithm": {"name": "diloco", "outer": {"momentum": 1.0}}}, "/algorithm/outer/momentum", "less than 1"),
        ({"ema": {"decay": 0.9}}, "/ema", "diloco evaluates the outer parameters"),
        ({"precision": "float16"}, "/precision", "which only sync does"),
        ({"elastic": {"mode": "scale_batch"}}, "/elastic", "algorithm: sync"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        TrainSpec.model_validate({"algorithm": "diloco"} | fields)
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == pointer
    assert message in found.message


def test_explain_tells_the_outer_step_and_the_memory_of_the_replicas() -> None:
    found = explain(spec(2, ADAMW), 203).quantities
    told = "d = mean of what the workers changed, start minus end; v <- 0.9 v + d; w <- w - 0.7 (d + 0.9 v)"
    assert found["outer"].formula == f"{told}, every 4 steps and at the end of an epoch"
    assert found["worker_memory"].value == 4 * (1 + 2 + 2 * (1 + 3))  # a worker has two of the three
    assert "2 virtual workers, gradient, and 2 more vectors" in found["worker_memory"].formula
    assert "outer" not in explain(spec(2, algorithm="sync"), 203).quantities
    (said,) = [said for said in advice(spec(2, every=11), 203) if said.startswith("algorithm.average_every")]
    assert "10 steps" in said
    assert not [said for said in advice(spec(2, every=10), 203) if said.startswith("algorithm.average_every")]
