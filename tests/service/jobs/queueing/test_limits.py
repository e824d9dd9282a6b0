"""What a cluster with an autoscaler may become, and which runs fit it then."""

from typing import Any

import pytest
from pydantic import ValidationError

from service.jobs.queueing.growth import Growth
from tests.runtime.runs import spec
from trainers import NodeGroup, Resources

NONE = Resources(0, 0)
SMALL, LARGE = NodeGroup(nodes=8, cpus=4), NodeGroup(nodes=4, cpus=8, gpus=1)
GROWTH = Growth((SMALL, LARGE))


def refused(workers: dict[str, Any], growth: Growth = GROWTH, total: Resources = NONE, **fields: Any) -> str | None:
    return growth.refuses(spec(workers=workers, **fields), total)


def test_a_cluster_without_an_autoscaler_is_as_large_as_it_is() -> None:
    stays = Growth()
    assert stays.beyond(Resources(4, 1)) == NONE
    assert refused({"count": 4}, stays, Resources(4, 0)) is None
    why = "the job needs 5 CPUs and 0 GPUs at once, the cluster has 4 and 0; ask for fewer workers or for less a worker"
    assert refused({"count": 5}, stays, Resources(4, 0)) == why
    assert "if an autoscaler adds nodes to it, say in the settings which (`grows_to`)" in str(refused({}, stays))


def test_what_it_may_get_is_what_it_has_not_yet() -> None:
    assert GROWTH.most == Resources(64, 4)
    assert GROWTH.beyond(NONE) == Resources(64, 4)
    assert GROWTH.beyond(Resources(60, 4)) == Resources(4, 0)
    assert GROWTH.beyond(Resources(100, 4)) == NONE  # it is larger than it was said to become


@pytest.mark.parametrize(
    ("workers", "fits"),
    [
        ({"count": 64}, True),
        ({"count": 65}, False),
        ({"count": 16, "cpus": 3}, True),  # one on each small node, two on each large one
        ({"count": 17, "cpus": 3}, False),  # although 51 of 64 CPUs are fewer than that
        ({"count": 4, "cpus": 8}, True),
        ({"count": 1, "cpus": 9}, False),
        ({"count": 4, "cpus": 8, "gpus": 1}, True),
        ({"count": 5, "gpus": 1}, False),
        ({"count": 1, "gpus": 2}, False),
    ],
)
def test_each_worker_needs_a_node_that_holds_it(workers: dict[str, Any], fits: bool) -> None:
    assert (refused(workers) is None) == fits


def test_shards_that_reserve_something_need_room_as_well() -> None:
    fields: dict[str, Any] = {"algorithm": "downpour", "ps": {"shards": 2, "cpus": 2}}
    assert refused({"count": 28}, Growth((SMALL,)), **fields) is None
    assert refused({"count": 29}, Growth((SMALL,)), **fields) is not None
    own: dict[str, Any] = {"algorithm": "downpour", "ps": {"shards": 2, "location": "own"}}
    assert refused({"count": 28}, Growth((SMALL,)), **own) is None
    assert refused({"count": 29}, Growth((SMALL,)), **own) is not None  # no node is left to the shards


def test_a_refusal_says_what_the_cluster_may_become() -> None:
    assert refused({"count": 3, "cpus": 9}) == (
        "the job needs 27 CPUs and 0 GPUs at once, the cluster has 0 and 0 and may grow to 8 nodes of 4 CPUs and 4 "
        "nodes of 8 CPUs and 1 GPU, where 3 workers of 9 CPUs find no room; ask for fewer workers or for less a worker"
    )


def test_what_fits_today_is_not_refused_whatever_was_said() -> None:
    assert refused({"count": 1, "cpus": 16}, total=Resources(16, 0)) is None


@pytest.mark.parametrize("wrong", [{"nodes": 0}, {"nodes": 10**6}, {"cpus": -1}, {"gpu": 1}])
def test_a_slip_of_the_pen_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NodeGroup.model_validate({"nodes": 1, "cpus": 1} | wrong)
