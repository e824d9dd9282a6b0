"""Which account of the sign-in provider has which user's name here. The first one that comes with a name keeps it.

A name may be given to somebody else at a provider, or be somebody's own choice there; an account's subject never is
(OpenID Connect Core 1.0, section 5.7).
"""

import time

from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.database.audit import Act, insert_entry, operator
from service.database.identity import Requester
from service.database.tables import AccountRow
from service.errors import SignInRefused, TokenRefused


class Accounts:
    """The accounts of one database. All calls block."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.writing = engine.execution_options(writes=True)

    def bind(self, by: Requester, issuer: str, subject: str) -> None:
        """See to it that the user is this account's. Raises SignInRefused if another account has the name."""
        found = self._holder(by.user)
        if found is None:
            row = AccountRow(user=by.user, issuer=issuer, subject=subject, created=time.time())
            try:
                with Session(self.writing) as session, session.begin():
                    session.add(row)
                    session.flush()
                    insert_entry(session.connection(), by, Act(action="account.bind", target=by.user, status=201))
                return
            except IntegrityError:  # a request beside this one was faster
                found = self._holder(by.user)
        if found != (issuer, subject):
            detail = f"another account of the sign-in provider has the name {by.user} here; an admin may release it"
            raise SignInRefused("taken", detail, user=by.user)

    def release(self, user: str) -> None:
        """Let the next account that comes with a name have it. Raises TokenRefused if none has it."""
        with Session(self.writing) as session, session.begin():
            row = session.get(AccountRow, user)
            if row is None:
                raise TokenRefused(f"no account of the sign-in provider has the name {user!r}")
            session.delete(row)
            insert_entry(session.connection(), operator(), Act(action="account.release", target=user, status=204))

    def _holder(self, user: str) -> tuple[str, str] | None:
        with Session(self.engine) as session:
            row = session.get(AccountRow, user)
            return None if row is None else (row.issuer, row.subject)
