"""Whether a run learns nothing: its loss stays where guessing would have it, or well above where it began.

Not only a loss that is no number any more is a failure: at a rate that is too high the loss may settle anywhere.
"""

from dataclasses import dataclass

PATIENCE = 3
"""Stretches in a row after which it is said. A warm-up or a plateau at the start may take one or two."""
STRETCHES = 2 * PATIENCE
"""Into which a run of fewer epochs is divided, so that it hears of it by half; a longer one has one an epoch."""
AT_CHANCE = 0.98
"""Of the loss of a model that knows only that the classes are equally frequent."""
ABOVE_START = 2.0
"""Times the loss of the first step."""
REMEDY = "a smaller optimizer.lr or a warm-up may help"


def stretch_of(num_examples: int, run_examples: int) -> float:
    """Examples in a stretch of a run on `num_examples`, which trains `run_examples` in all; the last is no shorter."""
    return run_examples / max(STRETCHES, run_examples // num_examples)


@dataclass
class DivergenceWatch:
    """Looks at the mean training loss of each stretch of a run."""

    chance: float
    """The loss of guessing; 0 where it is not known."""
    stretch: float
    """The length of one in examples, as `stretch_of` has it."""
    examples: int = 0
    """Trained when this begins."""
    is_over: bool = False
    """Whether the last stretch was looked at: what is reported later is too little to judge by."""
    before: tuple[float, float] = (0.0, 0.0)
    """The sums of losses and weights when it began."""
    start: float | None = None
    """The first loss that was reported."""
    bad_stretches: int = 0
    """In a row, up to now."""
    warning: str | None = None
    """What is wrong; None while nothing is."""

    def begins(self, loss: float) -> None:
        """The loss of the first step of the run, or of another one."""
        self.start = loss if self.start is None else self.start

    def look(self, examples: int, sums: tuple[float, float], epoch: float, is_last: bool) -> None:
        """Judge the stretch under way if it is over, by `warning`.

        Args:
            examples: Trained so far.
            sums: Of losses and weights, of the run so far.
            epoch: How many are trained, for the sentence.
            is_last: Whether everything is trained.
        """
        loss, weight = (now - then for now, then in zip(sums, self.before, strict=True))
        is_due = is_last or examples // self.stretch > self.examples // self.stretch
        if self.is_over or not weight or not is_due:
            return
        self.examples, self.before, self.is_over = examples, sums, is_last
        why = self._fault(loss / weight)
        self.bad_stretches = self.bad_stretches + 1 if why is not None else 0
        enough = self.bad_stretches >= PATIENCE or (is_last and self.bad_stretches > 0)
        said = f"after epoch {epoch:.3g} the loss is {loss / weight:.3g}, {why}; {REMEDY}"
        self.warning = said if enough else None

    def _fault(self, loss: float) -> str | None:
        if self.start is not None and loss > ABOVE_START * max(self.start, self.chance):
            return f"and it was {self.start:.3g} at the start: the run diverges"
        if self.chance and loss >= AT_CHANCE * self.chance:
            return f"and guessing has {self.chance:.3g}: the run has learned nothing"
        return None
