"""Registers versions of models in MLflow's own registry, each once, under the run of its job."""

import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from service.tracking.mirror import Tracked

if TYPE_CHECKING:
    from mlflow import MlflowClient

VERSION_TAG = "millrace.version"
JOB_TAG = "millrace.job"

logger = logging.getLogger(__name__)


class TrackedVersion(Tracked):
    """A version as the service sends it."""

    name: str
    job: str
    notes: str
    sha256: str
    file: Path


class RegisteredVersion:
    """One version in MLflow. It is found by its tag."""

    def __init__(self, client: "MlflowClient", experiment: str, version: TrackedVersion) -> None:
        self.client = client
        self.experiment = experiment
        self.job = version

    def go_on(self) -> bool:
        """Register it, unless MLflow has it. Returns True; if MLflow raises, the next call tries again."""
        version = self.job
        runs = self.client.search_runs([self.experiment], f"tags.`{JOB_TAG}` = '{version.job}'")
        if not runs or not version.file.is_file():  # it is removed by now, or its job was before there was a tracker
            logger.warning("MLflow has no run of job %s to register %s under", version.job, version.id)
            return True
        self._make_name()
        if not self._is_there():
            run, folder = runs[0].info, f"registered/{version.id}"
            self.client.log_artifact(run.run_id, str(version.file), folder)
            tags = {VERSION_TAG: version.id, "millrace.sha256": version.sha256}
            self.client.create_model_version(
                version.name, f"{run.artifact_uri}/{folder}", run.run_id, tags, description=version.notes or None
            )
        return True

    def _make_name(self) -> None:
        from mlflow.exceptions import MlflowException

        with contextlib.suppress(MlflowException):
            self.client.create_registered_model(self.job.name)
            return
        self.client.get_registered_model(self.job.name)  # raises where that was not why

    def _is_there(self) -> bool:
        found = self.client.search_model_versions(f"name = '{self.job.name}'")
        return any(one.tags.get(VERSION_TAG) == self.job.id for one in found)
