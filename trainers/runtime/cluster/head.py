"""A Ray head that outlives the process that starts it.

Nothing here ends a process that it did not start: the head is remembered by process id and start time in `cluster.json`
of the state directory.
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from trainers.errors import ClusterUnavailable
from trainers.runtime.cluster.connection import (
    LOOPBACK,
    RAY_COMMAND,
    RAY_ENVIRONMENT,
    RAYLET_ENVIRONMENT,
    STARTS,
    ClusterInfo,
)
from trainers.runtime.cluster.essentials import START
from trainers.runtime.cluster.leftovers import temporary_folder
from trainers.runtime.cluster.onlookers import give_way
from trainers.runtime.cluster.resources import default_cpus
from trainers.runtime.processes import descendants, kill_all, start_ticks, wait_for_all

START_TIMEOUT_S = 600.0
"""How long a head that is alive may take until it is ready; 5 s are usual, and 75 s were seen under a load of 30."""
PORTS = 20000, 32768
"""Above those that Ray gives to its workers, and below those that Linux gives to connections."""


@dataclass(frozen=True)
class _Head:
    """What `cluster.json` remembers of a head that was started from here."""

    pid: int
    started: int
    """When the process started, in clock ticks since the machine did: a later process with the same id differs."""
    temp_dir: str
    dashboard_url: str

    @property
    def alive(self) -> bool:
        return start_ticks(self.pid) == self.started

    @property
    def address(self) -> str | None:
        """Known as soon as Ray has written it, which is when the head is ready."""
        path = Path(self.temp_dir) / "ray_current_cluster"
        return (path.read_text().strip() or None) if path.exists() else None


def start_head(state_dir: Path, num_cpus: int | None = None) -> ClusterInfo:
    """A Ray head as a process of its own that outlives this one; finds the living one at the second call."""
    with _locked(state_dir):
        head = _read(state_dir)
        for _ in range(STARTS):
            if head is None or not head.alive:
                if head is not None:
                    shutil.rmtree(head.temp_dir, ignore_errors=True)
                head = _spawn_head(state_dir, num_cpus or default_cpus())
                (state_dir / "cluster.json").write_text(json.dumps(asdict(head)))
            if (address := _address_of(head)) is not None:
                give_way(head.pid)
                return ClusterInfo(address=address, dashboard_url=head.dashboard_url)
            _forget(state_dir, head)
        raise ClusterUnavailable(f"Ray's head did not start: {_last_lines(state_dir / 'ray-head.log')}")


def _address_of(head: _Head) -> str | None:
    """The address of a head, once it is ready; None if it ends before, or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (address := head.address) is None:
        if not head.alive or time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return address


def head_is_alive(state_dir: Path) -> bool:
    """Whether the head that `start_head` started here is there; with any of Ray's own processes it ends."""
    head = _read(state_dir)
    return head is not None and head.alive


def stop_head(state_dir: Path) -> bool:
    """End the head that `start_head` started here, and all that runs on it. Returns whether there was one."""
    with _locked(state_dir):
        head = _read(state_dir)
        if head is None:
            return False
        alive = head.alive
        _forget(state_dir, head)
        return alive


def _spawn_head(state_dir: Path, num_cpus: int) -> _Head:
    temp, dashboard, client = str(temporary_folder()), _free_port(), _free_port()
    ray = [sys.executable, "-c", RAY_COMMAND]
    env = {**os.environ, **RAY_ENVIRONMENT, **RAYLET_ENVIRONMENT, "PYTHONUNBUFFERED": "1", "TMPDIR": temp}
    log = state_dir / "ray-head.log"
    output = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    # Ray's own token keeps other users of the machine out; `ray.init` makes one by itself, `ray start` does not.
    token = os.posix_spawn(sys.executable, [*ray, "get-auth-token", "--generate"], env, file_actions=output)
    os.waitpid(token, 0)
    options = {
        "port": 0, "num-cpus": num_cpus, "temp-dir": temp, "dashboard-host": LOOPBACK, "dashboard-port": dashboard,
        "dashboard-agent-listen-port": 0, "ray-client-server-port": client, "include-log-monitor": False,
    }  # fmt: skip
    start = [sys.executable, "-P", "-c", START]
    arguments = [*start, "start", "--head", "--block", *(f"--{name}={value}" for name, value in options.items())]
    pid = os.posix_spawn(sys.executable, arguments, env, file_actions=output, setsid=True)
    return _Head(pid, start_ticks(pid) or 0, temp, f"http://{LOOPBACK}:{dashboard}")


def _forget(state_dir: Path, head: _Head) -> None:
    if head.alive:
        processes = [(head.pid, head.started), *descendants(head.pid)]
        os.kill(head.pid, signal.SIGTERM)  # Ray would now drain the node for half a minute
        wait_for_all(processes)
        kill_all(processes)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(head.pid, os.WNOHANG)
    shutil.rmtree(head.temp_dir, ignore_errors=True)
    (state_dir / "cluster.json").unlink(missing_ok=True)


def _read(state_dir: Path) -> _Head | None:
    path = state_dir / "cluster.json"
    try:
        return _Head(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


@contextlib.contextmanager
def _locked(state_dir: Path) -> Iterator[None]:
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "cluster.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    """A TCP port that nothing listens on. Ray binds it seconds later, so it is none of those that Linux gives to
    whoever asks for any one: the head would end, just as this process connects to it."""
    while True:
        port = random.SystemRandom().randrange(*PORTS)
        with contextlib.suppress(OSError), socket.create_server((LOOPBACK, port)):
            return port


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " | ".join(lines[-5:]) or "it wrote nothing"
