"""The durable list of jobs, in SQLite or PostgreSQL. All calls block."""

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, Engine, Table, and_, delete, func, insert, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, selectinload

from service.database import Writer, connect, hold, migrate, release
from service.errors import JobNotFound, KeyReused, TooManyWaiting
from service.spec import JobSpec, is_text
from service.tables import JobRow, LabelRow, SweptRow
from trainers import Event, State

DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
EPOCH_S = 1_704_067_200  # the first second of 2024
READ_S = 5.0
"""Longest time that closing waits for somebody who reads."""
ASK_AGAIN_S = 30
"""When a user whose jobs all wait may ask again."""


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
    user: str
    forked_from: str | None

    @property
    def job_spec(self) -> JobSpec:
        """The spec, read."""
        return JobSpec.model_validate(self.spec)


@dataclass(frozen=True)
class Submission:
    """A job that is to be taken in."""

    spec: JobSpec
    key: str | None = None
    """Idempotency key; of two submissions of one user with the same, the second stands for the first's job."""
    body_hash: str = ""
    user: str = "local"
    max_waiting: int | None = None
    """Of this user's jobs, how many may wait."""
    fork: tuple[str, str] | None = None
    """A new id, and `<job>/<step>` of the checkpoint that the job begins from."""


class Added(NamedTuple):
    """What became of a submission."""

    job: Job
    is_new: bool
    first: Event | None = None
    """Of a new job, the first line of its log, if that could be written."""


class Query(BaseModel):
    """Which jobs to list."""

    model_config = ConfigDict(frozen=True)

    states: frozenset[State] = frozenset()
    """Any of these; empty: all."""
    labels: tuple[tuple[str, str | None], ...] = ()
    """All of these; without a value: any value."""
    user: str | None = None
    """Whose; none: everybody's."""
    limit: int = 50
    before: str | None = None
    """Only jobs older than this one."""


def new_job_id() -> str:
    """Twelve characters that sort by time to the microsecond; fit for addresses, file names and names of actors."""
    number = (int((time.time() - EPOCH_S) * 1_000_000) << 10) | secrets.randbits(10)
    return "".join(DIGITS[(number >> shift) & 31] for shift in range(55, -1, -5))


