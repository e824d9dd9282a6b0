"""Finds actors that hang: that are stopped or deaf, or that compute and get nowhere while the others wait for them.

What takes long is no fault. A process is judged by what the system says of it (stopped, or using no CPU time), and a
step by the steps before it. Python that is busy with one thing for a minute, and answers nobody, is not touched.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

BEAT_S = 1.5
"""Between two heartbeats of an actor."""

SILENCE_S = 4.5
"""An actor that has not answered for so long is looked at from outside: three heartbeats that were missed. Where actors
take turns, so that each has longer between two heartbeats, it is so much longer."""

DEAF_S = 60.0
"""An actor that neither answers nor uses CPU time for so long hangs, in whatever holds Python's lock."""

STALL_S, STALL_STEPS = 10.0, 5
"""A worker that stays in a step, without using CPU time, for longer than both is stuck: the seconds, and so many of its
median steps."""

FIRST_STEP_S = 600.0
"""The same for a worker's first step, which nothing compares with: it may compile, download or wait for a licence."""

BUSY_TIMES = 20
"""A worker that does use CPU time is stuck after FIRST_STEP_S, and so many of its median steps: it goes in circles."""

BUSY_SHARE = 0.02
"""Of one core: what an actor's threads that only answer questions stay below."""

REMEMBERED = 64
"""Steps whose times the median is taken of."""


class OwnTime:
    """A clock for a judge: it passes over the time in which the judge itself did not run.

    A judge that was stopped, swapped out or short of a core for a while has not heard what was said meanwhile.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """most_s: What passes between two readings at most; a judge that runs reads more often."""
        self.most_s = most_s
        self.clock = clock
        self.last_s = clock()
        self.passed_s = 0.0

    def read(self) -> float:
        """Seconds in which the judge ran."""
        now_s = self.clock()
        self.passed_s += min(now_s - self.last_s, self.most_s)
        self.last_s = now_s
        return self.passed_s


@dataclass(frozen=True)
class Printed:
    """What an actor's code has printed since its last heartbeat."""

    actor: str
    """Its name within the run: `worker/2`, `evaluator`."""
    lines: tuple[tuple[float, str, str], ...] = ()
    """When, in seconds since 1970; `stdout` or `stderr`; the text."""
    left_out: int = 0
    """Lines beyond those, too many to keep."""


@dataclass(frozen=True)
class Reading:
    """What an actor's process uses of its machine."""

    actor: str
    """Its name within the run: `worker/2`, `evaluator`."""
    at_s: float
    """On a clock of its own that runs evenly."""
    cpu_s: float
    """CPU time of all its threads so far; without that of processes that it has started."""
    memory_bytes: int
    """Resident, with what it shares with others."""
    sent_bytes: int = 0
    """Over its TCP connections, so far."""
    received_bytes: int = 0
    gpu_share: float | None = None
    """0 to 1: of the last moments, that in which its GPU computed; None where it has none, or nobody tells."""
    gpu_bytes: int | None = None
    """That it has taken from its GPU."""


@dataclass(frozen=True)
class Heartbeat:
    """What an actor answers when it is asked whether it is alive."""

    generation: int = -1
    begun: int = 0
    """Steps begun in that generation."""
    computes: bool = False
    """Whether its training thread is in a step, and not waiting for another worker or a shard."""
    cpu_s: float = 0.0
    """CPU time that the process has used so far."""
    activity: str = ""
    """What it does while it gets ready."""
    activity_s: float = 0.0
    """For how long."""

    example: int = -1
    """Of the dataset: which one it has been reading for longest; -1 while it reads none."""
    reading_s: float = 0.0
    """For how long."""

    memory_kills: int = -1
    """Processes that the kernel has ended for want of memory where this one is; -1: not known."""

    printed: Printed | None = None
    """Since the last heartbeat, if anything."""

    reading: Reading | None = None
    """What the process uses; not at every heartbeat."""

    @property
    def progress(self) -> tuple[int, int, bool]:
        """What changes when a worker gets on."""
        return self.generation, self.begun, self.computes


