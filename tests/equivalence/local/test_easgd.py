"""`easgd` and `eamsgd`: the source's formulas written out, where they come to rest, and what a run promises."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.equivalence.harness import RECIPES, Run, digits_spec, run_through_shards, serial, step_batches
from tests.local_runs import LocalRun
from trainers.algorithms.base import Minibatch, Work
from trainers.algorithms.easgd.step import Easgd
from trainers.data.batches import Batch
from trainers.elastic.lease_table import Lease
from trainers.links.local import LocalWorld
from trainers.models.objective import Total
from trainers.parameter_server.local import LocalServer, LocalStore
from trainers.spec import TrainSpec, field_errors
from trainers.spec.recipe import explain
from trainers.training.checkpoint import read_checkpoint
from trainers.training.work import leased

SGD = {"name": "sgd", "lr": 0.05, "weight_decay": 0.0}


def spec(workers: int = 2, name: str = "easgd", tau: int = 3, optimizer: object = SGD, **more: Any) -> TrainSpec:
    own = {option: more.pop(option) for option in ("alpha", "momentum", "max_staleness") if option in more}
    return digits_spec(
        {"algorithm": {"name": name, "tau": tau} | own, "workers": workers, "ps": 2, "optimizer": optimizer} | more
    )


class Workers:
    """Workers of a run in this thread, which takes turns with them, and the shards."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.server = LocalServer(LocalWorld(), run.shards())
        stores = [LocalStore(self.server, worker) for worker in range(run.spec.workers.count)]
        self.algorithms = [run.spec.algorithm.build(run.context(store=store)) for store in stores]

    @property
    def centre(self) -> Tensor:
        return torch.cat([shard.params for shard in self.server.shards])

    def own(self, worker: int) -> Tensor:
        algorithm = self.algorithms[worker]
        assert isinstance(algorithm, Easgd)
        assert algorithm.x is not None
        return algorithm.x


LEASES = [[Lease(0, 0, 5), Lease(0, 12, 17), Lease(0, 24, 28)], [Lease(0, 6, 11), Lease(0, 18, 23)]]
TURNS = [0, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0]
"""Whose step comes next; the last period of worker 0 has two steps, since its lease ends."""


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("delta", [0.0, 0.9])
def test_it_is_the_formula_written_out(delta: float, wire: str) -> None:
    """Two workers in an order that is not even, and batch norm, dropout and augmentation."""
    own = {"momentum": delta} if delta else {}
    run = Run(spec(name="eamsgd" if delta else "easgd", alpha=0.3, wire=wire, **own))
    workers = Workers(run)
    works = [leased(run.dataset, run.order, iter(leases)) for leases in LEASES]
    replica, centre = run.replica(), run.start().buffers.params
    x, v = [centre.clone(), centre.clone()], [torch.zeros_like(centre), torch.zeros_like(centre)]
    force, t = [torch.zeros_like(centre), torch.zeros_like(centre)], [0, 0]
    for i in TURNS:
        work = next(works[i])
        workers.algorithms[i].step(work)
        gradient = torch.zeros_like(centre)
        replica.gradient(x[i] + delta * v[i] if delta else x[i], batch_of(work), gradient, mean=True)
        if delta:
            v[i] = delta * v[i] - 0.05 * gradient
            x[i] = x[i] + v[i]
        else:
            x[i] = torch.add(x[i], gradient, alpha=-0.05)
        x[i], force[i], t[i] = x[i] - force[i], torch.zeros_like(centre), t[i] + 1
        if t[i] % 3 == 0 or work.ends_lease:
            force[i], t[i] = 0.3 * (x[i] - centre), 0
            if wire == "bfloat16":
                force[i] = force[i].bfloat16().float()
            centre = centre + force[i]
    for found, written in ((workers.centre, centre), (workers.own(0), x[0]), (workers.own(1), x[1])):
        if not delta:
            assert torch.equal(found, written)
        torch.testing.assert_close(found, written, rtol=1e-4, atol=1e-5 if wire == "float32" else 1e-3)
    assert not torch.allclose(workers.own(0), workers.own(1))


def batch_of(work: Work) -> Batch:
    (minibatch,) = work.minibatches
    assert minibatch.batch is not None
    return minibatch.batch