class Store:
    """Jobs and how they stand. Changes of state are compare-and-set, so that two callers cannot both win."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self.engine = engine
        self.writer = writer
        self.held: Connection | None = None

    @classmethod
    def open(cls, url: str) -> "Store":
        """Connect, and bring the database up to date. Raises DatabaseNewer where a later Millrace wrote it."""
        migrate(url)
        engine = connect(url)
        store = cls(engine, Writer(engine))
        store.writer.thread.start()
        return store

    def hold(self) -> None:
        """Become the only service on this database. Raises DatabaseBusy."""
        self.held = hold(self.engine)

    def close(self) -> None:
        """Write what waits, let threads read to their end, and close every connection."""
        self.writer.close()
        if self.held is not None:
            release(self.held)
        deadline = time.monotonic() + READ_S
        while self.engine.pool.checkedout() and time.monotonic() < deadline:  # type: ignore[attr-defined]
            time.sleep(0.01)
        self.engine.dispose()

    def check(self) -> None:
        """Raise if the database does not answer."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def add(self, new: Submission, runs_dir: Path) -> tuple[Job, bool]:
        """A new job, or the one that the key stands for already. Returns whether it is new.

        Raises:
            KeyReused: The key stands for another job.
            TooManyWaiting: As many of the user's jobs wait as may.
            StorageFull: Nothing has changed.
        """
        added = self.adding(new, runs_dir).result()
        return added.job, added.is_new

    def adding(
        self, new: Submission, runs_dir: Path, begin: Callable[[Job], Event | None] | None = None
    ) -> "Future[Added]":
        """The same for one of a crowd, who does not wait for it. begin: writes the first line of a new job's log,
        once the job is durable; in the writer's thread."""

        def begun(added: Added) -> Added:
            return added if begin is None or not added.is_new else added._replace(first=begin(added.job))

        return self.writer.submit(lambda connection: _add(connection, new, runs_dir), begun, begin is not None)

    def adopt(self, sweep: str, trials: Mapping[str, tuple[JobSpec, Path]], user: str) -> None:
        """Note the trials of a sweep, job's id -> spec and run directory, that are not there yet."""

        def work(connection: Connection) -> None:
            known = set(connection.scalars(select(SweptRow.job_id).where(SweptRow.sweep == sweep)))
            for job_id, (spec, run_dir) in trials.items():
                if job_id not in known:
                    told = {"id": job_id, "run_dir": run_dir, "reason": "InSweep"}
                    told["message"] = "waits for its turn in its sweep"
                    job = _new_job(Submission(spec, user=user), run_dir.parent).model_copy(update=told)
                    _insert(connection, job, Submission(spec))
                    connection.execute(insert(SweptRow).values(job_id=job_id, sweep=sweep))

        self.writer.submit(work).result()

    def get(self, job_id: str) -> Job:
        """One job. Raises JobNotFound."""
        with Session(self.engine) as session:
            row = session.get(JobRow, job_id, options=_WITH_LABELS) if is_text(job_id) else None
            if row is None:
                raise JobNotFound(f"there is no job {job_id!r}")
            return _job(row)

    def run_dirs(self, job_ids: Collection[str] | None = None) -> dict[str, Path]:
        """The run directories of those jobs that there are, or of all, by id."""
        statement = select(_JOBS.c.id, _JOBS.c.run_dir)
        if job_ids is not None:
            statement = statement.where(_JOBS.c.id.in_(job_ids))
        with self.engine.connect() as connection:
            return {job_id: Path(run_dir) for job_id, run_dir in connection.execute(statement)}

    def find(self, query: Query) -> list[Job]:
        """Jobs, newest first."""
        words = (query.user, *(word for pair in query.labels for word in pair))
        if not all(is_text(word) for word in words if word is not None):
            return []
        statement = _SELECT.order_by(JobRow.id.desc()).limit(query.limit)
        if query.states:
            statement = statement.where(JobRow.state.in_(query.states))
        if query.user is not None:
            statement = statement.where(JobRow.user == query.user)
        if query.before is not None:
            statement = statement.where(JobRow.id < query.before)
        for key, value in query.labels:
            wanted = [LabelRow.key == key] + ([] if value is None else [LabelRow.value == value])
            statement = statement.where(JobRow.labels.any(and_(*wanted)))
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement)]

    def unfinished(self) -> list[Job]:
        """All jobs of our own that have not ended, oldest first."""
        statement = _SELECT.where(JobRow.finished.is_(None), _NOT_SWEPT).order_by(JobRow.id)
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement)]

    def count(self) -> dict[State, int]:
        """How many jobs there are in each state that has any."""
        statement = select(JobRow.state, func.count()).group_by(JobRow.state)
        with self.engine.connect() as connection:
            return {State(state): number for state, number in connection.execute(statement)}

    def queued(self) -> list[Job]:
        """The waiting jobs in the order in which they start."""
        statement = _SELECT.where(JobRow.state == State.QUEUED, _NOT_SWEPT)
        statement = statement.order_by(JobRow.priority.desc(), JobRow.id)
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement)]

    def num_queued(self) -> int:
        """Jobs that wait."""
        with self.engine.connect() as connection:
            statement = select(func.count()).select_from(JobRow).where(JobRow.state == State.QUEUED, _NOT_SWEPT)
            return connection.scalar(statement) or 0

    def move(self, job_id: str, from_states: Collection[State], to: State, reason: str, message: str) -> bool:
        """Change the state if it is one of `from_states`. Returns whether it was."""
        values = {"state": to, "reason": reason, "message": message}
        return self._update(job_id, from_states, values)

    def respecify(self, job_id: str, from_states: Collection[State], spec: JobSpec) -> bool:
        """Replace the spec of a job that is in one of `from_states`. Returns whether it was."""
        return self._update(job_id, from_states, {"spec": spec.model_dump(mode="json")})

    def rehome(self, job_id: str, run_dir: Path) -> None:
        """Note that a job's run directory is another one from now on."""
        self._update(job_id, list(State), {"run_dir": str(run_dir)})

    def finish(self, job_id: str, state: tuple[State, str, str], finished: float, progress: dict[str, Any]) -> bool:
        """Write down how a job ended: state, reason, message. Returns whether it had not ended before."""
        values = dict(zip(("state", "reason", "message"), state, strict=True))
        active = [state for state in State if not state.is_terminal]
        return self._update(job_id, active, {**values, "finished": finished, "progress": progress})

    def expired(self, now: float, keep_s: float | None, limit: int = 100) -> list[Job]:
        """Ended jobs whose time is over: their own `ttl_s`, or else `keep_s`. Trials stay with their sweeps."""
        kept_s = JobRow.ttl_s if keep_s is None else func.coalesce(JobRow.ttl_s, keep_s)
        statement = _SELECT.where(JobRow.finished.is_not(None), JobRow.finished + kept_s < now, _NOT_SWEPT)
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement.order_by(JobRow.id).limit(limit))]

    def remove(self, job_id: str) -> None:
        """Forget an ended job, and its key with it."""

        def work(connection: Connection) -> None:
            connection.execute(delete(JobRow).where(JobRow.id == job_id, JobRow.finished.is_not(None)))

        self.writer.submit(work).result()

    def _update(self, job_id: str, from_states: Collection[State], values: dict[str, Any]) -> bool:
        statement = update(_JOBS).where(_JOBS.c.id == job_id, _JOBS.c.state.in_(from_states)).values(**values)
        return self.writer.submit(lambda connection: connection.execute(statement).rowcount == 1).result()


