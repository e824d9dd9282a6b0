"""The Ray that runs happen on: an embedded one, a head of its own that outlives this process, or one that exists.

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
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainers.errors import ClusterUnavailable
from trainers.runtime.leftovers import own_temporary_folder, remove_own, temporary_folder
from trainers.runtime.processes import descendants, kill_all, start_ticks, wait_for_all
from trainers.spec import TrainSpec

NAMESPACE = "millrace"
LOOPBACK = "127.0.0.1"
RAY_COMMAND = "from ray.scripts.scripts import main; main()"
STARTS = 2
"""How often Ray is started before it counts as failed. It gives up after 30 s, which a busy machine exceeds."""
START_TIMEOUT_S = 600.0
"""How long a head that is alive may take until it is ready; 5 s are usual, and 75 s were seen under a load of 30."""
CONNECT_TIMEOUT_S = 3.0
RAY_ENVIRONMENT = {
    "RAY_ENABLE_AUTO_CONNECT": "0",  # or a call of Ray's while none is connected would start a second cluster unasked
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_prestart_worker_first_driver": "0",  # processes that no actor of ours would take
    "RAY_gcs_server_port_wait_time_s": "120",  # 20 by default, which a busy machine exceeds
    "RAY_worker_niceness": "0",  # by default Ray's own daemons go before the training
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a sweep has logs of its own
    "TUNE_WARN_THRESHOLD_S": "5",
}
ONLOOKER = re.compile(rb"(?![^\0]*raylet\0).*(dashboard|monitor\.py|DashboardAgent)", re.DOTALL)
"""The command lines of processes of Ray's that only look on. The raylet's own command line names its agents too, but
must not match: the processes that it starts inherit its priority."""
ONLOOKERS_NICENESS = 10


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
    shards = spec.ps.shards * spec.ps.cpus if spec.algorithm.traits.uses_parameter_server else 0.0
    return Resources(spec.workers.count * spec.workers.cpus + shards, spec.workers.count * spec.workers.gpus)


@contextlib.contextmanager
def embedded(num_cpus: int | None = None, at_least: int = 2) -> Iterator[ClusterInfo]:
    """A Ray on this machine for this process alone; nothing of it is left at the end.

    Args:
        num_cpus: Logical CPUs; by default as many as the machine has.
        at_least: The fewest by default: logical CPUs do no more than limit how many actors may start.
    """
    info, temp = _start_embedded(num_cpus or max(default_cpus(), at_least))
    try:
        _give_way(os.getpid())
        yield info
    finally:
        processes = descendants(os.getpid()) if _initialised() else []
        detach()
        kill_all(processes)  # Ray leaves its dashboard's helpers to notice by themselves, seconds later
        remove_own(temp)


def _start_embedded(num_cpus: int) -> tuple[ClusterInfo, Path]:
    """A Ray for this process, and its temporary folder. What a start that failed has left is removed."""
    for left in reversed(range(STARTS)):
        temp, before = own_temporary_folder(), descendants(os.getpid())
        try:
            with _temporary_files_in(temp):
                info = _init(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=True,
                    dashboard_host=LOOPBACK,
                    _temp_dir=str(temp),
                )
        except ClusterUnavailable:
            _ray().shutdown()
            kill_all([process for process in descendants(os.getpid()) if process not in before])
            remove_own(temp)
            if not left:
                raise
        else:
            return info, temp
    raise AssertionError("the last attempt returns or raises")


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """What is started meanwhile puts its temporary files there: processes that are killed leave some, and the folder is
    removed with its Ray."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


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


def cluster_is_open(address: str) -> bool:
    """Whether the cluster at an address lets in whoever shows no token. Takes seconds: it is tried by a process of its
    own, because a process knows one token."""
    command = [sys.executable, "-c", RAY_COMMAND, "status", "--address", address]
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


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
                _give_way(head.pid)
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
    env = {**os.environ, **RAY_ENVIRONMENT, "PYTHONUNBUFFERED": "1", "TMPDIR": temp}
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


def _ray() -> Any:
    """Ray, imported when it is first needed; half of it is untyped."""
    os.environ.update(RAY_ENVIRONMENT)  # some of it is read at the import
    import ray

    return ray


def _init(**options: Any) -> ClusterInfo:
    ray = _ray()
    logging.getLogger("ray").setLevel(logging.ERROR)  # before it announces its token
    try:
        context = ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises plain ones too, where a machine is too busy for it
        text = " ".join(str(error).split())
        raise ClusterUnavailable(
            f"Ray did not start or connect: {text}; is the machine very busy, or its disk or memory full?"
        ) from error
    _hush_raylet()
    url = context.dashboard_url
    return ClusterInfo(str(context.address_info["address"]), f"http://{url}" if url else "")


def _hush_raylet() -> None:
    """Leave out what Ray prints on stdout of each actor that ends, even where nothing is to be logged: that the OOM
    killer is a common cause. The run's own log says why, and stdout may be a program's to read."""
    from ray._private import worker  # Ray has no public way

    worker._worker_logs_enabled = False


def _use_token() -> None:
    """Show this user's token to a cluster that may ask for it; Ray does so by itself only if it has found the cluster
    by itself. RAY_AUTH_MODE takes precedence."""
    _ray()
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would announce the token
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _initialised() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def _resources(amounts: dict[str, float]) -> Resources:
    return Resources(cpus=amounts.get("CPU", 0.0), gpus=amounts.get("GPU", 0.0))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return " | ".join(lines[-5:]) or "it wrote nothing"


def _give_way(root: int) -> None:
    """Lower the priority of those of Ray's processes that only look on (dashboard, its agent, monitors): a worker that
    one of them interrupts keeps all the other workers waiting."""
    for pid, _ in descendants(root):
        with contextlib.suppress(OSError):  # it has ended
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            for thread in os.listdir(f"/proc/{pid}/task") if ONLOOKER.match(command) else ():
                os.setpriority(os.PRIO_PROCESS, int(thread), ONLOOKERS_NICENESS)
