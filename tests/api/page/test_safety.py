"""What users write is shown as they wrote it, and nothing runs that is not ours."""

import re
from collections.abc import Callable

from playwright.sync_api import Browser, Route, expect

from api.http.routes.page import FOLDER
from service import Role
from tests.api.conftest import Service
from tests.api.page.conftest import Visit, visitors
from tests.api.page.runs import HOSTILE, as_stream, train
from trainers.events import State

Enter = Callable[..., Visit]


def test_markup_in_labels_messages_and_logs_stays_text(service: Service, visit: Enter) -> None:
    job = service.client.submit({"name": "first", "labels": {"note": HOSTILE}})
    run = service.started(job.id)
    train(run, 1)
    one = visit()
    page = one.go("jobs")
    expect(page.locator(".label")).to_have_text(f"note={HOSTILE}")
    page.get_by_role("link", name="first").click()
    expect(page.get_by_role("log")).to_contain_text(HOSTILE)
    expect(page.locator(".label")).to_have_text(f"note={HOSTILE}")
    run.state(State.FAILED, "UserCodeFailed", HOSTILE)
    expect(page.locator(".why").first).to_have_text(HOSTILE)
    expect(page.locator(".facts")).to_contain_text("ReasonUserCodeFailed")
    expect(page.get_by_label("Spec", exact=True)).to_contain_text("window.broken")
    assert page.locator("main img").count() == 0
    assert page.evaluate("window.broken") is None


def test_names_from_a_service_that_checks_nothing_stay_text(service: Service, visit: Enter) -> None:
    """Whatever the service lets through: every text of a job, of a problem, of an event; and addresses that run."""
    job = service.client.submit({"name": "first"})
    service.started(job.id).state(State.RUNNING)
    listed, shown = service.http.get("/v1/jobs").json(), service.http.get(f"/v1/jobs/{job.id}").json()
    for one in (listed["jobs"][0], shown):
        one |= {"name": HOSTILE, "message": HOSTILE, "reason": HOSTILE, "labels": {HOSTILE: HOSTILE}}
    shown |= {"algorithm": HOSTILE, "run_dir": HOSTILE}
    cluster = service.http.get("/v1/cluster").json() | {"dashboard_url": "javascript:window.broken = 1"}
    actors = {"workers": [{"name": f"x/{HOSTILE}", "pid": HOSTILE, "node_ip": HOSTILE, "actor_id": HOSTILE}]}
    told = [
        ("state", {"state": "RUNNING", "message": HOSTILE}),
        ("actors", actors),
        ("fault", {"actor": HOSTILE, "why": HOSTILE}),
    ]
    told += [("resize", {"workers": HOSTILE, "joined": [HOSTILE], "left": [HOSTILE]})]
    told += [("checkpoint", {"path": HOSTILE, "epoch": 1, "examples": 5}), ("state", {"state": "FAILED"})]
    visitor = visit()
    visitor.answer("**/v1/jobs?*", listed)
    visitor.answer(f"**/v1/jobs/{job.id}", shown)
    visitor.answer("**/events", as_stream(told), kind="text/event-stream")
    visitor.answer("**/v1/cluster", cluster)
    visitor.answer("**/cancel", {"detail": HOSTILE}, status=409)
    page = visitor.go("jobs")
    expect(page.get_by_role("link", name="<img")).to_be_visible()
    page.goto(f"{service.url}/#/jobs/{job.id}")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(page.locator(".happened")).to_contain_text(HOSTILE)
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text(HOSTILE)
    page.get_by_role("button", name="Close").click()
    page.goto(f"{service.url}/#/cluster")
    expect(page.get_by_text("javascript:window.broken = 1")).to_be_visible()
    assert page.locator("a[href^='javascript']").count() == 0
    assert page.locator("main img").count() == 0
    assert page.evaluate("window.broken") is None


