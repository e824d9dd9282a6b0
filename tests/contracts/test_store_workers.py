"""What every implementation of `ParameterStore` must do when workers join, leave, die or are closed."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.contracts.groups import TIMEOUT_S
from tests.contracts.shards import NUMEL, Setting, Stores, begin_push, connect_store, fetched, push
from trainers.errors import MillraceError, StoreClosed
from trainers.parameter_server.local import LocalStore
from trainers.parameter_server.protocol import ParameterStore


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


def test_a_worker_hears_whether_its_fetch_was_answered_and_waits_no_longer_than_it_wants(stores: Stores) -> None:
    """The shards do not answer before another worker's clock is there. Only over a network one can be cut off."""
    if stores.kind not in ("process_group", "object_store"):
        pytest.skip("nobody is cut off within a process or a node")
    may_push = threading.Event()

    def asks(store: ParameterStore) -> list[bool]:
        push(store, 1, 0.0, clock=1)
        asked = store.fetch(min_clock=1)
        found = [store.answers(0.0), store.answers(0.05)]
        may_push.set()
        found += [store.answers(TIMEOUT_S), store.answers(0.0)]
        assert bool((asked.wait().params == 1).all())
        store.leave()
        return found

    def pushes(store: ParameterStore) -> list[bool]:
        assert may_push.wait(TIMEOUT_S)
        push(store, 0, 1.0, clock=1)
        store.leave()
        return []

    with stores.cluster(2, Setting(num_shards=2)) as cluster:
        assert cluster.run(asks, pushes) == [[False, False, True, True], []]


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
