"""Processes of the benchmark: started afresh, waited for together, and ended by their ids whatever happens."""

import ctypes
import multiprocessing
import os
import random
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, TypeVar

from benchmarks.measurement import proc

T = TypeVar("T")
GRACE_S = 8.0
PR_SET_PDEATHSIG = 1
FREE_PORTS = (20_000, 32_768)
"""From and to, between those of Ray's workers and those of the kernel."""


class MeasurementError(RuntimeError):
    """A process of the benchmark raised, or vanished."""


def together(function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], timeout_s: float = 180.0) -> list[T]:
    """Run `function` in a fresh process for each tuple of arguments; their results in that order.

    Raises:
        MeasurementError: One of them raised (with its traceback), died, or took longer than `timeout_s`.
    """
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in arguments]
    children = [
        context.Process(target=_child, args=(send, function, values), name=function.__name__)
        for (_, send), values in zip(pipes, arguments, strict=True)
    ]
    try:
        for child in children:
            child.start()
        for _, send in pipes:
            send.close()
        return _collect([receive for receive, _ in pipes], function.__name__, timeout_s)
    finally:
        end(children)


def alone(function: Callable[..., T], *arguments: Any, timeout_s: float = 180.0) -> T:
    """Run `function` in a fresh process, so that nothing of it stays in this one."""
    return together(function, [arguments], timeout_s)[0]


def end(children: Sequence[BaseProcess]) -> None:
    """Let children go that are done; ask the others to end, then end them and all that they started."""
    started = [child for child in children if child.pid is not None]
    family = [pid for child in started for pid in proc.descendants(child.pid or 0)]
    for child in started:
        if child.exitcode is None:
            child.join(0.5)
        if child.exitcode is None:
            child.terminate()
    deadline = time.monotonic() + GRACE_S
    for child in started:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.exitcode is None:
            family += proc.descendants(child.pid or 0)
            child.kill()
            child.join()
    for pid in family:
        if proc.exists(pid):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    """A TCP port on the loopback that nothing listens on: none of those that Linux gives to whoever asks for any one,
    so that nobody else has it by the time that it is used."""
    while True:
        port = random.SystemRandom().randrange(*FREE_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def exit_on_sigterm() -> None:
    """Make SIGTERM an ordinary SystemExit, so that `finally` clauses run."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def _collect(receivers: list[Connection], name: str, timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_s
    while len(results) < len(receivers):
        waiting = [r for i, r in enumerate(receivers) if i not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise MeasurementError(f"{name} took longer than {timeout_s:.0f} s")
        for receiver in ready:
            assert isinstance(receiver, Connection)
            try:
                value, error = receiver.recv()
            except EOFError:
                raise MeasurementError(f"{name} vanished") from None
            if error:
                raise MeasurementError(f"{name} failed:\n{error}")
            results[receivers.index(receiver)] = value
    return [results[i] for i in range(len(receivers))]


def _child(send: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # also when the parent is killed outright
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, and ends us
    exit_on_sigterm()
    try:
        send.send((function(*arguments), None))
    except Exception:
        send.send((None, traceback.format_exc()))
    finally:
        send.close()
