"""Projects that are deleted, and the admins of one project."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api import Refused, build
from service import NewProject, Projects, SpecInvalid, Store, SweepSpec, TrialStore, parse_spec
from service.database.job_store import Submission
from service.database.sweep_store import SweepStore
from service.errors import ProjectKept
from service.status import Status
from service.sweeps import control
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service, eventually
from tests.api.page.sweep import shown
from tests.service import sqlite
from tests.service.fakes import FakeRuns
from tests.service.storage.test_checkpoints import write_checkpoint
from trainers.events import State

Serve = Callable[..., Service]


def is_deleted(service: Service, project: str) -> bool:
    """Whether it could be: that a job has ended is recorded a moment after it is shown."""
    try:
        service.client.delete_project(project)
    except Refused:
        return False
    return True


def test_a_project_is_deleted_once_its_jobs_have_ended_and_they_stay(service: Service) -> None:
    service.client.create_project("vision", quota={"jobs": 1})
    first = service.client.submit({"project": "vision", "workers": 1, "epochs": 9})
    run = service.started(first.id)
    with pytest.raises(Refused, match=f"of project vision these have not ended: {first.id}; cancel them, or wait"):
        service.client.delete_project("vision")
    answer = service.http.delete("/v1/projects/vision")
    assert (answer.status_code, answer.json()["remedy"][:28]) == (409, "cancel what the message name")
    second = service.client.submit({"project": "vision", "workers": 1})  # it goes on as if nothing had been asked
    service.client.cancel(second.id)
    write_checkpoint(run.run_dir, 1000, 1)
    run.succeed()
    eventually(lambda: all(job.state.is_terminal for job in service.client.list(project="vision")))
    eventually(lambda: is_deleted(service, "vision"))
    assert [one.name for one in service.client.projects()] == ["default"]
    assert len([*service.client.list(project="vision")]) == 2
    assert service.client.get(first.id).project == "vision"
    with pytest.raises(Refused, match="there is no project 'vision'; there are default"):
        service.client.submit({"project": "vision"})
    with pytest.raises(Refused, match="there is no project 'vision'"):
        service.client.fork(first.id)
    assert service.client.fork(first.id, {"project": "default"}).project == "default"
    problem = service.http.delete("/v1/projects/default").json()
    assert problem["detail"] == "the project default stays: jobs that name no project belong to it"
    assert problem["remedy"] == "leave it, and change its quotas and members with PATCH /v1/projects/default"
    told = service.http.get("/v1/audit?target=vision").json()["entries"]
    assert [(one["action"], one["status"]) for one in told] == [("project.delete", 204), ("project.create", 201)]


def test_a_deleted_project_is_gone_after_a_restart_and_may_come_again(service: Service, serve: Serve) -> None:
    service.client.create_project("vision", admins=["ann"])
    service.client.delete_project("vision")
    service.stop()
    again = serve()
    assert [one.name for one in again.client.projects()] == ["default"]
    made = again.client.create_project("vision", members=["bob"])
    assert (made.members, made.admins) == (("bob",), ())


def test_a_sweep_keeps_its_project_until_it_has_ended(tmp_path: Path) -> None:
    """And what comes between the look at a spec and its place in the database is refused there."""
    store = Store.open(sqlite.create_database(tmp_path / "jobs.db"))
    try:
        projects, sweeps = Projects(store.engine, store.writer), SweepStore(store.engine, store.writer)
        projects.create(NewProject(name="vision")).result()
        spec = shown()[0]["spec"]
        values = {"created": 1.0, "state": "PAUSED", "spec": spec | {"job": spec["job"] | {"project": "vision"}}}
        sweeps.save("sweep-1", values, {})
        sweeps.save("sweep-2", values | {"spec": spec}, {})
        with pytest.raises(ProjectKept, match="these have not ended: sweep-1;"):
            projects.delete("vision").result()
        sweeps.save("sweep-1", values | {"state": "CANCELLED"}, {})
        projects.delete("vision").result()
        with pytest.raises(SpecInvalid, match="/project: there is no project 'vision' any more"):
            store.add(Submission(parse_spec({"project": "vision"})), tmp_path)
    finally:
        store.close()


def test_admins_of_a_project_choose_its_people_and_look_after_its_jobs(serve: Serve) -> None:
    service = serve(is_required=True)
    root, ann, bob = service.bearer("admin", "root"), service.bearer("user"), service.bearer("user", "bob")
    eve = service.bearer("user", "eve")
    http = service.http
    body = {"name": "vision", "members": ["bob"], "admins": ["ann"], "quota": {"cpus": 2}}
    assert http.post("/v1/projects", json=body, headers=root).json()["admins"] == ["ann"]

    changed = http.patch("/v1/projects/vision", json={"members": ["bob", "eve"]}, headers=ann)
    assert (changed.status_code, changed.json()["members"]) == (200, ["bob", "eve"])
    for more in ({"quota": {"cpus": None}}, {"share": 9.0}, {"members": ["*"], "share": 9.0}):
        refused = http.patch("/v1/projects/vision", json=more, headers=ann)
        assert (refused.status_code, "ask an admin of the service" in refused.text) == (403, True)
    refused = http.patch("/v1/projects/vision", json={"admins": ["bob"]}, headers=bob)
    assert (refused.status_code, refused.json()["remedy"]) == (403, "ask ann or an admin")
    assert http.patch("/v1/projects/speech", json={"members": []}, headers=ann).status_code == 404
    assert http.post("/v1/projects", json={"name": "mine"}, headers=ann).status_code == 403
    assert http.delete("/v1/projects/vision", headers=ann).status_code == 403
    assert http.get("/v1/projects/vision", headers=root).json()["share"] == 1.0

    def submit(headers: dict[str, str], **more: Any) -> str:
        answer = http.post("/v1/jobs", json={"workers": 1, "project": "vision"} | more, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    own, of_bob, elsewhere = submit(ann), submit(bob), submit(bob, project="default")
    assert http.post(f"/v1/jobs/{of_bob}/pause", headers=eve).status_code == 403, "a member only"
    assert http.post(f"/v1/jobs/{own}/cancel", headers=bob).status_code == 403
    assert http.patch(f"/v1/jobs/{of_bob}", json={"priority": 3}, headers=ann).status_code == 200
    assert http.post(f"/v1/jobs/{of_bob}/cancel", headers=ann).status_code == 202
    assert http.post(f"/v1/jobs/{elsewhere}/cancel", headers=ann).status_code == 403, "of her project only"
    assert http.patch("/v1/projects/vision", json={"admins": ["bob"]}, headers=ann).status_code == 200
    assert http.patch("/v1/projects/vision", json={"members": ["*"]}, headers=ann).status_code == 403
    told = http.get("/v1/audit?target=vision", headers=root).json()["entries"]
    assert [one["user"] for one in told if one["status"] == 200] == ["ann", "ann"]


def paused_sweep(folder: Path, sweep: str, project: str) -> None:
    """A sweep that an earlier service left, and that nobody drives."""
    spec = SweepSpec.model_validate({"job": {"workers": 1, "project": project}, "axes": {"seed": [0, 1]}})
    store = TrialStore(folder / sweep)
    control.begin(store.folder, sweep, spec.resolved(folder), "", "ann")
    assert store.move((State.QUEUED,), Status(State.PAUSED, "Paused", "somebody paused it"))


def test_sweeps_are_listed_by_project_and_need_it_to_go_on(serve: Serve, tmp_path: Path) -> None:
    for sweep, project in (("sweep-1", "vision"), ("sweep-2", "default")):
        paused_sweep(tmp_path / "sweeps", sweep, project)
    service = serve()
    app = build(cli_context(FakeRuns(), tmp_path, service.url))
    for project, expected in (("vision", ["sweep-1"]), ("default", ["sweep-2"]), ("speech", [])):
        result = CliRunner().invoke(app, ["sweeps", "--project", project, "-o", "json"])
        assert [one["id"] for one in json.loads(result.output)["sweeps"]] == expected
    for call in (
        lambda: service.client.resume_sweep("sweep-1"),
        lambda: service.client.extend_sweep("sweep-1", {}, {}),
    ):
        with pytest.raises(Refused, match="there is no project 'vision'; there are default"):
            call()
    service.client.create_project("vision")
    with pytest.raises(Refused, match="these have not ended: sweep-1"):
        service.client.delete_project("vision")
    service.client.cancel_sweep("sweep-1")
    eventually(lambda: service.client.get_sweep("sweep-1").state is State.CANCELLED)
    service.client.delete_project("vision")
    assert [one.id for one in service.client.sweeps(project="vision")] == ["sweep-1"]
