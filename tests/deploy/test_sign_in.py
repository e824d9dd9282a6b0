"""The settings of a sign-in provider: what would be unsafe, or let nobody in, is refused with its name."""

from pathlib import Path
from typing import Any

import pytest

from api import CannotServe
from deploy.settings import Settings
from deploy.sign_in import oidc_config, way_in

GOOD: dict[str, Any] = {
    "oidc_issuer": "https://id.example.org/realms/lab",
    "oidc_client_id": "millrace",
    "public_url": "https://millrace.example.org/",
    "oidc_roles": {"user": ["*"]},
}


def test_a_provider_is_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hidden\n")
    config = oidc_config(Settings(**GOOD, oidc_client_secret_file=file))
    assert config is not None
    assert config.client_secret.get_secret_value() == "hidden"
    assert "hidden" not in repr(config)
    assert config.redirect_uri == "https://millrace.example.org/v1/sign-in/callback"
    assert way_in(config).endswith("id.example.org at https://millrace.example.org")
    assert oidc_config(Settings()) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"oidc_issuer": "http://id.example.org"}, "OIDC_ISSUER"),
        ({"oidc_issuer": "https://user:secret@id.example.org"}, "OIDC_ISSUER"),
        ({"oidc_issuer": "https://id.example.org/?x=1"}, "OIDC_ISSUER"),
        ({"oidc_client_id": ""}, "OIDC_CLIENT_ID"),
        ({"public_url": ""}, "PUBLIC_URL"),
        ({"public_url": "http://millrace.example.org"}, "PUBLIC_URL"),
        ({"oidc_roles": {}}, "OIDC_ROLES"),
        ({"oidc_roles": {"admin": []}}, "OIDC_ROLES"),
        ({"oidc_scopes": ["profile"]}, "OIDC_SCOPES"),
        ({"oidc_client_secret_file": "/nowhere/at/all"}, "OIDC_CLIENT_SECRET_FILE"),
        ({"oidc_client_secret_file": "/dev/null"}, "OIDC_CLIENT_SECRET_FILE"),
        ({"oidc_client_secret": "x", "oidc_client_secret_file": "/dev/null"}, "OIDC_CLIENT_SECRET"),
    ],
)
def test_what_cannot_be_used_is_refused(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(CannotServe, match=f"^MILLRACE_{named}\\b"):
        oidc_config(Settings(**GOOD | changed))
