"""What an actor does when it hears nothing from its coordinator: it looks for itself.

A coordinator that is busy is left alone. One that is stopped is killed, so that Ray starts another. One that Ray does
not know any more will not come back: the actor is of no use then, and ends itself.
"""

import time
from contextlib import suppress

import ray

from trainers.elastic.heartbeat import BEAT_S, OwnTime
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.nodes import ask_on
from trainers.runtime.processes import ProcessId, kill_if_stopped

LOOK_S = 2.0
"""Between two looks whether the coordinator was heard."""
RARELY_S = 8 * LOOK_S
"""The same, at most, after it was found running again and again: hundreds of actors that look are a load themselves."""
SILENCE_S = 4 * BEAT_S
"""After such a silence an actor looks at the coordinator's process."""
MISSES = 5
"""So many looks in a row must find no coordinator before an actor ends itself."""


class CoordinatorWatch:
    """Kept by one actor, in a thread of its own."""

    def __init__(self, name: str) -> None:
        """name: The coordinator's, as Ray knows it."""
        self.name = name
        self.clock = OwnTime(2 * LOOK_S)
        self.heard_s = self.turn_s = 0.0
        self.process: ProcessId | None = None
        self.misses = 0

    def hear(self, process: ProcessId, turn_s: float = 0.0) -> None:
        """The coordinator has spoken, from this process. turn_s: How much longer than BEAT_S it is silent by design."""
        self.process, self.turn_s = process, turn_s
        self.heard_s = self.clock.passed_s

    def run(self) -> None:
        """Returns when there is no coordinator any more, nor will there be."""
        pause_s = LOOK_S
        while self.misses < MISSES:
            time.sleep(pause_s)
            if self.clock.read() - self.heard_s < SILENCE_S + self.turn_s:
                self.misses, pause_s = 0, LOOK_S
            elif self.is_there():
                self.misses, pause_s = 0, min(2 * pause_s, RARELY_S)
            else:
                self.misses, pause_s = self.misses + 1, LOOK_S

    def is_there(self) -> bool:
        """Whether there is a coordinator, or will be: Ray knows one that it is starting again. Kills it if it is
        stopped."""
        try:
            ray.get_actor(self.name, NAMESPACE)
        except ValueError:
            return False
        except Exception:  # Ray itself does not answer: that says nothing about the coordinator
            return True
        with suppress(Exception):  # likewise
            if self.process is not None and ask_on(self.process.node_id, kill_if_stopped, self.process) is False:
                self.process = None  # it is gone, and the next one will speak: nothing is to be asked of its node now
        return True
