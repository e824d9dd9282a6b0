"""Who may come in: bearer tokens with a role, and sign-ins of browsers and command lines. The database holds their
hashes only."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict
from sqlalchemy import CursorResult, Engine, delete, select, update
from sqlalchemy.orm import Session

from service.database.audit import Act, insert_entry, operator
from service.database.identity import Identity, Requester, Role
from service.database.tables import TokenRow
from service.errors import TokenRefused
from service.ids import DIGITS

Kind = Literal["token", "session", "login"]
KINDS: dict[str, Kind] = {"mlr": "token", "mls": "session", "mll": "login"}
"""By what each begins with, so that scanners for leaked secrets know one."""
SECRET_BYTES = 32  # so many random bytes need no slow hash
USER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$")
KEPT_S = 30 * 86_400.0
"""How long a session is listed once it has ended."""
NOBODY = hashlib.sha256(b"").hexdigest()


class Token(BaseModel):
    """A token as it is listed: everything but the secret, which nobody can read again."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    id: str
    user: str
    role: Role
    created: float
    """Seconds since 1970."""
    expires: float | None
    revoked: float | None
    kind: Kind = "token"
    """`session`: what a browser shows after a sign-in, in a cookie; `login`: what a command line shows."""

    @property
    def works(self) -> bool:
        """Whether it still opens the door."""
        return self.revoked is None and (self.expires is None or time.time() < self.expires)


class Tokens:
    """The tokens of one database. All calls block."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.writing = engine.execution_options(writes=True)

    def create(self, user: str, role: Role, lifetime_s: float | None = None) -> tuple[Token, str]:
        """A new token, and its text, which is shown this once. Raises TokenRefused for a name that will not do."""
        if not USER.match(user):
            raise TokenRefused(f"{user!r} is no user's name: use letters, digits, dots, dashes, @; at most 63")
        row, text = _made("token", user, role, lifetime_s)
        act = Act(action="token.create", target=row.id, details={"user": user, "role": role, "lifetime_s": lifetime_s})
        with Session(self.writing, expire_on_commit=False) as session, session.begin():
            session.add(row)
            insert_entry(session.connection(), operator(), act)
        return Token.model_validate(row), text

    def begin_session(self, by: Requester, lifetime_s: float, kind: Kind = "session") -> tuple[Token, str]:
        """A session, or the login of a command line, for whoever has signed in, and the text that shows it. Those that
        ended long ago are forgotten."""
        row, text = _made(kind, by.user, by.role, lifetime_s)
        row.projects = [*by.projects]
        act = Act(action="session.begin", target=row.id, status=201, details={"kind": kind, "lifetime_s": lifetime_s})
        old = delete(TokenRow).where(TokenRow.kind != "token", TokenRow.expires < time.time() - KEPT_S)
        with Session(self.writing, expire_on_commit=False) as session, session.begin():
            session.execute(old)
            session.add(row)
            insert_entry(session.connection(), by.model_copy(update={"token": row.id}), act)
        return Token.model_validate(row), text

    def list(self) -> "list[Token]":
        """All that ever were, newest first."""
        with Session(self.engine) as session:
            rows = session.scalars(select(TokenRow).order_by(TokenRow.created.desc(), TokenRow.id))
            return [Token.model_validate(row) for row in rows]

    def revoke(self, token_id: str, by: Requester | None = None) -> Token:
        """End one; from the next request on it is refused. Raises TokenRefused when there is none.

        by: Who asks for it, for the audit; by default whoever types a command on this machine.
        """
        with Session(self.writing, expire_on_commit=False) as session, session.begin():
            statement = update(TokenRow).where(TokenRow.id == token_id, TokenRow.revoked.is_(None))
            revoked = session.execute(statement.values(revoked=time.time()))
            row = session.get(TokenRow, token_id)
            if row is None:
                raise TokenRefused(f"there is no token {token_id!r}; `millrace token list` shows those that there are")
            if cast(CursorResult[Any], revoked).rowcount:  # and not long ago
                action = "token.revoke" if row.kind == "token" else "session.end"
                act = Act(action=action, target=token_id, details={"user": row.user, "role": row.role})
                insert_entry(session.connection(), by or operator(), act)
            return Token.model_validate(row)

    def identify(self, text: str, *, is_cookie: bool = False) -> Identity | None:
        """Whose it is, what a request shows; none where it is nothing that opens the door, or has ended.

        is_cookie: Sessions come in cookies, and nothing else does.
        """
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        kind = KINDS.get(prefix)
        may = kind is not None and (kind == "session") is is_cookie and token_id.isalnum()
        with Session(self.engine) as session:
            row = session.get(TokenRow, token_id) if may else None
            # Compared in constant time, and also where there is nothing to compare with.
            same = hmac.compare_digest(_digest(secret), NOBODY if row is None else row.digest)
            if row is None or not same or not secret or row.kind != kind or not Token.model_validate(row).works:
                return None
            return Identity(
                user=row.user,
                role=Role(row.role),
                token=row.id,
                session=kind == "session",
                projects=tuple(row.projects or ()),
                expires=row.expires,
            )

    def ended(self, token_ids: Collection[str]) -> set[str]:
        """Those of these tokens that open the door no more."""
        with Session(self.engine) as session:
            rows = session.scalars(select(TokenRow).where(TokenRow.id.in_(token_ids)))
            return set(token_ids) - {row.id for row in rows if Token.model_validate(row).works}

    def any(self) -> bool:
        """Whether any token opens the door now. A sign-in does not count: it ends by itself."""
        return any(token.works for token in self.list() if token.kind == "token")


def _made(kind: Kind, user: str, role: Role, lifetime_s: float | None) -> tuple[TokenRow, str]:
    """A new row, and the text that it is the hash of."""
    now = time.time()
    identity = "".join(secrets.choice(DIGITS) for _ in range(8))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    expires = None if lifetime_s is None else now + lifetime_s
    row = TokenRow(
        id=identity, user=user, role=role, digest=_digest(secret), created=now, expires=expires, revoked=None, kind=kind
    )
    (prefix,) = (text for text, one in KINDS.items() if one == kind)
    return row, f"{prefix}_{identity}_{secret}"


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