@pytest.mark.parametrize("name", ["easgd", "eamsgd"])
def test_on_quadratics_the_centre_comes_to_rest_at_the_mean_of_the_optima(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker i has h / 2 |x - b_i|^2, and they take turns. At rest their forces e_i cancel, so the mean of the x_i is
    that of the b_i, and so is the mean of the centres that they meet; v = e_i, from which x_i follows."""
    h, rate, alpha = 2.0, 0.05, 0.2
    run = Run(spec(3, name, tau=1, alpha=alpha, **({"momentum": 0.5} if name == "eamsgd" else {})))
    workers = Workers(run)
    optima = torch.randn(3, run.layout.numel, generator=torch.Generator().manual_seed(1))
    for i, algorithm in enumerate(workers.algorithms):
        assert isinstance(algorithm, Easgd)

        def compute(x: Tensor, _: Minibatch, i: int = i, gradient: Tensor = algorithm.one.gradient) -> Total:
            gradient.copy_(x - optima[i]).mul_(h)
            return Total()

        monkeypatch.setattr(algorithm.one, "compute", compute)
    works = endless(run)
    for _ in range(400):
        met = list[Tensor]()
        for algorithm in workers.algorithms:
            algorithm.step(next(works))
            met.append(workers.centre)
    torch.testing.assert_close(torch.stack(met).mean(0), optima.mean(0), rtol=0, atol=1e-3)
    for i, algorithm in enumerate(workers.algorithms):
        assert isinstance(algorithm, Easgd)
        e, delta = algorithm.force, algorithm.delta
        assert e is not None
        rest = optima[i] - delta * e - (1 - delta) * e / (rate * h)
        torch.testing.assert_close(workers.own(i), rest, rtol=0, atol=1e-3)


def endless(run: Run) -> Iterator[Work]:
    """Works whose examples nobody looks at."""
    (batch,) = run.dataset.batches([(0, run.order.examples(0, 0))])
    for index in count():
        yield Work(0, (Minibatch(index, 0, batch),), len(batch))


@pytest.mark.parametrize("recipe", RECIPES)
def test_between_two_pulls_a_worker_is_serial_sgd_with_any_recipe(recipe: str) -> None:
    """With a force too weak to move a float: any optimizer, groups, frozen parameters, scaling, warm-up, schedule."""
    run = Run(spec(1, tau=4, alpha=1e-30, **{"clip": {"norm": 0.5}} | RECIPES[recipe]))
    workers = Workers(run)
    for work in leased(run.dataset, run.order, iter([Lease(0, 0, 28), Lease(1, 0, 28)])):
        workers.algorithms[0].step(work)
    torch.testing.assert_close(workers.own(0), serial(run, step_batches(run), "mean"), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "tau", "max_staleness"), [("easgd", 1, 0), ("eamsgd", 4, None), ("easgd", 3, 1)])
def test_every_example_once_whatever_the_interleaving(
    seed: int, name: str, tau: int, max_staleness: int | None
) -> None:
    fields = {"precision": "bfloat16", "ema": {"decay": 0.9}, "clip": {"value": 0.05}} if tau == 3 else {}
    run = Run(spec(3, name, tau, max_staleness=max_staleness, **fields))
    outcome = run_through_shards(run, seed, lease_size=2 * tau)
    assert outcome.leases is not None
    for epoch in range(2):
        audit = outcome.leases.audit(epoch)
        assert (audit.trained, audit.lost, audit.duplicated) == (203, 0, 0)
    assert outcome.params.isfinite().all()
    assert not torch.equal(outcome.params, run.start().buffers.params)


def test_a_resumed_run_goes_on_from_the_centre_which_is_all_that_is_kept(tmp_path: Path) -> None:
    small = {"model": "mlp", "epochs": 1}
    first = LocalRun(spec(2, optimizer={"name": "adamw", "lr": 0.003}, **small), tmp_path / "first").train()
    found = read_checkpoint(first)
    assert not found.optimizer
    again = spec(
        3, optimizer={"name": "adamw", "lr": 0.003}, **small | {"epochs": 2}, checkpoint={"resume": str(first)}
    )
    run = LocalRun(again, tmp_path / "again")
    layout = run.setups[0].layout
    assert torch.equal(torch.cat([shard.params for shard in run.server.shards]), layout.flatten(found.model))
    last = read_checkpoint(run.train())
    assert (last.position.epoch, last.position.examples, run.trained) == (2, 2 * 203, {1: 203})


# -- its spec ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "pointer", "message"),
    [
        ({"algorithm": {"name": "easgd", "momentum": 0.9}}, "/algorithm/momentum", "take algorithm: eamsgd"),
        ({"algorithm": {"name": "easgd", "alpha": 1.0}}, "/algorithm/alpha", "less than 1"),
        ({"algorithm": {"name": "eamsgd", "tau": 0}}, "/algorithm/tau", "must be at least 1"),
        ({"algorithm": "easgd", "precision": "float16"}, "/precision", "which only sync does"),
        ({"algorithm": "easgd", "elastic": {"mode": "scale_batch"}}, "/elastic", "algorithm: sync"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        TrainSpec.model_validate(fields)
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == pointer
    assert message in found.message


def test_explain_tells_the_formula_and_the_memory() -> None:
    found = explain(spec(3, "eamsgd", optimizer={"name": "adamw"}), 203).quantities
    told = "v <- 0.99 v - rate g(x + 0.99 v), x <- x + v; every 3 steps e = 0.3 (x - centre), x <- x - e, centre <- "
    assert found["elastic"].formula.startswith(told)
    assert "outer" not in found
    assert found["worker_memory"].value == 4 * (1 + 1 + 3 + 4)
    assert (found["optimizer_state"].value, "2 shards together" in found["optimizer_state"].formula) == (0, True)
    assert TrainSpec.model_validate({"algorithm": "eamsgd"}).optimizer.name == "sgd"
