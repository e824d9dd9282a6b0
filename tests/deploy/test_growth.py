"""The service on a cluster without workers, to which Ray's autoscaler adds nodes as jobs need them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.conftest import eventually
from tests.api.http.test_serve import LEFT, MILLRACE
from tests.deploy.autoscaled import autoscaled

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

CPUS, NODES = 2, 2
SHORT = {"data": {"name": "digits", "limit": 200}, "model": "mlp", "epochs": 2, "evaluate": {"every_epochs": 0}}
WITHIN_S = 600.0
"""A node was there after 25 s on two cores with a load of 20."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp") as folder, autoscaled(Path(folder), CPUS, NODES) as at:
        yield at


@contextmanager
def serving(address: str, state_dir: Path, grows_to: list[dict[str, int]]) -> Iterator[httpx2.Client]:
    """A service that is told what the cluster may become."""
    command = [MILLRACE, "serve", "--state-dir", str(state_dir), "--port", "0", "--address", address]
    env = os.environ | {"MILLRACE_GROWS_TO": json.dumps(grows_to)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = next(line.split()[3] for line in process.stdout if "serves on" in line)
        with httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
            yield http
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


def submit(http: httpx2.Client, **fields: Any) -> str:
    answer = http.post("/v1/jobs", json=SHORT | fields)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def ended(http: httpx2.Client, job: str) -> dict[str, Any]:
    """The job at its end."""
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(http.get(f"/v1/jobs/{job}").json())
        return found["finished"] is not None

    eventually(has_ended, WITHIN_S)
    return found


def reasons(http: httpx2.Client, job: str) -> dict[str, str]:
    """By its reason, the last sentence of each of the job's states."""
    events = http.get(f"/v1/jobs/{job}/events", headers={"Accept": "application/json"}).json()
    states = [event["data"] for event in events if event["type"] == "state"]
    return {state["reason"]: state["message"] for state in states}


def left(address: str, job: str) -> list[str]:
    """The actors and placement groups that are left of a job."""
    command = [sys.executable, "-c", LEFT, address, job]
    return list(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def test_jobs_make_the_cluster_grow_from_no_worker_at_all(address: str, tmp_path: Path) -> None:
    """The first needs one node, and the second, which starts beside it, one more."""
    with serving(address, tmp_path, [{"nodes": NODES, "cpus": CPUS}]) as http:
        cluster = http.get("/v1/cluster").json()
        assert (cluster["total"]["cpus"], cluster["grows_to"]["cpus"]) == (0, 4)
        too_large = http.post("/v1/jobs", json=SHORT | {"workers": 5})
        assert too_large.status_code == 422
        assert "may grow to 2 nodes of 2 CPUs, where 5 workers of 1 CPU find no room" in too_large.json()["detail"]
        jobs = [submit(http, workers=2), submit(http, workers=2, algorithm="downpour")]
        for job in jobs:
            done = ended(http, job)
            assert done["state"] == "SUCCEEDED", done
            assert reasons(http, job).get("WaitsForRoom", "waits for the cluster to grow: ").startswith("waits for")
        assert http.get("/v1/cluster").json()["total"]["cpus"] == 4
        assert [left(address, job) for job in jobs] == [[], []]


def test_where_more_was_promised_than_comes_a_job_says_so_and_leaves_nothing(address: str, tmp_path: Path) -> None:
    with serving(address, tmp_path, [{"nodes": NODES, "cpus": 64}]) as http:
        job = submit(http, workers={"count": 2, "cpus": CPUS + 1})

        def says_so() -> bool:
            return "Ray's autoscaler adds no node" in str(http.get(f"/v1/jobs/{job}").json()["message"])

        eventually(says_so, WITHIN_S)
        shown = http.get(f"/v1/jobs/{job}").json()
        assert (shown["state"], shown["reason"]) == ("STARTING", "WaitsForRoom")
        assert shown["message"].startswith("waits for room: 2 of 2 workers of 3 CPUs have no room, and")
        assert len(left(address, job)) == 3  # the coordinator, and room for two workers
        http.post(f"/v1/jobs/{job}/cancel").raise_for_status()
        assert ended(http, job)["message"] == "cancelled before the first step"
        assert left(address, job) == []
