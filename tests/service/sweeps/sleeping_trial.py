"""Trials that only sleep: a log, checkpoints and an end like a run's, without processes of its own or torch."""

import os
import threading
from pathlib import Path
from typing import Any

from service.sweeps.trial import TrialRun
from trainers import EventLog, Fence, State, StopReason, TrainSpec, WarmRunner


def hold(folder: Path, batch: int, seed: int) -> Path:
    """Keep the trials of this batch and seed from their end, in a service that keeps its sweeps in `folder/sweeps`, as
    long as there is the file that is returned."""
    path = folder / f"hold-{batch}-{seed}"
    path.touch()
    return path


class SleepingRun:
    """Sleeps `report_every_s` an epoch, and leaves an empty checkpoint after each. What it tells is worse by as much
    as `optimizer.lr` is above 0.02; where it is, its last epoch but one is repeated until it is stopped, so that it
    cannot end first. So it is for as long as the trial is held."""

    def __init__(self, spec: TrainSpec, run_dir: Path) -> None:
        self.spec = spec
        self.run_dir = run_dir
        self.cancelled = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def cancel(self, why: StopReason) -> None:
        self.why = why
        self.cancelled.set()

    def _run(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        fence, journal = Fence.take(self.run_dir), EventLog(self.run_dir)
        resume = self.spec.checkpoint.resume
        done = int(Path(resume).name) if resume else 0
        for state in (State.STARTING, State.RUNNING):
            journal.append("state", {"state": state, "reason": "Sleeps", "message": ""})
        journal.append("actors", {"pid": os.getpid()})
        worse = self.spec.optimizer.lr - 0.02
        held = self.run_dir.parents[3] / f"hold-{self.spec.global_batch}-{self.spec.seed}"
        epoch = done
        while epoch < self.spec.epochs:
            if self.cancelled.wait(self.spec.report_every_s):
                journal.append("state", {"state": State.CANCELLED, **self.why._asdict()})
                return
            fence.check()
            epoch = min(epoch + 1, self.spec.epochs - (worse > 0 or held.exists()))
            examples = 100 * epoch
            journal.append("epoch", {"epoch": epoch, "examples": examples, "train_loss": 1 / epoch + worse})
            figures = {"test_accuracy": 1 - min(1, 0.5 / epoch + worse), "test_loss": 0.5 / epoch}
            journal.append("evaluation", {"epoch": epoch, "examples": examples, **figures})
            (self.run_dir / "checkpoints" / f"{epoch:012d}").mkdir(parents=True, exist_ok=True)
        journal.append("state", {"state": State.SUCCEEDED, "reason": "Succeeded", "message": "slept"})


class SleepingSeries(WarmRunner):
    """One sleeping run after another."""

    def start(self, job_id: str, spec: TrainSpec, run_dir: Path) -> Any:
        self.call = SleepingRun(spec, run_dir)
        return self.call

    @property
    def is_idle(self) -> bool:
        return self.call is None or not self.call.thread.is_alive()


class Sleeping(TrialRun):
    """What Tune runs in place of a run."""

    def new_runner(self) -> WarmRunner:
        return SleepingSeries("", "")
