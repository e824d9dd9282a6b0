"""How far a run has come. Imports no torch: the coordinator counts with it too."""

from copy import copy
from dataclasses import dataclass
from typing import Any, Self

from trainers.optim.loss_scale import FIRST


@dataclass(frozen=True)
class Position:
    """How far the data has been trained."""

    epoch: int = 0
    """Epochs that are wholly trained."""
    step: int = 0
    """Synchronous steps of the epoch after these."""
    updates: int = 0
    examples: int = 0
    learning_rate: float = 0.0
    """Of the last update, 0 where there was none: momentum correction goes on from it."""
    applied: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """For each shard the pushes that it had applied: rows of epoch, group, first and last minibatch."""
    virtual: int = 0
    """Virtual workers of the steps from here on, where they follow the workers; 0: as in the spec."""
    first: int = 0
    """The minibatch of the epoch with which its step 0 would have begun, had all steps been of that size."""
    ramp_from: float = 0.0
    """What the learning rate was multiplied by when the number of virtual workers changed last; 0: it never did."""
    ramp_since: int = 0
    """Examples trained by then."""

    loss_scale: float = FIRST
    """By what the loss of the next step is multiplied (`precision: float16`)."""
    scaled_updates: int = 0
    """In a row, since that changed."""

    def after(self, **changes: Any) -> Self:
        """The same with some fields changed: `dataclasses.replace` would go through all of them, at every step."""
        found = copy(self)
        found.__dict__.update(changes)
        return found

    @property
    def within_epoch(self) -> bool:
        """Whether some examples of the epoch under way are trained already."""
        return self.step > 0 or any(row[0] >= self.epoch for rows in self.applied for row in rows)
