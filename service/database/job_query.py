"""Which jobs a list shows."""

from pydantic import BaseModel, ConfigDict

from trainers import State


class Query(BaseModel):
    """Which jobs to list."""

    model_config = ConfigDict(frozen=True)

    states: frozenset[State] = frozenset()
    """Jobs in any of these states; empty: in all."""
    labels: tuple[tuple[str, str | None], ...] = ()
    """Jobs with all of these labels; None: with any value."""
    user: str | None = None
    """Jobs of this user; none: of all."""
    project: str | None = None
    """Jobs of this project; none: of all."""
    archived: bool = False
    """The archived jobs, or those that are not."""
    limit: int = 50
    before: str | None = None
    """Only jobs older than this one."""
