"""A small OpenID Connect provider over HTTP, with real keys. It signs in whoever it is told, at once."""

import base64
import functools
import hashlib
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.jwk import RSAKey

from service import OidcConfig, SignIn, Tokens

CLIENT, SECRET = "millrace", "s3cret/with:signs"
ROLES = {"admin": ["ml-admins"], "user": ["ml"]}


@functools.cache
def key_of(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid})


class Provider:
    """What it says may be changed from one request to the next."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        """Over the usual ones; None takes one away."""
        self.info: dict[str, Any] | None = None
        """What its user info has, if it has one."""
        self.ends_sessions = False
        """Whether it has an address for that."""
        self.ended: list[dict[str, str]] = []
        """What it was told there."""
        self.published = ["one"]
        self.signs = "one"
        self.is_down = False
        self.forged: str | None = None
        """In the place of the ID token."""
        self.asked: Counter[str] = Counter()
        self.codes: dict[str, dict[str, str]] = {}
        self.answer: dict[str, str] = {}
        """Over the parameters with which browsers are sent back."""
        self.url = ""

    def sign_in(self, url: str, tokens: Tokens, **settings: Any) -> SignIn:
        return SignIn(self.config(url, **settings), tokens)

    def config(self, url: str, **settings: Any) -> OidcConfig:
        return OidcConfig.model_validate(
            {
                "issuer": self.url,
                "client_id": CLIENT,
                "client_secret": SECRET,
                "public_url": url,
                "name": "Example",
                "roles": ROLES,
                **settings,
            }
        )

    def token(self, header: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token that is signed by the key that signs now."""
        now = int(time.time())
        usual = {"iss": self.url, "aud": CLIENT, "sub": "subject-of-ann", "iat": now, "exp": now + 300}
        usual |= {"preferred_username": "ann", "groups": ["ml"]} | self.claims | claims
        told = {name: value for name, value in usual.items() if value is not None}
        kid = self.signs
        return jwt.encode({"alg": "RS256", "kid": kid, **(header or {})}, told, key_of(kid))

    def reply(self, method: str, url: str, body: str, headers: Any) -> tuple[int, Any, dict[str, str]]:
        """Status, JSON and headers."""
        parts = urlsplit(url)
        self.asked[parts.path] += 1
        query = dict(parse_qsl(parts.query))
        if self.is_down:
            return 503, {"error": "maintenance"}, {}
        if parts.path == "/authorize":
            code = secrets.token_urlsafe(8)
            self.codes[code] = query
            back = {"code": code, "state": query["state"], "session_state": "x"} | self.answer
            return 303, None, {"Location": f"{query['redirect_uri']}?{urlencode(back)}"}
        if parts.path == "/end":
            self.ended.append(query)
            return 303, None, {"Location": query["post_logout_redirect_uri"]}
        if parts.path == "/token" and method == "POST":
            return self.exchange(dict(parse_qsl(body)), headers.get("Authorization", ""))
        found: dict[str, Any] = {
            "/.well-known/openid-configuration": self.described(),
            "/jwks": {"keys": [key_of(kid).as_dict(private=False, use="sig") for kid in self.published]},
            "/userinfo": self.info if headers.get("Authorization") == "Bearer access" else None,
        }
        return 200 if found.get(parts.path) else 404, found.get(parts.path), {}

    def described(self) -> dict[str, Any]:
        """Its metadata."""
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "jwks"}
        names |= {} if self.info is None else {"userinfo_endpoint": "userinfo"}
        names |= {"end_session_endpoint": "end"} if self.ends_sessions else {}
        return {"issuer": self.url, **{name: f"{self.url}/{path}" for name, path in names.items()}}

    def exchange(self, form: dict[str, str], shown: str) -> tuple[int, Any, dict[str, str]]:
        begun = self.codes.pop(form.get("code", ""), None)
        client, _, secret = base64.b64decode(shown.removeprefix("Basic ")).decode().partition(":")
        if (unquote(client), unquote(secret)) != (CLIENT, SECRET):
            return 401, {"error": "invalid_client"}, {}
        proof = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(proof).rstrip(b"=").decode()
        if begun is None or begun["code_challenge"] != challenge or begun["redirect_uri"] != form["redirect_uri"]:
            return 400, {"error": "invalid_grant"}, {}
        token = self.forged or self.token(nonce=self.claims.get("nonce", begun["nonce"]))
        return 200, {"id_token": token, "access_token": "access", "token_type": "Bearer"}, {}


@contextmanager
def providing() -> Iterator[Provider]:
    """One for as long as the body lasts."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            status, answer, headers = provider.reply(self.command, self.path, body, self.headers)
            text = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        provider.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield provider
        server.shutdown()
        thread.join()


class Visitor:
    """A browser, as far as sign-in goes: it keeps cookies, and follows redirects when it is told to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx2.Client(base_url=url, trust_env=False, headers={"Origin": url}, timeout=60)

    def go(self, url: str, **options: Any) -> httpx2.Response:
        return self.http.get(url, **options)

    def at_provider(self) -> str:
        """The address that it is sent to, to sign in."""
        answer = self.go("/v1/sign-in/begin")
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def back(self) -> str:
        """The address that the provider sends it back to."""
        return str(self.go(self.at_provider()).headers["location"])

    def sign_in(self) -> httpx2.Response:
        return self.go(self.back())

    def me(self) -> Any:
        answer = self.go("/v1/me")
        return answer.json() if answer.status_code == 200 else answer.status_code
