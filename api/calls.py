"""What a client asks of the service, written once for the client that waits and for the one that does not."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from api.problems import Problem
from service import (
    Algorithm,
    CheckpointView,
    Dataset,
    Event,
    Identity,
    JobSpec,
    JobSummary,
    JobView,
    Line,
    Model,
    ScalingReport,
    State,
    SweepSpec,
    SweepSummary,
    SweepView,
    Webhook,
    parse_spec,
    parse_sweep,
    read_spec_file,
    read_sweep_file,
)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
AnyJob = JobSpec | dict[str, Any] | Path
AnySweep = SweepSpec | dict[str, Any] | Path


class Refused(Exception):
    """The service says no, and what to change."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class Unreachable(Exception):
    """No service answers at the address."""


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[httpx2.Response], T]
    options: dict[str, Any] = field(default_factory=dict)
    is_repeatable: bool = False
    """Whether it may be sent again when the connection broke in the middle: its key makes it one."""

    def answered(self, response: httpx2.Response) -> T:
        """What the answer says. Raises Refused."""
        if response.is_error:
            raise refusal(response)
        return self.read(response)


@dataclass(frozen=True)
class JobsPage:
    """Some jobs, and the token for those that follow."""

    jobs: list[JobSummary]
    next_page_token: str | None


def submit(spec: AnyJob, key: str | None) -> Call[JobView]:
    """POST /v1/jobs. Relative paths in the spec are taken from here."""
    return _post("/v1/jobs", _absolute(spec), key, _one(JobView))


def check(spec: AnyJob) -> Call[JobSpec]:
    """POST /v1/jobs?dry_run=true."""
    return Call("POST", "/v1/jobs", _one(JobSpec), {"json": _absolute(spec), "params": {"dry_run": True}}, True)


def jobs(states: tuple[State, ...], labels: tuple[str, ...], page_token: str | None) -> Call[JobsPage]:
    """GET /v1/jobs."""
    params: dict[str, Any] = {"state": [str(state) for state in states], "label": labels}
    if page_token is not None:
        params["page_token"] = page_token

    def read(response: httpx2.Response) -> JobsPage:
        page = response.json()
        return JobsPage([JobSummary.model_validate(job) for job in page["jobs"]], page["next_page_token"])

    return Call("GET", "/v1/jobs", read, {"params": params})


def job(job_id: str) -> Call[JobView]:
    """GET /v1/jobs/{id}."""
    return Call("GET", f"/v1/jobs/{job_id}", _one(JobView))


def scale(job_id: str, workers: int) -> Call[JobView]:
    """POST /v1/jobs/{id}/scale."""
    return Call("POST", f"/v1/jobs/{job_id}/scale", _one(JobView), {"json": {"workers": workers}}, True)


def tell_job(job_id: str, verb: str) -> Call[JobView]:
    """POST /v1/jobs/{id}/{verb}."""
    return Call("POST", f"/v1/jobs/{job_id}/{verb}", _one(JobView))


def fork(job_id: str, changes: dict[str, Any], checkpoint: str | None, key: str | None) -> Call[JobView]:
    """POST /v1/jobs/{id}/fork."""
    call = _post(f"/v1/jobs/{job_id}/fork", changes, key, _one(JobView))
    return replace(call, options=call.options | {"params": {} if checkpoint is None else {"checkpoint": checkpoint}})


def checkpoints(job_id: str) -> Call[list[CheckpointView]]:
    """GET /v1/jobs/{id}/checkpoints."""
    return Call("GET", f"/v1/jobs/{job_id}/checkpoints", _many(CheckpointView, "checkpoints"))


def checkpoint_file(job_id: str, checkpoint: str, file: str) -> str:
    """The address of one file of a checkpoint, which is read piece by piece."""
    return f"/v1/jobs/{job_id}/checkpoints/{checkpoint}/{file}"


def metrics(job_id: str, name: str, points: int, x: str) -> Call[Line]:
    """GET /v1/jobs/{id}/metrics."""
    params = {"name": name, "points": points, "x": x}
    return Call("GET", f"/v1/jobs/{job_id}/metrics", _one(Line), {"params": params})


def logs(job_id: str) -> Call[str]:
    """GET /v1/jobs/{id}/logs."""
    return Call("GET", f"/v1/jobs/{job_id}/logs", lambda response: response.text)


def events_so_far(job_id: str, after: int) -> Call[list[Event]]:
    """GET /v1/jobs/{id}/events as JSON."""
    options = {"params": {"after": after}, "headers": {"Accept": "application/json"}}
    return Call("GET", f"/v1/jobs/{job_id}/events", _many(Event), options)


def sweep(spec: AnySweep, key: str | None) -> Call[SweepView]:
    """POST /v1/sweeps. Relative paths in the spec are taken from here."""
    return _post("/v1/sweeps", _absolute_sweep(spec), key, _one(SweepView))


def check_sweep(spec: AnySweep) -> Call[tuple[SweepSpec, int]]:
    """POST /v1/sweeps?dry_run=true."""

    def read(response: httpx2.Response) -> tuple[SweepSpec, int]:
        answer = response.json()
        return SweepSpec.model_validate(answer["spec"]), answer["trials"]

    return Call("POST", "/v1/sweeps", read, {"json": _absolute_sweep(spec), "params": {"dry_run": True}}, True)


def sweeps() -> Call[list[SweepSummary]]:
    """GET /v1/sweeps."""
    return Call("GET", "/v1/sweeps", _many(SweepSummary, "sweeps"))


def one_sweep(sweep_id: str) -> Call[SweepView]:
    """GET /v1/sweeps/{id}."""
    return Call("GET", f"/v1/sweeps/{sweep_id}", _one(SweepView))


