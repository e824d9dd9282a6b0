"""`sync` equals serial SGD on the whole batch, and itself on any number of workers, bit for bit."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.equivalence.harness import (
    RECIPES,
    Run,
    digits_spec,
    run_all_reduce,
    run_through_shards,
    serial,
    step_batches,
)
from trainers.algorithms.base import Start, Work
from trainers.collectives.local import local_collectives
from trainers.links.local import LocalWorld
from trainers.optim.buffers import Buffers
from trainers.spec import TrainSpec
from trainers.training.work import synchronous


def spec(virtual: int, count: int, form: str = "all_reduce", **more: object) -> TrainSpec:
    fields = {
        "algorithm": {"name": "sync", "form": form},
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
        "data": {"name": "digits", "limit": 203, "random_crop": 1, "horizontal_flip": True},
    }
    return digits_spec(fields | more)


@pytest.fixture(autouse=True)
def three_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of SmallNet: its last layer, the one before it, and the rest."""
    monkeypatch.setattr("trainers.collectives.beside.ordered_buckets.ordered_bucket_bytes", lambda size: 1000)


@pytest.mark.parametrize("virtual", [3, 5])
def test_same_bits_on_any_number_of_workers(virtual: int) -> None:
    runs = [run_all_reduce(Run(spec(virtual, count))).params for count in range(1, virtual + 1)]
    for one, other in itertools.pairwise(runs):
        assert torch.equal(one, other)


@pytest.mark.parametrize("virtual", [3, 5])
@pytest.mark.parametrize("shards", [1, 2])
def test_parameter_server_form_equals_all_reduce_form(virtual: int, shards: int) -> None:
    expected = run_all_reduce(Run(spec(virtual, 1)))
    for count in (1, 2, virtual):
        found = run_through_shards(Run(spec(virtual, count, "parameter_server", ps=shards)), seed=count)
        assert torch.equal(found.params[: len(expected.params)], expected.params)


@pytest.mark.parametrize("virtual", [3, 5])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "rmsprop", "adagrad", "adam", "adamw"])
def test_equals_serial_sgd_on_the_whole_batch(virtual: int, optimizer: str) -> None:
    rule = {"name": optimizer, "weight_decay": 0.001}
    if optimizer in ("rmsprop", "adagrad", "adam", "adamw"):
        rule["epsilon"] = 0.001  # with a tiny one the first steps are the gradient's sign, which rounding can turn
    run = Run(spec(virtual, 2, optimizer=rule))
    found = run_all_reduce(run)
    torch.testing.assert_close(found.params, serial(run, step_batches(run), "mean"), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_with_any_recipe_it_equals_serial_sgd_and_itself_in_every_form(recipe: str) -> None:
    fields = RECIPES[recipe]
    run = Run(spec(3, 1, **fields))
    expected = run_all_reduce(run).params
    torch.testing.assert_close(expected, serial(run, step_batches(run), "mean"), rtol=2e-4, atol=2e-5)
    for count in (2, 3):
        assert torch.equal(run_all_reduce(Run(spec(3, count, **fields))).params, expected)
        through = run_through_shards(Run(spec(3, count, "parameter_server", ps=2, **fields)), seed=count).params
        assert torch.equal(through[: len(expected)], expected)
    two = Run(spec(2, 2, **fields))
    assert torch.equal(run_all_reduce(two).params, serial(two, step_batches(two), "sum"))
    assert not torch.equal(run_all_reduce(Run(spec(3, 1, **fields | {"batch": 7}))).params, expected)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "lion"])
def test_it_has_the_same_bits_on_any_number_of_workers_and_through_shards(optimizer: str) -> None:
    """The number of the update moves with the slices; batch norm and biases are exempt from the decay."""
    fields = {"optimizer": {"name": optimizer, "weight_decay": 0.1, "no_decay": ["batch_norm", "biases"]}}
    one = Run(spec(3, 1, **fields))
    expected = run_all_reduce(one).params
    for count in (2, 3):
        assert torch.equal(run_all_reduce(Run(spec(3, count, **fields))).params, expected)
        through = run_through_shards(Run(spec(3, count, "parameter_server", ps=2, **fields)), seed=count).params
        assert torch.equal(through[: len(expected)], expected)
    alone = Run(spec(1, 1, **fields))
    assert torch.equal(run_all_reduce(alone).params, serial(alone, step_batches(alone), "sum"))


