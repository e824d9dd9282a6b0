"""Projects: quotas that jobs wait for, members who submit, admins who change them; by every front door."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api import AsyncClient, Refused, build
from service import Quotas
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service, eventually
from tests.service.fakes import FakeRuns
from tests.service.storage.test_checkpoints import write_checkpoint
from trainers.events import State

Serve = Callable[..., Service]


def job(project: str = "vision", workers: int | dict[str, int] = 1, **fields: Any) -> dict[str, Any]:
    return {"project": project, "workers": workers, **fields}


def waits(service: Service, job_id: str, reason: str) -> str:
    """The message of a waiting job, once it has this reason."""
    eventually(lambda: service.client.get(job_id).reason == reason)
    return service.client.get(job_id).message


def test_a_job_waits_until_its_project_has_room_again(service: Service, serve: Serve) -> None:
    made = service.client.create_project("vision", quota={"cpus": 2})
    assert (made.members, made.share, made.quota.cpus, made.quota.jobs) == (("*",), 1.0, 2.0, None)
    first = service.client.submit(job(workers=2))
    run = service.started(first.id)
    run.state(State.RUNNING)
    second, other = service.client.submit(job()), service.client.submit({"workers": 1})
    assert (second.project, other.project) == ("vision", "default")
    service.started(other.id)
    told = waits(service, second.id, "ProjectQuota")
    assert told == "first in the queue: waits, since project vision has given out 2 of its 2 CPUs, and the job needs 1"
    use = service.client.project("vision").use
    assert (use.jobs, use.waiting, use.cpus, use.of_cluster) == (1, 1, 2.0, 0.5)
    assert [one.id for one in service.client.list(project="vision")] == [second.id, first.id]
    assert [one.project for one in service.client.list(project="default")] == ["default"]
    run.succeed()
    service.started(second.id)


def test_a_job_waits_while_the_runs_of_its_project_hold_too_much_of_the_disk(service: Service) -> None:
    service.client.create_project("vision", quota={"disk_bytes": 1_000_000})
    first = service.client.submit(job())
    run = service.started(first.id)
    (run.run_dir / "checkpoints" / "7").mkdir(parents=True)
    (run.run_dir / "checkpoints" / "7" / "weights").write_bytes(bytes(1_500_000))
    eventually(lambda: service.client.project("vision").use.disk_bytes > 1_500_000)
    second = service.client.submit(job())
    told = waits(service, second.id, "ProjectQuota")
    assert "the runs of project vision hold 1.5 MB, and 1.0 MB are its quota; delete some of them" in told
    assert service.client.project("default").use.disk_bytes == 0
    run.succeed()
    eventually(lambda: service.client.get(first.id).state is State.SUCCEEDED)
    service.client.delete(first.id)
    service.started(second.id)


def test_a_quota_that_is_raised_lets_jobs_start_at_once_and_is_there_after_a_restart(
    service: Service, serve: Serve
) -> None:
    service.client.create_project("vision", quota={"jobs": 1, "gpus": 0}, share=2)
    first, second = (service.client.submit(job()) for _ in range(2))
    service.started(first.id)
    assert "project vision runs 1 of its 1 job" in waits(service, second.id, "ProjectQuota")
    service.stop()
    again = serve()
    assert again.client.project("vision").quota.jobs == 1
    assert "runs 1 of its 1 job" in waits(again, second.id, "ProjectQuota")
    changed = again.client.edit_project("vision", quota={"jobs": None})
    assert (changed.quota.jobs, changed.quota.gpus, changed.share) == (None, 0.0, 2.0), "what is not sent stays"
    again.started(second.id)


def test_what_a_project_may_never_have_is_refused_where_the_spec_says_it(service: Service) -> None:
    service.client.create_project("vision", quota={"cpus": 2})
    with pytest.raises(Refused, match="needs 3 CPUs and 0 GPUs at once, and project vision may hold 2 CPUs at once"):
        service.client.submit(job(workers=3))
    answer = service.http.post("/v1/jobs", json=job("visoin"))
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/project"
    assert error["message"] == "there is no project 'visoin'; there are default, vision; an admin creates others"
    sweep = {"job": job("visoin"), "axes": {"seed": [0, 1]}}
    (error,) = service.http.post("/v1/sweeps", json=sweep).json()["errors"]
    assert error["pointer"] == "/job/project"
    sweep = {"job": job(), "axes": {"project": ["vision", "default"]}}
    answer = service.http.post("/v1/sweeps", json=sweep)
    assert (answer.status_code, "all trials of a sweep are of one project" in answer.text) == (422, True)
    sweep = {"job": job(workers=3), "axes": {"seed": [0]}}
    assert "project vision may hold 2 CPUs at once" in service.http.post("/v1/sweeps", json=sweep).text


def test_a_running_job_grows_no_further_than_its_project_may(service: Service) -> None:
    service.client.create_project("vision", quota={"cpus": 2})
    one, two = (service.client.submit(job(workers={"count": 1, "virtual": 4})) for _ in range(2))
    for started in (one, two):
        service.started(started.id).state(State.RUNNING)
        eventually(lambda job_id=started.id: service.client.get(job_id).state is State.RUNNING)  # type: ignore[misc]
    with pytest.raises(Refused, match="2 workers now: project vision has given others 1 of its 2 CPUs, and") as told:
        service.client.scale(one.id, 2)
    assert told.value.problem.remedy == "ask for fewer workers, or wait until other jobs have ended"
    service.client.edit_project("vision", quota={"cpus": 3})
    assert service.client.scale(one.id, 2).id == one.id


def test_workers_that_a_job_waits_for_count_for_the_quota_and_are_not_shown_as_held(service: Service) -> None:
    service.client.create_project("vision", quota={"cpus": 5})
    first = service.client.submit(job(workers={"count": 1, "virtual": 4}))
    run = service.started(first.id)
    run.scale = lambda count: None  # type: ignore[method-assign] # there is no room for newcomers yet
    run.emit("actors", workers=[{"name": f"{first.id}/worker/0"}], shards=[])
    run.state(State.RUNNING)
    eventually(lambda: service.client.get(first.id).state is State.RUNNING)
    service.client.scale(first.id, 4)
    use = service.client.project("vision").use
    assert (use.cpus, use.of_cluster) == (1.0, 0.25)
    second = service.client.submit(job(workers=2))
    told = waits(service, second.id, "ProjectQuota")
    assert told.endswith("since project vision has given out 4 of its 5 CPUs, and the job needs 2")
    run.emit("resize", workers=3, joined=[f"{first.id}/worker/{n}" for n in (1, 2)], left=[], examples=0)
    eventually(lambda: service.client.project("vision").use.cpus == 3.0)
    run.succeed()
    service.started(second.id)


def test_members_submit_and_admins_make_the_rules(serve: Serve) -> None:
    service = serve(is_required=True)
    root, ann, bob = service.bearer("admin", "root"), service.bearer("user"), service.bearer("user", "bob")
    eve = service.bearer("viewer", "eve")
    post, patch = service.http.post, service.http.patch
    body = {"name": "vision", "members": ["ann"], "quota": {"jobs": 1}}
    assert post("/v1/projects", json=body, headers=ann).status_code == 403
    made = post("/v1/projects", json=body, headers=root)
    assert (made.status_code, made.headers["location"]) == (201, "/v1/projects/vision")
    assert post("/v1/projects", json=body, headers=root).status_code == 409
    assert patch("/v1/projects/vision", json={"share": 3}, headers=ann).status_code == 403
    listed = service.http.get("/v1/projects", headers=eve).json()["projects"]
    assert [one["name"] for one in listed] == ["default", "vision"]

    refused = post("/v1/jobs", json=job(), headers=bob)
    assert (refused.status_code, refused.json()["detail"]) == (403, "bob is no member of project vision")
    assert refused.json()["errors"][0]["pointer"] == "/project"
    sweep = {"job": job(), "axes": {"seed": [0]}}
    assert post("/v1/sweeps", json=sweep, headers=bob).status_code == 403
    for who in (ann, root):
        assert post("/v1/jobs", json=job(), headers=who).status_code == 202
    assert post("/v1/jobs", json={"workers": 1}, headers=bob).status_code == 202, "the default is everybody's"
    changed = patch("/v1/projects/vision", json={"members": ["bob"], "share": 0.5}, headers=root)
    assert (changed.status_code, changed.json()["quota"]["jobs"]) == (200, 1)
    assert post("/v1/jobs", json=job(), headers=bob).status_code == 202
    assert post("/v1/jobs", json=job(), headers=ann).status_code == 403

    told = service.http.get("/v1/audit?target=vision", headers=root).json()["entries"]
    assert [(one["action"], one["user"], one["status"]) for one in reversed(told)] == [
        ("project.create", "root", 201), ("project.edit", "ann", 403), ("project.edit", "root", 200),
    ]  # fmt: skip
    assert told[0]["details"] == {"members": ["bob"], "share": 0.5}


def test_a_fork_stays_in_its_project_and_needs_a_member(serve: Serve) -> None:
    service = serve(is_required=True)
    ann, bob = service.bearer("user"), service.bearer("user", "bob")
    created = {"name": "vision", "members": ["ann"]}
    assert service.http.post("/v1/projects", json=created, headers=service.bearer("admin", "root")).status_code == 201
    made = service.http.post("/v1/jobs", json=job(epochs=9), headers=ann).json()
    run = service.started(made["id"])
    write_checkpoint(run.run_dir, 1000, 1)
    fork = f"/v1/jobs/{made['id']}/fork"
    assert service.http.post(fork, headers=ann).json()["project"] == "vision"
    assert service.http.post(fork, headers=bob).status_code == 403
    assert service.http.post(fork, json={"project": "default"}, headers=bob).json()["project"] == "default"


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a b"}, {"name": ""}, {"name": "x", "share": 0}, {"name": "x", "share": "1"},
        {"name": "x", "quota": {"jobs": 0}}, {"name": "x", "quota": {"cpus": -1}}, {"name": "x", "quota": {"ram": 1}},
        {"name": "x", "quota": {"cpus": True}}, {"name": "x", "members": ["a b"]}, {"name": "x", "colour": "red"},
        {"name": "x", "admins": ["*"]},
    ],
)  # fmt: skip
def test_a_slip_of_the_pen_is_refused(service: Service, body: dict[str, Any]) -> None:
    assert service.http.post("/v1/projects", json=body).status_code == 422
    assert [one.name for one in service.client.projects()] == ["default"]


def test_a_user_limit_counts_over_all_projects(serve: Serve) -> None:
    service = serve(quotas=Quotas(running_jobs=1))
    service.client.create_project("vision")
    service.started(service.client.submit({"workers": 1}).id)
    assert "local may run 1 job at once" in waits(service, service.client.submit(job()).id, "UserLimit")


def test_the_command_line(service: Service, tmp_path: Path) -> None:
    app = build(cli_context(FakeRuns(), tmp_path, service.url))

    def told(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == status, result.output
        return result.output

    made = json.loads(
        told("projects", "create", "vision", "--member", "ann", "--cpus", "2", "--disk-gb", "1.5", "-o", "json")
    )
    assert made["quota"] == {"jobs": None, "cpus": 2.0, "gpus": None, "disk_bytes": 1_500_000_000}
    words = ("--add-member", "bob", "--remove-member", "ann", "--add-admin", "eve", "--no-limit", "disk-gb",
             "--share", "2", "--jobs", "3")  # fmt: skip
    shown = told("projects", "edit", "vision", *words)
    assert [line.split() for line in shown.splitlines()] == [
        ["project", "vision"], ["share", "2"], ["jobs", "0", "of", "3"], ["CPUs", "0", "of", "2"], ["GPUs", "0"],
        ["disk", "0", "GB"], ["waiting", "0"], ["members", "bob"], ["admins", "eve"],
    ]  # fmt: skip
    assert told("projects", "show", "vision") == shown
    assert "none of jobs, cpus, gpus, disk-gb" in told("projects", "edit", "vision", "--no-limit", "ram", status=2)
    assert "there is no project 'speech'" in told("projects", "show", "speech", status=2)
    assert "there is a project 'vision' already" in told("projects", "create", "vision", status=2)
    listed = told("projects", "list").splitlines()
    assert [line.split()[0] for line in listed] == ["project", "default", "vision"]
    assert "everybody" in listed[1]
    spec = tmp_path / "job.yaml"
    spec.write_text("workers: 1\n")
    told("submit", str(spec), "--project", "vision")
    told("submit", str(spec))
    (one,) = json.loads(told("list", "--project", "vision", "-o", "json"))["jobs"]
    assert one["project"] == "vision"
    assert "vision" in told("show", one["id"])
    refused = told("projects", "delete", "vision", status=2)
    assert f"of project vision these have not ended: {one['id']}; cancel them, or wait" in refused
    service.started(one["id"]).succeed()

    def deleted() -> bool:  # its end is recorded in a moment
        return "Project vision is deleted" in CliRunner().invoke(app, ["projects", "delete", "vision"]).output

    eventually(deleted)
    assert one["id"] in told("list", "--project", "vision"), "what it had is still found"
    assert "there is no project 'vision'" in told("projects", "delete", "vision", status=2)


def test_the_client_with_an_event_loop_does_the_same(service: Service) -> None:
    async def scenario() -> None:
        async with AsyncClient(service.url) as client:
            made = await client.create_project("vision", members=["ann"], quota={"jobs": 2})
            assert [one.name async for one in client.projects()] == ["default", "vision"]
            assert await client.project("vision") == made
            assert (await client.edit_project("vision", quota={"jobs": 5})).quota.jobs == 5
            await client.submit(job())
            assert [one.project async for one in client.list(project="vision")] == ["vision"]
            with pytest.raises(Refused, match="have not ended"):
                await client.delete_project("vision")
            assert [one async for one in client.sweeps(project="vision")] == []

    asyncio.run(scenario())
