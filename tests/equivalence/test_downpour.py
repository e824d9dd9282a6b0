"""`downpour` equals serial SGD bit for bit with one worker, and keeps its promises with several."""

from collections.abc import Iterator

import pytest
import torch

from tests.equivalence.harness import RECIPES, Run, digits_spec, run_through_shards, serial, step_batches
from trainers.data.batches import Batch
from trainers.elastic.lease_table import Lease, LeaseTable
from trainers.links.handle import Handle
from trainers.links.local import LocalWorld
from trainers.parameter_server.local import LocalServer, LocalStore
from trainers.parameter_server.protocol import Fetched, Push
from trainers.spec import TrainSpec
from trainers.training.work import leased


def spec(count: int = 1, shards: int = 2, algorithm: dict | None = None, **more: object) -> TrainSpec:
    fields = {
        "algorithm": {"name": "downpour", "max_staleness": 0} | (algorithm or {}),
        "workers": count,
        "ps": shards,
        "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001},
    }
    return digits_spec(fields | more)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "rmsprop", "adagrad", "adam", "adamw", "lion"])
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
    replica, server = run.replica(), run.start().buffers.params
    minibatches: Iterator[list[Batch]] = step_batches(run)
    per_epoch = run.order.minibatches
    local, accrued, since = server.clone(), torch.zeros_like(server), 0
    clock = 0
    for number, (batch,) in enumerate(minibatches):
        if clock % 3 == 0:
            local = server.clone()
        gradient = torch.zeros_like(server)
        replica.gradient(local, batch, gradient, mean=True)
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


LAYERWISE = {"push": "layerwise", "bucket_bytes": 1}  # every parameter a group of its own


