"""`millrace login`: a command line comes in through a browser, and each way in which another could instead."""

import asyncio
import html
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import AsyncClient, Client, Refused, build
from api.cli.actions.team.loopback import Loopback
from api.client.sign_in_calls import Ways
from service import challenge_of, new_secret
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service
from tests.api.sign_in.conftest import Enter
from tests.api.sign_in.provider import Provider, Visitor
from tests.api.sign_in.test_flow import audited
from tests.service.fakes import FakeRuns

Cli = Callable[..., Outcome]
LINK = re.compile(r'<a href="([^"]+)">')
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's settings are."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "millrace" / "logins"


@pytest.fixture
def cli(tmp_path: Path, guarded: Service) -> Cli:
    def call(*arguments: str, text: str = "", **others: Any) -> Outcome:
        app = build(cli_context(FakeRuns(), tmp_path / "runs", **{"server": guarded.url, **others}))
        return CliRunner().invoke(app, [*arguments], input=text)

    return call


def said(visitor: Visitor, address: str) -> str:
    """What the browser shows once the provider has sent it back."""
    sent = visitor.go(address).headers["location"]
    answer = visitor.go(visitor.go(sent).headers["location"])
    assert answer.status_code == 200, answer.text
    return answer.text


def leads(page: str) -> str:
    (found,) = LINK.findall(page)
    return html.unescape(found)


