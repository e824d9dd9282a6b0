"""Processes as the system sees them."""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from tests.runtime.runs import soon
from trainers.runtime.processes import ProcessId, kill, kill_if_stopped, look_at, this_process


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def of(process: subprocess.Popen[bytes]) -> ProcessId:
    return ProcessId("here", process.pid, psutil.Process(process.pid).create_time())


def test_this_one_runs_and_uses_cpu_time() -> None:
    here = this_process("here")
    assert here.pid == os.getpid()
    state = look_at(here)
    assert state is not None
    assert not state.is_stopped
    assert state.cpu_s > 0


def test_one_that_is_stopped_is_killed_and_one_that_runs_is_not(child: subprocess.Popen[bytes]) -> None:
    process = of(child)
    assert not kill_if_stopped(process)
    assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    soon(lambda: kill_if_stopped(process))
    assert child.wait(30) == -signal.SIGKILL
    assert look_at(process) is None
    assert not kill_if_stopped(process)
    kill(process)


def test_a_later_process_with_the_same_number_is_another(child: subprocess.Popen[bytes]) -> None:
    earlier = replace(of(child), born_s=1.0)
    assert look_at(earlier) is None
    kill(earlier)
    assert child.poll() is None
