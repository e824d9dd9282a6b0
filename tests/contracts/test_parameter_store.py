"""What every implementation of `ParameterStore` must do.

With plain SGD, learning rate -1 and zeros to begin with, pushes are added to the parameters: they count.
"""

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import TIMEOUT_S, rendezvous_for
from tests.contracts.hosts import end_hosts
from tests.contracts.shards import KINDS, NUMEL, Setting, Stores, begin_push, connect_store, push
from trainers import ClusterInfo
from trainers.errors import MillraceError, StoreClosed
from trainers.optim.rules import build_rule
from trainers.spec import MomentumSpec
from trainers.store.identity import PushIdentity
from trainers.store.layout import SHARD_ALIGN
from trainers.store.shard import Shard
from trainers.transport.canonical import block, subtrees, sum_leaves
from trainers.transport.local import LocalStore
from trainers.transport.protocols import ParameterStore, Push


@pytest.fixture(params=[*KINDS, pytest.param("object_store", marks=pytest.mark.xdist_group("ray"))])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param == "object_store":
        request.getfixturevalue("hosts_of_shards")
    with rendezvous_for(request.param) as rendezvous:
        yield Stores(request.param, tmp_path, rendezvous)


@pytest.fixture(scope="module")
def hosts_of_shards(cluster: ClusterInfo) -> Iterator[None]:
    yield
    end_hosts()


def fetched(store: ParameterStore, min_clock: int = 0) -> Tensor:
    return store.fetch(min_clock).wait().params.clone()


def test_a_fetch_sees_what_its_worker_pushed(stores: Stores) -> None:
    def body(store: ParameterStore) -> list[float]:
        seen = []
        for clock in range(1, 6):
            begin_push(store, clock, 1.0, clock, examples=10)
            answer = store.fetch(min_clock=clock).wait()
            assert bool((answer.params == answer.params[0]).all())
            assert answer.examples == 10 * clock
            seen.append(float(answer.params[0]))
        store.leave()
        return seen

    with stores.cluster(1) as cluster:
        assert cluster.run(body) == [[1.0, 2.0, 3.0, 4.0, 5.0]]


def test_pushes_and_fetches_are_counted_in_bytes(stores: Stores) -> None:
    def body(store: ParameterStore) -> tuple[int, int]:
        for clock in range(1, 4):
            push(store, clock, 1.0, clock)
        fetched(store)
        return store.traffic.sent_bytes, store.traffic.received_bytes

    with stores.cluster(1, Setting(num_shards=3)) as cluster:
        assert cluster.run(body) == [(3 * 4 * NUMEL, 4 * NUMEL)]


def test_pushes_fetches_and_the_waits_for_them_are_counted(stores: Stores) -> None:
    def body(store: ParameterStore) -> tuple[int, int, float, float]:
        for clock in range(1, 4):
            push(store, clock, 1.0, clock)
        fetched(store)
        waits = store.waits
        return waits.pushes, waits.fetches, waits.fetch_s + waits.push_s, store.waited_s

    with stores.cluster(1, Setting(num_shards=3)) as cluster:
        ((pushes, fetches, stood_still_s, waited_s),) = cluster.run(body)
        assert (pushes, fetches) == (3, 1)
        assert stood_still_s == pytest.approx(waited_s)


def test_each_shard_gets_its_own_slice(stores: Stores) -> None:
    values = torch.arange(float(NUMEL))
    with stores.cluster(1, Setting(num_shards=3)) as cluster:
        (found,) = cluster.run(lambda store: (push(store, 0, values, clock=1), fetched(store))[1])
        assert torch.equal(found, values)


