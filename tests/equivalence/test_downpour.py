"""`downpour` equals serial SGD bit for bit with one worker, and keeps its promises with several."""

from collections.abc import Iterator

import pytest
import torch

from tests.equivalence.harness import RECIPES, Run, run_through_shards, serial, step_batches
from trainers.data.batches import Batch
from trainers.spec import TrainSpec


def spec(count: int = 1, shards: int = 2, algorithm: dict | None = None, **more: object) -> TrainSpec:
    fields = {
        "algorithm": {"name": "downpour", "max_staleness": 0} | (algorithm or {}),
        "workers": count,
        "ps": shards,
        "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001},
        "data": {"name": "digits", "limit": 203, "random_crop": 1},
        "batch": 7,
        "epochs": 2,
        "seed": 3,
    }
    return TrainSpec.model_validate(fields | more)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "rmsprop", "adagrad"])
@pytest.mark.parametrize("placement", ["balanced", "round_robin"])
def test_one_worker_is_serial_sgd_bit_for_bit(optimizer: str, placement: str) -> None:
    rule = {"name": optimizer, "weight_decay": 0.001, "lr": 0.01}
    run = Run(spec(optimizer=rule, ps={"shards": 2, "placement": placement}, schedule="cosine"))
    assert torch.equal(run_through_shards(run).params, serial(run, step_batches(run), "mean"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_worker_is_serial_sgd_bit_for_bit_with_any_recipe(recipe: str) -> None:
    run = Run(spec(**RECIPES[recipe]))
    assert torch.equal(run_through_shards(run).params, serial(run, step_batches(run), "mean"))


def test_one_worker_with_num_push_and_num_fetch_is_dean_et_al_written_out() -> None:
    """num_push = num_fetch = 3: local SGD steps between fetches, one server step with the accrued gradients."""
    algorithm = {"num_push": 3, "num_fetch": 3, "max_staleness": 2}
    run = Run(spec(algorithm=algorithm, optimizer={"name": "sgd", "lr": 0.02}))
    found = run_through_shards(run, lease_size=6).params
    replica, server = run.replica(), run.start().whole.params
    minibatches: Iterator[list[Batch]] = step_batches(run)
    per_epoch = run.order.minibatches
    local, accrued, since = server.clone(), torch.zeros_like(server), 0
    clock = 0
    for number, (batch,) in enumerate(minibatches):
        if clock % 3 == 0:
            local = server.clone()
        gradient = torch.zeros_like(server)
        replica.gradient(local, batch, gradient, scale=1 / len(batch))
        accrued, since, clock = accrued + gradient, since + 1, clock + 1
        local = torch.add(local, gradient, alpha=-0.02)
        if since == 3 or (number + 1) % per_epoch == 0:
            server = torch.add(server, accrued, alpha=-0.02)
            accrued, since = torch.zeros_like(server), 0
    assert torch.equal(found, server)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("num_push", "num_fetch", "max_staleness"), [(1, 1, 0), (1, 1, 1), (2, 1, 3), (3, 2, None)])
def test_every_example_once_whatever_the_interleaving(
    seed: int, num_push: int, num_fetch: int, max_staleness: int | None
) -> None:
    algorithm = {"num_push": num_push, "num_fetch": num_fetch, "max_staleness": max_staleness}
    run = Run(spec(3, algorithm=algorithm))
    outcome = run_through_shards(run, seed=seed)
    assert sum(report.examples for report in outcome.reports) == 2 * 203
    assert sum(outcome.staleness.values()) >= 2 * run.order.minibatches / num_push


def test_staleness_is_bounded_as_asked() -> None:
    """With s = 0 workers move in lockstep: of three pushes a round the last was computed two updates ago."""
    lockstep = run_through_shards(Run(spec(3, data={"name": "digits", "limit": 210})), seed=1)
    assert set(lockstep.staleness) <= {0, 1, 2}
    free = run_through_shards(Run(spec(3, algorithm={"max_staleness": None})), seed=1)
    assert max(free.staleness) > 2


def test_the_interleaving_is_the_seeds() -> None:
    run = Run(spec(3, algorithm={"max_staleness": None}))
    one, same, other = (run_through_shards(run, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(one.params, same.params)
    assert one.staleness == same.staleness
    assert not torch.equal(one.params, other.params)
