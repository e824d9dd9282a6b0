"""Whose turn it is among the projects."""

from dataclasses import dataclass, field, replace


@dataclass
class Turns:
    """What the queue remembers from one decision to the next. A service that starts again begins without it."""

    holder: str | None = None
    """The project whose job is reserved: it goes first until a job of it has started."""
    last_start: dict[str, int] = field(default_factory=dict)
    """Project -> which start its last one was, counted from 1 over all projects."""

    def started(self, project: str) -> None:
        """A job of the project has started."""
        self.last_start[project] = 1 + max(self.last_start.values(), default=0)
        if self.holder == project:
            self.holder = None

    def copy(self) -> "Turns":
        """The same, to be changed by itself."""
        return replace(self, last_start=dict(self.last_start))