def test_no_script_but_ours_runs_even_if_markup_gets_in(service: Service, visit: Enter) -> None:
    one = visit()
    page = one.go()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    for code in (
        "document.body.innerHTML = '<img src=x onerror=\"window.broken = 1\">'",
        "const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s)",
        "const i = document.createElement('iframe'); i.srcdoc = '<p>'; document.body.append(i)",
        "const i = new Image(); i.setAttribute('onerror', 'window.broken = 1'); i.src = 'x'",
    ):
        assert page.evaluate(f"() => {{ try {{ {code}; return false; }} catch {{ return true; }} }}"), code
    blocked = "() => fetch('http://192.0.2.1/').then(() => false, (error) => error instanceof TypeError)"
    assert page.evaluate(blocked)
    page.wait_for_timeout(200)
    assert page.evaluate("window.broken") is None
    assert any("Content Security Policy" in text for text in one.complaints)
    one.complaints.clear()
    one.asked.clear()


def test_the_pages_headers(service: Service) -> None:
    for path in ("/", "/page/app.js", "/page/style.css", "/page/vendor/uPlot.esm.js"):
        answer = service.http.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = service.http.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/", "/page/vendor"):
        assert service.http.get(path).status_code == 404, path


def test_all_modules_are_fetched_at_once() -> None:
    """Not one after the other, as each imports the next. (`docs.js` belongs to /docs.)"""
    preloaded = set(re.findall(r'rel="modulepreload" href="page/([^"]+)"', (FOLDER / "index.html").read_text()))
    assert preloaded == {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.js")} - {"app.js", "docs.js"}


def test_a_token_is_asked_for_once_and_never_stands_in_an_address(
    serve: Callable[..., Service], service: Service, visit: Enter
) -> None:
    job = service.client.submit({"name": "first"})
    train(service.started(job.id), 1)
    service.stop()
    guarded = serve(is_required=True)
    secret = guarded.bearer("viewer")["Authorization"].partition(" ")[2]
    one = visit()
    one.url = guarded.url
    seen: set[str] = set()
    one.page.on("request", lambda request: seen.add(request.headers.get("authorization", "")))
    page = one.go(f"jobs/{job.id}")
    box = page.get_by_role("dialog", name="Sign in")
    expect(box).to_have_count(1)
    box.get_by_label("Token").fill("wrong")
    box.get_by_role("button", name="Sign in").click()
    expect(box.get_by_label("Token")).to_have_value("")
    box.get_by_label("Token").fill(secret)
    box.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("log")).to_contain_text("RUNNING")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("log")).to_contain_text("RUNNING")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#refusal")).to_contain_text("viewer")
    assert seen == {"", "Bearer wrong", f"Bearer {secret}"}
    assert not any(secret in url for url in one.asked)
    assert page.evaluate("localStorage.length") == 0


def test_an_answer_that_comes_late_asks_nobody_again_who_has_signed_in(
    browser: Browser, serve: Callable[..., Service]
) -> None:
    guarded, held = serve(is_required=True), list[Route]()
    job = guarded.http.post("/v1/jobs", json={"name": "mine"}, headers=guarded.bearer("user")).json()["id"]

    def late(route: Route) -> None:
        if "authorization" in route.request.headers:
            route.continue_()
        else:
            held.append(route)

    with visitors(browser, guarded.url) as enter:
        one = enter()
        one.page.route(f"**/v1/jobs/{job}", late)
        page = one.go(f"jobs/{job}")
        page.get_by_label("Token", exact=True).fill(guarded.tokens.create("ann", Role.viewer)[1])
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("button", name="Sign out ann")).to_be_visible()
        for route in held:
            route.continue_()
        expect(page.get_by_role("heading", level=1)).to_have_text("mine")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert held


def test_one_signs_out_and_may_end_the_token(browser: Browser, serve: Callable[..., Service]) -> None:
    guarded = serve(is_required=True)
    kept, text = guarded.tokens.create("ann", Role.viewer)
    with visitors(browser, guarded.url) as enter:
        page = enter().go("jobs")
        for ends in (False, True):
            page.get_by_label("Token", exact=True).fill(text)
            page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
            page.get_by_role("button", name="Sign out ann").click()
            box = page.get_by_role("dialog", name="Sign out?")
            box.get_by_label("End the token too").set_checked(ends)
            with page.expect_event("load"):  # before it, the page that one leaves may ask for a token, too
                box.get_by_role("button", name="Sign out").click()
            expect(page.get_by_label("Token", exact=True)).to_be_visible()
            assert (kept.id in guarded.tokens.ended([kept.id])) == ends