@pytest.mark.parametrize("numel", [NUMEL, 5 * SHARD_ALIGN + 64])
def test_what_was_fetched_stays_as_it_was_until_the_next_fetch(stores: Stores, numel: int) -> None:
    """While another worker pushes more versions than there are rows in the ring; large shards are read in place."""
    pushed, setting = threading.Event(), Setting(numel=numel, num_shards=2)

    def reads(store: ParameterStore) -> list[tuple[float, float]]:
        push(store, 0, 1.0, clock=100)
        seen = []
        for _ in range(3):
            params = store.fetch(0).wait().params
            before = params.clone()
            if stores.threaded:
                pushed.clear()
                pushed.wait(TIMEOUT_S)
            assert torch.equal(params, before)
            for cut in setting.cuts:  # each shard by itself is never torn
                assert torch.equal(before[cut], before[cut.start].expand(cut.stop - cut.start))
            seen.append(float(params[0]))
        store.leave()
        return seen

    def writes(store: ParameterStore) -> None:
        for number in range(1, 60):
            push(store, number, 1.0, clock=number)
            if number % 10 == 0:
                pushed.set()
        store.leave()
        pushed.set()

    with stores.cluster(2, setting) as cluster:
        cluster.run(reads, writes)
        assert torch.equal(cluster.params, torch.full((numel,), 60.0))


def test_a_fetch_waits_for_the_slowest(stores: Stores) -> None:
    order: list[str] = []

    def fast(store: ParameterStore) -> float:
        push(store, 0, 1.0, clock=1)
        found = fetched(store, min_clock=1)
        order.append("fetched")
        return float(found[0])

    def slow(store: ParameterStore) -> float:
        for _ in range(20):
            fetched(store)
        order.append("pushing")
        push(store, 1, 1.0, clock=1)
        return 0.0

    with stores.cluster(2) as cluster:
        assert cluster.run(fast, slow) == [2.0, 0.0]
    assert order == ["pushing", "fetched"]


def test_bounded_staleness_lets_a_worker_run_ahead_so_far(stores: Stores) -> None:
    def ahead(store: ParameterStore) -> None:
        for clock in range(3):
            fetched(store, min_clock=max(0, clock - 2))  # s = 2: never waits
            push(store, clock, clock=clock + 1)

    with stores.cluster(2) as cluster:
        cluster.run(ahead)
        assert float(cluster.params[0]) == 3.0


def test_nobody_waits_for_a_worker_that_left(stores: Stores) -> None:
    def stays(store: ParameterStore) -> float:
        push(store, 0, clock=5)
        return float(fetched(store, min_clock=5)[0])

    def leaves(store: ParameterStore) -> float:
        store.leave()
        return 0.0

    with stores.cluster(2) as cluster:
        assert cluster.run(stays, leaves)[0] == 1.0


def test_nobody_waits_for_a_worker_whose_connection_closed_and_its_last_push_counts(stores: Stores) -> None:
    if not stores.threaded:
        pytest.skip("local workers have no connection")

    def stays(store: ParameterStore) -> float:
        return float(fetched(store, min_clock=5)[0])

    def dies(store: ParameterStore) -> float:
        push(store, 0, clock=1)
        store.close()
        return 0.0

    with stores.cluster(2) as cluster:
        cluster.run(lambda store: push(store, 1, clock=5))
        assert cluster.run(stays, dies)[0] == 2.0


def _pushes_and_dies(kind: str, folder: Path, port: int) -> None:
    store = connect_store(kind, folder, port, Setting(), worker=1)
    push(store, 0, clock=1)
    store.gradient_buffer().fill_(1e9)  # half-written, never pushed
    os._exit(0)


def test_nobody_waits_for_a_process_that_died(stores: Stores) -> None:
    if not stores.threaded:
        pytest.skip("local workers are one process")
    with stores.cluster(2, absent=1) as cluster:
        (store,) = cluster.stores
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=_pushes_and_dies, args=(stores.kind, cluster.folder, stores.port))
        process.start()
        pushed = [threading.Event() for _ in cluster.servers]
        for server, event in zip(cluster.servers, pushed, strict=True):
            server.at_version(1, lambda shard, event=event: event.set())
        assert all(event.wait(TIMEOUT_S) for event in pushed)
        push(store, 1, clock=5)
        assert bool((fetched(store, min_clock=5) == 2).all())
        process.join()


