"""Tokens that must let nobody in, by what is wrong with them. Nothing else is."""

import base64
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

from joserfc import jwt

from tests.api.sign_in.provider import Provider, key_of

Made = dict[str, Callable[[Provider], str]]


def part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def parts(provider: Provider) -> tuple[str, str, str]:
    header, payload, signature = provider.token().split(".")
    return header, payload, signature


def claims(provider: Provider) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(base64.urlsafe_b64decode(parts(provider)[1] + "=="))
    return read


def unsigned(provider: Provider, header: dict[str, Any]) -> str:
    return f"{part(header)}.{parts(provider)[1]}."


def by_public_key(provider: Provider) -> str:
    """As if it were a shared secret."""
    body = f"{part({'alg': 'HS256', 'kid': 'one'})}.{parts(provider)[1]}"
    digest = hmac.digest(key_of("one").as_pem(private=False), body.encode(), "sha256")
    return f"{body}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def other_payload(provider: Provider) -> str:
    header, _, signature = parts(provider)
    return f"{header}.{part(claims(provider) | {'groups': ['ml-admins']})}.{signature}"


def by_thief(provider: Provider, header: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", **header}, claims(provider), key_of("thief"))


def now() -> int:
    return int(time.time())


FORGED: Made = {
    "none": lambda p: unsigned(p, {"alg": "none"}),
    "None": lambda p: unsigned(p, {"alg": "None", "kid": "one"}),
    "no signature": lambda p: unsigned(p, {"alg": "RS256", "kid": "one"}),
    "signed with the public key": by_public_key,
    "another payload": other_payload,
    "unknown key": lambda p: by_thief(p, {"kid": "thief"}),
    "another key": lambda p: by_thief(p, {"kid": "one"}),
    "no key": lambda p: by_thief(p, {}),
    "a key of its own": lambda p: by_thief(p, {"kid": "one", "jwk": key_of("thief").as_dict(private=False)}),
    "not a token": lambda p: "a.b.c",
    "nothing": lambda p: "..",
    "long": lambda p: ".".join((*parts(p)[:2], "A" * 20_000)),
}
"""Of somebody who has no key of the provider's."""

FLAWED: Made = {
    "issuer": lambda p: p.token(iss="https://other.example"),
    "issuer with a slash": lambda p: p.token(iss=p.url + "/"),
    "audience": lambda p: p.token(aud="other"),
    "audiences": lambda p: p.token(aud=["other", "another"]),
    "no audience": lambda p: p.token(aud=None),
    "expired": lambda p: p.token(iat=now() - 4000, exp=now() - 120),
    "no end": lambda p: p.token(exp=None),
    "an end that is none": lambda p: p.token(exp="tomorrow"),
    "an endless end": lambda p: p.token(exp=10**400),
    "not yet": lambda p: p.token(nbf=now() + 600),
    "from the future": lambda p: p.token(iat=now() + 600),
    "no beginning": lambda p: p.token(iat=None),
    "no subject": lambda p: p.token(sub=None),
    "empty subject": lambda p: p.token(sub=""),
    "a number as subject": lambda p: p.token(sub=7),
    "a logout": lambda p: p.token({"typ": "logout+jwt"}),
    "an event": lambda p: p.token(events={"http://schemas.openid.net/event/backchannel-logout": {}}),
    "critical": lambda p: p.token({"crit": ["b64"], "b64": True}),
}
"""Signed by the provider, and for something else."""

STRAY: Made = {
    "no nonce": lambda p: p.token(nonce=None),
    "another nonce": lambda p: p.token(nonce="other"),
    "another client": lambda p: p.token(azp="other"),
    "for several, and nobody says which": lambda p: p.token(aud=["millrace", "other"]),
}
"""Good, but no answer to a sign-in of ours."""
