"""Mirrors jobs as runs of Weights & Biases: `python -m service.tracking.wandb_process PROJECT MODE FOLDER`.

A process of its own, as for MLflow, because it needs memory and may be killed at any moment. The number of an event in
the job's log is wandb's step, so that nothing is logged twice:

- online, wandb says how far the run is, and what it has not got is logged from there on;
- offline, where nobody can say that, the run is written anew from the first event of the log on.

FOLDER holds a file for each job that has not been seen to its end, which the next process takes up.
"""

import fcntl
import os
import shutil
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from service.tracking.mirror import LogFollower, TrackedJob, listen, mirror, read_job, take_up
from trainers import Event, State

if TYPE_CHECKING:
    from wandb import Run

Mode = Literal["online", "offline"]
BATCH = 200
"""Events that are read at once."""
AXIS = "examples"
"""Over which wandb draws the figures."""
MOST_LETTERS = 64
"""Of a tag."""


class JobRun(LogFollower):
    """One job's run in wandb."""

    def __init__(self, project: str, mode: Mode, folder: Path, job: TrackedJob) -> None:
        super().__init__(folder, job)
        self.project = project
        self.mode = mode
        self.run: Run | None = None
        self.begin = 0  # the first number of an event that wandb does not have
        self.waiting: list[Event] = []  # read, and not logged yet

    def go_on(self) -> bool:
        """Log what is new. Returns whether the job has ended. If wandb raises, the next call tries again."""
        run = self.run = self.run or self._open()
        while True:
            self.waiting = self.waiting or list(islice(self.reader.read(), BATCH))
            if not self.waiting:
                return False
            while self.waiting:
                self._log(run, self.waiting[0])
                last = self.waiting.pop(0)
            if last.is_terminal:
                run.finish(exit_code=0 if last.data["state"] == State.SUCCEEDED else 1)
                self.note.unlink(missing_ok=True)
                return True

    def _open(self) -> "Run":
        """The run that has the job's id, or a new one."""
        import wandb

        local = self.job.run_dir / "wandb"
        if self.mode == "offline" and local.exists():
            dropped = local.rename(local.with_name(f".wandb-{os.getpid()}"))  # whoever still writes there writes on
            shutil.rmtree(dropped, ignore_errors=True)
        quiet = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True,
            x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
        )  # fmt: skip
        tags = [f"{name}={value}"[:MOST_LETTERS] for name, value in self.job.labels.items()]
        run = wandb.init(
            project=self.project, id=self.job.id, name=self.job.name or None, tags=tags, config=self.job.spec,
            mode=self.mode, dir=self.job.run_dir, resume="allow", reinit="create_new", settings=quiet,
        )  # fmt: skip
        run.define_metric("*", step_metric=AXIS)
        self.begin = run.step
        return run

    def _log(self, run: "Run", event: Event) -> None:
        points = self.scalars.points(event)  # also of what wandb has: they count from one event to the next
        if points and event.seq >= self.begin:
            run.log({AXIS: event.data["examples"], **points}, step=event.seq, commit=True)


def main(project: str, mode: Mode, where: str) -> None:
    """Mirror the jobs that come by the standard input."""
    incoming, folder = listen(read_job), Path(where)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process of a service that was killed may still write what it has read
        take_up(folder, incoming)
        mirror(lambda job: JobRun(project, mode, folder, job), incoming)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
