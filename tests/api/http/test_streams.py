"""Event streams over real HTTP: resumed without a gap or a repeat, ended, kept alive."""

import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from api import Client, Refused, Unreachable
from benchmarks.measurement.processes import free_port
from service import Role
from tests.api.conftest import Service, eventually
from tests.api.streams import assert_whole, read_with_cuts
from trainers.events import Event, State

SPEC = {"epochs": 4}


def test_a_stream_that_is_cut_ten_times_comes_out_whole(service: Service) -> None:
    job = service.client.submit(SPEC)
    run = service.started(job.id)
    run.state(State.RUNNING)

    def between(cut: int) -> None:
        for step in range(3):
            run.step(cut + step / 10)
        if cut == 9:
            run.succeed()

    for step in range(5):
        run.step(step / 10)
    events = read_with_cuts(service.url, job.id, 10, between)
    assert_whole(events)
    assert len(events) == 1 + 1 + 5 + 30 + 2
    stored = service.http.get(f"/v1/jobs/{job.id}/events", headers={"Accept": "application/json"}).json()
    assert [Event.model_validate(event) for event in stored] == events


def test_the_client_goes_on_through_a_line_that_breaks_anywhere(service: Service) -> None:
    job = service.client.submit(SPEC)
    run = service.started(job.id)
    run.state(State.RUNNING)
    for step in range(60):
        run.step(step / 10, loss=step / 7)
    run.succeed()
    with cutting_proxy(service.url, after_bytes=1777) as (url, connections), Client(url, patience_s=10) as client:
        events = list(client.events(job.id))
    assert len(connections) > 10
    assert_whole(events)
    assert events == list(service.client.events(job.id))
    assert list(service.client.events(job.id, after=60)) == events[60:]


def test_the_client_goes_on_when_the_server_is_restarted(serve: Callable[..., Service]) -> None:
    first = serve(port := free_port())
    job = first.client.submit(SPEC)
    run = first.started(job.id)
    run.state(State.RUNNING)
    seen: list[Event] = []
    with Client(first.url, patience_s=120) as client:
        reader = threading.Thread(target=lambda: seen.extend(client.events(job.id)))
        reader.start()
        eventually(lambda: bool(seen))
        first.stop()
        run.step(1.0)
        second = serve(port)
        run.step(2.0)
        run.succeed()
        reader.join(60)
        assert not reader.is_alive()
        assert_whole(seen)
        assert second.client.wait(job.id).state is State.SUCCEEDED


def test_after_and_last_event_id(service: Service) -> None:
    job = service.client.submit(SPEC)
    run = service.started(job.id)
    run.step(1.0)
    run.succeed()
    service.client.wait(job.id)

    def numbers(path: str, **headers: str) -> list[int]:
        with service.http.sse(f"/v1/jobs/{job.id}/events{path}", headers=headers) as source:
            return [int(message.id) for message in source if message.data]

    assert numbers("") == [1, 2, 3, 4]
    assert numbers("?after=2") == [3, 4]
    assert numbers("?after=1", **{"Last-Event-ID": "3"}) == [4]
    assert numbers("?after=99") == []
    for headers, path, pointer in (
        ({"Last-Event-ID": "x"}, "", "/header/Last-Event-ID"),
        ({}, "?after=-1", "/query/after"),
        ({}, "?after=x", "/query/after"),
    ):
        answer = service.http.get(f"/v1/jobs/{job.id}/events{path}", headers=headers)
        assert answer.status_code == 422
        assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