def test_each_identity_counts_once_whoever_pushes_it(stores: Stores) -> None:
    def body(store: ParameterStore) -> int:
        for number in range(4):
            begin_push(store, number, 1.0, clock=number + 1)
            begin_push(store, number, 100.0, clock=number + 1)  # not even waited for in between
        store.leave()
        return len(store.applied)

    with stores.cluster(2) as cluster:
        first = cluster.run(body)
        assert bool((cluster.params == 4).all())
        assert all(shard.version == 4 for shard in cluster.shards)
        cluster.stores.reverse()
        again = cluster.run(body)
        assert bool((cluster.params == 4).all())
        assert first == again == [8]  # a repeated push is acknowledged


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


def test_a_gradient_buffer_is_never_memory_of_an_untaken_push(stores: Stores) -> None:
    """Whoever scribbles over each new buffer at once spoils nothing that was pushed before."""
    num_pushes = 40

    def body(store: ParameterStore) -> None:
        for number in range(num_pushes):
            buffer = store.gradient_buffer()
            buffer.fill_(1e9)
            buffer.fill_(float(number))
            store.push(Push(PushIdentity(0, number, number), number + 1, 1))
            store.gradient_buffer().fill_(-1e9)
        store.leave()

    with stores.cluster(1, Setting(numel=64 * 4000)) as cluster:
        cluster.run(body)
        assert bool((cluster.params == sum(range(num_pushes))).all())


def test_two_pushes_may_be_under_way(stores: Stores) -> None:
    """A quorum that is not complete keeps a push: the second buffer is other memory."""
    if not stores.threaded:
        pytest.skip("the local store copies what is pushed")
    with stores.cluster(1, Setting(quorum=3, num_slots=2)) as cluster:
        (store,) = cluster.stores
        first = store.gradient_buffer()
        store.push(Push(PushIdentity(0, 0, 0), 1, 1))
        assert store.gradient_buffer().data_ptr() != first.data_ptr()


def test_staleness_counts_add_up(stores: Stores) -> None:
    def body(worker: int) -> Callable[[ParameterStore], dict[int, int]]:
        def pushes(store: ParameterStore) -> dict[int, int]:
            for number in range(30):
                fetched(store)
                begin_push(store, 30 * worker + number, 1.0, number + 1)
            store.leave()
            assert len(store.applied) == 30
            assert store.applied == []
            return store.staleness

        return pushes

    with stores.cluster(3) as cluster:
        counts = sum((Counter(found) for found in cluster.run(*(body(w) for w in range(3)))), Counter())
        assert counts == cluster.shards[0].staleness
        assert counts.total() == 90
        assert min(counts) >= 0


def test_one_worker_alone_is_never_stale(stores: Stores) -> None:
    def body(store: ParameterStore) -> dict[int, int]:
        for number in range(5):
            fetched(store, min_clock=number)
            begin_push(store, number, 1.0, number + 1)
        store.leave()
        assert [p.identity.first for p in store.applied] == list(range(5))
        return store.staleness

    with stores.cluster(1) as cluster:
        assert cluster.run(body) == [{0: 5}]


def test_a_fetch_is_never_torn(stores: Stores) -> None:
    """Every push adds 1 to every element, so all elements of a slice are equal in every version."""
    setting = Setting(numel=64 * 20_000, num_shards=2)
    num_pushes = 40

    def pushes(worker: int) -> Callable[[ParameterStore], int]:
        def body(store: ParameterStore) -> int:
            for number in range(num_pushes):
                begin_push(store, worker * num_pushes + number, 1.0, number + 1)
            store.leave()
            return 0

        return body

    def reads(store: ParameterStore) -> int:
        store.leave()  # nobody waits for a reader
        versions = set()
        for _ in range(100):
            params = store.fetch(0).wait().params
            for cut in setting.cuts:
                values = params[cut]
                versions.add(float(values[0]))
                assert bool((values == values[0]).all())
        return len(versions)

    with stores.cluster(3, setting) as cluster:
        found = cluster.run(pushes(0), pushes(1), reads)
        assert bool((cluster.params == 2 * num_pushes).all())
        assert found[2] > 1


