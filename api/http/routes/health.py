"""/healthz and /readyz: whether the process answers, and whether it can take jobs."""

import asyncio

from fastapi import APIRouter
from pydantic import BaseModel

from api.http.problems import ProblemError, answers
from service import JobManager

READY_WITHIN_S = 3.0


class Health(BaseModel):
    """All is well."""

    status: str = "ok"


def router(manager: JobManager) -> APIRouter:
    """The routes over one manager."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz")
    async def alive() -> Health:
        """The process answers."""
        return Health()

    @routes.get("/readyz", responses=answers(503))
    async def ready() -> Health:
        """The store and the cluster answer too."""
        for part, check in (("store", manager.store.check), ("cluster", manager.runs.total_resources)):
            try:
                await asyncio.wait_for(asyncio.to_thread(check), READY_WITHIN_S)
            except Exception as error:
                raise ProblemError(503, f"the {part} does not answer: {type(error).__name__}: {error}") from error
        return Health()

    return routes
