"""/v1/jobs/{id}/checkpoints and /metrics, /v1/metrics: what a run leaves, and the figures of runs over time."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel

from api.http.auth import caller
from api.http.exact import Exact
from api.http.files import OpenFile
from api.http.problems import ProblemError, answers
from api.http.several import Several
from service import SUFFIX, CheckpointView, FileFormat, JobManager, Line

FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file.",
        "content": {"application/octet-stream": {"schema": {"type": "string"}}, "application/json": {"schema": {}}},
    },
    304: {"description": "The reader has the file already, as `If-None-Match` or `If-Modified-Since` says."},
}
MAX_POINTS = 10_000
MOST_POINTS = 200_000
"""Of all runs together."""
Name = Annotated[str, Query(description="Which figure; a name that there is not answers with those there are.")]
Points = Annotated[int, Query(ge=4, le=MAX_POINTS, description="At most so many of a run, spikes among them.")]
Axis = Annotated[Literal["examples", "epoch", "step", "time"], Query(description="Over what.")]
Which = Annotated[
    Literal["model", "best", "raw"],
    Query(description="The finished one; the best so far (`checkpoint.keep_best`); the one without `ema`."),
]
Format = Annotated[
    FileFormat,
    Query(
        alias="format",
        description="Others than safetensors are written when they are first asked for, which may take a minute.",
    ),
]
Jobs = Annotated[
    Several[Annotated[str, Query(pattern="^[0-9a-z]{12}$")]],
    Query(min_length=1, max_length=200, description="Which runs, by the ids of their jobs."),
]


class Checkpoints(BaseModel):
    """The checkpoints that a job has kept, oldest first."""

    checkpoints: list[CheckpointView]


class Lines(BaseModel):
    """One figure over several runs."""

    lines: list[Line | None]
    """In the order in which the runs were named; null where there is no such job."""


def router(manager: JobManager) -> APIRouter:
    """The routes over one manager."""
    routes = APIRouter(tags=["jobs"], route_class=Exact)

    @routes.get("/jobs/{job_id}/checkpoints", responses=answers(404, 502, 503))
    async def list_checkpoints(job_id: str) -> Checkpoints:
        """The checkpoints that the job has kept, with their files; oldest first."""
        return Checkpoints(checkpoints=await manager.checkpoints(job_id))

    @routes.get(
        "/jobs/{job_id}/checkpoints/{step}/{file}",
        response_class=FileResponse,
        responses={**FILE, **answers(400, 404, 416, 502, 503)},
    )
    async def download(job_id: str, step: str, file: str) -> FileResponse:
        """One file of a checkpoint: `model.safetensors`, `optimizer.safetensors`, `position.json` ..."""
        opened = await manager.checkpoint_file(job_id, step, file)
        kind = "application/json" if file.endswith(".json") else "application/octet-stream"
        return OpenFile(opened, f"{step}-{file}", kind)

    @routes.get(
        "/jobs/{job_id}/model",
        response_class=FileResponse,
        responses={**FILE, **answers(400, 404, 409, 416, 422, 429, 502, 503, 507)},
    )
    async def model(
        request: Request, job_id: str, which: Which = "model", form: Format = "safetensors"
    ) -> FileResponse:
        """The finished model, or another that the run has left, in a format; with a `Range`, a part of it."""
        opened = await manager.model_file(job_id, which, form, caller(request).user)
        return OpenFile(opened, f"{job_id}-{which}{SUFFIX[form]}")

    @routes.get("/jobs/{job_id}/metrics", responses=answers(404, 422, 502, 503))
    async def metrics(job_id: str, name: Name, points: Points = 500, x: Axis = "examples") -> Line:
        """One figure over the run, thinned out to the least and the greatest value of each stretch."""
        return await manager.line(job_id, name, x, points)

    @routes.get("/metrics", response_model=Lines, responses=answers(422))
    async def metrics_of_jobs(job: Jobs, name: Name, points: Points = 500, x: Axis = "examples") -> Response:
        """The same figure over each of several runs, in the order in which they are named."""
        if len(job) * points > MOST_POINTS:
            detail = (
                f"{len(job)} runs of {points} points are too many; ask for {MOST_POINTS // len(job)} points or fewer"
            )
            raise ProblemError(422, detail, "/query/points")
        lines = Lines(lines=await manager.lines(job, name, x, points))
        return Response(lines.model_dump_json(), media_type="application/json")

    return routes
