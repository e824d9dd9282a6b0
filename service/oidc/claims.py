"""From the claims of a provider's token to a user here: a name, a role, projects."""

from dataclasses import dataclass
from typing import Any

from service.database.identity import LOCAL, Role
from service.database.tokens import USER
from service.errors import SignInRefused
from service.oidc.config import EVERYBODY, OidcConfig

SUBJECT_CHARACTERS = 255
MOST_GROUPS = 10_000


@dataclass(frozen=True)
class Person:
    """Whom a provider vouches for."""

    subject: str
    """The provider's own name for the account, which no other account ever has."""
    user: str
    role: Role
    projects: tuple[str, ...]
    """Into which the groups let this person submit."""


def person_of(claims: dict[str, Any], config: OidcConfig) -> Person:
    """Who the claims, which are proven, say that it is. Raises SignInRefused."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARACTERS or not subject.isprintable():
        raise SignInRefused("token", "the provider's token names no account (claim `sub`)")
    user = _user_of(claims, config.user_claim)
    groups = groups_of(claims, config.groups_claim)
    held = [role for role in Role if config.roles.get(role, frozenset()) & groups]
    if not held:
        raise SignInRefused("role", f"{user} is in no group that has a role here", user=user)
    projects = tuple(sorted(name for name, those in config.projects.items() if those & groups))
    return Person(subject, user, held[-1], projects)


def claim(claims: dict[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots between them, such as `realm_access.roles`."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def groups_of(claims: dict[str, Any], name: str) -> frozenset[str]:
    """The groups that a token names, and the one that everybody is in. A single group may stand without a list."""
    found = claim(claims, name)
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return frozenset(group for group in listed[:MOST_GROUPS] if isinstance(group, str)) | {EVERYBODY}


def _user_of(claims: dict[str, Any], name: str) -> str:
    user = claim(claims, name)
    if not isinstance(user, str) or not user:
        raise SignInRefused("name", f"the provider's token has no name (claim `{name}`)")
    if not USER.fullmatch(user) or user == LOCAL.user:
        detail = f"{user[:100]!r} (claim `{name}`) is no user's name here: letters, digits, dots, dashes, @; at most 63"
        raise SignInRefused("name", detail)
    if name == "email" and claims.get("email_verified") is not True:
        # Whoever may write any address into a profile would come in as whoever it belongs to.
        raise SignInRefused("name", f"the provider has not verified that {user} is this account's e-mail address")
    return user
