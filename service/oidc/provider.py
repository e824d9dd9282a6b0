"""The provider as a web server: where it says what is to be found, its keys, and the exchange of a code for tokens.

Source: OpenID Connect Discovery 1.0; RFC 6749, section 4.1.3; RFC 7636.
"""

import asyncio
import base64
import json
import logging
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx2

from service.errors import ProviderUnreachable, SignInRefused
from service.oidc.config import WELL_KNOWN, OidcConfig
from service.oidc.proof import KeySet, header_of

if TYPE_CHECKING:
    from joserfc.jwk import Key

ANSWER_WITHIN_S = 8.0
MOST_BYTES = 1_000_000
FRESH_S = 3600.0
"""After which keys and addresses are asked for again: a key that was withdrawn counts for no longer."""
STALE_S = 24 * 3600.0
"""How long they are used where the provider does not answer meanwhile."""
AGAIN_S = 10.0
"""The least time between two questions for keys. Whoever shows tokens with keys that nobody knows causes no more."""

ENDPOINTS = {
    "authorization_endpoint": True,
    "token_endpoint": True,
    "jwks_uri": True,
    "userinfo_endpoint": False,
    "end_session_endpoint": False,
}
"""The addresses of a provider that are used, and whether it has to have them."""

logger = logging.getLogger(__name__)


class Provider:
    """One provider. What it says is kept for an hour. All calls come from one event loop."""

    def __init__(self, config: OidcConfig) -> None:
        self.config = config
        self.described: dict[str, Any] = {}
        self.keys: KeySet | None = None
        self.asked_s = -1e9
        """When it was last asked for its keys, by the monotonic clock; so too the next."""
        self.answered_s = -1e9
        self.trouble = ""
        """Why it did not answer then."""
        self.lock = asyncio.Lock()
        self.certificates: ssl.SSLContext | None = None

    async def endpoint(self, name: str) -> str:
        """An address of the provider, such as `token_endpoint`; empty where it has none. Raises ProviderUnreachable."""
        await self._refresh(is_enough=lambda: bool(self.described))
        return str(self.described.get(name) or "")

    async def key_of(self, text: str) -> "Key":
        """The key that a token is signed with. Raises SignInRefused and ProviderUnreachable."""
        header = header_of(text)
        await self._refresh(is_enough=lambda: self.keys is not None and self.keys.find(header) is not None)
        found = None if self.keys is None else self.keys.find(header)
        if found is None:
            raise SignInRefused("token", "the token of the sign-in provider is not taken: nobody knows its key")
        return found

    async def redeem(self, code: str, verifier: str) -> dict[str, Any]:
        """The tokens that a code stands for. Raises SignInRefused and ProviderUnreachable."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.config.redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"Accept": "application/json"}
        url, secret = await self.endpoint("token_endpoint"), self.config.client_secret.get_secret_value()
        methods = self.described.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if secret and "client_secret_basic" in methods:
            both = f"{quote(self.config.client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(both.encode()).decode()}"
        else:
            form |= {"client_id": self.config.client_id} | ({"client_secret": secret} if secret else {})
        status, answer = await self._ask("POST", url, headers, form)
        if status != 200 or not isinstance(answer, dict):
            logger.warning("the sign-in provider took no code: %d %.200r", status, _error(answer))
            if status < 500 and _error(answer) == "invalid_grant":
                raise SignInRefused("expired", "the sign-in provider does not take the code, or not any more")
            raise ProviderUnreachable(
                "the sign-in provider answers no tokens; whoever runs the service finds why in its log"
            )
        return answer

    async def user_info(self, access_token: str) -> dict[str, Any]:
        """What the provider says of whom the access token is of; nothing where it has no such address."""
        if not (url := await self.endpoint("userinfo_endpoint")):
            return {}
        headers = {"Accept": "application/json", "Authorization": f"Bearer {access_token}"}
        status, answer = await self._ask("GET", url, headers)
        return answer if status == 200 and isinstance(answer, dict) else {}

    async def _refresh(self, is_enough: Callable[[], bool]) -> None:
        """Ask for addresses and keys, unless what is known is fresh and enough, or was asked for a moment ago.

        Nobody for whom it is enough waits while somebody else asks.
        """
        age_s = time.monotonic() - self.answered_s
        if is_enough() and age_s < (STALE_S if self.lock.locked() else FRESH_S):
            return
        async with self.lock:
            now_s = time.monotonic()
            if is_enough() and now_s - self.answered_s < FRESH_S:
                return
            if now_s - self.asked_s >= AGAIN_S:
                self.asked_s = now_s
                try:
                    await self._load()
                except ProviderUnreachable as error:
                    self.trouble = str(error)
                    logger.warning("%s", error)
                else:
                    self.trouble, self.answered_s = "", time.monotonic()
            if self.trouble and not (is_enough() and now_s - self.answered_s < STALE_S):
                raise ProviderUnreachable(self.trouble)

    async def _load(self) -> None:
        url = self.config.issuer.rstrip("/") + WELL_KNOWN
        status, described = await self._ask("GET", url)
        if status != 200 or not isinstance(described, dict):
            raise ProviderUnreachable(f"the sign-in provider does not describe itself at {url} ({status})")
        if described.get("issuer") != self.config.issuer:
            told = str(described.get("issuer"))[:200]
            raise ProviderUnreachable(
                f"the sign-in provider calls itself {told!r}, and not {self.config.issuer!r} as the settings have it"
            )
        for name, is_needed in ENDPOINTS.items():
            address = described.get(name)
            if address is None and not is_needed:
                continue
            if not isinstance(address, str) or not self.config.allows(address):
                raise ProviderUnreachable(f"the sign-in provider's {name} is no address that secrets may be sent to")
        status, keys = await self._ask("GET", described["jwks_uri"])
        if status != 200:
            raise ProviderUnreachable(f"the sign-in provider does not show its keys ({status})")
        self.keys, self.described = KeySet(keys), described

    async def _ask(
        self, method: str, url: str, headers: dict[str, str] | None = None, form: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of an answer, None where it is none; redirects are not followed."""
        if self.certificates is None:
            self.certificates = await asyncio.to_thread(self._read_certificates)
        try:
            async with (
                asyncio.timeout(ANSWER_WITHIN_S),
                httpx2.AsyncClient(verify=self.certificates, trust_env=False, timeout=ANSWER_WITHIN_S) as client,
                client.stream(method, url, headers=headers, data=form) as response,
            ):
                body = b""
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MOST_BYTES:
                        raise ProviderUnreachable("the sign-in provider answers without end")
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise ProviderUnreachable(f"the sign-in provider {self.config.label} does not answer: {reason}") from None
        try:
            return response.status_code, json.loads(body)
        except (ValueError, RecursionError):
            return response.status_code, None

    def _read_certificates(self) -> ssl.SSLContext:
        if self.config.ca_file is None:
            return httpx2.create_ssl_context(trust_env=False)
        return ssl.create_default_context(cafile=str(self.config.ca_file))


def _error(answer: Any) -> str:
    return str(answer.get("error")) if isinstance(answer, dict) else ""