@dataclass
class HeartbeatHistory:
    """What is known of one actor, in seconds of the judge's `OwnTime`."""

    heard_s: float
    """When it last answered."""
    moved_s: float
    """When it last made a step, or waited."""
    busy_s: float = 0.0
    """When it was last found to use CPU time."""
    beat: Heartbeat = Heartbeat()
    is_stopped: bool = False
    """Whether the system says so (SIGSTOP), when it was last looked at."""
    longest_s: float = 0.0
    """For how long it was at one thing in the step that is under way, before what it is at now."""
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    told: tuple[float, float] | None = None
    """When it last told its CPU time, and what that was."""
    turn_s: float = 0.0
    """How much longer than BEAT_S it has between two heartbeats, because others have their turns. So much later is what
    it did known, too, and it is judged so much later."""
    seen: tuple[float, float] | None = None
    """When its CPU time was last seen from outside, with what it waited for, and what it was."""

    def hear(self, now_s: float, beat: Heartbeat) -> None:
        """The actor has answered."""
        before = self.beat.begun if beat.generation == self.beat.generation else 0
        steps = beat.begun - max(1, before)  # made: the one that was begun last is not over
        still_s = now_s - self.moved_s
        if steps > 0:
            self.steps_s.append(max(self.longest_s, still_s / steps))
        if beat.begun != self.beat.begun:
            self.longest_s = 0.0
        elif beat.progress != self.beat.progress:
            self.longest_s = max(self.longest_s, still_s)
        if beat.progress != self.beat.progress or not beat.computes:
            self.moved_s = now_s
        self.heard_s, self.beat, self.is_stopped = now_s, beat, False
        self._compare(self.told, now_s, beat.cpu_s)
        self.told, self.seen = (now_s, beat.cpu_s), None

    def see(self, now_s: float, is_stopped: bool, cpu_s: float) -> None:
        """The system was asked about the actor's process. cpu_s: that it has used, or waited for."""
        self.is_stopped = is_stopped
        self._compare(self.seen or self.told, now_s, cpu_s)
        self.seen = now_s, cpu_s

    def is_silent(self, now_s: float) -> bool:
        """Whether somebody should look at its process."""
        return now_s - self.heard_s >= SILENCE_S + self.turn_s

    def fault(self, now_s: float, read_within_s: float, deaf_s: float = DEAF_S) -> str | None:
        """Why the actor counts as hung; None while it does not.

        read_within_s: How long it may read one example. deaf_s: How long it may neither answer nor be known to compute.
        """
        if self.is_silent(now_s):
            return self._silence(now_s, deaf_s)
        if self.beat.example >= 0 and self.beat.reading_s >= read_within_s:
            return f"did not read example {self.beat.example} of the dataset within {read_within_s:g} s"
        return self._stall(now_s) if self.beat.computes else None

    def _silence(self, now_s: float, deaf_s: float) -> str | None:
        silent_s = now_s - self.heard_s
        if self.is_stopped:
            return f"did not answer for {silent_s:.1f} s: its process is stopped"
        if now_s - max(self.heard_s, self.busy_s) >= deaf_s + self.turn_s:
            return f"did not answer for {silent_s:.1f} s, nor use CPU time"
        return None

    def _stall(self, now_s: float) -> str | None:
        still_s = now_s - self.moved_s
        usual_s = median(self.steps_s) if self.steps_s else None
        stall_s = FIRST_STEP_S if usual_s is None else max(STALL_S, STALL_STEPS * usual_s)
        if now_s - max(self.moved_s, self.busy_s) >= stall_s + self.turn_s:
            return f"made no step for {still_s:.1f} s, nor used CPU time"
        if still_s >= max(FIRST_STEP_S, BUSY_TIMES * (usual_s or 0.0)) + self.turn_s:
            return f"made no step for {still_s:.1f} s"
        return None

    def _compare(self, before: tuple[float, float] | None, now_s: float, cpu_s: float) -> None:
        if before is not None:
            since_s, before_s = before
            if cpu_s - before_s > BUSY_SHARE * (now_s - since_s):
                self.busy_s = now_s
