"""A call that was begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from trainers.links.waiting import wait_flag

T = TypeVar("T")


class Handle(Generic[T]):
    """A call that was begun. `wait` finishes it and returns its result, any number of times."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish: Callable[[], T] | None = finish
        self._result: T | None = None

    def wait(self) -> T:
        """Block until it is done, with the thread's `WaitFlag` raised.

        Raises:
            PeerLost: A process that takes part is gone.
        """
        if self._finish is not None:
            finish, self._finish = self._finish, None
            with wait_flag():
                self._result = finish()
        return self._result  # type: ignore[return-value]  # T may itself be None


def done(value: T) -> Handle[T]:
    """A handle with nothing left to wait for."""
    return Handle(lambda: value)
