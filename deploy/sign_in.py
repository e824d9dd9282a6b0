"""The sign-in provider of the settings."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import SecretStr, ValidationError

from deploy.settings import Settings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from service import OidcConfig

SECRET_CHARACTERS = 4096


def oidc_config(settings: Settings) -> "OidcConfig | None":
    """What the settings say of the provider; none where they name none. Raises CannotServe."""
    from api import CannotServe
    from service import OidcConfig, Role

    if not settings.oidc_issuer:
        return None
    if find_spec("joserfc") is None:
        raise CannotServe("MILLRACE_OIDC_ISSUER names a sign-in provider: pip install 'millrace[oidc]'")
    try:
        return OidcConfig(
            issuer=settings.oidc_issuer,
            client_id=settings.oidc_client_id,
            client_secret=_secret(settings),
            public_url=settings.public_url,
            name=settings.oidc_name,
            scopes=tuple(settings.oidc_scopes),
            user_claim=settings.oidc_user_claim,
            groups_claim=settings.oidc_groups_claim,
            roles={Role(role): frozenset(groups) for role, groups in settings.oidc_roles.items()},
            projects={name: frozenset(groups) for name, groups in settings.oidc_projects.items()},
            audiences=frozenset(settings.oidc_audiences),
            session_s=settings.oidc_session_s,
            ends_session=settings.oidc_ends_session,
            ca_file=None if settings.oidc_ca_file is None else settings.oidc_ca_file.expanduser(),
        )
    except ValidationError as error:
        raise CannotServe("; ".join(_sentence(item) for item in error.errors())) from None


def way_in(provider: "OidcConfig | None") -> str:
    """What `serve` says of the provider when it starts."""
    return "" if provider is None else f"; or signs in with {provider.label} at {provider.public_url}"


def _sentence(item: "ErrorDetails") -> str:
    """What is wrong with one setting, by the name of its variable."""
    said = str(item["msg"]).removeprefix("Value error, ")
    name, _, rest = said.partition(": ") if not item["loc"] else (str(item["loc"][0]), "", said)
    return f"MILLRACE_{'' if name == 'public_url' else 'OIDC_'}{name.upper()}: {rest}"


def _secret(settings: Settings) -> SecretStr:
    """The client's secret: from its setting, or from its file. Raises CannotServe."""
    from api import CannotServe

    file = settings.oidc_client_secret_file
    if file is None:
        return settings.oidc_client_secret
    if settings.oidc_client_secret.get_secret_value():
        raise CannotServe("MILLRACE_OIDC_CLIENT_SECRET and MILLRACE_OIDC_CLIENT_SECRET_FILE are both given; give one")
    try:
        with file.expanduser().open() as opened:
            text = opened.read(SECRET_CHARACTERS).strip()
    except (OSError, UnicodeError) as error:
        raise CannotServe(f"MILLRACE_OIDC_CLIENT_SECRET_FILE: cannot read {file}: {error}") from None
    if not text:
        raise CannotServe(f"MILLRACE_OIDC_CLIENT_SECRET_FILE: {file} is empty")
    return SecretStr(text)
