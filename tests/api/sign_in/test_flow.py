"""Sign-in as a browser goes it, and each way to cheat at it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest
from joserfc import jwt
from starlette.responses import Response

from api.http.cookies import Cookies
from service import AuditEntry, Requester, Role
from tests.api.conftest import Service
from tests.api.sign_in.conftest import Enter
from tests.api.sign_in.forgeries import FLAWED, FORGED, STRAY
from tests.api.sign_in.provider import CLIENT, Provider, Visitor, key_of

JOB = {"name": "first"}


def audited(service: Service, **query: Any) -> list[AuditEntry]:
    answer = service.http.get("/v1/audit", params=query, headers=service.bearer("admin", "root"))
    return [AuditEntry.model_validate(entry) for entry in answer.json()["entries"]]


def test_one_signs_in_works_and_signs_out(guarded: Service, provider: Provider, enter: Enter) -> None:
    visitor = enter()
    assert visitor.go("/v1/sign-in").json() == {"provider": "Example", "url": f"{guarded.url}/v1/sign-in/begin"}
    assert visitor.me() == 401
    asked = parse_qs(urlsplit(where := visitor.at_provider()).query)
    assert asked["redirect_uri"] == [f"{guarded.url}/v1/sign-in/callback"]
    assert (asked["code_challenge_method"], asked["scope"]) == (["S256"], ["openid profile email"])
    back = visitor.go(where).headers["location"]
    answer = visitor.go(back)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{guarded.url}/")
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
    (session,) = [text for text in answer.headers.get_list("set-cookie") if "mls_" in text]
    assert {"HttpOnly", "Path=/", "SameSite=lax", "Max-Age=28800"} <= set(session.split("; "))
    assert len(visitor.http.cookies) == 1  # the one with which it began is gone
    me = visitor.me()
    assert (me["user"], me["role"], me["session"]) == ("ann", "user", True)
    assert me["expires"] == pytest.approx(time.time() + 28_800, abs=600)

    job = visitor.http.post("/v1/jobs", json=JOB).json()
    assert job["user"] == "ann"
    assert visitor.http.post("/v1/webhooks", json={"url": "https://example.org"}).status_code == 403
    assert visitor.http.delete("/v1/me/token").status_code == 204
    assert visitor.me() == 401
    entries = audited(guarded, user="ann")
    assert [entry.action for entry in reversed(entries)] == [
        "account.bind", "session.begin", "job.submit", "webhook.create", "session.end"
    ]  # fmt: skip
    assert {entry.token for entry in entries[:-1]} == {me["token"]}
    assert all(entry.address == "127.0.0.1" for entry in entries)


def test_a_session_that_is_revoked_ends_its_streams(guarded: Service, enter: Enter) -> None:
    visitor = enter()
    visitor.sign_in()
    job = visitor.http.post("/v1/jobs", json=JOB).json()["id"]
    guarded.started(job)
    with visitor.http.stream("GET", f"/v1/jobs/{job}/events", headers={"Accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        next(lines)
        guarded.tokens.revoke(visitor.me()["token"])
        for _ in lines:  # it ends, though the job does not
            pass
    assert visitor.me() == 401


def test_a_cookie_is_for_our_page_alone(guarded: Service, enter: Enter) -> None:
    visitor = enter()
    visitor.sign_in()
    post, get = visitor.http.post, visitor.http.get
    neighbour = guarded.url.replace("127.0.0.1", "localhost")
    for origin in ("https://evil.example", neighbour, guarded.url + "0", "null", ""):
        assert post("/v1/jobs", json=JOB, headers={"Origin": origin}).status_code == 403
    del visitor.http.headers["Origin"]
    assert post("/v1/jobs", json=JOB).status_code == 403
    own = {"Origin": guarded.url}
    for site in ("cross-site", "same-site"):
        assert post("/v1/jobs", json=JOB, headers={**own, "Sec-Fetch-Site": site}).status_code == 403
        assert get("/v1/jobs", headers={"Sec-Fetch-Site": site}).status_code == 403
    assert get("/v1/jobs", headers={"Origin": "https://evil.example"}).status_code == 403
    assert get("/v1/jobs", headers={"Sec-Fetch-Site": "same-origin"}).json()["jobs"] == []
    refused = audited(guarded, action="job.submit")
    assert {(entry.user, entry.status) for entry in refused} == {("ann", 403)}
    assert post("/v1/jobs", json=JOB, headers={**own, "Sec-Fetch-Site": "same-origin"}).status_code == 202


def test_a_session_is_no_token_and_a_token_no_session(guarded: Service, enter: Enter) -> None:
    visitor = enter()
    visitor.sign_in()
    ((name, session),) = visitor.http.cookies.items()
    for text in (session, session.replace("mls_", "mlr_")):
        assert guarded.http.get("/v1/me", headers={"Authorization": f"Bearer {text}"}).status_code == 401
    token = guarded.bearer("admin")["Authorization"].split()[1]
    for text in (token, token.replace("mlr_", "mls_"), "x", "mls__", session[:-1]):
        assert guarded.http.get("/v1/me", headers={"Cookie": f"{name}={text}"}).status_code == 401
    assert guarded.http.get("/v1/me", headers={"Cookie": f"{name}={session}"}).status_code == 200


def test_a_sign_in_is_of_one_browser_and_comes_back_once(guarded: Service, provider: Provider, enter: Enter) -> None:
    def is_refused(visitor: Visitor, url: str) -> bool:
        """Before the provider hears of it: that it refuses the code, too, is not what is shown here."""
        before, answer = provider.asked["/token"], visitor.go(url)
        assert provider.asked["/token"] == before
        return answer.status_code == 403 and "has not begun this sign-in" in answer.json()["detail"]

    ann, thief = enter(), enter()
    back = ann.back()
    assert is_refused(thief, back)  # has begun nothing
    thief.at_provider()
    assert is_refused(thief, back)  # has begun another one
    ann.at_provider()
    assert is_refused(ann, thief.back())  # or ann would work under the thief's name
    ann.at_provider()
    code = dict(parse_qsl(urlsplit(back).query))["code"]
    assert is_refused(ann, f"{back.split('?')[0]}?{urlencode({'code': code, 'state': 'x' * 43})}")
    back = ann.back()
    begun = next(iter(ann.http.cookies.items()))
    assert ann.go(back).status_code == 303
    replay = enter()
    replay.http.cookies.set(*begun)
    assert is_refused(replay, back)
    assert replay.me() == 401
    twice = enter()
    assert twice.go(twice.back() + "&state=x").status_code == 403


@pytest.mark.parametrize("late_s", [-5, 590, 601])
def test_a_sign_in_has_its_time(guarded: Service, enter: Enter, late_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = enter()
    back, now = visitor.back(), time.time()
    begun = "; ".join(f"{name}={value}" for name, value in visitor.http.cookies.items())  # a browser would forget it
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: now + late_s)
        assert enter().go(back, headers={"Cookie": begun}).status_code == (303 if late_s == 590 else 403)


def test_where_a_browser_is_sent_nobody_else_says(guarded: Service, enter: Enter) -> None:
    visitor = enter()
    answer = visitor.go("/v1/sign-in/begin?redirect_uri=https://evil.example", headers={"Host": "evil.example"})
    assert parse_qs(urlsplit(answer.headers["location"]).query)["redirect_uri"] == [
        f"{guarded.url}/v1/sign-in/callback"
    ]


def test_an_id_token_that_is_not_ours_lets_nobody_in(guarded: Service, provider: Provider, enter: Enter) -> None:
    """Each has the nonce of the sign-in that it answers, so that nothing else is wrong with it."""
    came_in = []
    for why, made in (FORGED | FLAWED | STRAY).items():
        visitor = enter()
        back = visitor.back()
        provider.claims = {"nonce": list(provider.codes.values())[-1]["nonce"]}
        provider.forged = made(provider)
        if visitor.go(back).status_code != 403 or visitor.me() != 401:
            came_in.append(why)
    assert came_in == []
    provider.forged, provider.claims = None, {"aud": [CLIENT, "other"], "azp": CLIENT}
    assert enter().sign_in().status_code == 303


def test_what_the_provider_refuses_is_told(guarded: Service, provider: Provider, enter: Enter) -> None:
    html = {"Accept": "text/html"}
    for answer, why in (({"error": "access_denied"}, "denied"), ({"iss": "https://other.example"}, "token")):
        provider.answer = answer
        visitor = enter()
        found = visitor.go(visitor.back(), headers=html)
        assert found.headers["location"] == f"{guarded.url}/#/sign-in?why={why}"
        assert visitor.me() == 401
    provider.answer = {"code": "stolen"}
    visitor = enter()
    assert visitor.go(visitor.back(), headers=html).headers["location"].endswith("why=expired")


def test_without_the_provider_tokens_still_work(
    guarded: Service, provider: Provider, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.oidc.provider.AGAIN_S", 0.0)
    provider.is_down = True
    answer = enter().go("/v1/sign-in/begin")
    assert answer.status_code == 503
    assert "does not describe itself" in answer.json()["detail"]
    shown = guarded.http.get("/v1/me", headers={"Authorization": f"Bearer {provider.token()}"})
    assert (shown.status_code, shown.headers["retry-after"]) == (503, "10")
    assert guarded.http.get("/v1/jobs", headers=guarded.bearer("user")).status_code == 200
    assert guarded.http.get("/v1/sign-in").json()["provider"] == "Example"
    provider.is_down = False
    visitor = enter()
    back = visitor.back()
    provider.is_down = True
    assert visitor.go(back).status_code == 503
    provider.is_down = False
    assert visitor.sign_in().status_code == 303
    assert visitor.me()["user"] == "ann"


def test_a_provider_that_is_another_is_not_believed(serve: Callable[..., Service], provider: Provider) -> None:
    def elsewhere(url: str, tokens: Any) -> Any:
        return provider.sign_in(url, tokens, issuer=provider.url + "/")

    answer = serve(sign_in=elsewhere).http.get("/v1/sign-in/begin")
    assert (answer.status_code, "calls itself" in answer.json()["detail"]) == (503, True)


def test_a_service_without_a_provider_has_no_sign_in(serve: Callable[..., Service], provider: Provider) -> None:
    service = serve(is_required=True)
    assert service.http.get("/v1/sign-in").json() == {"provider": None, "url": None}
    assert service.http.get("/v1/sign-in/begin").status_code == 404
    name = Cookies(provider.config(service.url)).session
    _, text = service.tokens.begin_session(Requester(user="ann", role=Role.user), 60.0)
    assert service.http.get("/v1/me", headers={"Cookie": f"{name}={text}"}).status_code == 401


def test_behind_https_the_cookie_goes_no_other_way(provider: Provider) -> None:
    cookies, response = Cookies(provider.config("https://Millrace.example.org:443/here/")), Response()
    cookies.give(response, cookies.session, "x", 60)
    text = response.headers["set-cookie"]
    assert text.startswith("__Host-millrace-")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=lax"} <= set(text.split("; "))
    assert "Domain" not in text
    assert cookies.origin == "https://millrace.example.org"


def test_a_session_ends_by_itself(guarded: Service, enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    visitor = enter()
    visitor.sign_in()
    ((name, session),) = visitor.http.cookies.items()
    shown, now = {"Cookie": f"{name}={session}"}, time.time()  # a browser would forget it
    for late_s, status in ((28_790, 200), (28_801, 401)):
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda late_s=late_s: now + late_s)
            assert guarded.http.get("/v1/me", headers=shown).status_code == status


def test_signing_out_ends_the_session_of_the_provider_too(
    guarded: Service, provider: Provider, enter: Enter, tmp_path: Path
) -> None:
    provider.ends_sessions = True
    visitor = enter()
    visitor.sign_in()
    ((_, session),) = visitor.http.cookies.items()
    answer = visitor.http.delete("/v1/me/token")
    assert (answer.status_code, "Max-Age=0" in answer.headers["set-cookie"]) == (200, True)
    assert guarded.tokens.identify(session, is_cookie=True) is None
    back = visitor.go(answer.json()["url"]).headers["location"]
    assert back == f"{guarded.url}/"
    (told,) = provider.ended
    hint = told.pop("id_token_hint")
    assert told == {"client_id": CLIENT, "post_logout_redirect_uri": f"{guarded.url}/"}
    assert jwt.decode(hint, key_of("one")).claims["sub"] == "subject-of-ann"
    assert not [path for path in tmp_path.rglob("*.db*") if hint.encode() in path.read_bytes()]

    token = guarded.bearer("user")
    assert guarded.http.delete("/v1/me/token", headers=token).status_code == 204  # it has no session there


@pytest.mark.parametrize("how", ["it has none", "it is not wanted", "it is down", "the service was restarted"])
def test_where_the_session_of_the_provider_goes_on(serve: Callable[..., Service], provider: Provider, how: str) -> None:
    provider.ends_sessions = how != "it has none"

    def sign_in(url: str, tokens: Any) -> Any:
        return provider.sign_in(url, tokens, ends_session=how != "it is not wanted")

    service = serve(sign_in=sign_in)
    visitor = Visitor(service.url)
    visitor.sign_in()
    port = urlsplit(service.url).port
    if how == "it is down":
        provider.is_down = True
    if how == "the service was restarted":
        service.stop()
        serve(port=port, sign_in=sign_in)
    answer = visitor.http.delete("/v1/me/token")
    if how in ("it has none", "it is not wanted"):
        assert answer.status_code == 204
    else:  # its address is known; without a hint it asks whom to sign out
        assert ("id_token_hint" in answer.json()["url"]) is (how == "it is down")
    assert visitor.me() == 401
    visitor.http.close()
