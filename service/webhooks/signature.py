"""How a webhook proves where it comes from: HMAC-SHA256 over its id, its time and its body.

The scheme is that of "Standard Webhooks" (standardwebhooks.com), so that its libraries can check it as well.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping

PREFIX = "whsec_"
SECRET_BYTES = 32
TOLERANCE_S = 300.0


def new_secret() -> str:
    """A secret that sender and receiver share."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def sign(secret: str, message_id: str, when: int, body: bytes) -> dict[str, str]:
    """The headers that go with a body. when: seconds since 1970."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    digest = hmac.new(key, f"{message_id}.{when}.".encode() + body, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(digest).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(when), "webhook-signature": signature}


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float | None = None) -> bool:
    """Whether a body is the sender's own and was signed within the last five minutes.

    headers: by names in small letters, or a mapping that does not tell letters apart.
    """
    timestamp = headers.get("webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 12):
        return False
    if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE_S:
        return False
    try:
        wanted = sign(secret, headers.get("webhook-id", ""), int(timestamp), body)["webhook-signature"]
    except binascii.Error:
        return False
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(wanted.encode(), one.encode()) for one in given)
