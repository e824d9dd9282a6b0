"""`downpour` with `push: delta`: `diloco` where all wait for all, `downpour` with `num_push` where steps are plain."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.equivalence.harness import (
    RECIPES,
    Run,
    digits_spec,
    run_all_reduce,
    run_through_shards,
    serial,
    step_batches,
)
from tests.equivalence.local.local_sgd import all_works
from tests.local_runs import LocalRun
from trainers.algorithms.base import Minibatch, Work
from trainers.algorithms.diloco.config import VELOCITY
from trainers.elastic.lease_table import Lease
from trainers.links.local import LocalWorld
from trainers.parameter_server.local import LocalServer, LocalStore
from trainers.spec import TrainSpec, field_errors
from trainers.spec.advice import advice
from trainers.spec.recipe import explain
from trainers.training.checkpoint import Checkpoint, read_checkpoint
from trainers.training.work import leased

SGD = {"name": "sgd", "lr": 0.05, "weight_decay": 0.0}
ADAMW = {"name": "adamw", "lr": 0.003, "epsilon": 0.001, "weight_decay": 0.1}
NEAR = {"rtol": 2e-4, "atol": 2e-5}
PLAIN = {"name": "average", "lr": 1.0}
RULES: list[Any] = ["average", "nesterov", "polyak", "delayed_nesterov", {"name": "nesterov", "pushes": 2}]


def spec(workers: int, outer: object, steps: int = 3, optimizer: object = SGD, **more: Any) -> TrainSpec:
    own = {name: more.pop(name) for name in ("max_staleness", "server_rule") if name in more}
    algorithm = {"name": "downpour", "push": "delta", "steps": steps, "outer": outer} | own
    return digits_spec({"algorithm": algorithm, "workers": workers, "ps": 2, "optimizer": optimizer} | more)


# -- what it must equal -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_plain_steps_and_a_plain_average_are_downpour_with_num_push(workers: int) -> None:
    """In the same order of fetches and pushes, with dropout and augmentation. 30 minibatches an epoch are whole rounds,
    at which `num_fetch` counts on and a round of steps would end."""
    fields = {"data": {"name": "digits", "limit": 210, "random_crop": 1}}
    downpour = Run(spec(workers, PLAIN, algorithm={"name": "downpour", "num_push": 3, "num_fetch": 3}, **fields))
    expected, found = (run_through_shards(run, seed=5) for run in (downpour, Run(spec(workers, PLAIN, **fields))))
    assert found.staleness == expected.staleness
    assert max(found.staleness) > 1 or workers == 1
    assert found.traffic == expected.traffic
    torch.testing.assert_close(found.params, expected.params, **NEAR)
    other = run_through_shards(Run(spec(workers, "polyak", **fields)), seed=5)
    assert not torch.allclose(other.params, expected.params, **NEAR)


EVEN = {"batch": 8, "data": {"name": "digits", "limit": 128, "random_crop": 1}, "epochs": 2}
"""Each round of each of two workers has 4 minibatches of 8: divided by 64, the sums of a mean lose no bit."""
OUTER = {"lr": 0.7, "momentum": 0.9}


def in_rounds(run: Run, worker: int, steps: int) -> Iterator[Work]:
    """What a worker of `diloco` trains, in the leases of an asynchronous one."""
    num_virtual = run.order.num_virtual
    for number, work in enumerate(all_works(run)):
        minibatch = next(m for m in work.minibatches if m.virtual_rank == worker)
        assert minibatch.batch is not None
        turn, step = divmod(number % run.order.steps, steps)
        mine = Minibatch((turn * num_virtual + worker) * steps + step, worker, minibatch.batch)
        yield Work(work.epoch, (mine,), len(minibatch.batch), ends_lease=step == steps - 1)


def where_all_wait(run: Run, synchronous: Run, seed: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Parameters and outer state at the end."""
    world, steps = LocalWorld(seed), run.spec.algorithm.traits.num_push
    server = LocalServer(world, run.shards())
    stores = [LocalStore(server, worker) for worker in range(run.spec.workers.count)]

    def train(worker: int) -> None:
        algorithm = run.spec.algorithm.build(run.context(store=stores[worker]))
        for work in in_rounds(synchronous, worker, steps):
            algorithm.step(work)
        algorithm.finish()

    world.run([lambda worker=worker: train(worker) for worker in range(len(stores))])
    names = server.shards[0].state
    state = {name: torch.cat([shard.state[name] for shard in server.shards]) for name in names}
    return torch.cat([shard.params for shard in server.shards]), state


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rule", "outer"),
    [("nesterov", OUTER), ("polyak", OUTER | {"nesterov": False}), ("average", {"lr": 0.5, "momentum": 0.0})],
)
def test_where_all_wait_for_all_it_is_diloco_bit_for_bit(seed: int, rule: str, outer: dict[str, Any]) -> None:
    """Two workers with AdamW, whoever comes first."""
    synchronous = {"algorithm": {"name": "diloco", "average_every": 4, "outer": outer}, "workers": 2}
    local = Run(digits_spec(EVEN | synchronous | {"optimizer": ADAMW, "clip": {"norm": 0.5}}))
    expected = run_all_reduce(local).buffers
    assert expected is not None
    options = {"name": rule, "pushes": "workers", "lr": outer["lr"]} | ({} if rule == "average" else {"momentum": 0.9})
    run = Run(spec(2, options, 4, ADAMW, max_staleness=0, clip={"norm": 0.5}, **EVEN))
    found, state = where_all_wait(run, local, seed)
    assert torch.equal(found, expected.params)
    if rule != "average":
        assert torch.equal(state[VELOCITY], expected.state[VELOCITY])
    assert not state["outer-sum"].any()


