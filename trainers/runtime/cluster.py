"""The Ray that runs happen on: an embedded one, a head of its own that outlives us, or one that is there already.

Ray is imported inside functions, so that reading this file costs nothing. Nothing here ends a process that it did not
start: the head is remembered by process id and start time in `cluster.json` of the state directory.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainers.errors import ClusterUnavailable
from trainers.spec import TrainSpec

NAMESPACE = "millrace"
LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_prestart_worker_first_driver": "0",  # processes that no actor of ours would take
    "RAY_worker_niceness": "0",  # by default Ray's own daemons go before the training
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a sweep has logs of its own
    "TUNE_WARN_THRESHOLD_S": "5",
}
ONLOOKER = re.compile(rb"(?![^\0]*raylet\0).*(dashboard|monitor\.py|DashboardAgent)", re.DOTALL)
"""Command lines of these; the raylet's names its agents, but what it starts inherits its priority."""
ONLOOKERS_NICENESS = 10
LONGEST_TEMP = 40  # bytes; Ray adds 62 of its own, and a unix socket's path holds 107


@dataclass(frozen=True)
class ClusterInfo:
    """Where a Ray cluster is."""

    address: str
    """Host and port of its head, for `--address`."""

    dashboard_url: str
    """Ray's dashboard, for a browser; empty where there is none."""


@dataclass(frozen=True)
class Resources:
    """An amount of what Ray hands out."""

    cpus: float
    gpus: float

    def fits(self, into: "Resources") -> bool:
        """Whether this much can be taken from `into`."""
        return self.cpus <= into.cpus + 1e-9 and self.gpus <= into.gpus + 1e-9

    def __add__(self, other: "Resources") -> "Resources":
        return Resources(self.cpus + other.cpus, self.gpus + other.gpus)

    def __sub__(self, other: "Resources") -> "Resources":
        return self + other * -1

    def __mul__(self, count: float) -> "Resources":
        return Resources(self.cpus * count, self.gpus * count)


def needs(spec: TrainSpec) -> Resources:
    """What must be free for a run to start."""
    shards = spec.ps.shards * spec.ps.cpus if spec.algorithm.uses_parameter_server else 0.0
    return Resources(spec.workers.count * spec.workers.cpus + shards, spec.workers.count * spec.workers.gpus)


@contextlib.contextmanager
def embedded(num_cpus: int | None = None, at_least: int = 2) -> Iterator[ClusterInfo]:
    """A Ray on this machine for this process alone; nothing of it is left at the end.

    Args:
        num_cpus: Logical CPUs; by default as many as the machine has.
        at_least: But not fewer than these by default: logical CPUs only count who may start.
    """
    temp = _temp_dir()
    try:
        info = _init(
            address="local",
            num_cpus=num_cpus or max(default_cpus(), at_least),
            include_dashboard=True,
            dashboard_host=LOOPBACK,
            _temp_dir=str(temp),
        )
        _give_way(os.getpid())
        yield info
    finally:
        processes = _descendants(os.getpid()) if _initialised() else []
        detach()
        _kill(processes)  # Ray leaves its dashboard's helpers to notice by themselves, seconds later
        shutil.rmtree(temp, ignore_errors=True)


