"""`sync` with `reduction: fast` equals the canonical one to float tolerance, and has the same bits on all workers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from tests.equivalence.harness import RECIPES, Run, digits_spec, run_all_reduce, serial, step_batches, total
from tests.local_runs import LocalRun
from trainers.algorithms.base import Start, StepReport, Work
from trainers.collectives.bucketed import MessageBucketReducer
from trainers.collectives.local import local_collectives
from trainers.links.local import LocalWorld
from trainers.metrics import StepCounters
from trainers.optim.buffers import Buffers
from trainers.spec import TrainSpec, field_errors
from trainers.training.checkpoint import read_checkpoint
from trainers.training.work import synchronous

NEAR = {"rtol": 2e-4, "atol": 2e-5}
BUCKET_BYTES = 1000
"""Three buckets of SmallNet: its last layer, the one before it, and the rest."""

ALGORITHMS = ["auto", "ring", "binary_blocks", "three_phase", "library"]


def spec(virtual: int, count: int, algorithm: dict[str, Any] | None = None, **more: object) -> TrainSpec:
    fields = {
        "algorithm": {"name": "sync", "reduction": "fast", "bucket_bytes": BUCKET_BYTES} | (algorithm or {}),
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
        "data": {"name": "digits", "limit": 101, "random_crop": 1, "horizontal_flip": True},
    }
    return digits_spec(fields | more)


def canonical(train: TrainSpec) -> Buffers:
    run = Run(TrainSpec.model_validate(train.model_dump() | {"algorithm": "sync"}))
    buffers = run_all_reduce(run).buffers
    assert buffers is not None
    return buffers


def copied(version: Buffers) -> Buffers:
    return Buffers(version.params.clone(), {name: state.clone() for name, state in version.state.items()})


def everyones(
    run: Run, start: Start | None = None, works: slice = slice(None), seed: int = 0
) -> tuple[list[Buffers], list[StepReport], StepCounters]:
    """The state of each worker in the end; all workers' parameters are compared, not only those of rank 0."""
    size = run.spec.workers.count
    world = LocalWorld(seed)
    members = local_collectives(world, size)

    def worker(rank: int) -> tuple[Buffers, list[StepReport]]:
        context = run.context(collectives=members[rank])
        algorithm = run.spec.algorithm.build(replace(context, start=start or context.start))
        mine: list[Work] = list(synchronous(run.dataset, run.order, run.ranks(rank, size), run.spec.epochs))
        reports = [algorithm.step(work) for work in mine[works]]
        buffers = algorithm.gather_state()
        assert buffers is not None
        algorithm.finish()
        return copied(buffers), reports

    found = world.run([lambda rank=rank: worker(rank) for rank in range(size)])
    return [buffers for buffers, _ in found], [r for _, reports in found for r in reports], total(members)


def assert_alike(found: list[Buffers], expected: Buffers) -> None:
    for buffers in found:
        torch.testing.assert_close(buffers.params, expected.params, **NEAR)
        assert torch.equal(buffers.params, found[0].params)
        for name, state in expected.state.items():
            torch.testing.assert_close(buffers.state[name], state, **NEAR)
            assert torch.equal(buffers.state[name], found[0].state[name])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("virtual", "count"), [(2, 2), (5, 3)])
def test_every_algorithm_equals_the_canonical_reduction(virtual: int, count: int, algorithm: str) -> None:
    """Batch norm, dropout, augmentation; several virtual ranks a worker; an epoch that ends unevenly, 101 = 14 x 7 + 3
    examples, so that in its last step some virtual ranks have none."""
    train = spec(virtual, count, {"all_reduce": algorithm, "in_flight": 2})
    found, reports, _ = everyones(Run(train))
    assert_alike(found, canonical(train))
    assert sum(report.examples for report in reports) == 2 * 101


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_on_any_number_of_workers(count: int) -> None:
    train = spec(6, count, epochs=1)
    assert_alike(everyones(Run(train))[0], canonical(train))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("algorithm", ["ring", "library"])
def test_with_any_recipe(recipe: str, algorithm: str) -> None:
    """Parts that do not decay, momentum correction, a state that begins at 1."""
    train = spec(3, 2, {"all_reduce": algorithm}, **RECIPES[recipe])
    run = Run(train)
    found, _, _ = everyones(run)
    assert_alike(found, canonical(train))
    torch.testing.assert_close(found[0].params, serial(run, step_batches(run), "mean"), **NEAR)


@pytest.mark.parametrize("bucket_bytes", [1, 10**6])
@pytest.mark.parametrize("in_flight", [1, 3])
def test_buckets_of_any_size_give_the_same_numbers(bucket_bytes: int, in_flight: int) -> None:
    """A bucket a parameter; one bucket."""
    options = {"bucket_bytes": bucket_bytes, "in_flight": in_flight, "all_reduce": "ring"}
    train = spec(3, 3, options, epochs=1)
    assert_alike(everyones(Run(train))[0], canonical(train))


