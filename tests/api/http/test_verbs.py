"""Pause, resume, fork, checkpoints and metrics through REST, the client and the command line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import Refused, build
from service import Quotas
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service, eventually
from tests.api.http.test_routes import refused
from tests.service.storage.test_checkpoints import write_checkpoint
from trainers.events import State


@pytest.fixture
def trained(service: Service) -> str:
    """A running job with two checkpoints and some figures."""
    job = service.client.submit({"epochs": 4, "name": "trained"})
    run = service.started(job.id)
    run.state(State.RUNNING)
    for step in range(1, 41):
        run.step(step / 20, loss=100.0 if step == 13 else 1 / step)
    for epoch in (1, 2):
        write_checkpoint(run.run_dir, 1000 * epoch, epoch)
    eventually(lambda: service.client.get(job.id).metrics is not None)
    return job.id


def test_pause_and_resume(service: Service, trained: str) -> None:
    run = service.started(trained)
    answer = service.http.post(f"/v1/jobs/{trained}/pause")
    assert (answer.status_code, answer.json()["state"]) == (202, "PAUSING")
    assert refused(service.http.post(f"/v1/jobs/{trained}/resume"), 409) == []
    run.state(State.PAUSED, "Paused", "paused after 2000 examples")
    eventually(lambda: service.client.get(trained).state is State.PAUSED)
    assert service.client.resume(trained).state in (State.QUEUED, State.STARTING)
    eventually(lambda: service.runs.runs[trained] is not run)
    assert service.client.pause(trained).state is State.PAUSING
    for verb in ("pause", "resume", "fork"):
        assert refused(service.http.post(f"/v1/jobs/nosuchjob/{verb}"), 404) == []


def test_a_job_is_changed_after_its_submission(service: Service, trained: str, tmp_path: Path) -> None:
    path = f"/v1/jobs/{trained}"
    changes = {"name": "renamed", "labels": {"team": "vision", "draft": None}, "notes": "a note", "priority": 3}
    answer = service.http.patch(path, json=changes)
    assert answer.status_code == 200
    job = answer.json()
    assert (job["name"], job["labels"], job["notes"], job["priority"]) == ("renamed", {"team": "vision"}, "a note", 3)
    assert (job["spec"]["name"], job["spec"]["priority"]) == ("renamed", 3)
    assert service.client.edit(trained, notes="").labels == {"team": "vision"}
    assert refused(service.http.patch(path, json={"priority": 101}), 422) == ["/priority"]
    assert refused(service.http.patch(path, json={"state": "FAILED"}), 422) == ["/state"]
    assert refused(service.http.patch(path, json={"archived": True}), 409) == []
    assert refused(service.http.patch("/v1/jobs/nosuchjob", json={}), 404) == []
    assert any(event.data.get("action") == "job.edit" for event in service.client.events_so_far(trained))
    service.started(trained).succeed()
    eventually(lambda: service.client.get(trained).finished is not None)
    app = build(cli_context(service.runs, tmp_path / "runs", service.url))
    for words in (["label", trained, "team-", "kept=yes"], ["archive", trained]):
        assert CliRunner().invoke(app, words).exit_code == 0
    assert list(service.client.list()) == []
    assert [(one.id, one.labels) for one in service.client.list(archived=True)] == [(trained, {"kept": "yes"})]
    assert refused(service.http.patch(path, json={"priority": 1}), 409) == []


def test_scale(service: Service, trained: str) -> None:
    path = f"/v1/jobs/{trained}/scale"
    assert service.http.post(path, json={"workers": 1}).status_code == 202
    assert service.client.scale(trained, 2).id == trained
    answer = service.http.post(path, json={"workers": 9})
    assert refused(answer, 422) == ["/workers"]
    assert "1 to 2 of them, not 9; it has 2 virtual workers" in answer.json()["detail"]
    assert refused(service.http.post(path, json={"workers": 0}), 422) == ["/workers"]
    assert refused(service.http.post("/v1/jobs/nosuchjob/scale", json={"workers": 2}), 404) == []
    service.client.cancel(trained)
    assert refused(service.http.post(path, json={"workers": 2}), 409) == []


def test_fork(service: Service, trained: str) -> None:
    path = f"/v1/jobs/{trained}/fork"
    answer = service.http.post(path, headers={"Idempotency-Key": "k"})  # no body: no changes
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert job["forked_from"] == f"{trained}/000000002000"
    again = service.http.post(path, headers={"Idempotency-Key": "k"})
    assert again.json()["id"] == job["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert refused(service.http.post(path, json={"epochs": 7}, headers={"Idempotency-Key": "k"}), 422) == [
        "/header/Idempotency-Key"
    ]
    yaml = {"Content-Type": "application/yaml"}
    answer = service.http.post(f"{path}?checkpoint=1000&dry_run=true", content="optimizer: {lr: 0.5}", headers=yaml)
    assert (answer.status_code, answer.json()["optimizer"]["lr"]) == (200, 0.5)
    assert len(service.http.get("/v1/jobs").json()["jobs"]) == 2
    assert refused(service.http.post(path, json={"epochs": 1}), 422) == ["/epochs"]
    assert refused(service.http.post(path, json={"epocs": 9}), 422) == ["/epocs"]
    assert refused(service.http.post(path, json=[1]), 422) == [""]
    assert refused(service.http.post(f"{path}?checkpoint=3000"), 404) == []
    assert refused(service.http.post(f"{path}?checkpoint=../.."), 422) == ["/query/checkpoint"]
    assert service.client.check_fork(trained, {"epochs": 2}, "1000").epochs == 2  # the newest has 2 behind it already
    assert service.client.fork(trained, {"name": "other"}, "000000001000").name == "other"


def test_checkpoints_are_listed_and_downloaded(service: Service, trained: str, tmp_path: Path) -> None:
    first, second = service.http.get(f"/v1/jobs/{trained}/checkpoints").json()["checkpoints"]
    assert (first["step"], second["epoch"]) == ("000000001000", 2)
    path = f"/v1/jobs/{trained}/checkpoints/000000001000"
    answer = service.http.get(f"{path}/model.safetensors")
    assert (answer.content, answer.headers["content-length"]) == (b"weights", "7")
    service.client.download(trained, "000000001000", "model.safetensors", tmp_path / "weights")
    assert (tmp_path / "weights").read_bytes() == b"weights"
    with pytest.raises(Refused):
        service.client.download(trained, "000000001000", "nothing", tmp_path / "no")
    assert not (tmp_path / "no").exists()
    for name in ("..%2F..%2Fevents.jsonl", "%2e%2e", "nothing", "..%5cx", "%00"):
        assert service.http.get(f"{path}/{name}").status_code == 404
    assert service.http.get(f"/v1/jobs/{trained}/checkpoints/..%2f/events.jsonl").status_code == 404


def test_the_models_that_a_job_leaves_are_fetched_whole_or_in_part(
    service: Service, trained: str, tmp_path: Path
) -> None:
    path = f"/v1/jobs/{trained}/model"
    answer = service.http.get(path)
    why = "it is written when the run has trained everything, or stops because it is cancelled or paused"
    assert (answer.status_code, answer.json()["detail"]) == (404, f"the job has no model.safetensors: {why}")
    assert answer.json()["remedy"].startswith("wait until the job has ended or is paused, ")
    folder = service.started(trained).run_dir
    (folder / "model.safetensors").write_bytes(b"0123456789")
    (folder / "best.safetensors").symlink_to(folder / "events.jsonl")
    service.client.model(trained, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"0123456789"
    app = build(cli_context(service.runs, tmp_path / "runs", service.url))
    told = CliRunner().invoke(app, ["model", trained, "--out", str(tmp_path / "fetched")])
    assert (told.exit_code, (tmp_path / "fetched").read_bytes()) == (0, b"0123456789")
    head = service.http.head(path).headers
    assert (head["content-length"], head["accept-ranges"]) == ("10", "bytes")
    rest = service.http.get(path, headers={"Range": "bytes=4-", "If-Range": head["etag"]})
    assert (rest.status_code, rest.content, rest.headers["content-range"]) == (206, b"456789", "bytes 4-9/10")
    beyond = service.http.get(path, headers={"Range": "bytes=99-"})
    assert refused(beyond, 416) == ["/header/Range"]
    assert beyond.headers["content-range"] == "bytes */10"
    assert refused(service.http.get(path, headers={"Range": "bytes=x-y"}), 400) == ["/header/Range"]
    for name, value in (("If-None-Match", head["etag"]), ("If-Modified-Since", head["last-modified"])):
        for known, status in ((value, 304), ("garbage", 200)):
            had = service.http.get(path, headers={name: known, "Range": "items=0-1"})
            assert (had.status_code, len(had.content)) == (status, 10 if status == 200 else 0), "no unit of ours"
            assert had.headers["etag"] == head["etag"]
    assert service.http.get(f"{path}?which=best").status_code == 404, "no link is followed"
    assert "did you mean" in service.http.get(f"{path}?which=modelX").json()["detail"]


def test_an_ended_job_is_deleted_with_its_files(service: Service, trained: str, tmp_path: Path) -> None:
    assert refused(service.http.delete(f"/v1/jobs/{trained}"), 409) == []
    run = service.started(trained)
    run.succeed()
    eventually(lambda: service.client.get(trained).state is State.SUCCEEDED)
    app = build(cli_context(service.runs, tmp_path / "runs", service.url))

    def deleted() -> bool:  # its end is recorded in a moment
        return CliRunner().invoke(app, ["delete", trained]).exit_code == 0

    eventually(deleted)
    assert not run.run_dir.exists()
    for answer in (service.http.get(f"/v1/jobs/{trained}"), service.http.delete(f"/v1/jobs/{trained}")):
        assert refused(answer, 404) == []
    (entry,) = [one for one in service.client.audit() if one.action == "job.delete"]
    assert (entry.target, entry.status, entry.details) == (trained, 204, {"name": "trained"})


def test_metrics(service: Service, trained: str) -> None:
    path = f"/v1/jobs/{trained}/metrics"
    line = service.http.get(f"{path}?name=loss&points=10&x=epoch").json()
    assert (line["name"], line["x"], line["total"]) == ("loss", "epoch", 40)
    assert [0.65, 100.0] in line["points"]
    assert len(line["points"]) <= 10
    assert service.client.metrics(trained, "workers").points[0][1] == 2.0
    assert refused(service.http.get(f"{path}?name=lost"), 422) == ["/query/name"]
    assert refused(service.http.get(path), 422) == ["/query/name"]
    assert refused(service.http.get(f"{path}?name=loss&points=1"), 422) == ["/query/points"]
    assert refused(service.http.get(f"{path}?name=loss&x=weeks"), 422) == ["/query/x"]
    assert refused(service.http.get("/v1/jobs/nosuchjob/metrics?name=loss"), 404) == []


def test_metrics_of_several_jobs(service: Service, trained: str) -> None:
    path, nobody = f"/v1/metrics?job={trained}", "000000000000"
    one = service.http.get(f"/v1/jobs/{trained}/metrics?name=loss&points=10&x=epoch").json()
    found = service.http.get(f"{path}&job={nobody}&job={trained}&name=loss&points=10&x=epoch").json()
    assert found == {"lines": [one, None, one]}
    assert refused(service.http.get(f"{path}&name=lost"), 422) == ["/query/name"]
    assert refused(service.http.get(f"/v1/metrics?job={nobody}&name=lost"), 422) == ["/query/name"]
    assert refused(service.http.get("/v1/metrics?name=loss"), 422) == ["/query/job"]
    assert refused(service.http.get("/v1/metrics?job=..%2F..&name=loss"), 422) == ["/query/job/0"]
    many = "&".join(f"job={trained}" for _ in range(200))
    assert len(service.http.get(f"/v1/metrics?{many}&name=loss&points=1000").json()["lines"]) == 200
    answer = service.http.get(f"/v1/metrics?{many}&name=loss&points=1001")
    assert refused(answer, 422) == ["/query/points"]
    assert "1000 points or fewer" in answer.json()["detail"]
    assert refused(service.http.get(f"/v1/metrics?{many}&job={trained}&name=loss"), 422) == ["/query/job"]


def test_a_waiting_job_says_for_what_and_where_it_stands(service: Service, trained: str) -> None:
    waiting = service.client.submit({"workers": 4})
    eventually(lambda: service.client.get(waiting.id).place == 1)
    job = service.client.get(waiting.id)
    assert job.reason == "WaitsForResources"
    assert f"waits for 2 CPUs held by job {trained}" in job.message
    assert job.starts_in_s is not None
    assert next(service.client.list()).message == job.message


def test_too_many_waiting_jobs_are_told_when_to_come_back(serve: Callable[..., Service]) -> None:
    service = serve(quotas=Quotas(waiting_jobs=1))
    service.started(service.client.submit({"workers": 4}).id)
    service.client.submit({"workers": 4})
    answer = service.http.post("/v1/jobs", json={"workers": 4})
    assert refused(answer, 429) == []
    assert int(answer.headers["retry-after"]) > 0


def test_on_the_command_line(service: Service, trained: str, tmp_path: Path) -> None:
    app = build(cli_context(service.runs, tmp_path, service.url))

    def told(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == status, result.stderr
        return result.stdout if status == 0 else result.stderr

    assert told("checkpoints", trained).splitlines()[0].startswith("000000001000  epoch 1")
    tried = json.loads(told("fork", trained, "--set", "optimizer.lr=0.5", "--dry-run", "-o", "json"))
    assert tried["optimizer"]["lr"] == 0.5
    assert [job.id for job in service.client.list()] == [trained]
    assert "/epochs" in told("fork", trained, "--set", "epochs=1", "--checkpoint", "1000", "--dry-run", status=2)
    forked = json.loads(told("fork", trained, "--set", "optimizer.lr=0.5", "--checkpoint", "1000", "-o", "json"))
    assert (forked["spec"]["optimizer"]["lr"], forked["spec"]["optimizer"]["name"]) == (0.5, "momentum")
    assert "/epochs" in told("fork", trained, "--set", "epochs=1", status=2)
    assert "field.field=value" in told("fork", trained, "--set", "epochs", status=2)
    assert "PAUSING" in told("pause", trained)
    assert "wait until it is PAUSED" in told("resume", trained, status=2)
    service.started(trained).state(State.PAUSED)
    eventually(lambda: service.client.get(trained).state is State.PAUSED)
    assert "waits" in told("resume", trained)


def test_none_of_it_is_left_out_of_openapi(service: Service) -> None:
    paths = httpx2.get(f"{service.url}/openapi.json", trust_env=False, timeout=60).json()["paths"]
    for path in ("pause", "resume", "fork", "checkpoints", "checkpoints/{step}/{file}", "metrics"):
        assert f"/v1/jobs/{{job_id}}/{path}" in paths


def test_trace(service: Service, trained: str, tmp_path: Path) -> None:
    path, run = f"/v1/jobs/{trained}/traces", service.started(trained)
    assert service.http.get(path).json() == {"traces": []}
    answer = service.http.post(path, json={"steps": 7, "worker": 1})
    assert answer.status_code == 202
    (one,) = service.client.traces(trained)
    assert (one.worker, one.steps, one.bytes) == (1, 7, len(run.trace_file))
    file = service.http.get(f"{path}/{one.name}")
    assert (file.content, file.headers["content-type"]) == (run.trace_file, "application/gzip")
    assert "content-encoding" not in file.headers
    eventually(lambda: "TRACE worker/1, 7 of 7 steps in traces/0001" in service.client.logs(trained))
    assert "REQUEST job.trace, steps 7, worker 1, by local" in service.client.logs(trained)
    first, last = service.client.trace(trained)  # ten of the first
    assert (first.data, last.data["steps"], last.data["worker"]) == ({"worker": 0, "asked": 10, "steps": 0}, 10, 0)
    for wrong, pointers in (({"steps": 0}, ["/steps"]), ({"steps": 101}, ["/steps"]), ({"step": 3}, ["/step"])):
        assert refused(service.http.post(path, json=wrong), 422) == pointers
    assert refused(service.http.post(path, json={"worker": 5}), 409) == []
    for name in ("0009-worker-1-7.json.gz", "..%2Fevents.jsonl"):
        assert refused(service.http.get(f"{path}/{name}"), 404) == []
    assert refused(service.http.post("/v1/jobs/nosuchjob/traces", json={}), 404) == []
    run.succeed()
    eventually(lambda: service.client.get(trained).state is State.SUCCEEDED)
    assert refused(service.http.post(path, json={}), 409) == []


def test_trace_from_a_terminal(service: Service, trained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Outcome:
        app = build(cli_context(service.runs, tmp_path / "runs", service.url))
        return CliRunner().invoke(app, ["trace", trained, *arguments])

    assert "3 steps of worker/1" in call("--steps", "3", "--worker", "1", "--out", "steps.json").stdout
    assert json.loads((tmp_path / "steps.json").read_text()) == {"traceEvents": []}
    found = json.loads(call("-o", "json").stdout)
    assert found == {"path": f"{trained}-0001-worker-0-10.json.gz", "worker": 0, "steps": 10}
    assert gzip.decompress((tmp_path / found["path"]).read_bytes()) == b'{"traceEvents": []}'
    assert (call("--worker", "9").exit_code, call("--out", "no/where.json").exit_code) == (2, 2)
    service.started(trained).no_trace = "the workers changed"
    outcome = call()
    assert (outcome.exit_code, "worker/0 has recorded no step: the workers changed" in outcome.stderr) == (1, True)
