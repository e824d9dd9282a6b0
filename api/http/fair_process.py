"""One process for what takes long, in which users take turns."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from typing import TypeVar

from service import Turns

T = TypeVar("T")

MOST_IN_FLIGHT = 32
"""Pieces of work that one user may have: each holds a body of a quarter of a megabyte."""
IDLE_S = 60.0
"""How long the process, of 70 MB, is kept without work. To start it takes half a second."""
NICENESS = 10
"""Of the work: what the service answers meanwhile goes first."""


class FairProcess:
    """Does one piece of work at a time, for one user after the other, in a process that is there while it is needed.

    A thread would hold Python's lock, and so delay the event loop and whatever reads the database. All calls come from
    one event loop.
    """

    def __init__(self, name: str, idle_s: float = IDLE_S) -> None:
        self.turns = Turns(MOST_IN_FLIGHT, f"{name} of yours are being read")
        self.idle_s = idle_s
        self.process: Executor | None = None
        self.ending: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Begin nothing more."""
        if self.ending is not None:
            self.ending.cancel()
        if self.process is not None:
            self.process.shutdown(wait=False, cancel_futures=True)
            self.process = None

    async def run(self, turn: asyncio.Lock, work: Callable[..., T], *args: object) -> T:
        """What `work(*args)` returns or raises, once it has been done in this turn, of which the user has a place.

        All of it must be picklable. Raises BrokenExecutor if the process was ended twice before it was done.
        """
        async with turn:
            try:
                return await self._try(work, *args)
            except BrokenExecutor:  # by the kernel, if it had no memory; maybe for what another user had sent
                return await self._try(work, *args)
            finally:
                if self.ending is not None:
                    self.ending.cancel()
                self.ending = asyncio.get_running_loop().call_later(self.idle_s, self._end_if_idle)

    async def _try(self, work: Callable[..., T], *args: object) -> T:
        process = self.process = self.process or own_process()
        try:
            return await asyncio.get_running_loop().run_in_executor(process, _behind, work, *args)
        except BrokenExecutor:
            if self.process is process:
                self.process = None
            raise

    def _end_if_idle(self) -> None:
        if not self.turns.in_flight:  # else whoever is there sets the time anew
            self.close()


def own_process() -> Executor:
    """An executor of one process, which starts with its first piece of work."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_begin)


def _behind(work: Callable[..., T], *args: object) -> T:
    """Do it when the service has nothing to do. The modules of `work` have been imported before this, at the service's
    own priority: behind everything else, a machine with a load of 25 took a minute for them."""
    os.setpriority(os.PRIO_PROCESS, 0, max(os.getpriority(os.PRIO_PROCESS, 0), NICENESS))
    return work(*args)


def _begin() -> None:
    """Leave Ctrl-C to the service, and end with it however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    service = multiprocessing.parent_process()
    assert service is not None

    def follow() -> None:
        service.join()
        os._exit(0)

    threading.Thread(target=follow, name="end with the service", daemon=True).start()
