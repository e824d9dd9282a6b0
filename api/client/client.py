"""The Python client of a running service; `AsyncClient` is the same for programs that do not wait.

Refused           the service says no; carries its Problem
Unreachable       no service answers
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2

import service
from api.client import calls, model_calls
from api.client.call import Call, Refused, Unreachable, certificates_for, refusal, unreachable
from api.client.calls import AnyJob, AnySweep, States
from api.client.following import Following
from api.client.logins import kept_token
from api.client.model_calls import Which
from api.client.project_calls import ProjectMethods
from api.client.sign_in_calls import SignInMethods

__all__ = ["Client", "Refused", "Unreachable"]

T = TypeVar("T")
READ_TIMEOUT_S = 45.0  # three pings of a silent stream
AGAIN_S = 0.2


class Client(ProjectMethods, SignInMethods):
    """Submits jobs to a service and follows them. A connection that breaks in the middle is taken up again."""

    def __init__(
        self, server: str = "http://127.0.0.1:8466", patience_s: float = 60.0, token: str | None = None
    ) -> None:
        """token: Shown with each request; none: the one that `millrace login` has kept for this service."""
        self.server = calls.url_of(server)
        self.patience_s = patience_s
        # No proxy of the environment stands between two processes of one machine.
        self.http = httpx2.Client(
            base_url=self.server,
            verify=certificates_for(self.server),
            timeout=READ_TIMEOUT_S,
            trust_env=False,
            headers=bearer(kept_token(self.server) if token is None else token),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def ready(self) -> None:
        """Raises Refused where the service answers, but could take no job."""
        self._do(calls.ready())

    # -- jobs -----------------------------------------------------------------------------------------------------

    def submit(self, spec: AnyJob, key: str | None = None) -> service.JobView:
        """Submit a job. Relative paths in it are taken from here. Safe to repeat with the same key."""
        return self._do(calls.submit(spec, key))

    def check(self, spec: AnyJob) -> service.JobSpec:
        """The spec as it would run, without running it. Raises Refused with every field that is wrong."""
        return self._do(calls.check(spec))

    def plan(self, spec: AnyJob, **asked: Any) -> service.Plan:
        """What a job would reach on each number of workers, and what holds it back, without running it.

        asked: Fields of a `PlanSpec`, such as workers, cluster, profile, price. Raises Refused with what is wrong.
        """
        return self._do(calls.plan(spec, asked))

    def list(
        self, states: States = (), labels: tuple[str, ...] = (), archived: bool = False, project: str | None = None
    ) -> Iterator[service.JobSummary]:
        """All jobs in these states with these labels (`key=value` or `key`), newest first; or the archived ones.
        project: Only those of this one."""
        page = self._do(calls.jobs(states, labels, None, archived, project))
        yield from page.jobs
        while page.next_page_token is not None:
            page = self._do(calls.jobs(states, labels, page.next_page_token, archived, project))
            yield from page.jobs

    def get(self, job_id: str) -> service.JobView:
        """One job, as it is now."""
        return self._do(calls.job(job_id))

    def edit(self, job_id: str, **changes: Any) -> service.JobView:
        """Change a job's `name`, `labels` (None takes one away), `notes` or `priority`, or whether it is `archived`."""
        return self._do(calls.edit(job_id, changes))

    def cancel(self, job_id: str) -> service.JobView:
        """Stop a job cleanly; returns before it has stopped."""
        return self._do(calls.tell_job(job_id, "cancel"))

    def delete(self, job_id: str) -> None:
        """Remove an ended job and its files."""
        self._do(calls.delete("jobs", job_id))

    def pause(self, job_id: str) -> service.JobView:
        """Stop a job with a checkpoint, to go on later; returns before it has stopped."""
        return self._do(calls.tell_job(job_id, "pause"))

    def scale(self, job_id: str, workers: int) -> service.JobView:
        """Have so many workers train a running job; returns before they do."""
        return self._do(calls.scale(job_id, workers))

    def resume(self, job_id: str) -> service.JobView:
        """Let a paused job go on when its turn comes."""
        return self._do(calls.tell_job(job_id, "resume"))

    def fork(
        self, job_id: str, changes: dict[str, Any] | None = None, checkpoint: str | None = None, key: str | None = None
    ) -> service.JobView:
        """A new job from a checkpoint of another (the newest), with changes to its spec; null takes a field back to its
        default. Safe to repeat with the same key."""
        return self._do(calls.fork(job_id, changes or {}, checkpoint, key))

    def check_fork(self, job_id: str, changes: dict[str, Any], checkpoint: str | None = None) -> service.JobSpec:
        """The spec of a fork as it would run, without running it. Raises Refused with every field that is wrong."""
        return self._do(calls.check_fork(job_id, changes, checkpoint))

    def checkpoints(self, job_id: str) -> Iterator[service.CheckpointView]:
        """The checkpoints that a job has kept, oldest first."""
        yield from self._do(calls.checkpoints(job_id))

    def download(self, job_id: str, checkpoint: str, file: str, to: Path) -> None:
        """Write one file of a checkpoint to `to`, piece by piece."""
        self._download(calls.checkpoint_file(job_id, checkpoint, file), to)

    def model(self, job_id: str, to: Path, which: Which = "model", form: service.FileFormat = "safetensors") -> None:
        """Write the finished model of a job, or another that it has left, to `to`, piece by piece."""
        self._download(model_calls.model_file(job_id, which, form), to, **model_calls.EXPORTED)

    def trace(self, job_id: str, steps: int = 10, worker: int | None = None) -> Iterator[service.Event]:
        """Have one worker of a running job, or its first, record its next steps. Gives every event about it, as it
        comes; the last one tells its `file`, or `why` there is none."""
        first = self._do(calls.trace(job_id, steps, worker))
        for event in self.events(job_id, first - 1):
            if event.type == "trace":
                yield event
            if calls.ends_trace(event):
                return

    def traces(self, job_id: str) -> Iterator[service.TraceView]:
        """The traces that a job has kept, oldest first."""
        yield from self._do(calls.traces(job_id))

    def download_trace(self, job_id: str, name: str, to: Path) -> None:
        """Write a trace, compressed with gzip, to `to`, piece by piece."""
        self._download(calls.trace_file(job_id, name), to)

    def metrics(self, job_id: str, name: str, points: int = 500, x: str = "examples") -> service.Line:
        """One figure over the run, thinned out to at most so many points."""
        return self._do(calls.metrics(job_id, name, points, x))

    def logs(self, job_id: str, worker: int | None = None, grep: str = "") -> str:
        """The log for people, as far as it goes now. worker, grep: Only what this one's code has printed, and lines
        that contain a text."""
        return self._do(calls.logs(job_id, worker, grep))

    def wait(self, job_id: str) -> service.JobView:
        """The job when it has ended."""
        for _ in self.events(job_id):
            pass
        return self.get(job_id)

    def events(self, job_id: str, after: int = 0) -> Iterator[service.Event]:
        """Every event above `after`, as it comes, to the terminal one; each once, whatever the connection does.

        Raises Unreachable when no service answers at first, or none has for `patience_s`.
        """
        return self._events(f"/v1/jobs/{job_id}/events", after)

    def events_so_far(self, job_id: str, after: int = 0) -> Iterator[service.Event]:
        """What the log holds now above `after`."""
        while found := self._do(calls.events_so_far(job_id, after)):
            yield from found
            after = found[-1].seq

    # -- sweeps ---------------------------------------------------------------------------------------------------

    def sweep(self, spec: AnySweep, key: str | None = None) -> service.SweepView:
        """Submit a sweep. Relative paths in it are taken from here. Safe to repeat with the same key."""
        return self._do(calls.sweep(spec, key))

    def check_sweep(self, spec: AnySweep) -> tuple[service.SweepSpec, int]:
        """The spec as it would run and how many trials it has, without running it. Raises Refused."""
        return self._do(calls.check_sweep(spec))

    def sweeps(
        self, states: States = (), labels: tuple[str, ...] = (), archived: bool = False, project: str | None = None
    ) -> Iterator[service.SweepSummary]:
        """All sweeps in these states whose jobs have these labels (`key=value` or `key`), newest first; or the archived
        ones; of a project."""
        page = self._do(calls.sweeps(states, labels, None, archived, project))
        yield from page.sweeps
        while page.next_page_token is not None:
            page = self._do(calls.sweeps(states, labels, page.next_page_token, archived, project))
            yield from page.sweeps

    def edit_sweep(self, sweep_id: str, **changes: Any) -> service.SweepView:
        """Change a sweep's `name`, `labels`, `notes`, `priority` of its trials, or whether it is `archived`."""
        return self._do(calls.edit_sweep(sweep_id, changes))

    def delete_sweep(self, sweep_id: str) -> None:
        """Remove a sweep that has ended, with its trials and all their files."""
        self._do(calls.delete_sweep(sweep_id))

    def get_sweep(self, sweep_id: str) -> service.SweepView:
        """One sweep with its trials, as it is now."""
        return self._do(calls.one_sweep(sweep_id))

    def sweep_events(self, sweep_id: str, after: int = 0) -> Iterator[service.Event]:
        """Every event of its log, as `events` gives those of a job."""
        return self._events(f"/v1/sweeps/{sweep_id}/events", after)

    def cancel_sweep(self, sweep_id: str) -> service.SweepView:
        """Stop its trials cleanly and run no more."""
        return self._do(calls.tell_sweep(sweep_id, "cancel"))

    def pause_sweep(self, sweep_id: str) -> service.SweepView:
        """Take its processes away; its trials go on later from their last checkpoints."""
        return self._do(calls.tell_sweep(sweep_id, "pause"))

    def resume_sweep(self, sweep_id: str) -> service.SweepView:
        """Go on with it."""
        return self._do(calls.tell_sweep(sweep_id, "resume"))

    def extend_sweep(
        self, sweep_id: str, axes: dict[str, Any] | None = None, limits: dict[str, Any] | None = None
    ) -> service.SweepView:
        """Add values to its axes, add axes, or change its limits; only what is not done yet is run."""
        return self._do(calls.tell_sweep(sweep_id, "extend", {"axes": axes or {}, "limits": limits or {}}))

    def report(self, sweep_id: str) -> service.AnyReport:
        """What the sweep says so far: of the batch and the rate, or of its axes where it varies no batch."""
        return self._do(calls.report(sweep_id))

    def scaling(self, sweep_id: str) -> service.Study:
        """What more workers brought, of a sweep whose only axis is workers.count."""
        return self._do(calls.scaling(sweep_id))

    def report_files(self, sweep_id: str) -> Iterator[tuple[str, bytes]]:
        """The same as files: JSON, Markdown and every figure, by name."""
        yield "report.json", self._do(calls.report_text(sweep_id, "application/json"))
        yield "report.md", self._do(calls.report_text(sweep_id, "text/markdown"))
        for name in self._do(calls.figures(sweep_id)):
            yield name, self._do(calls.figure(sweep_id, name))

    # -- registered models ----------------------------------------------------------------------------------------

    def register(self, job_id: str, name: str, which: Which = "model", notes: str = "") -> service.ModelVersion:
        """Make a model of a job the next version of a name; the same one again is the version that it is already."""
        return self._do(model_calls.register(job_id, name, which, notes))

    def versions(
        self, name: str | None = None, job_id: str | None = None, latest: bool = False
    ) -> Iterator[service.ModelVersion]:
        """Registered models, newest first: of a name, of a job. latest: The newest version of each name only."""
        page = self._do(model_calls.versions(name, job_id, latest, None))
        yield from page.versions
        while page.next_page_token is not None:
            page = self._do(model_calls.versions(name, job_id, latest, page.next_page_token))
            yield from page.versions

    def version(self, reference: str) -> service.ModelVersion:
        """One of them, as `digits@3` or `digits@latest`."""
        return self._do(model_calls.version(reference))

    def download_version(self, reference: str, to: Path) -> None:
        """Write the file of a version to `to`, piece by piece."""
        self._download(model_calls.version_file(reference), to)

    def remove_version(self, reference: str) -> None:
        """Remove a version and its file."""
        self._do(model_calls.remove_version(reference))

    # -- what there is --------------------------------------------------------------------------------------------

    def algorithms(self) -> Iterator[service.Algorithm]:
        """Every parallel SGD, with its options."""
        yield from self._do(calls.algorithms())

    def models(self) -> Iterator[service.Model]:
        """Every model that has a name."""
        yield from self._do(calls.models())

    def datasets(self) -> Iterator[service.Dataset]:
        """Every dataset that has a name."""
        yield from self._do(calls.datasets())

    # -- webhooks -------------------------------------------------------------------------------------------------

    def add_webhook(self, url: str, states: tuple[service.State, ...] = ()) -> tuple[service.Webhook, str]:
        """Send messages to a URL when jobs reach one of these states, or any. Returns the secret too."""
        return self._do(calls.add_webhook(url, states))

    def webhooks(self) -> Iterator[service.Webhook]:
        """All webhooks, newest first."""
        yield from self._do(calls.webhooks())

    def get_webhook(self, webhook_id: str) -> dict[str, Any]:
        """One webhook with its last messages."""
        return self._do(calls.webhook(webhook_id))

    def delete_webhook(self, webhook_id: str) -> None:
        """Send it no more messages."""
        self._do(calls.delete("webhooks", webhook_id))

    def audit(
        self,
        user: str | None = None,
        actions: tuple[str, ...] = (),
        target: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Iterator[service.AuditEntry]:
        """Who changed what, newest first: by a user, of some actions, on a job, sweep, webhook or token, in a time
        (seconds since 1970). For admins."""
        query = calls.AuditQuery(user, actions, target, since, until)
        while True:
            page = self._do(calls.audit(query))
            yield from page.entries
            if page.next_page_token is None:
                return
            query = replace(query, page_token=page.next_page_token)

    # -- within ---------------------------------------------------------------------------------------------------

    def _do(self, call: Call[T]) -> T:
        try:
            return call.answered(self._sent(call))
        except Unreachable as error:
            if not call.is_repeatable or isinstance(error.__cause__, httpx2.ConnectError):
                raise
            return call.answered(self._sent(call))  # cut off in the middle

    def _sent(self, call: Call[T]) -> httpx2.Response:
        try:
            return self.http.request(call.method, call.path, **call.options)
        except httpx2.TransportError as error:
            raise unreachable(self.server, error) from error

    def _download(self, path: str, to: Path, **options: Any) -> None:
        try:
            with self.http.stream("GET", path, **options) as response:
                if response.is_error:
                    response.read()
                    raise refusal(response)
                with to.open("wb") as out:
                    for chunk in response.iter_bytes():
                        out.write(chunk)
        except httpx2.TransportError as error:
            raise unreachable(self.server, error) from error

    def _events(self, path: str, after: int) -> Iterator[service.Event]:
        following = Following(after, self.patience_s)
        while not following.ended:
            try:
                yield from self._stream(path, following)
            except Unreachable:
                if following.lost(time.monotonic()):
                    raise
            if not following.ended:
                time.sleep(AGAIN_S)

    def _stream(self, path: str, following: Following) -> Iterator[service.Event]:
        try:
            with self.http.sse(path, headers=following.headers) as source:
                if source.response.is_error:
                    source.response.read()
                    raise refusal(source.response)
                for message in source:
                    if message.data and (event := following.take(message.data, time.monotonic())) is not None:
                        yield event
        except httpx2.TransportError as error:
            raise unreachable(self.server, error) from error


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}
