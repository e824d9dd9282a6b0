"""/ and /page/...: the web page, as files of this package. It needs nothing from elsewhere and runs nothing inline."""

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.staticfiles import StaticFiles

FOLDER = Path(__file__).parents[1] / "page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types"
)
"""No script or style from elsewhere or written inline, and no text that is turned into markup, whoever wrote it."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # asked each time, answered by 304: a newer package is a newer page
}


class PageFiles(StaticFiles):
    """The page's modules and styles."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        """With the page's headers."""
        response = super().file_response(*arguments, **named)
        response.headers.update(HEADERS)
        return response


def router() -> APIRouter:
    """The page at /. Its files are mounted at /page."""
    routes = APIRouter(include_in_schema=False)

    files = PageFiles()

    @routes.get("/")
    async def page(request: Request) -> Response:
        """The page."""
        return await files.get_response("index.html", request.scope)

    return routes
