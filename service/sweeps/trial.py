"""A trial inside Ray Tune: one run of `trainers` in the trial's placement group, watched through its event log.

Tune keeps the process of a trial that has ended for the next one, and with it the series, whose workers stay warm.
"""

import time
from pathlib import Path
from typing import Any

import ray
from ray import tune

from service.checkpoints import resuming
from service.sweeps.curve import Curve, read_curve
from service.sweeps.ledger import Ending, Ledger, TrialRow
from trainers import Journal, JournalReader, MillraceError, Run, Series, State, TrainSpec

POLL_S = 0.05
ASK_EVERY_S = 0.3
HALT_S = 20.0
CLEAN = ("LossNotFinite", "SpecRejected", "DataNotFound")
"""Reasons of failures that leave nothing behind."""
DEAD = ("TrialDied", "the trial's processes died; its last checkpoint is in the run directory")


class TrialRun(tune.Trainable):  # type: ignore[misc]
    """One trial after another. Its configuration: `folder`, the sweep's; `trial`, the id."""

    series: Series | None = None
    ledger: Ledger
    trial: str
    spec: TrainSpec
    run_dir: Path
    run: Run | None
    curve: Curve
    reader: JournalReader
    failed: tuple[str, str] | None
    """Why it has ended although no coordinator will say so."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """The trial's placement group: a bundle a worker and shard, after one that holds the trial on the node of the
        sweep's folder, where its run directory is. Asked on that node."""
        spec = _row(config).job_spec
        head = {f"node:{ray.util.get_node_ip_address()}": 0.001}
        worker = {"CPU": spec.workers.cpus, "GPU": spec.workers.gpus}
        worker = {name: amount for name, amount in worker.items() if amount}
        bundles = [head] + [worker] * (spec.workers.count if worker else 0)
        if spec.algorithm.uses_parameter_server and spec.ps.cpus:
            bundles += [{"CPU": spec.ps.cpus}] * spec.ps.shards
        return tune.PlacementGroupFactory(bundles)

    def setup(self, config: dict[str, Any]) -> None:
        """Start the first trial."""
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start the next one, in the same processes."""
        self._halt()
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """The next evaluation, or the end."""
        asked_s = 0.0
        while self.curve.ended is None:
            idle = self.failed or (self.series is not None and self.series.is_idle)  # before the log: then it is final
            for event in self.reader.read():
                is_evaluation = self.curve.add(event)
                if is_evaluation or self.curve.ended:
                    return self._told()
            if idle:  # the log has no end: the driver writes it, since this process may be an orphan by now
                self.curve.ended = (State.FAILED, *(self.failed or DEAD))
                break
            if time.monotonic() - asked_s > ASK_EVERY_S:
                asked_s = time.monotonic()
                if self.run is not None and self.ledger.asked(self.trial) is not None:
                    self.run.cancel()  # again and again: one may come before the run has begun, and be forgotten
            time.sleep(POLL_S)
        return self._told()

    def cleanup(self) -> None:
        """End every process."""
        self._halt()
        if self.series is not None:
            self.series.close()

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the run writes checkpoints of its own, in its run directory."""

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Nothing: a trial that was interrupted goes on from its run's own checkpoint."""

    def new_series(self) -> Series:
        """What runs the trials that come to this process."""
        sweep = self.ledger.get("id")
        return Series(f"{sweep}/{self.trial}", sweep, ray.util.get_current_placement_group())

    def _begin(self, config: dict[str, Any]) -> None:
        self.ledger = Ledger(Path(config["folder"]))
        self.trial = config["trial"]
        self.spec = _row(config).job_spec.train
        self.run_dir = self.ledger.run_dir(self.trial)
        self.failed = None
        self.run = None
        self.curve = Curve()
        self.reader = JournalReader(self.run_dir)
        if not self.ledger.begin(self.trial):  # it was cancelled while it waited for its place
            self.failed = ("NotStarted", "it was cancelled before it started")
            return
        for event in self.reader.read():  # what an earlier start left
            self.curve.add(event)
        if self.curve.ended is not None:
            return
        if self.series is None:
            self.series = self.new_series()
        try:
            self.run = self.series.start(self.trial, resuming(self.spec, self.run_dir), self.run_dir)
        except MillraceError as error:
            self.failed = (error.reason, str(error))

    def _told(self) -> dict[str, Any]:
        curve = self.curve
        last = curve.points[-1] if curve.points else None
        epoch = last.epoch if last else 0
        if curve.ended and curve.ended[0] is State.FAILED and self.series is not None and not self._failed_cleanly():
            self.series.close()  # what it died of may be left in its processes
        return {
            "done": curve.ended is not None,
            "trial": self.trial,
            "ended": curve.ended,
            "epoch": epoch,
            "examples": last.examples if last else 0,
            "train_loss": last.train_loss if last else None,
            "test_error": last.test_error if last else None,
            "error": curve.error if curve.error is not None else 1.0,
            "share": min(1.0, epoch / self.spec.epochs),
        }

    def _failed_cleanly(self) -> bool:
        """Whether the processes are as good as new: a single worker that said no waits for nobody."""
        assert self.curve.ended is not None
        return self.spec.workers.count == 1 and self.curve.ended[1] in CLEAN

    def _halt(self) -> None:
        """Nothing of the run before goes on; cleanly, or not."""
        if self.run is None or self.series is None or self.series.is_idle:
            return
        self.run.cancel()
        deadline = time.monotonic() + HALT_S
        while not self.series.is_idle and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if not self.series.is_idle:
            self.series.close()


def _row(config: dict[str, Any]) -> TrialRow:
    row = Ledger(Path(config["folder"])).trial(config["trial"])
    assert row is not None
    return row


def end_log(run_dir: Path, ending: Ending) -> None:
    """Give a trial's log the end that no coordinator wrote; one that has an end keeps it."""
    if read_curve(run_dir).ended is not None:
        return
    run_dir.mkdir(parents=True, exist_ok=True)
    journal = Journal(run_dir)
    state = ending.state.job_state
    journal.append("state", {"state": state.value, "reason": ending.reason, "message": ending.message})
    journal.close()
