"""Signatures of webhooks: nothing that was changed, and nothing old, passes."""

import base64
import hashlib
import hmac

import pytest

from service import verify
from service.webhooks.signature import TOLERANCE_S, new_secret, sign

BODY = b'{"type":"job.state"}'
NOW = 1_790_000_000


def test_the_published_form_of_the_scheme() -> None:
    """From the definition: HMAC-SHA256 of `id.timestamp.body` with the decoded secret, in base64."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    wanted = base64.b64encode(hmac.new(key, b"msg_1.1614265330.hello", hashlib.sha256).digest()).decode()
    assert sign(secret, "msg_1", 1614265330, b"hello") == {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1614265330",
        "webhook-signature": f"v1,{wanted}",
    }


def test_a_signed_message_passes_and_a_changed_one_does_not() -> None:
    secret = new_secret()
    headers = sign(secret, "msg_1", NOW, BODY)
    assert verify(secret, headers, BODY, NOW)
    assert verify(secret, {**headers, "webhook-signature": "v1,AAAA " + headers["webhook-signature"]}, BODY, NOW)
    assert not verify(secret, headers, BODY + b" ", NOW)
    assert not verify(new_secret(), headers, BODY, NOW)
    for name, value in (
        ("webhook-id", "msg_2"), ("webhook-timestamp", str(NOW + 1)), ("webhook-signature", ""),
        ("webhook-signature", headers["webhook-signature"].removeprefix("v1,")), ("webhook-timestamp", "now"),
        ("webhook-timestamp", ""), ("webhook-signature", "v1,\u00e4"),
    ):  # fmt: skip
        assert not verify(secret, {**headers, name: value}, BODY, NOW), name
    assert not verify(secret, {}, BODY, NOW)
    assert not verify("whsec_x", headers, BODY, NOW)


@pytest.mark.parametrize("late_s", [-TOLERANCE_S - 1, TOLERANCE_S + 1])
def test_an_old_message_is_not_taken_again(late_s: float) -> None:
    secret = new_secret()
    assert not verify(secret, sign(secret, "msg_1", NOW, BODY), BODY, NOW + late_s)
