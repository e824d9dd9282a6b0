"""Who may come in: bearer tokens with a role. The database holds their hashes only."""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection
from typing import Any, cast

from pydantic import BaseModel, ConfigDict
from sqlalchemy import CursorResult, Engine, select, update
from sqlalchemy.orm import Session

from service.database.audit import Act, insert_entry, operator
from service.database.identity import Identity, Requester, Role
from service.database.tables import TokenRow
from service.errors import TokenRefused
from service.ids import DIGITS

PREFIX = "mlr"  # so that scanners for leaked secrets know one when they see it
SECRET_BYTES = 32  # so many random bytes need no slow hash
USER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$")
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
        now = time.time()
        identity = "".join(secrets.choice(DIGITS) for _ in range(8))
        secret = secrets.token_urlsafe(SECRET_BYTES)
        row = TokenRow(
            id=identity,
            user=user,
            role=role,
            digest=_digest(secret),
            created=now,
            expires=None if lifetime_s is None else now + lifetime_s,
            revoked=None,
        )
        act = Act(
            action="token.create", target=identity, details={"user": user, "role": role, "lifetime_s": lifetime_s}
        )
        with Session(self.writing, expire_on_commit=False) as session, session.begin():
            session.add(row)
            insert_entry(session.connection(), operator(), act)
        return Token.model_validate(row), f"{PREFIX}_{identity}_{secret}"

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
                act = Act(action="token.revoke", target=token_id, details={"user": row.user, "role": row.role})
                insert_entry(session.connection(), by or operator(), act)
            return Token.model_validate(row)

    def identify(self, text: str) -> Identity | None:
        """Whose token it is; none where it is no token, or one that has ended."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        with Session(self.engine) as session:
            row = session.get(TokenRow, token_id) if prefix == PREFIX and token_id.isalnum() else None
            # Compared in constant time, and also where there is nothing to compare with.
            same = hmac.compare_digest(_digest(secret), NOBODY if row is None else row.digest)
            if row is None or not same or not secret or not Token.model_validate(row).works:
                return None
            return Identity(user=row.user, role=Role(row.role), token=row.id)

    def ended(self, token_ids: Collection[str]) -> set[str]:
        """Those of these tokens that open the door no more."""
        with Session(self.engine) as session:
            rows = session.scalars(select(TokenRow).where(TokenRow.id.in_(token_ids)))
            return set(token_ids) - {row.id for row in rows if Token.model_validate(row).works}

    def any(self) -> bool:
        """Whether any opens the door now."""
        return any(token.works for token in self.list())


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
