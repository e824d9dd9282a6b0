"""Versions of named models, as the database has them: what `digits@3` is, of which run, and how good."""

import re
import time
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection, Engine, Table, func, insert, select, update
from sqlalchemy.orm import Session

from service.database.tables import ModelVersionRow
from service.errors import VersionNotFound
from trainers import Documented

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,49}$"
LATEST = "latest"
REFERENCE = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,49})(@(?P<version>[0-9]{1,9}|latest))?\Z")
_TABLE = cast(Table, ModelVersionRow.__table__)


class ModelVersion(Documented):
    """One version of a named model. It stays as it is, whatever becomes of the job."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(examples=["digits@3"])
    """`name@version`."""
    name: str
    version: int
    """From 1; no number comes again, also where a version is removed."""
    job: str
    """The id of the job that has trained it."""
    which: str
    """Which of its models: `model`, `best` or `raw`."""
    user: str
    """Who has registered it."""
    created: float
    """Seconds since 1970."""
    bytes: int
    sha256: str
    """Of its file."""
    notes: str
    facts: dict[str, Any]
    """What its job was, how far it was trained and how good it is: `model`, `data`, `algorithm`, `epochs`, `metrics`
    ..."""


class VersionQuery(BaseModel):
    """Which versions to list, newest first."""

    model_config = ConfigDict(frozen=True)

    name: str | None = None
    job: str | None = None
    latest: bool = False
    """The newest of each name only."""
    limit: int = 50
    before: int | None = None
    """Only those that were registered before the one with this number in the table."""


class Versions:
    """The table. All calls block; those with a connection write, in a transaction of the store's writer."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def find(self, query: VersionQuery) -> tuple[list[ModelVersion], int | None]:
        """Versions, newest first, and `before` of the next page."""
        statement = select(ModelVersionRow).where(ModelVersionRow.removed.is_(None))
        if query.latest:
            newest = select(func.max(ModelVersionRow.id)).where(ModelVersionRow.removed.is_(None))
            statement = statement.where(ModelVersionRow.id.in_(newest.group_by(ModelVersionRow.name)))
        for column, wanted in ((ModelVersionRow.name, query.name), (ModelVersionRow.job_id, query.job)):
            if wanted is not None:
                statement = statement.where(column == wanted)
        if query.before is not None:
            statement = statement.where(ModelVersionRow.id < query.before)
        with Session(self.engine) as session:
            rows = [*session.scalars(statement.order_by(ModelVersionRow.id.desc()).limit(query.limit + 1))]
        shown = rows[: query.limit]
        return [_version(row) for row in shown], shown[-1].id if len(rows) > query.limit else None

    def get(self, reference: str) -> ModelVersion:
        """`name@3`; of `name@latest`, or the name alone, the newest. Raises VersionNotFound."""
        parts = REFERENCE.match(reference)
        if parts is None:
            raise VersionNotFound(f"{reference[:100]!r} is no version of a model; write NAME@3 or NAME@latest")
        statement = select(ModelVersionRow).where(
            ModelVersionRow.name == parts["name"], ModelVersionRow.removed.is_(None)
        )
        if (version := parts["version"] or LATEST) != LATEST:
            statement = statement.where(ModelVersionRow.version == int(version))
        with Session(self.engine) as session:
            row = session.scalar(statement.order_by(ModelVersionRow.version.desc()).limit(1))
        if row is None:
            raise VersionNotFound(f"no model {reference} is registered; the list shows those that are")
        return _version(row)

    def add(self, connection: Connection, new: ModelVersion) -> tuple[ModelVersion, bool]:
        """Register the next version of its name, or find the one that is the same file of the same job. Returns whether
        it is new."""
        same = {"name": new.name, "job_id": new.job, "which": new.which, "sha256": new.sha256, "removed": None}
        session = Session(connection)
        if (known := session.scalar(select(ModelVersionRow).filter_by(**same))) is not None:
            return _version(known), False
        last = connection.scalar(select(func.max(_TABLE.c.version)).where(_TABLE.c.name == new.name)) or 0
        values = new.model_dump(exclude={"id", "job", "version"}) | {"job_id": new.job, "version": last + 1}
        connection.execute(insert(_TABLE).values(**values))
        return new.model_copy(update={"version": last + 1, "id": f"{new.name}@{last + 1}"}), True

    def remove(self, connection: Connection, version: ModelVersion) -> bool:
        """Remove a version. Returns whether no other has its file."""
        mine = (_TABLE.c.name == version.name, _TABLE.c.version == version.version)
        connection.execute(update(_TABLE).where(*mine).values(removed=time.time()))
        left = select(func.count()).where(_TABLE.c.sha256 == version.sha256, _TABLE.c.removed.is_(None))
        return connection.scalar(left) == 0


def _version(row: ModelVersionRow) -> ModelVersion:
    same = ("name", "version", "which", "user", "created", "bytes", "sha256", "notes", "facts")
    return ModelVersion(id=f"{row.name}@{row.version}", job=row.job_id, **{name: getattr(row, name) for name in same})
