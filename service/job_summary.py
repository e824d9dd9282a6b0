"""A job in a list. Imports no database, so that `millrace list` need not."""

from pydantic import BaseModel

from trainers import State


class JobSummary(BaseModel):
    """A job in a list."""

    id: str
    name: str
    user: str
    """Who submitted it."""
    project: str = "default"
    """Whose quotas and share of the cluster count."""
    labels: dict[str, str]
    priority: int
    archived: bool = False
    """Whether lists leave it out unless they are asked for it."""
    algorithm: str
    state: State
    reason: str
    """Why it is in this state, as one CamelCase word."""
    message: str
    """The reason as a sentence."""
    created: float
    """Seconds since 1970."""
    finished: float | None
    """Seconds since 1970; null while it has not ended."""
    progress: float
    """0 to 1: how much of the training is done."""
    eta_s: float | None
    """Seconds until the last epoch ends at the mean pace so far; null while that is not known."""
    headline: str | None
    """The metric of its task by which runs are compared; null before the first evaluation."""
    headline_value: float | None
    """What the last evaluation found of it: where there is a validation set, on that one, and at the end on the test
    set."""
    measured: dict[str, float] = {}
    """What the last evaluation found, by its name there: `test_accuracy`, `validation_loss`."""
    curve: list[float] = []
    """The headline at the evaluations so far; of many, some at even distances."""
    loss: float | None = None
    """Mean training loss, as it was reported last."""
    examples_per_s: float | None = None
    """While it trains as it was reported last, and once it has ended the mean."""
    num_workers: int = 0
    """That train, or that it asks for while it waits, or that it had when it ended."""
    wall_s: float = 0.0
    """Seconds in which it was at work, pauses and waiting not counted."""
    place: int | None
    """The position of a waiting job in the queue, from 1."""
    starts_in_s: float | None
    """About how many seconds until a waiting job starts; null if that cannot be estimated."""
