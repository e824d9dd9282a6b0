"""The FastAPI app, assembled from its parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from api import problems, sse
from api.routes import catalogue, health, jobs
from service import ClusterInfo, JobManager, JobSpec


class App(FastAPI):
    """FastAPI, whose schema also has what no route's signature shows: problems, and specs as JSON or YAML."""

    def openapi(self) -> dict[str, Any]:
        """The whole schema."""
        if self.openapi_schema is None:
            schema = super().openapi()
            for model in (JobSpec, problems.Problem):
                part = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schema["components"]["schemas"].update({**part.pop("$defs", {}), model.__name__: part})
            self.openapi_schema = schema
        return self.openapi_schema


def create_app(manager: JobManager, cluster: ClusterInfo, streams: sse.Streams) -> FastAPI:
    """The service's REST API over one manager, which lives as long as the app."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await manager.start()
        yield
        await manager.stop()

    app = App(title="Millrace", version="1", lifespan=lifespan, redoc_url=None)
    problems.install(app)
    app.include_router(jobs.router(manager, streams), prefix="/v1")
    app.include_router(catalogue.router(manager, cluster), prefix="/v1")
    app.include_router(health.router(manager))
    return app
