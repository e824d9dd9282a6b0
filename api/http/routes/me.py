"""/v1/me: who calls, and the end of the token or the session that was shown."""

import asyncio

from fastapi import APIRouter, Request, Response

from api.http.audit import is_recorded
from api.http.auth import Access, caller
from api.http.cookies import Cookies
from api.http.exact import Exact
from api.http.problems import ProblemError, answers
from service import Identity


def router(access: Access) -> APIRouter:
    """The routes over the tokens of one server."""
    routes = APIRouter(prefix="/me", tags=["me"], route_class=Exact)

    @routes.get("")
    async def who(request: Request) -> Identity:
        """Who the server takes you for, and your role."""
        return caller(request)

    @routes.delete("/token", status_code=204, responses=answers(409))
    async def sign_out(request: Request, response: Response) -> None:
        """End the token, or the session, that this request shows, for good: from now on nobody comes in with it, and
        its streams end."""
        by = caller(request)
        if by.token is None or access.tokens is None:
            raise ProblemError(409, "this request shows no token, so there is none to end", remedy="send the token")
        await asyncio.to_thread(access.tokens.revoke, by.token, by)
        is_recorded(request)
        if by.session and access.sign_in is not None:
            cookies = Cookies(access.sign_in.config)
            cookies.take(response, cookies.session)

    return routes
