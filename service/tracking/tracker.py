"""The service's side of a tracker: starts the process that mirrors jobs, and sends it each job."""

import contextlib
import importlib.util
import json
import logging
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Literal

from service.database.job_store import Job

STOP_WITHIN_S = 5.0
START_AGAIN_S = 5.0
LOOK_S = 1.0
RESENT = 100
"""How many of the last jobs are sent again to a new process; of earlier ones it knows by itself."""

Library = Literal["aim", "mlflow", "wandb"]

logger = logging.getLogger(__name__)


class Tracking:
    """Takes jobs from any thread without blocking. A process that dies is started again, and is sent the jobs again."""

    def __init__(self, library: Library, *arguments: str) -> None:
        """arguments: What the tracker's process is told beside the jobs."""
        self.library = library
        self.command = [sys.executable, "-P", "-m", f"service.tracking.{library}_process", *arguments]
        self.jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process: subprocess.Popen[str] | None = None
        self.thread = threading.Thread(target=self._run, name="tracking", daemon=True)

    @property
    def is_installed(self) -> bool:
        """Whether the tracker's library is in this environment."""
        return importlib.util.find_spec(self.library) is not None

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def follow(self, job: Job) -> None:
        """Mirror a job from its first event to its last. Calling it twice does no harm."""
        fields = {"id": job.id, "name": job.name, "labels": job.labels, "run_dir": str(job.run_dir), "spec": job.spec}
        self.jobs.put(json.dumps(fields))

    @property
    def has_registry(self) -> bool:
        """Whether it keeps versions of models."""
        return self.library == "mlflow"

    def register(self, version: dict[str, Any], file: Path) -> None:
        """Have a version of a model in its registry too. Calling it twice does no harm."""
        self.jobs.put(json.dumps({**version, "file": str(file)}))

    def close(self) -> None:
        """Let the process log what it has read, and end it."""
        self.jobs.put(None)
        self.thread.join(STOP_WITHIN_S)
        if self.process is not None:
            try:
                self.process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _run(self) -> None:
        lines: deque[str] = deque(maxlen=RESENT)
        while not self._send_all(lines):
            logger.warning("the process that mirrors jobs in %s has died; it is started again", self.library)
            time.sleep(START_AGAIN_S)

    def _send_all(self, lines: deque[str]) -> bool:
        """Start the process and send it jobs. Returns False if it died."""
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            for known in lines:
                print(known, file=pipe, flush=True)
            while self.process.poll() is None:
                try:
                    line = self.jobs.get(timeout=LOOK_S)
                except queue.Empty:
                    continue
                if line is None:
                    return True
                lines.append(line)
                print(line, file=pipe, flush=True)
        return False
