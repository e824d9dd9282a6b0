"""/v1/registry: models of jobs that are registered as versions of a name."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from api.http.audit import meant, told
from api.http.auth import caller, check_owner
from api.http.exact import Exact
from api.http.files import OpenFile
from api.http.problems import answers
from api.http.routes.submission import tell_where
from service import MODEL_NAME, Documented, JobManager, ModelVersion, Registry, VersionQuery

FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The file.", "content": {"application/octet-stream": {"schema": {"type": "string"}}}},
    304: {"description": "The reader has the file already, as `If-None-Match` or `If-Modified-Since` says."},
}
KNOWN: dict[int | str, dict[str, Any]] = {
    200: {"model": ModelVersion, "description": "The same model is registered under this name already."}
}


class Registration(Documented):
    """A model of a job that gets a name."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=MODEL_NAME, examples=["digits"])
    """Letters, digits, dots, dashes and underscores, at most 50."""
    job: str = Field(pattern="^[0-9a-z]{1,16}$", examples=["000000000000"])
    """The id of the job that has trained it."""
    which: Literal["model", "best", "raw"] = "model"
    """The finished one; the best so far (`checkpoint.keep_best`); the one without `ema`."""
    notes: str = Field(default="", max_length=10_000, pattern=r"^[^\x00]*$")
    """What you want to say of it."""


class VersionPage(BaseModel):
    """Some versions, newest first."""

    versions: list[ModelVersion]
    next_page_token: str | None
    """For the next page; null on the last."""


def router(registry: Registry, manager: JobManager) -> APIRouter:
    """The routes over one registry, and the manager whose jobs it has models of."""
    routes = APIRouter(prefix="/registry", tags=["registry"], route_class=Exact)

    @routes.post("", status_code=201, responses={**KNOWN, **answers(404, 409, 422, 502, 503, 507)})
    async def register(request: Request, response: Response, wanted: Registration) -> ModelVersion:
        """Make a model of a job the next version of a name. Its file is copied, and stays when the job is removed. The
        same model under the same name again is the version that it is already."""
        told(request, name=wanted.name, job=wanted.job, which=wanted.which)
        job = await manager.show(wanted.job)
        made, is_new = await registry.register(wanted.name, job, wanted.which, wanted.notes, caller(request).user)
        tell_where(response, f"/v1/registry/{made.id}", is_new)
        response.status_code = 201 if is_new else 200
        return made

    @routes.get("", responses=answers(422))
    async def list_versions(
        name: Annotated[str | None, Query(pattern=MODEL_NAME, description="Of this name only.")] = None,
        job: Annotated[str | None, Query(pattern="^[0-9a-z]{1,16}$", description="Of this job's models only.")] = None,
        latest: Annotated[bool, Query(description="The newest version of each name only.")] = False,
        page_size: Annotated[int, Query(ge=1, le=200)] = 50,
        page_token: Annotated[str | None, Query(pattern="^[0-9]{1,9}$")] = None,
    ) -> VersionPage:
        """Registered models, newest first."""
        before = None if page_token is None else int(page_token)
        found, more = await registry.find(
            VersionQuery(name=name, job=job, latest=latest, limit=page_size, before=before)
        )
        return VersionPage(versions=found, next_page_token=None if more is None else str(more))

    @routes.get("/{version_id}", responses=answers(404))
    async def show_version(version_id: str) -> ModelVersion:
        """One version, as `digits@3`; of `digits@latest`, the newest."""
        return await registry.get(version_id)

    @routes.get("/{version_id}/model", response_class=FileResponse, responses={**FILE, **answers(400, 404, 416)})
    async def version_file(version_id: str) -> FileResponse:
        """The model, as safetensors; with a `Range`, a part of it."""
        version, opened = await registry.open(version_id)
        return OpenFile(opened, f"{version.name}-{version.version}.safetensors")

    @routes.delete("/{version_id}", status_code=204, responses=answers(404))
    async def remove_version(request: Request, version_id: str) -> None:
        """Remove a version and its file. Its number does not come again."""
        version = await registry.get(version_id)
        meant(request, version.id)
        check_owner(request, version)
        await registry.remove(version)

    return routes
