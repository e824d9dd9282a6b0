"""Which cores the workers of a node keep to."""

import pytest

from trainers.elastic.binding import CoreMap, Slots, shares, why

LAPTOP = CoreMap((((0,), (1,)),))
SERVER = CoreMap((((0, 8), (1, 9), (2, 10), (3, 11)), ((4, 12), (5, 13), (6, 14), (7, 15))))
"""Two NUMA nodes of four cores with two hyperthreads each."""
FIRST, SECOND = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)


@pytest.mark.parametrize(
    ("cores", "threads", "bind", "expected"),
    [
        (SERVER, 1, "none", []),
        (LAPTOP, 1, "auto", []),
        (SERVER, 2, "auto", [FIRST, SECOND] * 2),
        (SERVER, 5, "auto", []),  # a worker would have threads on both
        (LAPTOP, 1, "cores", [(0,), (1,)]),
        (SERVER, 1, "cores", [(0, 8), (4, 12), (1, 9), (5, 13), (2, 10), (6, 14), (3, 11), (7, 15)]),
        (SERVER, 3, "cores", [(0, 1, 2, 8, 9, 10), (4, 5, 6, 12, 13, 14)]),
        (SERVER, 5, "cores", []),
        (CoreMap((SERVER.nodes[0], SERVER.nodes[1][:1])), 1, "cores", [(0, 8), (4, 12), (1, 9), (2, 10), (3, 11)]),
        (CoreMap(), 1, "cores", []),
    ],
)  # fmt: skip
def test_the_share_of_each_slot(cores: CoreMap, threads: int, bind: str, expected: list[tuple[int, ...]]) -> None:
    assert shares(cores, threads, bind) == expected  # type: ignore[arg-type]


def test_auto_says_why() -> None:
    assert "any of 2 cores: all are as near to the memory" in why(LAPTOP, 1, "auto")
    assert "keeps to one of 2 NUMA nodes" in why(SERVER, 4, "auto")
    assert "no NUMA node has enough for 5 threads" in why(SERVER, 5, "auto")
    assert "the first 8 workers of a node keeps to cores of its own for 1 thread" in why(SERVER, 1, "cores")


def test_a_worker_keeps_its_slot_and_the_next_one_takes_that_of_the_dead() -> None:
    slots, alive = Slots(), [0, 1, 2, 3]
    assert [slots.of(n, "ab"[n % 2], alive) for n in alive] == [0, 0, 1, 1]
    assert slots.of(4, "a", [1, 2, 3, 4]) == 0  # worker 0 died
    assert slots.of(2, "a", [1, 2, 3, 4]) == 1
