"""A service over real HTTP, in a thread, on fake runs."""

import asyncio
import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from api import Access, AppConfig, Client, Server, Streams, bind, create_app
from api.http import fair_process
from service import (
    ClusterInfo,
    ManagerConfig,
    Mirror,
    Quotas,
    Role,
    Sender,
    SignIn,
    Store,
    SweepManager,
    Tokens,
    Webhooks,
    build_manager,
    certificates,
    networks,
)
from tests.api.sign_in.provider import Provider, providing
from tests.service import sqlite
from tests.service.fakes import FakeRun, FakeRuns

NO_QUOTAS = Quotas()
STANDING = SimpleNamespace(
    get_threshold=gc.get_threshold, set_threshold=gc.set_threshold, collect=int, freeze=int, unfreeze=int
)
"""In place of the module `gc`: a server that starts looks at all that stands, which is a whole session here."""
OWN_PROCESS = fair_process.own_process
INFO = ClusterInfo(address="192.0.2.1:6379", dashboard_url="http://127.0.0.1:8265")


@dataclass
class Service:
    """One running server."""

    url: str
    runs: FakeRuns
    http: httpx2.Client
    client: Client
    stop: Callable[[], None]
    tokens: Tokens

    def bearer(self, role: str, user: str = "ann") -> dict[str, str]:
        """The header of somebody with a role."""
        return {"Authorization": f"Bearer {self.tokens.create(user, Role(role))[1]}"}

    def started(self, job_id: str) -> FakeRun:
        """The job's run, once it has been started."""
        eventually(lambda: job_id in self.runs.runs)
        return self.runs.runs[job_id]


def eventually(holds: Callable[[], bool], within_s: float = 120.0) -> None:
    """Wait until something that nothing announces has come about."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts servers on one database and one set of runs: each next one is a restart."""
    with serving(tmp_path) as start:
        yield start


class KeptProcess(Executor):
    """The process in which services read large specs and make plans, kept for the next service: to import torch in a
    new one takes longer than most of the tests that need it."""

    def __init__(self) -> None:
        self.process = OWN_PROCESS()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.process.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """A service that ends has nothing in it any more, and the process ends with this one."""


kept_process = functools.cache(KeptProcess)


@contextmanager
def serving(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """The same for as long as its body lasts."""
    runs = FakeRuns()
    running = ExitStack()

    def start(
        port: int = 0,
        ping_s: float = 15.0,
        allow: str | None = None,
        quotas: Quotas = NO_QUOTAS,
        longest_s: float = 900.0,
        mirror: Mirror | None = None,
        sign_in: Callable[[str, Tokens], SignIn] | None = None,
        **access: Any,
    ) -> Service:
        listening = bind("127.0.0.1", port)
        url = "http://{}:{}".format(*listening.getsockname())
        store = Store.open(sqlite.create_database(tmp_path / "jobs.db"))
        config = ManagerConfig(tmp_path / "runs", tmp_path, 0.01, quotas, measure_s=0.2)
        manager = build_manager(store, runs, config, mirror)
        sweeps = SweepManager(manager, tmp_path / "sweeps", tmp_path, poll_s=0.01)
        streams, tokens = Streams(ping_s, longest_s), Tokens(store.engine)
        if sign_in is not None:
            access |= {"is_required": True, "sign_in": sign_in(url, tokens)}
        allowed = networks((allow,)) if allow else ()
        hooks, look_every_s = Webhooks(store.engine, sweeps.folder), 0.02 if allow else 0.5
        sender = Sender(hooks, allowed, look_every_s, retry_after_s=(0.01,) * 3)
        app = AppConfig(streams, Access(tokens, **access), tmp_path / "site")
        server = Server(create_app(manager, sweeps, INFO, app, sender), streams)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        http = httpx2.Client(base_url=url, trust_env=False, verify=certificates(), timeout=60)
        client = Client(url, patience_s=10)
        thread.start()

        def stop() -> None:
            server.close()
            thread.join(120)
            assert not thread.is_alive(), "the server does not stop"
            listening.close()
            store.close()
            http.close()
            client.close()

        once = running.enter_context(ExitStack())
        once.callback(stop)
        eventually(lambda: server.started)
        return Service(url, runs, http, client, once.close, tokens)

    with pytest.MonkeyPatch.context() as patch, running:
        patch.setattr("api.http.server.gc", STANDING)
        if fair_process.own_process is OWN_PROCESS:  # else a test has put another in its place
            patch.setattr(fair_process, "own_process", kept_process)
        yield start
    runs.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests of a file that leave nothing behind on it."""
    with serving(tmp_path_factory.mktemp("shared")) as start:
        yield start()


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    return serve()


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A sign-in provider over HTTP."""
    with providing() as one:
        yield one


@pytest.fixture
def guarded(serve: Callable[..., Service], provider: Provider) -> Service:
    """A service that signs people in through it."""
    return serve(sign_in=provider.sign_in)
