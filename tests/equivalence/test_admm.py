"""`admm`: averaging equals `sync` under plain SGD; consensus finds the known optimum of a convex quadratic."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.equivalence.harness import Run, digits_spec, run_all_reduce, serial, step_batches
from trainers.algorithms.admm.config import AdmmConfig
from trainers.algorithms.base import Context, Minibatch, Start, Work
from trainers.collectives.local import local_collectives
from trainers.data.batches import Batch
from trainers.data.datasets import open_dataset
from trainers.links.local import LocalWorld
from trainers.models.objective import Total
from trainers.models.registry import build_model
from trainers.optim.buffers import Buffers
from trainers.optim.optimizer import Optimizer
from trainers.spec import SgdSpec, TrainSpec, field_errors
from trainers.training.checkpoint import Checkpoint, write_checkpoint
from trainers.training.position import Position
from trainers.training.setup import set_up
from trainers.training.work import synchronous

CONSENSUS = {"name": "admm", "form": "consensus"}


def spec(virtual: int, count: int, algorithm: object = "admm", **more: object) -> TrainSpec:
    fields = {
        "algorithm": algorithm,
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "sgd", "lr": 0.05, "weight_decay": 0.001},
    }
    return digits_spec(fields | more)


@pytest.mark.parametrize("virtual", [3, 5])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov"])
def test_averaging_every_minibatch_equals_sync(virtual: int, optimizer: str) -> None:
    """203 examples: the last step of an epoch is uneven, so a mean of means would show."""
    rule = {"name": optimizer, "lr": 0.05, "weight_decay": 0.001}
    run = Run(spec(virtual, 2, optimizer=rule))
    found = run_all_reduce(run).params
    torch.testing.assert_close(found, run_all_reduce(Run(spec(virtual, 1, "sync", optimizer=rule))).params, **NEAR)
    torch.testing.assert_close(found, serial(run, step_batches(run), "mean"), **NEAR)


NEAR = {"rtol": 2e-4, "atol": 2e-5}


def test_averaging_is_not_sync_where_the_rule_is_not_linear() -> None:
    """The test above can fail: the mean of RMSProp's steps is no RMSProp step."""
    rule = {"name": "rmsprop", "lr": 0.01}
    one, other = (run_all_reduce(Run(spec(3, 2, name, optimizer=rule))).params for name in ("admm", "sync"))
    assert not torch.allclose(one, other, **NEAR)


@pytest.mark.parametrize("algorithm", ["admm", CONSENSUS | {"steps": 3}], ids=["averaging", "consensus"])
def test_same_bits_on_any_number_of_workers(algorithm: object) -> None:
    fields = {"optimizer": {"name": "momentum", "lr": 0.02}}
    runs = [run_all_reduce(Run(spec(5, count, algorithm, **fields))) for count in (1, 2, 5)]
    for one, other in itertools.pairwise(runs):
        assert torch.equal(one.params, other.params)
        assert one.buffers.state.keys() == other.buffers.state.keys()
        for name, vector in one.buffers.state.items():
            assert torch.equal(vector, other.buffers.state[name]), name


