"""How much longer a step takes while others compute beside it: the cores of a machine share caches and memory."""

import multiprocessing
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from trainers.cost.profiles.step_timer import StepTimer, steps_of
from trainers.errors import RunFailed
from trainers.spec import TrainSpec

MOST = 3
"""Neighbours; on a machine of many cores, the others are taken to add as much each."""


def neighbours_of(spec: TrainSpec) -> int:
    """Processes that can compute beside one on cores of their own; 0 where a worker has a GPU."""
    return 0 if spec.device == "cuda" else min(len(os.sched_getaffinity(0)) // spec.workers.threads - 1, MOST)


def contention(timer: StepTimer, spec: TrainSpec, count: int, steps: int) -> float:
    """How many times as long a step takes beside so many others; at least 1.

    Args:
        timer: Has timed its steps alone.
        spec: Of one worker, whose steps they make.
        count: How many.
        steps: That are timed.

    Raises:
        RunFailed: One of them died.
    """
    alone = statistics.median(timer.seconds)
    with _beside(spec, count):
        timer.forget()
        for _ in range(steps):
            timer.step()
    return max(1.0, statistics.median(timer.seconds) / alone)


@contextmanager
def _beside(spec: TrainSpec, count: int) -> Iterator[None]:
    """So many processes that make steps meanwhile."""
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
            line.recv()
        yield
    except EOFError:
        raise RunFailed(
            "a process that made steps beside the one that was timed died; is there memory for it?"
        ) from None
    finally:
        for line in lines:
            line.close()
        for process in processes:
            process.join()


def _await_first_steps(line: Connection) -> None:
    try:
        line.recv()
    except EOFError:
        raise RunFailed("a process that made steps beside the timed one died; is there memory for both?") from None


def _compute(spec: TrainSpec, line: Connection) -> None:
    """Until the other end closes, or its process is gone."""
    with steps_of(spec) as timer:
        line.send(None)
        while not line.poll():
            timer.step()
