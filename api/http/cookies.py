"""The session of a browser as a cookie, and what another page could make a browser do with it."""

import hashlib

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import Response

from api.http.problems import ProblemError
from service import OidcConfig

READING = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_PAGES = ("none", "same-origin")
"""What browsers say of requests that no page, or one of the same origin, sends."""


class Cookies:
    """The cookies of one service: a session's, and that of a sign-in under way.

    Browsers send a cookie to every port of a host, so their names differ from one service to the other. Where there is
    HTTPS, the prefix `__Host-` has browsers refuse one that a neighbouring host, or plain HTTP, would set in its place.
    """

    def __init__(self, config: OidcConfig) -> None:
        mark = hashlib.sha256(config.public_url.encode()).hexdigest()[:8]
        self.origin, self.is_https = config.origin, config.is_https
        self.session = f"{'__Host-' if self.is_https else ''}millrace-{mark}"
        self.begun = f"{self.session}-begun"

    def value(self, headers: Headers, name: str) -> str:
        """What a request brings; empty if it brings none."""
        return cookie_parser("; ".join(headers.getlist("cookie"))).get(name, "")

    def give(self, response: Response, name: str, value: str, lasts_s: float) -> None:
        """Give the browser a cookie, which no script reads, and no other site's form sends."""
        response.set_cookie(
            name, value, max_age=int(lasts_s), path="/", secure=self.is_https, httponly=True, samesite="lax"
        )

    def take(self, response: Response, name: str) -> None:
        """Have the browser forget it."""
        response.delete_cookie(name, path="/", secure=self.is_https, httponly=True, samesite="lax")

    def refuse_forged(self, method: str, headers: Headers) -> None:
        """Raise ProblemError for what another site's page, also of a neighbouring host, has a browser send.

        Whatever changes something comes with the header Origin; a browser leaves it out of no such request.
        """
        origin = headers.get("origin")
        is_ours = origin == self.origin if method not in READING else origin in (None, self.origin)
        if not is_ours or headers.get("sec-fetch-site", "same-origin") not in OWN_PAGES:
            detail = f"a page from {(origin or 'elsewhere')[:100]!r} may not use your session"
            remedy = f"use the page at {self.origin}, or send a token"
            raise ProblemError(403, detail, "/header/Origin", remedy=remedy)
