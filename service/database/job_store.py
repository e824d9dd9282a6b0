"""The durable store of jobs, in SQLite or PostgreSQL. All calls block, but for `read`."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json
from sqlalchemy import Connection, Engine, Table, and_, delete, func, insert, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, selectinload

from service.database.audit import Act, Audit, insert_entry
from service.database.connection import AsJSON, Writer, connect, hold, migrate, release
from service.database.identity import Requester
from service.database.job_changes import JobChanges, apply_changes
from service.database.job_query import Query
from service.database.tables import JobRow, LabelRow, ProjectRow, SweptRow
from service.errors import JobNotFound, KeyReused, SpecInvalid, TooManyWaiting
from service.ids import new_job_id
from service.spec import JobSpec, is_text, stored
from service.status import SUBMITTED, Status
from trainers import FieldError, State

T = TypeVar("T")
Argument = TypeVar("Argument")

READERS = 4
"""Threads for reads that others wait for: no more than the connections that an engine keeps."""
READ_S = 5.0
"""The longest time that closing waits for readers."""
RETRY_AFTER_S = 30
"""When a user with too many waiting jobs may try again."""


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
    """The progress of an ended job, as JSON."""
    user: str
    forked_from: str | None
    notes: str = ""
    archived: bool = False
    project: str = "default"

    @property
    def status(self) -> Status:
        """Its state, and why it is in it."""
        return Status(self.state, self.reason, self.message)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has begun anything of it: it has no run directory yet, and needs none."""
        return self.status == SUBMITTED and self.forked_from is None

    @property
    def job_spec(self) -> JobSpec:
        """The spec, parsed. Raises SpecUnreadable."""
        return stored(JobSpec, self.spec, f"job {self.id}")


@dataclass(frozen=True)
class Submission:
    """A job that is to be added."""

    spec: JobSpec
    key: str | None = None
    """Idempotency key: a second submission of the same user with it stands for the first one's job."""
    body_hash: str = ""
    user: str = "local"
    max_waiting: int | None = None
    """How many jobs of this user may wait."""
    fork: tuple[str, str] | None = None
    """A new id, and `<job>/<step>` of the checkpoint that the job begins from."""
    by: Requester | None = None
    """Who has sent it, for the audit."""
    changes: Mapping[str, Any] | None = None
    """What a fork changes in the spec."""
    text: str = ""
    """The spec as JSON, where somebody has made that already."""

    @cached_property
    def json(self) -> str:
        """The spec as JSON."""
        return self.text or self.spec.model_dump_json()

    @property
    def act(self) -> Act:
        """What the audit says of it."""
        if self.fork is None:
            return Act(action="job.submit", details={"name": self.spec.name})
        origin = {"from": self.fork[1], "changes": dict(self.changes or {})}
        return Act(action="job.fork", details={"name": self.spec.name, **origin})


class Added(NamedTuple):
    """The outcome of a submission."""

    job: Job
    is_new: bool


