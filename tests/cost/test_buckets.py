"""Sums that travel beside the passes: worked examples."""

from typing import Any

import numpy as np
import pytest

from tests.cost.fleets import MB, WORK, cluster, fleet
from trainers.algorithms.sync.config import SyncConfig
from trainers.cost.schedules.among_workers import bucketed, canonical_beside, through_lanes
from trainers.cost.schedules.synchronous import left_open
from trainers.cost.workload import Workload


def test_buckets_hide_behind_the_backward_pass() -> None:
    """Three buckets of 1, 2, 1 MB, ready after 10, 20, 30 ms. Two workers ring at 0.1 GB/s: 10, 20, 10 ms. The second
    begins at 20 and ends at 40, the third ends at 50: 20 ms are seen."""
    two = fleet(2, on=cluster(inside=0.1e9))
    found = bucketed(two, WORK, "ring", 1, 1, np.array([0.03]))
    assert found.total_s.tolist() == pytest.approx([0.04])
    assert found.seen_s.tolist() == pytest.approx([0.02])
    assert bucketed(two, WORK, "ring", 1, 1, np.array([1.0])).seen_s.tolist() == pytest.approx([0.01])  # the last one


def test_canonical_sums_hide_behind_the_backward_pass() -> None:
    """Two buckets of 3 and 1 MB, ready after 20 and 30 ms: 40 ms of messages at 0.1 GB/s, which end at 60. Of two
    switches whose four workers share memory as much travels, and each worker reads 7/8 of 4 MB besides."""
    thirty, slow = np.array([0.03]), cluster(inside=0.1e9, between=0.1e9)
    found = canonical_beside("gradients", fleet(2, on=slow), WORK, thirty)
    assert (found.total_s.tolist(), found.seen_s.tolist()) == (pytest.approx([0.04]), pytest.approx([0.03]))
    assert found.sent_bytes.tolist() == [4 * MB]
    composed = canonical_beside("gradients", fleet(8, on=slow, memory_is_shared=True), WORK, thirty)
    assert composed.hidden_s.tolist() == pytest.approx([0.01])
    assert composed.seen_s.tolist() == pytest.approx([0.03 + 0.035])


def test_buckets_hide_behind_the_next_forward_pass_until_a_layer_needs_them() -> None:
    """The same three end at 20, 40 and 50. With 5 ms of data and 15 of forward pass they are needed at 45, 40 and 35,
    the last layer's last: 15 ms are seen."""
    two, thirty = fleet(2, on=cluster(inside=0.1e9)), np.array([0.03])
    found = bucketed(two, WORK, "ring", 1, 1, thirty, 0.005, 0.015)
    assert found.seen_s.tolist() == pytest.approx([0.015])
    assert bucketed(two, WORK, "ring", 1, 1, thirty, 0.02, 0.0).seen_s.tolist() == pytest.approx([0.0])


def test_exchanges_on_several_lanes_share_the_link() -> None:
    """The second, on the other lane, is through at 2 with half of the link. What is left of the first has all of it,
    and the third follows that at 5. In the other column all begin as they are ready, each alone."""
    begins, ends = through_lanes(
        np.array([[0.0, 1.0], [0.0, 8.0], [0.0, 9.5]]), np.array([[4.0, 4.0], [1.0, 1.0], [1.0, 1.0]]), 2
    )
    assert begins.T.tolist() == [[0.0, 0.0, 5.0], [1.0, 8.0, 9.5]]
    assert ends.T.tolist() == [[5.0, 2.0, 6.0], [5.0, 9.0, 10.5]]


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_link_that_is_shared_is_never_idle_while_something_waits(lanes: int) -> None:
    """The last is through when a single lane would be."""
    draw = np.random.default_rng(lanes)
    ready, seconds = np.sort(draw.random((9, 50)), axis=0), draw.random((9, 50)) / 5
    _, ends = through_lanes(ready, seconds, lanes)
    alone = np.zeros(50)
    for index in range(9):
        alone = np.maximum(alone, ready[index]) + seconds[index]
    assert ends.max(axis=0) == pytest.approx(alone)


def test_only_sums_by_messages_of_optimizers_with_a_state_are_left_open() -> None:
    apart = fleet(2, on=cluster(inside=0.1e9))

    def found(config: dict[str, Any], work: Workload = WORK, on_gpus: bool = False) -> bool:
        return bool(left_open(SyncConfig(reduction="fast", **config), work, apart, on_gpus)[0])

    assert found({})
    assert found({"all_reduce": "ring"})
    assert not found({"all_reduce": "library"})
    assert not found({}, on_gpus=True)
    assert not found({}, WORK.model_copy(update={"num_states": 0}))