_JOBS, _LABELS = cast(Table, JobRow.__table__), cast(Table, LabelRow.__table__)
_WITH_LABELS = (selectinload(JobRow.labels),)
_SELECT = select(JobRow).options(*_WITH_LABELS)
_NOT_SWEPT = JobRow.id.not_in(select(SweptRow.job_id))
_COLUMNS = tuple(name for name in Job.model_fields if name != "labels")
_INSERT = {
    name: dialect.insert(_JOBS).on_conflict_do_nothing().execution_options(preserve_rowcount=True)
    for name, dialect in (("sqlite", sqlite), ("postgresql", postgresql))
}
_INSERT_LABELS = insert(_LABELS)


def _add(connection: Connection, new: Submission, runs_dir: Path) -> Added:
    if new.max_waiting is not None and _known(connection, new) is None:
        waits = (JobRow.user == new.user, JobRow.state == State.QUEUED, _NOT_SWEPT)
        if (connection.scalar(select(func.count()).select_from(JobRow).where(*waits)) or 0) >= new.max_waiting:
            raise TooManyWaiting(
                f"{new.max_waiting} jobs of {new.user} wait already, and no more may; wait until one has started, or "
                "cancel one",
                ASK_AGAIN_S,
            )
    while not _insert(connection, job := _new_job(new, runs_dir), new):
        if (known := _known(connection, new)) is not None:
            return Added(known, False)
        assert new.fork is None, "a fork's id is made for it alone"
        # Another job got this id in the same microsecond.
    return Added(job, True)


def _known(connection: Connection, new: Submission) -> Job | None:
    """The job that a submission's key stands for. Raises KeyReused if that is another than this one would be."""
    if new.key is None:
        return None
    mine = (JobRow.user == new.user, JobRow.idempotency_key == new.key)
    known = connection.execute(select(JobRow.id, JobRow.body_hash).where(*mine)).one_or_none()
    if known is None:
        return None
    if known.body_hash != new.body_hash:
        raise KeyReused(f"the key {new.key!r} stands for job {known.id} already, which has another spec; use a new key")
    with Session(connection) as session:
        return _job(session.scalars(_SELECT.where(JobRow.id == known.id)).one())


def _insert(connection: Connection, job: Job, new: Submission) -> bool:
    """Whether there was neither such an id nor such a key. Statements are made once, and of tables, not of classes: to
    make one takes longer than to execute it."""
    values = {name: getattr(job, name) for name in _COLUMNS} | {"run_dir": str(job.run_dir), "ttl_s": new.spec.ttl_s}
    values |= {"idempotency_key": new.key, "body_hash": new.body_hash}
    if connection.execute(_INSERT[connection.dialect.name], values).rowcount == 0:
        return False
    if job.labels:
        connection.execute(_INSERT_LABELS, [{"job_id": job.id, "key": k, "value": v} for k, v in job.labels.items()])
    return True


def _new_job(new: Submission, runs_dir: Path) -> Job:
    job_id, forked_from = new.fork or (new_job_id(), None)
    spec = new.spec
    return Job(
        id=job_id,
        created=time.time(),
        name=spec.name,
        labels=spec.labels,
        priority=spec.priority,
        spec=spec.model_dump(mode="json"),
        state=State.QUEUED,
        reason="Submitted",
        message="waits for its turn",
        run_dir=runs_dir / job_id,
        finished=None,
        progress=None,
        user=new.user,
        forked_from=forked_from,
    )


def _job(row: JobRow) -> Job:
    fields = {name: getattr(row, name) for name in _COLUMNS}
    return Job(**fields, labels={label.key: label.value for label in row.labels})
