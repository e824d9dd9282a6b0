"""Whom the provider's people are here: names, roles, projects; and their tokens at the REST API."""

import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from service import Accounts, Role, TokenRefused, Tokens
from tests.api.conftest import Service
from tests.api.sign_in.conftest import Enter
from tests.api.sign_in.forgeries import FLAWED, FORGED
from tests.api.sign_in.provider import Provider, key_of
from tests.api.sign_in.test_flow import audited

Serve = Callable[..., Service]


def show(service: Service, token: str, path: str = "/v1/me") -> httpx2.Response:
    return service.http.get(path, headers={"Authorization": f"Bearer {token}"})


def test_a_token_of_the_provider_is_taken(guarded: Service, provider: Provider) -> None:
    me = show(guarded, provider.token()).json()
    assert (me["user"], me["role"], me["token"], me["session"]) == ("ann", "user", None, False)
    assert show(guarded, provider.token({"typ": "at+jwt"}, groups=["ml", "ml-admins"])).json()["role"] == "admin"
    own = {"Authorization": f"Bearer {provider.token()}"}
    assert guarded.http.post("/v1/jobs", json={"name": "first"}, headers=own).json()["user"] == "ann"
    assert guarded.http.delete("/v1/me/token", headers=own).status_code == 409  # it is the provider's to end
    assert [(entry.action, entry.user) for entry in audited(guarded, action="job.submit")] == [("job.submit", "ann")]


def test_a_token_that_is_not_for_us_is_refused(guarded: Service, provider: Provider) -> None:
    taken = [why for why, made in (FORGED | FLAWED).items() if show(guarded, made(provider)).status_code != 401]
    assert taken == []
    old = int(time.time()) - 29_000  # older than a sign-in may be, though the provider would still take it
    assert "older" in show(guarded, provider.token(iat=old)).json()["detail"]
    assert show(guarded, provider.token()).status_code == 200


