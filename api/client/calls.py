"""What a client asks of the service, written once for the client that waits and for the one that does not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import httpx2
from pydantic import BaseModel, TypeAdapter

import service
from api.client.call import Call, content, many, one, post

AnyJob: TypeAlias = "service.JobSpec | dict[str, Any] | Path"
AnySweep: TypeAlias = "service.SweepSpec | dict[str, Any] | Path"
States: TypeAlias = "tuple[service.State, ...]"


SLOW: dict[str, Any] = {"timeout": 900.0}
"""Options of a request for what a process of its own draws or works out, one piece after the other. The service ends a
drawing that hangs after 300 s."""


@dataclass(frozen=True)
class JobsPage:
    """Some jobs, and the token for those that follow."""

    jobs: list[service.JobSummary]
    next_page_token: str | None


@dataclass(frozen=True)
class SweepsPage:
    """Some sweeps, and the token for those that follow."""

    sweeps: list[service.SweepSummary]
    next_page_token: str | None


@dataclass(frozen=True)
class AuditQuery:
    """Which entries of the audit to list; times in seconds since 1970."""

    user: str | None = None
    action: tuple[str, ...] = ()
    target: str | None = None
    since: float | None = None
    until: float | None = None
    page_token: str | None = None


@dataclass(frozen=True)
class AuditPage:
    """Some entries of the audit, and the token for those that follow."""

    entries: list[service.AuditEntry]
    next_page_token: str | None


def submit(spec: AnyJob, key: str | None) -> Call[service.JobView]:
    """POST /v1/jobs. Relative paths in the spec are taken from here."""
    return post("/v1/jobs", _absolute(spec), key, one(service.JobView))


def check(spec: AnyJob) -> Call[service.JobSpec]:
    """POST /v1/jobs?dry_run=true."""
    return Call("POST", "/v1/jobs", one(service.JobSpec), {"json": _absolute(spec), "params": {"dry_run": True}}, True)


def plan(spec: AnyJob, asked: dict[str, Any]) -> Call[service.Plan]:
    """POST /v1/plans."""
    told = {
        name: value.model_dump(mode="json") if isinstance(value, BaseModel) else value for name, value in asked.items()
    }
    return Call("POST", "/v1/plans", one(service.Plan), {"json": {"spec": _absolute(spec), **told}, **SLOW}, True)


def jobs(
    states: States, labels: tuple[str, ...], page_token: str | None, archived: bool = False, project: str | None = None
) -> Call[JobsPage]:
    """GET /v1/jobs."""

    def read(response: httpx2.Response) -> JobsPage:
        return JobsPage(many(service.JobSummary, "jobs")(response), response.json()["next_page_token"])

    return Call("GET", "/v1/jobs", read, {"params": _wanted(states, labels, page_token, archived, project)})


def _wanted(
    states: States, labels: tuple[str, ...], page_token: str | None, archived: bool, project: str | None
) -> dict[str, Any]:
    """The parameters of a page."""
    told = [str(state) for state in states]
    params = {"state": told, "label": labels, "page_token": page_token, "project": project}
    return {name: value for name, value in params.items() if value is not None} | (
        {"archived": True} if archived else {}
    )


def job(job_id: str) -> Call[service.JobView]:
    """GET /v1/jobs/{id}."""
    return Call("GET", f"/v1/jobs/{job_id}", one(service.JobView))


def edit(job_id: str, changes: dict[str, Any]) -> Call[service.JobView]:
    """PATCH /v1/jobs/{id}."""
    return Call("PATCH", f"/v1/jobs/{job_id}", one(service.JobView), {"json": changes}, True)


def scale(job_id: str, workers: int) -> Call[service.JobView]:
    """POST /v1/jobs/{id}/scale."""
    return Call("POST", f"/v1/jobs/{job_id}/scale", one(service.JobView), {"json": {"workers": workers}}, True)


def tell_job(job_id: str, verb: str) -> Call[service.JobView]:
    """POST /v1/jobs/{id}/{verb}."""
    return Call("POST", f"/v1/jobs/{job_id}/{verb}", one(service.JobView))


def fork(job_id: str, changes: dict[str, Any], checkpoint: str | None, key: str | None) -> Call[service.JobView]:
    """POST /v1/jobs/{id}/fork."""
    call = post(f"/v1/jobs/{job_id}/fork", changes, key, one(service.JobView))
    return replace(call, options=call.options | {"params": _from(checkpoint)})


def check_fork(job_id: str, changes: dict[str, Any], checkpoint: str | None) -> Call[service.JobSpec]:
    """POST /v1/jobs/{id}/fork?dry_run=true."""
    options = {"json": changes, "params": {"dry_run": True} | _from(checkpoint)}
    return Call("POST", f"/v1/jobs/{job_id}/fork", one(service.JobSpec), options, True)


def _from(checkpoint: str | None) -> dict[str, Any]:
    return {} if checkpoint is None else {"checkpoint": checkpoint}


def checkpoints(job_id: str) -> Call[list[service.CheckpointView]]:
    """GET /v1/jobs/{id}/checkpoints."""
    return Call("GET", f"/v1/jobs/{job_id}/checkpoints", many(service.CheckpointView, "checkpoints"))


def checkpoint_file(job_id: str, checkpoint: str, file: str) -> str:
    """The address of one file of a checkpoint, which is read piece by piece."""
    return f"/v1/jobs/{job_id}/checkpoints/{checkpoint}/{file}"


def trace(job_id: str, steps: int, worker: int | None) -> Call[int]:
    """POST /v1/jobs/{id}/traces; the number of the event that says so."""
    body = {"steps": steps, "worker": worker}
    return Call("POST", f"/v1/jobs/{job_id}/traces", lambda response: int(response.json()["event"]), {"json": body})


def traces(job_id: str) -> Call[list[service.TraceView]]:
    """GET /v1/jobs/{id}/traces."""
    return Call("GET", f"/v1/jobs/{job_id}/traces", many(service.TraceView, "traces"))


def ends_trace(event: service.Event) -> bool:
    """Whether this is the last event about a trace, or of the job."""
    return (event.type == "trace" and ("file" in event.data or "why" in event.data)) or event.is_terminal


def trace_file(job_id: str, name: str) -> str:
    """The address of the file of a trace, which is read piece by piece."""
    return f"/v1/jobs/{job_id}/traces/{name}"


def metrics(job_id: str, name: str, points: int, x: str) -> Call[service.Line]:
    """GET /v1/jobs/{id}/metrics."""
    params = {"name": name, "points": points, "x": x}
    return Call("GET", f"/v1/jobs/{job_id}/metrics", one(service.Line), {"params": params})


def logs(job_id: str, worker: int | None, grep: str) -> Call[str]:
    """GET /v1/jobs/{id}/logs."""
    params = {"grep": grep} | ({} if worker is None else {"worker": worker})
    return Call("GET", f"/v1/jobs/{job_id}/logs", lambda response: response.text, {"params": params})


def events_so_far(job_id: str, after: int) -> Call[list[service.Event]]:
    """GET /v1/jobs/{id}/events as JSON."""
    options = {"params": {"after": after}, "headers": {"Accept": "application/json"}}
    return Call("GET", f"/v1/jobs/{job_id}/events", many(service.Event), options)


def sweep(spec: AnySweep, key: str | None) -> Call[service.SweepView]:
    """POST /v1/sweeps. Relative paths in the spec are taken from here."""
    return post("/v1/sweeps", _absolute_sweep(spec), key, one(service.SweepView))


def check_sweep(spec: AnySweep) -> Call[tuple[service.SweepSpec, int]]:
    """POST /v1/sweeps?dry_run=true."""

    def read(response: httpx2.Response) -> tuple[service.SweepSpec, int]:
        answer = response.json()
        return service.SweepSpec.model_validate(answer["spec"]), answer["trials"]

    return Call("POST", "/v1/sweeps", read, {"json": _absolute_sweep(spec), "params": {"dry_run": True}}, True)


def sweeps(
    states: States, labels: tuple[str, ...], page_token: str | None, archived: bool = False, project: str | None = None
) -> Call[SweepsPage]:
    """GET /v1/sweeps."""

    def read(response: httpx2.Response) -> SweepsPage:
        return SweepsPage(many(service.SweepSummary, "sweeps")(response), response.json()["next_page_token"])

    return Call("GET", "/v1/sweeps", read, {"params": _wanted(states, labels, page_token, archived, project)})


def edit_sweep(sweep_id: str, changes: dict[str, Any]) -> Call[service.SweepView]:
    """PATCH /v1/sweeps/{id}."""
    return Call("PATCH", f"/v1/sweeps/{sweep_id}", one(service.SweepView), {"json": changes}, True)


def delete_sweep(sweep_id: str) -> Call[None]:
    """DELETE /v1/sweeps/{id}."""
    return Call("DELETE", f"/v1/sweeps/{sweep_id}", lambda _: None)


def one_sweep(sweep_id: str) -> Call[service.SweepView]:
    """GET /v1/sweeps/{id}."""
    return Call("GET", f"/v1/sweeps/{sweep_id}", one(service.SweepView))


def tell_sweep(sweep_id: str, verb: str, body: Any = None) -> Call[service.SweepView]:
    """POST /v1/sweeps/{id}/{verb}."""
    return Call("POST", f"/v1/sweeps/{sweep_id}/{verb}", one(service.SweepView), {} if body is None else {"json": body})


def report(sweep_id: str) -> Call[service.AnyReport]:
    """GET /v1/sweeps/{id}/report."""
    kinds: TypeAdapter[service.AnyReport] = TypeAdapter(service.AnyReport)
    return Call("GET", f"/v1/sweeps/{sweep_id}/report", lambda response: kinds.validate_json(response.content))


def scaling(sweep_id: str) -> Call[service.Study]:
    """GET /v1/sweeps/{id}/scaling."""
    return Call("GET", f"/v1/sweeps/{sweep_id}/scaling", one(service.Study), SLOW)


def report_text(sweep_id: str, media_type: str) -> Call[bytes]:
    """GET /v1/sweeps/{id}/report as it is sent, in one of its forms."""
    return Call("GET", f"/v1/sweeps/{sweep_id}/report", content, {"headers": {"Accept": media_type}})


def figures(sweep_id: str) -> Call[list[str]]:
    """GET /v1/sweeps/{id}/figures."""
    return Call("GET", f"/v1/sweeps/{sweep_id}/figures", lambda response: list(response.json()), SLOW)


def figure(sweep_id: str, name: str) -> Call[bytes]:
    """GET /v1/sweeps/{id}/figures/{name}."""
    return Call("GET", f"/v1/sweeps/{sweep_id}/figures/{name}", content, SLOW)


def algorithms() -> Call[list[service.Algorithm]]:
    """GET /v1/algorithms."""
    return Call("GET", "/v1/algorithms", many(service.Algorithm))


def models() -> Call[list[service.Model]]:
    """GET /v1/models."""
    return Call("GET", "/v1/models", many(service.Model))


def datasets() -> Call[list[service.Dataset]]:
    """GET /v1/datasets."""
    return Call("GET", "/v1/datasets", many(service.Dataset))


def url_of(server: str) -> str:
    """The URL of a service, of which `host:port` is enough."""
    return (server if "://" in server else f"http://{server}").rstrip("/")


def ready() -> Call[None]:
    """GET /readyz."""
    return Call("GET", "/readyz", lambda _: None)


def audit(query: AuditQuery) -> Call[AuditPage]:
    """GET /v1/audit."""
    params = {name: value for name, value in asdict(query).items() if value not in (None, ())}

    def read(response: httpx2.Response) -> AuditPage:
        page = response.json()
        return AuditPage([service.AuditEntry.model_validate(one) for one in page["entries"]], page["next_page_token"])

    return Call("GET", "/v1/audit", read, {"params": params})


def add_webhook(url: str, states: tuple[service.State, ...]) -> Call[tuple[service.Webhook, str]]:
    """POST /v1/webhooks."""
    body = {"url": url, "states": [str(state) for state in states]}

    def read(response: httpx2.Response) -> tuple[service.Webhook, str]:
        return service.Webhook.model_validate(response.json()), response.json()["secret"]

    return Call("POST", "/v1/webhooks", read, {"json": body})


def webhooks() -> Call[list[service.Webhook]]:
    """GET /v1/webhooks."""
    return Call("GET", "/v1/webhooks", many(service.Webhook, "webhooks"))


def webhook(webhook_id: str) -> Call[dict[str, Any]]:
    """GET /v1/webhooks/{id}."""
    return Call("GET", f"/v1/webhooks/{webhook_id}", lambda response: dict(response.json()))


def delete(kind: str, identity: str) -> Call[None]:
    """DELETE /v1/jobs/{id}, or /v1/webhooks/{id}. kind: `jobs` or `webhooks`."""
    return Call("DELETE", f"/v1/{kind}/{identity}", lambda _: None)


def _absolute(spec: AnyJob) -> dict[str, Any]:
    if isinstance(spec, Path):
        spec = service.read_spec_file(spec)
    elif isinstance(spec, dict):
        spec = service.parse_spec(spec)
    return spec.resolved(Path.cwd()).model_dump(mode="json")


def _absolute_sweep(spec: AnySweep) -> dict[str, Any]:
    if isinstance(spec, Path):
        spec = service.read_sweep_file(spec)
    elif isinstance(spec, dict):
        spec = service.parse_sweep(spec)
    return spec.resolved(Path.cwd()).model_dump(mode="json")
