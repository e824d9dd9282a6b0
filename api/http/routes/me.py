"""/v1/me: who calls, and the end of the token or the session that was shown."""

import asyncio

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict

from api.http.audit import is_recorded
from api.http.auth import Access, caller
from api.http.cookies import Cookies
from api.http.exact import Exact
from api.http.problems import ProblemError, answers
from service import Documented, Role


class SignedOut(Documented):
    """What has ended, and what goes on at the sign-in provider."""

    url: str
    """Where the browser signs out of the provider, which sends it back to the page."""


class Me(Documented):
    """Who calls, and until when."""

    model_config = ConfigDict(from_attributes=True)

    user: str
    role: Role
    token: str | None
    """The id of the token or the session that was shown; null where none was, or a token of the sign-in provider."""
    session: bool
    """Whether it is a browser's session, which began with a sign-in."""
    projects: tuple[str, ...]
    """Projects into which the groups at the sign-in provider let you submit, besides those that name you."""
    expires: float | None
    """When what was shown ends by itself, in seconds since 1970; null: not."""


def router(access: Access) -> APIRouter:
    """The routes over the tokens of one server."""
    routes = APIRouter(prefix="/me", tags=["me"], route_class=Exact)

    @routes.get("")
    async def who(request: Request) -> Me:
        """Who the server takes you for, and your role."""
        return Me.model_validate(caller(request))

    @routes.delete("/token", status_code=204, responses={200: {"model": SignedOut}, **answers(409)})
    async def sign_out(request: Request) -> Response:
        """End the token, or the session, that this request shows, for good: from now on nobody comes in with it, and
        its streams end. Where a browser's session ends and the provider has one too, 200 says where that is ended."""
        by = caller(request)
        if by.token is None or access.tokens is None:
            raise ProblemError(409, "this request shows no token, so there is none to end", remedy="send the token")
        await asyncio.to_thread(access.tokens.revoke, by.token, by)
        is_recorded(request)
        response = Response(status_code=204)
        if by.session and access.sign_in is not None:
            if url := await access.sign_in.end(by.token):
                response = JSONResponse(SignedOut(url=url).model_dump())
            cookies = Cookies(access.sign_in.config)
            cookies.take(response, cookies.session)
        return response

    return routes
