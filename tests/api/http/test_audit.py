"""Who changed what, when and from where: in the audit, and in the log of the job."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from api import Client
from api.http.auth import LOGIN, OWN_TOKEN
from service import AuditEntry, Role
from tests.api.conftest import Service, eventually
from tests.service.storage.test_checkpoints import write_checkpoint
from trainers.events import State

Serve = Callable[..., Service]


@pytest.fixture
def guarded(serve: Serve) -> Service:
    return serve(is_required=True, allow="127.0.0.0/8")


def audit_of(service: Service, **query: Any) -> list[AuditEntry]:
    answer = service.http.get("/v1/audit", params=query, headers=service.bearer("admin", "root"))
    assert answer.status_code == 200, answer.text
    return [AuditEntry.model_validate(entry) for entry in answer.json()["entries"]]


def test_every_change_of_a_job_is_written_down_with_who_made_it(guarded: Service) -> None:
    token, text = guarded.tokens.create("ann", Role.user)
    headers = {"Authorization": f"Bearer {text}", "X-Forwarded-For": "192.0.2.7", "X-Request-ID": "trace-1"}
    post = guarded.http.post
    job = post("/v1/jobs", json={"name": "first", "retries": 1}, headers=headers)
    assert job.headers["x-request-id"] == "trace-1"
    job_id = job.json()["id"]
    run = guarded.started(job_id)
    run.state(State.RUNNING)
    eventually(lambda: guarded.http.get(f"/v1/jobs/{job_id}", headers=headers).json()["state"] == "RUNNING")
    assert post(f"/v1/jobs/{job_id}/scale", json={"workers": 1}, headers=headers).status_code == 202
    assert post(f"/v1/jobs/{job_id}/pause", headers=headers).status_code == 202
    run.state(State.PAUSED)
    eventually(lambda: guarded.http.get(f"/v1/jobs/{job_id}", headers=headers).json()["state"] == "PAUSED")
    assert post(f"/v1/jobs/{job_id}/scale", json={"workers": 2}, headers=headers).status_code == 202
    assert post(f"/v1/jobs/{job_id}/cancel", headers=headers).status_code == 202

    entries = audit_of(guarded, target=job_id)
    assert [entry.action for entry in reversed(entries)] == [
        "job.submit", "job.scale", "job.pause", "job.scale", "job.cancel"
    ]  # fmt: skip
    assert [entry.details for entry in entries if entry.action == "job.scale"] == [{"workers": 2}, {"workers": 1}]
    who = {(e.user, e.role, e.token, e.address, e.request_id, e.status) for e in entries}
    assert who == {("ann", Role.user, token.id, "192.0.2.7", "trace-1", 202)}

    log = guarded.http.get(f"/v1/jobs/{job_id}/events", headers=headers | {"Accept": "application/json"}).json()
    by = {"user": "ann", "role": "user", "token": token.id, "address": "192.0.2.7", "request_id": "trace-1"}
    assert log[0]["data"]["by"] == by
    asked = [event["data"] for event in log if event["type"] == "request"]
    assert [one["action"] for one in asked] == ["job.scale", "job.pause", "job.scale", "job.cancel"]
    assert all(one["by"] == by for one in asked)
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    lines = guarded.http.get(f"/v1/jobs/{job_id}/logs", headers=headers).text
    assert "REQUEST job.scale, workers 1, by ann from 192.0.2.7" in lines


def test_tokens_webhooks_and_sweeps_are_written_down_too(guarded: Service) -> None:
    headers = guarded.bearer("admin", "root")
    hook = guarded.http.post("/v1/webhooks", json={"url": "http://127.0.0.1:9/hook"}, headers=headers).json()["id"]
    assert guarded.http.delete(f"/v1/webhooks/{hook}", headers=headers).status_code == 204
    spec = {"job": {"data": "digits", "model": "mlp"}, "axes": {"seed": [0, 1]}}
    sweep = guarded.http.post("/v1/sweeps", json=spec, headers=headers).json()["id"]
    assert guarded.http.post(f"/v1/sweeps/{sweep}/cancel", headers=headers).status_code == 202
    token, _ = guarded.tokens.create("bob", Role.viewer)
    guarded.tokens.revoke(token.id)
    guarded.tokens.revoke(token.id)  # which changes nothing any more
    actions = [(entry.action, entry.target) for entry in audit_of(guarded) if entry.target in (hook, sweep, token.id)]
    assert list(reversed(actions)) == [
        ("webhook.create", hook), ("webhook.delete", hook), ("sweep.submit", sweep), ("sweep.cancel", sweep),
        ("token.create", token.id), ("token.revoke", token.id),
    ]  # fmt: skip
    made = next(entry for entry in audit_of(guarded, action="token.create") if entry.target == token.id)
    assert (made.user, made.details["user"]) == ("local", "bob")
    assert "@" in made.address  # whose shell, on which machine


def test_a_fork_is_written_down_once_with_what_it_changes(guarded: Service) -> None:
    headers = guarded.bearer("user")
    parent = guarded.http.post("/v1/jobs", json={}, headers=headers).json()["id"]
    run = guarded.started(parent)
    write_checkpoint(run.run_dir, 100, 1)
    for key in ("once", "once"):
        answer = guarded.http.post(
            f"/v1/jobs/{parent}/fork", json={"epochs": 9}, headers=headers | {"Idempotency-Key": key}
        )
        assert answer.status_code == 202, answer.text
    (entry,) = audit_of(guarded, action="job.fork")
    assert entry.target == answer.json()["id"]
    assert entry.details == {"name": "sync-digits", "from": f"{parent}/000000000100", "changes": {"epochs": 9}}


def test_what_changes_nothing_is_not_written_down_but_what_was_refused_is(guarded: Service) -> None:
    viewer, user, other = guarded.bearer("viewer", "vic"), guarded.bearer("user"), guarded.bearer("user", "bob")
    assert guarded.http.post("/v1/jobs?dry_run=true", json={}, headers=user).status_code == 200
    assert guarded.http.post("/v1/jobs", json={"epochs": 0}, headers=user).status_code == 422
    assert guarded.http.post("/v1/jobs", json={}).status_code == 401
    assert [entry.action for entry in audit_of(guarded) if not entry.action.startswith("token")] == []
    job_id = guarded.http.post("/v1/jobs", json={}, headers=user).json()["id"]
    assert guarded.http.post(f"/v1/jobs/{job_id}/cancel", headers=viewer).status_code == 403
    assert guarded.http.post(f"/v1/jobs/{job_id}/scale", json={"workers": 1}, headers=other).status_code == 403
    by_bob, by_vic, by_ann = audit_of(guarded, target=job_id)
    assert (by_vic.user, by_vic.action, by_vic.status) == ("vic", "job.cancel", 403)
    assert (by_bob.user, by_bob.action, by_bob.status, by_bob.details) == ("bob", "job.scale", 403, {"workers": 1})
    assert by_ann.status == 202


def test_pages_and_filters(guarded: Service) -> None:
    user, admin = guarded.bearer("user"), guarded.bearer("admin", "root")
    before = time.time()
    jobs = [guarded.http.post("/v1/jobs", json={}, headers=user).json()["id"] for _ in range(5)]
    pages, token = [], None
    while True:
        query = {"action": "job.submit", "page_size": 2} | ({} if token is None else {"page_token": token})
        page = guarded.http.get("/v1/audit", params=query, headers=admin).json()
        pages.append([entry["target"] for entry in page["entries"]])
        if (token := page["next_page_token"]) is None:
            break
    assert pages == [jobs[4:2:-1], jobs[2:0:-1], jobs[:1]]
    assert audit_of(guarded, user="nobody") == []
    assert audit_of(guarded, user="ann", since=time.time()) == audit_of(guarded, user="ann", until=before) == []
    assert len(audit_of(guarded, user="ann", since=before, until=time.time())) == 5
    for wrong in ({"page_token": "x"}, {"action": "cancel"}, {"action": ["job.cancel", "false"]}):
        assert guarded.http.get("/v1/audit", params=wrong, headers=admin).status_code == 422
    assert audit_of(guarded, action=["job.cancel", "other"]) == []
    assert guarded.http.get("/v1/audit", headers=user).status_code == 403
    with Client(guarded.url, token=admin["Authorization"].partition(" ")[2]) as client:
        assert [entry.target for entry in client.audit(actions=("job.submit",))] == jobs[::-1]


def test_every_operation_that_changes_anything_has_a_name_in_the_audit(guarded: Service) -> None:
    viewer = guarded.bearer("viewer", "vic")
    paths = guarded.http.get("/openapi.json").json()["paths"]
    changing = [
        (m.upper(), path)
        for path, methods in paths.items()
        for m in methods
        if m != "get" and path not in (OWN_TOKEN, LOGIN)  # each has an action of its own
    ]
    for method, path in changing:
        address = re.sub(r"{\w+}", "x", path)
        assert guarded.http.request(method, address, headers=viewer).status_code == 403
        entry = audit_of(guarded, user="vic")[0]
        assert re.fullmatch(r"(job|sweep|webhook|plan|project|registry)\.[a-z]+", entry.action), entry
        assert (entry.target == "x") == ("{" in path)


def test_whoever_shows_a_token_may_end_it(guarded: Service) -> None:
    for role in ("viewer", "admin"):
        shown = guarded.bearer(role, "vic")
        assert guarded.http.delete("/v1/me/token", headers=shown).status_code == 204
        assert guarded.http.get("/v1/me", headers=shown).status_code == 401
    told = guarded.http.get("/v1/audit?user=vic", headers=guarded.bearer("admin")).json()["entries"]
    assert [(one["action"], one["target"] == one["token"]) for one in told] == [("token.revoke", True)] * 2
