"""/v1/sweeps: submit, list, show, follow, cancel, pause, resume, extend, change, delete."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, JsonValue

from api.http import sse
from api.http.audit import told
from api.http.auth import Access, caller, check_code, check_member, check_owner
from api.http.body import read_sweep_spec
from api.http.exact import Exact
from api.http.problems import answers
from api.http.routes.jobs import MAX_EVENTS, STREAM, Labels, pairs
from api.http.routes.submission import asked, spec_in_body, tell_where
from api.http.several import Several
from service import (
    AnyReport,
    Documented,
    Event,
    JobChanges,
    State,
    SweepManager,
    SweepQuery,
    SweepSpec,
    SweepSummary,
    SweepView,
    own_code_of_sweep,
    report_text,
)

MARKDOWN: dict[str, Any] = {"content": {"text/markdown": {"schema": {"type": "string"}}}}
IMAGES: dict[str, Any] = {"content": {kind: {} for kind in ("image/png", "image/svg+xml")}}
FIRST_FIGURE: dict[str, Any] = {
    "links": {
        "sweeps-figure": {
            "operationId": "sweeps-figure",
            "parameters": {"path.sweep_id": "$request.path.sweep_id", "path.name": "$response.body#/0"},
        }
    }
}
EXAMPLE = {"job": {"data": "digits", "model": "mlp"}, "axes": {"seed": [0, 1, 2]}}
BODY = spec_in_body("SweepSpec", EXAMPLE)


class SweepPage(BaseModel):
    """Some sweeps, newest first."""

    sweeps: list[SweepSummary]
    next_page_token: str | None
    """For the next page; null on the last."""


class SweepChecked(BaseModel):
    """What a dry run found."""

    trials: int
    """How many there would be."""
    spec: SweepSpec
    """As it would run."""


class Extension(Documented):
    """What is added to a sweep."""

    model_config = ConfigDict(extra="forbid")

    axes: dict[str, list[JsonValue]] = {}
    """More values of axes that are there, or other axes."""
    limits: dict[str, JsonValue] = {}
    """Limits that change."""


def router(manager: SweepManager, streams: sse.Streams, access: Access) -> APIRouter:
    """The routes over one manager."""
    routes = APIRouter(prefix="/sweeps", tags=["sweeps"], route_class=Exact)
    _add_submit(routes, manager, access)
    _add_views(routes, manager, streams)
    _add_report(routes, manager)
    _add_verbs(routes, manager)
    _add_extend(routes, manager, access)
    return routes


def _add_submit(routes: APIRouter, manager: SweepManager, access: Access) -> None:
    @routes.post(
        "",
        status_code=202,
        response_model=SweepView,
        responses={
            200: {"model": SweepChecked, "description": "Dry run: how many trials, and the spec as it would run."},
            **answers(413, 415, 422),
        },
        openapi_extra=BODY,
    )
    async def submit(request: Request, response: Response) -> Any:
        """Take a sweep in. The same key with the same spec returns the same sweep, however often it comes."""
        dry_run, key = asked(request)
        spec = await read_sweep_spec(request)
        told(request, **spec.model_dump(mode="json", include={"name", "axes"}))
        check_code(request, access, own_code_of_sweep(spec))
        check_member(request, manager.jobs.projects, spec.job.project)
        if dry_run:
            checked, count = await manager.check(spec, caller(request).user)
            return JSONResponse(SweepChecked(trials=count, spec=checked).model_dump(mode="json"))
        sweep, is_new = await manager.submit(spec, key, caller(request).user)
        tell_where(response, f"/v1/sweeps/{sweep.id}", is_new)
        return sweep


def _add_views(routes: APIRouter, manager: SweepManager, streams: sse.Streams) -> None:
    After = Annotated[int | None, Query(ge=0, le=2**53, description="Only events with a higher number.")]

    @routes.get("", responses=answers(422))
    async def list_sweeps(
        state: Annotated[Several[State] | None, Query(description="Any of these.")] = None,
        label: Labels = None,
        user: Annotated[str | None, Query(max_length=64, description="Of this user only.")] = None,
        project: Annotated[str | None, Query(max_length=64, description="Of this project only.")] = None,
        archived: Annotated[bool, Query(description="The archived ones, which are left out else.")] = False,
        page_size: Annotated[int, Query(ge=1, le=200)] = 50,
        page_token: Annotated[str | None, Query(pattern="^[0-9]{1,20}-sweep-[0-9a-z]{1,32}$")] = None,
    ) -> SweepPage:
        """Sweeps, newest first. Labels are those of the sweep's job."""
        wanted = SweepQuery(
            states=frozenset(state or ()), labels=pairs(label), user=user, project=project, archived=archived,
            limit=page_size, before=page_token,
        )  # fmt: skip
        found = await manager.page(wanted)
        return SweepPage(sweeps=found.sweeps, next_page_token=found.next_page_token)

    @routes.get("/{sweep_id}", responses=answers(404))
    async def show(sweep_id: str) -> SweepView:
        """One sweep: its spec, how far it is, and its trials. Each trial is a job at /v1/jobs/{id} as well."""
        return await manager.show(sweep_id)

    @routes.get("/{sweep_id}/events", response_model=list[Event], responses={**STREAM, **answers(404, 422)})
    async def events(request: Request, sweep_id: str, after: After = None) -> Any:
        """Its log: each trial's state and figures as they come, and the progress of the whole."""
        start = sse.position(request, after)
        if sse.wants_json(request):
            return await manager.events_so_far(sweep_id, start, MAX_EVENTS)
        return sse.stream(request, await manager.events(sweep_id, start), streams)


