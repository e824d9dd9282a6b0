"""What every implementation of `ParameterStore` must do with fetches and pushes.

With plain SGD, learning rate -1 and zeros to begin with, pushes are added to the parameters: they count.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from tests.contracts.groups import TIMEOUT_S, Latecomer
from tests.contracts.shards import NUMEL, Setting, Stores, begin_push, fetched, push
from trainers.latency import bucket_of
from trainers.models.layout import SHARD_ALIGN
from trainers.optim.compress.compressor import Compressor
from trainers.optim.compress.feedback import ErrorFeedback
from trainers.optim.compress.int8 import Int8
from trainers.optim.compress.sign import Sign
from trainers.optim.compress.top_k import TopK
from trainers.optim.late.compensation import ConstantCompensation
from trainers.parameter_server.protocol import ParameterStore, Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.parameter_server.shard import Shard


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
        return store.meter.counted.sent_bytes, store.meter.counted.received_bytes

    with stores.cluster(1, Setting(num_shards=3)) as cluster:
        assert cluster.run(body) == [(3 * 4 * NUMEL, 4 * NUMEL)]


def test_how_long_each_push_and_each_fetch_took_is_counted(stores: Stores) -> None:
    def body(store: ParameterStore) -> tuple[dict[int, int], dict[int, int]]:
        for clock in range(1, 4):
            begin_push(store, clock, 1.0, clock)
        store.settle()
        answer = store.fetch(min_clock=0)
        time.sleep(0.01)
        answer.wait()
        return store.meter.counted.push_latency, store.meter.counted.fetch_latency

    with stores.cluster(1, Setting(num_shards=3)) as cluster:
        ((pushes, fetches),) = cluster.run(body)
    if cluster.world is not None:
        assert (pushes, fetches) == ({}, {})  # its clock is no clock of ours
    else:
        assert (sum(pushes.values()), sum(fetches.values())) == (3, 1)
        assert max(fetches) >= bucket_of(0.01)  # until the worker has it


def test_pushes_fetches_and_the_waits_for_them_are_counted(stores: Stores) -> None:
    def body(store: ParameterStore) -> tuple[int, int, float, float]:
        for clock in range(1, 4):
            push(store, clock, 1.0, clock)
        fetched(store)
        counted = store.meter.counted
        return counted.pushes, counted.fetches, counted.wait_fetch_s + counted.wait_push_s, store.waited_s

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
    pushed, over, setting = threading.Event(), threading.Event(), Setting(numel=numel, num_shards=2)

    def reads(store: ParameterStore) -> list[tuple[float, float]]:
        push(store, 0, 1.0, clock=100)
        seen = []
        for _ in range(3):
            params = store.fetch(0).wait().params
            before = params.clone()
            pushed.clear()
            while stores.threaded and not (pushed.wait(0.01) or over.is_set()):  # the other may have ended before
                pass
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
        over.set()

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


def test_a_push_is_rounded_and_takes_half_the_bytes_where_it_is_sent(stores: Stores) -> None:
    """Part by part and of any length, beside one that is not rounded."""
    value = torch.randn(NUMEL, generator=torch.Generator().manual_seed(0))

    def body(store: ParameterStore) -> int:
        for number, wire in enumerate(("bfloat16", "float32")):
            push(store, number, value, number + 1, wire=wire)
        return store.meter.counted.pushed_bytes

    with stores.cluster(1) as cluster:
        (sent,) = cluster.run(body)
        assert torch.equal(cluster.params, value.bfloat16().float() + value)
        assert sent == NUMEL * (4 + (4 if stores.kind == "shared_memory" else 2))


@pytest.mark.parametrize("compressor", [TopK(0.02), TopK(0.3), Sign(), Int8()], ids=lambda one: type(one).__name__)
def test_a_compressed_push_sends_what_its_memory_does_not_keep(stores: Stores, compressor: Compressor) -> None:
    values = torch.randn(3, NUMEL, generator=torch.Generator().manual_seed(0)).mul_(64).round_().div_(64)
    memory = ErrorFeedback(compressor, torch.zeros(NUMEL), torch.zeros(NUMEL, dtype=torch.bool))

    def body(store: ParameterStore) -> int:
        for number, value in enumerate(values):
            store.gradient_buffer().copy_(value)
            store.push(Push(PushIdentity(0, number, number), number + 1, 1, feedback=memory)).wait()
        return store.meter.counted.pushed_bytes

    setting = Setting(compressor=compressor)
    with stores.cluster(1, setting) as cluster:
        (sent,) = cluster.run(body)
        assert torch.equal(cluster.params + memory.kept, values.sum(0))
        compressed = sum(compressor.length(cut.stop - cut.start) for cut in setting.cuts)
        assert sent == 3 * (4 * NUMEL if stores.kind == "shared_memory" else compressed)


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
    late = Latecomer()

    def waits(store: ParameterStore) -> float:
        push(store, 0, clock=1)
        late.expect()
        fetched(store, min_clock=1)
        return store.waited_s

    def comes(store: ParameterStore) -> float:
        late.come(after_s=0.05)
        store.leave()
        return 0.0

    with stores.cluster(2) as cluster:
        assert cluster.run(waits, comes)[0] > 0.02


def test_a_staleness_aware_rule_divides_the_step_by_the_staleness(stores: Stores) -> None:
    """Pushes of 1 at rate -1, after one fetch: staleness 0, 1, 2, 3 add 1, 1, 1/2, 1/3."""

    def body(store: ParameterStore) -> list[float]:
        fetched(store)
        found = []
        for number in range(4):
            push(store, number, 1.0, number + 1)
            found.append(float(cluster.params[0]))
        return found

    with stores.cluster(1, Setting(harmless_staleness=1)) as cluster:
        (found,) = cluster.run(body)
        assert found == pytest.approx([1, 2, 2.5, 2.5 + 1 / 3])
    with stores.cluster(1) as cluster:
        assert cluster.run(body) == [[1, 2, 3, 4]]


def test_a_late_gradient_is_compensated_from_what_its_worker_fetched(stores: Stores) -> None:
    """Pushes at rate -1, with lambda 1: two workers fetch 0; the first pushes 1, and again once it has fetched, so w is
    2. The other's push of 2 is 2 + 2 x 2 (2 - 0), and its next, of what it has fetched since, 1."""
    turn = [threading.Event() for _ in range(2)]

    def first(store: ParameterStore) -> None:
        fetched(store)
        turn[0].wait(TIMEOUT_S)
        for number in range(2):
            push(store, number, 1.0, number + 1)
            fetched(store)
        turn[1].set()

    def second(store: ParameterStore) -> list[float]:
        fetched(store)
        turn[0].set()
        turn[1].wait(TIMEOUT_S)
        push(store, 2, 2.0, 1)
        found = [float(cluster.params[0])]
        fetched(store)
        push(store, 3, 1.0, 2)
        return [*found, float(cluster.params[0])]

    if not stores.threaded:
        pytest.skip("one thread")
    with stores.cluster(2, Setting(late=ConstantCompensation(1.0))) as cluster:
        assert cluster.run(first, second)[1] == [2 + 10, 12 + 1]
