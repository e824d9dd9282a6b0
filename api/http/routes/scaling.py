"""/v1/sweeps/{sweep_id}/scaling: what more workers brought a job, beside what was predicted."""

import os
from concurrent.futures import BrokenExecutor
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from api.http.auth import caller
from api.http.exact import Exact
from api.http.fair_process import FairProcess
from api.http.problems import ProblemError, answers
from api.http.routes.sweeps import MARKDOWN
from service import Study, SweepManager, study_in, study_page


def router(manager: SweepManager) -> APIRouter:
    """The route over one manager."""
    routes = APIRouter(prefix="/sweeps", tags=["sweeps"], route_class=Exact)

    @routes.get("/{sweep_id}/scaling", response_model=Study, responses={200: MARKDOWN, **answers(404, 429, 503)})
    async def scaling(request: Request, sweep_id: str) -> Any:
        """Of a sweep whose only axis is workers.count: rate, speed-up, efficiency, error and time to the target so far,
        beside what a profile of the job predicts where the service keeps one. JSON, or Markdown by `Accept:
        text/markdown`."""
        folder = manager.folder_of(sweep_id)
        reading: FairProcess = request.app.state.reading
        async with reading.turns.place(caller(request).user) as turn:
            try:
                found = await reading.run(turn, study_in, folder, len(os.sched_getaffinity(0)))
            except BrokenExecutor:
                raise ProblemError(503, "the process that reads studies was ended, twice; try again later") from None
        if "text/markdown" in request.headers.get("accept", ""):
            return PlainTextResponse(study_page(found), media_type="text/markdown")
        return Response(found.model_dump_json(), media_type="application/json")

    return routes
