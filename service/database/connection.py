"""The database behind the store: SQLite, or PostgreSQL by a URL. It opens, migrates and locks it, and writes to it."""

import json
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError

from service.database.network_disk import network_disk
from service.errors import (
    DatabaseBusy,
    DatabaseDamaged,
    DatabaseNewer,
    DatabaseRemote,
    ServiceError,
    StorageFull,
)

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
MAX_BATCH = 256
"""The most writes in one transaction."""
BATCH_EVERY_S = 0.05
"""The least time between two transactions of writes that may wait. To make a transaction durable costs more than to
write it, so concurrent writes share one. A single write does not wait."""
ENOUGH = 16
"""So many writes wait no longer: over n connections that each wait for an answer, no more than n would come in
`BATCH_EVERY_S`, also where there is a pause to make up for."""
MIGRATIONS = Path(__file__).parent / "migrations"
FIRST = "0001"
"""The version of a database without one, which is from before there were versions."""
LOCK = 0x4D696C6C
"""The advisory lock that a service holds in PostgreSQL; a migration holds the next one."""
HELD_S = 2.0
"""How long PostgreSQL may take to notice that a service was killed."""
DISK_FULL = "53100"  # of PostgreSQL


class AsJSON(str):
    """What a column of JSON is to hold, as text already."""

    __slots__ = ()


