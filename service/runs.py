"""What the service asks of whatever runs the jobs. The package `trainers` itself is one; tests have another."""

from pathlib import Path
from typing import Protocol

from trainers import Resources, TrainSpec


class RunHandle(Protocol):
    """One run that was started, now or by an earlier process."""

    def cancel(self) -> None:
        """Ask for a clean stop with a checkpoint. Returns at once; the log tells the rest."""

    def is_alive(self) -> bool:
        """Whether its coordinator answers. It counts as dead when it twice did not."""


class Runs(Protocol):
    """Starts runs and finds them again. All calls block."""

    def start_run(self, job_id: str, spec: TrainSpec, run_dir: Path) -> RunHandle:
        """Start a coordinator that writes `run_dir/events.jsonl` up to a terminal state."""

    def find_run(self, job_id: str) -> RunHandle | None:
        """The coordinator that lives under this name."""

    def sweep_run(self, job_id: str) -> None:
        """Remove whatever a dead coordinator left: actors, placement groups, mapped files."""

    def needs(self, spec: TrainSpec) -> Resources:
        """What must be free to start."""

    def preflight(self, spec: TrainSpec) -> None:
        """Raise SpecRejected where the model or the data do not allow the spec."""

    def total_resources(self) -> Resources:
        """What the cluster has."""

    def available_resources(self) -> Resources:
        """What of it is free."""