def test_close_wakes_those_who_wait(stores: Stores) -> None:
    def waits(store: ParameterStore) -> str:
        with pytest.raises(StoreClosed):
            fetched(store, min_clock=1000)
        return "closed"

    def closes(store: ParameterStore) -> str:
        for _ in range(5):
            fetched(store)
        if isinstance(store, LocalStore):  # whose shards are objects of this process
            store.server.closed = True
        for server in cluster.servers:
            server.close()
        return "closes"

    with stores.cluster(3) as cluster:
        assert cluster.run(waits, waits, closes) == ["closed", "closed", "closes"]


def test_close_from_another_thread_wakes_this_worker(stores: Stores) -> None:
    if not stores.threaded:
        pytest.skip("local workers have one thread among them")

    def waits(store: ParameterStore) -> str:
        threading.Timer(0.05, store.close).start()
        with pytest.raises(MillraceError):
            fetched(store, min_clock=1000)
        return "closed"

    with stores.cluster(2) as cluster:
        assert cluster.run(waits) == ["closed"]


def test_an_action_runs_between_two_updates_at_exactly_its_version(stores: Stores) -> None:
    if not stores.threaded:
        pytest.skip("local shards are called, they do not serve")
    num_pushes, seen = 50, {}

    def note(shard: Shard) -> None:
        values = shard.params.unique()
        assert len(values) == 1
        seen[shard.version] = float(values), shard.examples

    def body(worker: int) -> Callable[[ParameterStore], None]:
        def pushes(store: ParameterStore) -> None:
            for number in range(num_pushes):
                begin_push(store, worker * num_pushes + number, 1.0, number + 1, examples=3)
            store.leave()

        return pushes

    asked = [1, 7, 8, 50, 99]
    with stores.cluster(2, Setting(numel=64 * 500)) as cluster:
        for version in asked:
            cluster.servers[1].at_version(version, note)
        cluster.run(body(0), body(1))
        now = threading.Event()
        cluster.servers[1].at_version(3, lambda shard: (note(shard), now.set()))  # past: at once
        assert now.wait(TIMEOUT_S)
    assert seen == {version: (float(version), 3 * version) for version in [*asked, 100]}


def test_waiting_is_counted(stores: Stores) -> None:
    if not stores.threaded:
        pytest.skip("the local transport has a virtual clock")

    def waits(store: ParameterStore) -> float:
        push(store, 0, clock=1)
        fetched(store, min_clock=1)
        return store.waited_s

    def late(store: ParameterStore) -> float:
        threading.Event().wait(0.05)
        store.leave()
        return 0.0

    with stores.cluster(2) as cluster:
        assert cluster.run(waits, late)[0] > 0.02


GROUPED = Setting(num_shards=2, groups=(slice(0, 64), slice(64, 64 * 6), slice(64 * 6, NUMEL)))
"""The second of three groups lies on both shards."""


def push_groups(store: ParameterStore, number: int, groups: Sequence[int], clock: int) -> None:
    """Push groups of minibatch `number`, each filled with 10^group, and wait for all."""
    buffer, handles = store.gradient_buffer(), []
    for group in groups:
        buffer[GROUPED.groups[group]] = 10.0**group
        handles.append(store.push(Push(PushIdentity(0, number, number, group), clock, 1)))
    for handle in handles:
        handle.wait()


def each_group(params: Tensor) -> list[float]:
    """The value of each group, all elements of which must be equal."""
    assert all(len(params[span].unique()) == 1 for span in GROUPED.groups)
    return [float(params[span][0]) for span in GROUPED.groups]


