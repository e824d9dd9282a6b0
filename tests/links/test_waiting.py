"""The flag that says that a thread waits for another process."""

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainers.errors import PeerLost
from trainers.links.channel import SocketChannel, connect, listen
from trainers.links.handle import Handle
from trainers.links.waiting import WaitFlag, wait_flag


def test_a_handle_raises_the_flag_of_its_thread_as_long_as_it_waits() -> None:
    seen: list[bool] = []
    handle = Handle(lambda: seen.append(wait_flag().is_raised))
    assert not wait_flag().is_raised
    handle.wait()
    assert seen == [True]
    assert not wait_flag().is_raised


def test_a_handle_that_waits_for_another_lowers_it_once_at_the_end() -> None:
    inner = Handle(lambda: None)
    outer = Handle(lambda: (inner.wait(), wait_flag().is_raised)[1])
    assert outer.wait()
    assert not wait_flag().is_raised


def test_a_wait_that_fails_lowers_it_too() -> None:
    def lose() -> None:
        raise PeerLost("worker 1 is gone")

    with pytest.raises(PeerLost):
        Handle(lose).wait()
    assert not wait_flag().is_raised


def raised_meanwhile(call: Callable[[], object], end: Callable[[], object]) -> bool:
    """Whether a thread that stands still in a call has its flag raised; `end` lets it go on."""
    flags: list[WaitFlag] = []
    raised, began = threading.Event(), threading.Event()

    def body() -> None:
        flags.append(wait_flag())
        began.set()
        call()

    thread = threading.Thread(target=body)
    thread.start()
    began.wait(60)
    for _ in range(6000):
        if flags[0].is_raised:
            raised.set()
            break
        thread.join(0.01)
    assert not wait_flag().is_raised, "it is the other thread's"
    end()
    thread.join(60)
    assert not thread.is_alive()
    assert not flags[0].is_raised
    return raised.is_set()


@pytest.fixture
def channels(tmp_path: Path) -> Iterator[tuple[SocketChannel, SocketChannel]]:
    server = listen(tmp_path / "channel")
    here = connect(tmp_path / "channel", "there", timeout_s=5)
    there = SocketChannel(server.accept()[0], "here")
    server.close()
    yield here, there
    here.close()
    there.close()


def test_whoever_waits_for_a_message_has_it_raised(channels: tuple[SocketChannel, SocketChannel]) -> None:
    here, there = channels
    assert raised_meanwhile(here.receive, lambda: there.send(b"at last"))


def test_whoever_sends_to_one_that_reads_nothing_has_it_raised(channels: tuple[SocketChannel, SocketChannel]) -> None:
    here, there = channels
    there.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

    def fill() -> None:
        while True:
            here.send(b"x" * 200)

    def fill_until_it_is_gone() -> None:
        with pytest.raises(PeerLost):
            fill()

    assert raised_meanwhile(fill_until_it_is_gone, there.close)
