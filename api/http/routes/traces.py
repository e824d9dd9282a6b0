"""/v1/jobs/{id}/traces: what a worker does in a step, recorded on request."""

import os
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from api.http.audit import told
from api.http.auth import caller, check_owner
from api.http.problems import answers
from service import Documented, JobManager, TraceView, chunks

GZIP = "application/gzip"
FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "content": {GZIP: {"schema": {"type": "string", "format": "binary"}}}}
}


class TraceRequest(Documented):
    """What is to be recorded."""

    model_config = ConfigDict(extra="forbid")

    steps: int = Field(default=10, ge=1, le=100, examples=[10])
    worker: int | None = Field(default=None, ge=0, le=1_000_000_000, examples=[1])
    """The number in its name, `worker/1`; null: the first."""


class TraceAsked(Documented):
    """A trace that is being recorded."""

    event: int
    """The number of the event `trace` that says so. Those after it tell how far it is, and the last one its file or
    why there is none."""


class Traces(BaseModel):
    """The traces that a job has kept, oldest first."""

    traces: list[TraceView]


def router(manager: JobManager) -> APIRouter:
    """The routes over one manager."""
    routes = APIRouter(prefix="/jobs", tags=["jobs"])

    @routes.post("/{job_id}/traces", status_code=202, responses=answers(404, 409, 422, 503))
    async def trace(request: Request, job_id: str, wanted: TraceRequest) -> TraceAsked:
        """Have one worker of a running job record its next steps with PyTorch's profiler while it trains. What is
        computed stays the same. One trace of a job is recorded at a time; its last five are kept."""
        told(request, **wanted.model_dump(exclude_none=True))
        check_owner(request, await manager.show(job_id), manager.projects)
        return TraceAsked(event=await manager.trace(job_id, wanted.steps, wanted.worker, caller(request)))

    @routes.get("/{job_id}/traces", responses=answers(404, 502, 503))
    async def list_traces(job_id: str) -> Traces:
        """The traces that the job has kept, oldest first."""
        return Traces(traces=await manager.traces(job_id))

    @routes.get(
        "/{job_id}/traces/{name}", response_class=StreamingResponse, responses={**FILE, **answers(404, 502, 503)}
    )
    async def download_trace(job_id: str, name: str) -> StreamingResponse:
        """A Chrome trace, compressed with gzip: for Perfetto, `chrome://tracing` and the page of the job."""
        opened = await manager.trace_file(job_id, name)
        headers = {
            "Content-Length": str(os.fstat(opened.fileno()).st_size),
            "Content-Disposition": f'attachment; filename="{job_id}-{name}"',
        }
        return StreamingResponse(chunks(opened), media_type=GZIP, headers=headers)

    return routes