class Store:
    """Jobs and their status. Changes of state are compare-and-set, so that two callers cannot both succeed."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self.engine = engine
        self.writer = writer
        self.audit = Audit(engine, writer)
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="store")
        self.held: Connection | None = None

    @classmethod
    def open(cls, url: str) -> "Store":
        """Connect, and migrate the database. Raises DatabaseNewer, DatabaseDamaged."""
        migrate(url)
        engine = connect(url)
        store = cls(engine, Writer(engine))
        store.writer.thread.start()
        return store

    def hold(self) -> None:
        """Become the only service on this database. Raises DatabaseBusy."""
        self.held = hold(self.engine)

    def close(self) -> None:
        """Write what is pending, let readers finish, and close every connection."""
        self.writer.close()
        self.readers.shutdown(wait=False, cancel_futures=True)
        if self.held is not None:
            release(self.held)
        deadline = time.monotonic() + READ_S
        while self.engine.pool.checkedout() and time.monotonic() < deadline:  # type: ignore[attr-defined]
            time.sleep(0.01)
        self.engine.dispose()

    async def read(self, call: Callable[[Argument], T], argument: Argument) -> T:
        """What one of the calls that read returns. Its threads are the store's own: others may wait for Ray."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, call, argument)

    def check(self) -> None:
        """Raise if the database does not answer."""
        with self.engine.connect() as connection:
            connection.execute(text("SELECT 1"))

    def add(self, new: Submission, runs_dir: Path) -> tuple[Job, bool]:
        """Add a job, or find the one that the key stands for. Returns whether it is new.

        Raises:
            KeyReused: The key stands for another job.
            TooManyWaiting: As many of the user's jobs wait as are allowed.
            StorageFull: Nothing has changed.
        """
        added = self.submit(new, runs_dir).result()
        return added.job, added.is_new

    def submit(self, new: Submission, runs_dir: Path, may_wait: bool = False) -> "Future[Added]":
        """The same without waiting for it. may_wait: For others, to share a transaction with."""
        return self.writer.submit(lambda connection: _add(connection, new, runs_dir), may_wait=may_wait)

    def add_trials(self, sweep: str, trials: Mapping[str, tuple[JobSpec, Path]], user: str) -> None:
        """Add the trials of a sweep, job id -> spec and run directory, that are not stored yet."""

        def work(connection: Connection) -> None:
            known = set(connection.scalars(select(SweptRow.job_id).where(SweptRow.sweep == sweep)))
            for job_id, (spec, run_dir) in trials.items():
                if job_id not in known:
                    waits = {"reason": "InSweep", "message": "waits for its turn in its sweep"}
                    new, trial = Submission(spec, user=user), {"id": job_id, "run_dir": run_dir, **waits}
                    _insert(connection, _new_job(new, run_dir.parent).model_copy(update=trial), new)
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
        """Job id -> run directory of those of these jobs that exist, or of all jobs."""
        statement = select(_JOBS.c.id, _JOBS.c.run_dir)
        if job_ids is not None:
            statement = statement.where(_JOBS.c.id.in_(job_ids))
        with self.engine.connect() as connection:
            return {job_id: Path(run_dir) for job_id, run_dir in connection.execute(statement)}

    def find(self, query: Query) -> list[Job]:
        """Jobs, newest first."""
        fields = (query.user, query.project, query.name, query.algorithm)
        texts = (*fields, *(text for pair in query.labels for text in pair))
        if not all(is_text(text) for text in texts if text is not None):
            return []
        statement = _SELECT.where(JobRow.archived.is_(query.archived)).order_by(JobRow.id.desc()).limit(query.limit)
        if query.states:
            statement = statement.where(JobRow.state.in_(query.states))
        if query.user is not None:
            statement = statement.where(JobRow.user == query.user)
        if query.project is not None:
            statement = statement.where(JobRow.project == query.project)
        if query.name is not None:
            statement = statement.where(JobRow.name.icontains(query.name, autoescape=True))
        if query.algorithm is not None:
            statement = statement.where(JobRow.spec["algorithm"]["name"].as_string() == query.algorithm)
        if not query.trials:
            statement = statement.where(_NOT_SWEPT)
        if query.before is not None:
            statement = statement.where(JobRow.id < query.before)
        for key, value in query.labels:
            wanted = [LabelRow.key == key] + ([] if value is None else [LabelRow.value == value])
            statement = statement.where(JobRow.labels.any(and_(*wanted)))
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement)]

    def unfinished(self) -> list[Job]:
        """All jobs that have not ended, trials excepted, oldest first."""
        statement = _SELECT.where(JobRow.finished.is_(None), _NOT_SWEPT).order_by(JobRow.id)
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement)]

    def unfinished_states(self) -> dict[str, State]:
        """Job id -> state of the same jobs, without their specs, which take much longer to read."""
        statement = select(_JOBS.c.id, _JOBS.c.state).where(_JOBS.c.finished.is_(None), _NOT_SWEPT).order_by(_JOBS.c.id)
        with self.engine.connect() as connection:
            return {job_id: State(state) for job_id, state in connection.execute(statement)}

    def count(self) -> dict[State, int]:
        """State -> number of jobs, for each state that has any."""
        statement = select(JobRow.state, func.count()).group_by(JobRow.state)
        with self.engine.connect() as connection:
            return {State(state): number for state, number in connection.execute(statement)}

    def num_queued(self) -> int:
        """The number of waiting jobs."""
        with self.engine.connect() as connection:
            statement = select(func.count()).select_from(JobRow).where(JobRow.state == State.QUEUED, _NOT_SWEPT)
            return connection.scalar(statement) or 0

    def move(self, job_id: str, from_states: Collection[State], status: Status) -> bool:
        """Change the status if the state is one of `from_states`. Returns whether it was."""
        return self._update(job_id, from_states, dict(status.data))

    def respecify(self, job_id: str, from_states: Collection[State], spec: JobSpec) -> bool:
        """Replace the spec of a job that is in one of `from_states`. Returns whether it was."""
        return self._update(job_id, from_states, {"spec": spec.model_dump(mode="json")})

    def edit(self, job_id: str, changes: JobChanges) -> None:
        """Change what is said of a job. Raises SpecInvalid if its labels may not become so."""
        self.writer.submit(lambda connection: apply_changes(connection, (_JOBS, _LABELS), job_id, changes)).result()

    def set_run_dir(self, job_id: str, run_dir: Path) -> None:
        """Change the run directory of a job."""
        self._update(job_id, list(State), {"run_dir": str(run_dir)})

    def finish(self, job_id: str, status: Status, finished: float, progress: dict[str, Any]) -> bool:
        """Store how a job ended. Returns whether it had not ended before."""
        active = [state for state in State if not state.is_terminal]
        return self._update(job_id, active, {**status.data, "finished": finished, "progress": progress})

    def expired(self, now: float, keep_s: float | None, limit: int = 100) -> list[Job]:
        """Ended jobs whose time is over: their own `ttl_s`, or else `keep_s`. Trials stay as long as their sweeps."""
        kept_s = JobRow.ttl_s if keep_s is None else func.coalesce(JobRow.ttl_s, keep_s)
        statement = _SELECT.where(JobRow.finished.is_not(None), JobRow.finished + kept_s < now, _NOT_SWEPT)
        with Session(self.engine) as session:
            return [_job(row) for row in session.scalars(statement.order_by(JobRow.id).limit(limit))]

    def removable(self, job_id: str) -> bool:
        """Whether a job has ended and is no trial, which stays as long as its sweep."""
        with Session(self.engine) as session:
            statement = select(JobRow.id).where(JobRow.id == job_id, JobRow.finished.is_not(None), _NOT_SWEPT)
            return session.scalar(statement) is not None

    def remove(self, job_id: str) -> None:
        """Remove an ended job and its key."""
        gone = delete(JobRow).where(JobRow.id == job_id, JobRow.finished.is_not(None))
        self.writer.submit(lambda connection: connection.execute(gone)).result()

    def remove_trials(self, sweep: str) -> None:
        """Remove the jobs of a sweep's trials, however they are."""
        mine = select(SweptRow.job_id).where(SweptRow.sweep == sweep)
        self.writer.submit(lambda connection: connection.execute(delete(JobRow).where(JobRow.id.in_(mine)))).result()

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
                RETRY_AFTER_S,
            )
    _check_project(connection, new.spec.project)
    while not _insert(connection, job := _new_job(new, runs_dir), new):
        if (known := _known(connection, new)) is not None:
            return Added(known, False)
        assert new.fork is None, "a fork's id is made for it alone"
        # Another job got this id in the same microsecond.
    if new.by is not None:
        insert_entry(connection, new.by, new.act.model_copy(update={"target": job.id}))
    return Added(job, True)


