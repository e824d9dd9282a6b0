"""The interface to whatever runs the jobs. The package `trainers` implements it; tests have an implementation too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from trainers import Resources, TrainSpec, Workload


class RunHandle(Protocol):
    """One run that was started by this process or an earlier one."""

    def cancel(self) -> None:
        """Ask for a clean stop with a checkpoint. Returns at once; the log reports the outcome."""

    def pause(self) -> None:
        """Ask for a clean stop to resume from later: the last state in the log is then PAUSED, unless the run ended."""

    def scale(self, count: int) -> None:
        """Ask to train with so many workers soon. Raises SpecRejected if the run cannot have so many."""

    def trace(self, steps: int, worker: int | None) -> int:
        """Ask a worker, or the first, to record its next steps; the number of the event that says so. Raises
        TraceRefused where that cannot be."""

    def note(self, request: dict[str, Any]) -> None:
        """Write into the log what somebody has asked of the run. Returns at once."""

    def is_alive(self) -> bool:
        """Whether its coordinator answers. It counts as dead after two negative answers."""


class TrialHandle(RunHandle, Protocol):
    """A trial, whose sweep starts and ends it."""

    def give_turn(self) -> None:
        """It may run."""


class Runs(Protocol):
    """Starts runs and finds them again. All calls block."""

    def start_run(self, job_id: str, spec: TrainSpec, run_dir: Path, starts_again: bool = False) -> RunHandle:
        """Start a coordinator that writes `run_dir/events.jsonl` up to a terminal state, or to PAUSED.

        starts_again: The run is retried if it fails; its last state is then QUEUED.
        """

    def find_run(self, job_id: str) -> RunHandle | None:
        """The live coordinator of this name, if there is one."""

    def cleanup_run(self, job_id: str) -> None:
        """Clean up what a dead coordinator left: actors, placement groups, mapped files."""

    def needs(self, spec: TrainSpec) -> Resources:
        """The resources that must be free for it to start."""

    def preflight(self, spec: TrainSpec, is_wanted: Callable[[], bool]) -> None:
        """Raise SpecRejected if the model or the data do not allow the spec. Gives up once `is_wanted` says no."""

    def count(self, spec: TrainSpec, is_wanted: Callable[[], bool]) -> Workload:
        """What a worker of the spec has to do, counted. Raises SpecRejected, also once `is_wanted` says no."""

    def cluster_is_open(self, address: str) -> bool:
        """Whether the cluster at an address lets in whoever shows no token."""

    def total_resources(self) -> Resources:
        """What the cluster has."""

    def metrics_targets(self) -> list[str]:
        """Host and port at which each node exports its metrics."""

    def available_resources(self) -> Resources:
        """What is free of that."""
