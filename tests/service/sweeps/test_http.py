"""Sweeps by REST, as far as no trial is started: what is refused, and with which pointer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api import Client, Refused
from api.cli.app import build
from service import Store, TrialStore, parse_sweep
from service.status import Status
from service.sweeps import control
from service.sweeps.ledgers.keeper import LedgerKeeper
from service.sweeps.removal import expires
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service, serve, service  # noqa: F401
from trainers import State

JOB = {"data": "digits", "model": "mlp", "workers": 1, "batch": {"per_worker": 8, "base": 8}}


def refused(call: Callable[[], object]) -> tuple[int, dict[str, str]]:
    with pytest.raises(Refused) as caught:
        call()
    problem = caught.value.problem
    return problem.status, {error.pointer: error.message for error in problem.errors}


def test_a_dry_run_counts_the_trials_and_keeps_nothing(service: Service) -> None:  # noqa: F811
    spec, count = service.client.check_sweep({"job": JOB, "axes": {"batch": [8, 16], "seed": [0, 1, 2]}})
    assert count == 6
    assert spec.job.batch.base == 8
    chosen = {
        "job": JOB,
        "axes": {"optimizer.lr": {"low": 0.1, "high": 1}},
        "search": "optuna",
        "limits": {"trials": 9},
    }
    assert service.client.check_sweep(chosen)[1] == 9  # which are chosen one by one
    assert list(service.client.sweeps()) == []


@pytest.mark.parametrize(
    ("axes", "pointer", "told"),
    [
        ({"optimizer.lrr": [1]}, "/axes/optimizer.lrr", "did you mean lr?"),
        ({"seed": []}, "/axes/seed", "empty"),
        ({"batch": [8, 12]}, "/axes/batch/1", "does not divide"),
        ({"seed": list(range(300))}, "/axes", "300 configurations"),
    ],
)
def test_bad_axes_are_refused_at_once(service: Service, axes: dict[str, list[int]], pointer: str, told: str) -> None:  # noqa: F811
    body = {"job": JOB, "axes": axes}
    answer = service.http.post("/v1/sweeps", json=body)
    assert answer.headers["content-type"] == "application/problem+json"
    errors = {error["pointer"]: error["message"] for error in answer.json()["errors"]}
    assert answer.status_code == 422
    assert told in errors[pointer]


def test_a_trial_that_can_never_fit_is_refused(service: Service) -> None:  # noqa: F811
    job = JOB | {"workers": {"count": 64, "virtual": 64}}
    status, _ = refused(lambda: service.client.check_sweep({"job": job, "axes": {"seed": [0]}}))
    assert status == 422


def test_a_sweep_that_is_not_there_is_not_found(service: Service) -> None:  # noqa: F811
    client: Client = service.client
    for call in (client.get_sweep, client.cancel_sweep, client.pause_sweep, client.report):
        assert refused(lambda call=call: call("sweep-nothing"))[0] == 404
    assert service.http.get("/v1/sweeps/..%2F..%2Fetc").status_code == 404


def ended(folder: Path, number: int, user: str = "local", **job: object) -> TrialStore:
    """A sweep that is over; the database knows its only trial as a job."""
    spec = parse_sweep({"name": f"s{number}", "job": JOB | job, "axes": {"seed": [0]}})
    store = control.begin(folder / "sweeps" / f"sweep-{number}", f"sweep-{number}", spec, user=user)
    store.close(Status(State.FAILED if number % 2 else State.SUCCEEDED, "Ended", ""), with_queued=True)
    jobs = Store.open(f"sqlite:///{folder / 'jobs.db'}")
    jobs.add_trials(store.folder.name, {r.id: (r.job_spec, store.run_dir(r.id)) for r in store.trials()}, user)
    LedgerKeeper(jobs, None).save(store)
    jobs.close()
    return store


def test_sweeps_are_listed_by_pages_and_filters(service: Service, tmp_path: Path) -> None:  # noqa: F811
    for number in range(5):
        ended(tmp_path, number, "ann" if number == 3 else "local", labels={"team": "blue"} if number < 3 else {})

    def names(**params: object) -> list[str]:
        return [one["name"] for one in service.http.get("/v1/sweeps", params=params).json()["sweeps"]]

    assert names() == ["s4", "s3", "s2", "s1", "s0"]
    first = service.http.get("/v1/sweeps", params={"page_size": 2}).json()
    assert [one["name"] for one in first["sweeps"]] == ["s4", "s3"]
    service.client.delete_sweep("sweep-3")  # the last of the page
    assert names(page_size=2, page_token=first["next_page_token"]) == ["s2", "s1"]
    assert names(state="FAILED") == ["s1"]
    assert names(label="team=blue", state="SUCCEEDED") == names(label=["team", "team=blue"], state="SUCCEEDED")
    assert [one.name for one in service.client.sweeps((State.SUCCEEDED,), ("team=blue",))] == ["s2", "s0"]
    assert names(label="team=red") == names(user="ann") == []
    last = service.http.get("/v1/sweeps", params={"page_size": 4}).json()
    assert (len(last["sweeps"]), last["next_page_token"]) == (4, None)


def test_a_sweep_that_has_ended_is_deleted_with_its_trials(service: Service, tmp_path: Path) -> None:  # noqa: F811
    store = ended(tmp_path, 1)
    (trial,) = store.trials()
    store.move((State.FAILED,), Status(State.PAUSED, "Paused", ""))
    assert refused(lambda: service.client.delete_sweep("sweep-1"))[0] == 409
    store.close(Status(State.FAILED, "Ended", ""), with_queued=True)
    service.client.get(trial.id)
    service.client.delete_sweep("sweep-1")
    assert not store.folder.exists()
    for call in (lambda: service.client.get_sweep("sweep-1"), lambda: service.client.get(trial.id)):
        assert refused(call)[0] == 404
    assert refused(lambda: service.client.delete_sweep("sweep-1"))[0] == 404


def test_a_sweep_is_changed_after_its_submission(service: Service, tmp_path: Path) -> None:  # noqa: F811
    store = ended(tmp_path, 1, labels={"team": "blue", "draft": "yes"}, ttl_s=1.0)
    path, (trial,) = "/v1/sweeps/sweep-1", store.trials()
    changes = {"name": "renamed", "labels": {"team": "red", "draft": None}, "notes": "the second try"}
    answer = service.http.patch(path, json=changes)
    assert answer.status_code == 200
    assert {name: answer.json()[name] for name in ("name", "labels", "notes", "archived")} == {
        "name": "renamed", "labels": {"team": "red"}, "notes": "the second try", "archived": False,
    }  # fmt: skip
    assert service.http.patch(path, json={"priority": 101}).json()["errors"][0]["pointer"] == "/priority"
    assert refused(lambda: service.client.edit_sweep("sweep-1", priority=1))[0] == 409  # it has ended
    assert refused(lambda: service.client.edit_sweep("sweep-2", name="x"))[0] == 404
    told = refused(lambda: service.client.edit(trial.id, labels={"sweep": None}))
    assert (told[0], [*told[1]]) == (422, ["/labels/sweep"])
    assert service.client.edit(trial.id, labels={"mine": "yes"}).labels["sweep"] == "sweep-1"
    cli = build(cli_context(service.runs, tmp_path / "runs", service.url))
    for words in (["archive", "sweep-1"], ["label", "sweep-1", "kept=yes"]):
        assert CliRunner().invoke(cli, words).exit_code == 0
    assert [*service.client.sweeps(), *service.client.list()] == []
    assert [job.id for job in service.client.list(archived=True)] == [trial.id]
    (kept,) = service.client.sweeps(archived=True)
    assert (kept.id, kept.labels, kept.archived) == ("sweep-1", {"team": "red", "kept": "yes"}, True)
    assert expires(store, None) is None
    listed = CliRunner().invoke(cli, ["sweeps", "--archived"]).output
    assert "renamed" in listed
    assert CliRunner().invoke(cli, ["unarchive", "sweep-1"]).exit_code == 0
    assert expires(store, None) == store.get("created") + 1
    assert "is deleted" in CliRunner().invoke(cli, ["delete", "sweep-1"]).output
    assert not store.folder.exists()


def test_only_a_sweep_calls_a_job_its_trial(service: Service) -> None:  # noqa: F811
    client, mine = service.client, {"labels": {"sweep": "sweep-1"}}
    job = client.submit(JOB)
    for call in (client.submit, client.check, lambda changes: client.edit(job.id, **changes)):
        assert refused(lambda call=call: call(mine)) == (
            422, {"/labels/sweep": "names the sweep of a trial, and this job is none: take another key"}
        )  # fmt: skip
    assert client.edit(job.id, labels={"sweep": None, "mine": "yes"}).labels == {"mine": "yes"}


def test_a_priority_is_that_of_the_trials_that_wait(service: Service, tmp_path: Path) -> None:  # noqa: F811
    store = ended(tmp_path, 1)
    store.move((State.FAILED,), Status(State.PAUSED, "Paused", ""))
    assert refused(lambda: service.client.edit_sweep("sweep-1", archived=True))[0] == 409
    assert service.client.edit_sweep("sweep-1", priority=7).priority == 7
    (trial,) = store.trials()
    assert (trial.job_spec.priority, service.client.get(trial.id).priority) == (7, 7)
    assert store.spec.job.priority == 7  # of those that an extension adds


@pytest.mark.parametrize(("ttl_s", "keep_s", "after_s"), [(None, None, None), (None, 9.0, 9.0), (2.0, 9.0, 2.0)])
def test_an_ended_sweep_is_kept_as_long_as_a_job(
    tmp_path: Path, ttl_s: float | None, keep_s: float | None, after_s: float | None
) -> None:
    store = ended(tmp_path, 1, ttl_s=ttl_s)
    expected = None if after_s is None else store.get("created") + after_s
    assert expires(store, keep_s) == expected
    store.move((State.FAILED,), Status(State.RUNNING, "Running", ""))
    assert expires(store, keep_s) is None


def test_the_schema_has_the_sweeps(service: Service) -> None:  # noqa: F811
    schema = service.http.get("/openapi.json").json()
    assert "/v1/sweeps/{sweep_id}/report" in schema["paths"]
    assert "axes" in schema["components"]["schemas"]["SweepSpec"]["properties"]