def tell_sweep(sweep_id: str, verb: str, body: Any = None) -> Call[SweepView]:
    """POST /v1/sweeps/{id}/{verb}."""
    return Call("POST", f"/v1/sweeps/{sweep_id}/{verb}", _one(SweepView), {} if body is None else {"json": body})


def report(sweep_id: str) -> Call[ScalingReport]:
    """GET /v1/sweeps/{id}/report."""
    return Call("GET", f"/v1/sweeps/{sweep_id}/report", _one(ScalingReport))


def report_text(sweep_id: str, media_type: str) -> Call[bytes]:
    """GET /v1/sweeps/{id}/report as it is sent, in one of its forms."""
    return Call("GET", f"/v1/sweeps/{sweep_id}/report", _content, {"headers": {"Accept": media_type}})


def figures(sweep_id: str) -> Call[list[str]]:
    """GET /v1/sweeps/{id}/figures."""
    return Call("GET", f"/v1/sweeps/{sweep_id}/figures", lambda response: list(response.json()))


def figure(sweep_id: str, name: str) -> Call[bytes]:
    """GET /v1/sweeps/{id}/figures/{name}."""
    return Call("GET", f"/v1/sweeps/{sweep_id}/figures/{name}", _content)


def algorithms() -> Call[list[Algorithm]]:
    """GET /v1/algorithms."""
    return Call("GET", "/v1/algorithms", _many(Algorithm))


def models() -> Call[list[Model]]:
    """GET /v1/models."""
    return Call("GET", "/v1/models", _many(Model))


def datasets() -> Call[list[Dataset]]:
    """GET /v1/datasets."""
    return Call("GET", "/v1/datasets", _many(Dataset))


def ready() -> Call[None]:
    """GET /readyz."""
    return Call("GET", "/readyz", lambda _: None)


def who() -> Call[Identity]:
    """GET /v1/me."""
    return Call("GET", "/v1/me", _one(Identity))


def add_webhook(url: str, states: tuple[State, ...]) -> Call[tuple[Webhook, str]]:
    """POST /v1/webhooks."""
    body = {"url": url, "states": [str(state) for state in states]}

    def read(response: httpx2.Response) -> tuple[Webhook, str]:
        return Webhook.model_validate(response.json()), response.json()["secret"]

    return Call("POST", "/v1/webhooks", read, {"json": body})


def webhooks() -> Call[list[Webhook]]:
    """GET /v1/webhooks."""
    return Call("GET", "/v1/webhooks", _many(Webhook, "webhooks"))


def webhook(webhook_id: str) -> Call[dict[str, Any]]:
    """GET /v1/webhooks/{id}."""
    return Call("GET", f"/v1/webhooks/{webhook_id}", lambda response: dict(response.json()))


def delete_webhook(webhook_id: str) -> Call[None]:
    """DELETE /v1/webhooks/{id}."""
    return Call("DELETE", f"/v1/webhooks/{webhook_id}", lambda _: None)


@dataclass
class Following:
    """Where a reader of an event log is, whatever its connection does: which events are new, and when to give up."""

    after: int
    patience_s: float
    seen_s: float | None = None
    ended: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """For the next connection."""
        return {"Last-Event-ID": str(self.after)}

    def take(self, data: str, now_s: float) -> Event | None:
        """The event in a message of the stream, if it is one that was not seen before."""
        event = Event.model_validate_json(data)
        self.seen_s = now_s
        self.ended = event.is_terminal  # the last one: the log of an extended sweep goes on after an end
        if event.seq <= self.after:
            return None
        self.after = event.seq
        return event

    def lost(self, now_s: float) -> bool:
        """The connection broke: whether it is time to give up, as it is at once before anything was seen."""
        self.ended = False
        return self.seen_s is None or now_s - self.seen_s > self.patience_s


def refusal(response: httpx2.Response) -> Refused:
    """The answer as an error."""
    try:
        return Refused(Problem.model_validate_json(response.content))
    except ValidationError:  # something else listens there
        status = response.status_code
        return Refused(Problem(title=response.reason_phrase, status=status, detail=f"{response.url} answers {status}"))


def unreachable(server: str, error: Exception) -> Unreachable:
    """Why nobody answered, and what to do."""
    told = str(error) or type(error).__name__
    return Unreachable(f"no service answers at {server} ({told}); `millrace serve` starts one")


def _one(model: type[M]) -> Callable[[httpx2.Response], M]:
    return lambda response: model.model_validate_json(response.content)


def _many(model: type[M], name: str | None = None) -> Callable[[httpx2.Response], list[M]]:
    def read(response: httpx2.Response) -> list[M]:
        found = response.json()
        return [model.model_validate(item) for item in (found if name is None else found[name])]

    return read


def _content(response: httpx2.Response) -> bytes:
    return response.content


def _post(path: str, body: Any, key: str | None, read: Callable[[httpx2.Response], T]) -> Call[T]:
    headers = {"Idempotency-Key": key or uuid.uuid4().hex}
    return Call("POST", path, read, {"json": body, "headers": headers}, is_repeatable=True)


def _absolute(spec: AnyJob) -> dict[str, Any]:
    if isinstance(spec, Path):
        spec = read_spec_file(spec)
    elif isinstance(spec, dict):
        spec = parse_spec(spec)
    return spec.resolved(Path.cwd()).model_dump(mode="json")


def _absolute_sweep(spec: AnySweep) -> dict[str, Any]:
    if isinstance(spec, Path):
        spec = read_sweep_file(spec)
    elif isinstance(spec, dict):
        spec = parse_sweep(spec)
    return spec.resolved(Path.cwd()).model_dump(mode="json")
