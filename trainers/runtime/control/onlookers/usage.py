"""What the actors of a run use of their machines, over time, in its log: an event for all of them at once, every three
seconds to begin with, and less often the longer the run has lasted, so that a day is some thousand events."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from trainers.elastic.heartbeat import Reading
from trainers.events import Usage
from trainers.runtime.actors.usage import UsageMeter
from trainers.runtime.control.run_log import RunLog

EVERY_S, LONGEST_S = 3.0, 30.0
"""Between two events, at first and after hours."""
SILENT_S = 15.0
"""An actor of which nothing was heard for so long is gone, or begins anew."""
RESOLUTION = 200
"""Between two events lies such a part of the time since the first, as long as that is less."""
SHORTEST_S = 0.5
"""Over less time no rate is told."""


@dataclass
class _Course:
    """Of one actor, since the last event."""

    begin: Reading
    """The last one of the event before."""
    heard_s: float
    """When the last one came."""
    readings: list[Reading] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.readings[-1].at_s - self.begin.at_s if self.readings else 0.0


class UsageLog:
    """Hears the actors' readings."""

    def __init__(self, log: RunLog, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = log
        self.clock = clock
        self.own = UsageMeter("coordinator")
        self.courses: dict[str, _Course] = {}  # by the actor's name
        self.begun_s = self.told_s = clock()
        self.turn_s = 0.0
        """How much longer than a heartbeat it takes until all actors have said something again."""

    def hear(self, reading: Reading) -> None:
        """An actor says what it uses."""
        course = self.courses.get(reading.actor)
        last = None if course is None else (course.readings or [course.begin])[-1]
        if course is None or last is None or reading.cpu_s < last.cpu_s:  # another process has the name
            self.courses[reading.actor] = _Course(reading, self.clock())
        else:
            course.readings.append(reading)
            course.heard_s = self.clock()

    def look(self) -> None:
        """Write an event, if it is time for one."""
        now_s = self.clock()
        if (own := self.own.read_if_due()) is not None:
            self.hear(own)
        if now_s - self.told_s >= min(LONGEST_S, max(EVERY_S, (now_s - self.begun_s) / RESOLUTION)) + self.turn_s:
            self.tell()

    def tell(self) -> None:
        """Write what is new."""
        now_s = self.clock()
        since_s, self.told_s = now_s - self.told_s, now_s
        told = {actor: course for actor, course in self.courses.items() if course.seconds >= SHORTEST_S}
        self.courses = {
            actor: _Course(course.readings[-1], course.heard_s) if actor in told else course
            for actor, course in self.courses.items()
            if now_s - course.heard_s < SILENT_S + self.turn_s
        }
        if told:
            self.log.usage(_usage(since_s, dict(sorted(told.items(), key=lambda item: _place(item[0])))))


def _usage(seconds: float, courses: dict[str, _Course]) -> Usage:
    ends = [(course.begin, course.readings[-1], course.seconds) for course in courses.values()]
    columns = {
        "gpu_share": [_mean([r.gpu_share for r in course.readings]) for course in courses.values()],
        "gpu_memory_mb": [_most([r.gpu_bytes for r in course.readings]) for course in courses.values()],
    }
    return Usage(
        seconds=round(seconds, 1),
        actors=list(courses),
        cpu_cores=[round((end.cpu_s - begin.cpu_s) / s, 2) for begin, end, s in ends],
        memory_mb=[_most([r.memory_bytes for r in course.readings]) or 0.0 for course in courses.values()],
        sent_kb_per_s=[round(max(0, end.sent_bytes - begin.sent_bytes) / s / 1000, 1) for begin, end, s in ends],
        received_kb_per_s=[
            round(max(0, end.received_bytes - begin.received_bytes) / s / 1000, 1) for begin, end, s in ends
        ],
        **{name: values for name, values in columns.items() if any(value is not None for value in values)},
    )


def _mean(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return round(sum(known) / len(known), 2) if known else None


def _most(sizes: list[int | None]) -> float | None:
    """In megabytes."""
    known = [size for size in sizes if size is not None]
    return round(max(known) / 1e6, 1) if known else None


def _place(actor: str) -> tuple[str, int, str]:
    """By kind, and by number within it."""
    kind, _, number = actor.partition("/")
    return kind, int(number) if number.isdigit() else -1, actor
