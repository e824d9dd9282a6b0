"""Ray runs the code of everybody whom it lets in: what the deployment files start lets in nobody without a token.

Each head is started by the file's own command, in its own environment, on ports of its own.
"""

import json
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
import ray

from benchmarks.measurement.processes import free_port
from tests.deploy.test_deployment import CLUSTER, COMPOSE, MANIFESTS, RAY_CLUSTER, STATE, TOOLS
from tests.runtime.runs import soon
from trainers import cluster_is_open
from trainers.runtime.processes import descendants, kill_all, start_ticks

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

READY_S = 300.0
"""A head was ready after 20 s on two cores with a load of 25."""


@dataclass(frozen=True)
class Start:
    """How a file starts Ray's head."""

    command: list[str]
    env: dict[str, str]
    token: str


@dataclass(frozen=True)
class Head:
    address: str
    dashboard: str

    def lists_jobs(self, token: str | None) -> int:
        """The status with which it answers who asks for the jobs."""
        return self._status(Request(f"{self.dashboard}/api/jobs/", headers=_shows(token)))

    def runs_a_job(self, token: str | None) -> int:
        """The status with which it answers who submits one."""
        body = json.dumps({"entrypoint": "true"}).encode()
        headers = {"Content-Type": "application/json"} | _shows(token)
        return self._status(Request(f"{self.dashboard}/api/jobs/", body, headers))

    def _status(self, request: Request) -> int:
        try:
            with urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code
        except URLError:
            return 0


def _shows(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def environment(**given: str) -> dict[str, str]:
    """That of a container: nothing of this Ray's."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return ours | {"PATH": f"{TOOLS}:{os.environ['PATH']}"} | given


def compose(folder: Path) -> Start:
    """The token comes from the service that makes it, the second time no other one."""
    maker, head = COMPOSE["services"]["ray-token"], COMPOSE["services"]["head"]
    assert head["depends_on"] == {"ray-token": {"condition": "service_completed_successfully"}}
    env = {name: value.replace(STATE, str(folder)) for name, value in head["environment"].items()}
    made = []
    for _ in range(2):
        command = [word.replace(STATE, str(folder)) for word in maker["command"]]
        done = subprocess.run(
            command, env=environment(**maker["environment"]), capture_output=True, text=True, check=True
        )
        made.append(Path(env["RAY_AUTH_TOKEN_PATH"]).read_text())
        assert made[0] not in done.stdout + done.stderr, "the logs show it to whoever may read them"
    assert made[0] == made[1]
    assert Path(env["RAY_AUTH_TOKEN_PATH"]).stat().st_mode & 0o077 == 0
    return Start(head["command"], env, made[0])


def kubernetes(folder: Path) -> Start:
    """As KubeRay does it: the options become variables of every pod."""
    token = secrets.token_hex(16)
    options = [f"--{name}={value}" for name, value in RAY_CLUSTER["headGroupSpec"]["rayStartParams"].items()]
    given = {"RAY_AUTH_MODE": RAY_CLUSTER["authOptions"]["mode"], "RAY_AUTH_TOKEN": token}
    return Start(["ray", "start", "--head", "--block", *options], given, token)


def ray_up(folder: Path) -> Start:
    """As `ray up` does it: the file that the user has made lies in the container."""
    (target,) = CLUSTER["file_mounts"]
    token_file = folder / Path(target).relative_to("/home/millrace")
    subprocess.run(
        ["ray", "get-auth-token", "--generate"], env=environment(HOME=str(folder)), capture_output=True, check=True
    )
    options = [option for option in CLUSTER["docker"]["run_options"] if option.startswith("--env=")]
    env = dict(option.removeprefix("--env=").split("=", 1) for option in options)
    words = shlex.split(CLUSTER["head_start_ray_commands"][-1])
    command = [word for word in words if not word.startswith("--autoscaling-config")] + ["--block"]
    return Start(command, env | {"HOME": str(folder)}, token_file.read_text())


@contextmanager
def started(start: Start, folder: Path) -> Iterator[Head]:
    """The head, on free ports of the loopback address."""
    port, dashboard = free_port(), free_port()
    ours = {
        "port": port, "dashboard-port": dashboard, "dashboard-host": "127.0.0.1", "metrics-export-port": free_port(),
        "temp-dir": folder / "ray", "dashboard-agent-listen-port": 0, "ray-client-server-port": free_port(),
    }  # fmt: skip
    words = [word for word in start.command if word.partition("=")[0].removeprefix("--") not in ours]
    words += [f"--{name}={value}" for name, value in ours.items()]
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *words[1:]]
    with (folder / "head.log").open("w") as log:
        process = subprocess.Popen(command, env=environment(**start.env), stdout=log, stderr=log)
    head = Head(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}")
    try:
        soon(lambda: head.lists_jobs(start.token) == 200 or process.poll() is not None, READY_S)
        assert process.poll() is None, (folder / "head.log").read_text()
        yield head
    finally:
        kill_all([(process.pid, start_ticks(process.pid) or 0), *descendants(process.pid)])
        process.wait()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: Ray's sockets lie in it, and their paths may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="mr-", dir="/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize("how", [compose, kubernetes, ray_up])
def test_nobody_runs_code_without_the_token(how: object, folder: Path) -> None:
    assert callable(how)
    start = how(folder)
    with started(start, folder) as head:
        assert head.runs_a_job(None) == 401
        assert head.runs_a_job("of-another-cluster") == 403
        assert not cluster_is_open(head.address)


def test_a_cluster_without_a_token_is_told_apart(folder: Path) -> None:
    command = ["ray", "start", "--head", "--block", "--num-cpus=0"]
    with started(Start(command, {"RAY_AUTH_MODE": "disabled"}, ""), folder) as head:
        assert head.lists_jobs(None) == 200
        assert cluster_is_open(head.address)


def test_on_kubernetes_rays_ports_are_open_to_its_own_pods_only() -> None:
    policy = MANIFESTS["network.yaml"]["spec"]
    pods = {"matchLabels": {"ray.io/cluster": MANIFESTS["cluster.yaml"]["metadata"]["name"]}}
    assert policy["podSelector"] == pods
    among, outside = policy["ingress"]
    assert among == {"from": [{"podSelector": pods}]}
    assert {port["port"] for port in outside["ports"]} == {"http", "metrics"}
    assert ray.__version__ == RAY_CLUSTER["rayVersion"]
