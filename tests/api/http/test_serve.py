"""`millrace serve` as a process, with a real Ray: stopped and started again, and how much memory it takes."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.conftest import eventually

MILLRACE = Path(sys.executable).parent / "millrace"
LIMIT_MB = 250
WITHIN_S = 200.0
STARTS_WITHIN_S = 800.0
"""More than the limit that it sets itself; a start beside others under a load of 12 took 56 s."""


LEFT = """
import json, sys, ray, trainers
from ray.util.placement_group import placement_group_table
trainers.attach(sys.argv[1])
names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
groups = [group["name"] for group in placement_group_table().values() if group["state"] != "REMOVED"]
print(json.dumps([name for name in names + groups if name.startswith(sys.argv[2])]))
"""
"""Prints the actors and placement groups of a job."""


class Serving:
    """One `millrace serve`, stopped at the end. A start that stood still, and said where, is begun once more, as what
    supervises a service does."""

    def __init__(self, state_dir: Path, num_cpus: int = 2, *options: str) -> None:
        command = [MILLRACE, "serve", "--state-dir", str(state_dir), "--port", "0", "--num-cpus", str(num_cpus)]
        command += options
        self.command = command
        self.process = self._start()
        self.said = ""

    def __enter__(self) -> str:
        if (url := self._url()) is None and "in attach" in self.said:
            self.process = self._start()
            url = self._url()
        if url is None:
            raise AssertionError(f"it does not serve: {self.said}")
        return url

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """After an error, it also says where it stood, in a note of that error."""
        self.process.send_signal(signal.SIGTERM if error is None else signal.SIGABRT)
        try:
            stdout, stderr = self.process.communicate(timeout=200)
        finally:
            self.process.kill()
        self.said += stdout + stderr
        if error is not None:
            error.add_note(f"the service said: {self.said}")

    def _start(self) -> subprocess.Popen[str]:
        pipe, env = subprocess.PIPE, {**os.environ, "PYTHONFAULTHANDLER": "1"}
        return subprocess.Popen(self.command, stdout=pipe, stderr=pipe, text=True, env=env)

    def _url(self) -> str | None:
        """Where it serves, as soon as it does; None if it ends before, or says where it stands when its time is up."""
        assert self.process.stdout is not None
        patience = threading.Timer(STARTS_WITHIN_S, self.process.send_signal, [signal.SIGABRT])
        patience.start()
        try:
            for line in self.process.stdout:
                self.said += line
                if (url := re.search(r"serves on (http://\S+)", line)) is not None:
                    return url[1]
        finally:
            patience.cancel()
        self.said += "".join(self.process.communicate())
        return None


def pss_mb(pid: int) -> float:
    """Memory of a process, what it shares counted by its part."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)[1]) / 1024  # type: ignore[index]


