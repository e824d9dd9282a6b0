"""/v1/sign-in: through a provider, as a browser goes. What it ends with is a session in a cookie, or a code for the
command line that has asked for it."""

import asyncio
import html
import logging

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ConfigDict, Field, ValidationError
from starlette.responses import Response

from api.http.audit import is_recorded
from api.http.auth import Access, address_of
from api.http.cookies import Cookies
from api.http.exact import Exact
from api.http.problems import ProblemError, answers
from service import (
    BEGUN_S,
    Act,
    Audit,
    Caller,
    Documented,
    ProviderUnreachable,
    Requester,
    Role,
    SignIn,
    SignInRefused,
    Terminal,
)

SAFE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
"""The address that a provider sends a browser back to holds a code, which is nobody else's business."""
ALONE = {**SAFE, "Content-Security-Policy": "frame-ancestors 'none'"}
"""And in no frame of another page, which could have its link pressed unseen."""

ASKS = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Sign in the command line? · Millrace</title>
<style>
  :root {{ color-scheme: light dark; background: Canvas; color: CanvasText; }}
  body {{ max-width: 34rem; margin: 15vh auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }}
  a {{ display: inline-block; padding: .6rem 1rem; border: 2px solid; border-radius: .4rem; font-weight: 600; }}
  code:last-child {{ font-size: 1.4rem; }}
</style>
<h1>Sign in the command line?</h1>
<p><code>millrace login</code> on this computer wants to work as <b>{user}</b>, with the role {role}. It has to show
  this code: <code>{mark}</code></p>
<p><a href="{url}">Sign in the command line</a></p>
<p>If you have not started it, or it shows another code, close this page.</p>
</html>
"""
"""In the browser: nothing leaves it for the command line before somebody has said so (RFC 8252, section 8.6)."""

logger = logging.getLogger(__name__)


class Ways(Documented):
    """How one comes in."""

    provider: str | None
    """What people call the sign-in provider; null: there is none, and a token is the only way."""
    url: str | None
    """Where a browser goes to sign in."""


class Code(Documented):
    """What a browser has brought to a command line."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(max_length=100)
    """As it came to the loopback address; once, and within a minute."""
    verifier: str = Field(max_length=100)
    """What the challenge is the SHA-256 of, with which the command line has begun."""


class Login(Documented):
    """What a command line comes in with from now on."""

    token: str
    """Shown this once; for `Authorization: Bearer`."""
    id: str
    """By which `millrace token` lists and revokes it."""
    user: str
    role: Role
    expires: float | None
    """When it ends by itself, in seconds since 1970."""


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

    @routes.post("/login", status_code=201, responses=answers(404, 422))
    async def login(request: Request, brought: Code) -> Login:
        """Let in a command line that somebody signs in: `millrace login` sends what their browser has brought it."""
        if access.sign_in is None:
            raise ProblemError(404, "this service has no sign-in provider", remedy="take a token of this service")
        try:
            made, text = await access.sign_in.redeem(brought.code, brought.verifier, _caller(request))
        except SignInRefused as error:
            raise ProblemError(422, str(error), "/code", remedy="begin anew with `millrace login`") from None
        is_recorded(request)
        logger.info("%s has signed in a command line, login %s", made.user, made.id)
        return Login(token=text, id=made.id, user=made.user, role=made.role, expires=made.expires)

    if access.sign_in is not None:
        routes.include_router(_browsers(access.sign_in, audit))
    return routes


def _browsers(sign_in: SignIn, audit: Audit) -> APIRouter:
    """Where browsers go, and come back to. What a provider adds to the address is none of ours to refuse."""
    routes, cookies = APIRouter(include_in_schema=False), Cookies(sign_in.config)

    @routes.get("/begin")
    async def begin(request: Request) -> Response:
        """Send the browser to the provider."""
        terminal = _terminal(request)
        try:
            cookie, url = await sign_in.begin(terminal)
        except ProviderUnreachable as error:
            return _failed(request, sign_in, error)
        response = RedirectResponse(url, 303, SAFE)
        cookies.give(response, cookies.begun, cookie, BEGUN_S)
        return response

    @routes.get("/callback")
    async def callback(request: Request) -> Response:
        """The browser is back from the provider, with a code or without one."""
        caller, told = _caller(request), request.query_params
        begun = cookies.value(request.headers, cookies.begun)
        try:
            if len(told) != len(told.multi_items()):
                raise SignInRefused("token", "a parameter stands twice in the address")
            arrival = await sign_in.finish(begun, told, caller)
        except (SignInRefused, ProviderUnreachable) as error:
            if isinstance(error, SignInRefused) and error.user:
                await asyncio.to_thread(audit.record, *_refusal(error, caller))
            response = _failed(request, sign_in, error, sign_in.asker(begun))
        else:
            if arrival.terminal is not None:
                url, mark = arrival.terminal.back(code=sign_in.code(arrival)), arrival.terminal.mark
                words = {"user": arrival.by.user, "role": arrival.by.role, "mark": mark, "url": url}
                page = ASKS.format(**{name: html.escape(text) for name, text in words.items()})
                response = HTMLResponse(page, headers=ALONE)
            else:
                session, text = await sign_in.admit(arrival)
                response = RedirectResponse(f"{sign_in.config.public_url}/", 303, SAFE)
                cookies.give(response, cookies.session, text, sign_in.config.session_s)
                logger.info("%s has signed in, session %s", session.user, session.id)
        cookies.take(response, cookies.begun)
        return response

    return routes


def _caller(request: Request) -> Caller:
    return Caller(address_of(request.scope), request.state.request_id)


def _terminal(request: Request) -> Terminal | None:
    """The command line that has sent a browser here, if one has. Raises ProblemError."""
    if "port" not in request.query_params:
        return None
    try:
        return Terminal.model_validate(dict(request.query_params))
    except ValidationError:
        detail = "this is no address of a command line that asks for a sign-in"
        raise ProblemError(422, detail, remedy="begin with `millrace login`") from None


def _refusal(error: SignInRefused, caller: Caller) -> tuple[Requester, Act]:
    """What the audit says of somebody whom the provider knows, and who may not come in."""
    by = Requester(user=error.user, role=Role.viewer, address=caller.address, request_id=caller.request_id)
    return by, Act(action="session.begin", status=403, details={"why": error.why})


def _failed(
    request: Request, sign_in: SignIn, error: SignInRefused | ProviderUnreachable, terminal: Terminal | None = None
) -> Response:
    """Back to the command line that has asked, or to the page, which says so; or a problem, for whoever asks for no
    page."""
    logger.warning("nobody has signed in: %s", error)
    if terminal is not None:
        return RedirectResponse(terminal.back(error=str(error)), 303, SAFE)
    if "text/html" not in request.headers.get("accept", ""):
        raise error
    why = error.why if isinstance(error, SignInRefused) else "provider"
    return RedirectResponse(f"{sign_in.config.public_url}/#/sign-in?why={why}", 303, SAFE)
