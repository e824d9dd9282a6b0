"""What every implementation of `ParameterStore` must do.

With plain SGD, learning rate -1 and zeros to begin with, pushes are added to the parameters: they count.
"""

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import KINDS, TIMEOUT_S, rendezvous_for
from tests.contracts.shards import NUMEL, Setting, Stores, begin_push, connect_store, push
from trainers.errors import MillraceError, StoreClosed
from trainers.store.identity import PushIdentity
from trainers.store.shard import Shard
from trainers.transport.canonical import block, subtrees, sum_leaves
from trainers.transport.protocols import ParameterStore, Push


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    with rendezvous_for(request.param) as rendezvous:
        yield Stores(request.param, tmp_path, rendezvous)


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


def test_each_shard_gets_its_own_slice(stores: Stores) -> None:
    values = torch.arange(float(NUMEL))
    with stores.cluster(1, Setting(num_shards=3)) as cluster:
        (found,) = cluster.run(lambda store: (push(store, 0, values, clock=1), fetched(store))[1])
        assert torch.equal(found, values)


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
    store = connect_store(kind, folder, port, Setting(), worker=1, num_workers=2)
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
        if not stores.threaded:
            store.close()
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
