"""The gate in front of every step, at which the coordinator can hold a worker without interrupting a step."""

import threading


class Gate:
    """Counts the steps that a training thread begins. A worker that is held stays in front of its next step."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.begun = 0
        self.held = False
        self.limit: int | None = None

    def enter(self) -> bool:
        """Begin a step; waits while held. False once as many were begun as the limit allows."""
        with self.changed:
            self.changed.wait_for(lambda: not self.held)
            if self.limit is not None and self.begun >= self.limit:
                return False
            self.begun += 1
            return True

    def hold(self) -> int:
        """Let no further step begin. Returns how many were begun; the last of them may still be under way."""
        with self.changed:
            self.held = True
            return self.begun

    def release(self, limit: int | None = None) -> None:
        """Go on, up to so many steps in all."""
        with self.changed:
            self.held, self.limit = False, limit
            self.changed.notify_all()
