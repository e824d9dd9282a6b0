"""Connections: requests that never become whole, and answers that leave in one piece."""

import asyncio
import socket
import time
from urllib.parse import urlsplit

import pytest

from api.http import deadline
from api.http.one_write import OneWrite
from tests.api.conftest import Service

HEAD = b"POST /v1/jobs?dry_run=true HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WHOLE = HEAD + b"Content-Length: 2\r\n\r\n{}"
ANSWER = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.fixture
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "WITHIN_S", 1.0)


def connected(service: Service) -> socket.socket:
    parts = urlsplit(service.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=60)


def is_closed(connection: socket.socket) -> bool:
    """Waits until the other side closes it."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.usefixtures("shorter")
@pytest.mark.parametrize(
    "sent",
    [b"", HEAD[:20], HEAD, HEAD + b"Content-Length: 100\r\n\r\n{", WHOLE + HEAD],
    ids=["nothing", "half a line", "half the headers", "half the body", "one and a half"],
)
def test_half_a_request_is_not_waited_for_for_ever(service: Service, sent: bytes) -> None:
    with connected(service) as connection:
        connection.sendall(sent)
        assert is_closed(connection)


@pytest.mark.usefixtures("shorter")
def test_a_body_that_comes_in_drips_is_cut_off(service: Service) -> None:
    with connected(service) as connection:
        connection.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")

        def drip() -> None:
            for _ in range(600):
                connection.sendall(b" ")
                time.sleep(0.1)

        with pytest.raises(ConnectionError):
            drip()


@pytest.mark.usefixtures("shorter")
def test_half_a_second_request_is_not_waited_for_either(service: Service) -> None:
    with connected(service) as connection:
        connection.sendall(WHOLE)
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(HEAD)
        assert is_closed(connection)


@pytest.mark.usefixtures("shorter")
def test_an_answer_may_take_longer_than_that(service: Service) -> None:
    """A stream goes on, and a connection is good for the next request."""
    job = service.client.submit({})
    with connected(service) as connection:
        connection.sendall(f"GET /v1/jobs/{job.id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert b"200 OK" in connection.recv(65536)
        time.sleep(2)
        service.started(job.id).emit("log", level="info", message="after two seconds")
        text = b""
        while b"after two seconds" not in text:
            more = connection.recv(65536)
            assert more, text
            text += more


class Written(asyncio.Transport):
    """What was written, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []
        self.gone = False

    def is_closing(self) -> bool:
        return self.gone

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.calls.append(data)

    def writelines(self, list_of_data: object) -> None:
        self.calls.append(b"".join(list_of_data))  # type: ignore[arg-type]

    def close(self) -> None:
        self.calls.append(b"closed")


@pytest.mark.parametrize(
    ("writes", "calls"),
    [
        ([ANSWER, b"body"], [ANSWER + b"body"]),
        ([ANSWER, b"one", b"two"], [ANSWER + b"one", b"two"]),
        ([ANSWER, b"", ANSWER, b"body"], [ANSWER, ANSWER + b"body"]),
        ([ANSWER, ANSWER, b"body"], [ANSWER + ANSWER, b"body"]),
        ([ANSWER], [ANSWER]),
    ],
    ids=["with its body", "body in parts", "no body", "two heads", "waits for an event"],
)
def test_a_head_waits_for_what_follows(writes: list[bytes], calls: list[bytes]) -> None:
    async def written() -> list[bytes]:
        transport = Written()
        one = OneWrite(transport, asyncio.get_running_loop())
        for data in writes:
            one.write(data)
        await asyncio.sleep(0)
        return transport.calls

    assert asyncio.run(written()) == calls


def test_a_head_is_sent_before_the_connection_is_closed() -> None:
    async def written() -> list[bytes]:
        transport = Written()
        one = OneWrite(transport, asyncio.get_running_loop())
        one.write(ANSWER)
        one.close()
        await asyncio.sleep(0)
        return transport.calls

    assert asyncio.run(written()) == [ANSWER, b"closed"]


def test_a_head_is_not_sent_to_who_has_gone() -> None:
    async def written() -> list[bytes]:
        transport = Written()
        OneWrite(transport, asyncio.get_running_loop()).write(ANSWER)
        transport.gone = True
        await asyncio.sleep(0)
        return transport.calls

    assert asyncio.run(written()) == []
