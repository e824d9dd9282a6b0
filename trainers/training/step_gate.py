"""The gate in front of every step, at which the coordinator can hold a worker without interrupting a step."""

import threading


class StepGate:
    """Counts the steps that a training thread begins. A worker that is held stays in front of its next step."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.begun = 0
        self.held = False
        self.closed = False
        self.limit: int | None = None
        self.meetings: set[int] = set()

    def enter(self) -> bool:
        """Begin a step; waits while held. False once as many were begun as the limit allows, or when closed."""
        with self.changed:
            while self.held and not self.closed:
                self.changed.wait()
            if self.closed or (self.limit is not None and self.begun >= self.limit):
                return False
            self.begun += 1
            return True

    def hold(self) -> int:
        """Let no further step begin. Returns how many were begun; the last of them may still be under way."""
        with self.changed:
            self.held = True
            return self.begun

    def release(self, limit: int | None = None, meeting: int | None = None) -> None:
        """Go on, up to `limit` steps in all; meet the others for a snapshot after step number `meeting`."""
        with self.changed:
            self.held, self.limit = False, limit
            if meeting is not None:
                self.meetings.add(meeting)
            self.changed.notify_all()

    def close(self) -> None:
        """Let no step begin any more, whatever is said later: who holds a generation in which somebody has died may be
        heard after who ends it."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def meets(self) -> bool:
        """Whether the workers meet before the step that was just begun. Whoever was held knows it by then, and has
        had the lock since; only the thread that enters asks."""
        return self.begun - 1 in self.meetings