@pytest.fixture
def pages(guarded: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a browser has shown whose owner agrees to everything."""
    shown: list[str] = []
    acts: list[Future[None]] = []
    monkeypatch.setattr("api.cli.actions.team.sign_in.WITHIN_S", 60.0)
    with ThreadPoolExecutor(1) as owner:

        def open_browser(address: str) -> bool:
            def agree() -> None:
                visitor = Visitor(guarded.url)
                shown.append(said(visitor, address))
                assert visitor.me() == 401  # the browser itself is not in
                assert "Back to the terminal" in visitor.go(leads(shown[-1])).text
                visitor.http.close()

            acts.append(owner.submit(agree))
            return True

        monkeypatch.setattr("webbrowser.open", open_browser)
        yield shown
    for act in acts:
        act.result()


def test_one_signs_in_works_and_signs_out(
    cli: Cli, guarded: Service, pages: list[str], folder: Path, provider: Provider
) -> None:
    assert cli("list").exit_code == 2
    outcome = cli("login")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.startswith(f"Signed in at {guarded.url} as ann, user, until 2")
    (mark,) = re.findall(r"code (\S+)\.", outcome.stderr)
    assert f"<code>{mark}</code>" in pages[0]
    assert "<b>ann</b>, with the role user" in " ".join(pages[0].split())
    (file,) = folder.iterdir()
    assert (oct(file.stat().st_mode)[-3:], oct(folder.stat().st_mode)[-3:]) == ("600", "700")

    me = json.loads(cli("me", "-o", "json").stdout)
    assert (me["user"], me["role"]) == ("ann", "user")
    assert me["expires"] == pytest.approx(time.time() + 28_800, abs=600)
    assert re.fullmatch(r"ann, user, with the token \w{8}, until .+\n", cli("me").stdout)
    assert cli("list", "--server", guarded.url, server=NOWHERE).exit_code == 0  # each server has its own
    assert cli("list", server=guarded.url.replace("127.0.0.1", "localhost")).exit_code == 2
    with Client(guarded.url) as client:
        assert client.submit({"name": "mine"}).user == "ann"
    admin = guarded.bearer("admin", "root")["Authorization"].split()[1]
    assert cli("me", token=admin).stdout.startswith("root, admin")  # a token that is given comes first
    with Client(guarded.url, token="") as nobody, pytest.raises(Refused):
        nobody.who()
    (login,) = [one for one in guarded.tokens.list() if one.kind == "login"]
    assert (login.id, login.works) == (me["token"], True)

    outcome = cli("logout")
    assert outcome.stdout == f"ann is signed out at {guarded.url}.\n"
    assert not file.exists()
    assert cli("list").exit_code == 2
    assert [one.works for one in guarded.tokens.list() if one.kind == "login"] == [False]
    assert cli("logout").stdout == f"You were not signed in at {guarded.url}.\n"
    actions = [entry.action for entry in reversed(audited(guarded, user="ann"))]
    assert actions == ["account.bind", "session.begin", "job.submit", "session.end"]
    assert provider.asked["/token"] == 1


def test_a_program_with_an_event_loop_uses_it(cli: Cli, guarded: Service, pages: list[str]) -> None:
    assert json.loads(cli("login", "-o", "json").stdout)["user"] == "ann"

    async def ask() -> tuple[str, str | None]:
        async with AsyncClient(guarded.url) as client:
            return (await client.who()).user, (await client.ways()).provider

    assert asyncio.run(ask()) == ("ann", "Example")


def test_a_token_is_kept_and_not_ended(cli: Cli, guarded: Service, folder: Path) -> None:
    text = guarded.bearer("viewer", "bob")["Authorization"].split()[1]
    assert cli("login", "--token", text="mlr_wrong\n").exit_code == 2
    assert cli("login", "--token", text="").exit_code == 2
    assert not folder.exists()
    assert json.loads(cli("login", "--token", "-o", "json", text=f"{text}\n").stdout)["role"] == "viewer"
    assert cli("me").stdout.startswith("bob, viewer")
    outcome = cli("logout")
    assert (outcome.exit_code, "goes on" in outcome.stderr) == (0, True)
    assert cli("me").exit_code == 2
    assert guarded.tokens.identify(text) is not None


def test_who_cannot_sign_in_is_told_why(
    cli: Cli, provider: Provider, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.cli.actions.team.sign_in.WITHIN_S", 0.0)
    outcome = cli("login", "--no-browser")
    assert (outcome.exit_code, "ssh -L" in outcome.stderr, "ten minutes" in outcome.stderr) == (1, True, True)
    provider.claims = {"groups": []}
    monkeypatch.setattr("api.cli.actions.team.sign_in.WITHIN_S", 60.0)
    with ThreadPoolExecutor(1) as owner:

        def follow(address: str) -> None:
            with httpx2.Client(trust_env=False, follow_redirects=True, timeout=60) as browser:
                browser.get(address)

        monkeypatch.setattr("webbrowser.open", lambda address: owner.submit(follow, address))
        outcome = cli("login")
    assert (outcome.exit_code, "in no group that has a role" in outcome.stderr) == (1, True)
    monkeypatch.setattr("api.client.client.Client.ways", lambda _: Ways(None, None))
    outcome = cli("login")
    assert (outcome.exit_code, "login --token" in outcome.stderr) == (2, True)
    assert "millrace login" in cli("me").stderr
    monkeypatch.setattr("api.client.client.Client.ways", lambda _: Ways("Example", "http://192.0.2.1/begin"))
    outcome = cli("login")
    assert (outcome.exit_code, "read on the way" in outcome.stderr) == (2, True)
    assert not folder.exists()


def test_a_login_that_has_ended_is_no_hindrance(cli: Cli, guarded: Service, pages: list[str], folder: Path) -> None:
    cli("login")
    (login,) = [one for one in guarded.tokens.list() if one.kind == "login"]
    guarded.tokens.revoke(login.id)
    outcome = cli("list")
    assert (outcome.exit_code, "millrace login" in outcome.stderr) == (2, True)
    assert cli("login").exit_code == 0
    assert cli("list").exit_code == 0
    guarded.stop()
    outcome = cli("logout")
    assert (outcome.exit_code, "goes on there until" in outcome.stderr) == (0, True)
    assert [*folder.iterdir()] == []


# -- what somebody else might try ---------------------------------------------------------------------------------


def redeemed(service: Service, code: str, verifier: str) -> httpx2.Response:
    return service.http.post("/v1/sign-in/login", json={"code": code, "verifier": verifier})


def asked(**changes: Any) -> tuple[str, dict[str, Any]]:
    """A verifier, and what a browser is sent with for it."""
    verifier = new_secret()
    return verifier, {"port": 40_000, "state": new_secret(), "challenge": challenge_of(verifier)} | changes


def address(told: dict[str, Any]) -> str:
    return str(httpx2.URL("/v1/sign-in/begin", params=told))


def test_a_code_is_for_whoever_has_asked_once_and_soon(
    guarded: Service, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def code() -> tuple[str, str]:
        verifier, told = asked()
        url = leads(said(enter(), address(told)))
        assert url.startswith("http://127.0.0.1:40000/?")
        back = dict(parse_qsl(urlsplit(url).query))
        assert back["state"] == told["state"]
        return verifier, back["code"]

    verifier, one = code()
    assert redeemed(guarded, one, new_secret()).status_code == 422
    assert redeemed(guarded, one, verifier).status_code == 422  # the thief has spent it
    verifier, one = code()
    answer = redeemed(guarded, one, verifier)
    assert (answer.status_code, answer.json()["user"]) == (201, "ann")
    assert redeemed(guarded, one, verifier).status_code == 422
    verifier, one = code()
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: now + 61)
        assert redeemed(guarded, one, verifier).status_code == 422
    for brought in ("", "x", one):
        assert redeemed(guarded, brought, "").status_code == 422
    assert {entry.action for entry in audited(guarded, user="ann")} == {"account.bind", "session.begin"}


def test_a_login_is_no_session(guarded: Service, enter: Enter) -> None:
    verifier, told = asked()
    visitor = enter()
    code = dict(parse_qsl(urlsplit(leads(said(visitor, address(told)))).query))["code"]
    token = redeemed(guarded, code, verifier).json()["token"]
    assert token.startswith("mll_")
    visitor.sign_in()
    ((name, session),) = visitor.http.cookies.items()
    assert guarded.http.get("/v1/me", headers={"Cookie": f"{name}={token}"}).status_code == 401
    assert guarded.http.get("/v1/me", headers={"Authorization": f"Bearer {session}"}).status_code == 401
    shown = {"Authorization": f"Bearer {token}"}
    assert guarded.http.get("/v1/me", headers=shown).json()["session"] is False
    assert guarded.http.post("/v1/jobs", json={"name": "x"}, headers=shown).status_code == 202
    assert guarded.http.delete("/v1/me/token", headers=shown).status_code == 204


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 80},
        {"port": "9@evil.example"},
        {"port": 70_000},
        {"state": "x"},
        {"state": f"{'x' * 42}."},
        {"challenge": ""},
        {"challenge": "'" * 43},
    ],
)
def test_a_browser_is_led_to_this_machine_alone(guarded: Service, enter: Enter, changes: dict[str, Any]) -> None:
    assert enter().go(address(asked(**changes)[1])).status_code == 422


def test_nothing_goes_to_the_command_line_unless_somebody_agrees(
    guarded: Service, enter: Enter, provider: Provider
) -> None:
    """Another page may send a browser here, but cannot press the link, and no script runs beside it."""
    provider.claims = {"preferred_username": "ann@example.org"}
    visitor = enter()
    sent = visitor.go(address(asked()[1])).headers["location"]
    answer = visitor.go(visitor.go(sent).headers["location"])
    assert "location" not in answer.headers
    assert "script" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert "<b>ann@example.org</b>" in answer.text
    assert visitor.me() == 401
    provider.claims = {"groups": []}
    visitor, told = enter(), asked()[1]
    sent = visitor.go(address(told)).headers["location"]
    back = urlsplit(visitor.go(visitor.go(sent).headers["location"]).headers["location"])
    assert (back.netloc, back.path) == ("127.0.0.1:40000", "/")
    assert dict(parse_qsl(back.query)) == {"error": "ann is in no group that has a role here", "state": told["state"]}


def test_a_command_line_takes_its_own_answer_alone() -> None:
    loopback = Loopback()
    url = f"http://127.0.0.1:{loopback.terminal.port}/"
    strange = [{}, {"code": "evil"}, {"code": "evil", "state": new_secret()}]
    brought = [*strange, {"code": "own", "state": loopback.state}]
    with ThreadPoolExecutor(1) as browser:
        answers = browser.map(lambda told: httpx2.get(url, params=told, trust_env=False).status_code, brought)
        assert loopback.wait(60.0) == "own"
        assert [*answers] == [404, 404, 404, 200]
    loopback.close()


def test_without_a_provider_nobody_is_let_in(serve: Callable[..., Service]) -> None:
    assert redeemed(serve(is_required=True), "x", "y").status_code == 404
