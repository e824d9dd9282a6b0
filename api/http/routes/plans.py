"""/v1/plans: what more workers would bring a job, before it runs."""

from concurrent.futures import BrokenExecutor
from typing import Any

from fastapi import APIRouter, Request, Response

from api.http.auth import Access, caller, check_code
from api.http.body import read_plan_spec
from api.http.exact import Direct
from api.http.fair_process import FairProcess
from api.http.problems import ProblemError, answers
from service import (
    FieldError,
    JobManager,
    Plan,
    Planner,
    SpecRejected,
    as_field_error,
    make_plan,
    own_code,
    read_target,
    runs_of,
    with_target,
)

EXAMPLE = {"spec": {"algorithm": "downpour"}, "workers": "1..16", "cluster": "ec2-g2"}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": {"$ref": "#/components/schemas/PlanSpec"}, "example": EXAMPLE}
            for kind in ("application/json", "application/yaml")
        },
    }
}


def router(manager: JobManager, planner: Planner, access: Access) -> APIRouter:
    """The route over a planner."""
    routes = APIRouter(prefix="/plans", tags=["plans"], route_class=Direct)

    async def make(request: Request) -> Response:
        """What a job would reach on each number of workers, and what holds it back. Nothing is kept."""
        asked = await read_plan_spec(request)
        found = [FieldError(pointer=f"/spec{one.pointer}", message=one.message) for one in own_code(asked.spec)]
        check_code(request, access, found)
        user = caller(request).user
        spec, work, wanted = await planner.prepared(asked, manager.config.base, user)
        reading: FairProcess = request.app.state.reading
        async with reading.turns.place(user) as turn:
            try:
                plan = await reading.run(turn, make_plan, spec.train, work, wanted)
            except SpecRejected as error:
                raise as_field_error(error) from None
            except BrokenExecutor:
                raise ProblemError(503, "the process that makes plans was ended, twice; try again later") from None
        if asked.target is not None:
            target = read_target(asked.target, spec)
            runs = await runs_of(manager, spec, target.metric)
            plan = with_target(spec, plan, target, asked.price, runs, asked.noise_scale)
        return Response(plan.model_dump_json(), media_type="application/json")

    routes.add_api_route(
        "", make, methods=["POST"], response_model=Plan, responses=answers(413, 415, 422, 429, 503), openapi_extra=BODY
    )
    return routes