def test_consensus_learns() -> None:
    fields = {"optimizer": {"name": "momentum", "lr": 0.01}, "data": {"name": "digits", "limit": 203}}
    reports = run_all_reduce(Run(spec(3, 2, CONSENSUS | {"steps": 4}, epochs=12, **fields))).reports
    assert sum(report.examples for report in reports) == 12 * 203
    worker = reports[: len(reports) // 2]
    assert sum(r.total.loss for r in worker[-10:]) < 0.75 * sum(r.total.loss for r in worker[:10])


# -- a convex quadratic, whose optimum is known -----------------------------------------------------------------------


@dataclass
class Quadratic:
    """f_i(x) = 1/2 sum_j a_ij (x_j - c_ij)^2 in place of a model's loss: a replica whose minibatches do not matter."""

    a: Tensor  # (V, P)
    c: Tensor  # (V, P)

    @property
    def layout(self) -> Any:
        return SimpleNamespace(numel=self.a.shape[1])

    def gradient(self, params: Tensor, batch: Batch, into: Tensor, mean: bool, virtual_rank: int) -> Total:
        into.copy_(self.a[virtual_rank] * (params - self.c[virtual_rank]))
        return Total()


SHARES = (30, 10, 20)  # uneven: an unweighted mean finds another point
NUMEL = 128


def quadratic(equal: bool) -> Quadratic:
    draw = torch.Generator().manual_seed(1)
    a = torch.ones(3, NUMEL) if equal else 0.5 + torch.rand(3, NUMEL, generator=draw)
    return Quadratic(a, torch.randn(3, NUMEL, generator=draw))


def optimum(problem: Quadratic) -> Tensor:
    """The optimum of the mean over all examples, sum_i N_i f_i / N."""
    weights = torch.tensor(SHARES)[:, None] * problem.a
    return (weights * problem.c).sum(0) / weights.sum(0)


def consensus(problem: Quadratic, rho: float, steps: int, rounds: int, lr: float, count: int = 2) -> list[Tensor]:
    """z after each round."""
    config = AdmmConfig(form="consensus", rho=rho, steps=steps)
    first = Start(Buffers(torch.zeros(NUMEL), {}))
    rule = SgdSpec(lr=lr).build()
    context = Context(problem, Optimizer(rule), lambda seen: lr, 3, first, SHARES)  # type: ignore[arg-type]
    world = LocalWorld()
    groups = local_collectives(world, count)

    def worker(k: int) -> list[Tensor]:
        algorithm = config.build(replace(context, collectives=groups[k]))
        ranks, found = range(3 * k // count, 3 * (k + 1) // count), []
        batch = Batch((torch.empty(0), torch.empty(0)), 0, torch.zeros(1).numpy())  # type: ignore[arg-type]
        for step in range(steps * rounds):
            algorithm.step(Work(0, tuple(Minibatch(3 * step + rank, rank, batch) for rank in ranks), 3))
            if (step + 1) % steps == 0:
                found.append(algorithm.gather_state().params.clone())  # type: ignore[union-attr]
        return found

    return world.run([lambda k=k: worker(k) for k in range(count)])[0]


def test_consensus_with_exact_x_updates_is_boyd_et_al_written_out() -> None:
    """With curvature 1 one SGD step at rate 1/(1 + rho) is the exact argmin of f_i(x) + rho/2 ||x - z + u||^2."""
    problem, rho, rounds = quadratic(equal=True), 0.5, 40
    found = consensus(problem, rho, steps=1, rounds=rounds, lr=1 / (1 + rho))
    c, weights = problem.c.double(), torch.tensor(SHARES, dtype=torch.float64)[:, None] / sum(SHARES)
    z, u = torch.zeros(NUMEL, dtype=torch.float64), torch.zeros(3, NUMEL, dtype=torch.float64)
    for k in range(rounds):
        x = (c + rho * (z - u)) / (1 + rho)
        z = (weights * (x + u)).sum(0)
        u = u + x - z
        torch.testing.assert_close(found[k].double(), z, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[-1], optimum(problem), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found[-1], problem.c.mean(0), atol=1e-2)  # what a mean of means would have found


def test_consensus_with_enough_steps_finds_the_optimum_of_unequal_quadratics() -> None:
    problem = quadratic(equal=False)
    found = consensus(problem, rho=1.0, steps=25, rounds=60, lr=0.3)
    torch.testing.assert_close(found[-1], optimum(problem), rtol=1e-4, atol=1e-5)


def test_plain_averaging_of_as_many_steps_does_not_find_it() -> None:
    """Without dual variables and with almost no penalty each worker would run to an optimum of its own."""
    problem = quadratic(equal=False)
    found = consensus(problem, rho=1e-6, steps=50, rounds=3, lr=0.3)
    assert not torch.allclose(found[0], optimum(problem), atol=1e-2)


# -- its partitions, its state, its spec ------------------------------------------------------------------------------


def test_consensus_keeps_its_partitions() -> None:
    run = Run(spec(3, 1, CONSENSUS))

    def trained(rank: int, epoch: int) -> list[int]:
        order = run.order
        return [int(e) for s in range(order.steps) for e in order.examples(epoch, s * 3 + rank)]

    for rank in range(3):
        assert len(trained(rank, 0)) == run.order.partition_size(rank)
        assert sorted(trained(rank, 0)) == sorted(trained(rank, 5))
        assert trained(rank, 0) != trained(rank, 5)
    assert sorted(e for rank in range(3) for e in trained(rank, 4)) == list(range(203))
    assert Run(spec(3, 1)).order.examples(1, 0).tolist() != run.order.examples(1, 0).tolist()


def test_averaging_has_no_rho_and_consensus_has() -> None:
    with pytest.raises(ValidationError) as error:
        spec(2, 2, {"name": "admm", "rho": 0.5})
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == "/algorithm/rho"
    assert "set form to consensus" in found.message
    assert spec(2, 2, CONSENSUS | {"rho": 0.5, "steps": 3}).algorithm.rho == 0.5
    kept = spec(2, 2, CONSENSUS)
    assert TrainSpec.model_validate(kept.model_dump()) == kept


def works_of(run: Run, rank: int, start: tuple[int, int]) -> Iterator[Work]:
    epoch, step = start
    return synchronous(
        run.dataset, run.order, run.ranks(rank, 2), run.spec.epochs, (epoch, step * run.order.num_virtual)
    )


def some_steps(run: Run, start: Start, first: int, steps: int | None = None) -> Start:
    """So many steps on two workers, or all that are left, from step number `first` on."""
    world = LocalWorld()
    groups = local_collectives(world, 2)

    def worker(rank: int) -> tuple[Buffers | None, int]:
        algorithm = run.spec.algorithm.build(replace(run.context(collectives=groups[rank]), start=start))
        works = list(islice(works_of(run, rank, divmod(first, run.order.steps)), steps))
        for work in works:
            algorithm.step(work)
        return algorithm.gather_state(), sum(work.total_examples for work in works)

    buffers, examples = world.run([lambda rank=rank: worker(rank) for rank in range(2)])[0]
    assert buffers is not None
    return Start(buffers, start.examples + examples)


def in_two_halves(run: Run, cut: int) -> Buffers:
    """`cut` steps, then the rest by other processes that start from what the first ones left."""
    return some_steps(run, some_steps(run, run.start(), 0, cut), cut).buffers


@pytest.mark.parametrize("algorithm", ["admm", CONSENSUS | {"steps": 4}], ids=["averaging", "consensus"])
def test_a_run_goes_on_from_x_z_and_u_bit_for_bit(algorithm: object) -> None:
    """Cut in the middle of an x-update, within the second epoch."""
    run = Run(spec(3, 2, algorithm, optimizer={"name": "momentum", "lr": 0.02}, schedule="cosine"))
    cut = run.order.steps + 2
    assert torch.equal(in_two_halves(run, cut).params, run_all_reduce(run).params)


def test_a_checkpoint_keeps_x_and_u_and_any_algorithm_goes_on_from_z(tmp_path: Path) -> None:
    train = spec(3, 2, CONSENSUS, model="mlp", optimizer={"name": "momentum", "lr": 0.02}, epochs=1)
    data = open_dataset(train.data, train.seed, None)
    run = Run(train, lambda seed: build_model(train.model, data.facts.classes, data.facts.inputs, seed))
    buffers = run_all_reduce(run).buffers
    assert buffers is not None
    private = [f"{name}-{rank}" for name in ("x", "u", "momentum") for rank in range(3)]
    assert set(buffers.state) == {"momentum", *private}
    mean = torch.stack([buffers.state[f"momentum-{rank}"] for rank in range(3)]).mean(0)
    assert torch.equal(buffers.state["momentum"], mean)
    named = {name: run.layout.named(vector) for name, vector in buffers.state.items()}
    position = Position(epoch=1, examples=203)
    write_checkpoint(
        tmp_path / "kept", Checkpoint(position, train.model_dump(mode="json"), run.layout.named(buffers.params), named)
    )

    def begun(**changed: object) -> Buffers:
        fields = train.model_dump() | {"epochs": 2, "checkpoint": {"resume": str(tmp_path / "kept")}} | changed
        return set_up(TrainSpec.model_validate(fields), None).begin()[0].buffers

    same = begun()
    assert torch.equal(same.params, buffers.params)
    for name, vector in buffers.state.items():
        assert torch.equal(same.state[name], vector), name
    for changed in ({"algorithm": "sync"}, {"algorithm": "admm"}, {"seed": 4}, {"workers": 2}):
        other = begun(**changed)
        assert torch.equal(other.params, buffers.params)
        assert set(other.state) == {"momentum"}
        assert torch.equal(other.state["momentum"], mean)


def test_between_two_updates_the_model_is_what_z_would_become() -> None:
    """So a run that ends there has all that it has trained in its model. z itself lies beside it, to go on from."""
    run = Run(spec(3, 2, CONSENSUS | {"steps": 2}))
    at_update, later = (some_steps(run, run.start(), 0, steps).buffers for steps in (2, 3))
    assert torch.equal(later.state["consensus-z"], at_update.params)
    assert "consensus-z" not in at_update.state
    sizes = run.order.partition_sizes
    weighed = [size * (later.state[f"x-{rank}"] + later.state[f"u-{rank}"]) for rank, size in enumerate(sizes)]
    torch.testing.assert_close(later.params, sum(weighed) / sum(sizes))
    assert (later.params - at_update.params).abs().max() > 1e-4
