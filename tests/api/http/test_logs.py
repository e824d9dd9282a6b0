"""The log of a job, with what its code has printed."""

import json

import pytest

from api.cli.actions.jobs import print_logs
from service import LogFilter
from tests.api.conftest import Service, eventually
from trainers.events import State


def test_what_code_has_printed_is_found_by_worker_and_by_text(service: Service) -> None:
    job = service.client.submit({"name": "prints"})
    run = service.started(job.id)
    run.state(State.RUNNING, "Training", "2 workers train")
    for worker, text in ((0, "Loss is fine"), (1, "loss is high"), (1, "done")):
        run.emit("log", level="info", message=text, actor=f"worker/{worker}", stream="stdout", at=1.0)
    run.emit("log", level="warning", message="12 more were printed", actor="worker/1")
    run.succeed()
    eventually(lambda: service.client.get(job.id).state is State.SUCCEEDED)

    def told(worker: int | None = None, grep: str = "") -> list[str]:
        found = service.client.logs(job.id, worker, grep).splitlines()
        return [line.split(" ", 2)[2] for line in found]  # without the time

    assert [line for line in told() if "|" in line] == [
        "worker 0 | Loss is fine", "worker 1 | loss is high", "worker 1 | done", "worker 1 | 12 more were printed",
    ]  # fmt: skip
    assert told(grep="LOSS") == ["worker 0 | Loss is fine", "worker 1 | loss is high"]
    assert told(1, "loss") == ["worker 1 | loss is high"]
    path = f"/v1/jobs/{job.id}/logs?worker=1&grep=loss"
    with service.http.stream("GET", path, headers={"Accept": "text/event-stream"}) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert [event["data"].get("message") for event in events][:-1] == ["loss is high"]
    assert events[-1]["data"]["state"] == "SUCCEEDED"


def test_the_command_follows_one_worker(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    job = service.client.submit({"name": "prints"})
    run = service.started(job.id)
    for worker in (0, 1):
        run.emit("log", level="info", message=f"from {worker}", actor=f"worker/{worker}", stream="stdout", at=1.0)
    run.succeed()
    print_logs(service.client, job.id, LogFilter(worker=1), follow=True, as_json=False)
    assert capsys.readouterr().out.split(" ", 2)[2] == "worker 1 | from 1\n"
