"""Processes as the system sees them: that needs nothing of the process itself, neither its Python's lock nor that it
runs."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 5.0
"""How long processes that were told to end, or killed, are waited for."""


@dataclass(frozen=True)
class ProcessId:
    """A process of the cluster. The time of its birth tells it from a later one with the same number."""

    node_id: str
    pid: int
    born: float
    """As `born` says."""


@dataclass(frozen=True)
class ProcessState:
    """What the system says of a process that exists."""

    is_stopped: bool
    """By a signal (SIGSTOP) or a debugger."""
    cpu_s: float
    """CPU time that it has used so far, or waited for: one of many on few cores hangs no more than the others."""


_forks = threading.local()


@contextmanager
def sessions_of_their_own() -> Iterator[None]:
    """What this thread starts meanwhile by a fork that runs Python in the child leads a session of its own: signals to
    this process's group (by `timeout`, `kill -- -GROUP`, a terminal that closes) do not reach it."""
    _notice_forks()
    _forks.lead_sessions = True
    try:
        yield
    finally:
        _forks.lead_sessions = False


@cache
def _notice_forks() -> None:
    """Once: what was registered stays so."""
    os.register_at_fork(after_in_child=_lead_a_session_if_asked)


def _lead_a_session_if_asked() -> None:
    if getattr(_forks, "lead_sessions", False):
        os.setsid()


def this_process(node_id: str) -> ProcessId:
    """The process that calls."""
    return ProcessId(node_id, os.getpid(), born(os.getpid()) or 0.0)


def process_numbered(node_id: str, pid: int) -> ProcessId | None:
    """The process of this node that has a number now; None if there is none."""
    birth = born(pid)
    return None if birth is None else ProcessId(node_id, pid, birth)


def look_at(process: ProcessId) -> ProcessState | None:
    """What the system says of a process on this node; None if it is gone."""
    if born(process.pid) != process.born:
        return None
    with suppress(psutil.Error):
        found = psutil.Process(process.pid)
        with found.oneshot():
            times = found.cpu_times()
            is_stopped = found.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            return ProcessState(is_stopped, times.user + times.system + waited_for_cores_s(process.pid))
    return None


def look_at_all(processes: Sequence[ProcessId]) -> list[ProcessState | None]:
    """Likewise of each of several."""
    return [look_at(process) for process in processes]


def waited_for_cores_s(pid: int) -> float:
    """How long the threads that a process of this machine has were ready to run, and had no core; 0 where the kernel
    does not count it."""
    waited_ns = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            waited_ns += int(file.read_text().split()[1])
    return waited_ns / 1e9


def kill(process: ProcessId) -> None:
    """Kill a process on this node by signal, if it is still there: one that hangs or is stopped hears nothing else."""
    if born(process.pid) == process.born:
        with suppress(psutil.Error):
            psutil.Process(process.pid).send_signal(signal.SIGKILL)


def kill_if_stopped(process: ProcessId) -> bool:
    """Kill a process on this node if it is stopped. Whether there is one that runs."""
    state = look_at(process)
    if state is not None and state.is_stopped:
        kill(process)
        return False
    return state is not None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on; None for a process that has ended or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    return None if fields[0] == "Z" else fields


def start_ticks(pid: int) -> int | None:
    """When a process of this machine began, in the kernel's ticks; None if it has ended."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def born(pid: int) -> float | None:
    """When a process of this machine began; None if it has ended. In the kernel's ticks since the machine was booted:
    by the calendar, as psutil tells it, a process is another one once somebody has set the clock."""
    if os.path.isdir("/proc"):
        return start_ticks(pid)
    with suppress(psutil.Error):
        return psutil.Process(pid).create_time()
    return None


def descendants(pid: int) -> list[tuple[int, int]]:
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


def kill_all(processes: list[tuple[int, int]]) -> None:
    """Kill what is left of the processes, and wait until they have ended."""
    for pid, started in processes:
        if start_ticks(pid) == started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_for_all(processes)


def end_children() -> None:
    """Kill all processes below this one; none of its own children is left as a zombie."""
    kill_all(descendants(os.getpid()))
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def wait_for_all(processes: list[tuple[int, int]]) -> None:
    """Wait until they have ended, or STOP_TIMEOUT_S."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(start_ticks(pid) == started for pid, started in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