def attach(address: str, json_logs: bool = False) -> ClusterInfo:
    """Connect this process to a cluster that runs already.

    Args:
        address: Host and port of its head.
        json_logs: Whether this process, and the runs that it starts, log a JSON object a line.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():  # Ray itself would try for half a minute
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise ClusterUnavailable(f"no Ray cluster answers at {address}: {error.strerror or error}") from None
    _use_token()
    if json_logs:
        return _init(address=address, logging_config=_ray().LoggingConfig(encoding="JSON"))
    return _init(address=address)


def detach() -> None:
    """Disconnect; what was attached to goes on."""
    if _initialised():
        _ray().shutdown()


def total_resources() -> Resources:
    """What the connected cluster has."""
    return _resources(_ray().cluster_resources())


def available_resources() -> Resources:
    """What of it is free now."""
    return _resources(_ray().available_resources())


def metrics_targets() -> list[str]:
    """Host and port where each living node of the connected cluster exports its metrics."""
    alive = [node for node in _ray().nodes() if node["Alive"]]
    return [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in alive]


def default_cpus() -> int:
    """Logical CPUs of a Ray of ours: at least two, so that two workers run on any machine."""
    return max(2, os.cpu_count() or 1)


@dataclass(frozen=True)
class _Head:
    """What `cluster.json` remembers of a head that was started from here."""

    pid: int
    started: int
    """Clock ticks from the machine's start to the process's: a process id that was given out again differs."""
    temp_dir: str
    dashboard_url: str

    @property
    def alive(self) -> bool:
        return _start_ticks(self.pid) == self.started

    @property
    def address(self) -> str | None:
        """Known as soon as Ray has written it, which is when the head is ready."""
        path = Path(self.temp_dir) / "ray_current_cluster"
        return (path.read_text().strip() or None) if path.exists() else None


def start_head(state_dir: Path, num_cpus: int | None = None) -> ClusterInfo:
    """A Ray head as a process of its own that outlives this one; finds the living one at the second call."""
    with _locked(state_dir):
        head = _read(state_dir)
        if head is None or not head.alive:
            if head is not None:
                shutil.rmtree(head.temp_dir, ignore_errors=True)
            head = _spawn_head(state_dir, num_cpus or default_cpus())
            (state_dir / "cluster.json").write_text(json.dumps(asdict(head)))
        deadline = time.monotonic() + START_TIMEOUT_S
        while (address := head.address) is None:
            if not head.alive or time.monotonic() > deadline:
                _forget(state_dir, head)
                raise ClusterUnavailable(f"Ray's head did not start: {_last_lines(state_dir / 'ray-head.log')}")
            time.sleep(0.05)
        _give_way(head.pid)
        return ClusterInfo(address=address, dashboard_url=head.dashboard_url)


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
    temp, dashboard, client = _temp_dir(), _free_port(), _free_port()
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
    env = {**os.environ, **RAY_ENVIRONMENT, "PYTHONUNBUFFERED": "1"}
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
    arguments = [*ray, "start", "--head", "--block", *(f"--{name}={value}" for name, value in options.items())]
    pid = os.posix_spawn(sys.executable, arguments, env, file_actions=output, setsid=True)
    return _Head(pid, _start_ticks(pid) or 0, str(temp), f"http://{LOOPBACK}:{dashboard}")


def _forget(state_dir: Path, head: _Head) -> None:
    if head.alive:
        processes = [(head.pid, head.started), *_descendants(head.pid)]
        os.kill(head.pid, signal.SIGTERM)  # Ray would now drain the node for half a minute
        _wait(processes)
        _kill(processes)
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


def _ray() -> Any:
    """Ray, imported when it is first needed; half of it is untyped."""
    import ray

    return ray


def _init(**options: Any) -> ClusterInfo:
    os.environ.update(RAY_ENVIRONMENT)
    ray = _ray()
    logging.getLogger("ray").setLevel(logging.ERROR)  # before it announces its token
    try:
        context = ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        raise ClusterUnavailable(f"Ray did not start or connect: {error}") from error
    url = context.dashboard_url
    return ClusterInfo(str(context.address_info["address"]), f"http://{url}" if url else "")


def _use_token() -> None:
    """Show the token that this user has to a cluster that may ask for it; Ray does so only where it found the cluster
    by itself. Whatever RAY_AUTH_MODE says counts more."""
    _ray()
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would announce the token
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _initialised() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def _resources(amounts: dict[str, float]) -> Resources:
    return Resources(cpus=amounts.get("CPU", 0.0), gpus=amounts.get("GPU", 0.0))


def _temp_dir() -> Path:
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="millrace-", dir=base if len(base) + 18 <= LONGEST_TEMP else "/tmp"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " | ".join(lines[-5:]) or "it wrote nothing"


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on; none for a process that is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] == "Z" else fields


def _start_ticks(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def _descendants(pid: int) -> list[tuple[int, int]]:
    """Process id and start of all processes below `pid`."""
    children: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if name.isdigit() and (fields := _stat(int(name))) is not None:
            children.setdefault(int(fields[1]), []).append((int(name), int(fields[19])))
    found: list[tuple[int, int]] = []
    ahead = [pid]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += [child for child, _ in below]
    return found


def _give_way(root: int) -> None:
    """Have the onlookers among a Ray's processes (dashboard, its agent, monitors) run when the training leaves time: a
    worker that one of them interrupts keeps all the others waiting."""
    for pid, _ in _descendants(root):
        with contextlib.suppress(OSError):  # it has ended
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            for thread in os.listdir(f"/proc/{pid}/task") if ONLOOKER.match(command) else ():
                os.setpriority(os.PRIO_PROCESS, int(thread), ONLOOKERS_NICENESS)


def _kill(processes: list[tuple[int, int]]) -> None:
    """SIGKILL to what is left of the processes, and wait until they are gone."""
    for pid, started in processes:
        if _start_ticks(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    _wait(processes)


def _wait(processes: list[tuple[int, int]]) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(_start_ticks(pid) == started for pid, started in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
