"""PATCH /v1/jobs/{id}, and pause, scale, resume and fork: what can be done with a job beside cancelling it."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from api.http.audit import is_recorded, told
from api.http.auth import Access, caller, check_code, check_member, check_owner
from api.http.body import read_changes
from api.http.exact import Exact
from api.http.problems import ProblemError, answers
from api.http.routes.submission import PARAMETERS, asked, tell_where
from service import JobChanges, JobManager, JobSpec, JobView, SpecRejected, own_code

CHANGES: dict[str, Any] = {
    "requestBody": {
        "required": False,
        "content": {
            kind: {"schema": {"type": "object"}, "example": {"epochs": 40, "optimizer": {"lr": 0.01}}}
            for kind in ("application/json", "application/yaml")
        },
    },
    "parameters": PARAMETERS,
}


class Size(BaseModel):
    """How many train."""

    model_config = ConfigDict(extra="forbid")

    workers: int = Field(ge=1, le=4096, strict=True, examples=[2])
    """From `workers.min` to `workers.max` of the spec."""


Checkpoint = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,20}$", description="A checkpoint's `step`; the newest if left out.")
]


def router(manager: JobManager, access: Access) -> APIRouter:
    """The routes over one manager."""
    routes = APIRouter(prefix="/jobs", tags=["jobs"], route_class=Exact)
    _add_edit(routes, manager)

    @routes.post("/{job_id}/pause", status_code=202, responses=answers(404, 409, 503))
    async def pause(request: Request, job_id: str) -> JobView:
        """Stop a job so that it can go on later: a waiting one at once, a running one cleanly, with a checkpoint."""
        check_owner(request, await manager.show(job_id), manager.projects)
        return await manager.pause(job_id, caller(request))

    @routes.post("/{job_id}/scale", status_code=202, responses=answers(404, 409, 422, 503))
    async def scale(request: Request, job_id: str, size: Size) -> JobView:
        """Have another number of workers train a running job. Nothing is restarted: newcomers get the parameters from a
        peer or the shards; the event `resize` tells when they train. A job that waits or is paused begins with so
        many."""
        told(request, workers=size.workers)
        check_owner(request, await manager.show(job_id), manager.projects)
        try:
            return await manager.scale(job_id, size.workers, caller(request))
        except SpecRejected as error:
            raise ProblemError(422, str(error), "/workers") from error

    @routes.post("/{job_id}/resume", status_code=202, responses=answers(404, 409, 502, 503))
    async def resume(request: Request, job_id: str) -> JobView:
        """Let a paused job go on from its checkpoint, when its turn comes. Its log goes on, too."""
        check_owner(request, await manager.show(job_id), manager.projects)
        return await manager.resume(job_id, caller(request))

    @routes.post(
        "/{job_id}/fork",
        status_code=202,
        response_model=JobView,
        responses={
            200: {"model": JobSpec, "description": "Dry run: the spec as it would run."},
            **answers(404, 409, 413, 415, 422, 429, 502, 503),
        },
        openapi_extra=CHANGES,
    )
    async def fork(request: Request, response: Response, job_id: str, checkpoint: Checkpoint = None) -> Any:
        """A new job that goes on from a checkpoint of this one. The body changes its spec: a merge patch (RFC 7396), in
        which null takes a field back to its default; none, or an empty one, changes nothing."""
        dry_run, key = asked(request)
        changes = await read_changes(request)
        told(request, changes=changes)
        by = caller(request)
        _, spec, _ = await manager.forked(job_id, changes, checkpoint, by.user)
        check_code(request, access, own_code(spec))
        check_member(request, manager.projects, spec.project)
        if dry_run:
            return JSONResponse(spec.model_dump(mode="json"))
        job, is_new = await manager.fork(job_id, changes, checkpoint, key, by.user, by)
        is_recorded(request)
        tell_where(response, f"/v1/jobs/{job.id}", is_new)
        return job

    return routes


def _add_edit(routes: APIRouter, manager: JobManager) -> None:
    @routes.patch("/{job_id}", responses=answers(404, 409, 422))
    async def edit(request: Request, job_id: str, changes: JobChanges) -> JobView:
        """Change a job's name, labels, notes or priority, or archive it. Only the fields that are sent change, and of
        two who change the same one the last wins."""
        told(request, **changes.told)
        check_owner(request, await manager.show(job_id), manager.projects)
        return await manager.edit(job_id, changes, caller(request))
