"""`sync` with backup workers: steps of the first K gradients, the others dropped, every example once an epoch."""

import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from tests.equivalence.harness import Outcome, Run, digits_spec, run_all_reduce, run_through_shards, serial
from tests.local_runs import LocalRun
from trainers.algorithms.base import Work
from trainers.data.batches import Batch, Plan
from trainers.data.memory import MemoryDataset
from trainers.elastic.lease_table import Audit, Lease
from trainers.links.handle import Handle, done
from trainers.links.local import LocalWorld
from trainers.parameter_server.local import LocalServer, LocalStore
from trainers.parameter_server.push_identity import PushIdentity
from trainers.parameter_server.shard import ReceivedPush, Shard
from trainers.spec import TrainSpec, field_errors
from trainers.spec.recipe import explain
from trainers.training.work import leased

EPOCHS, EXAMPLES, MINIBATCHES = 2, 203, 29
Steps = list[list[PushIdentity]]


def spec(count: int, backup: int, **more: object) -> TrainSpec:
    fields = {
        "algorithm": {"name": "sync", "form": "parameter_server", "backup": backup},
        "workers": count,
        "ps": 3,
        "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001},
        "schedule": "cosine",
        "data": {"name": "digits", "limit": EXAMPLES, "random_crop": 1},
        "epochs": EPOCHS,
    }
    return digits_spec(fields | more)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """The minibatches of each update, as the first shard makes them; the others must make the same ones."""
    found: dict[int, Steps] = {}
    first: Steps = []
    contribution = Shard._contribution

    def noted(self: Shard, group: list[ReceivedPush], stale: int) -> object:
        mine = found.setdefault(id(self), first if not found else [])
        mine.append(sorted(push.identity for push in group))
        assert mine[-1] == first[len(mine) - 1]
        return contribution(self, group, stale)

    monkeypatch.setattr(Shard, "_contribution", noted)
    return first


def assert_every_example_once(outcome: Outcome) -> None:
    assert sum(report.examples for report in outcome.reports) == EPOCHS * EXAMPLES
    assert outcome.leases is not None
    for epoch in range(EPOCHS):
        assert outcome.leases.audit(epoch) == Audit(epoch, trained=EXAMPLES, lost=0, duplicated=0)


def test_without_backup_workers_it_is_the_all_reduce_form_bit_for_bit() -> None:
    through = run_through_shards(Run(spec(3, 0)))
    plain = run_all_reduce(Run(spec(3, 0, algorithm="sync")))
    assert torch.equal(through.params[: len(plain.params)], plain.params)
    assert not any(report.dropped for report in through.reports)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("count", "backup"), [(3, 1), (4, 1), (5, 2), (7, 3)])
def test_every_example_once_and_no_gradient_late_whatever_the_interleaving(
    count: int, backup: int, seed: int, steps: Steps
) -> None:
    """29 minibatches an epoch: at the end of the run fewer are left than a step takes."""
    outcome = run_through_shards(Run(spec(count, backup)), seed=seed)
    assert_every_example_once(outcome)
    assert sum(map(len, steps)) == EPOCHS * MINIBATCHES
    dropped = sum(report.dropped for report in outcome.reports)
    assert dropped > 0
    assert len(outcome.reports) == EPOCHS * MINIBATCHES + dropped
    assert set(outcome.staleness) == {0}
    assert all(len(step) == count - backup for step in steps[:-count])
    assert max(map(len, steps)) == count - backup


@pytest.mark.parametrize("seed", range(3))
def test_the_result_is_serial_sgd_on_what_each_step_had(seed: int, steps: Steps) -> None:
    """Plain PyTorch on the minibatches that counted: the sum over their examples, divided by how many those are."""
    rule = {"name": "momentum", "lr": 0.01, "weight_decay": 0.01, "equation": 10}
    run = Run(spec(4, 1, optimizer=rule, batch={"per_worker": 7, "base": 7}, scaling="linear"))
    found = run_through_shards(run, seed=seed).params

    def batches() -> Iterator[list[Batch]]:
        for step in steps:
            yield list(run.dataset.batches((i.epoch, run.order.examples(i.epoch, i.first)) for i in step))

    expected = serial(run, batches(), "sum")
    assert torch.equal(found[: len(expected)], expected)


