"""Writes down who changed what, when and from where. What is added to the API is written down by itself."""

import asyncio
import logging
import re
import secrets
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.cookies import READING
from service import Act, Audit, Requester

CHANGED = frozenset({201, 202, 204})
"""A dry run is answered with 200, and so is an edit."""
REFUSED = 403
REQUEST_ID = "x-request-id"
PLAIN = re.compile(r"^[A-Za-z0-9._@-]{1,64}\Z")
NEW = {"webhooks": "create", "projects": "create", "registry": "register"}
"""What it is called to make one, where that is not `submit`."""
VERBS = {"traces": "trace", "patch": "edit"}
"""What it is called to make one of what belongs to a job, or to change it."""

logger = logging.getLogger(__name__)


def told(request: Request, **details: Any) -> None:
    """What the audit says of a request besides its address."""
    request.state.details = details


def meant(request: Request, target: str) -> None:
    """What an address that names no one thing, as `digits@latest`, has meant."""
    request.state.target = target


def is_recorded(request: Request) -> None:
    """The audit has the request already, from the transaction in which it was taken in."""
    request.state.is_recorded = True


class Auditing:
    """ASGI middleware around the guard. It also gives each request an id."""

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self.app = app
        self.audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass everything on; a change is answered once it is written down."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        given = Headers(scope=scope).get(REQUEST_ID, "")
        state["request_id"] = given if PLAIN.match(given) else secrets.token_hex(16)

        async def audited(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = state["request_id"]
                if _is_written_down(scope, message["status"], headers):
                    await self._record(state["identity"], _act(scope, message["status"], headers))
            await send(message)

        await self.app(scope, receive, audited)

    async def _record(self, by: Requester, act: Act) -> None:
        try:
            await asyncio.to_thread(self.audit.record, by, act)
        except Exception:  # a full disk must not keep anybody from cancelling a job
            logger.exception("the audit lacks what %s did: %s", by.model_dump_json(), act.model_dump_json())


def _is_written_down(scope: Scope, status: int, headers: MutableHeaders) -> bool:
    state = scope["state"]
    if scope["method"] in READING or "identity" not in state:
        return False
    is_done = status in CHANGED or (scope["method"] == "PATCH" and status == 200)
    is_change = is_done and "idempotent-replayed" not in headers and "is_recorded" not in state
    return is_change or status == REFUSED


def _act(scope: Scope, status: int, headers: MutableHeaders) -> Act:
    """`POST /v1/jobs/{id}/cancel` is `job.cancel`, `POST /v1/jobs` is `job.submit`."""
    path: str = scope["path"]
    kind, target, verb, *_ = [*path.removeprefix("/v1/").split("/"), "", "", ""]
    if not verb:
        verb = NEW.get(kind, "submit") if scope["method"] == "POST" else scope["method"].lower()
    verb = VERBS.get(verb, verb)
    made = headers.get("location", "").rpartition("/")[2]
    action, target = f"{kind.removesuffix('s')}.{verb}", made or scope["state"].get("target", target)
    return Act(
        action=action if PLAIN.match(action) else "other",
        target=target if PLAIN.match(target) else None,
        status=status,
        details=scope["state"].get("details", {}),
    )
