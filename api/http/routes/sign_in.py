"""/v1/sign-in: through a provider, as a browser goes. What it ends with is a session in a cookie."""

import asyncio
import logging

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from api.http.auth import Access, address_of
from api.http.cookies import Cookies
from api.http.exact import Exact
from service import BEGUN_S, Act, Audit, Caller, ProviderUnreachable, Requester, Role, SignIn, SignInRefused

SAFE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
"""The address that a provider sends a browser back to holds a code, which is nobody else's business."""

logger = logging.getLogger(__name__)


class Ways(BaseModel):
    """How one comes in."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    provider: str | None
    """What people call the sign-in provider; null: there is none, and a token is the only way."""
    url: str | None
    """Where a browser goes to sign in."""


def router(access: Access, audit: Audit) -> APIRouter:
    """The routes over the provider of one server, if it has one."""
    routes = APIRouter(prefix="/sign-in", tags=["me"], route_class=Exact)

    @routes.get("")
    async def ways() -> Ways:
        """Whether one can sign in through a provider, and where."""
        if access.sign_in is None:
            return Ways(provider=None, url=None)
        config = access.sign_in.config
        return Ways(provider=config.label, url=f"{config.public_url}/v1/sign-in/begin")

    if access.sign_in is not None:
        routes.include_router(_browsers(access.sign_in, audit))
    return routes


def _browsers(sign_in: SignIn, audit: Audit) -> APIRouter:
    """Where browsers go, and come back to. What a provider adds to the address is none of ours to refuse."""
    routes, cookies = APIRouter(include_in_schema=False), Cookies(sign_in.config)

    @routes.get("/begin")
    async def begin(request: Request) -> Response:
        """Send the browser to the provider."""
        try:
            cookie, url = await sign_in.begin()
        except ProviderUnreachable as error:
            return _failed(request, sign_in, error)
        response = RedirectResponse(url, 303, SAFE)
        cookies.give(response, cookies.begun, cookie, BEGUN_S)
        return response

    @routes.get("/callback")
    async def callback(request: Request) -> Response:
        """The browser is back from the provider, with a code or without one."""
        caller = Caller(address_of(request.scope), request.state.request_id)
        told = request.query_params
        try:
            if len(told) != len(told.multi_items()):
                raise SignInRefused("token", "a parameter stands twice in the address")
            begun = cookies.value(request.headers, cookies.begun)
            session, text = await sign_in.finish(begun, told, caller)
        except (SignInRefused, ProviderUnreachable) as error:
            if isinstance(error, SignInRefused) and error.user:
                await asyncio.to_thread(audit.record, *_refusal(error, caller))
            response = _failed(request, sign_in, error)
        else:
            response = RedirectResponse(f"{sign_in.config.public_url}/", 303, SAFE)
            cookies.give(response, cookies.session, text, sign_in.config.session_s)
            logger.info("%s has signed in, session %s", session.user, session.id)
        cookies.take(response, cookies.begun)
        return response

    return routes


def _refusal(error: SignInRefused, caller: Caller) -> tuple[Requester, Act]:
    """What the audit says of somebody whom the provider knows, and who may not come in."""
    by = Requester(user=error.user, role=Role.viewer, address=caller.address, request_id=caller.request_id)
    return by, Act(action="session.begin", status=403, details={"why": error.why})


def _failed(request: Request, sign_in: SignIn, error: SignInRefused | ProviderUnreachable) -> Response:
    """Back to the page, which says so; or a problem, for whoever asks for no page."""
    logger.warning("nobody has signed in: %s", error)
    if "text/html" not in request.headers.get("accept", ""):
        raise error
    why = error.why if isinstance(error, SignInRefused) else "provider"
    return RedirectResponse(f"{sign_in.config.public_url}/#/sign-in?why={why}", 303, SAFE)
