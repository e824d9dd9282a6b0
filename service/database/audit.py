"""The audit: who changed what, when and from where. So many of the newest entries are kept, and no more."""

import json
import os
import pwd
import socket
import time
from functools import partial
from typing import Any, cast

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, Delete, Engine, Table, delete, insert, select
from sqlalchemy.orm import Session

from service.database.connection import Writer
from service.database.identity import LOCAL, Requester, Role
from service.database.tables import AuditRow
from service.spec import is_text
from trainers import Documented

DETAILS_CHARACTERS = 2000
"""The most that an entry says of what was asked for: with a bound on their number, one on what all of them hold."""
ADDRESS_CHARACTERS, REQUEST_ID_CHARACTERS, NAME_CHARACTERS = 128, 64, 64
REFUSED = 400
"""From this status on nothing was changed."""

_AUDIT = cast(Table, AuditRow.__table__)
_INSERT = insert(_AUDIT)


class Act(BaseModel):
    """What somebody did, or tried to do."""

    model_config = ConfigDict(frozen=True)

    action: str
    """A noun and a verb, such as `job.cancel`."""
    target: str | None = None
    """The id of the job, sweep, webhook or token."""
    status: int = 202
    """Of the answer; 403 where the role did not allow it."""
    details: dict[str, Any] = {}
    """What was asked for, such as `{"workers": 3}`."""


class AuditEntry(Documented):
    """One line of the audit."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    id: int
    time: float
    """Seconds since 1970."""
    user: str
    role: Role
    token: str | None
    """The id of the token that was shown; null where none was."""
    address: str
    """The client's, as the proxy in front of the service tells it; for a command on the service's own machine, whose
    shell it was typed in."""
    request_id: str
    """As in the header X-Request-ID of the answer."""
    action: str
    """A noun and a verb, such as `job.cancel`."""
    target: str | None
    """The id of the job, sweep, webhook or token."""
    status: int
    """Of the answer; 403 where the role did not allow it."""
    details: dict[str, Any]
    """What was asked for, such as `{"workers": 3}`."""


class AuditQuery(BaseModel):
    """Which entries to list."""

    model_config = ConfigDict(frozen=True)

    user: str | None = None
    actions: frozenset[str] = frozenset()
    """Any of these; empty: all."""
    target: str | None = None
    since: float | None = None
    """In seconds since 1970."""
    until: float | None = None
    limit: int = 50
    before: int | None = None
    """Only entries with a smaller id."""


class Audit:
    """The audit of one database. All calls block."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self.engine = engine
        self.writer = writer

    def record(self, by: Requester, act: Act) -> None:
        """Add an entry. Returns once it is durable."""
        self.writer.submit(lambda connection: insert_entry(connection, by, act)).result()

    def find(self, query: AuditQuery) -> list[AuditEntry]:
        """Entries, newest first."""
        texts = (query.user, query.target, *query.actions)
        if not all(is_text(text) for text in texts if text is not None):
            return []
        statement = select(AuditRow).order_by(AuditRow.id.desc()).limit(query.limit)
        for column, wanted in ((AuditRow.user, query.user), (AuditRow.target, query.target)):
            if wanted is not None:
                statement = statement.where(column == wanted)
        if query.actions:
            statement = statement.where(AuditRow.action.in_(query.actions))
        if query.since is not None:
            statement = statement.where(AuditRow.time >= query.since)
        if query.until is not None:
            statement = statement.where(AuditRow.time < query.until)
        if query.before is not None:
            statement = statement.where(AuditRow.id < query.before)
        with Session(self.engine) as session:
            return [AuditEntry.model_validate(row) for row in session.scalars(statement)]

    def submitter(self, job_id: str) -> Requester | None:
        """Who has submitted a job, or forked it; none where that is not known any more."""
        found = self.find(AuditQuery(target=job_id, actions=frozenset({"job.submit", "job.fork"}), limit=1))
        return Requester.model_validate(found[0], from_attributes=True) if found else None

    def prune(self, most: int) -> None:
        """Keep the newest `most` changes, and as many refusals: whoever is refused again and again drives out no
        change."""
        for kind in (AuditRow.status < REFUSED, AuditRow.status >= REFUSED):
            last = select(AuditRow.id).where(kind).order_by(AuditRow.id.desc()).offset(most).limit(1)
            with self.engine.connect() as connection:
                found = connection.scalar(last)
            if found is not None:
                old = delete(AuditRow).where(kind, AuditRow.id <= found)
                self.writer.submit(partial(_execute, statement=old)).result()


def insert_entry(connection: Connection, by: Requester, act: Act) -> None:
    """Add an entry in the transaction of what it tells of."""
    connection.execute(_INSERT, _values(by, act))


def _execute(connection: Connection, statement: Delete) -> None:
    connection.execute(statement)


def operator() -> Requester:
    """Whoever types a command on the service's machine."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user need not have a name
        name = str(os.getuid())
    return Requester(**LOCAL.model_dump(), address=f"{name}@{socket.gethostname()}")


def _values(by: Requester, act: Act) -> dict[str, Any]:
    size = len(json.dumps(act.details))
    return {
        "time": time.time(),
        "user": by.user,
        "role": by.role.value,
        "token": by.token,
        "address": by.address[:ADDRESS_CHARACTERS],
        "request_id": by.request_id[:REQUEST_ID_CHARACTERS],
        "action": act.action[:NAME_CHARACTERS],
        "target": None if act.target is None else act.target[:NAME_CHARACTERS],
        "status": act.status,
        "details": act.details if size <= DETAILS_CHARACTERS else {"omitted_characters": size},
    }
