"""/v1/audit: who changed what, when and from where. For admins."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from api.http.exact import Exact
from api.http.problems import answers
from api.http.several import Several
from service import Audit, AuditEntry, AuditQuery

Name = Annotated[str | None, Query(max_length=64)]
Action = Annotated[str, Query(pattern=r"^([a-z]{1,31}\.[a-z]{1,31}|other)$")]
"""A noun and a verb. A word alone, as `cancel`, would quietly find nothing."""
Moment = Annotated[float | None, Query(ge=0, le=1e12, allow_inf_nan=False)]


class AuditPage(BaseModel):
    """Some entries, newest first."""

    entries: list[AuditEntry]
    next_page_token: str | None
    """For the next page; null on the last."""


def router(audit: Audit) -> APIRouter:
    """The route over one audit."""
    routes = APIRouter(prefix="/audit", tags=["audit"], route_class=Exact)

    @routes.get("", responses=answers(422))
    async def list_audit(
        user: Annotated[Name, Query(description="By this user only.")] = None,
        action: Annotated[Several[Action] | None, Query(description="Any of these, such as `job.cancel`.")] = None,
        target: Annotated[Name, Query(description="The id of a job, sweep, webhook or token.")] = None,
        since: Annotated[Moment, Query(description="Seconds since 1970.")] = None,
        until: Annotated[Moment, Query(description="Seconds since 1970.")] = None,
        page_size: Annotated[int, Query(ge=1, le=200)] = 50,
        page_token: Annotated[str | None, Query(pattern=r"^[0-9]{1,15}$")] = None,
    ) -> AuditPage:
        """Every change, and every attempt at one that a role did not allow, newest first."""
        query = AuditQuery(
            user=user,
            actions=frozenset(action or ()),
            target=target,
            since=since,
            until=until,
            limit=page_size + 1,
            before=None if page_token is None else int(page_token),
        )
        found = await asyncio.to_thread(audit.find, query)
        entries = found[:page_size]
        return AuditPage(entries=entries, next_page_token=str(entries[-1].id) if len(found) > page_size else None)

    return routes
