"""A Ray that does not start is started once more; then there is a sentence. Nothing else starts one."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from trainers import ClusterInfo
from trainers.errors import ClusterUnavailable
from trainers.runtime.cluster import connection, head, own_ray


class Ray:
    """Does not start so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.folders: list[Path] = []

    def init(self, _temp_dir: str, **_: Any) -> Any:
        self.folders.append(Path(_temp_dir))
        if len(self.folders) <= self.failures:
            raise Exception("The current node timed out\nduring startup.")  # as Ray does
        return SimpleNamespace(dashboard_url="", address_info={"address": "127.0.0.1:1"})

    def shutdown(self) -> None:
        pass


def use(monkeypatch: pytest.MonkeyPatch, ray: Ray) -> None:
    for module in (connection, own_ray):
        monkeypatch.setattr(module, "ray_module", lambda: ray)


def test_the_second_attempt_counts_and_the_first_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(failures=1)
    use(monkeypatch, ray)
    monkeypatch.setattr(own_ray, "is_connected", lambda: False)
    with own_ray.embedded() as info:
        assert info.address == "127.0.0.1:1"
        assert [folder.exists() for folder in ray.folders] == [False, True]
    assert not ray.folders[1].exists()


def test_two_failures_end_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray(failures=2)
    use(monkeypatch, ray)
    with (
        pytest.raises(ClusterUnavailable, match=r"Ray did not start or connect: .* timed out during startup.; is the"),
        own_ray.embedded(),
    ):
        pass
    assert [folder.exists() for folder in ray.folders] == [False, False]


def test_a_head_that_ends_is_started_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[head._Head] = []

    def spawn(state_dir: Path, num_cpus: int) -> head._Head:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        (state_dir / "ray-head.log").write_text("no room for the object store\n")
        started.append(head._Head(2**22, len(started), str(folder), ""))  # a process that is not there
        return started[-1]

    monkeypatch.setattr(head, "_spawn_head", spawn)
    with pytest.raises(ClusterUnavailable, match="did not start: no room for the object store"):
        head.start_head(tmp_path)
    assert len(started) == 2
    assert not any(Path(one.temp_dir).exists() for one in started)


def test_ports_of_a_head_are_none_that_a_connection_may_get_before_ray_binds_them() -> None:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in (head._free_port() for _ in range(100)) if lowest <= port <= highest]


def test_what_ray_says_of_actors_that_end_does_not_reach_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`millrace run -o json` is read by programs; one that was ended for cause is no case for the OOM killer."""
    from ray._private import worker

    monkeypatch.setattr(worker, "_worker_logs_enabled", True)
    message = {"lines": ["A worker died. Causes include the OOM killer"], "pid": "raylet", "is_err": False}
    worker.print_to_stdstream(message, ignore_prefix=False)
    assert "OOM killer" in capsys.readouterr().out
    use(monkeypatch, Ray(failures=0))
    connection.initialise(_temp_dir="")
    worker.print_to_stdstream(message | {"lines": ["another; the OOM killer"]}, ignore_prefix=False)
    assert capsys.readouterr().out == ""


ASK_WITHOUT_ONE = """
from trainers.runtime.cluster import connection
connection._use_token()
import ray
try:
    ray.get_actor("anybody")
except Exception as error:
    print(type(error).__name__, ray.is_initialized())
"""


def test_a_call_of_rays_while_none_is_connected_starts_none() -> None:
    """Ray would start a second cluster at once, which dies with the thread that asked, and its client ends this process
    a minute later."""
    env = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_AUTO_CONNECT"}
    command = [sys.executable, "-c", ASK_WITHOUT_ONE]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["RaySystemError", "False"], done.stderr


def test_a_signal_to_the_group_of_a_program_does_not_reach_its_ray(cluster: ClusterInfo) -> None:
    """The run is to end cleanly first: `timeout` and many a scheduler signal the whole group."""
    daemons = [child for child in psutil.Process().children() if child.name() in ("gcs_server", "raylet")]
    assert len(daemons) == 2
    assert os.getpgid(0) not in {os.getpgid(daemon.pid) for daemon in daemons}
