"""Runs sleeping workers on a Ray of their own, and measures from outside: by the log and the system's counters."""

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.measurement import proc
from benchmarks.measurement.millrace_runs import SETTLE_S, follow, worker_pids
from benchmarks.measurement.processes import MeasurementError, alone
from benchmarks.scale.sleepers import Sleepers
from trainers.events import Event

WITHIN_S = 3600.0
"""One number of workers, all in all: on two slow cores 256 of them were not ready after nine minutes."""
SAMPLE_S = 1.0
WARM_CYCLES = 1.5
"""Of thinking and of queueing, before the measurement: all workers begin at once, which no run does for long."""


@dataclass(frozen=True)
class Figures:
    """One run with so many workers."""

    workers: int
    steps_per_s: float
    bound: float
    """min(K/T, 1/tau), steps a second."""
    start_s: float
    """From the start of the run to the event that says that its workers train."""
    coordinator_s: float
    """CPU seconds that the coordinator takes in a second."""
    shard_s: float
    """Likewise the first shard."""
    workers_s: float
    """Likewise all workers together."""
    events_per_s: float
    """That the log gains."""
    coordinator_bytes: float
    """Resident, with what it shares with others."""
    worker_bytes: float
    """That one worker shares with nobody, median of 16."""
    death_s: float | None = None
    """From the kill of one worker to the event that says so; None where none was killed."""
    back_s: float | None = None
    """From the kill to the event that says that another has joined."""
    leave_s: float | None = None
    """From asking for one worker fewer to the event that one has left."""

    @property
    def ratio(self) -> float:
        """What was achieved of the bound."""
        return self.steps_per_s / self.bound

    @property
    def coordinator_ms(self) -> float:
        """CPU milliseconds of the coordinator for a step of one worker."""
        return 1000 * self.coordinator_s / self.steps_per_s


@dataclass
class _Seen:
    """The log as far as it was read, and the counters at its `step` events."""

    workers: int
    pids: dict[str, list[int]] = field(default_factory=dict)
    samples: list[tuple[float, int, int, dict[str, float]]] = field(default_factory=list)
    """Time, updates, number of the event, CPU seconds by role, where they were read."""
    sampled_at: float = 0.0

    def take(self, event: Event) -> None:
        if event.is_terminal:
            raise MeasurementError(f"the run ended as {event.data}")
        if event.type == "actors":
            shards = [int(shard["pid"]) for shard in event.data["shards"]]
            coordinator = int(event.data["coordinator"]["pid"])
            self.pids = {"worker": worker_pids(event), "shard": shards[:1], "coordinator": [coordinator]}
        if event.type == "step":
            sampled = self.pids if event.time >= self.sampled_at + SAMPLE_S else {}
            self.sampled_at = event.time if sampled else self.sampled_at
            cpu = {role: sum(map(proc.cpu_seconds, pids)) for role, pids in sampled.items()}
            self.samples.append((event.time, int(event.data["step"]), event.seq, cpu))


def measure(workers: int, sleepers: Sleepers, seconds: float, disturb: bool = False) -> Figures:
    """A run in a process of its own.

    Args:
        workers: K.
        sleepers: How long who sleeps.
        seconds: That are measured, after all workers have trained for a while.
        disturb: Whether, after that, one worker is killed and one is dismissed.

    Raises:
        MeasurementError: The run ended, or took too long.
    """
    return alone(_drive, workers, sleepers, seconds, disturb, timeout_s=WITHIN_S + 60)


def slope(times: Sequence[float], counts: Sequence[float]) -> float:
    """Steps a second: the line through all counts, because workers that began together come in bursts."""
    return statistics.linear_regression(times, counts).slope


def cycle_s(workers: int, sleepers: Sleepers) -> float:
    """One worker's step: its computation and one push, or the turns of all others at the shard where that is longer."""
    return max(sleepers.think_s + sleepers.serve_s, workers * sleepers.serve_s)


def _drive(workers: int, sleepers: Sleepers, seconds: float, disturb: bool) -> Figures:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import trainers

    with (
        tempfile.TemporaryDirectory(prefix="millrace-scale-") as folder,
        trainers.embedded(num_cpus=workers + sleepers.shards + 4),
    ):
        time.sleep(SETTLE_S)
        begun, seen = time.time(), _Seen(workers)
        run = trainers.start_run("scale", sleepers.spec(workers), Path(folder))
        events = follow(Path(folder), WITHIN_S)
        first = _until(events, seen, lambda event: event.data.get("state") == "RUNNING")
        _stand_back(seen.pids["worker"])
        measured_from = first.time + WARM_CYCLES * cycle_s(workers, sleepers)
        _until(events, seen, lambda event: event.type == "step" and event.time >= measured_from + seconds)
        figures = _figures(seen, sleepers, measured_from, first.time - begun)
        return figures if not disturb else _disturbed(figures, seen, events, run.scale)


def _stand_back(workers: Sequence[int]) -> None:
    """The workers, which stand for as many machines, get the cores while coordinator, shard and Ray need none."""
    for pid in workers:
        proc.stand_back(pid)


def _until(events: Iterator[Event], seen: _Seen, holds: Callable[[Event], bool]) -> Event:
    for event in events:
        seen.take(event)
        if holds(event):
            return event
    raise MeasurementError("the log ended")


def _figures(seen: _Seen, sleepers: Sleepers, measured_from: float, start_s: float) -> Figures:
    within = [sample for sample in seen.samples if sample[0] >= measured_from]
    (begun, _, first_seq, before), *_, (ended, _, last_seq, after) = [sample for sample in within if sample[3]]
    cpu = {role: (after[role] - seconds) / (ended - begun) for role, seconds in before.items()}
    own = [
        sum(size for key, size in proc.memory_bytes(pid).items() if key.startswith("Private_"))
        for pid in seen.pids["worker"][:16]
    ]
    (coordinator,) = seen.pids["coordinator"]
    return Figures(
        workers=seen.workers,
        steps_per_s=slope([sample[0] for sample in within], [sample[1] for sample in within]),
        bound=sleepers.bound(seen.workers),
        start_s=start_s,
        coordinator_s=cpu["coordinator"],
        shard_s=cpu["shard"],
        workers_s=cpu["worker"],
        events_per_s=(last_seq - first_seq) / (ended - begun),
        coordinator_bytes=proc.memory_bytes(coordinator)["Rss"],
        worker_bytes=statistics.median(own),
    )


def _disturbed(figures: Figures, seen: _Seen, events: Iterator[Event], scale: Callable[[int], None]) -> Figures:
    """One worker dies and is replaced; then the run is told to go on with one fewer."""
    killed = time.time()
    os.kill(seen.pids["worker"][seen.workers // 2], signal.SIGKILL)
    death = _until(events, seen, lambda event: event.type == "fault")
    back = _until(events, seen, lambda event: event.type == "resize" and bool(event.data["joined"]))
    asked = time.time()
    scale(seen.workers - 1)
    left = _until(events, seen, lambda event: event.type == "resize" and bool(event.data["left"]))
    return replace(figures, death_s=death.time - killed, back_s=back.time - killed, leave_s=left.time - asked)
