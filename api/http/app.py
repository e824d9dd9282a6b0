"""The FastAPI app, assembled from its parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.gzip import GZipMiddleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES

from api.http import problems, sse
from api.http.audit import Auditing
from api.http.auth import LOCAL_ONLY, Access, Guard
from api.http.fair_process import FairProcess
from api.http.head import Head
from api.http.openapi import completed, name_of
from api.http.routes import (
    artifacts,
    audit,
    catalogue,
    health,
    jobs,
    me,
    metrics,
    page,
    plans,
    projects,
    registry,
    scaling,
    sign_in,
    sweeps,
    traces,
    verbs,
    webhooks,
)
from api.problem import Problem
from service import (
    ClusterInfo,
    JobManager,
    JobSpec,
    Planner,
    PlanSpec,
    ProjectBoard,
    Registry,
    Sender,
    SweepManager,
    SweepSpec,
)

AS_IT_IS = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream")
"""What is not compressed on its way: weights become 8 % smaller, at 20 MB a second."""
MODELS = "models"
"""Beside the folder of the runs: the files of registered models."""
PROFILES = "profiles"
"""In the folder of the runs: profiles of this machine, for plans."""


class App(FastAPI):
    """FastAPI, whose schema also has what no route's signature shows: problems, roles, links, specs as JSON or YAML."""

    access = Access()

    def openapi(self) -> dict[str, Any]:
        """The whole schema."""
        if self.openapi_schema is None:
            schema = super().openapi()
            for model in (JobSpec, SweepSpec, PlanSpec, Problem):
                part = model.model_json_schema(ref_template="#/components/schemas/{model}")
                schema["components"]["schemas"].update({**part.pop("$defs", {}), model.__name__: part})
            self.openapi_schema = completed(schema, self.access)
        return self.openapi_schema


@dataclass(frozen=True)
class AppConfig:
    """What the app serves besides its managers."""

    streams: sse.Streams
    access: Access = LOCAL_ONLY
    guide: Path = Path("site")
    """The folder of the built guide, if there is one."""


def create_app(
    manager: JobManager,
    sweep_manager: SweepManager,
    cluster: ClusterInfo,
    config: AppConfig,
    sender: Sender | None = None,
) -> FastAPI:
    """The service's REST API over its managers, which start and stop with the app."""
    streams, access, reading = config.streams, config.access, FairProcess("specs")
    streams.standing.tokens = access.tokens
    models = Registry(
        manager.store, manager.run_dirs, manager.config.runs_dir.with_name(MODELS), manager.lifecycle.sinks.trackers
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await manager.start(admits=False)
        await models.start()
        await sweep_manager.start()
        manager.admit()
        if sender is not None:
            await sender.start()
        async with streams.standing.watched():
            yield
        reading.close()
        if sender is not None:
            await sender.stop()
        await sweep_manager.stop()
        await manager.stop()

    app = App(
        title="Millrace",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=name_of,
    )
    app.access, app.state.reading = access, reading
    problems.install(app)
    _add_layers(app, access, manager)
    app.include_router(jobs.router(manager, streams, access), prefix="/v1")
    app.include_router(artifacts.router(manager), prefix="/v1")
    app.include_router(registry.router(models, manager), prefix="/v1")
    app.include_router(verbs.router(manager, access), prefix="/v1")
    app.include_router(traces.router(manager), prefix="/v1")
    app.include_router(sweeps.router(sweep_manager, streams, access), prefix="/v1")
    planner = Planner(manager.runs, manager.config.runs_dir / PROFILES)
    app.include_router(scaling.router(sweep_manager), prefix="/v1")
    app.include_router(plans.router(manager, planner, access), prefix="/v1")
    app.include_router(catalogue.router(manager, cluster), prefix="/v1")
    _add_team(app, access, manager)
    app.include_router(health.router(manager))
    app.include_router(metrics.router(manager))
    if sender is not None:
        _add_webhooks(app, sender, manager)
    app.include_router(page.router())
    app.mount("/page", page.PageFiles(), name="page")
    app.mount("/guide", page.GuideFiles(config.guide), name="guide")
    return app


def _add_team(app: FastAPI, access: Access, manager: JobManager) -> None:
    """Who calls, what projects share, and who did what."""
    app.include_router(me.router(access), prefix="/v1")
    app.include_router(sign_in.router(access, manager.store.audit), prefix="/v1")
    app.include_router(projects.router(ProjectBoard(manager.entrance)), prefix="/v1")
    app.include_router(audit.router(manager.store.audit), prefix="/v1")


def _add_webhooks(app: FastAPI, sender: Sender, manager: JobManager) -> None:
    """Who is told of states, also of those of what is just being removed."""
    manager.removal.collect = sender.webhooks.collect
    app.include_router(webhooks.router(sender), prefix="/v1")


def _add_layers(app: FastAPI, access: Access, manager: JobManager) -> None:
    """What stands around every route, the innermost first."""
    app.add_middleware(GZipMiddleware, minimum_size=2048, compresslevel=3, exclude_content_types=AS_IT_IS)
    app.add_middleware(Guard, access=access)
    app.add_middleware(Auditing, audit=manager.store.audit)
    app.add_middleware(metrics.Timing, metrics=manager.metrics)
    app.add_middleware(Head)
