"""Mirrors jobs as MLflow runs: `python -m service.tracking.mlflow_process URI EXPERIMENT`.

Registered models go into MLflow's registry. It is a process of its own because MLflow takes 150 MB. It finds a job's
MLflow run by a tag and does not log again what that run already has, so both this process and the service may be
restarted at any moment.
"""

import logging
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from service.tracking.mirror import TRY_AGAIN_S, Tracked, TrackedJob, TrackedRun, flat, listen, mirror
from service.tracking.mlflow_registry import JOB_TAG, RegisteredVersion, TrackedVersion
from service.tracking.scalars import Scalars
from trainers import Event, EventLogReader, State

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

FOLDER_TAG = "millrace.run_dir"
BATCH = 50
"""Events that are logged at once; MLflow takes up to 1,000 figures."""
PARAMS = 100
"""That MLflow takes at once."""
STATUS = {State.SUCCEEDED: "FINISHED", State.FAILED: "FAILED", State.CANCELLED: "KILLED"}

logger = logging.getLogger(__name__)


class JobRun:
    """One job's run in MLflow."""

    def __init__(self, client: "MlflowClient", experiment: str, job: TrackedJob) -> None:
        self.client = client
        self.experiment = experiment
        self.job = job
        self.reader = EventLogReader(job.run_dir)
        self.scalars = Scalars()
        self.run_id: str | None = None
        self.known: set[tuple[str, int, int]] = set()  # figures that an earlier process logged
        self.waiting: list[Event] = []  # read, and not logged yet

    def go_on(self) -> bool:
        """Log what is new. Returns whether the job has ended. If MLflow raises, the next call tries again."""
        if self.run_id is None:
            self.run_id = self._open()
        while True:
            self.waiting = self.waiting or list(islice(self.reader.read(), BATCH))
            if not self.waiting:
                return False
            self._log(self.run_id, self.waiting)
            last, self.waiting = self.waiting[-1], []
            if last.is_terminal:
                self.client.set_terminated(self.run_id, STATUS[State(last.data["state"])], int(last.time * 1000))
                return True

    def _open(self) -> str:
        """The run that has the job's tag, or a new one."""
        found = self.client.search_runs([self.experiment], f"tags.`{JOB_TAG}` = '{self.job.id}'")
        from mlflow.entities import Param

        if found:
            (run,) = found
            self.known = set(self._logged(run))
        else:
            tags = {**self.job.labels, JOB_TAG: self.job.id, FOLDER_TAG: str(self.job.run_dir)}
            run = self.client.create_run(self.experiment, tags=tags, run_name=self.job.name)
        params = [Param(name, str(value)[:500]) for name, value in flat(self.job.spec)]
        for start in range(0, len(params), PARAMS):
            self.client.log_batch(run.info.run_id, params=params[start : start + PARAMS])
        return str(run.info.run_id)

    def _logged(self, run: "Run") -> Iterator[tuple[str, int, int]]:
        for name in run.data.metrics:
            for metric in self.client.get_metric_history(run.info.run_id, name):
                yield metric.key, metric.timestamp, metric.step

    def _log(self, run_id: str, events: list[Event]) -> None:
        metrics = [metric for event in events for metric in self._metrics(event)]
        if metrics:
            self.client.log_batch(run_id, metrics=metrics)

    def _metrics(self, event: Event) -> "list[Metric]":
        from mlflow.entities import Metric

        points = self.scalars.points(event) or {}
        when = int(event.time * 1000), int(event.data.get("examples", 0))
        return [Metric(name, value, *when) for name, value in points.items() if (name, *when) not in self.known]


def left_open(client: "MlflowClient", experiment: str) -> list[TrackedJob]:
    """Jobs whose runs were still open when an earlier process ended."""
    found = client.search_runs([experiment], "attributes.status = 'RUNNING'")
    tags = [run.data.tags for run in found if JOB_TAG in run.data.tags]
    return [
        TrackedJob(id=tag[JOB_TAG], name="", labels={}, run_dir=Path(tag[FOLDER_TAG]), spec={})
        for tag in tags
        if Path(tag[FOLDER_TAG]).is_dir()
    ]


def artifacts_of(uri: str) -> str | None:
    """Where a new experiment keeps its files: beside a database that is a file, where MLflow would take the process's
    folder; None: as MLflow's server says."""
    prefix, _, path = uri.partition(":///")
    return str(Path(path).absolute().with_name("mlartifacts")) if prefix.startswith("sqlite") and path else None


def main(uri: str, experiment_name: str) -> None:
    """Mirror the jobs that come by the standard input."""
    from mlflow import MlflowClient

    incoming = listen(_parsed)
    while True:
        try:
            client = MlflowClient(tracking_uri=uri)
            experiment = client.get_experiment_by_name(experiment_name)
            number = (
                experiment.experiment_id
                if experiment
                else client.create_experiment(experiment_name, artifact_location=artifacts_of(uri))
            )
            unfinished = left_open(client, number)
            break
        except Exception as error:
            logger.warning("MLflow at %s does not answer: %s", uri, error)
            time.sleep(TRY_AGAIN_S)
    for job in unfinished:
        incoming.put(job)

    def entry(one: Tracked) -> TrackedRun:
        if isinstance(one, TrackedVersion):
            return RegisteredVersion(client, number, one)
        assert isinstance(one, TrackedJob)
        return JobRun(client, number, one)

    mirror(entry, incoming)


def _parsed(line: str) -> Tracked:
    kinds: TypeAdapter[TrackedJob | TrackedVersion] = TypeAdapter(TrackedJob | TrackedVersion)
    return kinds.validate_json(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
