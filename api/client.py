"""The Python client of a running service.

Refused           the service says no; carries its Problem
Unreachable       no service answers
"""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx2
from pydantic import ValidationError

from api.problems import Problem
from service import Event, JobSpec, JobSummary, JobView, State, parse_spec, read_spec_file

READ_TIMEOUT_S = 45.0  # three pings of a silent stream
AGAIN_S = 0.2


class Refused(Exception):
    """The service says no, and what to change."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class Unreachable(Exception):
    """No service answers at the address."""


class Client:
    """Submits jobs to a service and follows them. A connection that breaks in the middle is taken up again."""

    def __init__(self, server: str = "http://127.0.0.1:8466", patience_s: float = 60.0) -> None:
        self.server = server.rstrip("/")
        self.patience_s = patience_s
        # No proxy of the environment stands between two processes of one machine.
        self.http = httpx2.Client(base_url=self.server, timeout=READ_TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def submit(self, spec: JobSpec | dict[str, Any] | Path, key: str | None = None) -> JobView:
        """Submit a job. Relative paths in it are taken from here. Safe to repeat with the same key."""
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return JobView.model_validate(self._post("/v1/jobs", _absolute(spec), headers=headers).json())

    def check(self, spec: JobSpec | dict[str, Any] | Path) -> JobSpec:
        """The spec as it would run, without running it. Raises Refused with every field that is wrong."""
        answer = self._post("/v1/jobs", _absolute(spec), params={"dry_run": True})
        return JobSpec.model_validate(answer.json())

    def list(self, states: tuple[State, ...] = (), labels: tuple[str, ...] = ()) -> Iterator[JobSummary]:
        """All jobs in these states with these labels (`key=value` or `key`), newest first."""
        params: dict[str, Any] = {"state": [str(state) for state in states], "label": labels}
        while True:
            page = self._request("GET", "/v1/jobs", params=params).json()
            yield from (JobSummary.model_validate(job) for job in page["jobs"])
            if page["next_page_token"] is None:
                return
            params["page_token"] = page["next_page_token"]

    def get(self, job_id: str) -> JobView:
        """One job, as it is now."""
        return JobView.model_validate(self._request("GET", f"/v1/jobs/{job_id}").json())

    def cancel(self, job_id: str) -> JobView:
        """Stop a job cleanly; returns before it has stopped."""
        return JobView.model_validate(self._request("POST", f"/v1/jobs/{job_id}/cancel").json())

    def logs(self, job_id: str) -> str:
        """The log for people, as far as it goes now."""
        return self._request("GET", f"/v1/jobs/{job_id}/logs").text

    def wait(self, job_id: str) -> JobView:
        """The job when it has ended."""
        for _ in self.events(job_id):
            pass
        return self.get(job_id)

    def events(self, job_id: str, after: int = 0) -> Iterator[Event]:
        """Every event above `after`, as it comes, to the terminal one; each once, whatever the connection does.

        Raises Unreachable when no service answers at first, or none has for `patience_s`.
        """
        seen_s: float | None = None
        while True:
            try:
                for event in self._stream(job_id, after):
                    seen_s = time.monotonic()
                    if event.seq > after:
                        after = event.seq
                        yield event
                    if event.is_terminal:
                        return
            except Unreachable:
                if seen_s is None or time.monotonic() - seen_s > self.patience_s:
                    raise
            time.sleep(AGAIN_S)

    def _stream(self, job_id: str, after: int) -> Iterator[Event]:
        headers = {"Last-Event-ID": str(after)}
        try:
            with self.http.sse(f"/v1/jobs/{job_id}/events", headers=headers) as source:
                if source.response.is_error:
                    source.response.read()
                    raise _refused(source.response)
                for message in source:
                    if message.data:
                        yield Event.model_validate_json(message.data)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error

    def _post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        try:
            return self._request("POST", path, json=body, **options)
        except Unreachable as error:
            if isinstance(error.__cause__, httpx2.ConnectError):
                raise
            return self._request("POST", path, json=body, **options)  # cut off in the middle; the key makes it safe

    def _request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            response = self.http.request(method, path, **options)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise _refused(response)
        return response

    def _unreachable(self, error: Exception) -> Unreachable:
        told = str(error) or type(error).__name__
        return Unreachable(f"no service answers at {self.server} ({told}); `millrace serve` starts one")


def _absolute(spec: JobSpec | dict[str, Any] | Path) -> dict[str, Any]:
    if isinstance(spec, Path):
        spec = read_spec_file(spec)
    elif isinstance(spec, dict):
        spec = parse_spec(spec)
    return spec.resolved(Path.cwd()).model_dump(mode="json")


def _refused(response: httpx2.Response) -> Refused:
    try:
        return Refused(Problem.model_validate_json(response.content))
    except ValidationError:  # something else listens there
        status = response.status_code
        return Refused(Problem(title=response.reason_phrase, status=status, detail=f"{response.url} answers {status}"))