def test_a_group_is_pushed_and_fetched_by_itself(stores: Stores) -> None:
    def body(store: ParameterStore) -> None:
        push_groups(store, 0, [2, 1, 0], clock=1)
        push_groups(store, 1, [2], clock=2)
        handles = [store.fetch(2 if group == 2 else 1, group) for group in range(3)]
        found = [handle.wait() for handle in reversed(handles)]
        assert each_group(found[0].params) == [1, 10, 200]
        assert [fetched.examples for fetched in found] == [2, 1, 1]
        push_groups(store, 2, [0, 1], clock=3)
        store.fetch(3, group=1).wait()
        assert each_group(found[0].params) == [1, 20, 200]  # the first was not fetched again
        assert [p.identity.first for p in store.applied] == [0]  # of the others a group is missing
        assert store.traffic.sent_bytes == 4 * (2 * NUMEL)
        assert store.traffic.received_bytes == 4 * (NUMEL + 64 * 5)

    with stores.cluster(1, GROUPED) as cluster:
        cluster.run(body)


def test_a_group_waits_only_for_its_own_clock(stores: Stores) -> None:
    def ahead(store: ParameterStore) -> list[float]:
        push_groups(store, 0, [2, 1, 0], clock=1)
        return each_group(store.fetch(1, group=2).wait().params)

    def behind(store: ParameterStore) -> list[float]:
        push_groups(store, 1, [2], clock=1)
        return each_group(store.fetch(0, group=0).wait().params)

    with stores.cluster(2, GROUPED) as cluster:
        assert cluster.run(ahead, behind)[0] == [0, 0, 200]


def test_each_identity_counts_once_in_every_group_whoever_pushes_it(stores: Stores) -> None:
    def body(store: ParameterStore) -> int:
        for number in range(3):
            push_groups(store, number, [0, 1, 2], clock=number + 1)
        store.leave()
        return len(store.applied)

    def half(store: ParameterStore) -> int:
        push_groups(store, 0, [2, 1], clock=1)  # and dies before the last
        store.leave()
        return len(store.applied)

    with stores.cluster(2, GROUPED) as cluster:
        assert cluster.run(half) == [0]
        cluster.stores.reverse()
        assert cluster.run(body) == [3]
        assert each_group(cluster.params) == [3, 30, 300]


def test_a_fetch_of_a_group_is_never_torn(stores: Stores) -> None:
    wide = 64 * 3000
    setting = Setting(numel=3 * wide, groups=tuple(slice(g * wide, (g + 1) * wide) for g in range(3)))
    num_pushes = 30

    def pushes(store: ParameterStore) -> None:
        for number in range(num_pushes):
            store.gradient_buffer().fill_(1.0)
            for group in (2, 1, 0):
                store.push(Push(PushIdentity(0, number, number, group), number + 1, 1))
        store.leave()

    def reads(store: ParameterStore) -> None:
        store.leave()
        for _ in range(60):
            handles = [store.fetch(0, group) for group in range(3)]
            for group, handle in enumerate(handles):
                params = handle.wait().params
                for cut in setting.cuts:
                    held = params[max(cut.start, group * wide) : min(cut.stop, (group + 1) * wide)]
                    assert bool((held == held[:1]).all())

    with stores.cluster(2, setting) as cluster:
        cluster.run(pushes, reads)
        assert bool((cluster.params == num_pushes).all())


def test_staleness_counts_from_the_fetch_that_a_push_was_computed_from(stores: Stores) -> None:
    def body(store: ParameterStore) -> list[dict[int, int]]:
        for number in range(5):
            for group in range(3):
                store.fetch(number if group == 0 else max(0, number - 2), group).wait()
            store.gradient_buffer().fill_(1.0)
            handles = [store.push(Push(PushIdentity(0, number, number, 0), number + 1, 1))]
            if number >= 2:
                for group in (1, 2):
                    late = PushIdentity(0, number - 2, number - 2, group)
                    handles.append(store.push(Push(late, number - 1, 1, delay=2)))
            for handle in handles:
                handle.wait()
        assert [p.identity.first for p in store.applied] == [0, 1, 2]
        assert store.staleness == {0: 1, 1: 1, 2: 1}
        return store.group_staleness

    with stores.cluster(1, GROUPED) as cluster:
        assert cluster.run(body) == [[{0: 5}, {0: 1, 1: 1, 2: 1}, {0: 1, 1: 1, 2: 1}]]