def test_keys_change(guarded: Service, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.oidc.provider.AGAIN_S", 0.0)
    first = provider.token()
    assert show(guarded, first).status_code == 200
    provider.published, provider.signs = ["one", "two"], "two"
    assert show(guarded, provider.token()).status_code == 200
    assert show(guarded, first).status_code == 200
    provider.published = ["two"]
    monkeypatch.setattr("service.oidc.provider.FRESH_S", 0.0)  # an hour later
    assert show(guarded, first).status_code == 401
    assert show(guarded, provider.token()).status_code == 200
    provider.is_down = True
    assert show(guarded, provider.token()).status_code == 200  # by the key that is known
    monkeypatch.setattr("service.oidc.provider.STALE_S", 0.0)  # a day later
    assert show(guarded, provider.token()).status_code == 503


def test_unknown_keys_do_not_have_us_ask_and_ask(guarded: Service, provider: Provider) -> None:
    assert show(guarded, provider.token()).status_code == 200
    provider.signs = "thief"
    assert {show(guarded, provider.token()).status_code for _ in range(20)} == {401}
    assert provider.asked["/jwks"] <= 2


def test_weak_and_private_keys_are_left_out(guarded: Service, provider: Provider) -> None:
    from service.oidc.proof import KeySet

    rsa = key_of("one").as_dict(private=False)
    keys = KeySet({"keys": [rsa | {"n": rsa["n"][:170], "kid": "weak"}, rsa | {"use": "enc", "kid": "enc"}, 7, rsa]})
    assert [told["kid"] for told, _ in keys.keys] == ["one"]
    assert keys.find({"alg": "ES256", "kid": "one"}) is None


def test_who_has_no_name_or_no_role_stays_out(guarded: Service, provider: Provider, enter: Enter) -> None:
    names = (None, "local", "ann\n", "../ann", ["ann"], "a" * 64)
    tried: list[tuple[dict[str, Any], str]] = [({"preferred_username": name}, "name") for name in names]
    tried += [({"groups": groups}, "role") for groups in (["others"], None, {"ml": True}, "ml-admins,ml")]
    for claims, why in tried:
        provider.claims = claims
        visitor = enter()
        answer = visitor.go(visitor.back(), headers={"Accept": "text/html"})
        assert answer.headers["location"].endswith(f"/#/sign-in?why={why}")
        assert visitor.me() == 401
        assert show(guarded, provider.token()).status_code == 403
    refused = [(entry.user, entry.status) for entry in audited(guarded, action="session.begin")]
    assert refused == [("ann", 403)] * 4


def test_a_name_stays_with_the_account_that_had_it_first(guarded: Service, provider: Provider, enter: Enter) -> None:
    assert enter().sign_in().status_code == 303
    provider.claims = {"sub": "somebody-else"}
    assert enter().sign_in().status_code == 403
    assert show(guarded, provider.token()).status_code == 403
    assert next(entry.details for entry in audited(guarded, action="session.begin")) == {"why": "taken"}
    accounts = Accounts(guarded.tokens.engine)
    accounts.release("ann")
    with pytest.raises(TokenRefused):
        accounts.release("ann")
    assert show(guarded, provider.token()).json()["user"] == "ann"
    provider.claims = {}
    assert enter().sign_in().status_code == 403
    provider.claims = {"preferred_username": "anna"}  # a name of its own is another one's again
    assert enter().sign_in().status_code == 303


def test_what_the_id_token_lacks_the_user_info_has(guarded: Service, provider: Provider, enter: Enter) -> None:
    provider.claims = {"groups": None, "preferred_username": None}
    provider.info = {"sub": "subject-of-ann", "preferred_username": "ann", "groups": "ml-admins"}
    visitor = enter()
    visitor.sign_in()
    assert visitor.me()["role"] == "admin"
    provider.info |= {"sub": "somebody-else"}  # an access token of somebody else, in the place of this one's
    assert enter().sign_in().status_code == 403


def test_groups_lead_into_projects(serve: Serve, provider: Provider, enter: Enter) -> None:
    def with_projects(url: str, tokens: Tokens) -> Any:
        return provider.sign_in(url, tokens, projects={"vision": ["eyes"]}, groups_claim="realm.groups")

    service = serve(sign_in=with_projects)
    project = {"name": "vision", "members": ["bob"]}
    made = service.http.post("/v1/projects", json=project, headers=service.bearer("admin"))
    assert made.status_code == 201, made.text
    for groups, status in ((["ml"], 403), (["ml", "eyes"], 202)):
        shown = {"Authorization": f"Bearer {provider.token(realm={'groups': groups})}"}
        posted = service.http.post("/v1/jobs", json={"name": "x", "project": "vision"}, headers=shown)
        assert posted.status_code == status


def test_an_address_counts_once_it_is_verified(serve: Serve, provider: Provider) -> None:
    def by_address(url: str, tokens: Tokens) -> Any:
        return provider.sign_in(url, tokens, user_claim="email", roles={"viewer": ["*"]}, audiences=["api"])

    service = serve(sign_in=by_address)
    provider.claims = {"email": "ann@example.org", "aud": "api", "groups": None}
    for verified, status in ((None, 403), (False, 403), ("true", 403), (True, 200)):
        assert show(service, provider.token(email_verified=verified)).status_code == status
    assert show(service, provider.token(email_verified=True)).json()["role"] == Role.viewer
    assert show(service, provider.token(email_verified=True, aud="millrace")).status_code == 401


def test_a_stream_ends_with_the_token(guarded: Service, provider: Provider) -> None:
    job = guarded.http.post("/v1/jobs", json={"name": "x"}, headers=guarded.bearer("user")).json()["id"]
    guarded.started(job)
    now = int(time.time())
    shown = {"Authorization": f"Bearer {provider.token(exp=now - 30)}", "Accept": "text/event-stream"}
    with guarded.http.stream("GET", f"/v1/jobs/{job}/events", headers=shown) as stream:
        assert stream.status_code == 200  # by the leeway for clocks
        assert [line for line in stream.iter_lines() if line.startswith("data: ")] == []
