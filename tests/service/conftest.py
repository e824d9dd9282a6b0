"""A manager on fake runs."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.database.job_store import Store
from service.jobs.assembly import build_manager
from service.jobs.manager import JobManager, JobView, ManagerConfig
from service.tracking.tracker import Tracking
from tests.service import postgres, sqlite
from tests.service.fakes import FakeRun, FakeRuns
from trainers.events import Event, State

Managed = Callable[..., AbstractAsyncContextManager[JobManager]]
DATABASES = ("sqlite", "postgresql")
NUMBERS = itertools.count()


@pytest.fixture
def runs() -> Iterator[FakeRuns]:
    fake = FakeRuns()
    yield fake
    fake.close()


@pytest.fixture(scope="session")
def postgres_folder() -> Iterator[str]:
    """A PostgreSQL for the whole session; the folder of its socket."""
    pytest.importorskip("psycopg", reason="PostgreSQL is spoken to through psycopg, which is not installed")
    programs = postgres.programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with postgres.server(programs) as folder:
        yield folder


@pytest.fixture(scope="session")
def postgres_tables(postgres_folder: str) -> str:
    """A database that has just been migrated; its name."""
    Store.open(postgres.create_database(postgres_folder, "tables")).close()
    return "tables"


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind that has no tables yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'jobs.db'}"
    return postgres.create_database(request.getfixturevalue("postgres_folder"), f"empty{next(NUMBERS)}")


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind, without jobs."""
    if request.param == "sqlite":
        return sqlite.create_database(tmp_path / "jobs.db")
    folder, tables = (request.getfixturevalue(name) for name in ("postgres_folder", "postgres_tables"))
    return postgres.create_database(folder, f"test{next(NUMBERS)}", tables)


@pytest.fixture
def managed(url: str, tmp_path: Path, runs: FakeRuns) -> Managed:
    """Opens a manager; called again, one that finds what the first left."""

    @asynccontextmanager
    async def open_manager(trackers: Sequence[Tracking] = (), **options: Any) -> AsyncIterator[JobManager]:
        store = Store.open(url)
        config = ManagerConfig(tmp_path / "runs", tmp_path, poll_s=0.01, **options)
        manager = build_manager(store, runs, config, trackers=trackers)
        await manager.start()
        try:
            yield manager
        finally:
            await manager.stop()
            store.close()

    return open_manager


def small(**fields: object) -> dict[str, object]:
    """A job's spec as plain data."""
    return {"epochs": 4, **fields}


async def eventually(holds: Callable[[], Awaitable[bool]], within_s: float = 120.0) -> None:
    """Wait until something that nothing announces has come about."""
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def reached(manager: JobManager, job_id: str, *states: State) -> JobView:
    """The job, once the service knows that it is in one of these states."""

    async def holds() -> bool:
        return (await manager.show(job_id)).state in states

    await eventually(holds)
    return await manager.show(job_id)


async def started(runs: FakeRuns, job_id: str) -> FakeRun:
    """The job's run, once it has been started."""

    async def holds() -> bool:
        return job_id in runs.runs

    await eventually(holds)
    return runs.runs[job_id]


async def again(runs: FakeRuns, job_id: str, before: FakeRun) -> FakeRun:
    """The job's next run."""

    async def holds() -> bool:
        return runs.runs[job_id] is not before

    await eventually(holds)
    return runs.runs[job_id]


async def all_events(manager: JobManager, job_id: str, after: int = 0) -> list[Event]:
    """The whole log, to its end."""
    async with asyncio.timeout(120):
        return [event async for batch in await manager.events(job_id, after) for event in batch]