def _add_report(routes: APIRouter, manager: SweepManager) -> None:
    @routes.get("/{sweep_id}/report", response_model=AnyReport, responses={200: MARKDOWN, **answers(404, 503)})
    async def report(request: Request, sweep_id: str) -> Any:
        """What its trials showed so far: of batches and rates where it varies the batch, otherwise of its axes. JSON,
        or Markdown by `Accept: text/markdown`."""
        found = await manager.report(sweep_id)
        if "text/markdown" in request.headers.get("accept", ""):
            return PlainTextResponse(report_text(found), media_type="text/markdown")
        return Response(found.model_dump_json(), media_type="application/json")

    @routes.get("/{sweep_id}/figures", responses={200: FIRST_FIGURE, **answers(404, 429, 503)})
    async def list_figures(request: Request, sweep_id: str) -> list[str]:
        """File names of the report's figures, of which there are none before there is something to draw."""
        return [*await manager.figure_names(sweep_id, caller(request).user)]

    @routes.get(
        "/{sweep_id}/figures/{name}", response_class=Response, responses={200: IMAGES, **answers(404, 429, 503)}
    )
    async def figure(request: Request, sweep_id: str, name: str) -> Response:
        """One of them, as PNG or SVG."""
        drawn = await manager.figure(sweep_id, name, caller(request).user)
        return Response(drawn, media_type="image/png" if name.endswith(".png") else "image/svg+xml")


def _add_verbs(routes: APIRouter, manager: SweepManager) -> None:
    @routes.post("/{sweep_id}/cancel", status_code=202, responses=answers(404, 409))
    async def cancel(request: Request, sweep_id: str) -> SweepView:
        """Stop its trials cleanly, each with a checkpoint, and run no more."""
        check_owner(request, await manager.show(sweep_id), manager.jobs.projects)
        return await manager.cancel(sweep_id)

    @routes.delete("/{sweep_id}", status_code=204, responses=answers(404, 409))
    async def delete(request: Request, sweep_id: str) -> None:
        """Remove a sweep that has ended, with its trials, which are jobs as well, and all their files."""
        check_owner(request, await manager.show(sweep_id), manager.jobs.projects)
        await manager.delete(sweep_id)

    @routes.patch("/{sweep_id}", responses=answers(404, 409, 422))
    async def edit(request: Request, sweep_id: str, changes: JobChanges) -> SweepView:
        """Change a sweep's name, labels, notes or priority, or archive it. Only the fields that are sent change."""
        told(request, **changes.told)
        check_owner(request, await manager.show(sweep_id), manager.jobs.projects)
        return await manager.edit(sweep_id, changes)

    @routes.post("/{sweep_id}/pause", status_code=202, responses=answers(404, 409))
    async def pause(request: Request, sweep_id: str) -> SweepView:
        """Take its processes away. What is trained since the last checkpoints is trained again later."""
        check_owner(request, await manager.show(sweep_id), manager.jobs.projects)
        return await manager.pause(sweep_id)

    @routes.post("/{sweep_id}/resume", status_code=202, responses=answers(404, 409, 422))
    async def resume(request: Request, sweep_id: str) -> SweepView:
        """Go on after a pause, or after its driver was lost."""
        check_owner(request, await manager.show(sweep_id), manager.jobs.projects)
        return await manager.resume(sweep_id)


def _add_extend(routes: APIRouter, manager: SweepManager, access: Access) -> None:
    @routes.post("/{sweep_id}/extend", status_code=202, responses=answers(404, 409, 422))
    async def extend(request: Request, sweep_id: str, extension: Extension) -> SweepView:
        """Add trials, while it runs or after it has ended; those that are done are not run again."""
        told(request, **extension.model_dump(mode="json"))
        sweep = await manager.show(sweep_id)
        check_owner(request, sweep, manager.jobs.projects)
        check_member(request, manager.jobs.projects, sweep.project)
        check_code(request, access, own_code_of_sweep(sweep.spec.extended(extension.axes)))
        return await manager.extend(sweep_id, extension.axes, extension.limits)
