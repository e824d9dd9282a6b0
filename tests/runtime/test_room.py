"""A run whose workers find no room says so, and gives back what they had when it is told to stop."""

from pathlib import Path

import pytest

from tests.runtime.runs import gone_soon, spec, start
from trainers import NO_ROOM, ClusterInfo


@pytest.mark.long
def test_one_worker_more_than_the_cluster_holds(tmp_path: Path, cluster: ClusterInfo) -> None:
    watched = start("roomless", spec(workers={"count": 9, "virtual": 9}), tmp_path)
    said = watched.until(lambda event: event.data.get("reason") == NO_ROOM).data
    assert said["state"] == "STARTING"
    assert said["message"] == "waits for the cluster to grow: 1 of 9 workers of 1 CPU has no room yet"
    watched.run.cancel()
    assert watched.end().data["message"] == "cancelled before the first step"
    gone_soon("roomless", [])
