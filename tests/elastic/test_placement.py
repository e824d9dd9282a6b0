"""Where shards go: beside the workers but away from who checkpoints, or on nodes of their own."""

import pytest

from trainers.elastic.placement import NodeCapacity, awaited_room, for_copy, own, with_workers
from trainers.errors import SpecRejected

ONE = NodeCapacity(1)


@pytest.mark.parametrize(
    ("workers", "shards", "expected"),
    [
        (["a", "a"], 3, ["a", "a", "a"]),
        (["a", "b"], 3, ["b", "b", "b"]),
        (["a", "b", "a", "c"], 3, ["b", "c", "b"]),
        (["a", "b", "c", "d"], 2, ["b", "c"]),
        (["a"], 0, []),
    ],
)
def test_with_workers_in_turn_and_away_from_the_first(workers: list[str], shards: int, expected: list[str]) -> None:
    nodes = {name: NodeCapacity(2) for name in "abcd"}
    assert with_workers(nodes, workers, ONE, (shards, NodeCapacity(0))) == expected


def test_with_workers_where_shards_reserve_cpus() -> None:
    """What the others have no room for goes to the first worker's node; what that has none for neither is refused."""
    nodes = {"a": NodeCapacity(3), "b": NodeCapacity(2.5), "c": NodeCapacity(1)}
    placed = [with_workers(nodes, ["a", "b", "c"], ONE, (shards, NodeCapacity(0.5))) for shards in (2, 4)]
    assert placed == [["b", "b"], ["b", "b", "b", "a"]]
    with pytest.raises(SpecRejected, match=r"^ps\.cpus: .* room for 7 of 8 shards of 0\.5 CPUs; make it smaller"):
        with_workers(nodes, ["a", "b", "c"], ONE, (8, NodeCapacity(0.5)))


@pytest.mark.parametrize(
    ("nodes", "workers", "shards", "expected"),
    [
        ({"a": 2, "b": 2}, 2, (3, NodeCapacity(0)), ["a", "a", "a"]),
        ({"a": 4, "b": 1}, 4, (2, NodeCapacity(0)), ["b", "b"]),
        ({"a": 1, "b": 4, "c": 1}, 4, (3, NodeCapacity(0)), ["a", "c", "a"]),
        ({"a": 2, "b": 4, "c": 1}, 4, (3, ONE), ["c", "a", "a"]),
        ({"a": 9, "b": 9}, 1, (1, NodeCapacity(2)), ["a"]),
        ({"a": 0, "b": 2}, 2, (1, NodeCapacity(0)), ["a"]),
    ],
)
def test_own_takes_the_nodes_that_the_workers_miss_least(
    nodes: dict[str, int], workers: int, shards: tuple[int, NodeCapacity], expected: list[str]
) -> None:
    assert own({name: NodeCapacity(cpus) for name, cpus in nodes.items()}, (workers, ONE), shards) == expected


def test_own_prefers_nodes_without_gpus_for_workers_that_take_one() -> None:
    nodes = {"big": NodeCapacity(64, 8), "small": NodeCapacity(4), "other": NodeCapacity(64, 8)}
    assert own(nodes, (8, NodeCapacity(1, 1)), (3, ONE)) == ["small", "big", "small"]


@pytest.mark.parametrize(
    ("nodes", "shards", "message"),
    [
        ({"a": 4}, (1, NodeCapacity(0)), "the workers need all of the 1 nodes"),
        ({"a": 1, "b": 1}, (1, NodeCapacity(0)), "the workers need all of the 2 nodes"),
        ({"a": 2, "b": 1}, (1, NodeCapacity(2)), "or no other has room for a shard"),
        ({"a": 2, "b": 1}, (2, ONE), "have room for 1 of 2 shards"),
    ],
)
def test_own_says_when_it_cannot_be(nodes: dict[str, int], shards: tuple[int, NodeCapacity], message: str) -> None:
    with pytest.raises(SpecRejected, match=r"^ps\.location: own: .*add a node, or use with_workers") as error:
        own({name: NodeCapacity(cpus) for name, cpus in nodes.items()}, (2, ONE), shards)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("shard", "workers", "held", "expected"),
    [
        ("a", "abc", "a", "b"),
        ("a", "abc", "abb", "c"),
        ("b", "ab", "bc", "a"),
        ("b", "b", "bd", "a"),
        ("a", "d", "abdd", "d"),
    ],
)
def test_a_copy_goes_elsewhere_beside_workers_and_where_there_is_least(
    shard: str, workers: str, held: str, expected: str
) -> None:
    nodes = {name: NodeCapacity(2) for name in "abcd"} | {"head": NodeCapacity(0)}
    assert for_copy(nodes, shard, set(workers), list(held)) == expected


def test_there_is_no_copy_on_the_shards_own_node_or_on_one_for_no_work() -> None:
    assert for_copy({"a": NodeCapacity(2), "head": NodeCapacity(0)}, "a", {"a"}, ["a"]) is None


@pytest.mark.parametrize(
    ("nodes", "is_refused", "told"),
    [
        ([], False, "waits for the cluster to grow: 2 of 4 workers of 2 CPUs and 1 GPU have no room yet"),
        ([3.0, 3.0, 3.0], False, "waits for the cluster to grow: 2 of 4 workers"),  # a worker is not divided
        ([8.0], False, "waits for the cluster to grow, or for others to leave it: 2 of 4 workers"),
        ([8.0], True, "waits for room: 2 of 4 workers of 2 CPUs and 1 GPU have no room, and Ray's autoscaler adds no"),
    ],
)
def test_what_is_said_where_workers_find_no_room(nodes: list[float], is_refused: bool, told: str) -> None:
    cluster = [NodeCapacity(cpus, 4) for cpus in nodes]
    assert awaited_room(cluster, NodeCapacity(2, 1), 4, 2, is_refused).startswith(told)
    assert "1 of 4 workers of 1 CPU has no room" in awaited_room(cluster, ONE, 4, 1, is_refused)
