"""What the processes that mirror jobs in trackers have in common: the service names the jobs, their logs tell the rest.

The service names them on the standard input, one JSON object a line; each process reads their event logs for itself.
A tracker that is away is tried again and again, while what it is to hear waits in the logs: no job waits for it.
"""

import contextlib
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from service.tracking.scalars import Scalars
from trainers import EventLogReader

POLL_S = 1.0
TRY_AGAIN_S = 10.0

logger = logging.getLogger(__name__)


class Tracked(BaseModel):
    """What the service sends: a job, or what else a tracker is to have."""

    id: str


K = TypeVar("K", bound=Tracked)


class TrackedJob(Tracked):
    """A job as the service sends it."""

    name: str
    labels: dict[str, str]
    run_dir: Path
    spec: dict[str, Any]


Jobs = queue.SimpleQueue[TrackedJob | None]
"""Those that are to be mirrored; None: no more are coming."""


class TrackedRun(Protocol):
    """One job in a tracker, or what else it is to have."""

    @property
    def job(self) -> Tracked:
        """Which one."""

    def go_on(self) -> bool:
        """Log what is new. Returns whether the job has ended. If the tracker raises, the next call tries again."""


class LogFollower:
    """Reads a job's event log from its first event on. A file in the folder names the job until it has been seen to its
    end."""

    def __init__(self, folder: Path, job: TrackedJob) -> None:
        self.job = job
        self.note = folder / f"{job.id}.json"
        self.note.write_text(job.model_dump_json())
        self.reader = EventLogReader(job.run_dir)
        self.scalars = Scalars()


def mirror(open_run: Callable[[K], TrackedRun], incoming: "queue.SimpleQueue[K | None]") -> None:
    """Follow all jobs until no more are coming, and then to where their logs end now."""
    runs: dict[str, TrackedRun] = {}
    news: list[K | None] = []
    while None not in news:
        news = arrived(incoming)
        for job in filter(None, news):
            if job.id not in runs:
                runs[job.id] = open_run(job)
        for run in list(runs.values()):
            try:
                if run.go_on():
                    del runs[run.job.id]
            except Exception as error:  # the tracker may be back in a while
                logger.warning("could not log job %s: %s", run.job.id, error)
                time.sleep(0 if None in news else TRY_AGAIN_S)
                break


def arrived(incoming: "queue.SimpleQueue[K | None]") -> list[K | None]:
    """What arrives within a second."""
    found: list[K | None] = []
    with contextlib.suppress(queue.Empty):
        found.append(incoming.get(timeout=POLL_S))
        while True:
            found.append(incoming.get_nowait())
    return found


def read_job(line: str) -> TrackedJob:
    """A job from a line."""
    return TrackedJob.model_validate_json(line)


def listen(parse: Callable[[str], K]) -> "queue.SimpleQueue[K | None]":
    """What comes by the standard input, until it ends."""
    incoming: queue.SimpleQueue[K | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            incoming.put(parse(line))
        incoming.put(None)

    threading.Thread(target=read, daemon=True).start()
    return incoming


def take_up(folder: Path, incoming: Jobs) -> None:
    """Have the jobs mirrored that an earlier process has not seen to their end; `folder` has a file of each."""
    for note in sorted(folder.glob("*.json")):
        job = TrackedJob.model_validate_json(note.read_text())
        if job.run_dir.is_dir():
            incoming.put(job)
        else:
            note.unlink()


def flat(spec: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a spec by their paths: `optimizer.lr`."""
    for name, value in spec.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
