"""A trace of some steps of one worker, on request: asked for, waited for and kept in the run's folder."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import ray

from trainers.errors import TraceRefused
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.run_events import Tasks
from trainers.runtime.control.run_log import RunLog
from trainers.training.messages import Traced

FOLDER = "traces"
FILE = re.compile(r"([0-9]{4,9})-worker-([0-9]{1,9})-([0-9]{1,3})\.json\.gz")
"""Number of the trace, worker, steps."""
KEPT = 5
"""The last ones of a run."""
MOST_STEPS = 100
LOOK_S = 1.0


class Tracing:
    """The traces of one run; one is recorded at a time."""

    def __init__(self, run_dir: Path, pool: ActorPool, log: RunLog, tasks: Tasks) -> None:
        self.folder = run_dir / FOLDER
        self.pool = pool
        self.log = log
        self.tasks = tasks
        self.worker: WorkerHandle | None = None  # that records
        self.asked = 0  # steps
        self.recording: asyncio.Task[None] | None = None
        self.ends = ""  # why nothing more is trained, once that is so

    def begin(self, steps: int, number: int | None) -> int:
        """Have a worker record its next steps; returns the number of the event that says so. number: Of the worker,
        as in its name; None: the first.

        Raises:
            TraceRefused: Not these steps, not this worker, or not now.
        """
        check_steps(steps)
        if self.worker is not None:
            raise TraceRefused(f"{self._short} records {self.asked} steps already; ask again when it is done")
        able = {number_of(one): one for one in self.pool.workers if one.prepared is not None and not one.is_leaving}
        if number is not None and number not in able:
            there = ", ".join(map(str, sorted(able))) or "none"
            raise TraceRefused(f"there is no worker {number}; those that train now: {there}")
        if not able or self.ends:
            raise TraceRefused("the run trains nothing now; ask again while it is RUNNING")
        self.worker, self.asked = able[min(able) if number is None else number], steps
        event = self._tell({"steps": 0})
        self.recording = self.tasks.start_background("recording a trace", self._record(self.worker))
        return event

    def take_over(self, unfinished: dict[str, Any] | None) -> None:
        """An earlier coordinator died; so did what it had begun. unfinished: What it said of that."""
        if unfinished is not None:
            self.log.write("trace", unfinished | {"steps": 0, "why": "the run's coordinator died"})

    async def over(self, why: str) -> None:
        """Nothing more is trained: wait until what was recorded is kept."""
        self.ends = why
        if self.worker is not None and self.recording is not None:
            self.worker.ask("end_trace")
            await self.recording

    async def _record(self, worker: WorkerHandle) -> None:
        """Until it is over, one way or the other; the log has it then."""
        found: dict[str, Any] = {"steps": 0, "why": self.ends or "the run ended first"}
        try:
            found = await self._recorded(worker)
        except ray.exceptions.RayActorError:
            found = {"steps": 0, "why": f"{self._short} died, or left the run"}
        except (ray.exceptions.RayError, OSError) as error:
            found = {"steps": 0, "why": f"the trace could not be kept: {str(error).splitlines()[-1]}"}
        finally:  # also where the run ends in the middle
            self._tell(found)
            self.worker = self.recording = None

    async def _recorded(self, worker: WorkerHandle) -> dict[str, Any]:
        """What the last event says."""
        await worker.ask("begin_trace", self.asked)
        traced = Traced(0, is_over=False)
        while not traced.is_over:
            before, traced = traced.steps, await worker.ask("traced", LOOK_S)
            if not traced.is_over and traced.steps > before:
                self._tell({"steps": traced.steps})
        missing = traced.why or self.ends or "the workers changed" if traced.steps < self.asked else ""
        why = {"why": missing} if missing else {}
        if not traced.file:
            return {"steps": 0} | (why or {"why": "the trace is gone"})
        name = await asyncio.to_thread(self._keep, traced, number_of(worker))
        return {"steps": traced.steps, "file": name, "bytes": len(traced.file)} | why

    def _keep(self, traced: Traced, worker: int) -> str:
        """Write a trace, and remove what is too old; its name."""
        self.folder.mkdir(exist_ok=True)
        there = sorted((int(match[1]), path) for path in self.folder.iterdir() if (match := FILE.fullmatch(path.name)))
        number = there[-1][0] + 1 if there else 1
        name = f"{number:04d}-worker-{worker}-{traced.steps}.json.gz"
        part = self.folder / f".{name}.part"
        try:
            part.write_bytes(traced.file)
            os.replace(part, self.folder / name)
        finally:
            part.unlink(missing_ok=True)
        for _, old in there[: max(0, len(there) + 1 - KEPT)]:
            old.unlink(missing_ok=True)
        return name

    def _tell(self, found: dict[str, Any]) -> int:
        assert self.worker is not None
        return self.log.write("trace", {"worker": number_of(self.worker), "asked": self.asked} | found)

    @property
    def _short(self) -> str:
        assert self.worker is not None
        return f"worker {number_of(self.worker)}"


def check_steps(steps: int) -> None:
    """Raises TraceRefused where a trace has not so many steps."""
    if not 1 <= steps <= MOST_STEPS:
        raise TraceRefused(f"a trace has 1 to {MOST_STEPS} steps, not {steps}; ask for fewer")


def number_of(worker: WorkerHandle) -> int:
    """The number in its name, by which people know it."""
    return int(worker.name.rpartition("/")[2])
