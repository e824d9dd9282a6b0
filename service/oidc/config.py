"""What an operator says of an OpenID Connect provider, and of the rights that its groups give here."""

from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from pydantic import ConfigDict, SecretStr, field_validator, model_validator

from service.database.identity import Role
from trainers import Documented

EVERYBODY = "*"
"""In place of a group: whoever the provider knows."""
WELL_KNOWN = "/.well-known/openid-configuration"
DEFAULT_PORTS = {"http": 80, "https": 443}


class OidcConfig(Documented):
    """One provider, and this service as its client. Raises ValueError for what would be unsafe, or of no use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str
    """The provider's name for itself, a URL; below it lies `/.well-known/openid-configuration`."""
    client_id: str
    """This service's name there."""
    client_secret: SecretStr = SecretStr("")
    """Its secret; empty: it is a public client, which PKCE alone protects."""
    public_url: str
    """Where browsers find this service. The provider sends them back below it."""
    name: str = ""
    """What people call the provider; empty: the host of the issuer."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    user_claim: str = "preferred_username"
    """The claim that is the user's name here."""
    groups_claim: str = "groups"
    roles: dict[Role, frozenset[str]]
    """The groups that have a role; `*` stands for everybody. Whoever is in none is let in nowhere."""
    projects: dict[str, frozenset[str]] = {}
    """Projects, and the groups whose people may submit into them, besides their members."""
    audiences: frozenset[str] = frozenset()
    """The audiences whose tokens the REST API takes; empty: the client id."""
    session_s: float = 8 * 3600.0
    """How long a sign-in lasts, in seconds, and how old a token of the provider may be."""
    ends_session: bool = True
    """Whether signing out here signs out of the provider, too, where that has an address for it."""
    ca_file: Path | None = None
    """Certificates of authorities, PEM, by which the provider's is checked; none: those that are known to everybody."""

    @field_validator("issuer")
    @classmethod
    def _is_a_safe_issuer(cls, url: str) -> str:
        parts = _safe(url)
        if parts.query or parts.fragment:
            raise ValueError("an issuer has no query and no fragment")
        return url

    @field_validator("public_url")
    @classmethod
    def _is_a_safe_address(cls, url: str) -> str:
        parts = _safe(url)
        if parts.query or parts.fragment:
            raise ValueError("the address of the service has no query and no fragment")
        return url.rstrip("/")

    @field_validator("client_id")
    @classmethod
    def _is_there(cls, text: str) -> str:
        if not text:
            raise ValueError("say which client this service is at the provider")
        return text

    @model_validator(mode="after")
    def _lets_somebody_in(self) -> "OidcConfig":
        if not any(self.roles.values()):
            raise ValueError(
                'roles: nobody could sign in; {"user": ["*"]} lets everybody whom the provider knows submit'
            )
        if "openid" not in self.scopes:
            raise ValueError("scopes: `openid` is missing, without which the provider does not say who comes")
        return self

    @property
    def label(self) -> str:
        """The provider's name for people."""
        return self.name or str(urlsplit(self.issuer).hostname)

    @property
    def origin(self) -> str:
        """The service's origin, as browsers write it in the header Origin."""
        return origin_of(self.public_url)

    @property
    def is_https(self) -> bool:
        """Whether browsers reach the service by HTTPS, so that its cookies go no other way."""
        return self.public_url.startswith("https://")

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends browsers back to."""
        return f"{self.public_url}/v1/sign-in/callback"

    @property
    def taken_audiences(self) -> frozenset[str]:
        """Whose tokens the REST API takes."""
        return self.audiences or frozenset({self.client_id})

    def allows(self, url: str) -> bool:
        """Whether secrets may be sent to a URL: by HTTPS, or on this machine to a provider that is on it too."""
        try:
            return _safe(url).scheme == "https" or self.issuer.startswith("http://")
        except ValueError:
            return False


def origin_of(url: str) -> str:
    """Scheme, host and port, the latter only where it is not the scheme's own."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    is_usual = parts.port in (None, DEFAULT_PORTS[parts.scheme])
    return f"{parts.scheme}://{host}" if is_usual else f"{parts.scheme}://{host}:{parts.port}"


def _safe(url: str) -> SplitResult:
    """The parts of a URL that nobody on the way can read or change. Raises ValueError."""
    if not url.isprintable() or not url.isascii() or len(url) > 500 or any(char in url for char in ' \\"<>'):
        raise ValueError("this is no URL")
    parts = urlsplit(url)
    port = parts.port  # raises where it is none
    if parts.username is not None or parts.password is not None or not parts.hostname or port == 0:
        raise ValueError("a URL with a host, and without a user, is wanted")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_this_machine(parts.hostname)):
        raise ValueError("https:// is wanted; plain http:// can be read on the way, and is for this machine alone")
    return parts


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