def test_taken_up_in_the_middle_of_a_warm_up_it_has_the_bits_of_an_undisturbed_run() -> None:
    """Equation 10: the rate before is part of what a run goes on from."""
    run = Run(spec(3, 1, **RECIPES["linear, gradual, equation 10"]))
    works = list(synchronous(run.dataset, run.order, run.ranks(0, 1), run.spec.epochs))
    context, cut = run.context(), len(works) // 4

    def train(start: Start, works: list[Work]) -> Start:
        world = LocalWorld(0)
        (collectives,) = local_collectives(world, 1)

        def worker() -> Start:
            algorithm = run.spec.algorithm.build(replace(context, start=start, collectives=collectives))
            reports = [algorithm.step(work) for work in works]
            buffers = algorithm.gather_state()
            copy = Buffers(buffers.params.clone(), {name: s.clone() for name, s in buffers.state.items()})
            return Start(copy, start.examples + sum(r.examples for r in reports), reports[-1].learning_rate)

        (end,) = world.run([worker])
        return end

    middle = train(context.start, works[:cut])
    assert middle.learning_rate != run.spec.learning_rate(run.dataset.num_train)(middle.examples)
    assert torch.equal(train(middle, works[cut:]).buffers.params, run_all_reduce(run).params)


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_sums_leave_while_the_backward_pass_of_the_last_virtual_worker_goes_on(wire: str) -> None:
    """Of two workers the second has the subtrees (2, 4) and (4, 5): both leave, bucket by bucket, with the gradients of
    the last virtual worker."""
    run = Run(spec(5, 2, wire=wire, epochs=1))
    members = local_collectives(LocalWorld(0), 2)

    def worker(rank: int) -> list[str]:
        context, events = run.context(collectives=members[rank]), list[str]()
        algorithm = run.spec.algorithm.build(context)
        early = algorithm.early  # type: ignore[attr-defined]
        begin = early.begin

        def record(bucket: slice) -> None:
            events.append("leaves")
            begin(bucket)

        early.begin = record
        context.replica.parameters["conv.weight"].register_hook(lambda _: events.append("first layer"))
        algorithm.step(next(synchronous(run.dataset, run.order, run.ranks(rank, 2), 1)))
        return events

    last = ["leaves", "leaves", "first layer", "leaves"]
    found = members[0].group.world.run([lambda rank=rank: worker(rank) for rank in range(2)])
    assert found == [["first layer", *last], ["first layer", "first layer", *last]]


def test_one_virtual_worker_is_serial_sgd_bit_for_bit() -> None:
    run = Run(spec(1, 1))
    assert torch.equal(run_all_reduce(run).params, serial(run, step_batches(run), "sum"))


def test_two_virtual_workers_are_gradient_accumulation_bit_for_bit() -> None:
    """With two leaves the tree adds in the order in which autograd accumulates."""
    run = Run(spec(2, 2))
    assert torch.equal(run_all_reduce(run).params, serial(run, step_batches(run), "sum"))


def test_every_example_once_an_epoch_and_the_loss_falls() -> None:
    run = Run(spec(5, 3, epochs=12, data={"name": "digits", "limit": 203}))
    reports = run_all_reduce(run).reports
    assert sum(report.examples for report in reports) == 12 * run.dataset.num_train == 12 * 203
    worker = reports[: len(reports) // 3]
    assert sum(r.total.loss for r in worker[-10:]) < 0.75 * sum(r.total.loss for r in worker[:10])


def test_the_tests_above_can_fail() -> None:
    """Another seed, another learning rate: other bits."""
    base = run_all_reduce(Run(spec(3, 2))).params
    assert not torch.equal(base, run_all_reduce(Run(spec(3, 2, seed=4))).params)
    assert not torch.equal(base, run_all_reduce(Run(spec(4, 2))).params)


class Shared(nn.Module):
    """One layer used twice, one parameter never: what a backward pass that writes in place gets wrong first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.idle = nn.Linear(64, 64), nn.Linear(64, 10), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(torch.relu(self.a(x.flatten(1))))))


def test_shared_and_unused_parameters() -> None:
    def net(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Shared()

    run = Run(spec(3, 2, optimizer={"name": "momentum", "lr": 0.05}), net)
    torch.testing.assert_close(run_all_reduce(run).params, serial(run, step_batches(run), "mean"), rtol=1e-4, atol=1e-5)
