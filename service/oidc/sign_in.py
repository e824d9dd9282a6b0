"""Sign-in by the authorization code flow with PKCE, state and nonce; and tokens of the provider shown to the REST API.

What is under way is kept in the browser that began it, in a cookie that only this process can have made. State, nonce
and PKCE's verifier follow from it by a key that never leaves the process: nothing grows here while people, or machines,
begin and do not come back. Source: OpenID Connect Core 1.0, section 3.1; RFC 7636; RFC 9207; RFC 9700.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from service.database.accounts import Accounts
from service.database.identity import Identity, Requester
from service.database.tokens import Token, Tokens
from service.errors import SignInRefused
from service.oidc.claims import Person, claim, person_of
from service.oidc.config import OidcConfig
from service.oidc.proof import LEEWAY_S, check_sign_in, proven
from service.oidc.provider import Provider

if TYPE_CHECKING:
    from joserfc.jwk import Key

BEGUN_S = 600.0
"""How long somebody may take to sign in at the provider."""
MOST_AT_ONCE = 8
"""Codes that are redeemed at one time."""


@dataclass(frozen=True)
class Caller:
    """Where a request comes from, for the audit."""

    address: str
    request_id: str


class SignIn:
    """One provider's people at one service."""

    def __init__(self, config: OidcConfig, tokens: Tokens) -> None:
        self.config = config
        self.tokens = tokens
        self.accounts = Accounts(tokens.engine)
        self.provider = Provider(config)
        self.key = secrets.token_bytes(32)
        self.used: dict[str, float] = {}
        """Sign-ins that have come back, and until when they could come once more."""
        self.turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def begin(self) -> tuple[str, str]:
        """A cookie for the browser, and the provider's address to send it to. Raises ProviderUnreachable."""
        url = await self.provider.endpoint("authorization_endpoint")
        seed = f"{secrets.token_urlsafe(32)}.{int(time.time())}"
        challenge = _text(hashlib.sha256(self._derived("verifier", seed).encode()).digest())
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.config.client_id,
                "redirect_uri": self.config.redirect_uri,
                "scope": " ".join(self.config.scopes),
                "state": self._derived("state", seed),
                "nonce": self._derived("nonce", seed),
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        cookie = f"{seed}.{self._derived('cookie', seed)}"
        return cookie, f"{url}{'&' if urlsplit(url).query else '?'}{query}"

    async def finish(self, cookie: str, told: Mapping[str, str], caller: Caller) -> tuple[Token, str]:
        """A session for whom the provider has sent back, and the secret that shows it.

        cookie: As `begin` gave it to this browser. told: The parameters of the address that it came back to.
        Raises SignInRefused and ProviderUnreachable.
        """
        seed = self._seed_of(cookie, told.get("state", ""))
        if told.get("iss", self.config.issuer) != self.config.issuer:
            raise SignInRefused("token", "another provider than ours has sent this browser back")
        if "error" in told or not told.get("code"):
            said = told.get("error", "no code")[:60]
            raise SignInRefused("denied", f"the sign-in provider lets nobody in: {said!r}")
        async with self.turns:
            claims = await self._claims(told["code"], seed)
        person = person_of(claims, self.config)
        return await asyncio.to_thread(self._admit, person, caller)

    def identify(self, text: str, key: "Key", caller: Caller) -> Identity:
        """Whose token of the provider it is. key: As the provider's `key_of` finds it. Raises SignInRefused.

        Blocks.
        """
        claims = proven(text, key, self.config.issuer, self.config.taken_audiences)
        if time.time() - claims["iat"] > self.config.session_s + LEEWAY_S:
            raise SignInRefused("token", "the token of the sign-in provider is older than a sign-in may be here")
        person = person_of(claims, self.config)
        self.accounts.bind(self._requester(person, caller), self.config.issuer, person.subject)
        return Identity(user=person.user, role=person.role, projects=person.projects, expires=claims["exp"])

    async def _claims(self, code: str, seed: str) -> dict[str, Any]:
        """What the provider says of whom the code is of: in its ID token, and what that lacks by its user info."""
        answer = await self.provider.redeem(code, self._derived("verifier", seed))
        text = answer.get("id_token")
        if not isinstance(text, str):
            raise SignInRefused("token", "the sign-in provider gives no ID token; is `openid` among the scopes?")
        key, config = await self.provider.key_of(text), self.config
        claims = proven(text, key, config.issuer, {config.client_id})
        check_sign_in(claims, config.client_id, self._derived("nonce", seed))
        is_whole = all(claim(claims, name) is not None for name in (config.user_claim, config.groups_claim))
        access = answer.get("access_token")
        if is_whole or not isinstance(access, str) or not access.isascii() or not access.isprintable():
            return claims
        more = await self.provider.user_info(access)
        # Without the same subject it is of somebody else, whose access token was put in this one's place.
        return {**more, **claims} if more.get("sub") == claims["sub"] else claims

    def _admit(self, person: Person, caller: Caller) -> tuple[Token, str]:
        by = self._requester(person, caller)
        self.accounts.bind(by, self.config.issuer, person.subject)
        return self.tokens.begin_session(by, self.config.session_s)

    def _requester(self, person: Person, caller: Caller) -> Requester:
        return Requester(
            user=person.user,
            role=person.role,
            projects=person.projects,
            address=caller.address,
            request_id=caller.request_id,
        )

    def _seed_of(self, cookie: str, state: str) -> str:
        """What a sign-in of this browser began with, this once. Raises SignInRefused."""
        seed, _, mark = cookie.rpartition(".")
        is_ours = hmac.compare_digest(mark.encode(), self._derived("cookie", seed).encode())
        same = hmac.compare_digest(state.encode(), self._derived("state", seed).encode())
        now = time.time()
        if not is_ours or not same or not 0 <= now - float(seed.rpartition(".")[2]) < BEGUN_S or seed in self.used:
            raise SignInRefused(
                "expired", "this browser has not begun this sign-in, has done so too long ago, or ended it"
            )
        self.used = {one: until for one, until in self.used.items() if until > now}
        self.used[seed] = now + BEGUN_S
        return seed

    def _derived(self, purpose: str, seed: str) -> str:
        """43 characters that only this process can make."""
        return _text(hmac.digest(self.key, f"{purpose}\0{seed}".encode(), "sha256"))


def _text(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