@pytest.mark.parametrize(
    ("optimizer", "placement", "bucket_bytes"),
    [
        ("momentum", "balanced", 1),
        ("adagrad", "round_robin", 1),
        ("nesterov", "balanced", 1000),
        ("rmsprop", "balanced", 1),
    ],
)
def test_layer_by_layer_one_worker_is_serial_sgd_bit_for_bit(optimizer: str, placement: str, bucket_bytes: int) -> None:
    rule = {"name": optimizer, "weight_decay": 0.001, "lr": 0.01}
    algorithm = {"push": "layerwise", "bucket_bytes": bucket_bytes}
    fields = {"ps": {"shards": 2, "placement": placement}, "schedule": "cosine", "algorithm": algorithm}
    run = Run(spec(optimizer=rule, **fields))
    assert len(run.groups) > 1
    assert torch.equal(run_through_shards(run).params, serial(run, step_batches(run), "mean"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_layer_by_layer_one_worker_is_serial_sgd_bit_for_bit_with_any_recipe(recipe: str) -> None:
    run = Run(spec(algorithm=LAYERWISE, **RECIPES[recipe]))
    assert torch.equal(run_through_shards(run).params, serial(run, step_batches(run), "mean"))


def test_layer_by_layer_with_num_push_and_num_fetch_is_what_pushing_whole_gives() -> None:
    """One worker, whose fetches wait for all of its pushes: when they left makes no difference."""
    fields = {"num_push": 3, "num_fetch": 2, "max_staleness": 2}
    whole, layerwise = (
        run_through_shards(Run(spec(algorithm=fields | more))) for more in ({"push": "whole"}, LAYERWISE)
    )
    assert torch.equal(whole.params, layerwise.params)
    assert whole.traffic == layerwise.traffic


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("num_push", "num_fetch", "max_staleness"), [(1, 1, 0), (2, 1, 3), (3, 2, None)])
def test_layer_by_layer_every_example_once_in_every_group_whatever_the_interleaving(
    seed: int, num_push: int, num_fetch: int, max_staleness: int | None
) -> None:
    algorithm = {"num_push": num_push, "num_fetch": num_fetch, "max_staleness": max_staleness}
    run = Run(spec(3, algorithm=algorithm | LAYERWISE))
    outcome = run_through_shards(run, seed=seed)
    assert outcome.leases is not None
    for epoch in range(2):
        audit = outcome.leases.audit(epoch)
        assert (audit.trained, audit.lost, audit.duplicated) == (203, 0, 0)
    assert len(outcome.group_staleness) == len(run.groups) > 5
    pushes = sum(outcome.group_staleness[0].values())
    assert all(sum(counts.values()) == pushes for counts in outcome.group_staleness)
    assert sum(outcome.staleness.values()) == pushes >= 2 * run.order.minibatches / num_push


def test_layer_by_layer_staleness_is_a_groups_own_and_bounded() -> None:
    fields = {"data": {"name": "digits", "limit": 210}}
    lockstep = run_through_shards(Run(spec(3, algorithm=LAYERWISE, **fields)), seed=1)
    assert all(set(counts) <= {0, 1, 2} for counts in lockstep.group_staleness)
    free = run_through_shards(Run(spec(3, algorithm=LAYERWISE | {"max_staleness": None})), seed=1)
    assert max(max(counts) for counts in free.group_staleness) > 2
    assert len({tuple(sorted(counts.items())) for counts in free.group_staleness}) > 1


def test_layer_by_layer_groups_leave_while_back_propagation_goes_on_and_are_waited_for_when_needed() -> None:
    """In the order of the calls: the last layers are pushed before the first have a gradient, and a group is received
    after the layers below it have computed their part of the forward pass."""
    run, calls = Run(spec(algorithm=LAYERWISE)), []
    world = LocalWorld()
    store = Recorder(LocalServer(world, run.shards()), 0, calls)
    context = run.context(store=store)
    algorithm = run.spec.algorithm.build(context)
    order = LeaseTable(run.order, 1, 6)
    works = leased(run.dataset, run.order, iter(lambda: order.lease(0), None))
    algorithm.step(next(works))  # in which the replica registers its hooks; ours are called after them
    for name, module in context.replica.model.named_children():
        module.register_forward_hook(lambda *_, name=name: calls.append(f"forward {name}"))
        if name in ("conv", "norm", "fc1", "fc2"):
            module.weight.register_post_accumulate_grad_hook(lambda _, name=name: calls.append(f"backward {name}"))
    calls.clear()
    algorithm.step(next(works))
    names = {g: run.layout.names_in(span)[0] for g, span in enumerate(run.groups)}
    named = [call if isinstance(call, str) else f"{call[0]} {names[call[1]]}" for call in calls]
    weights = [call for call in named if not call.endswith("bias") and "drop" not in call]
    assert weights == [
        "receive conv.weight", "forward conv", "receive norm.weight", "forward norm",
        "receive fc1.weight", "forward fc1", "receive fc2.weight", "forward fc2",
        "push fc2.weight", "backward fc2", "push fc1.weight", "backward fc1",
        "push norm.weight", "backward norm", "push conv.weight", "backward conv",
    ]  # fmt: skip


class Recorder(LocalStore):
    """Notes when groups are received and pushed."""

    def __init__(self, server: LocalServer, worker: int, calls: list) -> None:
        super().__init__(server, worker)
        self.calls = calls

    def fetch(self, min_clock: int, group: int = 0) -> Handle[Fetched]:
        handle = super().fetch(min_clock, group)
        return Handle(lambda: (handle.wait(), self.calls.append(("receive", group)))[0])

    def push(self, push: Push) -> Handle[None]:
        self.calls.append(("push", push.identity.group))
        return super().push(push)


@pytest.mark.parametrize("algorithm", [{}, {"push": "layerwise", "backprop": {"groups": 2, "delay": 1}}])
def test_a_newcomer_trains_beside_the_others_under_bounded_staleness(algorithm: dict) -> None:
    """Its clock begins where the slowest one's is: nobody waits for it to catch up, and none runs ahead of another."""
    if not algorithm:
        algorithm = {"num_push": 2, "num_fetch": 3}
    run = Run(spec(3, algorithm=algorithm | {"max_staleness": 3}, epochs=3))
    world = LocalWorld(5)
    server, ledger = LocalServer(world, run.shards()), LeaseTable(run.order, 3, 2)
    gaps: list[int] = []

    def train(rank: int, store: LocalStore) -> int:
        worker = run.spec.algorithm.build(run.context(store=store))
        for work in leased(run.dataset, run.order, iter(lambda: ledger.lease(rank), None)):
            worker.step(work)
            gaps.extend(max(shard.clocks.values()) - min(shard.clocks.values()) for shard in server.shards)
        worker.finish()
        for push in store.applied:
            ledger.applied(rank, Lease(push.identity.epoch, push.identity.first, push.identity.last))
        return store.clock_at_start

    def newcomer() -> int:
        world.pause(2, lambda: server.shards[0].version >= 12)
        return train(2, LocalStore(server, 2))

    early = [LocalStore(server, rank) for rank in range(2)]
    begun = world.run([lambda: train(0, early[0]), lambda: train(1, early[1]), newcomer])
    assert begun[:2] == [0, 0]
    assert begun[2] > 3
    assert 0 < max(gaps) <= 3 + 3
    for epoch in range(3):
        audit = ledger.audit(epoch)
        assert (audit.trained, audit.lost, audit.duplicated) == (203, 0, 0)