def connect(url: str, foreign_keys: bool = True) -> Engine:
    """An engine for the URL. For PostgreSQL it uses psycopg 3 if the URL names no driver."""
    parsed = make_url(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    is_sqlite = parsed.get_backend_name() == "sqlite"
    engine = create_engine(parsed, pool_pre_ping=not is_sqlite, json_serializer=_serialized)
    if is_sqlite:
        event.listen(engine, "connect", lambda connection, _: _tune_sqlite(connection, foreign_keys))
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _serialized(value: Any) -> str:
    return value if isinstance(value, AsJSON) else json.dumps(value)


def migrate(url: str) -> None:
    """Create the tables, or migrate those of an earlier Millrace, in one transaction.

    Raises:
        DatabaseNewer: A later Millrace wrote them.
        DatabaseDamaged: They are not whole.
        DatabaseRemote: SQLite's file would lie on a network file system.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    _check_place(url)
    engine = connect(url, foreign_keys=False)  # otherwise rebuilding a table would remove the rows that refer to it
    try:
        _check_sqlite(engine)
        with engine.connect().execution_options(writes=True) as connection, connection.begin():
            if engine.dialect.name != "sqlite":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK + 1})
            found = MigrationContext.configure(connection).get_current_revision()
            if found is not None and found not in known:
                raise DatabaseNewer(
                    f"the database is of version {found}, and this Millrace knows versions up to {max(known)}: install "
                    "the Millrace that wrote it, or use another database"
                )
            config.attributes["connection"] = connection
            if found is None and inspect(connection).has_table("jobs"):
                command.stamp(config, FIRST)
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def hold(engine: Engine) -> Connection | None:
    """Become the only service on a database that several machines reach, for as long as the connection is open.

    Raises:
        DatabaseBusy: Another service holds it.
    """
    if engine.dialect.name == "sqlite":
        return None
    connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    deadline = time.monotonic() + HELD_S
    while not connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": LOCK}).scalar():
        if time.monotonic() > deadline:
            connection.close()
            raise DatabaseBusy("another service works on this database; stop it, or use another database")
        time.sleep(0.1)
    return connection


def release(connection: Connection) -> None:
    """Release the database for another service."""
    connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": LOCK})
    connection.close()


@dataclass(frozen=True)
class Write(Generic[T]):
    """One write, and what follows from it."""

    work: Callable[[Connection], T]
    then: Callable[[T], T] | None
    may_wait: bool
    future: "Future[T]"


class Writer:
    """The one thread that writes. Writes that wait share a transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting: queue.SimpleQueue[Write[Any] | None] = queue.SimpleQueue()
        self.hurry = threading.Event()  # a write has come that may not wait
        self.next_s = 0.0
        self.thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def submit(
        self, work: Callable[[Connection], T], then: Callable[[T], T] | None = None, may_wait: bool = False
    ) -> "Future[T]":
        """The result of `work` once it is durable.

        Args:
            work: Writes. If it raises, nothing has changed. It raises a ServiceError before it writes anything.
            then: Called with the durable result, in the writer's thread; its result is returned instead.
            may_wait: Wait for other writes to share a transaction with, if there was one just now.
        """
        future: Future[T] = Future()
        self.waiting.put(Write(work, then, may_wait, future))
        if not may_wait or self.waiting.qsize() >= ENOUGH:
            self.hurry.set()
        return future

    def close(self) -> None:
        """Write what is pending, then stop."""
        self.waiting.put(None)
        self.hurry.set()
        self.thread.join()

    def _run(self) -> None:
        while batch := self._next():
            if len(batch) == 1 or not self._commit(batch):
                for one in batch:
                    self._alone(one)

    def _next(self) -> list[Write[Any]]:
        """The writes of the next transaction; none after the last one."""
        batch, more = list[Write[Any]](), self.waiting.get()
        if more is not None and more.may_wait and (wait_s := self.next_s - time.monotonic()) > 0:
            self.hurry.wait(
                wait_s
            )  # writes that come meanwhile and may wait do not wake the thread, which would cost more than writing
        self.hurry.clear()
        while more is not None:
            batch.append(more)
            if len(batch) == MAX_BATCH or self.waiting.empty():
                break
            more = self.waiting.get()
        else:
            if batch:
                self.waiting.put(None)
        self.next_s = time.monotonic() + BATCH_EVERY_S
        return batch

    def _commit(self, batch: list[Write[Any]]) -> bool:
        """Do all writes in one transaction. False if one failed: then none has happened, and no future is resolved."""
        results: list[tuple[Write[Any], Any, Exception | None]] = []
        try:
            with self.engine.connect().execution_options(writes=True) as connection, connection.begin():
                for one in batch:
                    try:
                        results.append((one, one.work(connection), None))
                    except ServiceError as refused:
                        results.append((one, None, refused))
        except Exception:
            return False
        outcomes = [(one, *_then(one, result, error)) for one, result, error in results]
        for one, result, error in outcomes:  # together, because each one wakes a waiting thread
            _resolve(one, result, error)
        return True

    def _alone(self, one: Write[Any]) -> None:
        try:
            with self.engine.connect().execution_options(writes=True) as connection, connection.begin():
                result = one.work(connection)
        except Exception as error:
            _resolve(one, None, _named(error))
        else:
            _resolve(one, *_then(one, result, None))


def _then(one: Write[Any], result: Any, error: Exception | None) -> tuple[Any, Exception | None]:
    """The outcome of a durable write."""
    if error is None and one.then is not None:
        try:
            return one.then(result), None
        except Exception as failed:
            return None, failed
    return result, error


def _resolve(one: Write[Any], result: Any, error: Exception | None) -> None:
    if not one.future.set_running_or_notify_cancel():
        return
    if error is None:
        one.future.set_result(result)
    else:
        one.future.set_exception(error)


def _named(error: Exception) -> Exception:
    """StorageFull if the error means that, otherwise the error itself."""
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", None) or getattr(cause, "sqlstate", None)
    if code not in (sqlite3.SQLITE_FULL, DISK_FULL):
        return error
    return StorageFull("the database's disk is full; nothing was taken in: make room and try again")


def _check_place(url: str) -> None:
    """Raises DatabaseRemote for SQLite on a network file system, before there is a file."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return
    if (disk := network_disk(Path(parsed.database))) is not None:
        raise DatabaseRemote(
            f"the database {parsed.database} would lie on a network file system ({disk}), where SQLite may lose jobs: "
            "set MILLRACE_DATABASE to a PostgreSQL, as postgresql://USER@HOST/NAME, or to a file on a disk of this "
            "machine, as sqlite:////FOLDER/millrace.db; the runs may stay where they are"
        )


def _check_sqlite(engine: Engine) -> None:
    """Raises DatabaseDamaged for a file that is cut off or altered, before anything is written to it."""
    if engine.dialect.name != "sqlite":
        return
    try:
        with engine.connect() as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    except DatabaseError as error:
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
        found = str(error.orig)
    if found != "ok":
        what = " ".join(str(found).split())
        raise DatabaseDamaged(
            f"the database {engine.url.database} is damaged ({what}). Logs, checkpoints and models of the jobs lie in "
            "their folders and are not touched. Put a copy of the database in its place, or move it away, with the "
            "files that begin with its name, and begin with an empty list of jobs"
        )


def _tune_sqlite(connection: Any, foreign_keys: bool) -> None:
    """Allow readers beside one writer, and make commits survive a power failure at any moment."""
    connection.isolation_level = None  # transactions begin where SQLAlchemy begins them
    pragmas = (
        "journal_mode=WAL",
        f"busy_timeout={BUSY_TIMEOUT_MS}",
        "synchronous=FULL",
        f"foreign_keys={foreign_keys}",
    )
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at once: a transaction that has read before could not wait for it."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
