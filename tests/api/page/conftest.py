"""A real Chromium for the page's tests. Where there is none they are skipped."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from tests.api.conftest import Service

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000
"""On a machine that is busy and slow; what is there at once is waited for no longer."""


def find_chromium() -> str | None:
    """The program, if this machine has it."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium(program: str) -> Iterator[Browser]:
    """Without a window, for as long as the body lasts."""
    expect.set_options(timeout=PATIENCE_MS)
    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # its sandbox refuses root
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=options)
        yield running
        running.close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Of this folder only: while it is open, its loop holds this thread."""
    program = find_chromium()
    if program is None:
        pytest.skip("needs Chromium: the Debian package `chromium`")
    with chromium(program) as running:
        yield running


class Visit:
    """One visitor's page, and all that it asked for and complained about."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind == "error" and not text.startswith("Failed to load resource"):  # the browser's own note of a 4xx
            self.complaints.append(text)

    def go(self, path: str = "") -> Page:
        """Open a view."""
        self.page.goto(f"{self.url}/{'#/' if path else ''}{path}")
        return self.page

    def answer(self, pattern: str, body: Any, status: int = 200, kind: str = "application/json") -> None:
        """Answer in the service's place."""
        text = body if isinstance(body, str) else json.dumps(body)

        def fulfil(route: Route) -> None:
            route.fulfill(status=status, content_type=kind, body=text)

        self.page.route(pattern, fulfil)

    def module(self, path: str, code: str, *arguments: Any) -> Any:
        """What a function over one of the page's modules returns: `m` is the module, `a` the arguments."""
        return self.page.evaluate(
            f"async (a) => {{ const m = await import('/page/{path}'); return {code}; }}", arguments
        )

    def check(self) -> None:
        """Nothing went wrong, and nothing was asked of anybody else."""
        assert self.complaints == []
        others = {url for url in self.asked if urlsplit(url).netloc != urlsplit(self.url).netloc}
        assert {urlsplit(url).scheme for url in others} <= {"data", "blob"}


@contextmanager
def visitors(browser: Browser, url: str) -> Iterator[Callable[..., Visit]]:
    """Opens visitors of a service, each with a profile of its own, and checks them at the end."""
    visits = []

    def enter(**options: Any) -> Visit:
        context = browser.new_context(**options)
        visits.append(Visit(context.new_page(), url))
        return visits[-1]

    yield enter
    for one in visits:
        one.page.context.close()
        one.check()


@pytest.fixture
def visit(browser: Browser, service: Service) -> Iterator[Callable[..., Visit]]:
    with visitors(browser, service.url) as enter:
        yield enter