def test_a_staleness_aware_rule_divides_the_step_by_the_staleness(stores: Stores) -> None:
    """Pushes of 1 at rate -1, after one fetch: staleness 0, 1, 2, 3 add 1, 1, 1/2, 1/3."""

    def body(store: ParameterStore) -> list[float]:
        fetched(store)
        found = []
        for number in range(4):
            push(store, number, 1.0, number + 1)
            found.append(float(cluster.params[0]))
        return found

    with stores.cluster(1, Setting(staleness_aware=True)) as cluster:
        (found,) = cluster.run(body)
        assert found == pytest.approx([1, 2, 2.5, 2.5 + 1 / 3])
    with stores.cluster(1) as cluster:
        assert cluster.run(body) == [[1, 2, 3, 4]]


def test_a_newcomer_counts_from_where_the_slowest_is(stores: Stores) -> None:
    """Staleness 1: it neither holds up the others, who are far ahead of zero, nor runs ahead of them."""
    start = 40

    def trains(worker: int, begin: int, end: int) -> Callable[[ParameterStore], None]:
        def body(store: ParameterStore) -> None:
            for clock in range(begin, end):
                fetched(store, min_clock=max(0, clock - 1))
                push(store, 100 * worker + clock, 1.0, clock + 1)
            if end > start:
                store.leave()

        return body

    def comes(store: ParameterStore) -> None:
        assert store.clock_at_start == start
        for step in range(3):
            clock = store.clock_at_start + step
            seen = fetched(store, min_clock=clock - 1)
            assert float(seen[0]) >= 2 * start + 3 * max(0, step - 1)  # the others have pushed up to there
            push(store, 200 + step, 1.0, clock + 1)
        store.leave()

    with stores.cluster(3, Setting(num_shards=3), absent=1) as cluster:
        cluster.run(trains(0, 0, start), trains(1, 0, start))
        cluster.come(2)
        cluster.run(trains(0, start, start + 3), trains(1, start, start + 3), comes)
        assert torch.equal(cluster.params, torch.full((NUMEL,), 2.0 * start + 9))


def test_workers_come_and_go_while_others_train(stores: Stores) -> None:
    """Numbers that are never used again, no more of them at a time than there is room for."""
    with stores.cluster(2) as cluster:
        steady, pushed = cluster.stores[0], 0
        for number in range(2, 12):
            cluster.gone(1)
            cluster.come(number)
            for store in (steady, cluster.stores[1]):
                fetched(store)
                begin_push(store, pushed, 1.0, clock=1)()
                pushed += 1
        assert torch.equal(cluster.params, torch.full((NUMEL,), float(pushed)))
        assert all(set(shard.clocks) == {0, 11} for shard in cluster.shards)
        assert all(set(shard.pinned) <= {0, 11} for shard in cluster.shards)


def test_there_is_room_for_so_many_workers(stores: Stores) -> None:
    with stores.cluster(2) as cluster:
        with pytest.raises(StoreClosed, match="no room"):
            cluster.come(2)
        cluster.gone(0)
        cluster.come(3)
        push(cluster.stores[-1], 0, 1.0, clock=1)


@pytest.mark.parametrize("ahead", [0, 1, 2], ids=["none", "one", "both"])
def test_a_step_that_only_some_shards_made_is_done_anew_by_another_number_of_workers(
    stores: Stores, ahead: int
) -> None:
    """Two workers with 3 + 2 virtual ranks die within a step, which `ahead` of two shards have made; three workers
    begin again from the version of the slowest: the bits of a run that nothing disturbed."""
    quorum, setting = 5, Setting(quorum=5, num_slots=8, rule=build_rule(MomentumSpec(weight_decay=0)))

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