def test_the_interleaving_of_the_exchanges_does_not_matter() -> None:
    run = Run(spec(3, 3, {"in_flight": 3}, epochs=1))
    one, other = (everyones(run, seed=seed)[0][0] for seed in (1, 2))
    assert torch.equal(one.params, other.params)


@pytest.mark.parametrize("algorithm", ["ring", "library"])
def test_taken_up_again_it_goes_on_as_if_undisturbed(algorithm: str) -> None:
    """From the parameters and the whole state that it gave, also on another number of workers."""
    options = {"all_reduce": algorithm}
    fields = RECIPES["linear, gradual, equation 10"]
    run = Run(spec(3, 3, options, **fields))
    (undisturbed, *_), reports, _ = everyones(run)
    (middle, *_), first, _ = everyones(run, works=slice(0, 4))
    start = Start(middle, sum(report.examples for report in first), first[-1].learning_rate)
    again, rest, _ = everyones(run, start, slice(4, None))
    assert torch.equal(again[0].params, undisturbed.params)
    assert len(first) + len(rest) == len(reports)
    two = everyones(Run(spec(3, 2, options, **fields)), start, slice(4, None))[0][0]
    torch.testing.assert_close(two.params, undisturbed.params, **NEAR)
    start = replace(start, buffers=Buffers(middle.params, {name: s * 0 for name, s in middle.state.items()}))
    assert not torch.equal(everyones(run, start, slice(4, None))[0][0].params, undisturbed.params)


def test_buckets_leave_while_the_backward_pass_of_the_last_virtual_rank_goes_on() -> None:
    """The convolution's gradient is the last to be computed, and what lies behind it has left by then."""
    run = Run(spec(3, 1, {"all_reduce": "ring"}))
    (collectives,) = local_collectives(LocalWorld(0), 1)
    context, events = run.context(collectives=collectives), list[str]()
    algorithm = run.spec.algorithm.build(context)
    begin = algorithm.reducer.begin  # type: ignore[attr-defined]

    def record(bucket: slice, *more: object) -> None:
        events.append("leaves")
        begin(bucket, *more)

    algorithm.reducer.begin = record  # type: ignore[attr-defined]
    weight = context.replica.parameters["conv.weight"]
    weight.register_hook(lambda _: events.append("first layer"))
    work = next(synchronous(run.dataset, run.order, run.ranks(0, 1), 1))
    collectives.group.world.run([lambda: algorithm.step(work)])
    assert events == ["first layer", "first layer", "leaves", "leaves", "first layer", "leaves"]


class Crossed(nn.Module):
    """Layers that lie in another order than they are used, one used twice, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.idle = nn.Linear(64, 10), nn.Linear(64, 64)
        self.first, self.twice = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.twice(torch.relu(self.first(x.flatten(1)))))
        return self.last(torch.relu(self.twice(x)))


def test_gradients_that_become_complete_in_another_order_than_they_lie() -> None:
    def net(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Crossed()

    train = spec(3, 2, optimizer={"name": "momentum", "lr": 0.05})
    expected = run_all_reduce(Run(TrainSpec.model_validate(train.model_dump() | {"algorithm": "sync"}), net))
    found, _, _ = everyones(Run(train, net))
    for buffers in found:
        torch.testing.assert_close(buffers.params, expected.params, **NEAR)


class Borrowing(nn.Module):
    """A layer whose parameters another module multiplies with, as attention does with those of its projection."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events
        self.first, self.lent, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first", "lent", "last"):
            layer: nn.Linear = getattr(self, name)
            x = nn.functional.linear(torch.relu(x.flatten(1)), layer.weight, layer.bias)
            self.events.append(f"computes {name}")
        return x


