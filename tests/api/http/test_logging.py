"""What the service's own log says of a job carries the job's id, for whoever collects it as JSON."""

import logging

import pytest

from tests.api.conftest import Service, eventually
from trainers.events import State


def test_what_a_service_says_of_a_job_names_it(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    def of_job() -> list[logging.LogRecord]:
        return [record for record in caplog.records if getattr(record, "job", None) == job.id]

    with caplog.at_level(logging.INFO, logger="service"):
        job = service.client.submit({"algorithm": "sync"})
        run = service.started(job.id)
        run.state(State.RUNNING, "Training", "two workers train")
        run.emit("log", level="warning", message="bits may differ")
        run.succeed()
        eventually(lambda: len(of_job()) >= 3)
    assert [record.getMessage() for record in of_job()][:2] == ["two workers train", "bits may differ"]
    assert [getattr(record, "state", None) for record in of_job()] == ["RUNNING", None, "SUCCEEDED"]
