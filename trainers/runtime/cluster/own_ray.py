"""A Ray of this process's own, which ends with it."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from trainers.errors import ClusterUnavailable
from trainers.runtime import fork_server
from trainers.runtime.cluster.connection import (
    CONNECT_TIMEOUT_S,
    LOOPBACK,
    RAYLET_ENVIRONMENT,
    STARTS,
    ClusterInfo,
    detach,
    initialise,
    is_connected,
    ray_module,
)
from trainers.runtime.cluster.essentials import only_essentials
from trainers.runtime.cluster.leftovers import own_temporary_folder, remove_own
from trainers.runtime.cluster.onlookers import give_way
from trainers.runtime.cluster.resources import default_cpus
from trainers.runtime.processes import descendants, kill_all, sessions_of_their_own

_own: list[tuple[ClusterInfo, list[tuple[int, int]]]] = []
"""The Ray that is this process's own, while there is one, and what it was started as: process ids and starts."""


@contextlib.contextmanager
def embedded(num_cpus: int | None = None, at_least: int = 2, dashboard: bool = False) -> Iterator[ClusterInfo]:
    """A Ray on this machine for this process alone; nothing of it is left at the end.

    Args:
        num_cpus: Logical CPUs; by default as many as the machine has.
        at_least: The fewest by default: logical CPUs do no more than limit how many actors may start.
        dashboard: With Ray's dashboard, which takes a second or two to start.
    """
    before = descendants(os.getpid())
    info, temp, server = _start_embedded(num_cpus or max(default_cpus(), at_least), dashboard)
    try:
        give_way(os.getpid())
        _own.append((info, [process for process in descendants(os.getpid()) if process not in before]))
        yield info
    finally:
        _own.clear()
        processes = descendants(os.getpid()) if is_connected() else []
        detach()
        server.close()
        kill_all(processes)  # Ray leaves its dashboard's helpers to notice by themselves, seconds later
        remove_own(temp)


def own_ray_has_ended() -> bool:
    """Whether a Ray that `embedded` started here is there no more. Then nothing may be asked of it: nobody would
    answer, and Ray's client ends this process after a minute. Its head stops listening as soon as it is told to end."""
    for info, _ in _own:
        host, _, port = info.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
        except ConnectionRefusedError:
            return True
        except OSError:  # a busy machine
            return False
    return False


def kill_own_ray() -> None:
    """Kill what is left of such a Ray: told to end, it lets actors go on for a while."""
    for _, processes in _own:
        kill_all([below for pid, _ in processes for below in descendants(pid)] + processes)


def ensure_own_ray() -> None:
    """Raises ClusterUnavailable if it is there no more."""
    if own_ray_has_ended():
        raise ClusterUnavailable(
            "the Ray that was started for this ended, killed by somebody or for want of memory; what checkpoints were "
            "written are in the run directory"
        )


def _start_embedded(num_cpus: int, dashboard: bool) -> tuple[ClusterInfo, Path, contextlib.ExitStack]:
    """A Ray for this process, its temporary folder, and its fork server. What a start that failed has left is
    removed."""
    for left in reversed(range(STARTS)):
        temp, before, server = own_temporary_folder(), descendants(os.getpid()), contextlib.ExitStack()
        try:
            # A signal to our group is ours to answer, and Ray must be there until the run has ended cleanly.
            with _temporary_files_in(temp), sessions_of_their_own(), only_essentials(dashboard):
                os.environ.update(RAYLET_ENVIRONMENT)
                server.enter_context(fork_server.early())
                info = initialise(
                    address="local",
                    num_cpus=num_cpus,
                    include_dashboard=dashboard,
                    dashboard_host=LOOPBACK,
                    _temp_dir=str(temp),
                )
        except ClusterUnavailable:
            ray_module().shutdown()
            server.close()
            kill_all([process for process in descendants(os.getpid()) if process not in before])
            remove_own(temp)
            if not left:
                raise
        else:
            return info, temp, server
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
