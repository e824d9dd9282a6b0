"""A trial in Ray Tune: one run of `trainers` in the trial's placement group, watched through its event log.

Tune reuses the process of a trial that has ended for the next one, and with it the workers, which stay warm.
"""

import time
from pathlib import Path
from typing import Any

import ray
from ray import tune

from service.scaling.metric import ERROR
from service.status import Status, append_status
from service.storage.checkpoints import resuming
from service.sweeps.trial_curve import TrialCurve, read_curve
from service.sweeps.trial_process import TrialProcess
from service.sweeps.trial_store import Ending, TrialRow, TrialStore
from trainers import EventLogReader, MillraceError, Run, State, StopReason, TrainSpec, WarmRunner

POLL_S = 0.05
ASK_EVERY_S = 0.3
HALT_S = 20.0
CLEAN = ("LossNotFinite", "SpecRejected", "DataNotFound")
"""Reasons of failures that leave the processes as good as new."""
DEAD = Status(State.FAILED, "TrialDied", "the trial's processes died; its last checkpoint is in the run directory")


class TrialRun(tune.Trainable):  # type: ignore[misc]
    """Runs one trial after another. Its configuration: `folder` of the sweep, `trial` id."""

    runner: WarmRunner | None = None
    """Runs the trials of this process, whose workers stay warm in between."""
    process: TrialProcess
    store: TrialStore
    trial: str
    spec: TrainSpec
    run_dir: Path
    run: Run | None
    begun: bool
    """Whether a step was asked for."""
    curve: TrialCurve
    reader: EventLogReader
    failed: Status | None
    """Why it has failed, if no coordinator will write that."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """The trial's placement group: a first bundle that holds the trial on the node of the sweep's folder, where its
        run directory is, then one for each worker and shard. Called on that node."""
        spec = _row(config).job_spec
        head = {f"node:{ray.util.get_node_ip_address()}": 0.001}
        worker = {"CPU": spec.workers.cpus, "GPU": spec.workers.gpus}
        worker = {name: amount for name, amount in worker.items() if amount}
        bundles = [head] + [worker] * (spec.workers.count if worker else 0)
        if spec.algorithm.traits.uses_parameter_server and spec.ps.cpus:
            bundles += [{"CPU": spec.ps.cpus}] * spec.ps.shards
        return tune.PlacementGroupFactory(bundles)

    def setup(self, config: dict[str, Any]) -> None:
        """Make ready for the first trial."""
        self.process = TrialProcess(TrialStore(Path(config["folder"])), config["driver"])
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Make ready for the next trial in the same processes."""
        self._halt()
        self._take(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the next evaluation, or the end. The first step starts the trial, not `setup`: Tune gives a trial
        to a process that has become free while another one that it started for it is still in `setup`."""
        if not self.begun:
            self._begin()
        asked_s = 0.0
        while self.curve.final is None:
            # Asked before the log is read: if it is idle, what the log says then is final.
            is_idle = self.failed is not None or (self.runner is not None and self.runner.is_idle)
            for event in self.reader.read():
                is_evaluation = self.curve.add(event)
                if is_evaluation or self.curve.final:
                    return self._result()
            if is_idle:  # the log has no end: the driver writes it, since this process may be an orphan by now
                self.curve.final = self.failed or DEAD
                break
            if time.monotonic() - asked_s > ASK_EVERY_S:
                asked_s = time.monotonic()
                asked = self.store.asked(self.trial)
                if self.run is not None and asked is not None:
                    # Repeated, because a request that comes before the run has begun is lost.
                    self.run.cancel(StopReason(asked.reason, asked.message))
            time.sleep(POLL_S)
        return self._result()

    def cleanup(self) -> None:
        """End all processes."""
        self._halt()
        if self.runner is not None:
            self.runner.close()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the run writes its own checkpoints, in its run directory."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: an interrupted trial goes on from its run's own checkpoint."""

    def new_runner(self) -> WarmRunner:
        """Runs the trials of this process."""
        sweep = self.store.get("id")
        return WarmRunner(f"{sweep}/{self.trial}", sweep, ray.util.get_current_placement_group())

    def _take(self, config: dict[str, Any]) -> None:
        self.process.check()
        self.store = TrialStore(Path(config["folder"]))
        self.trial = config["trial"]
        self.spec = _row(config).job_spec.train
        self.run_dir = self.store.run_dir(self.trial)
        self.failed = None
        self.run = None
        self.begun = False
        self.curve = TrialCurve(self.store.spec.report)
        self.reader = EventLogReader(self.run_dir)

    def _begin(self) -> None:
        self.process.check()
        self.begun = True
        if not self.store.begin(self.trial):  # it was cancelled while it was queued
            self.failed = Status(State.FAILED, "NotStarted", "it was cancelled before it started")
            return
        for event in self.reader.read():  # of an earlier start
            self.curve.add(event)
        if self.curve.final is not None:
            return
        if self.runner is None:
            self.runner = self.new_runner()
        try:
            self.run = self.runner.start(self.trial, resuming(self.spec, self.run_dir), self.run_dir)
        except MillraceError as error:
            self.failed = Status(State.FAILED, error.reason, str(error))

    def _result(self) -> dict[str, Any]:
        curve, final = self.curve, self.curve.final
        last = curve.points[-1] if curve.points else None
        epoch = last.epoch if last else 0
        if final and final.state is State.FAILED and self.runner is not None and not self._is_reusable(final):
            self.runner.close()  # the cause of the failure may still be in its processes
        return {
            "done": final is not None,
            "trial": self.trial,
            "ended": None if final is None else (final.state, final.reason, final.message),
            "epoch": epoch,
            "examples": last.examples if last else 0,
            "train_loss": last.train_loss if last else None,
            "test_error": last.test_error if last else None,
            "error": curve.error if curve.error is not None else (curve.metric or ERROR).worst,
            "metric": None if curve.metric is None else curve.metric.model_dump(),
            "measured": curve.measured,
            "fraction": min(1.0, epoch / self.spec.epochs),
        }

    def _is_reusable(self, final: Status) -> bool:
        """Whether the processes are as good as new. Several workers may still wait for the one that failed."""
        return self.spec.workers.count == 1 and final.reason in CLEAN

    def _halt(self) -> None:
        """Stop the previous run, cleanly if possible."""
        if self.run is None or self.runner is None or self.runner.is_idle:
            return
        self.run.cancel()
        deadline = time.monotonic() + HALT_S
        while not self.runner.is_idle and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if not self.runner.is_idle:
            self.runner.close()


def _row(config: dict[str, Any]) -> TrialRow:
    row = TrialStore(Path(config["folder"])).trial(config["trial"])
    assert row is not None
    return row


def end_log(run_dir: Path, ending: Ending) -> None:
    """Write the end that no coordinator wrote into a trial's log, unless it has an end."""
    if read_curve(run_dir).final is None:
        append_status(run_dir, ending.status)
