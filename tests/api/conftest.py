"""A service over real HTTP, in a thread, on fake runs."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from api import Client, Server, Streams, bind, create_app
from service import ClusterInfo, JobManager, Store
from tests.service.fakes import FakeRun, FakeRuns

INFO = ClusterInfo(address="192.0.2.1:6379", dashboard_url="http://127.0.0.1:8265")


@dataclass
class Service:
    """One running server."""

    url: str
    runs: FakeRuns
    http: httpx2.Client
    client: Client
    stop: Callable[[], None]

    def started(self, job_id: str) -> FakeRun:
        """The job's run, once it has been started."""
        eventually(lambda: job_id in self.runs.runs)
        return self.runs.runs[job_id]


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Wait until something that nothing announces has come about."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts servers on one database and one set of runs: each next one is a restart."""
    runs = FakeRuns()
    running = ExitStack()

    def start(port: int = 0, ping_s: float = 15.0) -> Service:
        listening = bind("127.0.0.1", port)
        url = "http://{}:{}".format(*listening.getsockname())
        store = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
        manager = JobManager(store, runs, tmp_path / "runs", tmp_path, poll_s=0.01)
        streams = Streams(ping_s=ping_s)
        server = Server(create_app(manager, INFO, streams), streams)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])))
        http, client = httpx2.Client(base_url=url, trust_env=False), Client(url, patience_s=10)
        thread.start()

        def stop() -> None:
            server.close()
            thread.join(10)
            assert not thread.is_alive(), "the server does not stop"
            listening.close()
            store.close()
            http.close()
            client.close()

        once = running.enter_context(ExitStack())
        once.callback(stop)
        eventually(lambda: server.started)
        return Service(url, runs, http, client, once.close)

    with running:
        yield start
    runs.close()


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    return serve()
