"""Ctrl-C reaches whoever waits for a stream, also just before it begins to wait."""

import os
import signal
import socket
from collections.abc import Iterator

import pytest

from api.cli.interruptible import interruptible


def test_items_and_errors_come_as_they_are() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("gone")

    found = interruptible(items())
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(OSError, match="gone"):
        next(found)
    assert list(interruptible(iter([]))) == []


def test_a_signal_is_heard_while_a_read_blocks_that_does_not_notice_it() -> None:
    """As one that came before the read began: here it goes to another thread than the one that reads."""
    near, far = socket.socketpair()
    with near, far:

        def items() -> Iterator[bytes]:
            os.kill(os.getpid(), signal.SIGINT)
            yield near.recv(1)

        with pytest.raises(KeyboardInterrupt):
            next(interruptible(items()))
        far.send(b"x")
