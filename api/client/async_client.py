"""The Python client of a running service for programs with an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2

import service
from api.client import calls, model_calls
from api.client.call import Call, Unreachable, certificates_for, refusal, unreachable
from api.client.calls import AnyJob, AnySweep, States
from api.client.client import AGAIN_S, READ_TIMEOUT_S, bearer
from api.client.following import Following
from api.client.logins import kept_token
from api.client.model_calls import Which
from api.client.project_calls import AsyncProjectMethods
from api.client.sign_in_calls import AsyncSignInMethods

T = TypeVar("T")


class AsyncClient(AsyncProjectMethods, AsyncSignInMethods):
    """Client for programs with an event loop: the same methods, to be awaited; what comes one by one is `async for`."""

    def __init__(
        self, server: str = "http://127.0.0.1:8466", patience_s: float = 60.0, token: str | None = None
    ) -> None:
        """token: Shown with each request; none: the one that `millrace login` has kept for this service."""
        self.server = calls.url_of(server)
        self.patience_s = patience_s
        self.http = httpx2.AsyncClient(
            base_url=self.server,
            verify=certificates_for(self.server),
            timeout=READ_TIMEOUT_S,
            trust_env=False,
            headers=bearer(kept_token(self.server) if token is None else token),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def ready(self) -> None:
        """Raises Refused where the service answers, but could take no job."""
        await self._do(calls.ready())

    # -- jobs -----------------------------------------------------------------------------------------------------

    async def submit(self, spec: AnyJob, key: str | None = None) -> service.JobView:
        """Submit a job. Relative paths in it are taken from here. Safe to repeat with the same key."""
        return await self._do(calls.submit(spec, key))

    async def check(self, spec: AnyJob) -> service.JobSpec:
        """The spec as it would run, without running it. Raises Refused with every field that is wrong."""
        return await self._do(calls.check(spec))

    async def plan(self, spec: AnyJob, **asked: Any) -> service.Plan:
        """What a job would reach on each number of workers, and what holds it back, without running it.

        asked: Fields of a `PlanSpec`, such as workers, cluster, profile, price. Raises Refused with what is wrong.
        """
        return await self._do(calls.plan(spec, asked))

    async def list(
        self, states: States = (), labels: tuple[str, ...] = (), archived: bool = False, project: str | None = None
    ) -> AsyncIterator[service.JobSummary]:
        """All jobs in these states with these labels (`key=value` or `key`), newest first; archived; of a project."""
        page = await self._do(calls.jobs(states, labels, None, archived, project))
        for job in page.jobs:
            yield job
        while page.next_page_token is not None:
            page = await self._do(calls.jobs(states, labels, page.next_page_token, archived, project))
            for job in page.jobs:
                yield job

    async def get(self, job_id: str) -> service.JobView:
        """One job, as it is now."""
        return await self._do(calls.job(job_id))

    async def edit(self, job_id: str, **changes: Any) -> service.JobView:
        """Change a job's `name`, `labels` (None takes one away), `notes` or `priority`, or whether it is `archived`."""
        return await self._do(calls.edit(job_id, changes))

    async def cancel(self, job_id: str) -> service.JobView:
        """Stop a job cleanly; returns before it has stopped."""
        return await self._do(calls.tell_job(job_id, "cancel"))

    async def delete(self, job_id: str) -> None:
        """Remove an ended job and its files."""
        await self._do(calls.delete("jobs", job_id))

    async def pause(self, job_id: str) -> service.JobView:
        """Stop a job with a checkpoint, to go on later; returns before it has stopped."""
        return await self._do(calls.tell_job(job_id, "pause"))

    async def scale(self, job_id: str, workers: int) -> service.JobView:
        """Have so many workers train a running job; returns before they do."""
        return await self._do(calls.scale(job_id, workers))

    async def resume(self, job_id: str) -> service.JobView:
        """Let a paused job go on when its turn comes."""
        return await self._do(calls.tell_job(job_id, "resume"))

    async def fork(
        self, job_id: str, changes: dict[str, Any] | None = None, checkpoint: str | None = None, key: str | None = None
    ) -> service.JobView:
        """A new job from a checkpoint of another (the newest), with changes to its spec; null takes a field back to its
        default. Safe to repeat with the same key."""
        return await self._do(calls.fork(job_id, changes or {}, checkpoint, key))

    async def check_fork(self, job_id: str, changes: dict[str, Any], checkpoint: str | None = None) -> service.JobSpec:
        """The spec of a fork as it would run, without running it. Raises Refused with every field that is wrong."""
        return await self._do(calls.check_fork(job_id, changes, checkpoint))

    async def checkpoints(self, job_id: str) -> AsyncIterator[service.CheckpointView]:
        """The checkpoints that a job has kept, oldest first."""
        for one in await self._do(calls.checkpoints(job_id)):
            yield one

    async def download(self, job_id: str, checkpoint: str, file: str, to: Path) -> None:
        """Write one file of a checkpoint to `to`, piece by piece."""
        await self._download(calls.checkpoint_file(job_id, checkpoint, file), to)

    async def model(
        self, job_id: str, to: Path, which: Which = "model", form: service.FileFormat = "safetensors"
    ) -> None:
        """Write the finished model of a job, or another that it has left, to `to`, piece by piece."""
        await self._download(model_calls.model_file(job_id, which, form), to, **model_calls.EXPORTED)

    async def trace(self, job_id: str, steps: int = 10, worker: int | None = None) -> AsyncIterator[service.Event]:
        """Have one worker of a running job, or its first, record its next steps. Gives every event about it, as it
        comes; the last one tells its `file`, or `why` there is none."""
        first = await self._do(calls.trace(job_id, steps, worker))
        async for event in self.events(job_id, first - 1):
            if event.type == "trace":
                yield event
            if calls.ends_trace(event):
                return

    async def traces(self, job_id: str) -> AsyncIterator[service.TraceView]:
        """The traces that a job has kept, oldest first."""
        for one in await self._do(calls.traces(job_id)):
            yield one

    async def download_trace(self, job_id: str, name: str, to: Path) -> None:
        """Write a trace, compressed with gzip, to `to`, piece by piece."""
        await self._download(calls.trace_file(job_id, name), to)

    async def metrics(self, job_id: str, name: str, points: int = 500, x: str = "examples") -> service.Line:
        """One figure over the run, thinned out to at most so many points."""
        return await self._do(calls.metrics(job_id, name, points, x))

    async def logs(self, job_id: str, worker: int | None = None, grep: str = "") -> str:
        """The log for people, as far as it goes now. worker, grep: Only what this one's code has printed, and lines
        that contain a text."""
        return await self._do(calls.logs(job_id, worker, grep))

    async def wait(self, job_id: str) -> service.JobView:
        """The job when it has ended."""
        async for _ in self.events(job_id):
            pass
        return await self.get(job_id)

    def events(self, job_id: str, after: int = 0) -> AsyncIterator[service.Event]:
        """Every event above `after`, as it comes, to the terminal one; each once, whatever the connection does.

        Raises Unreachable when no service answers at first, or none has for `patience_s`.
        """
        return self._events(f"/v1/jobs/{job_id}/events", after)

    async def events_so_far(self, job_id: str, after: int = 0) -> AsyncIterator[service.Event]:
        """What the log holds now above `after`."""
        while found := await self._do(calls.events_so_far(job_id, after)):
            for event in found:
                yield event
            after = found[-1].seq

    # -- sweeps ---------------------------------------------------------------------------------------------------

    async def sweep(self, spec: AnySweep, key: str | None = None) -> service.SweepView:
        """Submit a sweep. Relative paths in it are taken from here. Safe to repeat with the same key."""
        return await self._do(calls.sweep(spec, key))

    async def check_sweep(self, spec: AnySweep) -> tuple[service.SweepSpec, int]:
        """The spec as it would run and how many trials it has, without running it. Raises Refused."""
        return await self._do(calls.check_sweep(spec))

    async def sweeps(
        self, states: States = (), labels: tuple[str, ...] = (), archived: bool = False, project: str | None = None
    ) -> AsyncIterator[service.SweepSummary]:
        """All sweeps in these states whose jobs have these labels (`key=value` or `key`), newest first; or the archived
        ones; of a project."""
        page = await self._do(calls.sweeps(states, labels, None, archived, project))
        for one in page.sweeps:
            yield one
        while page.next_page_token is not None:
            page = await self._do(calls.sweeps(states, labels, page.next_page_token, archived, project))
            for one in page.sweeps:
                yield one

    async def edit_sweep(self, sweep_id: str, **changes: Any) -> service.SweepView:
        """Change a sweep's `name`, `labels`, `notes`, `priority` of its trials, or whether it is `archived`."""
        return await self._do(calls.edit_sweep(sweep_id, changes))

    async def delete_sweep(self, sweep_id: str) -> None:
        """Remove a sweep that has ended, with its trials and all their files."""
        await self._do(calls.delete_sweep(sweep_id))

    async def get_sweep(self, sweep_id: str) -> service.SweepView:
        """One sweep with its trials, as it is now."""
        return await self._do(calls.one_sweep(sweep_id))

    def sweep_events(self, sweep_id: str, after: int = 0) -> AsyncIterator[service.Event]:
        """Every event of its log, as `events` gives those of a job."""
        return self._events(f"/v1/sweeps/{sweep_id}/events", after)

    async def cancel_sweep(self, sweep_id: str) -> service.SweepView:
        """Stop its trials cleanly and run no more."""
        return await self._do(calls.tell_sweep(sweep_id, "cancel"))

    async def pause_sweep(self, sweep_id: str) -> service.SweepView:
        """Take its processes away; its trials go on later from their last checkpoints."""
        return await self._do(calls.tell_sweep(sweep_id, "pause"))

    async def resume_sweep(self, sweep_id: str) -> service.SweepView:
        """Go on with it."""
        return await self._do(calls.tell_sweep(sweep_id, "resume"))

    async def extend_sweep(
        self, sweep_id: str, axes: dict[str, Any] | None = None, limits: dict[str, Any] | None = None
    ) -> service.SweepView:
        """Add values to its axes, add axes, or change its limits; only what is not done yet is run."""
        return await self._do(calls.tell_sweep(sweep_id, "extend", {"axes": axes or {}, "limits": limits or {}}))

    async def report(self, sweep_id: str) -> service.AnyReport:
        """What the sweep says so far: of the batch and the rate, or of its axes where it varies no batch."""
        return await self._do(calls.report(sweep_id))

    async def scaling(self, sweep_id: str) -> service.Study:
        """What more workers brought, of a sweep whose only axis is workers.count."""
        return await self._do(calls.scaling(sweep_id))

    async def report_files(self, sweep_id: str) -> AsyncIterator[tuple[str, bytes]]:
        """The same as files: JSON, Markdown and every figure, by name."""
        yield "report.json", await self._do(calls.report_text(sweep_id, "application/json"))
        yield "report.md", await self._do(calls.report_text(sweep_id, "text/markdown"))
        for name in await self._do(calls.figures(sweep_id)):
            yield name, await self._do(calls.figure(sweep_id, name))

    # -- registered models ----------------------------------------------------------------------------------------

    async def register(self, job_id: str, name: str, which: Which = "model", notes: str = "") -> service.ModelVersion:
        """Make a model of a job the next version of a name; the same one again is the version that it is already."""
        return await self._do(model_calls.register(job_id, name, which, notes))

    async def versions(
        self, name: str | None = None, job_id: str | None = None, latest: bool = False
    ) -> AsyncIterator[service.ModelVersion]:
        """Registered models, newest first: of a name, of a job. latest: The newest version of each name only."""
        page = await self._do(model_calls.versions(name, job_id, latest, None))
        for found in page.versions:
            yield found
        while page.next_page_token is not None:
            page = await self._do(model_calls.versions(name, job_id, latest, page.next_page_token))
            for found in page.versions:
                yield found

    async def version(self, reference: str) -> service.ModelVersion:
        """One of them, as `digits@3` or `digits@latest`."""
        return await self._do(model_calls.version(reference))

    async def download_version(self, reference: str, to: Path) -> None:
        """Write the file of a version to `to`, piece by piece."""
        await self._download(model_calls.version_file(reference), to)

    async def remove_version(self, reference: str) -> None:
        """Remove a version and its file."""
        await self._do(model_calls.remove_version(reference))

    # -- what there is --------------------------------------------------------------------------------------------

    async def algorithms(self) -> AsyncIterator[service.Algorithm]:
        """Every parallel SGD, with its options."""
        for one in await self._do(calls.algorithms()):
            yield one

    async def models(self) -> AsyncIterator[service.Model]:
        """Every model that has a name."""
        for one in await self._do(calls.models()):
            yield one

    async def datasets(self) -> AsyncIterator[service.Dataset]:
        """Every dataset that has a name."""
        for one in await self._do(calls.datasets()):
            yield one

    # -- webhooks -------------------------------------------------------------------------------------------------

    async def add_webhook(self, url: str, states: tuple[service.State, ...] = ()) -> tuple[service.Webhook, str]:
        """Send messages to a URL when jobs reach one of these states, or any. Returns the secret too."""
        return await self._do(calls.add_webhook(url, states))

    async def webhooks(self) -> AsyncIterator[service.Webhook]:
        """All webhooks, newest first."""
        for one in await self._do(calls.webhooks()):
            yield one

    async def get_webhook(self, webhook_id: str) -> dict[str, Any]:
        """One webhook with its last messages."""
        return await self._do(calls.webhook(webhook_id))

    async def delete_webhook(self, webhook_id: str) -> None:
        """Send it no more messages."""
        await self._do(calls.delete("webhooks", webhook_id))

    async def audit(
        self,
        user: str | None = None,
        actions: tuple[str, ...] = (),
        target: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> AsyncIterator[service.AuditEntry]:
        """Who changed what, newest first: by a user, of some actions, on a job, sweep, webhook or token, in a time
        (seconds since 1970). For admins."""
        query = calls.AuditQuery(user, actions, target, since, until)
        while True:
            page = await self._do(calls.audit(query))
            for entry in page.entries:
                yield entry
            if page.next_page_token is None:
                return
            query = replace(query, page_token=page.next_page_token)

    # -- within ---------------------------------------------------------------------------------------------------

    async def _do(self, call: Call[T]) -> T:
        try:
            return call.answered(await self._sent(call))
        except Unreachable as error:
            if not call.is_repeatable or isinstance(error.__cause__, httpx2.ConnectError):
                raise
            return call.answered(await self._sent(call))  # cut off in the middle

    async def _sent(self, call: Call[T]) -> httpx2.Response:
        try:
            return await self.http.request(call.method, call.path, **call.options)
        except httpx2.TransportError as error:
            raise unreachable(self.server, error) from error

    async def _download(self, path: str, to: Path, **options: Any) -> None:
        try:
            async with self.http.stream("GET", path, **options) as response:
                if response.is_error:
                    await response.aread()
                    raise refusal(response)
                with await asyncio.to_thread(to.open, "wb") as out:
                    async for chunk in response.aiter_bytes():
                        await asyncio.to_thread(out.write, chunk)
        except httpx2.TransportError as error:
            raise unreachable(self.server, error) from error

    async def _events(self, path: str, after: int) -> AsyncIterator[service.Event]:
        following = Following(after, self.patience_s)
        while not following.ended:
            try:
                async for event in self._stream(path, following):
                    yield event
            except Unreachable:
                if following.lost(time.monotonic()):
                    raise
            if not following.ended:
                await asyncio.sleep(AGAIN_S)

    async def _stream(self, path: str, following: Following) -> AsyncIterator[service.Event]:
        try:
            async with self.http.sse(path, headers=following.headers) as source:
                if source.response.is_error:
                    await source.response.aread()
                    raise refusal(source.response)
                async for message in source:
                    if message.data and (event := following.take(message.data, time.monotonic())) is not None:
                        yield event
        except httpx2.TransportError as error:
            raise unreachable(self.server, error) from error
