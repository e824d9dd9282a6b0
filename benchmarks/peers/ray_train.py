"""Ray Train 2.60 with `ScalingConfig(num_workers=(1, 2))`: how long until it trains, and until it trains again.

A DDP loop as its documentation has it, a checkpoint every `CHECKPOINT_STEPS` steps. What a death costs is seen in the
steps that the workers write down: the time to the next one, and those that are made a second time.
"""

import logging
import os
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement.processes import MeasurementError, alone
from benchmarks.measurement.workload import Workload

CHECKPOINT_STEPS = 50
KILL_AFTER_STEPS = 120
STEPS_AFTER = 20
TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Recovery:
    """What one run of a contender showed."""

    first_step_s: float
    """From submission to the first step."""
    next_step_s: float
    """From the kill of a worker to the next completed step."""
    repeated: int
    """Steps that were made a second time."""
    full_strength_s: float
    """From the kill until as many workers train as before; so it is for Ray Train when it trains again."""


def measure(work: Workload) -> Recovery:
    """A driver of its own with a Ray of its own."""
    return alone(_drive, work, timeout_s=TIMEOUT_S + 60)


def _drive(work: Workload) -> Recovery:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory(prefix="millrace-peer-") as folder:
        ray.init(address="local", num_cpus=work.workers + 1, include_dashboard=False, logging_level=logging.ERROR,
                 log_to_driver=False)  # fmt: skip
        try:
            trainer = TorchTrainer(
                _loop,
                train_loop_config={"work": work, "folder": folder},
                scaling_config=ScalingConfig(num_workers=(1, work.workers)),
                run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=3)),
            )
            begun = time.time()
            fit = threading.Thread(target=_fit, args=(trainer,), daemon=True)
            fit.start()
            return _watch(Path(folder) / "steps", begun, fit)
        finally:
            ray.shutdown()


def _fit(trainer: Any) -> None:
    try:
        trainer.fit()
    except Exception as error:  # the run is over; what counts was written down
        logging.getLogger(__name__).debug("Ray Train ended with %s", error)


def _watch(path: Path, begun: float, fit: threading.Thread) -> Recovery:
    """Kill the worker of rank 1 once enough steps were made, and read on."""
    killed, before = 0.0, list[tuple[float, int, int, int]]()
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and (fit.is_alive() or killed):
        lines = (
            [line.split() for line in path.read_text().splitlines() if line.count(" ") == 3] if path.exists() else []
        )
        rows = [(float(at), int(rank), int(pid), int(step)) for at, rank, pid, step in lines]
        if not killed and any(step >= KILL_AFTER_STEPS for _, _, _, step in rows):
            victim = next(pid for _, rank, pid, _ in reversed(rows) if rank == 1)
            before, killed = rows, time.time()
            os.kill(victim, signal.SIGKILL)
        after = [row for row in rows if killed and row[0] > killed + 0.2]
        if len(after) >= STEPS_AFTER:
            again = {step for _, _, _, step in after} & {step for _, rank, _, step in before if rank == 0}
            next_s = after[0][0] - killed
            return Recovery(rows[0][0] - begun, next_s, len(again), next_s)
        time.sleep(0.01)
    raise MeasurementError("Ray Train did not train on in time")


def _loop(config: dict[str, Any]) -> None:
    import torch
    from ray import train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)
    work, folder = config["work"], Path(config["folder"])
    rank = train.get_context().get_world_rank()
    model, batches = prepare_model(work.build_model()), work.minibatches(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr, momentum=work.momentum, fused=True)
    first = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as at:
            state = torch.load(Path(at) / "state.pt", weights_only=True)
            model.load_state_dict(state["model"])
            first = int(state["step"])
    with (folder / "steps").open("a", buffering=1) as told:
        for step in range(first, 100_000):
            batch = next(batches)
            optimizer.zero_grad()
            work.loss(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            told.write(f"{time.time()} {rank} {os.getpid()} {step}\n")
            if (step + 1) % CHECKPOINT_STEPS == 0:
                with tempfile.TemporaryDirectory() as at:
                    torch.save({"model": model.state_dict(), "step": step + 1}, Path(at) / "state.pt")
                    train.report({}, checkpoint=train.Checkpoint.from_directory(at) if rank == 0 else None)