def test_where_three_wait_for_each_other_it_is_diloco_to_tolerance() -> None:
    """Their sum depends on who comes first."""
    even = EVEN | {"data": {"name": "digits", "limit": 192}}
    local = Run(
        digits_spec(even | {"algorithm": {"name": "diloco", "average_every": 4}, "workers": 3, "optimizer": SGD})
    )
    run = Run(spec(3, {"name": "nesterov", "pushes": "workers"}, 4, max_staleness=0, **even))
    found, _ = where_all_wait(run, local, seed=2)
    torch.testing.assert_close(found, run_all_reduce(local).params, **NEAR)


@pytest.mark.parametrize("recipe", RECIPES)
def test_one_worker_and_one_round_are_serial_sgd_with_any_recipe(recipe: str) -> None:
    """Two rounds, of an epoch each: any optimizer, groups, frozen parameters, scaling, warm-up, schedule."""
    run = Run(spec(1, PLAIN, 1000, **RECIPES[recipe]))
    server = LocalServer(LocalWorld(), run.shards())
    algorithm = run.spec.algorithm.build(run.context(store=LocalStore(server, 0)))
    for work in leased(run.dataset, run.order, iter([Lease(0, 0, 28), Lease(1, 0, 28)])):
        algorithm.step(work)
    found = torch.cat([shard.params for shard in server.shards])
    torch.testing.assert_close(found, serial(run, step_batches(run), "mean"), **NEAR)


# -- what a run promises ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", RULES, ids=str)
@pytest.mark.parametrize("max_staleness", [0, None])
def test_every_example_once_whatever_the_interleaving(outer: object, max_staleness: int | None) -> None:
    plain = max_staleness is None
    fields = {} if plain else {"precision": "bfloat16", "ema": {"decay": 0.9}, "clip": {"value": 0.05}}
    fields |= {"wire": "bfloat16", "server_rule": "staleness_damped"} if outer == "average" else {}
    run = Run(spec(3, outer, optimizer=ADAMW, max_staleness=max_staleness, **fields))
    outcome = run_through_shards(run, seed=4)
    assert outcome.leases is not None
    for epoch in range(2):
        audit = outcome.leases.audit(epoch)
        assert (audit.trained, audit.lost, audit.duplicated) == (203, 0, 0)
    assert (max(outcome.staleness) > 2) == plain
    assert outcome.params.isfinite().all()


