"""Sign-in through a provider in a real browser: the way there and back, and what other pages cannot do with it."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from service import challenge_of, new_secret
from tests.api.conftest import Service
from tests.api.page.conftest import Visit, visitors
from tests.api.page.test_everywhere import WCAG_AA
from tests.api.sign_in.provider import Provider

POST = """async (url) => {
    const headers = { "Content-Type": "text/plain" };
    const options = { method: "POST", credentials: "include", headers, body: '{"name": "x"}' };
    return (await fetch(url, { ...options, mode: "MODE" }).catch(() => ({ status: -1 }))).status;
}"""


@pytest.fixture
def visitor(browser: Browser, guarded: Service, provider: Provider) -> Iterator[Visit]:
    with visitors(browser, guarded.url) as enter:
        one = enter()
        yield one
        one.complaints = [text for text in one.complaints if "CORS policy" not in text]  # as it ought to be
        one.asked = [url for url in one.asked if not url.startswith(f"{provider.url}/")]


def jobs(service: Service) -> list[Any]:
    found: list[Any] = service.http.get("/v1/jobs", headers=service.bearer("viewer")).json()["jobs"]
    return found


def sign_in(page: Page) -> None:
    page.get_by_role("dialog", name="Sign in").get_by_role("link", name="Sign in with Example").click()
    expect(page.get_by_role("button", name="Sign out ann")).to_be_visible()


def test_one_signs_in_where_one_was_and_signs_out(visitor: Visit, guarded: Service, provider: Provider) -> None:
    page = visitor.go("jobs?state=RUNNING")
    expect(page.locator("#account").get_by_role("link", name="Sign in with Example")).to_be_attached()
    expect(page.get_by_role("dialog").get_by_role("link")).to_be_visible()
    assert Axe().run(page, options=WCAG_AA).response["violations"] == []
    sign_in(page)
    assert page.url == f"{guarded.url}/#/jobs?state=RUNNING"
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("[document.cookie, localStorage.length, sessionStorage.length]") == ["", 0, 0]
    page.goto(f"{guarded.url}/#/new")
    page.get_by_role("textbox", name="Spec").fill("name: mine")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("mine")
    (job,) = jobs(guarded)
    assert job["user"] == "ann"

    # A page of the same site, though of another origin: SameSite alone would let it post.
    page.goto(f"{provider.url}/jwks")
    for mode in ("no-cors", "cors"):
        assert page.evaluate(POST.replace("MODE", mode), f"{guarded.url}/v1/jobs") <= 0
    assert len(jobs(guarded)) == 1

    page.goto(f"{guarded.url}/#/jobs")
    page.get_by_role("button", name="Sign out ann").click()
    page.get_by_role("dialog", name="Sign out?").get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("dialog", name="Sign in").get_by_role("link", name="Sign in with Example")).to_be_visible()
    assert page.context.cookies() == []


def test_signing_out_leads_over_the_provider(visitor: Visit, guarded: Service, provider: Provider) -> None:
    provider.ends_sessions = True
    page = visitor.go("jobs")
    sign_in(page)
    page.get_by_role("button", name="Sign out ann").click()
    page.get_by_role("dialog", name="Sign out?").get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("dialog", name="Sign in").get_by_role("link", name="Sign in with Example")).to_be_visible()
    assert len(provider.ended) == 1
    assert page.url.startswith(f"{guarded.url}/")
    assert page.context.cookies() == []


def begin_login(page: Page, service: Service, challenge: str) -> None:
    """Sign in for a command line, up to what asks whether it may."""
    told = {"port": 40_000, "state": new_secret(), "challenge": challenge}
    page.goto(f"{service.url}/v1/sign-in/begin?{urlencode(told)}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sign in the command line?")
    expect(page.locator("code").nth(1)).to_have_text(challenge[:6])


def test_a_command_line_is_let_in_once_somebody_agrees(visitor: Visit, guarded: Service) -> None:
    verifier, brought = new_secret(), list[str]()
    page = visitor.page
    page.route("http://127.0.0.1:40000/**", lambda route: (brought.append(route.request.url), route.fulfill(body="x")))
    begin_login(page, guarded, challenge_of(verifier))
    assert brought == []
    page.get_by_role("link", name="Sign in the command line").click()
    page.wait_for_url("http://127.0.0.1:40000/**")
    (code,) = parse_qs(urlsplit(brought[0]).query)["code"]
    answer = guarded.http.post("/v1/sign-in/login", json={"code": code, "verifier": verifier})
    assert answer.json()["user"] == "ann"
    visitor.asked = [url for url in visitor.asked if ":40000/" not in url]


def test_axe_finds_nothing_in_what_asks_for_a_command_line(visitor: Visit, guarded: Service) -> None:
    begin_login(visitor.page, guarded, challenge_of(new_secret()))
    copy = visitor.page.context.new_page()  # no script runs in the page itself, not even axe
    copy.set_content(visitor.page.content())
    expect(copy).to_have_title("Sign in the command line? · Millrace")
    for scheme in ("light", "dark"):
        copy.emulate_media(color_scheme=scheme)
        assert Axe().run(copy, options=WCAG_AA).response["violations"] == [], scheme


def test_one_who_is_not_let_in_is_told_why(visitor: Visit, provider: Provider) -> None:
    provider.claims = {"groups": ["others"]}
    page = visitor.go("cluster")
    page.get_by_role("dialog").get_by_role("link", name="Sign in with Example").click()
    expect(page.get_by_role("dialog", name="Sign in")).to_contain_text("none of the groups")
    assert page.url.endswith("/#/cluster")
    provider.claims = {}
    sign_in(page)
    expect(page.locator("#refusal")).to_be_hidden()