def _check_project(connection: Connection, name: str) -> None:
    """Raise SpecInvalid if the project has been deleted since the spec was looked at."""
    if name != "default" and connection.scalar(select(ProjectRow.name).where(ProjectRow.name == name)) is None:
        raise SpecInvalid([FieldError(pointer="/project", message=f"there is no project {name!r} any more")])


def _known(connection: Connection, new: Submission) -> Job | None:
    """The job that a submission's key stands for. Raises KeyReused if the submission differs from that job's."""
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
    """Insert a job, unless there is one with its id or key. Returns whether it was inserted.

    The statements are built once, and from tables instead of classes: building one takes longer than executing it.
    """
    values = {name: getattr(job, name) for name in _COLUMNS} | {"run_dir": str(job.run_dir), "ttl_s": new.spec.ttl_s}
    values |= {"idempotency_key": new.key, "body_hash": new.body_hash, "spec": AsJSON(new.json)}
    if connection.execute(_INSERT[connection.dialect.name], values).rowcount == 0:
        return False
    if job.labels:
        connection.execute(_INSERT_LABELS, [{"job_id": job.id, "key": k, "value": v} for k, v in job.labels.items()])
    return True


def _new_job(new: Submission, runs_dir: Path) -> Job:
    spec, (job_id, forked_from) = new.spec, new.fork or (new_job_id(), None)
    return Job(
        id=job_id,
        created=time.time(),
        name=spec.name,
        labels=spec.labels,
        priority=spec.priority,
        spec=from_json(new.json),
        **vars(SUBMITTED),
        run_dir=runs_dir / job_id,
        finished=None,
        progress=None,
        user=new.user,
        forked_from=forked_from,
        project=spec.project,
    )


def _job(row: JobRow) -> Job:
    fields = {name: getattr(row, name) for name in _COLUMNS}
    labels = {label.key: label.value for label in row.labels}
    fields["spec"] = {**row.spec, "name": row.name, "labels": labels, "priority": row.priority}  # as they are by now
    return Job(**fields, labels=labels)
