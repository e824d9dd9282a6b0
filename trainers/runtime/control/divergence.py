"""Whether a run learns nothing: its loss stays where guessing would have it, or well above where it began.

Not only a loss that is no number any more is a failure: at a rate that is too high the loss may settle anywhere.
"""

from dataclasses import dataclass

PATIENCE = 3
"""Epochs in a row after which it is said. A warm-up or a plateau at the start may take one or two."""
AT_CHANCE = 0.98
"""Of the loss of a model that knows only that the classes are equally frequent."""
ABOVE_START = 2.0
"""Times the loss of the first step."""
REMEDY = "a smaller optimizer.lr or a warm-up may help"


@dataclass
class DivergenceWatch:
    """Looks at the mean training loss of each epoch."""

    chance: float
    """The loss of guessing; 0 where it is not known."""
    start: float | None = None
    """The first loss that was reported."""
    bad_epochs: int = 0
    """In a row, up to now."""
    warning: str | None = None
    """What is wrong; None while nothing is."""

    def begins(self, loss: float) -> None:
        """The loss of the first step of the run, or of another one."""
        self.start = loss if self.start is None else self.start

    def epoch(self, number: int, loss: float | None, is_last: bool) -> str | None:
        """An epoch is over (1 for the first). What is wrong, once there is enough evidence for it."""
        why = None if loss is None else self._fault(loss)
        self.bad_epochs = self.bad_epochs + 1 if why is not None else 0
        enough = self.bad_epochs >= PATIENCE or (is_last and self.bad_epochs > 0)
        self.warning = f"after epoch {number} the loss is {loss:.3g}, {why}; {REMEDY}" if enough else None
        return self.warning

    def _fault(self, loss: float) -> str | None:
        if self.start is not None and loss > ABOVE_START * max(self.start, self.chance):
            return f"and it was {self.start:.3g} at the start: the run diverges"
        if self.chance and loss >= AT_CHANCE * self.chance:
            return f"and guessing has {self.chance:.3g}: the run has learned nothing"
        return None
