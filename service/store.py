"""The durable list of jobs, in SQLite or any other database that SQLAlchemy speaks to. All calls block."""

import secrets
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import JSON, Engine, ForeignKey, String, create_engine, event, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, selectinload

from service.errors import JobNotFound, KeyReused
from service.spec import JobSpec
from trainers import State

DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
EPOCH_S = 1_704_067_200  # the first second of 2024
BUSY_TIMEOUT_MS = 10_000


class Base(DeclarativeBase):
    """Root of the tables."""


class LabelRow(Base):
    """One label of one job; a table of its own, so that every database can search it."""

    __tablename__ = "labels"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(200))


class JobRow(Base):
    """One job."""

    __tablename__ = "jobs"
    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    created: Mapped[float]
    name: Mapped[str] = mapped_column(String(64))
    priority: Mapped[int]
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(default="")
    run_dir: Mapped[str]
    idempotency_key: Mapped[str | None] = mapped_column(String(200), unique=True)
    body_hash: Mapped[str] = mapped_column(String(64))
    finished: Mapped[float | None]
    progress: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    labels: Mapped[list[LabelRow]] = relationship(lazy="raise", cascade="all, delete-orphan")


class Job(BaseModel):
    """A job as the store knows it."""

    model_config = ConfigDict(frozen=True)

    id: str
    created: float
    name: str
    labels: dict[str, str]
    priority: int
    spec: dict[str, Any]
    """The resolved JobSpec, as JSON."""
    state: State
    reason: str
    message: str
    run_dir: Path
    finished: float | None
    progress: dict[str, Any] | None
    """How far an ended job got, as JSON of a Progress."""

    @property
    def job_spec(self) -> JobSpec:
        """The spec, read."""
        return JobSpec.model_validate(self.spec)


class Query(BaseModel):
    """Which jobs to list."""

    model_config = ConfigDict(frozen=True)

    states: frozenset[State] = frozenset()
    """Any of these; empty: all."""
    labels: tuple[tuple[str, str | None], ...] = ()
    """All of these; without a value: any value."""
    limit: int = 50
    before: str | None = None
    """Only jobs older than this one."""


def new_job_id() -> str:
    """Twelve characters that sort by time to the microsecond; fit for addresses, file names and names of actors."""
    number = (int((time.time() - EPOCH_S) * 1_000_000) << 10) | secrets.randbits(10)
    return "".join(DIGITS[(number >> shift) & 31] for shift in range(55, -1, -5))


class Store:
    """Jobs and how they stand. Changes of state are compare-and-set, so that two callers cannot both win."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def open(cls, url: str) -> "Store":
        """Connect and create what is missing."""
        engine = create_engine(url)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _tune_sqlite)
        Base.metadata.create_all(engine)
        return cls(engine)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def check(self) -> None:
        """Raise if the database does not answer."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def add(self, spec: JobSpec, runs_dir: Path, key: str | None, body_hash: str) -> tuple[Job, bool]:
        """A new job, or the one that the key stands for already. Returns whether it is new."""
        while True:
            row = _row(spec, runs_dir, key, body_hash)
            try:
                with Session(self.engine, expire_on_commit=False) as session, session.begin():
                    session.add(row)
            except IntegrityError:  # either the key is taken, or another job got this id in the same microsecond
                if key is not None and (job := self._replayed(key, body_hash)) is not None:
                    return job, False
            else:
                return _job(row), True

    def _replayed(self, key: str, body_hash: str) -> Job | None:
        with Session(self.engine) as session:
            row = session.scalars(_SELECT.where(JobRow.idempotency_key == key)).one_or_none()
            if row is not None and row.body_hash != body_hash:
                raise KeyReused(
                    f"the key {key!r} stands for job {row.id} already, which has another spec; use a new key"
                )
            return None if row is None else _job(row)

    def get(self, job_id: str) -> Job:
        """One job. Raises JobNotFound."""
        with Session(self.engine) as session:
            row = session.scalars(_SELECT.where(JobRow.id == job_id)).one_or_none()
            if row is None:
                raise JobNotFound(f"there is no job {job_id!r}")
            return _job(row)

    def find(self, query: Query) -> list[Job]:
        """Jobs, newest first."""
        statement = _SELECT.order_by(JobRow.id.desc()).limit(query.limit)
        if query.states:
            statement = statement.where(JobRow.state.in_(query.states))
        if query.before is not None:
            statement = statement.where(JobRow.id < query.before)
        for key, value in query.labels:
            wanted = [LabelRow.key == key] + ([] if value is None else [LabelRow.value == value])
            statement = statement.where(JobRow.labels.any(_all(wanted)))
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement)]

    def unfinished(self) -> list[Job]:
        """All jobs that have not ended, oldest first."""
        statement = _SELECT.where(JobRow.finished.is_(None)).order_by(JobRow.id)
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement)]

    def queued(self) -> list[Job]:
        """The waiting jobs in the order in which they start."""
        statement = _SELECT.where(JobRow.state == State.QUEUED).order_by(JobRow.priority.desc(), JobRow.id)
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement)]

    def move(self, job_id: str, from_states: Collection[State], to: State, reason: str, message: str) -> bool:
        """Change the state if it is one of `from_states`. Returns whether it was."""
        values = {"state": to, "reason": reason, "message": message}
        return self._update(job_id, from_states, values)

    def finish(self, job_id: str, state: tuple[State, str, str], finished: float, progress: dict[str, Any]) -> bool:
        """Write down how a job ended: state, reason, message. Returns whether it had not ended before."""
        values = dict(zip(("state", "reason", "message"), state, strict=True))
        active = [state for state in State if not state.is_terminal]
        return self._update(job_id, active, {**values, "finished": finished, "progress": progress})

    def _update(self, job_id: str, from_states: Collection[State], values: dict[str, Any]) -> bool:
        statement = update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(from_states)).values(**values)
        with self.engine.begin() as connection:
            return connection.execute(statement).rowcount == 1


_SELECT = select(JobRow).options(selectinload(JobRow.labels))


def _row(spec: JobSpec, runs_dir: Path, key: str | None, body_hash: str) -> JobRow:
    job_id = new_job_id()
    return JobRow(
        id=job_id,
        created=time.time(),
        name=spec.name,
        priority=spec.priority,
        spec=spec.model_dump(mode="json"),
        state=State.QUEUED,
        reason="Submitted",
        message="waits for its turn",
        run_dir=str(runs_dir / job_id),
        idempotency_key=key,
        body_hash=body_hash,
        labels=[LabelRow(key=name, value=value) for name, value in spec.labels.items()],
    )


def _all(conditions: list[Any]) -> Any:
    first, *rest = conditions
    for condition in rest:
        first = first & condition
    return first


def _job(row: JobRow) -> Job:
    fields = {name: getattr(row, name) for name in Job.model_fields if name != "labels"}
    return Job(**fields, labels={label.key: label.value for label in row.labels})


def _tune_sqlite(connection: Any, _record: object) -> None:
    """Readers beside one writer, who is waited for; a commit survives the process's end at any moment."""
    for pragma in ("journal_mode=WAL", f"busy_timeout={BUSY_TIMEOUT_MS}", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()
