"""Processes as the system sees them."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from tests.runtime.runs import soon
from trainers.runtime.processes import (
    ProcessId,
    kill,
    kill_if_stopped,
    look_at,
    process_numbered,
    this_process,
    waited_for_cores_s,
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def of(process: subprocess.Popen[bytes]) -> ProcessId:
    found = process_numbered("here", process.pid)
    assert found is not None
    return found


def test_this_one_runs_and_uses_cpu_time() -> None:
    here = this_process("here")
    assert here.pid == os.getpid()
    state = look_at(here)
    assert state is not None
    assert not state.is_stopped
    assert state.cpu_s > 0


def test_one_that_is_stopped_is_killed_and_one_that_runs_is_not(child: subprocess.Popen[bytes]) -> None:
    process = of(child)
    assert kill_if_stopped(process)
    assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    soon(lambda: not kill_if_stopped(process))
    assert child.wait(30) == -signal.SIGKILL
    assert look_at(process) is None
    assert not kill_if_stopped(process)
    kill(process)


def test_a_later_process_with_the_same_number_is_another(child: subprocess.Popen[bytes]) -> None:
    earlier = replace(of(child), born=1.0)
    assert look_at(earlier) is None
    kill(earlier)
    assert child.poll() is None


def test_one_is_known_again_after_the_clock_was_set(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system tells when it was booted by the clock as it is now."""
    process, booted_s = of(child), psutil.boot_time()
    monkeypatch.setattr("psutil._psplatform.boot_time", lambda: booted_s + 1)
    assert psutil.boot_time() == booted_s + 1
    assert look_at(process) is not None
    child.send_signal(signal.SIGSTOP)
    soon(lambda: not kill_if_stopped(process))
    assert child.wait(30) == -signal.SIGKILL


def test_one_that_waits_for_a_core_counts_as_one_that_computes() -> None:
    """As of hundreds on few cores: one that comes after others on the same core. They are three, so that it waits most
    of the time even where all are as nice as it is."""
    core = min(os.sched_getaffinity(0))
    loop = ["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(subprocess.Popen(loop)) for _ in range(3)]
        starved = stack.enter_context(subprocess.Popen(["nice", "-n", "19", *loop]))
        try:
            process = of(starved)
            soon(lambda: (state := look_at(process)) is not None and state.cpu_s > 1)
            began, before = time.monotonic(), look_at(process)
            assert before is not None

            def counts() -> bool:
                after, passed_s = look_at(process), time.monotonic() - began
                assert after is not None
                return (
                    passed_s > 1
                    and after.cpu_s - before.cpu_s > passed_s / 2
                    and waited_for_cores_s(starved.pid) > passed_s / 2
                )

            soon(counts)  # the kernel counts a wait once it is over
        finally:
            for one in (*others, starved):
                one.kill()


def test_one_that_sleeps_waits_for_no_core(child: subprocess.Popen[bytes]) -> None:
    assert waited_for_cores_s(child.pid) < 10
    child.kill()
    child.wait(30)
    assert waited_for_cores_s(child.pid) == 0
