"""How much longer a step takes while others compute beside it: the cores of a machine share caches and memory."""

import multiprocessing
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from trainers.cost.profiles.step_timer import StepTimer, steps_of
from trainers.errors import RunFailed
from trainers.spec import TrainSpec

MOST = 3
"""Neighbours; on a machine of many cores, the others are taken to add as much each."""
TURNS = 5


def neighbours_of(spec: TrainSpec) -> int:
    """Processes that can compute beside one on cores of their own; 0 where a worker has a GPU."""
    return 0 if spec.device == "cuda" else min(len(os.sched_getaffinity(0)) // spec.workers.threads - 1, MOST)


def contention(timer: StepTimer, spec: TrainSpec, count: int, steps: int) -> float:
    """How many times as long a step takes beside so many others; at least 1.

    They compute and rest by turns, and the ratio is taken within a turn: other tenants of a machine make it slower for
    minutes.

    Args:
        timer: Makes the steps.
        spec: Of one worker, whose steps the others make too.
        count: How many they are.
        steps: That are timed, beside them and as many without.

    Raises:
        RunFailed: One of them died.
    """
    ratios, each = list[float](), -(-steps // TURNS)
    with neighbours(spec, count) as lines:
        for _ in range(TURNS):
            alone = _median_s(timer, each)
            with computing(lines):
                beside = _median_s(timer, each)
            ratios.append(beside / alone)
    return max(1.0, statistics.median(ratios))


@contextmanager
def computing(lines: Sequence[Connection]) -> Iterator[None]:
    """Have the neighbours at the other ends make steps as long as this lasts.

    Raises:
        RunFailed: One of them died.
    """
    for line in lines:
        line.send("compute")
    yield
    for line in lines:
        line.send("rest")
    for line in lines:
        _await(line)


def _median_s(timer: StepTimer, steps: int) -> float:
    timer.forget()
    for _ in range(steps):
        timer.step()
    return statistics.median(timer.seconds)


@contextmanager
def neighbours(spec: TrainSpec, count: int) -> Iterator[list[Connection]]:
    """The lines to so many processes that have made their first steps, and rest."""
    spawn = multiprocessing.get_context("spawn")
    lines, processes = list[Connection](), list[multiprocessing.process.BaseProcess]()
    try:
        for _ in range(count):
            mine, theirs = spawn.Pipe()
            processes.append(spawn.Process(target=_compute, args=(spec, theirs)))
            processes[-1].start()
            theirs.close()
            lines.append(mine)
        for line in lines:
            _await(line)
        yield lines
    finally:
        for line in lines:
            line.close()
        for process in processes:
            process.join()


def _await(line: Connection) -> None:
    """Until the process at the other end rests."""
    try:
        line.recv()
    except (EOFError, ConnectionError):
        raise RunFailed("a process that made steps beside the timed one died; is there memory for both?") from None


def _compute(spec: TrainSpec, line: Connection) -> None:
    """Whenever the other end says so, until it closes or its process is gone."""
    with steps_of(spec) as timer, suppress(EOFError, ConnectionError):
        while True:
            line.send("rests")
            line.recv()
            while not line.poll():
                timer.step()
            line.recv()
