"""Who hangs: a worker that does not answer, or one that computes and gets nowhere while the others wait for it."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

BEAT_S = 1.5
"""Between two questions to a worker."""

SILENCE_S = 4.5
"""Without an answer for so long a worker hangs."""

STALL_S, STALL_STEPS = 10.0, 5
"""Without a step for longer than both it is stuck: the seconds, and so many of its median steps."""

REMEMBERED = 64


@dataclass(frozen=True)
class Beat:
    """What a worker answers."""

    generation: int = -1
    begun: int = 0
    """Steps begun in it."""
    computes: bool = False
    """Whether its training thread is in a step, and waits for nobody."""


@dataclass
class Pulse:
    """One worker's, on a monotonic clock in seconds."""

    heard_s: float
    moved_s: float
    beat: Beat = Beat()
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def hear(self, now_s: float, beat: Beat) -> None:
        """It has answered."""
        steps = beat.begun - self.beat.begun if beat.generation == self.beat.generation else beat.begun
        if steps > 0:
            self.steps_s.append((now_s - self.moved_s) / steps)
        if beat != self.beat or not beat.computes:
            self.moved_s = now_s
        self.heard_s, self.beat = now_s, beat

    def fault(self, now_s: float) -> str | None:
        """Why it counts as hung; None while it does not."""
        silent_s, still_s = now_s - self.heard_s, now_s - self.moved_s
        if silent_s >= SILENCE_S:
            return f"did not answer for {silent_s:.1f} s"
        if self.beat.computes and still_s >= max(STALL_S, STALL_STEPS * median(self.steps_s or [0.0])):
            return f"made no step for {still_s:.1f} s"
        return None


@dataclass
class Pulses:
    """Those of all workers, by number."""

    of: dict[int, Pulse] = field(default_factory=dict)

    def watch(self, numbers: Collection[int], now_s: float) -> None:
        """These are there now; one that is new counts as heard."""
        self.of = {number: self.of.get(number) or Pulse(now_s, now_s) for number in numbers}

    def hear(self, number: int, now_s: float, beat: Beat) -> None:
        """A worker has answered."""
        if number in self.of:
            self.of[number].hear(now_s, beat)

    def faults(self, now_s: float) -> dict[int, str]:
        """Who hangs, and why."""
        found = {number: pulse.fault(now_s) for number, pulse in self.of.items()}
        return {number: why for number, why in found.items() if why is not None}