def using(folder: str) -> list[int]:
    """Processes that name a folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if folder.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.long
def test_a_server_comes_and_goes_while_its_ray_stays(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    try:
        first = Serving(state_dir)
        with first as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
            assert http.get("/readyz").json() == {"status": "ok"}
            cluster = http.get("/v1/cluster").json()
            assert cluster["total"]["cpus"] == 2
            answer = http.post("/v1/jobs", json={"workers": 3})
            assert answer.status_code == 422
            assert "needs 3 CPUs" in answer.json()["detail"]
            assert http.get("/v1/jobs").json()["jobs"] == []
            assert http.get("/openapi.json").status_code == 200
            assert pss_mb(first.process.pid) < LIMIT_MB
            other = subprocess.run(
                [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)],
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
            assert other.returncode == 2
            assert "another server uses" in other.stderr
        assert first.process.returncode == 0, first.said
        assert "go on" in first.said
        with Serving(state_dir) as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
            assert http.get("/v1/cluster").json()["address"] == cluster["address"]
    finally:
        temp = re.search(r'"temp_dir": "([^"]+)"', (state_dir / "cluster.json").read_text())
        stopped = subprocess.run(
            [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)],
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
    assert "Ray has ended" in stopped.stdout
    assert temp is not None
    assert using(temp[1]) == []
    assert not Path(temp[1]).exists()
    assert not (state_dir / "cluster.json").exists()


SHORT = {"data": "digits", "model": "mlp", "epochs": 60, "workers": 1, "batch": 16}
SHORT |= {"evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}}


class Jobs:
    """What a test asks of one server."""

    def __init__(self, http: httpx2.Client) -> None:
        self.http = http

    def submit(self, **fields: Any) -> str:
        answer = self.http.post("/v1/jobs", json=SHORT | fields)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def tell(self, job: str, verb: str) -> None:
        answer = self.http.post(f"/v1/jobs/{job}/{verb}")
        assert answer.status_code == 202, answer.text

    def state(self, job: str) -> str:
        return str(self.http.get(f"/v1/jobs/{job}").json()["state"])

    def reached(self, job: str, *states: str) -> str:
        eventually(lambda: self.state(job) in states, within_s=WITHIN_S)
        return self.state(job)


def brought_to(state: str, jobs: Jobs) -> tuple[str, list[str]]:
    """A job in a state, and those that it waits for."""
    before = [jobs.submit(epochs=100_000, workers=2)] if state == "QUEUED" else []
    if before:
        jobs.reached(before[0], "RUNNING")
    job = jobs.submit()
    if state in ("PAUSING", "PAUSED", "CANCELLING"):
        jobs.reached(job, "RUNNING")
        jobs.tell(job, "cancel" if state == "CANCELLING" else "pause")
    jobs.reached(job, state)
    return job, before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_killed_in_every_state_of_a_job_finds_it_in_the_next(tmp_path: Path) -> None:
    state_dir, known = tmp_path / "state", list[str]()
    try:
        for state in ("QUEUED", "STARTING", "RUNNING", "PAUSING", "PAUSED", "CANCELLING"):
            first = Serving(state_dir)
            with first as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
                job, before = brought_to(state, Jobs(http))
                first.process.kill()
            known += [*before, job]
            with Serving(state_dir) as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
                jobs = Jobs(http)
                for other in before:
                    jobs.tell(other, "cancel")
                    jobs.reached(other, "CANCELLED")
                if state in ("PAUSING", "PAUSED"):
                    jobs.reached(job, "PAUSED")
                    jobs.tell(job, "resume")
                end = jobs.reached(job, "SUCCEEDED", "FAILED", "CANCELLED")
                assert end == ("CANCELLED" if state == "CANCELLING" else "SUCCEEDED"), state
                assert [one["id"] for one in jobs.http.get("/v1/jobs").json()["jobs"]] == known[::-1]
                address = jobs.http.get("/v1/cluster").json()["address"]
                eventually(lambda job=job, address=address: not left(address, job))  # type: ignore[misc]
    finally:
        stop = [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)]
        subprocess.run(stop, capture_output=True, check=False, timeout=200)


@pytest.mark.long
def test_a_job_goes_on_from_its_checkpoint_when_the_server_and_its_whole_ray_died(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    try:
        first = Serving(state_dir)
        with first as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
            jobs = Jobs(http)
            job = jobs.submit(epochs=100_000, checkpoint={"every_epochs": 20})
            log = state_dir / "runs" / job / "events.jsonl"
            jobs.reached(job, "RUNNING")
            eventually(lambda: bool(told(log, "checkpoint")), within_s=WITHIN_S)
            first.process.kill()
            for pid in using(json.loads((state_dir / "cluster.json").read_text())["temp_dir"]):
                with suppress(ProcessLookupError):  # it has died with another of them
                    os.kill(pid, signal.SIGKILL)
        with Serving(state_dir) as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
            jobs = Jobs(http)
            trains_again(log)
            jobs.tell(job, "cancel")
            jobs.reached(job, "CANCELLED")
        assert [event["seq"] for event in told(log)] == list(range(1, len(told(log)) + 1))
        kept = max(event["data"]["examples"] for event in told(log, "checkpoint") if event["seq"] < lost(log))
        assert min(event["data"]["examples"] for event in told(log, "step") if event["seq"] > lost(log)) > kept
    finally:
        stop = [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)]
        subprocess.run(stop, capture_output=True, check=False, timeout=200)


@pytest.mark.long
@pytest.mark.parametrize("died", ["raylet", "gcs_server"])
def test_a_service_whose_ray_dies_begins_anew_and_its_job_goes_on(died: str, tmp_path: Path) -> None:
    """Otherwise Ray's client hangs, and ends the service after a minute. It keeps its process and its port."""
    state_dir = tmp_path / "state"
    try:
        serving = Serving(state_dir)
        with serving as url, httpx2.Client(base_url=url, trust_env=False, timeout=60) as http:
            jobs = Jobs(http)
            job = jobs.submit(epochs=100_000, checkpoint={"every_epochs": 20})
            log = state_dir / "runs" / job / "events.jsonl"
            eventually(lambda: bool(told(log, "checkpoint")), within_s=WITHIN_S)
            temp = json.loads((state_dir / "cluster.json").read_text())["temp_dir"]
            for pid in using(temp):
                if died in Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]:
                    os.kill(pid, signal.SIGKILL)
            trains_again(log)
            assert json.loads((state_dir / "cluster.json").read_text())["temp_dir"] != temp
            jobs.tell(job, "cancel")
            jobs.reached(job, "CANCELLED")
        assert serving.process.returncode == 0
        assert "Ray has ended beneath the service, which begins anew" in serving.said
        assert [event["seq"] for event in told(log)] == list(range(1, len(told(log)) + 1))
    finally:
        stop = [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)]
        subprocess.run(stop, capture_output=True, check=False, timeout=200)


def told(log: Path, event_type: str | None = None) -> list[dict[str, Any]]:
    """The events in a run's log, of one type or all; none before the job begins."""
    if not log.exists():
        return []
    events = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [event for event in events if event_type in (None, event["type"])]


def lost(log: Path) -> float:
    """The number of the event that tells that the coordinator died. It may have gone on for a while without its Ray."""
    states = (event for event in told(log, "state") if event["data"]["reason"] == "CoordinatorLost")
    return next((int(event["seq"]) for event in states), math.inf)


def trains_again(log: Path) -> None:
    """Wait until there was a step after the coordinator had died."""
    eventually(lambda: bool(told(log, "step")) and told(log, "step")[-1]["seq"] > lost(log), within_s=WITHIN_S)


def left(address: str, job: str) -> list[str]:
    asked = subprocess.run([sys.executable, "-c", LEFT, address, job], capture_output=True, text=True, check=True)
    return list(json.loads(asked.stdout.splitlines()[-1]))
