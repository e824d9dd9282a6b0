"""What a coordinator is told when it is started."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.runtime.actor_handles import WarmPool
from trainers.spec import TrainSpec


@dataclass(frozen=True)
class RunConfig:
    """One run."""

    job_id: str
    spec: TrainSpec
    run_dir: Path
    """Where its log, its checkpoints and the finished model go."""
    runtime_env: dict[str, Any] | None = None
    """Ray's, of the actors that train."""
    warm_pool: WarmPool | None = None
    """The processes of a sweep's trial; a trial keeps its size, and replaces nothing that dies."""
    starts_again: bool = False
    """Whether somebody starts the run once more should it fail, so that a failure is not the end of its log."""

    @property
    def is_trial(self) -> bool:
        """Whether the run is a trial of a sweep."""
        return self.warm_pool is not None

    def latest_checkpoint(self) -> str | None:
        """The newest checkpoint of this run, if it has one."""
        folder = self.run_dir / "checkpoints"
        found = sorted(path for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []
        return str(found[-1]) if found else None
