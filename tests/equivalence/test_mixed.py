"""`mixed` equals `sync` with one group, Downpour with groups of one, and sends 1/g of Downpour's bytes."""

import pytest
import torch
from pydantic import ValidationError

from tests.equivalence.harness import Run, digits_spec, run_all_reduce, run_through_shards
from trainers.elastic.lease_table import Audit
from trainers.spec import TrainSpec, field_errors

NEAR = {"rtol": 2e-4, "atol": 2e-5}


def spec(count: int, algorithm: dict | None = None, **more: object) -> TrainSpec:
    fields = {
        "algorithm": {"name": "mixed", "max_staleness": 0} | (algorithm or {}),
        "workers": count,
        "ps": 2,
        "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001},
    }
    return digits_spec(fields | more)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "rmsprop", "adagrad", "adam", "adamw"])
@pytest.mark.parametrize("count", [2, 3])
def test_one_group_without_staleness_equals_sync(count: int, optimizer: str) -> None:
    """29 minibatches an epoch: its last step has fewer than the group has workers."""
    rule = {"name": optimizer, "weight_decay": 0.001}
    if optimizer in ("rmsprop", "adagrad", "adam", "adamw"):
        rule["epsilon"] = 0.001
    run = Run(spec(count, optimizer=rule, schedule="cosine"))
    found = run_through_shards(run, lease_size=2 * count)
    sync = TrainSpec.model_validate(run.spec.model_dump() | {"algorithm": "sync"})
    expected = run_all_reduce(Run(sync))
    torch.testing.assert_close(found.params[: len(expected.params)], expected.params, **NEAR)
    assert sum(found.staleness.values()) == 2 * run.order.steps
    assert set(found.staleness) == {0}


def test_one_group_equals_sync_with_paper_3s_rmsprop() -> None:
    """TensorFlow's: epsilon = 1 inside the root, the mean square beginning at 1 in the shards too."""
    rule = {"name": "rmsprop", "form": "tensorflow", "lr": 0.05, "epsilon": 1.0, "weight_decay": 0.001}
    run = Run(spec(2, {"group": 2}, optimizer=rule))
    found = run_through_shards(run, lease_size=4).params
    expected = run_all_reduce(Run(TrainSpec.model_validate(run.spec.model_dump() | {"algorithm": "sync"}))).params
    torch.testing.assert_close(found[: len(expected)], expected, **NEAR)


@pytest.mark.parametrize(("num_push", "num_fetch", "max_staleness"), [(1, 1, 0), (2, 3, 4)])
@pytest.mark.parametrize("batch", [8, 7])
def test_a_group_of_one_is_downpour_bit_for_bit(batch: int, num_push: int, num_fetch: int, max_staleness: int) -> None:
    """A group divides the sum over its minibatch, Downpour scales within back-propagation: to the bit the same where
    the minibatch is a power of two, and so loses none; else to float tolerance."""
    options = {"num_push": num_push, "num_fetch": num_fetch, "max_staleness": max_staleness}
    more = {"batch": batch, "data": {"name": "digits", "limit": 200, "random_crop": 1}}
    mixed = run_through_shards(Run(spec(1, {"group": 1, **options}, **more)))
    downpour = run_through_shards(Run(spec(1, {"name": "downpour", **options}, **more)))
    tolerance = {"rtol": 0, "atol": 0} if batch == 8 else NEAR
    torch.testing.assert_close(mixed.params, downpour.params, **tolerance)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("num_push", "num_fetch", "max_staleness"), [(1, 1, 0), (2, 1, 3), (3, 2, None)])
def test_every_example_once_whatever_the_interleaving(
    seed: int, num_push: int, num_fetch: int, max_staleness: int | None
) -> None:
    """Two groups of two; leases that are no multiple of the group as well."""
    options = {"group": 2, "num_push": num_push, "num_fetch": num_fetch, "max_staleness": max_staleness}
    outcome = run_through_shards(Run(spec(4, options)), seed=seed, lease_size=5 + seed)
    assert sum(report.examples for report in outcome.reports) == 2 * 203
    assert outcome.leases is not None
    for epoch in range(2):
        assert outcome.leases.audit(epoch) == Audit(epoch, trained=203, lost=0, duplicated=0)


def test_groups_are_asynchronous_within_the_bound() -> None:
    lockstep = run_through_shards(Run(spec(6, {"group": 2})), seed=1, lease_size=4)
    assert set(lockstep.staleness) <= {0, 1, 2}
    free = run_through_shards(Run(spec(6, {"group": 2, "max_staleness": None}, epochs=4)), seed=1, lease_size=4)
    assert max(free.staleness) > 2


def test_the_same_seed_gives_the_same_bits() -> None:
    run = Run(spec(4, {"group": 2, "max_staleness": None}))
    one, same, other = (run_through_shards(run, seed=seed, lease_size=4) for seed in (5, 5, 6))
    assert torch.equal(one.params, same.params)
    assert not torch.equal(one.params, other.params)


@pytest.mark.parametrize("group", [2, 4])
def test_the_shards_get_one_gth_of_downpours_bytes(group: int) -> None:
    """28 minibatches an epoch, which every group divides: no step is short."""
    data = {"name": "digits", "limit": 196}
    mixed = run_through_shards(Run(spec(4, {"group": group}, data=data)), lease_size=4)
    downpour = run_through_shards(Run(spec(4, {"name": "downpour"}, data=data)), lease_size=4)
    assert group * mixed.traffic.sent_bytes == downpour.traffic.sent_bytes > 0
    assert group * mixed.traffic.received_bytes == downpour.traffic.received_bytes > 0


def test_groups_follow_the_nodes() -> None:
    algorithm = spec(5).algorithm
    assert algorithm.groups(["a", "b", "a", "b", "b"]) == [[0, 2], [1, 3, 4]]
    in_twos = spec(4, {"group": 2}).algorithm.groups
    assert in_twos(["a"] * 4) == [[0, 1], [2, 3]]
    assert in_twos(["a", "b", "a", "b"]) == [[0, 2], [1, 3]]
    assert in_twos(["a", "b", "b", "b", "a", "a"]) == [[0, 4], [1, 2], [5, 3]]  # two are left over, of two nodes
    assert in_twos(["a", "b"]) == [[0, 1]]


@pytest.mark.parametrize(
    ("count", "group", "remedy"),
    [(4, 3, "use 1, 2 or 4, or node"), (5, 2, "use 1 or 5, or node"), (1, 2, "use 1, or node")],
)
def test_a_group_that_does_not_divide_the_workers_is_refused(count: int, group: int, remedy: str) -> None:
    with pytest.raises(ValidationError) as error:
        spec(count, {"group": group})
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == "/algorithm/group"
    assert f"{count} workers cannot form groups of {group}; {remedy}" in found.message


@pytest.mark.parametrize("group", [0, -1, 2.5, True, "rack"])
def test_a_group_that_is_no_number_is_refused(group: object) -> None:
    with pytest.raises(ValidationError) as error:
        spec(4, {"group": group})
    (found,) = field_errors(error.value, TrainSpec)
    assert found.pointer == "/algorithm/group"
    assert found.message == "use a number of workers from 1 to 4096, or node"
