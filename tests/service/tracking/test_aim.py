"""Jobs as runs of Aim, in a real repository and behind a real server: nothing missing, whoever is killed in between."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement.processes import free_port
from service.database.job_store import Job
from service.tracking.aim_process import FILE_NAME
from service.tracking.mirror import TrackedJob
from service.tracking.tracker import Tracking
from tests.service.fakes import FakeRun

pytestmark = [
    pytest.mark.skipif(find_spec("aim") is None, reason="the extra `aim` is not installed"),
    pytest.mark.timeout(900),
]

WITHIN_S = 300.0
READ = """
import json, sys
from aim import Repo, Run
found = []
for name in Repo(sys.argv[1]).list_all_runs():
    run = Run(name, repo=sys.argv[1], force_resume=True, system_tracking_interval=None, capture_terminal_logs=False)
    figures = {one.name: [[step, value] for step, (value, *_) in one.data.items()] for one in run.metrics()}
    found.append({"name": run.name, "experiment": run.experiment, "figures": figures} | run.get(...))
print(json.dumps(found))
"""


def runs_in(repo: Path) -> list[dict[str, Any]]:
    """What a process of its own finds in a repository that nobody writes any more."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ, str(repo)], capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def is_whole(repo: Path) -> None:
    """There is the job's one run, with each figure of its log once."""
    (found,) = runs_in(repo)
    assert (found["name"], found["experiment"], found["state"]) == ("mine", "tried", "SUCCEEDED")
    assert (found["job"], found["labels"]) == ("job1", {"team": "blue"})
    assert found["spec"]["algorithm"]["name"] == "sync"
    assert found["figures"]["train/loss"] == [[2, 0.5], [3, 0.5], [4, 0.5]]
    assert found["figures"]["examples"] == [[2, 1000.0], [3, 2000.0], [4, 3000.0]]


def soon(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_a_process_that_is_killed_leaves_no_gap_and_nothing_twice(
    tmp_path: Path, job: tuple[TrackedJob, FakeRun]
) -> None:
    tracked, run = job
    repo, line = tmp_path / "repo", tracked.model_dump_json() + "\n"
    command = [sys.executable, "-m", "service.tracking.aim_process", str(repo), "tried", str(tmp_path / "open")]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    print(line, file=first.stdin, flush=True)
    soon((run.run_dir / FILE_NAME).exists)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    run.step(3.0)
    run.succeed()
    subprocess.run(command, input="", text=True, timeout=WITHIN_S, check=True)  # it knows of the job
    assert not list((tmp_path / "open").glob("*.json"))
    subprocess.run(command, input=line, text=True, timeout=WITHIN_S, check=True)  # and is told of it once more
    is_whole(repo)


@pytest.mark.long
def test_a_server_that_is_killed_misses_nothing_when_it_is_back(
    tmp_path: Path, job: tuple[TrackedJob, FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.tracking.tracker.START_AGAIN_S", 0.0)
    tracked, run = job
    repo = tmp_path / "repo"
    repo.mkdir()
    port = free_port()
    command = [sys.executable, "-c", "from aim.cli.cli import cli_entry_point; cli_entry_point()", "server"]
    command += ["--repo", str(repo), "--host", "127.0.0.1", "--port", str(port), "--yes"]

    def server() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, start_new_session=True)

    tracking = Tracking("aim", f"aim://127.0.0.1:{port}", "tried", str(tmp_path / "open"))
    tracking.start()
    tracking.follow(Job.model_construct(**dict(tracked)))
    serving = server()
    try:
        soon((run.run_dir / FILE_NAME).exists)
        kill(serving)
        run.step(3.0)
        run.succeed()
        serving = server()
        soon(lambda: (tmp_path / "open").exists() and not list((tmp_path / "open").glob("*.json")))
    finally:
        tracking.close()
        kill(serving)
    is_whole(repo)


def kill(server: subprocess.Popen[bytes]) -> None:
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()