@pytest.mark.parametrize("outer", ["polyak", "delayed_nesterov", {"name": "nesterov", "pushes": 4}], ids=str)
def test_a_resumed_run_goes_on_with_the_outer_state_bit_for_bit(outer: object, tmp_path: Path) -> None:
    """One worker whose own steps keep no state; a sum of pushes is under way when the first epoch ends."""
    if outer == "delayed_nesterov":
        outer = {"name": outer, "pushes": 4, "activation": 0.1}

    def trained(name: str, epochs: int, resume: Path | None = None) -> tuple[Path, Checkpoint]:
        fields = {"epochs": epochs, "model": "mlp", "checkpoint": {"resume": None if resume is None else str(resume)}}
        kept = LocalRun(spec(1, outer, 2, **fields), tmp_path / name).train()
        return kept, read_checkpoint(kept)

    (_, whole), (half, begun) = trained("whole", 2), trained("half", 1)
    _, again = trained("again", 2, half)
    assert begun.optimizer.keys() == whole.optimizer.keys() == again.optimizer.keys() > set()
    assert all(named[name].any() for named in begun.optimizer.values() for name in named)
    for name, tensor in whole.model.items():
        assert torch.equal(again.model[name], tensor), name
    for state, named in whole.optimizer.items():
        assert all(torch.equal(again.optimizer[state][name], tensor) for name, tensor in named.items()), state


# -- its spec ---------------------------------------------------------------------------------------------------------


DELTA = {"name": "downpour", "push": "delta"}


@pytest.mark.parametrize(
    ("algorithm", "pointer", "message"),
    [
        ({"steps": 4, "push": "whole"}, "/algorithm/steps", "set push: delta"),
        ({"outer": "polyak", "push": "layerwise"}, "/algorithm/outer", "set push: delta"),
        ({"num_push": 2}, "/algorithm/push", "leave num_push and num_fetch"),
        ({"server_rule": "gap_aware"}, "/algorithm/server_rule", "use staleness_aware"),
        ({"backprop": {}}, "/algorithm/backprop", "use push: layerwise"),
        ({"outer": {"name": "delayed_nesterov", "activation": 0.6}}, "/algorithm/outer", "use 0.5 or less"),
        ({"outer": {"name": "average", "momentum": 0.9}}, "/algorithm/outer/momentum", "no such field"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(algorithm: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        TrainSpec.model_validate({"algorithm": DELTA | algorithm, "workers": 2})
    found = [(found.pointer, found.message) for found in field_errors(error.value, TrainSpec)]
    assert len(found) == 1
    assert found[0][0] == pointer
    assert message in found[0][1]


def test_left_out_it_is_the_sources_rule_and_adamw() -> None:
    train = TrainSpec.model_validate({"algorithm": DELTA})
    assert (train.optimizer.name, train.algorithm.traits.num_push) == ("adamw", 50)
    assert TrainSpec.model_validate_json(train.model_dump_json()) == train
    assert TrainSpec.model_validate({"algorithm": "downpour"}).optimizer.name == "adagrad"


def test_explain_tells_the_rule_and_the_memory() -> None:
    found = explain(spec(4, "delayed_nesterov", optimizer=ADAMW), 203).quantities
    told = "w <- w - 0.7 (d / 4); with each 4 pushes: v <- 0.9 v + their mean, w <- w - 0.7 (d / 4 + 0.9 v)"
    assert found["outer"].formula == f"d = what a push changed, start minus end; {told}"
    assert found["optimizer_state"].value == 4 * 2 * 3
    assert found["worker_memory"].value == 4 * (1 + 1 + 3 + 2)
    assert found["clip"].value == "none"
    assert "steps of its own" in found["batch"].formula
    (said,) = [said for said in advice(spec(4, "polyak", 9), 203) if said.startswith("algorithm.steps")]
    assert "give 8 or less" in said
    assert not [said for said in advice(spec(4, "polyak", 8), 203) if said.startswith("algorithm.steps")]
