"""What the actors use of their machines: read in their processes, told in the log by the coordinator. Without Ray."""

import os
import socket
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.runtime.control.fakes import FakeLog
from trainers.elastic.heartbeat import BEAT_S, Reading
from trainers.errors import Fenced
from trainers.events import Usage
from trainers.runtime.actors.usage import GpuMeter, UsageMeter
from trainers.runtime.control.onlookers.usage import EVERY_S, LONGEST_S, RESOLUTION, SILENT_S, UsageLog


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def usage(log: FakeLog, clock: Clock) -> UsageLog:
    usage = UsageLog(log, clock)
    usage.own.read_if_due = lambda device=None: None  # type: ignore[method-assign]
    return usage


def reading(actor: str, at_s: float, cpu_s: float, **more: Any) -> Reading:
    return Reading(actor, at_s, cpu_s, **{"memory_bytes": 100_000_000, **more})


def test_a_process_reads_its_time_its_memory_and_what_its_connections_carried() -> None:
    meter = UsageMeter("worker/0")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as there:
        here, _ = server.accept()
        before = meter.read()
        there.sendall(b"x" * 50_000)
        assert len(here.recv(50_000, socket.MSG_WAITALL)) == 50_000
        after = meter.read()
        here.close()
    gone = meter.read()  # a connection that is closed still counts, and its number may be another file's by now
    for read in (after, gone):
        assert 50_000 <= read.sent_bytes - before.sent_bytes < 60_000
        assert 50_000 <= read.received_bytes - before.received_bytes < 60_000
    assert before.memory_bytes > 10_000_000
    assert after.cpu_s >= before.cpu_s > 0
    assert (after.actor, after.gpu_share, after.gpu_bytes) == ("worker/0", None, None)


def test_reading_closes_nothing_and_opens_nothing() -> None:
    meter = UsageMeter("worker/0")
    one, other = socket.socketpair()
    with one, other:
        before = set(os.listdir("/proc/self/fd"))
        socket.setdefaulttimeout(5.0)
        try:
            meter.read()
        finally:
            socket.setdefaulttimeout(None)
        assert set(os.listdir("/proc/self/fd")) == before
        assert os.get_blocking(one.fileno())
        one.sendall(b"still here")
        assert other.recv(100) == b"still here"


def test_a_system_that_tells_nothing_is_no_reason_not_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = UsageMeter("worker/0")
    monkeypatch.setattr(os, "listdir", lambda path: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    assert meter.read_if_due() is None


def test_a_meter_is_not_read_again_at_once() -> None:
    meter = UsageMeter("worker/0")
    assert meter.read_if_due() is not None
    assert meter.read_if_due() is None


def test_rates_are_those_since_the_event_before_and_memory_the_most(
    usage: UsageLog, log: FakeLog, clock: Clock
) -> None:
    for second in range(3):
        for number in (10, 2):  # the clocks of the actors are their own
            more = {"sent_bytes": 4_000_000 * second, "memory_bytes": 200_000_000 - 50_000_000 * (second % 2)}
            usage.hear(reading(f"worker/{number}", 1000 * number + 2 * second, 1.5 * second, **more))
    usage.hear(reading("shard/0", 5.0, 1.0))  # no second one yet
    clock.now_s += EVERY_S
    usage.look()
    usage.look()
    (told,) = log.of("usage")
    assert told == {
        "seconds": 3.0, "actors": ["worker/2", "worker/10"], "cpu_cores": [0.75, 0.75], "memory_mb": [200.0, 200.0],
        "sent_kb_per_s": [2000.0, 2000.0], "received_kb_per_s": [0.0, 0.0],
    }  # fmt: skip
    assert Usage.model_validate(told).gpu_share == []
    usage.hear(reading("shard/0", 9.0, 3.0, gpu_share=0.25, gpu_bytes=5_000_000))
    usage.hear(reading("worker/2", 2008.0, 3.0))
    usage.hear(reading("worker/10", 3.0, 0.1))  # another process of that name
    usage.tell()
    told = log.of("usage")[1]
    assert (told["actors"], told["cpu_cores"]) == (["shard/0", "worker/2"], [0.5, 0.0])
    assert (told["gpu_share"], told["gpu_memory_mb"]) == ([0.25, None], [5.0, None])


def test_an_actor_that_is_gone_is_told_no_more(usage: UsageLog, log: FakeLog, clock: Clock) -> None:
    for at_s in (1.0, 2.0):
        usage.hear(reading("worker/0", at_s, at_s))
    usage.tell()
    clock.now_s += 0.5 * SILENT_S
    usage.tell()  # nothing was heard for a while, which is no gap
    usage.hear(reading("worker/0", 9.0, 9.0))
    usage.tell()
    assert [told["cpu_cores"] for told in log.of("usage")] == [[1.0], [1.0]]
    clock.now_s += SILENT_S
    usage.tell()
    assert not usage.courses
    assert len(log.of("usage")) == 2


def test_of_a_crowd_all_are_told_however_long_their_turns_take(usage: UsageLog, log: FakeLog, clock: Clock) -> None:
    turns = 20
    usage.turn_s = (turns - 1) * BEAT_S
    for number in range(8 * turns):
        clock.now_s += BEAT_S
        for actor in range(number % turns, 3 * turns, turns):
            usage.hear(reading(f"worker/{actor}", clock.now_s, clock.now_s / 2))
        usage.look()
    _, *later = log.of("usage")
    assert len(later) >= 3
    assert all(len(told["actors"]) == 3 * turns for told in later)


def test_a_long_run_is_told_less_often(usage: UsageLog, log: FakeLog, clock: Clock) -> None:
    begun_s, day_s = clock.now_s, 24 * 3600.0
    times = []
    while clock.now_s < begun_s + day_s:
        clock.now_s += 1.5
        usage.hear(reading("worker/0", clock.now_s, clock.now_s / 2))
        usage.look()
        if len(log.written) > len(times):
            times.append(clock.now_s - begun_s)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[0] == EVERY_S
    assert max(gaps) <= LONGEST_S + 1.5
    assert 1000 < len(times) < 4 * RESOLUTION + day_s / LONGEST_S
    assert {told["cpu_cores"][0] for told in log.of("usage")} == {0.5}


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), Fenced("another")])
def test_no_run_ends_for_want_of_a_curve(usage: UsageLog, log: FakeLog, fault: Exception) -> None:
    log.fault = fault
    for at_s in (1.0, 2.0):
        usage.hear(reading("worker/0", at_s, at_s))
    usage.tell()
    assert not log.written


class FakeNvml:
    class NVMLError(Exception):
        pass

    def __init__(self, percent: int | None) -> None:
        self.percent = percent

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802  # NVML's name
        if self.percent is None:
            raise self.NVMLError
        return SimpleNamespace(gpu=self.percent)


@pytest.mark.parametrize(("percent", "share"), [(73, 0.73), (0, 0.0), (None, None)])
def test_a_gpu_that_tells_nothing_has_no_curve(
    monkeypatch: pytest.MonkeyPatch, percent: int | None, share: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2_000_000)
    gpu = GpuMeter(torch.device("cuda", 0))  # there is none here, and that is no error
    assert gpu.read() == (None, 2_000_000)
    gpu.nvml = FakeNvml(percent)
    assert gpu.read() == (share, 2_000_000)
