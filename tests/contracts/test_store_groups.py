"""What every implementation of `ParameterStore` must do with groups of parameters that travel by themselves."""

from collections.abc import Sequence

from torch import Tensor

from tests.contracts.shards import NUMEL, Setting, Stores
from trainers.parameter_server.protocol import ParameterStore, Push
from trainers.parameter_server.push_identity import PushIdentity

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
        assert store.meter.counted.sent_bytes == 4 * (2 * NUMEL)
        assert store.meter.counted.received_bytes == 4 * (NUMEL + 64 * 5)

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
