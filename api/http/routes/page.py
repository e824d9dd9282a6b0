"""/ and /page/..., /docs, /guide: the web page, the API's documentation and the guide.

All of them are static files of ours. They need nothing from elsewhere.
"""

import base64
import functools
import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from api.http.problems import ProblemError

FOLDER = Path(__file__).parents[2] / "page"
SWAGGER = ("swagger-ui.css", "swagger-ui-bundle.js")
SOURCES = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script or style from elsewhere or written inline."""
POLICY = f"{SOURCES}; require-trusted-types-for 'script'; trusted-types"
"""The policy of the page. No text is turned into markup either, whoever wrote it."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # asked each time, answered by 304: a newer package is a newer page
}
INLINE = re.compile(rb"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL)


class PageFiles(StaticFiles):
    """Files under a folder, with our headers."""

    def __init__(self, folder: Path = FOLDER, policy: str = POLICY) -> None:
        super().__init__(directory=folder)
        self.headers = HEADERS | {"Content-Security-Policy": policy}

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        """With the page's headers."""
        response = super().file_response(*arguments, **named)
        response.headers.update(self.headers)
        return response


class GuideFiles(StaticFiles):
    """The guide as MkDocs builds it. It may be built, or built anew, while the server runs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, html=True, check_dir=False)
        self.folder = folder
        self.config_checked = True  # a folder that is missing is answered below

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file of the guide. Raises ProblemError while there is no guide."""
        if not self.folder.is_dir():
            raise ProblemError(404, "the guide has not been built here", remedy="build it with `make docs`")
        return await super().get_response(path, scope)

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        """With headers that allow the theme's own scripts."""
        response = super().file_response(*arguments, **named)
        path = Path(arguments[0])
        hashes = inline_hashes(path, path.stat().st_mtime_ns) if path.suffix == ".html" else ()
        response.headers.update(HEADERS | {"Content-Security-Policy": guide_policy(hashes)})
        return response


@functools.lru_cache(maxsize=256)
def inline_hashes(path: Path, changed_ns: int) -> tuple[str, ...]:
    """The hashes of the scripts that a page has inline. changed_ns: When the file was written."""
    digests = {hashlib.sha256(script).digest() for script in INLINE.findall(path.read_bytes())}
    return tuple(sorted(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests))


def guide_policy(hashes: tuple[str, ...]) -> str:
    """The policy of a page of the guide: our own files, and the inline scripts with these hashes.

    The theme writes style attributes, and searches in a worker.
    """
    scripts = " ".join(("'self'", *hashes))
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


def router() -> APIRouter:
    """The page at / and the API's documentation at /docs. The files of the page are mounted at /page."""
    routes = APIRouter(include_in_schema=False)
    page_files, docs_files = PageFiles(), PageFiles(policy=SOURCES)
    swagger_files = PageFiles(Path(str(files("fastapi_offline") / "static")))

    @routes.get("/")
    async def page(request: Request) -> Response:
        """The page."""
        return await page_files.get_response("index.html", request.scope)

    @routes.get("/docs")
    async def docs(request: Request) -> Response:
        """The API's documentation."""
        return await docs_files.get_response("docs.html", request.scope)

    @routes.get("/docs/{name}")
    async def swagger(request: Request, name: str) -> Response:
        """A file of Swagger UI."""
        if name not in SWAGGER:
            raise ProblemError(404, f"Swagger UI has no file {name[:100]!r} here", remedy="begin at /docs")
        return await swagger_files.get_response(name, request.scope)

    return routes
