"""The database behind the store: SQLite, or PostgreSQL by a URL. Opened, brought up to date, written by one thread."""

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

from service.errors import DatabaseBusy, DatabaseNewer, ServiceError, StorageFull

T = TypeVar("T")

BUSY_TIMEOUT_MS = 10_000
AT_ONCE = 256
"""Writes that wait for each other's transaction."""
APART_S = 0.05
"""Least time between two transactions of what may wait: to make one durable costs more than to write it, so a crowd
shares it. Who comes alone does not wait."""
MIGRATIONS = Path(__file__).parent / "migrations"
FIRST = "0001"
"""What a database without a version is: one from before there were versions."""
LOCK = 0x4D696C6C
"""The advisory lock in PostgreSQL that one service holds, and whoever brings the tables up to date."""
HELD_S = 2.0
"""How long PostgreSQL may take to notice that a service was killed."""
DISK_FULL = "53100"  # of PostgreSQL


def connect(url: str, foreign_keys: bool = True) -> Engine:
    """An engine for the URL; of PostgreSQL with psycopg 3, if the URL leaves that open."""
    parsed = make_url(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    is_sqlite = parsed.get_backend_name() == "sqlite"
    engine = create_engine(parsed, pool_pre_ping=not is_sqlite)
    if is_sqlite:
        event.listen(engine, "connect", lambda connection, _: _tune_sqlite(connection, foreign_keys))
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def migrate(url: str) -> None:
    """Create the tables, or bring those of an earlier Millrace up to date: wholly, or not at all.

    Raises:
        DatabaseNewer: A later Millrace wrote them.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    engine = connect(url, foreign_keys=False)  # else a table that is written anew takes along what refers to it
    try:
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
    """Become the only service on a database that several machines reach, as long as the connection stands.

    Raises:
        DatabaseBusy: Another service is there.
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
    """Let another service have the database."""
    connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": LOCK})
    connection.close()


@dataclass(frozen=True)
class Write(Generic[T]):
    """Something that is to be written."""

    work: Callable[[Connection], T]
    then: Callable[[T], T] | None
    may_wait: bool
    future: "Future[T]"


class Writer:
    """The one thread that writes. What waits goes into one transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiting: queue.SimpleQueue[Write[Any] | None] = queue.SimpleQueue()
        self.hurry = threading.Event()  # somebody came who may not wait
        self.next_s = 0.0
        self.thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def submit(
        self, work: Callable[[Connection], T], then: Callable[[T], T] | None = None, may_wait: bool = False
    ) -> "Future[T]":
        """Its result once it is durable, or what `then`, in the writer's thread, makes of that. Whatever `work` raises
        has changed nothing; what the service refuses (ServiceError), it refuses before it writes. may_wait: for others
        to share its transaction with, if there was one just now."""
        future: Future[T] = Future()
        self.waiting.put(Write(work, then, may_wait, future))
        if not may_wait:
            self.hurry.set()
        return future

    def close(self) -> None:
        """Write what waits, then end."""
        self.waiting.put(None)
        self.hurry.set()
        self.thread.join()

    def _run(self) -> None:
        while batch := self._next():
            if len(batch) == 1 or not self._commit(batch):
                for one in batch:
                    self._alone(one)

    def _next(self) -> list[Write[Any]]:
        """What shares a transaction; nothing once all is written that ever will be."""
        batch, more = list[Write[Any]](), self.waiting.get()
        if more is not None and more.may_wait and (wait_s := self.next_s - time.monotonic()) > 0:
            self.hurry.wait(wait_s)  # who comes meanwhile and may wait wakes nobody: that costs more than to write it
        self.hurry.clear()
        while more is not None:
            batch.append(more)
            if len(batch) == AT_ONCE or self.waiting.empty():
                break
            more = self.waiting.get()
        else:
            if batch:
                self.waiting.put(None)
        self.next_s = time.monotonic() + APART_S
        return batch

    def _commit(self, batch: list[Write[Any]]) -> bool:
        """All in one transaction. False if one of them failed: then nothing happened, and nobody was told."""
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
        told = [(one, *_then(one, result, error)) for one, result, error in results]
        for one, result, error in told:  # all at once: each wakes who waits for it
            _tell(one, result, error)
        return True

    def _alone(self, one: Write[Any]) -> None:
        try:
            with self.engine.connect().execution_options(writes=True) as connection, connection.begin():
                result = one.work(connection)
        except Exception as error:
            _tell(one, None, _named(error))
        else:
            _tell(one, *_then(one, result, None))


def _then(one: Write[Any], result: Any, error: Exception | None) -> tuple[Any, Exception | None]:
    """What becomes of a result that is durable."""
    if error is None and one.then is not None:
        try:
            return one.then(result), None
        except Exception as failed:
            return None, failed
    return result, error


def _tell(one: Write[Any], result: Any, error: Exception | None) -> None:
    if not one.future.set_running_or_notify_cancel():
        return
    if error is None:
        one.future.set_result(result)
    else:
        one.future.set_exception(error)


def _named(error: Exception) -> Exception:
    """The same, or StorageFull where that is what it means."""
    cause = getattr(error, "orig", None)
    code = getattr(cause, "sqlite_errorcode", None) or getattr(cause, "sqlstate", None)
    if code not in (sqlite3.SQLITE_FULL, DISK_FULL):
        return error
    return StorageFull("the database's disk is full; nothing was taken in: make room and try again")


def _tune_sqlite(connection: Any, foreign_keys: bool) -> None:
    """Readers beside one writer, who is waited for; what was committed survives the machine's end at any moment."""
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
    """Who will write waits for its turn at once; one who has read before could not."""
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