def borrowing(events: list[str], **more: object) -> Run:
    def net(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return Borrowing(events)

    options = {"bucket_bytes": 1, "all_reduce": "ring"}
    return Run(spec(2, 2, options, **({"optimizer": {"name": "momentum", "lr": 0.05}} | more)), net)


def test_a_forward_pass_waits_for_each_layer_where_it_uses_it() -> None:
    """And not for all of them before it begins."""
    run = borrowing([])
    members = local_collectives(LocalWorld(0), 2)

    def worker(rank: int) -> list[str]:
        context, events = run.context(collectives=members[rank]), list[str]()
        context.replica.model.events = events
        algorithm = run.spec.algorithm.build(context)
        begins = {bucket.span.start: bucket.names[0] for bucket in algorithm.buckets}  # type: ignore[attr-defined]
        complete = algorithm.reducer.complete  # type: ignore[attr-defined]

        def waits(bucket: slice) -> None:
            complete(bucket)
            events.append(f"has {begins[bucket.start]}")

        algorithm.reducer.complete = waits  # type: ignore[attr-defined]
        first, second, *_ = synchronous(run.dataset, run.order, run.ranks(rank, 2), 1)
        algorithm.step(first)
        events.clear()
        algorithm.step(second)
        algorithm.finish()
        return events

    for events in members[0].group.world.run([lambda rank=rank: worker(rank) for rank in range(2)]):
        assert events == [
            *("has first.weight", "has first.bias", "computes first"),
            *("has lent.weight", "has lent.bias", "computes lent"),
            *("has last.weight", "has last.bias", "computes last"),
        ]


@pytest.mark.parametrize("algorithm", ["ring", "binary_blocks", "three_phase"])
@pytest.mark.parametrize("in_flight", [1, 3])
def test_what_is_summed_behind_the_next_forward_pass_has_the_bits_of_what_is_waited_for(
    algorithm: str, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several virtual ranks a worker, batch norm, dropout, a rate that changes, an epoch that ends unevenly."""
    fields = RECIPES["linear, gradual, equation 10"]
    run = Run(spec(5, 3, {"all_reduce": algorithm, "in_flight": in_flight}, **fields))
    behind = everyones(run)[0]
    monkeypatch.setattr(MessageBucketReducer, "runs_beside", False)
    at_once = everyones(run)[0]
    for one, other in zip(behind, at_once, strict=True):
        assert torch.equal(one.params, other.params)
        assert all(torch.equal(state, other.state[name]) for name, state in one.state.items())


def test_without_a_state_each_worker_has_a_whole_version_after_a_step() -> None:
    """From which the others go on where one dies. With a state that is spread over the workers they cannot, and a step
    need not wait for the last sum."""
    for optimizer, is_whole in (("sgd", True), ("momentum", False)):
        run = borrowing([], optimizer={"name": optimizer, "lr": 0.05})
        world = LocalWorld(0)
        members = local_collectives(world, 2)

        def worker(rank: int, run: Run = run, members: Any = members) -> tuple[Tensor | None, Tensor]:
            algorithm = run.spec.algorithm.build(run.context(collectives=members[rank]))
            for work in list(synchronous(run.dataset, run.order, run.ranks(rank, 2), 1))[:2]:
                algorithm.step(work)
            found = algorithm.local_state()
            mine = None if found is None else found.params.clone()
            gathered = algorithm.gather_state()
            assert gathered is not None
            algorithm.finish()
            return mine, gathered.params.clone()

        for mine, gathered in world.run([lambda rank=rank: worker(rank) for rank in range(2)]):
            assert (mine is not None) is is_whole
            assert mine is None or torch.equal(mine, gathered)


CANONICAL = {"reduction": "canonical", "bucket_bytes": None}


@pytest.mark.parametrize("algorithm", ["canonical", "ring", "halving_doubling", "three_phase", "library"])
@pytest.mark.parametrize("count", [2, 4])
def test_a_step_sends_what_the_paper_says(count: int, algorithm: str) -> None:
    """2 (p - 1)/p b bytes a worker, also in the canonical reduction where each worker is one virtual worker. Of three
    phases on one node there are two: each worker but the first sends one vector and gets one."""
    options = CANONICAL if algorithm == "canonical" else {"all_reduce": algorithm}
    run = Run(spec(count, count, options, optimizer="sgd", epochs=1))
    steps = run.order.steps
    _, _, more = everyones(run, works=slice(0, steps))
    _, _, less = everyones(run, works=slice(0, 1))
    sent = more.sent_bytes - less.sent_bytes
    of_all = count * 2 * (count - 1) // count * 4 * run.layout.numel
    assert sent == more.received_bytes - less.received_bytes == (steps - 1) * of_all


@pytest.mark.parametrize(
    ("algorithm", "count", "pointer", "remedy"),
    [
        ({"form": "parameter_server"}, 2, "/algorithm/reduction", "set form to all_reduce"),
        (
            {"reduction": "canonical", "bucket_bytes": None, "in_flight": 1},
            2,
            "/algorithm/in_flight",
            "reduction to fast",
        ),
        ({"reduction": "canonical"}, 2, "/algorithm/bucket_bytes", "reduction to fast"),
        ({"all_reduce": "halving_doubling"}, 3, "/algorithm/all_reduce", "use binary_blocks"),
        ({"all_reduce": "butterfly"}, 2, "/algorithm/all_reduce", "there are auto, ring"),
        ({"in_flight": 0}, 2, "/algorithm/in_flight", "must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(algorithm: dict[str, Any], count: int, pointer: str, remedy: str) -> None:
    with pytest.raises(ValidationError) as error:
        spec(count, count, algorithm)
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == pointer
    assert remedy in found.message


@pytest.mark.parametrize("seed", [0, 1])
def test_who_is_done_first_does_not_end_what_the_others_still_exchange(seed: int, tmp_path: Path) -> None:
    """A worker closes its group after its last step, while between two others a bucket is under way."""
    run = LocalRun(
        spec(6, 3, data={"name": "digits", "limit": 40}, model="mlp", batch=3, epochs=1), tmp_path / "r", seed
    )
    assert read_checkpoint(run.train()).position.examples == 40
