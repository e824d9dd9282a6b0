"""The FastAPI app, assembled from its parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api import problems, sse
from api.routes import catalogue, health, jobs
from service import ClusterInfo, JobManager, JobSpec


def create_app(manager: JobManager, cluster: ClusterInfo, streams: sse.Streams) -> FastAPI:
    """The service's REST API over one manager, which lives as long as the app."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await manager.start()
        yield
        await manager.stop()

    app = FastAPI(title="Millrace", version="1", lifespan=lifespan, redoc_url=None)
    problems.install(app)
    app.include_router(jobs.router(manager, streams), prefix="/v1")
    app.include_router(catalogue.router(manager, cluster), prefix="/v1")
    app.include_router(health.router(manager))
    _complete_openapi(app)
    return app


def _complete_openapi(app: FastAPI) -> None:
    """Add the bodies that no route's signature shows: specs, which come as JSON or YAML, and problems."""
    schema = get_openapi(title=app.title, version=app.version, description=__doc__, routes=app.routes)
    for model in (JobSpec, problems.Problem):
        part = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schema["components"]["schemas"].update({**part.pop("$defs", {}), model.__name__: part})
    app.openapi_schema = schema
