"""The service's side of MLflow: starts the process that mirrors jobs, and tells it of each."""

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

from service.store import Job

STOP_WITHIN_S = 5.0
START_AGAIN_S = 5.0
LOOK_S = 1.0
AGAIN = 100
"""The last jobs that a process is told of which takes over; of earlier ones MLflow itself knows."""

logger = logging.getLogger(__name__)


class Tracking:
    """Jobs are told from any thread and never wait; a process that died is started again and hears of all of them."""

    def __init__(self, uri: str, experiment: str) -> None:
        self.command = [sys.executable, "-P", "-m", "service.mlflow_runs", uri, experiment]
        self.told: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process: subprocess.Popen[str] | None = None
        self.thread = threading.Thread(target=self._run, name="tracking", daemon=True)

    @staticmethod
    def is_installed() -> bool:
        """Whether there is an MLflow in this environment."""
        return importlib.util.find_spec("mlflow") is not None

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def follow(self, job: Job) -> None:
        """Mirror a job from its first event to its last. To say so twice does no harm."""
        told = {"id": job.id, "name": job.name, "labels": job.labels, "run_dir": str(job.run_dir), "spec": job.spec}
        self.told.put(json.dumps(told))

    def close(self) -> None:
        """Let the process write down what it has read, and end it."""
        self.told.put(None)
        self.thread.join(STOP_WITHIN_S)
        if self.process is not None:
            try:
                self.process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _run(self) -> None:
        lines: deque[str] = deque(maxlen=AGAIN)
        while not self._told_all(lines):
            logger.warning("the process that tells MLflow of jobs has died; it is started again")
            time.sleep(START_AGAIN_S)

    def _told_all(self, lines: deque[str]) -> bool:
        """Start the process and tell it of jobs. Returns False if it died."""
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as pipe:
            for known in lines:
                print(known, file=pipe, flush=True)
            while self.process.poll() is None:
                try:
                    line = self.told.get(timeout=LOOK_S)
                except queue.Empty:
                    continue
                if line is None:
                    return True
                lines.append(line)
                print(line, file=pipe, flush=True)
        return False
