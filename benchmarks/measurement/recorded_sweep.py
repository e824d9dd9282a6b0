"""A sweep that has ended, as its driver would have left it on the disk, without anything having been trained."""

import math
from pathlib import Path

from service import SweepSpec, TrialStore, parse_sweep
from service.status import Status
from service.sweeps import control
from service.sweeps.trial_store import Ending, TrialRow, TrialState
from trainers import EventLog, State

EXAMPLES = 1437
SWEEP = parse_sweep(
    {
        "job": {"data": "digits", "model": "mlp", "workers": 1, "batch": {"per_worker": 8, "base": 8}, "epochs": 20},
        "axes": {"batch": [8, 16, 32, 64, 128], "rule": ["none", "sqrt", "linear"], "seed": [0, 1]},
    }
)
"""26 trials: at the base batch the rules are one."""
DONE = Ending(state=TrialState.SUCCEEDED, reason="Succeeded", message="trained 20 epochs")


def record(folder: Path, steps_an_epoch: int = 20, spec: SweepSpec = SWEEP) -> TrialStore:
    """Write the sweep into a folder, whose name is its id."""
    store = control.begin(folder, folder.name, spec)
    for row in store.trials():
        store.begin(row.id)
        error = _write_log(store.run_dir(row.id), row, steps_an_epoch)
        store.finish(row.id, DONE, error)
    store.close(Status(State.SUCCEEDED, "Succeeded", f"{len(store.trials())} trials succeeded"))
    return store


def _write_log(run_dir: Path, row: TrialRow, steps_an_epoch: int) -> float:
    """The log of a run whose error is greater at greater batches. Returns its last error."""
    job = row.job_spec
    run_dir.mkdir(parents=True, exist_ok=True)
    log, error = EventLog(run_dir), 1.0
    log.append("state", dict(Status(State.RUNNING, "Training", "trains").data))
    for epoch in range(1, job.epochs + 1):
        left = math.exp(-epoch / 4)
        error = 0.05 + 0.8 * left + 0.01 * math.log2(job.update_batch / 8) + 0.001 * job.seed
        loss, examples = 3 * error, epoch * EXAMPLES
        for step in range(steps_an_epoch):
            at = examples - EXAMPLES + step * EXAMPLES // steps_an_epoch
            log.append("step", {"epoch": epoch - 1 + step / steps_an_epoch, "examples": at, "train_loss": loss})
        log.append("epoch", {"epoch": epoch, "examples": examples, "train_loss": loss})
        figures = {"test_accuracy": 1 - error, "test_loss": loss}
        log.append("evaluation", {"epoch": epoch, "examples": examples, **figures})
    log.append("state", dict(DONE.status.data))
    log.close()
    return error