def test_the_scaling_rules_look_to_the_k_gradients_of_a_step() -> None:
    run = spec(4, 1, batch={"per_worker": 7, "base": 7}, scaling="linear")
    assert run.update_batch == 3 * 7
    recipe = explain(run, EXAMPLES).quantities
    assert (recipe["batch"].value, recipe["batch"].formula) == (21, "K n = 3 x 7, of 4 workers' minibatches")
    assert (recipe["factor"].value, recipe["steps_per_epoch"].value) == (3.0, 10)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_dropped_after_the_last_lease_is_trained_too(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set that is read ahead, as by DataLoader's processes: a worker hears of the end before it is there."""
    batches = MemoryDataset.batches

    def ahead(self: MemoryDataset, plan: Plan) -> Iterator[Batch]:
        items = iter(plan)
        waiting = deque(itertools.islice(items, 4))
        while waiting:
            yield from batches(self, iter([waiting.popleft()]))
            waiting.extend(itertools.islice(items, 1))

    monkeypatch.setattr(MemoryDataset, "batches", ahead)
    run = LocalRun(spec(3, 1), tmp_path / "run", seed)
    run.train()
    assert run.dropped > 0
    assert run.trained == dict.fromkeys(range(EPOCHS), EXAMPLES)
    for epoch in range(EPOCHS):
        assert run.dispatcher.audit(epoch) == Audit(epoch, trained=EXAMPLES, lost=0, duplicated=0)


def test_the_interleaving_is_the_seeds() -> None:
    run = Run(spec(4, 1))
    one, same, other = (run_through_shards(run, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(one.params, same.params)
    assert not torch.equal(one.params, other.params)


class Refusing(LocalStore):
    """Gives no place to anybody."""

    def claim(self, clock: int) -> Handle[bool]:
        return done(False)


@pytest.mark.parametrize(("kind", "counts"), [(Refusing, False), (LocalStore, True)])
def test_a_dropped_gradient_leaves_no_trace(kind: type[LocalStore], counts: bool) -> None:
    """Neither in the shards nor in the statistics of batch normalisation."""
    run = Run(spec(3, 1))
    server = LocalServer(LocalWorld(), run.shards())
    context = run.context(store=kind(server, 0))
    algorithm, work = run.spec.algorithm.build(context), first_work(run)
    report = algorithm.step(work)
    assert (report.examples, report.dropped) == ((7, 0) if counts else (0, 1))
    initial = context.replica.module_buffers.initial
    same = [torch.equal(b, initial[n]) for n, b in context.replica.buffers_of(0).items()]
    assert same == [not counts] * 3
    assert [len(shard.backup_quorum.pushes) for shard in server.shards if shard.backup_quorum] == [int(counts)] * 3


def first_work(run: Run) -> Work:
    return next(leased(run.dataset, run.order, iter([Lease(0, 0, 0)])))


@pytest.mark.parametrize(
    ("count", "algorithm", "remedy"),
    [
        (4, {"form": "parameter_server", "backup": 2}, "use at most 1, or 5 workers or more"),
        (1, {"form": "parameter_server", "backup": 1}, "use at most 0, or 3 workers or more"),
        (4, {"backup": 1}, "use backup: 0, or form: parameter_server"),
        (4, {"form": "all_reduce", "backup": 1}, "use backup: 0, or form: parameter_server"),
        ({"count": 4, "virtual": 6}, {"form": "parameter_server", "backup": 1}, "use workers.virtual: 0"),
        (4, {"form": "parameter_server", "backup": -1}, "must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(count: object, algorithm: dict[str, object], remedy: str) -> None:
    with pytest.raises(ValidationError) as error:
        TrainSpec.model_validate({"workers": count, "algorithm": {"name": "sync"} | algorithm})
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == "/algorithm/backup"
    assert remedy in found.message
