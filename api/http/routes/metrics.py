"""/metrics for Prometheus, and how long every request takes."""

import asyncio
import time

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import JobManager, ServiceMetrics


class Targets(BaseModel):
    """Of Prometheus' HTTP service discovery."""

    targets: list[str]
    labels: dict[str, str] = {}


def router(manager: JobManager) -> APIRouter:
    """The routes over one manager."""
    routes = APIRouter(tags=["health"])

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """The service's own metrics, in Prometheus' text format."""
        return Response(await asyncio.to_thread(manager.metrics.text), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @routes.get("/metrics/nodes")
    async def nodes() -> list[Targets]:
        """Where Ray's nodes export theirs, as Prometheus' `http_sd_configs` reads it."""
        return [Targets(targets=await asyncio.to_thread(manager.runs.metrics_targets))]

    return routes


class Timing:
    """Middleware: measures requests to the first byte of the answer, since a stream of events may last for days."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on as it is."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun_s = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                taken_s = time.perf_counter() - begun_s
                self.metrics.answered(scope["method"], template(scope), message["status"], taken_s)
            await send(message)

        await self.app(scope, receive, timed)


def template(scope: Scope) -> str | None:
    """The path of the route that was taken, with its parameters' names; none where there is no such route.

    A route knows its path within its router only: what stands before that in the request is the router's prefix.
    """
    route: str | None = getattr(scope.get("route"), "path_format", None)
    if route is None:
        return None
    taken = route.format(**scope.get("path_params", {}))
    return str(scope["path"]).removesuffix(taken) + route if scope["path"].endswith(taken) else route
