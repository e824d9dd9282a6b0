"""A world of workers in one process, in a seeded order, on a virtual clock."""

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from trainers.errors import PeerLost
from trainers.spans import span

T = TypeVar("T")


class LocalWorld:
    """Runs workers as threads of which exactly one moves."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.changed = threading.Condition()
        self.time_s: dict[int, float] = {}
        self.ready: dict[int, Callable[[], bool]] = {}
        self.turn: int | None = None
        self.failure: BaseException | None = None
        self.numbers = itertools.count(10**6)  # of what runs beside the workers

    def run(self, workers: Sequence[Callable[[], T]]) -> list[T]:
        """Run all workers to their end. Returns their results; raises the first error, or PeerLost if all wait."""
        results: dict[int, T] = {}

        def body(worker: int) -> None:
            results[worker] = workers[worker]()

        for worker in range(len(workers)):
            self.time_s[worker], self.ready[worker] = 0.0, _always
        threads = [threading.Thread(target=self._live, args=(i, body), daemon=True) for i in range(len(workers))]
        for thread in threads:
            thread.start()
        with self.changed:
            self._pass_on()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return [results[i] for i in range(len(workers))]

    def beside(self, worker: int, body: Callable[[int], None], ready: Callable[[], bool]) -> None:
        """Have `body(number)` run beside a worker, as one more that the baton goes to, from when `ready()` holds."""
        number = next(self.numbers)
        with self.changed:
            self.time_s[number], self.ready[number] = self.time_s[worker], ready
        threading.Thread(target=self._live, args=(number, body), daemon=True).start()

    def pause(self, worker: int, ready: Callable[[], bool], cost_s: float | None = None) -> None:
        """Give the baton away until `ready()` holds and it is this worker's turn; costs virtual time. What the others
        draw meanwhile from torch's generator, which they share, does not change what this one draws next."""
        drawn = torch.get_rng_state()
        with self.changed:
            if worker not in self.time_s:  # outside `run`: one caller, nothing to schedule
                if not ready():
                    raise PeerLost("nobody is left who could end this wait")
                return
            self.time_s[worker] += self.random.expovariate(1.0) if cost_s is None else cost_s
            self.ready[worker] = ready
            self._pass_on()
        with span("waiting"):
            self._await_turn(worker)
        torch.set_rng_state(drawn)

    def _live(self, worker: int, body: Callable[[int], None]) -> None:
        try:
            self._await_turn(worker)
            body(worker)
        except BaseException as error:  # the others must be woken whatever it was
            self.failure = self.failure or error
        with self.changed:
            del self.time_s[worker]
            self._pass_on()

    def _await_turn(self, worker: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == worker or self.failure is not None)
            if self.failure is not None:
                raise PeerLost("another worker of this local run failed") from self.failure

    def _pass_on(self) -> None:
        able = [worker for worker in self.time_s if self.ready[worker]()]
        if self.time_s and not able:
            self.failure = self.failure or PeerLost("every worker waits for another one")
        self.turn = min(able, key=lambda worker: (self.time_s[worker], worker), default=None)
        self.changed.notify_all()


def _always() -> bool:
    return True
