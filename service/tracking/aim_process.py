"""Mirrors jobs as runs of Aim: `python -m service.tracking.aim_process REPO EXPERIMENT FOLDER`.

A process of its own, as for MLflow. REPO is a folder, or `aim://host:port` of an Aim server. A figure's step is the
number of its event in the job's log, and Aim keeps one value a step: whatever is written again is there once. So nobody
has to know how far Aim is. Each process writes a run from the first event of its log on, and one to which anything
happens ends and leaves that to the next: Aim's client does not find a server again that it has lost, and may wait for
it forever.

FOLDER holds a file for each job that has not been seen to its end. The folder of the job's own run says which of Aim's
runs is the job's, for Aim chooses the name by itself.
"""

import fcntl
import logging
import os
import socket
import sys
import threading
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from service.tracking.mirror import TRY_AGAIN_S, LogFollower, TrackedJob, listen, mirror, read_job, take_up
from trainers import Event

if TYPE_CHECKING:
    from aim import Run

FILE_NAME = "aim.json"
"""In the folder of a job's run."""
BATCH = 200
"""Events that are read at once."""
AXIS = "examples"
"""By which Aim's charts may be aligned."""
LONGEST_S = 120.0
"""That a batch may take before the server counts as lost."""
CONNECT_S = 3.0

logger = logging.getLogger(__name__)


class Known(BaseModel):
    """Which of Aim's runs is a job's."""

    repo: str
    run: str


class JobRun(LogFollower):
    """One job's run in Aim."""

    def __init__(self, repo: str, experiment: str, folder: Path, job: TrackedJob) -> None:
        super().__init__(folder, job)
        self.repo = repo
        self.experiment = experiment
        self.run: Run | None = None

    def go_on(self) -> bool:
        """Log what is new. Returns whether the job has ended. Ends the process if Aim fails, or takes too long."""
        watchdog = threading.Timer(LONGEST_S, give_up, [self.job.id, f"no answer within {LONGEST_S:g} s"])
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._log_news()
        except Exception as error:
            give_up(self.job.id, error)
            raise
        finally:
            watchdog.cancel()

    def _log_news(self) -> bool:
        run = self.run = self.run or self._open()
        while events := list(islice(self.reader.read(), BATCH)):
            for event in events:
                self._log(run, event)
            last = events[-1]
            run["seq"] = last.seq
            if run["seq"] != last.seq:  # asking waits until all before it has arrived
                raise ConnectionError("Aim has not kept what it was sent")
            if last.is_terminal:
                run["state"] = last.data["state"]
                run.close()
                self.note.unlink(missing_ok=True)
                return True
        return False

    def _open(self) -> "Run":
        """The job's run, or a new one."""
        from aim import Run
        from aim.sdk.errors import MissingRunError

        path = self.job.run_dir / FILE_NAME
        known = Known.model_validate_json(path.read_text()) if path.exists() else None
        name = known.run if known is not None and known.repo == self.repo else None
        own: dict[str, Any] = {"repo": self.repo, "experiment": self.experiment, "system_tracking_interval": None}
        own |= {"capture_terminal_logs": False, "force_resume": True}  # the lock of a process that was killed is left
        try:
            run = Run(run_hash=name, **own)
        except MissingRunError:  # somebody has deleted it
            run = Run(**own)
        if run.hash != name:
            part = path.with_suffix(".part")
            part.write_text(Known(repo=self.repo, run=run.hash).model_dump_json())
            part.rename(path)
        run.name = self.job.name or self.job.id
        run["job"], run["labels"], run["spec"] = self.job.id, self.job.labels, self.job.spec
        return run

    def _log(self, run: "Run", event: Event) -> None:
        points = self.scalars.points(event)
        if points:
            figures = {AXIS: float(event.data["examples"]), **points}
            run.track(figures, step=event.seq, epoch=int(event.data.get("epoch", 0)))


def give_up(job: str, why: object) -> None:
    """End this process, whatever Aim's threads wait for; the service starts another."""
    logger.warning("could not log job %s in Aim: %s", job, why)
    os._exit(1)


def wait_for(repo: str) -> None:
    """Wait until the server of a repository listens, if it has one."""
    where = urlsplit(repo)
    while where.scheme == "aim":
        try:
            socket.create_connection((where.hostname or "", where.port or 53800), timeout=CONNECT_S).close()
        except OSError as error:
            logger.warning("Aim at %s does not answer: %s", repo, error)
            time.sleep(TRY_AGAIN_S)
        else:
            return


def main(repo: str, experiment: str, where: str) -> None:
    """Mirror the jobs that come by the standard input."""
    incoming, folder = listen(read_job), Path(where)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process of a service that was killed may still write what it has read
        wait_for(repo)
        take_up(folder, incoming)
        mirror(lambda job: JobRun(repo, experiment, folder, job), incoming)


if __name__ == "__main__":
    main(*sys.argv[1:])
