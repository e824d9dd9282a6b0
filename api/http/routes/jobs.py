"""/v1/jobs: submit, list, show, follow, cancel."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel

from api.http import sse
from api.http.audit import is_recorded, told
from api.http.auth import Access, caller, check_code, check_member, check_owner
from api.http.body import read_job_spec
from api.http.exact import Direct, Exact
from api.http.problems import ProblemError, answers
from api.http.routes.submission import asked, spec_in_body, tell_where
from api.http.several import Several
from service import Event, JobManager, JobSpec, JobSummary, JobView, LogFilter, State, own_code
from service import Query as JobQuery

MAX_EVENTS = 10_000
LOG_TYPES = frozenset({"log", "request", "state", "warning"})
BODY = spec_in_body("JobSpec", {"algorithm": "downpour"})
MESSAGE = {
    "type": "object",
    "description": "One event; where it was cut off, the reader sends its `id` as Last-Event-ID.",
    "properties": {
        "id": {"type": "string", "description": "The event's number."},
        "event": {"type": "string", "description": "Its type."},
        "data": {"type": "string", "description": "All of it, as JSON of an Event."},
    },
}
STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The log from there on, to its terminal event; as JSON what it holds now.",
        "content": {"text/event-stream": {"itemSchema": MESSAGE}},
    }
}
LABEL = r"^[^=]+(=.*)?$"
Labels = Annotated[
    Several[Annotated[str, Query(pattern=LABEL)]] | None,
    Query(description="All of these, as `key=value` or `key`."),
]


class JobPage(BaseModel):
    """Some jobs, newest first."""

    jobs: list[JobSummary]
    next_page_token: str | None
    """For the next page; null on the last."""


def pairs(labels: list[str] | None) -> tuple[tuple[str, str | None], ...]:
    """Keys and values of labels that are asked for; None: any value."""
    return tuple(
        (key, value if equals else None) for key, equals, value in (one.partition("=") for one in labels or [])
    )


def router(manager: JobManager, streams: sse.Streams, access: Access) -> APIRouter:
    """The routes over one manager."""
    routes = APIRouter(prefix="/jobs", tags=["jobs"], route_class=Exact)
    _add_submit(routes, manager, access)
    _add_views(routes, manager)
    _add_streams(routes, manager, streams)
    return routes


def _add_submit(routes: APIRouter, manager: JobManager, access: Access) -> None:
    async def submit(request: Request) -> Response:
        """Take a job in. The same key with the same spec returns the same job, however often it comes."""
        dry_run, key = asked(request)
        spec = await read_job_spec(request)
        check_code(request, access, own_code(spec))
        check_member(request, manager.projects, spec.project)
        if dry_run:
            return JSONResponse((await manager.check(spec, caller(request).user)).model_dump(mode="json"))
        by = caller(request)
        job, is_new = await manager.submit(spec, key, by.user, by)
        is_recorded(request)
        response = Response(job.model_dump_json(), 202, media_type="application/json")  # as it is: it was validated
        tell_where(response, f"/v1/jobs/{job.id}", is_new)
        return response

    routes.add_api_route(
        "",
        submit,
        methods=["POST"],
        status_code=202,
        response_model=JobView,
        responses={
            200: {"model": JobSpec, "description": "Dry run: the spec as it would run."},
            **answers(413, 415, 422, 429),
        },
        openapi_extra=BODY,
        route_class_override=Direct,
    )

    @routes.delete("/{job_id}", status_code=204, responses=answers(404, 409))
    async def delete(request: Request, job_id: str) -> None:
        """Remove an ended job, its files and their copies. What was forked from it stays."""
        job = await manager.show(job_id)
        told(request, name=job.name)
        check_owner(request, job, manager.projects)
        await manager.delete(job_id)

    @routes.post("/{job_id}/cancel", status_code=202, responses=answers(404, 409, 503))
    async def cancel(request: Request, job_id: str) -> JobView:
        """Stop a job: a waiting one at once, a running one cleanly, with a checkpoint."""
        check_owner(request, await manager.show(job_id), manager.projects)
        return await manager.cancel(job_id, caller(request))


def _add_views(routes: APIRouter, manager: JobManager) -> None:
    @routes.get("", responses=answers(422))
    async def list_jobs(
        state: Annotated[Several[State] | None, Query(description="Any of these.")] = None,
        label: Labels = None,
        user: Annotated[str | None, Query(max_length=64, description="Of this user only.")] = None,
        project: Annotated[str | None, Query(max_length=64, description="Of this project only.")] = None,
        name: Annotated[str | None, Query(max_length=128, description="With this in their names.")] = None,
        algorithm: Annotated[str | None, Query(max_length=64, description="That train by this one.")] = None,
        trials: Annotated[bool, Query(description="Whether the trials of sweeps are among them.")] = True,
        archived: Annotated[bool, Query(description="The archived ones, which are left out else.")] = False,
        page_size: Annotated[int, Query(ge=1, le=200)] = 50,
        page_token: Annotated[str | None, Query(pattern="^[0-9a-z]{12}$")] = None,
    ) -> JobPage:
        """Jobs, newest first."""
        wanted = JobQuery(
            states=frozenset(state or ()), labels=pairs(label), user=user, project=project, name=name,
            algorithm=algorithm, trials=trials, archived=archived, limit=page_size, before=page_token,
        )  # fmt: skip
        page = await manager.page(wanted)
        return JobPage(jobs=page.jobs, next_page_token=page.next_page_token)

    @routes.get("/{job_id}", responses=answers(404))
    async def show(job_id: str) -> JobView:
        """One job: its spec, where it is and why, how far, how long still, and its figures now."""
        return await manager.show(job_id)


def _add_streams(routes: APIRouter, manager: JobManager, streams: sse.Streams) -> None:
    After = Annotated[int | None, Query(ge=0, le=2**53, description="Only events with a higher number.")]

    Worker = Annotated[int | None, Query(ge=0, le=4096, description="Only what this worker's code has printed.")]
    Grep = Annotated[str, Query(max_length=200, description="Only lines that contain this, in upper or lower case.")]

    @routes.get("/{job_id}/events", response_model=list[Event], responses={**STREAM, **answers(404, 422, 502, 503)})
    async def events(request: Request, job_id: str, after: After = None) -> Any:
        """The event log: a stream that can be taken up again by `Last-Event-ID`, or JSON by `Accept`."""
        start = sse.position(request, after)
        if sse.wants_json(request):
            return await manager.events_so_far(job_id, start, MAX_EVENTS)
        return sse.stream(request, await manager.events(job_id, start), streams)

    @routes.get("/{job_id}/logs", response_class=PlainTextResponse, responses=answers(404, 422, 502, 503))
    async def logs(
        request: Request, job_id: str, worker: Worker = None, grep: Grep = "", after: After = None
    ) -> Response:
        """The log for people: as text what there is now, or its events as a stream by `Accept: text/event-stream`."""
        wanted = LogFilter(worker, grep)
        if sse.MEDIA_TYPE in request.headers.get("accept", ""):

            def takes(event: Event) -> bool:
                is_end = event.is_terminal  # by which readers know that nothing follows
                return is_end or (event.type in LOG_TYPES and wanted.line(event) is not None)

            return sse.stream(request, await manager.events(job_id, sse.position(request, after)), streams, takes)
        if after is not None:
            raise ProblemError(422, "`after` goes with Accept: text/event-stream", "/query/after")
        return StreamingResponse(await manager.log_lines(job_id, wanted), media_type="text/plain")
