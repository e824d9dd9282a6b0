"""What every implementation of `ParameterStore` must do where an update is made of several pushes: a synchronous step,
with backup workers or without."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from tests.contracts.shards import NUMEL, Setting, Stores, begin_push, fetched
from trainers.collectives.reduction_tree import block, subtrees, sum_leaves
from trainers.errors import StoreClosed
from trainers.parameter_server.protocol import ParameterStore, Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.spec import MomentumSpec


@pytest.mark.parametrize("num_virtual", [3, 5])
def test_a_quorum_makes_one_update_of_the_canonical_sum(stores: Stores, num_virtual: int) -> None:
    leaves = [torch.randn(NUMEL, generator=torch.Generator().manual_seed(i)) * 10.0**i for i in range(5)]
    a, b, c, d, e = leaves
    expected = (a + b) + c if num_virtual == 3 else ((a + b) + (c + d)) + e

    def body(worker: int) -> Callable[[ParameterStore], Tensor]:
        def steps(store: ParameterStore) -> Tensor:
            for step in range(2):
                fetched(store, min_clock=step)
                for lo, hi in subtrees(num_virtual, *block(num_virtual, worker, 2)):
                    buffers = [store.gradient_buffer(), *(torch.empty(NUMEL) for _ in range(3))]
                    sum_leaves((lo, hi), buffers, lambda rank, into: into.copy_(leaves[rank]))
                    first = step * num_virtual
                    store.push(Push(PushIdentity(0, first + lo, first + hi - 1), step + 1, examples=hi - lo))
            return fetched(store, min_clock=2)

        return steps

    with stores.cluster(2, Setting(quorum=num_virtual)) as cluster:
        for found in cluster.run(body(0), body(1)):
            mean = expected / num_virtual
            assert torch.equal(found, mean + mean)
        assert [shard.version for shard in cluster.shards] == [2, 2]


def test_a_part_pushed_by_two_workers_counts_once_and_both_are_told(stores: Stores) -> None:
    """As when a worker that was taken for dead comes back before the step is complete."""

    with stores.cluster(2, Setting(quorum=3)) as cluster:
        first, second = cluster.stores
        early = begin_push(first, 0, 1.0, clock=1)
        waits = [begin_push(second, 0, 1.0, clock=1), begin_push(second, 1, 1.0, clock=1)]
        late = begin_push(first, 2, 1.0, clock=1)
        for wait in [early, late, *waits]:
            wait()
        assert torch.allclose(cluster.params, torch.ones(NUMEL))
        assert [shard.examples for shard in cluster.shards] == [3, 3]


def test_the_first_k_get_a_place_and_nobody_does_for_a_step_that_is_made(stores: Stores) -> None:
    with stores.cluster(3, Setting(quorum=2, backup=1)) as cluster:
        a, b, c = cluster.stores
        assert [store.fetch(0).wait().updates for store in (a, b, c)] == [0, 0, 0]
        assert [store.claim(0).wait() for store in (a, b, c)] == [True, True, False]
        waits = [begin_push(a, 0, 1.0, clock=1), begin_push(b, 1, 2.0, clock=1)]
        for wait in waits:
            wait()
        assert torch.equal(cluster.params, torch.full((NUMEL,), 1.5))
        assert not c.claim(0).wait()
        newest = c.fetch(min_clock=1).wait()
        assert (newest.updates, newest.examples, float(newest.params[0])) == (1, 2, 1.5)
        assert c.claim(1).wait()
        wait = begin_push(c, 2, 8.0, clock=2)
        for store in (a, b):  # a step is made of as many as have not left
            store.leave()
        wait()
        assert [len(store.applied) for store in (a, b, c)] == [1, 1, 1]
        assert [store.updates for store in (a, b, c)] == [1, 1, 2]
        assert torch.equal(cluster.params, torch.full((NUMEL,), 9.5))


@pytest.mark.parametrize(("quorum", "backup"), [(3, 1), (2, 1)])
def test_workers_that_race_for_places_push_everything_once(stores: Stores, quorum: int, backup: int) -> None:
    """Each has 20 minibatches and repeats one that it had to drop. Ones are pushed: the parameters count the steps."""
    each = 20

    def body(worker: int) -> Callable[[ParameterStore], int]:
        def race(store: ParameterStore) -> int:
            clock = dropped = number = 0
            while number < each:
                version = store.fetch(min_clock=clock).wait().updates
                clock = version + 1
                if not store.claim(version).wait():
                    dropped += 1
                    continue
                begin_push(store, worker * each + number, 1.0, clock)
                number += 1
            store.leave()
            assert set(store.staleness) <= {0}
            return dropped

        return race

    count = quorum + backup
    with stores.cluster(count, Setting(quorum=quorum, backup=backup, num_shards=3)) as cluster:
        assert sum(cluster.run(*(body(worker) for worker in range(count)))) > 0
        versions = {shard.version for shard in cluster.shards}
        (steps,) = versions
        assert count * each / quorum <= steps < count * each
        assert torch.equal(cluster.params, torch.full((NUMEL,), float(steps)))
        assert all(shard.applied.minibatches(0) == set(range(count * each)) for shard in cluster.shards)
        assert {shard.examples for shard in cluster.shards} == {count * each}


@pytest.mark.parametrize("ahead", [0, 1, 2], ids=["none", "one", "both"])
def test_a_step_that_only_some_shards_made_is_done_anew_by_another_number_of_workers(
    stores: Stores, ahead: int
) -> None:
    """Two workers with 3 + 2 virtual ranks die within a step, which `ahead` of two shards have made; three workers
    begin again from the version of the slowest: the bits of a run that nothing disturbed."""
    quorum, setting = 5, Setting(quorum=5, num_slots=8, rule=MomentumSpec(weight_decay=0).build())

    def step(workers: Sequence[ParameterStore], number: int, clock: int) -> None:
        waits = []
        for rank, store in enumerate(workers):
            store.fetch(clock).wait()
            nodes = subtrees(quorum, *block(quorum, rank, len(workers)))
            waits += [push_part(store, number, node, clock + 1) for node in nodes]
        for wait in waits:
            wait()

    with stores.cluster(3, setting) as calm:
        for number in range(4):
            step(calm.stores, number, number)
        expected = calm.params.clone()
    with stores.cluster(3, setting, absent=1) as cluster:
        for number in range(2):
            step(cluster.stores, number, number)
        *most, (rank, node) = [(rank, node) for rank in (0, 1) for node in subtrees(quorum, *block(quorum, rank, 2))]
        for earlier, part in most:
            push_part(cluster.stores[earlier], 2, part, clock=3)
        cluster.only_reaches(range(ahead))
        push_part(cluster.stores[rank], 2, node, clock=3)
        cluster.until(lambda: cluster.versions() == [3] * ahead + [2] * (2 - ahead))
        versions = cluster.versions()
        cluster.prepare_generation(min(versions))
        assert cluster.versions() == [min(versions)] * 2
        if stores.threaded:
            for store in cluster.stores:
                with pytest.raises(StoreClosed):
                    store.fetch(0).wait()
        assert all(shard.clocks == {} and shard.pinned == {} for shard in cluster.shards)
        while cluster.stores:
            cluster.gone(0)
        for number in (10, 11, 12):
            cluster.come(number)
        for clock, number in enumerate(range(min(versions), 4)):
            step(cluster.stores, number, clock)
        assert torch.equal(cluster.params, expected)
        assert all(shard.applied.minibatches(0) == set(range(4 * quorum)) for shard in cluster.shards)
        assert {shard.examples for shard in cluster.shards} == {4 * quorum}


def push_part(store: ParameterStore, step: int, node: tuple[int, int], clock: int) -> Callable[[], None]:
    """Push a part of a step of 5 virtual ranks; what it holds follows from the step and the ranks."""
    buffers = [store.gradient_buffer(), *(torch.empty(NUMEL) for _ in range(3))]

    def leaf(rank: int, into: Tensor) -> None:
        into.copy_(torch.randn(NUMEL, generator=torch.Generator().manual_seed(10 * step + rank)))

    sum_leaves(node, buffers, leaf)
    lo, hi = node
    return store.push(Push(PushIdentity(0, 5 * step + lo, 5 * step + hi - 1), clock, hi - lo)).wait


@pytest.mark.parametrize("passes", [False, True], ids=["late", "refused"])
def test_a_step_goes_on_without_a_worker_that_died_with_a_place(stores: Stores, passes: bool) -> None:
    """K = 2 of 3: one of those who have a place dies before its push, and the third got none, or asks after that."""
    with stores.cluster(3, Setting(quorum=2, backup=1)) as cluster:
        a, b, c = cluster.stores
        for store in (a, b, c):
            store.fetch(0).wait()
        assert [store.claim(0).wait() for store in (a, b)] == [True, True]
        if passes:
            assert not c.claim(0).wait()
        wait = begin_push(a, 0, 4.0, clock=1)
        cluster.gone(1)
        if not passes:
            assert not c.claim(0).wait()
        wait()
        assert [store.fetch(1).wait().updates for store in (a, c)] == [1, 1]
        assert [store.claim(1).wait() for store in (a, c)] == [True, True]
        waits = [begin_push(store, number, 1.0, clock=2) for number, store in ((1, c), (2, a))]
        for wait in waits:
            wait()
        assert torch.equal(cluster.params, torch.full((NUMEL,), 5.0))
