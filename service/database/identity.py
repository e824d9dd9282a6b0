"""Who calls: a user with a role, and where a request of theirs came from."""

from enum import StrEnum

from pydantic import ConfigDict, Field

from trainers import Documented


class Role(StrEnum):
    """What a caller may do; each may also do what those before it may."""

    viewer = "viewer"
    """Read."""
    user = "user"
    """Submit, and stop, pause, resume."""
    admin = "admin"
    """Everything, own code and webhooks among it."""

    def covers(self, demanded: "Role") -> bool:
        """Whether this role may do what `demanded` may."""
        order = list(Role)
        return order.index(self) >= order.index(demanded)


class Identity(Documented):
    """Who calls."""

    model_config = ConfigDict(frozen=True)

    user: str
    role: Role
    token: str | None = None
    """The id of the token or the session that was shown; null where none was, or a token of the sign-in provider."""
    session: bool = Field(default=False, exclude=True)
    """Whether it is a browser's session, which began with a sign-in. This and the rest no log needs."""
    projects: tuple[str, ...] = Field(default=(), exclude=True)
    """Projects into which the groups at the sign-in provider let the user submit, besides those that name the user."""
    expires: float | None = Field(default=None, exclude=True)
    """When what was shown ends by itself, in seconds since 1970; null: not."""


class Requester(Identity):
    """Who has sent a request, and from where."""

    address: str = ""
    """The client's, as the proxy in front of the service tells it; for a command on the service's own machine, whose
    shell it was typed in."""
    request_id: str = ""
    """In the header X-Request-ID of the answer, too."""


LOCAL = Identity(user="local", role=Role.admin)
"""Who calls from this machine without a token, where none is demanded."""
