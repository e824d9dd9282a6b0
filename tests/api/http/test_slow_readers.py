"""Readers that take their events slowly, or never: nobody else notices, and nothing piles up for them."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api.http import sse
from service import CheckpointView
from tests.api.conftest import Service, eventually
from tests.api.streams import assert_whole
from trainers.events import Event, State

NEVER = 8
EVENTS = 3000
TEXT = "x" * 2000


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of events in the order in which they were written for somebody."""
    numbers: list[int] = []
    encode = sse.encode

    def counted(event: Event) -> bytes:
        numbers.append(event.seq)
        return encode(event)

    monkeypatch.setattr(sse, "encode", counted)
    return numbers


def asked(service: Service, path: str) -> socket.socket:
    """A connection on which something was asked for and nothing is read."""
    parts = urlsplit(service.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect((parts.hostname, parts.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


@pytest.fixture
def lazy() -> Iterator[ExitStack]:
    with ExitStack() as connections:
        yield connections


def test_who_never_reads_slows_nobody(service: Service, encoded: list[int], lazy: ExitStack) -> None:
    job = service.client.submit({})
    run = service.started(job.id)
    run.state(State.RUNNING)
    for _ in range(EVENTS):
        run.emit("log", level="info", message=TEXT)
    eventually(lambda: service.client.get(job.id).state is State.RUNNING)
    for path in ("events", "logs"):
        for _ in range(NEVER // 2):
            lazy.enter_context(asked(service, f"/v1/jobs/{job.id}/{path}"))
    slow = lazy.enter_context(asked(service, f"/v1/jobs/{job.id}/events"))
    assert slow.recv(100).startswith(b"HTTP/1.1 200")
    events = service.client.events(job.id)
    seen = [next(events) for _ in range(EVENTS)]
    assert slow.recv(100)  # it goes on at its own pace
    run.step(1.0)
    run.succeed()
    seen += events
    assert_whole(seen)
    assert len(seen) == EVENTS + 5
    assert service.client.submit({}).id != job.id  # and everything else goes on too
    # Nothing was made ready for the others beyond a first batch or so: what they do not take stays in the file.
    assert len(encoded) < len(seen) * 1.5 + (NEVER + 1) * 1000


def test_a_storage_that_does_not_answer_keeps_nobody_out(
    serve: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = serve(is_required=True)
    shown, gate = guarded.bearer("user"), threading.Event()
    guarded.client.http.headers.update(shown)
    job = guarded.client.submit({"name": "first"})

    def checkpoints(_: Path) -> list[CheckpointView]:
        assert gate.wait(60)
        return []

    monkeypatch.setattr("service.jobs.reader.checkpoints", checkpoints)
    with ThreadPoolExecutor(40) as pool:  # more than the threads that the event loop has for all
        stuck = [pool.submit(guarded.http.get, f"/v1/jobs/{job.id}/checkpoints", headers=shown) for _ in range(40)]
        assert guarded.http.get("/v1/jobs", headers=shown).json()["jobs"]
        assert guarded.http.get(f"/v1/jobs/{job.id}", headers=shown).json()["name"] == "first"
        assert not any(one.done() for one in stuck)
        gate.set()
        assert {one.result().status_code for one in stuck} == {200}