def test_a_silent_stream_pings_and_a_stopping_server_ends_it(serve: Callable[..., Service]) -> None:
    service = serve(ping_s=0.05)
    job = service.client.submit(SPEC)
    service.started(job.id)
    with service.http.stream("GET", f"/v1/jobs/{job.id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        pings = 0
        while pings < 3:
            pings += next(lines) == ": ping"
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        assert all("FAILED" not in line for line in lines)  # it ends, and claims no end of the job
        stopping.join(120)
        assert not stopping.is_alive()


def test_a_stream_is_ended_in_the_end_and_taken_up_again(serve: Callable[..., Service]) -> None:
    """So that nobody reads on for ever whose token was revoked."""
    service = serve(longest_s=0.2)
    job = service.client.submit(SPEC)
    run = service.started(job.id)
    with service.http.sse(f"/v1/jobs/{job.id}/events") as source:
        assert [message.event for message in source if message.data] == ["state"]  # it ends; the job does not
    seen: list[Event] = []
    reader = threading.Thread(target=lambda: seen.extend(service.client.events(job.id)))
    reader.start()
    for step in range(3):
        eventually(lambda step=step: len(seen) == 1 + step)  # type: ignore[misc]
        run.step(float(step))
    run.succeed()
    reader.join(60)
    assert_whole(seen)
    revoked, text = service.tokens.create("ann", Role.viewer)
    other = service.client.submit(SPEC)
    with Client(service.url, token=text) as client:
        events = client.events(other.id)
        next(events)
        service.tokens.revoke(revoked.id)
        with pytest.raises(Refused) as refused:
            list(events)
    assert refused.value.problem.status == 401


def test_logs_as_text_and_as_a_stream(service: Service) -> None:
    job = service.client.submit(SPEC)
    run = service.started(job.id)
    run.emit("log", level="warning", message="the second worker is slow")
    run.step(1.0)
    run.succeed()
    service.client.wait(job.id)
    answer = service.http.get(f"/v1/jobs/{job.id}/logs")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "WARNING the second worker is slow" in answer.text
    assert answer.text == service.client.logs(job.id)
    with service.http.sse(f"/v1/jobs/{job.id}/logs") as source:
        assert [message.event for message in source if message.data] == ["state", "log", "state"]


def test_the_client_says_what_is_wrong(service: Service) -> None:
    with pytest.raises(Refused) as refused:
        list(service.client.events("nosuchjob"))
    assert refused.value.problem.status == 404
    with Client("http://127.0.0.1:9") as client, pytest.raises(Unreachable, match="millrace serve"):
        list(client.events("any"))


class cutting_proxy:  # noqa: N801
    """A TCP proxy that closes every connection after so many bytes of an answer."""

    def __init__(self, url: str, after_bytes: int) -> None:
        parts = urlsplit(url)
        self.target = (parts.hostname or "", parts.port or 0)
        self.after_bytes = after_bytes
        self.connections: list[int] = []
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.run)

    def __enter__(self) -> tuple[str, list[int]]:
        self.thread.start()
        return "http://{}:{}".format(*self.listening.getsockname()), self.connections

    def __exit__(self, *_: object) -> None:
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.thread.join(30)
        assert not self.thread.is_alive()

    def run(self) -> None:
        for incoming in self.accepted():
            with incoming, socket.create_connection(self.target) as outgoing:
                request = incoming.recv(65536)  # the whole of it: it is small
                outgoing.sendall(request.replace(b"keep-alive", b"close"))
                left = self.after_bytes
                while left > 0 and (data := outgoing.recv(left)):
                    incoming.sendall(data)
                    left -= len(data)
                self.connections.append(self.after_bytes - left)

    def accepted(self) -> Iterator[socket.socket]:
        while True:
            try:
                yield self.listening.accept()[0]
            except OSError:
                return


def test_a_token_that_is_revoked_ends_its_streams_and_no_others(serve: Callable[..., Service]) -> None:
    """Revoked by another process on the database, as `millrace token revoke` is."""
    service = serve(ping_s=900.0)
    job = service.client.submit(SPEC)
    run = service.started(job.id)
    (revoked, text), (_, kept) = (service.tokens.create(user, Role.viewer) for user in ("ann", "bob"))
    ends: dict[str, str] = {}

    def read(user: str, token: str) -> None:
        with Client(service.url, token=token) as client:
            try:
                ends[user] = str(list(client.events(job.id))[-1].data["state"])
            except Refused as refused:
                ends[user] = str(refused.problem.status)

    readers = [threading.Thread(target=read, args=pair) for pair in (("ann", text), ("bob", kept))]
    for reader in readers:
        reader.start()
    service.tokens.revoke(revoked.id)
    readers[0].join(60)
    assert ends == {"ann": "401"}  # while nothing happened to the job
    run.succeed()
    readers[1].join(60)
    assert ends == {"ann": "401", "bob": "SUCCEEDED"}
