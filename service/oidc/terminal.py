"""A command line that signs in through a browser on the same machine. Source: RFC 8252, section 7.3; RFC 7636."""

import base64
import hashlib
import hmac
import secrets
from typing import Annotated
from urllib.parse import urlencode

from pydantic import ConfigDict, Field

from trainers import Documented

Digest = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43}$")]
"""256 bits."""
SHOWN = 6


class Terminal(Documented):
    """Where a command line listens, and how it knows its answer, and shows that it is the one that has asked."""

    model_config = ConfigDict(frozen=True)

    port: int = Field(ge=1024, le=65535)
    """On the loopback address of the machine that has the browser. No other address is ever led to."""
    state: Digest
    """Comes back with the code."""
    challenge: Digest
    """The SHA-256 of a verifier, without which the code is worth nothing."""

    @property
    def mark(self) -> str:
        """What people compare: it stands in the terminal, and in the browser."""
        return self.challenge[:SHOWN]

    def proves(self, verifier: str) -> bool:
        """Whether whoever shows the verifier is the one that has asked."""
        return hmac.compare_digest(challenge_of(verifier).encode(), self.challenge.encode())

    def back(self, **told: str) -> str:
        """Where the browser brings what a sign-in has ended with: a `code`, or an `error` in words."""
        return f"http://127.0.0.1:{self.port}/?{urlencode({**told, 'state': self.state})}"


def new_secret() -> str:
    """256 random bits: a verifier, or a state."""
    return secrets.token_urlsafe(32)


def challenge_of(verifier: str) -> str:
    """What may be known of a verifier by those who must not know it (PKCE, S256)."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
