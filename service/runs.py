"""What the service asks of whatever runs the jobs. The package `trainers` itself is one; tests have another."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from trainers import Resources, TrainSpec


class RunHandle(Protocol):
    """One run that was started, now or by an earlier process."""

    def cancel(self) -> None:
        """Ask for a clean stop with a checkpoint. Returns at once; the log tells the rest."""

    def pause(self) -> None:
        """Ask for the same, to be taken up again: the last state in the log is PAUSED, if it is not an end."""

    def scale(self, count: int) -> None:
        """Have so many workers train from soon on. Raises SpecRejected if the run cannot have so many."""

    def is_alive(self) -> bool:
        """Whether its coordinator answers. It counts as dead when it twice did not."""


class Runs(Protocol):
    """Starts runs and finds them again. All calls block."""

    def start_run(self, job_id: str, spec: TrainSpec, run_dir: Path, starts_again: bool = False) -> RunHandle:
        """Start a coordinator that writes `run_dir/events.jsonl` up to a terminal state, or to PAUSED. If it will be
        started again should it fail, its last state is then QUEUED."""

    def find_run(self, job_id: str) -> RunHandle | None:
        """The coordinator that lives under this name."""

    def sweep_run(self, job_id: str) -> None:
        """Remove whatever a dead coordinator left: actors, placement groups, mapped files."""

    def needs(self, spec: TrainSpec) -> Resources:
        """What must be free to start."""

    def preflight(self, spec: TrainSpec, is_wanted: Callable[[], bool]) -> None:
        """Raise SpecRejected where the model or the data do not allow the spec; give up once it is not wanted."""

    def total_resources(self) -> Resources:
        """What the cluster has."""

    def metrics_targets(self) -> list[str]:
        """Host and port of every node's metrics."""

    def available_resources(self) -> Resources:
        """What of it is free."""
