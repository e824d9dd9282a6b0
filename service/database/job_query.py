"""Which jobs a list shows, or which sweeps."""

from pydantic import BaseModel, ConfigDict

from trainers import State


class PageQuery(BaseModel):
    """What both may be asked for."""

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


class Query(PageQuery):
    """Which jobs to list."""

    name: str | None = None
    """Jobs whose names contain this, in upper or lower case."""
    algorithm: str | None = None
    """Jobs that train by this one."""
    trials: bool = True
    """Whether the trials of sweeps are listed too."""
