"""Sign-in by the authorization code flow with PKCE, state and nonce; sign-out; and tokens of the provider shown to the
REST API.

What is under way is kept in the browser that began it, in a cookie that only this process can have made. State, nonce
and PKCE's verifier follow from it by a key that never leaves the process: nothing grows here while people, or machines,
begin and do not come back. Source: OpenID Connect Core 1.0, section 3.1; RFC 7636; RFC 9207; RFC 9700; OpenID Connect
RP-Initiated Logout 1.0, section 2.
"""

import asyncio
import base64
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from service.database.accounts import Accounts
from service.database.identity import Identity, Requester
from service.database.tokens import Kind, Token, Tokens
from service.errors import ProviderUnreachable, SignInRefused
from service.oidc.claims import Person, claim, person_of
from service.oidc.config import OidcConfig
from service.oidc.proof import LEEWAY_S, check_sign_in, proven
from service.oidc.provider import Provider
from service.oidc.terminal import Terminal, challenge_of, new_secret

if TYPE_CHECKING:
    from joserfc.jwk import Key

BEGUN_S = 600.0
"""How long somebody may take to sign in at the provider."""
CODE_S = 60.0
"""How long a command line may take to fetch its token, once somebody has let it in."""
MOST_AT_ONCE = 8
"""Codes that are redeemed at one time."""
MOST_CHARACTERS = 4096
"""Of an ID token in an address. Without it the provider asks whom to sign out."""
MOST_HINTS = 1000
"""Of sessions, each with an ID token by which the provider knows which of its own to end."""


@dataclass(frozen=True)
class Caller:
    """Where a request comes from, for the audit."""

    address: str
    request_id: str


@dataclass(frozen=True)
class Arrival:
    """Somebody whom the provider has sent back, and who may come in."""

    by: Requester
    id_token: str
    """By which the provider has said so."""
    terminal: Terminal | None
    """The command line that is to come in in their name; none: their browser is."""


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
        self.codes: dict[str, tuple[Arrival, float]] = {}
        """For command lines: who each lets in, and until when."""
        self.hints: dict[str, str] = {}
        """The ID tokens of sessions. They are kept in no database, where a copy of it would let somebody in."""

    async def begin(self, terminal: Terminal | None = None) -> tuple[str, str]:
        """A cookie for the browser, and the provider's address to send it to. Raises ProviderUnreachable.

        terminal: The command line that asks for it, if one does.
        """
        url = await self.provider.endpoint("authorization_endpoint")
        asks = () if terminal is None else (str(terminal.port), terminal.state, terminal.challenge)
        seed = ".".join((*asks, new_secret(), str(int(time.time()))))
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.config.client_id,
                "redirect_uri": self.config.redirect_uri,
                "scope": " ".join(self.config.scopes),
                "state": self._derived("state", seed),
                "nonce": self._derived("nonce", seed),
                "code_challenge": challenge_of(self._derived("verifier", seed)),
                "code_challenge_method": "S256",
            }
        )
        cookie = f"{seed}.{self._derived('cookie', seed)}"
        return cookie, _with(url, query)

    async def finish(self, cookie: str, told: Mapping[str, str], caller: Caller) -> Arrival:
        """Whom the provider has sent back.

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
            claims, id_token = await self._claims(told["code"], seed)
        person = person_of(claims, self.config)
        by = self._requester(person, caller)
        await asyncio.to_thread(self.accounts.bind, by, self.config.issuer, person.subject)
        return Arrival(by, id_token, _terminal(seed))

    async def admit(self, arrival: Arrival, kind: Kind = "session") -> tuple[Token, str]:
        """A session of a browser, or the login of a command line, and the secret that shows it."""
        made = await asyncio.to_thread(self.tokens.begin_session, arrival.by, self.config.session_s, kind)
        if kind == "session":
            self.hints[made[0].id] = arrival.id_token
            for oldest in list(self.hints)[:-MOST_HINTS]:
                del self.hints[oldest]
        return made

    def asker(self, cookie: str) -> Terminal | None:
        """The command line that has asked for what this browser has begun, if one has."""
        seed, _, mark = cookie.rpartition(".")
        is_ours = hmac.compare_digest(mark.encode(), self._derived("cookie", seed).encode())
        return _terminal(seed) if is_ours else None

    def code(self, arrival: Arrival) -> str:
        """What the command line that has asked gets its login for, once and soon."""
        now, code = time.time(), new_secret()
        self.codes = {one: held for one, held in self.codes.items() if held[1] > now}
        self.codes[code] = arrival, now + CODE_S
        return code

    async def redeem(self, code: str, verifier: str, caller: Caller) -> tuple[Token, str]:
        """The login that a code stands for. Raises SignInRefused; whoever has no verifier has spent the code."""
        arrival, until = self.codes.pop(code, (None, 0.0))
        if arrival is None or arrival.terminal is None or until < time.time() or not arrival.terminal.proves(verifier):
            raise SignInRefused("expired", "no sign-in has this code, or it was used, or is older than a minute")
        where = {"address": caller.address, "request_id": caller.request_id}
        return await self.admit(replace(arrival, by=arrival.by.model_copy(update=where)), "login")

    async def end(self, session_id: str) -> str | None:
        """Where a browser goes, whose session has ended, to end that of the provider as well; none: nowhere."""
        hint = self.hints.pop(session_id, None)
        if not self.config.ends_session:
            return None
        try:
            url = await self.provider.endpoint("end_session_endpoint")
        except ProviderUnreachable:
            return None
        told = {"client_id": self.config.client_id, "post_logout_redirect_uri": f"{self.config.public_url}/"}
        if hint and len(hint) <= MOST_CHARACTERS:
            told["id_token_hint"] = hint
        return _with(url, urlencode(told)) if url else None

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

    async def _claims(self, code: str, seed: str) -> tuple[dict[str, Any], str]:
        """What the provider says of whom the code is of: in its ID token, and what that lacks by its user info. Returns
        that token as well."""
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
            return claims, text
        more = await self.provider.user_info(access)
        # Without the same subject it is of somebody else, whose access token was put in this one's place.
        return ({**more, **claims} if more.get("sub") == claims["sub"] else claims), text

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


def _terminal(seed: str) -> Terminal | None:
    """The command line that has asked for a sign-in that began with the seed."""
    *asks, _, _ = seed.split(".")
    if not asks:
        return None
    port, state, challenge = asks
    return Terminal(port=int(port), state=state, challenge=challenge)


def _with(url: str, query: str) -> str:
    return f"{url}{'&' if urlsplit(url).query else '?'}{query}"


def _text(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
